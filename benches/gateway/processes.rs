//! The measured processes. They are started on free ports, and killed when dropped.

use std::fs;
use std::io::ErrorKind;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::time::{sleep, timeout};

use super::Fallible;

/// The unit of processor time in `/proc`, the same on every Linux kernel.
const TICKS_PER_SECOND: f64 = 100.0;
/// A start that takes longer has failed.
const PATIENCE: Duration = Duration::from_secs(60);

/// A process that listens.
pub(super) struct Process {
    child: Child,
    pub(super) address: SocketAddr,
}

impl Process {
    /// Starts a command in this folder, and waits until it listens at this address.
    pub(super) async fn start(
        command: &mut Command,
        address: SocketAddr,
        folder: &Path,
    ) -> Fallible<Self> {
        command.current_dir(folder).stdout(Stdio::null());
        let child = command.spawn()?;
        let mut process = Self { child, address };
        let listens = async {
            while TcpStream::connect(address).await.is_err() {
                if let Some(status) = process.child.try_wait()? {
                    return Err(format!("the process for {address} ended: {status}").into());
                }
                sleep(Duration::from_millis(5)).await;
            }
            Fallible::Ok(())
        };
        timeout(PATIENCE, listens).await??;
        Ok(process)
    }

    /// Its processor time so far, in seconds. `None` where the system does not show it.
    pub(super) fn cpu_seconds(&self) -> Option<f64> {
        Self::cpu_seconds_of(self.id())
    }

    pub(super) fn id(&self) -> u32 {
        self.child.id()
    }

    /// The same of any process, by its number.
    pub(super) fn cpu_seconds_of(id: u32) -> Option<f64> {
        let stat = fs::read_to_string(format!("/proc/{id}/stat")).ok()?;
        // User and system time are fields 12 and 13 after the name, which may have spaces and parentheses in it.
        let behind = stat.rsplit_once(") ")?.1;
        let mut times = behind.split(' ').skip(11).map(str::parse::<f64>);
        Some((times.next()?.ok()? + times.next()?.ok()?) / TICKS_PER_SECOND)
    }

    /// Its resident memory, in bytes.
    pub(super) fn memory(&self) -> Option<f64> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.child.id())).ok()?;
        let line = status
            .lines()
            .find_map(|line| line.strip_prefix("VmRSS:"))?;
        let kilobytes: f64 = line.trim().strip_suffix(" kB")?.parse().ok()?;
        Some(kilobytes * 1024.0)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended by itself.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

pub(super) fn free_address() -> Fallible<SocketAddr> {
    Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?)
}

/// Starts one of the programs of this bench. `beside`: the address that it sends requests to.
pub(super) async fn program(name: &str, beside: &str, folder: &Path) -> Fallible<Process> {
    let address = free_address()?;
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["program", name, &address.to_string(), beside]);
    Process::start(&mut command, address, folder).await
}

/// The gateway's binary of this build.
pub(super) const GATEWAY: &str = env!("CARGO_BIN_EXE_oncegate");

/// Starts the gateway over this store, in a new folder.
pub(super) async fn gateway(folder: &Path, tool: SocketAddr, store: &str) -> Fallible<Process> {
    gateway_with(GATEWAY, folder, tool, store, "").await
}

/// The same with this binary, and more settings of `[server]`.
pub(super) async fn gateway_with(
    binary: &str,
    folder: &Path,
    tool: SocketAddr,
    store: &str,
    settings: &str,
) -> Fallible<Process> {
    fs::create_dir(folder)?;
    let address = free_address()?;
    let config = format!(
        "[server]\nlisten = \"{address}\"\nmax_running = 10000\nmax_waiting = 10000\nmax_connections = 10000\n\
         join_wait = \"60s\"\n{settings}[log]\nlevel = \"error\"\n\
         [store]\nurl = \"{store}\"\n\
         [tools.do]\nurl = \"http://{tool}/do\"\nconnection_reuse = \"1s\"\n\
         [tools.slow]\nurl = \"http://{tool}/slow\"\ntimeout = \"50s\"\ndeadline = \"200s\"\n"
    );
    fs::write(folder.join("oncegate.toml"), config)?;
    let mut command = Command::new(binary);
    command.args(["serve", "--config", "oncegate.toml"]);
    Process::start(&mut command, address, folder).await
}

/// How durable a Redis is.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Keeps {
    /// It syncs each write to disk before it answers.
    Durable,
    InMemory,
}

/// Starts a Redis in a new folder. `None`: `redis-server` is not installed.
pub(super) async fn redis(folder: &Path, keeps: Keeps) -> Fallible<Option<Process>> {
    fs::create_dir(folder)?;
    let address = free_address()?;
    let mut command = Command::new("redis-server");
    command.args(["--bind", "127.0.0.1", "--port"]);
    command.arg(address.port().to_string());
    command.args(["--save", "", "--maxmemory-policy", "noeviction"]);
    if keeps == Keeps::Durable {
        command.args(["--appendonly", "yes", "--appendfsync", "always"]);
    }
    if_there(Process::start(&mut command, address, folder).await)
}

/// Starts nginx as a proxy before the tool, in a new folder. `None`: it is not installed.
pub(super) async fn nginx(folder: &Path, tool: SocketAddr) -> Fallible<Option<Process>> {
    fs::create_dir(folder)?;
    let address = free_address()?;
    let paths = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"];
    let paths: String = paths.map(|of| format!("{of}_temp_path {of};\n")).concat();
    let config = format!(
        "daemon off; master_process off; pid pid; error_log stderr crit;\n\
         events {{ worker_connections 4096; }}\n\
         http {{\n access_log off; keepalive_requests 100000000;\n {paths}\
         upstream tool {{ server {tool}; keepalive 64; keepalive_requests 100000000; }}\n\
         server {{ listen {address};\n location / {{ proxy_pass http://tool; proxy_http_version 1.1;\n\
         proxy_set_header Connection \"\"; }} }}\n}}\n"
    );
    fs::write(folder.join("nginx.conf"), config)?;
    let mut command = Command::new("nginx");
    command.arg("-p").arg(folder).args(["-c", "nginx.conf"]);
    if_there(Process::start(&mut command, address, folder).await)
}

fn if_there(started: Fallible<Process>) -> Fallible<Option<Process>> {
    let is_missing = |error: &std::io::Error| error.kind() == ErrorKind::NotFound;
    match started {
        Ok(process) => Ok(Some(process)),
        Err(error) if error.downcast_ref().is_some_and(is_missing) => Ok(None),
        Err(error) => Err(error),
    }
}
