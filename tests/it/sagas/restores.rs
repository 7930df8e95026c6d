//! A store is restored from an older copy while sagas are open, and the gateway's loops work on sagas as usual.

use rusqlite::Connection;
use serde_json::{Value, json};

use crate::redis::shared::notices;
use crate::sagas::undone::{MADE, executed, words};
use crate::stores::file_losses::{ALL, Serving, remove};
use crate::support::binary::free_port;
use crate::support::gateway::one_tool;
#[cfg(feature = "postgres")]
use crate::support::postgres::Postgres;
use crate::support::redis::Redis;
use crate::support::{Answer, Gateway, Tool, at_its_end, client, until};

/// The deadline of each saga is over at once. `on_timeout`: the setting for overdue sagas.
fn config(tool: &Tool, on_timeout: &str) -> String {
    let more = format!(
        "compensation = {{ tool = \"undo\" }}\n[tools.undo]\nurl = \"http://127.0.0.1:{}/undo\"\n\
         [sagas]\ndeadline = \"100ms\"\non_timeout = \"{on_timeout}\"",
        tool.port
    );
    one_tool(tool, &more)
}

/// A gateway, by its address.
struct Shop(String);

impl Shop {
    async fn post(&self, path: &str, body: Value) -> Answer {
        let url = format!("{}{path}", self.0);
        Answer::to(client().post(url).body(body.to_string())).await
    }

    async fn call(&self, saga: &str) -> Answer {
        let body =
            json!({ "args": {}, "session_id": "S", "saga_id": saga, "idempotency_key": saga });
        self.post("/v1/tools/act/calls", body).await
    }

    async fn end(&self, saga: &str, how: &str) {
        let path = format!("/v1/sagas/{saga}/{how}");
        let ended = self.post(&path, json!({ "reason": "a test" })).await;
        assert!(matches!(ended.status, 200 | 202), "{}", ended.text);
    }

    async fn saga(&self, saga: &str) -> Answer {
        Answer::to(client().get(format!("{}/v1/sagas/{saga}", self.0))).await
    }

    async fn undone(&self, saga: &str) {
        until("it is undone", async || {
            self.saga(saga).await.at("/state") == "compensated"
        })
        .await;
    }

    /// Opens three sagas, which the copy holds.
    async fn begin(&self) {
        for saga in ["A", "B", "C"] {
            self.call(saga).await.expect_ok();
        }
    }

    /// Ends sagas after the copy was made.
    async fn go_on(&self, tool: &Tool) {
        self.end("A", "complete").await;
        self.end("B", "abort").await;
        self.undone("B").await;
        assert_eq!(executed(tool), ["do", "do", "do", "undo"]);
    }

    /// Checks the gateway after the store was replaced by the copy and the loss was noticed.
    async fn is_restored(&self, tool: &Tool) {
        let late = self.call("late").await;
        late.expect_problem("store-unavailable");
        let accepted = json!({ "reason": "restored" });
        at_its_end(async || self.post("/v1/store/accept-loss", accepted.clone()).await)
            .await
            .expect_ok();
        until("it is open", async || self.call("D").await.status == 200).await;
        // The gateway works on overdue sagas that began later, and not on those that were open at the loss.
        self.undone("D").await;
        for saga in ["A", "B", "C"] {
            let view = self.saga(saga).await.expect_ok();
            let last = words(&view.at("/events"), "event").pop();
            assert_eq!(
                (view.at("/state"), last.as_deref()),
                ("stuck".into(), Some("store_lost")),
                "{}",
                view.text
            );
        }
        let done = ["do", "do", "do", "undo", "do", "undo"];
        assert_eq!(
            executed(tool),
            done,
            "nothing of them is undone, and not twice"
        );
        self.end("A", "complete").await;
        self.end("B", "complete").await;
        self.end("C", "abort").await;
        self.undone("C").await;
        assert_eq!(executed(tool), [&done[..], &["undo"]].concat());
    }
}

/// Three sagas are open when the file is copied or its log is begun, and end after that. Then the process is killed.
async fn over_a_file(copy: impl AsyncFnOnce(&mut Serving), restore: impl FnOnce(&Serving)) {
    let tool = Tool::start().await;
    tool.always(MADE);
    let mut serving = Serving {
        folder: tempfile::tempdir().expect("a folder"),
        port: free_port(),
        config: config(&tool, "report"),
        process: None,
    };
    let shop = Shop(format!("http://127.0.0.1:{}", serving.port));
    serving.again().await;
    shop.begin().await;
    copy(&mut serving).await;
    shop.go_on(&tool).await;
    serving.kill();
    restore(&serving);
    serving.config = config(&tool, "abort");
    serving.again().await;
    assert!(serving.is_closed().await);
    shop.is_restored(&tool).await;
}

#[tokio::test]
async fn a_copy_of_the_file_made_while_sagas_were_open_undoes_nothing_that_was_finished() {
    over_a_file(
        async |serving| {
            let file = Connection::open(serving.path("oncegate.db")).expect("opened");
            let copy = serving.path("copy").display().to_string();
            file.execute("VACUUM INTO ?1", [copy]).expect("copied");
        },
        |serving| {
            remove(serving, &ALL);
            std::fs::rename(serving.path("copy"), serving.path("oncegate.db")).expect("put back");
        },
    )
    .await;
}

#[tokio::test]
async fn a_log_that_was_deleted_with_the_end_of_sagas_in_it_undoes_nothing_that_was_finished() {
    over_a_file(
        async |serving| {
            serving.stop().await;
            serving.again().await;
        },
        |serving| remove(serving, &ALL[1..]),
    )
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_snapshot_of_redis_made_while_sagas_were_open_undoes_nothing_that_was_finished() {
    let (mut redis, tool) = (Redis::strict().await, Tool::start().await);
    tool.always(MADE);
    let gateway = Gateway::sharing(&redis.url(), &config(&tool, "report")).await;
    gateway.until_ready().await;
    let shop = Shop(gateway.url(""));
    shop.begin().await;
    let snapshot = redis.snapshot();
    shop.go_on(&tool).await;
    let folder = gateway.stop().await;
    redis.restore(snapshot.path()).await;
    let gateway = Gateway::again(folder, &redis.url(), &config(&tool, "abort")).await;
    notices(&gateway, "accept-loss").await;
    Shop(gateway.url("")).is_restored(&tool).await;
    gateway.stop().await;
}

#[cfg(feature = "postgres")]
#[tokio::test(flavor = "multi_thread")]
async fn a_backup_of_a_postgres_made_while_sagas_were_open_undoes_nothing_that_was_finished() {
    let (mut server, tool) = (Postgres::with(&[]).await, Tool::start().await);
    tool.always(MADE);
    let gateway = Gateway::sharing(&server.url(), &config(&tool, "report")).await;
    gateway.until_ready().await;
    let shop = Shop(gateway.url(""));
    shop.begin().await;
    let snapshot = server.snapshot();
    shop.go_on(&tool).await;
    let folder = gateway.stop().await;
    server.restore(snapshot.path()).await;
    let gateway = Gateway::again(folder, &server.url(), &config(&tool, "abort")).await;
    notices(&gateway, "accept-loss").await;
    Shop(gateway.url("")).is_restored(&tool).await;
    gateway.stop().await;
}
