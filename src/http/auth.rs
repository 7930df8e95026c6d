//! Who is calling: from the bearer token, and from nothing else.

use std::sync::Arc;

use arc_swap::ArcSwap;
use axum::extract::FromRequestParts;
use axum::http::HeaderMap;
use axum::http::header::AUTHORIZATION;
use axum::http::request::Parts;
use sha2::{Digest, Sha256};

use super::problem::Problem;
use super::{Http, host};
use crate::core::caller::{self, Caller, Closed, Token};

/// Which tokens there are. They are swapped as a whole; every request takes them once.
#[derive(Clone, Default)]
pub struct Tokens(Arc<ArcSwap<Vec<Token>>>);

impl Tokens {
    pub fn new(tokens: Vec<Token>) -> Self {
        Self(Arc::new(ArcSwap::from_pointee(tokens)))
    }

    /// As they are now. None at all: open mode, for which the configuration has made sure of loopback.
    pub fn now(&self) -> Arc<Vec<Token>> {
        self.0.load_full()
    }

    /// From now on there are these.
    pub fn set(&self, tokens: Vec<Token>) {
        self.0.store(Arc::new(tokens));
    }
}

/// The caller of a request that was let in.
pub(super) struct Known(pub Caller);

impl FromRequestParts<Http> for Known {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, http: &Http) -> Result<Self, Problem> {
        let tokens = http.tokens.now();
        if tokens.is_empty() {
            // A web page in a browser on this machine reaches loopback, too.
            host::is_local(parts)?;
            return Ok(Self(Caller::open()));
        }
        let digest = bearer_digest(&parts.headers).ok_or_else(Problem::unauthenticated)?;
        match caller::find(&tokens, &digest, http.gateway.wall_time()) {
            // Before anything else of the request is looked at.
            Ok(caller) => {
                http.gateway.admit_request(caller)?;
                Ok(Self(caller.clone()))
            }
            Err(Closed::Unknown) => Err(Problem::unauthenticated()),
            Err(Closed::Expired) => Err(Problem::token_expired()),
        }
    }
}

/// The SHA-256 of the bearer token, if there is exactly one `Authorization` line and it has one.
pub(super) fn bearer_digest(headers: &HeaderMap) -> Option<[u8; 32]> {
    let mut lines = headers.get_all(AUTHORIZATION).iter();
    let (Some(line), None) = (lines.next(), lines.next()) else { return None };
    let (scheme, token) = line.to_str().ok()?.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| Sha256::digest(token.trim()).into())
}
