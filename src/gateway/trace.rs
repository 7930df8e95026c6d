//! Spans of requests, calls and attempts.
//!
//! Each knows its trace and its parent by their ids and not by being inside of it: the caller's
//! span ends when its request does, a call's when its task does.
//!
//! Fields are what the ledger shows, too; never arguments, keys, tokens or bodies. `telemetry` exports them.

use tracing::field::Empty;
use tracing::{Span, info_span};

use crate::core::record::{Intent, Record};
use crate::core::trace::{self, Context, SpanId};
use crate::gateway::ids::quick_number;

/// A request for a call, from its head to its answer.
#[derive(Debug)]
pub struct RequestSpan {
    /// The caller's trace context.
    context: Option<Context>,
    span: Span,
    id: Option<SpanId>,
}

/// A request without a span.
impl Default for RequestSpan {
    fn default() -> Self {
        Self {
            context: None,
            span: Span::none(),
            id: None,
        }
    }
}

impl RequestSpan {
    /// Begins the span of a request.
    ///
    /// Its trace may be known only later, if the caller brings none.
    pub fn begin(context: Option<Context>) -> Self {
        let id = new_span_id();
        let span = info_span!(
            parent: None,
            "arrival",
            span_id = %id,
            kind = "server",
            parent_id = context.as_ref().map(|context| context.parent.to_string()),
            trace_id = context.as_ref().map(|context| context.trace_id.as_str()),
            sampled = context.as_ref().map(|context| context.sampled),
            tool = Empty,
            key = Empty,
            call_id = Empty,
            call_trace_id = Empty,
            outcome = Empty,
        );
        Self {
            context,
            span,
            id: Some(id),
        }
    }

    /// Names the tool of the request.
    ///
    /// It exists: other names are the caller's own.
    pub(super) fn is_for(&self, tool: &str) {
        self.span.record("tool", tool);
    }

    /// Places the request in its trace. Returns the place of the call that it may begin.
    pub(super) fn belongs_to(&self, intent: &Intent, share: f64) -> Trace {
        let trace_id = intent.trace_id.as_str();
        self.span.record("key", intent.lookup.short());
        match &self.context {
            Some(context) if context.trace_id == trace_id => Trace {
                trace_id: trace_id.to_owned(),
                parent: self.id,
                sampled: context.sampled,
                state: context.state.clone(),
                span: Span::none(),
            },
            _ => {
                let trace = Trace {
                    parent: self.id,
                    ..Trace::of(trace_id, share)
                };
                self.span.record("trace_id", trace_id);
                self.span.record("sampled", trace.sampled);
                trace
            }
        }
    }

    pub(super) fn came_to(&self, outcome: &str, record: Option<&Record>) {
        self.span.record("outcome", outcome);
        say_call(&self.span, record);
    }
}

/// The place of a run's spans in its trace.
#[derive(Debug, Clone)]
pub(super) struct Trace {
    trace_id: String,
    parent: Option<SpanId>,
    /// Whether the trace is recorded; the tool is told.
    sampled: bool,
    /// The caller's `tracestate`.
    state: String,
    /// The span of the run itself; it lasts as long as any copy of this.
    span: Span,
}

impl Trace {
    /// A trace of which only the id is known.
    pub(super) fn of(trace_id: &str, share: f64) -> Self {
        let sampled = trace::is_sampled(trace_id, share);
        Self {
            trace_id: trace_id.to_owned(),
            parent: None,
            sampled,
            state: String::new(),
            span: Span::none(),
        }
    }

    /// Begins the span of a run: later spans are inside of it.
    pub(super) fn begin_call(&mut self, intent: &Intent) {
        let id = new_span_id();
        self.span = self.spanned(|trace_id, parent_id| {
            info_span!(
                parent: None,
                "call",
                trace_id,
                span_id = %id,
                parent_id,
                tool = intent.tool,
                key = intent.lookup.short(),
                call_id = Empty,
                call_trace_id = Empty,
                outcome = Empty,
                error = Empty,
            )
        });
        self.parent = Some(id);
    }

    /// Begins the span of a recheck.
    pub(super) fn begin_recheck(&mut self, record: &Record) {
        let (id, intent) = (new_span_id(), &record.intent);
        self.span = self.spanned(|trace_id, parent_id| {
            info_span!(
                parent: None,
                "recheck",
                trace_id,
                span_id = %id,
                parent_id,
                tool = intent.tool,
                call_id = %intent.call_id,
                outcome = Empty,
                error = Empty,
            )
        });
        self.parent = Some(id);
    }

    /// The span of a claim, with its wait for the session.
    pub(super) fn claim(&self, intent: &Intent) -> Span {
        self.spanned(|trace_id, parent_id| {
            info_span!(
                parent: None,
                "claim",
                trace_id,
                span_id = %new_span_id(),
                parent_id,
                tool = intent.tool,
                key = intent.lookup.short(),
                call_id = Empty,
                call_trace_id = Empty,
                outcome = Empty,
            )
        })
    }

    /// Ends the span of a claim.
    pub(super) fn claimed(&self, claim: Span, outcome: &str, record: Option<&Record>) {
        claim.record("outcome", outcome);
        for span in [&claim, &self.span] {
            say_call(span, record);
        }
    }

    /// The span of one request to the tool.
    pub(super) fn attempt(&self, record: &Record, id: SpanId) -> Span {
        self.spanned(|trace_id, parent_id| {
            info_span!(
                parent: None,
                "attempt",
                trace_id,
                span_id = %id,
                parent_id,
                kind = "client",
                tool = record.intent.tool,
                call_id = %record.intent.call_id,
                attempt = record.attempt.number,
                outcome = Empty,
                error = Empty,
            )
        })
    }

    /// The span of writing an outcome down.
    pub(super) fn completion(&self, record: &Record) -> Span {
        self.spanned(|trace_id, parent_id| {
            info_span!(
                parent: None,
                "completion",
                trace_id,
                span_id = %new_span_id(),
                parent_id,
                tool = record.intent.tool,
                call_id = %record.intent.call_id,
                attempt = record.attempt.number,
                outcome = Empty,
            )
        })
    }

    /// Notes how the run ended.
    pub(super) fn ended(&self, record: &Record, error: Option<&str>) {
        self.span.record("outcome", record.state.as_str());
        if let Some(error) = error {
            self.span.record("error", error);
        }
    }

    /// The place of a stored call's spans.
    ///
    /// A call that runs again keeps the trace of its first arrival.
    pub(super) fn for_call(&self, record: &Record, share: f64) -> Self {
        if record.intent.trace_id == self.trace_id {
            return self.clone();
        }
        Self::of(&record.intent.trace_id, share)
    }

    /// The headers for the tool: `traceparent` and `tracestate`, if there are any.
    pub(super) fn told(&self, span: SpanId) -> Vec<(&'static str, String)> {
        let traceparent = trace::traceparent(&self.trace_id, span, self.sampled);
        let state =
            Some(self.state.clone()).filter(|state| traceparent.is_some() && !state.is_empty());
        let traceparent = traceparent.map(|traceparent| ("traceparent", traceparent));
        traceparent
            .into_iter()
            .chain(state.map(|state| ("tracestate", state)))
            .collect()
    }

    /// A span, if the trace is recorded.
    fn spanned(&self, make: impl FnOnce(&str, Option<String>) -> Span) -> Span {
        if !self.sampled {
            return Span::none();
        }
        make(&self.trace_id, self.parent.map(|id| id.to_string()))
    }
}

/// Names the call in a span; a duplicate may have another trace than the call.
fn say_call(span: &Span, record: Option<&Record>) {
    if let Some(record) = record {
        span.record("call_id", tracing::field::display(record.intent.call_id));
        span.record("call_trace_id", record.intent.trace_id.as_str());
    }
}

pub(super) fn new_span_id() -> SpanId {
    SpanId::new(quick_number())
}
