//! What `make` installs before it builds: `scripts/setup` on machines that lack something.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// A machine with nothing on its path but this.
struct Machine {
    folder: tempfile::TempDir,
}

impl Machine {
    /// With the shell, its usual companions, Rust, and what every set of tools takes except `redis-server`.
    fn without_redis(user: u32) -> Self {
        let machine = Self {
            folder: tempfile::tempdir().expect("a folder"),
        };
        fs::create_dir(machine.bin()).expect("a folder");
        for tool in ["sh", "env", "sed", "sort", "tr", "touch", "chmod"] {
            let path = std::env::split_paths(&path())
                .map(|folder| folder.join(tool))
                .find(|path| path.exists());
            symlink(
                path.expect("a tool of every machine"),
                machine.bin().join(tool),
            )
            .expect("a link");
        }
        for there in [
            "cargo",
            "cc",
            "curl",
            "jq",
            "kill",
            "make",
            "prometheus",
            "promtool",
            "python3",
        ] {
            machine.has(there, "exit 0");
        }
        machine.has("id", &format!("echo {user}"));
        machine
    }

    fn bin(&self) -> PathBuf {
        self.folder.path().join("bin")
    }

    fn has(&self, program: &str, script: &str) -> &Self {
        let file = self.bin().join(program);
        fs::write(&file, format!("#!/bin/sh\n{script}\n")).expect("a file");
        fs::set_permissions(file, fs::Permissions::from_mode(0o755)).expect("set");
        self
    }

    /// One that writes down how it was called, and makes the servers of the tests be there.
    fn has_installer(&self, program: &str) -> &Self {
        let log = self.folder.path().join("log");
        let [redis, postgres] = ["redis-server", "initdb"].map(|server| self.bin().join(server));
        let (log, redis, postgres) = (log.display(), redis.display(), postgres.display());
        let installs = format!("touch {redis} {postgres}; chmod +x {redis} {postgres}");
        self.has(
            program,
            &format!("echo \"{program} $*\" >>{log}\ncase $* in *install*) {installs} ;; esac"),
        )
    }

    fn sets_up(&self, sets: &[&str]) -> Output {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts/setup");
        let mut command = Command::new(script);
        command
            .args(sets)
            .env("PATH", self.bin())
            .output()
            .expect("the script runs")
    }

    /// How installers were called.
    fn calls(&self) -> Vec<String> {
        let log = fs::read_to_string(self.folder.path().join("log")).unwrap_or_default();
        log.lines().map(str::to_owned).collect()
    }
}

fn path() -> std::ffi::OsString {
    std::env::var_os("PATH").expect("a path")
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

const INSTALL: &str = "apt-get install -qy --no-install-recommends postgresql redis-server";

#[test]
fn what_is_missing_is_installed_with_apt_by_root() {
    let machine = Machine::without_redis(0);
    machine.has_installer("apt-get");
    let done = machine.sets_up(&["test"]);
    assert!(done.status.success(), "{}", said(&done));
    assert_eq!(machine.calls(), ["apt-get update -q", INSTALL]);
    assert!(machine.sets_up(&["test"]).status.success());
    assert_eq!(
        machine.calls().len(),
        2,
        "what is there is not installed again"
    );
}

#[test]
fn what_is_missing_is_installed_with_apt_by_sudo() {
    let machine = Machine::without_redis(1_000);
    machine.has_installer("apt-get").has(
        "sudo",
        "echo by sudo >>\"$(dirname \"$0\")/../log\"\nexec \"$@\"",
    );
    machine.has("dirname", "p=$1; echo \"${p%/*}\"");
    let done = machine.sets_up(&["test"]);
    assert!(done.status.success(), "{}", said(&done));
    assert_eq!(
        machine.calls(),
        ["by sudo", "apt-get update -q", "by sudo", INSTALL]
    );
}

#[test]
fn what_is_missing_is_installed_with_brew() {
    let machine = Machine::without_redis(501);
    machine.has_installer("brew");
    let done = machine.sets_up(&["test"]);
    assert!(done.status.success(), "{}", said(&done));
    assert_eq!(machine.calls(), ["brew install --quiet postgresql redis"]);
}

#[test]
fn each_target_names_what_it_needs() {
    for (set, packages) in [
        ("loss", "iproute2 nftables redis-server"),
        ("observe", "redis-server prometheus python3"),
        ("faults", "postgresql python3 redis-server"),
        ("fuzz", "curl python3 python3-venv"),
        ("clients", "git python3 python3-venv"),
        ("conformance", "python3 python3-venv"),
        ("console", "python3 python3-venv"),
        ("browser", "chromium"),
        ("import-check", "python3 python3-venv"),
        ("kits", "python3 python3-venv"),
        ("docs", "curl git python3"),
        (
            "packages",
            "ca-certificates curl git python3 python3-venv runc umoci",
        ),
        (
            "packages-check",
            "ca-certificates curl git python3 python3-venv",
        ),
        ("packages-empty", "debootstrap python3 python3-venv"),
        ("image", "runc umoci"),
    ] {
        let machine = Machine::without_redis(0);
        for there in ["curl", "prometheus", "promtool", "python3"] {
            fs::remove_file(machine.bin().join(there)).expect("it was there");
        }
        machine.has_installer("apt-get");
        // The installer is told all, and brings only one of them.
        machine.sets_up(&[set]);
        let calls = machine.calls();
        let mut installed: Vec<&str> = calls[1]
            .split(' ')
            .skip_while(|word| !word.starts_with("--"))
            .skip(1)
            .collect();
        let mut packages: Vec<&str> = packages.split(' ').collect();
        installed.sort_unstable();
        packages.sort_unstable();
        assert_eq!(installed, packages, "{set}");
    }
}

#[test]
fn what_cannot_be_installed_is_said_in_one_sentence() {
    let without_rights = Machine::without_redis(1_000);
    without_rights.has_installer("apt-get");
    let elsewhere = Machine::without_redis(0);
    let offline = Machine::without_redis(0);
    offline.has("apt-get", "exit 100");
    for (machine, sentence) in [
        (
            &without_rights,
            "missing: postgres redis; as root, run: apt-get install postgresql redis-server; nothing was built",
        ),
        (
            &elsewhere,
            "missing: postgres redis; install it with this system's packages; nothing was built",
        ),
        (
            &offline,
            "missing: postgres redis; this failed: apt-get install postgresql redis-server; nothing was built",
        ),
    ] {
        let failed = machine.sets_up(&["test"]);
        assert!(!failed.status.success());
        assert_eq!(said(&failed), format!("scripts/setup test: {sentence}\n"));
        assert!(machine.calls().is_empty());
    }
    fs::remove_file(elsewhere.bin().join("cargo")).expect("it was there");
    assert!(said(&elsewhere.sets_up(&["test"])).contains("there is no cargo"));
}

/// It would be compiled for minutes, so an operator does that.
#[test]
fn what_has_to_be_compiled_is_named_with_the_command_that_does_it() {
    let machine = Machine::without_redis(0);
    machine
        .has_installer("apt-get")
        .has("cargo", "test \"$1\" != mutants");
    let failed = machine.sets_up(&["mutants"]);
    let sentence =
        "missing: cargo-mutants; run: cargo install --locked cargo-mutants; nothing was built";
    assert_eq!(
        said(&failed),
        format!("scripts/setup mutants: {sentence}\n")
    );
    assert!(!failed.status.success() && machine.calls().is_empty());
    machine.has("cargo", "exit 0");
    assert!(machine.sets_up(&["mutants"]).status.success());
}

/// Each target that takes more than Rust asks for it first.
#[test]
fn no_target_builds_before_its_tools_are_there() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let makefile = fs::read_to_string(root.join("Makefile")).expect("a file");
    let key_schemes = makefile
        .split("\n\n")
        .filter_map(|part| part.split_once(":\n\t"));
    let mut seen = 0;
    for (before, key_scheme) in key_schemes {
        let target = before
            .lines()
            .last()
            .expect("a target")
            .trim_start_matches(".PHONY: ");
        let first = key_scheme.lines().next().expect("a line");
        let names_its_set = first.starts_with("@scripts/setup ") || target == "loss";
        assert!(names_its_set, "{target} begins with {first}");
        seen += 1;
    }
    assert!(seen >= 9, "the test reads nothing");
    let loss = fs::read_to_string(root.join("scripts/loss")).expect("a file");
    assert!(
        loss.find("scripts/setup loss") < loss.find("cargo build"),
        "what `make loss` runs"
    );
    let ci = fs::read_to_string(root.join(".ci/run")).expect("a file");
    assert!(!ci.contains("apt"), "CI has no list of its own");
}
