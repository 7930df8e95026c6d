//! Messages to and from a program, a line each. Answers come in any order.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use serde_json::value::RawValue;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;

use super::super::client::Client;
use super::super::gate::{Deadline, Gate};
use oncegate_hooks::uptime::since_boot;
use oncegate_rules::evidence::Body;
use oncegate_rules::mcp::evidence::OWN_ID;
use oncegate_rules::mcp::lines::{Line, Lines, Said, batched, is_end_of_response, one_line};
use oncegate_rules::mcp::progress;

/// Messages that wait to be written.
const QUEUE: usize = 64;
/// How long a program may take to read one message.
const STUCK: Duration = Duration::from_secs(60);
/// Bytes of one read.
const PIECE: usize = 64 << 10;

/// A message to write.
#[derive(Default)]
pub(super) struct Message {
    line: Vec<u8>,
    /// The gate of a call, asked right before the first byte.
    gate: Option<(Gate, Deadline)>,
    /// The id, if it is a request.
    id: Option<String>,
}

type Answer = Result<Body, String>;

/// Requests that wait for their answers, by id.
#[derive(Default)]
pub(super) struct Waiting(Mutex<Waiters>);

#[derive(Default)]
struct Waiters {
    by_id: HashMap<String, (oneshot::Sender<Answer>, Client)>,
    /// Why no answer will come any more.
    ended: Option<String>,
}

/// One waiting request, until this is dropped.
struct Waits<'a> {
    waiting: &'a Waiting,
    id: &'a str,
}

impl Drop for Waits<'_> {
    fn drop(&mut self) {
        self.waiting.lock().by_id.remove(self.id);
    }
}

impl Waiting {
    fn lock(&self) -> MutexGuard<'_, Waiters> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn enter<'a>(
        &'a self,
        id: &'a str,
        client: Client,
    ) -> Result<(Waits<'a>, oneshot::Receiver<Answer>), String> {
        let (answer, is_answered) = oneshot::channel();
        let mut waiters = self.lock();
        if let Some(why) = &waiters.ended {
            return Err(why.clone());
        }
        waiters.by_id.insert(id.to_owned(), (answer, client));
        drop(waiters);
        Ok((Waits { waiting: self, id }, is_answered))
    }

    /// Hands an answer to its request. It is lost if the request does not wait any more.
    fn answer(&self, id: &str, answer: Answer) {
        if let Some((waits, _)) = self.lock().by_id.remove(id) {
            waits.send(answer).ok();
        }
    }

    /// Tells a client of the progress of its request.
    fn tell(&self, line: &[u8]) {
        if let Some((id, _)) = progress::read(line)
            && let Some((_, client)) = self.lock().by_id.get(&*id)
        {
            client.notify_progress(line, &id);
        }
    }

    /// Tells every request that no answer will come. Sent ones may have been executed.
    pub(super) fn end(&self, why: &str) {
        let mut waiters = self.lock();
        waiters.ended.get_or_insert_with(|| why.to_owned());
        for (_, (waits, _)) in waiters.by_id.drain() {
            waits.send(Err(why.to_owned())).ok();
        }
    }

    /// The request whose response has these ends.
    fn answered_by(&self, ends: &[u8]) -> Option<String> {
        let waiters = self.lock();
        let mut ids = waiters.by_id.keys();
        ids.find(|id| is_end_of_response(ends, id)).cloned()
    }
}

/// The gateway's end of a program's standard input and output.
///
/// When the last one is dropped, and all is written, the program's input ends.
#[derive(Clone)]
pub(super) struct Pipe {
    messages: mpsc::Sender<Message>,
    waiting: Arc<Waiting>,
}

impl Pipe {
    /// Also returns the tasks that read and write; they end when the program closes its end.
    pub(super) fn new(
        name: String,
        input: impl AsyncWrite + Unpin + Send + 'static,
        output: impl AsyncRead + Unpin + Send + 'static,
        max_line: usize,
    ) -> (
        Self,
        Arc<Waiting>,
        impl Future<Output = ()> + Send + 'static,
        impl Future<Output = ()> + Send + 'static,
    ) {
        let (messages, to_write) = mpsc::channel(QUEUE);
        let waiting = Arc::<Waiting>::default();
        let reading = read(
            name,
            output,
            max_line,
            waiting.clone(),
            messages.downgrade(),
        );
        let writing = write(input, to_write, waiting.clone());
        let pipe = Self {
            messages,
            waiting: waiting.clone(),
        };
        (pipe, waiting, reading, writing)
    }

    /// Whether the program answers no more.
    pub(super) fn is_over(&self) -> bool {
        self.messages.is_closed() || self.waiting.lock().ended.is_some()
    }

    /// Writes a request, and waits for its answer.
    ///
    /// # Errors
    /// None will come. Whether the request was sent says its gate.
    pub(super) async fn ask(
        &self,
        id: &str,
        message: &Bytes,
        gate: Option<(Gate, Deadline)>,
        client: Client,
    ) -> Answer {
        let (_waits, is_answered) = self.waiting.enter(id, client)?;
        let message = Message {
            line: one_line(message),
            gate,
            id: Some(id.to_owned()),
        };
        self.write(message).await?;
        is_answered
            .await
            .unwrap_or_else(|_| Err("the request was not answered".into()))
    }

    /// Writes a message that has no answer.
    ///
    /// # Errors
    /// The program reads no more.
    pub(super) async fn tell(&self, message: &Bytes) -> Result<(), String> {
        let message = Message {
            line: one_line(message),
            ..Message::default()
        };
        self.write(message).await
    }

    async fn write(&self, message: Message) -> Result<(), String> {
        let sent = self.messages.send(message).await;
        sent.map_err(|_| "the server's program has stopped reading".into())
    }
}

/// Writes the queued messages, each whole.
///
/// It ends when no more can come, or the program reads no more.
async fn write(
    mut input: impl AsyncWrite + Unpin,
    mut messages: mpsc::Receiver<Message>,
    waiting: Arc<Waiting>,
) {
    while let Some(Message { line, gate, id }) = messages.recv().await {
        let is_open = match &gate {
            Some((gate, send_before)) => gate.send(send_before, since_boot()),
            None => Ok(()),
        };
        if let (Err(why), Some(id)) = (is_open, &id) {
            waiting.answer(id, Err(why.into()));
            continue;
        }
        let written = async {
            input.write_all(&line).await?;
            input.flush().await
        };
        // A program that has not read a message by then is ended, so that no other message waits behind it for ever.
        if !matches!(timeout(STUCK, written).await, Ok(Ok(()))) {
            return;
        }
    }
}

/// Reads answers until the program's output ends.
async fn read(
    name: String,
    mut output: impl AsyncRead + Unpin,
    max_line: usize,
    waiting: Arc<Waiting>,
    messages: mpsc::WeakSender<Message>,
) {
    let (mut lines, mut piece) = (Lines::new(max_line), vec![0; PIECE]);
    loop {
        let read = output.read(&mut piece).await.unwrap_or(0);
        for line in lines.push(&piece[..read]) {
            take(&name, line, &waiting, &messages);
        }
        if read == 0 {
            // What has no end is not whole. The end of the process ends the requests under way.
            if lines.end().is_some() {
                tracing::debug!(upstream = name, "the server's last line does not end");
            }
            return;
        }
    }
}

fn take(name: &str, line: Line, waiting: &Waiting, messages_to: &mpsc::WeakSender<Message>) {
    let line = match line {
        Line::Whole(line) => line,
        Line::TooLong(ends) => {
            if let Some(id) = waiting.answered_by(&ends) {
                let why = "its response is too long";
                waiting.answer(&id, Ok(Body::Broken(why.into())));
            }
            return;
        }
    };
    let line = Bytes::from(line);
    let messages = batched(&line);
    if messages.is_empty() {
        hear(name, line.clone(), waiting, messages_to);
    }
    for message in messages {
        hear(name, line.slice_ref(message), waiting, messages_to);
    }
}

/// Handles one message. A line that is none ends no request: servers also log to their standard output.
fn hear(name: &str, line: Bytes, waiting: &Waiting, messages: &mpsc::WeakSender<Message>) {
    match Said::read(&line) {
        Said::Answers(id) => {
            let id = id.into_owned();
            waiting.answer(&id, Ok(Body::Whole(line)));
        }
        // A server that repeats what it reads asks nothing.
        Said::Asks { id, .. } if id.get().starts_with(&format!("\"{OWN_ID}")) => {}
        Said::Asks { id, method } => {
            let line = answer_to(id, &method);
            // One that reads nothing gets no answer.
            if let Some(messages) = messages.upgrade() {
                let message = Message {
                    line,
                    ..Message::default()
                };
                messages.try_send(message).ok();
            }
        }
        Said::Tells => waiting.tell(&line),
        Said::Noise => {
            tracing::debug!(
                upstream = name,
                "the server wrote a line that is not a message"
            );
        }
    }
}

/// The answer to a server's request.
///
/// The server was told that this client can do nothing but answer `ping`.
fn answer_to(id: &RawValue, method: &str) -> Vec<u8> {
    let answer = if method == "ping" {
        "\"result\":{}"
    } else {
        r#""error":{"code":-32601,"message":"Method not found: this client has no capabilities"}"#
    };
    let id = id.get();
    one_line(format!(r#"{{"jsonrpc":"2.0","id":{id},{answer}}}"#).as_bytes())
}

#[cfg(test)]
mod tests {
    use tokio::io::duplex;

    use super::*;

    #[tokio::test]
    async fn a_client_hears_of_the_progress_of_its_own_request() {
        let (ours, _program_reads) = duplex(1 << 10);
        let (mut program, output) = duplex(1 << 10);
        let (pipe, _, reading, writing) = Pipe::new("up".into(), ours, output, 1 << 10);
        tokio::spawn(async { tokio::join!(reading, writing) });
        let (progress, mut heard) = mpsc::channel(4);
        let client = Client {
            progress: Some(progress),
            ..Client::default()
        };
        let message = Bytes::from_static(b"{}");
        let asked = pipe.ask("a", &message, None, client);
        let other = pipe.ask("b", &message, None, Client::default());
        let said = async {
            for token in ["b", "a", "unknown"] {
                let line = format!(
                    r#"{{"jsonrpc":"2.0","method":"notifications/progress","params":{{"progressToken":"{token}","progress":1}}}}"#
                );
                program
                    .write_all(format!("{line}\n").as_bytes())
                    .await
                    .expect("read");
            }
            for id in ["a", "b"] {
                let line = format!("{{\"jsonrpc\":\"2.0\",\"id\":\"{id}\",\"result\":{{}}}}\n");
                program.write_all(line.as_bytes()).await.expect("read");
            }
        };
        let (asked, other, ()) = tokio::join!(asked, other, said);
        assert!(matches!(
            (asked, other),
            (Ok(Body::Whole(_)), Ok(Body::Whole(_)))
        ));
        let said = heard.recv().await.expect("progress");
        assert!(said.contains(r#""progressToken":"a""#), "{said}");
        assert!(heard.recv().await.is_none(), "of nothing else");
    }
}
