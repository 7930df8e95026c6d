//! The OpenAPI 3.1 document of all routes, for SDKs and fuzzers.
//!
//! Each route is declared once, in the file of its handler: the types that the handler reads and writes give the bodies, and the
//! table of problems gives the statuses. Paths below `/proxy` are described by the API's own document.

mod route; // one route: its handler and its entry

use std::mem::take;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use axum::Extension;
use axum::body::Bytes;
use axum::http::header::CONTENT_TYPE;
use axum::response::IntoResponse;

pub(crate) use self::route::Entry;
pub use self::route::Route;

/// The document of a listener. It is written for the first request.
#[derive(Default)]
pub(super) struct Document {
    entries: Mutex<Vec<Entry>>,
    text: OnceLock<Bytes>,
}

impl Document {
    /// Adds the entry of a route.
    pub(super) fn add(&self, entry: Entry) {
        let entries = self.entries.lock();
        entries.unwrap_or_else(PoisonError::into_inner).push(entry);
    }

    fn text(&self) -> Bytes {
        let write = || {
            let entries = self.entries.lock();
            let entries = take(&mut *entries.unwrap_or_else(PoisonError::into_inner));
            Entry::document(entries)
                .to_json()
                .unwrap_or_default()
                .into()
        };
        self.text.get_or_init(write).clone()
    }
}

/// `/openapi.json`, with the document of its listener.
pub(super) fn route(document: Arc<Document>) -> Route {
    Route::open("/openapi.json", "openapi", "This document", show)
        .any_json("OpenAPI 3.1.")
        .with(document)
}

/// `GET /openapi.json`
///
/// The document names no tool of this gateway, so it needs no token.
async fn show(Extension(document): Extension<Arc<Document>>) -> impl IntoResponse {
    ([(CONTENT_TYPE, "application/json")], document.text())
}
