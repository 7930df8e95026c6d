//! A PostgreSQL that has lost data.

use oncegate::store::{Calls as _, Claimed, Error, Health as _, LOST_DATA, LossRecovery as _};

use super::{folder, refused};
use crate::stores::contract::{
    ME, accept_noticed_loss, arrival, claimed, open_postgres, open_postgres_as_it_is,
};
use crate::support::postgres::{Postgres, place, run_in};
use crate::support::{has_reason, until};

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
