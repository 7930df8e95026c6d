//! A service that a gateway can ask: it executes an idempotency key once, and says afterwards what became of it.
//!
//! `docs/apis/rest.md` says why it is built so. `cargo run --example orders -- --listen 127.0.0.1:9091 --db orders.db`

use std::error::Error;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use axum::body::Bytes;
use axum::extract::{Path, Query, State};
use axum::http::{HeaderMap, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use clap::Parser;
use rusqlite::{Connection, OptionalExtension, TransactionBehavior};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::net::TcpListener;

/// An answer lies beside the effect that it tells of. Keys are kept longer than any gateway asks for them.
const TABLES: &str = "
    CREATE TABLE IF NOT EXISTS orders (
        seq INTEGER PRIMARY KEY, order_id TEXT UNIQUE, status TEXT, sku TEXT, quantity INTEGER,
        created_at TEXT, idempotency_key TEXT, call_id TEXT);
    CREATE TABLE IF NOT EXISTS answers (
        idempotency_key TEXT PRIMARY KEY, request TEXT, answer TEXT, session TEXT, token INTEGER, at TEXT);
    DELETE FROM answers WHERE at < strftime('%Y-%m-%dT%H:%M:%fZ', 'now', '-40 days');";
const NOW: &str = "strftime('%Y-%m-%dT%H:%M:%fZ', 'now')";

#[derive(Parser)]
struct Args {
    #[arg(long, default_value = "127.0.0.1:9091")]
    listen: String,
    /// The SQLite file; made if it is not there.
    #[arg(long, default_value = "orders.db")]
    db: PathBuf,
}

type Shared = State<Arc<Mutex<Connection>>>;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let args = Args::parse();
    let db = Connection::open(&args.db)?;
    db.execute_batch(TABLES)?;
    let router = Router::new()
        .route("/v1/orders", post(create).get(list))
        .route("/v1/orders/{order_id}/cancel", post(cancel))
        .route("/v1/orders/by-key/{key}", get(by_key))
        .with_state(Arc::new(Mutex::new(db)));
    axum::serve(TcpListener::bind(&args.listen).await?, router).await?;
    Ok(())
}

/// Why a request had no effect, or that it is not known (a failure of the database: 500).
enum Failure {
    Refused(StatusCode, &'static str),
    Broken,
}

impl From<rusqlite::Error> for Failure {
    fn from(_: rusqlite::Error) -> Self {
        Self::Broken
    }
}

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        let (status, why) = match self {
            Self::Refused(status, why) => (status, why),
            Self::Broken => (StatusCode::INTERNAL_SERVER_ERROR, "it may have happened"),
        };
        (status, Json(json!({ "error": why }))).into_response()
    }
}

/// Executes a key once: the effect and its answer are written in one transaction, before the answer leaves.
fn once(
    db: &Mutex<Connection>,
    (headers, uri, body): (&HeaderMap, &Uri, &Bytes),
    effect: impl FnOnce(&Connection, &str, &str) -> Result<Value, Failure>,
) -> Result<Response, Failure> {
    let refused = |status, why| Err(Failure::Refused(status, why));
    let header = |name| headers.get(name).and_then(|value| value.to_str().ok());
    let Some(key) = header("idempotency-key") else {
        return refused(StatusCode::BAD_REQUEST, "there is no Idempotency-Key");
    };
    let request = format!("{uri}\n{}", String::from_utf8_lossy(body));
    let mut db = db.lock().unwrap_or_else(PoisonError::into_inner);
    // From here on no other writer, so the same key at the same time waits. What fails here had no effect.
    let Ok(db) = db.transaction_with_behavior(TransactionBehavior::Immediate) else {
        return refused(StatusCode::SERVICE_UNAVAILABLE, "busy");
    };
    let select = "SELECT request, answer FROM answers WHERE idempotency_key = ?1";
    let known = db.query_row(select, [key], |row| Ok((row.get(0)?, row.get(1)?)));
    if let Some((first, answer)) = known.optional()? {
        let (first, answer): (String, String) = (first, answer);
        if first != request {
            return refused(
                StatusCode::UNPROCESSABLE_ENTITY,
                "another request had this key",
            );
        }
        let headers = [
            ("content-type", "application/json"),
            ("idempotent-replayed", "true"),
        ];
        return Ok((StatusCode::CREATED, headers, answer).into_response());
    }
    let (session, token) = (header("x-session-id"), header("fencing-token"));
    let token = token.and_then(|token| token.parse::<i64>().ok());
    let newest = "SELECT max(token) FROM answers WHERE session = ?1";
    let newest: Option<i64> = db.query_row(newest, [session], |row| row.get(0))?;
    if token < newest && token.is_some() {
        return refused(
            StatusCode::PRECONDITION_FAILED,
            "a newer fencing token was here",
        );
    }
    let answer = effect(&db, key, header("x-call-id").unwrap_or_default())?;
    let insert = format!("INSERT INTO answers VALUES (?1, ?2, ?3, ?4, ?5, {NOW})");
    db.execute(&insert, (key, request, answer.to_string(), session, token))?;
    db.commit()?;
    Ok((StatusCode::CREATED, Json(answer)).into_response())
}

#[derive(Deserialize)]
struct New {
    sku: String,
    quantity: u32,
}

async fn create(
    State(db): Shared,
    headers: HeaderMap,
    uri: Uri,
    body: Bytes,
) -> Result<Response, Failure> {
    let wrong = |_| Failure::Refused(StatusCode::UNPROCESSABLE_ENTITY, "this is not an order");
    let New { sku, quantity } = serde_json::from_slice(&body).map_err(wrong)?;
    once(&db, (&headers, &uri, &body), |db, key, call_id| {
        let insert = format!(
            "INSERT INTO orders VALUES (NULL, lower(hex(randomblob(8))), 'created', ?1, ?2, {NOW}, ?3, ?4)
             RETURNING order_id"
        );
        let values = (&sku, quantity, key, call_id);
        let order_id: String = db.query_row(&insert, values, |row| row.get(0))?;
        Ok(json!({ "order_id": order_id, "status": "created", "sku": sku, "quantity": quantity }))
    })
}

async fn cancel(
    State(db): Shared,
    Path(order_id): Path<String>,
    headers: HeaderMap,
    uri: Uri,
    body: Bytes,
) -> Result<Response, Failure> {
    once(&db, (&headers, &uri, &body), |db, _, _| {
        let update = "UPDATE orders SET status = 'cancelled' WHERE order_id = ?1";
        if db.execute(update, [&order_id])? == 0 {
            return Err(Failure::Refused(
                StatusCode::NOT_FOUND,
                "there is no such order",
            ));
        }
        Ok(json!({ "order_id": order_id, "status": "cancelled" }))
    })
}

/// What became of a key: its answer, or 404. It is read where it is written, so that 404 is never merely late.
async fn by_key(State(db): Shared, Path(key): Path<String>) -> Result<Response, Failure> {
    let db = db.lock().unwrap_or_else(PoisonError::into_inner);
    let select = "SELECT answer FROM answers WHERE idempotency_key = ?1";
    let answer: Option<String> = db.query_row(select, [key], |row| row.get(0)).optional()?;
    let unknown = Failure::Refused(StatusCode::NOT_FOUND, "nothing was executed with this key");
    Ok((
        [("content-type", "application/json")],
        answer.ok_or(unknown)?,
    )
        .into_response())
}

#[derive(Deserialize)]
struct Asked {
    since: Option<String>,
    until: Option<String>,
    after: Option<i64>,
    sku: Option<String>,
    status: Option<String>,
    limit: Option<u32>,
}

/// Orders in the order in which they were made, with their keys: what a reconciliation reads.
async fn list(State(db): Shared, Query(asked): Query<Asked>) -> Result<Json<Value>, Failure> {
    let db = db.lock().unwrap_or_else(PoisonError::into_inner);
    let limit = asked.limit.unwrap_or(100).clamp(1, 500);
    let mut select = db.prepare(
        "SELECT seq, order_id, status, sku, quantity, idempotency_key, call_id FROM orders
         WHERE seq > ?1 AND (?2 IS NULL OR sku = ?2)
           AND (?3 IS NULL OR created_at >= strftime('%Y-%m-%dT%H:%M:%fZ', ?3))
           AND (?4 IS NULL OR created_at < strftime('%Y-%m-%dT%H:%M:%fZ', ?4))
           AND (?5 IS NULL OR status = ?5) ORDER BY seq LIMIT ?6",
    )?;
    let mut last = None;
    let values = (
        asked.after.unwrap_or(0),
        asked.sku,
        asked.since,
        asked.until,
        asked.status,
        limit,
    );
    let rows = select.query_map(values, |row| {
        last = Some(row.get::<_, i64>(0)?);
        Ok(json!({
            "order_id": row.get::<_, String>(1)?, "status": row.get::<_, String>(2)?,
            "sku": row.get::<_, String>(3)?, "quantity": row.get::<_, u32>(4)?,
            "idempotency_key": row.get::<_, String>(5)?, "call_id": row.get::<_, String>(6)?,
        }))
    })?;
    let orders = rows.collect::<Result<Vec<_>, _>>()?;
    // Null ends the list.
    let is_full = orders.len() == limit as usize;
    let next = last.filter(|_| is_full).map(|seq| seq.to_string());
    Ok(Json(json!({ "orders": orders, "next": next })))
}
