//! Approvers, the configuration that they look at, and the gateways that begin approved calls.
//!
//! Imitates `crates/engine/src/approvals.rs` and `crates/engine/src/calls/approved.rs`.

use std::sync::Arc;

use super::model::{Broken, Model, label, title};
use super::scene::{Break, NAMES};
use super::store::Replaced;
use super::world::{Job, Task, World, at, instance, name_of};
use oncegate_rules::approval::{Digest, Shown};
use oncegate_rules::call::{self, Approved, Begun, Declined, Event, Illegal};
use oncegate_rules::record::{Failure, FailureKind, Record, State};

/// What an approval binds: the call, and the request by the configuration of this number.
fn bound(record: &Record, request: u8) -> Digest {
    let mut bound = [request; 32];
    bound[1] = super::world::number(record.intent.call_id);
    bound
}

/// What a gateway shows of a call that waits.
fn shown(record: &Record, request: u8) -> Option<Shown> {
    let proposal = record.proposal.as_deref()?;
    let bound = bound(record, request);
    let mut seen = bound;
    seen[2] = u8::try_from(proposal.ask).unwrap_or(u8::MAX);
    seen[3] = u8::try_from(proposal.approvals.len()).unwrap_or(u8::MAX);
    Some(Shown { bound, seen })
}

impl Model {
    /// An approver opens the page of a call that waits.
    pub(super) fn look_at(&mut self, world: &mut World, record: &Record) {
        world.left.looks -= 1;
        world.page = shown(record, world.request).map(|shown| (record.intent.call_id, shown.seen));
        self.say(|| format!("an approver looks at {}", Self::call_label(record)));
    }

    /// An approver approves what is on the page.
    pub(super) fn approve(
        &mut self,
        world: &mut World,
        record: &Arc<Record>,
        approver: u8,
    ) -> Result<(), Broken> {
        let page = world.page.filter(|(id, _)| *id == record.intent.call_id);
        let (Some((_, seen)), Some(shown)) = (page, shown(record, world.request)) else {
            return Ok(());
        };
        let event = Event::Approved(Approved {
            by: NAMES[usize::from(approver)].into(),
            reason: String::new(),
            seen,
            shown,
        });
        let Ok(next) = self.decide(Some(record), name_of(record), &event, world.now) else {
            return Ok(());
        };
        let Some(change) = next.change else {
            return Ok(());
        };
        let proposal = record.proposal.as_deref();
        if seen != shown.seen {
            return Err(format!(
                "{} is approved, and was seen otherwise",
                label(name_of(record))
            ));
        }
        if proposal.is_none_or(|proposal| at(world.now) >= proposal.until) {
            return Err(format!(
                "{} is approved after its time",
                label(name_of(record))
            ));
        }
        if let Replaced::Done(stored) = world.replace(&change, record, self.broken) {
            self.say(|| {
                format!(
                    "approver {approver} approves {}, which is {}",
                    Self::call_label(&stored),
                    stored.state.as_str()
                )
            });
        }
        Ok(())
    }

    /// An approver declines a call, or its caller takes it back.
    pub(super) fn decline(&mut self, world: &mut World, record: &Arc<Record>) {
        world.left.declines -= 1;
        let event = Event::Declined(Declined {
            by: NAMES[0].into(),
            reason: String::new(),
            tell: String::new(),
        });
        self.change(world, 0, record, &event);
    }

    /// Whether a worker would take up a call that waits for approval, or for its begin.
    pub(super) fn is_waiting(&self, world: &World, record: &Record) -> bool {
        let Some(proposal) = record.proposal.as_deref() else {
            return false;
        };
        let is_over = at(world.now) >= proposal.until;
        match record.state {
            State::Proposed => is_over,
            State::Approved => !world.is_closed,
            State::Running => self.is_broken(Break::LapsesBegunCall) && is_over,
            _ => false,
        }
    }

    /// A worker finds a call that waits: it begins the call, or writes that its time is over.
    pub(super) fn take_up_waiting(&mut self, world: &mut World, gateway: u8, record: Arc<Record>) {
        let is_good = |record: &Record| {
            let proposal = record.proposal.as_deref();
            proposal.is_some_and(|proposal| proposal.is_good(at(world.now)))
        };
        if record.state == State::Approved && is_good(&record) {
            let request = world.request;
            self.say(|| {
                format!(
                    "{} builds the request of {}",
                    title(gateway),
                    Self::call_label(&record)
                )
            });
            let until = Self::sends_until(world);
            let job = Job::Begin {
                record,
                request,
                until,
            };
            world.tasks.push(Task { gateway, job });
            return;
        }
        let by = instance(gateway);
        self.change(world, gateway, &record, &Event::ProposalDue { by });
    }

    /// A gateway begins an approved call with the request that it has built.
    pub(super) fn begin(
        &mut self,
        world: &mut World,
        gateway: u8,
        record: &Arc<Record>,
        request: u8,
        until: i64,
    ) -> Result<Option<Job>, Broken> {
        let name = name_of(record);
        if world.is_paused || !self.is_saga_open(world, record) {
            return Ok(None);
        }
        let approved = record.proposal.as_ref().and_then(|proposal| proposal.bound);
        let bound = match self.broken {
            Break::BeginsWithoutComparing => approved.unwrap_or_default(),
            _ => bound(record, request),
        };
        let event = Event::Begun(Begun {
            by: instance(gateway),
            attempt: world.fresh_attempt(),
            bound,
        });
        let Ok(next) = self.decide(Some(record), name, &event, world.now) else {
            return Ok(None);
        };
        let Some(change) = next.change else {
            return Ok(None);
        };
        let Replaced::Done(stored) = world.replace(&change, record, self.broken) else {
            return Ok(None);
        };
        self.say(|| {
            format!(
                "{} writes that {} is {}",
                title(gateway),
                Self::call_label(&stored),
                stored.state.as_str()
            )
        });
        if stored.state != State::Running {
            return Ok(None);
        }
        let needed = usize::from(self.scene.approvals);
        let approvals = stored.proposal.as_ref().map(|proposal| &proposal.approvals);
        if approved != Some(self::bound(record, request))
            || approvals.is_none_or(|all| all.len() < needed)
        {
            return Err(format!(
                "{} begins with a request that was not approved",
                label(name)
            ));
        }
        Ok(Some(Job::Send {
            record: stored,
            until,
            tells: true,
        }))
    }

    fn is_saga_open(&self, world: &World, record: &Record) -> bool {
        let mut sagas = world.store.sagas.iter();
        let saga = sagas.find(|saga| saga.id.id == record.intent.saga_id);
        saga.is_none_or(|saga| saga.is_open())
    }

    /// Decides by a broken rule what the real rule refuses.
    pub(super) fn decide_approval_anyhow(
        &self,
        record: &Record,
        event: &Event,
        illegal: Illegal,
        now: jiff::Timestamp,
    ) -> Result<call::Next, Illegal> {
        let mut record = record.clone();
        match (self.broken, event) {
            (Break::ApprovesAfterItsTime, Event::Approved(_)) => {
                let proposal = record.proposal.as_deref_mut().ok_or(illegal)?;
                proposal.until = at(super::world::tick_of(now) + 1);
                call::next(&self.scene.tool, Some(&record), event, now)
            }
            (Break::LapsesBegunCall, Event::ProposalDue { .. }) => {
                record.state = State::Proposed;
                call::next(&self.scene.tool, Some(&record), event, now)
            }
            _ => Err(illegal),
        }
    }

    /// A call that began may be at its tool, so it does not lapse; and what waits was never sent.
    pub(super) fn judge_waiting(
        &self,
        world: &World,
        before: &Record,
        after: &Record,
    ) -> Result<(), Broken> {
        let name = name_of(before);
        let waits = |record: &Record| matches!(record.state, State::Proposed | State::Approved);
        let has_lapsed = matches!(
            &after.state,
            State::Failed(Failure {
                kind: FailureKind::Lapsed | FailureKind::Declined | FailureKind::Withdrawn,
                ..
            })
        );
        let is_lost = world.left.losses < self.scene.left.losses;
        if has_lapsed && !waits(before) && before.state != after.state {
            return Err(format!(
                "{} has begun, and counts as never sent",
                label(name)
            ));
        }
        if waits(after)
            && !is_lost
            && (world.effects_of(before) > 0 || world.may_still_come(before))
        {
            return Err(format!("{} waits, and was sent", label(name)));
        }
        Ok(())
    }
}
