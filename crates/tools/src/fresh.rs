//! A request without a body, on a connection of its own.
//!
//! Without a body there is nothing by which a library asks the gate before the first byte. Here the gate is asked
//! when the connection is there, right before the request is given to it.

use std::io;
use std::sync::Arc;

use bytes::Bytes;
use http_body_util::Empty;
use hyper::client::conn::http1::{Builder, SendRequest};
use hyper::header::{ACCEPT, CONTENT_LENGTH, HOST, HeaderMap, HeaderValue, USER_AGENT};
use hyper_util::rt::TokioIo;
use reqwest::{Method, Url};
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

use super::gate::{Deadline, Gate};
use super::pools::{AGENT, CONNECT_TIMEOUT, MAX_HEADERS};
use oncegate_hooks::uptime::since_boot;

type Sender = SendRequest<Empty<Bytes>>;

/// Sends a request without a body once; not after its deadline.
///
/// `tls`: for a URL of https.
///
/// # Errors
/// There is no answer. Whether the request was sent, the gate knows.
pub(super) async fn send(
    request: reqwest::Request,
    tls: Option<rustls::ClientConfig>,
    gate: Gate,
    send_before: Deadline,
) -> Result<reqwest::Response, String> {
    let connected = timeout(CONNECT_TIMEOUT, connect(request.url(), tls)).await;
    let mut sender = connected.map_err(|_| "no connection in time")??;
    let message = message(&request)?;
    gate.send(&send_before, since_boot())?;
    let answered = sender.send_request(message).await;
    let response = answered.map_err(|error| error.to_string())?;
    Ok(response.map(reqwest::Body::wrap).into())
}

async fn connect(url: &Url, tls: Option<rustls::ClientConfig>) -> Result<Sender, String> {
    let host = url.host_str().ok_or("the URL has no host")?;
    let host = host.trim_matches(['[', ']']).to_owned();
    let port = url.port_or_known_default().unwrap_or(80);
    let failed = |error: io::Error| error.to_string();
    let stream = TcpStream::connect((host.as_str(), port)).await;
    let stream = stream.map_err(failed)?;
    stream.set_nodelay(true).map_err(failed)?;
    let Some(mut tls) = tls else {
        return shake_hands(stream).await;
    };
    tls.alpn_protocols = vec![b"http/1.1".to_vec()];
    let name = ServerName::try_from(host).map_err(|error| error.to_string())?;
    let secure = TlsConnector::from(Arc::new(tls)).connect(name, stream);
    shake_hands(secure.await.map_err(failed)?).await
}

/// The request as it is written to a connection of its own.
fn message(request: &reqwest::Request) -> Result<hyper::Request<Empty<Bytes>>, String> {
    let url = request.url();
    let host = match (url.host_str().unwrap_or_default(), url.port()) {
        (host, Some(port)) => format!("{host}:{port}"),
        (host, None) => host.to_owned(),
    };
    let path = match url.query() {
        Some(query) => format!("{}?{query}", url.path()),
        None => url.path().to_owned(),
    };
    let message = hyper::Request::builder()
        .method(request.method())
        .uri(path)
        .header(HOST, host)
        .header(ACCEPT, "*/*")
        .header(USER_AGENT, AGENT)
        .body(Empty::new());
    let mut message = message.map_err(|error| error.to_string())?;
    let headers = message.headers_mut();
    headers.extend(request.headers().clone());
    say_empty(request.method(), headers);
    Ok(message)
}

/// Adds the length of no body, which servers expect of some methods (RFC 9110, section 8.6).
pub(super) fn say_empty(method: &Method, headers: &mut HeaderMap) {
    if [Method::POST, Method::PUT, Method::PATCH].contains(method) {
        headers.insert(CONTENT_LENGTH, HeaderValue::from_static("0"));
    }
}

/// Opens the connection and a task that drives it.
///
/// The task ends with the answer, or when its waiter is dropped.
async fn shake_hands(
    stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
) -> Result<Sender, String> {
    let (sender, connection) = Builder::new()
        .max_headers(MAX_HEADERS)
        .handshake(TokioIo::new(stream))
        .await
        .map_err(|error| error.to_string())?;
    drop(tokio::spawn(connection));
    Ok(sender)
}
