//! A request for a page: the operator who asks, the address, and the parts that pages share.

use std::sync::Arc;

use axum::Extension;
use axum::extract::FromRequestParts;
use axum::http::header::{COOKIE, HOST, ORIGIN};
use axum::http::request::Parts;
use axum::http::{HeaderMap, Method, Uri};
use axum::response::{IntoResponse, Redirect, Response};
use jiff::Timestamp;
use maud::{Markup, html};

use crate::access::operator::Operator;
use crate::access::pass::SignIn;
use crate::frame::address::{self, Asked};
use crate::frame::page;
use crate::frame::words::{more, text};
use crate::services::Console;
use oncegate_engine::{Gateway, Query};
use oncegate_http::problem::{Problem, Slug};
use oncegate_http::read::{limit, named_tenant, page_query};
use oncegate_http::{Http, auth, host};
use oncegate_rules::caller::Caller;
use oncegate_rules::ledger::LIMITS;
use oncegate_rules::position::Position;

/// The name of the cookie.
pub(crate) const SESSION: &str = "oncegate_console";

/// The address of streams, each of which takes this much memory as long as it is open, in bytes.
const LIVE: &str = "/console/live";
const STREAM: usize = 64 << 10;

/// A request of an operator who is signed in.
pub(crate) struct Context {
    pub(crate) http: Http,
    pub(crate) console: Arc<Console>,
    pub(crate) operator: Operator,
    /// The address of the page.
    pub(crate) uri: Uri,
    /// The parameters of the address.
    pub(crate) asked: Asked,
    /// Ages count up to this time.
    pub(crate) now: Timestamp,
    /// The gateway's address as the browser knows it, for the commands that a page shows.
    pub(crate) origin: String,
}

impl FromRequestParts<Http> for Context {
    type Rejection = Response;

    async fn from_request_parts(parts: &mut Parts, http: &Http) -> Result<Self, Response> {
        let console = Extension::from_request_parts(parts, http).await;
        let Extension::<Arc<Console>>(console) = console.map_err(IntoResponse::into_response)?;
        Ok(Self {
            operator: operator(parts, http, &console).await?,
            console,
            uri: parts.uri.clone(),
            asked: Asked::of(&parts.uri),
            now: http.gateway.base.wall_time(),
            origin: origin(http, parts),
            http: http.clone(),
        })
    }
}

/// The operator who asks, or the answer to a request without a session.
async fn operator(parts: &Parts, http: &Http, console: &Console) -> Result<Operator, Response> {
    let memory = match parts.uri.path() {
        LIVE => STREAM,
        _ => page_memory(http),
    };
    let (caller, sign_in) = if http.tokens.now().is_empty() {
        let caller = host::asks_this_machine(parts).and_then(|()| auth::open(parts, memory));
        (caller, SignIn::OPEN)
    } else {
        let sign_in = match cookie(&parts.headers) {
            Some(cookie) => console.sign_ins.open(cookie).await,
            None => None,
        };
        let sign_in = sign_in.ok_or_else(|| refused(parts))?;
        let caller = auth::by_digest(parts, http, &sign_in.token, memory);
        (caller, sign_in)
    };
    match caller {
        Ok(caller) => Ok(Operator::new(&console.sign_ins, caller, sign_in)),
        // The token was removed or has expired.
        Err(problem) if problem.slug == Slug::Unauthenticated => Err(refused(parts)),
        Err(problem) => Err(page::failure(&problem, None)),
    }
}

/// Answers a request without a session: a page asks to sign in, a form or a stream fails.
///
/// A browser would take a page for the answer to neither.
fn refused(parts: &Parts) -> Response {
    if parts.method == Method::GET && parts.uri.path() != LIVE {
        ask_first(parts)
    } else {
        page::failure(&Problem::unauthenticated(), None)
    }
}

/// Sends an operator without a session to the form, and from there back.
///
/// After a link on another site the browser sends no cookie, even if it has one: so the page asks once more, by itself.
fn ask_first(parts: &Parts) -> Response {
    let here = address::here(&parts.uri);
    if host::is_from_another_site(&parts.headers) {
        let body = html! { p { a href=(here) { "Go on to the page" } } };
        let again = [("refresh", format!("0; url={here}"))];
        return (again, page::plain("One moment", None, &body)).into_response();
    }
    Redirect::to(&address::to(&["sign-in"], &[("next", here)])).into_response()
}

/// The memory for a page, in bytes: lists come without the texts of calls, and a call has one of each.
pub(crate) fn page_memory(http: &Http) -> usize {
    2 * (http.max_body.bytes + http.gateway.engine.memory.max_result)
}

/// The cookie of the session, if exactly one has its name.
pub(crate) fn cookie(headers: &HeaderMap) -> Option<&str> {
    let lines = headers.get_all(COOKIE).iter();
    let pairs = lines.filter_map(|line| line.to_str().ok());
    let mut values = pairs
        .flat_map(|line| line.split(';'))
        .filter_map(|pair| pair.trim().split_once('='))
        .filter(|(name, _)| *name == SESSION)
        .map(|(_, value)| value);
    match (values.next(), values.next()) {
        (Some(cookie), None) => Some(cookie),
        _ => None,
    }
}

fn origin(http: &Http, parts: &Parts) -> String {
    let host = parts.headers.get(HOST).and_then(|host| host.to_str().ok());
    let authority = parts.uri.authority();
    let host = authority.map(|authority| authority.as_str()).or(host);
    let is_plain = |host: &&str| {
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b".:-[]".contains(&byte);
        host.bytes().all(is_plain)
    };
    let scheme = if is_over_tls(http, &parts.headers) {
        "https"
    } else {
        "http"
    };
    let host = host.filter(is_plain).unwrap_or("127.0.0.1:8080");
    format!("{scheme}://{host}")
}

/// Whether the browser speaks TLS, to this gateway or to a proxy before it.
pub(crate) fn is_over_tls(http: &Http, headers: &HeaderMap) -> bool {
    let says = |name: &str, with: &str| {
        let value = headers.get(name).and_then(|value| value.to_str().ok());
        value.is_some_and(|value| value.starts_with(with))
    };
    http.is_tls || says(ORIGIN.as_str(), "https://") || says("x-forwarded-proto", "https")
}

/// A field of an act's form.
#[derive(Clone, Copy)]
pub(crate) enum Field<'a> {
    /// The reason, in a sentence. It is needed.
    Reason,
    /// The reason, which may be left out.
    OptionalReason,
    /// The version of the state that the operator has seen and acts on. Not shown.
    Seen(&'a str),
    /// What the agent is told, which may be left out.
    Tell,
    /// A JSON text.
    Json { label: &'a str, value: &'a str },
}

impl Context {
    pub(crate) fn gateway(&self) -> &Gateway {
        &self.http.gateway
    }

    pub(crate) fn caller(&self) -> &Caller {
        &self.operator.caller
    }

    pub(crate) fn is_admin(&self) -> bool {
        self.caller().is_admin()
    }

    /// Whether the operator decides about calls that wait, and may see nothing else.
    pub(crate) fn only_approves(&self) -> bool {
        let caller = self.caller();
        caller.is_approver() && !caller.may_read(&caller.tenant)
    }

    /// The tenant that the address names, if it names one.
    pub(crate) fn named_tenant(&self) -> Result<Option<String>, Problem> {
        named_tenant(self.asked.owned("tenant"))
    }

    /// The tenant of one thing: the named one, or the operator's own.
    pub(crate) fn tenant(&self) -> Result<String, Problem> {
        let own = || self.caller().tenant.clone();
        Ok(self.named_tenant()?.unwrap_or_else(own))
    }

    /// Which page of a list is asked for. The parameter `name` holds the position.
    pub(crate) fn page_query<F>(&self, name: &str, filter: F) -> Result<Query<F>, Problem> {
        let (before, most) = (self.asked.owned(name), self.asked.owned("limit"));
        page_query(self.named_tenant()?, filter, before, most)
    }

    pub(crate) fn limit(&self) -> Result<u32, Problem> {
        limit(self.asked.owned("limit"), LIMITS.0)
    }

    /// A link to the entries of a list from a position on. The parameter `name` holds the position.
    pub(crate) fn older(&self, list: &str, name: &str, next: Option<Position>) -> Markup {
        more(next.map(|next| self.asked.with(&[list], name, &next.to_cursor())))
    }

    /// The column that only administrators see, who see more than one tenant.
    pub(crate) fn tenant_column(&self) -> &'static [&'static str] {
        if self.is_admin() { &["Tenant"] } else { &[] }
    }

    /// A form for an act, closed until it is opened. For administrators only, as the act is.
    pub(crate) fn act(&self, to: &str, what: &str, about: &str, fields: &[Field<'_>]) -> Markup {
        self.act_if(self.is_admin(), to, what, about, fields)
    }

    /// The same, for who else may act.
    pub(crate) fn act_if(
        &self,
        may: bool,
        to: &str,
        what: &str,
        about: &str,
        fields: &[Field<'_>],
    ) -> Markup {
        html! {
            @if may {
                details.act {
                    summary { (text(what)) }
                    form method="post" action=(to) {
                        input type="hidden" name="form" value=(self.operator.form_token);
                        p { (text(about)) }
                        @for field in fields { (input(field)) }
                        button type="submit" { (text(what)) }
                    }
                }
            }
        }
    }

    /// A form of one small button, for an act that changes nothing at a tool.
    pub(crate) fn button(&self, to: &str, what: &str) -> Markup {
        html! {
            @if self.is_admin() {
                form.small method="post" action=(to) {
                    input type="hidden" name="form" value=(self.operator.form_token);
                    button type="submit" { (text(what)) }
                }
            }
        }
    }

    /// A section with the acts on a thing.
    pub(crate) fn acts(&self, acts: &Markup) -> Markup {
        html! {
            section.acts aria-label="What you may do" { (acts) (self.may_not_act()) }
        }
    }

    /// Tells an operator who may not act why there are no forms.
    pub(crate) fn may_not_act(&self) -> Markup {
        html! {
            @if !self.is_admin() {
                p.note { "This token may look. Acts need one with the scope " code { "admin" } "." }
            }
        }
    }
}

fn input(field: &Field<'_>) -> Markup {
    html! {
        @match field {
            Field::Reason => label {
                "Reason"
                input type="text" name="reason" required maxlength="1000" autocomplete="off";
            }
            Field::OptionalReason => label {
                "Reason, if there is one to keep"
                input type="text" name="reason" maxlength="1000" autocomplete="off";
            }
            Field::Tell => label {
                "What the agent is told, if anything"
                input type="text" name="tell" maxlength="500" autocomplete="off";
            }
            Field::Seen(version) => { input type="hidden" name="seen" value=(version); }
            Field::Json { label, value } => label {
                (text(label))
                textarea name="result" rows="4" required spellcheck="false" { (text(value)) }
            }
        }
    }
}
