//! MCP servers: their unlisted tools, which no section of the configuration names, and requests that are not calls.

mod listed; // a server's list of tools

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex as Guard, MutexGuard, PoisonError};
use std::time::Duration;

use arc_swap::ArcSwap;
use serde::Deserialize;
use serde_json::json;
use serde_json::value::RawValue;
use tokio::sync::Mutex;
use tokio::time::{Instant, timeout};

use self::listed::{List, ListPage, Listed};
use oncegate_budget::attach;
use oncegate_engine::{Base, Engine, Error, ErrorKind, Gateway, KeySchemes, ToolAt};
use oncegate_rules::caller::Caller;
use oncegate_rules::mcp::evidence::{Reply, reply};
use oncegate_rules::record::{Failure, FailureKind};
use oncegate_rules::tool::{Effect, Mcp, Protocol, Tool};
use oncegate_rules::tool_schema_export;
use oncegate_tools::{About, Downstream, Party, Question, UpstreamAt};

/// How long a request that is not a call may take.
const PATIENCE: Duration = Duration::from_secs(30);
/// How long a server may take to describe itself.
///
/// A server that is a program may have to be fetched from a network first.
const FIRST_PATIENCE: Duration = Duration::from_secs(100);
/// How long a server's list counts as fresh for a tool that it lacks, and after a failed read.
const FRESH: Duration = Duration::from_secs(5);
/// How long a server's list counts as fresh for a tool that it has.
const LISTED: Duration = Duration::from_mins(5);
/// Most unlisted tools of one server. Each has metrics and a stored key scheme.
const MAX_UNLISTED: usize = 500;
/// Most pages of one server's list.
const MAX_PAGES: usize = 50;

/// The owner of connections for requests that are not calls: no tool has such a name.
fn party(at: &UpstreamAt, caller: &Caller) -> Party {
    Party::tool(&caller.tenant, &unlisted_name(&at.name, ""))
}

fn unlisted_name(upstream: &str, tool: &str) -> String {
    format!("{upstream}.{tool}")
}

/// A server, and its list of tools as it was last read.
struct Known {
    at: UpstreamAt,
    /// Its tools, or why they could not be read; and when they were read.
    listed: Mutex<Option<(Instant, Result<List, String>)>>,
    /// The tools that read because the server says so, as they were last logged.
    said_to_read: Guard<BTreeSet<String>>,
}

fn known(upstreams: Vec<UpstreamAt>) -> BTreeMap<String, Arc<Known>> {
    let known = |at: UpstreamAt| {
        let name = at.name.clone();
        let known = Known {
            at,
            listed: Mutex::default(),
            said_to_read: Guard::default(),
        };
        (name, Arc::new(known))
    };
    upstreams.into_iter().map(known).collect()
}

/// The MCP servers of the configuration.
pub struct Upstreams {
    base: Arc<Base>,
    /// Gives permits and memory to questions as to calls.
    engine: Arc<Engine>,
    downstream: Arc<Downstream>,
    key_schemes: Arc<KeySchemes>,
    /// Tools that have stored calls, and whose server's list was not read since.
    remembered: Guard<BTreeSet<String>>,
    all: ArcSwap<BTreeMap<String, Arc<Known>>>,
    /// Held while tools are added or the servers are set, so that no tool of an earlier server is added.
    changing: Guard<()>,
}

impl Upstreams {
    /// The servers of a gateway.
    pub fn new(gateway: &Gateway, upstreams: Vec<UpstreamAt>) -> Self {
        Self {
            base: gateway.base.clone(),
            engine: gateway.engine.clone(),
            downstream: gateway.downstream.clone(),
            key_schemes: gateway.key_schemes.clone(),
            remembered: Guard::default(),
            all: ArcSwap::from_pointee(known(upstreams)),
            changing: Guard::default(),
        }
    }

    /// Sets the servers, and by `set_tools` the tools that sections name.
    ///
    /// # Errors
    /// That of `set_tools`; then nothing has changed.
    pub fn set<E>(
        &self,
        upstreams: Vec<UpstreamAt>,
        set_tools: impl FnOnce() -> Result<(), E>,
    ) -> Result<(), E> {
        {
            let _one_at_a_time = lock(&self.changing);
            set_tools()?;
            self.all.store(Arc::new(known(upstreams)));
        }
        self.remember();
        Ok(())
    }

    /// Adds unlisted tools that may have stored calls, made by an earlier run or another gateway.
    ///
    /// So their calls are answered even while the server is down, or when it lists the tool no more.
    pub fn remember(&self) {
        let all = self.all.load_full();
        for here in self.key_schemes.tools() {
            if let Some((upstream, tool)) = here.split_once('.')
                && let Some(known) = all.get(upstream)
                && let Some(effect) = known.at.unlisted
                && self.base.tool_at(&here).is_none()
            {
                lock(&self.remembered).insert(here.clone());
                self.add(known, &here, tool, &Listed::default(), effect);
            }
        }
    }

    pub fn has(&self, upstream: &str) -> bool {
        self.all.load().contains_key(upstream)
    }

    /// The gateway's name of a server's tool: the name of its section, or `upstream.tool`.
    pub fn name_of(&self, upstream: &str, tool: &str) -> String {
        let tools = self.base.tools();
        let is_that_tool = |at: &&Arc<ToolAt>| {
            let mcp = at.endpoint.mcp.as_ref();
            mcp.is_some_and(|mcp| mcp.upstream == upstream && mcp.name == tool)
        };
        let named = tools.values().find(is_that_tool);
        named.map_or_else(|| unlisted_name(upstream, tool), |at| at.tool.name.clone())
    }

    /// Adds a server's tool, if no section names it and the server lists it.
    ///
    /// # Errors
    /// The server's list of tools could not be read. Nothing was executed.
    pub async fn admit(&self, caller: &Caller, upstream: &str, tool: &str) -> Result<(), Error> {
        let here = self.name_of(upstream, tool);
        let Some(known) = self.all.load().get(upstream).cloned() else {
            return Ok(());
        };
        let Some(effect) = known.at.unlisted else {
            return Ok(());
        };
        if !caller.may_call(&here) || !is_plain(tool) || !self.has_to_look(&known, &here) {
            return Ok(());
        }
        let mut list = known.listed.lock().await;
        let is_fresh = |(read_at, list): &(Instant, Result<List, String>)| {
            let has = list.as_ref().is_ok_and(|list| list.contains_key(tool));
            read_at.elapsed() < if has { LISTED } else { FRESH }
        };
        if !list.as_ref().is_some_and(is_fresh) {
            let read = self.read_list(caller, &known.at);
            let read = timeout(PATIENCE, read).await;
            let read = read.unwrap_or_else(|_| Err("it did not answer in time".into()));
            if let Ok(list) = &read {
                let reads = listed::reads(list, known.at.trusts_annotations);
                listed::tell_what_reads(&known.at.name, reads, &mut lock(&known.said_to_read));
            }
            // A failure is kept, too: a request that waited for this read does not repeat it.
            *list = Some((Instant::now(), read));
        }
        let read = list.as_ref().map(|(_, read)| read.as_ref());
        if let Some(Ok(list)) = read
            && let Some(listed) = list.get(tool)
        {
            lock(&self.remembered).remove(&here);
            self.add(&known, &here, tool, listed, effect);
            return Ok(());
        }
        // A tool that is served here stays: its stored calls are answered, and the server itself judges a new call.
        if self.base.tool_at(&here).is_some() || self.was_served(&here).await? {
            return Ok(());
        }
        match read {
            Some(Err(why)) => {
                Err(no_answer(format!("its list of tools could not be read: {why}")).alone())
            }
            Some(Ok(_)) | None => Ok(()),
        }
    }

    /// Whether another gateway has served a tool, which may then have stored calls. Then it is served here, too.
    ///
    /// # Errors
    /// The store did not answer.
    async fn was_served(&self, here: &str) -> Result<bool, Error> {
        if !self.base.is_shared() {
            return Ok(false);
        }
        self.key_schemes
            .learn_key_schemes()
            .await
            .map_err(|_| ErrorKind::StoreUnavailable.alone())?;
        self.remember();
        Ok(self.base.tool_at(here).is_some())
    }

    /// Whether the server's list has to be read for a tool: the tool may be new, or may not be a reading one any more.
    fn has_to_look(&self, known: &Known, here: &str) -> bool {
        let Some(at) = self.base.tool_at(here) else {
            return true;
        };
        let is_trusted = known.at.trusts_annotations && at.tool.effect == Effect::Read;
        at.is_unlisted() && (is_trusted || lock(&self.remembered).contains(here))
    }

    fn add(&self, known: &Arc<Known>, here: &str, tool: &str, listed: &Listed, effect: Effect) {
        let said = listed.said.filter(|_| known.at.trusts_annotations);
        let is_named = known.at.asked_about.contains(tool);
        let effect = match known.at.repeatable.contains(tool) {
            _ if is_named => Effect::Write,
            true => Effect::Read,
            false => said.unwrap_or(effect),
        };
        let is_asked = effect == Effect::Write && (is_named || known.at.asked_about.is_empty());
        let approval = known.at.approval.clone();
        let added = ToolAt::new(
            Tool {
                effect,
                strict: known.at.strict,
                timeout: known.at.timeout,
                deadline: known.at.timeout,
                derived_window: Some(known.at.dedup_window),
                task: known.at.task,
                on_cancel: known.at.on_cancel,
                lease_margin: self.base.limits.timings.lease_margin,
                keeps_key_member: true,
                keeps_confirm_member: listed.keeps_confirm_member,
                protocol: Protocol::Mcp(Mcp::default()),
                approval: approval.filter(|_| is_asked),
                ..Tool::new(here)
            },
            known.at.endpoint_of(tool, listed.mirrored.clone(), true),
        );
        let _one_at_a_time = lock(&self.changing);
        // The configuration may have been read again meanwhile.
        let (all, upstream) = (self.all.load(), &known.at.name);
        let is_current = all.get(upstream).is_some_and(|now| Arc::ptr_eq(now, known));
        if is_current && !self.base.add_unlisted(added, upstream, MAX_UNLISTED) {
            tracing::warn!(
                upstream,
                "a server has more tools than are served without a section"
            );
        }
    }

    /// Learns from a page of a server's list that a client has asked for.
    ///
    /// A tool may have become a write. The client that reads this page relies on that.
    pub fn learn(&self, upstream: &str, page: &[u8]) {
        let (Ok(page), Some(known)) = (
            serde_json::from_slice::<ListPage<'_>>(page),
            self.all.load().get(upstream).cloned(),
        ) else {
            return;
        };
        let Some(effect) = known.at.unlisted else {
            return;
        };
        for tool in page.tools {
            let here = self.name_of(upstream, &tool.name);
            let is_served = self.base.tool_at(&here).is_some_and(|at| at.is_unlisted());
            let Ok(listed) = Listed::of(&tool) else {
                continue;
            };
            if is_served {
                self.add(&known, &here, &tool.name, &listed, effect);
            }
            // The task that holds the lock reads the list at this moment.
            if let Ok(mut list) = known.listed.try_lock()
                && let Some((_, Ok(list))) = &mut *list
            {
                list.insert(tool.name, listed);
            }
        }
    }

    async fn read_list(&self, caller: &Caller, at: &UpstreamAt) -> Result<List, String> {
        let (mut tools, mut cursor) = (List::new(), None::<String>);
        for _ in 0..MAX_PAGES {
            let params = match &cursor {
                Some(cursor) => json!({ "cursor": cursor }).to_string(),
                None => "{}".to_owned(),
            };
            let params = serde_json::from_str(&params).map_err(|error| error.to_string())?;
            let question = Question {
                method: "tools/list",
                name: None,
                params: &params,
            };
            let page = match self.ask_at(caller, at, question).await {
                Ok(Reply::Result(page)) => page,
                Ok(Reply::Error(_)) => return Err("the server answered with an error".into()),
                Err(ErrorKind::ToolUnreachable(failure)) => return Err(failure.why),
                Err(kind) => return Err(kind.to_string()),
            };
            let page: Result<ListPage<'_>, _> = serde_json::from_slice(&page);
            let page = page.map_err(|error| error.to_string())?;
            for tool in page.tools {
                match Listed::of(&tool) {
                    Ok(listed) => drop(tools.insert(tool.name, listed)),
                    Err(why) => tracing::warn!(
                        upstream = at.name,
                        tool = tool.name,
                        why,
                        "a tool cannot be called: x-mcp-header"
                    ),
                }
            }
            cursor = page.next;
            if cursor.is_none() {
                return Ok(tools);
            }
            if tools.len() > MAX_UNLISTED {
                break;
            }
        }
        tracing::warn!(
            upstream = at.name,
            "a server's list of tools is not read to its end"
        );
        Ok(tools)
    }

    /// Sends a server a request that executes nothing.
    ///
    /// # Errors
    /// The server is not configured, or did not answer.
    pub async fn ask(
        &self,
        caller: &Caller,
        upstream: &str,
        question: Question<'_>,
    ) -> Result<Reply, ErrorKind> {
        let known = self.known(upstream).map_err(no_answer)?;
        self.ask_at(caller, &known.at, question).await
    }

    fn known(&self, upstream: &str) -> Result<Arc<Known>, String> {
        let known = self.all.load().get(upstream).cloned();
        known.ok_or_else(|| "there is no such upstream".into())
    }

    async fn ask_at(
        &self,
        caller: &Caller,
        at: &UpstreamAt,
        question: Question<'_>,
    ) -> Result<Reply, ErrorKind> {
        let permit = self.engine.permit_for(caller);
        let _permit = permit.ok_or(ErrorKind::RateLimited)?;
        let reservation = self.engine.memory.reserve(&caller.tenant, None, 0);
        let mut reservation = reservation.ok_or(ErrorKind::NoMemory)?;
        let party = party(at, caller);
        let by = Instant::now() + PATIENCE;
        let asked = self.downstream.forward(&at.endpoint, party, question, by);
        let answer = tokio::select! {
            answer = asked => answer.and_then(|answer| reply(&answer)).map_err(no_answer)?,
            () = self.base.drains() => return Err(ErrorKind::ShuttingDown),
        };
        let (Reply::Result(bytes) | Reply::Error(bytes)) = &answer;
        reservation.shrink_to(bytes.len());
        let reservation = Arc::new(reservation);
        Ok(match answer {
            Reply::Result(bytes) => Reply::Result(attach(bytes, &reservation)),
            Reply::Error(bytes) => Reply::Error(attach(bytes, &reservation)),
        })
    }

    /// A server's description of itself.
    ///
    /// # Errors
    /// The server is not configured, or did not answer.
    pub async fn about(&self, caller: &Caller, upstream: &str) -> Result<Arc<About>, String> {
        let at = &self.known(upstream)?.at;
        let party = party(at, caller);
        let by = Instant::now() + FIRST_PATIENCE;
        tokio::select! {
            about = self.downstream.about(&at.endpoint, party, by) => about,
            () = self.base.drains() => Err("the gateway is shutting down".into()),
        }
    }

    /// What the gateway says of a tool in a server's list instead of the server; `None`: it stays as it is.
    pub fn described(&self, upstream: &str, tool: &RawValue) -> Option<String> {
        let Named { name } = serde_json::from_str(tool.get()).ok()?;
        let at = self.base.tool_at(&self.name_of(upstream, &name));
        let takes_models_keys = at.as_ref().is_none_or(|at| at.tool.takes_models_keys());
        let takes_confirmation = at.is_none_or(|at| at.tool.takes_confirmation());
        let described = || tool_schema_export::described(tool.get(), takes_confirmation);
        takes_models_keys.then(described).flatten()
    }

    /// Which tools of a server's list a caller may see.
    pub fn may_see(&self, caller: &Caller, upstream: &str) -> impl Fn(&RawValue) -> bool {
        let tools = self.base.tools();
        let named: BTreeMap<String, String> = tools
            .values()
            .filter_map(|at| {
                let mcp = at.endpoint.mcp.as_ref()?;
                (mcp.upstream == upstream).then(|| (mcp.name.clone(), at.tool.name.clone()))
            })
            .collect();
        let all = self.all.load();
        let at = all.get(upstream).map(|known| &known.at);
        let serves_others = at.is_some_and(|at| at.unlisted.is_some());
        move |tool| {
            let Ok(Named { name }) = serde_json::from_str(tool.get()) else {
                return false;
            };
            match named.get(&name) {
                Some(here) => caller.may_call(here),
                None => {
                    serves_others
                        && is_plain(&name)
                        && caller.may_call(&unlisted_name(upstream, &name))
                }
            }
        }
    }
}

#[derive(Deserialize)]
struct Named {
    name: String,
}

/// The failure of a request that executed nothing.
fn no_answer(why: String) -> ErrorKind {
    ErrorKind::ToolUnreachable(Failure::new(FailureKind::Unreachable, why))
}

/// Whether a name can be part of a tool's name here: in URLs, labels and log lines.
fn is_plain(tool: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b'.');
    (1..=128).contains(&tool.len()) && tool.bytes().all(is_plain)
}

/// Locks, even if a thread has panicked while it held the lock: no holder leaves the value half changed.
fn lock<T>(guard: &Guard<T>) -> MutexGuard<'_, T> {
    guard.lock().unwrap_or_else(PoisonError::into_inner)
}
