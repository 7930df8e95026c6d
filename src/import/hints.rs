//! Hints for a person about a tool's key and compensation, guessed from names.

use super::operations::Operation;
use super::request::Request;

/// Most candidates for a key.
const MAX_FIELDS: usize = 3;

/// Names of ids that callers make up, in small letters only.
const THEIRS: [&str; 6] = [
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
    // What is changed or deleted twice has the same id, and may be meant.
    if operation.method != "POST" {
        return Vec::new();
    }
    let properties = request.schema.get("properties");
    let is_plain = |name: &str| {
        let kind = properties.and_then(|properties| properties.get(name)?.get("type")?.as_str());
        matches!(kind, Some("string" | "integer"))
    };
    // Ids that callers make up. Those of what is there already may stand in several intents, as in two refunds.
    let is_theirs = |name: &str| {
        let lower = name.to_lowercase().replace(['_', '-'], "");
        THEIRS.iter().any(|word| lower.contains(word))
    };
    let is_place = |name: &str| request.places.iter().any(|(_, place)| place == name);
    let names = request
        .required()
        .filter(|name| !is_place(name))
        .filter(|name| is_plain(name) && is_theirs(name));
    names.map(pointer).take(MAX_FIELDS).collect()
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
    if path.ends_with('}') {
        // It changes what is there: what it was before is not known.
        return None;
    }
    let candidates = all.iter().filter(|other| !std::ptr::eq(*other, operation));
    let below = candidates.filter_map(|other| {
        let rest = other.path.strip_prefix(path)?;
        (rest.is_empty() || rest.starts_with(['/', ':'])).then_some((rest, other))
    });
    // One that names what it undoes in its path.
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
        let from = own.map_or_else(
            || "/result/id".to_owned(),
            |(_, name)| format!("/args{}", pointer(name)),
        );
        format!(
            "{} = {}",
            super::text::key(place),
            super::text::string(&from)
        )
    });
    let args: Vec<String> = args.collect();
    Some(format!(
        "{{ tool = {}, args = {{ {} }} }}",
        super::text::string(&other.name),
        args.join(", ")
    ))
}

/// Whether its last path step or its name begins or ends with a word for undoing.
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

fn pointer(name: &str) -> String {
    format!("/{}", name.replace('~', "~0").replace('/', "~1"))
}
