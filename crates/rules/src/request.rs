//! How a call's arguments become an HTTP request: URL, headers and body.
//!
//! Promises: no argument leaves its segment of the path or its value in the query, no argument chooses scheme, host or
//! port, and no argument is dropped: one without a place is a mistake.

mod pairs; // names and values of queries and forms
mod target; // URLs with places for arguments

#[cfg(test)]
mod property_tests; // the promises, for random arguments
#[cfg(test)]
mod tests; // the shapes, byte by byte

use bytes::Bytes;
use serde_json::{Map, Value};

pub use self::pairs::Lists;
use self::pairs::write_pairs;
pub use self::target::{MAX_URL, Target};
use crate::key::Pointer;

/// Mistakes in arguments: a JSON Pointer each, and a sentence that quotes no value.
pub type Mistakes = Vec<(String, String)>;

/// The header for the key, unless the configuration names another one.
pub const KEY_HEADER: &str = "idempotency-key";

/// The longest header value that an argument may give, in bytes.
const MAX_HEADER: usize = 1 << 10;

/// The form of a request's body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BodyForm {
    Json,
    /// `application/x-www-form-urlencoded`; objects as `a[b]=c`.
    Form(Lists),
    /// No body.
    None,
}

/// How the arguments of one tool become its request.
#[derive(Debug, Clone)]
pub struct Shape {
    pub target: Target,
    pub body: BodyForm,
    /// Constants in the body. No argument may stand in their places.
    pub set: Vec<(Pointer, Value)>,
    /// Headers with arguments as values; their names are in lower case.
    pub headers: Vec<(String, Pointer)>,
    /// The header for the key, in lower case.
    pub key_header: String,
    /// A further place for the key in the body.
    pub key_body: Option<Pointer>,
}

/// An HTTP request for a tool.
#[derive(Debug, PartialEq, Eq)]
pub struct Sent {
    /// `None`: the URL of the configuration, which is the same for every call.
    pub url: Option<String>,
    /// The headers that depend on the call.
    pub headers: Vec<(String, String)>,
    /// `None`: there is no body.
    pub content_type: Option<&'static str>,
    pub body: Bytes,
}

impl Shape {
    /// Whether the body is exactly the arguments.
    fn keeps_body(&self) -> bool {
        self.body == BodyForm::Json
            && self.set.is_empty()
            && self.key_body.is_none()
            && self.used().next().is_none()
    }

    /// The arguments for URL and headers. They leave the body, and so does an object that holds nothing else.
    pub fn used(&self) -> impl Iterator<Item = &Pointer> {
        let headers = self.headers.iter().map(|(_, pointer)| pointer);
        self.target.used().chain(headers)
    }

    /// The mistakes that keep these arguments from making a request.
    pub fn mistakes(&self, args: &Value) -> Mistakes {
        if self.keeps_body() {
            return Vec::new();
        }
        self.write(args.clone(), "0").err().unwrap_or_default()
    }

    /// Makes the request. `args` is one JSON object; `key` is plain characters.
    ///
    /// # Errors
    /// The arguments do not fit. Then nothing must be sent.
    pub fn make(&self, args: &Bytes, key: &str) -> Result<Sent, Mistakes> {
        if self.keeps_body() {
            return Ok(Sent {
                url: self.url(&Value::Null, key)?,
                headers: Vec::new(),
                content_type: Some(JSON),
                body: args.clone(),
            });
        }
        let args = serde_json::from_slice(args).map_err(|_| mistake("", "this is not JSON"))?;
        self.write(args, key)
    }

    fn write(&self, mut args: Value, key: &str) -> Result<Sent, Mistakes> {
        let url = self.url(&args, key)?;
        let headers = self.headers(&args)?;
        for used in self.used() {
            used.take_from(&mut args);
        }
        let Value::Object(args) = args else {
            return Err(mistake("", "this is not an object"));
        };
        let (content_type, body) = match self.body {
            BodyForm::Json => {
                let body = Value::Object(self.with_constants(args, key)?);
                (Some(JSON), body.to_string())
            }
            BodyForm::Form(lists) => {
                let body = self.with_constants(args, key)?;
                (Some(FORM), write_pairs(&body, lists)?)
            }
            // A null counts as absent.
            BodyForm::None if args.values().all(Value::is_null) => (None, String::new()),
            BodyForm::None => {
                let why = "the request of this tool does not send it";
                let unused = args.iter().filter(|(_, value)| !value.is_null());
                let unused = unused.map(|(name, _)| (pointer_to(name), why.to_owned()));
                return Err(unused.collect());
            }
        };
        Ok(Sent {
            url,
            headers,
            content_type,
            body: body.into(),
        })
    }

    fn url(&self, args: &Value, key: &str) -> Result<Option<String>, Mistakes> {
        let is_fixed = self.target.is_fixed();
        (!is_fixed).then(|| self.target.url(args, key)).transpose()
    }

    fn headers(&self, args: &Value) -> Result<Vec<(String, String)>, Mistakes> {
        let mut headers = Vec::new();
        for (name, pointer) in &self.headers {
            let value = match args.pointer(pointer.as_str()) {
                None | Some(Value::Null) => continue,
                Some(value) => value,
            };
            let text = pairs::text(value).filter(|text| is_header(text));
            let why = "a header value has 1 to 1024 visible ASCII characters";
            let text = text.ok_or_else(|| mistake(pointer.as_str(), why))?;
            headers.push((name.clone(), text));
        }
        Ok(headers)
    }

    /// The body's members, with constants and key.
    fn with_constants(
        &self,
        mut body: Map<String, Value>,
        key: &str,
    ) -> Result<Map<String, Value>, Mistakes> {
        let key = self.key_body.as_ref().map(|at| (at, key.into()));
        let set = self.set.iter().map(|(at, value)| (at, value.clone()));
        for (at, value) in set.chain(key) {
            put(&mut body, at, value)?;
        }
        Ok(body)
    }
}

const JSON: &str = "application/json";
const FORM: &str = "application/x-www-form-urlencoded";

/// Puts a value in a place that is still free.
fn put(body: &mut Map<String, Value>, at: &Pointer, value: Value) -> Result<(), Mistakes> {
    let taken = || mistake(at.as_str(), "the configuration of this tool sets it");
    let mut steps: Vec<String> = at.steps().collect();
    let Some(last) = steps.pop() else {
        return Err(taken());
    };
    let mut members = body;
    for step in steps {
        let inner = members
            .entry(step)
            .or_insert_with(|| Value::Object(Map::new()));
        members = inner.as_object_mut().ok_or_else(taken)?;
    }
    if members.contains_key(&last) {
        return Err(taken());
    }
    members.insert(last, value);
    Ok(())
}

/// One mistake. `place`: a JSON Pointer.
fn mistake(place: &str, why: &str) -> Mistakes {
    vec![(place.to_owned(), why.to_owned())]
}

/// The pointer to a member of the arguments.
fn pointer_to(name: &str) -> String {
    Pointer::to(&[name]).as_str().to_owned()
}

/// Whether a text may be a header's value. White space at its ends would be cut off.
fn is_header(text: &str) -> bool {
    (1..=MAX_HEADER).contains(&text.len())
        && text.bytes().all(|byte| matches!(byte, 0x20..=0x7e))
        && text.trim() == text
}
