//! Results of MCP servers, passed on member for member.

use axum::body::Bytes;
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};

use super::super::parts::{Part, Parts};
use super::message;
use crate::core::mcp::evidence::is_tool_result;
use crate::core::mcp::members::Members;
use crate::core::mcp::revision::Era;
use crate::core::mcp::round;

/// The prefix of the gateway's own members of `_meta`.
const OWN: &str = "dev.oncegate/";

/// A response with a server's result. `None`: the result is not a server's.
///
/// Only the envelope differs: `resultType` by the era of the caller, the gateway's members of `_meta`, at the end of
/// `content` what a model should know, and of questions the state, which names the call that asked.
pub(super) fn response(
    id: &RawValue,
    kept: &Bytes,
    notes: &[String],
    own: Map<String, Value>,
    asked_by: &str,
    era: Era,
) -> Option<Parts> {
    if !is_tool_result(kept) {
        return None;
    }
    let Members(members) = serde_json::from_slice(kept).ok()?;
    let mut result = Written::new(kept);
    let mut meta = Written::new(kept);
    // By it the answers are known to belong to these questions.
    let asked = round::asked(kept).map(|asked| round::state(asked_by, asked.state.as_deref()));
    let has_kind = members.iter().any(|(name, _)| name == "resultType");
    if era == Era::Modern && !has_kind {
        result.text("resultType", "\"complete\"".into());
    }
    for (name, value) in members {
        match name.as_str() {
            "resultType" if era == Era::Legacy => {}
            "requestState" if asked.is_some() => {}
            "_meta" => {
                let Members(theirs) =
                    serde_json::from_str(value.get()).unwrap_or(Members(Vec::new()));
                let theirs = theirs
                    .into_iter()
                    .filter(|(name, _)| !name.starts_with(OWN) && !own.contains_key(name));
                theirs.for_each(|(name, value)| meta.value(&name, value));
            }
            "content" if !notes.is_empty() => result.content(value, notes),
            _ => result.value(&name, value),
        }
    }
    if let Some(state) = asked {
        result.text("requestState", json!(state).to_string());
    }
    for (name, value) in own {
        meta.text(&name, value.to_string());
    }
    let meta = meta.end();
    result.name("_meta");
    result.parts.extend(meta);
    Some(message::response(id, result.end()))
}

/// An object as it is written. Values are parts of the stored bytes, and are not copied.
pub(super) struct Written<'a> {
    kept: &'a Bytes,
    parts: Vec<Part>,
}

impl<'a> Written<'a> {
    pub(super) fn new(kept: &'a Bytes) -> Self {
        Self {
            kept,
            parts: Vec::new(),
        }
    }

    fn name(&mut self, name: &str) {
        let before = if self.parts.is_empty() { "{" } else { "," };
        self.plain(format!("{before}{}:", json!(name)));
    }

    pub(super) fn value(&mut self, name: &str, value: &RawValue) {
        self.name(name);
        self.parts
            .push(Part::Plain(self.kept.slice_ref(value.get().as_bytes())));
    }

    pub(super) fn text(&mut self, name: &str, text: String) {
        self.name(name);
        self.plain(text);
    }

    /// The content blocks, and after them one for each note.
    fn content(&mut self, blocks: &RawValue, notes: &[String]) {
        self.name("content");
        let blocks = blocks.get().trim_end();
        let blocks = blocks.strip_suffix(']').unwrap_or(blocks);
        self.parts
            .push(Part::Plain(self.kept.slice_ref(blocks.as_bytes())));
        let mut before = if blocks.trim_end().ends_with('[') {
            ""
        } else {
            ","
        };
        for note in notes {
            self.plain(format!(
                "{before}{}",
                json!({ "type": "text", "text": note })
            ));
            before = ",";
        }
        self.plain("]".into());
    }

    fn plain(&mut self, text: String) {
        self.parts.push(Part::Plain(text.into()));
    }

    /// A list of some of the stored values.
    pub(super) fn list<'v>(&mut self, name: &str, values: impl Iterator<Item = &'v RawValue>) {
        self.name(name);
        let mut before = "[";
        for value in values {
            self.plain(before.into());
            self.parts
                .push(Part::Plain(self.kept.slice_ref(value.get().as_bytes())));
            before = ",";
        }
        self.plain(if before == "[" { "[]" } else { "]" }.into());
    }

    pub(super) fn end(mut self) -> Vec<Part> {
        self.plain(if self.parts.is_empty() { "{}" } else { "}" }.into());
        self.parts
    }
}
