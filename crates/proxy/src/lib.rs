//! Proxied APIs: `/proxy/{name}/{path}`, or any path under a proxy's host name.
//!
//! A proxy is a section of the configuration, and a tool of the gateway:
//!
//! ```
//! use oncegate_engine::ToolAt;
//! use oncegate_settings::reader::Section;
//! use oncegate_settings::{Config, Environment, Known, Wings};
//!
//! #[derive(Debug)]
//! struct ProxiesAlone;
//!
//! impl Wings for ProxiesAlone {
//!     const LEFT_OUT: &[(&str, &str)] = &[];
//!
//!     fn tools(root: &mut Section<'_, '_>, known: &Known<'_>) -> Vec<ToolAt> {
//!         oncegate_proxy::settings(root, known)
//!     }
//!
//!     fn read(_: &mut Section<'_, '_>, _: &[ToolAt], _: bool) -> Self {
//!         Self
//!     }
//! }
//!
//! let text = r#"
//! [store]
//! url = "sqlite:oncegate.db"
//! [proxies.shop]
//! upstream = "https://shop.example"
//! "#;
//! let config = Config::<ProxiesAlone>::read(text, &Environment::new()).expect("no mistake");
//! assert_eq!(config.tools[0].tool.name, "shop");
//! ```

mod answers; // the gateway's own answers, in the forms of protocols
mod contained; // what every answer says to browsers and caches
pub mod profiles; // rows of settings for protocols
mod proxies; // requests become calls, or are forwarded
mod settings; // the section `[proxies.NAME]`
mod tokenless; // callers without a token of the gateway

use std::convert::Infallible;
use std::ops::ControlFlow;
use std::sync::Arc;

use axum::body::{Body, Bytes};
use axum::extract::{Request, State};
use axum::http::header::{ACCEPT_ENCODING, CONTENT_LENGTH, HOST, LOCATION};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderName, Method, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::any;
use axum::{Extension, Router};
use futures_util::future::BoxFuture;
use http_body_util::BodyExt;

use self::answers::PROBLEMS;
use self::contained::contained;
pub use self::proxies::Proxies;
use self::proxies::{Asked, Entry, Through};
pub use self::settings::proxies as settings;
use oncegate_budget::{Elsewhere, OfBalancer};
use oncegate_engine::metrics::Interface;
use oncegate_engine::{
    Error, ErrorKind, RequestSpan, Stored, TokenRefused, as_header, forwardable,
};
use oncegate_http::headers::{CALL_ID, GATEWAY_OUTCOME, REPLAYED, header, trace_context};
use oncegate_http::problem::refusals::Asker;
use oncegate_http::problem::{Effect, KeyAction, Problem, Slug};
use oncegate_http::read::read_body;
use oncegate_http::{Http, MaxBody, Routes, auth, host};
use oncegate_rules::caller::Caller;
use oncegate_rules::proxy::payment::is_payment;
use oncegate_rules::proxy::reply::Reply;
use oncegate_rules::proxy::{Message, cookies, names_path};
use oncegate_rules::record::CallId;

/// The header with the gateway's token, if `Authorization` holds the API's.
const OWN_TOKEN: HeaderName = HeaderName::from_static("oncegate-token");

/// What a caller without a token is told about a key that may be another caller's.
const MAY_BE_OTHERS: &str = "This request was not run: its key was used before with another credential. It may be the same call, and may have been executed. Do not send this request again, neither with this key nor with a new one; ask an operator what became of that call.";
const OTHER_REQUEST: &str = "This request was not run: its key was used before for another request, which may have been executed. If you mean the same thing in other words, do not use a new key: send exactly the earlier request. Use a new key only for a new intent.";

/// The path prefix of proxies.
const PREFIX: &str = "/proxy/";

/// What the handlers share.
#[derive(Clone)]
pub struct Proxy {
    pub http: Http,
    pub proxies: Arc<Proxies>,
}

/// Adds the routes of all proxies. A request for a proxy's host name goes to that proxy, whatever its path.
///
/// The API's own document describes them.
pub fn add_to(routes: Routes, proxy: &Proxy) -> Routes {
    let by_path = Router::new()
        .route("/proxy/{name}", any(by_path))
        .route("/proxy/{name}/", any(by_path))
        .route("/proxy/{name}/{*path}", any(by_path))
        .with_state(proxy.clone());
    let proxy = proxy.clone();
    routes
        .with_others(by_path)
        .with_early_route(Box::new(move |request| to_host(&proxy, request)))
}

/// Any method of `/proxy/{name}` and `/proxy/{name}/{path}`
async fn by_path(State(proxy): State<Proxy>, request: Request) -> Response {
    let path = request.uri().path().to_owned();
    let rest = path.strip_prefix(PREFIX).unwrap_or_default();
    let (name, path) = match rest.find('/') {
        Some(at) => rest.split_at(at),
        None => (rest, "/"),
    };
    let prefix = format!("{PREFIX}{name}");
    let answered = answer(&proxy, (name, &prefix), path, request).await;
    contained(answered)
}

/// A request for a proxy's host name goes to that proxy, whatever its path.
fn to_host(proxy: &Proxy, request: Request) -> ControlFlow<BoxFuture<'static, Response>, Request> {
    let named = host::name(request.uri(), request.headers());
    let Some(name) = named.and_then(|host| proxy.proxies.of_host(host)) else {
        return ControlFlow::Continue(request);
    };
    let (proxy, path) = (proxy.clone(), request.uri().path().to_owned());
    ControlFlow::Break(Box::pin(async move {
        contained(answer(&proxy, (&name, ""), &path, request).await)
    }))
}

/// Answers one request in the form of the proxy's protocol. `proxy`: its name, and its path at this gateway.
async fn answer(proxy: &Proxy, at: (&str, &str), path: &str, request: Request) -> Response {
    let entry = proxy.proxies.entry(at.0);
    let (headers, pays) = (request.headers(), pays(request.headers()));
    let echoed = entry.as_ref().filter(|entry| entry.echoes_key);
    let echoed = echoed.and_then(|entry| {
        let name: HeaderName = entry.key_header.parse().ok()?;
        let mut keys = headers.get_all(&name).iter();
        let key = keys.next()?.clone();
        keys.next().is_none().then_some((name, key))
    });
    let answers = entry.as_ref().map_or(PROBLEMS, |entry| entry.answers);
    let served = serve(proxy, entry, at, path, request).await;
    let mut response = served.unwrap_or_else(|problem| answers.write(problem, pays));
    if let Some((name, key)) = echoed {
        response.headers_mut().insert(name, key);
    }
    response
}

/// Serves one request.
async fn serve(
    Proxy { http, proxies }: &Proxy,
    entry: Option<Entry>,
    (name, prefix): (&str, &str),
    path: &str,
    request: Request,
) -> Result<Response, Problem> {
    let (parts, body) = request.into_parts();
    let asker = Asker::of(&parts.extensions);
    asker.speaks(Interface::Proxy);
    asker.asks_for(name);
    let caller = caller_of(http, entry.as_ref(), &parts)?;
    if http.tokens.now().is_empty() && host::is_navigation(&parts.headers) {
        let why = "without tokens a browser cannot open answers of a proxy as pages";
        return Err(Problem::forbidden(why));
    }
    let entry = entry.ok_or(ErrorKind::UnknownTool)?;
    let context = trace_context(&parts.headers);
    let trace_id = context.as_ref().map(|context| context.trace_id.clone());
    let span = RequestSpan::begin(context);
    let max_body = MaxBody {
        bytes: entry.max_body,
        ..http.max_body
    };
    let body = read_body(body, max_body).await?;
    let message = message(&parts, path, body, entry.passed_host.as_deref());
    let waiting = Waiting {
        key: message.header(&entry.key_header).map(str::to_owned),
        entry,
        prefix,
        target: message.target(),
        accepts: accepted_encodings(&parts.headers),
        is_head: parts.method == Method::HEAD,
    };
    let asked = Asked {
        message,
        is_forwarded: parts.extensions.get::<OfBalancer>().is_some(),
        trace_id,
        span,
    };
    match proxies.serve(&caller, &waiting.entry, asked).await {
        Ok(Through::Stored(stored, reply)) => waiting.stored(&stored, reply),
        Ok(Through::Passing(response, admitted)) => Ok(waiting.passing(response.into(), admitted)),
        Err(error) => {
            if matches!(error.kind, ErrorKind::Unauthenticated(_)) {
                http.gateway.refusals.note_refused(TokenRefused::Unknown);
            }
            waiting.refused(error)
        }
    }
}

/// Who sends a request.
fn caller_of(http: &Http, entry: Option<&Entry>, parts: &Parts) -> Result<Caller, Problem> {
    // No bytes for the answer: the gateway reserves memory for it before it claims a call.
    if let Some(tokenless) = entry.and_then(|entry| entry.tokenless.as_ref()) {
        return auth::admit(parts, http, tokenless, 0).map(|()| tokenless.clone());
    }
    let own = auth::digest_in(&parts.headers, &OWN_TOKEN);
    let digest = match entry {
        Some(entry) if entry.passes_authorization => own,
        _ => own.or_else(|| auth::bearer_digest(&parts.headers)),
    };
    auth::by_token(parts, http, digest, 0)
}

/// What an answer must fit to: the request that waits for it.
struct Waiting<'a> {
    entry: Entry,
    /// The path of the proxy at this gateway.
    prefix: &'a str,
    /// Path and query of the request at the API.
    target: String,
    /// The key that the request brings.
    key: Option<String>,
    /// The value of `Accept-Encoding`.
    accepts: Option<String>,
    is_head: bool,
}

/// The encodings that a client accepts. `None`: it does not say.
fn accepted_encodings(headers: &HeaderMap) -> Option<String> {
    let lines = headers.get_all(ACCEPT_ENCODING).iter();
    let lines: Vec<&str> = lines.filter_map(|line| line.to_str().ok()).collect();
    (!lines.is_empty()).then(|| lines.join(","))
}

/// Whether a request pays.
fn pays(headers: &HeaderMap) -> bool {
    headers.iter().any(|(name, value)| {
        let value = String::from_utf8_lossy(value.as_bytes());
        is_payment(name.as_str(), &value)
    })
}

/// `passed_host`: the API gets this name if the caller uses it. With any other it could get at another server behind the API's
/// address.
fn message(parts: &Parts, path: &str, body: Bytes, passed_host: Option<&str>) -> Message {
    let mut headers = forwardable(&parts.headers);
    headers.retain(|(name, _)| name != OWN_TOKEN.as_str() && !names_path(name));
    cookies::join(&mut headers);
    let named = host::name(&parts.uri, &parts.headers);
    if named
        .zip(passed_host)
        .is_some_and(|(one, other)| one.eq_ignore_ascii_case(other))
    {
        let authority = parts.uri.authority().map(|authority| authority.as_str());
        let host = parts.headers.get(HOST).and_then(|host| host.to_str().ok());
        let host = authority.or(host).unwrap_or_default();
        headers.push((HOST.as_str().to_owned(), host.to_owned()));
    }
    Message {
        method: parts.method.as_str().to_owned(),
        path: path.to_owned(),
        query: parts.uri.query().map(str::to_owned),
        headers,
        body,
    }
}

impl Waiting<'_> {
    /// The API's answer, as it is stored.
    fn stored(&self, stored: &Stored, mut reply: Reply) -> Result<Response, Problem> {
        let is_replayed = stored.replayed_age_ms.is_some();
        let is_decoded = reply.decode_for(self.accepts.as_deref());
        // The stored bytes hold their reserved memory, and must live until the answer is sent.
        let body = Bytes::from_owner(Held {
            body: reply.body,
            _stored: stored.json.clone(),
        });
        let call_id = stored.record.intent.call_id;
        let reply = Reply { body, ..reply };
        let answer = self.response_of(reply).map_err(|kind| Error {
            call_id: Some(call_id),
            ..kind.alone()
        })?;
        let answer = with_call_headers(answer, is_replayed, "executed", Some(call_id));
        // Memory for decoded bytes was not reserved.
        if is_decoded {
            return Ok(answer);
        }
        let shared = Extension(Elsewhere(stored.json.len()));
        Ok((shared, answer).into_response())
    }

    /// The API's own refusal, unchanged, or the problem that says why the API gave none.
    fn refused(&self, error: Error) -> Result<Response, Problem> {
        let body = match &error.kind {
            ErrorKind::ToolRejected(failure)
            | ErrorKind::ToolUnavailable(failure)
            | ErrorKind::Fenced(failure) => failure.body.as_deref(),
            _ => None,
        };
        let Some(mut reply) = body.and_then(Reply::read) else {
            let asks_for_payment = matches!(&error.kind,
                ErrorKind::ToolRejected(failure) if failure.status == Some(402));
            let mut problem = Problem::from(error);
            // It may be another caller's call.
            if self.entry.tokenless.is_some() && problem.slug == Slug::KeyReused {
                problem.call_id = None;
                let detail = match problem.effect {
                    Effect::Unknown => MAY_BE_OTHERS,
                    _ => OTHER_REQUEST,
                };
                detail.clone_into(&mut problem.detail);
            }
            if asks_for_payment {
                problem.key_action = KeyAction::Reuse;
            }
            return Err(problem);
        };
        reply.decode_for(self.accepts.as_deref());
        let is_replayed = error.replayed == Some(true);
        Ok(with_call_headers(
            self.response_of(reply)?,
            is_replayed,
            "not-executed",
            error.call_id,
        ))
    }

    /// Adds a header of the API. A `Location` leads back through the proxy.
    ///
    /// # Errors
    /// It cannot be written.
    fn add(&self, headers: &mut HeaderMap, name: &str, value: &str) -> Result<(), String> {
        let name: HeaderName = name.parse().map_err(|_| "this is not a header name")?;
        let back = (name == LOCATION)
            .then(|| self.entry.lead_back(&self.target, value, self.prefix))
            .flatten();
        headers.append(name, as_header(back.as_deref().unwrap_or(value))?);
        Ok(())
    }

    fn response_of(&self, reply: Reply) -> Result<Response, ErrorKind> {
        let unreadable = || ErrorKind::ResultUnavailable("its headers cannot be written".into());
        let status = StatusCode::from_u16(reply.status).map_err(|_| unreadable())?;
        let mut headers = HeaderMap::new();
        for (name, value) in &reply.headers {
            // The API knows the call by the gateway's key, and the caller by its own.
            let value = match (&self.key, *name == self.entry.key_header) {
                (_, false) => value,
                (Some(key), true) => key,
                (None, true) => continue,
            };
            let added = self.add(&mut headers, name, value);
            added.map_err(|_| unreadable())?;
        }
        let body = match self.is_head {
            true => unsized_body(),
            false => Body::from(reply.body),
        };
        Ok((status, headers, body).into_response())
    }

    /// The answer to a request without a key, forwarded as it arrives. `admitted` lasts as long as its body.
    fn passing<B>(
        &self,
        response: axum::http::Response<B>,
        admitted: impl Send + 'static,
    ) -> Response
    where
        B: http_body::Body<Data = Bytes> + Send + 'static,
        B::Error: Into<axum::BoxError>,
    {
        let (parts, body) = response.into_parts();
        let mut headers = HeaderMap::new();
        for (name, value) in forwardable(&parts.headers) {
            // One that cannot be written is left out.
            self.add(&mut headers, &name, &value).ok();
        }
        // An answer without a body may tell the length that GET would have.
        if let Some(length) = parts.headers.get(CONTENT_LENGTH) {
            headers.insert(CONTENT_LENGTH, length.clone());
        }
        let has_no_body = self.is_head || parts.status == StatusCode::NOT_MODIFIED;
        let body = match has_no_body {
            true => unsized_body(),
            false => Body::new(body.map_frame(move |frame| {
                let _lasts = &admitted;
                frame
            })),
        };
        (parts.status, headers, body).into_response()
    }
}

/// No body, whose length is not sent: the API's answer may not say it either.
fn unsized_body() -> Body {
    Body::from_stream(futures_util::stream::empty::<Result<Bytes, Infallible>>())
}

struct Held {
    body: Bytes,
    _stored: Bytes,
}

impl AsRef<[u8]> for Held {
    fn as_ref(&self) -> &[u8] {
        &self.body
    }
}

/// Adds the gateway's headers about the call to an answer of the API.
fn with_call_headers(
    answer: Response,
    is_replayed: bool,
    outcome: &'static str,
    call_id: Option<CallId>,
) -> Response {
    let outcome = if is_replayed { "replayed" } else { outcome };
    (
        header(GATEWAY_OUTCOME, Some(outcome)),
        header(REPLAYED, is_replayed.then_some("true")),
        header(CALL_ID, call_id.map(|call_id| call_id.to_string())),
        answer,
    )
        .into_response()
}
