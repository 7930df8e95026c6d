//! Which room may know which. Imports point one way; this test holds the direction.

use std::fs;
use std::path::{Path, PathBuf};

use regex::Regex;

use crate::support::search::holds;

/// The rooms of the root package, each with those that it may import from. Of crates the compiler holds it.
const MAY_IMPORT: [(&str, &[&str]); 3] = [
    (
        "sim",
        &[
            "app",
            "config",
            "core",
            "downstream",
            "gateway",
            "http",
            "metrics",
            "store",
        ],
    ),
    ("telemetry", &["config", "core"]),
    (
        "app",
        &[
            "budget",
            "config",
            "console",
            "core",
            "http",
            "gateway",
            "store",
            "downstream",
            "mcp",
            "metrics",
            "proxy",
            "reconcile",
            "serve",
        ],
    ),
];

/// All files below some folders.
fn files(root: &Path, folders: &[&str]) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for folder in folders {
        for entry in fs::read_dir(root.join(folder)).expect("a folder") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                found.extend(files(&path, &["."]));
            } else {
                found.push(path);
            }
        }
    }
    found
}

/// All sources below a folder.
pub fn sources(under: &Path) -> Vec<PathBuf> {
    let mut found = files(under, &["."]);
    found.retain(|path| path.extension().is_some_and(|ending| ending == "rs"));
    found
}

/// All sources below some folders of the repository.
fn sources_of(folders: &[String]) -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let all = folders.iter();
    all.flat_map(|folder| sources(&root.join(folder))).collect()
}

/// The rooms that a source names, by `crate::room`.
fn named_rooms(source: &str) -> Vec<String> {
    let names = source.split("crate::").skip(1);
    names
        .map(|rest| {
            rest.chars()
                .take_while(|c| c.is_alphanumeric() || *c == '_')
                .collect()
        })
        .collect()
}

#[test]
fn imports_point_one_way() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut seen = 0;
    for path in sources(&root) {
        let inside = path.strip_prefix(&root).expect("below src");
        let room = inside
            .components()
            .next()
            .expect("a room")
            .as_os_str()
            .to_string_lossy();
        let room = room.trim_end_matches(".rs");
        if matches!(room, "main" | "lib") {
            continue;
        }
        let (_, allowed) = MAY_IMPORT
            .iter()
            .find(|(name, _)| *name == room)
            .unwrap_or_else(|| panic!("a new room: {room}"));
        for named in named_rooms(&fs::read_to_string(&path).expect("a source")) {
            seen += 1;
            let is_allowed = named == room || allowed.contains(&named.as_str());
            assert!(
                is_allowed,
                "{} imports from {named}; {room} may know {allowed:?}",
                path.display()
            );
        }
    }
    assert!(seen > 10, "the test reads nothing");
}

#[test]
fn the_rules_know_no_clock_no_network_and_no_async() {
    for path in sources_of(&["crates/rules/src", "crates/reconcile/src/rules"].map(str::to_owned)) {
        let source = fs::read_to_string(&path).expect("a source");
        for word in [
            "tokio", "async fn", ".await", "reqwest", "axum", "rusqlite", "std::fs", "std::env",
            "::now()", "new_v4",
        ] {
            assert!(!source.contains(word), "{} knows {word}", path.display());
        }
    }
}

#[test]
fn only_the_table_of_problems_and_those_of_protocols_know_failure_statuses() {
    let speaking = ["http", "console", "mcp", "proxy", "reconcile"];
    for path in sources_of(&speaking.map(|name| format!("crates/{name}/src"))) {
        let source = fs::read_to_string(&path).expect("a source");
        let statuses = source.split("StatusCode::").skip(1).map(|rest| {
            rest.split(|c: char| !c.is_alphanumeric() && c != '_')
                .next()
        });
        for status in statuses.flatten() {
            // The last: an API that callers use as it is has its own.
            let is_success = matches!(status, "OK" | "ACCEPTED" | "NOT_MODIFIED" | "from_u16");
            let is_table = path.ends_with("problem.rs") || path.ends_with("proxy/src/answers.rs");
            assert!(is_success || is_table, "{} knows {status}", path.display());
        }
    }
}

/// Who looks for all that was said of a call looks for its trace.
#[test]
fn every_log_line_of_a_call_has_its_trace() {
    // A saga has many; of what cannot be read, or what another system names, nothing is known.
    let without = [
        "a saga needs an operator",
        "a stored call cannot be read",
        "an anomaly was found",
    ];
    let mut seen = 0;
    let logging = ["engine", "mcp", "proxy", "reconcile"];
    for path in sources_of(&logging.map(|name| format!("crates/{name}/src"))) {
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

/// What core decides about a call is written in one way, with one answer to a faster writer.
#[test]
fn one_file_asks_core_about_calls_and_writes_what_it_says() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut asks = Vec::new();
    let all = ["src", "crates"].map(|top| sources(&root.join(top)));
    for path in all.into_iter().flatten() {
        let inside = path.strip_prefix(root).expect("inside");
        let source = fs::read_to_string(&path).expect("a source");
        let writes = [
            ".replace(&change",
            ".claim(&change",
            ".replace(change",
            ".claim(change",
        ];
        // A model of it, and a store that breaks, for tests only.
        let is_model = ["src/sim", "crates/explore", "crates/rules"];
        if is_model.iter().any(|of| inside.starts_with(of)) {
            continue;
        }
        let mut of = inside
            .components()
            .map(|part| part.as_os_str().to_string_lossy());
        let is_store = of.nth(1).is_some_and(|name| name.starts_with("store"));
        let asks_or_writes =
            source.contains("call::next(") || writes.iter().any(|write| source.contains(write));
        if asks_or_writes && !is_store {
            asks.push(inside.to_owned());
        }
    }
    assert_eq!(asks, [Path::new("crates/engine/src/transition.rs")]);
}

/// A break that does not fit the code any more would be noticed only by a run of all of them.
#[test]
fn every_deliberate_break_fits_the_code() {
    #[derive(serde::Deserialize)]
    struct List {
        r#break: Vec<Break>,
    }
    #[derive(serde::Deserialize)]
    struct Break {
        name: String,
        file: String,
        find: String,
        tests: Vec<String>,
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let list = fs::read_to_string(root.join("tests/breaks.toml")).expect("the list");
    let list: List = toml::from_str(&list).expect("TOML");
    let tests: String = ["src", "crates", "tests/it"]
        .iter()
        .flat_map(|folder| sources(&root.join(folder)))
        .map(|path| fs::read_to_string(path).expect("a source"))
        .collect();
    for Break {
        name,
        file,
        find,
        tests: named,
    } in &list.r#break
    {
        let source = fs::read_to_string(root.join(file))
            .unwrap_or_else(|error| panic!("{name}: {file}: {error}"));
        let find = Regex::new(find).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(
            find.find_iter(&source).count(),
            1,
            "{name}: its matches in {file}"
        );
        for test in named {
            // The last part may be the store, where a macro makes a test for each.
            let is_there = test
                .rsplit("::")
                .take(2)
                .any(|part| holds(tests.as_bytes(), format!("fn {part}(")));
            assert!(is_there, "{name}: there is no test {test}");
        }
    }
    assert!(list.r#break.len() > 15, "the test reads nothing");
}

/// Each promise of the threat model, and each bug of another system, names the tests that show it.
#[test]
fn every_test_that_a_page_names_is_there() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    for (page, least) in [("SECURITY.md", 20), ("docs/evidence/peers-bugs.md", 60)] {
        let text = fs::read_to_string(root.join(page)).expect("a page");
        let mut seen = 0;
        for name in text.split('`').skip(1).step_by(2) {
            let Some((file, test)) = name.split_once("::").filter(|(file, _)| *file != "file")
            else {
                continue;
            };
            let folder = if file.starts_with("src/") || file.starts_with("crates/") {
                ""
            } else {
                "tests/it/"
            };
            let path = root.join(format!("{folder}{file}.rs"));
            let mut source =
                fs::read_to_string(&path).unwrap_or_else(|error| panic!("{name}: {error}"));
            if file.starts_with("stores/contract/") {
                let list = root.join("tests/it/stores/contract.rs");
                source += &fs::read_to_string(list).expect("the contract");
            }
            assert!(
                is_run(&source, test),
                "{page}: {name} is not a test of that file"
            );
            seen += 1;
        }
        assert!(seen >= least, "{page} names {seen} tests");
    }
}

/// Whether a source has this function as a test: by its attribute, or in a list of those that run over each store.
fn is_run(source: &str, test: &str) -> bool {
    let function = format!("fn {test}(");
    let Some((before, _)) = source.split_once(&function) else {
        return false;
    };
    let above = before.rsplit_once('\n').map_or("", |(above, _)| above);
    let mut attributes = above.lines().rev().take_while(|line| {
        let line = line.trim_start();
        line.starts_with('#') || line.starts_with("//")
    });
    let is_listed = source.contains(&format!("    {test},\n"));
    is_listed || attributes.any(|line| line.trim_start().starts_with('#') && line.contains("test"))
}

/// The pages for developers, with their texts.
fn pages() -> Vec<(PathBuf, String)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut pages = vec![root.join("ARCHITECTURE.md"), root.join("CONTRIBUTING.md")];
    let internals = fs::read_dir(root.join("docs/internals")).expect("the walkthroughs");
    pages.extend(internals.map(|entry| entry.expect("an entry").path()));
    pages.extend(["mutants", "tests"].map(|page| root.join(format!("docs/evidence/{page}.md"))));
    let read = |page: PathBuf| {
        let text = fs::read_to_string(&page).expect("a page");
        (page, text)
    };
    pages.into_iter().map(read).collect()
}

/// A page that says "`name` in `file`" is wrong once the name has moved to another file.
#[test]
fn every_name_that_a_page_for_developers_places_in_a_file_is_defined_there() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let placed = Regex::new(r"`(?:\w+::)*(\w+)(?:\(\))?` in `((?:src|crates)/[\w/-]+\.rs)`")
        .expect("a regex");
    let mut seen = 0;
    for (page, text) in pages() {
        for found in placed.captures_iter(&text) {
            let (name, file) = (&found[1], &found[2]);
            let source = fs::read_to_string(root.join(file)).expect("a source");
            let defined = Regex::new(&format!(
                r"\b(fn|struct|enum|const|static) {name}\b|impl.* {name}<.*> for "
            ));
            let is_defined = defined.expect("a regex").is_match(&source);
            assert!(is_defined, "{}: {name} is not in {file}", page.display());
            seen += 1;
        }
    }
    assert!(seen > 15, "the test reads nothing");
}

/// A walkthrough that names a file which has moved sends its reader nowhere.
#[test]
fn every_file_that_a_page_for_developers_names_exists() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut seen = 0;
    for (page, text) in pages() {
        let roots = ["src/", "crates/", "tests/", "docs/", "config/", "scripts/"];
        for name in text.split(['`', ' ', '(', ')', '\n']) {
            let is_path = roots.iter().any(|root| name.starts_with(root)) && !name.contains('*');
            let path = name.split(['#', ':']).next().unwrap_or(name);
            let path = path.trim_end_matches([',', '.', ';']);
            if is_path {
                seen += 1;
                assert!(root.join(path).exists(), "{}: {name}", page.display());
            }
        }
    }
    assert!(seen > 60, "the test reads nothing");
}

/// A snapshot that no test makes is never compared, and looks as if it were.
#[test]
fn every_snapshot_is_made_by_a_test() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut seen = 0;
    for folder in files(root, &["src", "crates", "tests"]) {
        let Some(name) = folder.file_name().and_then(|name| name.to_str()) else {
            continue;
        };
        let Some(stem) = name.strip_suffix(".snap") else {
            assert!(!name.ends_with(".snap.new"), "{name} was never reviewed");
            continue;
        };
        let text = fs::read_to_string(&folder).expect("a snapshot");
        let source = text.lines().find_map(|line| line.strip_prefix("source: "));
        let source = fs::read_to_string(root.join(source.expect("its source"))).expect(name);
        let made = stem.rsplit("__").next().expect("a name");
        // A name that is made for each of several formats ends with the format.
        let family = made.split_once('_').map_or(made, |(family, _)| family);
        let is_made = source.contains(&format!("assert_snapshot!(\"{made}\""))
            || source.contains(&format!("assert_snapshot!(format!(\"{family}_"));
        assert!(is_made, "no test makes {name}");
        seen += 1;
    }
    assert!(seen >= 10, "the test reads nothing");
}

/// Words that make a sentence a riddle: it has to be said who.
#[test]
fn what_users_read_says_who_is_meant() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut pages = vec![
        root.join("README.md"),
        root.join("SECURITY.md"),
        root.join("config/oncegate.toml"),
    ];
    for folder in ["docs", "docs/evidence"] {
        let docs = fs::read_dir(root.join(folder)).expect("the docs");
        pages.extend(
            docs.map(|entry| entry.expect("an entry").path())
                .filter(|path| path.extension().is_some_and(|end| end == "md")),
        );
    }
    assert!(pages.len() > 10, "the test reads nothing");
    for page in pages {
        let text = fs::read_to_string(&page).expect("a page");
        for (number, line) in (1..).zip(text.lines()) {
            // Names of tests are what they are.
            let words = line.split_whitespace().filter(|word| !word.contains("::"));
            let said = words.collect::<Vec<_>>().join(" ").to_lowercase();
            for word in ["whoever", "somebody", "nobody", "anybody"] {
                assert!(!said.contains(word), "{}:{number}: {line}", page.display());
            }
        }
    }
}
