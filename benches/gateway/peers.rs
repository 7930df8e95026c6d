//! Peers from their registries, which `scripts/bench_peers` installs: a Python gateway and Restate.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use tokio::time::sleep;

use super::Fallible;
use super::processes::{Process, free_address};

/// Restate takes a service about as soon as it listens.
const TRIES: usize = 200;

/// Where the peers are installed, if they are to be measured.
pub(super) fn folder() -> Option<PathBuf> {
    std::env::var_os("ONCEGATE_BENCH_PEERS").map(PathBuf::from)
}

/// Starts the bare gateway in Python, with one worker. `None`: it is not installed.
pub(super) async fn python(
    peers: &Path,
    folder: &Path,
    tool: SocketAddr,
    redis: SocketAddr,
) -> Fallible<Option<Process>> {
    let program = peers.join("venv/bin/uvicorn");
    if !program.exists() {
        return Ok(None);
    }
    let address = free_address()?;
    let mut command = Command::new(program);
    command.args(["gateway:app", "--no-access-log", "--log-level", "error"]);
    command.args(["--loop", "uvloop", "--http", "httptools", "--host"]);
    command.arg(address.ip().to_string());
    command.args(["--port", &address.port().to_string(), "--app-dir"]);
    command.arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("benches/peers"));
    command.env("TOOL", tool.to_string());
    command.env("REDIS", format!("redis://{redis}"));
    Process::start(&mut command, address, folder)
        .await
        .map(Some)
}

/// Starts Restate with a service of one durable step. Returns its server and the service's process.
pub(super) async fn restate(
    peers: &Path,
    folder: &Path,
    tool: SocketAddr,
) -> Fallible<Option<(Process, Process)>> {
    let installed = peers.join("node_modules/@restatedev");
    let packages = fs::read_dir(installed).into_iter().flatten().flatten();
    // Each platform has a package of its own with the program.
    let mut programs = packages.map(|package| package.path().join("bin/restate-server"));
    let Some(program) = programs.find(|path| path.exists()) else {
        return Ok(None);
    };
    fs::create_dir(folder)?;
    let service = free_address()?;
    let mut command = Command::new("node");
    command.arg(peers.join("service.mjs"));
    command.env("TOOL", tool.to_string());
    command.env("PORT", service.port().to_string());
    let service = Process::start(&mut command, service, folder).await?;
    let (ingress, admin, node) = (free_address()?, free_address()?, free_address()?);
    let mut command = Command::new(program);
    command.arg("--base-dir").arg(folder);
    command.env("RESTATE_INGRESS__BIND_ADDRESS", ingress.to_string());
    command.env("RESTATE_ADMIN__BIND_ADDRESS", admin.to_string());
    command.env("RESTATE_BIND_ADDRESS", node.to_string());
    command.env("RESTATE_LOG_FILTER", "off");
    command.env("DO_NOT_TRACK", "1");
    let server = Process::start(&mut command, ingress, folder).await?;
    register(admin, service.address).await?;
    Ok(Some((server, service)))
}

/// Tells Restate where its service is.
async fn register(admin: SocketAddr, service: SocketAddr) -> Fallible<()> {
    let client = reqwest::Client::builder().no_proxy().build()?;
    let asked = serde_json::json!({ "uri": format!("http://localhost:{}", service.port()) });
    let mut why = String::new();
    for _ in 0..TRIES {
        let request = client.post(format!("http://{admin}/deployments"));
        let request = request
            .header("content-type", "application/json")
            .body(asked.to_string());
        match request.send().await {
            Ok(answer) if answer.status().is_success() => return Ok(()),
            Ok(answer) => why = answer.text().await?,
            Err(error) => why = error.to_string(),
        }
        sleep(Duration::from_millis(50)).await;
    }
    Err(format!("Restate does not take its service: {why}").into())
}
