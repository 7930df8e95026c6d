//! What is done about an anomaly. Each is a document, and whoever takes it does the work: at most one gateway
//! at a time, again if that fails, and again after a crash. Nothing of it has a second effect: a call is undone
//! and settled once, and what undoes a surplus effect is a call with a key that follows from the effect.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::{StreamExt, stream};
use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::report::AT_ONCE;
use super::{Act, Action, Listed, Reconciliation, Report, json_of, later, signed};
use crate::core::call::Event;
use crate::core::caller::RESERVED_TENANT;
use crate::core::compensation::{Policy, Template};
use crate::core::document::{Document, Kind as DocumentKind};
use crate::core::key;
use crate::core::outcome::Content;
use crate::core::reconcile::still::{self, Still};
use crate::core::reconcile::{Anomaly, Kind};
use crate::core::record::{CallId, Record, State};
use crate::core::saga::Hindrance;
use crate::core::tool::LEASE_MARGIN;
use crate::crash;
use crate::gateway::own::Own;
use crate::gateway::undo::hindrance_of;
use crate::gateway::{ErrorKind, Gateway, jitter};
use crate::store::{self, Put};

/// Anomalies that are taken up in one go.
const BATCH: u32 = 32;
/// How long others leave an anomaly alone that somebody works on, beyond what the work itself may take.
const TAKEN: Duration = Duration::from_secs(10);
/// How often it is tried to undo something, and how far apart all is tried: from a second to ten minutes.
const TRIES: u32 = 12;
const MAX_WAIT_S: f64 = 600.0;
/// What is not configured here may be at another gateway.
const ELSEWHERE: SignedDuration = SignedDuration::from_mins(10);

/// An anomaly, as it is kept.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Stored {
    reconciliation: String,
    /// The run that has found it.
    run: String,
    listed: Listed,
    /// What the source has, as far as it is needed for what is to be done. Of a call to be settled: its result.
    effect: Option<Value>,
    /// The call that undoes the effect, once that is decided: it is decided once, before anything is sent.
    #[serde(default)]
    undoing: Option<Undoing>,
    /// When the run that wants it done has found it, in microseconds.
    #[serde(default)]
    found_at: Option<i64>,
    /// False in what was written before calls that undo effects were decided on so.
    #[serde(default)]
    decides: bool,
    tries: u32,
    /// How often something was in the way.
    #[serde(default)]
    waits: u32,
    pub(super) error: Option<String>,
}

/// What names and makes a call that undoes an effect. Another one would undo it again.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Undoing {
    tool: String,
    key: String,
    args: Value,
}

impl Stored {
    pub(super) fn of(document: &Document) -> Option<Self> {
        serde_json::from_slice(&document.body).ok()
    }

    fn found_at(&self, document: &Document) -> Timestamp {
        let found_at = self.found_at.and_then(|found_at| Timestamp::from_microsecond(found_at).ok());
        found_at.unwrap_or(document.created_at)
    }
}

/// What came of an action.
enum Acted {
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
    if action == Act::Report { "reported" } else { "open" }
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
    let item = || anomaly.item.as_ref().and_then(|item| serde_json::from_slice::<Value>(&item.raw).ok());
    let pointer = of.source(&anomaly.source).and_then(|source| source.result.as_ref());
    let effect = match (action, pointer) {
        (Act::Report | Act::Webhook, _) => None,
        (Act::Settle, Some(pointer)) => item().and_then(|item| item.pointer(pointer.as_str()).cloned()),
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
    };
    (listed, stored)
}

impl Gateway {
    /// Writes down an anomaly; one of which nothing more was to be done may be taken up again. Answers whether no
    /// run had found it before.
    pub(super) async fn write_anomaly(
        &self,
        listed: &Listed,
        stored: &Stored,
        by_person: ByPerson,
        until: Timestamp,
    ) -> Result<bool, store::Error> {
        let now = self.now();
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
        let found = match self.counted("put_document", self.store.put_document(&document).await)? {
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
            let stored = Stored { undoing, decides, found_at, ..stored.clone() };
            let again = Document {
                state: listed.state.clone(),
                due_at: Some(now),
                retain_until: None,
                body: json_of(&stored),
                ..next(found)
            };
            // Whoever was faster takes it up.
            drop(self.counted("put_document", self.store.put_document(&again).await)?);
        }
        Ok(false)
    }

    /// Does at once what a run has found to be done.
    pub(super) async fn act_on(self: &Arc<Self>, report: &Report) {
        let mut work = Vec::new();
        for listed in report.anomalies.iter().filter(|listed| listed.action != Act::Report) {
            let (gateway, id) = (self.clone(), listed.id.clone());
            work.push(async move {
                let found = gateway.store.document(DocumentKind::Anomaly, "", &id).await;
                match gateway.counted("document", found) {
                    Ok(Some(document)) if document.due_at.is_some_and(|due| due <= gateway.now()) => {
                        gateway.work_on_anomaly(document).await;
                    }
                    // Somebody else does it, or the loop does.
                    Ok(_) | Err(_) => {}
                }
            });
        }
        stream::iter(work).buffer_unordered(AT_ONCE).collect::<Vec<()>>().await;
    }

    /// Works on a bounded number of anomalies whose time has come. Answers how many.
    ///
    /// # Errors
    /// The store failed; what was done so far stays so.
    pub async fn work_on_anomalies_once(self: &Arc<Self>, now: Timestamp) -> Result<usize, store::Error> {
        if self.draining.is_cancelled() || self.is_out_of_time() {
            return Ok(0);
        }
        let due = self.store.due_documents(DocumentKind::Anomaly, now, BATCH).await;
        let due = self.readable("due_documents", due)?;
        let count = due.len();
        let mut work = Vec::new();
        for document in due {
            let gateway = self.clone();
            work.push(async move { gateway.work_on_anomaly(document).await });
        }
        stream::iter(work).buffer_unordered(AT_ONCE).collect::<Vec<()>>().await;
        Ok(count)
    }

    async fn work_on_anomaly(self: &Arc<Self>, document: Document) {
        let Some(mut stored) = Stored::of(&document) else {
            tracing::error!(id = document.id, "an anomaly cannot be read");
            // It is not in the way of the others.
            let later = Document { due_at: Some(later(self.now(), ELSEWHERE)), ..next(document) };
            drop(self.counted("put_document", self.store.put_document(&later).await));
            return;
        };
        let Some(of) = self.reconciling.all.get(&stored.reconciliation) else {
            let later = Document { due_at: Some(later(self.now(), ELSEWHERE)), ..next(document) };
            drop(self.counted("put_document", self.store.put_document(&later).await));
            return;
        };
        stored.tries += 1;
        if stored.listed.action == Act::Compensate && is_surplus(&stored.listed) && stored.undoing.is_none() {
            // What is in the way is said when it is acted on.
            stored.undoing = self.undoing(of, &stored).await.ok();
        }
        let due_at = Some(later(self.now(), self.time_for(of, &stored)));
        let taken = Document { due_at, body: json_of(&stored), ..next(document) };
        // The one who writes this does the work.
        let put = self.counted("put_document", self.store.put_document(&taken).await);
        if !matches!(put, Ok(Put::Done)) {
            return;
        }
        crash::point("anomaly_taken");
        let acted = match stored.listed.action {
            Act::Report => Acted::Done,
            Act::Settle => self.settle_unknown(of, &stored).await,
            Act::Compensate if !of.compensates(&stored.listed.kind) => Acted::Reported,
            Act::Compensate => match self.has_lost_since(stored.found_at(&taken)).await {
                None => Acted::Hindered("it is not known whether the store has lost data since".into()),
                Some(true) => Acted::Never("the store has lost data since".into()),
                Some(false) => self.mend(of, &stored).await,
            },
            Act::Webhook => self.tell_of(&stored).await,
        };
        crash::point("anomaly_acted");
        let is_over = later(stored.found_at(&taken), of.retention) <= self.now();
        let acted = acted.bounded(stored.listed.action, stored.tries, is_over);
        if matches!(acted, Acted::Hindered(_)) {
            stored.tries -= 1;
            stored.waits += 1;
        }
        let pause = wait(stored.tries.max(stored.waits));
        let retain_until = Some(later(self.now(), of.retention));
        let (state, due_at, retain_until, error) = match acted {
            Acted::Done => ("done", None, retain_until, None),
            Acted::Reported => ("reported", None, retain_until, None),
            Acted::Never(why) => ("given_up", None, retain_until, Some(why)),
            Acted::Again(why) | Acted::Hindered(why) => {
                ("open", Some(later(self.now(), pause)), None, Some(why))
            }
        };
        if let Some(why) = &error {
            let (id, tries) = (&taken.id, stored.tries);
            tracing::error!(reconciliation = of.name, id, tries, state, why, "an anomaly was not mended");
        }
        stored.error = error;
        let body = json_of(&stored);
        let ended = Document { state: state.to_owned(), due_at, retain_until, body, ..next(taken) };
        drop(self.counted("put_document", self.store.put_document(&ended).await));
    }

    /// Whether calls may be missing by now that were known then; `None`: that cannot be seen.
    async fn has_lost_since(&self, then: Timestamp) -> Option<bool> {
        let whole_since = self.store.readiness().await.whole_since?;
        Some(then < whole_since)
    }

    fn time_for(&self, of: &Reconciliation, stored: &Stored) -> SignedDuration {
        let work = match stored.listed.action {
            Act::Webhook => self.reconciling.webhook.as_ref().map(|webhook| webhook.timeout),
            // That a call is undone is only begun here, after its tool was asked.
            Act::Compensate if is_surplus(&stored.listed) => {
                let undoes = self.template_for(of, &stored.listed).and_then(|by| self.tool_at(&by.tool));
                undoes.map(|at| at.tool.session.wait + at.tool.lease() + LEASE_MARGIN)
            }
            Act::Compensate => {
                of.tools.iter().filter_map(|tool| self.tool_at(tool)).map(|at| at.tool.timeout).max()
            }
            Act::Report | Act::Settle => None,
        };
        signed(TAKEN + work.unwrap_or_default())
    }

    /// How an effect at a source is undone.
    fn template_for(&self, of: &Reconciliation, listed: &Listed) -> Option<Template> {
        let tool = of.source(&listed.source)?.tool.as_ref()?;
        match &self.tool_at(tool)?.tool.compensation {
            Policy::By(template) => Some(template.clone()),
            Policy::Undeclared | Policy::Needless => None,
        }
    }

    /// An unknown call was executed, as the source shows; its duplicates get what the source has.
    async fn settle_unknown(&self, of: &Reconciliation, stored: &Stored) -> Acted {
        let Some(call_id) = call_id(stored) else { return Acted::Never("its call has no id".into()) };
        let content = match stored.effect.as_ref().map(Value::to_string) {
            None => Content::Unavailable("the source does not have it".into()),
            Some(result) if result.len() > self.downstream.max_result() => {
                Content::Unavailable("what the source has is longer than server.max_result".into())
            }
            Some(result) => Content::Kept(Bytes::from(result)),
        };
        let event = Event::Reconciled { by: of.name.clone(), content };
        match self.apply(call_id, &event).await {
            Ok(Some(Ok(record))) => {
                tracing::warn!(%call_id, tool = record.intent.tool, trace_id = record.intent.trace_id, "an unknown call was settled by a source");
                Acted::Done
            }
            // It is not unknown any more, but it may be again.
            Ok(Some(Err(_))) => match self.counted("load", self.store.load(call_id).await) {
                Ok(record) => match still::unsettled(record.as_ref()) {
                    Still::Holds => Acted::Done,
                    Still::NotYet(why) => Acted::Hindered(why),
                    Still::Never(why) => Acted::Never(why),
                },
                Err(error) => Acted::Hindered(error.to_string()),
            },
            Ok(None) => Acted::Never("the call is gone".into()),
            Err(error) => Acted::Hindered(error.to_string()),
        }
    }

    async fn mend(self: &Arc<Self>, of: &Reconciliation, stored: &Stored) -> Acted {
        let listed = &stored.listed;
        if is_surplus(listed) {
            return self.undo_surplus(of, stored).await;
        }
        let Some(call_id) = call_id(stored) else { return Acted::Never("its call has no id".into()) };
        match self.counted("load", self.store.load(call_id).await) {
            Ok(Some(record)) if record.is_skipped() => {
                return Acted::Never("a person has decided that its effect stands".into());
            }
            Ok(Some(Record { state: State::Running | State::Unknown(_), .. })) => {
                return Acted::Hindered("it is not known how the call ends".into());
            }
            // Two looks at one list are one witness; the tool is another.
            Ok(Some(record)) if listed.kind == Kind::Missing.as_str() => {
                let Some(at) = self.tool_at(&record.intent.tool) else {
                    return Acted::Hindered("its tool is not configured here".into());
                };
                let (found, _) = self.probe(&at, &record.intent.lookup.for_tool()).await;
                match still::missing(&found) {
                    Still::Holds => {}
                    Still::NotYet(why) => return Acted::Again(why),
                    Still::Never(why) => return Acted::Never(why),
                }
            }
            Ok(_) => {}
            Err(error) => return Acted::Hindered(error.to_string()),
        }
        let by = format!("reconciliation {}", of.name);
        match self.compensate_call(call_id, &by, &listed.detail).await {
            // From here on the queue of compensations sees to it.
            Ok(_) => Acted::Done,
            Err(error) => match error.kind {
                ErrorKind::StoreUnavailable => Acted::Hindered(error.to_string()),
                kind => Acted::Never(kind.to_string()),
            },
        }
    }

    /// The call that undoes an effect, as it is to be made now, if the effect is still too much.
    async fn undoing(&self, of: &Reconciliation, stored: &Stored) -> Result<Undoing, Acted> {
        let listed = &stored.listed;
        let template = self.template_for(of, listed);
        let template = template.ok_or_else(|| Acted::Never("its tool declares no compensation".into()))?;
        let call = self.call_of(stored).await?;
        let kind = if listed.kind == Kind::Orphan.as_str() { Kind::Orphan } else { Kind::Duplicate };
        match still::surplus(kind, call.as_ref(), &listed.effect) {
            Still::Holds => {}
            Still::NotYet(why) => return Err(Acted::Hindered(why)),
            Still::Never(why) => return Err(Acted::Never(why)),
        }
        let effect = stored.effect.as_ref();
        let effect = effect.ok_or_else(|| Acted::Never("what to undo is not kept".into()))?;
        let args = match &call {
            Some(record) => template.args_from(record, Some(effect)),
            None => template.args_of_effect(effect),
        };
        let tool = of.source(&listed.source).and_then(|source| source.tool.clone()).unwrap_or_default();
        let args = args.map_err(Acted::Never)?;
        Ok(Undoing { tool: template.tool, key: key_of(&tool, listed), args })
    }

    /// The call that an anomaly is about, if there is one and it is kept.
    async fn call_of(&self, stored: &Stored) -> Result<Option<Record>, Acted> {
        let Some(call_id) = call_id(stored) else { return Ok(None) };
        let found = self.counted("load", self.store.load(call_id).await);
        found.map_err(|error| Acted::Hindered(error.to_string()))
    }

    /// Undoes one effect at a source, by the compensation of the tool that has made it.
    async fn undo_surplus(self: &Arc<Self>, of: &Reconciliation, stored: &Stored) -> Acted {
        let now = match self.undoing(of, stored).await {
            Ok(now) => now,
            Err(acted) => return acted,
        };
        let Some(undoing) = &stored.undoing else {
            return Acted::Hindered("how it is undone could not be written down".into());
        };
        if !stored.decides && stored.tries > 1 {
            return Acted::Never("a gateway of before may have begun to undo it in another way".into());
        }
        if now != *undoing {
            return Acted::Never("it would be undone in another way than was decided on".into());
        }
        let call = match self.call_of(stored).await {
            Ok(call) => call.map(|record| record.intent),
            Err(acted) => return acted,
        };
        let own = Own {
            // One effect has one key, whatever it is taken for, and by whom; and no tenant reads of another's.
            tenant: RESERVED_TENANT.to_owned(),
            tool: undoing.tool.clone(),
            key: undoing.key.clone(),
            args: undoing.args.clone(),
            call_id: None,
            user_id: call.as_ref().map_or_else(String::new, |call| call.user_id.clone()),
            session_id: String::new(),
            saga_id: String::new(),
            trace_id: call.map_or_else(String::new, |call| call.trace_id.clone()),
        };
        match self.run_own(own).await {
            Ok(record) => ended(&record),
            Err(ErrorKind::InvalidArguments(mistakes)) => {
                Acted::Never(format!("its arguments: {mistakes:?}"))
            }
            Err(kind) => match hindrance_of(&kind) {
                Hindrance::Busy | Hindrance::Unknown => Acted::Hindered(kind.to_string()),
                Hindrance::Failed => Acted::Again(kind.to_string()),
                Hindrance::Final => Acted::Never(kind.to_string()),
            },
        }
    }

    async fn tell_of(&self, stored: &Stored) -> Acted {
        let told = serde_json::json!({
            "reconciliation": stored.reconciliation,
            "run": stored.run,
            "anomaly": stored.listed,
        });
        match self.notify("anomaly", &stored.listed.id, &told).await {
            Ok(()) => Acted::Done,
            Err(why) => Acted::Again(why),
        }
    }
}

/// What came of the call that undoes an effect.
fn ended(compensation: &Record) -> Acted {
    let call_id = compensation.intent.call_id;
    match &compensation.state {
        State::Succeeded(_) => Acted::Done,
        State::Failed(failure) => Acted::Again(format!("its compensation {call_id} failed: {}", failure.why)),
        State::Running | State::Unknown(_) => {
            Acted::Hindered(format!("it is not known how its compensation {call_id} ended"))
        }
        State::Compensating(_) | State::Compensated(_) | State::Stuck(_) => {
            Acted::Never(format!("its compensation {call_id} was undone itself"))
        }
    }
}

fn next(document: Document) -> Document {
    Document { version: document.version + 1, ..document }
}

fn call_id(stored: &Stored) -> Option<CallId> {
    stored.listed.call_id.as_ref()?.parse().ok().map(CallId)
}

fn is_surplus(listed: &Listed) -> bool {
    [Kind::Orphan, Kind::Duplicate].iter().any(|kind| kind.as_str() == listed.kind)
}

/// The key of the call that undoes an effect, whatever the effect was taken for.
fn key_of(tool: &str, listed: &Listed) -> String {
    let digest = key::digest(["effect", tool, &listed.effect]);
    format!("{}effect-{}", key::COMPENSATION, hex::encode(&digest[..16]))
}

fn wait(tries: u32) -> SignedDuration {
    let seconds = 2_f64.powi(i32::try_from(tries).unwrap_or(i32::MAX).min(16)).min(MAX_WAIT_S);
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
        assert_eq!(after(Acted::Again, Act::Compensate, TRIES - 1, false), "again");
        assert_eq!(after(Acted::Again, Act::Compensate, TRIES, false), "never");
        assert_eq!(after(Acted::Hindered, Act::Compensate, TRIES, false), "hindered");
        assert_eq!(after(Acted::Again, Act::Webhook, 1_000, false), "again");
        for acted in [Acted::Again, Acted::Hindered] {
            assert_eq!(after(acted, Act::Webhook, 1, true), "never");
        }
        assert!(wait(1_000) <= SignedDuration::from_mins(10));
    }
}
