//! One scenario's tool, store, gateways and agents, and how they live until everything is quiet.

use std::collections::HashSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use jiff::Timestamp;
use oncegate::core::key::Lookup;
use oncegate::core::record::Content;
use oncegate::core::record::{Entry, Record, State};
use oncegate::gateway;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

use super::checks::attempt_of;
use super::scenario::{
    Ask, Bounds, LATER, Scenario, Step, args_of, lookup_of, name_of, session_of, usual,
};
use crate::support::faulty::FaultStore;
use crate::support::gateway::Bare;
use crate::support::memory::Memory;
use crate::support::{Act, Answer, Tool};

/// Longest wait of a caller that does not hang up, on a busy machine.
pub(super) const ANSWERED: Duration = Duration::from_secs(20);

/// What an agent asked, and what it heard; nothing if it hung up.
#[derive(Clone)]
pub(super) struct Heard {
    pub(super) ask: Ask,
    pub(super) asked_at: Instant,
    pub(super) heard_at: Instant,
    pub(super) answer: Option<Answer>,
}

/// One scenario's tool, store and gateways.
pub(super) struct World {
    pub(super) bounds: Bounds,
    pub(super) tool: Tool,
    pub(super) memory: Memory,
    pub(super) store: FaultStore,
    pub(super) gateways: [Bare; 2],
    pub(super) client: reqwest::Client,
    pub(super) heard: Mutex<Vec<Heard>>,
    /// Keys of which writes were lost: of these the store cannot say the truth.
    pub(super) lost: Mutex<HashSet<Lookup>>,
    /// Those that may run once more, because the loss was accepted.
    pub(super) reopened: Mutex<HashSet<Lookup>>,
    pub(super) broken: Mutex<Vec<String>>,
}

impl World {
    pub(super) async fn of(scenario: &Scenario, client: reqwest::Client) -> Arc<Self> {
        let tool = Tool::start().await;
        tool.always(Act::Numbered);
        for act in &scenario.acts {
            tool.then(act.clone());
        }
        let bounds = scenario.bounds;
        let memory = if scenario.tells {
            Memory::that_tells()
        } else {
            Memory::default()
        };
        let store = FaultStore::with_plan(memory.clone(), scenario.plan.clone());
        let policy = bounds.policy();
        let one = || Bare::over(store.clone(), gateway::new_instance(), &tool, &policy);
        let gateways = [one().await, one().await];
        let (heard, lost, reopened, broken) = Default::default();
        Arc::new(Self {
            bounds,
            tool,
            memory,
            store,
            gateways,
            client,
            heard,
            lost,
            reopened,
            broken,
        })
    }

    pub(super) async fn live(self: &Arc<Self>, steps: &[Step]) {
        let mut tasks = JoinSet::new();
        for step in steps {
            match step {
                Step::Ask(ask) => self.begin(&mut tasks, *ask),
                Step::AskBoth(ask) => {
                    self.begin(&mut tasks, *ask);
                    self.begin(
                        &mut tasks,
                        Ask {
                            at: 1 - ask.at,
                            ..*ask
                        },
                    );
                }
                Step::Rush { session } => {
                    let keys = (0..self.bounds.keys())
                        .filter(|key| session_of(*key) == format!("S{session}"));
                    for (n, key) in keys.enumerate() {
                        self.begin(
                            &mut tasks,
                            Ask {
                                at: n % 2,
                                ..usual(key)
                            },
                        );
                    }
                }
                Step::EndLeases => self.end_leases(),
                Step::Recover { at } => {
                    let (world, at) = (self.clone(), *at);
                    tasks.spawn(async move {
                        // The store may fail it.
                        drop(
                            world.gateways[at]
                                .gateway
                                .lost
                                .recover_all(world.later())
                                .await,
                        );
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
                Step::Lose { during, .. } if self.bounds.any() => self.begin(&mut tasks, *during),
                Step::Lose { during, writes } => {
                    self.begin(&mut tasks, *during);
                    sleep(Duration::from_millis(10)).await;
                    self.lost
                        .lock()
                        .expect("not poisoned")
                        .extend(self.memory.lose(*writes));
                }
            }
        }
        self.store.heal();
        settle(&mut tasks).await;
        let [one, other] = &self.gateways;
        tokio::join!(self.run_one_more(one, 0), self.run_one_more(other, 1));
    }

    fn begin(self: &Arc<Self>, tasks: &mut JoinSet<()>, ask: Ask) {
        let world = self.clone();
        let ask = Ask {
            key: ask.key % self.bounds.keys(),
            ..ask
        };
        tasks.spawn(async move { drop(world.ask(&world.gateways[ask.at], ask).await) });
    }

    pub(super) fn has_lost(&self, lookup: Lookup) -> bool {
        self.lost.lock().expect("not poisoned").contains(&lookup)
    }

    pub(super) fn later(&self) -> Timestamp {
        self.gateways[0].gateway.now() + LATER
    }

    pub(super) async fn ask(&self, gateway: &Bare, ask: Ask) -> Option<Answer> {
        let asked_at = Instant::now();
        let body = format!(
            "{{\"args\":{},\"session_id\":\"{}\",\"trace_id\":\"{:032x}\"}}",
            args_of(&ask),
            session_of(ask.key),
            ask.key + 1,
        );
        let request = self.client.post(&gateway.url).body(body);
        let request = request.header("idempotency-key", name_of(ask.key));
        let request = match ask.wait {
            Some(wait) => request.header("prefer", format!("wait={wait}")),
            None => request,
        };
        let answer = async { Answer::to(request).await };
        let patience = ask
            .hangs_up_after_ms
            .map_or(Duration::from_secs(30), Duration::from_millis);
        let answer = timeout(patience, answer).await.ok();
        let heard_at = Instant::now();
        if ask.hangs_up_after_ms.is_none() && (asked_at.elapsed() > ANSWERED || answer.is_none()) {
            self.breaks(format!(
                "L3: k{} waited for {:?}",
                ask.key,
                asked_at.elapsed()
            ));
        }
        if let Some(answer) = answer.as_ref().filter(|answer| answer.status == 200) {
            self.is_durable(ask.key, answer);
        }
        self.heard.lock().expect("not poisoned").push(Heard {
            ask,
            asked_at,
            heard_at,
            answer: answer.clone(),
        });
        answer
    }

    /// What is told must have been written by then.
    pub(super) fn is_durable(&self, key: usize, answer: &Answer) {
        let is_it = |record: &Record| matches!(&record.state, State::Succeeded(Content::Stored(json)) if *json == answer.result());
        if !self.memory.written(lookup_of(key)).iter().any(is_it) {
            self.breaks(format!(
                "S8: k{key} heard {} before it was written",
                answer.text
            ));
        }
    }

    /// From now on keys may run again of which writes were lost.
    pub(super) fn accept_loss(&self) {
        let lost = self.lost.lock().expect("not poisoned").clone();
        self.reopened.lock().expect("not poisoned").extend(lost);
        self.memory.accept_loss();
    }

    pub(super) fn breaks(&self, what: String) {
        self.broken.lock().expect("not poisoned").push(what);
    }

    /// What the ledger says, for the message of a failure.
    pub(super) fn history(&self) -> String {
        let mut lines: Vec<(Timestamp, String)> = Vec::new();
        for (record, entries) in self.memory.records() {
            for Entry {
                at,
                event,
                attempt,
                detail,
                by,
                ..
            } in entries
            {
                let attempt = attempt
                    .map(|attempt| attempt.to_string())
                    .unwrap_or_default();
                let key = &record.intent.key;
                lines.push((
                    at,
                    format!("{at} {key} {event} {attempt:.16} by {by:.12}: {detail}"),
                ));
            }
        }
        lines.sort();
        for seen in self.tool.seen() {
            let attempt = attempt_of(&seen);
            lines.push((
                Timestamp::MAX,
                format!("tool: {attempt} executed: {} {}", seen.executed, seen.body),
            ));
        }
        lines
            .into_iter()
            .map(|(_, line)| format!("  {line}\n"))
            .collect()
    }

    /// Everything heals and ends, and is recovered; a gateway starts anew.
    pub(super) async fn fall_quiet(&self) -> Bare {
        self.store.is_quiet().await;
        for Bare { gateway, .. } in &self.gateways {
            let began = Instant::now();
            gateway.shut_down().await;
            // What hangs is given up after ten.
            if began.elapsed() > Duration::from_secs(8) {
                let took = began.elapsed();
                self.breaks(format!(
                    "L3: a call did not end for {took:?} although all was well"
                ));
            }
        }
        while self.tool.is_undecided() {
            sleep(Duration::from_millis(5)).await;
        }
        let acknowledged = self.store.acknowledged();
        for (record, _) in self.memory.records() {
            let is_ours = acknowledged.contains_key(&record.attempt.id);
            // What was never confirmed is looked for, too, and nothing here ends before it is found.
            let is_ended = is_ours || self.bounds.any();
            if record.state == State::Running && is_ended && !self.has_lost(record.intent.lookup) {
                self.breaks(format!(
                    "L5: {} was left behind as running",
                    record.intent.key
                ));
            }
        }
        self.check_locks();
        let [one, other] = &self.gateways;
        let recovered = tokio::join!(
            one.gateway.lost.recover_all(self.later()),
            other.gateway.lost.recover_all(self.later())
        );
        recovered.0.and(recovered.1).expect("recovered");
        if self.bounds.any() {
            self.memory.set_ahead(LATER);
        }
        let policy = self.bounds.policy();
        let anew = Bare::over(
            self.store.clone(),
            gateway::new_instance(),
            &self.tool,
            &policy,
        )
        .await;
        if anew
            .gateway
            .lost
            .recover_all(self.later())
            .await
            .expect("recovered")
            > 0
        {
            self.breaks("S20: the second recovery found something left over".into());
        }
        anew
    }
}

pub(super) async fn settle(tasks: &mut JoinSet<()>) {
    while let Some(task) = tasks.join_next().await {
        task.expect("no panic");
    }
}
