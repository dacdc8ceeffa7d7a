use proptest::prelude::*;

use super::testing::json;
use super::*;

const PARAMS: &str = r#"{
  "amount": 0.10, "big": 9007199254740993, "long": 0.1000000000000000055511151231257827,
  "name": "Müller & Söhne", "empty": "", "none": null, "yes": true, "zero": 0.00,
  "lines": [{"sku": "a", "qty": 1.50}, {"sku": "b", "qty": 2}], "nested": {"deep": {"x": 1}},
  "csv": "a,b,c", "digits": " 0012 ", "price": "12.50", "whole": 12.00, "list": [1, 2.50, "x"]}"#;

fn evaluate(source: &str) -> Result<String, String> {
    let params = json(PARAMS);
    let template = Template::compile(source).map_err(|fault| format!("compile: {fault}"))?;
    let mut context = Context::new(&params, "acme/k-1", "id-1", "acme", "order");
    let result = match template.value(&mut context) {
        Some(value) => value.and_then(|value| {
            let mut out = Vec::new();
            value.write(&mut out, MAX_OUTPUT_BYTES).map(|()| String::from_utf8_lossy(&out).into_owned())
        }),
        None => template.text(&mut context, Escape::None),
    };
    result.map_err(|fault| format!("render: {fault}"))
}

fn refused(source: &str, wanted: &str) {
    match evaluate(source) {
        Ok(text) => panic!("{source} gave {text}"),
        Err(fault) => assert!(fault.contains(wanted), "{source}: {fault}"),
    }
}

#[test]
fn one_expression_keeps_the_type_and_every_digit() {
    for (source, wanted) in [
        ("{{ params.amount }}", "0.10"),
        ("{{ params.big }}", "9007199254740993"),
        ("{{ params.long }}", "0.1000000000000000055511151231257827"),
        ("{{ params.name }}", "\"Müller & Söhne\""),
        ("{{ params.none }}", "null"),
        ("{{ params.yes }}", "true"),
        ("{{ params.lines }}", r#"[{"qty":1.50,"sku":"a"},{"qty":2,"sku":"b"}]"#),
        ("{{ params.lines[0].qty }}", "1.50"),
        ("{{ params.lines[-1].sku }}", "\"b\""),
        ("{{ params['nested']['deep'].x }}", "1"),
        ("{{ params.list[1:] }}", "[2.50,\"x\"]"),
        ("{{ params.amount if params.yes else 1 }}", "0.10"),
        ("{{ params.missing | default(0.10) }}", "0.10"),
        ("{{ params.missing | default(-1.20) }}", "-1.20"),
        ("{{ params.a.b.c | d('x') }}", "\"x\""),
        ("{{ params.empty | default('y', true) }}", "\"y\""),
        ("{{ params.empty | default('y') }}", "\"\""),
        ("{{ params.lines | map(attribute='qty') }}", "[1.50,2]"),
        ("{{ params.price | float }}", "12.50"),
        ("{{ params.whole | int }}", "12"),
        ("{{ params.lines | length }}", "2"),
        ("{{ params.name | length }}", "14"),
        ("{{ params.csv | split(',') | last }}", "\"c\""),
        ("{{- params.yes -}}", "true"),
    ] {
        assert_eq!(evaluate(source).as_deref(), Ok(wanted), "{source}");
    }
}

#[test]
fn text_around_an_expression_makes_text() {
    for (source, wanted) in [
        ("plain", "plain"),
        ("", ""),
        ("a {{ params.amount }} b", "a 0.10 b"),
        (" {{ params.yes }}", " true"),
        ("{{ tenant }}/{{ command_type }}/{{ command_id }}/{{ destination_key }}", "acme/order/id-1/acme/k-1"),
        ("{# nothing #}x{{ 'lit' }}", "xlit"),
        ("{% if params.amount > 0.09 %}more{% elif params.yes %}y{% else %}less{% endif %}", "more"),
        ("{% for l in params.lines %}{{ loop.index }}:{{ l.sku }}={{ l.qty }};{% endfor %}", "1:a=1.50;2:b=2;"),
        ("{% for l in params.lines if l.qty >= 2 %}{{ l.sku }}{% if not loop.last %},{% endif %}{% endfor %}", "b"),
        ("{% for x in params.empty | split(',') if x %}{{ x }}{% else %}none{% endfor %}", "none"),
        ("{% for k, v in params.nested.deep | items %}{{ k }}={{ v }}{% endfor %}", "x=1"),
        ("{% set a = params.name ~ '!' %}{{ a | upper }}{{ a | lower }}", "MÜLLER & SÖHNE!müller & söhne!"),
        ("{{ params.lines | map(attribute='sku') | join('-') }}.", "a-b."),
        ("{{ params.csv | replace(',', ';') }} ", "a;b;c "),
        ("{{ params.name[:6] }}.", "Müller."),
        ("{{ params.digits | trim }}.", "0012."),
        ("{{ params.lines | tojson }} ", r#"[{"qty":1.50,"sku":"a"},{"qty":2,"sku":"b"}] "#),
        ("ends with a line\n", "ends with a line\n"),
        ("{{ params.yes }}\n", "true\n"),
    ] {
        assert_eq!(evaluate(source).as_deref(), Ok(wanted), "{source}");
    }
}

#[test]
fn comparisons_are_exact_and_never_guess() {
    for (source, wanted) in [
        ("{{ params.big == 9007199254740992 }}", "false"),
        ("{{ params.big > 9007199254740992 }}", "true"),
        ("{{ params.big == 9007199254740993.0 }}", "true"),
        ("{{ params.long > 0.1 }}", "true"),
        ("{{ params.amount == 0.1 }}", "true"),
        ("{{ 0 < params.amount < 1 }}", "true"),
        ("{{ params.zero == 0 and not params.zero }}", "true"),
        ("{{ params.price == 12.50 }}", "false"),
        ("{{ params.none == none }}", "true"),
        ("{{ params.yes != true }}", "false"),
        ("{{ 'b' in params.csv }}", "true"),
        ("{{ 'x' in params.nested.deep }}", "true"),
        ("{{ 2.5 in params.list }}", "true"),
        ("{{ 'q' not in ['p', 'q'] }}", "false"),
        ("{{ params.missing is defined }}", "false"),
        ("{{ params.none is none and params.amount is number and params.name is string }}", "true"),
        ("{{ params.lines is sequence and params.nested is mapping and params.yes is boolean }}", "true"),
    ] {
        assert_eq!(evaluate(source).as_deref(), Ok(wanted), "{source}");
    }
    refused("{{ params.name < 1 }}", "no order");
    refused("{{ params.lines == params.lines }}", "cannot be compared");
    refused("{{ 1 in params.name }}", "cannot be searched");
}

#[test]
fn what_is_missing_or_has_no_text_is_an_error_that_names_it() {
    refused("{{ params.missing }}", "params.missing is missing");
    refused("{{ params.a.b.c }}", "params.a is missing");
    refused("{{ params.lines[2] }}", "params.lines[…] is missing");
    refused("{% if params.missing %}x{% endif %}", "params.missing is missing");
    refused("{{ params.missing == 1 }}", "params.missing is missing");
    refused("x{{ params.none }}", "params.none is null");
    refused("x{{ params.lines }}", "params.lines is an array");
    refused("x{{ params.nested }}", "params.nested is an object");
    refused("{{ params.name | int }}", "params.name is not a whole number");
    refused("{{ params.amount | upper }}", "params.amount is a number");
    refused("{{ 1 if params.zero }}", "without else");
    refused("{% for x in params.nested %}{% endfor %}", "needs an array");
    refused("{% if params.zero %}{% set a = 1 %}{% endif %}{{ a }}", "a was not set");
    refused("{% for l in params.lines %}{{ loop }}{% endfor %}", "no form as text");
}

#[test]
fn the_object_model_of_a_scripting_language_is_not_there() {
    for source in ["{{ params.__class__ }}", "{{ params.name.__len__ }}", "{{ params.keys }}", "{{ ''.__class__ }}"] {
        refused(source, "is missing");
    }
    refused("{{ self }}", "unknown variable");
    refused("{{ loop.index }}", "unknown variable");
    refused("{{ params.items() }}", "calls are not available");
    refused("{{ range(9) }}", "calls are not available");
    refused("{{ [params] }}", "constants only");
    refused("{{ {'a': 1} }}", "maps are not available");
    refused("{{ (1, 2) }}", "tuples");
}

#[test]
fn what_the_language_does_not_have_is_refused_at_definition() {
    for (source, wanted) in [
        ("{{ now }}", "unknown variable"),
        ("{{ param.x }}", "available: params, destination_key"),
        ("{{ params.x | shuffle }}", "unknown filter"),
        ("{{ params.x is odd }}", "unknown test"),
        ("{{ params.x | upper(1) }}", "arguments"),
        ("{{ params.x | map('a') }}", "attribute"),
        ("{{ params.x + 1 }}", "arithmetic"),
        ("{{ params.x * 2 }}", "arithmetic"),
        ("{{ -params.x }}", "arithmetic"),
        ("{% include 'x' %}", "syntax"),
        ("{% import 'x' as y %}", "syntax"),
        ("{% extends 'x' %}", "syntax"),
        ("{% macro m() %}{% endmacro %}", "syntax"),
        ("{% block b %}{% endblock %}", "syntax"),
        ("{% filter upper %}x{% endfilter %}", "only text"),
        ("{% with a = 1 %}{% endwith %}", "only text"),
        ("{% set a %}x{% endset %}", "only text"),
        ("{% set params = 1 %}", "cannot be given away"),
        ("{% for x in params.l recursive %}{% endfor %}", "recursive"),
        ("{{ params.x", "syntax"),
        ("{% if params.x %}", "syntax"),
        ("{{ }}", "syntax"),
    ] {
        let fault = Template::compile(source).err().map(|fault| fault.to_string());
        assert!(fault.as_ref().is_some_and(|text| text.contains(wanted)), "{source}: {fault:?}");
    }
    // A name of a loop or a set ends with its scope.
    refused("{% for x in params.lines %}{% endfor %}{{ x }}", "compile: unknown variable");
    refused("{% for x in params.lines %}{% set y = 1 %}{% endfor %}{{ y }}", "compile: unknown variable");
}

/// Runs in a thread with the stack of a small worker: overflow would end the whole test process.
fn in_small_stack(work: impl FnOnce() + Send + 'static) {
    let thread = std::thread::Builder::new().stack_size(1 << 20).spawn(work).expect("a thread starts");
    thread.join().expect("the work does not panic");
}

#[test]
fn hostile_sources_neither_overflow_the_stack_nor_compile() {
    in_small_stack(|| {
        let repeated = |part: &str, count: usize| part.repeat(count);
        let sources = [
            format!("{{{{ {}1{} }}}}", repeated("(", 1900), repeated(")", 1900)),
            format!("{{{{ {}1{} }}}}", repeated("[", 1900), repeated("]", 1900)),
            format!("{{{{ {}params }}}}", repeated("-", 4000)),
            format!("{{{{ {}params }}}}", repeated("- ", 2000)),
            format!("{{{{ {}params }}}}", repeated("not ", 1000)),
            format!("{{{{ params{} }}}}", repeated(".a", 2000)),
            format!("{{{{ params{} }}}}", repeated("[0]", 1300)),
            format!("{{{{ params{} }}}}", repeated("|d", 2000)),
            format!("{{{{ params{} }}}}", repeated("~1", 2000)),
            format!("{{{{ 1{} }}}}", repeated(" if 1 else 1", 330)),
            format!("{{{{ 1{} }}}}", repeated(" and 1", 600)),
            format!("{{{{ 1{} }}}}", repeated("**1", 1300)),
            format!("{{{{ params is {}defined }}}}", repeated("not ", 900)),
            format!("{}{}", repeated("{%if 1%}", 250), repeated("{%endif%}", 200)),
            format!("{}{}", repeated("{%for x in params%}", 110), repeated("{%endfor%}", 110)),
            format!("{}{{{{ {}1{} }}}}", repeated("{%if 1%}", 95), repeated("(", 31), repeated(")", 31)),
            format!("{{%if 1%}}{}{{%endif%}}", repeated("{%elif 1%}", 400)),
            format!("{{{{ 1 }}}}{}", repeated("x", MAX_SOURCE_BYTES)),
        ];
        for source in sources {
            let head: String = source.chars().take(24).collect();
            assert!(Template::compile(&source).is_err(), "{head}…");
        }
    });
}

#[test]
fn a_template_at_the_limits_of_nesting_still_renders_in_a_small_stack() {
    in_small_stack(|| {
        let params = json(r#"{"l": [1]}"#);
        let nested = format!("{}x{}", "{%for a in params.l%}".repeat(48), "{%endfor%}".repeat(48));
        let template = Template::compile(&nested).expect("within the limits");
        let mut context = Context::new(&params, "k", "id", "t", "c");
        assert_eq!(template.text(&mut context, Escape::None).as_deref(), Ok("x"));
    });
}

#[test]
fn a_loop_that_burns_runs_out_of_steps() {
    let items = vec!["1"; 2000].join(",");
    let params = json(&format!(r#"{{"l": [{items}]}}"#));
    let source =
        "{% for a in params.l %}{% for b in params.l %}{% for c in params.l %}{% endfor %}{% endfor %}{% endfor %}";
    let template = Template::compile(source).expect("valid");
    let mut context = Context::new(&params, "k", "id", "t", "c");
    let fault = template.text(&mut context, Escape::None).expect_err("too much work");
    assert!(fault.to_string().contains("steps"), "{fault}");
}

#[test]
fn text_that_doubles_hits_the_size_limit() {
    let doubling = "{% set a = 'aaaaaaaaaaaaaaaa' %}".to_owned() + &"{% set a = a ~ a %}".repeat(40) + "{{ a }}";
    refused(&doubling, "larger than 1048576 bytes");
    let replacing =
        "{% set a = 'aaaaaaaaaaaaaaaa' %}".to_owned() + &"{% set a = a | replace('a', 'aaaaaaaa') %}".repeat(20);
    refused(&(replacing + "{{ a }}"), "larger than 1048576 bytes");
    let params = json(&format!(r#"{{"l": [{}], "s": "{}"}}"#, vec!["1"; 3000].join(","), "x".repeat(1000)));
    for source in ["{% for a in params.l %}{{ params.s }}{% endfor %}", "{{ params.l | join(params.s) }} "] {
        let template = Template::compile(source).expect("valid");
        let mut context = Context::new(&params, "k", "id", "t", "c");
        let fault = template.text(&mut context, Escape::None).expect_err("too large");
        assert!(fault.to_string().contains("larger"), "{source}: {fault}");
    }
}

#[test]
fn constants_and_uses_are_known_without_rendering() {
    let template = |source| Template::compile(source).expect("valid");
    assert_eq!(template("a b").constant(), Some("a b"));
    assert_eq!(template("").constant(), Some(""));
    assert_eq!(template("{{ 'a' }}").constant(), None);
    assert_eq!(template("https://x/{{ tenant }}/y").prefix(), "https://x/");
    assert!(template("{% if tenant %}{{ destination_key }}{% endif %}").uses("destination_key"));
    assert!(!template("destination_key {{ tenant }}").uses("destination_key"));
}

/// Pieces that sources are made of, so that many of them parse.
fn source() -> impl Strategy<Value = String> {
    let pieces = [
        "{{",
        "}}",
        "{%",
        "%}",
        "{#",
        "#}",
        " if ",
        " else ",
        "endif",
        "for x in ",
        "endfor",
        "set x = ",
        "params",
        "x",
        "loop",
        ".name",
        ".lines",
        ".big",
        "[0]",
        "[-1]",
        "[1:]",
        "['a']",
        "(",
        ")",
        " ~ ",
        " == ",
        " < ",
        " in ",
        " and ",
        " not ",
        " is defined",
        " is none",
        "|default(1)",
        "|length",
        "|join(',')",
        "|first",
        "|last",
        "|items",
        "|int",
        "|tojson",
        "|split('a')",
        "|map(attribute='sku')",
        "|replace('a','bb')",
        "1",
        "0.10",
        "'é'",
        "-",
        ",",
        " ",
        "\n",
        "9007199254740993",
        "tenant",
        "é",
    ];
    proptest::collection::vec(proptest::sample::select(pieces.to_vec()), 0..24).prop_map(|parts| parts.concat())
}

proptest! {
    #[test]
    fn no_source_makes_the_compiler_or_the_evaluator_panic(inner in source(), text in source()) {
        for source in [format!("{{{{ {inner} }}}}"), format!("{{% if {inner} %}}{text}{{% endif %}}"), text] {
            drop(evaluate(&source));
        }
    }

    #[test]
    fn any_text_comes_out_of_its_leaf_as_it_went_in(value in any::<String>()) {
        let params = crate::json::Json::Object(vec![("v".into(), crate::json::Json::String(value.as_str().into()))]);
        let template = Template::compile("{{ params.v }}").expect("valid");
        let mut context = Context::new(&params, "k", "id", "t", "c");
        let mut out = Vec::new();
        let leaf = template.value(&mut context).expect("one expression").expect("present");
        leaf.write(&mut out, MAX_OUTPUT_BYTES).expect("small");
        prop_assert_eq!(serde_json::from_slice::<String>(&out).expect("JSON"), value);
    }

    #[test]
    fn any_text_in_a_url_is_unreserved_characters_and_decodes_to_itself(value in "\\PC{1,40}") {
        let encoded = eval::percent_encode(&value);
        prop_assert!(encoded.bytes().all(|b| b.is_ascii_alphanumeric() || b"-._~%".contains(&b)));
        let mut decoded = Vec::new();
        let mut rest = encoded.bytes();
        while let Some(byte) = rest.next() {
            if byte == b'%' {
                let pair: Vec<u8> = rest.by_ref().take(2).collect();
                let text = String::from_utf8(pair).expect("hex");
                decoded.push(u8::from_str_radix(&text, 16).expect("hex"));
            } else {
                decoded.push(byte);
            }
        }
        prop_assert_eq!(String::from_utf8(decoded).expect("UTF-8"), value);
    }
}
