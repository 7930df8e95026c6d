//! What callers do: they repeat calls, mix up keys, hang up, and carry out plans or abandon them.

use std::sync::Arc;

use serde_json::{Value, json};

use super::dice::Dice;
use super::events::Begun;
use super::gateway::{Answer, Gateways};
use super::plan::{Kind, Plan};
use super::world::{Asked, World};
use crate::core::key::Lookup;

/// The tools of calls with a saga.
const IN_SAGAS: [&str; 5] = ["order", "pay", "ship", "send", "send"];
/// Problems that are not a word about the call itself.
const OF_SAGAS: [&str; 3] = ["wrong-state", "key-reused", "invalid-request"];

pub(super) struct Agent {
    pub(super) number: u64,
    pub(super) gateways: Arc<Gateways>,
    pub(super) dice: Dice,
}

impl Agent {
    pub(super) fn of(number: u64, gateways: &Arc<Gateways>) -> Self {
        Self {
            number,
            gateways: gateways.clone(),
            dice: gateways.world.dice(&format!("agent {number}")),
        }
    }

    pub(super) async fn rest(&mut self, at_most_ms: u64) {
        let rest_ms = self.dice.below(at_most_ms);
        let turns = &self.gateways.world.turns;
        turns
            .wait(format!("agent {} rests", self.number), rest_ms)
            .await;
    }

    /// Asks for calls that others ask for, too.
    pub(super) async fn call_again_and_again(mut self) {
        let plan = self.gateways.world.plan.clone();
        for _ in 0..plan.steps {
            self.rest(700).await;
            let asked = self.any_call(&plan);
            self.call(&asked).await;
        }
    }

    /// One of the calls without a saga.
    pub(super) fn any_call(&mut self, plan: &Plan) -> Asked {
        let (tool, key) = (
            self.dice.pick(&plan.tools_alone),
            self.dice.below(plan.keys),
        );
        Asked {
            tool,
            key: format!("{tool}-{key}"),
            session: format!("session-{}", key % 2),
            saga: String::new(),
        }
    }

    /// Carries out a plan of a few calls, which it completes, aborts or abandons.
    pub(super) async fn carry_out(mut self) {
        let saga = format!("saga-{}", self.number);
        let calls = self.dice.between(1, 3);
        let end = self.dice.pick(&["complete", "abort", "abort", "abort", ""]);
        let ends_early = self.dice.chance(30);
        let mut made = Vec::new();
        for n in 0..calls {
            self.rest(300).await;
            let asked = Asked {
                tool: self.dice.pick(&IN_SAGAS),
                key: format!("{saga}-{n}"),
                session: saga.clone(),
                saga: saga.clone(),
            };
            made.push(asked.clone());
            if ends_early && n + 1 == calls {
                self.end(&saga, end).await;
            }
            self.call(&asked).await;
        }
        self.end(&saga, end).await;
        // It has not heard of the end of its plan.
        while self.dice.chance(40) {
            self.rest(600).await;
            let again = self.dice.below(made.len() as u64) as usize;
            self.call(&made[again].clone()).await;
        }
    }

    async fn end(&mut self, saga: &str, how: &str) {
        if how.is_empty() {
            return;
        }
        for _ in 0..3 {
            let path = format!("/v1/sagas/{saga}/{how}");
            let body = json!({ "reason": "so it is" });
            let answer = self.ask(&path, &body, None).await;
            let world = &self.gateways.world;
            let heard = answer.as_ref().map_or(0, |answer| answer.status);
            world.say(format!("agent {}: {how} {saga}: {heard}", self.number));
            if answer.is_some_and(|answer| answer.status != 503) {
                return;
            }
            self.rest(200).await;
        }
    }

    /// Asks for a call, mostly until there is an answer that says what to do.
    async fn call(&mut self, asked: &Asked) {
        for _ in 0..4 {
            let heard = self.call_once(asked).await;
            let is_done = heard.is_some_and(|answer| answer.status == 200);
            if is_done || self.dice.chance(30) {
                return;
            }
            self.rest(500).await;
        }
    }

    /// Asks for a call, and holds what it hears against the truth.
    pub(super) async fn call_once(&mut self, asked: &Asked) -> Option<Answer> {
        let world = self.gateways.world.clone();
        world
            .written()
            .asked
            .entry(asked.key.clone())
            .or_insert(asked.clone());
        // Now and then an agent mixes up its keys.
        let is_mixed_up = !world.is_calm() && self.dice.chance(4);
        let mut body = json!({
            "args": { "key": asked.key, "other": is_mixed_up },
            "session_id": asked.session,
            "idempotency_key": asked.key,
        });
        if !asked.saga.is_empty() {
            body["saga_id"] = asked.saga.clone().into();
        }
        let path = format!("/v1/tools/{}/calls", asked.tool);
        let wait_s = self.dice.pick(&[None, Some(0), Some(1), Some(3)]);
        let asked_at = world.now();
        let is_forgotten = Kind::named(asked.tool).is_forgotten();
        let is_noted = !is_mixed_up && !is_forgotten;
        let begun = is_noted.then(|| world.events().begin("ask", &asked.key));
        let answer = self.ask(&path, &body, wait_s).await;
        let Some(answer) = answer else {
            world.say(format!("agent {}: {} unheard", self.number, asked.key));
            return None;
        };
        let answered = match answer.status {
            200 => format!("{} {}", answer.body["result"], answer.body["call_id"]),
            _ => answer.problem().to_owned(),
        };
        world.say(format!("agent {}: {} {answered}", self.number, asked.key));
        world.count("answers");
        if is_mixed_up {
            return Some(answer);
        }
        let call = answer.body["call_id"].as_str().unwrap_or_default();
        if let Some(begun) = begun {
            note(&world, &begun, &answer);
        }
        if answer.status == 200 {
            world.count("successes told");
            let made = answer.body["result"]["made"].as_u64();
            world.judge_answer(&asked.key, call, made, is_forgotten);
        } else if answer.problem() == "result-unavailable" {
            world.judge_answer(&asked.key, call, None, is_forgotten);
        } else if is_forgotten {
            // An earlier intent of its key may have been executed.
        } else if answer.body["effect"] == "none" && !OF_SAGAS.contains(&answer.problem()) {
            let key = Lookup::new("default", asked.tool, &asked.key).for_tool();
            world.judge_none(&key, &asked.key, asked_at);
        }
        if answer.problem() == "outcome-unknown" {
            world.count("unknown told");
        }
        Some(answer)
    }

    async fn ask(&mut self, path: &str, body: &Value, wait_s: Option<u64>) -> Option<Answer> {
        let slot = self.any_slot();
        let asking = self.gateways.ask(self.number, slot, path, body, wait_s);
        asking.await
    }

    /// The place of a gateway.
    pub(super) fn any_slot(&mut self) -> usize {
        let gateways = self.gateways.world.plan.gateways as u64;
        self.dice.below(gateways) as usize
    }
}

/// The answer, as the history has it.
fn note(world: &World, begun: &Begun, answer: &Answer) {
    let mut events = world.events();
    // The gateway cannot reach its store to write the outcome, or to read it: another gateway may tell it already.
    let detail = answer.body["detail"].as_str().unwrap_or_default();
    let is_unwritten = detail.contains("does not take the outcome");
    let is_none = answer.body["effect"] == "none" && !OF_SAGAS.contains(&answer.problem());
    match (answer.status, answer.body["result"]["made"].as_u64()) {
        (200, Some(made)) => events.end(begun, "ok", &made.to_string().into()),
        (200, None) => events.end(begun, "ok", &Value::Null),
        _ if answer.problem() == "result-unavailable" => events.end(begun, "ok", &Value::Null),
        _ if is_none => events.end(begun, "fail", &Value::Null),
        _ if answer.problem() == "outcome-unknown" && !is_unwritten => {
            events.also(begun, "unsure");
        }
        _ => {}
    }
}

/// Whether only an operator settles unknown calls of a tool.
pub(super) fn is_held(tool: &str) -> bool {
    let kind = Kind::named(tool);
    !kind.is_asked() && !kind.deduplicates()
}
