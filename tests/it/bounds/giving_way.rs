//! Silent connections give way fast. The clock stands still while anything happens, so a slow machine counts no time.

use std::time::Duration;

use axum::Router;
use axum::extract::Request;
use axum::http::StatusCode;
use axum::http::header::HOST;
use oncegate::budget::{Budget, Guest};
use oncegate::serve::{self, Bounds, Ends, Listening, Routers};
use prometheus::IntGauge;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

/// As many connections as the gateway may have.
const BOUND: usize = 400;
/// Those beyond it that are told so, and one that waits for a place.
const BEYOND: usize = 64 + 1;

/// Shows a valid token, as the gateway's own routes do.
async fn with_a_token(request: Request) -> &'static str {
    let guest = request.extensions().get::<Guest>().expect("a guest");
    guest.is_known("a tenant", 0).expect("room");
    "served"
}

/// Asks until it is served, and keeps the connection.
async fn ask(address: std::net::SocketAddr) -> TcpStream {
    loop {
        let mut stream = TcpStream::connect(address).await.expect("a connection");
        let asked = stream.write_all(b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n");
        asked.await.expect("written");
        let mut answer = [0; 4_096];
        let read = stream.read(&mut answer).await.unwrap_or(0);
        if answer[..read].starts_with(b"HTTP/1.1 200 ") {
            return stream;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn four_hundred_silent_connections_give_way_within_a_second_to_those_with_a_token() {
    let listener = serve::listen("127.0.0.1:0".parse().expect("an address")).expect("a port");
    let address = listener.local_addr().expect("an address");
    let long = Duration::from_secs(3_600);
    let listening = Listening {
        listener,
        routers: Routers {
            all: Router::new().fallback(with_a_token),
            spare: Router::new().fallback(async || StatusCode::TOO_MANY_REQUESTS),
        },
        tls: None,
        bounds: Bounds {
            max_connections: BOUND,
            per_address: 10 * BOUND,
            proxies: Vec::new(),
            header_timeout: long,
            idle_timeout: long,
        },
        memory: Budget::new(1 << 30),
    };
    let gauge = IntGauge::new("open", "open connections").expect("a gauge");
    tokio::spawn(serve::serve(listening, Ends::default(), gauge.clone()));
    // While all wait, the clock goes on to the next time that anybody waits for: never far.
    tokio::spawn(async {
        loop {
            sleep(Duration::from_millis(1)).await;
        }
    });

    let mut silent = Vec::new();
    for _ in 0..BOUND + BEYOND {
        silent.push(TcpStream::connect(address).await.expect("a connection"));
    }
    // Long enough to be closed for others.
    sleep(Duration::from_secs(2)).await;
    assert!(gauge.get() >= BOUND as i64, "{}", gauge.get());

    let began = Instant::now();
    let mut asking = JoinSet::new();
    for _ in 0..BOUND {
        asking.spawn(ask(address));
    }
    let served = asking.join_all().await;
    let took = began.elapsed();
    assert_eq!(served.len(), BOUND);
    assert!(took <= Duration::from_secs(1), "{took:?}");
}

/// What answers it is asked without the request, which is over.
#[tokio::test]
async fn an_answer_for_which_there_is_no_memory_is_refused_as_any_other_request() {
    let listener = serve::listen("127.0.0.1:0".parse().expect("an address")).expect("a port");
    let address = listener.local_addr().expect("an address");
    let refused = async |request: Request| match request.headers().get(HOST) {
        Some(_) => StatusCode::TOO_MANY_REQUESTS,
        None => StatusCode::BAD_REQUEST,
    };
    let long = Duration::from_secs(3_600);
    let listening = Listening {
        listener,
        routers: Routers {
            all: Router::new().fallback(async || vec![b'a'; 8 << 20]),
            spare: Router::new().fallback(refused),
        },
        tls: None,
        bounds: Bounds {
            max_connections: BOUND,
            per_address: BOUND,
            proxies: Vec::new(),
            header_timeout: long,
            idle_timeout: long,
        },
        memory: Budget::new(4 << 20),
    };
    let gauge = IntGauge::new("open", "open connections").expect("a gauge");
    tokio::spawn(serve::serve(listening, Ends::default(), gauge));
    let mut stream = TcpStream::connect(address).await.expect("a connection");
    let asked = stream.write_all(b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n");
    asked.await.expect("written");
    let mut answer = [0; 4_096];
    let read = stream.read(&mut answer).await.expect("an answer");
    let answer = String::from_utf8_lossy(&answer[..read]);
    assert!(answer.starts_with("HTTP/1.1 429 "), "{answer}");
}
