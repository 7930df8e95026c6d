//! The policy of one tool, as far as the rules need it. Where the tool lives is `downstream`'s business.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use serde_json::{Map, Value};

use super::key::{self, Pointer};
use super::pace::Pace;
use super::{breaker, compensation, redact, retry, session, unknown};

/// The most mistakes that one refusal of arguments names.
const MAX_SCHEMA_MISTAKES: usize = 20;
/// The longest sentence about one of them, and the longest way to its place, in bytes.
const MAX_SENTENCE: usize = 200;
/// Arguments of more values than this are told that they do not fit, and not where.
const MAX_VALUES_TOLD: usize = 10_000;
/// How deep a schema's parts may lie in each other and still be looked into for a name.
const MAX_PARTS: usize = 6;

/// Whether a tool changes the world. Undeclared is `Write`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effect {
    Read,
    Write,
}

impl Effect {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
        }
    }
}

/// What a tool's configuration declares a status to mean, against the default of `outcome`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Declared {
    Executed,
    /// Surely not executed; may be tried again.
    NotExecuted,
    /// Surely not executed, and the request is to blame.
    Rejected,
    /// Surely not executed: the tool has seen a newer fencing token of the session.
    Fenced,
    Unknown,
}

/// Looks into the body of a 2xx answer, for tools that say "failed" with status 200.
#[derive(Debug, Clone, PartialEq)]
pub struct SuccessTest {
    pub pointer: Pointer,
    /// What must stand there.
    pub equals: Value,
    /// What it means if something else does: `Rejected` or `Unknown`.
    pub otherwise: Declared,
}

/// A tool's rules. Built by the configuration, which has checked that they fit together.
#[derive(Debug, Clone)]
pub struct Tool {
    pub name: String,
    pub description: String,
    pub effect: Effect,
    /// Of one attempt, up to the tool's status line.
    pub timeout: Duration,
    /// Of the call with all its attempts. Nothing is dispatched after it.
    pub deadline: Duration,
    /// How long after that a call may still hold its key: the time to write down how it ended.
    pub lease_margin: Duration,
    /// How long a finished call's key is remembered; `None` is the default of its key's source.
    pub dedup_window: Option<Duration>,
    /// How long a finished call stays in the ledger.
    pub retention: Duration,
    pub key: key::Policy,
    pub retry: retry::Policy,
    pub breaker: breaker::Policy,
    pub dedup: unknown::Dedup,
    pub unknown: unknown::Policy,
    pub recheck: unknown::Schedule,
    pub session: session::Policy,
    pub budget: Option<session::Budget>,
    pub similar: Option<session::Similar>,
    pub outcomes: BTreeMap<u16, Declared>,
    pub success: Option<SuccessTest>,
    /// Keep the tool's 4xx and replay it like a result, instead of letting the key run again.
    pub remember_rejections: bool,
    /// What of a result may differ when it is compared with a fresh one.
    pub replay_ignore: Vec<Pointer>,
    pub redact: redact::Policy,
    /// How its calls are undone.
    pub compensation: compensation::Policy,
    pub schema: Option<Schema>,
}

impl Tool {
    /// A tool with every default.
    pub fn new(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            description: String::new(),
            effect: Effect::Write,
            timeout: Duration::from_secs(10),
            deadline: Duration::from_secs(30),
            lease_margin: Pace::default().lease_margin,
            dedup_window: None,
            retention: Duration::from_hours(30 * 24),
            key: key::Policy::default(),
            retry: retry::Policy::default(),
            breaker: breaker::Policy::default(),
            dedup: unknown::Dedup::None,
            unknown: unknown::Policy::Hold,
            recheck: unknown::Schedule::default(),
            session: session::Policy::default(),
            budget: None,
            similar: None,
            outcomes: BTreeMap::new(),
            success: None,
            remember_rejections: false,
            replay_ignore: Vec::new(),
            redact: redact::Policy::default(),
            compensation: compensation::Policy::default(),
            schema: None,
        }
    }

    /// How long the owner of a running call may take. Longer than the deadline by construction.
    pub fn lease(&self) -> Duration {
        self.deadline + self.lease_margin
    }

    /// The longest that a call may take from its arrival on, with its wait for its session.
    pub fn longest(&self) -> Duration {
        self.session.wait + self.lease() + self.lease_margin
    }

    /// How long the key of a finished call is remembered, from when it finished.
    ///
    /// A read has no effect that could be doubled, and an agent that polls or reads again after a
    /// write wants the present state: unless told otherwise, only a key that the caller itself
    /// brought is remembered for a read.
    pub fn window(&self, source: key::Source) -> Duration {
        let default = match (self.effect, source) {
            (_, key::Source::Runtime | key::Source::Compensation) => Duration::from_hours(24),
            (Effect::Read, _) => Duration::ZERO,
            (Effect::Write, key::Source::Derived) => Duration::from_hours(1),
            (Effect::Write, key::Source::Business | key::Source::Model) => Duration::from_hours(24),
        };
        self.dedup_window.unwrap_or(default)
    }

    /// Whether more than a fencing token has to be compared in the step of the claim.
    pub fn needs_one_master(&self) -> bool {
        session::is_exclusive(self) || self.budget.is_some() || self.similar.is_some()
    }

    /// Whether the tool's own schema names this member of `args`.
    pub fn has_property(&self, name: &str) -> bool {
        self.schema
            .as_ref()
            .is_some_and(|schema| names(&schema.text, &schema.text, name, 0))
    }
}

/// The JSON Schema of a tool's arguments.
#[derive(Clone)]
pub struct Schema {
    text: Value,
    validator: jsonschema::Validator,
}

impl Schema {
    /// # Errors
    /// Says why this is no JSON Schema. A `$ref` to another document is refused: nothing is fetched.
    pub fn new(text: Value) -> Result<Self, String> {
        let validator = jsonschema::validator_for(&text).map_err(|error| error.to_string())?;
        Ok(Self { text, validator })
    }

    /// The schema as it was written.
    pub fn text(&self) -> &Value {
        &self.text
    }

    /// What is wrong with `args`: the place as a JSON Pointer, and a sentence. At most twenty.
    ///
    /// The sentences name what was expected and quote no value: a refusal may be logged by whoever
    /// gets it. Where the way to a place is too long, it ends at something that holds the place.
    pub fn mistakes(&self, args: &Value) -> Vec<(String, String)> {
        if self.validator.is_valid(args) {
            return Vec::new();
        }
        // The validator gathers every mistake before it tells the first.
        if count(args) > MAX_VALUES_TOLD {
            return vec![(
                String::new(),
                "something in it does not fit; it is too large to say what".into(),
            )];
        }
        let mistakes = self.validator.iter_errors(args).take(MAX_SCHEMA_MISTAKES);
        mistakes
            .map(|mistake| {
                (
                    holder_of(mistake.instance_path().as_str()),
                    cut(mistake.masked().to_string()),
                )
            })
            .collect()
    }

    /// Whether every valid `args` has something at `pointer`.
    pub fn requires(&self, pointer: &Pointer) -> bool {
        let mut at = &self.text;
        for step in pointer.steps() {
            let named =
                |required: &Vec<Value>| required.iter().any(|name| name.as_str() == Some(&step));
            if !at["required"].as_array().is_some_and(named) {
                return false;
            }
            at = &at["properties"][&step];
        }
        true
    }
}

/// The parts of a schema that look at the same value as the whole.
pub(super) fn in_place(schema: &Map<String, Value>) -> impl Iterator<Item = &Value> {
    let listed = ["allOf", "anyOf", "oneOf"]
        .into_iter()
        .filter_map(|word| schema.get(word)?.as_array())
        .flatten();
    let named = schema
        .get("dependentSchemas")
        .and_then(Value::as_object)
        .into_iter()
        .flat_map(Map::values);
    listed.chain(named).chain(
        ["if", "then", "else", "not"]
            .into_iter()
            .filter_map(|word| schema.get(word)),
    )
}

/// Whether a schema or a part of it names this property of its value.
fn names(part: &Value, root: &Value, name: &str, depth: usize) -> bool {
    let Value::Object(words) = part else {
        return false;
    };
    let place = words
        .get("$ref")
        .and_then(Value::as_str)
        .and_then(|place| place.strip_prefix('#'));
    words
        .get("properties")
        .is_some_and(|properties| properties.get(name).is_some())
        || depth < MAX_PARTS
            && (in_place(words).any(|inner| names(inner, root, name, depth + 1))
                || place
                    .and_then(|pointer| root.pointer(pointer))
                    .is_some_and(|inner| names(inner, root, name, depth + 1)))
}

/// How many values there are in a value, itself among them.
fn count(value: &Value) -> usize {
    match value {
        Value::Array(items) => 1 + items.iter().map(count).sum::<usize>(),
        Value::Object(members) => 1 + members.values().map(count).sum::<usize>(),
        _ => 1,
    }
}

/// A place, or what holds it if the way there is too long: names are the caller's.
fn holder_of(place: &str) -> String {
    let mut place = place;
    while place.len() > MAX_SENTENCE {
        place = place.rsplit_once('/').map_or("", |(holder, _)| holder);
    }
    place.to_owned()
}

/// A sentence may quote the name of a member, which may be long.
fn cut(mut sentence: String) -> String {
    if sentence.len() > MAX_SENTENCE {
        sentence.truncate(sentence.floor_char_boundary(MAX_SENTENCE));
        sentence.push('…');
    }
    sentence
}

impl fmt::Debug for Schema {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.text.fmt(f)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use serde_json::json;

    /// A write tool with every default.
    pub(crate) fn tool(name: &str) -> Tool {
        Tool::new(name)
    }

    impl Tool {
        pub(crate) fn set_schema(&mut self, schema: Value) {
            self.schema = Some(Schema::new(schema).expect("a schema"));
        }
    }

    #[test]
    fn a_schema_names_every_mistake_with_its_place() {
        let schema = json!({ "type": "object", "required": ["a"], "properties": { "b": { "type": "integer" } } });
        let schema = Schema::new(schema).expect("a schema");
        assert_eq!(schema.mistakes(&json!({ "a": 1, "b": 2 })), []);
        let places: Vec<String> = schema
            .mistakes(&json!({ "b": "x" }))
            .into_iter()
            .map(|(place, _)| place)
            .collect();
        assert_eq!(places.len(), 2);
        assert!(places.contains(&"/b".to_owned()) && places.contains(&String::new()));
    }

    #[test]
    fn mistakes_are_few_and_short_and_quote_no_value() {
        let schema = json!({ "additionalProperties": { "type": "integer", "enum": [1, 2] } });
        let schema = Schema::new(schema).expect("a schema");
        let long = "n".repeat(5_000);
        let args: Map<String, Value> = (0..500)
            .map(|n| (format!("{n}{long}"), json!("hunter2")))
            .collect();
        let mistakes = schema.mistakes(&args.into());
        assert_eq!(mistakes.len(), MAX_SCHEMA_MISTAKES);
        for (place, sentence) in mistakes {
            assert!(
                place.len() <= MAX_SENTENCE && sentence.len() <= MAX_SENTENCE + 3,
                "{place} {sentence}"
            );
            assert!(!sentence.contains("hunter2"), "{sentence}");
        }
        let many = json!({ "list": vec!["x"; MAX_VALUES_TOLD] });
        assert_eq!(
            schema.mistakes(&many).len(),
            1,
            "and those of large arguments are not gathered"
        );
    }

    #[test]
    fn a_schema_that_is_none_or_lives_elsewhere_is_refused() {
        assert!(Schema::new(json!({ "type": "nonsense" })).is_err());
        assert!(Schema::new(json!({ "$ref": "http://127.0.0.1:9/schema.json" })).is_err());
    }

    #[test]
    fn a_key_field_is_required_only_if_each_step_to_it_is() {
        let schema = Schema::new(json!({
            "required": ["order", "id"],
            "properties": { "order": { "required": ["id"], "properties": { "id": {}, "note": {} } } },
        }))
        .expect("a schema");
        let requires = |pointer: &str| schema.requires(&pointer.parse().expect("a pointer"));
        assert!(requires("/id") && requires("/order") && requires("/order/id"));
        assert!(!requires("/order/note") && !requires("/other") && !requires("/other/id"));
    }

    #[test]
    fn windows_follow_the_keys_source() {
        let hours =
            |tool: &Tool| key::Source::ALL.map(|source| tool.window(source).as_secs() / 3600);
        let mut tool = tool("t");
        assert_eq!(hours(&tool), [24, 24, 24, 1, 24]);
        tool.effect = Effect::Read;
        assert_eq!(hours(&tool), [24, 0, 0, 0, 24]);
        tool.dedup_window = Some(Duration::from_hours(2));
        assert_eq!(
            hours(&tool),
            [2, 2, 2, 2, 2],
            "a configured window holds for every source"
        );
    }
}
