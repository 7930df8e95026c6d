//! Tells the webhook of calls that wait for approval. What is told, and when, is decided by `rules::approval::notice`.
//!
//! Nothing else depends on it. Gateways compete for each notice by compare-and-swap, so one of them tells it; a message is
//! repeated only if it failed, or if its gateway ended meanwhile.

use std::sync::Arc;

use futures_util::{StreamExt, stream};
use jiff::{SignedDuration, Timestamp};
use reqwest::Url;
use serde_json::{Value, json};

use crate::base::Base;
use crate::base::ids::jitter;
use crate::webhook::Notifier;
use oncegate_hooks::crash;
use oncegate_rules::approval::notice::{Message, Notice, Step, shown_values};
use oncegate_rules::document::{Document, Kind};
use oncegate_rules::record::{CallId, Record};
use oncegate_rules::time::after;
use oncegate_rules::{json as strict, redact};
use oncegate_store::{self as store, Put};

/// Notices that one round takes.
const BATCH: u32 = 64;
/// Notices that are worked on at once.
const AT_ONCE: usize = 8;
/// How often a notice is written that keeps changing.
const ROUNDS: usize = 8;
/// Most messages about one call in one round.
const MESSAGES: usize = 4;
/// When an unreadable notice is looked at again: another gateway may be able to read it.
const ELSEWHERE: SignedDuration = SignedDuration::from_mins(10);

/// Tells the webhook of calls that wait for approval.
pub struct Notices {
    pub(crate) base: Arc<Base>,
    pub(crate) notifier: Arc<Notifier>,
}

impl Notices {
    /// Notes that a call is about to wait for approval, before it does, so that no end of a process loses that.
    ///
    /// # Errors
    /// The store failed: the call may not wait.
    pub(crate) async fn expect(&self, call_id: CallId) -> Result<(), store::Error> {
        if self.notifier.webhook.is_none() {
            return Ok(());
        }
        for _ in 0..ROUNDS {
            let earlier = self.document(call_id).await?;
            let earlier = earlier.and_then(|document| Notice::from_document(&document).ok());
            let notice = Notice::expected(call_id, earlier, self.base.now());
            if self.put(&notice).await? {
                crash::point("notice_expected");
                return Ok(());
            }
        }
        Err(store::Error::Refused("a notice keeps changing".into()))
    }

    /// Tells what is due, and what this process has changed. Returns how many notices it has worked on.
    ///
    /// # Errors
    /// The store failed; what was told stays so.
    pub async fn run_once(&self, now: Timestamp) -> Result<usize, store::Error> {
        let changed = self.base.decided.take();
        let is_idle = self.notifier.webhook.is_none()
            || self.base.draining.is_cancelled()
            || self.base.is_out_of_time();
        if is_idle {
            return Ok(0);
        }
        let due = self
            .base
            .store
            .due_documents(Kind::Notice, now, BATCH)
            .await;
        let due = self.base.readable("due_documents", due)?;
        let mut found: Vec<(Document, bool)> = due.into_iter().map(|one| (one, false)).collect();
        for call_id in changed {
            let is_due = |one: &(Document, bool)| one.0.id == call_id.to_string();
            if !found.iter().any(is_due)
                && let Some(document) = self.document(call_id).await?
            {
                found.push((document, true));
            }
        }
        let count = found.len();
        let work = found
            .into_iter()
            .map(|(document, hurries)| self.look_at(document, hurries, now));
        stream::iter(work)
            .buffer_unordered(AT_ONCE)
            .collect::<Vec<()>>()
            .await;
        Ok(count)
    }

    /// Works on one notice. Errors are logged where they happen, and a later round goes on.
    async fn look_at(&self, document: Document, hurries: bool, now: Timestamp) {
        let Ok(mut notice) = Notice::from_document(&document) else {
            tracing::error!(id = document.id, "a notice cannot be read");
            let later = after(self.base.now(), ELSEWHERE);
            return self.base.put_aside(document, later).await;
        };
        if hurries && !notice.may_hurry(now) {
            return;
        }
        for _ in 0..MESSAGES {
            let now = now.max(self.base.now());
            let Ok(record) = self.base.store.load(notice.call_id).await else {
                return;
            };
            let (message, ask) = match notice.step(record.as_ref(), now) {
                Step::Tell { message, ask } => (message, ask),
                Step::Wait(until) => return drop(self.put(&notice.waiting(until)).await),
                Step::Over => return drop(self.put(&notice.over(now)).await),
            };
            let Some(record) = record else { return };
            let timeout = self.notifier.webhook.as_ref().map(|at| at.timeout);
            let busy_until = self.base.busy_until(now, timeout.unwrap_or_default());
            let taken = notice.taken(busy_until);
            // The gateway that writes this tells it.
            if !matches!(self.put(&taken).await, Ok(true)) {
                return;
            }
            crash::point("notice_taken");
            let requested = record.proposal.as_ref().map_or(0, |asked| asked.requested);
            let about = (ask, requested);
            let next = match self.tell(&record, message, ask).await {
                Ok(()) => taken.delivered(message, about, self.base.now()),
                Err(why) => match taken.failed(jitter(), self.base.now()) {
                    Some(later) => {
                        tracing::warn!(
                            call_id = %record.intent.call_id,
                            trace_id = record.intent.trace_id,
                            event = message.event(),
                            why,
                            "the webhook could not be notified"
                        );
                        return drop(self.put(&later).await);
                    }
                    None => {
                        tracing::error!(
                            call_id = %record.intent.call_id,
                            trace_id = record.intent.trace_id,
                            event = message.event(),
                            why,
                            "a notice is given up: the webhook has not taken it for a day"
                        );
                        taken.delivered(message, about, self.base.now())
                    }
                },
            };
            crash::point("notice_told");
            match self.put(&next).await {
                Ok(true) => notice = next,
                _ => return,
            }
        }
    }

    async fn tell(&self, record: &Record, message: Message, ask: u32) -> Result<(), String> {
        let id = message.id(record.intent.call_id, ask);
        let data = self.data(record, message, ask);
        self.notifier.notify(message.event(), &id, &data).await
    }

    /// What the webhook is told. Of the arguments only what the tool's rule shows today.
    fn data(&self, record: &Record, message: Message, ask: u32) -> Value {
        let intent = &record.intent;
        let mut data = json!({
            "call_id": intent.call_id.to_string(),
            "tenant": intent.tenant,
            "tool": intent.tool,
            "session_id": intent.session_id,
            "saga_id": intent.saga_id,
            "ask": ask,
        });
        if let Some(proposal) = record.proposal.as_deref() {
            data["asked_at"] = format!("{:.3}", proposal.asked_at).into();
            data["expires_at"] = format!("{:.3}", proposal.until).into();
            data["needed"] = proposal.needed.into();
            data["approvals"] = proposal.approvals.len().into();
        }
        if let Some(outcome) = message.outcome() {
            data["outcome"] = outcome.into();
        }
        let at = self.base.tool_at(&intent.tool);
        let rule = at.as_ref().and_then(|at| {
            let rule = at.tool.approval.as_ref()?;
            Some((&rule.show, &at.tool.redact.args))
        });
        if let Some((show, secret)) = rule
            && !show.is_empty()
        {
            let args = strict::read(&intent.args).map(|mut args| {
                redact::mask_in(&mut args, secret);
                args
            });
            let (shown, left_out) = shown_values(&args.unwrap_or_default(), show);
            data["show"] = shown.into();
            data["left_out"] = left_out.into();
        }
        if let Some(console) = &self.base.limits.approval_console {
            data["link"] = link(console, intent.call_id).into();
        }
        data
    }

    async fn document(&self, call_id: CallId) -> Result<Option<Document>, store::Error> {
        let store = &self.base.store;
        store.document(Kind::Notice, "", &call_id.to_string()).await
    }

    /// Writes a notice, unless another writer was faster.
    async fn put(&self, notice: &Notice) -> Result<bool, store::Error> {
        let put = self.base.store.put_document(&notice.to_document()).await?;
        Ok(matches!(put, Put::Done))
    }
}

/// The page of the console that shows a call. To open it decides nothing.
fn link(console: &Url, call_id: CallId) -> String {
    let base = console.as_str().trim_end_matches('/');
    format!("{base}/console/approvals/{call_id}")
}
