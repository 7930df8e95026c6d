//! The same claim about a gateway on each store, and the words for calls of one session.

use std::path::Path;

use serde_json::{Value, json};
use tokio::task::JoinSet;

use super::gateway::store_is_free;
#[cfg(feature = "postgres")]
use super::postgres;
use super::redis::connect;
use super::timings::brisk_at_peace;
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
        #[cfg(feature = "postgres")]
        mod postgres {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $claim() {
                let place = $crate::support::postgres::place().await;
                super::$claim(&$crate::support::stores::Stores::Postgres(place)).await;
            })*
        }
    };
}

pub(crate) use on_both_stores;

/// Before any call, in microseconds.
pub const LONG_AGO: i64 = 1;
/// After any call.
pub const FAR_AHEAD: i64 = 4_000_000_000_000_000;

/// Writes into the file since when its ledger knows every call.
pub fn know_all_since(database: &Path, since: i64) {
    let connection = rusqlite::Connection::open(database).expect("a store");
    connection
        .busy_timeout(std::time::Duration::from_secs(5))
        .expect("set");
    connection
        .execute("UPDATE ledger SET whole_since = ?1", [since])
        .expect("written");
}

pub enum Stores {
    Sqlite,
    Redis(String),
    #[cfg(feature = "postgres")]
    Postgres(String),
}

impl Stores {
    pub async fn gateway(&self, config: &str) -> Gateway {
        let Some(url) = self.shared() else {
            return Gateway::start(config).await;
        };
        let gateway = Gateway::at_pace(brisk_at_peace(), url, config).await;
        gateway.until_ready().await;
        gateway
    }

    /// Where a store of many gateways is; `None`: it is a file.
    pub fn shared(&self) -> Option<&String> {
        match self {
            Self::Sqlite => None,
            Self::Redis(url) => Some(url),
            #[cfg(feature = "postgres")]
            Self::Postgres(place) => Some(place),
        }
    }

    /// A gateway whose ledger knows every call that there ever was.
    pub async fn gateway_of_old(&self, config: &str) -> Gateway {
        let gateway = self.gateway(config).await;
        self.know_all_since(&gateway, LONG_AGO).await;
        if self.shared().is_none() {
            return gateway;
        }
        // It has looked before.
        gateway.stop().await;
        self.gateway(config).await
    }

    /// Writes into the store since when its ledger knows every call, in microseconds: what no operator can. A
    /// gateway on Redis sees it a little later.
    pub async fn know_all_since(&self, gateway: &Gateway, since: i64) {
        let url = match self {
            Self::Sqlite => return know_all_since(&gateway.database(), since),
            Self::Redis(url) => url,
            #[cfg(feature = "postgres")]
            Self::Postgres(place) => {
                let sql = format!("UPDATE ledger SET whole_since = {since}");
                postgres::run_in(place, &sql).await;
                return;
            }
        };
        let mut connection = connect(url).await;
        let key = "oncegate:{p000}:manifest";
        let manifest: String = redis::cmd("GET")
            .arg(key)
            .query_async(&mut connection)
            .await
            .expect("it");
        let mut manifest: Value = serde_json::from_str(&manifest).expect("JSON");
        manifest["whole_since_us"] = since.into();
        let set = redis::cmd("SET")
            .arg(key)
            .arg(manifest.to_string())
            .query_async(&mut connection)
            .await;
        let () = set.expect("written");
    }

    /// The same store again, after another end and another beginning, or with another configuration.
    pub async fn again(&self, gateway: Gateway, config: &str) -> Gateway {
        let folder = gateway.stop().await;
        if self.shared().is_some() {
            return self.gateway(config).await;
        }
        store_is_free(folder.path()).await;
        let store = format!("sqlite:{}", folder.path().join("oncegate.db").display());
        Gateway::again(folder, &store, config).await
    }

    /// As many gateways as the store can have; at most two.
    pub async fn gateways(&self, config: &str) -> Vec<Gateway> {
        let mut gateways = vec![self.gateway(config).await];
        if self.shared().is_some() {
            gateways.push(self.gateway(config).await);
        }
        gateways
    }
}

impl Gateway {
    /// Calls `act` in the session S.
    pub async fn act(&self, key: &str, body: Value) -> Answer {
        let mut whole = json!({ "args": {}, "session_id": "S", "idempotency_key": key });
        whole
            .as_object_mut()
            .expect("an object")
            .extend(body.as_object().expect("an object").clone());
        self.post("act", &whole, &[]).await
    }

    pub async fn session(&self) -> Answer {
        self.get("/v1/sessions/S").await.expect_ok()
    }

    pub async fn person(&self, what: &str) -> Answer {
        let reason = json!({ "reason": "it hangs" });
        let request = self
            .client
            .post(self.url(&format!("/v1/sessions/S/{what}")))
            .body(reason.to_string());
        Answer::to(request).await
    }
}

/// A call of its own task, so that another can come meanwhile.
pub fn begin(gateway: &Gateway, key: &str, body: Value) -> tokio::task::JoinHandle<Answer> {
    let (client, url, key) = (
        gateway.client.clone(),
        gateway.url("/v1/tools/act/calls"),
        key.to_owned(),
    );
    tokio::spawn(async move {
        let mut whole = json!({ "args": {}, "session_id": "S", "idempotency_key": key });
        whole
            .as_object_mut()
            .expect("an object")
            .extend(body.as_object().expect("an object").clone());
        Answer::to(client.post(url).body(whole.to_string())).await
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
