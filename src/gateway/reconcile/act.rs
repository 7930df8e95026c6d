//! What is done about an anomaly. Each is a document, and whoever takes it does the work: at most one gateway
//! at a time, again if that fails, and again after a crash.

use std::sync::Arc;

use futures_util::{StreamExt, stream};
use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::mend::is_surplus;
use super::report::AT_ONCE;
use super::{Act, Action, Listed, Reconciler, Reconciliation, Report, json_of, later, signed};
use crate::core::document::{Document, Kind as DocumentKind};
use crate::core::reconcile::{Anomaly, Kind};
use crate::crash;
use crate::gateway::ids::jitter;
use crate::store::{self, Put};

/// The state of an anomaly about which something is still to be done.
const OPEN: &str = "open";
/// Anomalies of one page.
const LISTED: u32 = 500;
/// Anomalies that are taken up in one go.
const BATCH: u32 = 32;
/// How often it is tried to undo something, and how far apart all is tried: from a second to ten minutes.
const TRIES: u32 = 12;
const MAX_WAIT_S: f64 = 600.0;
/// What is not configured here may be at another gateway.
const ELSEWHERE: SignedDuration = SignedDuration::from_mins(10);

/// An anomaly, as it is kept.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Stored {
    pub(super) reconciliation: String,
    /// The run that has found it.
    pub(super) run: String,
    pub(super) listed: Listed,
    /// What the source has, as far as it is needed for what is to be done. Of a call to be settled: its result.
    pub(super) effect: Option<Value>,
    /// The call that undoes the effect, once that is decided: it is decided once, before anything is sent.
    #[serde(default)]
    pub(super) undoing: Option<Undoing>,
    /// When the run that wants it done has found it, in microseconds.
    #[serde(default)]
    pub(super) found_at: Option<i64>,
    /// False in what was written before calls that undo effects were decided on so.
    #[serde(default)]
    pub(super) decides: bool,
    pub(super) tries: u32,
    /// How often something was in the way.
    #[serde(default)]
    pub(super) waits: u32,
    pub(super) error: Option<String>,
    /// A gateway works on it, and is given until it is due.
    #[serde(default)]
    pub(super) is_taken: bool,
}

/// What names and makes a call that undoes an effect. Another one would undo it again.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Undoing {
    pub(super) tool: String,
    pub(super) key: String,
    pub(super) args: Value,
}

impl Stored {
    pub(super) fn of(document: &Document) -> Option<Self> {
        serde_json::from_slice(&document.body).ok()
    }

    fn found_at(&self, document: &Document) -> Timestamp {
        let found_at = self
            .found_at
            .and_then(|found_at| Timestamp::from_microsecond(found_at).ok());
        found_at.unwrap_or(document.created_at)
    }
}

/// What came of an action.
pub(super) enum Acted {
    Done,
    /// It is not wanted any more that anything is done.
    Reported,
    /// Something was sent, and it did not help.
    Again(String),
    /// Nothing could be sent, or it is not known yet how that ended: it counts as no try.
    Hindered(String),
    Never(String),
}

impl Acted {
    /// Nothing is tried for ever: neither what keeps failing, but for a webhook, which may be down for long, nor
    /// anything when its time is over.
    fn bounded(self, action: Act, tries: u32, is_over: bool) -> Self {
        match self {
            Self::Again(why) | Self::Hindered(why) if is_over => Self::Never(why),
            Self::Again(why) if tries >= TRIES && action != Act::Webhook => Self::Never(why),
            acted => acted,
        }
    }
}

/// The state of an anomaly about which nothing was done yet.
pub(super) fn first_state(action: Act) -> &'static str {
    if action == Act::Report {
        "reported"
    } else {
        OPEN
    }
}

/// Whether an anomaly that is found again is worked on again: one that was only reported, what a call that is still
/// unknown was to be settled by, and what was given up if a person wants that.
fn is_taken_up(state: &str, action: Act, by_person: ByPerson) -> bool {
    match (state, action) {
        ("reported", _) | ("done", Act::Settle) => true,
        ("given_up", _) => by_person == ByPerson::Yes,
        _ => false,
    }
}

/// Whether a person has asked for a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ByPerson {
    Yes,
    No,
}

/// What is to be done about an anomaly.
pub(super) fn plan(of: &Reconciliation, run: &str, anomaly: Anomaly) -> (Listed, Stored) {
    let action = match (anomaly.kind, of.on.get(&anomaly.kind)) {
        (Kind::Settled, _) => Act::Settle,
        // Nothing is undone on a guess.
        (_, Some(Action::Compensate)) if anomaly.doubt.is_some() => Act::Report,
        (_, Some(Action::Compensate)) => Act::Compensate,
        (_, Some(Action::Webhook)) => Act::Webhook,
        (_, Some(Action::Report) | None) => Act::Report,
    };
    let mut listed = Listed::of(&of.name, &anomaly, action);
    if let Some(doubt) = anomaly.doubt {
        listed.detail += &format!("; {doubt}, so nothing is undone");
    }
    let item = || {
        anomaly
            .item
            .as_ref()
            .and_then(|item| serde_json::from_slice::<Value>(&item.raw).ok())
    };
    let pointer = of
        .source(&anomaly.source)
        .and_then(|source| source.result.as_ref());
    let effect = match (action, pointer) {
        (Act::Report | Act::Webhook, _) => None,
        (Act::Settle, Some(pointer)) => {
            item().and_then(|item| item.pointer(pointer.as_str()).cloned())
        }
        (Act::Compensate | Act::Settle, _) => item(),
    };
    let stored = Stored {
        reconciliation: of.name.clone(),
        run: run.to_owned(),
        listed: listed.clone(),
        effect,
        undoing: None,
        found_at: None,
        decides: true,
        tries: 0,
        waits: 0,
        error: None,
        is_taken: false,
    };
    (listed, stored)
}

impl Reconciler {
    /// Writes down an anomaly; one of which nothing more was to be done may be taken up again. Answers whether no
    /// run had found it before.
    pub(super) async fn write_anomaly(
        &self,
        listed: &Listed,
        stored: &Stored,
        by_person: ByPerson,
        until: Timestamp,
    ) -> Result<bool, store::Error> {
        let now = self.base.now();
        let is_open = listed.action != Act::Report;
        let document = Document {
            kind: DocumentKind::Anomaly,
            tenant: String::new(),
            id: listed.id.clone(),
            version: 1,
            state: listed.state.clone(),
            created_at: now,
            due_at: is_open.then_some(now),
            retain_until: Some(until).filter(|_| !is_open),
            body: json_of(stored),
        };
        let found = match self.base.store.put_document(&document).await? {
            Put::Done => return Ok(true),
            Put::Lost(None) => return Ok(false),
            Put::Lost(Some(found)) => found,
        };
        let before = Stored::of(&found);
        if is_open && is_taken_up(&found.state, listed.action, by_person) {
            // What was decided on stays: it may have been begun.
            let undoing = before.as_ref().and_then(|before| before.undoing.clone());
            let decides = before.is_some_and(|before| before.decides);
            let found_at = Some(now.as_microsecond());
            let stored = Stored {
                undoing,
                decides,
                found_at,
                ..stored.clone()
            };
            let again = Document {
                state: listed.state.clone(),
                due_at: Some(now),
                retain_until: None,
                body: json_of(&stored),
                ..next(found)
            };
            // Whoever was faster takes it up.
            drop(self.base.store.put_document(&again).await?);
        }
        Ok(false)
    }

    /// Does at once what a run has found to be done.
    pub(super) async fn act_on(self: &Arc<Self>, report: &Report) {
        let mut work = Vec::new();
        for listed in report
            .anomalies
            .iter()
            .filter(|listed| listed.action != Act::Report)
        {
            let (gateway, id) = (self.clone(), listed.id.clone());
            work.push(async move {
                let found = gateway
                    .base
                    .store
                    .document(DocumentKind::Anomaly, "", &id)
                    .await;
                match found {
                    Ok(Some(document))
                        if document.due_at.is_some_and(|due| due <= gateway.base.now()) =>
                    {
                        gateway.work_on_anomaly(document).await;
                    }
                    // Somebody else does it, or the loop does.
                    Ok(_) | Err(_) => {}
                }
            });
        }
        stream::iter(work)
            .buffer_unordered(AT_ONCE)
            .collect::<Vec<()>>()
            .await;
    }

    /// Works on a bounded number of anomalies whose time has come. Answers how many.
    ///
    /// # Errors
    /// The store failed; what was done so far stays so.
    pub async fn work_on_anomalies_once(
        self: &Arc<Self>,
        now: Timestamp,
    ) -> Result<usize, store::Error> {
        if self.base.draining.is_cancelled() || self.base.is_out_of_time() {
            return Ok(0);
        }
        let due = self
            .base
            .store
            .due_documents(DocumentKind::Anomaly, now, BATCH)
            .await;
        let due = self.base.readable("due_documents", due)?;
        let count = due.len();
        let mut work = Vec::new();
        for document in due {
            let gateway = self.clone();
            work.push(async move { gateway.work_on_anomaly(document).await });
        }
        stream::iter(work)
            .buffer_unordered(AT_ONCE)
            .collect::<Vec<()>>()
            .await;
        Ok(count)
    }

    /// Makes due what the last run of this gateway has left in the middle. Only where no other gateway can be at it.
    /// What cannot be freed now is due when its time is over.
    pub async fn free_anomalies(&self) {
        if self.base.store.is_shared() {
            return;
        }
        let (mut before, mut is_first) = (None, true);
        while std::mem::take(&mut is_first) || before.is_some() {
            let found = self
                .base
                .store
                .documents(
                    DocumentKind::Anomaly,
                    None,
                    Some(OPEN),
                    before.as_ref(),
                    LISTED,
                )
                .await;
            let Ok((found, next_page)) = self.base.readable_page(found) else {
                return;
            };
            for document in found {
                let Some(stored) = Stored::of(&document).filter(|stored| stored.is_taken) else {
                    continue;
                };
                let body = json_of(&Stored {
                    is_taken: false,
                    ..stored
                });
                let freed = Document {
                    due_at: Some(self.base.now()),
                    body,
                    ..next(document)
                };
                drop(self.base.store.put_document(&freed).await);
            }
            before = next_page;
        }
    }

    async fn work_on_anomaly(self: &Arc<Self>, document: Document) {
        let Some(mut stored) = Stored::of(&document) else {
            tracing::error!(id = document.id, "an anomaly cannot be read");
            // It is not in the way of the others.
            let later = Document {
                due_at: Some(later(self.base.now(), ELSEWHERE)),
                ..next(document)
            };
            drop(self.base.store.put_document(&later).await);
            return;
        };
        let Some(of) = self.all.get(&stored.reconciliation) else {
            let later = Document {
                due_at: Some(later(self.base.now(), ELSEWHERE)),
                ..next(document)
            };
            drop(self.base.store.put_document(&later).await);
            return;
        };
        stored.tries += 1;
        if stored.listed.action == Act::Compensate
            && is_surplus(&stored.listed)
            && stored.undoing.is_none()
        {
            // What is in the way is said when it is acted on.
            stored.undoing = self.undoing(of, &stored).await.ok();
        }
        let due_at = Some(later(self.base.now(), self.time_for(of, &stored)));
        stored.is_taken = true;
        let taken = Document {
            due_at,
            body: json_of(&stored),
            ..next(document)
        };
        // The one who writes this does the work.
        let put = self.base.store.put_document(&taken).await;
        if !matches!(put, Ok(Put::Done)) {
            return;
        }
        crash::point("anomaly_taken");
        let acted = match stored.listed.action {
            Act::Report => Acted::Done,
            Act::Settle => self.settle_unknown(of, &stored).await,
            Act::Compensate if !of.compensates(&stored.listed.kind) => Acted::Reported,
            Act::Compensate => match self.has_lost_since(stored.found_at(&taken)).await {
                None => {
                    Acted::Hindered("it is not known whether the store has lost data since".into())
                }
                Some(true) => Acted::Never("the store has lost data since".into()),
                Some(false) => self.mend(of, &stored).await,
            },
            Act::Webhook => self.tell_of(&stored).await,
        };
        crash::point("anomaly_acted");
        let is_over = later(stored.found_at(&taken), of.retention) <= self.base.now();
        let acted = acted.bounded(stored.listed.action, stored.tries, is_over);
        if matches!(acted, Acted::Hindered(_)) {
            stored.tries -= 1;
            stored.waits += 1;
        }
        let pause = wait(stored.tries.max(stored.waits));
        let retain_until = Some(later(self.base.now(), of.retention));
        let (state, due_at, retain_until, error) = match acted {
            Acted::Done => ("done", None, retain_until, None),
            Acted::Reported => ("reported", None, retain_until, None),
            Acted::Never(why) => ("given_up", None, retain_until, Some(why)),
            Acted::Again(why) | Acted::Hindered(why) => {
                (OPEN, Some(later(self.base.now(), pause)), None, Some(why))
            }
        };
        if let Some(why) = &error {
            let (id, tries) = (&taken.id, stored.tries);
            tracing::error!(
                reconciliation = of.name,
                id,
                tries,
                state,
                why,
                "an anomaly was not mended"
            );
        }
        stored.error = error;
        stored.is_taken = false;
        let body = json_of(&stored);
        let ended = Document {
            state: state.to_owned(),
            due_at,
            retain_until,
            body,
            ..next(taken)
        };
        drop(self.base.store.put_document(&ended).await);
    }

    /// Whether calls may be missing by now that were known then; `None`: that cannot be seen.
    async fn has_lost_since(&self, then: Timestamp) -> Option<bool> {
        let whole_since = self.base.store.readiness().await.whole_since?;
        Some(then < whole_since)
    }

    fn time_for(&self, of: &Reconciliation, stored: &Stored) -> SignedDuration {
        let work = match stored.listed.action {
            Act::Webhook => self
                .notifier
                .webhook
                .as_ref()
                .map(|webhook| webhook.timeout),
            // That a call is undone is only begun here, after its tool was asked.
            Act::Compensate if is_surplus(&stored.listed) => {
                let undoes = self
                    .template_for(of, &stored.listed)
                    .and_then(|by| self.base.tool_at(&by.tool));
                undoes.map(|at| at.tool.longest())
            }
            Act::Compensate => of
                .tools
                .iter()
                .filter_map(|tool| self.base.tool_at(tool))
                .map(|at| at.tool.timeout)
                .max(),
            Act::Report | Act::Settle => None,
        };
        signed(self.base.limits.pace.work_margin + work.unwrap_or_default())
    }
}

fn next(document: Document) -> Document {
    Document {
        version: document.version + 1,
        ..document
    }
}

fn wait(tries: u32) -> SignedDuration {
    let seconds = 2_f64
        .powi(i32::try_from(tries).unwrap_or(i32::MAX).min(16))
        .min(MAX_WAIT_S);
    SignedDuration::try_from_secs_f64(seconds * (0.5 + jitter() / 2.0)).unwrap_or(ELSEWHERE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_was_sent_counts_as_a_try_and_a_webhook_is_told_until_its_time_is_over() {
        let word = |acted: Acted| match acted {
            Acted::Done | Acted::Reported => "done",
            Acted::Again(_) => "again",
            Acted::Hindered(_) => "hindered",
            Acted::Never(_) => "never",
        };
        let after = |acted: fn(String) -> Acted, action, tries, is_over| {
            word(acted(String::new()).bounded(action, tries, is_over))
        };
        assert_eq!(
            after(Acted::Again, Act::Compensate, TRIES - 1, false),
            "again"
        );
        assert_eq!(after(Acted::Again, Act::Compensate, TRIES, false), "never");
        assert_eq!(
            after(Acted::Hindered, Act::Compensate, TRIES, false),
            "hindered"
        );
        assert_eq!(after(Acted::Again, Act::Webhook, 1_000, false), "again");
        for acted in [Acted::Again, Acted::Hindered] {
            assert_eq!(after(acted, Act::Webhook, 1, true), "never");
        }
        assert!(wait(1_000) <= SignedDuration::from_mins(10));
    }
}
