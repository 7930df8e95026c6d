//! What must hold of every saga when everything is at rest.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use serde_json::Value;

use super::life::text;
use super::shop::{self, undone_by};
use super::{Dice, World};
use crate::support::tool::Seen;

/// What is known of one saga.
struct Case<'a> {
    name: String,
    state: String,
    /// By their ids.
    calls: HashMap<String, Value>,
    /// The word for what became of undoing each.
    compensations: HashMap<String, String>,
    /// What its calls have done, and what has undone them, in this order.
    effects: Vec<&'a Seen>,
}

/// How far the clocks of two gateways may be apart on a machine that is busy.
const CLOCKS: Duration = Duration::from_millis(50);

impl World {
    /// Everything that was promised, of every saga.
    pub(super) async fn check(&self, mut dice: Dice) {
        let dice = &mut dice;
        let (effects, seen) = (self.shop.effects(), self.shop.tool.seen());
        self.check_numbers(&effects);
        assert!(
            self.calls(dice, "state=running").await.is_empty(),
            "something is left running"
        );
        let stuck: HashSet<String> = self
            .sagas(dice, "stuck")
            .await
            .iter()
            .map(|saga| text(saga, "saga_id").to_owned())
            .collect();
        let known: HashSet<String> = self
            .sagas(dice, "")
            .await
            .iter()
            .map(|saga| text(saga, "saga_id").to_owned())
            .collect();
        for n in 0..self.sagas {
            let name = super::name_of(n);
            let is_its = |seen: &&Seen| {
                let sent: Value = serde_json::from_str(&seen.body).expect("JSON");
                sent["in"] == *name || sent["saga"] == *name
            };
            let of_it: Vec<&Seen> = effects.iter().filter(is_its).collect();
            if !known.contains(&name) {
                self.holds(
                    of_it.is_empty(),
                    &name,
                    "it is unknown, and has done something",
                    &of_it,
                );
                self.tally.add("never begun", 1);
                continue;
            }
            let case = self.case(dice, name, of_it).await;
            self.tally.add(
                match case.state.as_str() {
                    "completed" => "completed",
                    "compensated" => "compensated",
                    "stuck" => "left stuck",
                    _ => "other",
                },
                1,
            );
            let is_at_rest = matches!(case.state.as_str(), "completed" | "compensated" | "stuck");
            self.holds(is_at_rest, &case.name, "it is at rest", &case.state);
            let is_shown = stuck.contains(&case.name) == (case.state == "stuck");
            self.holds(is_shown, &case.name, "what is stuck is seen", &stuck);
            self.check_order(&case);
            self.check_reasons(&case, &seen);
            self.check_wholeness(&case);
        }
    }

    async fn case<'a>(&self, dice: &mut Dice, name: String, effects: Vec<&'a Seen>) -> Case<'a> {
        let saga = self
            .surely(dice, &format!("/v1/sagas/{name}"), None)
            .await
            .expect_ok();
        let words = saga.at("/calls").as_array().expect("a list").clone();
        let words = words.iter().map(|call| {
            (
                text(call, "call_id").to_owned(),
                text(call, "compensation").to_owned(),
            )
        });
        let calls = self.calls(dice, &format!("saga_id={name}")).await;
        let calls = calls
            .into_iter()
            .map(|call| (text(&call, "call_id").to_owned(), call))
            .collect();
        let state = saga.at("/state").as_str().expect("a word").to_owned();
        Case {
            name,
            state,
            calls,
            compensations: words.collect(),
            effects,
        }
    }

    /// Nothing is done or undone twice.
    fn check_numbers(&self, effects: &[Seen]) {
        let (mut by_key, mut by_call) = (HashMap::new(), HashMap::new());
        for seen in effects {
            *by_key
                .entry(seen.header("idempotency-key").to_owned())
                .or_insert(0) += 1;
            if let Some(of) = undone_by(seen) {
                self.tally.add("undone", 1);
                *by_call.entry(of).or_insert(0) += 1;
            }
        }
        for (what, counted) in [("key", by_key), ("call that is undone", by_call)] {
            let twice: Vec<_> = counted
                .iter()
                .filter(|(_, effects)| **effects > 1)
                .collect();
            assert!(
                twice.is_empty(),
                "seed {}: two effects of one {what}: {twice:?}",
                self.seed
            );
        }
    }

    /// Nothing is done any more once something is undone, and the newest is undone first.
    fn check_order(&self, case: &Case<'_>) {
        let undoes = |seen: &&&Seen| undone_by(seen).is_some();
        let done_later = case
            .effects
            .iter()
            .skip_while(|seen| !undoes(seen))
            .any(|seen| !undoes(&seen));
        self.holds(
            !done_later,
            &case.name,
            "nothing is done after the first is undone",
            &case.effects,
        );
        let mut undone: Vec<&Seen> = Vec::new();
        for of in case.effects.iter().filter_map(|seen| undone_by(seen)) {
            // What came after the end, and was lost before it could be refused, has no effect.
            let Some(done) = case
                .effects
                .iter()
                .find(|seen| seen.header("x-call-id") == of)
            else {
                continue;
            };
            for newer in &undone {
                let is_newer = !self.is_newer(case, done, newer);
                self.holds(
                    is_newer,
                    &case.name,
                    "the newest is undone first",
                    &case.effects,
                );
            }
            undone.push(done);
        }
    }

    /// Whether one call is surely newer than another: in a session by its token, or because the other had
    /// been executed before it was asked for, by more than the clocks of two gateways differ.
    fn is_newer(&self, case: &Case<'_>, one: &Seen, other: &Seen) -> bool {
        let of = |seen: &Seen| &case.calls[seen.header("x-call-id")];
        let token = |seen: &Seen| of(seen)["fencing"].as_u64().expect("a token");
        if of(one)["session_id"] == of(other)["session_id"] {
            return token(one) > token(other);
        }
        let asked = self
            .asked
            .lock()
            .expect("not poisoned")
            .get(text(of(one), "key"))
            .copied();
        asked.is_some_and(|asked| other.until.is_some_and(|until| until + CLOCKS < asked))
    }

    /// What surely never ran is not undone; what is complete neither.
    fn check_reasons(&self, case: &Case<'_>, seen: &[Seen]) {
        for (id, call) in &case.calls {
            if call["key_source"] == "compensation" {
                continue;
            }
            let tool = text(call, "tool");
            let is_sent = seen
                .iter()
                .any(|seen| undone_by(seen).is_some_and(|of| of == *id));
            let was_done = case
                .effects
                .iter()
                .any(|seen| seen.header("x-call-id") == id);
            let word = case.compensations[id].as_str();
            if is_sent {
                self.holds(
                    case.state != "completed",
                    &case.name,
                    "what is complete is not undone",
                    call,
                );
                self.holds(
                    was_done || shop::undoes_unknown(tool),
                    &case.name,
                    "it had run",
                    call,
                );
                self.tally
                    .add("undone without knowing", usize::from(!was_done));
            }
            if word == "empty" {
                self.tally.add("empty", 1);
                self.holds(!is_sent && !was_done, &case.name, "it never ran", call);
            }
        }
    }

    /// What is undone is undone as a whole.
    fn check_wholeness(&self, case: &Case<'_>) {
        let undone: HashSet<String> = case
            .effects
            .iter()
            .filter_map(|seen| undone_by(seen))
            .collect();
        for seen in case.effects.iter().filter(|seen| undone_by(seen).is_none()) {
            let (tool, id) = (shop::path(seen), seen.header("x-call-id"));
            if shop::is_needless(tool) || case.state != "compensated" {
                continue;
            }
            let call = &case.calls[id];
            let is_skipped = case.compensations[id] == "skipped";
            self.holds(
                is_skipped || undone.contains(id),
                &case.name,
                "its effect is undone",
                call,
            );
            self.holds(
                is_skipped || call["state"] == "compensated",
                &case.name,
                "and that is known",
                call,
            );
        }
        for call in case.calls.values().filter(|_| case.state != "stuck") {
            let is_settled = !matches!(
                text(call, "state"),
                "running" | "unknown" | "compensating" | "stuck"
            );
            self.holds(is_settled, &case.name, "its calls are at rest", call);
        }
    }

    /// Who asks again for what is undone is told so, and nothing is sent; nor for anything new.
    pub(super) async fn ask_again(&self, mut dice: Dice) {
        let before = self.shop.requests();
        for call in self.calls(&mut dice, "state=compensated").await {
            let body = serde_json::json!({ "args": call["args"], "session_id": call["session_id"],
                "saga_id": call["saga_id"], "idempotency_key": call["key"] });
            let path = format!("/v1/tools/{}/calls", text(&call, "tool"));
            let answer = self.surely(&mut dice, &path, Some(&body)).await;
            let is_told = match answer.status {
                200 => answer.at("/compensated") == true,
                409 => answer.problem() == "wrong-state",
                // Its result could not be read.
                _ => answer.problem() == "result-unavailable",
            };
            self.holds(
                is_told,
                text(&call, "saga_id"),
                "a duplicate is told that it is undone",
                &answer,
            );
            self.tally
                .add("told that it is undone", usize::from(answer.status == 200));
        }
        for saga in self.sagas(&mut dice, "").await {
            let id = text(&saga, "saga_id");
            let body = serde_json::json!({ "args": { "in": id }, "session_id": "new", "saga_id": id,
                "idempotency_key": format!("{id}-new") });
            let answer = self
                .surely(&mut dice, "/v1/tools/order/calls", Some(&body))
                .await;
            self.holds(
                answer.problem() == "wrong-state",
                id,
                "it takes no calls any more",
                &answer,
            );
        }
        assert_eq!(
            self.shop.requests(),
            before,
            "seed {}: something was sent",
            self.seed
        );
    }

    fn holds(&self, holds: bool, saga: &str, what: &str, shown: &impl std::fmt::Debug) {
        assert!(
            holds,
            "seed {}, saga {saga}: not so: {what}: {shown:#?}",
            self.seed
        );
    }
}
