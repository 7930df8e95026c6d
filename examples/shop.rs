//! The shop: the system behind the tools of the demo. Orders, payments and stock in an SQLite file,
//! behind plain JSON over HTTP.
//!
//! It deliberately does not deduplicate. Each request that it executes has its effect once more: an
//! order sent twice is two orders and takes stock twice. That is the incident which the gateway
//! exists to prevent. Of the gateway the shop knows only four request headers. `Idempotency-Key`,
//! `X-Call-Id` and `Fencing-Token` it writes down next to the effect, word for word, so that one can
//! look up afterwards what really happened, and for whom.
//!
//! It acts on one thing only: an effect whose `Fencing-Token` is lower than the newest of its
//! `X-Session-Id` is refused, because the one who asks has been overtaken. That orders the writers of
//! one session. It is no protection against a request that comes twice, nor for an order that two
//! sessions write: that would take a token per order.
//!
//! What an effect changes commits in one transaction, and is on disk before the answer leaves. A
//! request whose body came in whole is executed even if the client hangs up meanwhile, as in most
//! real systems: who stops waiting has learned nothing.
//!
//! `POST /chaos` makes the four effect doors slow, unavailable, or silent (executed, but the line
//! is cut without an answer), or makes the shop's books differ from what it says: `ghost` (answered as if
//! executed), `double` (executed twice) and `alter` (executed with a cent more). Anyone who reaches the port may do anything: keep it on loopback.
//!
//! `cargo run --example shop -- --listen 127.0.0.1:9090 --db shop.db`

#![expect(
    clippy::disallowed_methods,
    reason = "another program, with a clock and names of its own"
)]

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::error::Error;
use std::net::Shutdown;
use std::num::NonZeroU32;
use std::os::fd::AsFd;
use std::path::{Path as FilePath, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::body::Bytes;
use axum::extract::connect_info::Connected;
use axum::extract::rejection::{BytesRejection, PathRejection, QueryRejection};
use axum::extract::{
    ConnectInfo, DefaultBodyLimit, FromRequest, FromRequestParts, Path, Query, Request, State,
};
use axum::http::StatusCode;
use axum::http::request::Parts;
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::serve::IncomingStream;
use axum::{Json, Router};
use clap::Parser;
use jiff::Timestamp;
use rusqlite::{Connection, OptionalExtension, TransactionBehavior};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::task::JoinError;
use uuid::Uuid;

/// An order is far smaller; what is larger is a mistake.
const MAX_BODY_BYTES: usize = 64 * 1024;
const DEFAULT_PAGE: u16 = 100;
const MAX_PAGE: u16 = 500;
const DEFAULT_DELAY_MS: u64 = 3_000;
const MAX_DELAY_MS: u64 = 60_000;
/// How long requests under way may take to finish once the shop was told to stop.
const SHUTDOWN_GRACE: Duration = Duration::from_secs(5);

/// An order or a payment is what its effects say: the first holds it as it was answered, the last
/// has its status. An idempotency key is not unique, that is the point.
const SCHEMA: &str = "
    CREATE TABLE IF NOT EXISTS stock (
        sku TEXT PRIMARY KEY, available INTEGER NOT NULL CHECK (available >= 0)
    ) STRICT;
    CREATE TABLE IF NOT EXISTS effects (
        seq INTEGER PRIMARY KEY AUTOINCREMENT, subject TEXT NOT NULL, status TEXT NOT NULL,
        idempotency_key TEXT, call_id TEXT, fencing_token TEXT,
        answer TEXT NOT NULL, created_at TEXT NOT NULL, UNIQUE (subject, status)
    ) STRICT;
    CREATE TABLE IF NOT EXISTS sessions (session_id TEXT PRIMARY KEY, token INTEGER NOT NULL) STRICT;
    CREATE INDEX IF NOT EXISTS effects_by_key ON effects (idempotency_key, status);
    CREATE INDEX IF NOT EXISTS effects_by_status ON effects (status);
    INSERT INTO stock
        SELECT column1, column2 FROM (VALUES ('widget', 1000), ('gadget', 1000), ('gizmo', 10))
        WHERE NOT EXISTS (SELECT 1 FROM stock);
";

#[derive(Parser)]
#[command(about = "The demo's order service: it does what it is told, as often as it is told")]
struct Args {
    #[arg(long, default_value = "127.0.0.1:9090")]
    listen: String,
    /// The SQLite file; made if it is not there.
    #[arg(long, default_value = "shop.db")]
    db: PathBuf,
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let args = Args::parse();
    tracing_subscriber::fmt()
        .with_writer(std::io::stderr)
        .with_ansi(false)
        .init();

    let shop = Arc::new(Shop::open(&args.db)?);
    let (mut interrupt, mut terminate) = (
        signal(SignalKind::interrupt())?,
        signal(SignalKind::terminate())?,
    );
    let listener = TcpListener::bind(&args.listen).await?;
    tracing::info!(listen = %listener.local_addr()?, db = %args.db.display(), "the shop is open");

    let (stop, stopped) = tokio::sync::oneshot::channel::<Infallible>();
    let service = router(shop).into_make_service_with_connect_info::<Line>();
    let server =
        axum::serve(listener, service).with_graceful_shutdown(async { drop(stopped.await) });
    let deadline = async {
        tokio::select! { _ = interrupt.recv() => {}, _ = terminate.recv() => {} }
        drop(stop);
        tokio::time::sleep(SHUTDOWN_GRACE).await;
    };
    tokio::select! {
        ended = server.into_future() => ended?,
        () = deadline => tracing::warn!("closed with requests still under way"),
    }
    Ok(())
}

fn router(shop: Arc<Shop>) -> Router {
    let effects = Router::new()
        .route("/orders", post(create_order))
        .route("/orders/cancel", post(cancel_order))
        .route("/payments", post(capture_payment))
        .route("/payments/refund", post(refund_payment))
        .route_layer(middleware::from_fn_with_state(Arc::clone(&shop), chaos));
    Router::new()
        .merge(effects)
        .route(
            "/orders",
            get(async |shop: Shared, window: Asked| list(shop, &ORDER, window).await),
        )
        .route(
            "/orders/by-key/{key}",
            get(async |shop: Shared, key: Segment| by_key(shop, &ORDER, key).await),
        )
        .route("/orders/query", post(query_order))
        .route("/orders/{order_id}", get(get_order))
        .route(
            "/payments",
            get(async |shop: Shared, window: Asked| list(shop, &PAYMENT, window).await),
        )
        .route(
            "/payments/by-key/{key}",
            get(async |shop: Shared, key: Segment| by_key(shop, &PAYMENT, key).await),
        )
        .route("/stock/query", post(query_stock))
        .route("/stock/{sku}", get(get_stock))
        .route("/stats", get(stats))
        .route("/chaos", get(show_chaos).post(switch_chaos))
        .fallback(async || Failure::new(StatusCode::NOT_FOUND, "no such door"))
        .method_not_allowed_fallback(async || {
            Failure::new(StatusCode::METHOD_NOT_ALLOWED, "wrong method")
        })
        .layer(DefaultBodyLimit::max(MAX_BODY_BYTES))
        .with_state(shop)
}

type Shared = State<Arc<Shop>>;
type Segment = Result<Path<String>, PathRejection>;
type Asked = Result<Query<Window>, QueryRejection>;
type Answer = Result<(StatusCode, Json<Value>), Failure>;

/// All that the doors share.
struct Shop {
    db: Mutex<Connection>,
    switch: Mutex<Switch>,
}

impl Shop {
    fn open(path: &FilePath) -> rusqlite::Result<Self> {
        let db = Connection::open(path)?;
        db.pragma_update(None, "journal_mode", "WAL")?;
        db.pragma_update(None, "synchronous", "FULL")?;
        db.execute_batch(SCHEMA)?;
        Ok(Self {
            db: Mutex::new(db),
            switch: Mutex::new(Switch::OFF),
        })
    }

    /// Runs `work` in one transaction and answers with what it returns: on `Ok` all of it is on
    /// disk, else none of it.
    async fn run<W>(self: Arc<Self>, status: StatusCode, work: W) -> Answer
    where
        W: FnOnce(&Connection) -> Result<Value, Failure> + Send + 'static,
    {
        let job = move || {
            let mut db = lock(&self.db);
            let tx = db.transaction_with_behavior(TransactionBehavior::Immediate)?;
            let done = work(&tx)?;
            tx.commit()?;
            Ok((status, Json(done)))
        };
        tokio::task::spawn_blocking(job).await?
    }

    /// The same for an effect, if the request's fencing token is let in. A token is remembered in the
    /// transaction of its effect: checked in one of its own, it could be overtaken in between, and
    /// it would count even if the effect was refused.
    async fn execute<W>(self: Arc<Self>, status: StatusCode, tag: Tag, work: W) -> Answer
    where
        W: FnOnce(&Connection, &Tag) -> Result<Value, Failure> + Send + 'static,
    {
        let work = move |db: &Connection| {
            let_in(db, &tag)?;
            work(db, &tag)
        };
        self.run(status, work).await
    }
}

/// A panic under the lock leaves nothing half done: the transaction rolled back as it unwound.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[derive(Deserialize)]
struct NewOrder {
    business_id: String,
    sku: String,
    quantity: NonZeroU32,
    amount_cents: u32,
    note: Option<String>,
}

#[derive(Deserialize)]
struct OrderId {
    order_id: String,
}

async fn create_order(State(shop): Shared, tag: Tag, Body(new): Body<NewOrder>) -> Answer {
    if new.business_id.is_empty() {
        return Err(Failure::new(
            StatusCode::UNPROCESSABLE_ENTITY,
            "business_id is empty",
        ));
    }
    let work = move |db: &Connection, tag: &Tag| {
        let take = "UPDATE stock SET available = available - ?2 WHERE sku = ?1 AND available >= ?2";
        if db.execute(take, (&new.sku, new.quantity))? == 0 {
            return Err(match available(db, &new.sku)? {
                None => Failure::new(StatusCode::UNPROCESSABLE_ENTITY, "unknown sku"),
                Some(_) => Failure::new(StatusCode::CONFLICT, "out of stock"),
            });
        }
        let order_id = format!("ord_{}", Uuid::now_v7().simple());
        let mut order = json!({
            "order_id": order_id, "business_id": new.business_id, "sku": new.sku,
            "quantity": new.quantity, "amount_cents": new.amount_cents,
        });
        if let Some(note) = new.note {
            order["note"] = note.into();
        }
        make(db, &ORDER, tag, order)
    };
    shop.execute(StatusCode::CREATED, tag, work).await
}

async fn cancel_order(State(shop): Shared, tag: Tag, Body(asked): Body<OrderId>) -> Answer {
    let work = move |db: &Connection, tag: &Tag| {
        let order = find(db, &ORDER, &asked.order_id)?;
        if order["status"] != ORDER.undone {
            let give_back = "UPDATE stock SET available = available + ?2 WHERE sku = ?1";
            db.execute(
                give_back,
                (order["sku"].as_str(), order["quantity"].as_i64()),
            )?;
        }
        undo(db, &ORDER, tag, &order)
    };
    shop.execute(StatusCode::OK, tag, work).await
}

async fn query_order(State(shop): Shared, Body(asked): Body<OrderId>) -> Answer {
    shop.run(StatusCode::OK, move |db| find(db, &ORDER, &asked.order_id))
        .await
}

async fn get_order(shop: Shared, segment: Segment) -> Answer {
    let Path(order_id) = segment?;
    query_order(shop, Body(OrderId { order_id })).await
}

#[derive(Deserialize)]
struct NewPayment {
    order_id: String,
    amount_cents: u32,
}

#[derive(Deserialize)]
struct PaymentId {
    payment_id: String,
}

/// An order may be paid more than once, and with any amount: the shop does not know better.
async fn capture_payment(State(shop): Shared, tag: Tag, Body(new): Body<NewPayment>) -> Answer {
    let work = move |db: &Connection, tag: &Tag| {
        if find(db, &ORDER, &new.order_id)?["status"] == ORDER.undone {
            return Err(Failure::new(StatusCode::CONFLICT, "the order is cancelled"));
        }
        let payment_id = format!("pay_{}", Uuid::now_v7().simple());
        let amount_cents = new.amount_cents;
        let payment = json!({ "payment_id": payment_id, "order_id": new.order_id, "amount_cents": amount_cents });
        make(db, &PAYMENT, tag, payment)
    };
    shop.execute(StatusCode::CREATED, tag, work).await
}

async fn refund_payment(State(shop): Shared, tag: Tag, Body(asked): Body<PaymentId>) -> Answer {
    let work = move |db: &Connection, tag: &Tag| {
        let payment = find(db, &PAYMENT, &asked.payment_id)?;
        undo(db, &PAYMENT, tag, &payment)
    };
    shop.execute(StatusCode::OK, tag, work).await
}

#[derive(Deserialize)]
struct Sku {
    sku: String,
}

async fn query_stock(State(shop): Shared, Body(asked): Body<Sku>) -> Answer {
    let work = move |db: &Connection| match available(db, &asked.sku)? {
        Some(available) => Ok(json!({ "sku": asked.sku, "available": available })),
        None => Err(Failure::new(StatusCode::NOT_FOUND, "unknown sku")),
    };
    shop.run(StatusCode::OK, work).await
}

async fn get_stock(shop: Shared, segment: Segment) -> Answer {
    let Path(sku) = segment?;
    query_stock(shop, Body(Sku { sku })).await
}

fn available(db: &Connection, sku: &str) -> rusqlite::Result<Option<i64>> {
    db.query_row("SELECT available FROM stock WHERE sku = ?1", [sku], |row| {
        row.get(0)
    })
    .optional()
}

async fn stats(State(shop): Shared) -> Answer {
    let work = |db: &Connection| {
        let count = |status: &str| -> rusqlite::Result<i64> {
            db.query_row(
                "SELECT count(*) FROM effects WHERE status = ?1",
                [status],
                |row| row.get(0),
            )
        };
        let mut stock = db.prepare("SELECT sku, available FROM stock")?;
        let stock = stock.query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?;
        Ok(json!({
            "orders": count(ORDER.made)?, "cancelled": count(ORDER.undone)?,
            "payments": count(PAYMENT.made)?, "refunded": count(PAYMENT.undone)?,
            "available": stock.collect::<Result<BTreeMap<String, i64>, _>>()?,
        }))
    };
    shop.run(StatusCode::OK, work).await
}

/// What an effect makes: its names, and its two statuses, which also tell the effects apart.
struct Kind {
    plural: &'static str,
    id: &'static str,
    made: &'static str,
    undone: &'static str,
}

const ORDER: Kind = Kind {
    plural: "orders",
    id: "order_id",
    made: "created",
    undone: "cancelled",
};
const PAYMENT: Kind = Kind {
    plural: "payments",
    id: "payment_id",
    made: "captured",
    undone: "refunded",
};

/// Whom an effect was for: the headers of the request, as they came.
struct Tag {
    idempotency_key: Option<String>,
    call_id: Option<String>,
    session_id: Option<String>,
    fencing_token: Option<String>,
}

impl<S: Sync> FromRequestParts<S> for Tag {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Infallible> {
        let text =
            |name| Some(String::from_utf8_lossy(parts.headers.get(name)?.as_bytes()).into_owned());
        Ok(Self {
            idempotency_key: text("idempotency-key"),
            call_id: text("x-call-id"),
            session_id: text("x-session-id"),
            fencing_token: text("fencing-token"),
        })
    }
}

/// Refuses a token that is lower than the newest of its session, and remembers any other. An equal one
/// is let in: it is the same holder, who repeats itself.
fn let_in(db: &Connection, tag: &Tag) -> Result<(), Failure> {
    let (Some(session_id), Some(token)) = (&tag.session_id, &tag.fencing_token) else {
        return Ok(()); // a caller without fencing
    };
    let token: Option<i64> = token.parse().ok().filter(|token| *token >= 0);
    let no_token = || {
        Failure::new(
            StatusCode::UNPROCESSABLE_ENTITY,
            "Fencing-Token is no whole number",
        )
    };
    let token = token.ok_or_else(no_token)?;
    let remember = "INSERT INTO sessions (session_id, token) VALUES (?1, ?2)
        ON CONFLICT (session_id) DO UPDATE SET token = excluded.token
        WHERE excluded.token >= sessions.token";
    if db.execute(remember, (session_id, token))? == 0 {
        let newest = "SELECT token FROM sessions WHERE session_id = ?1";
        return Err(Failure::stale(db.query_row(
            newest,
            [session_id],
            |row| row.get(0),
        )?));
    }
    Ok(())
}

/// Completes a new order or payment with status and time, and records it.
fn make(db: &Connection, kind: &Kind, tag: &Tag, mut item: Value) -> Result<Value, Failure> {
    let now = rfc3339(Timestamp::now());
    item["status"] = kind.made.into();
    item["created_at"] = now.clone().into();
    record(db, kind, tag, &item, &now)?;
    Ok(item)
}

/// Only the first time is an effect; later ones find it done and say the same.
fn undo(db: &Connection, kind: &Kind, tag: &Tag, item: &Value) -> Result<Value, Failure> {
    let answer = json!({ (kind.id): item[kind.id], "status": kind.undone });
    if item["status"] != kind.undone {
        record(db, kind, tag, &answer, &rfc3339(Timestamp::now()))?;
    }
    Ok(answer)
}

fn record(
    db: &Connection,
    kind: &Kind,
    tag: &Tag,
    answer: &Value,
    now: &str,
) -> rusqlite::Result<()> {
    let insert = "INSERT INTO effects
            (subject, status, answer, created_at, idempotency_key, call_id, fencing_token)
        VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)";
    let (subject, status, text) = (
        answer[kind.id].as_str(),
        answer["status"].as_str(),
        answer.to_string(),
    );
    let Tag {
        idempotency_key,
        call_id,
        fencing_token,
        ..
    } = tag;
    db.execute(
        insert,
        (
            subject,
            status,
            text,
            now,
            idempotency_key,
            call_id,
            fencing_token,
        ),
    )?;
    Ok(())
}

/// An order or payment as it is now.
fn find(db: &Connection, kind: &Kind, id: &str) -> Result<Value, Failure> {
    let select =
        "SELECT answer, (SELECT status FROM effects WHERE subject = ?1 ORDER BY seq DESC LIMIT 1)
        FROM effects WHERE subject = ?1 AND status = ?2";
    let found = db
        .query_row(select, (id, kind.made), |row| {
            Ok((row.get(0)?, row.get(1)?))
        })
        .optional()?;
    let unknown = || Failure::new(StatusCode::NOT_FOUND, format!("unknown {}", kind.id));
    let (answer, status): (String, String) = found.ok_or_else(unknown)?;
    let mut item: Value = serde_json::from_str(&answer)?;
    item["status"] = status.into();
    Ok(item)
}

/// The first answer given under this key, though the order may have been cancelled since.
async fn by_key(State(shop): Shared, kind: &'static Kind, segment: Segment) -> Answer {
    let Path(key) = segment?;
    let work = move |db: &Connection| {
        let select = "SELECT answer FROM effects WHERE idempotency_key = ?1 AND status = ?2
            ORDER BY seq LIMIT 1";
        let found = db
            .query_row(select, (key, kind.made), |row| row.get::<_, String>(0))
            .optional()?;
        match found {
            Some(answer) => Ok(serde_json::from_str(&answer)?),
            None => Err(Failure::new(
                StatusCode::NOT_FOUND,
                "no effect with this key",
            )),
        }
    };
    shop.run(StatusCode::OK, work).await
}

#[derive(Deserialize)]
struct Window {
    since: Option<String>,
    until: Option<String>,
    limit: Option<u16>,
    after: Option<String>,
}

/// A page in the order of execution, and the cursor to the next one.
async fn list(State(shop): Shared, kind: &'static Kind, window: Asked) -> Answer {
    let Query(window) = window?;
    let limit = window.limit.unwrap_or(DEFAULT_PAGE);
    if !(1..=MAX_PAGE).contains(&limit) {
        return Err(Failure::new(
            StatusCode::BAD_REQUEST,
            format!("limit is 1 to {MAX_PAGE}"),
        ));
    }
    let since = window.since.map(|text| bound("since", &text)).transpose()?;
    let until = window.until.map(|text| bound("until", &text)).transpose()?;
    let work = move |db: &Connection| {
        let seq = "SELECT seq FROM effects WHERE subject = ?1 AND status = ?2";
        let seq_of = |id: &String| db.query_row(seq, (id, kind.made), |row| row.get::<_, i64>(0));
        let position = window.after.as_ref().map(seq_of).transpose().optional()?;
        let unknown = || Failure::new(StatusCode::BAD_REQUEST, format!("after is no {}", kind.id));
        let position = position.ok_or_else(unknown)?.unwrap_or(0);

        let select = "SELECT subject, idempotency_key, call_id, fencing_token FROM effects
            WHERE status = ?1 AND seq > ?2
              AND (?3 IS NULL OR created_at >= ?3) AND (?4 IS NULL OR created_at < ?4)
            ORDER BY seq LIMIT ?5";
        let mut select = db.prepare(select)?;
        // One more than asked for tells whether there is a next page.
        let mut rows = select.query((kind.made, position, &since, &until, limit + 1))?;
        let mut items: Vec<Value> = Vec::new();
        let mut next = None;
        while let Some(row) = rows.next()? {
            if items.len() == usize::from(limit) {
                next = items.last().map(|item| item[kind.id].clone());
                break;
            }
            let mut item = find(db, kind, &row.get::<_, String>("subject")?)?;
            for header in ["idempotency_key", "call_id", "fencing_token"] {
                item[header] = row.get::<_, Option<String>>(header)?.into();
            }
            items.push(item);
        }
        Ok(json!({ (kind.plural): items, "next": next }))
    };
    shop.run(StatusCode::OK, work).await
}

/// Our times have milliseconds. A bound between two of them moves up to the next: the same times
/// as before lie below it.
fn bound(name: &str, text: &str) -> Result<String, Failure> {
    let refused = |_| {
        Failure::new(
            StatusCode::BAD_REQUEST,
            format!("{name} is no RFC 3339 time"),
        )
    };
    let nanos = text.parse::<Timestamp>().map_err(refused)?.as_nanosecond();
    let up = (-nanos).rem_euclid(1_000_000);
    Timestamp::from_nanosecond(nanos + up)
        .map(rfc3339)
        .map_err(refused)
}

/// In UTC, always with three digits of a second, so that times sort as text.
fn rfc3339(time: Timestamp) -> String {
    format!("{time:.3}")
}

#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Mode {
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
struct Switch {
    mode: Mode,
    /// With [`Mode::Slow`] only.
    delay_ms: Option<u64>,
    /// How many more effect requests are hit, whatever comes of them; `None`: until turned off.
    times: Option<u64>,
}

impl Switch {
    const OFF: Self = Self {
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

async fn show_chaos(State(shop): Shared) -> Json<Switch> {
    Json(*lock(&shop.switch))
}

async fn switch_chaos(
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

/// Stands before the four effect doors. The body is read first and the work is a task of its own,
/// so that a client that hangs up does not take its request back.
async fn chaos(
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
        .find(|(door, _)| *door == path)?
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
struct Line(Arc<std::io::Result<std::net::TcpStream>>);

impl Connected<IncomingStream<'_, TcpListener>> for Line {
    fn connect_info(stream: IncomingStream<'_, TcpListener>) -> Self {
        Self(Arc::new(
            stream.io().as_fd().try_clone_to_owned().map(Into::into),
        ))
    }
}

/// A JSON body, whatever its content type. Members that we do not know are ignored.
struct Body<T>(T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequest<S> for Body<T> {
    type Rejection = Failure;

    async fn from_request(request: Request, state: &S) -> Result<Self, Failure> {
        let bytes = Bytes::from_request(request, state).await?;
        serde_json::from_slice(&bytes).map(Self).map_err(|error| {
            let fields = error.is_data(); // JSON, but not what this door takes
            let status = if fields {
                StatusCode::UNPROCESSABLE_ENTITY
            } else {
                StatusCode::BAD_REQUEST
            };
            Failure::new(status, format!("the body: {error}"))
        })
    }
}

/// A request that had no effect, and why.
struct Failure {
    status: StatusCode,
    error: String,
    newest_token: Option<i64>,
}

impl Failure {
    fn new(status: StatusCode, error: impl Into<String>) -> Self {
        Self {
            status,
            error: error.into(),
            newest_token: None,
        }
    }

    fn stale(newest_token: i64) -> Self {
        let failure = Self::new(StatusCode::CONFLICT, "stale-fencing-token");
        Self {
            newest_token: Some(newest_token),
            ..failure
        }
    }
}

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        let mut body = json!({ "error": self.error });
        let Some(newest) = self.newest_token else {
            return (self.status, Json(body)).into_response();
        };
        body["newest"] = newest.into();
        (
            self.status,
            [("fencing-token", newest.to_string())],
            Json(body),
        )
            .into_response()
    }
}

macro_rules! failure_from {
    ($($cause:ty),* => |$it:ident| $failure:expr) => {$(
        impl From<$cause> for Failure {
            fn from($it: $cause) -> Self {
                $failure
            }
        }
    )*};
}

// What axum refuses keeps its status, but speaks JSON.
failure_from!(BytesRejection, PathRejection, QueryRejection => |refusal| {
    Self::new(refusal.status(), refusal.body_text())
});

// What is the shop's own fault goes to its log; the client learns no more than that.
failure_from!(rusqlite::Error, serde_json::Error, JoinError => |fault| {
    tracing::error!(error = %fault, "a request failed");
    Self::new(StatusCode::INTERNAL_SERVER_ERROR, "the shop failed")
});
