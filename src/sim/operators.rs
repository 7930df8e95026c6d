//! What operators do: they look into the tools' books, settle calls, pause tools and help stuck sagas.

use std::sync::Arc;

use serde_json::json;

use super::agents::is_held;
use super::dice::Dice;
use super::gateway::Gateways;
use super::plan::KINDS;
use crate::core::document::Kind as DocumentKind;
use crate::core::record::{Record, State};
use crate::store::{DocumentQuery, Documents};

/// How long an act of an operator may take on its way, at most.
const LONG_MS: u64 = 1_000;

pub(super) struct Operator {
    gateways: Arc<Gateways>,
    dice: Dice,
}

impl Operator {
    pub(super) fn of(gateways: &Arc<Gateways>) -> Self {
        Self {
            gateways: gateways.clone(),
            dice: gateways.world.dice("person"),
        }
    }

    /// Does something now and then, as long as there is trouble.
    pub(super) async fn help(mut self) {
        let world = self.gateways.world.clone();
        while world.now() < world.plan.trouble_until {
            let rest_ms = self.dice.between(300, 1_500);
            world.turns.wait("person".to_owned(), rest_ms).await;
            match self.dice.below(7) {
                0 => self.pause().await,
                1 => self.probe().await,
                2 => self.abort().await,
                _ => self.settle(false).await,
            }
        }
    }

    /// Pauses a tool for a moment.
    async fn pause(&mut self) {
        let tool = self.dice.pick(&KINDS.each_ref().map(|kind| kind.name));
        self.act(&format!("/v1/tools/{tool}/pause")).await;
        let world = self.gateways.world.clone();
        world.turns.wait("person".to_owned(), 400).await;
        self.act(&format!("/v1/tools/{tool}/resume")).await;
    }

    /// Has a saga undone, whatever has become of it.
    async fn abort(&mut self) {
        let query = DocumentQuery::newest(DocumentKind::Saga, 10);
        let memory = &self.gateways.world.memory;
        let sagas = memory
            .documents(&query)
            .await
            .map(|(found, _)| found.calls)
            .unwrap_or_default();
        if !sagas.is_empty() {
            let which = self.dice.below(sagas.len() as u64) as usize;
            self.act(&format!("/v1/sagas/{}/abort", sagas[which].id))
                .await;
        }
    }

    /// Has the tool of an unknown call asked.
    async fn probe(&mut self) {
        let unknown = self.unknown();
        if let Some(record) = unknown.first() {
            self.act(&format!("/v1/calls/{}/probe", record.intent.call_id))
                .await;
        }
    }

    /// Settles what only an operator settles, as the tools' books show.
    pub(super) async fn settle(&mut self, all: bool) {
        for record in self.unknown() {
            let is_checked = record.check.is_some_and(|check| check.at.is_some());
            if is_checked && !is_held(&record.intent.tool) || !all && self.dice.chance(50) {
                continue;
            }
            let call = record.intent.call_id.to_string();
            let (world, now) = (&self.gateways.world, self.gateways.world.now());
            let (effect, left) = {
                let books = world.books();
                let effect = books.of_call(&call).next().map(|effect| effect.number);
                let until = books.comes_until(&call).unwrap_or_default();
                (effect, until.saturating_sub(now))
            };
            // Then the gateway refuses it; what an operator has seen before the end of a lease must not count after it.
            let is_refused = left > LONG_MS && world.plan.stalls == 0;
            let body = match effect {
                Some(made) => {
                    let result = json!({ "made": made });
                    json!({ "as": "succeeded", "result": result, "reason": "it is in the books" })
                }
                None if left > 0 && !is_refused => continue,
                None => json!({ "as": "failed", "reason": "it is not in the books" }),
            };
            self.send(&format!("/v1/calls/{call}/resolve"), &body).await;
        }
    }

    /// Brings stuck sagas to their end.
    pub(super) async fn help_sagas(&mut self) {
        let world = self.gateways.world.clone();
        let stuck = world
            .memory
            .documents(&DocumentQuery::in_state(DocumentKind::Saga, "stuck", 100))
            .await;
        for saga in stuck.map(|(found, _)| found.calls).unwrap_or_default() {
            let how = if self.dice.chance(80) {
                "retry"
            } else {
                "skip"
            };
            self.act(&format!("/v1/sagas/{}/{how}", saga.id)).await;
        }
    }

    /// No tool stays paused.
    pub(super) async fn resume_all(&mut self) {
        for kind in &KINDS {
            self.act(&format!("/v1/tools/{}/resume", kind.name)).await;
        }
    }

    fn unknown(&self) -> Vec<Record> {
        let records = self.gateways.world.memory.records().into_iter();
        let unknown = records.map(|(record, _)| record);
        unknown
            .filter(|record| matches!(record.state, State::Unknown(_)))
            .collect()
    }

    async fn act(&mut self, path: &str) {
        self.send(path, &json!({ "reason": "an operator wants it" }))
            .await;
    }

    async fn send(&mut self, path: &str, body: &serde_json::Value) {
        let slots = self.gateways.world.plan.gateways as u64;
        let slot = self.dice.below(slots) as usize;
        let answer = self.gateways.ask(0, slot, path, body, None).await;
        let heard = match &answer {
            None => "unheard".to_owned(),
            Some(answer) => format!("{} {}", answer.status, answer.problem()),
        };
        self.gateways.world.count("acts of operators");
        self.gateways
            .world
            .say(format!("an operator: {path} {heard}"));
    }
}
