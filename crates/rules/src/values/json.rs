//! JSON, read strictly where two readers could disagree, and its canonical form for hashes.
//!
//! Must not know what the JSON is for.

mod look; // into a text, without building what is in it
mod weight; // how many values a text has, and what they take

use std::cell::Cell;
use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error as _, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};

pub use self::look::{at, depth, each};
pub use self::weight::weigh;

/// 2^53, the first integer that a double cannot tell from its neighbour (RFC 8785).
const FIRST_UNSAFE: f64 = 9_007_199_254_740_992.0;

/// Most values in a request's JSON, and in an answer that is read. Each member and each item counts.
///
/// More values would keep a processor busy for long, and take many times the memory of their text.
pub const MAX_VALUES: usize = 100_000;

/// Values that a message may have around those of its request.
const AROUND: usize = 1_000;

/// Room for a usual value in its canonical form.
const USUAL: usize = 256;

/// The text is not JSON, or ambiguous.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("{0}")]
pub struct Error(String);

/// Reads one JSON text strictly.
///
/// Refuses, beside any text that is not JSON: an object that names a member twice (readers keep the
/// first or the last), and an integer of magnitude 2^53 or more (RFC 8785 gives it the same canonical
/// form as its neighbour, so two amounts would get the same key).
///
/// # Errors
/// Says what is wrong and where, in words that may be shown to the caller.
pub fn parse(text: &str) -> Result<Value, Error> {
    parse_at_most(text, usize::MAX)
}

/// Reads one JSON text of a request: at most [`MAX_VALUES`] values.
///
/// # Errors
/// Those of [`parse`], or the text has more values.
pub fn parse_bounded(text: &str) -> Result<Value, Error> {
    bound(text.as_bytes())?;
    parse_at_most(text, MAX_VALUES)
}

/// Reads an answer, as every reader does: at most [`MAX_VALUES`] values, and the last of members with the same name.
///
/// # Errors
/// It is not JSON, or has more values.
pub fn read(bytes: &[u8]) -> Result<Value, Error> {
    bound(bytes)?;
    serde_json::from_slice(bytes).map_err(|error| Error(error.to_string()))
}

/// Checks how many values a message has, before any of them is built. Some stand around the request itself.
///
/// # Errors
/// It has more than [`MAX_VALUES`], and those around them.
pub fn bound_message(text: &[u8]) -> Result<(), Error> {
    at_most(text, MAX_VALUES + AROUND)
}

/// Checks how many values a text has, before any of them is built.
fn bound(text: &[u8]) -> Result<(), Error> {
    at_most(text, MAX_VALUES)
}

fn at_most(text: &[u8], values: usize) -> Result<(), Error> {
    match weigh(text).values > values {
        true => Err(Error(format!("it holds more than {MAX_VALUES} values"))),
        false => Ok(()),
    }
}

/// Bytes that the values of a text take once it is read; none if it has too many to be read.
pub fn bytes_to_read(text: &[u8]) -> usize {
    let weight = weigh(text);
    match weight.values > MAX_VALUES {
        true => 0,
        false => weight.bytes,
    }
}

fn parse_at_most(text: &str, values: usize) -> Result<Value, Error> {
    let left = Cell::new(values);
    let mut reader = serde_json::Deserializer::from_str(text);
    let value = StrictValue(&left).deserialize(&mut reader);
    let value = value.and_then(|value| reader.end().map(|()| value));
    let value = value.map_err(|error| Error(error.to_string()))?;
    match unsafe_integer(text) {
        Some(number) => Err(Error(format!(
            "the integer {number} is outside of -(2^53-1)..2^53-1 and would not survive RFC 8785; send it as a string"
        ))),
        None => Ok(value),
    }
}

/// The canonical form of RFC 8785 (JCS).
///
/// Members are sorted by UTF-16 code units, numbers are as ECMAScript prints them, and there is no
/// white space.
///
/// Members are sorted here, because any dependency could switch `serde_json` to unsorted maps.
pub fn canonical(value: &Value) -> String {
    let mut out = String::with_capacity(USUAL);
    write_canonical(value, &mut out);
    out
}

fn write_canonical(value: &Value, out: &mut String) {
    match value {
        Value::Null | Value::Bool(_) => out.push_str(&value.to_string()),
        Value::String(text) => write_string(text, out),
        Value::Number(number) => match number.as_f64() {
            Some(float) => out.push_str(ryu_js::Buffer::new().format(float)),
            None => out.push_str(&number.to_string()),
        },
        Value::Array(items) => {
            out.push('[');
            for (index, item) in items.iter().enumerate() {
                if index > 0 {
                    out.push(',');
                }
                write_canonical(item, out);
            }
            out.push(']');
        }
        Value::Object(members) => {
            let mut sorted: Vec<(&String, &Value)> = members.iter().collect();
            sorted.sort_by(|(a, _), (b, _)| a.encode_utf16().cmp(b.encode_utf16()));
            out.push('{');
            for (index, (name, member)) in sorted.into_iter().enumerate() {
                if index > 0 {
                    out.push(',');
                }
                write_string(name, out);
                out.push(':');
                write_canonical(member, out);
            }
            out.push('}');
        }
    }
}

/// Writes a string as RFC 8785 section 3.2.2.2 asks.
///
/// Short escapes, `\u00xx` for other control characters, and all other characters unchanged.
fn write_string(text: &str, out: &mut String) {
    let needs_escapes = text
        .bytes()
        .any(|byte| byte < 0x20 || matches!(byte, b'"' | b'\\'));
    if needs_escapes {
        // serde_json escapes in the same way.
        out.push_str(&Value::from(text).to_string());
    } else {
        out.push('"');
        out.push_str(text);
        out.push('"');
    }
}

/// The first integer in a JSON text that no double holds exactly.
///
/// An integer has no exponent, and no fraction other than zeros.
///
/// The text is searched and not the parsed value, in which an integer beyond 64 bits is a float.
fn unsafe_integer(text: &str) -> Option<&str> {
    let bytes = text.as_bytes();
    let mut at = 0;
    while at < bytes.len() {
        match bytes[at] {
            b'"' => {
                at += 1;
                while bytes[at] != b'"' {
                    at += if bytes[at] == b'\\' { 2 } else { 1 };
                }
                at += 1;
            }
            b'-' | b'0'..=b'9' => {
                let start = at;
                while at < bytes.len()
                    && matches!(bytes[at], b'-' | b'+' | b'.' | b'e' | b'E' | b'0'..=b'9')
                {
                    at += 1;
                }
                let number = &text[start..at];
                if written_as_integer(number)
                    && number.parse::<f64>().is_ok_and(|n| n.abs() >= FIRST_UNSAFE)
                {
                    return Some(number);
                }
            }
            _ => at += 1,
        }
    }
    None
}

fn written_as_integer(number: &str) -> bool {
    let (_, fraction) = number.split_once('.').unwrap_or((number, ""));
    !number.contains(['e', 'E']) && fraction.bytes().all(|digit| digit == b'0')
}

/// Reads a [`Value`] without repeated members. Counts down how many more values it may have.
#[derive(Clone, Copy)]
struct StrictValue<'a>(&'a Cell<usize>);

impl<'de> DeserializeSeed<'de> for StrictValue<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        let left = self.0.get().checked_sub(1);
        let left = left
            .ok_or_else(|| D::Error::custom(format!("it holds more than {MAX_VALUES} values")))?;
        self.0.set(left);
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for StrictValue<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any JSON value")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let mut array = Vec::new();
        while let Some(item) = items.next_element_seed(self)? {
            array.push(item);
        }
        Ok(Value::Array(array))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Value, A::Error> {
        let mut object = Map::new();
        while let Some(name) = members.next_key::<String>()? {
            if object.contains_key(&name) {
                return Err(A::Error::custom(format!(
                    "the member {name:?} is named twice"
                )));
            }
            object.insert(name, members.next_value_seed(self)?);
        }
        Ok(Value::Object(object))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[track_caller]
    fn check(text: &str, expected: &str) {
        assert_eq!(canonical(&parse(text).expect("valid")), expected);
    }

    #[track_caller]
    fn check_refused(text: &str, why: &str) {
        let error = parse(text).expect_err("must be refused").to_string();
        assert!(error.contains(why), "{error:?} does not say {why:?}");
    }

    #[test]
    fn rfc_8785_section_3_2_2_sample() {
        check(
            r#"{ "numbers": [333333333.33333329, 1E30, 4.50, 2e-3, 0.000000000000000000000000001],
                 "string": "\u20ac$\u000F\u000aA'\u0042\u0022\u005c\\\"\/",
                 "literals": [null, true, false] }"#,
            "{\"literals\":[null,true,false],\"numbers\":[333333333.3333333,1e+30,4.5,0.002,1e-27],\
             \"string\":\"€$\\u000f\\nA'B\\\"\\\\\\\\\\\"/\"}",
        );
    }

    #[test]
    fn rfc_8785_section_3_2_3_sorts_by_utf16_code_units() {
        check(
            r#"{"\u20ac":"Euro Sign","\r":"Carriage Return","\ufb33":"Hebrew Letter Dalet With Dagesh",
                "1":"One","\ud83d\ude00":"Emoji: Grinning Face","\u0080":"Control","\u00f6":"Latin Small Letter O With Diaeresis"}"#,
            "{\"\\r\":\"Carriage Return\",\"1\":\"One\",\"\u{80}\":\"Control\",\"ö\":\"Latin Small Letter O With Diaeresis\",\
             \"€\":\"Euro Sign\",\"😀\":\"Emoji: Grinning Face\",\"\u{fb33}\":\"Hebrew Letter Dalet With Dagesh\"}",
        );
    }

    #[test]
    fn rfc_8785_appendix_b_numbers() {
        for (bits, expected) in [
            (0x0000_0000_0000_0000_u64, "0"),
            (0x8000_0000_0000_0000, "0"),
            (0x0000_0000_0000_0001, "5e-324"),
            (0x8000_0000_0000_0001, "-5e-324"),
            (0x7fef_ffff_ffff_ffff, "1.7976931348623157e+308"),
            (0xffef_ffff_ffff_ffff, "-1.7976931348623157e+308"),
            (0x4340_0000_0000_0000, "9007199254740992"),
            (0xc340_0000_0000_0000, "-9007199254740992"),
            (0x4430_0000_0000_0000, "295147905179352830000"),
            (0x44b5_2d02_c7e1_4af5, "9.999999999999997e+22"),
            (0x44b5_2d02_c7e1_4af6, "1e+23"),
            (0x44b5_2d02_c7e1_4af7, "1.0000000000000001e+23"),
            (0x444b_1ae4_d6e2_ef4e, "999999999999999700000"),
            (0x444b_1ae4_d6e2_ef4f, "999999999999999900000"),
            (0x444b_1ae4_d6e2_ef50, "1e+21"),
            (0x3eb0_c6f7_a0b5_ed8c, "9.999999999999997e-7"),
            (0x3eb0_c6f7_a0b5_ed8d, "0.000001"),
            (0x41b3_de43_5555_5553, "333333333.3333332"),
            (0x41b3_de43_5555_5554, "333333333.33333325"),
            (0x41b3_de43_5555_5555, "333333333.3333333"),
            (0x41b3_de43_5555_5556, "333333333.3333334"),
            (0x41b3_de43_5555_5557, "333333333.33333343"),
            (0xbecb_f647_612f_3696, "-0.0000033333333333333333"),
            (0x4314_3ff3_c1cb_0959, "1424953923781206.2"),
        ] {
            assert_eq!(
                canonical(&Value::from(f64::from_bits(bits))),
                expected,
                "{bits:x}"
            );
        }
    }

    #[test]
    fn one_and_one_point_zero_are_one_number() {
        check("[1, 1.0, 1e0, 10e-1, -0, 0.0]", "[1,1,1,1,0,0]");
    }

    #[test]
    fn a_member_named_twice_is_refused_at_any_depth() {
        check_refused(r#"{"amount":1,"amount":2}"#, "named twice");
        check_refused(r#"[{"a":{"b":1,"\u0062":2}}]"#, "named twice");
    }

    #[test]
    fn integers_from_two_to_the_53_on_are_refused_and_floats_are_not() {
        check(
            "[9007199254740991,-9007199254740991]",
            "[9007199254740991,-9007199254740991]",
        );
        check("[1e300, 1.5e16, 12.000]", "[1e+300,15000000000000000,12]");
        for number in [
            "9007199254740992",
            "-9007199254740993",
            "9007199254740993.0",
            "123456789012345678901234567890",
        ] {
            check_refused(&format!("{{\"a\":[\"x\\\"\",{number}]}}"), "2^53");
        }
        for text in [
            r#"{"a":"9007199254740993"}"#,
            r#"{"a":"id 9007199254740993"}"#,
            r#"{"a":"say \"9007199254740993\""}"#,
            r#"{"9007199254740993":0}"#,
        ] {
            check(text, text);
        }
    }

    #[test]
    fn what_is_no_json_is_refused() {
        for text in [
            "",
            "{",
            "{\"a\":1}x",
            "[1e400]",
            r#""\ud800""#,
            "NaN",
            "{'a':1}",
            "[01]",
        ] {
            assert!(parse(text).is_err(), "{text:?}");
        }
        assert!(parse(&"[".repeat(100_000)).is_err());
    }

    #[test]
    fn a_request_holds_a_bounded_number_of_values() {
        let list = |items: usize| format!("[{}]", vec!["1"; items].join(","));
        assert!(
            parse_bounded(&list(MAX_VALUES - 1)).is_ok(),
            "the list is one, too"
        );
        let members = (0..MAX_VALUES)
            .map(|n| format!("\"{n}\":1"))
            .collect::<Vec<_>>()
            .join(",");
        for text in [list(MAX_VALUES), format!("{{{members}}}")] {
            let error = parse_bounded(&text).expect_err("too many").to_string();
            assert!(error.contains("more than 100000 values"), "{error}");
            assert!(parse(&text).is_ok());
        }
    }

    fn any_json() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            (-9_007_199_254_740_991_i64..=9_007_199_254_740_991).prop_map(Value::from),
            any::<f64>()
                .prop_filter("JSON has no such number", |n| n.is_finite())
                .prop_map(Value::from),
            any::<String>().prop_map(Value::from),
        ];
        leaf.prop_recursive(4, 64, 8, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..8).prop_map(Value::from),
                prop::collection::hash_map(any::<String>(), inner, 0..8)
                    .prop_map(|map| Value::Object(map.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn the_canonical_form_agrees_with_another_implementation(value in any_json()) {
            prop_assert_eq!(canonical(&value).into_bytes(), serde_json_canonicalizer::to_vec(&value).expect("canonical"));
        }

        #[test]
        fn the_canonical_form_says_the_same_and_is_its_own_canonical_form(value in any_json()) {
            let once = canonical(&value);
            let again: Value = serde_json::from_str(&once).expect("the canonical form is JSON");
            prop_assert_eq!(canonical(&again), once);
        }

        #[test]
        fn reading_never_panics(text in any::<String>()) {
            drop(parse(&text));
        }
    }
}
