//! Real PostgreSQL servers as processes of their own, which can be killed, paused and set back.
//!
//! One server serves all tests of a run, each with a schema of its own. A test that breaks the server has one of its own.

use std::fs::{self, OpenOptions};
use std::os::unix::fs::chown;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use oncegate::core::key::Lookup;
use oncegate::store::postgres::tokio_postgres;
use oncegate::store::postgres::tokio_postgres::{NoTls, Row};
use tempfile::TempDir;
use tokio::time::{Instant, sleep};

mod places; // schemas on a server that tests share

pub use self::places::{empty, place, run_in, text_in};
use super::ports::free_port;
use super::redis::launch;
use super::{PATIENCE, until};

/// What was acknowledged lies on the disk. Small, because several run at once.
const STRICT: &[&str] = &[
    "listen_addresses = '127.0.0.1'",
    "max_connections = 500",
    "shared_buffers = '64MB'",
    // In the data's folder: a server that is killed leaves nothing in /dev/shm.
    "dynamic_shared_memory_type = mmap",
    "fsync = on",
    // As with segments of 16 MB.
    "max_wal_size = '1GB'",
    "wal_keep_size = '64MB'",
    "wal_level = replica",
    "max_wal_senders = 5",
    "hot_standby = on",
    // A standby whose primary is gone waits for five seconds otherwise, even if it is promoted.
    "wal_retrieve_retry_interval = '100ms'",
    "autovacuum = off",
    "log_min_messages = warning",
];

/// What `initdb` makes in half a second, once for all servers of a run. Their system identifiers are the same; a store tells
/// their data apart by what it writes into them.
static NEW: LazyLock<TempDir> = LazyLock::new(|| {
    let folder = folder();
    let options = [
        "-A",
        "trust",
        "-U",
        "admin",
        "-E",
        "UTF8",
        "--locale=C",
        "-N",
        "-k",
        // A new server writes 1 MB and not 16.
        "--wal-segsize=1",
        "-D",
    ];
    let made = command("initdb")
        .args(options)
        .arg(folder.path().join("data"))
        .current_dir(folder.path())
        .output()
        .expect("initdb runs");
    let said = String::from_utf8_lossy(&made.stderr);
    assert!(made.status.success(), "{said}");
    folder
});

/// The schemas that tests have on servers of their own.
static SCHEMAS: AtomicU64 = AtomicU64::new(0);

/// A server over a folder of its own, on a free port of 127.0.0.1. Ended when dropped.
pub struct Postgres {
    pub port: u16,
    folder: TempDir,
    child: Child,
}

impl Postgres {
    /// As a store must be, with further settings.
    pub async fn with(settings: &[&str]) -> Self {
        let folder = folder();
        copy_data(&NEW.path().join("data"), &folder.path().join("data"));
        let server = Self::over(folder, settings).await;
        // As an administrator would make it, but that it makes its own tables.
        server
            .run("CREATE ROLE gate LOGIN; GRANT pg_monitor TO gate; GRANT CREATE ON DATABASE postgres TO gate")
            .await;
        server
    }

    /// A standby of this server, which follows it.
    pub async fn standby(&self, settings: &[&str]) -> Self {
        let folder = folder();
        let copied = command("pg_basebackup")
            .args([
                "-h",
                "127.0.0.1",
                "-U",
                "admin",
                "-R",
                "-X",
                "stream",
                "-c",
                "fast",
                "-p",
            ])
            .arg(self.port.to_string())
            .arg("-D")
            .arg(folder.path().join("data"))
            .current_dir(folder.path())
            .output();
        let copied = copied.expect("pg_basebackup runs");
        assert!(
            copied.status.success(),
            "{}",
            String::from_utf8_lossy(&copied.stderr)
        );
        Self::over(folder, settings).await
    }

    async fn over(folder: TempDir, settings: &[&str]) -> Self {
        let port = free_port();
        let mut lines: Vec<String> = STRICT
            .iter()
            .chain(settings)
            .map(|line| (*line).to_owned())
            .collect();
        lines.push(format!("port = {port}"));
        lines.push(format!(
            "unix_socket_directories = '{}'",
            folder.path().display()
        ));
        let conf = folder.path().join("data/postgresql.auto.conf");
        let before = fs::read_to_string(&conf).unwrap_or_default();
        let kept = before.lines().filter(|line| !line.starts_with("port"));
        let kept: Vec<&str> = kept
            .filter(|line| !line.starts_with("unix_socket"))
            .collect();
        fs::write(
            &conf,
            format!("{}\n{}\n", kept.join("\n"), lines.join("\n")),
        )
        .expect("a file");
        let child = start(folder.path());
        let mut server = Self {
            port,
            folder,
            child,
        };
        server.came_up().await;
        server
    }

    /// A new schema on this server: a URL, and the schema after a `#`.
    pub fn place(&self) -> String {
        let number = SCHEMAS.fetch_add(1, Ordering::Relaxed);
        format!("{}#t{number}", self.url())
    }

    pub fn url(&self) -> String {
        format!("postgres://gate@127.0.0.1:{}/postgres", self.port)
    }

    /// The schema that a gateway has by itself, on a server of its own.
    pub fn main(&self) -> String {
        format!("{}#oncegate", self.url())
    }

    /// Changes a setting, and waits until it holds.
    pub async fn set(&mut self, setting: &str) {
        let (name, value) = setting.split_once(" = ").expect("a setting");
        self.run(&format!("ALTER SYSTEM SET {name} = {value}"))
            .await;
        self.run("SELECT pg_reload_conf()").await;
        until("the setting holds", async || {
            let found = self.ask(&format!("SELECT current_setting('{name}')")).await;
            format!("'{}'", found[0].get::<_, String>(0)) == value
        })
        .await;
    }

    /// Runs statements as a superuser.
    pub async fn run(&self, sql: &str) {
        let client = connect(self.port).await.expect("a connection");
        client
            .batch_execute(sql)
            .await
            .unwrap_or_else(|error| panic!("{sql}: {error:?}"));
    }

    /// Asks a question as a superuser.
    pub async fn ask(&self, sql: &str) -> Vec<Row> {
        let client = connect(self.port).await.expect("a connection");
        client
            .query(sql, &[])
            .await
            .unwrap_or_else(|error| panic!("{sql}: {error:?}"))
    }

    /// `kill -9`. Its data stays.
    pub fn kill(&mut self) {
        drop(self.child.kill());
        self.child.wait().expect("it ended");
    }

    /// On the same port, over the same data.
    pub async fn start_again(&mut self) {
        self.kill();
        self.child = start(self.folder.path());
        self.came_up().await;
    }

    /// It keeps its connections and says nothing more, until resumed.
    pub fn pause(&self) {
        for process in self.processes() {
            drop(Command::new("kill").args(["-STOP", &process]).status());
        }
    }

    pub fn resume(&self) {
        for process in self.processes() {
            drop(Command::new("kill").args(["-CONT", &process]).status());
        }
    }

    /// The numbers of its processes. New ones are made by the first, which comes first.
    fn processes(&self) -> Vec<String> {
        let first = self.child.id().to_string();
        let others = Command::new("pgrep").args(["-P", &first]).output();
        let others = String::from_utf8(others.expect("pgrep runs").stdout).expect("numbers");
        std::iter::once(first)
            .chain(others.lines().map(str::to_owned))
            .collect()
    }

    /// A copy of its data, to go back to, as after a power loss. Nothing writes meanwhile.
    pub fn snapshot(&self) -> TempDir {
        let copy = folder();
        self.pause();
        copy_data(&self.data(), &copy.path().join("data"));
        self.resume();
        copy
    }

    /// Kills it, puts the copy in place of its data, and starts it again.
    pub async fn restore(&mut self, snapshot: &Path) {
        self.kill();
        self.free_shared_memory();
        let settings = fs::read(self.data().join("postgresql.auto.conf")).expect("a file");
        fs::remove_dir_all(self.data()).expect("no data");
        copy_data(&snapshot.join("data"), &self.data());
        fs::write(self.data().join("postgresql.auto.conf"), settings).expect("a file");
        self.start_again().await;
    }

    fn data(&self) -> PathBuf {
        self.folder.path().join("data")
    }

    /// A standby becomes the primary.
    pub async fn promote(&self) {
        self.run("SELECT pg_promote(true, 60)").await;
    }

    /// Waits until it serves.
    async fn came_up(&mut self) {
        let patience = Instant::now() + PATIENCE;
        loop {
            if self.child.try_wait().expect("a status").is_some() {
                // Children of the server before this one may take a moment to end.
                sleep(Duration::from_millis(100)).await;
                assert!(Instant::now() < patience, "it ended: {}", self.log());
                self.child = start(self.folder.path());
            }
            if connect(self.port).await.is_ok() {
                return;
            }
            assert!(
                Instant::now() < patience,
                "not in time: it serves: {}",
                self.log()
            );
            sleep(Duration::from_millis(20)).await;
        }
    }

    /// Frees the segment of shared memory that a killed server has left, for which its data has the id. A system has four thousand.
    fn free_shared_memory(&self) {
        let notes = fs::read_to_string(self.data().join("postmaster.pid")).unwrap_or_default();
        let segment = notes
            .lines()
            .nth(6)
            .and_then(|key_and_id| key_and_id.split_whitespace().nth(1));
        if let Some(id) = segment {
            drop(
                Command::new("ipcrm")
                    .args(["-m", id])
                    .stderr(Stdio::null())
                    .status(),
            );
        }
    }

    fn is_running(&mut self) -> bool {
        self.child.try_wait().is_ok_and(|ended| ended.is_none())
    }

    fn log(&self) -> String {
        fs::read_to_string(self.folder.path().join("log")).unwrap_or_default()
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        // It may have been killed before, and another process may have its number by now.
        if self.is_running() {
            // One that ends like this gives its shared memory back.
            drop(
                Command::new("kill")
                    .args(["-QUIT", &self.child.id().to_string()])
                    .status(),
            );
            let ends = (0..200).any(|_| {
                thread::sleep(Duration::from_millis(5));
                !self.is_running()
            });
            if !ends {
                // It was paused.
                self.resume();
                drop(self.child.kill());
                drop(self.child.wait());
            }
        }
        self.free_shared_memory();
    }
}

/// A statement that takes the same lock of a name as the store in this schema.
pub fn lock_sql(schema: &str, name: &Lookup) -> String {
    let [first, second] = [0, 1].map(|half| name.0.as_chunks().0[half]);
    let key = i64::from_be_bytes(first) ^ i64::from_be_bytes(second);
    format!("SELECT {schema}.lock_1(ARRAY[({key})::bigint], ARRAY[false])")
}

/// A connection of a superuser.
pub async fn connect(port: u16) -> Result<tokio_postgres::Client, tokio_postgres::Error> {
    connect_by(&format!("postgres://admin@127.0.0.1:{port}/postgres")).await
}

async fn connect_by(url: &str) -> Result<tokio_postgres::Client, tokio_postgres::Error> {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await?;
    tokio::spawn(async move { drop(connection.await) });
    Ok(client)
}

/// A folder of the user that servers run as.
fn folder() -> TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    if let Some(user) = *USER {
        chown(folder.path(), Some(user), Some(user)).expect("a folder of its own");
    }
    folder
}

/// Copies the data of a server, with its owner and rights.
fn copy_data(from: &Path, to: &Path) {
    let copied = Command::new("cp").arg("-a").args([from, to]).status();
    assert!(copied.expect("cp runs").success(), "copied");
    // The number of a process that does not serve this copy.
    drop(fs::remove_file(to.join("postmaster.pid")));
}

/// The server over the data in this folder; what it says goes to `log` there.
fn start(folder: &Path) -> Child {
    // `make test-postgres` chooses tests by their names. Only the thread of a test has a name with `::` in it.
    let test = thread::current().name().unwrap_or_default().to_owned();
    let is_named = !test.contains("::") || test.contains("postgres");
    assert!(
        is_named,
        "this test needs a PostgreSQL, so `postgres` must be in its name"
    );
    let log = folder.join("log");
    let log = OpenOptions::new()
        .append(true)
        .create(true)
        .open(log)
        .expect("a file");
    let mut command = command("postgres");
    command
        .arg("-D")
        .arg(folder.join("data"))
        .current_dir(folder)
        .stdin(Stdio::null())
        .stdout(log.try_clone().expect("the file"))
        .stderr(log);
    launch(command)
}

/// A program of PostgreSQL, as a user that it accepts: it refuses to run as root. The kernel ends it when the tests are gone,
/// where that can be had.
fn command(program: &str) -> Command {
    let program = BINARIES.as_ref().expect(
        "the programs of PostgreSQL; get them with `apt-get install postgresql` or `brew install postgresql`",
    ).join(program);
    let has_setpriv = Command::new("setpriv").arg("--version").output().is_ok();
    if !has_setpriv {
        return Command::new(program);
    }
    let mut command = Command::new("setpriv");
    if let Some(user) = *USER {
        let user = user.to_string();
        command.args(["--reuid", &user, "--regid", &user, "--clear-groups"]);
    }
    command.args(["--pdeathsig", "QUIT"]).arg(program);
    command
}

/// Where `initdb` and `postgres` are.
static BINARIES: LazyLock<Option<PathBuf>> = LazyLock::new(|| {
    let mut folders: Vec<PathBuf> = fs::read_dir("/usr/lib/postgresql")
        .map(|versions| {
            versions
                .flatten()
                .map(|version| version.path().join("bin"))
                .collect()
        })
        .unwrap_or_default();
    folders.sort();
    folders.reverse();
    let path = std::env::var_os("PATH").unwrap_or_default();
    folders.extend(std::env::split_paths(&path));
    folders.extend(["/usr/local/bin", "/opt/homebrew/bin"].map(PathBuf::from));
    folders
        .into_iter()
        .find(|folder| folder.join("initdb").exists() && folder.join("postgres").exists())
});

/// The number of the user that servers run as, if the tests run as root.
static USER: LazyLock<Option<u32>> = LazyLock::new(|| {
    let number = |name: &str| {
        let output = Command::new("id").args(["-u", name]).output().ok()?;
        String::from_utf8(output.stdout).ok()?.trim().parse().ok()
    };
    let me = Command::new("id").arg("-u").output().ok()?;
    let is_root = me.stdout.starts_with(b"0\n");
    is_root.then(|| {
        number("postgres")
            .or_else(|| number("nobody"))
            .expect("a user")
    })
});
