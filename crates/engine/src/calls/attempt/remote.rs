//! Tasks of MCP servers: a task that a server gives is written down, and followed until its end.

use std::sync::Arc;
use std::time::Duration;

use serde_json::value::RawValue;
use serde_json::{Map, Value, json};
use tokio::time::{Instant, sleep, sleep_until};

use super::Sender;
use crate::base::measured::with_call_context;
use crate::calls::PreparedCall;
use crate::error::Unheard;
use crate::tools::ToolAt;
use crate::transition::{self, Moved, OnConflict};
use oncegate_hooks::crash;
use oncegate_rules::actor::By;
use oncegate_rules::call::Event;
use oncegate_rules::caller::Caller;
use oncegate_rules::evidence::McpAnswer;
use oncegate_rules::key::Source;
use oncegate_rules::mcp::elicitation;
use oncegate_rules::mcp::evidence::{Reply, reply};
use oncegate_rules::mcp::members::Members;
use oncegate_rules::mcp::remote::{self, Given, Seen};
use oncegate_rules::mcp::revision::CAPABILITIES;
use oncegate_rules::outcome::Evidence;
use oncegate_rules::record::{Record, State};
use oncegate_rules::tool::{Effect, OnCancel};
use oncegate_rules::unknown;
use oncegate_store as store;
use oncegate_tools::{Party, Question};

/// How long to wait before a task is offered to the store again.
const WRITE_AGAIN: Duration = Duration::from_millis(200);
/// How long a server may take to say what it asks. A client that polls waits for it.
const ASKED_BY: Duration = Duration::from_secs(5);
/// How long a server may take to accept an answer, or to hear that a task is cancelled.
const HEARD_BY: Duration = Duration::from_secs(10);

/// What a request for a task says beside its id.
enum Said<'a> {
    /// What the client can answer.
    Abilities(&'a Map<String, Value>),
    Answers(&'a RawValue),
}

impl Sender {
    /// Whether the server of a call may answer its attempt with a task.
    ///
    /// Others wait for the end of an exclusive call's lease, and for that of a saga's call, and a task may last longer.
    /// A gateway of an earlier release could not read the call. A verified replay needs the result at once.
    /// A client that could answer questions, but knows no tasks, could not be asked. And where "not found" may prove that a
    /// call was not executed, it counts from the end of the lease.
    pub(super) fn takes_task(&self, call: &PreparedCall, record: &Record) -> bool {
        record.state == State::Running && self.may_be_task(call, record)
    }

    fn may_be_task(&self, call: &PreparedCall, record: &Record) -> bool {
        call.at.is_of_upstream()
            && call.client.can_take_task()
            && !call.at.tool.is_exclusive()
            && !unknown::proves_absence(&call.at.tool)
            && record.intent.saga_id.is_empty()
            && record.intent.key_source != Source::Compensation
            && self.base.store.takes_new_acts()
    }

    /// Late evidence: an answer that gives a task leaves the call to the checks, which ask for the task.
    pub(in crate::calls) fn or_task(
        &self,
        call: &PreparedCall,
        record: &Record,
        evidence: Evidence,
    ) -> Evidence {
        let task = match &evidence {
            Evidence::Mcp(answer) if self.may_be_task(call, record) => remote::given(answer),
            _ => None,
        };
        match task {
            Some(Given { id, .. }) => Evidence::Task {
                id,
                why: "its answer came late".into(),
            },
            None => evidence,
        }
    }

    /// Follows the task that a server has given for an attempt, until it ends or the time is over.
    ///
    /// Returns what that proves, and the record with the task. Nothing is told of the call before the task is written down.
    pub(super) async fn follow(
        &self,
        call: &PreparedCall,
        record: &Record,
        given: Given,
        until: Instant,
    ) -> (Evidence, Option<Record>) {
        let (at, Given { id, mut poll }) = (&call.at, given);
        let upstream = at.endpoint.mcp.as_ref().map_or("", |mcp| &mcp.upstream);
        let call_id = record.intent.call_id;
        let is_write = at.tool.effect == Effect::Write;
        let following = self.followed.begin(upstream, &id, call_id);
        if is_write && following.is_none() {
            let why = "the server answered with the task of another call".to_owned();
            return (Evidence::NoAnswer { why }, None);
        }
        crash::point("before_task_noted");
        let noted = match is_write {
            true => self.note_task(call, record, &id, until).await,
            false => None,
        };
        crash::point("after_task_noted");
        // The wish to cancel may have come before the task.
        if let Some(noted) = noted.as_ref().filter(|noted| noted.cancel_asked) {
            self.forward_cancel(at, noted).await;
        }
        let left = |why: &str| Evidence::Task {
            id: id.clone(),
            why: why.to_owned(),
        };
        let evidence = loop {
            let next = until.min(Instant::now() + poll);
            let asking = async {
                sleep_until(next).await;
                self.ask_for_task(at, record, &id, until).await
            };
            let seen = tokio::select! {
                biased;
                () = self.base.abandoned.cancelled() => break left("the gateway is shutting down"),
                seen = asking => seen,
            };
            match seen {
                Seen::Ended(answer) => break Evidence::Mcp(answer),
                // The next check learns it again, and leaves the call to the tool's policy.
                Seen::Gone(why) => break left(why),
                Seen::Runs { poll: asked, .. } => poll = asked,
                Seen::Unclear(_) => {}
            }
            if Instant::now() >= until {
                break left("it has not ended in time");
            }
        };
        (evidence, noted)
    }

    /// Writes the task of an attempt down. `None`: it is not written, or the call is not this gateway's any more.
    async fn note_task(
        &self,
        call: &PreparedCall,
        record: &Record,
        id: &str,
        until: Instant,
    ) -> Option<Record> {
        let (attempt, id) = (record.attempt.id, id.to_owned());
        let event = Event::TaskGiven { attempt, id };
        let same = OnConflict::RetryOnSameAttempt;
        loop {
            let (record, now) = (record.clone(), self.base.now());
            match transition::apply(&self.base, &call.at.tool, record, &event, now, same).await {
                Ok(Moved::Written { record, .. } | Moved::Unchanged(record, _)) => {
                    return Some(record);
                }
                Ok(Moved::Refused(..) | Moved::Lost(_)) => return None,
                Err(_) if Instant::now() >= until || self.base.abandoned.is_cancelled() => {
                    return None;
                }
                Err(_) => sleep(WRITE_AGAIN).await,
            }
        }
    }

    /// Asks a server for the task that it has given for the newest attempt of a call.
    pub(crate) async fn see_task(&self, at: &ToolAt, record: &Record) -> Seen {
        let Some(id) = &record.attempt.remote_task else {
            return Seen::Unclear("the call has no task".to_owned());
        };
        let by = Instant::now() + at.tool.timeout;
        tokio::select! {
            biased;
            seen = self.ask_for_task(at, record, id, by) => seen,
            () = self.base.abandoned.cancelled() => Seen::Unclear("the gateway is shutting down".into()),
        }
    }

    async fn ask_for_task(&self, at: &ToolAt, record: &Record, id: &str, by: Instant) -> Seen {
        let by = by.min(Instant::now() + at.tool.timeout);
        match self.about_task(at, record, "tasks/get", id, None, by).await {
            Ok(answer) => remote::seen(&answer, id),
            Err(why) => Seen::Unclear(format!("the server did not answer: {why}")),
        }
    }

    async fn about_task(
        &self,
        at: &ToolAt,
        record: &Record,
        method: &'static str,
        id: &str,
        said: Option<Said<'_>>,
        by: Instant,
    ) -> Result<McpAnswer, String> {
        let more = match said {
            Some(Said::Abilities(abilities)) => {
                format!(r#","_meta":{}"#, json!({ (CAPABILITIES): abilities }))
            }
            // Byte for byte.
            Some(Said::Answers(answers)) => format!(r#","inputResponses":{}"#, answers.get()),
            None => String::new(),
        };
        let params = format!(r#"{{"taskId":{}{more}}}"#, json!(id));
        let params: Members<'_> =
            serde_json::from_str(&params).map_err(|error| error.to_string())?;
        let question = Question {
            method,
            name: Some(id),
            params: &params,
        };
        let party = Party::tool(&record.intent.tenant, &record.intent.tool);
        let asked = self.downstream.forward(&at.endpoint, party, question, by);
        asked.await
    }

    /// The questions of the server that works on a call as a task; `None`: it has none for this caller.
    ///
    /// Only the token that made the call is asked.
    pub async fn task_questions(
        &self,
        caller: &Caller,
        record: &Record,
        abilities: &Map<String, Value>,
    ) -> Option<String> {
        let (at, id) = self.task_of(caller, record)?;
        let by = Instant::now() + ASKED_BY.min(at.tool.timeout);
        let asked = self.about_task(
            &at,
            record,
            "tasks/get",
            &id,
            Some(Said::Abilities(abilities)),
            by,
        );
        match remote::seen(&asked.await.ok()?, &id) {
            Seen::Runs { asks, .. } => {
                asks.filter(|asks| elicitation::are_answerable(asks, abilities))
            }
            Seen::Ended(_) | Seen::Gone(_) | Seen::Unclear(_) => None,
        }
    }

    /// Forwards the answers of the token that made a call to the server that works on the call as a task.
    ///
    /// # Errors
    /// The server refused them, or it is not known whether it has them.
    pub async fn answer_task(
        &self,
        caller: &Caller,
        record: &Record,
        answers: &RawValue,
    ) -> Result<(), Unheard> {
        let Some((at, id)) = self.task_of(caller, record) else {
            return Ok(());
        };
        let by = Instant::now() + HEARD_BY.min(at.tool.timeout);
        let answered = self.about_task(
            &at,
            record,
            "tasks/update",
            &id,
            Some(Said::Answers(answers)),
            by,
        );
        let answered = answered.await.map_err(Unheard::Unknown)?;
        match reply(&answered).map_err(Unheard::Unknown)? {
            Reply::Result(_) => Ok(()),
            Reply::Error(_) => Err(Unheard::Refused),
        }
    }

    /// The tool and the task of a call that the caller has made and that may still run.
    fn task_of(&self, caller: &Caller, record: &Record) -> Option<(Arc<ToolAt>, String)> {
        let is_open = matches!(record.state, State::Running | State::Unknown(_));
        let id = record.attempt.remote_task.clone()?;
        let at = self.base.tool_of(record)?;
        (is_own(caller, record) && is_open).then_some((at, id))
    }

    /// Whether a client has asked to cancel a call since its record was read.
    pub(super) async fn is_cancel_asked(&self, record: &Record) -> bool {
        let loaded = self.base.store.load(record.intent.call_id);
        match with_call_context(record.intent.clone(), loaded).await {
            Ok(Some(newer)) => newer.cancel_asked && newer.attempt.id == record.attempt.id,
            Ok(None) => false,
            // Without an answer it may have been. A read has no effect, and goes on without a store.
            Err(_) => record.fencing.is_some(),
        }
    }

    /// Notes that a client has asked to cancel a call that may have been sent.
    ///
    /// Only the token that made the call may. Nothing is broken off. If the tool's settings say so, the server's task is
    /// cancelled, too. All that goes on if the client hangs up.
    ///
    /// # Errors
    /// The store failed, or the call keeps changing: further attempts may follow.
    pub async fn cancel(
        self: &Arc<Self>,
        caller: &Caller,
        record: &Record,
    ) -> Result<(), store::Error> {
        if !is_own(caller, record) || !self.base.store.takes_new_acts() {
            return Ok(());
        }
        let (sender, by, ours) = (self.clone(), By::token(&caller.name, ""), record.clone());
        let cancelling = async move { sender.cancel_to_its_end(by, ours).await };
        let cancelled = self.base.tasks.spawn(cancelling).await;
        cancelled.unwrap_or_else(|_| Err(store::Error::Refused("the gateway has failed".into())))
    }

    async fn cancel_to_its_end(&self, by: By, ours: Record) -> Result<(), store::Error> {
        let event = Event::CancelAsked(by);
        let (tool, now) = (self.base.policy_of(&ours), self.base.now());
        let latest = OnConflict::RetryOnLatest;
        let moved = transition::apply(&self.base, &tool, ours, &event, now, latest).await?;
        match moved {
            // A client that asks again may do so because the server was not reached.
            Moved::Written { record, .. } | Moved::Unchanged(record, _) => {
                if let Some(at) = self.base.tool_of(&record) {
                    self.forward_cancel(&at, &record).await;
                }
                Ok(())
            }
            // It has ended meanwhile.
            Moved::Refused(..) | Moved::Lost(None) => Ok(()),
            Moved::Lost(Some(_)) => Err(store::Error::Refused("the call keeps changing".into())),
        }
    }

    /// Asks a server to cancel the task of a call, if the tool's settings say so.
    async fn forward_cancel(&self, at: &ToolAt, record: &Record) {
        if at.tool.on_cancel == OnCancel::Forward
            && let Some(id) = &record.attempt.remote_task
        {
            let by = Instant::now() + HEARD_BY;
            // Whether the server heard of it, the end of the task says.
            drop(
                self.about_task(at, record, "tasks/cancel", id, None, by)
                    .await,
            );
        }
    }
}

/// Whether the token of a caller has made the call.
fn is_own(caller: &Caller, record: &Record) -> bool {
    caller.tenant == record.intent.tenant && caller.name == record.intent.made_by
}
