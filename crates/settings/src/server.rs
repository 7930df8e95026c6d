//! The section `[server]`: where the gateway listens, and its bounds.

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use bytesize::ByteSize;

use super::audit;
use super::common::token_digest;
use super::memory;
use super::reader::{Bytes, Section};
use oncegate_budget::{Budget, OPENING};
use oncegate_engine::Limits;
use oncegate_rules::approval;
use oncegate_rules::saga;
use oncegate_rules::share::{TENANT, UNAUTHENTICATED};
use oncegate_rules::timings::Timings;
use oncegate_serve::{Bounds, Network, Tls, Unfit};

#[derive(Debug, Clone)]
pub struct Server {
    pub listen: SocketAddr,
    /// The address of the ops routes; `None`: `listen`.
    pub ops_listen: Option<SocketAddr>,
    /// The address of the routes of proxies; `None`: `listen`.
    pub proxy_listen: Option<SocketAddr>,
    /// The SHA-256 of the token for the ops routes.
    pub ops_token: Option<[u8; 32]>,
    /// The largest request body, in bytes.
    pub max_body: usize,
    /// How long a request body may take to arrive.
    pub body_timeout: Duration,
    /// The largest answer of a tool, in bytes.
    pub max_result: usize,
    pub bounds: Bounds,
    /// How long a stopping gateway serves requests as before.
    ///
    /// Load balancers notice the stop meanwhile.
    pub drain_delay: Duration,
    pub tls: Option<Tls>,
}

/// The longest `join_wait`, the same as for `Prefer: wait`.
const MAX_JOIN_WAIT: Duration = Duration::from_secs(60);

/// Lower bound of the default of `max_connections_per_address`.
const FEW_CONNECTIONS: usize = 16;

/// Remembered calls may fill the memory budget divided by this.
const REMEMBERED: usize = 4;

/// The consequences of the bounds on memory, in a sentence.
pub(super) fn memory(server: &Server, limits: &Limits) -> String {
    let size = |bytes: usize| ByteSize::b(bytes as u64).display().iec().to_string();
    let total = limits.memory.total();
    let (tenant, unauthenticated) = (TENANT.alone(total), UNAUTHENTICATED.alone(total));
    let calls = (tenant / server.max_result.max(1)).min(limits.max_running);
    let connections = (unauthenticated / OPENING).min(server.bounds.max_connections);
    format!(
        "memory: at most {} for connections, requests and answers; of it one tenant has at most {}, \
         enough for {calls} calls at once with results of {}; \
         connections without a valid token have at most {}, enough for {connections} of them",
        size(total),
        size(tenant),
        size(server.max_result),
        size(unauthenticated),
    )
}

pub(super) fn server(root: &mut Section<'_, '_>, is_open: bool) -> (Server, Limits) {
    let is_written = root.has("server");
    let mut section = root.defaulted("server");
    let usual = SocketAddr::from(([127, 0, 0, 1], 8080));
    let listen = section.parsed("listen", address).unwrap_or(usual);
    let why = "without [[auth.tokens]] callers are not authenticated, so the address must be a loopback one";
    section.check(!is_open || listen.ip().is_loopback(), "listen", why);
    let ops_listen = section.parsed("ops_listen", address);
    let is_taken = ops_listen == Some(listen) && listen.port() != 0;
    let why = "this is server.listen; the ops endpoints need another address or port";
    section.check(!is_taken, "ops_listen", why);
    let proxy_listen = section.parsed("proxy_listen", address);
    let is_local = proxy_listen.is_none_or(|address| address.ip().is_loopback());
    let why = "without [[auth.tokens]] callers are not authenticated, so the address must be a loopback one";
    section.check(!is_open || is_local, "proxy_listen", why);
    let is_taken = proxy_listen.is_some_and(|address| {
        address.port() != 0 && (address == listen || Some(address) == ops_listen)
    });
    let why = "another listener has this address; proxies need another address or port";
    section.check(!is_taken, "proxy_listen", why);
    let ops_token = section.parsed("ops_token", token_digest);
    let max_connections = section.count_or("max_connections", 10_000);
    let half = (max_connections / 2).max(FEW_CONNECTIONS);
    let per_address = section.count_or("max_connections_per_address", half);
    let server = Server {
        listen,
        ops_listen,
        proxy_listen,
        ops_token,
        max_body: section.get_or("max_body", Bytes(1 << 20)).0,
        body_timeout: section.get_or("body_timeout", Duration::from_secs(15)),
        max_result: section.get_or("max_result", Bytes(1 << 20)).0,
        bounds: Bounds {
            max_connections,
            per_address,
            proxies: section
                .all_parsed("proxies", Network::parse)
                .unwrap_or_default(),
            header_timeout: section.get_or("header_timeout", Duration::from_secs(10)),
            idle_timeout: section.get_or("idle_timeout", Duration::from_secs(60)),
        },
        drain_delay: section.get_or("drain_delay", Duration::ZERO),
        tls: section.section("tls").and_then(tls),
    };
    let mut limits = Limits {
        join_wait: section.get_or("join_wait", Duration::from_secs(10)),
        max_running: section.count_or("max_running", 1_000),
        max_waiting: section.count_or("max_waiting", 10_000),
        shutdown_grace: section.get_or("shutdown_grace", Duration::from_secs(30)),
        sample: 1.0,
        sagas: saga::Policy::default(),
        approvals: approval::Limits::default(),
        approval_console: None,
        audit_retention: audit::RETENTION,
        timings: Timings::default(),
        memory: Budget::new(match section.get("max_memory") {
            Some(Bytes(bytes)) => bytes,
            None => memory::default_budget(),
        }),
        max_remembered: 0,
    };
    limits.max_remembered = limits.memory.total() / REMEMBERED;
    // Default sizes are not refused: the configuration did not choose them.
    if is_written
        && let Some(why) = memory::mistake(&limits.memory, server.max_body, server.max_result)
    {
        section.mistake("max_memory", &why);
    }
    let why = "must be at most one minute";
    section.check(limits.join_wait <= MAX_JOIN_WAIT, "join_wait", why);
    (server, limits)
}

fn address(text: &str) -> Result<SocketAddr, String> {
    text.parse()
        .map_err(|_| format!("{text:?} is not an address; one looks like \"127.0.0.1:8080\""))
}

fn tls(mut section: Section<'_, '_>) -> Option<Tls> {
    let (cert, key): (Option<String>, Option<String>) = (section.need("cert"), section.need("key"));
    let (cert, key) = (cert?, key?);
    let read = Tls::read(Path::new(&cert), Path::new(&key));
    let refused = |unfit| match unfit {
        Unfit::Cert(why) => section.mistake("cert", &why),
        Unfit::Key(why) => section.mistake("key", &why),
    };
    read.map_err(refused).ok()
}
