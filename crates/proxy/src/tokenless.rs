//! Callers that bring the API's own credential, and no token of the gateway.
//!
//! Promise: a write of a caller that is not known is neither claimed nor answered with anything that is stored.

use std::time::Duration;

use reqwest::Url;
use reqwest::header::{
    CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, EXPECT, HOST, HeaderMap, HeaderName, IF_MATCH,
    IF_MODIFIED_SINCE, IF_NONE_MATCH, IF_RANGE, IF_UNMODIFIED_SINCE, RANGE,
};

use oncegate_engine::{ErrorKind, Repeats, ToolAt, as_header};
use oncegate_rules::caller::{Caller, Scope, Timings};
use oncegate_rules::proxy::compared_form::is_of_payment;
use oncegate_rules::proxy::names::folded;
use oncegate_rules::proxy::payment::is_payment;
use oncegate_rules::proxy::{Authorize, KnownBy, Message, Tokenless, is_override};
use oncegate_rules::tenant::RESERVED_TENANT;
use oncegate_rules::tool::Tool;
use oncegate_settings::reader::Section;
use oncegate_settings::tokens;
use oncegate_tools::{Downstream, Endpoint, is_http};

/// How long there is to say whether a caller is let in.
const TIMEOUT: Duration = Duration::from_secs(5);
/// The longest name of a caller, in bytes.
const LONGEST_NAME: usize = 1_000;

/// The headers by which the system that is asked knows the request. nginx's module `auth_request` is used with them.
const ORIGINAL: [HeaderName; 2] = [
    HeaderName::from_static("x-original-method"),
    HeaderName::from_static("x-original-uri"),
];

/// Headers about the body of the request, or about what it asks for. The question is a GET without a body.
const OF_REQUEST: [HeaderName; 10] = [
    CONTENT_ENCODING,
    CONTENT_LENGTH,
    CONTENT_TYPE,
    EXPECT,
    IF_MATCH,
    IF_MODIFIED_SINCE,
    IF_NONE_MATCH,
    IF_RANGE,
    IF_UNMODIFIED_SINCE,
    RANGE,
];

const NO_CREDENTIAL: &str =
    "it has no Authorization for the API, so its caller cannot be told from others";
const NOT_LET_IN: &str = "the API has not let its caller in";

/// All callers of a proxy: they share a tenant, and how fast they may be.
pub(crate) fn caller(proxy: &str, tokenless: &Tokenless) -> Caller {
    Caller {
        name: format!("proxy:{proxy}"),
        tenant: tokenless.tenant.clone(),
        scopes: vec![Scope::CallTool(proxy.to_owned())],
        timings: Timings {
            rate: tokenless.rate,
            new_keys: tokenless.new_keys,
        },
    }
}

/// What the caller of a request is known by: a repetition by another one is not the same request.
///
/// `own`: the caller's `Authorization` and `Cookie`, which may be absent.
///
/// # Errors
/// The caller is not let in, or that could not be found out.
pub(crate) async fn known_by(
    (downstream, repeats): (&Downstream, &Repeats),
    at: &ToolAt,
    tokenless: &Tokenless,
    (message, own): (&Message, &str),
) -> Result<String, ErrorKind> {
    let Some(authorize) = &tokenless.authorize else {
        if message.has_authorization() {
            return Ok(own.to_owned());
        }
        return Err(ErrorKind::Unauthenticated(NO_CREDENTIAL));
    };
    let ask = async {
        let (url, headers) = asked_with(at, authorize, message)?;
        let timeout = authorize.timeout;
        let (status, headers) = downstream.head_of_outside(url, headers, timeout).await?;
        match status.as_u16() {
            401 | 403 => Ok(None),
            _ if status.is_success() => named(authorize, &headers, own).map(Some),
            status => Err(format!("it answered {status}")),
        }
    };
    match ask.await {
        Ok(Some(known_by)) => Ok(known_by),
        Ok(None) => Err(ErrorKind::Unauthenticated(NOT_LET_IN)),
        Err(why) => {
            let tool = &at.tool.name;
            if let Some(left_out) = repeats.note((tool, "authorize")) {
                tracing::warn!(
                    tool,
                    left_out,
                    why,
                    "nothing says whether to let a caller in"
                );
            }
            Err(ErrorKind::NotChecked)
        }
    }
}

/// What the caller of an authorised request is known by.
fn named(authorize: &Authorize, headers: &HeaderMap, own: &str) -> Result<String, String> {
    let Some(header) = &authorize.caller else {
        return Ok(own.to_owned());
    };
    let mut lines = headers.get_all(header).iter();
    match (lines.next(), lines.next()) {
        (Some(name), None) if (1..=LONGEST_NAME).contains(&name.len()) => {
            // No header line has a line break, so no credential reads like it.
            let name: String = name.as_bytes().iter().copied().map(char::from).collect();
            Ok(format!("\n{name}"))
        }
        _ => Err(format!("its answer does not have one {header}")),
    }
}

/// The URL that is asked, and the headers: the caller's own about itself, but no payment, which could be taken.
fn asked_with(
    at: &ToolAt,
    authorize: &Authorize,
    message: &Message,
) -> Result<(Url, HeaderMap), String> {
    let url: Url = authorize.url.parse().map_err(|_| "this is not a URL")?;
    let is_of_api = url.origin() == at.endpoint.url.origin();
    let mut headers = HeaderMap::new();
    for (name, value) in &message.headers {
        let header: HeaderName = name.parse().map_err(|_| "a header has no name")?;
        let as_read = folded(name);
        let is_named = |others: &[HeaderName]| others.iter().any(|one| *one.as_str() == as_read);
        let is_of_request = is_named(&ORIGINAL) || is_named(&OF_REQUEST) || is_override(name);
        // What is asked would take it for its own word, or lead the question elsewhere.
        let is_answer = authorize.caller.as_deref().map(folded) == Some(as_read.clone());
        let leads_away = header == HOST && !is_of_api;
        if !is_of_request && !is_answer && !leads_away && !is_payment(name, value) {
            headers.append(header, as_header(value)?);
        }
    }
    // The headers that the proxy sets are for the API alone.
    if is_of_api {
        headers.extend(at.endpoint.headers.clone());
    }
    let [method, uri] = ORIGINAL;
    headers.insert(method, as_header(&message.method)?);
    headers.insert(uri, as_header(&message.target())?);
    Ok((url, headers))
}

/// Reads who the callers are.
pub(crate) fn settings(section: &mut Section<'_, '_>, is_open: bool) -> Option<Tokenless> {
    let known_by: KnownBy = section.get("caller").unwrap_or_default();
    if known_by == KnownBy::Token {
        let why = "this is for a proxy with caller = \"passed\"";
        section.check_absent(&["tenant", "rate", "new_keys", "authorize"], why);
        return None;
    }
    let why = "without [[auth.tokens]] everyone on this machine reads the calls of all callers";
    section.check(!is_open, "caller", why);
    let tenant: Option<String> = section.need("tenant");
    let why = format!("{RESERVED_TENANT} is the gateway's own: no caller may have it");
    section.check(tenant.as_deref() != Some(RESERVED_TENANT), "tenant", &why);
    section.require("rate");
    let (rate, new_keys) = (
        tokens::rate(section, "rate"),
        tokens::rate(section, "new_keys"),
    );
    let authorize = section.section("authorize");
    Some(Tokenless {
        tenant: tenant?,
        rate,
        new_keys,
        authorize: authorize.and_then(authorize_of),
    })
}

fn authorize_of(mut section: Section<'_, '_>) -> Option<Authorize> {
    let url: Option<String> = section.need("url");
    let is_url = |text: &String| {
        let url = text.parse::<Url>().ok();
        url.is_some_and(|url| {
            let has_user = !url.username().is_empty() || url.password().is_some();
            is_http(&url) && !has_user && url.fragment().is_none()
        })
    };
    let why = "this is not an http:// or https:// URL without user and fragment";
    section.check(url.as_ref().is_none_or(is_url), "url", why);
    let read = |text: &str| {
        let name = text.parse::<HeaderName>();
        let name = name.map_err(|_| "this is not the name of a header")?;
        Ok(name.as_str().to_owned())
    };
    let caller = section.parsed("caller", read);
    let timeout = section.get_or("timeout", TIMEOUT);
    section.check(!timeout.is_zero(), "timeout", "must be above 0");
    Some(Authorize {
        url: url?,
        caller,
        timeout,
    })
}

/// What does not fit to callers without a token.
pub(crate) fn check(tool: &Tool, endpoint: &Endpoint, section: &mut Section<'_, '_>) {
    let tokenless = tool.proxy().and_then(|policy| policy.tokenless.as_deref());
    let Some(tokenless) = tokenless else { return };
    let why = "the API would get the gateway's own credential with requests of everyone";
    section.check(!endpoint.has_credential(), "caller", why);
    let may_be_of_payment = tool.key.places.iter().any(is_of_payment);
    if may_be_of_payment && tokenless.authorize.is_none() {
        let name = &tool.name;
        section.warn(format!(
            "{name}: a buyer whose requests have no credential beside a payment is refused; authorize lets it in"
        ));
    }
}
