//! URLs with places for arguments: `https://api.example.com/orders/{/order_id}`.

use percent_encoding::percent_decode_str;
use serde_json::Value;

use super::pairs::{Lists, encode, text, write_pair};
use super::{Mistakes, Pointer, mistake};
use crate::redact::holds_mask;

/// The longest URL, in bytes: servers refuse longer ones, each in its own way.
pub const MAX_URL: usize = 8 << 10;

/// The text in the place of an argument or the key in an example of a URL.
const EXAMPLE: &str = "0";

#[derive(Debug, Clone, PartialEq)]
enum Piece {
    /// A fixed text.
    Given(String),
    Argument(Pointer),
    /// The key for the tool.
    Key,
}

/// A URL with places for arguments in its path and its query.
#[derive(Debug, Clone)]
pub struct Target {
    pieces: Vec<Piece>,
    /// Query names, and the arguments for their values. A missing one is left out.
    query: Vec<(String, Pointer)>,
    lists: Lists,
}

impl Target {
    /// Reads `https://host/path/{/pointer}?name={key}`.
    ///
    /// # Errors
    /// Which place is wrong, and why. The sentence does not repeat the URL, which may hold a secret.
    pub fn read(url: &str) -> Result<Self, String> {
        Self::with_names(url, &[])
    }

    /// The same, with places `{name}` for arguments that have a name.
    ///
    /// # Errors
    /// As [`Target::read`].
    pub fn with_names(url: &str, names: &[(&str, Pointer)]) -> Result<Self, String> {
        let authority = url.find("://").map_or(0, |at| at + "://".len());
        let path = url[authority..]
            .find(['/', '?', '#', '\\'])
            .map_or(url.len(), |at| authority + at);
        if url[..path].contains('{') {
            return Err("only path and query of a URL have places for arguments".into());
        }
        let (mut pieces, mut rest) = (Vec::new(), url);
        while let Some((before, inside)) = rest.split_once('{') {
            let (place, after) = inside.split_once('}').ok_or("a { without its }")?;
            if is_cut(before) {
                return Err("a place for an argument stands within a percent-encoded byte".into());
            }
            pieces.push(Piece::Given(before.to_owned()));
            let named = names.iter().find(|(name, _)| *name == place);
            pieces.push(match named {
                Some((_, pointer)) => Piece::Argument(pointer.clone()),
                None => piece(place)?,
            });
            rest = after;
        }
        pieces.push(Piece::Given(rest.to_owned()));
        let is_filled_in = pieces.len() > 1;
        let given: String = pieces.iter().map(given).collect();
        if is_filled_in && leads_away(&given[authority..]) {
            return Err(
                "a URL with places for arguments has no \".\", \"..\" or backslash in its path"
                    .into(),
            );
        }
        if is_filled_in && url.contains('#') {
            return Err("a URL with places for arguments has no fragment".into());
        }
        Ok(Self {
            pieces,
            query: Vec::new(),
            lists: Lists::Repeat,
        })
    }

    /// The same, with arguments as values in the query.
    pub fn with_query(self, query: Vec<(String, Pointer)>, lists: Lists) -> Self {
        Self {
            query,
            lists,
            ..self
        }
    }

    /// An example of the URL, for the parts that every call shares.
    pub fn example(&self) -> String {
        self.pieces.iter().map(given).collect()
    }

    /// The arguments that every URL needs.
    pub fn needed(&self) -> impl Iterator<Item = &Pointer> {
        self.pieces.iter().filter_map(|piece| match piece {
            Piece::Argument(pointer) => Some(pointer),
            Piece::Given(_) | Piece::Key => None,
        })
    }

    /// The arguments that the URL uses.
    pub fn used(&self) -> impl Iterator<Item = &Pointer> {
        let query = self.query.iter().map(|(_, pointer)| pointer);
        self.needed().chain(query)
    }

    /// Whether the URL is the same for every call.
    pub(super) fn is_fixed(&self) -> bool {
        self.pieces.len() == 1 && self.query.is_empty()
    }

    /// Whether the URL has a place for the key.
    pub fn has_key(&self) -> bool {
        self.pieces.contains(&Piece::Key)
    }

    /// The URL of a call. `key` may be a caller's, with any visible character.
    ///
    /// # Errors
    /// An argument is missing, or cannot stand in a URL.
    pub fn url(&self, args: &Value, key: &str) -> Result<String, Mistakes> {
        let masked = |pointer: &&Pointer| args.pointer(pointer.as_str()).is_some_and(holds_mask);
        if let Some(pointer) = self.used().find(masked) {
            return Err(mistake(pointer.as_str(), "what stood there is not stored"));
        }
        let mut url = String::new();
        for piece in &self.pieces {
            match piece {
                Piece::Given(text) => url.push_str(text),
                Piece::Key => {
                    let key = segment(Some(&Value::from(key)));
                    let key = key.map_err(|why| mistake("{key}", why))?;
                    url.push_str(&encode(&key));
                }
                Piece::Argument(pointer) => {
                    let place = pointer.as_str();
                    let segment = segment(args.pointer(place));
                    let segment = segment.map_err(|why| mistake(place, why))?;
                    url.push_str(&encode(&segment));
                }
            }
        }
        let mut pairs = Vec::new();
        for (name, pointer) in &self.query {
            let place = pointer.as_str();
            match args.pointer(place) {
                None | Some(Value::Null) => {}
                Some(value) => write_pair(name, value, self.lists, &mut pairs)
                    .map_err(|why| mistake(place, why))?,
            }
        }
        if !pairs.is_empty() {
            url.push(if url.contains('?') { '&' } else { '?' });
            url.push_str(&pairs.join("&"));
        }
        if url.len() > MAX_URL && self.used().next().is_some() {
            let why = "the URL of the request would be longer than 8 KiB";
            return Err(mistake("", why));
        }
        Ok(url)
    }
}

fn piece(place: &str) -> Result<Piece, String> {
    if place == "key" {
        return Ok(Piece::Key);
    }
    let is_plain = |c: char| c.is_ascii_alphanumeric() || c == '_';
    match place.parse::<Pointer>() {
        Ok(pointer) => Ok(Piece::Argument(pointer)),
        // The text may be a secret, so it is not repeated.
        Err(_) if place.len() > 40 || !place.chars().all(is_plain) => {
            Err("{ would be sent as it stands: only {key} and {/pointer} are filled in".to_owned())
        }
        Err(_) => Err(format!(
            "{{{place}}} would be sent as it stands: only {{key}} and {{/pointer}} are filled in, as in {{/{place}}}"
        )),
    }
}

/// The text of an argument in the path, not yet encoded.
fn segment(value: Option<&Value>) -> Result<String, &'static str> {
    let value = value.ok_or("the URL of the request needs it")?;
    let text = text(value).ok_or("the URL of the request takes a string, number or boolean")?;
    if text.is_empty() {
        return Err("the URL of the request needs it: it is empty");
    }
    if text.contains(char::is_control) {
        return Err("it has control characters, and goes into a URL");
    }
    // A server that decodes a path before it splits it sees these as steps.
    if text.split(['/', '\\']).any(is_step) {
        return Err("\".\" and \"..\" lead to another place of the path");
    }
    Ok(text)
}

/// Whether a text ends within a percent-encoded byte.
fn is_cut(text: &str) -> bool {
    let last_two = text.len().saturating_sub(2);
    text.as_bytes()[last_two..].contains(&b'%')
}

/// A fixed piece, or a plain character in the place of an argument.
fn given(piece: &Piece) -> &str {
    match piece {
        Piece::Given(text) => text,
        Piece::Argument(_) | Piece::Key => EXAMPLE,
    }
}

/// Whether a path has `.` or `..` steps, however often it is decoded.
///
/// A server would drop the arguments beside them.
fn leads_away(path: &str) -> bool {
    let path = path.split(['?', '#']).next().unwrap_or_default();
    let once = percent_decode_str(path).decode_utf8_lossy();
    let twice = percent_decode_str(&once).decode_utf8_lossy();
    twice.contains(['\\', '\r', '\n', '\t']) || twice.split('/').any(is_step)
}

fn is_step(segment: &str) -> bool {
    matches!(segment, "." | "..")
}
