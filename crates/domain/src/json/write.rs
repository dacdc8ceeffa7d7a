//! JSON text of a value: members in the caller's order, numbers exactly as they were given.

use super::Json;

impl Json<'_> {
    /// Appends the value as compact JSON text, members in their order and numbers as they stand.
    pub fn write_json(&self, out: &mut String) {
        match self {
            Json::Null => out.push_str("null"),
            Json::Bool(true) => out.push_str("true"),
            Json::Bool(false) => out.push_str("false"),
            Json::Number(text) => out.push_str(text),
            Json::String(text) => push_string(text, out),
            Json::Array(elements) => {
                out.push('[');
                for (index, element) in elements.iter().enumerate() {
                    if index > 0 {
                        out.push(',');
                    }
                    element.write_json(out);
                }
                out.push(']');
            }
            Json::Object(members) => {
                out.push('{');
                for (index, (name, value)) in members.iter().enumerate() {
                    if index > 0 {
                        out.push(',');
                    }
                    push_string(name, out);
                    out.push(':');
                    value.write_json(out);
                }
                out.push('}');
            }
        }
    }

    /// The value as compact JSON text, as [`Json::write_json`] writes it.
    pub fn to_json_text(&self) -> String {
        let mut out = String::new();
        self.write_json(&mut out);
        out
    }
}

/// Appends a string in quotes with the escapes of RFC 8785, section 3.2.2.2: the seven short ones where they exist,
/// `\u00xx` in lower case for the other control characters below U+0020, everything else as it is.
pub(crate) fn push_string(text: &str, out: &mut String) {
    out.reserve(text.len() + 2);
    out.push('"');
    let mut start = 0;
    for (index, byte) in text.bytes().enumerate() {
        if byte >= 0x20 && byte != b'"' && byte != b'\\' {
            continue;
        }
        out.push_str(&text[start..index]);
        start = index + 1;
        match byte {
            b'"' => out.push_str("\\\""),
            b'\\' => out.push_str("\\\\"),
            0x08 => out.push_str("\\b"),
            0x09 => out.push_str("\\t"),
            0x0a => out.push_str("\\n"),
            0x0c => out.push_str("\\f"),
            0x0d => out.push_str("\\r"),
            other => {
                out.push_str(if other < 0x10 { "\\u000" } else { "\\u001" });
                out.push(char::from(b"0123456789abcdef"[usize::from(other & 0xf)]));
            }
        }
    }
    out.push_str(&text[start..]);
    out.push('"');
}
