//! Reads messages of MCP clients after random changes.

use proptest::prelude::*;
use serde_json::Value;

use super::message::{Message, readable_id};
use oncegate_fuzz::{attack, corpus};

#[test]
fn a_message_of_mcp_is_read_or_refused_with_its_own_id() {
    attack(&corpus("mcp"), |bytes| {
        // A member that is not read may hold half of a surrogate pair, or a byte that is not UTF-8.
        let (id, message) = (readable_id(bytes), Message::read(bytes));
        let Ok(body) = serde_json::from_slice::<Value>(bytes) else {
            return Ok(());
        };
        if let Some(id) = id {
            let read = serde_json::from_str::<Value>(id.get()).ok();
            prop_assert_eq!(read.as_ref(), body.get("id"));
        }
        if let Ok(message) = message {
            prop_assert_eq!(body["jsonrpc"].as_str(), Some("2.0"));
            prop_assert_eq!(body["method"].as_str(), Some(&*message.method));
            prop_assert!(body["params"].is_object() || body["params"].is_null());
        }
        Ok(())
    });
}
