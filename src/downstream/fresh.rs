//! A request without a body, on a connection of its own.
//!
//! Without a body there is nothing by which a library asks the gate before the first byte. Here the gate is asked
//! when the connection is there, right before the request is given to it.

use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use bytes::Bytes;
use http_body_util::Empty;
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::header::{ACCEPT, AUTHORIZATION, CONTENT_LENGTH, HOST, HeaderValue, USER_AGENT};
use hyper_util::rt::TokioIo;
use percent_encoding::percent_decode_str;
use reqwest::header::HeaderMap;
use reqwest::{Method, Url};
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

use super::gate::{Deadline, Gate};
use super::pools::{AGENT, CONNECT_TIMEOUT};
use crate::uptime::since_boot;

type Sender = SendRequest<Empty<Bytes>>;

/// A request without a body.
pub(super) struct Bodiless {
    pub(super) method: Method,
    pub(super) url: Url,
    pub(super) headers: HeaderMap,
    /// TLS settings, for a URL of https.
    pub(super) tls: Option<rustls::ClientConfig>,
}

impl Bodiless {
    /// Sends the request once; not after its deadline.
    ///
    /// # Errors
    /// There is no answer. Whether it was sent, the gate knows.
    pub(super) async fn send(
        self,
        gate: Gate,
        send_before: Deadline,
    ) -> Result<reqwest::Response, String> {
        let connected = timeout(CONNECT_TIMEOUT, self.connect()).await;
        let mut sender = connected.map_err(|_| "no connection in time")??;
        let request = self.request()?;
        gate.send(&send_before, since_boot())?;
        let answered = sender.send_request(request).await;
        let response = answered.map_err(|error| error.to_string())?;
        Ok(response.map(reqwest::Body::wrap).into())
    }

    async fn connect(&self) -> Result<Sender, String> {
        let host = self.url.host_str().ok_or("the URL has no host")?;
        let host = host.trim_matches(['[', ']']).to_owned();
        let port = self.url.port_or_known_default().unwrap_or(80);
        let stream = TcpStream::connect((host.as_str(), port)).await;
        let stream = stream.map_err(|error| error.to_string())?;
        stream
            .set_nodelay(true)
            .map_err(|error| error.to_string())?;
        let Some(mut tls) = self.tls.clone() else {
            return shake_hands(stream).await;
        };
        tls.alpn_protocols = vec![b"http/1.1".to_vec()];
        let name = ServerName::try_from(host).map_err(|error| error.to_string())?;
        let secure = TlsConnector::from(Arc::new(tls))
            .connect(name, stream)
            .await;
        shake_hands(secure.map_err(|error| error.to_string())?).await
    }

    /// User and password of the URL, as other requests have them (RFC 7617).
    fn basic(&self) -> Option<HeaderValue> {
        let decoded = |text: &str| percent_decode_str(text).decode_utf8_lossy().into_owned();
        let (user, password) = (self.url.username(), self.url.password());
        if user.is_empty() && password.is_none() {
            return None;
        }
        let pair = format!(
            "{}:{}",
            decoded(user),
            decoded(password.unwrap_or_default())
        );
        let mut value = HeaderValue::try_from(format!("Basic {}", BASE64.encode(pair))).ok()?;
        value.set_sensitive(true);
        Some(value)
    }

    fn request(&self) -> Result<hyper::Request<Empty<Bytes>>, String> {
        let host = match (self.url.host_str().unwrap_or_default(), self.url.port()) {
            (host, Some(port)) => format!("{host}:{port}"),
            (host, None) => host.to_owned(),
        };
        let path = match self.url.query() {
            Some(query) => format!("{}?{query}", self.url.path()),
            None => self.url.path().to_owned(),
        };
        let request = hyper::Request::builder()
            .method(&self.method)
            .uri(path)
            .header(HOST, host)
            .body(Empty::new());
        let mut request = request.map_err(|error| error.to_string())?;
        let headers = request.headers_mut();
        if let Some(own) = self.basic() {
            headers.insert(AUTHORIZATION, own);
        }
        headers.insert(ACCEPT, HeaderValue::from_static("*/*"));
        headers.insert(USER_AGENT, HeaderValue::from_static(AGENT));
        headers.extend(self.headers.clone());
        // Of these methods servers expect a length (RFC 9110, section 8.6).
        if [Method::POST, Method::PUT, Method::PATCH].contains(&self.method) {
            headers.insert(CONTENT_LENGTH, HeaderValue::from_static("0"));
        }
        Ok(request)
    }
}

/// Opens the connection and a task that drives it.
///
/// The task ends with the answer, or when its waiter is dropped.
async fn shake_hands(
    stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
) -> Result<Sender, String> {
    let (sender, connection) = handshake(TokioIo::new(stream))
        .await
        .map_err(|error| error.to_string())?;
    drop(tokio::spawn(connection));
    Ok(sender)
}
