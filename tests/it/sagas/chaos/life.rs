//! How the agents of a world live, and what operators do when everything is well again.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use oncegate::gateway::local_time;
use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use super::shop::{self, Shop};
use super::{Dice, World};
use crate::support::Answer;

/// How long everything may take to come to rest: a lease is ten seconds longer than a deadline.
const PATIENCE: Duration = Duration::from_secs(90);

impl World {
    /// One request to any of the gateways; `None`: it was cut off.
    pub(super) async fn ask(
        &self,
        dice: &mut Dice,
        path: &str,
        body: Option<&Value>,
    ) -> Option<Answer> {
        let port = self.ports[dice.below(self.ports.len() as u64) as usize];
        let url = format!("http://127.0.0.1:{port}{path}");
        let request = match body {
            Some(body) => {
                let wait = ["wait=0", "wait=1", "wait=3"][dice.below(3) as usize];
                self.client
                    .post(url)
                    .header("prefer", wait)
                    .body(body.to_string())
            }
            None => self.client.get(url),
        };
        Answer::within(Duration::from_secs(8), request).await
    }

    /// The same until there is an answer of a store that is there.
    pub(super) async fn surely(&self, dice: &mut Dice, path: &str, body: Option<&Value>) -> Answer {
        let patience = Instant::now() + PATIENCE;
        loop {
            match self.ask(dice, path, body).await {
                Some(answer) if answer.status != 503 => return answer,
                answer if Instant::now() < patience => drop(answer),
                answer => {
                    let ready = self.ask(dice, "/readyz", None).await;
                    panic!(
                        "not in time: seed {}: {path}: {answer:?}\n{ready:?}",
                        self.seed
                    );
                }
            }
            sleep(Duration::from_millis(100)).await;
        }
    }

    /// An agent with one plan, which it carries out, or not.
    pub(super) async fn carry_out(self: Arc<Self>, n: usize, mut dice: Dice) {
        let saga = super::name_of(n);
        let steps: Vec<(&str, Value)> = (0..2 + dice.below(7))
            .map(|step| {
                (
                    shop::any(&mut dice),
                    self.call(&saga, &format!("{saga}-{step}"), &mut dice),
                )
            })
            .collect();
        let end = [
            "abort", "abort", "abort", "abort", "abort", "complete", "complete", "nothing",
        ];
        let end = end[dice.below(end.len() as u64) as usize];
        let ends_at = 1 + dice
            .below(steps.len() as u64)
            .max(dice.below(steps.len() as u64)) as usize;
        let mut beside = JoinSet::new();
        for (at, (tool, body)) in steps.iter().enumerate() {
            if at == ends_at {
                self.end(&mut beside, &saga, end, &mut dice);
                for _ in 0..dice.below(4) {
                    let old = &steps[dice.below(at as u64 + 1) as usize];
                    let key = format!("{saga}-more-{}", dice.below(1_000_000));
                    let new = (shop::any(&mut dice), self.call(&saga, &key, &mut dice));
                    let ask = if dice.below(2) == 0 { old.clone() } else { new };
                    beside.spawn(self.clone().call_at(ask.0, ask.1, dice.next(), 150));
                }
            }
            // It goes on for a while, as if it had not heard of the end.
            if at > ends_at + 1 {
                break;
            }
            let call = self.clone().call_at(tool, body.clone(), dice.next(), 0);
            if dice.below(4) == 0 {
                drop(beside.spawn(call))
            } else {
                call.await
            }
        }
        if ends_at == steps.len() {
            self.end(&mut beside, &saga, end, &mut dice);
        }
        beside.join_all().await;
    }

    fn end(
        self: &Arc<Self>,
        beside: &mut JoinSet<()>,
        saga: &str,
        how: &'static str,
        dice: &mut Dice,
    ) {
        if how == "nothing" {
            return;
        }
        let (world, path, mut dice) = (
            self.clone(),
            format!("/v1/sagas/{saga}/{how}"),
            Dice::of(dice.next(), 0),
        );
        beside.spawn(async move {
            sleep(Duration::from_millis(dice.below(300))).await;
            // It may be at its end already, or may never have begun.
            world
                .surely(&mut dice, &path, Some(&json!({ "reason": "so it is" })))
                .await;
        });
    }

    fn call(&self, saga: &str, key: &str, dice: &mut Dice) -> Value {
        // A few sessions belong to many sagas.
        let session = match dice.below(5) {
            0 => format!("shared-{}", dice.below(20)),
            n => format!("{saga}-{}", n % 2),
        };
        json!({ "args": { "in": saga, "step": key }, "session_id": session, "saga_id": saga,
            "idempotency_key": key })
    }

    /// A call, a few times if it is cut off or not done, a moment from now.
    async fn call_at(self: Arc<Self>, tool: &'static str, body: Value, seed: u64, within_ms: u64) {
        let mut dice = Dice::of(seed, 1);
        sleep(Duration::from_millis(dice.below(within_ms + 1))).await;
        let key = text(&body, "idempotency_key").to_owned();
        self.asked
            .lock()
            .expect("not poisoned")
            .entry(key)
            .or_insert_with(Instant::now);
        let mut answers = 0;
        for _ in 0..100 {
            let answer = self
                .ask(&mut dice, &format!("/v1/tools/{tool}/calls"), Some(&body))
                .await;
            answers += usize::from(answer.is_some());
            match answer
                .as_ref()
                .map(|answer| (answer.status, answer.problem()))
            {
                Some((200 | 202, _)) => return,
                Some((_, problem)) if problem == "wrong-state" => {
                    self.tally.add("refused because of the saga", 1);
                    return;
                }
                Some(_) if answers == 3 || dice.below(2) == 0 => return,
                _ => sleep(Duration::from_millis(10 + dice.below(60))).await,
            }
        }
    }

    /// Everything of a kind, page by page.
    async fn all(&self, dice: &mut Dice, path: &str, member: &str) -> Vec<Value> {
        let (mut found, mut cursor) = (Vec::new(), String::new());
        loop {
            let page = self
                .surely(dice, &format!("{path}limit=500{cursor}"), None)
                .await
                .expect_ok();
            found.extend(
                page.at(&format!("/{member}"))
                    .as_array()
                    .expect("a list")
                    .clone(),
            );
            match page.at("/next_cursor").as_str() {
                Some(next) => cursor = format!("&cursor={next}"),
                None => return found,
            }
        }
    }

    pub(super) async fn sagas(&self, dice: &mut Dice, state: &str) -> Vec<Value> {
        let state = if state.is_empty() {
            String::new()
        } else {
            format!("state={state}&")
        };
        self.all(dice, &format!("/v1/sagas?{state}"), "sagas").await
    }

    pub(super) async fn calls(&self, dice: &mut Dice, filter: &str) -> Vec<Value> {
        self.all(dice, &format!("/v1/calls?{filter}&"), "calls")
            .await
    }

    /// Operators do what they have to, until everything is at rest.
    pub(super) async fn come_to_rest(&self, mut dice: Dice) {
        let patience = Instant::now() + PATIENCE;
        let mut tries = HashMap::<String, usize>::new();
        loop {
            let open = self.settle_calls(&mut dice).await;
            let stirring = self.settle_sagas(&mut dice, &mut tries).await;
            if open.is_empty() && stirring.is_empty() && !self.shop.tool.is_undecided() {
                return;
            }
            let seed = self.seed;
            assert!(
                Instant::now() < patience,
                "not in time: seed {seed}: rest: {open:#?}\n{stirring:#?}"
            );
            sleep(Duration::from_millis(500)).await;
        }
    }

    /// An operator looks into the tool's own books. Answers with what is still open.
    async fn settle_calls(&self, dice: &mut Dice) -> Vec<Value> {
        let executed: HashSet<String> = self
            .shop
            .effects()
            .iter()
            .map(|seen| seen.header("x-call-id").to_owned())
            .collect();
        let undoes_itself = |state: &str| matches!(state, "open" | "compensating" | "stuck");
        let sagas = self.sagas(dice, "").await.into_iter();
        let undone: HashSet<String> = sagas
            .filter(|saga| undoes_itself(text(saga, "state")))
            .map(|saga| text(&saga, "saga_id").to_owned())
            .collect();
        let mut open = self.calls(dice, "state=running").await;
        for call in self.calls(dice, "state=unknown").await {
            let id = text(&call, "call_id").to_owned();
            let (tool, saga) = (text(&call, "tool"), text(&call, "saga_id"));
            // What is given up waits for an operator, too: it was lost when its saga had been undone already.
            let is_given_up = call["next_check_at"].is_null();
            if (shop::is_held(tool) || is_given_up)
                && !(shop::undoes_unknown(tool) && undone.contains(saga))
            {
                let said = if executed.contains(&id) {
                    json!({ "as": "succeeded", "result": { "made": 7 }, "reason": "it is in the books" })
                } else {
                    json!({ "as": "failed", "reason": "it is not in the books" })
                };
                // Refused while its request may still reach the tool.
                let told = self
                    .surely(dice, &format!("/v1/calls/{id}/resolve"), Some(&said))
                    .await;
                self.tally
                    .add("settled by an operator", usize::from(told.status == 200));
            }
            open.push(call);
        }
        open
    }

    /// Answers with the sagas that will still go on.
    async fn settle_sagas(
        &self,
        dice: &mut Dice,
        tries: &mut HashMap<String, usize>,
    ) -> Vec<Value> {
        let mut stirring = Vec::new();
        for saga in self.sagas(dice, "").await {
            let id = text(&saga, "saga_id").to_owned();
            let rests = saga["next_at"].is_null();
            match text(&saga, "state") {
                "completed" | "compensated" if rests => {}
                // The gateway that released its calls was killed. Another goes on in a minute.
                "completed" | "compensated"
                    if self.tally.has("killed") && is_far(&saga["next_at"]) => {}
                "stuck" if rests => {
                    let tried = tries.entry(id.clone()).or_default();
                    if shop::is_hopeless(super::number_of(&id)) {
                        continue;
                    }
                    let act = if *tried <= super::number_of(&id) % 3 {
                        "retry"
                    } else {
                        "skip"
                    };
                    *tried += 1;
                    let why = json!({ "reason": "an operator has looked at it" });
                    let told = self
                        .surely(dice, &format!("/v1/sagas/{id}/{act}"), Some(&why))
                        .await;
                    self.tally
                        .add(if act == "retry" { "retried" } else { "skipped" }, 1);
                    // It may have gone on by itself meanwhile.
                    assert!(matches!(told.status, 200 | 409), "{}", told.text);
                    stirring.push(saga);
                }
                _ => stirring.push(saga),
            }
        }
        stirring
    }
}

/// Whether this time is more than ten seconds from now.
fn is_far(time: &Value) -> bool {
    let time: Timestamp = time
        .as_str()
        .and_then(|time| time.parse().ok())
        .expect("a time");
    time.duration_since(local_time()).as_secs() > 10
}

pub(super) fn text<'a>(value: &'a Value, member: &str) -> &'a str {
    value[member]
        .as_str()
        .unwrap_or_else(|| panic!("no {member}: {value}"))
}

impl Shop {
    /// Whether the gateways have sent everything that they will send.
    pub(super) fn requests(&self) -> usize {
        self.tool.requests()
    }
}
