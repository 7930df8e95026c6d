//! An operator accepts the loss of data of a SQLite file.

use std::fs;
use std::path::Path;

use oncegate::gateway::local_time;
use oncegate::store::LOST_DATA;
use oncegate::store::sqlite::Sqlite;
use oncegate::store::{Calls as _, Documents as _, Health as _, LossRecovery as _};
use tokio_util::sync::CancellationToken;

use crate::stores::contract::{arrival, claimed};
use crate::stores::file_losses::{ALL, ME, remove, with_a_copy};
use crate::support::binary::accept_loss_command;
use crate::support::gateway::store_is_free;
use crate::support::{Tool, until};

#[tokio::test]
async fn a_loss_is_accepted_by_the_command_when_no_gateway_runs() {
    let tool = Tool::start().await;
    let (mut serving, _) = with_a_copy(&tool).await;
    serving.kill();
    remove(&serving, &ALL[1..]);
    serving.again().await;
    let accept = |folder: &Path| {
        let done = accept_loss_command(folder, "the log was deleted");
        // The command logs to standard error, where errors go, too.
        let said = if done.status.success() {
            done.stdout
        } else {
            done.stderr
        };
        (
            done.status.success(),
            String::from_utf8_lossy(&said).into_owned(),
        )
    };
    let (accepted, said) = accept(serving.folder.path());
    assert!(
        !accepted && said.contains("in use by another gateway"),
        "{said}"
    );
    serving.stop().await;
    let (accepted, said) = accept(serving.folder.path());
    assert!(
        accepted && said.starts_with("the loss is accepted; 1 calls became unknown"),
        "{said}"
    );
    let (accepted, said) = accept(serving.folder.path());
    assert!(
        !accepted && said.contains("has not lost any data"),
        "{said}"
    );
    serving.again().await;
    assert_eq!(serving.get("/readyz").await.status, 200);
}

/// The call may have run again before the loss, but would stay failed.
#[tokio::test]
async fn a_loss_is_not_accepted_while_a_call_at_risk_cannot_be_read() {
    let tool = Tool::start().await;
    let (mut serving, _) = with_a_copy(&tool).await;
    serving.kill();
    remove(&serving, &ALL[1..]);
    let file = rusqlite::Connection::open(serving.path("oncegate.db")).expect("opened");
    let sql =
        "UPDATE intents SET intent = x'ff' WHERE seq IN (SELECT seq FROM calls WHERE state = 2)";
    assert_eq!(file.execute(sql, []), Ok(1));
    drop(file);
    serving.again().await;
    let refused = serving.accept().await.expect_problem("wrong-state");
    assert!(
        refused.text.contains("the loss cannot be accepted"),
        "{}",
        refused.text
    );
    assert!(serving.is_closed().await);
}

fn open_in(folder: &Path) -> Sqlite {
    let file = folder.join("oncegate.db");
    Sqlite::open(&file, ME, &CancellationToken::new()).expect("a store")
}

#[tokio::test]
async fn after_a_loss_new_tokens_are_above_the_lost_ones() {
    let folder = tempfile::tempdir().expect("a folder");
    let open = || open_in(folder.path());
    let store = open();
    assert_eq!(
        store.whole_until().await.expect("an answer"),
        None,
        "it has no call"
    );
    let kept = claimed(&store, &arrival("k", "S", 0, ME)).await;
    let since = store.readiness().await.whole_since.expect("it is known");
    store.close().await;
    drop(store);
    store_is_free(folder.path()).await;
    let copy = fs::read(folder.path().join("oncegate.db")).expect("read");
    // The clock of the machine was an hour ahead when this token was drawn.
    let ahead = local_time().as_microsecond() + 3_600_000_000;
    let connection = rusqlite::Connection::open(folder.path().join("oncegate.db")).expect("opened");
    connection
        .execute("UPDATE sessions SET token = ?1", [ahead])
        .expect("written");
    drop(connection);
    let store = open();
    let lost = claimed(&store, &arrival("l", "S", 1, ME))
        .await
        .fencing
        .expect("a token");
    assert_eq!(lost, ahead.unsigned_abs() + 1);
    store.close().await;
    drop(store);
    store_is_free(folder.path()).await;
    fs::write(folder.path().join("oncegate.db"), copy).expect("put back");

    let store = open();
    assert_eq!(store.readiness().await.reasons[0].code, LOST_DATA);
    let whole_until = store.whole_until().await.expect("an answer");
    assert_eq!(
        whole_until,
        Some(kept.intent.created_at),
        "the newest call that is left"
    );
    assert!(store.claim(&arrival("l", "S", 2, ME), &[]).await.is_err());
    store.accept_loss("put back").await.expect("accepted");
    let readiness = store.readiness().await;
    assert!(readiness.reasons.is_empty() && readiness.whole_since > Some(since));
    let next = claimed(&store, &arrival("l", "other", 3, ME))
        .await
        .fencing
        .expect("a token");
    assert!(next > lost, "{next} after {lost}");
}

#[tokio::test]
async fn during_the_acceptance_of_a_loss_only_known_documents_are_changed() {
    use oncegate::core::document::{Document, Kind};
    use oncegate::core::saga::{Policy, Saga, SagaId};
    use oncegate::store::Put;

    let folder = tempfile::tempdir().expect("a folder");
    let open = || open_in(folder.path());
    let store = open();
    let id = SagaId {
        tenant: "shop".into(),
        id: "G".into(),
    };
    let saga = Saga::begin(id, &Policy::default(), crate::stores::contract::at(0)).to_document();
    assert_eq!(
        store.put_document(&saga).await.expect("an answer"),
        Put::Done
    );
    store.close().await;
    drop(store);
    store_is_free(folder.path()).await;
    fs::remove_file(folder.path().join("oncegate.db.watermarks")).expect("removed");

    let store = open();
    let next = Document {
        version: 2,
        ..saga.clone()
    };
    assert!(store.put_document(&next).await.is_err());
    assert_eq!(
        store
            .due_documents(Kind::Saga, crate::stores::contract::at(9_999), 9)
            .await
            .expect("an answer")
            .calls,
        []
    );
    store
        .prepare_acceptance("put back")
        .await
        .expect("prepared");
    assert_eq!(
        store.put_document(&next).await.expect("an answer"),
        Put::Done
    );
    assert!(
        store
            .put_document(&Document {
                id: "H".into(),
                version: 1,
                ..saga
            })
            .await
            .is_err()
    );
    assert!(store.claim(&arrival("k", "S", 2, ME), &[]).await.is_err());
    // The gateway ends before it has accepted the loss. The next start finds it again.
    drop(store);
    store_is_free(folder.path()).await;
    let store = open();
    assert_eq!(store.readiness().await.reasons[0].code, LOST_DATA);
    store
        .accept_loss("put back, and tried again")
        .await
        .expect("accepted");
    assert!(store.accept_loss("again").await.is_err());
    until("it is open", async || {
        store.readiness().await.reasons.is_empty()
    })
    .await;
}
