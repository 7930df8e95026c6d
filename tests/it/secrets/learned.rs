//! A gateway learns a further secret of its store while requests wait.

use std::time::Duration;

use serde_json::{Value, json};

use crate::secrets::fingerprints::{CARD, document_key, paying};
#[cfg(feature = "postgres")]
use crate::support::postgres::{run_in, text_in};
use crate::support::redis::connect;
use crate::support::stores::{Stores, on_both_stores};
use crate::support::{Act, Answer, Gateway, Tool, until};

on_both_stores! {
    a_request_that_waits_is_claimed_under_the_secret_that_was_learned_meanwhile,
}

/// Begins a payment in the session S.
fn begin_paying(gateway: &Gateway, card: &str) -> tokio::task::JoinHandle<Answer> {
    let body = json!({ "args": { "card": card }, "session_id": "S" }).to_string();
    let request = gateway.client.post(gateway.url("/v1/tools/act/calls"));
    let request = request.body(body).send();
    tokio::spawn(async move { Answer::read(request.await.expect("an answer")).await })
}

/// Puts a secret before the stored one, as an accepted loss does.
async fn put_secret_before(stores: &Stores, gateway: &Gateway) {
    let with_other = |body: &str| {
        let mut body: Value = serde_json::from_str(body).expect("JSON");
        body["earlier"] = json!([body["secret"]]);
        body["secret"] = "08".repeat(32).into();
        body.to_string()
    };
    match stores {
        Stores::Sqlite => {
            let file = rusqlite::Connection::open(gateway.database()).expect("a store");
            file.busy_timeout(Duration::from_secs(10)).expect("set");
            let ask = "SELECT CAST(body AS TEXT) FROM documents WHERE kind = 'secret'";
            let body: String = file.query_row(ask, [], |row| row.get(0)).expect("it");
            let write = "UPDATE documents SET body = CAST(?1 AS BLOB) WHERE kind = 'secret'";
            file.execute(write, [with_other(&body)]).expect("written");
        }
        Stores::Redis(url) => {
            let mut connection = connect(url).await;
            let name = document_key();
            let mut body = ::redis::cmd("HGET");
            let body = body.arg(&name).arg("body");
            let body: String = body.query_async(&mut connection).await.expect("it");
            let mut set = ::redis::cmd("HSET");
            let set = set.arg(&name).arg("body").arg(with_other(&body));
            let () = set.query_async(&mut connection).await.expect("written");
        }
        #[cfg(feature = "postgres")]
        Stores::Postgres(place) => {
            let sql = "SELECT convert_from(body, 'UTF8') FROM documents WHERE kind = 'secret'";
            let body = with_other(&text_in(place, sql).await);
            let sql = format!(
                "UPDATE documents SET body = convert_to($body${body}$body$, 'UTF8') WHERE kind = 'secret'"
            );
            run_in(place, &sql).await;
        }
    }
}

async fn a_request_that_waits_is_claimed_under_the_secret_that_was_learned_meanwhile(
    stores: &Stores,
) {
    let tool = Tool::start().await;
    let config = paying(&tool, "session = \"exclusive\"\nsession_wait = \"20s\"");
    let gateway = stores.gateway(&config).await;
    let (hold, held) = Act::held(Act::Numbered);
    tool.then(held);
    let first = begin_paying(&gateway, CARD);
    until("it runs", async || tool.requests() == 1).await;
    let waits = begin_paying(&gateway, "other");
    until("it waits", async || {
        gateway.session().await.at("/waiting/0") != Value::Null
    })
    .await;
    let key_of = async || {
        let body = json!({ "args": { "card": "other" }, "session_id": "S" });
        let request = gateway.client.post(gateway.url("/v1/tools/act/key"));
        let answer = request.body(body.to_string()).send().await.expect("it");
        Answer::read(answer).await.at("/idempotency_key")
    };
    let before = key_of().await;
    put_secret_before(stores, &gateway).await;
    until("it is learned", async || key_of().await != before).await;
    drop(hold);
    first.await.expect("no panic").expect_ok();
    let waited = waits.await.expect("no panic").expect_ok();
    assert_eq!(waited.at("/idempotency_key"), key_of().await);
    for card in [CARD, "other"] {
        let again = begin_paying(&gateway, card).await.expect("no panic");
        assert_eq!(again.expect_ok().at("/replayed"), true, "{card}");
    }
    assert_eq!(tool.effects(), 2);
    gateway.stop().await;
}
