//! Chaos: the ways in which requests are made to go wrong.

use std::net::Shutdown;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::body::Bytes;
use axum::extract::connect_info::Connected;
use axum::extract::rejection::BytesRejection;
use axum::extract::{ConnectInfo, Request, State};
use axum::http::StatusCode;
use axum::http::request::Parts;
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use axum::serve::IncomingStream;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::net::TcpListener;
use uuid::Uuid;

use crate::Shared;
use crate::books::{ORDER, PAYMENT, lock, rfc3339};
use crate::wire::{Body, Failure};

const DEFAULT_DELAY_MS: u64 = 3_000;
const MAX_DELAY_MS: u64 = 60_000;

#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Mode {
    Off,
    /// Waits, then executes and answers.
    Slow,
    /// Executes, then cuts the line without an answer.
    Drop,
    /// Answers 503 and executes nothing.
    Unavailable,
    /// Answers an order or payment as if it had been made, and makes nothing.
    Ghost,
    /// Executes twice and answers once.
    Double,
    /// Executes with a cent more than was asked for, and answers with that.
    Alter,
}

#[derive(Clone, Copy, Serialize, Deserialize)]
pub(super) struct Switch {
    mode: Mode,
    /// With [`Mode::Slow`] only.
    delay_ms: Option<u64>,
    /// How many more effect requests are hit, whatever comes of them; `None`: until turned off.
    times: Option<u64>,
}

impl Switch {
    pub(super) const OFF: Self = Self {
        mode: Mode::Off,
        delay_ms: None,
        times: None,
    };

    /// What hits the next request. Turns itself off after the last.
    fn hit(&mut self) -> Self {
        let now = *self;
        match now.times {
            None => {}
            Some(0 | 1) => *self = Self::OFF,
            Some(times) => self.times = Some(times - 1),
        }
        now
    }
}

pub(super) async fn show_chaos(State(shop): Shared) -> Json<Switch> {
    Json(*lock(&shop.switch))
}

pub(super) async fn switch_chaos(
    State(shop): Shared,
    Body(asked): Body<Switch>,
) -> Result<Json<Switch>, Failure> {
    if asked.times == Some(0) || asked.delay_ms.is_some_and(|delay| delay > MAX_DELAY_MS) {
        let error = format!("times is at least 1, delay_ms at most {MAX_DELAY_MS}");
        return Err(Failure::new(StatusCode::UNPROCESSABLE_ENTITY, error));
    }
    let switch = match asked.mode {
        Mode::Off => Switch::OFF,
        Mode::Slow => Switch {
            delay_ms: asked.delay_ms.or(Some(DEFAULT_DELAY_MS)),
            ..asked
        },
        Mode::Drop | Mode::Unavailable | Mode::Ghost | Mode::Double | Mode::Alter => Switch {
            delay_ms: None,
            ..asked
        },
    };
    *lock(&shop.switch) = switch;
    Ok(Json(switch))
}

/// Stands before the four effect endpoints. The body is read first and the work is a task of its own,
/// so that a client that hangs up does not take its request back.
pub(super) async fn chaos(
    State(shop): Shared,
    ConnectInfo(line): ConnectInfo<Line>,
    parts: Parts,
    body: Result<Bytes, BytesRejection>,
    next: Next,
) -> Result<Response, Failure> {
    let mut body = body?;
    let Switch { mode, delay_ms, .. } = lock(&shop.switch).hit();
    match mode {
        Mode::Ghost => {
            if let Some(answer) = ghost(parts.uri.path(), &body) {
                return Ok((StatusCode::CREATED, Json(answer)).into_response());
            }
        }
        Mode::Alter => body = a_cent_more(body),
        Mode::Double => {
            let first = Request::from_parts(parts.clone(), body.clone().into());
            tokio::spawn(next.clone().run(first)).await?;
        }
        Mode::Off | Mode::Slow | Mode::Drop | Mode::Unavailable => {}
    }
    let request = Request::from_parts(parts, body.into());
    if mode == Mode::Unavailable {
        return Err(Failure::new(
            StatusCode::SERVICE_UNAVAILABLE,
            "unavailable; nothing was executed",
        ));
    }
    let work = async move {
        if let Some(delay_ms) = delay_ms {
            tokio::time::sleep(Duration::from_millis(delay_ms)).await;
        }
        next.run(request).await
    };
    let answer = tokio::spawn(work).await?;
    if mode == Mode::Drop {
        // The server reads the end of the stream and lets go of the request. A line without a second
        // handle stays open, just as silent; one that fails to shut down was left by the client.
        if let Ok(socket) = line.0.as_ref() {
            socket.shutdown(Shutdown::Both).ok();
        }
        return std::future::pending().await;
    }
    Ok(answer)
}

/// What would be answered, had it been made.
fn ghost(path: &str, body: &Bytes) -> Option<Value> {
    let kind = [("/orders", &ORDER), ("/payments", &PAYMENT)]
        .into_iter()
        .find(|(route, _)| *route == path)?
        .1;
    let mut item: Value = serde_json::from_slice(body).ok().filter(Value::is_object)?;
    item[kind.id] = format!("{}_{}", &kind.id[..3], Uuid::now_v7().simple()).into();
    item["status"] = kind.made.into();
    item["created_at"] = rfc3339(Timestamp::now()).into();
    Some(item)
}

fn a_cent_more(body: Bytes) -> Bytes {
    let Ok(mut value) = serde_json::from_slice::<Value>(&body) else {
        return body;
    };
    match value.get("amount_cents").and_then(Value::as_u64) {
        Some(amount) => {
            value["amount_cents"] = (amount + 1).into();
            value.to_string().into()
        }
        None => body,
    }
}

/// A second handle to a connection's socket. The HTTP server owns the first, and has no way to
/// close it without an answer.
#[derive(Clone)]
pub(super) struct Line(Arc<std::io::Result<std::net::TcpStream>>);

impl Connected<IncomingStream<'_, TcpListener>> for Line {
    fn connect_info(stream: IncomingStream<'_, TcpListener>) -> Self {
        Self(Arc::new(
            stream.io().as_fd().try_clone_to_owned().map(Into::into),
        ))
    }
}
