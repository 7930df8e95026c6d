//! Words that this code once used with a meaning of its own. Texts and comments use the words of the field.

use std::fs;
use std::path::{Path, PathBuf};

use regex::Regex;

/// What must not be said any more, as regular expressions, and what is said instead.
const RETIRED: [(&str, &str); 32] = [
    (r"(?:^|[ (])[Dd]oors?(?:$|[ .,;:'])", "route, endpoint"),
    (r"(?:^|[ (])[Pp]ersons?(?:$|[ .,;:'])", "operator"),
    (r"(?:^|[ (])[Rr]ecipes?(?:$|[ .,;:'])", "key scheme"),
    (
        r"(?:^|[ (])[Ss]trangers?(?:$|[ .,;:'])",
        "unauthenticated client",
    ),
    (r"[Pp]ass(?:ed|es)? on(?:$|[ .,;:])", "forward"),
    (r"[Mm]end (?:it|the)\b", "fix"),
    ("is no place", "is not a place"),
    ("told to stop once more", "second stop signal"),
    ("ended by itself", "ended unexpectedly"),
    ("wait is longer than the longest", "must not exceed"),
    ("no such door", "no such route"),
    ("takes another method", "method not allowed"),
    ("runs nothing without a key", "requires an idempotency key"),
    ("belong into", "keep in"),
    ("are to be sent again wait", "retries are deferred"),
    ("the right to a new key", "permit"),
    ("two readers could understand", "ambiguous JSON"),
    ("is one caller, and the other", "must have the same tenant"),
    ("bounds nothing", "must be at most"),
    ("needs some time", "must be longer than zero"),
    ("in no time", "must be longer than zero"),
    ("never useful", "must be at most"),
    ("everyone is let in", "callers are not authenticated"),
    ("opens nothing any more", "is not accepted any more"),
    ("came and went", "appeared and disappeared"),
    ("cannot be heard", "cannot be received"),
    (r"tells? of changes", "report changes"),
    ("is none of", "is not one of"),
    (r"is none that", "is not one that"),
    (r"\bdisown", "release"),
    (r"[Tt]his room\b", "this crate"),
    (
        r"\b(?:[Nn]obody|[Ww]hoever|[Ss]omebody|[Aa]nybody)\b",
        "who is meant",
    ),
];

/// The same for names in code, as regular expressions of a whole name. What is stored or sent keeps its name, in a string.
const RETIRED_NAMES: [(&str, &str); 31] = [
    (r"(?i)\w*recipe\w*", "key_scheme"),
    (r"[Pp]rints", "fingerprints"),
    (r"[Bb]rought", "preconditions"),
    (r"[Pp]ace", "timings"),
    ("Met|meet", "Resolved, resolve"),
    ("aged", "dedup_now"),
    ("(?i)disown", "release_unconfirmed"),
    ("Finished", "ReplayCache"),
    ("instead_of", "replaced"),
    (
        "all_names|has_name|TakeNames|(?:take|lose)_names",
        "lookups",
    ),
    (r"[Uu]?n?[Tt]old|is_told|has_told", "answer, notification"),
    (r"told_\w+", "answer, explanation"),
    (r"[Kk]ept|KEPT|is_kept", "stored; in audit: recorded"),
    (
        "kept_(?:mut|as|until|if_changed|to_its_end)",
        "stored, recorded",
    ),
    (r"[Pp]assed|is_passed", "proxied, forwarded, elapsed"),
    ("(?i)passed_(?:on|through)", "proxied, forwarded"),
    ("image|bytes_to_view", "stored form, compared form"),
    ("Places|_place|has_place|place_for|ExportPlace", "permit"),
    (r"[Rr]ooms?|_room|has_room|with(?:out)?_room", "reservation"),
    (
        "NoRoom|HasRoom|(?i:no|needs|lacks)_(?i:room)",
        "memory, space",
    ),
    ("must_have_room|needs_spare_room", "space"),
    ("Marks?|marks", "version, loss counters, flags"),
    ("MARK|MARKS", "format, loss counters"),
    (r"[Dd]oors?", "interface, route, router"),
    (r"[Dd]eeds?", "action"),
    (r"[Pp]ersons?", "operator"),
    (r"(?:\w+_)?by_person|\w+_person", "operator"),
    (r"(?i:strangers?)", "unauthenticated client"),
    (r"(?:\w+_)strangers?", "unauthenticated client"),
    ("UnknownRound|is_of_round", "elicitation"),
    ("work_on", "begin_check, with_call_context"),
];

/// Names that are retired below some folders, where they had a meaning of their own.
const RETIRED_BELOW: [(&str, &str, &str); 8] = [
    ("crates/engine/src/calls", "names", "lookups"),
    ("crates/engine/src/calls", "rounds?|Round", "elicitation"),
    ("crates/engine/src/callers", "places?|Place", "permit"),
    ("crates/serve/src", "places?|Place", "permit"),
    ("crates/rules/src/limits", "places?|Place", "permit"),
    (
        "crates/rules/src/key_scheme",
        "names|view",
        "lookups, compared form",
    ),
    ("crates/rules/src/mcp", "(?i:rounds?)", "elicitation"),
    ("crates/rules/src/proxy", "view", "compared form"),
];

/// "X is no Y", where English says "X is not a Y". "There is no Y" is English, and so is what follows here.
const IS_NO: &str = r"\b(\w+) (?:is|are|was|were) no (\w+)";
const AFTER_NO: [&str; 6] = ["longer", "more", "less", "better", "older", "doubt"];

/// Strings of several words, and comments. Other literals are there so that a quote in them begins no string.
const PROSE: &str = r###"(?s)(?P<comment>//[^\n]*)|r##".*?"##|(?P<raw>r#".*?"#)|r"[^"]*"|(?P<string>"(?:\\.|[^"\\])*")|'(?:\\u\{\w*\}|\\x..|\\.|[^'\\\n])'"###;

/// All files below a folder.
fn files(under: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(under).expect("a folder") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            found.extend(files(&path));
        } else {
            found.push(path);
        }
    }
    found
}

/// The texts of a source, each with its line.
fn texts(prose: &Regex, source: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    for one in prose.captures_iter(source) {
        let Some(text) = ["comment", "raw", "string"]
            .iter()
            .find_map(|kind| one.name(kind))
        else {
            continue;
        };
        let line = source[..text.start()].matches('\n').count() + 1;
        let is_comment = one.name("comment").is_some();
        if is_comment || text.as_str().contains(' ') {
            let words = text.as_str().trim_matches(['/', '!', ' ', '"', 'r', '#']);
            found.push((line, words.to_owned()));
        }
    }
    found
}

/// A line without `code`, which is named as it is.
fn without_code(code: &Regex, line: &str) -> String {
    code.replace_all(line, "`").into_owned()
}

#[test]
fn no_text_and_no_comment_uses_a_retired_word() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let retired = RETIRED.map(|(word, instead)| (Regex::new(word).expect("a regex"), instead));
    let is_no = Regex::new(IS_NO).expect("a regex");
    let prose = Regex::new(PROSE).expect("a regex");
    let code = Regex::new("`[^`\n]*`").expect("a regex");
    let mut wrong = Vec::new();
    let mut seen = 0;
    let mut all = vec![root.join("README.md"), root.join("SECURITY.md")];
    for folder in ["src", "crates", "config", "docs"] {
        all.extend(files(&root.join(folder)));
    }
    for path in all {
        let ending = path.extension().and_then(|ending| ending.to_str());
        let Ok(text) = fs::read_to_string(&path) else {
            continue;
        };
        let texts = match ending {
            Some("rs") => texts(&prose, &text),
            Some("md" | "toml" | "yml" | "yaml" | "conf") => {
                let lines = (1..).zip(text.lines());
                lines
                    .map(|(number, line)| (number, line.to_owned()))
                    .collect()
            }
            _ => continue,
        };
        seen += texts.len();
        for (number, text) in texts {
            let text = without_code(&code, &text);
            let mut complain = |instead: &str| {
                let path = path.strip_prefix(root).expect("below the root");
                wrong.push(format!("{}:{number}: {instead}: {text}", path.display()));
            };
            for (word, instead) in &retired {
                if word.is_match(&text) {
                    complain(instead);
                }
            }
            for found in is_no.captures_iter(&text) {
                let is_english =
                    found[1].eq_ignore_ascii_case("there") || AFTER_NO.contains(&&found[2]);
                if !is_english {
                    complain("is not a");
                }
            }
        }
    }
    assert!(seen > 10_000, "the test reads nothing: {seen}");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn no_name_in_code_is_a_retired_one() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let whole = |name: &str| Regex::new(&format!("^(?:{name})$")).expect("a regex");
    let retired = RETIRED_NAMES.map(|(name, instead)| (whole(name), instead));
    let retired_below = RETIRED_BELOW.map(|(folder, name, instead)| (folder, whole(name), instead));
    let prose = Regex::new(PROSE).expect("a regex");
    let name = Regex::new(r"\b[A-Za-z_]\w*").expect("a regex");
    let (mut wrong, mut seen) = (Vec::new(), 0);
    let folders = ["src", "crates"].map(|folder| files(&root.join(folder)));
    for path in folders.into_iter().flatten() {
        if path.extension().is_none_or(|ending| ending != "rs") {
            continue;
        }
        let below = path.strip_prefix(root).expect("below the root");
        let here: Vec<_> = (retired.iter().map(|(name, instead)| (name, instead)))
            .chain(retired_below.iter().filter_map(|(folder, name, instead)| {
                below.starts_with(folder).then_some((name, instead))
            }))
            .collect();
        let source = fs::read_to_string(&path).expect("a source");
        let code = prose.replace_all(&source, "\"\"");
        for found in name.find_iter(&code) {
            seen += 1;
            let is_it = |(name, _): &&(&Regex, &&str)| name.is_match(found.as_str());
            if let Some((_, instead)) = here.iter().find(is_it) {
                wrong.push(format!(
                    "{}: {}: {instead}",
                    below.display(),
                    found.as_str()
                ));
            }
        }
    }
    assert!(seen > 100_000, "the test reads nothing: {seen}");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
