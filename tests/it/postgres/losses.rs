//! A PostgreSQL that has lost data.

use std::time::Duration;

use oncegate::core::timings::Timings;
use oncegate::store::postgres::Postgres as Store;
use oncegate::store::{Calls as _, Claimed, Error, Health as _, LOST_DATA, LossRecovery as _};

use serde_json::json;
use tempfile::TempDir;

use super::{folder, refused};
use crate::redis::pause::says_nothing_while_it_settles;
use crate::stores::contract::{
    ME, accept_noticed_loss, arrival, claimed, ended, long_leases, open_postgres,
    open_postgres_as_it_is, open_postgres_at_pace, replaced, rerun,
};
use crate::support::gateway::one_tool;
use crate::support::postgres::{Postgres, place, run_in};
use crate::support::timings::brisk;
use crate::support::{Gateway, Tool, has_reason, until};

#[tokio::test(flavor = "multi_thread")]
async fn a_beat_that_is_gone_closes_the_store_for_all_until_the_loss_is_accepted() {
    let (one, other, place) = (folder(), folder(), place().await);
    let store = open_postgres(&place, one.path()).await;
    let beside = open_postgres(&place, other.path()).await;
    let running = claimed(&store, &arrival("k", "S", 0, ME)).await;
    // As an older copy would have it. Other gateways may not know what is missing.
    run_in(&place, "UPDATE gateways SET beat = 0 WHERE beat > 0").await;
    until("the loss is noticed", async || {
        has_reason(&store.readiness().await, LOST_DATA)
    })
    .await;
    until("also beside", async || {
        has_reason(&beside.readiness().await, LOST_DATA)
    })
    .await;
    let late = store.claim(&arrival("late", "S", 1, ME), &[]).await;
    assert!(matches!(late, Err(Error::Refused(_))), "{late:?}");
    let again = store
        .claim(&arrival("k", "S", 1, ME), &[])
        .await
        .expect("an answer");
    assert!(
        matches!(again, Claimed::Existing(held) if held == running),
        "replays go on"
    );
    let risky = store
        .calls_at_risk_after_loss("", 9)
        .await
        .expect("a page")
        .0;
    assert_eq!(risky, [running.intent.call_id]);
    accept_noticed_loss(&store).await;
    until("also beside", async || {
        beside.readiness().await.reasons.is_empty()
    })
    .await;
    let token = claimed(&beside, &arrival("late", "S", 1, ME)).await.fencing;
    assert!(token > running.fencing, "tokens rise over a loss");
    let nothing = store.prepare_acceptance("a test").await;
    assert!(matches!(nothing, Err(Error::Refused(_))), "{nothing:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_database_that_was_emptied_is_not_taken_for_a_new_one() {
    let (folder, place) = (folder(), place().await);
    let store = open_postgres(&place, folder.path()).await;
    claimed(&store, &arrival("k", "S", 0, ME)).await;
    store.close().await;
    drop(store);
    let schema = place.split_once('#').expect("a place").1;
    run_in(&place, &format!("DROP SCHEMA {schema} CASCADE")).await;
    let store = open_postgres_as_it_is(&place, folder.path()).await;
    accept_noticed_loss(&store).await;
    claimed(&store, &arrival("k", "S", 1, ME)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_backup_that_is_put_back_closes_the_store_before_anything_runs() {
    let mut server = Postgres::with(&[]).await;
    let (folder, place) = (folder(), server.main());
    let store = open_postgres(&place, folder.path()).await;
    claimed(&store, &arrival("before", "S", 0, ME)).await;
    let backup = server.snapshot();
    claimed(&store, &arrival("lost", "S", 1, ME)).await;
    store.close().await;
    server.restore(backup.path()).await;
    // The gateway that has seen it stops and starts; nothing in the data says that time went back.
    drop(store);
    let store = open_postgres_as_it_is(&place, folder.path()).await;
    let why = refused(&store, LOST_DATA).await;
    assert!(why.contains("accept-loss"), "{why}");
    let late = store.claim(&arrival("lost", "S", 1, ME), &[]).await;
    assert!(matches!(late, Err(Error::Refused(_))), "{late:?}");
    // A gateway that never saw the later data is told by the store.
    let other = super::folder();
    let beside = open_postgres_as_it_is(&place, other.path()).await;
    refused(&beside, LOST_DATA).await;
    accept_noticed_loss(&store).await;
    claimed(&store, &arrival("lost", "S", 2, ME)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_a_call_of_a_paused_tool_nothing_is_said_while_a_postgres_may_have_older_data() {
    let (mut server, tool) = (Postgres::with(&[]).await, Tool::start().await);
    let config = one_tool(&tool, "");
    let gateway = Gateway::sharing(&server.url(), &config).await;
    let beside = Gateway::sharing(&server.url(), &config).await;
    gateway.until_ready().await;
    beside.until_ready().await;
    let backup = server.snapshot();
    gateway.until_ready().await;
    gateway.act("k", json!({})).await.expect_ok();
    let pause = json!({ "reason": "a test" });
    gateway
        .post_to("/v1/tools/act/pause", &pause)
        .await
        .expect_ok();
    let lost = async {
        server.restore(backup.path()).await;
    };
    let asked = async {
        for gateway in [&gateway, &beside] {
            until("the loss is noticed", async || {
                let answer = gateway.act("k", json!({})).await;
                let said = answer.problem();
                assert!(
                    answer.status == 200 || said == "store-unavailable",
                    "{}",
                    answer.text
                );
                gateway.reasons().await.contains("accept-loss")
            })
            .await;
        }
    };
    tokio::join!(lost, asked);
    assert_eq!(tool.effects(), 1);
}

/// The time in which other gateways look does not end.
fn settles_long() -> Timings {
    Timings {
        redis_others_look: Duration::from_secs(3_600),
        ..brisk()
    }
}

/// The server may lack what only another gateway knows.
#[tokio::test(flavor = "multi_thread")]
async fn a_new_gateway_claims_nothing_before_others_had_time_to_look_at_a_postgres() {
    let (old, new, place) = (folder(), folder(), place().await);
    let before = open_postgres(&place, old.path()).await;
    claimed(&before, &arrival("k", "S", 0, ME)).await;
    // A second process has not waited because the first one did for a moment.
    for _ in 0..2 {
        let store = open_postgres_at_pace(&place, new.path(), settles_long()).await;
        refused(&store, "restarted").await;
        let claim = store.claim(&arrival("other", "S", 1, ME), &[]).await;
        assert!(matches!(claim, Err(Error::Refused(_))), "{claim:?}");
        store.close().await;
    }
}

/// Another gateway may still find that newer data are lost.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn while_a_postgres_settles_nothing_is_said_of_a_call_that_is_not_there() {
    let mut server = Postgres::with(&[]).await;
    let (folder, place) = (folder(), server.place());
    let store = open_postgres(&place, folder.path()).await;
    store.close().await;
    drop(store);
    let store = open_postgres_at_pace(&place, folder.path(), settles_long()).await;
    until("it is ready", async || {
        store.readiness().await.reasons.is_empty()
    })
    .await;
    says_nothing_while_it_settles(store, async || {
        server.kill();
        server.start_again().await;
    })
    .await;
}

/// A store that is ready, and is not inspected again unless a connection breaks or an answer looks wrong.
async fn between_inspections(place: &str, folder: &TempDir) -> Store {
    let pace = Timings {
        redis_look_every: Duration::from_secs(3_600),
        ..long_leases()
    };
    let store = open_postgres_at_pace(place, folder.path(), pace).await;
    until("it is ready", async || {
        store.readiness().await.reasons.is_empty()
    })
    .await;
    store
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_claimed_in_a_postgres_whose_data_another_gateway_has_judged_otherwise() {
    for judged in ["lost = 'a test'", "epoch = gen_random_uuid()"] {
        let (folder, place) = (folder(), place().await);
        let store = between_inspections(&place, &folder).await;
        let before = arrival("before", "S", 0, ME);
        let running = claimed(&store, &before).await;
        run_in(&place, &format!("UPDATE ledger SET {judged}")).await;
        let claim = store.claim(&arrival("k", "S", 1, ME), &[]).await;
        assert!(
            matches!(claim, Err(Error::Refused(_))),
            "{judged}: {claim:?}"
        );
        let found = store.load(running.intent.call_id).await;
        assert!(found.is_ok(), "what is there is read: {found:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_runs_again_in_a_postgres_whose_data_another_gateway_has_judged_otherwise() {
    for judged in ["lost = 'a test'", "epoch = gen_random_uuid()"] {
        let (folder, place) = (folder(), place().await);
        let store = between_inspections(&place, &folder).await;
        let running = claimed(&store, &arrival("k", "S", 0, ME)).await;
        let failed = replaced(&store, &ended(&running, 429, 1), &running).await;
        let again = rerun(&failed, 2);
        run_in(&place, &format!("UPDATE ledger SET {judged}")).await;
        let begun = store.replace(&again, &failed).await;
        assert!(
            matches!(begun, Err(Error::Refused(_))),
            "{judged}: {begun:?}"
        );
        let found = store.load(running.intent.call_id).await.expect("an answer");
        assert_eq!(found.as_ref(), Some(&failed), "as it was");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_search_in_a_postgres_that_another_gateway_has_closed_does_not_come_back_empty() {
    let (folder, place) = (folder(), place().await);
    let store = between_inspections(&place, &folder).await;
    let names = [arrival("k", "S", 0, ME).record.intent.lookup];
    assert_eq!(store.holders(&names).await.expect("an answer"), []);
    run_in(&place, "UPDATE ledger SET lost = 'a test'").await;
    let found = store.holders(&names).await;
    assert!(matches!(found, Err(Error::Refused(_))), "{found:?}");
    until("the gateway has noticed it", async || {
        has_reason(&store.readiness().await, LOST_DATA)
    })
    .await;
}
