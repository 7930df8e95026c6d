//! The ops routes: health, readiness, metrics. They show nothing about any tenant.

use axum::extract::State;
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json, Router};
use serde::Serialize;
use utoipa::ToSchema;

use super::Http;
use super::auth::bearer_digest;
use super::listener_layer::ListenerLayer;
use super::openapi::Route;
use super::problem::{self, Problem, Slug};
use super::read::Act;
use oncegate_budget::Elsewhere;
use oncegate_engine::{AFTER_LOSS, Accepted, Reason};
use oncegate_rules::caller;

/// Which requests may see `/metrics` and the sentences of `/readyz`, on one listener.
#[derive(Debug, Clone, Copy)]
pub enum Ops {
    /// All requests get `/metrics`, none get sentences: neither `ops_listen` nor `ops_token` is set.
    CodesOnly,
    /// Requests with the token of this SHA-256 get both.
    Guarded([u8; 32]),
    /// No request gets either: they are on another listener.
    Elsewhere,
    /// All requests get both: this listener has only ops routes.
    Open,
}

impl Ops {
    /// The rule for the main listener and, if it is set, for `ops_listen`.
    pub fn of(token: Option<[u8; 32]>, has_own_listener: bool) -> (Self, Option<Self>) {
        match (token, has_own_listener) {
            (None, false) => (Self::CodesOnly, None),
            (Some(token), false) => (Self::Guarded(token), None),
            (None, true) => (Self::Elsewhere, Some(Self::Open)),
            (Some(token), true) => (Self::Elsewhere, Some(Self::Guarded(token))),
        }
    }

    /// Whether a request with these headers may see sentences.
    fn shows_sentences(self, headers: &HeaderMap) -> bool {
        match self {
            Self::CodesOnly | Self::Elsewhere => false,
            Self::Open => true,
            Self::Guarded(token) => bearer_digest(headers)
                .is_some_and(|preconditions| caller::is_same(&preconditions, &token)),
        }
    }
}

/// The routes of `server.ops_listen`.
pub fn ops_router(http: Http) -> Router {
    let gateway = http.gateway.clone();
    let routes = ops().fallback(problem::unknown_path).with_state(http);
    ListenerLayer::new(gateway).wrap(routes)
}

/// The ops routes, and the act on the store.
pub(super) fn routes() -> Vec<Route> {
    let about = "Accept that the store has lost data";
    let act = Route::act("/v1/store/accept-loss", "accept_loss", about, accept_loss)
        .problems(&[Slug::StoreUnavailable])
        .json::<LossAccepted>("How many calls are unknown now.")
        .json_with::<LossUnderWay>(
            202,
            "The acceptance is under way, and goes on by itself. Ask again at the same gateway for its result.",
            &[],
        );
    let mut routes = of_ops();
    routes.push(act);
    routes
}

fn of_ops() -> Vec<Route> {
    vec![
        health(),
        Route::open("/metrics", "metrics", "What is counted", metrics)
            .text("text/plain", "Prometheus text exposition."),
        Route::open("/readyz", "readyz", "Whether calls may be claimed", readyz)
            .json::<ReadinessView>("Calls may be claimed.")
            .json_with::<ReadinessView>(
                problem::NOT_READY.as_u16(),
                "No call may be claimed.",
                &[],
            ),
    ]
}

/// The route that says whether the process lives.
pub(super) fn health() -> Route {
    Route::open("/healthz", "healthz", "Whether the process lives", healthz)
        .text("text/plain", "The process lives.")
}

fn ops() -> Router<Http> {
    of_ops().into_iter().fold(Router::new(), |router, route| {
        let (path, handler, _) = route.split();
        router.route(path, handler)
    })
}

/// The routes for connections beyond the limit, so that operators still reach the ops routes.
pub fn spare_router(http: Http) -> Router {
    let gateway = http.gateway.clone();
    let routes = ops()
        .fallback(problem::too_many_connections)
        .with_state(http);
    ListenerLayer::new(gateway).wrap(routes)
}

/// `GET /healthz`: the process lives.
async fn healthz() -> &'static str {
    "ok\n"
}

/// Whether calls may be claimed.
#[derive(Serialize, ToSchema)]
#[schema(as = Readiness)]
pub(super) struct ReadinessView {
    ready: bool,
    /// The durability that the gateway has found in the store.
    #[schema(required, pattern = "^(strict|bounded|relaxed)$")]
    durability: Option<&'static str>,
    /// Why no call may be claimed; empty if calls may be claimed. Codes, or sentences for operators.
    reasons: Vec<String>,
    /// What weakens the promise and is allowed by the configuration; codes or sentences.
    warnings: Vec<String>,
}

/// `GET /readyz`: whether write tools may be called, and if not, why.
async fn readyz(State(http): State<Http>, headers: HeaderMap) -> Response {
    let readiness = http.gateway.status.recent_readiness().await;
    let shows_sentences = http.ops.shows_sentences(&headers);
    let text = |reason: Reason| {
        if shows_sentences {
            reason.text
        } else {
            reason.code.to_owned()
        }
    };
    let ready = readiness.reasons.is_empty();
    let status = if ready {
        StatusCode::OK
    } else {
        problem::NOT_READY
    };
    let body = ReadinessView {
        ready,
        durability: readiness.durability.map(|durability| durability.as_str()),
        reasons: readiness.reasons.into_iter().map(text).collect(),
        warnings: readiness.warnings.into_iter().map(text).collect(),
    };
    (status, Json(body)).into_response()
}

/// `GET /metrics`: Prometheus text exposition.
async fn metrics(State(http): State<Http>, headers: HeaderMap) -> Result<Response, Problem> {
    match http.ops {
        Ops::Elsewhere => return Err(problem::unknown_path().await),
        Ops::Guarded(_) if !http.ops.shows_sentences(&headers) => {
            return Err(Problem::unauthenticated());
        }
        Ops::CodesOnly | Ops::Guarded(_) | Ops::Open => {}
    }
    let kind = (CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8");
    let text = http.gateway.status.scrape().await;
    let shared = Extension(Elsewhere(text.len()));
    Ok((shared, [kind], text).into_response())
}

/// The notice for an operator whose acceptance is under way.
const WHILE_ACCEPTING: &str = "the acceptance is under way, and goes on by itself; /readyz says what it waits for, and \
                               the same request to the same gateway is answered with the result once there is one";

/// The loss of data is accepted.
#[derive(Serialize, ToSchema)]
pub(super) struct LossAccepted {
    accepted: bool,
    /// `accepted`.
    state: &'static str,
    calls_now_unknown: usize,
    /// What an operator has to look at now.
    notice: &'static str,
}

/// The loss of data is being accepted, without this request.
#[derive(Serialize, ToSchema)]
pub(super) struct LossUnderWay {
    /// Not yet: `false`.
    accepted: bool,
    /// `accepting`.
    state: &'static str,
    /// How its end is heard of.
    notice: &'static str,
}

/// `POST /v1/store/accept-loss`: an operator accepts that the store has lost data.
async fn accept_loss(Act { on, reason }: Act<()>) -> Result<Response, Problem> {
    let loss = &on.http.gateway.loss;
    let answer = match loss.begin_to_accept_loss(on.caller, reason).await? {
        Accepted::Done(marked) => Json(LossAccepted {
            accepted: true,
            state: "accepted",
            calls_now_unknown: marked,
            notice: AFTER_LOSS,
        })
        .into_response(),
        Accepted::UnderWay => {
            let under_way = LossUnderWay {
                accepted: false,
                state: "accepting",
                notice: WHILE_ACCEPTING,
            };
            (StatusCode::ACCEPTED, Json(under_way)).into_response()
        }
    };
    Ok(answer)
}
