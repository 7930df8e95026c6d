//! The shop's books: what was ordered and paid, and what is in stock, in one SQLite file.

use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use axum::Json;
use axum::http::StatusCode;
use jiff::Timestamp;
use rusqlite::{Connection, OptionalExtension, TransactionBehavior};
use serde_json::{Value, json};

use crate::Answer;
use crate::chaos::Switch;
use crate::ways::{Keys, Ways};
use crate::wire::{Failure, Tag};

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

/// All that the endpoints share.
pub(super) struct Shop {
    db: Mutex<Connection>,
    pub(super) switch: Mutex<Switch>,
    pub(super) ways: Ways,
    pub(super) keys: Keys,
}

impl Shop {
    pub(super) fn open(path: &Path, ways: Ways) -> rusqlite::Result<Self> {
        let db = Connection::open(path)?;
        db.pragma_update(None, "journal_mode", "WAL")?;
        db.pragma_update(None, "synchronous", "FULL")?;
        db.execute_batch(SCHEMA)?;
        Ok(Self {
            db: Mutex::new(db),
            switch: Mutex::new(Switch::OFF),
            ways,
            keys: Keys::default(),
        })
    }

    /// Runs `work` in one transaction and answers with what it returns: on `Ok` all of it is on
    /// disk, else none of it.
    pub(super) async fn run<W>(self: Arc<Self>, status: StatusCode, work: W) -> Answer
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
    pub(super) async fn execute<W>(self: Arc<Self>, status: StatusCode, tag: Tag, work: W) -> Answer
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
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What an effect makes: its names, and its two statuses, which also tell the effects apart.
pub(super) struct Kind {
    pub(super) plural: &'static str,
    pub(super) id: &'static str,
    pub(super) made: &'static str,
    pub(super) undone: &'static str,
}

pub(super) const ORDER: Kind = Kind {
    plural: "orders",
    id: "order_id",
    made: "created",
    undone: "cancelled",
};
pub(super) const PAYMENT: Kind = Kind {
    plural: "payments",
    id: "payment_id",
    made: "captured",
    undone: "refunded",
};

pub(super) fn available(db: &Connection, sku: &str) -> rusqlite::Result<Option<i64>> {
    db.query_row("SELECT available FROM stock WHERE sku = ?1", [sku], |row| {
        row.get(0)
    })
    .optional()
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
            "Fencing-Token is not a whole number",
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
pub(super) fn make(
    db: &Connection,
    kind: &Kind,
    tag: &Tag,
    mut item: Value,
) -> Result<Value, Failure> {
    let now = rfc3339(Timestamp::now());
    item["status"] = kind.made.into();
    item["created_at"] = now.clone().into();
    record(db, kind, tag, &item, &now)?;
    Ok(item)
}

/// Only the first time is an effect; later ones find it done and say the same.
pub(super) fn undo(
    db: &Connection,
    kind: &Kind,
    tag: &Tag,
    item: &Value,
) -> Result<Value, Failure> {
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
pub(super) fn find(db: &Connection, kind: &Kind, id: &str) -> Result<Value, Failure> {
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

/// Our times have milliseconds. A bound between two of them moves up to the next: the same times
/// as before lie below it.
pub(super) fn bound(name: &str, text: &str) -> Result<String, Failure> {
    let refused = |_| {
        Failure::new(
            StatusCode::BAD_REQUEST,
            format!("{name} is not an RFC 3339 time"),
        )
    };
    let nanos = text.parse::<Timestamp>().map_err(refused)?.as_nanosecond();
    let up = (-nanos).rem_euclid(1_000_000);
    Timestamp::from_nanosecond(nanos + up)
        .map(rfc3339)
        .map_err(refused)
}

/// In UTC, always with three digits of a second, so that times sort as text.
pub(super) fn rfc3339(time: Timestamp) -> String {
    format!("{time:.3}")
}
