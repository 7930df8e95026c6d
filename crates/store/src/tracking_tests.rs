//! Memory agrees with a shared store, whatever the order of reads, changes, and news of changes.

use std::collections::VecDeque;
use std::sync::Arc;

use proptest::prelude::*;
use tokio::time::advance;

use super::*;
use crate::ReplayCache;
use crate::codec::tests::record;
use crate::replay_cache::Start;
use oncegate_rules::record::{Content, Record, State};

fn call() -> Record {
    record(State::Succeeded(Content::Stored("1".into())))
}

#[tokio::test(start_paused = true)]
async fn calls_are_believed_for_half_a_second_after_the_last_answered_question() {
    let tracking = Tracking::unanswered();
    assert!(!tracking.is_believed(), "nothing was answered yet");
    let sent = tracking.now();
    advance(Duration::from_millis(300)).await;
    tracking.answered(sent);
    advance(Duration::from_millis(190)).await;
    assert!(tracking.is_believed());
    // The boot clock is not paused, and has advanced by some microseconds.
    advance(Duration::from_millis(20)).await;
    assert!(!tracking.is_believed(), "from its sending on");
    tracking.answered(tracking.now());
    tracking.answered(sent);
    assert!(
        tracking.is_believed(),
        "an earlier question takes nothing back"
    );
    tracking.end();
    tracking.answered(tracking.now());
    assert!(!tracking.is_believed());
}

#[test]
fn a_machine_that_was_suspended_believes_nothing_that_it_read_before() {
    let asleep = Duration::from_secs(3_600);
    let mut tracking = Tracking::unanswered();
    let sent = tracking.now();
    tracking.answered(sent);
    assert!(tracking.is_believed());
    // `Instant` does not advance while the machine is suspended.
    tracking.began_since_boot = tracking.began_since_boot.saturating_sub(asleep);
    assert!(since_boot() > asleep || tracking.began_since_boot.is_zero());
    assert!(!tracking.is_believed());
    tracking.answered(sent);
    assert!(!tracking.is_believed(), "it was asked before");
    tracking.answered(tracking.now());
    assert!(tracking.is_believed());
}

#[test]
fn nothing_of_a_shared_store_is_believed_before_anything_tells_of_its_changes() {
    let (replay_cache, call) = (ReplayCache::of_shared_store(1 << 20), call());
    let (name, call_id) = (call.intent.lookup, call.intent.call_id);
    let read = replay_cache.begin_tracked_read(name, call_id);
    replay_cache.remember(&call, [&name].into_iter(), &read);
    assert!(!replay_cache.has(&name));
    let tracking = replay_cache.begin_tracking();
    replay_cache.remember(&call, [&name].into_iter(), &read);
    assert!(!replay_cache.has(&name), "it was read before");
    let read = replay_cache.begin_tracked_read(name, call_id);
    replay_cache.remember(&call, [&name].into_iter(), &read);
    assert!(replay_cache.has(&name) && replay_cache.get(&name).is_none());
    tracking.answered(tracking.now());
    assert!(replay_cache.get(&name).is_some() && tracking.take_asked() && !tracking.take_asked());
    replay_cache.doubt();
    assert!(!replay_cache.has(&name) && tracking.is_over());
}

#[test]
fn a_change_of_a_call_forgets_no_call_of_another_stripe() {
    let tracking = Tracking::unanswered();
    let of_stripe = |stripe: usize| CallId(uuid::Uuid::from_u128((stripe as u128) << 8));
    tracking.changed(of_stripe(0));
    let changed = (0..STRIPES).filter(|stripe| tracking.changes(of_stripe(*stripe)) > 0);
    assert_eq!(changed.count(), 1);
}

#[derive(Debug, Clone, Copy)]
enum Step {
    /// The gateway asks for the call.
    Ask,
    /// The server answers its oldest open question.
    Answer,
    /// Another gateway changes the call, or moves its name away and back.
    ChangeCall,
    ChangeName,
    /// The connection delivers the oldest message of the server.
    Deliver,
    /// The gateway remembers one of the delivered answers.
    Remember(usize),
    BeginOwnChange,
    MakeOwnChange,
    EndOwnChange,
    Disconnect,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        3 => Just(Step::Ask),
        3 => Just(Step::Answer),
        2 => Just(Step::ChangeCall),
        1 => Just(Step::ChangeName),
        6 => Just(Step::Deliver),
        4 => (0..3_usize).prop_map(Step::Remember),
        1 => Just(Step::BeginOwnChange),
        2 => Just(Step::MakeOwnChange),
        2 => Just(Step::EndOwnChange),
        1 => Just(Step::Disconnect),
    ]
}

/// A message of the server.
enum Said {
    Answer(Start, u64),
    CallChanged,
    NameChanged,
}

/// A call in a server, and a gateway that remembers it.
struct World {
    replay_cache: ReplayCache,
    tracking: Arc<Tracking>,
    call: Record,
    /// The version in the server.
    version: u64,
    tells_of_call: bool,
    tells_of_name: bool,
    asked: VecDeque<Start>,
    said: VecDeque<Said>,
    came: Vec<(Start, u64)>,
    /// The gateway's own change: begun, and then made.
    own: Option<bool>,
    /// The oldest version that may be shown: the gateway's own last acknowledged change.
    least: u64,
}

impl World {
    fn new() -> Self {
        let replay_cache = ReplayCache::of_shared_store(1 << 20);
        Self {
            tracking: replay_cache.begin_tracking(),
            replay_cache,
            call: call(),
            version: 0,
            tells_of_call: false,
            tells_of_name: false,
            asked: VecDeque::new(),
            said: VecDeque::new(),
            came: Vec::new(),
            own: None,
            least: 0,
        }
    }

    fn change_call(&mut self) {
        self.version += 1;
        if std::mem::take(&mut self.tells_of_call) {
            self.said.push_back(Said::CallChanged);
        }
    }

    fn go(&mut self, step: Step) {
        let (name, call_id) = (self.call.intent.lookup, self.call.intent.call_id);
        match step {
            Step::Ask => self
                .asked
                .push_back(self.replay_cache.begin_tracked_read(name, call_id)),
            Step::Answer => {
                if let Some(read) = self.asked.pop_front() {
                    (self.tells_of_call, self.tells_of_name) = (true, true);
                    self.said.push_back(Said::Answer(read, self.version));
                }
            }
            Step::ChangeCall => self.change_call(),
            Step::ChangeName => {
                self.version += 1;
                if std::mem::take(&mut self.tells_of_name) {
                    self.said.push_back(Said::NameChanged);
                }
            }
            Step::Deliver => match self.said.pop_front() {
                Some(Said::Answer(read, version)) => self.came.push((read, version)),
                Some(Said::CallChanged) => self.tracking.changed(call_id),
                Some(Said::NameChanged) => self.replay_cache.touch([&name].into_iter()),
                None => {}
            },
            Step::Remember(at) if at < self.came.len() => {
                let (read, version) = self.came.remove(at);
                let record = Record {
                    version,
                    ..self.call.clone()
                };
                self.replay_cache
                    .remember(&record, [&name].into_iter(), &read);
            }
            Step::BeginOwnChange if self.own.is_none() => {
                self.replay_cache.touch([&name].into_iter());
                self.own = Some(false);
            }
            Step::MakeOwnChange if self.own == Some(false) => {
                self.change_call();
                self.own = Some(true);
            }
            Step::EndOwnChange if self.own == Some(true) => {
                self.replay_cache.touch([&name].into_iter());
                (self.own, self.least) = (None, self.version);
            }
            Step::Disconnect => {
                self.replay_cache.end_tracking(&self.tracking);
                (self.tells_of_call, self.tells_of_name) = (false, false);
                self.asked.clear();
                self.said.clear();
                self.tracking = self.replay_cache.begin_tracking();
            }
            _ => {}
        }
    }

    /// The version that a duplicate gets from memory.
    fn shown(&self) -> Option<u64> {
        self.tracking.answered(self.tracking.now());
        let record = self.replay_cache.get(&self.call.intent.lookup);
        record.map(|record| record.version)
    }
}

proptest! {
    #[test]
    fn an_older_state_is_shown_only_while_news_of_a_change_is_on_its_way(
        steps in prop::collection::vec(step(), 1..60)
    ) {
        let mut world = World::new();
        for step in steps {
            world.go(step);
            let Some(shown) = world.shown() else { continue };
            let is_news = |said: &Said| !matches!(said, Said::Answer(..));
            prop_assert!(shown == world.version || world.said.iter().any(is_news));
            prop_assert!(shown >= world.least, "older than what this gateway has written");
        }
    }
}

/// Otherwise the property would say nothing.
#[test]
fn a_read_that_nothing_disturbs_is_remembered() {
    let mut world = World::new();
    for step in [Step::ChangeCall, Step::Ask, Step::Answer, Step::Deliver] {
        world.go(step);
    }
    world.go(Step::Remember(0));
    assert_eq!(world.shown(), Some(1));
}
