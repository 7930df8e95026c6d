//! Real Redis servers as processes of their own, which can be killed, paused and set back.

use std::collections::BTreeMap;
use std::fs::{self, OpenOptions};
use std::io;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{self, Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{LazyLock, mpsc};
use std::thread;
use std::time::Duration;

use redis::{AsyncConnectionConfig, RedisResult, Value};
use tempfile::TempDir;
use tokio::time::{Instant, sleep};

use super::{PATIENCE, until};

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

/// A Redis server over a folder of its own, on a free port of 127.0.0.1. Killed when dropped.
pub struct Redis {
    pub port: u16,
    settings: Vec<(String, String)>,
    environment: Vec<(String, String)>,
    /// Its configuration, its log, and its data below `data`.
    folder: TempDir,
    child: Child,
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

    /// `kill -9`. Its data stays.
    pub fn kill(&mut self) {
        self.child.kill().expect("it could be killed");
        self.child.wait().expect("it ended");
    }

    /// On the same port, over the same data; waits until the data is loaded.
    pub async fn start_again(&mut self) {
        self.kill();
        self.child = spawn(self.folder.path(), &[], &self.environment);
        assert!(
            self.came_up().await,
            "its port was taken meanwhile: {}",
            self.log()
        );
    }

    /// It keeps its connections and says nothing more, until resumed.
    pub fn pause(&self) {
        signal(&self.child, "STOP");
        // The signal is sent; here we wait until it has arrived.
        let state = || fs::read_to_string(format!("/proc/{}/stat", self.child.id()));
        while state().is_ok_and(|state| !state.contains(") T ")) {
            thread::sleep(Duration::from_millis(1));
        }
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
            let (port, other_port) = (spare_port(), spare_port());
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
                assert!(log.contains("Address already in use"), "it ended: {log}");
                return false;
            }
            let info = self.try_ask(&["INFO"]).await.map(|info| text(&info));
            if info.is_ok_and(|info| info.contains(&itself) && !info.contains("loading:1")) {
                return true;
            }
            assert!(
                Instant::now() < patience,
                "it does not serve: {}",
                self.log()
            );
            sleep(Duration::from_millis(5)).await;
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

/// A server that also listens with TLS, with a certificate for `localhost` and 127.0.0.1.
pub struct TlsRedis {
    pub redis: Redis,
    pub tls_port: u16,
    /// The certificate of those who signed the server's, as a file.
    pub ca: PathBuf,
    _certificates: TempDir,
}

impl TlsRedis {
    pub async fn start() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let file = |name: &str| folder.path().join(name);
        certify(&file("ca.pem"), &file("server.pem"), &file("server.key"));
        let path = |name: &str| file(name).to_str().expect("a path in UTF-8").to_owned();
        let (ca, certificate, key) = (path("ca.pem"), path("server.pem"), path("server.key"));
        let with_tls = |tls_port: u16| {
            let tls_port = tls_port.to_string();
            let listener = [("tls-port", tls_port.as_str()), ("tls-auth-clients", "no")];
            let files = [
                ("tls-ca-cert-file", &*ca),
                ("tls-cert-file", &*certificate),
                ("tls-key-file", &*key),
            ];
            changed(&changed(&owned(&STRICT), &listener), &files)
        };
        let redis = Redis::start(with_tls, &[], &[]).await;
        let tls_port = redis
            .setting("tls-port")
            .expect("a port")
            .parse()
            .expect("a port");
        Self {
            redis,
            tls_port,
            ca: file("ca.pem"),
            _certificates: folder,
        }
    }

    pub fn url(&self) -> String {
        format!("rediss://localhost:{}", self.tls_port)
    }
}

/// Three masters without replicas that share all slots. With one of them gone, none serves for long.
pub struct Cluster {
    pub nodes: Vec<Redis>,
}

impl Cluster {
    pub async fn start() -> Self {
        Self::with_first(&[]).await
    }

    /// The first of its masters goes by this clock.
    #[cfg(target_os = "linux")]
    pub async fn start_by(clock: &super::clock::Clock) -> Self {
        Self::with_first(&owned(&clock.environment())).await
    }

    /// With this in the environment of the first of them.
    async fn with_first(environment: &[(String, String)]) -> Self {
        let mut nodes = Vec::new();
        for (epoch, slots) in [
            ("1", ["0", "5460"]),
            ("2", ["5461", "10922"]),
            ("3", ["10923", "16383"]),
        ] {
            let environment = if nodes.is_empty() { environment } else { &[] };
            let node = Redis::start(Self::settings, &[], environment).await;
            node.ask(&["CLUSTER", "SET-CONFIG-EPOCH", epoch]).await;
            node.ask(&["CLUSTER", "ADDSLOTSRANGE", slots[0], slots[1]])
                .await;
            nodes.push(node);
        }
        for node in &nodes[1..] {
            let bus_port = node.setting("cluster-port").expect("a port");
            nodes[0]
                .ask(&[
                    "CLUSTER",
                    "MEET",
                    "127.0.0.1",
                    &node.port.to_string(),
                    bus_port,
                ])
                .await;
        }
        let cluster = Self { nodes };
        cluster.until_whole().await;
        cluster
    }

    fn settings(bus_port: u16) -> Vec<(String, String)> {
        let bus_port = bus_port.to_string();
        let cluster = [
            ("cluster-enabled", "yes"),
            ("cluster-port", bus_port.as_str()),
            ("cluster-node-timeout", "3000"),
            ("cluster-require-full-coverage", "yes"),
        ];
        changed(&owned(&STRICT), &cluster)
    }

    /// A replica for each master, which from now on takes no write without it.
    pub async fn replicas(&self) -> Vec<Redis> {
        let mut replicas = Vec::new();
        for master in &self.nodes {
            let replica = Redis::start(Self::settings, &[], &[]).await;
            let bus_port = master.setting("cluster-port").expect("a port");
            replica
                .ask(&[
                    "CLUSTER",
                    "MEET",
                    "127.0.0.1",
                    &master.port.to_string(),
                    bus_port,
                ])
                .await;
            let id = text(&master.ask(&["CLUSTER", "MYID"]).await);
            until("it may be a replica", async || {
                replica
                    .try_ask(&["CLUSTER", "REPLICATE", &id])
                    .await
                    .is_ok()
            })
            .await;
            until("its link is up", async || {
                master.info("replication").await.contains("state=online")
            })
            .await;
            master
                .ask(&["CONFIG", "SET", "min-replicas-to-write", "1"])
                .await;
            replica
                .ask(&["CONFIG", "SET", "min-replicas-to-write", "1"])
                .await;
            replicas.push(replica);
        }
        replicas
    }

    /// Waits until every node knows all three and takes commands.
    pub async fn until_whole(&self) {
        for node in &self.nodes {
            until("the node is in the cluster", async || {
                let info = text(&node.ask(&["CLUSTER", "INFO"]).await);
                info.contains("cluster_state:ok") && info.contains("cluster_size:3")
            })
            .await;
        }
    }

    pub fn url(&self) -> String {
        let places = self
            .nodes
            .iter()
            .map(|node| format!("127.0.0.1:{}", node.port));
        format!("redis+cluster://{}", places.collect::<Vec<_>>().join(","))
    }
}

/// A sentinel that alone decides to promote a replica, soon after the master named `main` is gone.
pub struct Sentinel {
    pub port: u16,
    _redis: Redis,
}

impl Sentinel {
    /// Knows the replicas that the master has now; later ones it finds within about a second.
    pub async fn of(master: &Redis) -> Self {
        let watched = format!("monitor main 127.0.0.1 {} 1", master.port);
        let settings = [
            ("sentinel", &*watched),
            ("sentinel", "down-after-milliseconds main 1000"),
            ("sentinel", "failover-timeout main 2000"),
        ];
        let redis = Redis::start(|_| owned(&settings), &["--sentinel"], &[]).await;
        // With its own periods, of one to ten seconds, it would depose masters that are well. A ping
        // period below a fifth of a second would make it hold what it knows of replicas for outdated.
        let periods = [
            "ping-period",
            "300",
            "info-period",
            "500",
            "publish-period",
            "500",
        ];
        redis
            .ask(&[&["SENTINEL", "DEBUG"], &periods[..]].concat())
            .await;
        let replication = master.info("replication").await;
        let replicas = replication
            .lines()
            .find_map(|line| line.strip_prefix("connected_slaves:"));
        let place = format!("status=ok,address=127.0.0.1:{}", master.port);
        let known = format!("{place},slaves={},", replicas.expect("a number"));
        until("the sentinel knows all", async || {
            redis.info("sentinel").await.contains(&known)
        })
        .await;
        Self {
            port: redis.port,
            _redis: redis,
        }
    }

    pub fn url(&self) -> String {
        format!("redis+sentinel://127.0.0.1:{}/main", self.port)
    }
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

/// A port that nobody listens on, and that this process gives out once: a killed server finds its own
/// again. Below those that systems choose from for listeners on port 0 and for outgoing connections.
fn spare_port() -> u16 {
    static GIVEN: AtomicU32 = AtomicU32::new(0);
    // Another test process starts elsewhere in the range.
    let start = process::id().wrapping_mul(101);
    loop {
        let next = start.wrapping_add(GIVEN.fetch_add(1, Ordering::Relaxed));
        let port = 12_000 + u16::try_from(next % 20_000).expect("below 20,000");
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
}

/// Writes a new authority's certificate, and one for a local server that it signed, with its key.
fn certify(ca: &Path, certificate: &Path, key: &Path) {
    let mut authority = rcgen::CertificateParams::new([]).expect("parameters");
    authority.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    authority
        .distinguished_name
        .push(rcgen::DnType::CommonName, "the tests' authority");
    let authority_key = rcgen::KeyPair::generate().expect("a key");
    let authority =
        rcgen::CertifiedIssuer::self_signed(authority, authority_key).expect("a certificate");
    let names = ["localhost".to_owned(), "127.0.0.1".to_owned()];
    let server_key = rcgen::KeyPair::generate().expect("a key");
    let server = rcgen::CertificateParams::new(names)
        .expect("parameters")
        .signed_by(&server_key, &authority);
    fs::write(ca, authority.pem()).expect("a file");
    fs::write(certificate, server.expect("a certificate").pem()).expect("a file");
    fs::write(key, server_key.serialize_pem()).expect("a file");
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
    let (answer, answered) = mpsc::channel();
    LAUNCHER.send((command, answer)).expect("the thread lives");
    answered
        .recv()
        .expect("the thread lives")
        .expect("the server starts")
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
    let bound: &[&str] = &["setpriv", "--pdeathsig", "KILL", "redis-server"];
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
