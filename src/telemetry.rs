//! Where log lines and spans go. Set up once, before anything else runs.
//!
//! Lines go to standard error, and each carries what it is about in fields of its own: spans add nothing to
//! them. Must not know what is said.

mod lines; // log lines on their way to standard error
#[cfg(feature = "otel")]
mod otlp; // spans to a collector

use std::io::IsTerminal;

use tracing_subscriber::filter::{FilterExt, LevelFilter, filter_fn};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Layer, Registry, fmt, reload};

pub use self::lines::Lines;
use crate::config::{Log, LogFormat, Tracing};

/// The parts that were set up.
pub struct Telemetry {
    pub set_level: SetLevel,
    pub exporter: Exporter,
    pub lines: Lines,
}

/// Changes the level of the log.
pub struct SetLevel(reload::Handle<EnvFilter, Registry>);

impl SetLevel {
    pub fn set(&self, level: &str) {
        drop(EnvFilter::try_new(level).map(|new| self.0.reload(new)));
    }
}

/// Exports spans, if there is a collector.
#[derive(Default)]
pub struct Exporter {
    #[cfg(feature = "otel")]
    otlp: Option<otlp::Queue>,
}

impl Exporter {
    /// Sends the remaining spans, within a bound. Blocks.
    pub fn end(self) {
        #[cfg(feature = "otel")]
        if let Some(queue) = self.otlp {
            queue.end();
        }
    }
}

/// Starts logging and spans for the whole process.
///
/// # Errors
/// What is asked for cannot be had, or it was started before.
pub fn start(log: &Log, tracing: Option<&Tracing>) -> Result<Telemetry, String> {
    let filter = EnvFilter::try_new(&log.level).map_err(|error| error.to_string())?;
    let (filter, level) = reload::Layer::new(filter);
    let events = filter_fn(|metadata| metadata.is_event()).with_max_level_hint(LevelFilter::TRACE);
    let lines = Lines::start(std::io::stderr()).map_err(|error| error.to_string())?;
    // A log on a full disk must not stop a call: complaining about it would panic.
    let writer = lines.clone();
    let layer = fmt::layer()
        .log_internal_errors(false)
        .with_writer(move || writer.clone());
    let layer = match log.format {
        LogFormat::Json => layer.json().flatten_event(true).boxed(),
        LogFormat::Pretty => layer.with_ansi(std::io::stderr().is_terminal()).boxed(),
    };
    let (spans, exporter) = spans(tracing)?;
    let subscriber = tracing_subscriber::registry()
        .with(layer.with_filter(filter.and(events)))
        .with(spans);
    subscriber.try_init().map_err(|error| error.to_string())?;
    log_panics(lines.clone());
    if let Some(Tracing { otlp, service_name }) = tracing {
        tracing::info!(collector = otlp, service_name, "spans are exported");
    }
    Ok(Telemetry {
        set_level: SetLevel(level),
        exporter,
        lines,
    })
}

/// Logs panics the same way: by default they would wait for standard error.
fn log_panics(lines: Lines) {
    std::panic::set_hook(Box::new(move |panic| {
        tracing::error!(%panic, "a task has panicked");
        lines.flush();
    }));
}

#[cfg(feature = "otel")]
fn spans<S>(tracing: Option<&Tracing>) -> Result<(Option<impl Layer<S>>, Exporter), String>
where
    S: tracing::Subscriber + for<'a> tracing_subscriber::registry::LookupSpan<'a>,
{
    let queue = tracing.map(otlp::Queue::start).transpose()?;
    let layer = queue.clone().map(otlp::Spans::layer);
    Ok((layer, Exporter { otlp: queue }))
}

/// No spans: the configuration has made sure that none are asked for.
#[cfg(not(feature = "otel"))]
fn spans(
    _: Option<&Tracing>,
) -> Result<(Option<tracing_subscriber::layer::Identity>, Exporter), String> {
    Ok((None, Exporter::default()))
}
