//! Who waits for a call of an MCP server.

use std::sync::Arc;

use serde_json::{Map, Value};
use tokio::sync::mpsc;

use crate::core::mcp::progress;

/// A client of MCP, as far as a server is told of it.
#[derive(Debug, Default, Clone)]
pub struct Client {
    /// What it can answer, as it says itself; `None`: it cannot be asked.
    pub can_answer: Option<Arc<Map<String, Value>>>,
    /// Where it hears of the call's progress. What has no room there is lost.
    pub progress: Option<mpsc::Sender<String>>,
}

impl Client {
    /// Passes on what a server says of the progress of the request with this id.
    pub(super) fn hears(&self, message: &[u8], id: &str) {
        if let Some(progress) = &self.progress
            && let Some((token, params)) = progress::read(message)
            && token == id
        {
            progress.try_send(params.to_owned()).ok();
        }
    }
}
