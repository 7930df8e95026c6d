//! Spans of requests, calls and attempts.
//!
//! A span knows its trace and its parent by their ids, and is not nested in the parent: the span of a request ends
//! with the request, and the span of a call with its task.
//!
//! The ledger shows the same fields. No field holds arguments, keys, tokens or bodies. `telemetry` exports the spans.

use tracing::field::Empty;
use tracing::{Span, info_span};

use crate::base::ids::quick_number;
use crate::metrics::ArrivalKind;
use oncegate_rules::record::{Intent, Record};
use oncegate_rules::trace::{self, Context, SpanId};

/// A span of a trace, if the trace is recorded.
macro_rules! span_in {
    ($trace:expr, $name:literal, $id:expr, $($fields:tt)*) => {
        if $trace.sampled {
            let parent_id = $trace.parent.as_ref().map(SpanId::to_string);
            let trace_id = $trace.trace_id.as_str();
            info_span!(parent: None, $name, trace_id, span_id = %$id, parent_id, $($fields)*)
        } else {
            Span::none()
        }
    };
}

/// The span of a request for a call, from its head to its answer.
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
    /// If the caller brings no trace, the trace is known only later.
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

    /// Names the tool of the request, which must exist: other names are the caller's own text.
    pub(super) fn is_for(&self, tool: &str) {
        self.span.record("tool", tool);
    }

    /// Places the request in its trace. Returns the trace for the call that the request may begin.
    pub(super) fn belongs_to(&self, intent: &Intent, share: f64) -> Trace {
        let trace_id = intent.trace_id.as_str();
        self.span.record("key", intent.lookup.short());
        let mut trace = Trace::of(trace_id, share);
        trace.parent = self.id;
        match &self.context {
            Some(context) if context.trace_id == trace_id => {
                trace.sampled = context.sampled;
                trace.state.clone_from(&context.state);
            }
            _ => {
                self.span.record("trace_id", trace_id);
                self.span.record("sampled", trace.sampled);
            }
        }
        trace
    }

    /// Notes how the request was answered, and with which call.
    pub(super) fn arrived_as(&self, arrival: ArrivalKind, record: Option<&Record>) {
        self.span.record("outcome", arrival.as_str());
        name_call(&self.span, record);
    }
}

/// The place of a run's spans in its trace.
#[derive(Debug, Clone)]
pub(super) struct Trace {
    trace_id: String,
    parent: Option<SpanId>,
    /// Whether the trace is recorded. The tool is told so.
    sampled: bool,
    /// The caller's `tracestate`.
    state: String,
    /// The span of the run itself. It lasts as long as any copy of this value.
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

    /// Begins the span of a run, which is the parent of its later spans.
    pub(super) fn begin_call(&mut self, intent: &Intent) {
        let id = new_span_id();
        self.span = span_in!(
            self,
            "call",
            id,
            tool = intent.tool,
            key = intent.lookup.short(),
            call_id = Empty,
            call_trace_id = Empty,
            outcome = Empty,
            error = Empty,
        );
        self.parent = Some(id);
    }

    /// Begins the span of a recheck.
    pub(super) fn begin_recheck(&mut self, record: &Record) {
        let (id, intent) = (new_span_id(), &record.intent);
        self.span = span_in!(self, "recheck", id,
            tool = intent.tool,
            call_id = %intent.call_id,
            outcome = Empty,
            error = Empty,
        );
        self.parent = Some(id);
    }

    /// The span of a claim, with its wait for the session.
    pub(super) fn claim(&self, intent: &Intent) -> Span {
        span_in!(
            self,
            "claim",
            new_span_id(),
            tool = intent.tool,
            key = intent.lookup.short(),
            call_id = Empty,
            call_trace_id = Empty,
            outcome = Empty,
        )
    }

    /// Ends the span of a claim.
    pub(super) fn claimed(&self, claim: Span, outcome: &str, record: Option<&Record>) {
        claim.record("outcome", outcome);
        for span in [&claim, &self.span] {
            name_call(span, record);
        }
    }

    /// The span of one request to the tool.
    pub(super) fn attempt(&self, record: &Record, id: SpanId) -> Span {
        span_in!(self, "attempt", id,
            kind = "client",
            tool = record.intent.tool,
            call_id = %record.intent.call_id,
            attempt = record.attempt.number,
            outcome = Empty,
            error = Empty,
        )
    }

    /// The span of writing an outcome down.
    pub(super) fn completion(&self, record: &Record) -> Span {
        span_in!(self, "completion", new_span_id(),
            tool = record.intent.tool,
            call_id = %record.intent.call_id,
            attempt = record.attempt.number,
            outcome = Empty,
        )
    }

    /// Notes how the run ended.
    pub(super) fn ended(&self, record: &Record, error: Option<&str>) {
        self.span.record("outcome", record.state.as_str());
        if let Some(error) = error {
            self.span.record("error", error);
        }
    }

    /// The trace of a stored call: a call that runs again keeps the trace of its first arrival.
    pub(super) fn for_call(&self, record: &Record, share: f64) -> Self {
        if record.intent.trace_id == self.trace_id {
            return self.clone();
        }
        Self::of(&record.intent.trace_id, share)
    }

    /// The headers for the tool: `traceparent` and `tracestate`, if there are any.
    pub(super) fn headers(&self, span: SpanId) -> Vec<(&'static str, String)> {
        let Some(parent) = trace::traceparent(&self.trace_id, span, self.sampled) else {
            return Vec::new();
        };
        let mut headers = vec![("traceparent", parent)];
        if !self.state.is_empty() {
            headers.push(("tracestate", self.state.clone()));
        }
        headers
    }
}

/// Names the call and its trace in a span: a duplicate may have another trace than the call.
fn name_call(span: &Span, record: Option<&Record>) {
    if let Some(record) = record {
        span.record("call_id", tracing::field::display(record.intent.call_id));
        span.record("call_trace_id", record.intent.trace_id.as_str());
    }
}

pub(super) fn new_span_id() -> SpanId {
    SpanId::new(quick_number())
}
