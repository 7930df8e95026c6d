//! Sends requests to the tool by hyper's own client, over connections that stay open.

use std::sync::{Mutex, PoisonError};

use axum::body::Bytes;
use axum::http::Request;
use axum::http::header::{CONTENT_TYPE, HOST};
use http_body_util::{BodyExt as _, Full};
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;

use super::Fallible;

type Connection = SendRequest<Full<Bytes>>;

pub(super) struct Passes {
    tool: String,
    /// Connections that no request uses.
    idle: Mutex<Vec<Connection>>,
}

impl Passes {
    pub(super) fn new(tool: &str) -> Self {
        Self {
            tool: tool.to_owned(),
            idle: Mutex::default(),
        }
    }

    /// The body of the tool's answer.
    pub(super) async fn pass(&self, body: Bytes) -> Fallible<Bytes> {
        let mut connection = self.connection().await?;
        let request = Request::post("/do")
            .header(HOST, &self.tool)
            .header(CONTENT_TYPE, "application/json")
            .body(Full::new(body))?;
        let answer = connection.send_request(request).await?;
        if !answer.status().is_success() {
            return Err(format!("the tool answered {}", answer.status()).into());
        }
        let body = answer.into_body().collect().await?.to_bytes();
        self.idle().push(connection);
        Ok(body)
    }

    async fn connection(&self) -> Fallible<Connection> {
        let idle = self.idle().pop();
        if let Some(mut idle) = idle
            && idle.ready().await.is_ok()
        {
            return Ok(idle);
        }
        let stream = TcpStream::connect(&self.tool).await?;
        stream.set_nodelay(true)?;
        let (connection, exchange) = http1::handshake(TokioIo::new(stream)).await?;
        // It ends with the connection. A request that fails by that says so itself.
        drop(tokio::spawn(exchange));
        Ok(connection)
    }

    fn idle(&self) -> std::sync::MutexGuard<'_, Vec<Connection>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
