//! Which room may know which. Imports point one way; this test holds the direction.

use std::fs;
use std::path::{Path, PathBuf};

/// The rooms, each with those that it may import from.
const MAY_IMPORT: [(&str, &[&str]); 11] = [
    ("core", &[]),
    ("crash", &[]),
    ("store", &["core"]),
    ("downstream", &["core", "crash"]),
    ("metrics", &["core", "store"]),
    ("gateway", &["core", "crash", "store", "downstream", "metrics"]),
    ("http", &["core", "gateway"]),
    ("serve", &[]),
    ("config", &["core", "downstream", "gateway", "serve", "store"]),
    ("telemetry", &["config", "core"]),
    ("app", &["config", "core", "http", "gateway", "store", "downstream", "metrics", "serve"]),
];

fn sources(under: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(under).expect("a folder") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            found.extend(sources(&path));
        } else if path.extension().is_some_and(|ending| ending == "rs") {
            found.push(path);
        }
    }
    found
}

/// The rooms that a source names, by `crate::room`.
fn named_rooms(source: &str) -> Vec<String> {
    let names = source.split("crate::").skip(1);
    names.map(|rest| rest.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect()).collect()
}

#[test]
fn imports_point_one_way() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut seen = 0;
    for path in sources(&root) {
        let inside = path.strip_prefix(&root).expect("below src");
        let room = inside.components().next().expect("a room").as_os_str().to_string_lossy();
        let room = room.trim_end_matches(".rs");
        if matches!(room, "main" | "lib") {
            continue;
        }
        let (_, allowed) =
            MAY_IMPORT.iter().find(|(name, _)| *name == room).unwrap_or_else(|| panic!("a new room: {room}"));
        for named in named_rooms(&fs::read_to_string(&path).expect("a source")) {
            seen += 1;
            let is_allowed = named == room || allowed.contains(&named.as_str());
            assert!(is_allowed, "{} imports from {named}; {room} may know {allowed:?}", path.display());
        }
    }
    assert!(seen > 50, "the test reads nothing");
}

#[test]
fn core_knows_no_clock_no_network_and_no_async() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/core");
    for path in sources(&root) {
        let source = fs::read_to_string(&path).expect("a source");
        for word in [
            "tokio", "async fn", ".await", "reqwest", "axum", "rusqlite", "std::fs", "std::env", "::now()",
            "new_v4",
        ] {
            assert!(!source.contains(word), "{} knows {word}", path.display());
        }
    }
}

#[test]
fn only_the_table_of_problems_knows_failure_statuses() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/http");
    for path in sources(&root) {
        let source = fs::read_to_string(&path).expect("a source");
        let statuses = source
            .split("StatusCode::")
            .skip(1)
            .map(|rest| rest.split(|c: char| !c.is_alphanumeric() && c != '_').next());
        for status in statuses.flatten() {
            let is_success = matches!(status, "OK" | "ACCEPTED");
            assert!(is_success || path.ends_with("problem.rs"), "{} knows {status}", path.display());
        }
    }
}

/// Who looks for all that was said of a call looks for its trace.
#[test]
fn every_log_line_of_a_call_has_its_trace() {
    // A saga has many; of what cannot be read, or what another system names, nothing is known.
    let without = ["a saga needs a person", "a stored call cannot be read", "an anomaly was found"];
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/gateway");
    let mut seen = 0;
    for path in sources(&root) {
        let source = fs::read_to_string(&path).expect("a source");
        for level in ["debug", "info", "warn", "error"] {
            let macro_name = format!("tracing::{level}!(");
            let lines = source.split(&macro_name).skip(1);
            for line in lines.filter_map(|rest| rest.split(");").next()) {
                if line.contains("call_id") && !without.iter().any(|text| line.contains(text)) {
                    seen += 1;
                    assert!(line.contains("trace_id"), "{}: {line}", path.display());
                }
            }
        }
    }
    assert!(seen > 10, "the test reads nothing");
}

/// A break that does not fit the code any more would be noticed only by who tries them all.
#[test]
fn every_deliberate_break_fits_the_code() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let list = fs::read_to_string(root.join("tests/MUTATIONS.md")).expect("the list");
    let mut breaks = 0;
    for section in list.split("\n### ").skip(1) {
        let name = section.lines().next().expect("a name");
        let file = section.split("\nIn `").nth(1).and_then(|rest| rest.split('`').next());
        let hunk = section.split("```diff\n").nth(1).and_then(|rest| rest.split_once("\n```"));
        let (Some(file), Some((hunk, _))) = (file, hunk) else { panic!("{name}: no file, or no diff") };
        let old: String = hunk
            .lines()
            .filter(|line| !line.starts_with('+'))
            .map(|line| format!("\n{}", &line[1..]))
            .collect();
        let source =
            fs::read_to_string(root.join(file)).unwrap_or_else(|error| panic!("{name}: {file}: {error}"));
        let found = format!("\n{source}").matches(&format!("{old}\n")).count();
        assert_eq!(found, 1, "{name}: its text is in {file} {found} times");
        breaks += 1;
    }
    assert!(breaks > 40, "the test reads nothing");
}
