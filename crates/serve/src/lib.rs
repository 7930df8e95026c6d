//! Connections: accepting, bounds, silence, and their end.
//!
//! It knows no route: routers give the answers.
//!
//! ```
//! use oncegate_serve::{Network, listen};
//!
//! # #[tokio::main]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let listener = listen("127.0.0.1:0".parse()?)?;
//! // The address is taken now.
//! assert!(listen(listener.local_addr()?).is_err());
//! // Connections of a load balancer count apart from those of clients.
//! assert!(Network::parse("10.0.0.0/8").is_ok());
//! assert!(Network::parse("balancer").is_err());
//! # Ok(())
//! # }
//! ```

mod bounds; // how many connections there may be, and how long they may be silent
mod metered; // a request's body, charged as it comes in
mod permits; // how many connections there may be, and who gives way
mod tls; // a certificate that can be changed while it is used
mod watch; // how long a connection may be without a request

use std::net::{IpAddr, SocketAddr};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::ConnectInfo;
use axum::http::header::{CONNECTION, HOST};
use axum::http::{HeaderValue, Request, Response, Version};
use http_body::Body as _;
use hyper::body::Incoming;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use hyper_util::service::TowerToHyperService;
use prometheus::IntGauge;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::time::{sleep, timeout};
use tokio_util::io::{InspectReader, InspectWriter};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

pub use self::bounds::{Bounds, Network};
use self::metered::Metered;
use self::permits::{Listing, Permit, Permits, SPARE};
pub use self::tls::{Tls, Unfit};
use self::watch::{UnderWay, Watch, Watched};
use oncegate_budget::{Budget, Connection, Elsewhere, MAX_HEAD, OfBalancer};

/// Connections that the operating system queues until they are accepted.
const BACKLOG: u32 = 1_024;
/// The least number of connections, however few files this process may open.
const LEAST: usize = 16;
/// Files that the process needs for itself: store, log, listeners, and connections to tools that wait for their next use.
const OWN_FILES: usize = 96;
/// Most lines of a head; more are answered with 431.
const MAX_HEADERS: usize = 100;
/// Most requests of one HTTP/2 connection at once.
const MAX_STREAMS: u32 = 100;
/// Bytes of bodies that HTTP/2 may bring before they are read: per stream and per connection.
const WINDOWS: (u32, u32) = (64 * 1024, 128 * 1024);
/// Answer bytes that HTTP/2 buffers per stream until the client reads them.
const SEND_BUFFER: usize = 64 * 1024;
/// When HTTP/2 pings, and how long it waits for an answer.
const PING: (Duration, Duration) = (Duration::from_secs(30), Duration::from_secs(10));
/// How long an idle connection may take to end.
const LAST_WORDS: Duration = Duration::from_secs(1);
/// How long to wait when the operating system gives no more connections.
const NO_CONNECTIONS: Duration = Duration::from_millis(200);

/// The routers that answer.
#[derive(Clone)]
pub struct Routers {
    pub all: Router,
    /// For connections beyond the bound.
    pub spare: Router,
}

/// The steps of a shutdown.
#[derive(Debug, Clone, Default)]
pub struct Ends {
    /// Connections are asked to go elsewhere with their next request; all is served as before.
    pub leaving: CancellationToken,
    /// No new connection or request is taken.
    ///
    /// What is under way is answered. A client with an open connection is told with the answer to its next request, or by
    /// HTTP/2 at once.
    pub stop: CancellationToken,
    /// Connections without a request are closed.
    pub over: CancellationToken,
    /// No more time.
    pub cut: CancellationToken,
}

/// Binds an address.
///
/// # Errors
/// It is taken already, or not this machine's.
pub fn listen(address: SocketAddr) -> std::io::Result<TcpListener> {
    let socket = if address.is_ipv4() {
        TcpSocket::new_v4()
    } else {
        TcpSocket::new_v6()
    }?;
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

/// A listener, and how its connections are served.
pub struct Listening {
    pub listener: TcpListener,
    pub routers: Routers,
    pub tls: Option<Tls>,
    pub bounds: Bounds,
    pub memory: Budget,
}

/// Serves until it is stopped and every connection has ended.
///
/// `open` counts the connections. Returns how many were cut.
pub async fn serve(listening: Listening, ends: Ends, open: IntGauge) -> usize {
    let connections = TaskTracker::new();
    let listener = listening.listener;
    let host = Arc::new(Host {
        builders: [builder(false), builder(true)],
        routers: listening.routers,
        tls: listening.tls,
        permits: Permits::new(&listening.bounds, listening.memory),
        bounds: listening.bounds,
        ends,
        open,
    });
    while let Some((stream, address, permit)) = next(&listener, &host).await {
        connections.spawn(host.clone().host(stream, address, permit));
    }
    for (stream, address) in last_of(listener) {
        connections.spawn(host.clone().host(stream, address, host.permits.now()));
    }
    connections.close();
    tokio::select! {
        () = connections.wait() => 0,
        () = host.ends.cut.cancelled() => connections.len(),
    }
}

/// The next connection with its place; `None`: it is time to stop.
async fn next(listener: &TcpListener, host: &Host) -> Option<(TcpStream, IpAddr, Permit)> {
    tokio::select! {
        biased;
        () = host.ends.stop.cancelled() => None,
        next = async {
            let permit = host.permits.some().await;
            let (stream, address) = loop {
                match listener.accept().await {
                    Ok((stream, address)) => break (stream, address.ip()),
                    Err(error) if is_of_one_connection(&error) => {}
                    Err(error) => {
                        tracing::error!(%error, "a connection cannot be accepted");
                        sleep(NO_CONNECTIONS).await;
                    }
                }
            };
            // An ordinary place may have become free meanwhile.
            (stream, address, host.permits.better(permit))
        } => Some(next),
    }
}

/// The connections in the backlog: they get an answer, and no reset.
///
/// Asks the operating system itself, so that nothing comes between its last answer and the end of the listener.
fn last_of(listener: TcpListener) -> Vec<(TcpStream, IpAddr)> {
    let Ok(listener) = listener.into_std() else {
        return Vec::new();
    };
    let mut last = Vec::new();
    loop {
        match listener.accept() {
            Ok((stream, address)) => last.push((stream, address.ip())),
            Err(error) if is_of_one_connection(&error) => {}
            Err(_) => break,
        }
    }
    drop(listener);
    let taken = last.into_iter().filter_map(|(stream, address)| {
        stream.set_nonblocking(true).ok()?;
        Some((TcpStream::from_std(stream).ok()?, address))
    });
    taken.collect()
}

fn is_of_one_connection(error: &std::io::Error) -> bool {
    use std::io::ErrorKind::{ConnectionAborted, ConnectionReset};
    matches!(error.kind(), ConnectionAborted | ConnectionReset)
}

/// The settings of every connection.
struct Host {
    /// For ordinary connections, and for spare ones.
    builders: [Builder<TokioExecutor>; 2],
    routers: Routers,
    tls: Option<Tls>,
    bounds: Bounds,
    ends: Ends,
    open: IntGauge,
    permits: Permits,
}

/// An open connection, counted until this is dropped.
struct Open<'a>(&'a IntGauge);

impl Drop for Open<'_> {
    fn drop(&mut self) {
        self.0.dec();
    }
}

/// HTTP/1.1, and HTTP/2 for clients that begin with it.
fn builder(is_spare: bool) -> Builder<TokioExecutor> {
    let mut builder = Builder::new(TokioExecutor::new());
    builder
        .http1()
        .timer(TokioTimer::new())
        // `Watch` has timeouts of its own, which also cover silence before the first byte.
        .header_read_timeout(None)
        .keep_alive(!is_spare)
        .max_buf_size(MAX_HEAD)
        .max_headers(MAX_HEADERS);
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(if is_spare { 1 } else { MAX_STREAMS })
        .max_header_list_size(MAX_HEAD as u32)
        .initial_stream_window_size(WINDOWS.0)
        .initial_connection_window_size(WINDOWS.1)
        .max_send_buf_size(SEND_BUFFER)
        .keep_alive_interval(PING.0)
        .keep_alive_timeout(PING.1);
    builder
}

impl Host {
    async fn host(self: Arc<Self>, stream: TcpStream, address: IpAddr, permit: Permit) {
        self.open.inc();
        let _open = Open(&self.open);
        let Some((permit, listing)) = self.permits.settle(permit, address).await else {
            return;
        };
        // A connection without it is only slower.
        drop(stream.set_nodelay(true));
        let Some(tls) = &self.tls else {
            return self.converse(stream, address, permit, listing).await;
        };
        let gives_way = listing.gives_way.clone();
        let hello = timeout(self.bounds.header_timeout, tls.greet(stream));
        tokio::select! {
            hello = hello => match hello {
                Ok(Ok(stream)) => self.converse(stream, address, permit, listing).await,
                Ok(Err(error)) => tracing::debug!(%error, "a TLS handshake failed"),
                Err(_) => tracing::debug!("a TLS handshake took too long"),
            },
            () = self.ends.over.cancelled() => {}
            () = gives_way.cancelled() => {}
        }
    }

    /// Answers one connection's requests until it ends.
    async fn converse<S>(&self, stream: S, address: IpAddr, permit: Permit, listing: Listing)
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let mut proxies = self.bounds.proxies.iter();
        let balancer = proxies
            .any(|proxy| proxy.holds(address))
            .then_some(OfBalancer);
        let watch = Arc::new(Watch::new(&self.bounds));
        let routers = if permit.is_spare {
            &self.routers.spare
        } else {
            &self.routers.all
        };
        let served = Arc::new(Served {
            routers: routers.clone(),
            spare: self.routers.spare.clone(),
            connection: listing.connection.clone(),
            address,
            leaving: self.ends.leaving.clone(),
            balancer,
        });
        let seen = watch.clone();
        let service = service_fn(move |request: Request<Incoming>| {
            let under_way = UnderWay::begin(&seen, request.version() == Version::HTTP_2);
            served.clone().answer(request, under_way)
        });
        let (coming, going) = (watch.clone(), watch.clone());
        let (connection, must_go) = (listing.connection.clone(), listing.gives_way.clone());
        let stream = InspectReader::new(stream, move |read: &[u8]| {
            coming.note_read(!read.is_empty());
            if connection.head_grows(read.len()).is_err() {
                must_go.cancel();
            }
        });
        let stream = TokioIo::new(InspectWriter::new(stream, move |written: &[u8]| {
            going.note_written(written.len())
        }));
        let builder = &self.builders[usize::from(permit.is_spare)];
        let mut connection = pin!(builder.serve_connection(stream, service));
        let (mut is_draining, mut is_ending) = (false, false);
        loop {
            tokio::select! {
                biased;
                ended = connection.as_mut() => {
                    if let Err(error) = ended {
                        tracing::debug!(error, "a connection broke off");
                    }
                    return;
                }
                () = self.ends.cut.cancelled() => return,
                // The connection had its time to end.
                () = watch.has_been_idle_for(LAST_WORDS), if is_ending => return,
                // By HTTP/1 only an answer can say it: a request may be on its way while nothing is heard.
                () = async { self.ends.stop.cancelled().await; watch.becomes_multiplexed().await },
                    if !is_draining => {
                    connection.as_mut().graceful_shutdown();
                    is_draining = true;
                }
                () = self.ends.over.cancelled(), if !is_ending => {
                    connection.as_mut().graceful_shutdown();
                    (is_draining, is_ending) = (true, true);
                }
                () = async { tokio::select! {
                    () = listing.gives_way.cancelled() => {}
                    () = watch.expired() => {}
                } }, if !is_ending => {
                    if !watch.is_between_requests() {
                        return;
                    }
                    connection.as_mut().graceful_shutdown();
                    (is_draining, is_ending) = (true, true);
                }
            }
        }
    }
}

/// The service of one connection.
struct Served {
    routers: Router,
    /// For a request for which there is no memory.
    spare: Router,
    connection: Arc<Connection>,
    /// Of the client, or of the proxy before it.
    address: IpAddr,
    leaving: CancellationToken,
    balancer: Option<OfBalancer>,
}

impl Served {
    /// Answers one request.
    ///
    /// It counts as under way up to the end of its body, and is charged up to the end of its bytes.
    async fn answer(
        self: Arc<Self>,
        request: Request<Incoming>,
        under_way: UnderWay,
    ) -> Result<Response<Watched>, h2::Error> {
        let version = request.version();
        let (mut response, charge) = match self.connection.begin(head_of(&request)).await {
            // The request was not read, so the client may send it again.
            Err(_) if version == Version::HTTP_2 => return Err(h2::Reason::REFUSED_STREAM.into()),
            Err(_) => (self.refuse(request.map(|_| Body::empty())).await, None),
            Ok(guest) => {
                let mut request = request.map(|body| {
                    Body::new(Metered {
                        body,
                        guest: guest.clone(),
                    })
                });
                request.extensions_mut().insert(guest.clone());
                if let Some(balancer) = self.balancer {
                    request.extensions_mut().insert(balancer);
                }
                request.extensions_mut().insert(ConnectInfo(self.address));
                let Ok(response) = TowerToHyperService::new(self.routers.clone())
                    .call(request)
                    .await;
                let elsewhere = response
                    .extensions()
                    .get()
                    .map_or(0, |Elsewhere(bytes)| *bytes);
                let bytes = response.body().size_hint().exact();
                let bytes = bytes.map(|bytes| usize::try_from(bytes).unwrap_or(usize::MAX));
                let (charge, fits) =
                    guest.is_answered(bytes.map(|bytes| bytes.saturating_sub(elsewhere)));
                let response = if fits {
                    response
                } else {
                    // The request is answered already. Each of HTTP/1.1 has a host.
                    let mut refused = Request::new(Body::empty());
                    let host = HeaderValue::from_static("localhost");
                    refused.headers_mut().insert(HOST, host);
                    self.refuse(refused).await
                };
                (response, Some((guest, charge)))
            }
        };
        if version <= Version::HTTP_11 && self.leaving.is_cancelled() {
            response
                .headers_mut()
                .insert(CONNECTION, HeaderValue::from_static("close"));
        }
        Ok(response.map(|body| Watched::new(body, charge, under_way)))
    }

    /// Answers a request for which there is no memory: with 429, or by an ops route.
    async fn refuse(&self, request: Request<Body>) -> Response<Body> {
        let Ok(refused) = TowerToHyperService::new(self.spare.clone())
            .call(request)
            .await;
        refused
    }
}

/// The length of a request's head, about.
fn head_of<B>(request: &Request<B>) -> usize {
    let path = request.uri().path_and_query();
    let lines = request.headers().iter();
    let lines = lines.map(|(name, value)| name.as_str().len() + value.len() + 32);
    path.map_or(0, |path| path.as_str().len()) + lines.sum::<usize>()
}

/// How many calls may be at tools at once, beside so many connections: each takes a file, too.
pub fn running_at_most(max_running: usize, max_connections: usize) -> usize {
    use rustix::process::{Resource, getrlimit};
    let files = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    let files = usize::try_from(files).unwrap_or(usize::MAX);
    let left = files.saturating_sub(max_connections + SPARE + OWN_FILES);
    max_running.min(left.max(LEAST))
}

/// How many connections fit into the open files of this process.
///
/// Half of the files are kept for tools and store. Asks for as many files as it may have.
pub fn at_most(max_connections: usize) -> usize {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    if let Err(error) = setrlimit(
        Resource::Nofile,
        Rlimit {
            current: limit.maximum,
            ..limit
        },
    ) {
        tracing::debug!(%error, "the limit of open files cannot be raised");
    }
    let files = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    let half = usize::try_from(files / 2).unwrap_or(usize::MAX);
    max_connections.min(half.saturating_sub(SPARE).max(LEAST))
}
