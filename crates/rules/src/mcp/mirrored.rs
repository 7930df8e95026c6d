//! Arguments that a request repeats in `Mcp-Param-…` headers, by the schema's `x-mcp-header`.
//!
//! A load balancer may route by such a header, so header and body must agree.

use std::collections::BTreeSet;

use serde_json::Value;

use super::revision::{decode, encode};
use super::{HeaderLine, is_header_name};

/// A property that is repeated in a header.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mirrored {
    /// The whole name of the header, in lower case.
    pub header: String,
    /// The names of the properties that lead to the value.
    path: Vec<String>,
}

/// The properties of a schema that headers repeat, as far as only `properties` lead to them.
pub fn mirrored(schema: &Value) -> Vec<Mirrored> {
    fn walk(schema: &Value, path: &mut Vec<String>, found: &mut Vec<Mirrored>) {
        if let Some(name) = schema.get("x-mcp-header").and_then(Value::as_str) {
            found.push(Mirrored {
                header: format!("mcp-param-{}", name.to_ascii_lowercase()),
                path: path.clone(),
            });
        }
        let properties = schema.get("properties").and_then(Value::as_object);
        for (name, inner) in properties.into_iter().flatten() {
            path.push(name.clone());
            walk(inner, path, found);
            path.pop();
        }
    }
    let mut found = Vec::new();
    walk(schema, &mut Vec::new(), &mut found);
    found
}

/// A mistake in a schema's headers: a bad name, or one name for two arguments.
pub fn mistake(mirrored: &[Mirrored]) -> Option<String> {
    let mut names = BTreeSet::new();
    mirrored.iter().find_map(|one| {
        let name = &one.header;
        if !is_header_name(name) {
            return Some(format!("{name:?} is not a header name"));
        }
        (!names.insert(name)).then(|| format!("{name} stands for two arguments"))
    })
}

/// The headers that repeat these arguments: names in lower case, and values.
pub fn headers(mirrored: &[Mirrored], args: &Value) -> Vec<(String, String)> {
    let header = |one: &Mirrored| {
        let value = match one.value(args)? {
            Value::String(text) => encode(text),
            Value::Bool(value) => value.to_string(),
            Value::Number(number) => number.to_string(),
            Value::Null | Value::Array(_) | Value::Object(_) => return None,
        };
        Some((one.header.clone(), value))
    };
    mirrored.iter().filter_map(header).collect()
}

impl Mirrored {
    fn value<'a>(&self, args: &'a Value) -> Option<&'a Value> {
        let mut names = self.path.iter();
        let found = names.try_fold(args, |value, name| value.get(name));
        found.filter(|value| !value.is_null())
    }
}

/// Whether each header has the value of its argument.
///
/// # Errors
/// The first header that does not, in a sentence.
pub fn check(
    mirrored: &[Mirrored],
    args: &Value,
    header: impl Fn(&str) -> HeaderLine,
) -> Result<(), String> {
    for one in mirrored {
        let name = &one.header;
        match (one.value(args), header(name)) {
            (None, None) => {}
            (None, Some(_)) => {
                return Err(format!("{name} stands for an argument that is missing"));
            }
            (Some(_), None) => return Err(format!("{name} is missing")),
            (Some(value), Some(line)) => {
                let text = line.ok().and_then(|line| decode(&line));
                if !text.is_some_and(|text| is_same(&text, value)) {
                    return Err(format!("{name} is not what the arguments say"));
                }
            }
        }
    }
    Ok(())
}

/// Whether a header has this value. Of numbers 42.0 and 42 are the same.
fn is_same(header: &str, value: &Value) -> bool {
    match value {
        Value::String(text) => header == text,
        Value::Bool(value) => header == value.to_string(),
        Value::Number(number) => {
            let as_number = header.parse::<f64>().ok();
            header == number.to_string() || as_number.is_some() && as_number == number.as_f64()
        }
        Value::Null | Value::Array(_) | Value::Object(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn checked(args: &Value, headers: &[(&str, &str)]) -> Result<(), String> {
        let schema = json!({ "type": "object", "properties": {
            "region": { "type": "string", "x-mcp-header": "Region" },
            "to": { "properties": { "count": { "type": "integer", "x-mcp-header": "Count" } } },
            "list": { "items": { "x-mcp-header": "Never" } },
            "dry": { "type": "boolean", "x-mcp-header": "Dry" },
        } });
        let mirrored = mirrored(&schema);
        assert_eq!(mirrored.len(), 3);
        check(&mirrored, args, |name| {
            let mut values = headers.iter().filter(|(header, _)| *header == name);
            let first = values.next().map(|(_, value)| (*value).to_owned());
            first.map(|value| {
                if values.next().is_some() {
                    Err(())
                } else {
                    Ok(value)
                }
            })
        })
    }

    #[test]
    fn headers_with_the_values_of_their_arguments_are_accepted() {
        let args = json!({ "region": "us", "to": { "count": 42 }, "dry": true });
        let good = [
            ("mcp-param-region", "us"),
            ("mcp-param-count", "42.0"),
            ("mcp-param-dry", "true"),
        ];
        assert_eq!(checked(&args, &good), Ok(()));
        assert_eq!(checked(&json!({}), &[]), Ok(()));
        assert_eq!(checked(&json!({ "region": null }), &[]), Ok(()));
        let encoded = [("mcp-param-region", "=?base64?IGE=?=")];
        assert_eq!(checked(&json!({ "region": " a" }), &encoded), Ok(()));
    }

    #[test]
    fn a_header_that_differs_from_its_argument_is_refused() {
        let region = json!({ "region": "us" });
        assert!(checked(&region, &[]).is_err(), "missing");
        for wrong in ["eu", "US", "", "=?base64?_?="] {
            assert!(
                checked(&region, &[("mcp-param-region", wrong)]).is_err(),
                "{wrong}"
            );
        }
        let twice = [("mcp-param-region", "us"), ("mcp-param-region", "us")];
        assert!(checked(&region, &twice).is_err(), "twice");
        assert!(checked(&json!({}), &[("mcp-param-dry", "false")]).is_err());
        assert!(checked(&json!({ "region": {} }), &[("mcp-param-region", "{}")]).is_err());
        assert!(
            checked(
                &json!({ "to": { "count": 1 } }),
                &[("mcp-param-count", "2")]
            )
            .is_err()
        );
    }

    #[test]
    fn headers_repeat_the_arguments_that_have_a_text_number_or_boolean() {
        let named = ["Region", "Count", "Dry", "List", "Gone"];
        let properties =
            named.map(|name| (name.to_ascii_lowercase(), json!({ "x-mcp-header": name })));
        let schema = json!({ "properties": serde_json::Map::from_iter(properties) });
        let all = mirrored(&schema);
        let args = json!({ "region": "é", "count": 1.5, "dry": false, "list": [1], "gone": null });
        let mut said = headers(&all, &args);
        said.sort();
        let expected = [
            ("mcp-param-count", "1.5"),
            ("mcp-param-dry", "false"),
            ("mcp-param-region", "=?base64?w6k=?="),
        ];
        assert_eq!(
            said,
            expected.map(|(name, value)| (name.to_owned(), value.to_owned()))
        );
        assert_eq!(mistake(&all), None);
    }

    #[test]
    fn each_header_has_a_name_and_stands_for_one_argument() {
        let of = |one: &str, other: &str| {
            mistake(&mirrored(&json!({ "properties": {
                "a": { "x-mcp-header": one }, "b": { "x-mcp-header": other },
            } })))
        };
        assert_eq!(of("x!#$%&'*+-.^_`|~9", "y"), None);
        for bad in ["a b", "ä", "a:"] {
            let why = format!("\"mcp-param-{bad}\" is not a header name");
            assert_eq!(of("x", bad), Some(why));
        }
        let why = "mcp-param-x stands for two arguments".to_owned();
        assert_eq!(of("X", "x"), Some(why));
    }
}
