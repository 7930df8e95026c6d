//! The HTTP clients, and which requests may share a connection.
//!
//! A tool that answers out of step leaves a surplus answer on a pooled connection, and the next request on it may get
//! that one. So a connection is used for one tenant and one tool only: no tenant ever gets another's result.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustls_platform_verifier::ConfigVerifierExt as _;
use tokio::time::Instant;

use super::mcp::{Agreed, Http, Settings};
use oncegate_rules::record::CallId;

/// How long to try for a connection.
///
/// Shorter than any sensible attempt, so that another attempt fits.
pub(super) const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// The `User-Agent` of requests.
pub(super) const AGENT: &str = concat!("oncegate/", env!("CARGO_PKG_VERSION"));
/// Most headers of one answer.
pub(super) const MAX_HEADERS: usize = 1_000;
/// Most clients that are kept; the longest unused goes first. Requests under way keep theirs.
const MAX_CLIENTS: usize = 1_000;
/// Most connections of one pool that wait for their next use: each keeps a file open.
const MAX_IDLE: usize = 64;
/// Most sent calls that are remembered for one pool.
const MAX_SENT: usize = 1_024;

/// The party that uses a connection.
///
/// Requests of different parties never share one.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Party {
    /// Calls of one tool for one tenant.
    Tool { tenant: String, tool: String },
    /// Reads of one tenant through a proxy.
    ///
    /// A surplus answer to one of them must not be taken for a call's.
    Passing { tenant: String, proxy: String },
    /// A system that is not a tool: a source of a reconciliation, the webhook, or what says who a caller is.
    Outside,
}

impl Party {
    pub fn tool(tenant: &str, tool: &str) -> Self {
        Self::Tool {
            tenant: tenant.to_owned(),
            tool: tool.to_owned(),
        }
    }

    pub fn passing(tenant: &str, proxy: &str) -> Self {
        Self::Passing {
            tenant: tenant.to_owned(),
            proxy: proxy.to_owned(),
        }
    }
}

/// The purpose of one client. Connections are pooled only within a client.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Pool {
    pub(super) party: Party,
    /// The longest idle time of a reused connection; `None`: none is reused.
    ///
    /// A client knows only one such time.
    pub(super) reuse: Option<Duration>,
    /// Whether it uses TLS. Without TLS no trusted roots are read.
    pub(super) is_secure: bool,
}

/// The clients, each made when it is first needed.
#[derive(Default)]
pub(super) struct Pools(Mutex<Clients>);

#[derive(Default)]
struct Clients {
    by_pool: HashMap<Pool, Pooled>,
    /// TLS with the system's trusted roots, which are read once.
    tls: Option<rustls::ClientConfig>,
}

struct Pooled {
    client: reqwest::Client,
    used: Instant,
    sent: Sent,
    /// The agreement with an MCP server, and its settings.
    agreed: Option<(Settings, Arc<Agreed>)>,
}

/// The newest calls of a pool, oldest first. An exchange keeps them even after its pool was closed.
#[derive(Clone, Default)]
pub(super) struct Sent(Arc<Mutex<VecDeque<CallId>>>);

impl Sent {
    fn add(&self, call_id: CallId) {
        let mut calls = self.lock();
        if calls.len() >= MAX_SENT {
            calls.pop_front();
        }
        calls.push_back(call_id);
    }

    /// Whether a call is among them.
    pub(super) fn has(&self, call_id: CallId) -> bool {
        self.lock().contains(&call_id)
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<CallId>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Pools {
    /// The client of a pool.
    ///
    /// # Errors
    /// It needs TLS, and no roots to trust are found.
    pub(super) fn client(&self, pool: &Pool) -> Result<reqwest::Client, String> {
        Ok(self.lock().pooled(pool)?.client.clone())
    }

    /// The client of a pool, for one more call, and the calls that its connections have sent.
    ///
    /// # Errors
    /// As above.
    pub(super) fn client_for_call(
        &self,
        pool: &Pool,
        call_id: CallId,
    ) -> Result<(reqwest::Client, Sent), String> {
        let mut clients = self.lock();
        let pooled = clients.pooled(pool)?;
        pooled.sent.add(call_id);
        Ok((pooled.client.clone(), pooled.sent.clone()))
    }

    /// The agreement of this pool with an MCP server, by the same settings.
    pub(super) fn agreed(&self, pool: &Pool, settings: &Settings) -> Arc<Agreed> {
        let mut clients = self.lock();
        let Some(pooled) = clients.by_pool.get_mut(pool) else {
            return Arc::default();
        };
        match &pooled.agreed {
            Some((with, agreed)) if with == settings => agreed.clone(),
            _ => {
                let agreed = Arc::default();
                pooled.agreed = Some((settings.clone(), Arc::clone(&agreed)));
                agreed
            }
        }
    }

    /// Takes out the MCP servers with an agreement. These pools make no more.
    pub(super) fn take_agreed(&self) -> Vec<Http> {
        let mut clients = self.lock();
        let pooled = clients.by_pool.values_mut();
        let server = |pooled: &mut Pooled| {
            let (settings, agreed) = pooled.agreed.take()?;
            Some(Http {
                client: pooled.client.clone(),
                settings,
                agreed,
            })
        };
        pooled.filter_map(server).collect()
    }

    /// TLS with the system's trusted roots.
    ///
    /// # Errors
    /// There are none.
    pub(super) fn tls(&self) -> Result<rustls::ClientConfig, String> {
        self.lock().tls()
    }

    /// Forgets a client, so that its idle connections are not used again. Requests under way go on.
    pub(super) fn close(&self, pool: &Pool) {
        drop(self.lock().by_pool.remove(pool));
    }

    fn lock(&self) -> MutexGuard<'_, Clients> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Clients {
    /// The entry of a pool, made if it is not there.
    fn pooled(&mut self, pool: &Pool) -> Result<&mut Pooled, String> {
        if !self.by_pool.contains_key(pool) {
            let tls = pool.is_secure.then(|| self.tls()).transpose()?;
            let client = new_client(pool, tls)?;
            if self.by_pool.len() >= MAX_CLIENTS {
                let oldest = self.by_pool.iter().min_by_key(|(_, pooled)| pooled.used);
                if let Some(oldest) = oldest.map(|(pool, _)| pool.clone()) {
                    self.by_pool.remove(&oldest);
                }
            }
            let pooled = Pooled {
                client,
                used: Instant::now(),
                sent: Sent::default(),
                agreed: None,
            };
            self.by_pool.insert(pool.clone(), pooled);
        }
        let pooled = self.by_pool.get_mut(pool);
        let pooled = pooled.ok_or("it was dropped at once")?;
        pooled.used = Instant::now();
        Ok(pooled)
    }

    fn tls(&mut self) -> Result<rustls::ClientConfig, String> {
        if let Some(tls) = &self.tls {
            return Ok(tls.clone());
        }
        let tls = rustls::ClientConfig::with_platform_verifier();
        let tls = tls.map_err(|error| error.to_string())?;
        Ok(self.tls.insert(tls).clone())
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "the one place where a client is made"
)]
fn new_client(pool: &Pool, tls: Option<rustls::ClientConfig>) -> Result<reqwest::Client, String> {
    let builder = reqwest::Client::builder()
        .retry(reqwest::retry::never())
        .redirect(reqwest::redirect::Policy::none())
        .no_proxy()
        .http1_only()
        .http1_max_headers(MAX_HEADERS)
        .user_agent(AGENT)
        .connect_timeout(CONNECT_TIMEOUT)
        .tcp_nodelay(true);
    let builder = match tls {
        Some(tls) => builder.tls_backend_preconfigured(tls),
        None => builder.tls_certs_only([]),
    };
    let builder = match pool.reuse {
        Some(idle) => builder
            .pool_idle_timeout(idle)
            .pool_max_idle_per_host(MAX_IDLE),
        None => builder.pool_max_idle_per_host(0),
    };
    builder.build().map_err(|error| error.to_string())
}
