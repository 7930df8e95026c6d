//! The caller of a request, from the bearer token and from nothing else.

use std::sync::Arc;

use arc_swap::ArcSwap;
use axum::extract::{FromRequestParts, MatchedPath, Request, State};
use axum::http::header::AUTHORIZATION;
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderName, Method};
use axum::middleware::Next;
use axum::response::Response;
use sha2::{Digest, Sha256};

use super::problem::{Problem, Slug};
use super::{Http, host};
use crate::budget::Guest;
use crate::core::caller::{self, Caller, Closed, Token};
use crate::core::ledger::PAGE_BYTES;
use crate::gateway::TokenRefused;

/// The configured tokens. They are swapped as a whole; every request takes them once.
#[derive(Clone, Default)]
pub struct Tokens(Arc<ArcSwap<Vec<Token>>>);

impl Tokens {
    pub fn new(tokens: Vec<Token>) -> Self {
        Self(Arc::new(ArcSwap::from_pointee(tokens)))
    }

    /// The tokens as they are now. Empty: open mode, which the configuration allows on loopback
    /// only.
    pub fn now(&self) -> Arc<Vec<Token>> {
        self.0.load_full()
    }

    /// Sets the tokens.
    pub fn set(&self, tokens: Vec<Token>) {
        self.0.store(Arc::new(tokens));
    }
}

/// The caller of an admitted request.
pub(super) struct Known(pub Caller);

impl FromRequestParts<Http> for Known {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, http: &Http) -> Result<Self, Problem> {
        let door = parts.extensions.get::<MatchedPath>();
        let room = room_of(&parts.method, door.map_or("", MatchedPath::as_str), http);
        Self::by_token(parts, http, bearer_digest(&parts.headers), room)
    }
}

impl Known {
    /// The caller with this token digest. `room`: bytes that the answer may take.
    pub(super) fn by_token(
        parts: &Parts,
        http: &Http,
        digest: Option<[u8; 32]>,
        room: usize,
    ) -> Result<Self, Problem> {
        let tokens = http.tokens.now();
        if tokens.is_empty() {
            // A web page in a browser on this machine reaches loopback, too.
            host::is_local(parts)?;
            return Self::open(parts, room);
        }
        let Some(digest) = digest else {
            http.gateway.refusals.note_refused(TokenRefused::Missing);
            return Err(Problem::unauthenticated());
        };
        Self::by_digest(parts, http, &digest, room)
    }

    /// The caller with this token digest, where there are tokens.
    pub(super) fn by_digest(
        parts: &Parts,
        http: &Http,
        digest: &[u8; 32],
        room: usize,
    ) -> Result<Self, Problem> {
        let refused = |why, problem: Problem| {
            http.gateway.refusals.note_refused(why);
            problem
        };
        match caller::find(&http.tokens.now(), digest, http.gateway.base.wall_time()) {
            // Before anything else of the request is looked at.
            Ok(caller) => {
                http.gateway.throttle.admit_request(caller)?;
                make_room(parts, caller, room)?;
                Ok(Self(caller.clone()))
            }
            Err(Closed::Unknown) => Err(refused(TokenRefused::Unknown, Problem::unauthenticated())),
            Err(Closed::Expired) => Err(refused(TokenRefused::Expired, Problem::token_expired())),
        }
    }

    /// The caller of a gateway without tokens, for a request that was looked at already.
    pub(super) fn open(parts: &Parts, room: usize) -> Result<Self, Problem> {
        let caller = Caller::open();
        make_room(parts, &caller, room)?;
        Ok(Self(caller))
    }
}

/// The caller of a stream that this token opened. `None`: the token is not valid any more.
pub(super) fn still_known(http: &Http, digest: Option<&[u8; 32]>) -> Option<Caller> {
    let tokens = http.tokens.now();
    if tokens.is_empty() {
        return Some(Caller::open());
    }
    let caller = caller::find(&tokens, digest?, http.gateway.base.wall_time());
    caller.ok().cloned()
}

/// Counts requests that a known token may not make.
pub(super) async fn count_forbidden(
    State(http): State<Http>,
    request: Request,
    next: Next,
) -> Response {
    let response = next.run(request).await;
    if response.extensions().get::<Slug>() == Some(&Slug::Forbidden) {
        http.gateway.refusals.note_refused(TokenRefused::Scope);
    }
    response
}

/// Moves the request to its tenant's account, with room for the answer.
fn make_room(parts: &Parts, caller: &Caller, room: usize) -> Result<(), Problem> {
    // There is none where a test serves the doors by itself.
    let Some(guest) = parts.extensions.get::<Guest>() else {
        return Ok(());
    };
    guest
        .is_known(&caller.tenant, room)
        .map_err(|_| Problem::no_room())
}

/// The memory for a route's answer, in bytes.
fn room_of(method: &Method, door: &str, http: &Http) -> usize {
    match (method, door) {
        // The gateway makes room for a result before it claims the call, or asks a server.
        (&Method::POST, "/v1/tools/{tool}/calls" | "/mcp" | "/mcp/{upstream}") => 0,
        (
            &Method::GET,
            "/v1/calls" | "/v1/sagas" | "/v1/sessions" | "/v1/reconciliations/{name}",
        ) => (2 * PAGE_BYTES).min(http.gateway.engine.memory.budget.total() / 8),
        _ => 2 * (http.max_body.bytes + http.gateway.engine.memory.max_result),
    }
}

/// The SHA-256 of the one bearer token.
///
/// `None`: there is no `Authorization` line, more than one, or one of another kind.
pub(super) fn bearer_digest(headers: &HeaderMap) -> Option<[u8; 32]> {
    digest_in(headers, &AUTHORIZATION)
}

/// The SHA-256 of the one bearer token in a header. `None`: as above.
pub(super) fn digest_in(headers: &HeaderMap, name: &HeaderName) -> Option<[u8; 32]> {
    let mut lines = headers.get_all(name).iter();
    let (Some(line), None) = (lines.next(), lines.next()) else {
        return None;
    };
    let (scheme, token) = line.to_str().ok()?.split_once(' ')?;
    scheme
        .eq_ignore_ascii_case("bearer")
        .then(|| Sha256::digest(token.trim()).into())
}
