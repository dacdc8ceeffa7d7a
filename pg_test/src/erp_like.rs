//! The two kinds of destination that most tests need, defined the same way everywhere.

use crate::destination::Destination;
use crate::ledger::Ledger;
use serde_json::{Value, json};

/// Defines a destination `erp` that does nothing with a repeated key and can be searched by reference, and a command
/// type `requisition` for it.
pub fn searchable(ledger: &mut Ledger, destination: &Destination, overrides: Value) {
    let search = format!("{}?reference={{{{ destination_key }}}}", destination.url("/records"));
    ledger.define_http_destination(
        "erp",
        &destination.url("/records"),
        json!({
            "request": {"body": {"reference": "{{ destination_key }}", "lines": "{{ params.lines }}"},
                        "timeout": "2s", "connect_timeout": "1s"},
            "success": {"statuses": [200, 201], "record_id": "$.id"},
            "lookup": {"method": "GET", "url": search, "records": "$[*]", "match": "$.reference", "record_id": "$.id",
                       "settle_delay": "300ms", "agreeing": 2, "interval": "200ms"},
        }),
    );
    if !overrides.is_null() {
        ledger.define_type("requisition", overrides);
    } else {
        ledger.define_type("requisition", json!({"destination": "erp", "retry": {"base": "50ms", "cap": "200ms"}}));
    }
}

/// Defines a destination `pay` that deduplicates on its header for a day, and a command type `payment` for it.
pub fn deduplicating(ledger: &mut Ledger, destination: &Destination) {
    ledger.define_http_destination(
        "pay",
        &destination.url("/records"),
        json!({
            "request": {"timeout": "2s", "connect_timeout": "1s"},
            "idempotency": {"mode": "key", "header": "Idempotency-Key", "window": "24h"},
            "success": {"statuses": [200, 201], "record_id": "$.id"},
        }),
    );
    ledger.define_type("payment", json!({"destination": "pay", "retry": {"base": "50ms", "cap": "200ms"}}));
}

/// Defines a destination `mail` that neither deduplicates nor can be asked, and a command type `letter` for it.
pub fn unprotected(ledger: &mut Ledger, destination: &Destination) {
    ledger.define_http_destination(
        "mail",
        &destination.url("/records"),
        json!({
            "request": {"body": {"reference": "{{ destination_key }}"}, "timeout": "2s", "connect_timeout": "1s"},
            "success": {"statuses": [200, 201], "record_id": "$.id"},
        }),
    );
    ledger.define_type("letter", json!({"destination": "mail", "retry": {"base": "50ms", "cap": "200ms"}}));
}
