//! `subscriptions/listen`: a stream that reports changes of the caller's list of tools.

use axum::http::HeaderMap;
use axum::response::Response;
use futures_util::stream::{self, StreamExt};
use serde_json::value::RawValue;
use sha2::{Digest, Sha256};

use super::answer::{SERVER_INFO, server_info};
use super::state::Mcp;
use super::{events, list};
use oncegate_engine::{ErrorKind, Heard, ToolChanges};
use oncegate_http::auth::{bearer_digest, still_known};
use oncegate_http::problem::Problem;
use oncegate_rules::caller::Caller;

const SUBSCRIPTION: &str = "io.modelcontextprotocol/subscriptionId";

/// Opens a stream. `tools`: the client subscribes to changes of the list.
///
/// # Errors
/// This caller has as many streams as it may have.
pub(super) fn listen(
    mcp: Mcp,
    caller: &Caller,
    headers: &HeaderMap,
    id: Box<RawValue>,
    tools: bool,
) -> Result<Response, Problem> {
    // The subscription comes before the list is read, so that no later change is missed.
    let changes = mcp.http.gateway.base.tool_changes(caller);
    let listening = Listening {
        id,
        tools,
        changes: changes.ok_or(ErrorKind::RateLimited)?,
        list: list_digest(&mcp, caller),
        token: bearer_digest(headers),
        mcp,
    };
    let first = stream::iter([Some(listening.acknowledged())]);
    let changes = stream::unfold(Some(listening), async |listening| listening?.next().await);
    Ok(events::many(first.chain(changes)))
}

struct Listening {
    mcp: Mcp,
    id: Box<RawValue>,
    tools: bool,
    changes: ToolChanges,
    /// SHA-256 of the caller's bearer token.
    token: Option<[u8; 32]>,
    /// SHA-256 of the list that the client knows.
    list: [u8; 32],
}

impl Listening {
    /// Waits for the next event; `None` is a comment, if nothing has changed. The last event ends the stream.
    async fn next(mut self) -> Option<(Option<String>, Option<Self>)> {
        let heard = self.changes.next().await;
        let caller = still_known(&self.mcp.http, self.token.as_ref());
        let event = match (heard, caller) {
            (Heard::Change, Some(caller)) => self.changed(&caller),
            (Heard::Nothing, Some(_)) => None,
            (Heard::End, _) | (_, None) => return Some((Some(self.last()), None)),
        };
        Some((event, Some(self)))
    }

    /// The notification that acknowledges the subscriptions.
    fn acknowledged(&self) -> String {
        let kinds = if self.tools {
            r#"{"toolsListChanged":true}"#
        } else {
            "{}"
        };
        self.notification(
            "notifications/subscriptions/acknowledged",
            &format!(r#","notifications":{kinds}"#),
        )
    }

    /// The notification that the caller's own list has changed, if it has.
    fn changed(&mut self, caller: &Caller) -> Option<String> {
        if !self.tools {
            return None;
        }
        let list = list_digest(&self.mcp, caller);
        let has_changed = std::mem::replace(&mut self.list, list) != list;
        has_changed.then(|| self.notification("notifications/tools/list_changed", ""))
    }

    fn notification(&self, method: &str, more: &str) -> String {
        let id = &self.id;
        format!(
            r#"{{"jsonrpc":"2.0","method":"{method}","params":{{"_meta":{{"{SUBSCRIPTION}":{id}}}{more}}}}}"#
        )
    }

    /// The result that ends the stream. The client may listen again.
    fn last(&self) -> String {
        let (id, server) = (&self.id, &server_info()[SERVER_INFO]);
        format!(
            r#"{{"jsonrpc":"2.0","id":{id},"result":{{"resultType":"complete","_meta":{{"{SUBSCRIPTION}":{id},"{SERVER_INFO}":{server}}}}}}}"#
        )
    }
}

fn list_digest(mcp: &Mcp, caller: &Caller) -> [u8; 32] {
    let list = serde_json::to_vec(&list::listed(mcp, caller));
    Sha256::digest(list.unwrap_or_default()).into()
}
