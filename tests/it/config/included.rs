//! A configuration in several files: `include = ["tools.d/*.toml"]`.

use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::support::binary::run;

const FIRST: &str = "include = [\"tools.d/*.toml\"]\n[store]\nurl = \"sqlite:x.db\"\n";

fn tool(name: &str) -> String {
    format!("[tools.{name}]\nurl = \"http://127.0.0.1:9/{name}\"\n")
}

/// A folder with these files.
fn folder(files: &[(&str, &str)]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    fs::create_dir(folder.path().join("tools.d")).expect("a folder in it");
    write(folder.path(), files);
    folder
}

fn write(folder: &Path, files: &[(&str, &str)]) {
    for (name, text) in files {
        fs::write(folder.join(name), text).expect("a file");
    }
}

/// Whether the check passes, and all that it says.
fn check(folder: &Path, more: &[&str]) -> (bool, String) {
    let all = [&["check", "--config", "main.toml"], more].concat();
    let output = run(folder, &all);
    let said = [output.stdout, output.stderr].concat();
    (
        output.status.success(),
        String::from_utf8(said).expect("text"),
    )
}

/// That the first file with these others is refused, and what is said.
#[track_caller]
fn refused(files: &[(&str, &str)]) -> String {
    let folder = folder(files);
    let (is_good, said) = check(folder.path(), &[]);
    assert!(!is_good, "{said}");
    said
}

#[test]
fn included_files_add_tools_and_tokens_and_stand_relative_to_the_including_file() {
    let token = |name: &str, digit: &str| {
        let digest = digit.repeat(64);
        format!(
            "[[auth.tokens]]\nname = \"{name}\"\ntenant = \"t\"\nsha256 = \"{digest}\"\nscopes = [\"call\"]\n"
        )
    };
    let folder = folder(&[
        (
            "main.toml",
            &format!("{FIRST}{}{}", token("a", "0"), tool("first")),
        ),
        (
            "tools.d/pay.toml",
            &format!(
                "include = [\"more/ship.toml\"]\n{}{}",
                token("b", "1"),
                tool("pay")
            ),
        ),
        ("tools.d/.#pay.toml", "an editor's"),
        ("tools.d/pay.toml~", "an editor's"),
    ]);
    fs::create_dir(folder.path().join("tools.d/more")).expect("a folder");
    write(folder.path(), &[("tools.d/more/ship.toml", &tool("ship"))]);
    let (is_good, said) = check(folder.path(), &[]);
    assert!(
        is_good && said.ends_with("ok: 3 tools, 2 tokens\n"),
        "{said}"
    );
    // From another folder, too.
    let config = folder.path().join("main.toml");
    let elsewhere = tempfile::tempdir().expect("a folder");
    let output = run(
        elsewhere.path(),
        &["check", "--config", config.to_str().expect("text")],
    );
    assert!(output.status.success(), "{output:?}");
}

#[test]
fn a_mistake_is_placed_in_its_file_with_line_and_column() {
    let bad = "\n[tools.b]\nurl = \"http://127.0.0.1:9/b\"\ntimeout = \"soon\"\n";
    let files = [
        ("main.toml", &*format!("{FIRST}[tools.a]\n")),
        ("tools.d/b.toml", bad),
        ("tools.d/c.toml", "[tools.c]\nurl = \"${NOT_SET}\"\n"),
        ("tools.d/d.toml", "[tools.d\n"),
    ];
    let said = refused(&files);
    let lines: Vec<&str> = said.lines().collect();
    assert!(
        lines[0].starts_with("main.toml:4:1: tools.a.url: "),
        "{said}"
    );
    assert!(
        lines
            .iter()
            .any(|line| line.starts_with("tools.d/b.toml:4:11: tools.b.timeout: ")),
        "{said}"
    );
    assert!(
        lines
            .iter()
            .any(|line| line.starts_with("tools.d/c.toml:2:7: tools.c.url: ")
                && line.contains("NOT_SET")),
        "{said}"
    );
    assert!(
        lines
            .iter()
            .any(|line| line.starts_with("tools.d/d.toml:1:9: ")),
        "{said}"
    );
    let folder = folder(&files);
    let (_, found) = check(folder.path(), &["--json"]);
    let found: Value = serde_json::from_str(found.lines().next().expect("a line")).expect("JSON");
    let first = found["mistakes"][1].as_str().expect("a sentence");
    assert!(first.starts_with("tools.d/b.toml:4:11: "), "{first}");
}

#[test]
fn one_thing_stands_in_one_file() {
    let said = refused(&[
        ("main.toml", FIRST),
        ("tools.d/a.toml", &tool("pay")),
        (
            "tools.d/b.toml",
            "[tools.pay]\ntimeout = \"1s\"\n[store]\nurl = \"sqlite:y.db\"\n",
        ),
    ]);
    assert!(
        said.contains("tools.d/b.toml:1:1: tools.pay: it is set in another file already, at tools.d/a.toml:1:1\n"),
        "{said}"
    );
    assert!(
        said.contains("tools.d/b.toml:4:7: store.url: it is set in another file already, at 3:7\n"),
        "{said}"
    );
}

#[test]
fn inclusions_that_go_round_in_circles_or_twice_are_refused() {
    let (a, b) = ("tools.d/a.toml", "tools.d/b.toml");
    let of = |what: &str| format!("include = [{what}]\n");
    let said = refused(&[(
        "main.toml",
        &format!("{}{FIRST}", of("\"main.toml\"")).replacen(
            "include = [\"tools.d/*.toml\"]\n",
            "",
            1,
        ),
    )]);
    assert!(
        said.contains("main.toml:1:12: include: main.toml includes itself\n"),
        "{said}"
    );
    let said = refused(&[("main.toml", FIRST), (a, &of("\"a.toml\""))]);
    assert!(
        said.contains("tools.d/a.toml:1:12: include: tools.d/a.toml includes itself\n"),
        "{said}"
    );
    let said = refused(&[
        ("main.toml", FIRST),
        (a, &of("\"b.toml\"")),
        (b, &of("\"../main.toml\"")),
    ]);
    assert!(
        said.contains("tools.d/b.toml:1:12: include: tools.d/../main.toml includes this file, and so cannot be included\n"),
        "{said}"
    );
    assert!(
        said.contains(
            "main.toml:1:12: include: tools.d/b.toml is included already, at tools.d/a.toml:1:12\n"
        ),
        "{said}"
    );
}

#[test]
fn what_cannot_be_included_is_named() {
    let first = |pattern: &str| FIRST.replace("\"tools.d/*.toml\"", pattern);
    for (pattern, words) in [
        ("\"none.toml\"", "include: none.toml: No such file"),
        ("\"none.d/*.toml\"", "include: none.d: No such file"),
        ("\"tools.d\"", "include: tools.d is not a file"),
        ("\"*/a.toml\"", "* may only be in the name of the file"),
        ("\"..\"", "is not the path of a file"),
        ("1", "include: this must be a list of texts"),
    ] {
        let said = refused(&[("main.toml", &first(pattern))]);
        assert!(
            said.contains("main.toml:1:12: include: ") && said.contains(words),
            "{said}"
        );
    }
    let said = refused(&[(
        "main.toml",
        &FIRST.replace("[\"tools.d/*.toml\"]", "\"a.toml\""),
    )]);
    assert!(
        said.contains("main.toml:1:11: include: this must be a list of texts\n"),
        "{said}"
    );
    // A pipe would be waited for.
    let folder = folder(&[("main.toml", FIRST)]);
    let pipe = folder.path().join("tools.d/a.toml");
    assert!(
        Command::new("mkfifo")
            .arg(pipe)
            .status()
            .expect("mkfifo")
            .success()
    );
    let (is_good, said) = check(folder.path(), &[]);
    assert!(
        !is_good && said.contains("tools.d/a.toml is not a file"),
        "{said}"
    );
}

#[test]
fn included_files_are_bounded_in_number_size_and_depth() {
    let folder = folder(&[("main.toml", FIRST)]);
    for number in 0..1_001 {
        write(folder.path(), &[(&format!("tools.d/{number:04}.toml"), "")]);
    }
    let (is_good, said) = check(folder.path(), &[]);
    let words = "tools.d/1000.toml: more than 1000 files are included\n1 mistake";
    assert!(!is_good && said.contains(words), "{said}");

    let long = "#".repeat(9 << 20);
    let said = refused(&[
        ("main.toml", FIRST),
        ("tools.d/a.toml", &long),
        ("tools.d/b.toml", &long),
    ]);
    assert!(
        said.contains("tools.d/b.toml: the included files are longer than 16 MiB\n1 mistake"),
        "{said}"
    );

    let next = |number: u32| format!("include = [\"{}.toml\"]\n", number + 1);
    let files: Vec<(String, String)> = (1..12)
        .map(|n| (format!("tools.d/{n}.toml"), next(n)))
        .collect();
    let mut files: Vec<(&str, &str)> = files
        .iter()
        .map(|(name, text)| (&**name, &**text))
        .collect();
    let main = FIRST.replace('*', "1");
    files.push(("main.toml", &main));
    let said = refused(&files);
    assert!(
        said.contains("more than 8 files include each other in a row\n1 mistake"),
        "{said}"
    );
}

#[test]
fn a_pattern_that_fits_nothing_is_a_warning_and_so_is_a_secret_that_others_may_read() {
    use std::os::unix::fs::PermissionsExt as _;
    let folder = folder(&[("main.toml", &format!("{FIRST}{}", tool("a")))]);
    let (is_good, said) = check(folder.path(), &[]);
    assert!(
        is_good && said.contains("warning: include: no file is like \"tools.d/*.toml\"\n"),
        "{said}"
    );
    let secret = format!(
        "{}headers = {{ Authorization = \"Bearer x\" }}\n",
        tool("b")
    );
    write(folder.path(), &[("tools.d/b.toml", &secret)]);
    let mode = |mode| {
        let mode = fs::Permissions::from_mode(mode);
        fs::set_permissions(folder.path().join("tools.d/b.toml"), mode).expect("a mode");
        check(folder.path(), &[]).1
    };
    let said = mode(0o644);
    assert!(
        said.contains("warning: tools.d/b.toml: other users may read")
            && said.contains("tools.b.headers.Authorization"),
        "{said}"
    );
    assert!(!mode(0o640).contains("other users"));
}

#[test]
fn a_setting_that_moves_to_another_file_is_no_change() {
    let folder = folder(&[
        (
            "old.toml",
            &format!(
                "{}{}",
                FIRST.replacen("include = [\"tools.d/*.toml\"]\n", "", 1),
                tool("a")
            ),
        ),
        ("main.toml", FIRST),
        ("tools.d/a.toml", &tool("a")),
    ]);
    let (is_good, said) = check(folder.path(), &["--diff", "old.toml"]);
    assert!(is_good && !said.contains("change: "), "{said}");
    write(
        folder.path(),
        &[(
            "tools.d/a.toml",
            &format!("{}dedup_window = \"48h\"\n", tool("a")),
        )],
    );
    let (_, said) = check(folder.path(), &["--diff", "old.toml"]);
    assert!(
        said.contains("change: tools.a.dedup_window: which calls are the same"),
        "{said}"
    );
}
