//! An error as the server reported it.

use std::fmt;

/// What a failed statement said. A lost connection has the SQLSTATE `08006` and the client's words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SqlError {
    /// The five characters.
    pub sqlstate: String,
    /// The primary message.
    pub message: String,
    /// DETAIL, empty when there is none.
    pub detail: String,
    /// HINT, empty when there is none.
    pub hint: String,
    /// CONTEXT, empty when there is none.
    pub context: String,
}

/// What stands for a connection that is gone or was never made.
const CONNECTION_FAILURE: &str = "08006";

impl SqlError {
    /// Whether there is no connection (any more), rather than a refusal by the server.
    pub fn is_connection_lost(&self) -> bool {
        self.sqlstate == CONNECTION_FAILURE
    }
}

impl From<postgres::Error> for SqlError {
    fn from(error: postgres::Error) -> SqlError {
        let text = |part: Option<&str>| part.unwrap_or_default().to_owned();
        if let Some(said) = error.as_db_error() {
            return SqlError {
                sqlstate: said.code().code().to_owned(),
                message: said.message().to_owned(),
                detail: text(said.detail()),
                hint: text(said.hint()),
                context: text(said.where_()),
            };
        }
        let cause = std::error::Error::source(&error).map(|cause| format!(": {cause}")).unwrap_or_default();
        SqlError {
            // A value that does not convert is not a lost connection.
            sqlstate: if cause.is_empty() || error.is_closed() || is_io(&error) { CONNECTION_FAILURE } else { "" }
                .to_owned(),
            message: format!("{error}{cause}"),
            detail: String::new(),
            hint: String::new(),
            context: String::new(),
        }
    }
}

fn is_io(error: &postgres::Error) -> bool {
    std::error::Error::source(error).is_some_and(|cause| cause.is::<std::io::Error>())
}

impl fmt::Display for SqlError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.sqlstate, self.message)?;
        for (name, part) in [("DETAIL", &self.detail), ("HINT", &self.hint), ("CONTEXT", &self.context)] {
            if !part.is_empty() {
                write!(f, "\n{name}: {part}")?;
            }
        }
        Ok(())
    }
}

impl std::error::Error for SqlError {}
