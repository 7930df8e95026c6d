//! The demo shop as a process.

use std::path::Path;
use std::process::{Child, Command, Stdio};

use serde_json::{Value, json};

use super::binary::free_port;
use super::{Answer, client, until};

/// The shop as a process over a file of its own. Killed when dropped.
pub struct Shop {
    child: Child,
    pub url: String,
    client: reqwest::Client,
    _folder: tempfile::TempDir,
}

impl Shop {
    pub async fn start() -> Self {
        Self::start_with(&[]).await
    }

    /// One that has further arguments on its command line.
    pub async fn start_with(ways: &[&str]) -> Self {
        let binary = Path::new(env!("CARGO_BIN_EXE_oncegate")).with_file_name("shop");
        assert!(
            binary.exists(),
            "`cargo test --test it` does not build the examples; `cargo test --test it --test starts` does"
        );
        let (folder, listen) = (
            tempfile::tempdir().expect("a folder"),
            format!("127.0.0.1:{}", free_port()),
        );
        let mut command = Command::new(binary);
        command
            .args(["--listen", &listen, "--db", "shop.db"])
            .args(ways)
            .current_dir(&folder);
        let child = command
            .stderr(Stdio::null())
            .spawn()
            .expect("the shop starts");
        until("the shop is open", async || {
            tokio::net::TcpStream::connect(&listen).await.is_ok()
        })
        .await;
        Self {
            child,
            url: format!("http://{listen}"),
            client: client(),
            _folder: folder,
        }
    }

    pub async fn post(&self, door: &str, body: Value, headers: &[(&str, &str)]) -> Answer {
        let mut request = self
            .client
            .post(format!("{}{door}", self.url))
            .body(body.to_string());
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        Answer::to(request).await
    }

    pub async fn order(&self, headers: &[(&str, &str)]) -> Answer {
        self.post("/orders", order("widget", 1), headers).await
    }

    pub async fn stats(&self) -> Value {
        let request = self.client.get(format!("{}/stats", self.url));
        Answer::to(request).await.json()
    }
}

impl Drop for Shop {
    fn drop(&mut self) {
        // It may have ended by itself.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

pub fn order(sku: &str, quantity: u32) -> Value {
    json!({ "business_id": "B-1", "sku": sku, "quantity": quantity, "amount_cents": 999 })
}
