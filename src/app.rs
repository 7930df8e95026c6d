//! The whole gateway: build it, then run it. The only part that sees every other.

pub mod loops; // what is done again and again while the gateway runs
mod offline; // acts on a store without a gateway that serves
mod reload; // the configuration, read again while the gateway runs
pub mod routes; // the routes of each listener
mod stores; // the stores of this build
mod wings; // the wings of this build
#[cfg(all(feature = "mcp", feature = "sqlite"))]
mod wrap; // one MCP server, for one client on standard input

use std::mem::take;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use prometheus::IntCounter;
use tokio::time::{Instant, sleep, timeout, timeout_at};
use tokio_util::sync::CancellationToken;

pub use self::offline::{accept_loss, apply_retention};
#[cfg(feature = "redis")]
pub use self::offline::{move_on, standing};
pub use self::reload::{Reloader, takes_restart};
use self::reload::{note_expiry, tenants};
pub use self::stores::Error;
use self::stores::{open_store, visit};
pub use self::wings::{Config, WingServices, WingSettings};
#[cfg(all(feature = "console", feature = "mcp", feature = "sqlite"))]
pub use self::wrap::approval_sockets;
#[cfg(all(feature = "mcp", feature = "sqlite"))]
pub use self::wrap::{WrapOptions, Wrapped, data_folder, wrap};
use crate::budget::Budget;
use crate::core::record::InstanceId;
use crate::downstream::Downstream;
use crate::gateway::{self, Gateway, KeySchemesError, Limits, Parts};
use crate::http::{self, Http, MaxBody, Ops, Tokens};
use crate::metrics::Metrics;
use crate::serve::{self, Bounds, Ends, Listening, Routers};
use crate::store::{Encrypted, Keys, Store};

/// Most connections to the ops listener.
const OPS_CONNECTIONS: usize = 64;
/// Memory that connections to the ops listener may hold, in bytes.
const OPS_MEMORY: usize = 16 << 20;
const LOOP_ENDED: &str = "a background task ended unexpectedly";
/// How long connections may take to end after the last call.
const LAST_ANSWERS: Duration = Duration::from_secs(2);
/// How long the rounds of the loops may take to end after the last call, within the grace.
const LAST_ROUNDS: Duration = Duration::from_secs(2);

/// A gateway over its store. Takes tools out of the configuration.
fn gateway_over(
    store: Arc<dyn Store>,
    instance: InstanceId,
    config: &mut Config,
) -> Result<Gateway, Error> {
    let of_tools = config.tools.iter().map(|at| &at.endpoint);
    let endpoints = of_tools.chain(config.upstreams.iter().map(|at| &at.endpoint));
    let downstream = Downstream::new(endpoints, config.server.max_result);
    let no_client = |why| {
        Error::Other(format!(
            "the HTTP client for the tools cannot be made: {why}"
        ))
    };
    Ok(Gateway::new(Parts {
        downstream: downstream.map_err(no_client)?,
        store,
        tools: take(&mut config.tools),
        metrics: Arc::new(Metrics::new()),
        instance,
        limits: config.limits.clone(),
        webhook: config.webhook.take(),
    }))
}

/// A gateway that is ready to serve: its store is open and recovered, its address is bound.
pub struct App {
    gateway: Arc<Gateway>,
    wings: Arc<WingServices>,
    reloader: Arc<Reloader>,
    listening: Listening,
    /// The listener of proxies, if `proxy_listen` is set.
    proxies: Option<Listening>,
    /// The ops listener, if `ops_listen` is set.
    ops: Option<Listening>,
    /// Cancelled by the store when the process must end at once.
    fatal: CancellationToken,
    drain_delay: Duration,
    limits: Limits,
}

impl App {
    /// Opens the store, settles leftover calls, and only then listens.
    ///
    /// # Errors
    /// Says which part could not be had. Nothing was served.
    pub async fn build(config: Config) -> Result<Self, Error> {
        let opened = open(config).await?;
        let (gateway, wings, config) = (opened.gateway, opened.wings, opened.config);
        let listen = |address| {
            let listening = serve::listen(address);
            listening.map_err(|error| Error::Other(format!("cannot listen on {address}: {error}")))
        };
        let server = config.server;
        let listener = listen(server.listen)?;
        let ops_listener = server.ops_listen.map(listen).transpose()?;
        let proxy_listener = server.proxy_listen.map(listen).transpose()?;
        let max_connections = serve::at_most(server.bounds.max_connections);
        if max_connections < server.bounds.max_connections {
            tracing::warn!(
                max_connections,
                "this process may open too few files for server.max_connections; raise the limit (ulimit -n)"
            );
        }
        let bounds = Bounds {
            max_connections,
            ..server.bounds
        };
        note_expiry(&gateway, &config.tokens, server.tls.as_ref());
        let tokens = Tokens::new(config.tokens);
        tracing::info!(
            listen = %listener.local_addr().unwrap_or(server.listen),
            ops_listen = ops_listener.as_ref().and_then(|ops| ops.local_addr().ok()).map(|at| at.to_string()),
            proxy_listen = proxy_listener.as_ref().and_then(|at| at.local_addr().ok()).map(|at| at.to_string()),
            store = %config.store,
            ready = gateway.status.readiness().await.reasons.is_empty(),
            tls = server.tls.is_some(),
            tokens = tokens.now().len(),
            open_mode = tokens.now().is_empty(),
            left_over_calls = opened.left_over,
            instance = %opened.instance,
            version = env!("CARGO_PKG_VERSION"),
            "oncegate starts",
        );
        let base = &gateway.base;
        base.metrics
            .configured(base.wall_time().as_second(), config.written.number());
        base.metrics.built(env!("CARGO_PKG_VERSION"));
        let reloader = Reloader {
            gateway: gateway.clone(),
            wings: wings.clone(),
            tokens: tokens.clone(),
            tls: server.tls.clone(),
            in_force: config.written.clone().into(),
            written: config.written,
        };
        let (ops, own_ops) = Ops::of(server.ops_token, ops_listener.is_some());
        let http = Http {
            gateway: gateway.clone(),
            tokens,
            max_body: MaxBody {
                bytes: server.max_body,
                time: server.body_timeout,
            },
            ops,
            is_tls: server.tls.is_some(),
        };
        let ops = ops_listener.zip(own_ops).map(|(listener, ops)| {
            let http = Http {
                ops,
                ..http.clone()
            };
            Listening {
                listener,
                routers: Routers {
                    all: http::ops_router(http.clone()),
                    spare: http::spare_router(http),
                },
                tls: None,
                bounds: Bounds {
                    max_connections: OPS_CONNECTIONS,
                    ..bounds.clone()
                },
                // Of its own, so that it can be seen when all is used up.
                memory: Budget::new(OPS_MEMORY),
            }
        });
        let all = match &proxy_listener {
            Some(_) => routes::router_without_proxies(http.clone(), &wings),
            None => routes::router(http.clone(), &wings),
        };
        let proxies = proxy_listener.map(|listener| Listening {
            listener,
            routers: Routers {
                all: routes::proxy_router(http.clone(), &wings),
                spare: http::spare_router(http.clone()),
            },
            tls: server.tls.clone(),
            bounds: bounds.clone(),
            memory: config.limits.memory.clone(),
        });
        let listening = Listening {
            listener,
            routers: Routers {
                all,
                spare: http::spare_router(http),
            },
            tls: server.tls,
            bounds,
            memory: config.limits.memory.clone(),
        };
        Ok(Self {
            gateway,
            wings,
            reloader: Arc::new(reloader),
            listening,
            proxies,
            ops,
            fatal: opened.fatal,
            drain_delay: server.drain_delay,
            limits: config.limits,
        })
    }

    /// The address it listens at; tests ask for port 0.
    ///
    /// # Errors
    /// The operating system does not say.
    pub fn address(&self) -> std::io::Result<SocketAddr> {
        self.listening.listener.local_addr()
    }

    /// The address of the ops listener, if there is one.
    pub fn ops_address(&self) -> Option<SocketAddr> {
        self.ops.as_ref()?.listener.local_addr().ok()
    }

    /// The address of the listener of proxies, if there is one.
    pub fn proxy_address(&self) -> Option<SocketAddr> {
        self.proxies.as_ref()?.listener.local_addr().ok()
    }

    /// The counter of dropped log lines.
    pub fn log_lines_dropped(&self) -> IntCounter {
        self.gateway.base.metrics.log_lines_dropped.clone()
    }

    /// A handle that puts another configuration into the running gateway.
    pub fn reloader(&self) -> Arc<Reloader> {
        self.reloader.clone()
    }

    /// Serves until `stop` is cancelled, then finishes what runs.
    ///
    /// It takes nothing new then, and logs what it had to leave. `at_once`: from then on nothing is
    /// waited for. Calls that run are recorded as unknown, and open connections are closed.
    ///
    /// # Errors
    /// Serving broke off, or the store failed so that only a new start can help.
    pub async fn run(
        self,
        stop: CancellationToken,
        at_once: CancellationToken,
    ) -> Result<(), Error> {
        let ends = Ends::default();
        let open = self.gateway.base.metrics.connections.clone();
        let serving = {
            let serve = |at| serve::serve(at, ends.clone(), open.clone());
            let further = self.proxies.into_iter().chain(self.ops);
            let all = std::iter::once(self.listening).chain(further);
            let all = join_all(all.map(serve).collect::<Vec<_>>());
            async { all.await.into_iter().sum::<usize>() }
        };
        let mut loops = loops::begin(&self.gateway, &self.wings, self.limits.timings, &stop);
        let mut serving = tokio::spawn(serving);
        let broken = tokio::select! {
            biased;
            () = self.fatal.cancelled() => return Err(Error::StoreFailed),
            () = stop.cancelled() => None,
            // These end only when they are told to.
            _ = &mut serving => return Err(Error::Other("serving failed".into())),
            ended = loops.join_next() => Some(ended),
        };
        if let Some(ended) = &broken {
            tracing::error!(?ended, "background task ended unexpectedly; shutting down");
        }
        self.gateway.leave();
        ends.leaving.cancel();
        if !self.drain_delay.is_zero() {
            tracing::info!("shutting down soon: not ready any more");
            tokio::select! {
                () = sleep(self.drain_delay) => {}
                () = at_once.cancelled() => {}
                () = self.fatal.cancelled() => return Err(Error::StoreFailed),
            }
        }
        tracing::info!("shutting down: no new requests are taken");
        // Before the last connections are taken, so that they are told.
        self.gateway.drain();
        ends.stop.cancel();
        let hurrying = async {
            at_once.cancelled().await;
            tracing::warn!("second stop signal: stopping at once");
            self.gateway.give_up();
            // `ending` does the rest.
            std::future::pending::<()>().await;
        };
        let ending = async {
            let grace_is_over = Instant::now() + self.limits.shutdown_grace;
            self.gateway.shut_down().await;
            if stop.is_cancelled() {
                // What a round has told the webhook, and has not written down, the next process would tell again.
                let rounds = async { while loops.join_next().await.is_some() {} };
                let until = grace_is_over.min(Instant::now() + LAST_ROUNDS);
                tokio::select! {
                    _ = timeout_at(until, rounds) => {}
                    () = at_once.cancelled() => {}
                }
            }
            loops.abort_all();
            // Until then each open connection may have one more request, and is told with its answer.
            let served = tokio::select! {
                served = timeout_at(grace_is_over, &mut serving) => served.is_ok(),
                () = at_once.cancelled() => false,
            };
            if !served {
                ends.over.cancel();
                if timeout(LAST_ANSWERS, &mut serving).await.is_err() {
                    ends.cut.cancel();
                    let connections = serving.await.unwrap_or_default();
                    tracing::warn!(connections, "connections were cut");
                }
            }
            // The last answers may still have looked into the store.
            self.gateway.close().await;
        };
        tokio::select! {
            () = ending => {}
            () = hurrying => {}
            () = self.fatal.cancelled() => return Err(Error::StoreFailed),
        }
        tracing::info!("oncegate has stopped");
        if broken.is_some() {
            Err(Error::Other(LOOP_ENDED.into()))
        } else {
            Ok(())
        }
    }
}

/// A gateway over its open store, and the rest of the configuration.
struct Opened {
    gateway: Arc<Gateway>,
    wings: Arc<WingServices>,
    /// Cancelled by the store when the process must end at once.
    fatal: CancellationToken,
    /// Calls of an earlier run that recovery settled at the start.
    left_over: usize,
    instance: InstanceId,
    #[cfg(all(feature = "mcp", feature = "sqlite"))]
    records: Arc<dyn Store>,
    /// What the gateway has not taken out of it.
    config: Config,
}

/// Opens the store, and settles leftover calls.
///
/// # Errors
/// Says which part could not be had.
async fn open(mut config: Config) -> Result<Opened, Error> {
    // Only the first call of a process has an effect; any provider will do.
    drop(rustls::crypto::ring::default_provider().install_default());
    for warning in config.warnings_at(gateway::local_time()) {
        tracing::warn!("{warning}");
    }
    let fatal = CancellationToken::new();
    let instance = gateway::new_instance();
    let store = open_store(&config.store, instance, &fatal).await?;
    let records = encrypt(store, config.store_keys.take());
    let max_connections = serve::at_most(config.server.bounds.max_connections);
    let max_running = serve::running_at_most(config.limits.max_running, max_connections);
    if max_running < config.limits.max_running {
        tracing::warn!(
            max_running,
            "this process may open too few files for server.max_running; raise the limit (ulimit -n)"
        );
        config.limits.max_running = max_running;
    }
    let gateway = gateway_over(records.clone(), instance, &mut config)?;
    let gateway = Arc::new(gateway);
    gateway.base.set_tenants(tenants(&config));
    let left_over = take_up(&gateway, config.store.is_remote()).await?;
    let upstreams = take(&mut config.upstreams);
    let wings = WingServices::new(&gateway, upstreams, &mut config.wings);
    wings.take_up().await;
    Ok(Opened {
        gateway,
        wings: Arc::new(wings),
        fatal,
        left_over,
        instance,
        #[cfg(all(feature = "mcp", feature = "sqlite"))]
        records,
        config,
    })
}

/// Takes up what an earlier run has left, and learns what it needs before the first claim.
///
/// Returns how many calls had lost their owner. `is_remote`: the store may come later; until then nothing is claimed.
///
/// # Errors
/// The store failed, or there are too many key schemes.
pub(crate) async fn take_up(gateway: &Gateway, is_remote: bool) -> Result<usize, Error> {
    let left_over = match gateway.lost.recover_all(gateway.now()).await {
        Ok(settled) => settled,
        Err(_) if is_remote => 0,
        // A disk may have room later.
        Err(_) if !gateway.status.readiness().await.reasons.is_empty() => 0,
        Err(error) => return Err(error.into()),
    };
    gateway.saga_worker.free_sagas().await;

    match gateway.key_schemes.learn_key_schemes().await {
        // Nothing is claimed before they are written down; that is tried again and again.
        Ok(()) | Err(KeySchemesError::Store(_)) => {}
        Err(error @ KeySchemesError::TooMany(_)) => return Err(Error::Other(error.to_string())),
    }

    match gateway.pauses.look_at_pauses().await {
        // Nothing is claimed before it has been looked at.
        Err(error) if !is_remote => return Err(error.into()),
        Ok(()) | Err(_) => {}
    }
    Ok(left_over)
}

/// Wraps the store in encryption, if there are keys.
fn encrypt(store: Arc<dyn Store>, keys: Option<Keys>) -> Arc<dyn Store> {
    let Some(keys) = keys else { return store };
    Arc::new(Encrypted::new(store, keys))
}
