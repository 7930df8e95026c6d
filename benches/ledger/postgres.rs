//! A PostgreSQL as a process of its own, and a store over it.

use std::fs;
use std::os::unix::fs::chown;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use oncegate::store::postgres::tokio_postgres::{Client, NoTls, connect};
use oncegate::store::postgres::{DEFAULT_SCHEMA, Postgres, Schema, Settings, Target};
use oncegate::store::{Durability, Store};
use tokio::time::sleep;

use super::calls::{Fallible, patient};
use super::free_port;

pub(super) struct Server {
    process: Child,
    url: String,
    client: Client,
}

impl Server {
    /// Starts one in a new folder. `None`: its programs are not installed.
    pub(super) async fn start(folder: &Path) -> Fallible<Option<Self>> {
        let Some(programs) = programs() else {
            return Ok(None);
        };
        fs::create_dir(folder)?;
        let user = user();
        if let Some(user) = user {
            chown(folder, Some(user), Some(user))?;
        }
        let (data, port) = (folder.join("data"), free_port()?);
        let options = [
            "-A",
            "trust",
            "-U",
            "gate",
            "-E",
            "UTF8",
            "--locale=C",
            "-k",
            "-D",
        ];
        let mut initdb = command(&programs.join("initdb"), user);
        let made = initdb
            .args(options)
            .arg(&data)
            .current_dir(folder)
            .output()?;
        if !made.status.success() {
            return Err(String::from_utf8_lossy(&made.stderr).into());
        }
        let mut server = command(&programs.join("postgres"), user);
        let settings = [
            "listen_addresses=127.0.0.1".to_owned(),
            format!("port={port}"),
            format!("unix_socket_directories={}", folder.display()),
            "shared_buffers=256MB".to_owned(),
            "max_wal_size=4GB".to_owned(),
        ];
        server.arg("-D").arg(&data).current_dir(folder);
        for setting in settings {
            server.args(["-c", &setting]);
        }
        let process = server.stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;
        let url = format!("postgres://gate@127.0.0.1:{port}/postgres");
        let client = loop {
            match connect(&url, NoTls).await {
                Ok((client, connection)) => {
                    tokio::spawn(async move { drop(connection.await) });
                    break client;
                }
                Err(_) => sleep(Duration::from_millis(20)).await,
            }
        };
        let server = Self {
            process,
            url,
            client,
        };
        Ok(Some(server))
    }

    /// A store over it that is ready.
    pub(super) async fn store(&self, folder: &Path) -> Fallible<Arc<dyn Store>> {
        let settings = Settings {
            target: Target::parse(&self.url)?,
            schema: Schema::parse(DEFAULT_SCHEMA)?,
            durability: Durability::Strict,
            declared: None,
            ca: None,
            watermarks: folder.join("watermarks-postgres"),
            timings: patient(),
        };
        let store: Arc<dyn Store> = Arc::new(Postgres::open(settings).await?);
        while !store.readiness().await.reasons.is_empty() {
            sleep(Duration::from_millis(100)).await;
        }
        Ok(store)
    }

    /// The bytes of tables and indexes.
    pub(super) async fn used(&self) -> Fallible<u64> {
        let size = "SELECT pg_database_size(current_database())";
        let row = self.client.query_one(size, &[]).await?;
        Ok(row.get::<_, i64>(0).unsigned_abs())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.process.kill());
        drop(self.process.wait());
    }
}

/// The newest of Debian's, or those of Homebrew.
fn programs() -> Option<PathBuf> {
    let versions = fs::read_dir("/usr/lib/postgresql").into_iter().flatten();
    let versions = versions.flatten().map(|version| version.path().join("bin"));
    let mut folders: Vec<_> = versions.collect();
    folders.sort();
    folders.reverse();
    folders.extend(["/usr/local/bin", "/opt/homebrew/bin"].map(PathBuf::from));
    let is_it = |folder: &PathBuf| folder.join("initdb").exists();
    folders.into_iter().find(is_it)
}

/// PostgreSQL refuses to run as root. The number of the user that it runs as instead.
fn user() -> Option<u32> {
    let number = |arguments: &[&str]| {
        let output = Command::new("id").args(arguments).output().ok()?;
        String::from_utf8_lossy(&output.stdout).trim().parse().ok()
    };
    let me: u32 = number(&["-u"])?;
    if me == 0 {
        number(&["-u", "postgres"])
    } else {
        None
    }
}

fn command(program: &Path, user: Option<u32>) -> Command {
    let Some(user) = user.map(|user| user.to_string()) else {
        return Command::new(program);
    };
    let mut command = Command::new("setpriv");
    command.args(["--reuid", &user, "--regid", &user, "--clear-groups"]);
    command.arg(program);
    command
}
