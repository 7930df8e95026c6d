//! Ended calls whose arguments or results are over, and calls of a tool whose retention has changed.
//!
//! `oncegate_rules::call` decides about each call. Several gateways may do this at once: each change is made once.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::stream::{self, StreamExt as _};
use jiff::{SignedDuration, Timestamp};
use tokio::time::{Instant, sleep};

use super::prune::time_of_deletion;
use crate::base::Base;
use crate::base::lock::lock;
use crate::error::{Error, ErrorKind, of_store};
use crate::status::Status;
use crate::transition::{self, Moved, OnConflict};
use oncegate_rules::actor::By;
use oncegate_rules::call::{Event, Illegal};
use oncegate_rules::caller::Caller;
use oncegate_rules::ledger::{Filter, LIMITS};
use oncegate_rules::position::Position;
use oncegate_rules::record::Record;
use oncegate_rules::tool::Tool;
use oncegate_store::{self as store, LOST_DATA};

/// Calls that one round looks at, and how long it may take.
const OF_A_ROUND: (usize, Duration) = (20_000, Duration::from_secs(20));
/// Calls that are changed at once: beside live traffic, which shares the store's writes with them; and for an operator who waits.
const AT_ONCE: (usize, usize) = (16, 128);
/// How often a tool's calls are looked at: this many times in the time that they keep a body, within these bounds.
const LOOKS: u32 = 48;
const PAUSES: (Duration, Duration) = (Duration::from_secs(1), Duration::from_mins(10));
/// How often every call of a tool is looked at.
const DAY: Duration = Duration::from_hours(24);
/// How far the clocks of gateways may differ: a call may be made a little before a look, and be stored after it.
const CLOCKS: SignedDuration = SignedDuration::from_mins(1);

/// How long a store has to get ready for an operator who has just opened it, and how often that is looked at.
const GETS_READY: Duration = Duration::from_secs(30);
const LOOK_AGAIN: Duration = Duration::from_millis(200);

/// What a tool may store for a shorter time than its calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Body {
    Args,
    Result,
}

impl Body {
    const ALL: [Self; 2] = [Self::Args, Self::Result];

    fn time(self, tool: &Tool) -> Option<Duration> {
        match self {
            Self::Args => tool.args_for,
            Self::Result => tool.results_for,
        }
    }

    /// The settings of a tool without the time of the other body.
    fn alone(self, tool: Tool) -> Tool {
        match self {
            Self::Args => Tool {
                results_for: None,
                ..tool
            },
            Self::Result => Tool {
                args_for: None,
                ..tool
            },
        }
    }
}

/// How far the calls of a tenant and a tool are looked at, newest first.
struct Walk {
    span: Duration,
    /// Every call that was made before this has lost its body.
    since: Option<Timestamp>,
    /// Where the walk goes on, and until when its calls were made.
    next: Option<Position>,
    until: Timestamp,
    /// When the oldest call of the walk was made that still has its body.
    oldest: Option<Timestamp>,
    /// When the next walk begins.
    begins: Instant,
    /// When a walk last began with the oldest call.
    whole: Option<Instant>,
}

/// Deletes arguments and results whose time is over, and moves the retention of stored calls.
pub struct Expiry {
    base: Arc<Base>,
    status: Arc<Status>,
    walks: Mutex<HashMap<(String, String, Body), Walk>>,
}

impl Expiry {
    pub(crate) fn new(base: Arc<Base>, status: Arc<Status>) -> Self {
        let walks = Mutex::default();
        Self {
            base,
            status,
            walks,
        }
    }

    /// Deletes arguments and results of ended calls whose time is over, a bounded number. Returns of how many calls.
    ///
    /// As with retention, a wrong clock of the store or of this machine deletes nothing.
    ///
    /// # Errors
    /// The store failed; what was deleted stays so.
    pub async fn delete_bodies_once(&self) -> Result<u64, store::Error> {
        let tools = self.base.tools();
        let timed: Vec<(&str, Body, Duration)> = tools
            .values()
            .flat_map(|at| {
                let of = |body: Body| Some((at.tool.name.as_str(), body, body.time(&at.tool)?));
                Body::ALL.into_iter().filter_map(of)
            })
            .collect();
        // A gateway of 0.2.0 that shares the store would send the arguments of such a call as they are then.
        let store = &self.base.store;
        if timed.is_empty() || self.base.draining.is_cancelled() || !store.takes_new_acts() {
            return Ok(0);
        }
        let Some(now) = time_of_deletion(&self.base, &self.status).await else {
            return Ok(0);
        };
        let (mut looked, mut deleted, began) = (0, 0, Instant::now());
        for tenant in store.tenants().await? {
            for (tool, body, span) in &timed {
                let name = (tenant.clone(), (*tool).to_owned(), *body);
                let mut walk = self.walk_of(&name, *span, now);
                while walk.begins <= Instant::now() {
                    let done = self.look(&name, &mut walk, now).await;
                    let (calls, changed) = match done {
                        Ok(counts) => counts,
                        Err(error) => {
                            lock(&self.walks).insert(name, walk);
                            return Err(error);
                        }
                    };
                    looked += calls;
                    deleted += changed;
                    let is_spent = looked >= OF_A_ROUND.0 || began.elapsed() >= OF_A_ROUND.1;
                    if is_spent || self.base.draining.is_cancelled() {
                        lock(&self.walks).insert(name, walk);
                        return Ok(deleted);
                    }
                }
                lock(&self.walks).insert(name, walk);
            }
        }
        Ok(deleted)
    }

    /// The walk that goes on, or one that begins. After a reload that changes the time every call is looked at again.
    fn walk_of(&self, name: &(String, String, Body), span: Duration, now: Timestamp) -> Walk {
        let known = lock(&self.walks).remove(name);
        known.filter(|walk| walk.span == span).unwrap_or(Walk {
            span,
            since: None,
            next: None,
            until: now,
            oldest: None,
            begins: Instant::now(),
            whole: None,
        })
    }

    /// Looks at a page of calls. Returns how many there were, and how many were changed.
    async fn look(
        &self,
        (tenant, tool, body): &(String, String, Body),
        walk: &mut Walk,
        now: Timestamp,
    ) -> Result<(usize, u64), store::Error> {
        if walk.next.is_none() {
            // No call ends before it is made.
            let span = SignedDuration::try_from(walk.span).unwrap_or(SignedDuration::MAX);
            walk.until = now.checked_sub(span).unwrap_or(Timestamp::MIN);
            walk.oldest = None;
            // A failed call may have run again since it was looked at, and have a result now.
            if walk.whole.is_none_or(|whole| whole.elapsed() >= DAY) {
                (walk.since, walk.whole) = (None, Some(Instant::now()));
            }
        }
        let filter = Filter {
            tool: Some(tool.clone()),
            since: walk.since,
            until: Some(walk.until),
            ..Filter::default()
        };
        let store = &self.base.store;
        let page = store.list(tenant, &filter, walk.next, LIMITS.1).await?;
        let (calls, mut changed) = (page.found.len(), 0);
        let by = self.base.instance;
        let records = page.found.into_iter().map(|listed| listed.record);
        let deletions = records.map(async |record| {
            let made_at = record.intent.created_at;
            let tool = body.alone(self.base.policy_of(&record));
            let event = Event::BodiesOver { by };
            (made_at, self.apply(&tool, record, &event, now).await)
        });
        let mut deletions = stream::iter(deletions).buffer_unordered(AT_ONCE.0);
        while let Some((made_at, moved)) = deletions.next().await {
            match moved? {
                Moved::Written { .. } => changed += 1,
                Moved::Refused(_, Illegal::NothingLeft | Illegal::ErasedBefore) => {}
                Moved::Refused(..) | Moved::Unchanged(..) | Moved::Lost(_) => {
                    walk.oldest = Some(walk.oldest.map_or(made_at, |oldest| oldest.min(made_at)));
                }
            }
        }
        walk.next = page.next;
        if walk.next.is_none() {
            let whole = walk.oldest.unwrap_or(walk.until);
            walk.since = Some(whole.checked_sub(CLOCKS).unwrap_or(Timestamp::MIN));
            walk.begins = Instant::now() + (walk.span / LOOKS).clamp(PAUSES.0, PAUSES.1);
        }
        if changed > 0 {
            tracing::info!(
                tool,
                calls = changed,
                "arguments or results were deleted: args_for or results_for is over"
            );
        }
        Ok((calls, changed))
    }

    async fn apply(
        &self,
        tool: &Tool,
        record: Record,
        event: &Event,
        now: Timestamp,
    ) -> Result<Moved, store::Error> {
        let again = OnConflict::RetryOnLatest;
        transition::apply(&self.base, tool, record, event, now, again).await
    }

    /// Counts today's retention for the stored calls of each configured tool, or only says what that would change.
    ///
    /// # Errors
    /// The store does not answer, or is not ready: what it shows of a call may be older than what became of it. What was
    /// changed stays so.
    pub async fn apply_retention(
        &self,
        is_dry_run: bool,
    ) -> Result<BTreeMap<String, RetentionCounts>, Error> {
        let mut all = BTreeMap::new();
        self.must_be_ready(GETS_READY).await?;
        let tenants = self.base.store.tenants().await.map_err(of_store)?;
        for at in self.base.tools().values() {
            let counts: &mut RetentionCounts = all.entry(at.tool.name.clone()).or_default();
            for tenant in &tenants {
                let mut next = None;
                loop {
                    self.must_be_ready(Duration::ZERO).await?;
                    let page = (tenant.as_str(), at.tool.name.as_str(), next);
                    next = self
                        .apply_to(page, is_dry_run, counts)
                        .await
                        .map_err(of_store)?;
                    if next.is_none() {
                        break;
                    }
                }
            }
        }
        Ok(all)
    }

    /// Counts today's retention for a page of calls. Returns where the next one begins.
    async fn apply_to(
        &self,
        (tenant, tool, before): (&str, &str, Option<Position>),
        is_dry_run: bool,
        counts: &mut RetentionCounts,
    ) -> Result<Option<Position>, store::Error> {
        let filter = Filter {
            tool: Some(tool.to_owned()),
            ..Filter::default()
        };
        let event = Event::RetentionChanged {
            by: By::token(&Caller::operator().name, ""),
        };
        let store = &self.base.store;
        let page = store.list(tenant, &filter, before, LIMITS.1).await?;
        counts.unreadable += page.unreadable;
        let records = page.found.into_iter().map(|listed| listed.record);
        let changes = records.map(async |record| {
            let (now, before) = (self.base.now(), record.retain_until);
            let after = self.retain(record, &event, is_dry_run, now).await?;
            Ok::<_, store::Error>((before, after, now))
        });
        let mut changes = stream::iter(changes).buffer_unordered(AT_ONCE.1);
        while let Some(change) = changes.next().await {
            let (before, after, now) = change?;
            counts.add(before, after, now);
        }
        Ok(page.next)
    }

    /// Counts today's retention for a call. Returns the call as it is stored then; `None`: it is gone, or as before.
    async fn retain(
        &self,
        record: Record,
        event: &Event,
        is_dry_run: bool,
        now: Timestamp,
    ) -> Result<Result<Option<Record>, Illegal>, store::Error> {
        let policy = self.base.policy_of(&record);
        if is_dry_run {
            return Ok(transition::preview(&self.base, &policy, &record, event));
        }
        Ok(match self.apply(&policy, record, event, now).await? {
            Moved::Written { record, .. } => Ok(Some(record)),
            Moved::Refused(_, illegal) => Err(illegal),
            Moved::Unchanged(..) | Moved::Lost(_) => Ok(None),
        })
    }

    /// Waits this long until something stored may be changed by its age.
    async fn must_be_ready(&self, patience: Duration) -> Result<(), Error> {
        let began = Instant::now();
        while time_of_deletion(&self.base, &self.status).await.is_none() {
            let readiness = self.status.readiness().await;
            let mut reasons = readiness.reasons.iter();
            // Only an operator ends a loss.
            let is_lost = reasons.any(|reason| reason.code == LOST_DATA);
            if is_lost || began.elapsed() >= patience {
                let all = readiness.reasons.iter().chain(&readiness.warnings);
                let why: Vec<&str> = all.map(|reason| reason.text.as_str()).collect();
                let why = format!("the store is not ready: {}", why.join("; "));
                return Err(ErrorKind::WrongState(why).alone());
            }
            sleep(LOOK_AGAIN).await;
        }
        Ok(())
    }
}

/// What a tool's retention of today changes, in calls.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct RetentionCounts {
    /// Calls that are stored for a shorter time, and for a longer one.
    pub shorter: u64,
    pub longer: u64,
    /// Of the shorter ones: those that are deleted at once.
    pub over: u64,
    pub unchanged: u64,
    /// Calls that have not ended, or whose saga has not. They begin with the retention of their end.
    pub open: u64,
    /// Calls that cannot be read.
    pub unreadable: u64,
}

impl fmt::Display for RetentionCounts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            shorter,
            longer,
            over,
            unchanged,
            open,
            unreadable,
        } = self;
        write!(
            f,
            "{shorter} calls are stored for a shorter time ({over} of them are over now), {longer} for a longer one, {unchanged} as before; \
             {open} have not ended, {unreadable} cannot be read"
        )
    }
}

impl RetentionCounts {
    fn add(
        &mut self,
        before: Option<Timestamp>,
        after: Result<Option<Record>, Illegal>,
        now: Timestamp,
    ) {
        let until = match after {
            Ok(changed) => changed.and_then(|record| record.retain_until),
            Err(Illegal::NotEnded) => {
                self.open += 1;
                return;
            }
            Err(_) => None,
        };
        match (before, until) {
            (Some(before), Some(until)) if until < before => {
                self.shorter += 1;
                self.over += u64::from(until <= now);
            }
            (Some(_), Some(_)) => self.longer += 1,
            _ => self.unchanged += 1,
        }
    }
}
