//! The files of a configuration: the one that was named, and those that it includes.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::place::{Origin, Place};

/// The list of the files that a file includes.
pub(super) const INCLUDE: &str = "include";
/// Most files that a configuration includes.
const MAX_FILES: usize = 1_000;
/// Most bytes of all included files.
const MAX_BYTES: u64 = 16 << 20;
/// How many files may include each other in a row.
const MAX_DEPTH: usize = 8;

/// The texts of a configuration, in the order in which they are read.
pub struct Files {
    pub(super) all: Vec<OneFile>,
    /// What is wrong with the inclusions.
    pub(super) problems: Vec<(Origin, String)>,
    pub(super) warnings: Vec<String>,
}

pub(super) struct OneFile {
    /// `None`: the file that was named.
    pub(super) path: Option<PathBuf>,
    pub(super) text: String,
}

impl Files {
    /// A text that is not in a file, and so can include none.
    pub fn alone(text: &str) -> Self {
        let mut files = Self::first(text);
        if let Some(list) = inclusions(text) {
            let origin = at(0, list.span().start);
            let why = "include: only a configuration in a file can include files";
            files.problems.push((origin, why.into()));
        }
        files
    }

    /// The text of a file, with all files that it includes.
    pub fn including(path: &Path, text: &str) -> Self {
        let mut search = Search {
            files: Self::first(text),
            seen: BTreeMap::new(),
            bytes_left: MAX_BYTES,
        };
        let real = path.canonicalize().unwrap_or_else(|_| path.to_owned());
        search.follow(0, path, &mut vec![real]);
        search.files
    }

    fn first(text: &str) -> Self {
        let text = text.to_owned();
        Self {
            all: vec![OneFile { path: None, text }],
            problems: Vec::new(),
            warnings: Vec::new(),
        }
    }

    /// Each file with its path, alone; `None`: the one that was named.
    pub fn each(&self) -> impl Iterator<Item = (Option<&Path>, Self)> {
        let each = self.all.iter();
        each.map(|one| (one.path.as_deref(), Self::first(&one.text)))
    }

    pub(super) fn place(&self, file: usize, offset: usize) -> Place {
        let OneFile { path, text } = &self.all[file];
        let before = &text[..text.floor_char_boundary(offset)];
        let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
        let line = before.matches('\n').count() + 1;
        let column = before[line_start..].chars().count() + 1;
        match path {
            None => Place::File { line, column },
            Some(path) => Place::Included {
                file: path.display().to_string(),
                line,
                column,
            },
        }
    }
}

/// Files that are found one after the other.
struct Search {
    files: Files,
    /// The files that were included, and where.
    seen: BTreeMap<PathBuf, Origin>,
    bytes_left: u64,
}

impl Search {
    /// Reads what a file includes. `within`: the file itself, and those through which it was included.
    fn follow(&mut self, file: usize, path: &Path, within: &mut Vec<PathBuf>) {
        let folder = path.parent().unwrap_or_else(|| Path::new(""));
        for (origin, pattern) in self.patterns(file) {
            match matching(folder, &pattern) {
                Err(why) => self.problem(origin, why),
                Ok(paths) if paths.is_empty() => {
                    let warning = format!("include: no file is like {pattern:?}");
                    self.files.warnings.push(warning);
                }
                Ok(paths) => {
                    for path in paths {
                        if let Err(why) = self.include(&origin, &path, within) {
                            self.problem(origin.clone(), why);
                        }
                    }
                }
            }
        }
    }

    fn include(
        &mut self,
        origin: &Origin,
        path: &Path,
        within: &mut Vec<PathBuf>,
    ) -> Result<(), String> {
        let shown = path.display();
        let unread = |why: io::Error| format!("{shown}: {why}");
        let real = path.canonicalize().map_err(unread)?;
        if within.last() == Some(&real) {
            return Err(format!("{shown} includes itself"));
        }
        if within.contains(&real) {
            return Err(format!(
                "{shown} includes this file, and so cannot be included"
            ));
        }
        if let Some(Origin::File { file, offset }) = self.seen.get(&real) {
            let first = self.files.place(*file, *offset);
            return Err(format!("{shown} is included already, at {first}"));
        }
        if within.len() > MAX_DEPTH {
            return Err(format!(
                "{shown}: more than {MAX_DEPTH} files include each other in a row"
            ));
        }
        if self.files.all.len() > MAX_FILES {
            return Err(format!("{shown}: more than {MAX_FILES} files are included"));
        }
        // A pipe would be waited for.
        if !real.is_file() {
            return Err(format!("{shown} is not a file"));
        }
        let mut text = String::new();
        let opened = File::open(&real).map_err(unread)?;
        let mut bounded = opened.take(self.bytes_left + 1);
        bounded.read_to_string(&mut text).map_err(unread)?;
        let left = self.bytes_left.checked_sub(text.len() as u64);
        self.bytes_left =
            left.ok_or_else(|| format!("{shown}: the included files are longer than 16 MiB"))?;
        self.seen.insert(real.clone(), origin.clone());
        self.files.all.push(OneFile {
            path: Some(path.to_owned()),
            text,
        });
        within.push(real);
        self.follow(self.files.all.len() - 1, path, within);
        within.pop();
        Ok(())
    }

    /// The patterns that a file includes, with their places.
    fn patterns(&mut self, file: usize) -> Vec<(Origin, String)> {
        let (mut patterns, mut wrong) = (Vec::new(), Vec::new());
        if let Some(list) = inclusions(&self.files.all[file].text) {
            let list_at = at(file, list.span().start);
            match list.into_inner() {
                DeValue::Array(items) => {
                    for item in items {
                        let item_at = at(file, item.span().start);
                        match item.into_inner() {
                            DeValue::String(text) => patterns.push((item_at, text.into_owned())),
                            _ => wrong.push(item_at),
                        }
                    }
                }
                _ => wrong.push(list_at),
            }
        }
        for origin in wrong {
            self.problem(origin, "this must be a list of texts".into());
        }
        patterns
    }

    fn problem(&mut self, origin: Origin, why: String) {
        self.files
            .problems
            .push((origin, format!("include: {why}")));
    }
}

fn at(file: usize, offset: usize) -> Origin {
    Origin::File { file, offset }
}

fn inclusions(text: &str) -> Option<Spanned<DeValue<'_>>> {
    // Mistakes of the syntax are noted where the whole file is read.
    let (table, _) = DeTable::parse_recoverable(text);
    let mut members = table.into_inner().into_iter();
    members.find_map(|(key, value)| (key.into_inner() == INCLUDE).then_some(value))
}

/// The files of a folder that are like a pattern, sorted by name. `*` in the last part is any text.
///
/// # Errors
/// The folder cannot be read, or `*` is elsewhere.
fn matching(folder: &Path, pattern: &str) -> Result<Vec<PathBuf>, String> {
    let path = folder.join(pattern);
    let Some(name) = path.file_name().and_then(|name| name.to_str()) else {
        return Err(format!("{pattern:?} is not the path of a file"));
    };
    let within = path.parent().unwrap_or_else(|| Path::new(""));
    if within.to_string_lossy().contains('*') {
        return Err(format!(
            "{pattern:?}: * may only be in the name of the file"
        ));
    }
    if !name.contains('*') {
        return Ok(vec![path]);
    }
    let unread = |why: io::Error| format!("{}: {why}", within.display());
    // The folder of a relative path without one is this one.
    let opened = match within.as_os_str().is_empty() {
        true => Path::new("."),
        false => within,
    };
    let mut found = Vec::new();
    for entry in opened.read_dir().map_err(unread)? {
        let have = entry.map_err(unread)?.file_name();
        // Hidden files are those of editors.
        if let Some(have) = have.to_str()
            && !have.starts_with('.')
            && is_like(have, name)
        {
            found.push(within.join(have));
        }
    }
    found.sort();
    Ok(found)
}

/// Whether a name is like a pattern with at least one `*`.
fn is_like(name: &str, pattern: &str) -> bool {
    let mut parts = pattern.split('*');
    let first = parts.next().unwrap_or_default();
    let last = parts.next_back().unwrap_or_default();
    let between = name
        .strip_prefix(first)
        .and_then(|rest| rest.strip_suffix(last));
    let Some(mut rest) = between else {
        return false;
    };
    for part in parts {
        match rest.find(part) {
            Some(found) => rest = &rest[found + part.len()..],
            None => return false,
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_star_in_a_name_is_any_text() {
        let cases = [
            ("pay.toml", "*.toml", true),
            (".toml", "*.toml", true),
            ("pay.toml~", "*.toml", false),
            ("pay.toml", "p*y*.toml", true),
            ("pay.toml", "pay*pay.toml", false),
            ("aXbXc", "a*b*c", true),
            ("ac", "a*b*c", false),
            ("anything", "*", true),
        ];
        for (name, pattern, is) in cases {
            assert_eq!(is_like(name, pattern), is, "{name} {pattern}");
        }
    }
}
