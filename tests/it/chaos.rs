//! Whatever goes wrong: at most one effect, and nothing is lost.
//!
//! Two gateways share a store that fails by a random plan, before a tool that misbehaves by another.
//! Agents repeat themselves, hang up and mix up their keys; recovery takes calls from living owners;
//! the store is down for a while, or loses its newest writes. Then everything heals, and what the
//! tool, the agents and the store have seen is held against the invariants, which are named in the
//! messages as in the list of them (S1: at most one effect, and so on).
//!
//! A failure prints the seed and the smallest plan that still fails. What runs at the same time is
//! not in the seed: the same plan may have to be run more than once.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use oncegate::core::key::Lookup;
use oncegate::core::outcome::Content;
use oncegate::core::record::{Entry, Record, State};
use oncegate::gateway;
use proptest::prelude::*;
use proptest::test_runner::{Config, RngSeed, TestCaseError, TestRunner};
use serde_json::json;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};
use uuid::Uuid;

use crate::support::faulty::{Fault, FaultStore, Plan, Rates, Verb};
use crate::support::gateway::Bare;
use crate::support::memory::Memory;
use crate::support::tool::Seen;
use crate::support::{Act, Answer, Tool, client};

/// A case takes a second, so there are this many times fewer than of other properties.
const SLOWER: u32 = 32;
/// The most rounds until everything has happened that must.
const ROUNDS: u64 = 4;
/// The worlds of one case. They live side by side, because most of it is waiting.
const WORLDS: usize = 12;

const KEYS: usize = 4;
/// Small times: what is slow here is slower than an attempt, but ends before the lease.
const POLICY: &str = "timeout = \"150ms\"\ndeadline = \"400ms\"\nretry = { attempts = 2, base = \"2ms\" }";
const SLOW_MS: u64 = 220;
/// The lease of every call is over by then.
const LATER: SignedDuration = SignedDuration::from_mins(5);

#[derive(Debug, Clone)]
struct Scenario {
    plan: Plan,
    /// What the tool does with its first requests; with all others it does what it should.
    acts: Vec<Act>,
    steps: Vec<Step>,
}

#[derive(Debug, Clone)]
enum Step {
    /// Begins, and nobody waits for it; so does the next.
    Ask(Ask),
    /// On both gateways at once.
    AskBoth(Ask),
    /// Likewise.
    Recover {
        at: usize,
    },
    PauseMs(u64),
    /// Until every agent is answered.
    Settle,
    /// The store refuses everything for so long.
    DownMs(u64),
    /// The store loses its newest writes while a call is under way. From then on nothing begins,
    /// until the loss is accepted.
    Lose {
        during: Ask,
        writes: usize,
    },
    AcceptLoss,
}

/// One request of an agent.
#[derive(Debug, Clone, Copy)]
struct Ask {
    at: usize,
    key: usize,
    /// With other arguments than usual under this key.
    other: bool,
    patient: bool,
    hangs_up_after_ms: Option<u64>,
}

fn scenarios() -> impl Strategy<Value = Vec<Scenario>> {
    let step = prop_oneof![
        20 => ask().prop_map(Step::Ask),
        6 => ask().prop_map(Step::AskBoth),
        3 => (0..2_usize).prop_map(|at| Step::Recover { at }),
        10 => prop_oneof![0..10_u64, 20..120_u64].prop_map(Step::PauseMs),
        4 => Just(Step::Settle),
        1 => (0..200_u64).prop_map(Step::DownMs),
        1 => (ask(), 1..4_usize).prop_map(|(during, writes)| Step::Lose { during, writes }),
        1 => Just(Step::AcceptLoss),
    ];
    let scenario = (plan(), prop::collection::vec(act(), 0..20), prop::collection::vec(step, 8..40));
    let scenario = scenario.prop_map(|(plan, acts, steps)| Scenario { plan, acts, steps });
    prop::collection::vec(scenario, 1..=WORLDS)
}

fn ask() -> impl Strategy<Value = Ask> {
    let hangs_up = prop_oneof![5 => Just(None), 1 => (0..60_u64).prop_map(Some)];
    (0..2_usize, 0..KEYS, prop::bool::weighted(0.1), any::<bool>(), hangs_up).prop_map(
        |(at, key, other, patient, hangs_up_after_ms)| Ask { at, key, other, patient, hangs_up_after_ms },
    )
}

fn plan() -> impl Strategy<Value = Plan> {
    let rate = || prop_oneof![4 => Just(0_u8), 3 => 1..15_u8, 1 => 30..70_u8];
    let rates = move || {
        (rate(), rate(), rate(), rate()).prop_map(
            |(err_before, execute_then_timeout, execute_late, duplicate)| Rates {
                err_before,
                execute_then_timeout,
                execute_late,
                duplicate,
            },
        )
    };
    let ways = prop_oneof![Just(0_u64), 1..5_u64];
    (any::<u64>(), rates(), rates(), rates(), 1..300_u64, ways).prop_map(
        |(seed, claim, replace, others, late_ms, way_ms)| Plan {
            seed,
            claim,
            replace,
            others,
            late_ms,
            way_ms,
        },
    )
}

fn act() -> impl Strategy<Value = Act> {
    let rejects = Act::Answer(422, "", b"{\"no\":1}");
    prop_oneof![
        3 => Just(Act::Numbered),
        4 => Just(rejects.clone()),
        4 => Just(Act::Answer(429, "", b"{}")),
        1 => Just(Act::ExecuteThenDrop),
        1 => Just(Act::ExecuteThenReset),
        1 => Just(Act::ExecuteThenAnswer(500)),
        1 => Just(Act::HalfBody(200)),
        1 => Just(Act::Drop),
        1 => Just(Act::Answer(500, "", b"{}")),
        2 => Just(Act::after_ms(20, Act::Numbered)),
        2 => Just(Act::after_ms(SLOW_MS, Act::Numbered)),
        1 => Just(Act::after_ms(20, rejects.clone())),
        1 => Just(Act::after_ms(SLOW_MS, rejects)),
    ]
}

fn name_of(key: usize) -> String {
    format!("k{key}")
}

fn lookup_of(key: usize) -> Lookup {
    Lookup::new("default", "act", &name_of(key))
}

fn args_of(ask: &Ask) -> String {
    json!({ "key": ask.key, "other": ask.other }).to_string()
}

/// What an agent asked, and what it heard; nothing if it hung up.
#[derive(Clone)]
struct Heard {
    ask: Ask,
    asked_at: Instant,
    answer: Option<Answer>,
}

/// One scenario's tool, store and gateways.
struct World {
    tool: Tool,
    memory: Memory,
    store: FaultStore,
    gateways: [Bare; 2],
    client: reqwest::Client,
    heard: Mutex<Vec<Heard>>,
    /// Keys of which writes were lost: of these the store cannot say the truth.
    lost: Mutex<HashSet<Lookup>>,
    /// Those that may run once more, because the loss was accepted.
    reopened: Mutex<HashSet<Lookup>>,
    broken: Mutex<Vec<String>>,
}

impl World {
    async fn of(scenario: &Scenario, client: reqwest::Client) -> Arc<Self> {
        let tool = Tool::start().await;
        tool.always(Act::Numbered);
        for act in &scenario.acts {
            tool.then(act.clone());
        }
        let memory = Memory::default();
        let store = FaultStore::with_plan(memory.clone(), scenario.plan.clone());
        let one = || Bare::over(store.clone(), gateway::new_instance(), &tool, POLICY);
        let gateways = [one().await, one().await];
        let (heard, lost, reopened, broken) = Default::default();
        Arc::new(Self { tool, memory, store, gateways, client, heard, lost, reopened, broken })
    }

    async fn live(self: &Arc<Self>, steps: &[Step]) {
        let mut tasks = JoinSet::new();
        for step in steps {
            match step {
                Step::Ask(ask) => self.begin(&mut tasks, *ask),
                Step::AskBoth(ask) => {
                    self.begin(&mut tasks, *ask);
                    self.begin(&mut tasks, Ask { at: 1 - ask.at, ..*ask });
                }
                Step::Recover { at } => {
                    let (world, at) = (self.clone(), *at);
                    tasks.spawn(async move {
                        // The store may fail it.
                        drop(world.gateways[at].gateway.recover_all(world.later()).await);
                    });
                }
                Step::PauseMs(ms) => sleep(Duration::from_millis(*ms)).await,
                Step::Settle => settle(&mut tasks).await,
                Step::DownMs(ms) => {
                    let (store, ms) = (self.store.clone(), *ms);
                    store.set_down(true);
                    tasks.spawn(async move {
                        sleep(Duration::from_millis(ms)).await;
                        store.set_down(false);
                    });
                }
                Step::AcceptLoss => self.accept_loss(),
                Step::Lose { during, writes } => {
                    self.begin(&mut tasks, *during);
                    sleep(Duration::from_millis(10)).await;
                    self.lost.lock().expect("not poisoned").extend(self.memory.lose(*writes));
                }
            }
        }
        self.store.heal();
        settle(&mut tasks).await;
    }

    fn begin(self: &Arc<Self>, tasks: &mut JoinSet<()>, ask: Ask) {
        let world = self.clone();
        tasks.spawn(async move { drop(world.ask(&world.gateways[ask.at], ask).await) });
    }

    fn has_lost(&self, lookup: Lookup) -> bool {
        self.lost.lock().expect("not poisoned").contains(&lookup)
    }

    fn later(&self) -> Timestamp {
        self.gateways[0].gateway.now() + LATER
    }

    async fn ask(&self, gateway: &Bare, ask: Ask) -> Option<Answer> {
        let asked_at = Instant::now();
        let body = format!(
            "{{\"args\":{},\"session_id\":\"S{}\",\"trace_id\":\"{:032x}\"}}",
            args_of(&ask),
            ask.key % 2,
            ask.key + 1,
        );
        let request = self.client.post(&gateway.url).body(body);
        let request = request.header("idempotency-key", name_of(ask.key));
        let request = request.header("prefer", if ask.patient { "wait=1" } else { "wait=0" });
        let answer = async { Answer::read(request.send().await.expect("an answer")).await };
        let patience = ask.hangs_up_after_ms.map_or(Duration::from_secs(30), Duration::from_millis);
        let answer = timeout(patience, answer).await.ok();
        if let Some(answer) = answer.as_ref().filter(|answer| answer.status == 200) {
            self.is_durable(ask.key, answer);
        }
        self.heard.lock().expect("not poisoned").push(Heard { ask, asked_at, answer: answer.clone() });
        answer
    }

    /// What is told must have been written by then.
    fn is_durable(&self, key: usize, answer: &Answer) {
        let is_it = |record: &Record| matches!(&record.state, State::Succeeded(Content::Kept(json)) if *json == answer.result());
        if !self.memory.written(lookup_of(key)).iter().any(is_it) {
            self.breaks(format!("S8: k{key} heard {} before it was written", answer.text));
        }
    }

    /// From now on keys may run again of which writes were lost.
    fn accept_loss(&self) {
        let lost = self.lost.lock().expect("not poisoned").clone();
        self.reopened.lock().expect("not poisoned").extend(lost);
        self.memory.accept_loss();
    }

    fn breaks(&self, what: String) {
        self.broken.lock().expect("not poisoned").push(what);
    }

    /// What the ledger says, for whoever reads a failure.
    fn history(&self) -> String {
        let mut lines: Vec<(Timestamp, String)> = Vec::new();
        for (record, entries) in self.memory.records() {
            for Entry { at, event, attempt, detail, by, .. } in entries {
                let attempt = attempt.map(|attempt| attempt.to_string()).unwrap_or_default();
                let key = &record.intent.key;
                lines.push((at, format!("{at} {key} {event} {attempt:.16} by {by:.12}: {detail}")));
            }
        }
        lines.sort();
        for seen in self.tool.seen() {
            let attempt = attempt_of(&seen);
            lines
                .push((Timestamp::MAX, format!("tool: {attempt} executed: {} {}", seen.executed, seen.body)));
        }
        lines.into_iter().map(|(_, line)| format!("  {line}\n")).collect()
    }

    /// Everything heals and ends, and is recovered; a gateway starts anew.
    async fn fall_quiet(&self) -> Bare {
        self.store.is_quiet().await;
        for Bare { gateway, .. } in &self.gateways {
            let began = Instant::now();
            gateway.shut_down().await;
            if began.elapsed() > Duration::from_secs(5) {
                self.breaks("L3: a call did not end although all was well".into());
            }
        }
        while self.tool.is_undecided() {
            sleep(Duration::from_millis(5)).await;
        }
        let acknowledged = self.store.acknowledged();
        for (record, _) in self.memory.records() {
            let is_ours = record.state == State::Running && acknowledged.contains_key(&record.attempt.id);
            if is_ours && !self.has_lost(record.intent.lookup) {
                self.breaks(format!("L5: {} was left behind as running", record.intent.key));
            }
        }
        let [one, other] = &self.gateways;
        let recovered =
            tokio::join!(one.gateway.recover_all(self.later()), other.gateway.recover_all(self.later()));
        recovered.0.and(recovered.1).expect("recovered");
        let anew = Bare::over(self.store.clone(), gateway::new_instance(), &self.tool, POLICY).await;
        if anew.gateway.recover_all(self.later()).await.expect("recovered") > 0 {
            self.breaks("S20: the second recovery found something left over".into());
        }
        anew
    }

    /// What holds as soon as everything is quiet, and for ever after.
    fn check(&self) {
        let seen = self.tool.seen();
        let heard = self.heard.lock().expect("not poisoned").clone();
        let reopened = self.reopened.lock().expect("not poisoned").clone();
        self.check_attempts(&seen);
        self.check_tokens(&seen);
        for (record, _) in self.memory.records() {
            if record.state == State::Running {
                self.breaks(format!("S6: {} is still running", record.intent.key));
            }
        }
        for key in 0..KEYS {
            let lookup = lookup_of(key);
            let at_tool: Vec<(usize, &Seen)> = seen
                .iter()
                .enumerate()
                .filter(|(_, seen)| seen.header("idempotency-key") == lookup.for_tool())
                .collect();
            let heard: Vec<&Heard> = heard.iter().filter(|heard| heard.ask.key == key).collect();
            if !reopened.contains(&lookup) {
                self.check_effects(key, &at_tool);
                self.check_heard(key, &at_tool, &heard);
            }
            if !self.has_lost(lookup) {
                self.check_record(key, &at_tool, self.memory.holder_of(lookup));
            }
        }
    }

    /// Every request was begun with the store's word for it, is sent once, and did what the ledger
    /// says of it, if that says anything.
    fn check_attempts(&self, seen: &[Seen]) {
        let mut by_attempt: HashMap<String, Vec<&Seen>> = HashMap::new();
        for seen in seen {
            by_attempt.entry(attempt_of(seen).to_owned()).or_default().push(seen);
        }
        let acknowledged = self.store.acknowledged();
        let acknowledged: HashMap<String, Instant> =
            acknowledged.into_iter().map(|(attempt, at)| (short(&attempt.to_string()), at)).collect();
        for (attempt, requests) in &by_attempt {
            if requests.len() > 1 {
                self.breaks(format!("S1: attempt {attempt} was sent {} times", requests.len()));
            }
            let arrived = requests.iter().filter_map(|request| request.at).min();
            let durable = acknowledged.get(attempt);
            if durable.is_none_or(|durable| arrived.is_none_or(|arrived| arrived < *durable)) {
                self.breaks(format!("S2, S16: attempt {attempt} was sent without an acknowledged claim"));
            }
        }
        for (record, entries) in self.memory.records() {
            for entry in entries {
                let (Some(attempt), Some(outcome)) = (entry.attempt, entry.outcome) else { continue };
                let requests = by_attempt.get(&short(&attempt.to_string()));
                let effects = requests.into_iter().flatten().filter(|request| request.executed).count();
                let is_true = match outcome.as_ref() {
                    "executed" => effects == 1,
                    "not_executed" => effects == 0,
                    _ => true,
                };
                if !is_true {
                    let key = &record.intent.key;
                    self.breaks(format!("S3: {key}: the ledger says {outcome} of {effects} effects"));
                }
            }
        }
    }

    /// Within a session no two calls have the same fencing token.
    fn check_tokens(&self, seen: &[Seen]) {
        let mut calls: HashMap<(&str, &str), &str> = HashMap::new();
        for seen in seen {
            let token = (seen.header("x-session-id"), seen.header("fencing-token"));
            let call = seen.header("x-call-id");
            if *calls.entry(token).or_insert(call) != call || token.1.is_empty() {
                self.breaks(format!("S10: token {token:?} is another call's, too"));
            }
        }
    }

    /// A key has one effect at most, stands for one call, and its runs have rising tokens.
    fn check_effects(&self, key: usize, at_tool: &[(usize, &Seen)]) {
        let effects = at_tool.iter().filter(|(_, seen)| seen.executed).count();
        if effects > 1 {
            self.breaks(format!("S1: k{key} has {effects} effects"));
        }
        for pair in at_tool.windows(2) {
            let (before, after) = (pair[0].1, pair[1].1);
            if before.body != after.body || before.header("x-call-id") != after.header("x-call-id") {
                self.breaks(format!("S9: the tool was sent two calls under k{key}"));
            }
            let token = |seen: &Seen| seen.header("fencing-token").parse::<u64>().ok();
            if token(before) > token(after) {
                self.breaks(format!("S11: the tokens of k{key} fall"));
            }
        }
    }

    /// What the agents were told of a key is true, and it is the same for all.
    fn check_heard(&self, key: usize, at_tool: &[(usize, &Seen)], heard: &[&Heard]) {
        let effects: Vec<_> = at_tool.iter().filter(|(_, seen)| seen.executed).collect();
        let mut told: Option<(String, serde_json::Value)> = None;
        for Heard { ask, asked_at, answer } in heard {
            let Some(answer) = answer else { continue };
            if !at_tool.is_empty() && at_tool.iter().all(|(_, seen)| seen.body != args_of(ask)) {
                // The key stands for other arguments: nothing may be learnt of them.
                let is_silent = answer.status != 200 && answer.at("/call_id").is_null();
                let is_fit = matches!(
                    answer.problem().as_str(),
                    "key-reused" | "store-unavailable" | "call-in-progress" | "outcome-unknown"
                );
                if !is_silent || !is_fit {
                    self.breaks(format!("S9: k{key} with other arguments heard {}", answer.text));
                }
            }
            match answer.problem().as_str() {
                "" if answer.status == 200 => {
                    let is_true = matches!(effects.as_slice(), [(index, seen)]
                        if answer.result() == format!("{{ \"effect\": {index}.0 }}") && seen.body == args_of(ask));
                    if !is_true {
                        let text = &answer.text;
                        self.breaks(format!("S4: k{key} heard {text} of the effects {effects:?}"));
                    }
                    let this = (answer.result(), answer.at("/call_id"));
                    if *told.get_or_insert_with(|| this.clone()) != this {
                        self.breaks(format!("S7: k{key} heard {told:?} and {this:?}"));
                    }
                }
                "result-unavailable" if effects.len() != 1 => {
                    self.breaks(format!("S4: k{key} heard that it was done, of {} effects", effects.len()));
                }
                "tool-rejected" | "tool-unreachable" | "tool-unavailable" => {
                    // It may be run again later, but nothing was executed that had been sent before
                    // the agent asked.
                    let early = effects.iter().find(|(_, seen)| seen.at.is_some_and(|at| at < *asked_at));
                    if let Some(effect) = early {
                        let text = &answer.text;
                        self.breaks(format!("S4: k{key} heard {text} after the effect {effect:?}"));
                    }
                }
                "result-unavailable" | "outcome-unknown" | "call-in-progress" | "store-unavailable"
                | "key-reused" => {}
                _ => self.breaks(format!("k{key} heard {}", answer.text)),
            }
        }
    }

    /// What the store says of a key is what happened.
    fn check_record(&self, key: usize, at_tool: &[(usize, &Seen)], record: Option<Record>) {
        let effects = at_tool.iter().filter(|(_, seen)| seen.executed).count();
        let Some(record) = record else {
            if !at_tool.is_empty() {
                self.breaks(format!("S6: k{key} was sent, and the store does not know it"));
            }
            return;
        };
        let is_true = match record.state {
            State::Succeeded(_) => effects == 1,
            State::Failed(_) => effects == 0,
            State::Unknown(_) => true,
            State::Running => false,
        };
        if !is_true {
            self.breaks(format!("S5: k{key} is {} with {effects} effects", record.state.as_str()));
        }
        let call_id = record.intent.call_id.to_string();
        if at_tool.iter().any(|(_, seen)| seen.header("x-call-id") != call_id) {
            self.breaks(format!("S6: the store has k{key} as another call than the tool"));
        }
    }

    /// What agents hear who ask again when all is well.
    async fn ask_again(&self, anew: &Bare) {
        let told = self.heard.lock().expect("not poisoned").clone();
        if self.memory.has_lost() {
            for key in 0..KEYS {
                self.expect(anew, usual(key), &["store-unavailable"], "S16").await;
            }
            self.accept_loss();
        }
        for key in (0..KEYS).filter(|key| !self.has_lost(lookup_of(*key))) {
            let Some(record) = self.memory.holder_of(lookup_of(key)) else { continue };
            let requests = self.tool.requests();
            let asked = [usual(key), Ask { other: true, ..usual(key) }];
            let (same, other): (Vec<Ask>, Vec<Ask>) =
                asked.into_iter().partition(|ask| record.intent.args == args_of(ask));
            self.expect(anew, other[0], &["key-reused"], "S9").await;
            let mut told = told.iter().filter(|heard| heard.ask.key == key);
            let told = told.find_map(|heard| heard.answer.clone().filter(|answer| answer.status == 200));
            match &record.state {
                State::Failed(_) => {
                    // It may run, and on a slow machine the tool may seem slow.
                    self.tool.forget();
                    let fit = ["", "outcome-unknown", "tool-unreachable"];
                    self.expect(anew, same[0], &fit, "S12").await;
                    continue;
                }
                State::Succeeded(Content::Kept(json)) => {
                    let again = self.expect(anew, same[0], &[""], "S8").await;
                    if again.status == 200 && *json != again.result() {
                        self.breaks(format!("S8: k{key} is {json:?} and heard {}", again.text));
                    }
                }
                State::Succeeded(Content::Unavailable(_)) => {
                    self.expect(anew, same[0], &["result-unavailable"], "S8").await;
                }
                State::Unknown(_) => drop(self.expect(anew, same[0], &["outcome-unknown"], "S5").await),
                State::Running => {}
            }
            if let Some(told) = told.filter(|_| !matches!(record.state, State::Succeeded(_))) {
                self.breaks(format!("S8: k{key} has heard {} and is {:?}", told.text, record.state));
            }
            if self.tool.requests() != requests {
                self.breaks(format!("S7: k{key} was sent again, and it was {:?}", record.state));
            }
        }
    }

    /// Asks, and wants to hear one of these problems, or a success where it says nothing.
    async fn expect(&self, gateway: &Bare, ask: Ask, fit: &[&str], invariant: &str) -> Answer {
        let answer = self.ask(gateway, ask).await.expect("an answer");
        if !fit.contains(&answer.problem().as_str()) {
            self.breaks(format!("{invariant}: k{} was to hear {fit:?}, heard {}", ask.key, answer.text));
        }
        answer
    }
}

fn usual(key: usize) -> Ask {
    Ask { at: 0, key, other: false, patient: true, hangs_up_after_ms: None }
}

/// The attempt that a request belongs to, as far as the tool is told: half of its id.
fn attempt_of(seen: &Seen) -> &str {
    seen.header("traceparent").split('-').nth(2).unwrap_or_default()
}

fn short(attempt: &str) -> String {
    attempt.chars().take(16).collect()
}

async fn settle(tasks: &mut JoinSet<()>) {
    while let Some(task) = tasks.join_next().await {
        task.expect("no panic");
    }
}

/// How often everything happened that must happen for a run to mean anything, by name.
type Tally = BTreeMap<&'static str, usize>;

impl World {
    /// What has happened so far.
    fn tally(&self) -> Tally {
        let heard = self.heard.lock().expect("not poisoned");
        let answers: Vec<&Answer> = heard.iter().filter_map(|heard| heard.answer.as_ref()).collect();
        let with = |slugs: &[&str]| {
            answers.iter().filter(|answer| slugs.contains(&answer.problem().as_str())).count()
        };
        let replays = answers.iter().filter(|answer| answer.status == 200 && answer.at("/replayed") == true);
        let entries: Vec<_> = self.memory.records().into_iter().flat_map(|(_, entries)| entries).collect();
        let events = |event: &str| entries.iter().filter(|entry| entry.event == event).count();
        let metrics = self.gateways.each_ref().map(|at| at.gateway.metrics.clone());
        let ambiguous = |operation: &str| {
            let errors = metrics.iter().map(|metrics| &metrics.store_errors);
            errors.map(|errors| errors.with_label_values(&[operation, "ambiguous"]).get() as usize).sum()
        };
        let mut tally = Tally::from([
            ("lost writes", self.lost.lock().expect("not poisoned").len()),
            ("ambiguous claims", ambiguous("claim")),
            ("ambiguous replacements", ambiguous("replace")),
            ("refused stale owners", metrics.iter().map(|metrics| metrics.stale_owners.get() as usize).sum()),
            ("calls whose lease was over", events("lease_over")),
            ("late answers", events("ended_late")),
            ("retries", events("retried")),
            ("runs after a failure", events("run_again")),
            ("agents that hung up", heard.len() - answers.len()),
            ("successes", with(&[""])),
            ("replays", replays.count()),
            ("claims confirmed after a doubt", self.store.confirmed(Verb::Claim)),
            ("failures without effect", with(&["tool-rejected", "tool-unreachable", "tool-unavailable"])),
            ("unknown outcomes", with(&["outcome-unknown"])),
            ("lost results", with(&["result-unavailable"])),
            ("reused keys", with(&["key-reused"])),
            ("refusals of the store", with(&["store-unavailable"])),
        ]);
        for (name, verb, fault) in [
            ("claims: refused", Verb::Claim, Fault::ErrBefore),
            ("claims: unanswered", Verb::Claim, Fault::ExecuteThenTimeout),
            ("claims: late", Verb::Claim, Fault::ExecuteLate(Duration::ZERO)),
            ("claims: twice", Verb::Claim, Fault::Duplicate),
            ("replacements: refused", Verb::Replace, Fault::ErrBefore),
            ("replacements: unanswered", Verb::Replace, Fault::ExecuteThenTimeout),
            ("replacements: late", Verb::Replace, Fault::ExecuteLate(Duration::ZERO)),
            ("replacements: twice", Verb::Replace, Fault::Duplicate),
        ] {
            tally.insert(name, self.store.injected(verb, fault));
        }
        tally
    }
}

/// Plays scenarios side by side, and answers with what was broken.
async fn play(scenarios: Vec<Scenario>) -> (Vec<String>, Tally) {
    let (client, mut worlds) = (client(), Vec::new());
    for scenario in scenarios {
        worlds.push((World::of(&scenario, client.clone()).await, scenario.steps));
    }
    let mut lives = JoinSet::new();
    for (world, steps) in worlds {
        lives.spawn(async move {
            world.live(&steps).await;
            world
        });
    }
    let mut ends = JoinSet::new();
    for world in lives.join_all().await {
        ends.spawn(async move {
            let anew = world.fall_quiet().await;
            let tally = world.tally();
            world.check();
            world.ask_again(&anew).await;
            // Once more, with what was heard and sent since.
            world.check();
            (world, tally)
        });
    }
    let mut broken = Vec::new();
    let mut tally = Tally::new();
    for (world, lived) in ends.join_all().await {
        let mut this = std::mem::take(&mut *world.broken.lock().expect("not poisoned"));
        this.sort();
        this.dedup();
        if !this.is_empty() {
            this.push(world.history());
        }
        broken.append(&mut this);
        for (name, times) in lived {
            *tally.entry(name).or_default() += times;
        }
    }
    (broken, tally)
}

#[test]
fn whatever_goes_wrong_there_is_at_most_one_effect_and_nothing_is_lost() {
    let config = Config { failure_persistence: None, max_shrink_iters: 60, ..Config::default() };
    let cases = config.cases.div_ceil(SLOWER);
    let first = match config.rng_seed {
        RngSeed::Fixed(seed) => seed,
        RngSeed::Random => Uuid::new_v4().as_u64_pair().0,
    };
    let total = Mutex::<Tally>::default();
    let missing = || {
        let total = total.lock().expect("not poisoned");
        total.iter().filter(|(_, times)| **times == 0).map(|(name, _)| *name).collect::<Vec<_>>()
    };
    // What is rare may not have happened in one round.
    for round in 0..ROUNDS {
        let seed = first.wrapping_add(round);
        let config = Config { cases, rng_seed: RngSeed::Fixed(seed), ..config.clone() };
        let outcome = TestRunner::new(config).run(&scenarios(), |scenarios| {
            let runtime = tokio::runtime::Runtime::new().expect("a runtime");
            let (broken, tally) = runtime.block_on(play(scenarios));
            for (name, times) in tally {
                *total.lock().expect("not poisoned").entry(name).or_default() += times;
            }
            if broken.is_empty() { Ok(()) } else { Err(TestCaseError::fail(broken.join("\n"))) }
        });
        if let Err(failure) = outcome {
            panic!("PROPTEST_RNG_SEED={seed}\n{failure}");
        }
        if missing().is_empty() {
            return;
        }
    }
    panic!("nothing is proved, because of these there were none: {:?}", missing());
}
