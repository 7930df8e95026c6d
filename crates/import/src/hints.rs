//! Hints for an operator about a tool's key and compensation, guessed from names.

use super::document::text;
use super::operations::Operation;
use super::request::Request;
use super::text::{key, string};
use oncegate_rules::key::Pointer;

/// Most candidates for a key.
const MAX_FIELDS: usize = 3;

/// Parts of names of ids that callers make up, in small letters.
const OF_CALLERS: [&str; 6] = [
    "clientid",
    "external",
    "invoicenumber",
    "ordernumber",
    "reference",
    "requestid",
];

/// Words in the names of operations that undo others.
const UNDOES: [&str; 5] = ["cancel", "refund", "reverse", "revoke", "void"];

/// Required body members that may name one intent, as pointers.
pub(super) fn key_fields(operation: &Operation<'_>, request: &Request) -> Vec<String> {
    // A second change or deletion has the same id, and may be meant.
    if operation.method != "POST" {
        return Vec::new();
    }
    let properties = request.schema.get("properties");
    let is_plain = |name: &str| {
        let kind = properties.and_then(|properties| text(properties.get(name)?, "type"));
        matches!(kind, Some("string" | "integer"))
    };
    // The id of an existing thing may stand in several intents, as in two refunds of one order.
    let is_of_caller = |name: &str| {
        let lower = name.to_lowercase().replace(['_', '-'], "");
        OF_CALLERS.iter().any(|word| lower.contains(word))
    };
    let names = request
        .required()
        .filter(|name| is_plain(name) && is_of_caller(name));
    let fields = names.map(|name| Pointer::to(&[name]).as_str().to_owned());
    let is_place = |field: &String| request.places.iter().any(|(_, place)| place == field);
    fields
        .filter(|field| !is_place(field))
        .take(MAX_FIELDS)
        .collect()
}

/// An operation that may undo this one, and its arguments.
pub(super) fn compensation(
    all: &[Operation<'_>],
    operation: &Operation<'_>,
    request: &Request,
) -> Option<String> {
    if operation.method != "POST" || undoes(operation) {
        return None;
    }
    let path = operation.path.trim_end_matches('/');
    // A change of an existing thing is not undone: its earlier value is not known.
    if path.ends_with('}') {
        return None;
    }
    let candidates = all.iter().filter(|other| !std::ptr::eq(*other, operation));
    let below = candidates.filter_map(|other| {
        let rest = other.path.strip_prefix(path)?;
        (rest.is_empty() || rest.starts_with(['/', ':'])).then_some((rest, other))
    });
    // The path of the other operation names the thing that it undoes.
    let is_of_one = |rest: &str| rest.starts_with("/{");
    let is_itself = |rest: &str| rest.matches('/').count() == 1 && rest.ends_with('}');
    let found = below
        .filter(|(rest, other)| match &*other.method {
            "DELETE" => rest.is_empty() || is_of_one(rest) && is_itself(rest),
            "POST" => is_of_one(rest) && undoes(other),
            _ => false,
        })
        .min_by_key(|(rest, _)| rest.len());
    let (_, other) = found?;
    let args = places(other.path).map(|place| {
        let own = request.places.iter().find(|(name, _)| name == place);
        let from = own.map_or("/result/id".to_owned(), |(_, own)| format!("/args{own}"));
        format!("{} = {}", key(place), string(&from))
    });
    let args: Vec<String> = args.collect();
    let (tool, args) = (string(&other.name), args.join(", "));
    Some(format!("{{ tool = {tool}, args = {{ {args} }} }}"))
}

/// Whether the last step of its path or its id begins with a word for undoing.
fn undoes(operation: &Operation<'_>) -> bool {
    let last = operation.path.rsplit(['/', ':']).next().unwrap_or_default();
    let id = operation.id.unwrap_or_default().to_lowercase();
    UNDOES
        .iter()
        .any(|word| last.to_lowercase().starts_with(word) || id.starts_with(word))
}

fn places(path: &str) -> impl Iterator<Item = &str> {
    let inside = path.split('{').skip(1);
    inside.filter_map(|rest| Some(rest.split_once('}')?.0))
}
