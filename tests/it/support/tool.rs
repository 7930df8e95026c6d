//! A fake tool over raw TCP: it counts its effects, remembers what it was sent, and misbehaves on
//! request in ways that no HTTP library would.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::time::{Instant, sleep};

/// What the tool does with one request.
#[derive(Debug, Clone)]
pub enum Act {
    /// Executes and answers 200 with this body.
    Ok(&'static str),
    /// Executes and answers 200 with a body that tells this effect from every other.
    Numbered,
    /// Answers with this status, header lines and body. A 2xx or 303 executes.
    Answer(u16, &'static str, &'static [u8]),
    /// Answers with this status, header lines and body, and executes nothing: it only looks, or it has executed before.
    Tell(u16, &'static str, &'static [u8]),
    /// Answers with this status and has executed all the same.
    ExecuteThenAnswer(u16),
    /// Executes and closes the connection without a byte.
    ExecuteThenDrop,
    /// Executes and resets the connection.
    ExecuteThenReset,
    /// Executes, and sends these bytes instead of an answer.
    ExecuteThenSay(&'static [u8]),
    /// Executes, sends these bytes, and then nothing more, for ever.
    ExecuteThenDrip(&'static [u8]),
    /// Executes, promises more body than it sends, and closes.
    HalfBody(u16),
    /// Closes without having executed.
    Drop,
    /// Reads the request, then says nothing for ever.
    Hang,
    /// Waits, then does the other.
    After(Duration, Box<Act>),
    /// Waits until it is released, then does the other.
    Held(watch::Receiver<()>, Box<Act>),
}

impl Act {
    pub fn after_ms(ms: u64, act: Self) -> Self {
        Self::After(Duration::from_millis(ms), Box::new(act))
    }

    /// One that goes on when what comes with it is dropped, however slow the machine is.
    pub fn held(act: Self) -> (watch::Sender<()>, Self) {
        let (hold, released) = watch::channel(());
        (hold, Self::Held(released, Box::new(act)))
    }
}

/// One request that reached the tool.
#[derive(Debug, Clone, Default)]
pub struct Seen {
    pub line: String,
    /// Names in lower case.
    pub headers: HashMap<String, String>,
    pub body: String,
    /// The same, byte by byte.
    pub bytes: Vec<u8>,
    /// When it had arrived as a whole.
    pub at: Option<Instant>,
    /// When it was settled what becomes of it, right before the answer.
    pub until: Option<Instant>,
    pub executed: bool,
}

impl Seen {
    pub fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", String::as_str)
    }
}

/// What becomes of a request, from it and those that came before it.
type Choice = Arc<dyn Fn(&Seen, &[Seen]) -> Act + Send + Sync>;

#[derive(Default)]
struct Inner {
    seen: Vec<Seen>,
    next: VecDeque<Act>,
    chosen: Option<Choice>,
    otherwise: Option<Act>,
    connections: usize,
    /// Of which requests the same key is executed at most once.
    deduplicates: Option<fn(&Seen) -> bool>,
    /// Requests of which it is not settled yet whether they are executed.
    undecided: usize,
}

#[derive(Clone)]
pub struct Tool {
    pub port: u16,
    inner: Arc<Mutex<Inner>>,
}

impl Tool {
    /// A tool that executes and answers `{"ok":true}`.
    pub async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let port = listener.local_addr().expect("an address").port();
        let tool = Self {
            port,
            inner: Arc::default(),
        };
        let serving = tool.clone();
        tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.expect("a connection");
                serving.lock().connections += 1;
                tokio::spawn(serving.clone().serve(stream));
            }
        });
        tool
    }

    /// What it does with the next request that nothing is planned for yet.
    pub fn then(&self, act: Act) -> &Self {
        self.lock().next.push_back(act);
        self
    }

    /// What it does whenever nothing else is planned.
    pub fn always(&self, act: Act) -> &Self {
        self.lock().otherwise = Some(act);
        self
    }

    /// What it does is decided for each request that nothing is planned for.
    pub fn choose(&self, choice: impl Fn(&Seen, &[Seen]) -> Act + Send + Sync + 'static) -> &Self {
        self.lock().chosen = Some(Arc::new(choice));
        self
    }

    /// From now on the same key is executed at most once.
    pub fn deduplicate(&self) -> &Self {
        self.deduplicate_if(|_| true)
    }

    /// The same for requests that are like this.
    pub fn deduplicate_if(&self, is_so: fn(&Seen) -> bool) -> &Self {
        self.lock().deduplicates = Some(is_so);
        self
    }

    /// Nothing is planned any more for the next requests.
    pub fn forget(&self) -> &Self {
        self.lock().next.clear();
        self
    }

    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}/do", self.port)
    }

    pub fn seen(&self) -> Vec<Seen> {
        self.lock().seen.clone()
    }

    /// What was executed, in the order in which that ended.
    pub fn executed(&self) -> Vec<Seen> {
        let mut executed = self.seen();
        executed.retain(|seen| seen.executed);
        executed.sort_by_key(|seen| seen.until);
        executed
    }

    pub fn requests(&self) -> usize {
        self.lock().seen.len()
    }

    pub fn connections(&self) -> usize {
        self.lock().connections
    }

    pub fn effects(&self) -> usize {
        self.lock().seen.iter().filter(|seen| seen.executed).count()
    }

    /// How often each key was executed.
    pub fn effects_by_key(&self) -> HashMap<String, usize> {
        let mut effects = HashMap::new();
        for seen in self.lock().seen.iter().filter(|seen| seen.executed) {
            *effects
                .entry(seen.header("idempotency-key").to_owned())
                .or_default() += 1;
        }
        effects
    }

    /// Whether it may still execute something that it was sent.
    pub fn is_undecided(&self) -> bool {
        self.lock().undecided > 0
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().expect("not poisoned")
    }

    async fn serve(self, mut stream: TcpStream) {
        let mut buffer = Vec::new();
        while let Some(seen) = read_request(&mut stream, &mut buffer).await {
            let (index, act) = {
                let mut inner = self.lock();
                let chosen = inner
                    .chosen
                    .as_ref()
                    .map(|choice| choice(&seen, &inner.seen));
                inner.seen.push(seen);
                inner.undecided += 1;
                let act = inner
                    .next
                    .pop_front()
                    .or(chosen)
                    .or_else(|| inner.otherwise.clone());
                (
                    inner.seen.len() - 1,
                    act.unwrap_or(Act::Ok("{\"ok\":true}")),
                )
            };
            if !self.perform(&mut stream, index, act).await {
                return;
            }
        }
    }

    /// Whether the connection may be used again.
    async fn perform(&self, stream: &mut TcpStream, index: usize, mut act: Act) -> bool {
        loop {
            act = match act {
                Act::After(time, then) => {
                    sleep(time).await;
                    *then
                }
                Act::Held(mut released, then) => {
                    while released.changed().await.is_ok() {}
                    *then
                }
                act => break self.perform_now(stream, index, act).await,
            };
        }
    }

    async fn perform_now(&self, stream: &mut TcpStream, index: usize, act: Act) -> bool {
        let executes = match act {
            Act::Answer(status, ..) => (200..300).contains(&status) || status == 303,
            Act::Drop | Act::Hang | Act::Tell(..) => false,
            _ => true,
        };
        {
            let mut inner = self.lock();
            let key = inner.seen[index].header("idempotency-key").to_owned();
            let is_known = |seen: &Seen| seen.executed && seen.header("idempotency-key") == key;
            let deduplicates = inner
                .deduplicates
                .is_some_and(|is_so| is_so(&inner.seen[index]));
            let is_repeated = deduplicates && inner.seen.iter().any(is_known);
            inner.seen[index].executed = executes && !is_repeated;
            inner.seen[index].until = Some(Instant::now());
            inner.undecided -= 1;
        }
        let said = match act {
            Act::Ok(body) => answer(200, "", body.as_bytes()),
            Act::Numbered => answer(200, "", format!("{{ \"effect\": {index}.0 }}").as_bytes()),
            Act::Answer(status, headers, body) | Act::Tell(status, headers, body) => {
                answer(status, headers, body)
            }
            Act::ExecuteThenAnswer(status) => answer(status, "", b"{}"),
            Act::HalfBody(status) => {
                format!("HTTP/1.1 {status} X\r\ncontent-length: 100\r\n\r\n{{\"half\":")
                    .into_bytes()
            }
            Act::ExecuteThenSay(bytes) => bytes.to_vec(),
            Act::ExecuteThenDrip(bytes) => {
                // A client that has gone hears no more of it either.
                drop(stream.write_all(bytes).await);
                sleep(Duration::from_secs(3600)).await;
                return false;
            }
            Act::ExecuteThenReset => {
                stream.set_zero_linger().expect("a socket option");
                return false;
            }
            Act::Hang => {
                sleep(Duration::from_secs(3600)).await;
                return false;
            }
            Act::ExecuteThenDrop | Act::Drop | Act::After(..) | Act::Held(..) => return false,
        };
        let whole = matches!(
            act,
            Act::Ok(_)
                | Act::Numbered
                | Act::Answer(..)
                | Act::Tell(..)
                | Act::ExecuteThenAnswer(_)
        );
        stream.write_all(&said).await.is_ok() && whole
    }
}

fn answer(status: u16, headers: &str, body: &[u8]) -> Vec<u8> {
    let head = format!(
        "HTTP/1.1 {status} X\r\n{headers}content-length: {}\r\n\r\n",
        body.len()
    );
    [head.as_bytes(), body].concat()
}

async fn read_request(stream: &mut TcpStream, buffer: &mut Vec<u8>) -> Option<Seen> {
    let head_end = loop {
        if let Some(at) = buffer.windows(4).position(|four| four == b"\r\n\r\n") {
            break at + 4;
        }
        if stream.read_buf(buffer).await.ok()? == 0 {
            return None;
        }
    };
    let head = String::from_utf8_lossy(&buffer[..head_end]).into_owned();
    let mut lines = head.lines();
    let line = lines.next()?.to_owned();
    let headers = lines.filter_map(|line| line.split_once(':'));
    let headers: HashMap<String, String> = headers
        .map(|(name, value)| (name.to_ascii_lowercase(), value.trim().to_owned()))
        .collect();
    let length: usize = headers
        .get("content-length")
        .map_or(0, |length| length.parse().expect("a length"));
    while buffer.len() < head_end + length {
        if stream.read_buf(buffer).await.ok()? == 0 {
            return None;
        }
    }
    let bytes = buffer[head_end..head_end + length].to_vec();
    let body = String::from_utf8_lossy(&bytes).into_owned();
    buffer.drain(..head_end + length);
    Some(Seen {
        line,
        headers,
        body,
        bytes,
        at: Some(Instant::now()),
        until: None,
        executed: false,
    })
}
