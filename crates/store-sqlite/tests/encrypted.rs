//! What is found in an encrypted store.

#![expect(clippy::expect_used, reason = "helpers of tests")]

use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use std::sync::Arc;

use jiff::Timestamp;
use oncegate_rules::call::{Arrival, Event, next};
use oncegate_rules::key::{Lookup, Source};
use oncegate_rules::outcome::Evidence;
use oncegate_rules::record::{
    AttemptId, CallId, Content, Failure, FailureKind, InstanceId, Intent, Record, State,
};
use oncegate_rules::session::Preconditions;
use oncegate_rules::testing::{self as calls, intent};
use oncegate_rules::tool::{OnUnknown, Tool};
use oncegate_store::{Calls as _, Claimed, Encrypted, Keys, Replaced, Store};
use oncegate_store_sqlite::Sqlite;

const ME: InstanceId = InstanceId(Uuid::from_u128(1));

/// A call whose outcome is unknown. It is checked as the tool says.
async fn unknown(store: &impl Store, tool: &Tool, key: &str) -> Record {
    let lookup = Lookup::new("shop", "t", key);
    let intent = Intent {
        call_id: CallId::new(Uuid::new_v4(), &lookup),
        lookup,
        key: key.into(),
        args: "{\"card\":1}".into(),
        ..(*intent(Source::Runtime, 1)).clone()
    };
    let now = intent.created_at;
    let arrived = Event::Arrived(Arrival {
        intent: Arc::new(intent),
        fingerprints: Arc::default(),
        preconditions: Preconditions::default(),
        attempt: AttemptId(Uuid::new_v4()),
        owner: ME,
    });
    let change = |record: Option<&Record>, event: &Event| {
        let next = next(tool, record, event, now).expect("a change");
        next.change.expect("a change")
    };
    let running = match store.claim(&change(None, &arrived), &[]).await {
        Ok(Claimed::Yours(record)) => record,
        other => panic!("not claimed: {other:?}"),
    };
    let why = "timed out".into();
    let ended = Event::ended(&running, Evidence::NoAnswer { why });
    let ended = change(Some(&running), &ended);
    match store.replace(&ended, &running).await {
        Ok(Replaced::Done(record)) => record,
        other => panic!("not replaced: {other:?}"),
    }
}

/// A gateway that lacks the key still writes about the call. What it cannot read is there when the key is back.
#[tokio::test]
async fn an_answer_that_no_key_decrypts_outlives_the_next_write() {
    let folder = tempfile::tempdir().expect("a folder");
    let (path, fatal) = (folder.path().join("oncegate.db"), CancellationToken::new());
    let plain = Arc::new(Sqlite::open(&path, ME, &fatal).expect("a store"));
    let store_with = |key| Encrypted::new(plain.clone(), Keys::new(&[[key; 32]]).expect("a key"));
    let (with_key, without) = (store_with(1), store_with(2));
    let failure = Failure {
        body: Some("{\"why\":\"sold out\"}".into()),
        ..Failure::new(FailureKind::Rejected, "the tool answered 422")
    };
    for state in [
        State::Succeeded(Content::Stored("{\"id\":7}".into())),
        State::Failed(failure),
    ] {
        let unknown = unknown(&with_key, &Tool::new("t"), state.as_str()).await;
        let wrote = write(&with_key, &unknown, state.clone()).await;
        let call_id = unknown.intent.call_id;
        let read = without.load(call_id).await.expect("an answer");
        let unread = read.expect("a call");
        assert_eq!(unread.state.stored(), None);
        let length = wrote.state.answer_bytes();
        assert!(unread.state.answer_bytes() > length, "it takes memory");
        write(&without, &unread, unread.state.clone()).await;
        let read = with_key.load(call_id).await.expect("an answer");
        assert_eq!(read.expect("a call").state, state);
    }
}

/// Writes a further version of a call, with this state.
async fn write(store: &Encrypted, record: &Record, state: State) -> Record {
    let change = calls::claim_of(Record {
        state,
        version: record.version + 1,
        ..record.clone()
    });
    match store.replace(&change, record).await {
        Ok(Replaced::Done(record)) => record,
        other => panic!("not replaced: {other:?}"),
    }
}

#[tokio::test]
async fn unknown_calls_are_found_with_readable_arguments_to_be_checked() {
    let folder = tempfile::tempdir().expect("a folder");
    let (path, fatal) = (folder.path().join("oncegate.db"), CancellationToken::new());
    let plain = Arc::new(Sqlite::open(&path, ME, &fatal).expect("a store"));
    let keys = Keys::new(&[[1; 32]]).expect("a key");
    let store = Encrypted::new(plain.clone(), keys);
    let held = unknown(&store, &Tool::new("t"), "held").await;
    let checked = Tool {
        unknown: OnUnknown::Retry,
        ..Tool::new("t")
    };
    let due = unknown(&store, &checked, "due").await;
    assert_eq!(&due.intent.args[..], b"{\"card\":1}");
    let stored = plain.load(due.intent.call_id).await.expect("an answer");
    assert_ne!(stored.expect("a call").intent.args, due.intent.args);
    let tools = ["t".to_owned()];
    let found = store.due_rechecks(Timestamp::MAX, &tools, 9).await;
    assert_eq!(found.expect("an answer").calls, [due]);
    let found = store.unscheduled_unknown(&tools, 9).await;
    assert_eq!(found.expect("an answer").calls, [held]);
}
