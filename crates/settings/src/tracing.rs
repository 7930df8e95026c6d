//! The section `[tracing]`.

use super::reader::{Section, Share};
use oncegate_tools::is_http;

/// Where spans go.
#[derive(Debug, Clone)]
pub struct Tracing {
    /// The URL of a collector for OTLP over HTTP.
    pub otlp: String,
    /// The name of the service in the spans.
    pub service_name: String,
}

/// Where spans go, and the share of the traces that is recorded.
pub(super) fn tracing(mut section: Section<'_, '_>) -> (Option<Tracing>, Option<f64>) {
    if !cfg!(feature = "otel") {
        let why = "this oncegate was built without the feature \"otel\" and exports no spans: build it with --features otel, or leave the section out";
        section.refuse(why);
        return (None, None);
    }
    section.require("otlp");
    let otlp = section.parsed("otlp", endpoint);
    let sample = section.get("sample").map(|Share(share)| share);
    let service_name = section
        .get("service_name")
        .unwrap_or_else(|| "oncegate".to_owned());
    let why = "this must not be empty";
    section.check(!service_name.is_empty(), "service_name", why);
    (otlp.map(|otlp| Tracing { otlp, service_name }), sample)
}

fn endpoint(text: &str) -> Result<String, String> {
    let url: Option<reqwest::Url> = text.parse().ok();
    // The place is logged, so it must hold no secret.
    let is_plain = |url: &reqwest::Url| {
        url.username().is_empty() && url.password().is_none() && url.query().is_none()
    };
    let is_fit = url.is_some_and(|url| is_http(&url) && is_plain(&url));
    let why =
        "this is not a valid OTLP endpoint; one looks like \"http://127.0.0.1:4318/v1/traces\"";
    is_fit.then(|| text.to_owned()).ok_or_else(|| why.into())
}
