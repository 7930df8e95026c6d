//! The routes of calls that wait for approval: list, show, approve, decline and withdraw.

use axum::Json;
use axum::body::Body;
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use utoipa::{IntoParams, ToSchema};
use uuid::Uuid;

use crate::ledger::{named, raw, time};
use crate::openapi::Route;
use crate::problem::{Problem, Slug};
use crate::read::{
    On, QueryOf, Sentence, checked_tell, one_of, read_object, read_optional_object, reason,
};
use oncegate_engine::{ApprovalLook, ApprovalState, BuiltRequest, ShownProposal};
use oncegate_rules::approval::Digest;
use oncegate_rules::record::{CallId, FailureKind, Record, State};

/// The routes of approvals.
pub(crate) fn routes() -> Vec<Route> {
    let on_call = |route: Route| {
        let route = route.path("id", "The call's id.");
        route
            .problems(&[Slug::UnknownCall, Slug::WrongState])
            .of_one()
    };
    let decides = |route: Route| {
        on_call(route)
            .problems(&[Slug::CallInProgress])
            .json::<ProposalView<'_>>("The call as it is now.")
    };
    let listed = "Calls that wait for approval, or that were decided, newest first";
    let shown = "What an approver sees of a call, with the mark that an approval sends back";
    let approved = "Approve a call as it was shown; it begins once it has all approvals";
    let declined = "Decline a call: it is never sent";
    let withdrawn = "Take a call back that was not sent";
    vec![
        Route::get("/v1/approvals", "list_approvals", listed, list)
            .params::<Parameters>()
            .problems(&[Slug::InvalidRequest, Slug::StoreUnavailable])
            .json::<ListView<'_>>("At most 500 calls."),
        on_call(Route::get(
            "/v1/calls/{id}/approval",
            "show_approval",
            shown,
            show,
        ))
        .json::<ProposalView<'_>>("What was asked, and what would be sent."),
        decides(
            Route::post("/v1/calls/{id}/approve", "approve_call", approved, approve)
                .body::<ApproveBody>(),
        )
        .problems(&[Slug::NotConfirmed, Slug::SessionFrozen, Slug::ToolPaused]),
        decides(
            Route::post("/v1/calls/{id}/decline", "decline_call", declined, decline)
                .body::<DeclineBody>(),
        ),
        decides(
            Route::post(
                "/v1/calls/{id}/withdraw",
                "withdraw_call",
                withdrawn,
                withdraw,
            )
            .optional_body::<WithdrawBody>(),
        ),
    ]
}

/// Which calls.
#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(crate) struct Parameters {
    /// Calls that wait, which is the default, or those that were decided: of the newest 2,000 of each tenant.
    #[param(pattern = "^(open|decided)$")]
    state: Option<String>,
    tool: Option<String>,
    session_id: Option<String>,
}

/// `GET /v1/approvals`
async fn list(on: On<QueryOf<Parameters>>) -> Result<Response, Problem> {
    let asked = on.target.0;
    let words = ["open", "decided"];
    let state = one_of("state", &words, |word| word, asked.state)?;
    let look = ApprovalLook {
        state: match state {
            Some("decided") => ApprovalState::Decided,
            _ => ApprovalState::Open,
        },
        tool: asked.tool,
        session_id: asked.session_id,
    };
    let found = on.http.gateway.approvals.list(&on.caller, &look).await?;
    Ok(Json(ListView {
        approvals: found.found.iter().filter_map(ProposalView::of).collect(),
        has_more: found.has_more,
    })
    .into_response())
}

/// `GET /v1/calls/{id}/approval`
async fn show(on: On<CallId>) -> Result<Response, Problem> {
    let shown = on
        .http
        .gateway
        .approvals
        .show(&on.caller, on.target)
        .await?;
    Ok(Json(ProposalView::shown(&shown)).into_response())
}

/// An approval of what was shown.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = Approve)]
pub(crate) struct ApproveBody {
    /// The mark of what was shown.
    #[schema(pattern = "^[0-9a-f]{64}$")]
    seen: String,
    /// A sentence in one line.
    #[schema(
        max_length = 1000,
        pattern = r"^[^\x00-\x1f\x7f-\x9f]*[^\s\x00-\x1f\x7f-\x9f][^\x00-\x1f\x7f-\x9f]*$"
    )]
    reason: Option<String>,
}

/// `POST /v1/calls/{id}/approve`
async fn approve(on: On<CallId>, body: Body) -> Result<Response, Problem> {
    let body: ApproveBody = read_object(body, on.http.max_body).await?;
    let seen = mark(&body.seen)?;
    let reason = body.reason.map_or_else(|| Ok(String::new()), reason)?;
    let approvals = &on.http.gateway.approvals;
    let approving = approvals.approve(&on.caller, on.target, seen, &reason);
    decided(&approving.await?)
}

/// A decision that a call is never sent.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = Decline)]
pub(crate) struct DeclineBody {
    #[schema(inline)]
    reason: Sentence,
    /// What the agent is told.
    #[schema(max_length = 500, pattern = r"^[^\x00-\x1f\x7f-\x9f]*$")]
    tell: Option<String>,
}

/// `POST /v1/calls/{id}/decline`
async fn decline(on: On<CallId>, body: Body) -> Result<Response, Problem> {
    let body: DeclineBody = read_object(body, on.http.max_body).await?;
    let reason = body.reason.checked()?;
    let tell = checked_tell(body.tell.unwrap_or_default())?;
    let approvals = &on.http.gateway.approvals;
    let declining = approvals.decline(&on.caller, on.target, &reason, &tell);
    decided(&declining.await?)
}

/// Nothing: a call is taken back without a word.
#[derive(Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = Withdraw)]
pub(crate) struct WithdrawBody {}

/// `POST /v1/calls/{id}/withdraw`
async fn withdraw(on: On<CallId>, body: Body) -> Result<Response, Problem> {
    let _nothing: WithdrawBody = read_optional_object(body, on.http.max_body).await?;
    let withdrawing = on.http.gateway.approvals.withdraw(&on.caller, on.target);
    decided(&withdrawing.await?)
}

/// Reads the mark of what was shown.
///
/// # Errors
/// It is not one.
pub fn mark(text: &str) -> Result<Digest, Problem> {
    let mut seen = [0; 32];
    match hex::decode_to_slice(text, &mut seen) {
        Ok(()) => Ok(seen),
        Err(_) => Err(Problem::invalid_request(
            "seen must be the mark that GET /v1/calls/{id}/approval shows",
        )),
    }
}

fn decided(record: &Record) -> Result<Response, Problem> {
    Ok(Json(ProposalView::of(record)).into_response())
}

/// Calls that were asked about.
#[derive(Serialize, ToSchema)]
#[schema(as = ApprovalList)]
pub(crate) struct ListView<'a> {
    approvals: Vec<ProposalView<'a>>,
    /// Whether there are more than these.
    has_more: bool,
}

/// A call that was asked about. Lists and decisions have neither `request` nor `seen`.
#[derive(Serialize, ToSchema)]
#[schema(as = CallApproval)]
pub(crate) struct ProposalView<'a> {
    call_id: Uuid,
    #[schema(
        pattern = "^(running|succeeded|failed|unknown|compensating|compensated|stuck|proposed|approved)$"
    )]
    state: &'static str,
    /// How the wait ended; null while the call waits.
    #[schema(required, pattern = "^(approved|declined|lapsed|withdrawn)$")]
    outcome: Option<&'static str>,
    tenant: &'a str,
    tool: &'a str,
    #[schema(required)]
    user_id: Option<&'a str>,
    #[schema(required)]
    session_id: Option<&'a str>,
    #[schema(required)]
    saga_id: Option<&'a str>,
    /// The name of the token that made the call.
    #[schema(required)]
    made_by: Option<&'a str>,
    key: &'a str,
    #[schema(format = DateTime)]
    asked_at: String,
    /// Until when it may be decided.
    #[schema(format = DateTime)]
    expires_at: String,
    /// Until when the approved call may begin.
    #[schema(required, format = DateTime)]
    good_until: Option<String>,
    /// The number of the ask. It rises when the call is asked about again, and when its approvals are void.
    ask: u32,
    /// Why the call needs approval.
    why: &'a [String],
    /// How many approvers have to approve.
    needed: u8,
    approvals: Vec<ApprovalView<'a>>,
    /// What the agent is told about a declined call.
    #[schema(required)]
    tell: Option<&'a str>,
    /// An object. The text `[erased]` once the data of the call's user was erased, `[deleted]` after `args_for`; null if it cannot be read.
    #[schema(required, value_type = serde_json::Value)]
    args: Option<&'a RawValue>,
    /// The request as it would be sent, without credentials, attempt and fencing token.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    request: Option<RequestView<'a>>,
    /// Why the call cannot be sent as things are.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    trouble: Option<&'a str>,
    /// Earlier calls that look the same.
    similar: Vec<BriefView<'a>>,
    /// The newest other calls of its session.
    session: Vec<BriefView<'a>>,
    /// The mark of all this: an approval sends it back.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false, pattern = "^[0-9a-f]{64}$")]
    seen: Option<String>,
}

/// One approval.
#[derive(Serialize, ToSchema)]
#[schema(as = Approval)]
struct ApprovalView<'a> {
    /// The name of the approver's token.
    by: &'a str,
    #[schema(format = DateTime)]
    at: String,
    #[schema(required)]
    reason: Option<&'a str>,
}

/// A request for a tool, without credentials.
#[derive(Serialize, ToSchema)]
#[schema(as = ToolRequest)]
struct RequestView<'a> {
    method: &'a str,
    url: &'a str,
    headers: Vec<HeaderView<'a>>,
    /// The body as text.
    body: String,
    /// The server, if the tool is one of an MCP server; the body is its arguments.
    #[schema(required)]
    upstream: Option<&'a str>,
    /// The tool's name on that server.
    #[schema(required)]
    upstream_tool: Option<&'a str>,
}

#[derive(Serialize, ToSchema)]
#[schema(as = ToolHeader)]
struct HeaderView<'a> {
    name: &'a str,
    value: &'a str,
}

/// A call in brief.
#[derive(Serialize, ToSchema)]
#[schema(as = BriefCall)]
struct BriefView<'a> {
    call_id: Uuid,
    tool: &'a str,
    state: &'static str,
    #[schema(format = DateTime)]
    created_at: String,
    /// The same as in the whole view; null in `session`.
    #[schema(required, value_type = serde_json::Value)]
    args: Option<&'a RawValue>,
}

impl<'a> BriefView<'a> {
    fn of(record: &'a Record) -> Self {
        let intent = &record.intent;
        Self {
            call_id: intent.call_id.0,
            tool: &intent.tool,
            state: record.state.as_str(),
            created_at: time(intent.created_at),
            args: raw(&intent.args),
        }
    }
}

impl<'a> RequestView<'a> {
    fn of(request: &'a BuiltRequest) -> Self {
        let header = |(name, value): &'a (String, String)| HeaderView { name, value };
        let mcp = request.mcp.as_ref();
        Self {
            method: &request.method,
            url: &request.url,
            headers: request.headers.iter().map(header).collect(),
            body: String::from_utf8_lossy(&request.body).into_owned(),
            upstream: mcp.map(|(upstream, _)| &**upstream),
            upstream_tool: mcp.map(|(_, tool)| &**tool),
        }
    }
}

impl<'a> ProposalView<'a> {
    fn shown(shown: &'a ShownProposal) -> Option<Self> {
        let request = shown.request.as_ref();
        Some(Self {
            request: request.and_then(|request| request.as_ref().ok().map(RequestView::of)),
            trouble: request.and_then(|request| request.as_ref().err().map(|why| &**why)),
            similar: shown.similar.iter().map(BriefView::of).collect(),
            session: shown.session.iter().map(BriefView::of).collect(),
            seen: shown.seen.map(hex::encode),
            ..Self::of(&shown.record)?
        })
    }

    /// `None`: the call was never asked about.
    fn of(record: &'a Record) -> Option<Self> {
        let (intent, proposal) = (&record.intent, record.proposal.as_deref()?);
        Some(Self {
            call_id: intent.call_id.0,
            state: record.state.as_str(),
            outcome: outcome(record),
            tenant: &intent.tenant,
            tool: &intent.tool,
            user_id: named(&intent.user_id),
            session_id: named(&intent.session_id),
            saga_id: named(&intent.saga_id),
            made_by: named(&intent.made_by),
            key: &intent.key,
            asked_at: time(proposal.asked_at),
            expires_at: time(proposal.until),
            good_until: proposal.good_until.map(time),
            ask: proposal.ask,
            why: &proposal.why,
            needed: proposal.needed,
            approvals: proposal
                .approvals
                .iter()
                .map(|approval| ApprovalView {
                    by: &approval.by,
                    at: time(approval.at),
                    reason: named(&approval.reason),
                })
                .collect(),
            tell: named(&proposal.tell),
            args: raw(&intent.args),
            request: None,
            trouble: None,
            similar: Vec::new(),
            session: Vec::new(),
            seen: None,
        })
    }
}

/// How the wait for approval ended; `None`: the call waits.
pub fn outcome(record: &Record) -> Option<&'static str> {
    match &record.state {
        State::Proposed => None,
        State::Failed(failure) => match failure.kind {
            FailureKind::Declined => Some("declined"),
            FailureKind::Lapsed => Some("lapsed"),
            FailureKind::Withdrawn => Some("withdrawn"),
            _ => Some("approved"),
        },
        State::Compensated(None) if record.attempts == 0 => Some("withdrawn"),
        _ => Some("approved"),
    }
}
