//! Proxies: APIs that callers use as they are. A write becomes a call, other requests are forwarded.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use bytes::Bytes;
use reqwest::header::{HeaderMap, HeaderName, HeaderValue, SET_COOKIE};

use crate::answers::{self, Answers, PROBLEMS};
use crate::tokenless;
use oncegate_budget::Charge;
use oncegate_engine::{
    Answer, Base, Engine, Error, ErrorKind, FairPermit, Gateway, Interface, Pauses, Proxied,
    Repeats, Request, RequestSpan, Stored, ToolAt, Tools,
};
use oncegate_rules::caller::Caller;
use oncegate_rules::key;
use oncegate_rules::proxy::compared_form::{bytes_to_compare, is_of_payment, whole_form};
use oncegate_rules::proxy::encoded::is_encoded;
use oncegate_rules::proxy::names::{folded, take_out_owned};
use oncegate_rules::proxy::payment::{is_mixed, is_payment};
use oncegate_rules::proxy::reply::Reply;
use oncegate_rules::proxy::{Authority, CREDENTIALS, Does, Message, Policy, Unkeyed, mistake};
use oncegate_tools::{Downstream, Endpoint, Party};

/// How often it is logged that an API does not answer.
const SAME_EVERY: Duration = Duration::from_secs(10);

/// Passes requests on to APIs, and makes calls of writes.
pub struct Proxies {
    base: Arc<Base>,
    engine: Arc<Engine>,
    downstream: Arc<Downstream>,
    pauses: Arc<Pauses>,
    /// The names of proxies, by the host name of requests.
    hosts: ArcSwap<HashMap<String, String>>,
    repeats: Repeats,
}

/// The answer to a request.
pub enum Through {
    /// A stored answer.
    Stored(Box<Stored>, Reply),
    /// An answer that is forwarded as it comes, with what it takes until it is over.
    Passing(reqwest::Response, Admitted),
}

/// Bytes that an answer takes while it is forwarded: what is read of it ahead, and what its caller has not read.
///
/// The HTTP client reads up to 400 KiB ahead, and HTTP/2 keeps 64 KiB for its caller.
const PASSING: usize = 512 * 1024;

/// The permit and the memory of a request that is forwarded. A permit stands for a connection to the API, too.
pub struct Admitted {
    _permit: FairPermit,
    _reservation: Charge,
}

/// How requests to a proxy are read.
pub struct Entry {
    /// Whether `Authorization` is for the API, and the gateway's token in a header of its own.
    pub passes_authorization: bool,
    /// The longest body, in bytes.
    pub max_body: usize,
    /// The header for the key, in lower case.
    pub key_header: String,
    /// The host name that the API gets if callers use it.
    pub passed_host: Option<String>,
    /// All callers, if they bring no token of the gateway.
    pub(crate) tokenless: Option<Caller>,
    /// Whether each answer says the caller's key.
    pub echoes_key: bool,
    /// How the gateway's own answers are written.
    pub(crate) answers: &'static Answers,
    /// The API, if its locations lead back through the proxy.
    upstream: Option<Endpoint>,
    /// The proxy as it is configured when the request arrives.
    at: Arc<ToolAt>,
}

impl Entry {
    /// A `Location` as the proxy's caller can follow it; `None`: as it is.
    ///
    /// `target`: path and query of the request. `prefix`: the path of the proxy at this gateway.
    pub fn lead_back(&self, target: &str, location: &str, prefix: &str) -> Option<String> {
        let upstream = self.upstream.as_ref()?;
        upstream.lead_back(target, location, prefix)
    }
}

/// A request to a proxy.
pub struct Asked {
    pub message: Message,
    /// Whether the request came over a proxy of the operator.
    pub is_forwarded: bool,
    pub trace_id: Option<String>,
    pub span: RequestSpan,
}

impl Proxies {
    /// The proxies among a gateway's tools.
    pub fn new(gateway: &Gateway) -> Self {
        Self {
            hosts: ArcSwap::from_pointee(hosts(&gateway.base.tools())),
            base: gateway.base.clone(),
            engine: gateway.engine.clone(),
            downstream: gateway.downstream.clone(),
            pauses: gateway.pauses.clone(),
            repeats: Repeats::every(SAME_EVERY),
        }
    }

    /// Reads the host names of the proxies again, after the tools were set.
    pub fn renew(&self) {
        self.hosts.store(Arc::new(hosts(&self.base.tools())));
    }

    /// The proxy with this host name.
    pub fn of_host(&self, host: &str) -> Option<String> {
        let hosts = self.hosts.load();
        if hosts.is_empty() {
            return None;
        }
        hosts.get(&host.to_ascii_lowercase()).cloned()
    }

    /// How requests to a proxy are read. `None`: no proxy has this name.
    pub fn entry(&self, name: &str) -> Option<Entry> {
        let at = self.base.tool_at(name)?;
        let policy = at.tool.proxy()?;
        Some(Entry {
            passes_authorization: policy.passes_authorization,
            max_body: policy.max_body,
            key_header: policy.key_header.clone(),
            passed_host: match policy.authority {
                Authority::Caller => policy.host.clone(),
                Authority::Upstream => None,
            },
            tokenless: policy
                .tokenless
                .as_ref()
                .map(|tokenless| tokenless::caller(name, tokenless)),
            echoes_key: policy.echoes_key,
            answers: answers::named(&policy.answers).unwrap_or(PROBLEMS),
            upstream: (!policy.keeps_locations).then(|| at.endpoint.clone()),
            at: at.clone(),
        })
    }

    /// Passes a request on, or makes a call of it if it writes.
    ///
    /// # Errors
    /// The request is refused, or has no answer of the API that may be passed back.
    pub async fn serve(
        &self,
        caller: &Caller,
        entry: &Entry,
        asked: Asked,
    ) -> Result<Through, Error> {
        let at = self.engine.tool_for(caller, &entry.at.tool.name)?;
        let policy = at.tool.proxy();
        let policy = policy.ok_or_else(|| ErrorKind::UnknownTool.alone())?;
        let let_in_by = entry.at.tool.proxy();
        if !let_in_by.is_some_and(|let_in_by| let_in_by.has_same_callers(policy)) {
            // A reload has come while the body was read.
            return Err(ErrorKind::NotChecked.alone());
        }
        let message = &asked.message;
        let refuse = |why: &str| ErrorKind::InvalidRequest(why.to_owned()).alone();
        let judge = || (mistake(message), policy.decide_on(message));
        let large = &self.engine.large;
        let (why, (does, unkeyed)) = large.read_off_workers(size_of(message), judge).await;
        if let Some(why) = why {
            return Err(refuse(why));
        }
        if policy.passes_authorization && is_of_a_connection(message) {
            return Err(refuse(
                "NTLM and Negotiate authenticate a connection, not a request",
            ));
        }
        if message
            .headers
            .iter()
            .any(|(name, value)| is_mixed(name, value))
        {
            return Err(refuse(
                "a payment has a line of Authorization for itself, without another credential",
            ));
        }
        let configured = at.endpoint.header_names();
        let is_lost = |(name, value): &(String, String)| {
            is_payment(name, value) && configured.contains(&folded(name))
        };
        if message.headers.iter().any(is_lost) {
            return Err(refuse(
                "the gateway sets the header of the payment itself, so the payment would not reach the API",
            ));
        }
        at.endpoint
            .for_message(message)
            .map_err(|why| refuse(&why))?;
        // A key in the request itself is found when it is read.
        let pays = message.pays();
        let is_there = |place| pays || !is_of_payment(place);
        let may_have_key = at.tool.key.places.iter().any(is_there)
            || message
                .headers
                .iter()
                .any(|(name, _)| *name == policy.key_header);
        match (does, unkeyed) {
            (Does::Deny, _) => Err(ErrorKind::Forbidden.alone()),
            (Does::Read, _) => self.pass(caller, &at, policy, asked, "read").await,
            (Does::Write, Unkeyed::Refuse) if !may_have_key => {
                Err(ErrorKind::Key(key::Refused::Missing).alone())
            }
            (Does::Write, Unkeyed::Pass) if !may_have_key => {
                self.pass(caller, &at, policy, asked, "unkeyed").await
            }
            (Does::Write, _) => {
                let must_have_key = unkeyed == Unkeyed::Refuse;
                self.call(caller, &at, policy, asked, must_have_key).await
            }
        }
    }

    /// A permit and memory for one more request that is forwarded, as a call has them.
    ///
    /// # Errors
    /// There is none for this caller. Nothing was sent.
    fn admit(&self, caller: &Caller) -> Result<Admitted, Error> {
        let permit = self.engine.permit_for(caller);
        let reservation = self.engine.memory.budget.charge(&caller.tenant, PASSING);
        match (permit, reservation) {
            (Some(permit), Ok(reservation)) => Ok(Admitted {
                _permit: permit,
                _reservation: reservation,
            }),
            _ => Err(ErrorKind::RateLimited.alone()),
        }
    }

    async fn pass(
        &self,
        caller: &Caller,
        at: &ToolAt,
        policy: &Policy,
        asked: Asked,
        kind: &str,
    ) -> Result<Through, Error> {
        let name = &at.tool.name;
        if self.pauses.is_paused(name) {
            return Err(ErrorKind::ToolPaused.alone());
        }
        let admitted = self.admit(caller)?;
        let (mut message, _) = own_credentials(policy, asked.message);
        take_out_owned(
            &mut message,
            &policy.key_header,
            &at.endpoint.header_names(),
            asked.is_forwarded,
        );
        // Only a call sends an idempotency key to the API: its own.
        message
            .headers
            .retain(|(name, _)| *name != policy.key_header);
        let metrics = &self.base.metrics;
        metrics.proxied.with_label_values(&[name, kind]).inc();
        let party = Party::passing(&caller.tenant, name);
        let within = at.tool.deadline;
        let answered = self.downstream.pass(&at.endpoint, party, &message, within);
        match answered.await {
            Ok(mut response) => {
                let is_own = at.endpoint.has_credential();
                take_out_cookies(response.headers_mut(), is_own);
                Ok(Through::Passing(response, admitted))
            }
            Err(why) => {
                if let Some(left_out) = self.repeats.note((name, kind)) {
                    let tool = name;
                    tracing::warn!(
                        tool,
                        kind,
                        left_out,
                        why,
                        "no answer to a forwarded request"
                    );
                }
                let is_read = kind == "read";
                Err(ErrorKind::NotAnswered { is_read }.alone())
            }
        }
    }

    async fn call(
        &self,
        caller: &Caller,
        at: &Arc<ToolAt>,
        policy: &Policy,
        asked: Asked,
        must_have_key: bool,
    ) -> Result<Through, Error> {
        let (mut message, credential) = own_credentials(policy, asked.message);
        let configured = at.endpoint.header_names();
        let credential = match &policy.tokenless {
            Some(tokenless) => {
                let mut shown = message.clone();
                let key = &policy.key_header;
                take_out_owned(&mut shown, key, &configured, asked.is_forwarded);
                // The question takes a connection, as a read does.
                let _admitted = self.admit(caller)?;
                let asked = (&shown, &*credential);
                let with = (&*self.downstream, &self.repeats);
                let known_by = tokenless::known_by(with, at, tokenless, asked);
                known_by.await.map_err(ErrorKind::alone)?
            }
            None => credential,
        };
        let is_key = |(name, _): &mut (String, String)| *name == policy.key_header;
        let mut keys: Vec<_> = message.headers.extract_if(.., is_key).collect();
        if keys.len() > 1 {
            let why = format!("there is more than one {} header line", policy.key_header);
            return Err(ErrorKind::InvalidRequest(why).alone());
        }
        // What the caller has sent counts; what no caller may set is neither sent nor kept.
        let mut sent = message.clone();
        take_out_owned(
            &mut sent,
            &policy.key_header,
            &configured,
            asked.is_forwarded,
        );
        let must_hold_key = must_have_key && keys.is_empty();
        let may_be_of_payment = at.tool.key.places.iter().any(is_of_payment);
        let pays_with_key = may_be_of_payment && message.pays();
        let read = || -> Result<_, Error> {
            let weight = bytes_to_compare(&message);
            let _reservation = self.engine.memory.to_read(&caller.tenant, weight)?;
            let form = whole_form(&message, &credential);
            let holds_key = || {
                let mut places = at.tool.key.places.iter();
                places.any(|place| form.pointer(place.as_str()).is_some_and(|at| !at.is_null()))
            };
            let is_unread = pays_with_key && message.payment().is_none();
            if is_unread && keys.is_empty() {
                let why = "its payment cannot be read, and the key stands in it";
                return Err(ErrorKind::InvalidRequest(why.into()).alone());
            }
            if must_hold_key && !holds_key() {
                return Err(ErrorKind::Key(key::Refused::Missing).alone());
            }
            Ok((form.to_string(), policy.stored_form(&sent)))
        };
        let large = &self.engine.large;
        let (args, stored_form) = large.read_off_workers(size_of(&message), read).await?;
        let key = keys.pop();
        let request = Request {
            tool: at.tool.name.clone(),
            args,
            trace_id: asked.trace_id,
            span: asked.span,
            key_header: key.map(|(_, key)| Bytes::from(key)),
            interface: Interface::Proxy,
            proxied: Some(Proxied {
                message: Arc::new(sent),
                stored_form,
                read_by: at.clone(),
            }),
            ..Request::default()
        };
        match self.engine.call(caller, request).await? {
            Answer::Result(stored) => {
                let of_probe = || Reply::of_probe(&stored.json);
                let reply = Reply::read(&stored.json).or_else(of_probe);
                let reply = reply.ok_or_else(|| {
                    let why = "it is known that it was executed, and not what was answered";
                    Error {
                        key: Some(stored.record.intent.key.clone()),
                        replayed: Some(stored.replayed_age_ms.is_some()),
                        ..ErrorKind::ResultUnavailable(why.into())
                            .of_call(stored.record.intent.call_id)
                    }
                })?;
                Ok(Through::Stored(Box::new(stored), reply))
            }
            // Only for the match: a proxy's caller cannot ask for an answer before the end.
            Answer::Accepted(record) => {
                let retry_after = self.base.limits.timings.poll.1;
                Err(ErrorKind::CallInProgress { retry_after }.of_call(record.intent.call_id))
            }
        }
    }
}

/// Whether a request would authenticate its whole connection, which other callers' requests share.
fn is_of_a_connection(message: &Message) -> bool {
    let scheme = message.header("authorization").unwrap_or_default();
    let scheme = scheme.split(' ').next().unwrap_or_default();
    ["ntlm", "negotiate"]
        .iter()
        .any(|one| scheme.eq_ignore_ascii_case(one))
}

/// Removes the credentials of a request, unless they are for the API. Returns those that stay, as one text.
///
/// A payment is always for the API, and says nothing about who asks.
fn own_credentials(policy: &Policy, mut message: Message) -> (Message, String) {
    let is_own = |(name, value): &mut (String, String)| {
        CREDENTIALS.contains(&name.as_str()) && !is_payment(name, value)
    };
    let own: Vec<_> = message.headers.extract_if(.., is_own).collect();
    if !policy.passes_authorization {
        return (message, String::new());
    }
    let lines = own.iter().map(|(name, value)| format!("{name}: {value}"));
    let lines: Vec<String> = lines.collect();
    message.headers.extend(own);
    (message, lines.join("\n"))
}

/// The beginning of the names of the gateway's own cookies.
const OWN_COOKIES: &[u8] = b"oncegate";

/// The bytes of a body that are read. A few encoded bytes may be many.
fn size_of(message: &Message) -> usize {
    match is_encoded(&message.headers) {
        true => usize::MAX,
        false => message.body.len(),
    }
}

/// Takes out cookies that an API sets for everybody, or that are named like the gateway's own.
///
/// `is_own`: the request had the gateway's credential, so its session is not a caller's.
fn take_out_cookies(headers: &mut HeaderMap, is_own: bool) {
    for name in [SET_COOKIE, HeaderName::from_static("set-cookie2")] {
        let lines: Vec<HeaderValue> = headers.get_all(&name).iter().cloned().collect();
        headers.remove(&name);
        let of_callers = lines.into_iter().filter(|line| {
            let line = line.as_bytes().trim_ascii_start();
            let start = line.get(..OWN_COOKIES.len());
            let is_named_so = start.is_some_and(|start| start.eq_ignore_ascii_case(OWN_COOKIES));
            !is_own && !is_named_so
        });
        for line in of_callers {
            headers.append(name.clone(), line);
        }
    }
}

fn hosts(tools: &Tools) -> HashMap<String, String> {
    let host = |at: &Arc<ToolAt>| {
        let host = at.tool.proxy()?.host.clone()?;
        Some((host, at.tool.name.clone()))
    };
    tools.values().filter_map(host).collect()
}
