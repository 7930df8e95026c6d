//! Spans to a collector, over OTLP.
//!
//! A bounded queue stands between them: a slow or absent collector holds up no call. A span that
//! finds no room is dropped, said once, and counted at the end.
//!
//! The usual bridge from `tracing` to OpenTelemetry makes ids of its own. Ours are known before the span is: the
//! attempt's is in the ledger and with the tool, also in a build that exports nothing. So a span that ends here
//! is handed to the SDK's queue as it is. Only spans of this crate that name their ids are exported.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use opentelemetry::trace::{
    SpanContext, SpanId, SpanKind, Status, TraceFlags, TraceId, TraceState,
};
use opentelemetry::{InstrumentationScope, KeyValue, Value};
use opentelemetry_otlp::{SpanExporter, WithExportConfig, WithHttpConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::{
    BatchConfigBuilder, BatchSpanProcessor, SpanData, SpanEvents, SpanLinks, SpanProcessor,
};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Level, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::filter::{LevelFilter, filter_fn};
use tracing_subscriber::layer::Context;
use tracing_subscriber::registry::LookupSpan;

use crate::config::Tracing;
use crate::core::trace;

/// Spans that wait for the collector; about a KiB each.
const QUEUE: usize = 2_048;
/// Spans that are sent at once.
const BATCH: usize = 512;
/// How long a span waits for others.
const EVERY: Duration = Duration::from_secs(2);
/// How long the collector may take for one batch.
const ANSWER: Duration = Duration::from_secs(5);
/// How long a stop waits for what is left.
const FLUSH: Duration = Duration::from_secs(3);

/// The queue for the collector, with the thread that sends it.
#[derive(Clone)]
pub(super) struct Queue(Arc<BatchSpanProcessor>);

impl Queue {
    /// # Errors
    /// The HTTP client cannot be made.
    pub(super) fn start(tracing: &Tracing) -> Result<Self, String> {
        // Only the first call of a process has an effect; any provider will do.
        drop(rustls::crypto::ring::default_provider().install_default());
        // No proxy and no redirect: spans go to the configured place or nowhere.
        let client = reqwest::blocking::Client::builder()
            .no_proxy()
            .redirect(reqwest::redirect::Policy::none())
            .timeout(ANSWER)
            .build()
            .map_err(|error| format!("the HTTP client for spans cannot be made: {error}"))?;
        let exporter = SpanExporter::builder()
            .with_http()
            .with_http_client(client)
            .with_protocol(opentelemetry_otlp::Protocol::HttpBinary)
            .with_endpoint(&tracing.otlp)
            .with_timeout(ANSWER)
            .build()
            .map_err(|error| format!("spans cannot be exported: {error}"))?;
        let bounds = BatchConfigBuilder::default()
            .with_max_queue_size(QUEUE)
            .with_max_export_batch_size(BATCH)
            .with_scheduled_delay(EVERY)
            .build();
        let mut queue = BatchSpanProcessor::new(exporter, bounds);
        queue.set_resource(
            &Resource::builder_empty()
                .with_service_name(tracing.service_name.clone())
                .with_attribute(KeyValue::new("service.version", env!("CARGO_PKG_VERSION")))
                .build(),
        );
        Ok(Self(Arc::new(queue)))
    }

    pub(super) fn end(self) {
        if let Err(error) = self.0.shutdown_with_timeout(FLUSH) {
            tracing::warn!(%error, "the last spans were not exported");
        }
    }
}

/// Turns ended spans into those of the queue.
pub(super) struct Spans {
    queue: Queue,
    scope: InstrumentationScope,
}

impl Spans {
    pub(super) fn layer<S>(queue: Queue) -> impl Layer<S>
    where
        S: Subscriber + for<'a> LookupSpan<'a>,
    {
        let ours = filter_fn(|metadata| {
            metadata.is_span()
                && *metadata.level() <= Level::INFO
                && metadata.target().starts_with(env!("CARGO_PKG_NAME"))
        });
        let scope = InstrumentationScope::builder(env!("CARGO_PKG_NAME"))
            .with_version(env!("CARGO_PKG_VERSION"))
            .build();
        Self { queue, scope }.with_filter(ours.with_max_level_hint(LevelFilter::INFO))
    }
}

impl<S> Layer<S> for Spans
where
    S: Subscriber + for<'a> LookupSpan<'a>,
{
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        let mut open = Open::new();
        attributes.record(&mut open);
        if let Some(span) = context.span(id) {
            span.extensions_mut().insert(open);
        }
    }

    fn on_record(&self, id: &Id, values: &Record<'_>, context: Context<'_, S>) {
        if let Some(span) = context.span(id)
            && let Some(open) = span.extensions_mut().get_mut::<Open>()
        {
            values.record(open);
        }
    }

    fn on_close(&self, id: Id, context: Context<'_, S>) {
        let Some(span) = context.span(&id) else {
            return;
        };
        let open = span.extensions_mut().remove::<Open>();
        if let Some(data) = open.and_then(|open| open.close(span.name(), &self.scope)) {
            self.queue.0.on_end(data);
        }
    }
}

/// A span that has not ended.
struct Open {
    began: SystemTime,
    trace_id: Option<String>,
    span_id: Option<SpanId>,
    parent_id: Option<SpanId>,
    kind: SpanKind,
    is_dropped: bool,
    error: Option<String>,
    fields: Vec<KeyValue>,
}

impl Open {
    fn new() -> Self {
        Self {
            began: wall_time(),
            trace_id: None,
            span_id: None,
            parent_id: None,
            kind: SpanKind::Internal,
            is_dropped: false,
            error: None,
            fields: Vec::new(),
        }
    }

    /// `None`: it is not recorded, or does not name its trace.
    fn close(self, name: &'static str, scope: &InstrumentationScope) -> Option<SpanData> {
        let (trace_id, span_id) = (self.trace_id.filter(|_| !self.is_dropped)?, self.span_id?);
        let mut attributes = self.fields;
        let exported = TraceId::from(trace::exported(&trace_id));
        // As in log and ledger, which know it also in another form.
        attributes.push(KeyValue::new("trace_id", trace_id));
        Some(SpanData {
            span_context: SpanContext::new(
                exported,
                span_id,
                TraceFlags::SAMPLED,
                false,
                TraceState::NONE,
            ),
            parent_span_id: self.parent_id.unwrap_or(SpanId::INVALID),
            parent_span_is_remote: self.kind == SpanKind::Server,
            span_kind: self.kind,
            name: name.into(),
            start_time: self.began,
            end_time: wall_time().max(self.began),
            attributes,
            dropped_attributes_count: 0,
            events: SpanEvents::default(),
            links: SpanLinks::default(),
            status: self.error.map_or(Status::Unset, Status::error),
            instrumentation_scope: scope.clone(),
        })
    }

    fn put(&mut self, name: &'static str, value: Value) {
        match self
            .fields
            .iter_mut()
            .find(|field| field.key.as_str() == name)
        {
            Some(field) => field.value = value,
            None => self.fields.push(KeyValue::new(name, value)),
        }
    }
}

impl Visit for Open {
    fn record_str(&mut self, field: &Field, value: &str) {
        match field.name() {
            "trace_id" => self.trace_id = Some(value.to_owned()),
            "span_id" => self.span_id = SpanId::from_hex(value).ok(),
            "parent_id" => self.parent_id = SpanId::from_hex(value).ok(),
            "kind" if value == "server" => self.kind = SpanKind::Server,
            "kind" if value == "client" => self.kind = SpanKind::Client,
            "error" => self.error = Some(value.to_owned()),
            name => self.put(name, value.to_owned().into()),
        }
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        match field.name() {
            "sampled" => self.is_dropped = !value,
            name => self.put(name, value.into()),
        }
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.put(field.name(), value.into());
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.put(
            field.name(),
            i64::try_from(value).unwrap_or(i64::MAX).into(),
        );
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        self.put(field.name(), value.into());
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.record_str(field, &format!("{value:?}"));
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "spans are held against those of other machines"
)]
fn wall_time() -> SystemTime {
    SystemTime::now()
}
