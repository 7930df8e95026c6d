//! What must hold of a world, whatever went wrong in it.

use std::collections::HashMap;

use oncegate::core::record::Content;
use oncegate::core::record::{Record, State};
use tokio::time::Instant;

use super::scenario::{Ask, args_of, fresh_key, lookup_of, usual};
use super::sessions::ONE_MORE;
use super::world::{Heard, World};
use crate::support::Answer;
use crate::support::gateway::Bare;
use crate::support::tool::Seen;

/// Problems of a tool that say that nothing was executed.
pub(super) const WITHOUT_EFFECT: [&str; 3] =
    ["tool-rejected", "tool-unreachable", "tool-unavailable"];

impl World {
    /// What holds as soon as everything is quiet, and for ever after.
    pub(super) fn check(&self) {
        let seen = self.tool.seen();
        let heard = self.heard.lock().expect("not poisoned").clone();
        let reopened = self.reopened.lock().expect("not poisoned").clone();
        self.check_attempts(&seen);
        self.check_tokens(&seen);
        self.check_sessions(&seen);
        for (record, _) in self.memory.records() {
            if record.state == State::Running {
                self.breaks(format!("S6: {} is still running", record.intent.key));
            }
        }
        for key in 0..fresh_key(0, ONE_MORE) {
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
            by_attempt
                .entry(attempt_of(seen).to_owned())
                .or_default()
                .push(seen);
        }
        let acknowledged = self.store.acknowledged();
        let acknowledged: HashMap<String, Instant> = acknowledged
            .into_iter()
            .map(|(attempt, at)| (short(&attempt.to_string()), at))
            .collect();
        for (attempt, requests) in &by_attempt {
            if requests.len() > 1 {
                self.breaks(format!(
                    "S1: attempt {attempt} was sent {} times",
                    requests.len()
                ));
            }
            let arrived = requests.iter().filter_map(|request| request.at).min();
            let durable = acknowledged.get(attempt);
            if durable.is_none_or(|durable| arrived.is_none_or(|arrived| arrived < *durable)) {
                self.breaks(format!(
                    "S2, S16: attempt {attempt} was sent without an acknowledged claim"
                ));
            }
        }
        for (record, entries) in self.memory.records() {
            for entry in entries {
                let (Some(attempt), Some(outcome)) = (entry.attempt, entry.outcome) else {
                    continue;
                };
                let requests = by_attempt.get(&short(&attempt.to_string()));
                let effects = requests
                    .into_iter()
                    .flatten()
                    .filter(|request| request.executed)
                    .count();
                let is_true = match outcome.as_ref() {
                    "executed" => effects == 1,
                    "not_executed" => effects == 0,
                    _ => true,
                };
                if !is_true {
                    let key = &record.intent.key;
                    self.breaks(format!(
                        "S3: {key}: the ledger says {outcome} of {effects} effects"
                    ));
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
            if before.body != after.body || before.header("x-call-id") != after.header("x-call-id")
            {
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
        let refusals = self.bounds.refusals();
        for Heard {
            ask,
            asked_at,
            answer,
            ..
        } in heard
        {
            let Some(answer) = answer else { continue };
            if !at_tool.is_empty() && at_tool.iter().all(|(_, seen)| seen.body != args_of(ask)) {
                // The key stands for other arguments: nothing may be learnt of them but which call it is.
                let is_named = answer.problem() == "key-reused";
                let is_silent =
                    answer.status != 200 && (is_named || answer.at("/call_id").is_null());
                let is_fit = matches!(
                    answer.problem().as_str(),
                    "key-reused" | "store-unavailable" | "call-in-progress" | "outcome-unknown"
                ) || refusals.contains(&answer.problem().as_str());
                if !is_silent || !is_fit {
                    self.breaks(format!(
                        "S9: k{key} with other arguments heard {}",
                        answer.text
                    ));
                }
            }
            match answer.problem().as_str() {
                "" if answer.status == 200 => {
                    let is_true = matches!(effects.as_slice(), [(index, seen)]
                        if answer.result() == format!("{{ \"effect\": {index}.0 }}") && seen.body == args_of(ask));
                    if !is_true {
                        let text = &answer.text;
                        self.breaks(format!(
                            "S4: k{key} heard {text} of the effects {effects:?}"
                        ));
                    }
                    let this = (answer.result(), answer.at("/call_id"));
                    if *told.get_or_insert_with(|| this.clone()) != this {
                        self.breaks(format!("S7: k{key} heard {told:?} and {this:?}"));
                    }
                }
                "result-unavailable" if effects.len() != 1 => {
                    self.breaks(format!(
                        "S4: k{key} heard that it was done, of {} effects",
                        effects.len()
                    ));
                }
                problem if WITHOUT_EFFECT.contains(&problem) || refusals.contains(&problem) => {
                    if answer.at("/effect") != "none" {
                        self.breaks(format!("S4: k{key} heard {}", answer.text));
                    }
                    // It may be run again later, but nothing was executed that had been sent before
                    // the agent asked.
                    let early = effects
                        .iter()
                        .find(|(_, seen)| seen.at.is_some_and(|at| at < *asked_at));
                    if let Some(effect) = early {
                        let text = &answer.text;
                        self.breaks(format!(
                            "S4: k{key} heard {text} after the effect {effect:?}"
                        ));
                    }
                }
                "result-unavailable" | "outcome-unknown" | "call-in-progress"
                | "store-unavailable" | "key-reused" => {}
                _ => self.breaks(format!("k{key} heard {}", answer.text)),
            }
        }
        self.check_none_is_none(key, &effects, heard);
    }

    /// If every agent that had asked for a key heard that nothing was executed, nothing ever was.
    fn check_none_is_none(&self, key: usize, effects: &[&(usize, &Seen)], heard: &[&Heard]) {
        let is_none = |answer: &Answer| answer.problem() != "" && answer.at("/effect") == "none";
        for (_, effect) in effects {
            let mut asked = heard
                .iter()
                .filter(|heard| effect.at.is_none_or(|at| heard.asked_at < at));
            if asked.all(|heard| heard.answer.as_ref().is_some_and(is_none)) {
                self.breaks(format!(
                    "S4: k{key} has an effect, and all heard that it has none: {effect:?}"
                ));
            }
        }
    }

    /// What the store says of a key is what happened.
    fn check_record(&self, key: usize, at_tool: &[(usize, &Seen)], record: Option<Record>) {
        let effects = at_tool.iter().filter(|(_, seen)| seen.executed).count();
        let Some(record) = record else {
            if !at_tool.is_empty() {
                self.breaks(format!(
                    "S6: k{key} was sent, and the store does not know it"
                ));
            }
            return;
        };
        let is_true = match record.state {
            State::Succeeded(_) => effects == 1,
            State::Failed(_) => effects == 0,
            State::Unknown(_) => true,
            // Nothing is left running, and nothing is undone here.
            State::Running
            | State::Compensating(_)
            | State::Compensated(_)
            | State::Stuck(_)
            | State::Proposed
            | State::Approved => false,
        };
        if !is_true {
            self.breaks(format!(
                "S5: k{key} is {} with {effects} effects",
                record.state.as_str()
            ));
        }
        let call_id = record.intent.call_id.to_string();
        if at_tool
            .iter()
            .any(|(_, seen)| seen.header("x-call-id") != call_id)
        {
            self.breaks(format!(
                "S6: the store has k{key} as another call than the tool"
            ));
        }
    }

    /// What agents hear who ask again when all is well.
    pub(super) async fn ask_again(&self, anew: &Bare) {
        let told = self.heard.lock().expect("not poisoned").clone();
        let mut is_slow = false;
        if self.memory.has_lost() {
            for key in 0..self.bounds.keys() {
                self.expect(anew, usual(key), &["store-unavailable"], "S16")
                    .await;
            }
            self.accept_loss();
        }
        for key in (0..self.bounds.keys()).filter(|key| !self.has_lost(lookup_of(*key))) {
            let Some(record) = self.memory.holder_of(lookup_of(key)) else {
                continue;
            };
            let requests = self.tool.requests();
            let asked = [
                usual(key),
                Ask {
                    other: true,
                    ..usual(key)
                },
            ];
            let (same, other): (Vec<Ask>, Vec<Ask>) = asked
                .into_iter()
                .partition(|ask| record.intent.args == args_of(ask));
            self.end_leases();
            self.expect(anew, other[0], &["key-reused"], "S9").await;
            let mut told = told.iter().filter(|heard| heard.ask.key == key);
            let told =
                told.find_map(|heard| heard.answer.clone().filter(|answer| answer.status == 200));
            match &record.state {
                State::Failed(_) => {
                    // It may run, and on a slow machine the tool may seem slow.
                    self.tool.forget();
                    let mut fit = vec!["", "outcome-unknown", "tool-unreachable"];
                    fit.extend(
                        self.bounds
                            .refusals()
                            .iter()
                            .filter(|slug| **slug != "session-busy"),
                    );
                    if is_slow && self.bounds.exclusive_wait_ms.is_some() {
                        fit.extend(["session-busy", "call-in-progress"]);
                    }
                    let again = self.expect(anew, same[0], &fit, "S12").await;
                    is_slow |= again.problem() == "outcome-unknown";
                    continue;
                }
                State::Succeeded(Content::Stored(json)) => {
                    let again = self.expect(anew, same[0], &[""], "S8").await;
                    if again.status == 200 && *json != again.result() {
                        self.breaks(format!("S8: k{key} is {json:?} and heard {}", again.text));
                    }
                }
                State::Succeeded(Content::Unavailable(_)) => {
                    self.expect(anew, same[0], &["result-unavailable"], "S8")
                        .await;
                }
                State::Unknown(_) => {
                    drop(self.expect(anew, same[0], &["outcome-unknown"], "S5").await)
                }
                State::Running
                | State::Compensating(_)
                | State::Compensated(_)
                | State::Stuck(_)
                | State::Proposed
                | State::Approved => {}
            }
            if let Some(told) = told.filter(|_| !matches!(record.state, State::Succeeded(_))) {
                self.breaks(format!(
                    "S8: k{key} has heard {} and is {:?}",
                    told.text, record.state
                ));
            }
            if self.tool.requests() != requests {
                self.breaks(format!(
                    "S7: k{key} was sent again, and it was {:?}",
                    record.state
                ));
            }
        }
    }

    /// Asks, and wants to hear one of these problems, or a success where it says nothing.
    async fn expect(&self, gateway: &Bare, ask: Ask, fit: &[&str], invariant: &str) -> Answer {
        let answer = self.ask(gateway, ask).await.expect("an answer");
        if !fit.contains(&answer.problem().as_str()) {
            self.breaks(format!(
                "{invariant}: k{} was to hear {fit:?}, heard {}",
                ask.key, answer.text
            ));
        }
        answer
    }
}

/// The attempt that a request belongs to, as far as the tool is told: half of its id.
pub(super) fn attempt_of(seen: &Seen) -> &str {
    seen.header("traceparent")
        .split('-')
        .nth(2)
        .unwrap_or_default()
}

pub(super) fn short(attempt: &str) -> String {
    attempt.chars().take(16).collect()
}
