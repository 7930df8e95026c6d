//! Places in texts that variables of the environment and files fill in: `${NAME}`, `${file:/PATH}`.

use std::fs::File;
use std::io::Read as _;
use std::path::Path;

use super::Reader;

/// `${file:/run/secrets/x}` is the text in this file.
const FILE: &str = "file:";
/// The longest secret in a file, in bytes.
const MAX_SECRET: u64 = 64 << 10;

/// The text in a file, without the line break at its end.
///
/// # Errors
/// It cannot be read, or has no text.
fn secret_of(path: &str) -> Result<String, String> {
    let at = |why: &dyn std::fmt::Display| format!("the file {path}: {why}");
    if !Path::new(path).is_absolute() {
        return Err(at(&"its path must begin with /"));
    }
    let mut text = String::new();
    let read =
        File::open(path).and_then(|file| file.take(MAX_SECRET + 1).read_to_string(&mut text));
    read.map_err(|error| at(&error))?;
    if text.len() as u64 > MAX_SECRET {
        return Err(at(&"it is longer than 64 KiB"));
    }
    let text = text.trim_end_matches(['\r', '\n']);
    if text.trim().is_empty() {
        return Err(at(&"it is empty"));
    }
    Ok(text.to_owned())
}

impl Reader<'_> {
    /// `${NAME}` in a text is taken from the environment, `${file:/PATH}` from a file.
    ///
    /// # Errors
    /// A variable or a file is missing or empty: a tool would be called without its credential.
    pub fn fill_in(&self, text: &str) -> Result<String, String> {
        let mut out = String::new();
        let mut rest = text;
        while let Some((before, after)) = rest.split_once("${") {
            let (name, after) = after.split_once('}').ok_or("${ without }")?;
            out.push_str(before);
            match name.strip_prefix(FILE) {
                Some(path) => out.push_str(&secret_of(path)?),
                None => out.push_str(self.variable(name)?),
            }
            rest = after;
        }
        out.push_str(rest);
        Ok(out)
    }

    fn variable(&self, name: &str) -> Result<&str, String> {
        let value = self.environment.get(name);
        let value = value.ok_or_else(|| format!("the environment variable {name} is not set"))?;
        if value.trim().is_empty() {
            return Err(format!("the environment variable {name} is empty"));
        }
        Ok(value)
    }

    /// A message about the value at a place in the file, with the variables that fill it in.
    pub fn naming_variables(&self, file: usize, offset: usize, message: String) -> String {
        let text = &self.files.all[file].text;
        let names: Vec<&str> = variables_of(text.get(offset..).unwrap_or_default());
        if names.is_empty() || names.iter().all(|name| message.contains(name)) {
            return message;
        }
        format!(
            "{message} (filled in by the environment: {})",
            names.join(", ")
        )
    }
}

/// The variables in the text in quotes with which a part of the file begins.
fn variables_of(rest: &str) -> Vec<&str> {
    let quote = rest.chars().next();
    let Some(quote @ ('"' | '\'')) = quote else {
        return Vec::new();
    };
    let long = [quote; 3].iter().collect::<String>();
    let end = match rest.strip_prefix(&long) {
        Some(inner) => inner.find(&long).map(|end| end + long.len()),
        None => rest[1..].find(quote).map(|end| end + 1),
    };
    let text = &rest[..end.unwrap_or(rest.len())];
    let names = text.split("${").skip(1);
    names
        .filter_map(|after| Some(after.split_once('}')?.0))
        .filter(|name| !name.starts_with(FILE))
        .collect()
}
