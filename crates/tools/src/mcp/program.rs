//! An MCP server that is a program on this machine.
//!
//! It is started when it is first needed, asked over its standard input, started again after it has
//! ended, and stopped.
//!
//! There is one process of it for all callers. No request is sent to two of them.

use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use rustix::process::{Pid, Signal, kill_process_group, test_kill_process_group};
use serde_json::Value;
use tokio::process::Command;
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;

use super::super::client::Client;
use super::agreement::Agreement;
use super::pipe::{Pipe, Waiting};
use oncegate_rules::evidence::Body;
use oncegate_rules::json;
use oncegate_rules::mcp::request;
use oncegate_rules::mcp::revision::Era;

/// How long a program may take to agree on a revision; it may be fetched first.
const START: Duration = Duration::from_secs(120);
/// How long to wait for `server/discover` before `initialize` is sent, too.
const DISCOVER: Duration = Duration::from_secs(10);
/// The wait before a program is started again: after the first end, and at most.
const BACK_OFF: (Duration, Duration) = (Duration::from_millis(250), Duration::from_secs(30));
/// A program that has run for this long did not fail. Longer than [`START`].
const LIVED: Duration = Duration::from_secs(180);
/// How long a program may take to end, before the next, firmer signal.
const LAST_WORDS: Duration = Duration::from_millis(700);
const LOOK_AGAIN: Duration = Duration::from_millis(10);
/// How long the last answers of an ended process are read.
const LAST_LINES: Duration = Duration::from_secs(2);

/// The program of an MCP server, and its settings.
#[derive(Clone, PartialEq, Eq)]
pub struct Program {
    /// The program, found by PATH if it has no slash, and its arguments.
    pub command: Vec<String>,
    /// The whole environment of the program.
    pub environment: Vec<(String, String)>,
    /// Whether its standard error goes to that of the gateway. Otherwise it is discarded.
    pub shows_errors: bool,
}

/// How to start a program.
#[derive(Clone, PartialEq)]
pub(crate) struct Start {
    /// The name of its section.
    pub name: String,
    pub program: Arc<Program>,
    pub era: Option<Era>,
    /// The longest line that is read, in bytes.
    pub max_line: usize,
}

/// A process with an agreed revision.
pub(crate) struct Running {
    pub(super) pipe: Pipe,
    pub(super) agreement: Agreement,
}

#[derive(Clone)]
enum Status {
    Starting,
    Ready(Arc<Running>),
    /// The program failed; it is not started again before this time.
    Down(String, Instant),
}

/// A program, whether it runs or not. When dropped, the program ends after its last answer.
pub(crate) struct Server {
    pub start: Start,
    status: watch::Receiver<Status>,
    wanted: Arc<Notify>,
    at_once: CancellationToken,
    keeper: TaskTracker,
    _retire: DropGuard,
}

impl Server {
    /// Starts the program.
    pub(crate) fn new(start: Start) -> Self {
        let (set_status, status) = watch::channel(Status::Starting);
        let at_once = CancellationToken::new();
        let retired = at_once.child_token();
        let wanted = Arc::<Notify>::default();
        let keeping = Keeper {
            start: start.clone(),
            status: set_status,
            wanted: wanted.clone(),
            retired: retired.clone(),
            at_once: at_once.clone(),
        };
        let keeper = TaskTracker::new();
        keeper.spawn(keeping.keep());
        keeper.close();
        Self {
            start,
            status,
            wanted,
            at_once,
            keeper,
            _retire: retired.drop_guard(),
        }
    }

    /// The running process.
    ///
    /// # Errors
    /// There is none, and it is too soon to start one. Nothing was sent.
    pub(super) async fn ready(&self) -> Result<Arc<Running>, String> {
        let mut status = self.status.clone();
        loop {
            let now = status.borrow_and_update().clone();
            match now {
                Status::Ready(running) if !running.pipe.is_over() => return Ok(running),
                Status::Down(why, until) if Instant::now() < until => return Err(why),
                Status::Down(..) => self.wanted.notify_one(),
                Status::Ready(_) | Status::Starting => {}
            }
            let changed = status.changed().await;
            changed.map_err(|_| "the server's program is stopped")?;
        }
    }

    /// Ends the program, and waits until it has ended.
    pub(crate) async fn stop(&self) {
        self.at_once.cancel();
        self.keeper.wait().await;
    }
}

/// Keeps a program running while it is wanted.
struct Keeper {
    start: Start,
    status: watch::Sender<Status>,
    wanted: Arc<Notify>,
    /// No request comes any more; those under way are answered. Also cancelled by `at_once`.
    retired: CancellationToken,
    /// No more time.
    at_once: CancellationToken,
}

impl Keeper {
    async fn keep(self) {
        let name = &self.start.name;
        let (mut failures, mut discovers) = (0, true);
        loop {
            self.status.send_replace(Status::Starting);
            let began = Instant::now();
            let why = match Process::start(&self.start) {
                Ok((process, pipe)) => self.attend(process, pipe, &mut discovers).await,
                Err(why) => why,
            };
            if self.retired.is_cancelled() {
                return;
            }
            failures = if began.elapsed() < LIVED {
                failures + 1
            } else {
                1
            };
            let wait = BACK_OFF.0 * 2_u32.saturating_pow(failures - 1);
            let until = Instant::now() + wait.min(BACK_OFF.1);
            tracing::warn!(upstream = name, why, "the program of a server has ended");
            self.status.send_replace(Status::Down(why, until));
            tokio::select! {
                () = async { sleep_until(until).await; self.wanted.notified().await } => {}
                () = self.retired.cancelled() => return,
            }
        }
    }

    /// Agrees with a process on a revision, and waits for its end. Returns why it ended.
    async fn attend(&self, mut process: Process, pipe: Pipe, discovers: &mut bool) -> String {
        let agreed = timeout(START, agree(&pipe, self.start.era, *discovers));
        let agreed = tokio::select! {
            biased;
            () = self.at_once.cancelled() => Err("the gateway stops".to_owned()),
            () = self.retired.cancelled() => Err("it is not needed any more".to_owned()),
            agreed = agreed => agreed.unwrap_or_else(|_| Err("it says nothing".into())),
            why = process.ended() => Err(why),
        };
        let why = match agreed {
            Ok(agreement) => {
                let running = Arc::new(Running { pipe, agreement });
                self.status.send_replace(Status::Ready(running));
                let retired = async {
                    self.retired.cancelled().await;
                    // The pipe is closed with the last request under way.
                    let gone = Status::Down("it is not needed any more".into(), Instant::now());
                    self.status.send_replace(gone);
                    std::future::pending::<()>().await;
                };
                tokio::select! {
                    why = process.ended() => why,
                    () = self.at_once.cancelled() => "the gateway stops".to_owned(),
                    () = retired => "it is not needed any more".to_owned(),
                }
            }
            Err(why) => {
                // The program's input ends.
                drop(pipe);
                // One that ends at a question that it does not know is not asked it the next time.
                *discovers = !*discovers;
                why
            }
        };
        process.waiting.end(&why);
        self.status
            .send_replace(Status::Down(why.clone(), Instant::now() + BACK_OFF.0));
        process.stop().await;
        why
    }
}

/// A process, and the tasks that read and write.
struct Process {
    child: tokio::process::Child,
    /// The process group: it and those that it has started.
    group: Option<Pid>,
    waiting: Arc<Waiting>,
    reading: JoinSet<()>,
    writing: JoinSet<()>,
}

impl Process {
    /// # Errors
    /// The program cannot be started.
    fn start(start: &Start) -> Result<(Self, Pipe), String> {
        let program = &start.program;
        let [name, arguments @ ..] = &program.command[..] else {
            return Err("there is no command".into());
        };
        let errors = if program.shows_errors {
            Stdio::inherit()
        } else {
            Stdio::null()
        };
        let mut command = Command::new(name);
        command
            .args(arguments)
            .env_clear()
            .envs(program.environment.iter().cloned())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(errors)
            // A signal from a terminal is for the gateway, which ends it after its calls.
            .process_group(0)
            .kill_on_drop(true);
        let child = command.spawn();
        let mut child = child.map_err(|error| format!("it cannot be started: {error}"))?;
        let (Some(input), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
            return Err("it has no input or no output".into());
        };
        let (pipe, waiting, read, write) =
            Pipe::new(start.name.clone(), input, output, start.max_line);
        let (mut reading, mut writing) = (JoinSet::new(), JoinSet::new());
        reading.spawn(read);
        writing.spawn(write);
        tracing::info!(
            upstream = start.name,
            pid = child.id(),
            "the program of a server is started"
        );
        let group = child.id().and_then(|id| i32::try_from(id).ok());
        let process = Self {
            child,
            group: group.and_then(Pid::from_raw),
            waiting,
            reading,
            writing,
        };
        Ok((process, pipe))
    }

    /// Waits until the process has ended, closed its output, or reads no more. Reads its last
    /// answers.
    async fn ended(&mut self) -> String {
        let ended = tokio::select! {
            status = self.child.wait() => match status {
                Ok(status) => format!("it has ended: {status}"),
                Err(error) => format!("it has ended: {error}"),
            },
            _ = self.reading.join_next() => return "it has closed its output".into(),
            _ = self.writing.join_next() => "it has stopped reading".into(),
        };
        timeout(LAST_LINES, self.reading.join_next()).await.ok();
        ended
    }

    /// Ends the process: its input ends, then its group gets SIGTERM, then SIGKILL.
    ///
    /// The group may outlive the process that was started: a shell, or a launcher of packages.
    async fn stop(mut self) {
        self.writing.shutdown().await;
        timeout(LAST_WORDS, self.child.wait()).await.ok();
        for signal in [Signal::TERM, Signal::KILL] {
            let Some(group) = self.group else { return };
            if kill_process_group(group, signal).is_err() {
                break;
            }
            let until = Instant::now() + LAST_WORDS;
            while Instant::now() < until && test_kill_process_group(group).is_ok() {
                timeout(LOOK_AGAIN, self.child.wait()).await.ok();
                sleep(LOOK_AGAIN).await;
            }
        }
        self.child.wait().await.ok();
    }
}

/// Agrees on a revision.
///
/// A server of an earlier one may leave an unknown question unanswered.
async fn agree(pipe: &Pipe, era: Option<Era>, discovers: bool) -> Result<Agreement, String> {
    if era == Some(Era::Legacy) || (era.is_none() && !discovers) {
        return initialize(pipe).await;
    }
    let asked = discover(pipe);
    tokio::pin!(asked);
    let modern = if era == Some(Era::Modern) {
        asked.await?
    } else {
        match timeout(DISCOVER, &mut asked).await {
            Ok(modern) => modern?,
            Err(_) => {
                return tokio::select! {
                    Ok(Some(modern)) = &mut asked => Ok(modern),
                    legacy = initialize(pipe) => legacy,
                };
            }
        }
    };
    match modern {
        Some(modern) => Ok(modern),
        None if era == Some(Era::Modern) => Err("the server does not support 2026-07-28".into()),
        None => initialize(pipe).await,
    }
}

async fn discover(pipe: &Pipe) -> Result<Option<Agreement>, String> {
    let id = "oncegate-discover";
    let answer = ask(pipe, id, &request::discover(id)).await?;
    Ok(Agreement::modern(&answer))
}

async fn initialize(pipe: &Pipe) -> Result<Agreement, String> {
    let id = "oncegate-initialize";
    let answer = ask(pipe, id, &request::initialize(id)).await?;
    let agreement = Agreement::legacy(&answer, None)?;
    pipe.tell(&request::initialized()).await?;
    Ok(agreement)
}

async fn ask(pipe: &Pipe, id: &str, message: &Bytes) -> Result<Value, String> {
    match pipe.ask(id, message, None, Client::default()).await? {
        Body::Whole(bytes) => json::read(&bytes).map_err(|error| error.to_string()),
        Body::Broken(why) => Err(why),
    }
}
