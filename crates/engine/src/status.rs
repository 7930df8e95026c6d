//! The answers of the ops routes. However often they come, the store is asked at most once a second.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use jiff::{SignedDuration, Timestamp};
use tokio::sync::Mutex;
use tokio::time::{Instant, timeout};

use super::base::Base;
use super::key_schemes::KeySchemes;
use super::secret::KnownSecrets;
use crate::recovery::acceptance::Progress;
use crate::tools::pauses::Pauses;
use oncegate_rules::document::Kind;
use oncegate_rules::frozen::FROZEN;
use oncegate_rules::ledger::Filter;
use oncegate_rules::saga;
use oncegate_store::{self as store, Census, Readiness, Reason};

/// The answers of the ops routes.
pub struct Status {
    base: Arc<Base>,
    key_schemes: Arc<KeySchemes>,
    secrets: Arc<KnownSecrets>,
    pauses: Arc<Pauses>,
    acceptance: Arc<Progress>,
    scrape: Recent<Bytes>,
    readiness: Recent<Readiness>,
    counts: Mutex<Counts>,
    loss: Mutex<Option<Loss>>,
    /// Whether a shared store was open when it was last asked about.
    was_open: AtomicBool,
}

/// The newest answer to a question, and when the question was asked.
struct Recent<T>(Mutex<Option<(Instant, T)>>);

impl<T: Clone> Recent<T> {
    /// The answer, asked for again if it is too old. Concurrent requests wait and share it.
    async fn get(&self, max_age: Duration, ask: impl Future<Output = T>) -> T {
        let mut recent = self.0.lock().await;
        if let Some((at, answer)) = &*recent
            && at.elapsed() < max_age
        {
            return answer.clone();
        }
        let at = Instant::now();
        let answer = ask.await;
        *recent = Some((at, answer.clone()));
        answer
    }
}

/// The time of a loss of data, as far as it is known here.
struct Loss {
    noticed: Timestamp,
    /// The sentence about it, once the newest remaining call is known.
    sentence: Option<String>,
}

/// How long readiness waits for the newest call that remains after a loss. Later the search is made again.
const LOOKS_FOR: Duration = Duration::from_millis(500);

/// How far the clocks of tools may be behind this gateway's, for the time from which effects are looked for.
const CLOCKS_DIFFER: SignedDuration = SignedDuration::from_secs(60);

/// The sentence about a loss of what was written after a time.
///
/// That time comes from what was compared before gateways put lost calls back, which the newest call would not.
fn gap(until: Timestamp, noticed: Timestamp) -> String {
    let since = until.checked_sub(CLOCKS_DIFFER).unwrap_or(until);
    format!(
        "all that was written until {until:.3} is there, and this was noticed here at {noticed:.3}: look for what was done in between; reconcile since {since:.0}"
    )
}

/// The counts of the store when it was last asked.
#[derive(Default)]
struct Counts {
    unknown: Vec<Census>,
    sagas: Vec<(String, u64)>,
}

/// Raises each count to what it was before. Adds the counts that are missing now.
fn keep_at_least<T: Clone>(
    found: &mut Vec<T>,
    before: &[T],
    is_same: impl Fn(&T, &T) -> bool,
    count: impl Fn(&mut T) -> &mut u64,
) {
    for known in before {
        let mut known = known.clone();
        match found.iter_mut().find(|one| is_same(one, &known)) {
            Some(one) => *count(one) = (*count(one)).max(*count(&mut known)),
            None => found.push(known),
        }
    }
}

impl Status {
    pub(super) fn new(
        base: Arc<Base>,
        key_schemes: Arc<KeySchemes>,
        secrets: Arc<KnownSecrets>,
        pauses: Arc<Pauses>,
        acceptance: Arc<Progress>,
    ) -> Self {
        Self {
            base,
            key_schemes,
            secrets,
            pauses,
            acceptance,
            scrape: Recent(Mutex::default()),
            readiness: Recent(Mutex::default()),
            counts: Mutex::default(),
            loss: Mutex::default(),
            was_open: AtomicBool::default(),
        }
    }

    /// Whether calls may be claimed, and if not, why.
    pub async fn readiness(&self) -> Readiness {
        let found = self.base.store.readiness().await;
        self.readiness_with(found).await
    }

    /// The store's readiness, with reasons of this gateway.
    async fn readiness_with(&self, mut readiness: Readiness) -> Readiness {
        if self.base.is_out_of_time() {
            let why = "its clock was set forward since this gateway started: restart it";
            readiness.reasons.push(Reason::new("clock", why));
        }
        if readiness.reasons.is_empty() {
            self.key_schemes.look_at_key_schemes(&mut readiness).await;
        } else if self.secrets.has_lost_secret() {
            readiness.reasons.extend(self.secrets.trouble_with_secret());
        }
        let mut reasons = readiness.reasons.iter();
        let is_lost = reasons.any(|reason| matches!(reason.code, store::LOST_DATA | "secret"));
        readiness.reasons.extend(self.acceptance.reason(is_lost));
        if self.base.leaving.is_cancelled() {
            let reason = Reason::new("shutting_down", "the gateway is shutting down");
            readiness.reasons.push(reason);
        }
        readiness.warnings.extend(self.pauses.pause_warnings());
        readiness.warnings.extend(self.frozen_warning());
        self.base.metrics.take_readiness(&readiness);
        readiness
    }

    /// Adds to a loss of data when it was noticed here, and when the newest remaining call was made.
    async fn date_loss(&self, readiness: &mut Readiness) {
        let mut loss = self.loss.lock().await;
        let reasons = readiness.reasons.iter_mut();
        let lost: Vec<_> = reasons
            .filter(|reason| reason.code == store::LOST_DATA)
            .collect();
        if lost.is_empty() {
            *loss = None;
            return;
        }
        let loss = loss.get_or_insert_with(|| Loss {
            noticed: self.base.now(),
            sentence: None,
        });
        let noticed = loss.noticed;
        let until = match timeout(LOOKS_FOR, self.base.store.whole_until()).await {
            Ok(Ok(until)) => until,
            Ok(Err(_)) | Err(_) => None,
        };
        // No call is claimed until the loss is accepted, so the newest call stays the newest.
        if until.is_none() && loss.sentence.is_none() {
            loss.sentence = match timeout(LOOKS_FOR, self.newest_left()).await {
                Ok(Ok(Some(left))) => Some(format!(
                    "the newest call that is left was made at {left:.3}, and this was noticed here at {noticed:.3}: look for what was done in between, and also before, because gateways may have put their newest calls back"
                )),
                Ok(Ok(None)) => Some(format!(
                    "no call is left; this was noticed here at {noticed:.3}"
                )),
                Ok(Err(_)) | Err(_) => None,
            };
        }
        let whole = until.map(|until| gap(until, noticed));
        if let Some(sentence) = whole.as_ref().or(loss.sentence.as_ref()) {
            for reason in lost {
                reason.text = format!("{}; {sentence}", reason.text);
            }
        }
    }

    /// When the newest stored call was made.
    async fn newest_left(&self) -> Result<Option<Timestamp>, store::Error> {
        let filter = Filter {
            is_brief: true,
            ..Filter::default()
        };
        let mut newest = None;
        for tenant in self.base.store.tenants().await? {
            let page = self.base.store.list(&tenant, &filter, None, 1).await?;
            let made = page.found.first().map(|one| one.record.intent.created_at);
            newest = newest.max(made);
        }
        Ok(newest)
    }

    /// Counts the frozen sessions, for the warning about them.
    ///
    /// Readiness itself does not count them: it must not wait behind questions to the ledger.
    pub async fn count_frozen(&self) {
        // If the store does not answer, the last number stays.
        if let Ok(counts) = self.base.store.count_documents(Kind::Session).await {
            let frozen = counts.iter().find(|(state, _)| state == FROZEN);
            let frozen = frozen.map_or(0, |(_, count)| *count);
            let gauge = &self.base.metrics.frozen_sessions;
            gauge.set(i64::try_from(frozen).unwrap_or(i64::MAX));
        }
    }

    /// A warning, if sessions were frozen when they were last counted.
    fn frozen_warning(&self) -> Option<Reason> {
        let frozen = self.base.metrics.frozen_sessions.get();
        let text = format!(
            "sessions that an operator has frozen: {frozen} (GET /v1/sessions?frozen=true)"
        );
        (frozen > 0).then(|| Reason::new("session_frozen", text))
    }

    /// The metrics as text, with counts of the store. At most a second old.
    pub async fn scrape(&self) -> Bytes {
        let max_age = self.base.limits.timings.ask_store_every;
        self.scrape.get(max_age, self.scrape_now()).await
    }

    async fn scrape_now(&self) -> Bytes {
        let metrics = &self.base.metrics;
        let mut reasons = self.recent_readiness().await.reasons.into_iter();
        let is_lost = reasons.any(|reason| reason.code == store::LOST_DATA);
        let mut census = self.base.store.census().await.ok();
        let mut sagas = self.base.store.count_documents(Kind::Saga).await.ok();
        // Calls and sagas that the store has lost still need an operator, so no count falls until the loss is accepted.
        {
            let mut counts = self.counts.lock().await;
            if let Some(found) = &mut census {
                if is_lost {
                    let is_same = |one: &Census, other: &Census| {
                        (&one.tool, &one.state) == (&other.tool, &other.state)
                    };
                    keep_at_least(found, &counts.unknown, is_same, |one| &mut one.calls);
                }
                let unknown = found.iter().filter(|count| count.state == "unknown");
                counts.unknown = unknown.cloned().collect();
            }
            if let Some(found) = &mut sagas {
                if is_lost {
                    keep_at_least(found, &counts.sagas, |a, b| a.0 == b.0, |one| &mut one.1);
                }
                counts.sagas.clone_from(found);
            }
        }
        if let Some(sagas) = sagas {
            let count = |state: saga::State| {
                let found = sagas.iter().find(|(name, _)| name == state.as_str());
                found.map_or(0, |(_, count)| *count)
            };
            let states = saga::State::ALL.into_iter();
            let counts = states.map(|state| (state.as_str(), count(state)));
            metrics.take_sagas(counts, count(saga::State::Stuck));
        }
        metrics.take_space(self.base.store.space().await);
        let memory = &self.base.limits.memory;
        metrics.take_memory(memory.total(), memory.held(), memory.refused());
        let tools = self.base.tools();
        metrics.take_tools(tools.iter().map(|(tool, at)| {
            let is_open = !at.health.is_closed();
            (&tool[..], is_open, self.pauses.is_paused(tool))
        }));
        let settings = tools.values().map(|at| &at.tool);
        metrics.scrape(settings, census.as_deref()).into()
    }

    /// The same as [`readiness`](Self::readiness), at most a second old.
    pub async fn recent_readiness(&self) -> Readiness {
        let ask = async {
            let mut found = self.base.store.readiness().await;
            self.date_loss(&mut found).await;
            found
        };
        // A shared store is inspected all the time: that it has opened is known at once.
        let is_open =
            self.base.store.is_shared() && self.base.store.readiness().await.reasons.is_empty();
        let was_open = self.was_open.swap(is_open, Ordering::Relaxed);
        let max_age = if is_open && !was_open {
            Duration::ZERO
        } else {
            self.base.limits.timings.ask_store_every
        };
        let found = self.readiness.get(max_age, ask).await;
        self.readiness_with(found).await
    }
}
