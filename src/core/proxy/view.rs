//! What a request asks for: the value that its key and its fingerprint are made of.

use serde_json::{Map, Value, json};

use super::Message;
use super::form::{FORM, pairs, steps};
use crate::core::json;
use crate::core::key::Pointer;

/// The member that holds the caller's own credentials. The fingerprint covers it, and no key is made of it: a call that is
/// repeated with another credential meets its call, and is not the same.
pub const CREDENTIAL: &str = "oncegate:credential";

/// What multipart bodies have in the place of their boundary, which is another one each time.
const BOUNDARY: &str = "boundary";

/// One object: method, path, query, headers and body. `credential`: the caller's own, where they go through.
pub fn view(message: &Message, credential: &str) -> Value {
    let mut headers = Map::new();
    for (name, value) in &message.headers {
        let values = headers.entry(name).or_insert_with(|| json!([]));
        values
            .as_array_mut()
            .into_iter()
            .for_each(|values| values.push(value.as_str().into()));
    }
    let query = message.query.as_deref().unwrap_or_default();
    let query = pairs(query).map_or_else(
        || json!({ "text": query }),
        |pairs| json!({ "form": tree(pairs) }),
    );
    let method = [message.method.as_str()]
        .into_iter()
        .chain(message.overrides());
    let mut view = json!({
        "method": method.collect::<Vec<_>>().join(" "),
        "path": message.path,
        "query": query,
        "headers": headers,
        "body": body(message),
    });
    if !credential.is_empty() {
        view[CREDENTIAL] = credential.into();
    }
    view
}

/// The same with these headers alone; one that is missing is there without a value.
pub fn with_headers(mut view: Value, counted: &[String]) -> Value {
    let counted: Map<String, Value> = counted
        .iter()
        .map(|name| (name.clone(), view["headers"][name].take()))
        .collect();
    if let Some(headers) = view.get_mut("headers") {
        *headers = counted.into();
    }
    view
}

/// Where a view has what an operator means by `/query/name` or `/body/member`. Empty: it means neither.
pub fn places(pointer: &Pointer) -> Vec<Pointer> {
    let steps: Vec<String> = pointer.steps().collect();
    let in_tree = |root: &str, inner: &[String]| {
        let root = Pointer::to(&[root, "form"]);
        inner
            .iter()
            .fold(root, |at, step| at.below("1").below(step))
    };
    match steps.split_first() {
        Some((root, inner)) if root == "query" && !inner.is_empty() => {
            vec![in_tree("query", inner)]
        }
        Some((root, inner)) if root == "body" && !inner.is_empty() => {
            let json = inner
                .iter()
                .fold(Pointer::to(&["body", "json"]), |at, step| at.below(step));
            vec![json, in_tree("body", inner)]
        }
        _ => Vec::new(),
    }
}

fn body(message: &Message) -> Value {
    let kind = message.header("content-type").unwrap_or_default();
    let Ok(text) = str::from_utf8(&message.body) else {
        return binary(&message.body, boundary(kind));
    };
    if let Some(boundary) = boundary(kind) {
        return json!({ "text": text.replace(boundary, BOUNDARY) });
    }
    if kind.starts_with(FORM)
        && let Some(pairs) = pairs(text)
    {
        return json!({ "form": tree(pairs) });
    }
    // What two readers could understand differently is compared as it is written.
    match json::parse_bounded(text) {
        Ok(value) => json!({ "json": value }),
        Err(_) => json!({ "text": text }),
    }
}

/// A form by the steps of its names. Each place has a list: the values that stand there, and what is below it.
fn tree(pairs: Vec<(String, String)>) -> Value {
    let mut root = json!([[], {}]);
    for (name, value) in pairs {
        let mut at = &mut root;
        for step in steps(&name) {
            let below = &mut at[1];
            if below.get(&step).is_none() {
                below[&step] = json!([[], {}]);
            }
            at = &mut below[&step];
        }
        if let Some(values) = at[0].as_array_mut() {
            values.push(value.into());
        }
    }
    root
}

/// The boundary of a multipart body.
fn boundary(kind: &str) -> Option<&str> {
    let rest = kind.strip_prefix("multipart/")?;
    let (_, rest) = rest.split_once("boundary=")?;
    let boundary = match rest.strip_prefix('"') {
        Some(quoted) => quoted.split('"').next(),
        None => rest.split([';', ' ']).next(),
    };
    boundary.filter(|boundary| !boundary.is_empty())
}

/// Each byte as one character, so that a boundary can be found in it.
fn binary(body: &[u8], boundary: Option<&str>) -> Value {
    let text: String = body.iter().map(|byte| char::from(*byte)).collect();
    let text = boundary.map_or_else(|| text.clone(), |found| text.replace(found, BOUNDARY));
    json!({ "bytes": text })
}
