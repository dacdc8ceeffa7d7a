//! A parameter as its SQL text: the server's own input function makes the value.

use std::error::Error;

use postgres::types::private::BytesMut;
use postgres::types::{Format, IsNull, ToSql, Type, to_sql_checked};

/// A parameter of any type in text form: `Lit("10 minutes")` for an interval, `Lit("{\"n\": 1.10}")` for a jsonb
/// whose numbers arrive digit by digit, `Lit(uuid_text)`.
#[derive(Clone, Copy, Debug)]
pub struct Lit<'a>(pub &'a str);

impl ToSql for Lit<'_> {
    fn to_sql(&self, _: &Type, out: &mut BytesMut) -> Result<IsNull, Box<dyn Error + Sync + Send>> {
        out.extend_from_slice(self.0.as_bytes());
        Ok(IsNull::No)
    }

    fn accepts(_: &Type) -> bool {
        true
    }

    fn encode_format(&self, _: &Type) -> Format {
        Format::Text
    }

    to_sql_checked!();
}
