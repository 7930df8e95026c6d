//! The bare gateway: it claims a key, calls the tool, and keeps the result. It has no ledger, does not record failures, and
//! never finds out what became of a call that was interrupted.
//!
//! Over Redis it claims with `SET NX EX` and draws a token with `INCR`, in one pipeline. Over SQLite it has one table, and one
//! thread that commits all steps which wait as one transaction. Both are as lean as they can be, so
//! they cost what the claim and the result cost.

use std::borrow::Cow;
use std::path::Path;
use std::sync::Arc;
use std::thread;

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::StatusCode;
use axum::http::header::HeaderMap;
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use redis::aio::MultiplexedConnection;
use rusqlite::{Connection, OptionalExtension as _, params};
use serde::Deserialize;
use serde_json::value::RawValue;
use tokio::sync::{mpsc, oneshot};

use super::Fallible;
use super::passes::Passes;

/// How long a key is kept over Redis, in seconds.
const KEPT: u64 = 3_600;
/// Most steps of one commit.
const BATCH: usize = 512;

struct Bare {
    passes: Passes,
    store: Store,
}

enum Store {
    Redis(MultiplexedConnection),
    Sqlite(mpsc::Sender<Step>),
}

enum Claimed {
    /// With the session's new token.
    New(u64),
    /// It was claimed before. This is its answer, or what stands there while it runs.
    Before(Vec<u8>),
}

#[derive(Deserialize)]
struct Request<'a> {
    #[serde(borrow)]
    args: &'a RawValue,
    #[serde(borrow)]
    session_id: Cow<'a, str>,
}

/// `beside`: the address of the tool, a comma, and `redis://…` or the path of a file.
pub(super) async fn router(beside: &str) -> Fallible<Router> {
    let (tool, store) = beside.split_once(',').ok_or("a tool and a store")?;
    let store = if store.starts_with("redis:") {
        let client = redis::Client::open(store)?;
        Store::Redis(client.get_multiplexed_async_connection().await?)
    } else {
        Store::Sqlite(writer(Path::new(store))?)
    };
    let passes = Passes::new(tool);
    let call = async |State(bare): State<Arc<Bare>>, headers: HeaderMap, body: Bytes| {
        let failed = |_| StatusCode::BAD_GATEWAY.into_response();
        bare.call(&headers, &body).await.unwrap_or_else(failed)
    };
    Ok(Router::new()
        .route("/v1/tools/do/calls", post(call))
        .with_state(Arc::new(Bare { passes, store })))
}

impl Bare {
    async fn call(&self, headers: &HeaderMap, body: &[u8]) -> Fallible<Response> {
        let key = headers.get("idempotency-key").ok_or("no key")?.to_str()?;
        let request: Request<'_> = serde_json::from_slice(body)?;
        let token = match self.store.claim(key, &request.session_id).await? {
            Claimed::Before(answer) => return Ok(outcome("replayed", answer)),
            Claimed::New(token) => token,
        };
        let args = Bytes::copy_from_slice(request.args.get().as_bytes());
        let result = self.passes.pass(args).await?;
        let result: &RawValue = serde_json::from_slice(&result)?;
        let answer =
            format!(r#"{{"status":"ok","result":{result},"fencing":{token}}}"#).into_bytes();
        self.store.keep(key, &answer).await?;
        Ok(outcome("executed", answer))
    }
}

impl Store {
    async fn claim(&self, key: &str, session: &str) -> Fallible<Claimed> {
        match self {
            Self::Redis(redis) => {
                let mut redis = redis.clone();
                let (name, tokens) = (format!("bare:{key}"), format!("tokens:{session}"));
                let mut claim = redis::pipe();
                claim.cmd("SET").arg(&name).arg("running").arg("NX");
                claim.arg("EX").arg(KEPT);
                claim.cmd("INCR").arg(tokens);
                let (claimed, token): (Option<String>, u64) = claim.query_async(&mut redis).await?;
                if claimed.is_some() {
                    return Ok(Claimed::New(token));
                }
                let mut get = redis::cmd("GET");
                Ok(Claimed::Before(
                    get.arg(&name).query_async(&mut redis).await?,
                ))
            }
            Self::Sqlite(steps) => {
                let (reply, answer) = oneshot::channel();
                let key = key.to_owned();
                steps.send(Step::Claim { key, reply }).await?;
                Ok(answer.await?)
            }
        }
    }

    async fn keep(&self, key: &str, answer: &[u8]) -> Fallible<()> {
        match self {
            Self::Redis(redis) => {
                let mut keep = redis::cmd("SET");
                keep.arg(format!("bare:{key}")).arg(answer);
                keep.arg("EX").arg(KEPT);
                Ok(keep.query_async(&mut redis.clone()).await?)
            }
            Self::Sqlite(steps) => {
                let (reply, is_written) = oneshot::channel();
                let (key, answer) = (key.to_owned(), answer.to_vec());
                let keep = Step::Keep { key, answer, reply };
                steps.send(keep).await?;
                Ok(is_written.await?)
            }
        }
    }
}

/// A step of the thread that writes.
enum Step {
    Claim {
        key: String,
        reply: oneshot::Sender<Claimed>,
    },
    Keep {
        key: String,
        answer: Vec<u8>,
        reply: oneshot::Sender<()>,
    },
}

/// Starts the thread that writes. It answers a step when the step is committed, and ends at the first error.
fn writer(path: &Path) -> Fallible<mpsc::Sender<Step>> {
    let connection = Connection::open(path)?;
    connection.execute_batch(
        "PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL;
         CREATE TABLE calls (token INTEGER PRIMARY KEY, key TEXT NOT NULL UNIQUE, answer BLOB) STRICT;",
    )?;
    let (steps, mut waiting) = mpsc::channel::<Step>(4096);
    thread::spawn(move || -> Fallible<()> {
        let mut batch = Vec::with_capacity(BATCH);
        while waiting.blocking_recv_many(&mut batch, BATCH) > 0 {
            let transaction = connection.unchecked_transaction()?;
            let mut answers = Vec::with_capacity(batch.len());
            for step in batch.drain(..) {
                answers.push(step.write(&transaction)?);
            }
            transaction.commit()?;
            for answer in answers {
                answer.send();
            }
        }
        Ok(())
    });
    Ok(steps)
}

/// What is answered after the commit. The caller may be gone.
enum Answer {
    Claimed(oneshot::Sender<Claimed>, Claimed),
    Written(oneshot::Sender<()>),
}

impl Answer {
    fn send(self) {
        match self {
            Self::Claimed(reply, claimed) => drop(reply.send(claimed)),
            Self::Written(reply) => drop(reply.send(())),
        }
    }
}

impl Step {
    fn write(self, connection: &Connection) -> Fallible<Answer> {
        match self {
            Self::Claim { key, reply } => {
                let sql = "INSERT INTO calls (key) VALUES (?1) ON CONFLICT DO NOTHING";
                if connection.prepare_cached(sql)?.execute([&key])? > 0 {
                    let token = connection.last_insert_rowid().unsigned_abs();
                    return Ok(Answer::Claimed(reply, Claimed::New(token)));
                }
                let sql = "SELECT answer FROM calls WHERE key = ?1";
                let mut select = connection.prepare_cached(sql)?;
                let answer: Option<Option<Vec<u8>>> =
                    select.query_row([&key], |row| row.get(0)).optional()?;
                let answer = answer.flatten().unwrap_or_else(|| b"running".to_vec());
                Ok(Answer::Claimed(reply, Claimed::Before(answer)))
            }
            Self::Keep { key, answer, reply } => {
                let sql = "UPDATE calls SET answer = ?2 WHERE key = ?1";
                let mut update = connection.prepare_cached(sql)?;
                update.execute(params![key, answer])?;
                Ok(Answer::Written(reply))
            }
        }
    }
}

fn outcome(outcome: &'static str, body: Vec<u8>) -> Response {
    let headers = [
        ("content-type", "application/json"),
        ("gateway-outcome", outcome),
    ];
    (headers, body).into_response()
}
