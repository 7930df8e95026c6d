//! A server that is far away: whatever is said to it, and its answer, takes its time.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, sleep_until};

/// Forwards connections to a port of this machine. What is sent at once also arrives at once, only later.
pub struct Far {
    port: u16,
    turns: Arc<AtomicUsize>,
}

impl Far {
    /// `each_way`: how long it takes to the server, and back.
    pub async fn from(port: u16, each_way: Duration) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let far = Self {
            port: listener.local_addr().expect("an address").port(),
            turns: Arc::default(),
        };
        let turns = far.turns.clone();
        tokio::spawn(async move {
            while let Ok((near, _)) = listener.accept().await {
                let turns = turns.clone();
                tokio::spawn(async move {
                    // The handshake of TCP.
                    sleep(each_way * 2).await;
                    let Ok(far) = TcpStream::connect(("127.0.0.1", port)).await else {
                        return;
                    };
                    drop((near.set_nodelay(true), far.set_nodelay(true)));
                    let ((near_in, near_out), (far_in, far_out)) =
                        (near.into_split(), far.into_split());
                    tokio::spawn(carry(near_in, far_out, each_way, turns));
                    carry(far_in, near_out, each_way, Arc::default()).await;
                });
            }
        });
        far
    }

    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// How often a client has spoken.
    pub fn turns(&self) -> usize {
        self.turns.load(Ordering::SeqCst)
    }
}

/// Carries what comes in, in its order, and each piece so much later.
async fn carry(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin + Send + 'static,
    takes: Duration,
    pieces: Arc<AtomicUsize>,
) {
    let (send, mut on_its_way) = mpsc::unbounded_channel::<(Instant, Vec<u8>)>();
    tokio::spawn(async move {
        while let Some((at, piece)) = on_its_way.recv().await {
            sleep_until(at).await;
            if to.write_all(&piece).await.is_err() {
                return;
            }
        }
        to.shutdown().await.ok();
    });
    let mut buffer = vec![0; 1 << 16];
    while let Ok(read @ 1..) = from.read(&mut buffer).await {
        pieces.fetch_add(1, Ordering::SeqCst);
        if send
            .send((Instant::now() + takes, buffer[..read].to_vec()))
            .is_err()
        {
            return;
        }
    }
}
