//! Real Redis servers as processes of their own, which can be killed, paused and set back.

mod kinds;

use std::collections::BTreeMap;
use std::fs::{self, OpenOptions};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{LazyLock, mpsc};
use std::thread;
use std::time::Duration;

use redis::{AsyncConnectionConfig, RedisResult, Value};
use tempfile::TempDir;
use tokio::time::{Instant, sleep};

use super::binary::pause;
use super::ports::free_port;
use super::{PATIENCE, until};

pub use self::kinds::{Cluster, Sentinel, TlsRedis};

/// Class strict: what was acknowledged lies on the disk, and nothing is thrown away for want of room.
const STRICT: [(&str, &str); 8] = [
    ("save", ""),
    ("appendonly", "yes"),
    ("appendfsync", "always"),
    ("no-appendfsync-on-rewrite", "no"),
    ("aof-load-truncated", "no"),
    ("maxmemory-policy", "noeviction"),
    ("enable-debug-command", "no"),
    ("repl-diskless-sync-delay", "0"), // a replica need not wait for others to come
];

/// What a Redis says that was killed within a write, and does not start any more.
const CUT_SHORT: &str = "Unexpected end of file";

/// A Redis server over a folder of its own, on a free port of 127.0.0.1. Killed when dropped.
pub struct Redis {
    pub port: u16,
    settings: Vec<(String, String)>,
    environment: Vec<(String, String)>,
    /// Its configuration, its log, and its data below `data`.
    folder: TempDir,
    child: Child,
}

/// A connection to the Redis at this URL.
pub async fn connect(url: &str) -> redis::aio::MultiplexedConnection {
    let client = redis::Client::open(url).expect("a URL");
    let connection = client.get_multiplexed_async_connection().await;
    connection.expect("a connection")
}

impl Redis {
    /// As a store must be: a write is on the disk before it is acknowledged, and nothing is evicted.
    pub async fn strict() -> Self {
        Self::with(&[]).await
    }

    /// The same with these settings instead of or beside its own, as in `redis.conf`.
    pub async fn with(settings: &[(&str, &str)]) -> Self {
        Self::start(|_| changed(&owned(&STRICT), settings), &[], &[]).await
    }

    /// A strict one that goes by this clock.
    #[cfg(target_os = "linux")]
    pub async fn strict_by(clock: &super::clock::Clock) -> Self {
        Self::start(|_| owned(&STRICT), &[], &owned(&clock.environment())).await
    }

    /// A replica of this one, with the same settings. Its link is up.
    pub async fn replica(&self) -> Self {
        let master = format!("127.0.0.1 {}", self.port);
        let settings = |_| changed(&self.settings, &[("replicaof", &master)]);
        let replica = Self::start(settings, &[], &self.environment).await;
        until("the replica's link is up", async || {
            replica
                .info("replication")
                .await
                .contains("master_link_status:up")
        })
        .await;
        replica
    }

    /// Without its password, if it has one.
    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// Its answer to one command, over a connection of its own that knows the password.
    pub async fn ask(&self, command: &[&str]) -> Value {
        self.try_ask(command)
            .await
            .unwrap_or_else(|error| panic!("{command:?}: {error}"))
    }

    /// The same for a command that may fail.
    pub async fn try_ask(&self, command: &[&str]) -> RedisResult<Value> {
        let password = self
            .setting("requirepass")
            .map(|word| format!(":{word}@"))
            .unwrap_or_default();
        let client = redis::Client::open(format!("redis://{password}127.0.0.1:{}", self.port))?;
        let limits = AsyncConnectionConfig::new().set_connection_timeout(Some(PATIENCE));
        let limits = limits.set_response_timeout(Some(PATIENCE));
        let mut connection = client
            .get_multiplexed_async_connection_with_config(&limits)
            .await?;
        redis::cmd(command[0])
            .arg(&command[1..])
            .query_async(&mut connection)
            .await
    }

    /// A section of what it says of itself, like `replication`.
    pub async fn info(&self, section: &str) -> String {
        text(&self.ask(&["INFO", section]).await)
    }

    /// Calls per command since the last `CONFIG RESETSTAT`, like `evalsha` -> 3, `config|resetstat` -> 1.
    /// What a script calls is counted too; what was rejected before it ran is not.
    pub async fn commands(&self) -> BTreeMap<String, u64> {
        let info = self.info("commandstats").await;
        let lines = info
            .lines()
            .filter_map(|line| line.strip_prefix("cmdstat_")?.split_once(":calls="));
        let calls = lines.map(|(name, rest)| {
            let calls = rest.split(',').next().expect("a number");
            (name.to_owned(), calls.parse().expect("a number"))
        });
        calls.filter(|(_, calls)| *calls > 0).collect()
    }

    /// How many writes each gateway has made in a partition.
    pub async fn counts(&self, partition: usize) -> BTreeMap<String, u64> {
        let marks = self.ask(&["GET", &marks_of(partition)]).await;
        let marks: Option<String> = redis::from_redis_value(marks).expect("marks");
        let lines = marks.unwrap_or_default();
        let lines = lines.lines().skip(1).map(|line| {
            let (gateway, writes) = line.rsplit_once('=').expect("a count");
            (gateway.to_owned(), writes.parse().expect("a number"))
        });
        lines.collect()
    }

    /// Writes these counts in the place of those that are there.
    pub async fn set_counts(&self, partition: usize, counts: &BTreeMap<String, u64>) {
        let marks = self.ask(&["GET", &marks_of(partition)]).await;
        let marks: Option<String> = redis::from_redis_value(marks).expect("marks");
        let mut marks = marks.unwrap_or_default();
        marks.truncate(marks.find('\n').unwrap_or(marks.len()));
        for (gateway, writes) in counts {
            marks += &format!("\n{gateway}={writes:015}");
        }
        self.ask(&["SET", &marks_of(partition), &marks]).await;
    }

    /// `kill -9`. Its data stays.
    pub fn kill(&mut self) {
        self.child.kill().expect("it could be killed");
        self.child.wait().expect("it ended");
    }

    /// On the same port, over the same data; waits until the data is loaded.
    pub async fn start_again(&mut self) {
        self.kill();
        self.child = spawn(self.folder.path(), &[], &self.environment);
        if !self.came_up().await && self.log().contains(CUT_SHORT) {
            self.cut_to_whole_writes();
            self.child = spawn(self.folder.path(), &[], &self.environment);
        }
        assert!(self.came_up().await, "it ended: {}", self.log());
    }

    /// What an operator does if the kill came within a write, which was not acknowledged: the end of the file is cut off.
    fn cut_to_whole_writes(&self) {
        let manifest = self.data().join("appendonlydir/appendonly.aof.manifest");
        let mut fix = Command::new("redis-check-aof");
        fix.arg("--fix")
            .arg(manifest)
            .stdin(Stdio::piped())
            .stdout(Stdio::null());
        let mut fix = fix.spawn().expect("redis-check-aof runs");
        // It asks whether it may.
        let mut input = fix.stdin.take().expect("its input");
        drop(input.write_all(b"y\n"));
        drop(input);
        assert!(fix.wait().expect("it ended").success());
    }

    /// It keeps its connections and says nothing more, until resumed.
    pub fn pause(&self) {
        pause(&self.child);
    }

    pub fn resume(&self) {
        signal(&self.child, "CONT");
    }

    /// A copy of its data as it is now, to go back to. Whole if nobody writes meanwhile.
    pub fn snapshot(&self) -> TempDir {
        let copy = tempfile::tempdir().expect("a folder");
        copy_folder(&self.data(), copy.path());
        copy
    }

    /// Kills it, puts the copy in place of its data, and starts it again.
    pub async fn restore(&mut self, snapshot: &Path) {
        self.kill();
        fs::remove_dir_all(self.data()).expect("no data");
        copy_folder(snapshot, &self.data());
        self.start_again().await;
    }

    /// With these settings, which are told a free port beside its own.
    async fn start(
        settings: impl Fn(u16) -> Vec<(String, String)>,
        arguments: &[&str],
        environment: &[(String, String)],
    ) -> Self {
        for _ in 0..10 {
            let (port, other_port) = (free_port(), free_port());
            let folder = tempfile::tempdir().expect("a folder");
            fs::create_dir(folder.path().join("data")).expect("a folder");
            let settings = settings(other_port);
            let place = [
                ("bind", "127.0.0.1"),
                ("port", &port.to_string()),
                ("dir", "data"),
            ];
            fs::write(
                folder.path().join("redis.conf"),
                lines(&owned(&place)) + &lines(&settings),
            )
            .expect("a file");
            let child = spawn(folder.path(), arguments, environment);
            let environment = environment.to_vec();
            let mut started = Self {
                port,
                settings,
                environment,
                folder,
                child,
            };
            if started.came_up().await {
                return started;
            }
        }
        panic!("every port that looked free was taken");
    }

    /// Waits until it serves. False if it ended because somebody else has one of its ports.
    async fn came_up(&mut self) -> bool {
        let patience = Instant::now() + PATIENCE;
        // On a port that was taken, somebody else's server may answer.
        let itself = format!("process_id:{}\r\n", self.child.id());
        loop {
            if self.child.try_wait().expect("a status").is_some() {
                let log = self.log();
                let may_happen = log.contains("Address already in use") || log.contains(CUT_SHORT);
                assert!(may_happen, "it ended: {log}");
                return false;
            }
            let info = self.try_ask(&["INFO"]).await.map(|info| text(&info));
            if info.is_ok_and(|info| info.contains(&itself) && !info.contains("loading:1")) {
                return true;
            }
            assert!(
                Instant::now() < patience,
                "not in time: it serves: {}",
                self.log()
            );
            sleep(Duration::from_millis(10)).await;
        }
    }

    fn setting(&self, name: &str) -> Option<&str> {
        self.settings
            .iter()
            .find(|(set, _)| set == name)
            .map(|(_, value)| value.as_str())
    }

    fn data(&self) -> PathBuf {
        self.folder.path().join("data")
    }

    fn log(&self) -> String {
        fs::read_to_string(self.folder.path().join("log")).unwrap_or_default()
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        // It may have ended by itself.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

fn marks_of(partition: usize) -> String {
    format!("oncegate:{{p{partition:03}}}:marks")
}

/// Where the progress of a stored call begins, if it has a fencing token and is similar to none.
pub const PROGRESS: &str = "64";

/// 16 bytes as they stand in the names of keys.
pub fn short(bytes: &[u8]) -> String {
    use base64::Engine as _;
    base64::engine::general_purpose::URL_SAFE_NO_PAD.encode(bytes)
}

fn owned(settings: &[(&str, &str)]) -> Vec<(String, String)> {
    settings
        .iter()
        .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
        .collect()
}

/// A name that comes again replaces what was said; it may come several times among the new ones.
fn changed(settings: &[(String, String)], by: &[(&str, &str)]) -> Vec<(String, String)> {
    let is_kept = |name: &str| by.iter().all(|(new, _)| *new != name);
    let kept = settings.iter().filter(|(name, _)| is_kept(name)).cloned();
    kept.chain(owned(by)).collect()
}

fn lines(settings: &[(String, String)]) -> String {
    let quoted = |value: &str| {
        if value.is_empty() {
            "\"\"".to_owned()
        } else {
            value.to_owned()
        }
    };
    settings
        .iter()
        .map(|(name, value)| format!("{name} {}\n", quoted(value)))
        .collect()
}

fn text(value: &Value) -> String {
    redis::from_redis_value_ref(value).expect("a text")
}

fn copy_folder(from: &Path, to: &Path) {
    fs::create_dir_all(to).expect("a folder");
    for entry in fs::read_dir(from).expect("a folder") {
        let path = entry.expect("an entry").path();
        let copy = to.join(path.file_name().expect("a name"));
        if path.is_dir() {
            copy_folder(&path, &copy);
        } else {
            fs::copy(&path, &copy).expect("a copy");
        }
    }
}

fn signal(child: &Child, name: &str) {
    let status = Command::new("kill")
        .args(["-s", name, &child.id().to_string()])
        .status();
    assert!(status.expect("kill runs").success());
}

/// The server with the configuration in this folder; what it says goes to `log` there.
fn spawn(folder: &Path, arguments: &[&str], environment: &[(String, String)]) -> Child {
    // `make test-fast` leaves out tests by their names. Only the thread of a test has a name with `::` in it.
    let test = thread::current().name().unwrap_or_default().to_owned();
    let is_named = !test.contains("::") || test.contains("redis");
    assert!(
        is_named,
        "this test needs a Redis, so `redis` must be in its name"
    );
    assert!(
        std::env::var_os("NO_REDIS").is_none(),
        "`make test-fast` has no Redis"
    );
    let program = SERVER.expect(
        "redis-server on the path; get it with `apt-get install redis-server` or `brew install redis`",
    );
    let log = OpenOptions::new()
        .append(true)
        .create(true)
        .open(folder.join("log"))
        .expect("a file");
    let mut command = Command::new(program[0]);
    command
        .args(&program[1..])
        .arg("redis.conf")
        .args(arguments)
        .current_dir(folder);
    command.envs(environment.iter().cloned());
    command
        .stdin(Stdio::null())
        .stdout(log.try_clone().expect("the file"))
        .stderr(log);
    launch(command)
}

/// Starts a server that ends with the tests.
pub fn launch(command: Command) -> Child {
    let (answer, answered) = mpsc::channel();
    LAUNCHER.send((command, answer)).expect("the thread lives");
    answered
        .recv()
        .expect("the thread lives")
        .expect("the server starts")
}

/// Another server, such as valkey-server, by its path.
#[expect(clippy::disallowed_methods, reason = "a test has no other argument")]
fn named_server() -> Option<&'static str> {
    let path = std::env::var("REDIS_SERVER").ok()?;
    Some(path.leak())
}

/// The words that start a server which the kernel kills when the tests are gone, where that can be had.
static SERVER: LazyLock<Option<&[&str]>> = LazyLock::new(|| {
    let runs = |words: &&[&str]| {
        let version = Command::new(words[0])
            .args(&words[1..])
            .arg("--version")
            .output();
        version.is_ok_and(|output| output.status.success())
    };
    let server = named_server().unwrap_or("redis-server");
    let bound: &[&str] = Vec::leak(vec!["setpriv", "--pdeathsig", "KILL", server]);
    [bound, &bound[3..]].into_iter().find(runs)
});

/// A thread that starts the servers and never ends: the kernel kills such a server together with the
/// thread that started it, and a test's thread may end before a server that several tests share.
static LAUNCHER: LazyLock<mpsc::Sender<Launch>> = LazyLock::new(|| {
    let (launches, to_launch) = mpsc::channel::<Launch>();
    thread::spawn(move || {
        for (mut command, answer) in to_launch {
            answer.send(command.spawn()).expect("somebody waits");
        }
    });
    launches
});

type Launch = (Command, mpsc::Sender<io::Result<Child>>);
