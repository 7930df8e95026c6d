//! One dispatch of a call and its evidence. Nothing else sends to a tool.

mod remote; // the task of a server is followed

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::outgoing::{outgoing, probe_url};
use super::prepared::PreparedCall;
use crate::base::Base;
use crate::base::measured::with_call_context;
use crate::key_schemes::KeySchemes;
use crate::sagas::SagaRegistry;
use crate::tools::ToolAt;
use crate::tools::followed::Followed;
use crate::tools::health::Permit;
use crate::tools::pauses::Pauses;
use crate::trace::new_span_id;
use oncegate_hooks::crash;
use oncegate_rules::breaker::Sign;
use oncegate_rules::call::judge;
use oncegate_rules::mcp::remote::given;
use oncegate_rules::outcome::{Evidence, Outcome, is_sign_of_life};
use oncegate_rules::record::{Content, Record, State};
use oncegate_rules::session::SessionId;
use oncegate_rules::tool::Tool;
use oncegate_rules::trace::SpanId;
use oncegate_rules::unknown::{CheckBlocker, Finding, read_mcp_probe, read_probe};
use oncegate_tools::{Deadline, Downstream, Exchange, Party, Request};

/// The result of one dispatch.
pub(crate) struct Attempted {
    pub evidence: Evidence,
    /// The outcome that the evidence proves.
    pub outcome: Outcome,
    /// The exchange, if the tool may still answer.
    pub silent: Option<Exchange>,
    /// The record with the task of an MCP server, if one was written down.
    pub noted: Option<Record>,
}

impl Attempted {
    /// The result of an attempt of which no byte left.
    fn not_sent(tool: &Tool, record: &Record, why: String) -> Self {
        let evidence = Evidence::NotSent { why };
        let (outcome, _) = judge(tool, record, &evidence);
        Self {
            evidence,
            outcome,
            silent: None,
            noted: None,
        }
    }
}

/// Sends calls to their tools.
pub struct Sender {
    pub(crate) base: Arc<Base>,
    pub(crate) downstream: Arc<Downstream>,
    pub(crate) pauses: Arc<Pauses>,
    pub(crate) sagas: Arc<SagaRegistry>,
    pub(crate) followed: Arc<Followed>,
    pub(crate) key_schemes: Arc<KeySchemes>,
}

impl Sender {
    /// The key with which the runs of a call are sent; `None`: with none. It is the same for all of them.
    ///
    /// # Errors
    /// The configuration was another one when the call was made, and it is not known which.
    async fn key_sent(&self, at: &ToolAt, record: &Record) -> Result<Option<String>, String> {
        let intent = &record.intent;
        let key_scheme = self.key_schemes.of_call(at, intent).await?;
        Ok(key_scheme.key_sent(intent.key_source, &intent.key, &intent.lookup))
    }

    /// Makes one request to the tool, and judges what it proves.
    ///
    /// `is_sent_again`: an MCP server had forgotten the session of an earlier attempt of this run.
    pub(crate) async fn attempt(
        &self,
        call: &PreparedCall,
        record: &Record,
        permit: &Permit,
        deadline: Deadline,
        is_sent_again: bool,
    ) -> Attempted {
        let tool = &call.at.tool;
        if self.base.abandoned.is_cancelled() {
            return Attempted::not_sent(tool, record, "the gateway is shutting down".into());
        }
        // A first attempt goes on after a pause, but nothing is sent again.
        if record.attempt.number > 1 && self.pauses.is_paused(&tool.name) {
            return Attempted::not_sent(tool, record, "an operator has paused the tool".into());
        }
        // A call that is sent again by its check begins a run of its own, with an attempt of number 1.
        if record.attempts > 1 && self.is_cancel_asked(record).await {
            return Attempted::not_sent(
                tool,
                record,
                "a client has asked to cancel the call".into(),
            );
        }
        let began = Instant::now();
        let trace = call.trace.for_call(record, self.base.limits.sample);
        // A verified replay is not an attempt of the call, so its span has an id of its own.
        let span_id = match record.state {
            State::Running => SpanId::of(record.attempt.id),
            _ => new_span_id(),
        };
        let span = trace.attempt(record, span_id);
        let headers = trace.headers(span_id);
        let key = self.key_sent(&call.at, record).await;
        let made =
            key.and_then(|key| outgoing(call, record, headers, deadline, is_sent_again, key));
        let (endpoint, request) = match made {
            Ok((endpoint, request)) => {
                let takes_task = self.takes_task(call, record);
                (
                    endpoint,
                    Request {
                        takes_task,
                        ..request
                    },
                )
            }
            Err(why) => return Attempted::not_sent(tool, record, why),
        };
        let mut exchange = self.downstream.dispatch(&endpoint, request);
        let is_sent = exchange.watch_sending();
        let head_by = deadline.at.min(began + tool.timeout);
        // An answer that has come counts, also if the gateway is told to stop at the same moment.
        let observed = tokio::select! {
            biased;
            observed = exchange.until(head_by, deadline.at) => observed,
            () = crash::point_after(is_sent, "after_last_byte") => None,
            () = self.base.abandoned.cancelled() => Some(exchange.give_up("the gateway is shutting down")),
        };
        let (evidence, silent) = match observed {
            Some(evidence) => (evidence, None),
            None => {
                let waited = head_by.duration_since(began).as_millis();
                let evidence = exchange.give_up(&format!("no answer within {waited} ms"));
                let silent = matches!(evidence, Evidence::NoAnswer { .. }).then_some(exchange);
                (evidence, silent)
            }
        };
        crash::point("after_answer");
        let task = match &evidence {
            Evidence::Mcp(answer) if self.takes_task(call, record) => given(answer),
            _ => None,
        };
        let (evidence, noted) = match task {
            // Boxed: otherwise the future of every attempt is 6 KB larger.
            Some(task) => Box::pin(self.follow(call, record, task, deadline.at)).await,
            None => (evidence, None),
        };
        let (outcome, why) = judge(tool, record, &evidence);
        span.record("outcome", outcome.as_str());
        if !matches!(outcome, Outcome::Executed(_)) {
            span.record("error", why);
        }
        drop(span);
        let (metrics, took) = (&self.base.metrics, began.elapsed());
        let labels = [&tool.name, outcome.as_str()];
        metrics.attempts.with_label_values(&labels).inc();
        let durations = metrics.attempt_duration.with_label_values(&[&tool.name]);
        durations.observe(took.as_secs_f64());
        let sign = match &evidence {
            Evidence::NotSent { .. } => Sign::Unreached,
            _ if outcome.is_healthy() || is_sign_of_life(&evidence) => Sign::Healthy,
            _ => Sign::Failed,
        };
        let health = &call.at.health;
        health.ended(&record.intent.tenant, sign, permit, took);
        Attempted {
            evidence,
            outcome,
            silent,
            noted,
        }
    }

    /// Whether a stored call may be sent to its tool now.
    ///
    /// A frozen session and an open breaker stop it like a new call.
    pub(crate) async fn may_send(
        &self,
        at: &ToolAt,
        record: &Record,
    ) -> Result<Permit, CheckBlocker> {
        let admitted = at.health.admit(&record.intent.tenant);
        let permit = admitted.map_err(CheckBlocker::BreakerOpen)?;
        let session = SessionId::of(&record.intent);
        let session = self.base.store.session(&session);
        match with_call_context(record.intent.clone(), session).await {
            Ok(session) if session.frozen => return Err(CheckBlocker::Frozen),
            Ok(_) => {}
            Err(_) => return Err(CheckBlocker::Store),
        }
        match self.sagas.is_wanted_again(&record.intent).await {
            Ok(true) => Ok(permit),
            Ok(false) => Err(CheckBlocker::NotWanted),
            Err(_) => Err(CheckBlocker::Store),
        }
    }

    /// Asks the tool whether it knows the key of a call. Returns the finding, and how long the tool asks to wait.
    pub async fn probe(&self, at: &ToolAt, record: &Record) -> (Finding, Option<Duration>) {
        let found = tokio::select! {
            biased;
            found = self.ask_about_key(at, record) => found,
            () = self.base.abandoned.cancelled() => Err("the gateway is shutting down".into()),
        };
        found.unwrap_or_else(|why| (Finding::Unclear(why), None))
    }

    /// Asks the endpoint of the tool's probe, or another tool, which only reads.
    ///
    /// # Errors
    /// The question cannot be made, or was not answered; says why.
    async fn ask_about_key(
        &self,
        at: &ToolAt,
        record: &Record,
    ) -> Result<(Finding, Option<Duration>), String> {
        let (intent, by) = (&record.intent, Instant::now() + at.tool.timeout);
        if let (Some(asks), Some(asked)) = (at.tool.asks(), &at.endpoint.asked) {
            let args = asks.by.args(record)?.to_string().into();
            let party = Party::tool(&intent.tenant, &asks.by.tool);
            let answer = self.downstream.ask(asked, party, args, by).await?;
            return Ok((read_mcp_probe(&answer, &asks.found), None));
        }
        let party = Party::tool(&intent.tenant, &intent.tool);
        let key = self.key_sent(at, record).await?;
        let asks_for_key = at.tool.probe().is_some_and(|probe| probe.target.has_key());
        if key.is_none() && asks_for_key {
            return Err("the API got no key, so it cannot be asked for one".into());
        }
        let url = probe_url(&at.tool, &intent.args, &key.unwrap_or_default())?;
        let probing = self.downstream.probe(&at.endpoint, party, &url, by);
        let (status, body, retry_after) = probing.await?;
        let finding = read_probe(&at.tool, status, &body);
        Ok((marked_as_probed(at, finding), retry_after))
    }
}

/// Marks what a probe of an API found: it is not the answer that the API would have given.
fn marked_as_probed(at: &ToolAt, finding: Finding) -> Finding {
    match finding {
        Finding::Found(Content::Stored(json)) if at.tool.is_proxy() => {
            // What becomes the answer is told from what was only found, also after a reload.
            let answers = at.tool.probe().is_some_and(|probe| probe.answers);
            let name: &[u8] = if answers { b"answered" } else { b"probed" };
            let found = [b"{\"", name, b"\":", json.as_ref(), b"}"].concat();
            Finding::Found(Content::Stored(found.into()))
        }
        other => other,
    }
}
