//! What a gateway does about one call, between the rules and the store.
//!
//! Imitates `crates/engine/src/calls/engine.rs`, and `run.rs` and `attempt.rs` beside it, and `complete` of
//! `crates/engine/src/transition.rs`. Each function is one step: other gateways act between two of them.

pub(super) mod evidence; // what gateways read in answers
mod remote; // servers that work on calls as tasks of their own

use std::sync::Arc;

use self::evidence::{effect_in, evidence};
use super::model::{Broken, Model, label, title};
use super::scene::Break;
use super::store::Replaced;
use super::world::{
    Job, Request, Seen, Tasked, World, Write, comes_before, instance, name_of, undone_by,
};
use oncegate_rules::call::{self, Action, Change, Ended, Event, Retry, may_be_retried};
use oncegate_rules::record::{Failure, FailureKind, Record, State};
use oncegate_rules::undo;

/// Whether the store's answer arrives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Answers {
    Yes,
    /// The store makes the change, and its answer is lost.
    Lost,
}

impl Model {
    /// The job that writes the end of an attempt.
    pub(super) fn ending(
        record: Arc<Record>,
        seen: Seen,
        retry: Option<oncegate_rules::record::AttemptId>,
        until: i64,
    ) -> Write {
        Write {
            attempt: record.attempt.id,
            fencing: record.fencing,
            record,
            seen,
            retry,
            until,
            tells: true,
            listens: false,
            is_turned_away: false,
            pending: None,
        }
    }

    /// An attempt has ended, as its gateway saw it: `Runner::run_attempts`.
    pub(super) fn ended(
        &mut self,
        world: &mut World,
        gateway: u8,
        record: Arc<Record>,
        seen: Seen,
        until: i64,
        tells: bool,
    ) -> Result<Job, Broken> {
        let tool = self.tool_of(name_of(&record));
        let (outcome, _) = call::judge(tool, &record, &evidence(seen));
        let may_retry = may_be_retried(tool, &record, &outcome) && !world.is_paused;
        let retry = may_retry.then(|| world.fresh_attempt());
        if self.is_broken(Break::TellsBeforeWriting)
            && tells
            && let Seen::Executed(effect) = seen
        {
            self.say(|| {
                format!(
                    "{} tells its caller that {} has succeeded",
                    title(gateway),
                    label(name_of(&record))
                )
            });
            world.truth_mut(name_of(&record)).answered = Some(effect);
        }
        Ok(Job::Write(Box::new(Write {
            tells,
            listens: seen == Seen::NoAnswer,
            ..Self::ending(record, seen, retry, until)
        })))
    }

    /// Hands the request to the network, unless it is too late: `crates/tools/src/gate.rs`.
    pub(super) fn send(
        &mut self,
        world: &mut World,
        gateway: u8,
        record: Arc<Record>,
        until: i64,
        tells: bool,
    ) -> Result<Job, Broken> {
        let name = name_of(&record);
        let is_late = world.now >= until && !self.is_broken(Break::SendsAfterDeadline);
        let is_held =
            (record.attempt.number > 1 && world.is_paused) || self.is_cancelled(world, &record);
        if is_late || is_held {
            self.say(|| format!("{} comes too late to send {}", title(gateway), label(name)));
            return self.ended(world, gateway, record, Seen::NotSent, until, tells);
        }
        self.say(|| format!("{} sends {}", title(gateway), label(name)));
        self.judge_send(world, &record)?;
        let until_there = comes_before(&record, &self.scene).max(world.now + 1);
        world.requests.push(Request {
            name,
            call_id: record.intent.call_id,
            attempt: record.attempt.id.0.as_u128(),
            until: until_there,
            executed: None,
            is_forgiven: self.is_forgotten(world, &record),
            task: Tasked::No,
        });
        Ok(Job::Wait {
            record,
            until,
            tells,
        })
    }

    /// Offers the end of an attempt to the store: one round of `complete`.
    pub(super) fn write(
        &mut self,
        world: &mut World,
        gateway: u8,
        mut write: Write,
        answers: Answers,
    ) -> Result<Option<Job>, Broken> {
        let record = write.record.clone();
        let event = Self::event_of(&write, gateway);
        let (change, action) = match &write.pending {
            Some(pending) => (Some((**pending).clone()), Action::Finish),
            None => match self.decide(Some(&record), name_of(&record), &event, world.now) {
                Ok(next) => (next.change, next.action),
                Err(illegal) => {
                    self.say(|| {
                        format!(
                            "{} does not write its late news of {}: {illegal}",
                            title(gateway),
                            Self::call_label(&record)
                        )
                    });
                    return self.over(world, gateway, write, record);
                }
            },
        };
        let Some(change) = change else {
            return self.over(world, gateway, write, record);
        };
        match world.replace(&change, &record, self.broken) {
            Replaced::Done(stored) if answers == Answers::Lost => {
                self.say(|| {
                    format!(
                        "{}: the store takes {}, and its answer is lost",
                        title(gateway),
                        Self::written(&change)
                    )
                });
                drop(stored);
                // For a further attempt the rules are asked again; any other change is offered again.
                let is_retry = matches!(action, Action::Retry { .. });
                write.pending = (!is_retry).then(|| Arc::new(change));
                Ok(Some(Job::Write(Box::new(write))))
            }
            Replaced::Done(stored) => {
                self.say(|| format!("{} writes {}", title(gateway), Self::written(&change)));
                if let Action::Retry { .. } = action {
                    return Ok(Some(Job::Send {
                        record: stored,
                        until: write.until,
                        tells: write.tells,
                    }));
                }
                self.over(world, gateway, write, stored)
            }
            Replaced::Lost(Some(newer)) if newer.intent.call_id == record.intent.call_id => {
                self.say(|| {
                    format!(
                        "{} finds that {} has changed meanwhile",
                        title(gateway),
                        Self::call_label(&newer)
                    )
                });
                write.pending = None;
                write.renew(newer);
                Ok(Some(Job::Write(Box::new(write))))
            }
            Replaced::Lost(_) => self.over(world, gateway, write, record),
            // The store is closed: no further attempt begins, but the end of this one is written.
            Replaced::Refused => {
                write.retry = None;
                Ok(Some(Job::Write(Box::new(write))))
            }
        }
    }

    pub(super) fn event_of(write: &Write, gateway: u8) -> Event {
        if write.is_turned_away {
            let kind = if write.seen == Seen::Refused {
                FailureKind::SagaClosed
            } else {
                FailureKind::Unavailable
            };
            return Event::NotJoined {
                by: instance(gateway),
                attempt: write.attempt,
                why: Failure::new(kind, ""),
            };
        }
        Event::Ended(Ended {
            attempt: write.attempt,
            fencing: write.fencing,
            evidence: evidence(write.seen),
            retry: write.retry.map(|attempt| Retry {
                attempt,
                jitter: 0.0,
            }),
        })
    }

    fn written(change: &Change) -> String {
        format!(
            "that {} is {}",
            Self::call_label(&change.record),
            change.record.state.as_str()
        )
    }

    /// A run is over: its caller is told, and the gateway waits for a late answer.
    fn over(
        &mut self,
        world: &mut World,
        gateway: u8,
        write: Write,
        stored: Arc<Record>,
    ) -> Result<Option<Job>, Broken> {
        let is_ours = stored.attempt.id == write.attempt;
        if write.tells && stored.state != State::Running {
            self.tell(world, gateway, &stored)?;
        }
        let in_doubt = is_ours && matches!(stored.state, State::Unknown(_));
        let until = write.until + 1;
        Ok(
            (write.listens && in_doubt && world.now < until).then_some(Job::Listen {
                record: stored,
                until,
            }),
        )
    }

    /// Tells a caller the stored record: `answer_from` of `crates/engine/src/calls/answer.rs`.
    pub(super) fn tell(
        &mut self,
        world: &mut World,
        gateway: u8,
        record: &Arc<Record>,
    ) -> Result<(), Broken> {
        let name = name_of(record);
        self.say(|| {
            format!(
                "{} tells its caller that {} is {}",
                title(gateway),
                label(name),
                record.state.as_str()
            )
        });
        if undone_by(name).is_none()
            && let Some(content) = record.state.content()
        {
            // Of an erased call the caller is told that it was executed, and that its result is not available.
            let effect = effect_in(content).unwrap_or(world.truth(name).effects);
            return Self::judge_answer(world, record.intent.call_id, name, effect);
        }
        Ok(())
    }

    /// Whether the saga of a claimed call lets it be sent: `crates/engine/src/sagas/joining.rs`.
    pub(super) fn join(
        &mut self,
        world: &mut World,
        gateway: u8,
        record: Arc<Record>,
        until: i64,
    ) -> Result<Option<Job>, Broken> {
        let name = name_of(&record);
        let is_open = match undone_by(name) {
            Some(undone) => undo::is_wanted(
                record.intent.call_id,
                world.store.load(undone).map(Arc::as_ref),
            ),
            None => match self.ensure_saga(world) {
                Some(saga) => saga.is_open(),
                None => {
                    // The store is closed: the call is not sent.
                    let write = Self::ending(record, Seen::NotSent, None, until);
                    return Ok(Some(Job::Write(Box::new(Write {
                        is_turned_away: true,
                        ..write
                    }))));
                }
            },
        };
        if is_open || self.is_broken(Break::JoinsClosedSaga) {
            self.say(|| {
                format!(
                    "{} finds that the saga takes {}",
                    title(gateway),
                    label(name)
                )
            });
            let is_sent = record.state == State::Running;
            return Ok(is_sent.then_some(Job::Send {
                record,
                until,
                tells: true,
            }));
        }
        self.say(|| {
            format!(
                "{}: the saga does not let {} be sent",
                title(gateway),
                label(name)
            )
        });
        let write = Self::ending(record, Seen::Refused, None, until);
        Ok(Some(Job::Write(Box::new(Write {
            is_turned_away: true,
            ..write
        }))))
    }
}
