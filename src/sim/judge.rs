//! The promise, as an observer sees it who knows callers, tools and store. The properties are those of `explore`.

use std::sync::Arc;

use super::books::Flight;
use super::plan::Kind;
use super::world::World;
use crate::core::document::{Document, Kind as DocumentKind};
use crate::core::record::{CallId, Content, Record, State};
use crate::core::saga::Saga;
use crate::store::{Calls, DocumentQuery, Documents};

/// What a verb of the store changes.
#[derive(Debug, Clone)]
pub(super) enum Target {
    Call(CallId),
    /// A saga of a tenant.
    Saga(String, String),
}

/// Looks at what is stored before and after a verb.
#[derive(Clone)]
pub(super) struct Watched {
    pub(super) world: Arc<World>,
    /// The gateway.
    pub(super) by: String,
    pub(super) target: Option<Target>,
}

/// What was stored.
#[derive(Default)]
pub(super) struct Stored {
    call: Option<Record>,
    saga: Option<Document>,
}

impl Watched {
    pub(super) async fn look(&self) -> Stored {
        let memory = &self.world.memory;
        match &self.target {
            Some(Target::Call(call_id)) => Stored {
                call: memory.load(*call_id).await.ok().flatten(),
                saga: None,
            },
            Some(Target::Saga(tenant, id)) => {
                let document = memory.document(DocumentKind::Saga, tenant, id).await;
                Stored {
                    call: None,
                    saga: document.ok().flatten(),
                }
            }
            None => Stored::default(),
        }
    }

    pub(super) async fn compare(&self, before: Stored) {
        let after = self.look().await;
        if let Some(record) = &after.call
            && before.call.as_ref() != Some(record)
        {
            self.world.changed(&self.by, before.call.as_ref(), record);
        }
        if let (Some(was), Some(is)) = (&before.saga, &after.saga)
            && was != is
        {
            self.world.moved(&self.by, was, is);
        } else if let (None, Some(is)) = (&before.saga, &after.saga) {
            self.world
                .say(format!("{}: saga {} is {}", self.by, is.id, is.state));
        }
    }
}

/// A call's name in the history.
fn label(record: &Record) -> String {
    format!("{} {}", record.intent.tool, record.intent.key)
}

/// The number of the effect in a result.
fn effect_in(content: &Content) -> Option<u64> {
    match content {
        Content::Stored(json) => {
            let result: serde_json::Value = serde_json::from_slice(json).ok()?;
            result["made"].as_u64()
        }
        Content::Unavailable(_) => None,
    }
}

impl World {
    /// A stored call has changed.
    fn changed(&self, by: &str, before: Option<&Record>, after: &Record) {
        let (name, now) = (label(after), self.now());
        let was = before.map_or("free", |before| before.state.as_str());
        self.say(format!(
            "{by}: {name} was {was}, is {} (attempt {})",
            after.state.as_str(),
            after.attempts
        ));
        let call = after.intent.call_id.to_string();
        let kind = Kind::named(&after.intent.tool);
        let (effects, may_come) = {
            let books = self.books();
            (books.of_call(&call).count(), books.may_come(&call, now))
        };
        let is_settled = matches!(after.state, State::Succeeded(_) | State::Failed(_));
        if is_settled {
            self.written().settled.insert(call.clone());
        } else {
            self.written().settled.remove(&call);
        }
        let answer = self.written().answers.get(&after.intent.key).cloned();
        if let Some((answer, effect)) = answer
            && answer == call
            && after.state.content().and_then(effect_in) != Some(effect)
        {
            let state = after.state.as_str();
            self.breaks(format!(
                "{name} was answered as succeeded, and is {state} now"
            ));
        }
        let Some(before) = before else { return };
        let broken = match (&before.state, &after.state) {
            (_, State::Succeeded(_)) if effects == 0 => "counts as executed, without evidence",
            (State::Unknown(_) | State::Running, State::Failed(_)) if effects > 0 => {
                "counts as not executed, although it was"
            }
            (State::Unknown(_), State::Failed(_)) if may_come && !kind.deduplicates() => {
                "counts as not executed, although it still may be"
            }
            (State::Unknown(_), State::Running) if !kind.deduplicates() => {
                "is unknown and runs again"
            }
            (State::Succeeded(_), State::Running | State::Failed(_) | State::Unknown(_)) => {
                "has succeeded, and is not so any more"
            }
            (State::Compensated(_), State::Running | State::Succeeded(_) | State::Unknown(_)) => {
                "was undone, and is not so any more"
            }
            _ => return,
        };
        self.breaks(format!("{name} {broken}"));
    }

    /// A stored saga has changed.
    fn moved(&self, by: &str, was: &Document, is: &Document) {
        if was.state != is.state {
            self.say(format!("{by}: saga {} is {}", is.id, is.state));
        }
        // One call that is undone by itself begins a new saga of the same name.
        let is_alone = Saga::from_document(is).is_ok_and(|saga| saga.only.is_some());
        let is_over = matches!(was.state.as_str(), "completed" | "compensated");
        if is_over && was.state != is.state && !is_alone {
            self.breaks(format!("saga {} was {}, and moves", is.id, was.state));
        }
    }

    /// A request leaves its gateway.
    pub(super) fn judge_send(&self, flight: &Flight) {
        let (tool, now) = (Kind::named(flight.tool), self.now());
        if tool.deduplicates() {
            return;
        }
        let (has_effect, may_come) = {
            let books = self.books();
            (
                books.of_call(&flight.call).next().is_some(),
                books.may_come(&flight.call, now),
            )
        };
        if has_effect {
            self.breaks(format!("{} is sent, although it was executed", flight.name));
        }
        if may_come {
            let why = "is sent, although an earlier request may still be executed";
            self.breaks(format!("{} {why}", flight.name));
        }
    }

    /// The tool has executed a request.
    pub(super) fn judge_effect(&self, flight: &Flight) {
        let (name, now) = (&flight.name, self.now());
        let mut broken = Vec::new();
        {
            let books = self.books();
            if books.of_call(&flight.call).count() > 1 {
                broken.push(format!("{name} has two effects"));
            }
            if books.undoing(&flight.call).next().is_some() {
                broken.push(format!("{name} is executed after it was undone"));
            }
            if !flight.undoes.is_empty() {
                let undone = &flight.undoes;
                if books.undoing(undone).count() > 1 {
                    broken.push(format!("call {undone} is undone twice"));
                }
                let of = flight.tool.trim_start_matches("undo_");
                let was_executed = books.of_call(undone).next().is_some();
                if !was_executed
                    && (!Kind::named(of).undoes_unknown() || books.may_come(undone, now))
                {
                    broken.push(format!(
                        "call {undone} is undone, although it was not executed"
                    ));
                }
            }
            if Kind::named(flight.tool).is_exclusive()
                && let Some(other) = books.beside(flight, now).next()
            {
                let other = &other.name;
                broken.push(format!(
                    "{name} is executed while {other} of its session may be"
                ));
            }
        }
        for why in broken {
            self.breaks(why);
        }
    }

    /// A caller hears of a success.
    ///
    /// `is_forgotten`: its key stands for another intent after a while.
    pub(super) fn judge_answer(
        &self,
        key: &str,
        call: &str,
        effect: Option<u64>,
        is_forgotten: bool,
    ) {
        let is_true = {
            let books = self.books();
            books
                .of_call(call)
                .any(|made| effect.is_none_or(|effect| effect == made.number))
        };
        if !is_true {
            self.breaks(format!(
                "{key} is answered as succeeded, and has no such effect"
            ));
        }
        let Some(effect) = effect else { return };
        let answer = (call.to_owned(), effect);
        if is_forgotten {
            self.written().answers.insert(key.to_owned(), answer);
            return;
        }
        let before = {
            let mut written = self.written();
            let before = written
                .answers
                .entry(key.to_owned())
                .or_insert(answer.clone());
            before.clone()
        };
        if before != answer {
            self.breaks(format!("{key} is answered with two results"));
        }
    }

    /// A caller hears that nothing was executed before it asked.
    pub(super) fn judge_none(&self, at_tool: &str, key: &str, asked_at: u64) {
        let early = {
            let books = self.books();
            let found = books.known(at_tool);
            found.is_some_and(|number| books.was_made_before(number, asked_at))
        };
        if early {
            self.breaks(format!("{key} is answered as not executed, and was"));
        }
    }

    /// What a saga has done is undone as a whole, or not at all.
    pub(super) async fn judge_sagas(&self) {
        let query = DocumentQuery::newest(DocumentKind::Saga, 100);
        let sagas = self
            .memory
            .documents(&query)
            .await
            .map(|(found, _)| found.calls)
            .unwrap_or_default();
        for saga in &sagas {
            for (record, _) in self.memory.records() {
                let call = record.intent.call_id.to_string();
                if record.intent.saga_id != saga.id
                    || Kind::named(&record.intent.tool).undo.is_empty()
                {
                    continue;
                }
                let (is_done, is_undone) = {
                    let books = self.books();
                    (
                        books.of_call(&call).count() > 0,
                        books.undoing(&call).count() > 0,
                    )
                };
                let name = label(&record);
                match saga.state.as_str() {
                    "completed" if is_undone => {
                        self.breaks(format!("{name} is undone, and its saga is complete"));
                    }
                    "compensated" if is_done && !is_undone && !record.is_skipped() => {
                        self.breaks(format!("{name} is not undone, and its saga is"));
                    }
                    _ => {}
                }
            }
        }
    }

    /// All is at rest: what the store says is what has happened.
    pub(super) fn judge_rest(&self) {
        let records = self.memory.records();
        for (record, _) in &records {
            let call = record.intent.call_id.to_string();
            let (effects, is_undone) = {
                let books = self.books();
                (
                    books.of_call(&call).count(),
                    books.undoing(&call).count() > 0,
                )
            };
            let (kind, name) = (Kind::named(&record.intent.tool), label(record));
            let is_true = match &record.state {
                State::Succeeded(_) => effects == 1,
                State::Failed(_) => effects == 0,
                State::Compensated(_) => effects == 0 || is_undone || record.is_skipped(),
                State::Stuck(_) => true,
                State::Running
                | State::Unknown(_)
                | State::Compensating(_)
                | State::Proposed
                | State::Approved => false,
            };
            if !is_true {
                let state = record.state.as_str();
                self.breaks(format!(
                    "{name} is {state} at the end, with {effects} effects"
                ));
            }
            if effects > 1 && !kind.deduplicates() {
                self.breaks(format!("{name} has {effects} effects at the end"));
            }
        }
        let answer = self.written().answers.clone();
        for (key, (call, effect)) in &answer {
            let mut stored = records.iter().map(|(record, _)| record);
            let stored = stored.find(|record| record.intent.call_id.to_string() == *call);
            if stored.is_none() && self.written().settled.contains(call) && key.starts_with("short")
            {
                continue;
            }
            let content = stored.and_then(|record| record.state.content());
            if content.and_then(effect_in) != Some(*effect) {
                self.breaks(format!(
                    "{key} was answered as succeeded, and is not so at the end"
                ));
            }
        }
        let seen = self.books().seen().clone();
        for (call, (key, is_forgotten)) in seen {
            let mut stored = records.iter().map(|(record, _)| record);
            let may_be_deleted = is_forgotten && self.written().settled.contains(&call);
            if !may_be_deleted && !stored.any(|record| record.intent.call_id.to_string() == call) {
                self.breaks(format!(
                    "a call with {key} was sent, and the store does not know it"
                ));
            }
        }
    }
}
