//! A description as a document. Follows references within it; fetches nothing.

use percent_encoding::percent_decode_str;
use serde_json::Value;
use serde_saphyr::options::DuplicateKeyPolicy;

/// The largest description that is read.
pub const MAX_BYTES: usize = 32 << 20;

/// Most values of a document in YAML, where aliases make many values of few bytes.
const MAX_VALUES: usize = 4_000_000;

/// How deep values may nest in YAML. For JSON the parser's bound is 128.
const MAX_DEPTH: usize = 100;

/// Most references from one to the next.
const MAX_HOPS: usize = 16;

/// The longest error text of the parser, in characters: it quotes the document.
const MAX_SENTENCE: usize = 300;

/// A description of OpenAPI 3.0 or 3.1.
#[derive(Debug)]
pub(super) struct Document {
    pub(super) root: Value,
    /// Whether it is OpenAPI 3.0, whose schemas are not JSON Schema.
    pub(super) is_3_0: bool,
}

impl Document {
    /// Reads JSON or YAML.
    pub(super) fn read(text: &str) -> Result<Self, String> {
        if text.len() > MAX_BYTES {
            return Err(format!(
                "the description is larger than {} MiB, which is the most that is read",
                MAX_BYTES >> 20
            ));
        }
        let root = parse(text)?;
        let Value::Object(members) = &root else {
            return Err("this is not a description of an API: it is not an object".into());
        };
        let version = members.get("openapi").map(|version| match version {
            Value::String(version) => version.clone(),
            other => other.to_string(),
        });
        let is_3_0 = match version {
            Some(version) if version.starts_with("3.0") => true,
            Some(version) if version.starts_with("3.1") => false,
            Some(version) => {
                let version: String = version.chars().take(20).collect();
                return Err(format!("this is OpenAPI {version:?}; 3.0 and 3.1 are read"));
            }
            None if members.contains_key("swagger") => {
                return Err("this is Swagger 2.0; OpenAPI 3.0 and 3.1 are read. Convert it first, as with `npx swagger2openapi FILE`".into());
            }
            None => {
                return Err(
                    "this is not an OpenAPI description: it has no member `openapi`".into(),
                );
            }
        };
        Ok(Self { root, is_3_0 })
    }

    /// A text about the API; empty if there is none.
    pub(super) fn info(&self, word: &str) -> &str {
        let info = self.root.get("info");
        info.and_then(|info| text(info, word)).unwrap_or_default()
    }

    /// The value itself, or the target of its reference.
    pub(super) fn resolve<'a>(&'a self, value: &'a Value) -> Result<&'a Value, String> {
        let mut at = value;
        for _ in 0..MAX_HOPS {
            match reference(at) {
                Some(place) => at = self.at(place)?,
                None => return Ok(at),
            }
        }
        Err("a reference leads to references only".into())
    }

    /// The value at a place of this document.
    pub(super) fn at(&self, place: &str) -> Result<&Value, String> {
        let found = place.strip_prefix('#').and_then(|pointer| {
            let decoded = || percent_decode_str(pointer).decode_utf8().ok();
            self.root
                .pointer(pointer)
                .or_else(|| self.root.pointer(&decoded()?))
        });
        found.ok_or_else(|| {
            let place: String = place.chars().take(100).collect();
            format!("the reference {place:?} leads out of the document or to nothing")
        })
    }
}

/// The target of a reference.
pub(super) fn reference(value: &Value) -> Option<&str> {
    text(value, "$ref")
}

/// A member that is a text.
pub(super) fn text<'a>(value: &'a Value, name: &str) -> Option<&'a str> {
    value.get(name)?.as_str()
}

/// The items of a member; none if it is not a list.
pub(super) fn items<'a>(value: &'a Value, name: &str) -> &'a [Value] {
    let list = value.get(name).and_then(Value::as_array);
    list.map_or(&[], Vec::as_slice)
}

/// The members of a member; none if it is not an object.
pub(super) fn members<'a>(
    value: &'a Value,
    name: &str,
) -> impl Iterator<Item = (&'a String, &'a Value)> + use<'a> {
    let object = value.get(name).and_then(Value::as_object);
    object.into_iter().flatten()
}

/// Whether a member is true.
pub(super) fn is_true(value: &Value, name: &str) -> bool {
    value.get(name) == Some(&Value::Bool(true))
}

fn parse(text: &str) -> Result<Value, String> {
    let text = text.trim_start_matches('\u{feff}');
    if !text.trim_start().starts_with('{') {
        return yaml(text);
    }
    let json = serde_json::from_str(text).map_err(|error| format!("this is not JSON: {error}"));
    // A text in YAML may begin with a brace, too.
    json.or_else(|why| yaml(text).map_err(|_| why))
}

fn yaml(text: &str) -> Result<Value, String> {
    let options = serde_saphyr::options! {
        budget: serde_saphyr::budget! {
            max_events: 2 * MAX_VALUES,
            max_nodes: MAX_VALUES,
            max_depth: MAX_DEPTH,
            flow_nesting_limit: MAX_DEPTH,
            max_documents: 1,
        },
        duplicate_keys: DuplicateKeyPolicy::LastWins,
        strict_booleans: true,
        leading_zero_numbers_as_strings: true,
        underscored_numbers_as_strings: true,
        ignore_binary_tag_for_string: true,
        non_finite_float_policy: serde_saphyr::options::NonFiniteFloatPolicy::AsString,
        with_snippet: false,
    };
    serde_saphyr::from_str_with_options(text, options).map_err(|error| {
        let why: String = error.to_string().chars().take(MAX_SENTENCE).collect();
        format!("this is not YAML that can be read: {why}")
    })
}
