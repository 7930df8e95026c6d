//! What the binary prints for a machine on which it is installed.

use std::fs;

use crate::support::binary::run;

fn printed(arguments: &[&str]) -> String {
    let folder = tempfile::tempdir().expect("a folder");
    let output = run(folder.path(), arguments);
    assert!(output.status.success(), "{arguments:?}: {output:?}");
    String::from_utf8(output.stdout).expect("text")
}

/// The commands in the help, but for `help` itself.
fn commands() -> Vec<String> {
    let help = printed(&["--help"]);
    let (_, listed) = help.split_once("Commands:\n").expect("a list");
    let (listed, _) = listed.split_once("\n\n").expect("its end");
    // Further lines of a long sentence stand further right.
    let names = listed.lines().filter_map(|line| line.strip_prefix("  "));
    let names = names.filter_map(|line| line.split(' ').next());
    let names = names.filter(|name| !name.is_empty() && *name != "help");
    names.map(str::to_owned).collect()
}

#[test]
fn the_version_is_that_of_the_package() {
    let version = printed(&["--version"]);
    let wanted = format!("oncegate {}", env!("CARGO_PKG_VERSION"));
    assert!(version.starts_with(&wanted), "{version}");
}

#[test]
fn each_command_has_a_manual_page_and_is_named_in_that_of_the_program() {
    let folder = tempfile::tempdir().expect("a folder");
    let output = run(folder.path(), &["man", "."]);
    assert!(output.status.success(), "{output:?}");
    let whole = fs::read_to_string(folder.path().join("oncegate.1")).expect("a page");
    let commands = commands();
    assert!(commands.len() >= 10, "{commands:?}");
    for command in commands {
        let page = format!("oncegate-{command}.1");
        let text = fs::read_to_string(folder.path().join(&page)).expect("a page");
        assert!(text.contains(".SH SYNOPSIS"), "{page}: {text}");
        let name = format!("oncegate\\-{}", command.replace('-', "\\-"));
        assert!(whole.contains(&name), "{name} is not in {whole}");
    }
}

#[test]
fn manual_pages_go_only_into_a_folder_that_is_there() {
    let folder = tempfile::tempdir().expect("a folder");
    let output = run(folder.path(), &["man", "missing"]);
    assert!(!output.status.success());
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.starts_with("missing: "), "{said}");
}

#[test]
fn shells_complete_each_command() {
    for shell in ["bash", "zsh", "fish"] {
        let script = printed(&["completions", shell]);
        for command in commands() {
            assert!(script.contains(&command), "{shell}: {command}");
        }
    }
}
