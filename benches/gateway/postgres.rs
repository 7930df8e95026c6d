//! A PostgreSQL that syncs every commit to disk, as a process of its own.

use std::fs;
use std::io;
use std::os::unix::fs::chown;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::Fallible;
use super::processes::{Process, free_address};

/// Starts a PostgreSQL in a new folder. `None`: its programs are not installed, or this build has no PostgreSQL.
pub(super) async fn start(folder: &Path) -> Fallible<Option<Process>> {
    let Some(programs) = programs().filter(|_| cfg!(feature = "postgres")) else {
        return Ok(None);
    };
    fs::create_dir(folder)?;
    let user = user();
    if let Some(user) = user {
        chown(folder, Some(user), Some(user))?;
    }
    let (data, address) = (folder.join("data"), free_address()?);
    let mut initdb = command(&programs.join("initdb"), user);
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
    let made = initdb
        .args(options)
        .arg(&data)
        .current_dir(folder)
        .output()?;
    if !made.status.success() {
        return Err(String::from_utf8_lossy(&made.stderr).into());
    }
    let settings = format!(
        "listen_addresses = '127.0.0.1'\nport = {}\nunix_socket_directories = '{}'\nshared_buffers = '256MB'\nmax_wal_size = '4GB'\n",
        address.port(),
        folder.display()
    );
    fs::write(data.join("postgresql.auto.conf"), settings)?;
    let mut server = command(&programs.join("postgres"), user);
    server.arg("-D").arg(&data).current_dir(folder);
    Process::start(&mut server, address, folder).await.map(Some)
}

/// Processor time of a server and of its processes that live.
pub(super) fn cpu_seconds(server: &Process) -> Option<f64> {
    let id = server.id().to_string();
    let others = Command::new("pgrep").args(["-P", &id]).output().ok()?;
    let others = String::from_utf8(others.stdout).ok()?;
    let others = others.lines().filter_map(|id| id.parse().ok());
    let others: f64 = others.filter_map(Process::cpu_seconds_of).sum();
    Some(server.cpu_seconds()? + others)
}

/// The newest of Debian's, or those in the path.
fn programs() -> Option<PathBuf> {
    let versions = fs::read_dir("/usr/lib/postgresql").into_iter().flatten();
    let versions = versions.flatten().map(|version| version.path().join("bin"));
    let mut folders: Vec<_> = versions.collect();
    folders.sort();
    folders.extend(["/usr/local/bin", "/opt/homebrew/bin"].map(PathBuf::from));
    let is_it = |folder: &PathBuf| folder.join("initdb").exists();
    folders.into_iter().find(is_it)
}

/// PostgreSQL refuses to run as root. The number of the user that it runs as instead.
fn user() -> Option<u32> {
    let number = |arguments: &[&str]| -> io::Result<Option<u32>> {
        let output = Command::new("id").args(arguments).output()?;
        Ok(String::from_utf8_lossy(&output.stdout).trim().parse().ok())
    };
    let me = number(&["-u"]).ok().flatten()?;
    let other = || number(&["-u", "postgres"]).ok().flatten();
    (me == 0).then(other).flatten()
}

fn command(program: &Path, user: Option<u32>) -> Command {
    let Some(user) = user else {
        return Command::new(program);
    };
    let mut command = Command::new("setpriv");
    let user = user.to_string();
    command.args(["--reuid", &user, "--regid", &user, "--clear-groups"]);
    command.arg(program);
    command
}
