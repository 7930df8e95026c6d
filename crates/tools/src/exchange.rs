//! One request under way, and the evidence of it.

use std::str::FromStr;
use std::sync::Arc;

use futures_util::future::BoxFuture;
use reqwest::Response;
use reqwest::header::HeaderName;
use tokio::time::{Instant, timeout_at};

use super::body::{read_until, retry_after};
use super::gate::Gate;
use super::headers::forwardable;
use super::pools::{Pool, Pools, Sent};
use oncegate_rules::evidence::McpAnswer;
use oncegate_rules::mcp::evidence::ANOTHER;
use oncegate_rules::outcome::{Body, Evidence};
use oncegate_rules::proxy;
use oncegate_rules::record::CallId;

/// In an answer: the session's newest token that the tool has seen.
const FENCING_TOKEN: HeaderName = HeaderName::from_static("fencing-token");
/// In an answer: the id of the call, if the tool sends it.
const CALL_ID: HeaderName = HeaderName::from_static("x-call-id");

/// The answer to a request.
pub(super) enum Reply {
    /// A status line; the body is still to come.
    Http(Response),
    /// A request without a gate found no connection.
    NotSent(String),
    /// A response, read to its end.
    Mcp(McpAnswer),
}

/// A request under way. Dropping it closes its connection; what was sent stays sent.
pub struct Exchange {
    pub(super) gate: Gate,
    pub(super) reply: BoxFuture<'static, Result<Reply, String>>,
    pub(super) max_result: usize,
    pub(super) keeps_head: bool,
    /// The status and the tool's newest fencing token, as soon as they are there.
    pub(super) head: Option<(u16, Option<u64>)>,
    pub(super) call_id: CallId,
    pub(super) pool: Pool,
    pub(super) pools: Arc<Pools>,
    pub(super) sent: Sent,
}

impl Exchange {
    /// The evidence; `None`: no status line at `head_by`, or no response of an MCP server.
    ///
    /// Then it may be asked again. The body of an answer is read until `body_by`.
    pub async fn until(&mut self, head_by: Instant, body_by: Instant) -> Option<Evidence> {
        Some(match timeout_at(head_by, &mut self.reply).await.ok()? {
            // The answer to this request may still come: nothing is known of it.
            Ok(Reply::Http(response)) if self.is_for_another_call(&response) => {
                self.pools.close(&self.pool);
                Evidence::NoAnswer {
                    why: "the tool answered another call than it was sent".into(),
                }
            }
            Ok(Reply::Http(response)) => {
                let (status, newest_token) =
                    (response.status().as_u16(), header(&response, FENCING_TOKEN));
                self.head = Some((status, newest_token));
                let retry_after = retry_after(response.headers());
                let headers = self.keeps_head.then(|| forwardable(response.headers()));
                let body = read_until(body_by, response, self.max_result).await;
                let body = match (body, headers) {
                    // The whole answer of an API: status, headers and body as one.
                    (Body::Whole(body), Some(headers)) => {
                        let reply = proxy::reply::Reply {
                            status,
                            headers,
                            body,
                        };
                        Body::Whole(reply.keep())
                    }
                    (body, _) => body,
                };
                Evidence::Answer {
                    status,
                    body,
                    retry_after,
                    newest_token,
                }
            }
            Ok(Reply::Mcp(answer)) => {
                // The answer to this request may still come, and meet the next one there.
                if matches!(&answer.body, Body::Broken(why) if why == ANOTHER) {
                    self.pools.close(&self.pool);
                }
                Evidence::Mcp(answer)
            }
            Ok(Reply::NotSent(why)) => Evidence::NotSent { why },
            Err(why) => self.give_up(&why),
        })
    }

    /// Whether the answer names an earlier call on these connections.
    ///
    /// An id that was never sent there may be the tool's own.
    fn is_for_another_call(&self, response: &Response) -> bool {
        header(response, CALL_ID)
            .map(CallId)
            .is_some_and(|named| named != self.call_id && self.sent.has(named))
    }

    /// Tells whether the first byte has left.
    pub fn watch_sending(&self) -> impl Fn() -> bool + use<> {
        let gate = self.gate.clone();
        move || gate.is_sent()
    }

    /// Gives up the exchange, and returns its evidence. If the first byte has not left, it never
    /// will.
    pub fn give_up(&self, why: &str) -> Evidence {
        let why = why.to_owned();
        match self.head {
            Some((status, newest_token)) => Evidence::Answer {
                status,
                body: Body::Broken(why),
                retry_after: None,
                newest_token,
            },
            None if self.gate.withdraw() => Evidence::NotSent { why },
            None => Evidence::NoAnswer { why },
        }
    }
}

/// The value of a header, if it can be read.
fn header<T: FromStr>(response: &Response, name: HeaderName) -> Option<T> {
    let value = response.headers().get(name)?.to_str().ok()?;
    value.trim().parse().ok()
}
