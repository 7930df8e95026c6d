//! Connections: taking them, how many there may be, how long they may be silent, and their end. Knows no
//! door; what is answered is the routers' business.

mod tls; // a certificate that can be changed while it is used
mod watch; // how long a connection may be without a request

use std::collections::HashMap;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::header::CONNECTION;
use axum::http::{HeaderValue, Request, Response, Version};
use hyper::body::Incoming;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use hyper_util::service::TowerToHyperService;
use prometheus::IntGauge;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{sleep, timeout};
use tokio_util::io::{InspectReader, InspectWriter};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

pub use self::tls::{Tls, Unfit};
use self::watch::{UnderWay, Watch, Watched};

/// New connections that the operating system keeps until they are taken.
const BACKLOG: u32 = 1_024;
/// Connections beyond the bound that are taken to be told so; one more waits until there is a place.
const SPARE: usize = 64;
/// Connections that there may be, however few files this process may open.
const LEAST: usize = 16;
/// Of an HTTP/1 request's head, with all its lines; HTTP/2 counts them decompressed.
const MAX_HEAD: usize = 64 * 1024;
/// Lines of a head; more are answered with 431.
const MAX_HEADERS: usize = 100;
/// Requests of one HTTP/2 connection at once.
const MAX_STREAMS: u32 = 100;
/// Of a request's body that HTTP/2 may bring before it is read: of one stream, and of all of a connection.
const WINDOWS: (u32, u32) = (64 * 1024, 1024 * 1024);
/// An HTTP/2 connection that does not answer a ping for so long is gone.
const PING: (Duration, Duration) = (Duration::from_secs(30), Duration::from_secs(10));
/// How long a connection that is told to end may take for it when nothing is under way.
const LAST_WORDS: Duration = Duration::from_secs(1);
/// A connection without a request for this long may be closed where another one needs its place.
const SILENT: Duration = Duration::from_secs(1);
/// How long to wait for a place before a silent connection is closed.
const NO_PLACE: Duration = Duration::from_millis(20);
/// How long a connection waits for the place of one that is closed.
const GIVES_WAY: Duration = Duration::from_secs(1);
/// How long to wait when the operating system gives no more connections.
const NO_CONNECTIONS: Duration = Duration::from_millis(200);

/// How many connections there may be, and how long they may be silent.
#[derive(Debug, Clone, Copy)]
pub struct Bounds {
    pub max_connections: usize,
    /// From a request's first byte, or for the first one from the connection's beginning, to the end of its head.
    pub header_timeout: Duration,
    /// From an answer's end to the next request, and how long a client may take nothing of an answer.
    pub idle_timeout: Duration,
}

/// What is answered.
#[derive(Clone)]
pub struct Doors {
    pub all: Router,
    /// To connections beyond the bound.
    pub spare: Router,
}

/// The way to the end, step by step.
#[derive(Debug, Clone, Default)]
pub struct Ends {
    /// Connections are asked to go elsewhere with their next request; all is served as before.
    pub leaving: CancellationToken,
    /// Nothing new is taken. What is under way is answered, and who has an open connection is told with the
    /// answer to the next request, or by HTTP/2 at once.
    pub stop: CancellationToken,
    /// Connections without a request are closed.
    pub over: CancellationToken,
    /// No more time.
    pub cut: CancellationToken,
}

/// Takes an address.
///
/// # Errors
/// It is taken already, or not this machine's.
pub fn listen(address: SocketAddr) -> std::io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

/// Serves until it is stopped and every connection has ended; `open` says how many there are. Answers how many
/// were cut.
pub async fn serve(
    listener: TcpListener,
    doors: Doors,
    tls: Option<Tls>,
    bounds: Bounds,
    ends: Ends,
    open: IntGauge,
) -> usize {
    let connections = TaskTracker::new();
    let builders = [builder(false), builder(true)];
    let places = Arc::new(Places::new(bounds.max_connections));
    let host =
        Arc::new(Host { builders, doors, tls, bounds, ends: ends.clone(), open, places: places.clone() });
    while let Some((stream, place)) = next(&listener, &places, &ends.stop).await {
        connections.spawn(host.clone().host(stream, place));
    }
    for stream in last_of(listener) {
        connections.spawn(host.clone().host(stream, places.now()));
    }
    connections.close();
    tokio::select! {
        () = connections.wait() => 0,
        () = ends.cut.cancelled() => connections.len(),
    }
}

/// The next connection with its place; `None`: it is time to stop.
async fn next(
    listener: &TcpListener,
    places: &Places,
    stop: &CancellationToken,
) -> Option<(TcpStream, Place)> {
    tokio::select! {
        biased;
        () = stop.cancelled() => None,
        next = async {
            let place = places.some().await;
            let stream = loop {
                match listener.accept().await {
                    Ok((stream, _)) => break stream,
                    Err(error) if is_of_one_connection(&error) => {}
                    Err(error) => {
                        tracing::error!(%error, "no connection can be taken");
                        sleep(NO_CONNECTIONS).await;
                    }
                }
            };
            // Meanwhile there may be a better one.
            (stream, places.better(place))
        } => Some(next),
    }
}

/// Who is in the backlog already: is told, and not reset. Asks the operating system itself, so that nothing comes
/// between its last answer and the end of the listener.
fn last_of(listener: TcpListener) -> Vec<TcpStream> {
    let Ok(listener) = listener.into_std() else { return Vec::new() };
    let mut last = Vec::new();
    loop {
        match listener.accept() {
            Ok((stream, _)) => last.push(stream),
            Err(error) if is_of_one_connection(&error) => {}
            Err(_) => break,
        }
    }
    drop(listener);
    let taken = last.into_iter().filter(|stream| stream.set_nonblocking(true).is_ok());
    taken.filter_map(|stream| TcpStream::from_std(stream).ok()).collect()
}

fn is_of_one_connection(error: &std::io::Error) -> bool {
    use std::io::ErrorKind::{ConnectionAborted, ConnectionReset};
    matches!(error.kind(), ConnectionAborted | ConnectionReset)
}

/// The places of connections.
struct Places {
    ordinary: Arc<Semaphore>,
    spare: Arc<Semaphore>,
    open: OpenWatches,
}

/// The connections that have a place: a silent one gives it up to one that comes.
#[derive(Clone, Default)]
struct OpenWatches(Arc<Mutex<HashMap<usize, Listed>>>);

struct Listed {
    watch: Arc<Watch>,
    is_spare: bool,
}

impl OpenWatches {
    fn add(&self, watch: &Arc<Watch>, is_spare: bool) -> Listing {
        let number = Arc::as_ptr(watch).addr();
        self.listed().insert(number, Listed { watch: watch.clone(), is_spare });
        Listing { open: self.clone(), number }
    }

    /// Closes the connection that has been silent for longest, if one has been for long. Whether there was one.
    fn close_one(&self, may_be_spare: bool) -> bool {
        let listed = self.listed();
        let fits = listed.values().filter(|listed| may_be_spare || !listed.is_spare);
        let silent = fits.filter_map(|listed| Some((listed.watch.silent_since()?, &listed.watch)));
        let longest = silent.min_by_key(|(since, _)| *since);
        let longest = longest.filter(|(since, _)| since.elapsed() >= SILENT);
        longest.is_some_and(|(_, watch)| {
            watch.give_way();
            true
        })
    }

    fn listed(&self) -> MutexGuard<'_, HashMap<usize, Listed>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// That a connection is listed; dropped, it is not.
struct Listing {
    open: OpenWatches,
    number: usize,
}

impl Drop for Listing {
    fn drop(&mut self) {
        self.open.listed().remove(&self.number);
    }
}

/// The place of one connection; dropped, it is free again.
struct Place {
    is_spare: bool,
    _held: Option<OwnedSemaphorePermit>,
}

impl Places {
    fn new(max_connections: usize) -> Self {
        let max_connections = max_connections.min(Semaphore::MAX_PERMITS);
        Self {
            ordinary: Arc::new(Semaphore::new(max_connections)),
            spare: Arc::new(Semaphore::new(SPARE)),
            open: OpenWatches::default(),
        }
    }

    /// Any place, an ordinary one if there is one. If there is none at all, silent connections are closed.
    async fn some(&self) -> Place {
        loop {
            tokio::select! {
                biased;
                held = self.ordinary.clone().acquire_owned() => return Place { is_spare: false, _held: held.ok() },
                held = self.spare.clone().acquire_owned() => return Place { is_spare: true, _held: held.ok() },
                () = sleep(NO_PLACE) => {
                    self.open.close_one(true);
                }
            }
        }
    }

    /// An ordinary place instead of a spare one, if there is one now.
    fn better(&self, place: Place) -> Place {
        match self.ordinary.clone().try_acquire_owned() {
            Ok(held) if place.is_spare => Place { is_spare: false, _held: Some(held) },
            _ => place,
        }
    }

    /// A place for one of the last connections, whether there is one or not.
    fn now(&self) -> Place {
        let held = self.ordinary.clone().try_acquire_owned();
        Place { is_spare: held.is_err(), _held: held.ok() }
    }
}

/// What every connection is served with.
struct Host {
    /// For ordinary connections, and for spare ones.
    builders: [Builder<TokioExecutor>; 2],
    doors: Doors,
    tls: Option<Tls>,
    bounds: Bounds,
    ends: Ends,
    open: IntGauge,
    places: Arc<Places>,
}

/// A connection that is open; dropped, it is not.
struct Open<'a>(&'a IntGauge);

impl<'a> Open<'a> {
    fn count(open: &'a IntGauge) -> Self {
        open.inc();
        Self(open)
    }
}

impl Drop for Open<'_> {
    fn drop(&mut self) {
        self.0.dec();
    }
}

/// HTTP/1.1, and HTTP/2 for those who begin with it.
fn builder(is_spare: bool) -> Builder<TokioExecutor> {
    let mut builder = Builder::new(TokioExecutor::new());
    builder
        .http1()
        .timer(TokioTimer::new())
        // The watch knows better, also about silence before the first byte.
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
        .keep_alive_interval(PING.0)
        .keep_alive_timeout(PING.1);
    builder
}

impl Host {
    async fn host(self: Arc<Self>, stream: TcpStream, mut place: Place) {
        let _open = Open::count(&self.open);
        if place.is_spare && self.places.open.close_one(false) {
            let held = timeout(GIVES_WAY, self.places.ordinary.clone().acquire_owned()).await;
            if let Ok(Ok(held)) = held {
                place = Place { is_spare: false, _held: Some(held) };
            }
        }
        // A connection without it is only slower.
        drop(stream.set_nodelay(true));
        let Some(tls) = &self.tls else { return self.converse(stream, place).await };
        let hello = timeout(self.bounds.header_timeout, tls.greet(stream));
        tokio::select! {
            hello = hello => match hello {
                Ok(Ok(stream)) => self.converse(stream, place).await,
                Ok(Err(error)) => tracing::debug!(%error, "no TLS with a client"),
                Err(_) => tracing::debug!("a client was too slow with TLS"),
            },
            () = self.ends.over.cancelled() => {}
        }
    }

    /// Answers one connection's requests until it ends.
    async fn converse<S>(&self, stream: S, place: Place)
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let watch = Arc::new(Watch::new(self.bounds));
        let _listed = self.places.open.add(&watch, place.is_spare);
        let router = if place.is_spare { &self.doors.spare } else { &self.doors.all };
        let router = TowerToHyperService::new(router.clone());
        let (seen, leaving) = (watch.clone(), self.ends.leaving.clone());
        let service = service_fn(move |request: Request<Incoming>| {
            let (version, under_way) = (request.version(), UnderWay::begin(&seen));
            seen.is_multiplexed(version == Version::HTTP_2);
            answer(router.call(request), version, under_way, leaving.clone())
        });
        let (coming, going) = (watch.clone(), watch.clone());
        let stream = InspectReader::new(stream, move |read: &[u8]| coming.came(!read.is_empty()));
        let stream =
            TokioIo::new(InspectWriter::new(stream, move |written: &[u8]| going.went(written.len())));
        let builder = &self.builders[usize::from(place.is_spare)];
        let mut connection = pin!(builder.serve_connection(stream, service));
        let (mut is_told, mut is_ending) = (false, false);
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
                // It had its time to end.
                () = watch.has_been_idle_for(LAST_WORDS), if is_ending => return,
                // By HTTP/1 only an answer can say it: a request may be on its way while nothing is heard.
                () = async { self.ends.stop.cancelled().await; watch.is_found_multiplexed().await },
                    if !is_told => {
                    connection.as_mut().graceful_shutdown();
                    is_told = true;
                }
                () = self.ends.over.cancelled(), if !is_ending => {
                    connection.as_mut().graceful_shutdown();
                    (is_told, is_ending) = (true, true);
                }
                // A client that has said nothing is not answered either.
                () = watch.gives_way(), if !is_ending => {
                    if !watch.is_between_requests() {
                        return;
                    }
                    connection.as_mut().graceful_shutdown();
                    (is_told, is_ending) = (true, true);
                }
                () = watch.expired(), if !is_ending => {
                    if !watch.is_between_requests() {
                        return;
                    }
                    connection.as_mut().graceful_shutdown();
                    (is_told, is_ending) = (true, true);
                }
            }
        }
    }
}

/// One answer, which counts as under way up to the end of its body.
async fn answer(
    answered: impl Future<Output = Result<Response<Body>, Infallible>>,
    version: Version,
    under_way: UnderWay,
    leaving: CancellationToken,
) -> Result<Response<Watched>, Infallible> {
    let mut response = answered.await?;
    if version <= Version::HTTP_11 && leaving.is_cancelled() {
        response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    }
    Ok(response.map(|body| Watched::new(body, under_way)))
}

/// How many connections there may be, if this process may open only so many files: half of them are kept for
/// tools and store. Asks for as many files as it may have.
pub fn at_most(max_connections: usize) -> usize {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    if let Err(error) = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }) {
        tracing::debug!(%error, "the number of files stays as it is");
    }
    let files = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    let half = usize::try_from(files / 2).unwrap_or(usize::MAX);
    max_connections.min(half.saturating_sub(SPARE).max(LEAST))
}
