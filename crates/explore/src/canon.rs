//! A state as bytes, without everything that can make no difference later.
//!
//! Left out: histories, sentences, latencies, numbers of attempts and checks beyond the first few, and times beyond those
//! that the rules still compare. Times are ticks from now on; versions count from the lowest of a call that is still known.

use std::hash::{DefaultHasher, Hasher};
use std::sync::Arc;

use jiff::Timestamp;

use super::gateway::evidence::effect_in;
use super::model::{Model, Past};
use super::world::{
    ENDED, Job, SagaStep, Said, Seen, Store, Task, Tasked, World, at, name_of, number, tick_of,
    undone_by,
};
use oncegate_rules::record::{CallId, FailureKind, Record, State};
use oncegate_rules::saga::{Phase, Saga};
use oncegate_rules::time::after;
use oncegate_rules::tool::{OnUnknown, Tool};
use oncegate_rules::unknown::is_negative_final;
use oncegate_rules::work::Due;

/// Writes a state's bytes.
struct Canon<'a> {
    bytes: Vec<u8>,
    now: i64,
    past: Past,
    is_saga: bool,
    has_tasks: bool,
    stored: &'a Store,
    tool: &'a Tool,
    /// All known fencing tokens. Only their order is written.
    tokens: &'a [u64],
    /// The times at which the calls of a saga were made and began, in order.
    moments: &'a [Timestamp],
    versions: Versions<'a>,
}

/// How versions are written.
#[derive(Clone, Copy)]
enum Versions<'a> {
    /// Only whether a version is the stored one. A change of any other version fails, so its number does not matter.
    Newest,
    /// Counted from the lowest of each call: a store that goes back may reach the same version again.
    Counted(&'a [(CallId, u64)]),
}

impl Canon<'_> {
    fn add(&mut self, byte: impl TryInto<u8>) {
        self.bytes.push(byte.try_into().unwrap_or(u8::MAX));
    }

    fn tick(&mut self, tick: i64, past: i64) {
        let from_now = (tick - self.now).clamp(-past, 100);
        self.add(from_now + 100);
    }

    fn time(&mut self, time: Timestamp, past: i64) {
        self.tick(tick_of(time), past);
    }

    fn maybe(&mut self, time: Option<Timestamp>, past: i64) {
        match time {
            Some(time) => self.time(time, past),
            None => self.add(0),
        }
    }

    fn token(&mut self, token: Option<u64>) {
        let rank = token.map_or(0, |token| {
            self.tokens.partition_point(|known| *known < token) + 1
        });
        self.add(rank);
    }

    fn record(&mut self, record: &Record) {
        let past = self.past;
        let id = record.intent.call_id;
        self.add(number(id));
        self.add(name_of(record));
        let is_stale = match self.versions {
            Versions::Newest => self
                .stored
                .load(id)
                .is_none_or(|stored| stored.version != record.version),
            Versions::Counted(lowest) => {
                let lowest = lowest.iter().find(|(known, _)| *known == id);
                self.add(
                    record
                        .version
                        .saturating_sub(lowest.map_or(0, |(_, lowest)| *lowest)),
                );
                false
            }
        };
        self.add(u8::from(is_stale));
        self.add(match &record.state {
            State::Running => 0,
            State::Succeeded(_) => 1,
            State::Failed(failure) if failure.kind == FailureKind::SagaClosed => 2,
            State::Failed(_) => 3,
            State::Unknown(_) => 4,
            State::Compensating(_) => 5,
            State::Compensated(_) => 6,
            State::Stuck(_) => 7,
            State::Proposed => 8,
            State::Approved => 9,
        });
        self.proposal(record);
        self.add(
            record
                .state
                .content()
                .map_or(0, |content| effect_in(content).unwrap_or(0) + 1),
        );
        self.add(u8::from(record.is_erased()));
        self.add(record.attempt.id.0.as_u128());
        self.add(if record.attempt.owner == ENDED {
            9
        } else {
            record.attempt.owner.0.as_u128()
        });
        self.add(record.attempt.number);
        self.add(
            u8::from(record.attempt.remote_task.is_some()) + 2 * u8::from(record.cancel_asked),
        );
        self.token(record.fencing);
        let sent_again = record.attempts > record.attempt.number;
        self.add(u8::from(record.earlier_attempt_may_have_run) + 2 * u8::from(sent_again));
        if is_stale {
            return self.maybe(record.expires_at, 0);
        }
        let is_over = matches!(record.state, State::Succeeded(_) | State::Compensated(_));
        if is_over {
            self.add(0);
        } else {
            self.time(record.attempt.run_started_at, past.run);
            self.time(record.attempt.lease_until, past.lease);
        }
        match record.check {
            Some(check) => {
                self.maybe(check.at, 0);
                self.time(check.since, past.since);
            }
            None => self.add(1),
        }
        // The time since when it may have been executed: it counts once the call is unknown and is checked.
        let is_checked = self.tool.unknown != OnUnknown::Hold
            || self.has_tasks
            || undone_by(name_of(record)).is_some();
        if is_checked && !is_over && record.check.is_none() {
            self.time(record.attempt.run_started_at, past.since);
            self.time(record.intent.created_at, past.since);
        }
        match &record.undo {
            Some(undo) => {
                self.add(2 + u8::from(undo.skipped));
                self.add(
                    undo.compensation
                        .as_ref()
                        .map_or(0, |by| number(by.call_id)),
                );
            }
            None => self.add(1),
        }
        self.maybe(record.expires_at, past.expiry);
        self.maybe(record.retain_until, 0);
        // Only the order in which the calls of a saga began counts.
        if self.is_saga && undone_by(name_of(record)).is_none() {
            for time in [record.attempt.run_started_at, record.intent.created_at] {
                self.add(self.moments.partition_point(|known| *known < time));
            }
        }
    }

    fn proposal(&mut self, record: &Record) {
        let Some(proposal) = record.proposal.as_deref() else {
            return;
        };
        let waits = matches!(record.state, State::Proposed | State::Approved);
        self.add(proposal.ask);
        self.add(proposal.requested);
        self.time(proposal.until, 0);
        self.maybe(proposal.good_until, 0);
        if waits {
            self.bytes.extend(proposal.bound.map(|bound| bound[0]));
            for approval in &proposal.approvals {
                self.bytes.extend(approval.by.as_bytes());
                self.bytes.extend(&approval.seen[..4]);
            }
        }
        self.add(proposal.approvals.len());
    }

    fn saga(&mut self, saga: &Saga) {
        self.add(saga.id.id.len());
        let stored = self.stored.saga(&saga.id);
        let is_stale = stored.is_none_or(|stored| stored.version != saga.version);
        match self.versions {
            Versions::Newest => self.add(u8::from(is_stale)),
            Versions::Counted(_) => self.add(saga.version),
        }
        self.add(match saga.phase {
            Phase::Open => 0,
            Phase::Completed => 1,
            Phase::Compensating { at_rest } => 2 + u8::from(at_rest),
            Phase::Compensated => 4,
            Phase::Stuck {
                at_rest,
                is_transient,
            } => 5 + u8::from(at_rest) + 2 * u8::from(is_transient),
            Phase::OpenAtLoss => 9,
        });
        self.add(saga.only.map_or(0, number));
        let call = saga
            .trouble
            .as_ref()
            .map(|trouble| trouble.call_id.map_or(1, |id| number(id) + 2));
        self.add(call.unwrap_or(0));
        self.add(saga.work.tries.min(3));
        self.add(saga.telling.map_or(0, |answered| answered.min(1) + 1));
        if is_stale && matches!(self.versions, Versions::Newest) {
            return;
        }
        match saga.work.due {
            Due::Never => self.add(0),
            Due::At(at) => {
                self.add(1);
                self.time(at, 0);
            }
            Due::Taken { until } => {
                self.add(2);
                self.time(until, 0);
            }
        }
        self.add(u8::from(saga.overdue));
        let is_open = saga.phase == Phase::Open;
        self.maybe(saga.deadline.filter(|_| is_open), 0);
        self.maybe(saga.retain_until, 0);
    }

    fn store(&mut self, store: &Store) {
        self.add(store.calls.len());
        store.calls.iter().for_each(|record| self.record(record));
        self.add(store.names.len());
        for (name, id) in &store.names {
            self.add(*name);
            self.add(number(*id));
        }
        self.add(store.sagas.len());
        store.sagas.iter().for_each(|saga| self.saga(saga));
        // Only which failed calls surely did not run again counts.
        if let Some(until) = store.whole_until.map(at) {
            for record in &store.calls {
                let over = |expires_at| after(expires_at, self.tool.lease()) <= until;
                self.add(u8::from(record.expires_at.is_some_and(over)));
            }
        }
        match &store.lock {
            None => self.add(0),
            Some(lock) => {
                self.add(number(lock.call_id));
                self.token(Some(lock.token));
                self.time(lock.lease_until, 0);
                self.maybe(lock.free_from, 0);
            }
        }
    }

    /// The time of a probe. Only whether "not found" is believed counts.
    fn asked(&mut self, record: &Record, asked_at: i64) {
        match self.versions {
            Versions::Newest => self.add(u8::from(is_negative_final(
                self.tool,
                record,
                at(asked_at),
                at(asked_at),
            ))),
            Versions::Counted(_) => self.tick(asked_at, 4),
        }
    }

    fn task(&mut self, task: &Task) {
        self.add(task.gateway);
        match &task.job {
            Job::Arrived { name, until, .. } => {
                self.add(1);
                self.add(*name);
                self.tick(*until, 0);
            }
            Job::ReleaseUnconfirmed { .. } => self.add(2),
            Job::Join { until, .. } => {
                self.add(3);
                self.tick(*until, 0);
            }
            Job::Send { until, tells, .. } => {
                self.add(4 + u8::from(*tells));
                self.tick(*until, 1);
            }
            Job::Wait { until, tells, .. } => {
                self.add(6 + u8::from(*tells));
                self.tick(*until, 1);
            }
            Job::Write(write) => {
                self.add(8 + u8::from(write.tells));
                self.add(write.attempt.0.as_u128());
                self.token(write.fencing);
                self.add(match write.seen {
                    Seen::NotSent => 250,
                    Seen::NoAnswer => 251,
                    Seen::Refused => 252,
                    Seen::Task => 253,
                    Seen::Gone => 254,
                    Seen::Ended(effect) => 128 + effect,
                    Seen::Executed(effect) => effect,
                });
                self.add(write.retry.map_or(0, |id| id.0.as_u128()));
                self.tick(write.until, 1);
                self.add(u8::from(write.listens) + 2 * u8::from(write.is_turned_away));
                match &write.pending {
                    Some(pending) => self.record(&pending.record),
                    None => self.add(0),
                }
            }
            Job::Given { until, tells, .. } => {
                self.add(17 + u8::from(*tells));
                self.tick(*until, 1);
            }
            Job::Follow { until, tells, .. } => {
                self.add(19 + u8::from(*tells));
                self.tick(*until, 1);
            }
            Job::See { .. } => self.add(21),
            Job::Saw { said, .. } => {
                self.add(22);
                self.add(match said {
                    Said::Runs => 250,
                    Said::Gone => 251,
                    Said::Ended(effect) => *effect,
                });
            }
            Job::Listen { until, .. } => {
                self.add(10);
                self.tick(*until, 0);
            }
            Job::Lost { .. } => self.add(11),
            Job::Check { until, .. } => {
                self.add(12);
                self.tick(*until, 0);
            }
            Job::Ask { record, asked_at } => {
                self.add(13);
                self.asked(record, *asked_at);
            }
            Job::Note {
                record,
                asked_at,
                found,
            } => {
                self.add(14);
                self.asked(record, *asked_at);
                self.add(found.map_or(0, |effect| effect + 1));
            }
            Job::Begin { request, until, .. } => {
                self.add(16);
                self.add(*request);
                self.tick(*until, 0);
            }
            Job::Saga(job) => {
                self.add(15);
                self.saga(&job.saga);
                self.add(match &job.step {
                    SagaStep::Look => 0,
                    SagaStep::Calls { is_fresh, .. } => 1 + u8::from(*is_fresh),
                    SagaStep::Undoing { .. } => 3,
                    SagaStep::Undone { .. } => 4,
                    SagaStep::Advance { changed, .. } => 5 + u8::from(changed.is_some()),
                    SagaStep::Put { ahead } => 7 + u8::from(ahead.telling.is_some()),
                });
            }
        }
        let records = task.records();
        self.add(records.len());
        for record in records {
            self.record(record);
        }
    }
}

impl Model {
    /// The hash of a state. States that differ only in what makes no difference have the same hash.
    pub(super) fn hash(&self, world: &World) -> u128 {
        let mut lowest: Vec<(CallId, u64)> = Vec::new();
        for record in world.records() {
            let id = record.intent.call_id;
            match lowest.iter_mut().find(|(known, _)| *known == id) {
                Some((_, version)) => *version = record.version.min(*version),
                None => lowest.push((id, record.version)),
            }
        }
        let writes = world.tasks.iter().filter_map(|task| match &task.job {
            Job::Write(write) => write.fencing,
            _ => None,
        });
        let mut tokens: Vec<u64> = world
            .records()
            .filter_map(|record| record.fencing)
            .chain(writes)
            .collect();
        tokens.extend(world.store.lock.map(|lock| lock.token));
        tokens.sort_unstable();
        tokens.dedup();
        let members = world
            .records()
            .filter(|record| undone_by(name_of(record)).is_none());
        let times =
            |record: &Arc<Record>| [record.attempt.run_started_at, record.intent.created_at];
        let mut moments: Vec<Timestamp> = members.flat_map(times).collect();
        moments.sort_unstable();
        moments.dedup();
        let mut canon = Canon {
            bytes: Vec::with_capacity(256),
            now: world.now,
            past: self.longest_past(),
            is_saga: self.scene.group == super::scene::Group::Saga,
            has_tasks: self.has_tasks(),
            stored: &world.store,
            tool: &self.scene.tool,
            tokens: &tokens,
            moments: &moments,
            versions: if world.copy.is_some() {
                Versions::Counted(&lowest)
            } else {
                Versions::Newest
            },
        };
        canon.store(&world.store);
        match &world.copy {
            Some(copy) => canon.store(copy),
            None => canon.add(254),
        }
        canon.add(u8::from(world.is_closed) + 2 * u8::from(world.is_paused));
        canon.add(world.request);
        if let Some((id, seen)) = world.page {
            canon.add(number(id));
            canon.bytes.extend(&seen[..4]);
        }
        canon.add(world.tasks.len());
        world.tasks.iter().for_each(|task| canon.task(task));
        canon.add(world.requests.len());
        for request in &world.requests {
            canon.add(request.name);
            canon.add(number(request.call_id));
            canon.add(request.attempt);
            canon.add(request.executed.map_or(0, |effect| effect + 1));
            canon.add(u8::from(request.is_forgiven));
            canon.add(match request.task {
                Tasked::No => 0,
                Tasked::Given => 1,
                Tasked::Followed => 2,
                Tasked::Gone => 3,
            });
            canon.tick(request.until, 0);
        }
        for (name, truth) in &world.truth {
            canon.add(*name);
            canon.add(truth.call);
            canon.add(truth.effects);
            if self.scene.left.losses > 0 {
                canon.add(truth.earlier);
            }
            canon.add(truth.answered.map_or(0, |answered| answered + 1));
            canon.add(u8::from(truth.is_undone));
            match truth.settled_at {
                Some(since) => canon.tick(since, self.scene.window),
                None => canon.add(0),
            }
        }
        canon.bytes.extend(world.left.bytes());
        let half = |salt: u8| {
            let mut hasher = DefaultHasher::new();
            hasher.write_u8(salt);
            hasher.write(&canon.bytes);
            u128::from(hasher.finish())
        };
        half(1) << 64 | half(2)
    }
}
