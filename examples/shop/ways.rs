//! The ways in which a shop may treat an `Idempotency-Key`, a question about one, and a second cancellation. Most of
//! them are wrong: `oncegate verify-tool` has to notice. What is kept of keys is forgotten with the process.

use std::collections::HashMap;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use axum::body::{Bytes, to_bytes};
use axum::extract::rejection::BytesRejection;
use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::http::request::Parts;
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use clap::ValueEnum;

use crate::Shared;
use crate::books::lock;
use crate::wire::Failure;

/// How long a key is remembered by a shop that does so for a moment only.
const MOMENT: Duration = Duration::from_secs(2);
/// How long such a shop thinks between looking a key up and executing.
const GAP: Duration = Duration::from_millis(200);

/// What the shop does with a key that it has seen.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Dedup {
    /// Executes it once more.
    None,
    /// Answers it as the first time, for ever. 409 while that still runs, 422 with another body.
    Key,
    /// The same, but forgets it after two seconds.
    Moment,
    /// The same, but does not see that the first still runs; and whatever the body is.
    Sequence,
}

/// What it says at `/by-key`.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Probe {
    Honest,
    /// Found, whatever the key.
    Always,
    /// Not found, whatever the key.
    Never,
}

/// What the second cancellation of an order does.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Cancel {
    Once,
    /// It puts the pieces back into stock once more.
    Again,
}

#[derive(Clone, Copy)]
pub(super) struct Ways {
    pub(super) dedup: Dedup,
    pub(super) probe: Probe,
    pub(super) cancel: Cancel,
}

/// What is kept of a key.
struct Kept {
    body: Bytes,
    /// `None`: it still runs.
    answer: Option<(StatusCode, Bytes)>,
    since: Instant,
}

/// The keys of each endpoint.
#[derive(Default)]
pub(super) struct Keys(Mutex<HashMap<(String, String), Kept>>);

/// Stands behind chaos and before the four effect endpoints.
pub(super) async fn dedup(
    State(shop): Shared,
    parts: Parts,
    body: Result<Bytes, BytesRejection>,
    next: Next,
) -> Result<Response, Failure> {
    let (dedup, body) = (shop.ways.dedup, body?);
    let request = Request::from_parts(parts.clone(), body.clone().into());
    let key = parts.headers.get("idempotency-key");
    let key = key.map(|key| String::from_utf8_lossy(key.as_bytes()).into_owned());
    let key = key.filter(|_| dedup != Dedup::None);
    let Some(key) = key.map(|key| (parts.uri.path().to_owned(), key)) else {
        return Ok(next.run(request).await);
    };
    if let Some(answer) = shop.keys.begin(dedup, &key, &body)? {
        return Ok(answer);
    }
    if dedup == Dedup::Sequence {
        tokio::time::sleep(GAP).await;
    }
    let (head, said) = next.run(request).await.into_parts();
    let said = to_bytes(said, usize::MAX)
        .await
        .map_err(|_| Failure::new(StatusCode::INTERNAL_SERVER_ERROR, "the shop failed"))?;
    shop.keys.end(key, body, head.status, said.clone());
    Ok(Response::from_parts(head, said.into()))
}

impl Keys {
    /// The answer to a request that was seen before; `None`: it has to be executed.
    fn begin(
        &self,
        dedup: Dedup,
        key: &(String, String),
        body: &Bytes,
    ) -> Result<Option<Response>, Failure> {
        let mut keys = lock(&self.0);
        keys.retain(|_, kept| dedup != Dedup::Moment || kept.since.elapsed() < MOMENT);
        let Some(kept) = keys.get(key) else {
            if dedup != Dedup::Sequence {
                let running = Kept {
                    body: body.clone(),
                    answer: None,
                    since: Instant::now(),
                };
                keys.insert(key.clone(), running);
            }
            return Ok(None);
        };
        if dedup != Dedup::Sequence && kept.body != *body {
            let error = "the key was used with another body";
            return Err(Failure::new(StatusCode::UNPROCESSABLE_ENTITY, error));
        }
        let Some((status, said)) = &kept.answer else {
            return Err(Failure::new(StatusCode::CONFLICT, "the first still runs"));
        };
        let json = [("content-type", "application/json")];
        Ok(Some((*status, json, said.clone()).into_response()))
    }

    /// Keeps what had an effect, and forgets what was refused.
    fn end(&self, key: (String, String), body: Bytes, status: StatusCode, said: Bytes) {
        let mut keys = lock(&self.0);
        if !status.is_success() {
            keys.remove(&key);
            return;
        }
        let kept = Kept {
            body,
            answer: Some((status, said)),
            since: Instant::now(),
        };
        keys.insert(key, kept);
    }
}
