//! The shop: the system behind the tools of the demo. Orders, payments and stock in an SQLite file,
//! behind plain JSON over HTTP.
//!
//! Unless `--dedup` says otherwise it does not deduplicate. Each request that it executes has its effect once more: an
//! order sent twice is two orders and takes stock twice. That is the incident which the gateway
//! exists to prevent. Of the gateway the shop knows only four request headers. `Idempotency-Key`,
//! `X-Call-Id` and `Fencing-Token` it writes down next to the effect, word for word, so that one can
//! look up afterwards what really happened, and for whom.
//!
//! It acts on one thing only: an effect whose `Fencing-Token` is lower than the newest of its
//! `X-Session-Id` is refused, because the one who asks has been overtaken. That orders the writers of
//! one session. It is not a protection against a request that comes twice, nor for an order that two
//! sessions write: that would take a token per order.
//!
//! What an effect changes commits in one transaction, and is on disk before the answer leaves. A
//! request whose body came in whole is executed even if the client hangs up meanwhile, as in most
//! real systems: who stops waiting has learned nothing.
//!
//! `POST /chaos` makes the four effect endpoints slow, unavailable, or silent (executed, but the line
//! is cut without an answer), or makes the shop's books differ from what it says: `ghost` (answered as if
//! executed), `double` (executed twice) and `alter` (executed with a cent more). `--dedup`, `--probe` and `--cancel`
//! choose how it treats keys, questions about keys and second cancellations. Anyone who reaches the port may do
//! anything: keep it on loopback.
//!
//! `cargo run --example shop -- --listen 127.0.0.1:9090 --db shop.db`

#![expect(
    clippy::disallowed_methods,
    reason = "another program, with a clock and names of its own"
)]

mod books; // stock, orders and payments in SQLite
mod chaos; // how requests are made to go wrong
mod ways; // how keys are treated, well or badly
mod wire; // what a request says, and what a failure answers

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::error::Error;
use std::num::NonZeroU32;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::rejection::{PathRejection, QueryRejection};
use axum::extract::{DefaultBodyLimit, Path, Query, State};
use axum::http::StatusCode;
use axum::middleware;
use axum::routing::{get, post};
use axum::{Json, Router};
use clap::Parser;
use rusqlite::{Connection, OptionalExtension};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use uuid::Uuid;

use self::books::{Kind, ORDER, PAYMENT, Shop, available, bound, find, make, undo};
use self::chaos::{Line, chaos, show_chaos, switch_chaos};
use self::ways::{Cancel, Dedup, Probe, Ways, dedup};
use self::wire::{Body, Failure, Tag};

/// An order is far smaller; what is larger is a mistake.
const MAX_BODY_BYTES: usize = 64 * 1024;
const DEFAULT_PAGE: u16 = 100;
const MAX_PAGE: u16 = 500;
/// How long requests under way may take to finish once the shop was told to stop.
const SHUTDOWN_GRACE: Duration = Duration::from_secs(5);

#[derive(Parser)]
#[command(about = "The demo's order service: it does what it is told, as often as it is told")]
struct Args {
    #[arg(long, default_value = "127.0.0.1:9090")]
    listen: String,
    /// The SQLite file; made if it is not there.
    #[arg(long, default_value = "shop.db")]
    db: PathBuf,
    /// What it does with a key that it has seen.
    #[arg(long, value_enum, default_value_t = Dedup::None)]
    dedup: Dedup,
    /// What it says of keys at /orders/by-key and /payments/by-key.
    #[arg(long, value_enum, default_value_t = Probe::Honest)]
    probe: Probe,
    /// What the second cancellation of an order does.
    #[arg(long, value_enum, default_value_t = Cancel::Once)]
    cancel: Cancel,
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let args = Args::parse();
    tracing_subscriber::fmt()
        .with_writer(std::io::stderr)
        .with_ansi(false)
        .init();

    let ways = Ways {
        dedup: args.dedup,
        probe: args.probe,
        cancel: args.cancel,
    };
    let shop = Arc::new(Shop::open(&args.db, ways)?);
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
        .route_layer(middleware::from_fn_with_state(Arc::clone(&shop), dedup))
        .route_layer(middleware::from_fn_with_state(Arc::clone(&shop), chaos));
    let mut router = Router::new().merge(effects);
    for kind in [&ORDER, &PAYMENT] {
        let listed = move |shop: Shared, window: Asked| list(shop, kind, window);
        let found = move |shop: Shared, key: Segment| by_key(shop, kind, key);
        let plural = kind.plural;
        router = router
            .route(&format!("/{plural}"), get(listed))
            .route(&format!("/{plural}/by-key/{{key}}"), get(found));
    }
    router
        .route("/orders/query", post(query_order))
        .route("/orders/{order_id}", get(get_order))
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
    let again = shop.ways.cancel == Cancel::Again;
    let work = move |db: &Connection, tag: &Tag| {
        let order = find(db, &ORDER, &asked.order_id)?;
        if order["status"] != ORDER.undone || again {
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

/// The first answer given under this key, though the order may have been cancelled since.
async fn by_key(State(shop): Shared, kind: &'static Kind, segment: Segment) -> Answer {
    let Path(key) = segment?;
    let probe = shop.ways.probe;
    let work = move |db: &Connection| {
        if probe == Probe::Always {
            return Ok(json!({ "idempotency_key": key, "status": kind.made }));
        }
        let select = "SELECT answer FROM effects WHERE idempotency_key = ?1 AND status = ?2
            ORDER BY seq LIMIT 1";
        let found = db
            .query_row(select, (key, kind.made), |row| row.get::<_, String>(0))
            .optional()?;
        match found.filter(|_| probe == Probe::Honest) {
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
