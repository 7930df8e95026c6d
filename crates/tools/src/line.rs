//! A network that a simulation puts in the place of the real one. Only tests have it.
//!
//! What it replaces is one request on its way: the gate, the evidence and everything above are the real ones.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use bytes::Bytes;
use reqwest::Url;
use reqwest::header::HeaderMap;

use oncegate_rules::record::CallId;

/// What comes of a request: an answer, or why there is none.
pub type Coming = Pin<Box<dyn Future<Output = Result<reqwest::Response, String>> + Send>>;

/// One request of a call.
pub struct Letter {
    pub call_id: CallId,
    pub url: Url,
    pub headers: HeaderMap,
    pub body: Bytes,
    /// Asks the gate, right before the first byte leaves.
    pub pass: Box<dyn FnOnce() -> Result<(), &'static str> + Send + Sync>,
}

/// The network, and the tools behind it.
pub trait Line: Send + Sync + 'static {
    /// Takes a request to its tool.
    fn send(self: Arc<Self>, letter: Letter) -> Coming;

    /// Takes a probe to its tool.
    fn ask(self: Arc<Self>, url: Url) -> Coming;
}
