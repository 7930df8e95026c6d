//! A system behind a tool that keeps books: what it has made, for whom, and whether it was taken back. What it
//! does with a call is told by the call's own arguments, so that each of many calls may go wrong in its own way.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard};

use axum::extract::{Path, Query, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};
use tokio::net::TcpListener;

/// Items of one page.
const PAGE: usize = 300;

#[derive(Clone, Default)]
pub struct Books {
    inner: Arc<Mutex<Inner>>,
    pub port: u16,
}

/// A page that is not as it should be.
#[derive(Clone, Copy)]
pub enum Instead {
    /// It is empty, with this status.
    Status(u16),
    /// It does not say whether there is another.
    Endless,
}

#[derive(Default)]
struct Inner {
    items: Vec<(Timestamp, Value)>,
    /// How often each was taken back.
    undone: HashMap<String, usize>,
    keys: HashSet<String>,
    told: Vec<(String, Value)>,
    /// What the next pages are instead.
    instead: Vec<Instead>,
    /// How the list shows an item, if not as it is.
    shown: Option<Shown>,
}

/// The items that a list has for an item of the books.
type Shown = fn(&Value) -> Vec<Value>;

impl Inner {
    fn make(&mut self, headers: &HeaderMap, amount: Value) -> String {
        let header = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
        let id = format!("i{}", self.items.len());
        let (key, call_id) = (header("idempotency-key"), header("x-call-id"));
        let at = now();
        let item = json!({
            "id": id, "key": key, "call_id": call_id, "amount": amount, "status": "made", "made_at": at.to_string(),
        });
        self.items.push((at, item));
        id
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "another system, with a clock of its own"
)]
fn now() -> Timestamp {
    // A moment ago: the clock that a gateway goes by may be behind this one by so much.
    Timestamp::now() - SignedDuration::from_millis(500)
}

impl Books {
    pub async fn open() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let port = listener.local_addr().expect("an address").port();
        let books = Self {
            port,
            ..Self::default()
        };
        let router = Router::new()
            .route("/do", post(act))
            .route("/once", post(act_once))
            .route("/undo", post(undo))
            .route("/items", get(items))
            .route("/by-key/{key}", get(by_key))
            .route("/told", post(told))
            .with_state(books.clone());
        tokio::spawn(async move { axum::serve(listener, router).await });
        books
    }

    pub fn url(&self, path: &str) -> String {
        format!("http://127.0.0.1:{}{path}", self.port)
    }

    /// Makes something beside the gateway.
    pub fn make_beside(&self, key: Option<&str>) -> String {
        let mut headers = HeaderMap::new();
        if let Some(key) = key {
            headers.insert("idempotency-key", key.parse().expect("a header"));
        }
        self.lock().make(&headers, json!(1))
    }

    /// The same, some minutes ago.
    pub fn make_beside_ago(&self, key: Option<&str>, minutes: i64) -> String {
        let id = self.make_beside(key);
        let mut inner = self.lock();
        let (at, item) = inner.items.last_mut().expect("it");
        *at -= SignedDuration::from_mins(minutes);
        item["made_at"] = at.to_string().into();
        id
    }

    /// It is not there any more, and never was.
    pub fn forget(&self, amount: i64) {
        self.lock()
            .items
            .retain(|(_, item)| item["amount"] != amount);
    }

    /// Takes something back beside the gateway.
    pub fn cancel(&self, id: &str) {
        self.lock()
            .items
            .iter_mut()
            .filter(|(_, item)| item["id"] == id)
            .for_each(|(_, item)| {
                item["status"] = "cancelled".into();
            });
    }

    /// What is still an effect.
    pub fn live(&self) -> Vec<Value> {
        let inner = self.lock();
        let live = inner
            .items
            .iter()
            .map(|(_, item)| item)
            .filter(|item| item["status"] == "made");
        live.cloned().collect()
    }

    pub fn undone(&self) -> HashMap<String, usize> {
        self.lock().undone.clone()
    }

    /// What the webhook was told, with its keys.
    pub fn told(&self) -> Vec<(String, Value)> {
        self.lock().told.clone()
    }

    /// The next page is another.
    pub fn answer(&self, instead: Instead) {
        self.lock().instead.push(instead);
    }

    /// From now on the list shows each item in this way.
    pub fn show(&self, shown: Shown) {
        self.lock().shown = Some(shown);
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().expect("unpoisoned")
    }
}

/// Does what `args.plan` says.
async fn act(State(books): State<Books>, headers: HeaderMap, Json(args): Json<Value>) -> Response {
    let mut inner = books.lock();
    let amount = args["amount"].clone();
    let ok = |id: String| Json(json!({ "id": id })).into_response();
    match args["plan"].as_str().unwrap_or_default() {
        "missing" => ok("nothing".into()),
        "duplicate" => {
            // The one that the answer names is the second.
            inner.make(&headers, amount.clone());
            ok(inner.make(&headers, amount))
        }
        "mismatch" => ok(inner.make(&headers, json!(amount.as_i64().unwrap_or(0) + 1))),
        "silent" => {
            inner.make(&headers, amount);
            StatusCode::INTERNAL_SERVER_ERROR.into_response()
        }
        "hidden" => {
            // It has done so long ago, for the same key.
            let id = inner.make(&headers, amount);
            inner.items.last_mut().expect("it").0 = Timestamp::UNIX_EPOCH;
            ok(id)
        }
        "broken" => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
        "rejected" => StatusCode::UNPROCESSABLE_ENTITY.into_response(),
        "rejected but there" => {
            inner.make(&headers, amount);
            StatusCode::UNPROCESSABLE_ENTITY.into_response()
        }
        "" => ok(inner.make(&headers, amount)),
        other => panic!("no such plan: {other}"),
    }
}

/// The same key does it once, and gets the same answer again, which names nothing.
async fn act_once(books: State<Books>, headers: HeaderMap, args: Json<Value>) -> Response {
    let key = headers["idempotency-key"].to_str().expect("ASCII");
    let is_known = |(_, item): &(Timestamp, Value)| item["key"] == key;
    if !books.lock().items.iter().any(is_known) {
        act(books, headers, args).await;
    }
    Json(json!({ "done": true })).into_response()
}

/// The same key does it once.
async fn undo(State(books): State<Books>, headers: HeaderMap, Json(args): Json<Value>) -> Response {
    let id = args["id"].as_str().expect("an id").to_owned();
    let key = headers["idempotency-key"]
        .to_str()
        .expect("ASCII")
        .to_owned();
    books.cancel(&id);
    let mut inner = books.lock();
    if inner.keys.insert(key) {
        *inner.undone.entry(id.clone()).or_default() += 1;
    }
    Json(json!({ "undone": id })).into_response()
}

async fn items(
    State(books): State<Books>,
    Query(asked): Query<HashMap<String, String>>,
) -> Response {
    let mut inner = books.lock();
    match inner.instead.pop() {
        None => {}
        Some(Instead::Endless) => return Json(json!({ "items": [] })).into_response(),
        Some(Instead::Status(status)) => {
            let status = StatusCode::from_u16(status).expect("a status");
            return (status, Json(json!({ "items": [], "next": null }))).into_response();
        }
    }
    let time = |name: &str| asked[name].parse::<Timestamp>().expect("a time");
    let (since, until) = (time("since"), time("until"));
    let from = asked
        .get("after")
        .map_or(0, |after| after.parse::<usize>().expect("a number"));
    let within = inner
        .items
        .iter()
        .filter(|(at, _)| since <= *at && *at < until);
    let found: Vec<&Value> = within.map(|(_, item)| item).skip(from).take(PAGE).collect();
    let next = (found.len() == PAGE).then_some(from + PAGE);
    let shown = inner.shown.unwrap_or(|item| vec![item.clone()]);
    let found: Vec<Value> = found.into_iter().flat_map(shown).collect();
    Json(json!({ "items": found, "next": next })).into_response()
}

async fn by_key(State(books): State<Books>, Path(key): Path<String>) -> Response {
    let inner = books.lock();
    let found = inner
        .items
        .iter()
        .find(|(_, item)| item["key"] == key.as_str());
    found.map_or(StatusCode::NOT_FOUND.into_response(), |(_, item)| {
        Json(item).into_response()
    })
}

async fn told(State(books): State<Books>, headers: HeaderMap, Json(body): Json<Value>) -> Response {
    let key = headers["idempotency-key"]
        .to_str()
        .expect("ASCII")
        .to_owned();
    let mut inner = books.lock();
    inner.told.push((key, body));
    if inner.told.len() == 1 {
        // It has heard, and says that it has not.
        return StatusCode::BAD_GATEWAY.into_response();
    }
    StatusCode::NO_CONTENT.into_response()
}
