//! A server's list of its tools.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;

use crate::core::json;
use crate::core::key::CONFIRM_MEMBER;
use crate::core::mcp::annotations;
use crate::core::mcp::mirrored::{self, Mirrored};
use crate::core::schema::has_property;
use crate::core::tool::Effect;

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
