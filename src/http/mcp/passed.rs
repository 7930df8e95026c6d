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

/// A response with an MCP server's result. `None`: the stored result is no MCP server's.
///
/// Changed are `resultType` (by the caller's era), the gateway's members of `_meta`, the notes at the end of `content`, and
/// the `requestState` of questions, which names the call that asked.
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
    // The state lets a later request prove that its answers belong to these questions.
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
                let Members(of_server) =
                    serde_json::from_str(value.get()).unwrap_or(Members(Vec::new()));
                let of_server = of_server
                    .into_iter()
                    .filter(|(name, _)| !name.starts_with(OWN) && !own.contains_key(name));
                of_server.for_each(|(name, value)| meta.value(&name, value));
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
    result.object("_meta", meta);
    Some(message::response(id, result.end()))
}

/// Writes a JSON object in parts. Stored values are shared, not copied.
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

    /// A result, with the type that results have since 2026-07-28.
    pub(super) fn result(kept: &'a Bytes, era: Era) -> Self {
        let mut result = Self::new(kept);
        if era == Era::Modern {
            result.text("resultType", r#""complete""#.into());
        }
        result
    }

    pub(super) fn name(&mut self, name: &str) {
        let before = if self.parts.is_empty() { "{" } else { "," };
        self.plain(format!("{before}{}:", json!(name)));
    }

    pub(super) fn value(&mut self, name: &str, value: &RawValue) {
        self.name(name);
        self.kept(value.get());
    }

    pub(super) fn text(&mut self, name: &str, text: String) {
        self.name(name);
        self.plain(text);
    }

    pub(super) fn object(&mut self, name: &str, object: Written<'_>) {
        self.name(name);
        self.parts.extend(object.end());
    }

    /// The content blocks, and after them one for each note.
    fn content(&mut self, blocks: &RawValue, notes: &[String]) {
        self.name("content");
        let blocks = blocks.get().trim_end();
        let blocks = blocks.strip_suffix(']').unwrap_or(blocks);
        self.kept(blocks);
        let is_empty = blocks.trim_end().ends_with('[');
        let mut before = if is_empty { "" } else { "," };
        for note in notes {
            let block = json!({ "type": "text", "text": note });
            self.plain(format!("{before}{block}"));
            before = ",";
        }
        self.plain("]".into());
    }

    /// A list of stored values, some with another text instead.
    pub(super) fn list<'v>(
        &mut self,
        name: &str,
        values: impl Iterator<Item = (&'v RawValue, Option<String>)>,
    ) {
        self.name(name);
        let mut before = "[";
        for (value, instead) in values {
            self.plain(before.into());
            match instead {
                Some(text) => self.plain(text),
                None => self.kept(value.get()),
            }
            before = ",";
        }
        self.plain(if before == "[" { "[]" } else { "]" }.into());
    }

    /// A piece of the stored bytes, shared.
    fn kept(&mut self, piece: &str) {
        self.part(Part::Plain(self.kept.slice_ref(piece.as_bytes())));
    }

    pub(super) fn plain(&mut self, text: String) {
        self.part(Part::Plain(text.into()));
    }

    pub(super) fn part(&mut self, part: Part) {
        self.parts.push(part);
    }

    pub(super) fn end(mut self) -> Vec<Part> {
        self.plain(if self.parts.is_empty() { "{}" } else { "}" }.into());
        self.parts
    }
}
