//! A line to a server that can be cut, blocked, and led elsewhere.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicUsize, Ordering};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

use crate::support::search;

/// What a client says on the connection on which it is told of changes.
const TRACKS: &[u8] = b"TRACKING";

/// What a client says at the end of a transaction in SQL.
const COMMITS: &[u8] = b"COMMIT";

/// Forwards connections to a port of this machine.
pub struct Line {
    pub port: u16,
    /// Where new connections lead to.
    target: Arc<AtomicU16>,
    blocked: Arc<AtomicBool>,
    cut: Arc<AtomicBool>,
    held: watch::Sender<Option<&'static [u8]>>,
    /// How many pieces are held.
    holds: Arc<AtomicUsize>,
    muted: watch::Sender<bool>,
    /// How many connections there were.
    connections: Arc<AtomicUsize>,
    /// How often a client has spoken after an answer, where it has committed.
    trips: Arc<AtomicUsize>,
}

impl Line {
    pub async fn to(port: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let own = listener.local_addr().expect("an address").port();
        let line = Self {
            port: own,
            target: Arc::new(port.into()),
            blocked: Arc::default(),
            cut: Arc::default(),
            held: watch::Sender::new(None),
            holds: Arc::default(),
            muted: watch::Sender::new(false),
            connections: Arc::default(),
            trips: Arc::default(),
        };
        let (target, blocked, cut) = (line.target.clone(), line.blocked.clone(), line.cut.clone());
        let (held, holds) = (line.held.clone(), line.holds.clone());
        let (muted, trips) = (line.muted.clone(), line.trips.clone());
        let connections = line.connections.clone();
        tokio::spawn(async move {
            while let Ok((near, _)) = listener.accept().await {
                connections.fetch_add(1, Ordering::SeqCst);
                let target = target.load(Ordering::SeqCst);
                if !blocked.load(Ordering::SeqCst)
                    && let Ok(far) = TcpStream::connect(("127.0.0.1", target)).await
                {
                    drop((near.set_nodelay(true), far.set_nodelay(true)));
                    let hold = (held.subscribe(), holds.clone());
                    let trips = trips.clone();
                    tokio::spawn(forward(
                        near,
                        far,
                        (cut.clone(), muted.subscribe()),
                        hold,
                        trips,
                    ));
                }
            }
        });
        line
    }

    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// New connections lead to this port.
    pub fn lead_to(&self, port: u16) {
        self.target.store(port, Ordering::SeqCst);
    }

    /// New connections are closed at once.
    pub fn block(&self, blocked: bool) {
        self.blocked.store(blocked, Ordering::SeqCst);
    }

    /// What has this in it, and what is said after it on the same connection, is not forwarded until it is released.
    pub fn hold(&self, some: &'static [u8]) {
        self.held.send_replace(Some(some));
    }

    pub fn release(&self) {
        self.held.send_replace(None);
    }

    /// While muted, nothing that a server says is forwarded where a client is told of changes.
    pub fn mute_tracking(&self, muted: bool) {
        self.muted.send_replace(muted);
    }

    /// How many connections are held.
    pub fn holds(&self) -> usize {
        self.holds.load(Ordering::SeqCst)
    }

    /// How many connections were asked for, whether they were made or not.
    #[cfg(feature = "postgres")]
    pub fn connections(&self) -> usize {
        self.connections.load(Ordering::SeqCst)
    }

    /// How many round trips there were on connections that commit transactions in SQL.
    #[cfg(feature = "postgres")]
    pub fn trips(&self) -> usize {
        self.trips.load(Ordering::SeqCst)
    }

    /// The next answer is not forwarded; instead the connection ends. `false` takes it back.
    pub fn cut(&self, cut: bool) {
        self.cut.store(cut, Ordering::SeqCst);
    }
}

async fn forward(
    near: TcpStream,
    far: TcpStream,
    (cut, mut muted): (Arc<AtomicBool>, watch::Receiver<bool>),
    (mut held, holds): (watch::Receiver<Option<&'static [u8]>>, Arc<AtomicUsize>),
    trips: Arc<AtomicUsize>,
) {
    let (mut near_in, mut near_out) = near.into_split();
    let (mut far_in, mut far_out) = far.into_split();
    let tracks = Arc::new(AtomicBool::new(false));
    let is_tracking = tracks.clone();
    let answered = Arc::new(AtomicBool::new(true));
    let is_answered = answered.clone();
    tokio::spawn(async move {
        let mut buffer = vec![0; 1 << 16];
        let (mut commits, mut turns) = (false, 0);
        while let Ok(read @ 1..) = near_in.read(&mut buffer).await {
            let said = &buffer[..read];
            if search::holds(said, TRACKS) {
                tracks.store(true, Ordering::SeqCst);
            }
            turns += usize::from(is_answered.swap(false, Ordering::SeqCst));
            commits |= search::holds(said, COMMITS);
            if commits {
                trips.fetch_add(std::mem::take(&mut turns), Ordering::SeqCst);
            }
            let passes =
                |held: &Option<&'static [u8]>| held.is_none_or(|held| !search::holds(said, held));
            let waits = !passes(&held.borrow());
            holds.fetch_add(waits.into(), Ordering::SeqCst);
            let is_open = held.wait_for(passes).await.is_ok();
            let is_sent = is_open && far_out.write_all(said).await.is_ok();
            holds.fetch_sub(waits.into(), Ordering::SeqCst);
            if !is_sent {
                return;
            }
        }
    });
    let mut buffer = vec![0; 1 << 16];
    while let Ok(read @ 1..) = far_in.read(&mut buffer).await {
        answered.store(true, Ordering::SeqCst);
        if is_tracking.load(Ordering::SeqCst) && muted.wait_for(|muted| !muted).await.is_err() {
            return;
        }
        if cut.swap(false, Ordering::SeqCst) || near_out.write_all(&buffer[..read]).await.is_err() {
            return;
        }
    }
}
