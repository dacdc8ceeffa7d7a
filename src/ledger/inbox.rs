//! The inbox: messages that a consumer in this database takes once, in its own transaction.

use super::access::{Capability, as_owner, tenant_of};
use crate::pg::call::Call;
use crate::pg::datum;
use crate::pg::report::defect;
use crate::pg::spi::{Arg, BYTEA, Mode, Statement, TEXT, TIME};
use command_ledger_domain::canonical::canonical;
use command_ledger_domain::error::{Code, LedgerError};
use command_ledger_domain::hash::sha256;
use command_ledger_domain::key::check_repeatable_name;
use pgrx::pg_sys::Datum;

static TAKEN: Statement = Statement::new(
    Mode::Fresh,
    &[TEXT, TEXT, TEXT],
    "SELECT i.payload_hash FROM command_ledger.inbox i WHERE i.tenant = $1 AND i.consumer = $2 AND i.message_id = $3",
);

static TAKE: Statement = Statement::new(
    Mode::Write,
    &[TEXT, TEXT, TEXT, TIME, BYTEA],
    "INSERT INTO command_ledger.inbox (tenant, consumer, message_id, received_at, payload_hash) VALUES ($1, $2, $3, $4, $5) \
     ON CONFLICT (tenant, consumer, message_id) DO NOTHING RETURNING true",
);

/// Identity of a message's content. No payload and a JSON null are two things.
fn payload_hash(payload: Option<&str>) -> [u8; 32] {
    let mut bytes = b"command_ledger.inbox.v1".to_vec();
    if let Some(text) = payload {
        bytes.push(b':');
        bytes.extend_from_slice(text.as_bytes());
    }
    sha256(&bytes)
}

/// `consume(consumer, message_id, payload, tenant)`: true the first time, false afterwards. Who waits for another
/// session that takes the same message gets it if that one rolls back.
pub fn consume(call: &Call) -> Result<Option<Datum>, LedgerError> {
    let consumer = call.required_text(0, "consumer")?;
    let message_id = call.required_text(1, "message_id")?;
    let tenant = tenant_of(call, 3)?;
    check_repeatable_name("the consumer", consumer)?;
    check_repeatable_name("the message_id", message_id)?;
    let payload = call.jsonb(2).map(|j| canonical(&j.tree()?)).transpose()?;
    let hash = payload_hash(payload.as_deref());
    let first_time = as_owner(call, |caller, connection| {
        caller.require(connection, Capability::Execute, tenant, None)?;
        let name = [Arg::Text(tenant), Arg::Text(consumer), Arg::Text(message_id)];
        // Asked first, so that a repeat writes nothing. Twice at most: the winner of a race may be gone when it is read.
        for _ in 0..3 {
            if let Some(row) = TAKEN.first(connection, &name)? {
                if row.hash(0) == Some(hash) {
                    return Ok(false);
                }
                return Err(LedgerError::new(
                    Code::IdempotencyConflict,
                    "this consumer has taken a message with this id and another payload",
                )
                .hint("A redelivery carries the same payload. For another message use another message_id."));
            }
            let args = [
                Arg::Text(tenant),
                Arg::Text(consumer),
                Arg::Text(message_id),
                Arg::Time(datum::now_us()),
                Arg::Bytes(&hash),
            ];
            if TAKE.first(connection, &args)?.is_some() {
                return Ok(true);
            }
        }
        Err(defect("a message was neither free nor taken"))
    })?;
    Ok(Some(Datum::from(first_time)))
}

crate::sql_function!(ledger_consume, pg_finfo_ledger_consume, consume);
