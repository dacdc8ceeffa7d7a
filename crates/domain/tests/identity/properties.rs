//! What holds for every value: equal values and only those have equal text, and the text is its own canonical form.

use command_ledger_domain::canonical::{Pointer, canonical, write_canonical};
use command_ledger_domain::json::Json;
use proptest::prelude::*;

use crate::support::{Dice, json, plain, respell, text_of};

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn values_share_a_text_exactly_when_they_are_equal(a in json(), b in json()) {
        prop_assert_eq!(canonical(&a).unwrap() == canonical(&b).unwrap(), plain(&a) == plain(&b));
    }

    #[test]
    fn another_spelling_of_a_value_has_the_same_text(value in json(), seed in any::<u64>()) {
        let mut spelling = String::new();
        respell(&value, &mut Dice(seed), &mut spelling);
        prop_assert_eq!(text_of(&spelling).unwrap(), canonical(&value).unwrap(), "{}", spelling);
    }

    #[test]
    fn the_text_is_its_own_canonical_form_and_says_the_same(value in json()) {
        let text = canonical(&value).unwrap();
        let again = Json::parse(&text).unwrap();
        prop_assert_eq!(plain(&again), plain(&value));
        prop_assert_eq!(canonical(&again).unwrap(), text);
    }

    #[test]
    fn members_come_in_the_order_of_their_utf16_code_units(value in json()) {
        fn check(value: &Json<'_>) {
            for element in value.as_array().unwrap_or_default() {
                check(element);
            }
            let members = value.as_object().unwrap_or_default();
            let names: Vec<Vec<u16>> = members.iter().map(|(name, _)| name.encode_utf16().collect()).collect();
            assert!(names.is_sorted(), "{names:04x?}");
            members.iter().for_each(|(_, member)| check(member));
        }
        check(&Json::parse(&canonical(&value).unwrap()).unwrap());
    }

    #[test]
    fn compact_json_text_keeps_order_and_number_text(value in json()) {
        let text = value.to_json_text();
        prop_assert_eq!(Json::parse(&text).unwrap(), value);
    }

    #[test]
    fn serde_json_agrees_about_the_text_and_keeps_the_value(value in json()) {
        let text = value.to_json_text();
        let theirs: serde_json::Value = serde_json::from_str(&text).unwrap();
        prop_assert_eq!(&value.to_value().unwrap(), &theirs);
        prop_assert_eq!(plain(&Json::from_value(&theirs)), plain(&value));
    }

    #[test]
    fn dropping_a_member_equals_never_having_had_it(value in json(), other in json()) {
        let name = "im/ma~terial";
        let Json::Object(members) = &value else { return Ok(()) };
        let mut with = members.clone();
        with.insert(members.len() / 2, (name.into(), other));
        let skip = [Pointer::parse("/im~1ma~0terial").unwrap(), Pointer::parse("/absent/deep").unwrap()];
        let mut text = String::new();
        write_canonical(&Json::Object(with), &skip, &mut text).unwrap();
        prop_assert_eq!(text, canonical(&value).unwrap());
    }

    #[test]
    fn any_text_is_read_or_refused_as_serde_json_does(text in "[\\[\\]{}:,\"\\\\u0-9a-fA-F.eE+\\- \n\u{1}é-]{0,14}") {
        // serde_json keeps the last of two equal members and takes \u0000: neither can come up unnoticed here.
        let theirs = serde_json::from_str::<serde_json::Value>(&text);
        let ours = Json::parse(&text);
        match (&ours, &theirs) {
            (Ok(ours), Ok(theirs)) => prop_assert_eq!(plain(ours), plain(&Json::from_value(theirs))),
            (Err(_), Err(_)) => {}
            (Ok(_), Err(_)) => prop_assert!(false, "only ours takes {:?}", text),
            (Err(why), Ok(_)) => prop_assert!(
                why.message.contains("twice") || why.message.contains("\\u0000") || why.message.contains("number"),
                "only serde_json takes {:?}: {}", text, why
            ),
        }
    }
}
