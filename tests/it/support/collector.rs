//! A fake collector for spans: OTLP over HTTP, protobuf, read as far as the tests ask.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::routing::post;
use tokio::net::TcpListener;

/// One exported span.
#[derive(Debug, Clone, Default)]
pub struct Span {
    pub trace_id: String,
    pub id: String,
    /// Empty if it has none.
    pub parent: String,
    pub name: String,
    /// In nanoseconds.
    pub began: u64,
    pub ended: u64,
    /// Those that are texts.
    pub fields: HashMap<String, String>,
}

impl Span {
    pub fn field(&self, name: &str) -> &str {
        self.fields.get(name).map_or("", String::as_str)
    }
}

#[derive(Clone, Default)]
pub struct Collector {
    pub url: String,
    bodies: Arc<Mutex<Vec<Bytes>>>,
}

impl Collector {
    pub async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let collector = Self {
            url: format!("http://{address}/v1/traces"),
            bodies: Arc::default(),
        };
        let take = async |State(bodies): State<Arc<Mutex<Vec<Bytes>>>>, body: Bytes| {
            bodies.lock().expect("not poisoned").push(body);
        };
        let router = Router::new()
            .route("/v1/traces", post(take))
            .with_state(collector.bodies.clone());
        tokio::spawn(async move { axum::serve(listener, router).await });
        collector
    }

    /// All bytes that came.
    pub fn bytes(&self) -> Vec<u8> {
        self.bodies.lock().expect("not poisoned").concat()
    }

    /// Every span that came, the first that began first.
    pub fn spans(&self) -> Vec<Span> {
        let bodies = self.bodies.lock().expect("not poisoned");
        let below = |message: &[u8], tag| all(message, tag).map(<[u8]>::to_vec).collect::<Vec<_>>();
        let resources = bodies.iter().flat_map(|body| below(body, 1));
        let scopes = resources.flat_map(|resource| below(&resource, 2));
        let mut spans: Vec<Span> = scopes
            .flat_map(|scope| below(&scope, 2))
            .map(|span| read(&span))
            .collect();
        spans.sort_by_key(|span| span.began);
        spans
    }
}

fn read(message: &[u8]) -> Span {
    let bytes = |tag| all(message, tag).next().unwrap_or_default();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let time = |tag| bytes(tag).try_into().map_or(0, u64::from_le_bytes);
    let field = |pair: &[u8]| {
        let value = all(pair, 2)
            .next()
            .and_then(|value| all(value, 1).next())
            .unwrap_or_default();
        (text(all(pair, 1).next().unwrap_or_default()), text(value))
    };
    Span {
        trace_id: hex::encode(bytes(1)),
        id: hex::encode(bytes(2)),
        parent: hex::encode(bytes(4)),
        name: text(bytes(5)),
        began: time(7),
        ended: time(8),
        fields: all(message, 9).map(field).collect(),
    }
}

/// The bytes of every field with this tag in a protobuf message; of a number of fixed length its own.
fn all(mut message: &[u8], wanted: u64) -> impl Iterator<Item = &[u8]> {
    std::iter::from_fn(move || {
        while !message.is_empty() {
            let key = varint(&mut message);
            let length = match key & 7 {
                0 => {
                    varint(&mut message);
                    continue;
                }
                1 => 8,
                2 => varint(&mut message) as usize,
                5 => 4,
                kind => panic!("no protobuf: {kind}"),
            };
            let (field, rest) = message.split_at(length);
            message = rest;
            if key >> 3 == wanted {
                return Some(field);
            }
        }
        None
    })
}

fn varint(message: &mut &[u8]) -> u64 {
    let (mut number, mut shift) = (0, 0);
    while let Some((byte, rest)) = message.split_first() {
        *message = rest;
        number |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            break;
        }
        shift += 7;
    }
    number
}
