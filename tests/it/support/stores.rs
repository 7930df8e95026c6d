//! The same claim about a gateway on each store, and the words for calls of one session.

use serde_json::{Value, json};
use tokio::task::JoinSet;

use super::{Answer, Gateway};

/// Runs a claim against a gateway of its own on each store.
macro_rules! on_both_stores {
    ($($(#[$attribute:meta])* $claim:ident),* $(,)?) => {
        mod sqlite {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $claim() { super::$claim(&$crate::support::stores::Stores::Sqlite).await; })*
        }
        mod redis {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $claim() {
                let redis = $crate::support::redis::Redis::strict().await;
                super::$claim(&$crate::support::stores::Stores::Redis(redis.url())).await;
            })*
        }
    };
}

pub(crate) use on_both_stores;

pub enum Stores {
    Sqlite,
    Redis(String),
}

impl Stores {
    pub async fn gateway(&self, config: &str) -> Gateway {
        match self {
            Self::Sqlite => Gateway::start(config).await,
            Self::Redis(url) => {
                let gateway = Gateway::sharing(url, config).await;
                gateway.until_ready().await;
                gateway
            }
        }
    }

    /// As many gateways as the store can have; at most two.
    pub async fn gateways(&self, config: &str) -> Vec<Gateway> {
        let mut gateways = vec![self.gateway(config).await];
        if let Self::Redis(_) = self {
            gateways.push(self.gateway(config).await);
        }
        gateways
    }
}

impl Gateway {
    /// Calls `act` in the session S.
    pub async fn act(&self, key: &str, body: Value) -> Answer {
        let mut whole = json!({ "args": {}, "session_id": "S", "idempotency_key": key });
        whole.as_object_mut().expect("an object").extend(body.as_object().expect("an object").clone());
        self.post("act", &whole, &[]).await
    }

    pub async fn session(&self) -> Answer {
        self.get("/v1/sessions/S").await.expect_ok()
    }

    pub async fn person(&self, what: &str) -> Answer {
        let reason = json!({ "reason": "it hangs" });
        let request = self.client.post(self.url(&format!("/v1/sessions/S/{what}"))).body(reason.to_string());
        Answer::read(request.send().await.expect("an answer")).await
    }
}

/// A call of its own task, so that another can come meanwhile.
pub fn begin(gateway: &Gateway, key: &str, body: Value) -> tokio::task::JoinHandle<Answer> {
    let (client, url, key) = (gateway.client.clone(), gateway.url("/v1/tools/act/calls"), key.to_owned());
    tokio::spawn(async move {
        let mut whole = json!({ "args": {}, "session_id": "S", "idempotency_key": key });
        whole.as_object_mut().expect("an object").extend(body.as_object().expect("an object").clone());
        Answer::read(client.post(url).body(whole.to_string()).send().await.expect("an answer")).await
    })
}

/// Asks all gateways in turn for `n` calls at once, and waits for every answer.
pub async fn at_once(gateways: &[Gateway], n: usize, body: impl Fn(usize) -> Value) -> Vec<Answer> {
    let mut calls = JoinSet::new();
    for i in 0..n {
        let call = begin(&gateways[i % gateways.len()], &format!("k{i}"), body(i));
        calls.spawn(async move { (i, call.await.expect("no panic")) });
    }
    let mut answers = calls.join_all().await;
    answers.sort_by_key(|(i, _)| *i);
    answers.into_iter().map(|(_, answer)| answer).collect()
}
