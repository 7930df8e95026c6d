//! The real binary as a process of its own, which can be killed.

use std::fs::{self, File, OpenOptions};
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};
use tokio::time::{Instant, sleep};

pub use super::ports::free_port;
use super::{PATIENCE, until};

/// Stops a process, and waits until all of its threads stand still.
pub fn pause(child: &Child) {
    let process = Pid::from_child(child);
    kill_process(process, Signal::STOP).expect("a signal");
    let stopped = waitpid(Some(process), WaitOptions::UNTRACED).expect("its state");
    assert!(stopped.is_some_and(|(_, status)| status.stopped()));
}

/// A gateway process over a folder. Killed when dropped.
pub struct Process {
    child: Child,
    pub port: u16,
}

pub fn command(folder: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_oncegate"));
    command.args(arguments).current_dir(folder);
    #[cfg(feature = "crash-points")]
    command.env(
        "TEST_PACE",
        serde_json::to_string(&super::timings::brisk()).expect("JSON"),
    );
    command
}

/// What it has said when it has ended. One that does not end by itself is killed.
pub fn run(folder: &Path, arguments: &[&str]) -> Output {
    let mut command = command(folder, arguments);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = command.spawn().expect("the binary runs");
    let id = child.id().to_string();
    let (ended, has_ended) = mpsc::channel::<()>();
    thread::spawn(move || {
        if has_ended.recv_timeout(PATIENCE) == Err(RecvTimeoutError::Timeout) {
            drop(Command::new("kill").args(["-9", &id]).status());
        }
    });
    let output = child.wait_with_output().expect("it ends");
    drop(ended);
    output
}

/// What the key command says of a request for a call of `act`, over `c.toml`.
pub fn key_command(folder: &Path, request: &str) -> Output {
    let mut command = command(folder, &["key", "--config", "c.toml", "--tool", "act"]);
    let command = command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.stderr(Stdio::piped()).spawn().expect("it runs");
    let mut input = child.stdin.take().expect("standard input");
    input.write_all(request.as_bytes()).expect("written");
    drop(input);
    child.wait_with_output().expect("it ends")
}

/// What an operator does without a gateway when the store has lost data.
pub fn accept_loss_command(folder: &Path, reason: &str) -> Output {
    let config = ["--config", "oncegate.toml"];
    let arguments = [
        &["store", "accept-loss"],
        &config[..],
        &["--reason", reason],
    ];
    run(folder, &arguments.concat())
}

/// A gateway that says nothing, and does this at these points.
pub fn spawn_with_points(folder: &Path, points: &str) -> Child {
    let mut gateway = command(folder, &["serve", "--config", "oncegate.toml"]);
    let gateway = gateway.env("FAILPOINTS", points);
    let gateway = gateway.stdout(Stdio::null()).stderr(Stdio::null());
    gateway.spawn().expect("the binary starts")
}

/// What it reads at the start, and again when it is told to.
pub fn write_config(folder: &Path, port: u16, config: &str) {
    let server = format!("[server]\nlisten = \"127.0.0.1:{port}\"\nshutdown_grace = \"1s\"\n");
    let store = "[store]\nurl = \"sqlite:oncegate.db\"\n";
    fs::write(
        folder.join("oncegate.toml"),
        format!("{server}{store}{config}"),
    )
    .expect("a file");
}

impl Process {
    /// Starts it over `folder/oncegate.db` with this configuration, and waits until it serves. What
    /// it logs goes to `folder/log`.
    pub async fn start(folder: &Path, port: u16, config: &str) -> Self {
        Self::start_in(folder, port, config, &[]).await
    }

    /// The same with something in the environment.
    pub async fn start_in(
        folder: &Path,
        port: u16,
        config: &str,
        environment: &[(&str, &str)],
    ) -> Self {
        Self::start_logging_to(&log(folder), folder, port, config, environment).await
    }

    /// The same with its log elsewhere.
    pub async fn start_logging_to(
        log: &Path,
        folder: &Path,
        port: u16,
        config: &str,
        environment: &[(&str, &str)],
    ) -> Self {
        Self::spawn(append_to(log), folder, port, config, environment).await
    }

    /// The same with its log in a pipe, of which nothing is taken unless [`read_log`](Self::read_log) does.
    pub async fn start_unread(folder: &Path, port: u16, config: &str) -> Self {
        Self::spawn(Stdio::piped(), folder, port, config, &[]).await
    }

    /// The same, and it may open only so many files.
    pub async fn start_with_files(
        folder: &Path,
        port: u16,
        config: &str,
        files: usize,
        environment: &[(&str, &str)],
    ) -> Self {
        Self::start_after(
            &format!("ulimit -n {files}"),
            folder,
            port,
            config,
            environment,
        )
        .await
    }

    /// The same in a shell that has done this before.
    pub async fn start_after(
        before: &str,
        folder: &Path,
        port: u16,
        config: &str,
        environment: &[(&str, &str)],
    ) -> Self {
        let mut command = Command::new("sh");
        command.arg("-c").arg(format!(
            "{before} && exec \"$0\" serve --config oncegate.toml"
        ));
        command
            .arg(env!("CARGO_BIN_EXE_oncegate"))
            .current_dir(folder)
            .envs(environment.iter().copied());
        let log = append_to(&log(folder));
        Self::serving(command, log, folder, port, config).await
    }

    async fn spawn(
        log: Stdio,
        folder: &Path,
        port: u16,
        config: &str,
        environment: &[(&str, &str)],
    ) -> Self {
        let mut command = command(folder, &["serve", "--config", "oncegate.toml"]);
        // A proxy of the environment must never come between the gateway and a tool.
        command
            .env("HTTP_PROXY", "http://127.0.0.1:9")
            .env("http_proxy", "http://127.0.0.1:9");
        command.envs(environment.iter().copied());
        Self::serving(command, log, folder, port, config).await
    }

    async fn serving(
        mut command: Command,
        log: Stdio,
        folder: &Path,
        port: u16,
        config: &str,
    ) -> Self {
        write_config(folder, port, config);
        let command = command.stderr(log).stdout(Stdio::null());
        let child = command.spawn().expect("the binary starts");
        let mut process = Self { child, port };
        process.wait_until_it_serves(folder).await;
        process
    }

    async fn wait_until_it_serves(&mut self, folder: &Path) {
        let patience = Instant::now() + PATIENCE;
        let address = ("127.0.0.1", self.port);
        // Another server may have its port: then this one ends.
        while tokio::net::TcpStream::connect(address).await.is_err()
            || !listens(self.child.id(), self.port)
        {
            let said = || fs::read_to_string(log(folder)).unwrap_or_default();
            assert!(!self.has_ended(), "it ended: {}", said());
            assert!(
                Instant::now() < patience,
                "not in time: it serves: {}",
                said()
            );
            sleep(Duration::from_millis(10)).await;
        }
    }

    /// The pipe that it logs to.
    pub fn read_log(&mut self) -> std::process::ChildStderr {
        self.child.stderr.take().expect("a pipe")
    }

    pub fn id(&self) -> u32 {
        self.child.id()
    }

    pub fn url(&self, path: &str) -> String {
        format!("http://127.0.0.1:{}{path}", self.port)
    }

    /// `kill -9`
    pub fn kill(mut self) {
        self.child.kill().expect("it could be killed");
        self.child.wait().expect("it ended");
    }

    pub fn signal(&self, name: &str) {
        let pid = self.child.id().to_string();
        let status = Command::new("kill")
            .args(["-s", name, &pid])
            .status()
            .expect("kill runs");
        assert!(status.success());
    }

    /// It keeps its connections and does nothing more, until `CONT`.
    pub fn pause(&self) {
        pause(&self.child);
    }

    pub fn has_ended(&mut self) -> bool {
        self.child.try_wait().expect("a status").is_some()
    }

    /// Waits for its end; whether it was a good one.
    pub async fn ended(mut self) -> bool {
        until("it ends", async || self.has_ended()).await;
        self.child.wait().is_ok_and(|status| status.success())
    }
}

/// Whether this process is the one that listens on a port. Where the system does not say, it is.
fn listens(process: u32, port: u16) -> bool {
    const LISTENING: &str = "0A";
    let Ok(sockets) = File::open("/proc/self/net/tcp") else {
        return true;
    };
    let port = format!(":{port:04X}");
    // Linux lists listeners first, so reading stops there: to list all connections takes milliseconds.
    let mut lines = BufReader::new(sockets).lines().map_while(Result::ok);
    let listener = lines.find_map(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let is_it = words.get(1)?.ends_with(&port) && words.get(3) == Some(&LISTENING);
        is_it.then(|| words.get(9).map(|inode| format!("socket:[{inode}]")))?
    });
    let files = fs::read_dir(format!("/proc/{process}/fd")).into_iter();
    let mut files = files.flatten().flatten();
    listener.is_some_and(|listener| {
        files.any(|file| fs::read_link(file.path()).is_ok_and(|to| to == Path::new(&listener)))
    })
}

fn append_to(log: &Path) -> Stdio {
    let log = OpenOptions::new().append(true).create(true).open(log);
    log.expect("a file").into()
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended by itself.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

pub fn log(folder: &Path) -> PathBuf {
    folder.join("log")
}
