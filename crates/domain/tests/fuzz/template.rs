//! Templates: compiling and rendering never panic, stay within their limits, say the same twice, escape what goes into
//! a URL, and never name a value of the payload in a fault. An input is a template, a line of `---`, and params.

use super::driver::{Target, Verdict, skeleton};
use command_ledger_domain::json::Json;
use command_ledger_domain::template::{Context, Escape, Fault, MAX_OUTPUT_BYTES, Template};

const TARGET: Target = Target {
    name: "template",
    words: &[
        "{{ params.a }}",
        "{{ ",
        " }}",
        "{% if ",
        "{% endif %}",
        "{% for x in params.a %}",
        "{% endfor %}",
        "{% set x = ",
        "params",
        "destination_key",
        " | upper",
        " | default(1)",
        " | join(',')",
        " ~ ",
        " is defined",
        "[0]",
        "[1:2]",
        " in ",
        "not ",
        "(",
        ")",
        "loop.index",
        "\n---\n",
        "{\"a\":1.10}",
        "{# #}",
    ],
    inputs: 12_000,
};
/// Stands in the params wherever a string does.
const SECRET: &str = "PAYLOADVALUE";
const ID: &str = "00000000-0000-8000-8000-000000000000";

type Render = for<'v> fn(&'v Template, &mut Context<'v>, Escape) -> Result<String, Fault>;

/// The params with the secret in every string.
fn marked(value: &Json<'_>) -> Json<'static> {
    match value {
        Json::String(text) => Json::String(format!("{SECRET}{text}").into()),
        Json::Array(elements) => Json::Array(elements.iter().map(marked).collect()),
        Json::Object(members) => {
            Json::Object(members.iter().map(|(name, value)| (name.to_string().into(), marked(value))).collect())
        }
        other => other.clone().into_owned(),
    }
}

fn property(input: &[u8], render: Render) -> Verdict {
    let Ok(text) = std::str::from_utf8(input) else { return Ok("not UTF-8".to_owned()) };
    let (source, params) = text.split_once("\n---\n").unwrap_or((text, "{}"));
    let template = match Template::compile(source) {
        Ok(template) => template,
        Err(fault) if fault.to_string().is_empty() => return Err("a fault without a reason".to_owned()),
        Err(fault) => return Ok(skeleton(&fault.to_string())),
    };
    if template.source() != source {
        return Err("another source".to_owned());
    }
    let params = marked(&Json::parse(params).unwrap_or(Json::Object(Vec::new())));
    let context = || Context::new(&params, "k", ID, "default", "t");
    let mut answers = Vec::new();
    for escape in [Escape::None, Escape::Url] {
        let (once, twice) = (render(&template, &mut context(), escape), render(&template, &mut context(), escape));
        if once != twice {
            return Err("not the same twice".to_owned());
        }
        match once {
            Ok(text) if text.len() > MAX_OUTPUT_BYTES => return Err("more than may be produced".to_owned()),
            Ok(text) if escape == Escape::Url && template.value(&mut context()).is_some() && !is_url_text(&text) => {
                return Err(format!("not escaped: {text}"));
            }
            Ok(text) => answers.push(format!("{} {}", text.len().checked_ilog2().unwrap_or(0), text.contains(SECRET))),
            Err(fault) if fault.to_string().is_empty() => return Err("a fault without a reason".to_owned()),
            Err(fault) if !source.contains(SECRET) && fault.to_string().contains(SECRET) => {
                return Err(format!("a payload value in a fault: {fault}"));
            }
            Err(fault) => answers.push(skeleton(&fault.to_string())),
        }
    }
    Ok(answers.join(" / "))
}

fn is_url_text(text: &str) -> bool {
    text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._~%".contains(&byte))
}

#[test]
fn templates_keep_their_limits_and_their_silence() {
    TARGET.holds(|input| property(input, |template, context, escape| template.text(context, escape)));
}

#[test]
fn a_template_that_does_not_escape_is_found_out() {
    TARGET.is_found_out("not escaped", |input| {
        property(input, |template, context, _| template.text(context, Escape::None))
    });
}
