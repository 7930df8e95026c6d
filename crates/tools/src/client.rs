//! The MCP client that waits for a call.

use std::fmt;
use std::sync::Arc;

use serde_json::{Map, Value};
use tokio::sync::mpsc;

use oncegate_rules::mcp::progress;

/// What a server learns of an MCP client, and where its progress goes.
#[derive(Default, Clone)]
pub struct Client {
    /// The questions that it can answer; `None`: it cannot be asked.
    pub can_answer: Option<Arc<Map<String, Value>>>,
    /// Whether it knows tasks.
    pub knows_tasks: bool,
    /// The payments that come with this request.
    pub payments: Arc<Map<String, Value>>,
    /// The channel for progress of its call. Notifications that find no room are lost.
    pub progress: Option<mpsc::Sender<String>>,
}

/// Without the payments.
impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client")
            .field("can_answer", &self.can_answer)
            .finish_non_exhaustive()
    }
}

impl Client {
    /// Whether its call may become a task of the server, which asks its questions when it is asked for the task.
    pub fn can_take_task(&self) -> bool {
        let can_answer = self.can_answer.as_deref();
        self.knows_tasks || can_answer.is_none_or(|some| some.is_empty())
    }

    /// Forwards a server's progress notification for this request.
    pub(super) fn notify_progress(&self, message: &[u8], id: &str) {
        if let Some(progress) = &self.progress
            && let Some((token, params)) = progress::read(message)
            && token == id
        {
            progress.try_send(params.to_owned()).ok();
        }
    }
}
