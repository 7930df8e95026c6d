//! The caller of a request, by the bearer token and by nothing else.

use std::sync::Arc;

use arc_swap::ArcSwap;
use axum::extract::MatchedPath;
use axum::http::header::AUTHORIZATION;
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderName, Method};
use sha2::{Digest, Sha256};

use super::headers::only_line;
use super::problem::Problem;
use super::problem::refusals::Asker;
use super::{Http, host};
use oncegate_budget::Guest;
use oncegate_engine::{ErrorKind, TokenRefused};
use oncegate_rules::caller::{self, Caller, Closed, Token};
use oncegate_rules::ledger::PAGE_BYTES;

/// The configured tokens. A reload replaces all of them at once.
#[derive(Clone, Default)]
pub struct Tokens(Arc<ArcSwap<Vec<Token>>>);

impl Tokens {
    pub fn new(tokens: Vec<Token>) -> Self {
        Self(Arc::new(ArcSwap::from_pointee(tokens)))
    }

    /// The tokens in force. Empty: open mode, which the configuration allows on loopback only.
    pub fn now(&self) -> Arc<Vec<Token>> {
        self.0.load_full()
    }

    pub fn set(&self, tokens: Vec<Token>) {
        self.0.store(Arc::new(tokens));
    }
}

/// The caller of a request, by the bearer token in `Authorization`.
pub fn caller_of(parts: &Parts, http: &Http) -> Result<Caller, Problem> {
    let route = parts.extensions.get::<MatchedPath>();
    let memory = memory_of(&parts.method, route.map_or("", MatchedPath::as_str), http);
    by_token(parts, http, bearer_digest(&parts.headers), memory)
}

/// The caller with this token digest, or in open mode any client on this machine.
///
/// `memory`: bytes of memory that the answer may take.
pub fn by_token(
    parts: &Parts,
    http: &Http,
    digest: Option<[u8; 32]>,
    memory: usize,
) -> Result<Caller, Problem> {
    if http.tokens.now().is_empty() {
        // A web page in a browser on this machine reaches loopback, too.
        host::is_local(parts)?;
        return open(parts, memory);
    }
    let Some(digest) = digest else {
        http.gateway.refusals.note_refused(TokenRefused::Missing);
        return Err(Problem::unauthenticated());
    };
    by_digest(parts, http, &digest, memory)
}

/// The caller with this token digest, if tokens are configured.
pub fn by_digest(
    parts: &Parts,
    http: &Http,
    digest: &[u8; 32],
    memory: usize,
) -> Result<Caller, Problem> {
    let now = http.gateway.base.wall_time();
    let (why, problem) = match caller::find(&http.tokens.now(), digest, now) {
        Ok(caller) => {
            admit(parts, http, caller, memory)?;
            return Ok(caller.clone());
        }
        Err(Closed::Unknown) => (TokenRefused::Unknown, Problem::unauthenticated()),
        Err(Closed::Expired) => (TokenRefused::Expired, Problem::token_expired()),
    };
    http.gateway.refusals.note_refused(why);
    Err(problem)
}

/// Charges a request to its caller.
///
/// # Errors
/// There were too many requests of this caller, or there is no memory for it.
pub fn admit(parts: &Parts, http: &Http, caller: &Caller, memory: usize) -> Result<(), Problem> {
    Asker::of(&parts.extensions).has_tenant(&caller.tenant);
    // The rate limit comes first, so that a flood of requests costs no further work.
    http.gateway.throttle.admit_request(caller)?;
    reserve_memory(parts, caller, memory)
}

/// The caller of a gateway without tokens. The request must come from this machine.
pub fn open(parts: &Parts, memory: usize) -> Result<Caller, Problem> {
    let caller = Caller::open();
    Asker::of(&parts.extensions).has_tenant(&caller.tenant);
    reserve_memory(parts, &caller, memory)?;
    Ok(caller)
}

/// The caller that opened a stream. `None`: its token is no longer valid.
pub fn still_known(http: &Http, digest: Option<&[u8; 32]>) -> Option<Caller> {
    let tokens = http.tokens.now();
    if tokens.is_empty() {
        return Some(Caller::open());
    }
    let caller = caller::find(&tokens, digest?, http.gateway.base.wall_time());
    caller.ok().cloned()
}

/// Charges the request's memory to its tenant, and reserves memory for the answer.
fn reserve_memory(parts: &Parts, caller: &Caller, memory: usize) -> Result<(), Problem> {
    // A test that serves the routes without `serve` has no budget.
    let Some(guest) = parts.extensions.get::<Guest>() else {
        return Ok(());
    };
    guest
        .is_known(&caller.tenant, memory)
        .map_err(|_| ErrorKind::NoMemory.into())
}

/// The memory for a route's answer, in bytes.
fn memory_of(method: &Method, route: &str, http: &Http) -> usize {
    match (method, route) {
        // The gateway reserves memory for a result before it claims the call.
        (&Method::POST, "/v1/tools/{tool}/calls") => 0,
        (
            &Method::GET,
            "/v1/calls" | "/v1/sagas" | "/v1/sessions" | "/v1/reconciliations/{name}",
        ) => (2 * PAGE_BYTES).min(http.gateway.engine.memory.budget.total() / 8),
        _ => 2 * (http.max_body.bytes + http.gateway.engine.memory.max_result),
    }
}

/// The SHA-256 of the bearer token in `Authorization`.
///
/// `None`: the header is absent, has several lines, or has another scheme.
pub fn bearer_digest(headers: &HeaderMap) -> Option<[u8; 32]> {
    digest_in(headers, &AUTHORIZATION)
}

/// The SHA-256 of the bearer token in this header. `None`: as above.
pub fn digest_in(headers: &HeaderMap, name: &HeaderName) -> Option<[u8; 32]> {
    let line = only_line(headers, name)?.ok()?;
    let (scheme, token) = line.to_str().ok()?.split_once(' ')?;
    scheme
        .eq_ignore_ascii_case("bearer")
        .then(|| Sha256::digest(token.trim()).into())
}
