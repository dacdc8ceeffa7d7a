use super::*;
use crate::template::testing::json;

fn compile(schema: &str) -> Result<Validator, LedgerError> {
    Validator::compile(&json(schema))
}

fn check(schema: &str, params: &str) -> Result<(), LedgerError> {
    compile(schema).unwrap_or_else(|error| panic!("{error}: {schema}")).validate(&json(params))
}

fn fails(schema: &str, params: &str, detail: &str) {
    let error = check(schema, params).expect_err(params);
    assert_eq!(error.code, Code::InvalidParams, "{params}");
    assert_eq!(error.detail.as_deref(), Some(detail), "{schema} with {params}");
}

fn refused(schema: &str, detail: &str) {
    let Err(error) = compile(schema) else { panic!("compiled: {schema}") };
    assert_eq!(error.code, Code::InvalidDefinition, "{schema}");
    assert!(error.detail.as_ref().is_some_and(|text| text.contains(detail)), "{schema}: {error}");
    assert!(error.hint.is_some());
}

#[test]
fn a_failure_names_pointer_and_keyword() {
    let schema = r#"{"type": "object", "required": ["plant", "lines"], "additionalProperties": false, "properties": {
        "plant": {"type": "string", "pattern": "^[A-Z]+$", "maxLength": 4}, "amount": {"maximum": 100},
        "lines": {"type": "array", "minItems": 1, "items": {"type": "object", "required": ["sku"]}}, "a/b~c": {"enum": [1, 2]}}}"#;
    assert_eq!(check(schema, r#"{"plant": "AB", "lines": [{"sku": 1}]}"#), Ok(()));
    fails(schema, "[]", "at \"\": keyword type");
    fails(schema, r#"{"lines": [{"sku": 1}]}"#, "at \"\": keyword required, property \"plant\"");
    fails(schema, r#"{"plant": "AB", "lines": []}"#, "at \"/lines\": keyword minItems");
    let missing = r#"{"plant": "AB", "lines": [{"sku": 1}, {}]}"#;
    fails(schema, missing, "at \"/lines/1\": keyword required, property \"sku\"");
    fails(schema, r#"{"plant": "ab", "lines": [{"sku": 1}]}"#, "at \"/plant\": keyword pattern");
    fails(schema, r#"{"plant": "AB", "lines": [{"sku": 1}], "amount": 101}"#, "at \"/amount\": keyword maximum");
    fails(schema, r#"{"plant": "AB", "lines": [{"sku": 1}], "a/b~c": 3}"#, "at \"/a~1b~0c\": keyword enum");
    fails(schema, r#"{"plant": "AB", "lines": [{"sku": 1}], "z": 3}"#, "at \"\": keyword additionalProperties");
}

#[test]
fn no_value_of_the_payload_is_repeated() {
    for schema in [
        r#"{"properties": {"s": {"pattern": "^a$"}}}"#,
        r#"{"properties": {"s": {"type": "number"}}}"#,
        r#"{"properties": {"s": {"const": "a"}}}"#,
        r#"{"properties": {"s": {"enum": ["a"]}}}"#,
        r#"{"properties": {"s": {"maxLength": 1}}}"#,
        r#"{"properties": {"s": {"not": {}}}}"#,
        r#"{"properties": {"s": {"anyOf": [{"type": "null"}, {"type": "number"}]}}}"#,
        r#"{"properties": {"s": {"oneOf": [{}, {}]}}}"#,
        r#"{"properties": {"s": false}}"#,
    ] {
        let error = check(schema, r#"{"s": "hunter2"}"#).expect_err(schema);
        assert!(!format!("{error:?}").contains("hunter2"), "{schema}: {error:?}");
    }
}

#[test]
fn numbers_are_compared_exactly() {
    for (schema, good, bad) in [
        (r#"{"maximum": 9007199254740992}"#, "9007199254740992", "9007199254740993"),
        (r#"{"minimum": 9007199254740993}"#, "9007199254740993", "9007199254740992"),
        (r#"{"exclusiveMinimum": 9007199254740992}"#, "9007199254740993", "9007199254740992"),
        (r#"{"maximum": 0.1}"#, "0.10", "0.10000000000000001"),
        (r#"{"maximum": 1e20}"#, "100000000000000000000", "100000000000000000001"),
        (r#"{"const": 9007199254740993}"#, "9007199254740993", "9007199254740992"),
        (r#"{"enum": [0.10000000000000001]}"#, "0.10000000000000001", "0.1"),
        (r#"{"multipleOf": 0.01}"#, "12.50", "12.505"),
        (r#"{"multipleOf": 0.01}"#, "9007199254740993.01", "9007199254740993.011"),
        (r#"{"type": "integer"}"#, "9007199254740993", "9007199254740993.5"),
        (r#"{"type": "integer"}"#, "1.0", "1.5"),
        (r#"{"type": "integer"}"#, "-99999999999999999999999999", "0.1"),
        (r#"{"uniqueItems": true}"#, "[9007199254740993, 9007199254740992]", "[1, 1.0]"),
    ] {
        assert_eq!(check(schema, good), Ok(()), "{schema} with {good}");
        assert!(check(schema, bad).is_err(), "{schema} with {bad}");
    }
}

#[test]
fn references_stay_inside_the_document() {
    let inside = r##"{"$defs": {"sku": {"type": "string"}}, "properties": {"a": {"$ref": "#/$defs/sku"}}}"##;
    fails(inside, r#"{"a": 1}"#, "at \"/a\": keyword type");
    for reference in [
        "https://example.com/schema.json",
        "http://127.0.0.1:9/x",
        "file:///etc/passwd",
        "other.json",
        "#anchor",
        "#/$defs/%61",
    ] {
        refused(&format!(r#"{{"properties": {{"a": {{"$ref": "{reference}"}}}}}}"#), "$ref is not a JSON pointer");
    }
    refused(r##"{"properties": {"a": {"$ref": "#/$defs/none"}}}"##, "leads nowhere");
    refused(r#"{"$ref": 1}"#, "not text");
    refused(r##"{"$dynamicRef": "#x"}"##, "$dynamicRef");
    refused(r#"{"properties": {"a": {"$id": "http://x/", "type": "string"}}}"#, "below the root");
    // A dialect that is not known must not be fetched.
    assert!(compile(r#"{"$schema": "https://example.com/my-dialect"}"#).is_err());
    assert!(
        compile(r#"{"$id": "https://example.com/s", "$schema": "http://json-schema.org/draft-07/schema#"}"#).is_ok()
    );
}

#[test]
fn a_reference_that_recurses_without_end_is_refused_at_definition() {
    for schema in [
        r##"{"$ref": "#"}"##,
        r##"{"allOf": [{"$ref": "#"}]}"##,
        r##"{"not": {"anyOf": [{}, {"$ref": "#"}]}}"##,
        r##"{"if": {"$ref": "#/then"}, "then": {"$ref": "#/if"}}"##,
        r##"{"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"oneOf": [{"$ref": "#/$defs/a"}]}}, "$ref": "#/$defs/a"}"##,
        r##"{"properties": {"x": {"$ref": "#/properties/x"}}}"##,
        r##"{"dependentSchemas": {"a": {"$ref": "#"}}}"##,
    ] {
        refused(schema, "comes back to itself");
    }
    let tree = r##"{"type": "object", "properties": {"kids": {"type": "array", "items": {"$ref": "#"}}}}"##;
    assert_eq!(check(tree, r#"{"kids": [{"kids": []}]}"#), Ok(()));
    fails(tree, r#"{"kids": [{"kids": [1]}]}"#, "at \"/kids/0/kids/0\": keyword type");
}

#[test]
fn references_that_fan_out_are_refused() {
    let level = |n: usize| {
        format!(r##""{n}": {{"allOf": [{{"$ref": "#/$defs/{m}"}}, {{"$ref": "#/$defs/{m}"}}]}}"##, m = n + 1)
    };
    let levels: Vec<String> = (0..40).map(level).collect();
    let schema = format!(r##"{{"$defs": {{{}, "40": {{}}}}, "$ref": "#/$defs/0"}}"##, levels.join(", "));
    refused(&schema, "apply to one place");
}

#[test]
fn a_chain_in_place_is_bounded_in_whatever_order_it_is_written() {
    for reversed in [false, true] {
        for (first, definitions) in [("allOf", "definitions"), ("not", "$defs")] {
            let name = |n: usize| if reversed { format!("{:04}", 9_999 - n) } else { format!("{n:04}") };
            let reference = |n: usize| format!(r##"{{"$ref": "#/{definitions}/{}"}}"##, name(n));
            let chain = |length: usize| {
                let level = |n: usize| format!(r#""{}": {{"allOf": [{}]}}"#, name(n), reference(n + 1));
                let levels: Vec<String> = (0..length).map(level).collect();
                let start = if first == "not" { reference(0) } else { format!("[{}]", reference(0)) };
                format!(
                    r#"{{"{definitions}": {{{}, "{}": {{}}}}, "{first}": {start}}}"#,
                    levels.join(", "),
                    name(length)
                )
            };
            assert!(compile(&chain(5)).is_ok(), "{first}");
            refused(&chain(40), "in a chain");
            refused(&chain(4_000), "in a chain");
        }
    }
}

#[test]
fn a_long_chain_downwards_compiles_in_a_small_stack() {
    let work = || {
        let level = |n: usize| format!(r##""{n:04}": {{"items": {{"$ref": "#/definitions/{:04}"}}}}"##, n + 1);
        let levels: Vec<String> = (0..2_000).map(level).collect();
        let start = r##""contains": {"$ref": "#/definitions/0000"}"##;
        let schema = format!(r#"{{"definitions": {{{}, "2000": {{}}}}, {start}}}"#, levels.join(", "));
        assert_eq!(check(&schema, "[[[]]]"), Ok(()));
    };
    let thread = std::thread::Builder::new().stack_size(1 << 20).spawn(work).expect("a thread starts");
    thread.join().expect("the work does not panic");
}

#[test]
fn what_is_no_schema_is_refused() {
    refused("1", "$.schema");
    refused("[]", "$.schema");
    refused(r#"{"type": "objekt"}"#, "at \"/type\"");
    refused(r#"{"required": "a"}"#, "at \"/required\"");
    refused(r#"{"properties": {"a": {"maximum": "1"}}}"#, "at \"/properties/a/maximum\"");
    assert_eq!(check("true", "{}"), Ok(()));
    fails("false", "{}", "at \"\": keyword falseSchema");
}

#[test]
fn patterns_that_could_backtrack_are_refused_and_the_rest_is_linear() {
    refused(r#"{"pattern": "^(?=a)b"}"#, "at \"/pattern\"");
    refused(r#"{"pattern": "(a)\\1"}"#, "at \"/pattern\"");
    refused(r#"{"pattern": "("}"#, "at \"/pattern\"");
    refused(r#"{"pattern": "((a{100}){100}){100}"}"#, "at \"/pattern\"");
    let evil = format!("\"{}!\"", "a".repeat(50_000));
    fails(r#"{"pattern": "^(a+)+$"}"#, &evil, "at \"\": keyword pattern");
    let many: Vec<String> = (0..300).map(|n| format!(r#""p{n}": {{"pattern": "a"}}"#)).collect();
    refused(&format!(r#"{{"properties": {{{}}}}}"#, many.join(", ")), "more than 256 patterns");
}

#[test]
fn documents_and_schemas_beyond_the_bounds_are_refused() {
    let nested = |depth: usize| {
        let mut json = Json::Null;
        for _ in 0..depth {
            json = Json::Array(vec![json]);
        }
        json
    };
    let any = Validator::compile(&Json::Bool(true)).expect("valid");
    assert_eq!(any.validate(&nested(128)), Ok(()));
    assert_eq!(any.validate(&nested(5_000)).map_err(|error| error.code), Err(Code::JsonOutOfBounds));
    for number in ["1e401", "1e-401", "1e99999999999999999999", "1e-9223372036854775808"] {
        let error = any.validate(&Json::Number(number.into())).expect_err(number);
        assert_eq!(error.code, Code::JsonOutOfBounds);
    }
    assert!(any.validate(&Json::Number("9".repeat(1_001).into())).is_err());
    assert_eq!(any.validate(&Json::Number("1e400".into())), Ok(()));
    let deep = Json::Object(vec![("const".into(), nested(5_000))]);
    assert_eq!(Validator::compile(&deep).map_err(|error| error.code).err(), Some(Code::InvalidDefinition));
    refused(&format!(r#"{{"description": "{}"}}"#, "x".repeat(MAX_SCHEMA_BYTES)), "$.schema");
}

#[test]
fn a_document_and_a_schema_at_the_limits_are_checked_in_half_the_stack_of_a_server_process() {
    let work = || {
        let tree = format!(
            r##"{{"type": "array", "items": {}{{"$ref": "#"}}{}}}"##,
            r#"{"anyOf": [{"type": "null"}, "#.repeat(14),
            "]}".repeat(14)
        );
        let mut params = Json::Null;
        for _ in 0..MAX_DEPTH {
            params = Json::Array(vec![params]);
        }
        assert_eq!(compile(&tree).expect("valid").validate(&params), Ok(()));
        let mut wrong = Json::Bool(true);
        for _ in 0..MAX_DEPTH {
            wrong = Json::Array(vec![wrong]);
        }
        let error = compile(&tree).expect("valid").validate(&wrong).expect_err("true is no array");
        assert_eq!(error.code, Code::InvalidParams);
    };
    let thread = std::thread::Builder::new().stack_size(4 << 20).spawn(work).expect("a thread starts");
    thread.join().expect("the work does not panic");
}
