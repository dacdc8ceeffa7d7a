//! The intent of the story, from `examples/requisition.json`.

use std::path::PathBuf;

use serde::Deserialize;
use serde_json::Value;

/// What an agent wants: a command type, a key that names the intent, and its parameters.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Intent {
    pub command_type: String,
    pub idempotency_key: String,
    pub params: Value,
}

impl Intent {
    /// From the file named on the command line, or else from the example of this checkout.
    pub fn read() -> Result<Intent, String> {
        let example = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples/requisition.json");
        let path = std::env::args_os().nth(1).map_or_else(|| PathBuf::from(example), PathBuf::from);
        let text = std::fs::read_to_string(&path).map_err(|e| format!("{}: {e}", path.display()))?;
        let intent: Intent = serde_json::from_str(&text).map_err(|e| format!("{}: {e}", path.display()))?;
        match intent.params["quantity"].as_u64() {
            Some(_) => Ok(intent),
            None => Err(format!("{}: params.quantity must be a number", path.display())),
        }
    }

    pub fn quantity(&self) -> u64 {
        self.params["quantity"].as_u64().unwrap_or_default()
    }

    /// The parameters as an SQL literal.
    pub fn params_literal(&self) -> String {
        literal(&self.params.to_string())
    }

    /// The same intent with ten times the quantity, as an SQL literal.
    pub fn other_params_literal(&self) -> String {
        let mut params = self.params.clone();
        params["quantity"] = (self.quantity().saturating_mul(10)).into();
        literal(&params.to_string())
    }

    /// What the ERP gets: our key as its reference, and every parameter under its own name.
    pub fn body_template(&self) -> Value {
        let mut body = serde_json::json!({ "reference": "{{ destination_key }}" });
        for name in self.params.as_object().into_iter().flat_map(|members| members.keys()) {
            body[name] = format!("{{{{ params.{name} }}}}").into();
        }
        body
    }
}

/// A text as an SQL literal.
pub fn literal(text: &str) -> String {
    format!("'{}'", text.replace('\'', "''"))
}
