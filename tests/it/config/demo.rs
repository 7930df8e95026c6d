//! `make run`: the demo, when its ports are taken.

use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Stdio;

use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::Command;
use tokio::time::timeout;

use crate::support::{Answer, PATIENCE, client};

fn write_program(path: &Path, text: &str) {
    fs::write(path, text).expect("written");
    fs::set_permissions(path, fs::Permissions::from_mode(0o700)).expect("set");
}

#[expect(
    clippy::disallowed_methods,
    reason = "a cargo of its own stands first in the path"
)]
#[tokio::test]
async fn a_demo_whose_port_is_taken_looks_before_it_builds_and_answers_at_the_next_one() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let folder = tempfile::tempdir().expect("a folder");
    // The binaries as they are built, the gateway late, and files of its own beside them.
    let built = Path::new(env!("CARGO_BIN_EXE_oncegate"));
    let binaries = folder.path().join("debug");
    fs::create_dir(&binaries).expect("a folder");
    let shop = built.with_file_name("shop");
    std::os::unix::fs::symlink(shop, binaries.join("shop")).expect("a link");
    let late = format!("#!/bin/sh\nsleep 1\nexec '{}' \"$@\"\n", built.display());
    write_program(&binaries.join("oncegate"), &late);
    // Builds nothing, and says when it was asked to.
    write_program(
        &folder.path().join("cargo"),
        "#!/bin/sh\necho building >&2\n",
    );
    // Above the ports that the system gives to other tests meanwhile.
    let port = 61_000 + u16::try_from(std::process::id() % 4_000).expect("a small number");
    let taken = TcpListener::bind(("127.0.0.1", port)).expect("a port");
    let port = taken.local_addr().expect("an address").port();
    let path = std::env::var("PATH").expect("a path");
    let mut demo = Command::new(root.join("scripts/demo"))
        .env("PATH", format!("{}:{path}", folder.path().display()))
        .env("CARGO_TARGET_DIR", folder.path())
        .env("DEMO_BINARIES", binaries)
        .env("DEMO_PORT", port.to_string())
        .env("DEMO_SHOP_PORT", port.to_string())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it runs");
    let mut errors = BufReader::new(demo.stderr.take().expect("a pipe")).lines();
    let mut output = BufReader::new(demo.stdout.take().expect("a pipe")).lines();
    let mut said = Vec::new();
    while said.last().is_none_or(|line: &String| line != "building") {
        let line = timeout(PATIENCE, errors.next_line())
            .await
            .expect("in time");
        said.push(line.expect("text").unwrap_or_else(|| panic!("{said:?}")));
    }
    let is_told = |line: &String| line.starts_with(&format!("Port {port} is taken"));
    assert_eq!(
        said.iter().filter(|line| is_told(line)).count(),
        2,
        "{said:?}"
    );
    let told = loop {
        let line = timeout(PATIENCE, output.next_line())
            .await
            .expect("in time");
        let line = line.expect("text").expect("it goes on");
        if let Some((_, told)) = line.split_once("The gateway listens on ") {
            break told.to_owned();
        }
    };
    let at = told.split(',').next().expect("an address");
    assert_ne!(at, format!("127.0.0.1:{port}"));
    let ready = Answer::to(client().get(format!("http://{at}/readyz"))).await;
    assert_eq!(ready.status, 200, "it answers as soon as it is told");
    let id = demo.id().expect("it runs").to_string();
    let ended = std::process::Command::new("kill")
        .args(["-TERM", &id])
        .status();
    assert!(ended.expect("kill runs").success());
    timeout(PATIENCE, demo.wait())
        .await
        .expect("in time")
        .expect("it ended");
    let gone = client().get(format!("http://{at}/readyz")).send().await;
    assert!(gone.is_err(), "both have ended");
}
