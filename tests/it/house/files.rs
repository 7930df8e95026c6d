//! The files of the house: none import each other in a circle, none is too long, no folder has too many, and no struct does
//! too much.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use regex::Regex;

const MOST_LINES: usize = 500;
const MOST_FILES: usize = 20;
const MOST_METHODS: usize = 30;

/// Each Rust file below these folders, by its path in the repository.
fn files_below(tops: &[&str]) -> BTreeMap<String, PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut found = BTreeMap::new();
    let mut folders: Vec<_> = tops.iter().map(|top| root.join(top)).collect();
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).expect("a folder") {
            let path = entry.expect("an entry").path();
            let inside = path.strip_prefix(root).expect("in the repository");
            let name = inside.to_str().expect("a name").to_owned();
            if path.is_dir() {
                folders.push(path);
            } else if name.ends_with(".rs") {
                found.insert(name, path);
            }
        }
    }
    found
}

/// The folder with the sources of each crate, in the repository.
fn crates() -> Vec<String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let crates = fs::read_dir(root.join("crates")).expect("the crates");
    let names = crates.map(|entry| entry.expect("an entry").file_name());
    let mut found = vec!["src".to_owned()];
    found.extend(names.map(|name| format!("crates/{}/src", name.to_str().expect("a name"))));
    found
}

/// Each file of a crate that is not a test, without its tests and comments, by its path below `src`.
fn sources(of: &str) -> BTreeMap<String, String> {
    let mut files = files_below(&[of]);
    files.retain(|name, _| !is_of_tests(name));
    let sources = files.iter().map(|(name, path)| {
        let name = name.strip_prefix(of).expect("below the folder");
        (name.trim_start_matches('/').to_owned(), without_tests(path))
    });
    sources.collect()
}

/// Whether a file below `src` has tests only.
fn is_of_tests(name: &str) -> bool {
    name.ends_with("tests.rs") || name.contains("/tests/")
}

fn without_tests(path: &PathBuf) -> String {
    let source = fs::read_to_string(path).expect("a source");
    let lines = source.lines().map(|line| {
        let is_comment = line.trim_start().starts_with("//");
        if is_comment { "" } else { line }
    });
    let tests = "#[cfg(test)]\nmod tests";
    let code = lines.collect::<Vec<_>>().join("\n");
    code.split(tests).next().expect("a part").to_owned()
}

type Names = Vec<String>;

/// The module that a file is.
fn module_of(file: &str) -> Names {
    let mut names: Names = file
        .trim_end_matches(".rs")
        .split('/')
        .map(str::to_owned)
        .collect();
    if matches!(names.last().map(String::as_str), Some("mod" | "lib")) {
        names.pop();
    }
    names
}

/// The paths in the tree of a `use`.
fn paths_in(tree: &str, prefix: &[String]) -> Vec<Names> {
    let (head, inner) = match tree.split_once('{') {
        Some((head, rest)) => (head, rest.rsplit_once('}').map(|(inner, _)| inner)),
        None => (tree, None),
    };
    let head = head.split(" as ").next().unwrap_or_default();
    let mut path = prefix.to_vec();
    let names = head.split("::").map(str::trim);
    path.extend(
        names
            .filter(|name| !name.is_empty() && (*name != "self" || prefix.is_empty()))
            .map(str::to_owned),
    );
    let Some(inner) = inner else {
        return vec![path];
    };
    let (mut depth, mut from, mut parts) = (0, 0, Vec::new());
    for (at, letter) in inner.char_indices() {
        match letter {
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 0 => {
                parts.push(&inner[from..at]);
                from = at + 1;
            }
            _ => {}
        }
    }
    parts.push(&inner[from..]);
    let parts = parts.into_iter().filter(|part| !part.trim().is_empty());
    parts.flat_map(|part| paths_in(part, &path)).collect()
}

/// What a file names, and under which names it gives on what others define.
#[derive(Default)]
struct Imports {
    used: Vec<Names>,
    given_on: BTreeMap<String, Names>,
}

struct House {
    /// Files by their modules.
    modules: BTreeMap<Names, String>,
    imports: BTreeMap<Names, Imports>,
}

impl House {
    fn read(sources: &BTreeMap<String, String>) -> Self {
        let files = sources.keys().filter(|file| *file != "main.rs");
        let modules = files.map(|file| (module_of(file), file.clone())).collect();
        let mut house = Self {
            modules,
            imports: BTreeMap::new(),
        };
        let uses = Regex::new(r"(?m)^\s*(pub(?:\([^)]*\))?\s+)?use\s+([^;]+);").expect("a regex");
        let inline = Regex::new(r"\b(?:crate|super)(?:::\w+)+").expect("a regex");
        let visibility = Regex::new(r"pub\(in [\w:]+\)").expect("a regex");
        for (module, file) in &house.modules {
            let mut imports = Imports::default();
            let source = &sources[file];
            for found in uses.captures_iter(source) {
                for path in paths_in(&found[2], &[]) {
                    let Some(path) = house.absolute(module, &path) else {
                        continue;
                    };
                    match (found.get(1), path.last()) {
                        (Some(_), Some(name)) => {
                            imports.given_on.insert(name.clone(), path.clone());
                        }
                        _ => imports.used.push(path),
                    }
                }
            }
            let body = uses.replace_all(source, "");
            let body = visibility.replace_all(&body, "");
            for found in inline.find_iter(&body) {
                let path = paths_in(found.as_str(), &[]).remove(0);
                imports.used.extend(house.absolute(module, &path));
            }
            house.imports.insert(module.clone(), imports);
        }
        house
    }

    /// A path from the crate on; `None`: it is of another crate.
    fn absolute(&self, module: &[String], path: &[String]) -> Option<Names> {
        let mut from = module.to_vec();
        let mut rest = path;
        match rest.first()?.as_str() {
            "crate" => {
                from.clear();
                rest = &rest[1..];
            }
            "self" => rest = &rest[1..],
            "super" => {
                while rest.first().is_some_and(|name| name == "super") {
                    from.pop();
                    rest = &rest[1..];
                }
            }
            first => {
                from.push(first.to_owned());
                let is_child = self.modules.contains_key(&from);
                from.pop();
                if !is_child {
                    return None;
                }
            }
        }
        from.extend_from_slice(rest);
        Some(from)
    }

    /// The file that defines what a path names, behind all that give it on.
    fn file_of(&self, path: &[String]) -> Option<&str> {
        let module = (0..=path.len())
            .rev()
            .map(|length| &path[..length])
            .find(|module| self.modules.contains_key(*module))?;
        let rest = &path[module.len()..];
        if let Some(name) = rest.first()
            && let Some(given_on) = self.imports[module].given_on.get(name)
            && given_on != path
        {
            let further = [given_on.as_slice(), &rest[1..]].concat();
            return self.file_of(&further);
        }
        Some(&self.modules[module])
    }

    /// The files that each file needs.
    fn arrows(&self) -> BTreeMap<&str, BTreeSet<&str>> {
        let arrows = self.modules.iter().map(|(module, file)| {
            let needed = self.imports[module].used.iter();
            let needed = needed.filter_map(|path| self.file_of(path));
            (
                file.as_str(),
                needed.filter(|needed| needed != file).collect(),
            )
        });
        arrows.collect()
    }
}

fn reaches<'a>(arrows: &BTreeMap<&'a str, BTreeSet<&'a str>>, from: &'a str) -> BTreeSet<&'a str> {
    let (mut reached, mut waiting) = (BTreeSet::new(), vec![from]);
    while let Some(file) = waiting.pop() {
        for next in &arrows[file] {
            if reached.insert(*next) {
                waiting.push(next);
            }
        }
    }
    reached
}

#[test]
fn no_files_import_each_other_in_a_circle() {
    let mut seen = 0;
    for of in crates() {
        let sources = sources(&of);
        let house = House::read(&sources);
        let arrows = house.arrows();
        seen += arrows.values().map(BTreeSet::len).sum::<usize>();
        let in_circles = arrows
            .keys()
            .filter(|file| reaches(&arrows, file).contains(*file));
        let in_circles: Vec<_> = in_circles
            .map(|file| {
                let back = arrows[file]
                    .iter()
                    .filter(|next| reaches(&arrows, next).contains(file));
                (*file, back.collect::<Vec<_>>())
            })
            .collect();
        assert!(in_circles.is_empty(), "{of}: in circles: {in_circles:#?}");
    }
    assert!(seen > 500, "the test reads nothing");
}

#[test]
fn no_struct_has_more_methods_than_a_reader_can_keep_in_mind() {
    let block = Regex::new(r"^impl(?:<[^>]*>)? (\w+)(?:<.*>)? \{$").expect("a regex");
    let method =
        Regex::new(r"^    (?:pub(?:\([^)]*\))? )?(?:const )?(?:async )?fn (\w+)").expect("a regex");
    let mut methods = BTreeMap::<(String, String), usize>::new();
    let of_crates = crates();
    let all = of_crates.iter().flat_map(|of| {
        let sources = sources(of).into_iter();
        sources.map(move |(file, source)| (format!("{of}/{file}"), source))
    });
    for (file, source) in all {
        // One struct may have blocks in several files of a folder.
        let (of, inside) = file.split_once("src/").expect("below src");
        let room = inside.trim_end_matches(".rs").split('/').next();
        let room = format!("{of}{}", room.expect("a name"));
        let mut of = None::<String>;
        for line in source.lines() {
            if let Some(found) = block.captures(line) {
                of = Some(found[1].to_owned());
            } else if line == "}" {
                of = None;
            } else if let (Some(of), true) = (&of, method.is_match(line)) {
                *methods.entry((room.clone(), of.clone())).or_default() += 1;
            }
        }
    }
    assert!(
        methods.values().sum::<usize>() > 500,
        "the test reads nothing"
    );
    methods.retain(|_, count| *count > MOST_METHODS);
    assert!(methods.is_empty(), "too many methods: {methods:#?}");
}

#[test]
fn no_file_is_too_long_to_be_read_at_once() {
    let mut files = files_below(&["src", "crates", "tests", "examples", "benches"]);
    assert!(files.len() > 400, "the test reads nothing");
    // Tables of cases beside the code are long and flat.
    files.retain(|name, _| !(name.contains("src/") && is_of_tests(name)));
    let long = files.into_iter().filter_map(|(name, path)| {
        let lines = fs::read_to_string(path).expect("a source").lines().count();
        (lines > MOST_LINES).then_some((name, lines))
    });
    let long: Vec<_> = long.collect();
    assert!(long.is_empty(), "too long: {long:#?}");
}

#[test]
fn no_folder_has_more_files_than_a_reader_can_look_through() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut folders: Vec<_> = ["src", "crates"].map(|top| root.join(top)).into();
    let (mut crowded, mut seen) = (BTreeMap::new(), 0);
    while let Some(folder) = folders.pop() {
        let entries = fs::read_dir(&folder).expect("a folder");
        let entries = entries.map(|entry| entry.expect("an entry").path());
        let (inner, files): (Vec<_>, Vec<_>) = entries.partition(|path| path.is_dir());
        seen += files.len();
        if files.len() > MOST_FILES {
            let name = folder.strip_prefix(root).expect("in the repository");
            crowded.insert(name.to_owned(), files.len());
        }
        folders.extend(inner);
    }
    assert!(seen > 400, "the test reads nothing");
    assert!(crowded.is_empty(), "too many files: {crowded:#?}");
}

/// The crates that a manifest names, without those for tests.
fn dependencies(manifest: &str) -> BTreeSet<String> {
    let after = manifest.split("[dependencies]").nth(1).unwrap_or_default();
    let lines = after
        .lines()
        .skip(1)
        .take_while(|line| !line.starts_with('['));
    lines
        .filter_map(|line| line.split([' ', '.']).next()?.strip_prefix("oncegate-"))
        .map(str::to_owned)
        .collect()
}

/// The drawing of the crates in ARCHITECTURE.md: each with its group, and those that it names.
fn drawing() -> BTreeMap<String, (String, BTreeSet<String>)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let page = fs::read_to_string(root.join("ARCHITECTURE.md")).expect("the page");
    let drawn = page.split("```crates\n").nth(1).expect("the drawing");
    let (mut group, mut crates) = (String::new(), BTreeMap::new());
    for line in drawn.lines().take_while(|line| *line != "```") {
        match line.split_once("->") {
            None => group = line.to_owned(),
            Some((name, needed)) => {
                let needed = needed.split_whitespace().map(str::to_owned).collect();
                crates.insert(name.trim().to_owned(), (group.clone(), needed));
            }
        }
    }
    crates
}

#[test]
fn the_drawing_of_the_crates_is_true_and_the_kernel_names_no_wing() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let drawn = drawing();
    let folders = fs::read_dir(root.join("crates")).expect("the crates");
    let mut seen = BTreeSet::new();
    for folder in folders {
        let folder = folder.expect("an entry").path();
        let name = folder.file_name().and_then(|name| name.to_str());
        let name = name.expect("a name").to_owned();
        let manifest = fs::read_to_string(folder.join("Cargo.toml")).expect("a manifest");
        let (group, needed) = drawn
            .get(&name)
            .unwrap_or_else(|| panic!("ARCHITECTURE.md does not draw {name}"));
        let mut named = dependencies(&manifest);
        if named.is_empty() && group == "proof" {
            // It has tests only.
            named = dependencies(&manifest.replace("[dev-dependencies]", "[dependencies]"));
        }
        assert_eq!(&named, needed, "what {name} names");
        if group == "kernel" {
            let wing = named.iter().find(|named| drawn[*named].0 != "kernel");
            assert_eq!(wing, None, "{name} is of the kernel");
        }
        let readme = folder.join("README.md");
        let lines = fs::read_to_string(&readme).map(|text| text.lines().count());
        let lines = lines.unwrap_or_else(|error| panic!("{}: {error}", readme.display()));
        assert!(
            (5..=40).contains(&lines),
            "{name}'s README has {lines} lines"
        );
        seen.insert(name);
    }
    assert_eq!(seen, drawn.into_keys().collect());
}
