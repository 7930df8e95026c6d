//! `subscriptions/listen`: a stream that says when the list of tools has changed.

use axum::response::Response;
use futures_util::stream;
use serde_json::value::RawValue;
use serde_json::{Value, json};
use tokio::time::sleep;

use super::super::Http;
use super::super::problem::Problem;
use super::answer::server_info;
use super::events::{self, KEEP_ALIVE};
use crate::core::caller::Caller;
use crate::gateway::{ErrorKind, ToolChanges};

const SUBSCRIPTION: &str = "io.modelcontextprotocol/subscriptionId";

/// Opens a stream; it takes a place among the requests that wait.
///
/// # Errors
/// This caller has as many of them as it may have.
pub(super) fn listen(
    http: &Http,
    caller: &Caller,
    id: Box<RawValue>,
    tools: bool,
) -> Result<Response, Problem> {
    let place = http.gateway.engine.take_waiting_place(caller);
    let place = place.ok_or(ErrorKind::RateLimited)?;
    let id: Value = serde_json::from_str(id.get()).unwrap_or_default();
    let listening = Listening {
        id,
        // What was asked for and is not here is left out.
        tools,
        changes: http.gateway.base.tool_changes(),
        next: Next::Acknowledged,
        _place: place,
    };
    Ok(events::many(stream::unfold(listening, Listening::next)))
}

/// What a stream says next.
#[derive(Clone, Copy)]
enum Next {
    Acknowledged,
    Changed,
    Nothing,
}

struct Listening<P> {
    id: Value,
    tools: bool,
    changes: ToolChanges,
    next: Next,
    _place: P,
}

impl<P> Listening<P> {
    async fn next(mut self) -> Option<(Option<String>, Self)> {
        let event = match self.next {
            Next::Acknowledged => {
                self.next = Next::Changed;
                let notifications = if self.tools {
                    json!({ "toolsListChanged": true })
                } else {
                    json!({})
                };
                let params =
                    json!({ "_meta": { SUBSCRIPTION: self.id }, "notifications": notifications });
                Some(notification(
                    "notifications/subscriptions/acknowledged",
                    &params,
                ))
            }
            Next::Changed => tokio::select! {
                has_changed = self.changes.next() => match has_changed {
                    true if self.tools => {
                        let params = json!({ "_meta": { SUBSCRIPTION: self.id } });
                        Some(notification("notifications/tools/list_changed", &params))
                    }
                    true => None,
                    // The gateway stops.
                    false => {
                        self.next = Next::Nothing;
                        Some(self.last())
                    }
                },
                () = sleep(KEEP_ALIVE) => None,
            },
            Next::Nothing => return None,
        };
        Some((event, self))
    }

    fn last(&self) -> String {
        let mut meta = server_info();
        meta.insert(SUBSCRIPTION.into(), self.id.clone());
        let result = json!({ "resultType": "complete", "_meta": meta });
        json!({ "jsonrpc": "2.0", "id": self.id, "result": result }).to_string()
    }
}

fn notification(method: &str, params: &Value) -> String {
    json!({ "jsonrpc": "2.0", "method": method, "params": params }).to_string()
}
