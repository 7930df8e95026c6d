//! Calls that wait for approval: the list, and the page on which one of them is decided.
//!
//! The page is not kept current: what is approved is what its reader has read. Nothing is approved from a list.

use maud::{Markup, html};
use uuid::Uuid;

use crate::access::context::{Context, Field};
use crate::access::form::Form;
use crate::acts::{Acts, Done, Page};
use crate::frame::address;
use crate::frame::page::Screen;
use crate::frame::things::{part, thing};
use crate::frame::words::{self, fact, json, state, table, text, when};
use oncegate_engine::{ApprovalLook, ApprovalState, BuiltRequest, ErrorKind, ShownProposal};
use oncegate_http::calls::approvals::{mark, outcome};
use oncegate_http::problem::Problem;
use oncegate_http::read::checked_tell;
use oncegate_rules::approval::Proposal;
use oncegate_rules::record::{CallId, Record};

/// Calls that the first screen shows.
const SHOWN: usize = 10;

/// What of the first screen is about approval.
pub(crate) async fn needs(context: &Context) -> Result<Markup, Problem> {
    if !context.caller().may_see_proposals() {
        return Ok(html! {});
    }
    let look = ApprovalLook::default();
    let found = context
        .gateway()
        .approvals
        .list(context.caller(), &look)
        .await?;
    let waiting: Vec<&Record> = found.found.iter().collect();
    let things = waiting.iter().take(SHOWN).filter_map(|record| {
        let proposal = record.proposal.as_deref()?;
        let head = html! { (words::tool(&record.intent.tool)) " " (link(record)) };
        Some(thing(head, brief(record, proposal, context), html! {}))
    });
    let all = html! { p { a href=(address::to(&["approvals"], &[])) { "All calls that wait for approval" } } };
    let has_more = waiting.len() > SHOWN || found.has_more;
    Ok(part("Waits for approval", things.collect(), has_more, &all))
}

fn link(record: &Record) -> Markup {
    let id = record.intent.call_id.to_string();
    html! { a href=(address::to(&["approvals", &id], &[])) { "Look at it" } }
}

fn brief(record: &Record, proposal: &Proposal, context: &Context) -> Markup {
    let intent = &record.intent;
    html! {
        @for why in &proposal.why { p { (text(why)) } }
        dl {
            (fact("Asked", html! { (when(proposal.asked_at, context.now)) " by token " (text(&intent.made_by)) }))
            (fact("May be decided until", when(proposal.until, context.now)))
            (fact("Tenant", text(&intent.tenant)))
            (fact("User", text(&intent.user_id)))
        }
    }
}

/// The list: calls that wait, or that were decided.
pub(crate) async fn list(context: &Context) -> Result<Screen, Problem> {
    let is_decided = context.asked.text("state") == "decided";
    let look = ApprovalLook {
        state: match is_decided {
            true => ApprovalState::Decided,
            false => ApprovalState::Open,
        },
        tool: context.asked.owned("tool"),
        session_id: context.asked.owned("session_id"),
    };
    let found = context
        .gateway()
        .approvals
        .list(context.caller(), &look)
        .await?;
    let rows = html! {
        @for record in &found.found {
            @if let Some(proposal) = record.proposal.as_deref() {
                tr {
                    td { (link(record)) }
                    td { (words::tool(&record.intent.tool)) }
                    td { (state(outcome(record).unwrap_or(record.state.as_str()))) }
                    td { (when(proposal.asked_at, context.now)) }
                    td.less { (when(proposal.until, context.now)) }
                    td.less { (text(&record.intent.made_by)) }
                    td.less { (text(&record.intent.tenant)) }
                }
            }
        }
    };
    let columns = ["Call", "Tool", "State", "Asked"];
    let body = html! {
        p {
            @if is_decided { a href=(address::to(&["approvals"], &[])) { "Those that wait" } }
            @else { a href=(address::to(&["approvals"], &[("state", "decided")])) { "Those that were decided" } }
        }
        @if found.found.is_empty() { p { "There is none." } } @else {
            (table("Calls", &columns, &["Until", "Token", "Tenant"], &rows))
        }
        @if found.has_more { p.note { "There are more than these." } }
    };
    let title = if is_decided {
        "Decided"
    } else {
        "Waits for approval"
    };
    Ok(Screen::new("approvals", title, body))
}

/// The page of one call: everything that an approver has to see, and the forms.
pub(crate) async fn screen(context: &Context, id: &str) -> Result<Screen, Problem> {
    let call_id = id_of(id)?;
    let shown = context
        .gateway()
        .approvals
        .show(context.caller(), call_id)
        .await?;
    let record = &shown.record;
    let Some(proposal) = record.proposal.as_deref() else {
        return Err(ErrorKind::UnknownCall.into());
    };
    let body = html! {
        (why(record, proposal, context))
        (request(&shown))
        section {
            h2 { "Arguments" }
            (json(&record.intent.args))
        }
        (similar(&shown, context))
        (session(&shown, context))
        (decide(&shown, context))
    };
    let title = format!(
        "{}: {}",
        record.intent.tool,
        outcome(record).unwrap_or(record.state.as_str())
    );
    Ok(Screen::still("approvals", title, body))
}

fn id_of(id: &str) -> Result<CallId, Problem> {
    let id = Uuid::try_parse(id).map(CallId);
    id.map_err(|_| ErrorKind::UnknownCall.into())
}

fn why(record: &Record, proposal: &Proposal, context: &Context) -> Markup {
    let intent = &record.intent;
    html! {
        section {
            h2 { "Why it asks" }
            (brief(record, proposal, context))
            dl {
                (fact("Call", words::call(intent.call_id)))
                (fact("Belongs to", words::belongs_to(intent)))
                (fact("Key", html! { code { (text(&intent.key)) } }))
                (fact("Approvals needed", proposal.needed))
            }
            @for approval in &proposal.approvals {
                p { "Approved by " (text(&approval.by)) " " (when(approval.at, context.now)) " " (text(&approval.reason)) }
            }
            @if !proposal.tell.is_empty() { p { "The agent is told: " (text(&proposal.tell)) } }
        }
    }
}

/// The exact request. Its body is whole: an approver must see all of it.
fn request(shown: &ShownProposal) -> Markup {
    html! {
        @match &shown.request {
            None => {}
            Some(Err(why)) => section { h2 { "The request" } p.failed { "It cannot be sent as things are: " (text(why)) } },
            Some(Ok(request)) => section { h2 { "The request, as it would be sent" } (built(request)) },
        }
    }
}

fn built(request: &BuiltRequest) -> Markup {
    html! {
        @if let Some((upstream, tool)) = &request.mcp {
            p { "The tool " b { (text(tool)) } " of the MCP server " b { (text(upstream)) } ", with these arguments:" }
        } @else {
            pre { code { (text(&request.method)) " " (text(&request.url)) "\n"
                @for (name, value) in &request.headers { (text(name)) ": " (text(value)) "\n" } } }
        }
        pre { code { (text(&String::from_utf8_lossy(&request.body))) } }
    }
}

fn similar(shown: &ShownProposal, context: &Context) -> Markup {
    html! {
        @if let Some(similar) = &shown.similar {
            section {
                h2 { "An earlier call looks the same" }
                p { (words::call(similar.intent.call_id)) " " (state(similar.state.as_str())) " " (when(similar.intent.created_at, context.now)) }
                (json(&similar.intent.args))
            }
        }
    }
}

fn session(shown: &ShownProposal, context: &Context) -> Markup {
    let rows = html! {
        @for record in &shown.session {
            tr {
                td { (words::call(record.intent.call_id)) }
                td { (words::tool(&record.intent.tool)) }
                td { (state(record.state.as_str())) }
                td { (when(record.intent.created_at, context.now)) }
            }
        }
    };
    html! {
        @if !shown.session.is_empty() {
            section {
                h2 { "The newest other calls of its session" }
                (table("Calls of its session", &["Call", "Tool", "State", "Made"], &[], &rows))
            }
        }
    }
}

fn decide(shown: &ShownProposal, context: &Context) -> Markup {
    let (intent, caller) = (&shown.record.intent, context.caller());
    let may = caller.may_approve(&intent.tenant, &intent.tool) && caller.name != intent.made_by;
    let waits = shown.record.state.waits_for_approval();
    let id = intent.call_id.to_string();
    let to = |act| address::to(&["approvals", &id, act], &[]);
    html! {
        @if waits {
            section.acts aria-label="What you may do" {
                @if let Some(seen) = shown.seen {
                    (context.act_if(
                        may,
                        &to("approve"),
                        "Approve",
                        "The request above is sent once, exactly as it is shown.",
                        &[Field::OptionalReason, Field::Seen(&hex::encode(seen))],
                    ))
                }
                (context.act_if(
                    may,
                    &to("decline"),
                    "Decline",
                    "It is never sent. The reason is for the books; the agent is told only what the second line says.",
                    &[Field::Reason, Field::Tell],
                ))
                @if !may { p.note { "Only a token with the scope " code { "approve" } " decides, and never the one that made the call." } }
            }
        }
    }
}

/// The decisions about a call.
pub(crate) const ACTS: Acts = Acts {
    path: "/console/approvals/{id}/{act}",
    page: |form| Page {
        path: vec!["approvals", id_in(form)],
        of: Vec::new(),
    },
    rows: &[
        ("approve", |form| Box::pin(approve(form))),
        ("decline", |form| Box::pin(decline(form))),
    ],
};

/// The id in the address of a decision.
fn id_in(form: &Form) -> &str {
    let words = address::words(form.context.uri.path()).unwrap_or_default();
    words.get(1).copied().unwrap_or_default()
}

async fn approve(form: &Form) -> Result<Done, Problem> {
    let (call_id, reason) = (id_of(id_in(form))?, form.optional_reason()?);
    let seen = mark(form.fields.text("seen"))?;
    let approvals = &form.context.gateway().approvals;
    let approving = approvals.approve(form.context.caller(), call_id, seen, &reason);
    approving.await?;
    Ok(Done::Back)
}

async fn decline(form: &Form) -> Result<Done, Problem> {
    let (call_id, reason) = (id_of(id_in(form))?, form.reason()?);
    let tell = checked_tell(form.fields.text("tell").to_owned())?;
    let approvals = &form.context.gateway().approvals;
    let declining = approvals.decline(form.context.caller(), call_id, &reason, &tell);
    declining.await?;
    Ok(Done::Back)
}
