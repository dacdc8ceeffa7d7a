//! Numbers: ES6 text where a double's shortest text says exactly the value, the exact decimal otherwise.

use std::io::Write as _;
use std::process::{Command, Stdio};

use command_ledger_domain::error::Code;
use command_ledger_domain::json::Json;
use proptest::prelude::*;

use crate::support::{Dice, exact, expected_number, number_text, scientific, text_of};

/// Doubles of every magnitude, integers, short decimals, and neighbours of powers of ten and two.
fn doubles(count: usize) -> Vec<f64> {
    let mut dice = Dice(20_240_601);
    let mut doubles = Vec::with_capacity(count);
    while doubles.len() < count {
        let roll = dice.next();
        let power = format!("1e{}", dice.below(617) as i64 - 308).parse::<f64>().unwrap();
        let double = match roll % 6 {
            0 => f64::from_bits(dice.next()),
            1 => (dice.next() >> 11 >> dice.below(53)) as f64,
            2 => dice.below(1_000_000) as f64 / 100.0,
            3 => f64::from_bits(power.to_bits().wrapping_add(dice.below(9) as u64).wrapping_sub(4)),
            4 => f64::from_bits((dice.below(2047) as u64) << 52 | dice.below(3) as u64),
            _ => f64::from_bits(dice.next() >> 12 >> dice.below(52)),
        };
        if double.is_finite() {
            doubles.push(if roll & 64 == 0 { double } else { -double });
        }
    }
    doubles
}

#[test]
fn two_hundred_thousand_doubles_have_the_text_that_an_independent_es6_printer_gives() {
    let mut printer = ryu_js::Buffer::new();
    for double in doubles(200_000) {
        let expected = printer.format_finite(double);
        assert_eq!(text_of(&scientific(expected)).unwrap(), expected);
    }
}

#[test]
#[ignore = "needs node"]
fn node_prints_the_same_numbers() {
    let doubles = doubles(200_000);
    let script = "const b=Buffer.alloc(8);for(const l of require('fs').readFileSync(0,'utf8').trim().split('\\n'))\
                  {b.writeBigUInt64BE(BigInt('0x'+l));console.log(JSON.stringify(b.readDoubleBE(0)))}";
    let mut node =
        Command::new("node").args(["-e", script]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let input: String = doubles.iter().map(|double| format!("{:016x}\n", double.to_bits())).collect();
    let mut pipe = node.stdin.take().unwrap();
    let feed = std::thread::spawn(move || pipe.write_all(input.as_bytes()));
    let output = node.wait_with_output().unwrap();
    feed.join().unwrap().unwrap();
    let printed = String::from_utf8(output.stdout).unwrap();
    let printed: Vec<&str> = printed.lines().collect();
    assert_eq!(printed.len(), doubles.len());
    for expected in printed {
        assert_eq!(text_of(&scientific(expected)).unwrap(), expected);
    }
}

#[test]
fn spellings_of_one_value_have_one_text() {
    let groups: &[(&str, &[&str])] = &[
        ("1", &["1", "1.0", "1e0", "10e-1", "0.1e1", "1E+0", "1.000000000000000000000000", "100000e-00005"]),
        ("0", &["0", "-0", "0.0", "-0.0", "0e0", "0e99999999999999999999", "-0E-400000", "0.000000"]),
        ("-12.5", &["-12.5", "-12.50", "-125e-1", "-0.125e2", "-1.25E+1"]),
        ("100", &["100", "1e2", "100.00", "0.001e5"]),
        ("1e+21", &["1e21", "1000000000000000000000", "1000000000000000000000.0", "0.1e22"]),
        ("100000000000000000000", &["1e20", "100000000000000000000", "10e19"]),
        ("0.000001", &["1e-6", "0.000001", "0.0000010"]),
        ("1e-7", &["1e-7", "0.0000001", "0.00000010", "10e-8"]),
    ];
    for (expected, spellings) in groups {
        for spelling in *spellings {
            assert_eq!(text_of(spelling).unwrap(), *expected, "{spelling}");
        }
    }
}

#[test]
fn of_two_shortest_texts_equally_close_the_even_one_is_the_double() {
    // 2^-25 is 2.98023223876953125e-8 and 3 * 2^-24 is 1.78813934326171875e-7, each half-way between two texts.
    assert_eq!(text_of("2.9802322387695312e-8").unwrap(), "2.9802322387695312e-8");
    assert_eq!(text_of("2.9802322387695313e-8").unwrap(), "0.000000029802322387695313");
    assert_eq!(text_of("1.7881393432617188e-7").unwrap(), "1.7881393432617188e-7");
    assert_eq!(text_of("1.7881393432617187e-7").unwrap(), "0.00000017881393432617187");
}

#[test]
fn numbers_that_share_a_double_keep_their_own_text() {
    let exact = [
        ("9007199254740992", "9007199254740992"),
        ("9007199254740993", "9007199254740993"),
        ("0.1", "0.1"),
        ("0.10000000000000001", "0.10000000000000001"),
        ("0.1000000000000000055511151231257827021181583404541015625", {
            "0.1000000000000000055511151231257827021181583404541015625"
        }),
        ("333333333.33333329", "333333333.33333329"),
        ("1e23", "1e+23"),
        ("99999999999999991611392", "99999999999999991611392"),
        ("1000000000000000000000001e0", "1000000000000000000000001"),
        ("12345678901234567890.123456789", "12345678901234567890.123456789"),
        ("4.9e-324", &format!("0.{}49", "0".repeat(323))),
        ("1.8e308", &format!("18{}", "0".repeat(307))),
        ("1e309", &format!("1{}", "0".repeat(309))),
        ("-1e-400", &format!("-0.{}1", "0".repeat(399))),
    ];
    for (input, expected) in exact {
        assert_eq!(text_of(input).unwrap(), expected, "{input}");
    }
}

#[test]
fn the_bounds_count_significant_digits_and_the_scientific_exponent() {
    let nines = |count: usize| "9".repeat(count);
    for inside in [
        "1e400".to_owned(),
        "1e-400".to_owned(),
        "9.99e400".to_owned(),
        format!("1{}", "0".repeat(400)),
        format!("0.{}1", "0".repeat(399)),
        nines(400),
        format!("-{}", nines(400)),
        format!("{}.{}", nines(200), nines(200)),
        format!("{}{}", nines(400), "0"),
        format!("{}e-799", nines(400)),
        format!("000{}", "")[..1].to_owned(),
        format!("1.{}", "0".repeat(100_000)),
        format!("1{}e-100000", "0".repeat(100_000)),
    ] {
        assert!(text_of(&inside).is_ok(), "{}", &inside[..inside.len().min(60)]);
    }
    for outside in [
        "1e401".to_owned(),
        "-1e401".to_owned(),
        "1e-401".to_owned(),
        "9.99e-401".to_owned(),
        format!("1{}", "0".repeat(401)),
        format!("0.{}1", "0".repeat(400)),
        nines(401),
        format!("{}.{}", nines(200), nines(201)),
        format!("{}e-800", nines(400)),
        format!("1{}1", "0".repeat(399)),
        "1e131071".to_owned(),
        "1e-16383".to_owned(),
        "1e99999999999999999999999999999999".to_owned(),
        "1e-99999999999999999999999999999999".to_owned(),
        format!("1{}", "0".repeat(131_071)),
        "9".repeat(131_072),
    ] {
        let refused = text_of(&outside).unwrap_err();
        assert_eq!(refused.code, Code::JsonOutOfBounds, "{}", &outside[..outside.len().min(60)]);
    }
}

#[test]
fn text_that_is_no_json_number_is_refused_in_a_tree_too() {
    for text in [
        "", "-", "+1", "01", "-01", "1.", ".5", "1e", "1e+", "1e+-1", "0x10", "NaN", "Infinity", "1 ", "1_0", "١",
        "1.5.5", "--1",
    ] {
        let refused = command_ledger_domain::canonical::canonical(&Json::Number(text.into())).unwrap_err();
        assert_eq!(refused.code, Code::InvalidParams, "{text:?}");
        assert!(Json::Number(text.into()).to_value().is_err(), "{text:?}");
        assert!(text_of(&format!("[{text}]")).is_err() || text.is_empty() || text == "1 ", "{text:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4000))]

    #[test]
    fn every_number_has_the_text_of_the_rule_in_words(text in number_text()) {
        let canonical = text_of(&text).unwrap();
        prop_assert_eq!(&canonical, &expected_number(&text));
        prop_assert_eq!(exact(&canonical), exact(&text));
        prop_assert_eq!(text_of(&canonical).unwrap(), canonical);
    }

    #[test]
    fn two_numbers_share_a_text_exactly_when_they_are_equal(a in number_text(), b in number_text()) {
        prop_assert_eq!(text_of(&a).unwrap() == text_of(&b).unwrap(), exact(&a) == exact(&b));
    }

    #[test]
    fn decimals_around_the_shortest_text_of_a_double_are_told_apart(bits in any::<u64>(), extra in 1..=9u8) {
        let double = f64::from_bits(bits);
        prop_assume!(double.is_finite() && double != 0.0);
        let shortest = format!("{double:e}");
        let (mantissa, exponent) = shortest.split_once('e').unwrap();
        let point = if mantissa.contains('.') { "" } else { "." };
        let longer = format!("{mantissa}{point}{extra}e{exponent}");
        prop_assert_ne!(text_of(&longer).unwrap(), text_of(&shortest).unwrap());
        prop_assert_eq!(text_of(&longer).unwrap(), expected_number(&longer));
    }
}
