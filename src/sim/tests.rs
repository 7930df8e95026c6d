//! Seeds that are tried, and deliberate breaks that must be found.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs::File;
use std::io::{BufWriter, Write as _};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::Instant;

use super::plan::{Break, Plan};
use super::run::{Outcome, run, run_and_note};
use crate::gateway::local_time;

/// How many seeds `make test` tries.
const SEEDS: u64 = 60;
/// Every so many-th seed of a long run is run twice, and must have the same history.
const TWICE: u64 = 50;
/// Within so many seeds a break must be found.
const TO_FIND: u64 = 400;

fn of(seed: u64, broken: Break) -> Outcome {
    run(Plan::of(seed, broken))
}

/// A number from the environment: `make simulate` sets it.
fn given(name: &str) -> Option<u64> {
    let given = std::env::var_os(name)?;
    let given = given.to_str().filter(|given| !given.is_empty())?;
    Some(given.parse().expect("a number"))
}

/// What is broken, for histories that the judge of others must find wrong.
fn given_break() -> Break {
    let given = std::env::var_os("BREAK").unwrap_or_default();
    match given.to_str().expect("a name") {
        "" => Break::Nothing,
        "takes-held-key" => Break::ClaimTakesHeldKey,
        "acknowledges-unwritten" => Break::AcknowledgesUnwritten,
        "leaves-without-gate" => Break::LeavesWithoutGate,
        "forgets-unknown" => Break::ForgetsUnknown,
        "garbles-results" => Break::GarblesResults,
        other => panic!("no break is called {other}"),
    }
}

/// What a failed seed prints.
fn story(seed: u64, outcome: &Outcome) -> String {
    let mut story = outcome.history.join("\n");
    write!(
        story,
        "\n\nSEED={seed} make simulate\n{}",
        outcome.broken.join("\n")
    )
    .ok();
    story
}

/// Tries seeds on all processors, until there are no more of them or the time is over.
struct Tries {
    next: AtomicU64,
    end: u64,
    until: Option<Instant>,
    is_broken: AtomicBool,
    stories: Mutex<Vec<String>>,
    tally: Mutex<BTreeMap<&'static str, u64>>,
    broken: Break,
    /// Where histories go, each ended by an empty line.
    histories: Option<Mutex<BufWriter<File>>>,
}

impl Tries {
    fn new(seeds: std::ops::Range<u64>, until: Option<Instant>) -> Self {
        Self {
            next: AtomicU64::new(seeds.start),
            end: seeds.end,
            until,
            is_broken: AtomicBool::new(false),
            stories: Mutex::default(),
            tally: Mutex::default(),
            broken: given_break(),
            histories: std::env::var_os("HISTORIES").map(|path| {
                let file = File::options().write(true).open(path).expect("a file");
                Mutex::new(BufWriter::new(file))
            }),
        }
    }

    /// Lives through a seed, and writes its history down.
    fn try_one(&self, seed: u64) -> Outcome {
        let (mut outcome, events) = run_and_note(Plan::of(seed, self.broken));
        if let Some(histories) = self.histories.as_ref().filter(|_| !events.is_empty()) {
            let mut histories = histories.lock().expect("not poisoned");
            writeln!(histories, "{}\n", events.join("\n")).expect("it is written");
        }
        if self.broken != Break::Nothing {
            // The judge of others must find it alone.
            outcome.broken.clear();
        }
        outcome
    }

    fn make(&self) {
        let workers = std::thread::available_parallelism().map_or(1, usize::from);
        std::thread::scope(|scope| {
            for _ in 0..workers {
                scope.spawn(|| self.work());
            }
        });
    }

    fn work(&self) {
        while !self.is_broken.load(Ordering::SeqCst)
            && self.until.is_none_or(|until| Instant::now() < until)
        {
            let seed = self.next.fetch_add(1, Ordering::SeqCst);
            if seed >= self.end {
                return;
            }
            let outcome = self.try_one(seed);
            if !outcome.broken.is_empty() {
                self.is_broken.store(true, Ordering::SeqCst);
                self.stories
                    .lock()
                    .expect("not poisoned")
                    .push(story(seed, &outcome));
            } else if seed.is_multiple_of(TWICE)
                && self.broken == Break::Nothing
                && of(seed, Break::Nothing) != outcome
            {
                self.is_broken.store(true, Ordering::SeqCst);
                let mut stories = self.stories.lock().expect("not poisoned");
                stories.push(format!("seed {seed} has two histories"));
            }
            let mut tally = self.tally.lock().expect("not poisoned");
            *tally.entry("milliseconds").or_default() += outcome.ended_at;
            for (what, times) in outcome.tally {
                *tally.entry(what).or_default() += times;
            }
        }
    }
}

/// `SEED=…` tells the history of one seed; `MINUTES=…` tries further seeds for so long.
#[test]
#[expect(
    clippy::print_stderr,
    reason = "the figures and stories are what is asked for"
)]
fn whatever_a_seed_lets_go_wrong_the_promise_is_kept() {
    if let Some(seed) = given("SEED") {
        let outcome = of(seed, Break::Nothing);
        eprintln!("{}", story(seed, &outcome));
        assert!(outcome.broken.is_empty(), "the promise is broken");
        return;
    }
    let (began, minutes) = (Instant::now(), given("MINUTES"));
    let tries = match minutes {
        // Others than the last time.
        Some(minutes) => {
            let first = given("FROM").unwrap_or_else(|| local_time().as_second() as u64 * 1_000);
            let until = began + Duration::from_secs(60 * minutes);
            Tries::new(first..u64::MAX, Some(until))
        }
        None => Tries::new(0..SEEDS, None),
    };
    let first = tries.next.load(Ordering::SeqCst);
    tries.make();
    if let Some(histories) = &tries.histories {
        let mut histories = histories.lock().expect("not poisoned");
        histories.flush().expect("it is written");
    }
    let tried = tries.next.load(Ordering::SeqCst).min(tries.end) - first;
    let seconds = began.elapsed().as_secs_f64();
    eprintln!(
        "{tried} seeds from {first} on in {seconds:.1} s, {:.0} a minute: {:?}",
        tried as f64 * 60.0 / seconds,
        tries.tally.lock().expect("not poisoned")
    );
    let stories = tries.stories.lock().expect("not poisoned");
    assert!(stories.is_empty(), "{}", stories.join("\n\n"));
}

#[test]
fn the_same_seed_has_the_same_history() {
    // In the last a gateway stops at the moment at which a late answer comes.
    let one_of_a_kind = std::iter::repeat_n(606_750, 6);
    for seed in (0..10).chain(one_of_a_kind) {
        let (once, again) = (of(seed, Break::Nothing), of(seed, Break::Nothing));
        for (one, other) in once.history.iter().zip(&again.history) {
            assert_eq!(one, other, "seed {seed}");
        }
        assert_eq!(once, again, "seed {seed}");
        assert!(once.history.len() > 20, "nothing happens: {once:?}");
    }
    assert_ne!(of(1, Break::Nothing).history, of(2, Break::Nothing).history);
}

/// The simulation finds what a break leads to.
#[expect(clippy::print_stderr, reason = "how long that takes is of interest")]
fn finds(broken: Break, expected: &str) {
    let mut others = Vec::new();
    for seed in 0..TO_FIND {
        let outcome = of(seed, broken);
        if outcome.broken.iter().any(|why| why.contains(expected)) {
            eprintln!("{broken:?} is found at seed {seed}");
            return;
        }
        others.extend(outcome.broken);
    }
    panic!("{broken:?} is not found, but: {others:#?}");
}

#[test]
fn a_claim_that_takes_a_held_key_is_found() {
    finds(Break::ClaimTakesHeldKey, "is answered with two results");
}

#[test]
fn a_change_without_comparing_is_found() {
    finds(Break::ReplacesWithoutComparing, "and is not so any more");
}

#[test]
fn an_outcome_that_is_acknowledged_and_not_written_is_found() {
    finds(
        Break::AcknowledgesUnwritten,
        "was answered as succeeded, and is",
    );
}

#[test]
fn unknown_calls_that_are_forgotten_are_found() {
    finds(Break::ForgetsUnknown, "and the store does not know it");
}

#[test]
fn tasks_that_are_forgotten_are_found() {
    finds(Break::ForgetsUnknown, "is not there");
}

#[test]
fn a_call_that_is_two_tasks_is_found() {
    finds(Break::ClaimTakesHeldKey, "is two tasks");
}

#[test]
fn lost_calls_that_no_gateway_takes_up_are_found() {
    finds(Break::RecoversNothing, "it does not come to rest");
}

#[test]
fn an_answer_that_is_dropped_and_counts_as_failed_is_found() {
    finds(
        Break::LeavesWithoutGate,
        "counts as not executed, although it was",
    );
}

#[test]
fn an_early_not_found_that_is_believed_is_found() {
    finds(Break::BelievesEarlyNotFound, "although it still may be");
}

#[test]
fn a_tool_that_does_not_deduplicate_as_it_says_is_found() {
    finds(Break::DeduplicatesNothing, "has two effects");
}

#[test]
fn what_undoes_a_call_twice_is_found() {
    finds(Break::DeduplicatesNothing, "is undone twice");
}

#[test]
fn a_call_that_is_executed_after_it_was_undone_is_found() {
    finds(Break::ArrivesTooLate, "is executed after it was undone");
}

#[test]
fn calls_of_a_session_at_the_same_time_are_found() {
    finds(Break::SharesSession, "of its session may be");
}

#[test]
fn results_that_are_not_those_of_the_effects_are_found() {
    finds(
        Break::GarblesResults,
        "is answered as succeeded, and has no such effect",
    );
}

#[test]
fn an_undoing_that_undoes_nothing_is_found() {
    finds(Break::UndoesNothing, "is not undone, and its saga is");
}

#[test]
fn a_finished_saga_that_moves_is_found() {
    finds(Break::ReopensSagas, ", and moves");
}
