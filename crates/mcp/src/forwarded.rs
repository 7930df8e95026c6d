//! Results of MCP servers, forwarded member for member.

use axum::body::Bytes;
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};

use oncegate_http::parts::Part;
use oncegate_rules::mcp::elicitation;
use oncegate_rules::mcp::evidence::is_tool_result;
use oncegate_rules::mcp::members::Members;
use oncegate_rules::mcp::revision::Era;

/// The prefix of the gateway's own members of `_meta`.
const OWN: &str = "dev.oncegate/";

/// A result of an MCP server. `None`: the stored result is not an MCP server's.
///
/// Changed are `resultType` (by the caller's era), the gateway's members of `_meta`, the first text, which begins with
/// the notes, and the `requestState` of questions, which names the call that asked.
pub(super) fn result(
    stored: &Bytes,
    notes: &[String],
    own: Map<String, Value>,
    asked_by: &str,
    era: Era,
) -> Option<Vec<Part>> {
    if !is_tool_result(stored) {
        return None;
    }
    let Members(members) = serde_json::from_slice(stored).ok()?;
    let mut result = Written::new(stored);
    let mut meta = Written::new(stored);
    // The state lets a later request prove that its answers belong to these questions.
    let asked = elicitation::asked(stored)
        .map(|asked| elicitation::state(asked_by, asked.state.as_deref()));
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
            "content" if !notes.is_empty() => result.content(value, &notes.join("\n")),
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
    Some(result.end())
}

/// Writes a JSON object in parts. Stored values are shared, not copied.
pub(super) struct Written<'a> {
    stored: &'a Bytes,
    parts: Vec<Part>,
}

impl<'a> Written<'a> {
    pub(super) fn new(stored: &'a Bytes) -> Self {
        Self {
            stored,
            parts: Vec::new(),
        }
    }

    /// A result, with the type that results have since 2026-07-28.
    pub(super) fn result(stored: &'a Bytes, era: Era) -> Self {
        let mut result = Self::new(stored);
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
        self.copied(value.get());
    }

    pub(super) fn text(&mut self, name: &str, text: String) {
        self.name(name);
        self.plain(text);
    }

    pub(super) fn object(&mut self, name: &str, object: Written<'_>) {
        self.name(name);
        self.parts.extend(object.end());
    }

    pub(super) fn parts(&mut self, name: &str, value: Vec<Part>) {
        self.name(name);
        self.parts.extend(value);
    }

    /// The content blocks. The first text begins with a note: some clients show a model only that text.
    fn content(&mut self, blocks: &RawValue, note: &str) {
        let blocks: Vec<&RawValue> = serde_json::from_str(blocks.get()).unwrap_or_default();
        let first = blocks.iter().position(|block| text_of(block).is_some());
        self.name("content");
        let mut before = "[";
        if first.is_none() {
            let block = json!({ "type": "text", "text": note });
            self.plain(format!("{before}{block}"));
            before = ",";
        }
        for (at, block) in blocks.iter().enumerate() {
            self.plain(before.into());
            before = ",";
            match text_of(block).filter(|_| first == Some(at)) {
                Some(members) => self.noted(members, note),
                None => self.copied(block.get()),
            }
        }
        self.plain(if before == "[" { "[]" } else { "]" }.into());
    }

    /// A text block that begins with a note.
    fn noted(&mut self, members: Members<'_>, note: &str) {
        let mut block = Written::new(self.stored);
        for (name, value) in members.0 {
            if name == "text" {
                block.name(&name);
                let begin = json!(format!("{note}\n\n")).to_string();
                block.plain(begin.trim_end_matches('"').to_owned());
                block.copied(&value.get()[1..]);
            } else {
                block.value(&name, value);
            }
        }
        let block = block.end();
        self.parts.extend(block);
    }

    /// A list of stored values, some with another text instead, and perhaps one more at its end.
    pub(super) fn list<'v>(
        &mut self,
        name: &str,
        values: impl Iterator<Item = (&'v RawValue, Option<String>)>,
        more: Option<&str>,
    ) {
        self.name(name);
        let mut before = "[";
        for (value, instead) in values {
            self.plain(before.into());
            match instead {
                Some(text) => self.plain(text),
                None => self.copied(value.get()),
            }
            before = ",";
        }
        if let Some(more) = more {
            self.plain(format!("{before}{more}"));
            before = ",";
        }
        self.plain(if before == "[" { "[]" } else { "]" }.into());
    }

    /// A piece of the stored bytes, shared.
    fn copied(&mut self, piece: &str) {
        self.part(Part::Plain(self.stored.slice_ref(piece.as_bytes())));
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

/// The members of a text block; `None`: the block is of another type.
fn text_of<'v>(block: &&'v RawValue) -> Option<Members<'v>> {
    #[derive(serde::Deserialize)]
    struct Text<'a> {
        #[serde(rename = "type")]
        kind: std::borrow::Cow<'a, str>,
        #[serde(borrow)]
        text: &'a RawValue,
    }
    let Text { kind, text } = serde_json::from_str(block.get()).ok()?;
    let is_text = kind == "text" && text.get().starts_with('"');
    is_text.then(|| serde_json::from_str(block.get()).ok())?
}
