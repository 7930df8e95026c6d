//! A server's list of its tools.

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;

use oncegate_rules::json;
use oncegate_rules::key::CONFIRM_MEMBER;
use oncegate_rules::mcp::annotations;
use oncegate_rules::mcp::mirrored::{self, Mirrored};
use oncegate_rules::schema::has_property;
use oncegate_rules::tool::Effect;

/// Most tools that one log line names.
const MAX_NAMED: usize = 50;

/// The tools of a server by name.
pub(super) type List = BTreeMap<String, Listed>;

/// A tool in a server's list, with what the gateway needs of it.
#[derive(Default)]
pub(super) struct Listed {
    /// The effect that its annotations tell.
    pub said: Option<Effect>,
    /// Whether it has an argument that is named like a confirmation.
    pub keeps_confirm_member: bool,
    /// The arguments that are repeated in headers.
    pub mirrored: Vec<Mirrored>,
}

impl Listed {
    /// The tool of a list. `Err`: it cannot be called, and why.
    pub(super) fn of(tool: &ListedTool<'_>) -> Result<Self, String> {
        let schema = tool.schema.map_or("{}", RawValue::get);
        let schema = json::read(schema.as_bytes()).unwrap_or_default();
        let mirrored = mirrored::mirrored(&schema);
        match mirrored::mistake(&mirrored) {
            Some(why) => Err(why),
            None => Ok(Self {
                said: annotations::effect(&tool.annotations),
                keeps_confirm_member: has_property(&schema, CONFIRM_MEMBER),
                mirrored,
            }),
        }
    }
}

/// The tools that only read, as the server says; none where it is not trusted.
pub(super) fn reads(list: &List, is_trusted: bool) -> BTreeSet<String> {
    let reads = |(_, listed): &(&String, &Listed)| is_trusted && listed.said == Some(Effect::Read);
    let names = list.iter().filter(reads);
    names.map(|(name, _)| name.clone()).collect()
}

/// Logs which tools only read, if these are others than before.
pub(super) fn tell_what_reads(
    upstream: &str,
    reads: BTreeSet<String>,
    before: &mut BTreeSet<String>,
) {
    if *before == reads {
        return;
    }
    let names: Vec<&str> = reads.iter().take(MAX_NAMED).map(String::as_str).collect();
    tracing::info!(
        upstream,
        count = reads.len(),
        tools = names.join(", "),
        "these tools only read, as the server says (trust_annotations)"
    );
    *before = reads;
}

#[derive(Deserialize)]
pub(super) struct ListPage<'a> {
    #[serde(borrow)]
    pub tools: Vec<ListedTool<'a>>,
    #[serde(rename = "nextCursor")]
    pub next: Option<String>,
}

#[derive(Deserialize)]
pub(super) struct ListedTool<'a> {
    pub name: String,
    #[serde(default)]
    annotations: Value,
    #[serde(rename = "inputSchema", borrow)]
    schema: Option<&'a RawValue>,
}
