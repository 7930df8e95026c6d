//! Changes over a store that refuses, loses answers, or has another writer.

mod scripted;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use uuid::Uuid;

use self::scripted::{Fault, Scripted};
use super::*;
use crate::base::Limits;
use crate::metrics::Metrics;
use oncegate_rules::actor::By;
use oncegate_rules::call::{Arrival, Ended, Retry};
use oncegate_rules::key::Source;
use oncegate_rules::outcome::Body;
use oncegate_rules::record::{AttemptId, InstanceId, Intent};
use oncegate_rules::session::Preconditions;
use oncegate_rules::testing::intent;
use oncegate_store::Error;

const ME: InstanceId = InstanceId(Uuid::from_u128(0xa));
const OTHER: InstanceId = InstanceId(Uuid::from_u128(0xb));

struct World {
    store: Arc<Scripted>,
    base: Base,
}

impl World {
    fn new() -> Self {
        let store = Arc::new(Scripted::new(ME));
        let metrics = Arc::new(Metrics::new());
        let base = Base::new(store.clone(), Vec::new(), metrics, ME, Limits::least());
        Self { store, base }
    }

    fn plan(&self, faults: impl IntoIterator<Item = Fault>) {
        self.store.writes.store(0, Ordering::SeqCst);
        *self.store.plan.lock().expect("not poisoned") = faults.into_iter().collect();
    }

    fn writes(&self) -> u32 {
        self.store.writes.load(Ordering::SeqCst)
    }

    async fn stored(&self, record: &Record) -> Record {
        let stored = self.store.store.load(record.intent.call_id).await;
        stored.expect("it answers").expect("a call")
    }

    /// The claim of a call, not written.
    fn claim(&self) -> Change {
        let arrived = Event::Arrived(Arrival {
            intent: intent(Source::Runtime, 1),
            fingerprints: Arc::default(),
            preconditions: Preconditions::default(),
            attempt: attempt(1),
            owner: ME,
        });
        let next = ask(&tool(), None, &arrived, self.base.time());
        next.expect("it is possible").change.expect("a claim")
    }

    /// A running call of this gateway.
    async fn running(&self) -> Record {
        let claimed = self.store.store.claim(&self.claim(), &[]).await;
        let Ok(Claimed::Yours(record)) = claimed else {
            panic!("it is not claimed");
        };
        record
    }

    /// An unknown call: another gateway found it without its owner.
    async fn unknown(&self) -> Record {
        let running = self.running().await;
        self.store.apply(running.intent.call_id, &lost()).await;
        self.stored(&running).await
    }

    async fn apply(&self, record: &Record, event: &Event, on_conflict: OnConflict) -> Moved {
        let (record, now) = (record.clone(), self.base.now());
        let moved = apply(&self.base, &tool(), record, event, now, on_conflict).await;
        moved.expect("the store answers")
    }

    /// Completes a call, and how often it was told that the outcome is unwritten.
    async fn end_attempt(&self, record: &Record, event: &Event) -> (EndedAttempt, u32) {
        let reports = AtomicU32::new(0);
        let unwritten = |_: &Record| {
            reports.fetch_add(1, Ordering::SeqCst);
        };
        let completed = end_attempt(&self.base, &tool(), record.clone(), event, unwritten).await;
        (completed, reports.into_inner())
    }
}

fn tool() -> Tool {
    Tool::new("t")
}

fn attempt(number: u128) -> AttemptId {
    AttemptId(Uuid::from_u128(number))
}

fn lost() -> Event {
    Event::OwnerLost { by: OTHER }
}

/// An operator's act that leaves a call running.
fn unlocked(record: &Record) -> Event {
    let by = By {
        actor: "token ops".into(),
        reason: "it blocks".into(),
    };
    Event::Unlocked {
        by,
        fencing: record.fencing,
    }
}

fn succeeded(record: &Record) -> Event {
    Event::ended(
        record,
        Evidence::Answer {
            status: 200,
            body: Body::Whole("{}".into()),
            retry_after: None,
            newest_token: None,
        },
    )
}

/// Nothing was sent, and attempt 2 is to follow.
fn not_sent(record: &Record) -> Event {
    Event::Ended(Ended {
        attempt: record.attempt.id,
        fencing: record.fencing,
        evidence: Evidence::NotSent {
            why: "connection refused".into(),
        },
        retry: Some(Retry {
            attempt: attempt(2),
            jitter: 0.0,
        }),
    })
}

fn other_call(record: &Record) -> Record {
    let intent = Intent {
        call_id: CallId(Uuid::from_u128(0xbeef)),
        ..(*record.intent).clone()
    };
    Record {
        intent: Arc::new(intent),
        ..record.clone()
    }
}

fn times<T>(count: usize, one: impl Fn() -> T) -> Vec<T> {
    (0..count).map(|_| one()).collect()
}

#[tokio::test]
async fn a_change_that_another_writer_overtook_goes_by_its_policy() {
    use OnConflict::{GiveUp, RetryOnLatest, RetryOnSameAttempt};
    for (on_conflict, is_written) in [
        (GiveUp, false),
        (RetryOnLatest, true),
        (RetryOnSameAttempt, true),
    ] {
        let world = World::new();
        let record = world.running().await;
        world.plan([Fault::Overtaken(unlocked(&record))]);
        match world.apply(&record, &lost(), on_conflict).await {
            Moved::Written { record, was, .. } => {
                assert!(is_written, "{on_conflict:?}");
                assert_eq!((record.version, was), (3, State::Running));
                assert_eq!(world.writes(), 2);
            }
            Moved::Lost(newer) => {
                assert!(!is_written, "{on_conflict:?}");
                assert_eq!(newer, Some(world.stored(&record).await));
                assert_eq!(world.writes(), 1);
            }
            _ => panic!("{on_conflict:?}"),
        }
    }
}

#[tokio::test]
async fn a_change_to_one_attempt_is_not_made_to_the_next() {
    use OnConflict::{RetryOnLatest, RetryOnSameAttempt};
    for (on_conflict, is_written) in [(RetryOnLatest, true), (RetryOnSameAttempt, false)] {
        let world = World::new();
        let record = world.running().await;
        world.plan([Fault::Overtaken(not_sent(&record))]);
        let moved = world.apply(&record, &lost(), on_conflict).await;
        assert_eq!(moved.written().is_some(), is_written, "{on_conflict:?}");
        let stored = world.stored(&record).await;
        assert_eq!(stored.attempt.id, attempt(2));
        assert_eq!(stored.state == State::Running, !is_written);
    }
}

#[tokio::test]
async fn a_change_is_not_made_to_another_call_that_has_the_key() {
    let world = World::new();
    let record = world.running().await;
    world.plan([Fault::Replaced(Box::new(other_call(&record)))]);
    let moved = world
        .apply(&record, &lost(), OnConflict::RetryOnLatest)
        .await;
    assert!(matches!(moved, Moved::Lost(Some(_))));
    assert_eq!(world.writes(), 1);
}

#[tokio::test]
async fn a_stored_call_is_changed_and_an_unstored_one_is_none() {
    let world = World::new();
    let record = world.running().await;
    let changed = change(&world.base, &record, &lost(), world.base.now()).await;
    assert_eq!(changed.expect("a change"), world.stored(&record).await);
    let moved = async |call_id| {
        let retry = OnConflict::RetryOnLatest;
        let moved = load_and_apply(&world.base, call_id, &lost(), retry).await;
        moved.expect("the store answers")
    };
    let again = moved(record.intent.call_id).await;
    assert!(matches!(
        again,
        Some(Moved::Refused(_, Illegal::NotRunning))
    ));
    assert!(moved(CallId(Uuid::from_u128(1))).await.is_none());
}

async fn begun(world: &World, faults: Vec<Fault>) -> Result<Begun, Error> {
    world.plan(faults);
    let mut claim = world.claim();
    claim.admission = Some(Admission {
        token: oncegate_rules::session::Token::Next,
        lock: Some(Line::Waits { longest: 0 }),
        budget: None,
        similar: None,
    });
    let begun = begin(&world.base, claim, Begin::Claim { replaced: &[] }, 7).await;
    assert_eq!(world.store.longest_line.load(Ordering::SeqCst), 7);
    begun
}

#[tokio::test]
async fn a_claim_that_was_refused_has_not_begun() {
    let world = World::new();
    let refused = begun(&world, vec![Fault::Refused]).await;
    assert!(matches!(refused, Err(Error::Refused(_))));
    assert_eq!(world.writes(), 1);
    let denied = begun(&world, vec![Fault::Denied]).await;
    assert!(matches!(denied, Ok(Begun::Denied(Denied::Frozen))));
    assert_eq!(world.writes(), 1);
}

#[tokio::test]
async fn a_claim_whose_answer_was_lost_is_asked_about_and_never_reported_as_not_begun() {
    let world = World::new();
    let ours = begun(&world, vec![Fault::Unanswered]).await;
    assert!(matches!(ours, Ok(Begun::Ours(_))));
    assert_eq!(world.writes(), 2);
    for second in [|| Fault::Refused, || Fault::Denied, || Fault::Lost] {
        let world = World::new();
        let unconfirmed = begun(&world, vec![Fault::Lost, second(), second()]).await;
        assert!(matches!(unconfirmed, Ok(Begun::Unconfirmed(_))));
        assert_eq!(world.writes(), 3);
    }
}

#[tokio::test]
async fn an_outcome_that_is_written_at_once_is_not_reported_as_unwritten() {
    let world = World::new();
    let record = world.running().await;
    world.plan([]);
    let (completed, reports) = world.end_attempt(&record, &succeeded(&record)).await;
    assert!(matches!(completed.record.state, State::Succeeded(_)));
    assert_eq!(completed.record, world.stored(&record).await);
    assert_eq!((completed.retry_after, completed.stale), (None, None));
    assert!(!completed.is_alarm);
    assert_eq!((reports, world.writes()), (0, 1));
}

#[tokio::test(start_paused = true)]
async fn an_outcome_waits_for_the_store_however_long_it_takes() {
    let world = World::new();
    let record = world.running().await;
    world.plan(
        times(20, || Fault::Refused)
            .into_iter()
            .chain([Fault::Unanswered]),
    );
    let (completed, reports) = world.end_attempt(&record, &succeeded(&record)).await;
    assert_eq!(completed.record, world.stored(&record).await);
    assert!(matches!(completed.record.state, State::Succeeded(_)));
    assert_eq!((reports, world.writes()), (1, 22));
}

#[tokio::test(start_paused = true)]
async fn a_gateway_without_time_offers_an_outcome_a_few_times_more() {
    let world = World::new();
    let record = world.running().await;
    world.base.abandoned.cancel();
    world.plan(times(100, || Fault::Refused));
    let event = succeeded(&record);
    let ended = world.end_attempt(&record, &event);
    let ended = tokio::time::timeout(Duration::from_secs(60), ended).await;
    let (completed, reports) = ended.expect("it gives up");
    assert_eq!(completed.record, record, "nothing is claimed to be written");
    assert_eq!((reports, world.writes()), (1, LAST_TRIES as u32 + 1));
}

#[tokio::test(start_paused = true)]
async fn a_further_attempt_begins_only_if_the_store_takes_it() {
    let world = World::new();
    let record = world.running().await;
    world.plan(times(CLAIM_TRIES - 1, || Fault::Refused));
    let (completed, reports) = world.end_attempt(&record, &not_sent(&record)).await;
    assert_eq!(completed.retry_after, Some(Duration::ZERO));
    assert_eq!(completed.record.attempt.id, attempt(2));
    assert_eq!((reports, world.writes()), (0, CLAIM_TRIES as u32));

    let world = World::new();
    let record = world.running().await;
    world.plan(times(CLAIM_TRIES, || Fault::Refused));
    let (completed, _) = world.end_attempt(&record, &not_sent(&record)).await;
    assert_eq!(completed.retry_after, None);
    assert!(matches!(completed.record.state, State::Failed(_)));
    assert_eq!(completed.record, world.stored(&record).await);
    assert_eq!(world.writes(), CLAIM_TRIES as u32 + 1);
}

#[tokio::test(start_paused = true)]
async fn a_further_attempt_whose_beginning_was_not_confirmed_is_ended_as_not_sent() {
    let world = World::new();
    let record = world.running().await;
    world.plan([Fault::UnansweredThen(unlocked(&record))]);
    let (completed, _) = world.end_attempt(&record, &not_sent(&record)).await;
    let State::Failed(failure) = &completed.record.state else {
        panic!("{:?}", completed.record.state);
    };
    assert!(failure.why.contains("not confirmed"), "{}", failure.why);
    assert_eq!(completed.record.attempt.id, attempt(2));
    assert_eq!((completed.retry_after, completed.stale), (None, None));
}

#[tokio::test]
async fn an_owner_completes_its_call_although_an_operator_wrote_into_its_history() {
    let world = World::new();
    let record = world.running().await;
    world.plan([Fault::Overtaken(unlocked(&record))]);
    let (completed, _) = world.end_attempt(&record, &succeeded(&record)).await;
    assert!(matches!(completed.record.state, State::Succeeded(_)));
    assert_eq!(completed.record, world.stored(&record).await);
    assert_eq!(completed.stale, None);
}

#[tokio::test]
async fn an_owner_whose_call_was_taken_for_lost_is_stale_and_its_answer_counts() {
    let world = World::new();
    let record = world.running().await;
    world.plan([Fault::Overtaken(lost())]);
    let (completed, _) = world.end_attempt(&record, &succeeded(&record)).await;
    assert!(matches!(completed.record.state, State::Succeeded(_)));
    assert_eq!(completed.record, world.stored(&record).await);
    assert_eq!(completed.stale, Some("unknown"));
}

#[tokio::test]
async fn an_owner_whose_call_has_a_further_attempt_of_another_gateway_is_stale() {
    let world = World::new();
    let record = world.running().await;
    world.plan([Fault::Overtaken(not_sent(&record))]);
    let (completed, _) = world.end_attempt(&record, &succeeded(&record)).await;
    assert_eq!(completed.stale, Some("running"));
    let stored = world.stored(&record).await;
    assert_eq!(stored.attempt.id, attempt(2), "it stays the newest");
}

#[tokio::test]
async fn a_late_answer_has_no_owner_that_could_be_stale() {
    let world = World::new();
    let record = world.unknown().await;
    world.plan([]);
    let (completed, _) = world.end_attempt(&record, &succeeded(&record)).await;
    assert!(matches!(completed.record.state, State::Succeeded(_)));
    assert_eq!(completed.stale, None);
    // The same answer once more is refused, and changes nothing.
    let (again, _) = world
        .end_attempt(&completed.record, &succeeded(&record))
        .await;
    assert_eq!((&again.record, again.stale), (&completed.record, None));
}

#[tokio::test]
async fn an_outcome_is_not_written_to_another_call_that_has_the_key() {
    let world = World::new();
    let record = world.running().await;
    world.plan([Fault::Replaced(Box::new(other_call(&record)))]);
    let (completed, _) = world.end_attempt(&record, &succeeded(&record)).await;
    assert_eq!((&completed.record, completed.stale), (&record, None));
    assert_eq!(world.writes(), 1);
    world.plan([Fault::Denied]);
    let (completed, _) = world.end_attempt(&record, &succeeded(&record)).await;
    assert_eq!((&completed.record, world.writes()), (&record, 1));
}
