//! MCP servers whose tools no section of `[tools]` names: which there are, and what is asked of them beside calls.

use std::collections::BTreeMap;
use std::sync::Arc;

use arc_swap::ArcSwap;
use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;
use std::time::Duration;
use tokio::sync::Mutex;
use tokio::time::Instant;

use super::base::Base;
use super::error::{Error, ErrorKind};
use super::tools::ToolAt;
use crate::core::caller::Caller;
use crate::core::mcp::evidence::{Reply, reply};
use crate::core::mcp::members::Members;
use crate::core::mcp::mirrored::{self, Mirrored};
use crate::core::record::{Failure, FailureKind};
use crate::core::tool::{Effect, Tool};
use crate::downstream::{Downstream, Endpoint, McpTool, Party, Question};

/// How long a question to a server may take that executes nothing.
const PATIENCE: Duration = Duration::from_secs(30);
/// How long a server's list of tools is taken for fresh when a tool is not in it.
const FRESH: Duration = Duration::from_secs(5);
/// Tools of one server that no section names. Each has metrics and a stored recipe.
const MAX_UNLISTED: usize = 500;
/// Pages of one server's list.
const MAX_PAGES: usize = 50;

/// An MCP server, and what holds for its tools that no section names.
#[derive(Debug, Clone)]
pub struct UpstreamAt {
    pub name: String,
    /// Without a tool's name.
    pub endpoint: Endpoint,
    /// What they do; `None`: they are not served.
    pub unlisted: Option<Effect>,
    /// Whether a tool reads if the server says so.
    pub trusts_annotations: bool,
    /// How long their derived keys are remembered.
    pub dedup_window: Duration,
}

impl UpstreamAt {
    /// Where one of its tools is called.
    pub fn endpoint_of(&self, tool: &str, mirrored: Vec<Mirrored>, is_unlisted: bool) -> Endpoint {
        let mcp = self.endpoint.mcp.clone().map(|mcp| McpTool {
            name: tool.to_owned(),
            mirrored,
            is_unlisted,
            ..mcp
        });
        Endpoint {
            mcp,
            ..self.endpoint.clone()
        }
    }

    fn name_of(&self, tool: &str) -> String {
        format!("{}.{tool}", self.name)
    }
}

/// What is known of one server.
struct Known {
    at: UpstreamAt,
    /// Its tools, and when they were read.
    listed: Mutex<Option<(Instant, BTreeMap<String, Listed>)>>,
}

/// A tool in a server's list, as far as the gateway goes by it.
#[derive(Deserialize)]
struct Listed {
    name: String,
    #[serde(default)]
    annotations: Annotations,
    #[serde(rename = "inputSchema", default)]
    schema: Value,
}

#[derive(Default, Deserialize)]
struct Annotations {
    #[serde(rename = "readOnlyHint", default)]
    is_read: bool,
}

#[derive(Deserialize)]
struct ListPage {
    tools: Vec<Listed>,
    #[serde(rename = "nextCursor")]
    next: Option<String>,
}

/// The MCP servers of the configuration.
pub struct Upstreams {
    base: Arc<Base>,
    downstream: Arc<Downstream>,
    all: ArcSwap<BTreeMap<String, Arc<Known>>>,
}

impl Upstreams {
    pub(super) fn new(
        base: Arc<Base>,
        downstream: Arc<Downstream>,
        upstreams: Vec<UpstreamAt>,
    ) -> Self {
        let all = Self {
            base,
            downstream,
            all: ArcSwap::default(),
        };
        all.set(upstreams);
        all
    }

    /// From now on these are the servers.
    pub(super) fn set(&self, upstreams: Vec<UpstreamAt>) {
        let known = |at: UpstreamAt| {
            let listed = Mutex::default();
            (at.name.clone(), Arc::new(Known { at, listed }))
        };
        self.all
            .store(Arc::new(upstreams.into_iter().map(known).collect()));
    }

    pub fn has(&self, upstream: &str) -> bool {
        self.all.load().contains_key(upstream)
    }

    /// The name here of a server's tool: that of the section that names it, or one made of both names.
    pub fn name_of(&self, upstream: &str, tool: &str) -> String {
        let tools = self.base.tools();
        let is_it = |at: &&Arc<ToolAt>| {
            let mcp = at.endpoint.mcp.as_ref();
            mcp.is_some_and(|mcp| mcp.upstream == upstream && mcp.name == tool)
        };
        let named = tools.values().find(is_it).map(|at| at.tool.name.clone());
        named.unwrap_or_else(|| format!("{upstream}.{tool}"))
    }

    /// Makes a server's tool one that can be called, if no section names it and the server lists it.
    ///
    /// # Errors
    /// The server does not say which tools it has. Nothing was executed.
    pub async fn admit(&self, caller: &Caller, upstream: &str, tool: &str) -> Result<(), Error> {
        let here = self.name_of(upstream, tool);
        let known = self.all.load().get(upstream).cloned();
        let (Some(known), true) = (known, caller.may_call(&here)) else {
            return Ok(());
        };
        let Some(effect) = known.at.unlisted else {
            return Ok(());
        };
        if self.base.tool_at(&here).is_some() || !is_plain(tool) {
            return Ok(());
        }
        let listed = self.listed(caller, &known, tool).await.map_err(|why| {
            let why = format!("its list of tools could not be read: {why}");
            ErrorKind::ToolUnreachable(Failure::new(FailureKind::Unreachable, why)).alone()
        })?;
        let Some((is_read, mirrored)) = listed else {
            return Ok(());
        };
        let is_read = is_read && known.at.trusts_annotations;
        let added = ToolAt::new(
            Tool {
                effect: if is_read { Effect::Read } else { effect },
                derived_window: Some(known.at.dedup_window),
                lease_margin: self.base.limits.pace.lease_margin,
                keeps_key_member: true,
                ..Tool::new(&here)
            },
            known.at.endpoint_of(tool, mirrored, true),
        );
        if !self.base.add_unlisted(added, upstream, MAX_UNLISTED) {
            tracing::warn!(
                upstream,
                "a server has more tools than are served without a section"
            );
        }
        Ok(())
    }

    /// What a server's list says of a tool: whether it reads, and which arguments stand in headers. `None`: it is not
    /// there.
    async fn listed(
        &self,
        caller: &Caller,
        known: &Known,
        tool: &str,
    ) -> Result<Option<(bool, Vec<Mirrored>)>, String> {
        let mut listed = known.listed.lock().await;
        let is_fresh = |(read_at, tools): &(Instant, BTreeMap<String, Listed>)| {
            tools.contains_key(tool) || read_at.elapsed() < FRESH
        };
        if !listed.as_ref().is_some_and(is_fresh) {
            *listed = Some((Instant::now(), self.read_list(caller, &known.at).await?));
        }
        let found = listed.as_ref().and_then(|(_, tools)| tools.get(tool));
        Ok(found.map(|one| (one.annotations.is_read, mirrored::mirrored(&one.schema))))
    }

    async fn read_list(
        &self,
        caller: &Caller,
        at: &UpstreamAt,
    ) -> Result<BTreeMap<String, Listed>, String> {
        let (mut tools, mut cursor) = (BTreeMap::new(), None::<String>);
        for _ in 0..MAX_PAGES {
            let params = match &cursor {
                Some(cursor) => serde_json::json!({ "cursor": cursor }).to_string(),
                None => "{}".to_owned(),
            };
            let params = serde_json::from_str(&params).map_err(|error| error.to_string())?;
            let question = Question {
                method: "tools/list",
                name: None,
                params: &params,
            };
            let answer = self.ask_at(caller, at, question).await?;
            let page: ListPage = match &answer {
                Reply::Result(result) => {
                    serde_json::from_slice(result).map_err(|error| error.to_string())?
                }
                Reply::Error(_) => return Err("the server answered with an error".into()),
            };
            tools.extend(page.tools.into_iter().map(|one| (one.name.clone(), one)));
            cursor = page.next;
            if cursor.is_none() || tools.len() > MAX_UNLISTED {
                break;
            }
        }
        Ok(tools)
    }

    /// Asks a server what executes nothing.
    ///
    /// # Errors
    /// There is no such server, or it did not answer.
    pub async fn ask(
        &self,
        caller: &Caller,
        upstream: &str,
        question: Question<'_>,
    ) -> Result<Reply, String> {
        let known = self.all.load().get(upstream).cloned();
        let known = known.ok_or("there is no such upstream")?;
        self.ask_at(caller, &known.at, question).await
    }

    async fn ask_at(
        &self,
        caller: &Caller,
        at: &UpstreamAt,
        question: Question<'_>,
    ) -> Result<Reply, String> {
        // No tool has such a name: what is asked here shares no connection with calls.
        let party = Party::tool(&caller.tenant, &at.name_of(""));
        let by = Instant::now() + PATIENCE;
        let asked = self.downstream.forward(&at.endpoint, party, question, by);
        tokio::select! {
            answer = asked => reply(&answer?),
            () = self.base.draining.cancelled() => Err("the gateway is shutting down".into()),
        }
    }

    /// What a server says of itself: an object with its capabilities.
    ///
    /// # Errors
    /// There is no such server, or it did not answer.
    pub async fn about(&self, caller: &Caller, upstream: &str) -> Result<Arc<Value>, String> {
        let known = self.all.load().get(upstream).cloned();
        let at = &known.as_ref().ok_or("there is no such upstream")?.at;
        let party = Party::tool(&caller.tenant, &at.name_of(""));
        self.downstream
            .about(&at.endpoint, party, Instant::now() + PATIENCE)
            .await
    }

    /// Whether a tool in a list of the server may be shown to a caller.
    pub fn may_see(&self, caller: &Caller, upstream: &str, tool: &RawValue) -> bool {
        let Ok(Members(members)) = serde_json::from_str(tool.get()) else {
            return false;
        };
        let name = members.into_iter().find(|(name, _)| name == "name");
        let name = name.and_then(|(_, value)| serde_json::from_str::<String>(value.get()).ok());
        name.is_some_and(|name| {
            let here = self.name_of(upstream, &name);
            let is_served = || {
                let all = self.all.load();
                let at = all.get(upstream).map(|known| &known.at);
                at.is_some_and(|at| at.unlisted.is_some()) && is_plain(&name)
            };
            caller.may_call(&here) && (self.base.tool_at(&here).is_some() || is_served())
        })
    }
}

/// Whether a name can be a part of a tool's name here: it stands in URLs, labels and log lines.
fn is_plain(tool: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b'.');
    (1..=128).contains(&tool.len()) && tool.bytes().all(is_plain)
}
