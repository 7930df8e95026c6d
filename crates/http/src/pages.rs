//! Pages for people: the welcome, and one page for each problem, which is its `type`.

use axum::Json;
use axum::extract::Path;
use axum::extract::rejection::PathRejection;
use axum::http::HeaderMap;
use axum::response::{Html, IntoResponse, Response};
use serde::Serialize;
use utoipa::ToSchema;

use super::headers::accepts;
use super::openapi::Route;
use super::problem::{Problem, Slug};

/// The routes of pages.
pub(super) fn routes() -> Vec<Route> {
    vec![
        Route::open(
            "/",
            "welcome",
            "What this is, and where to look; HTML for a browser",
            root,
        )
        .json::<WelcomeView>("Where to look."),
        Route::open("/problems", "problems", "The problems", index)
            .text("text/html", "A page with all of them."),
        Route::open("/problems/{slug}", "problem", "One problem", page)
            .path("slug", "The problem's name.")
            .problems(&[Slug::UnknownPath])
            .text(
                "text/html",
                "A page that says what it means and what to do.",
            ),
    ]
}

/// Where to look first.
#[derive(Serialize, ToSchema)]
#[schema(as = Welcome)]
pub(super) struct WelcomeView {
    name: &'static str,
    version: &'static str,
    /// What this is, in a sentence.
    what: &'static str,
    /// Where calls of tools go.
    calls: &'static str,
    tools: &'static str,
    /// Pages for operators, in a browser.
    console: &'static str,
    openapi: &'static str,
    problems: &'static str,
    idempotency: &'static str,
    health: &'static str,
    readiness: &'static str,
    metrics: &'static str,
}

const WELCOME: WelcomeView = WelcomeView {
    name: "oncegate",
    version: env!("CARGO_PKG_VERSION"),
    what: "A gateway between AI agents and side-effecting tools: one intent, at most one side effect.",
    calls: "POST /v1/tools/{tool}/calls",
    tools: "/v1/tools",
    console: "/console",
    openapi: "/openapi.json",
    problems: "/problems",
    idempotency: "/.well-known/idempotency",
    health: "/healthz",
    readiness: "/readyz",
    metrics: "/metrics",
};

/// `GET /`: HTML for a browser, JSON for anything else.
async fn root(headers: HeaderMap) -> Response {
    if !accepts(&headers, "text/html") {
        return Json(WELCOME).into_response();
    }
    let links = [
        (WELCOME.tools, "the tools that a token may call"),
        (WELCOME.console, "what needs an operator, and what happened"),
        (WELCOME.openapi, "every route, as an OpenAPI document"),
        (WELCOME.problems, "what each failure means, and what to do"),
        (
            WELCOME.idempotency,
            "which keys are accepted, and how long they are remembered",
        ),
        (WELCOME.health, "whether the process lives"),
        (WELCOME.readiness, "whether calls may be claimed"),
        (WELCOME.metrics, "what is counted, for Prometheus"),
    ];
    let links: String = links
        .iter()
        .map(|(path, what)| format!("<li><a href=\"{path}\">{path}</a>: {what}</li>\n"))
        .collect();
    let text = format!(
        "<p>{}</p>\n<p>Calls go to <code>{}</code>.</p>\n<ul>\n{links}</ul>",
        WELCOME.what, WELCOME.calls
    );
    Html(document("oncegate", &text)).into_response()
}

/// `GET /problems`
async fn index() -> Html<String> {
    let rows: String = Slug::ALL
        .iter()
        .map(|slug| {
            let row = slug.row();
            let name = slug.as_str();
            format!(
                "<li><a href=\"/problems/{name}\">{name}</a> ({}): {}</li>\n",
                row.status.as_u16(),
                row.title
            )
        })
        .collect();
    Html(document("Problems", &format!("<ul>\n{rows}</ul>")))
}

/// `GET /problems/{slug}`
async fn page(slug: Result<Path<String>, PathRejection>) -> Result<Html<String>, Problem> {
    let slug = slug.map_or_else(|_| String::new(), |Path(slug)| slug);
    let slug = Slug::ALL.iter().find(|known| known.as_str() == slug);
    let slug = slug.ok_or_else(Problem::unknown_problem)?;
    let row = slug.row();
    let text = format!(
        "<p>{}</p>\n<dl><dt>status</dt><dd>{}</dd><dt>effect</dt><dd>{}</dd><dt>key_action</dt><dd>{}</dd></dl>\n<p><a href=\"/problems\">All problems</a></p>",
        row.text,
        row.status.as_u16(),
        row.effect.as_str(),
        row.key_action.as_str(),
    );
    Ok(Html(document(row.title, &text)))
}

fn document(title: &str, body: &str) -> String {
    format!(
        "<!doctype html>\n<html lang=\"en\"><meta charset=\"utf-8\"><title>{title} - oncegate</title>\n<h1>{title}</h1>\n{body}\n</html>\n"
    )
}
