//! Places in texts that variables of the environment fill in: `${NAME}`.

use super::Reader;

impl Reader<'_> {
    /// `${NAME}` in a text is taken from the environment.
    ///
    /// # Errors
    /// A variable is not set or empty: a tool would be called without its credential.
    pub(super) fn fill_in(&self, text: &str) -> Result<String, String> {
        let mut out = String::new();
        let mut rest = text;
        while let Some((before, after)) = rest.split_once("${") {
            let (name, after) = after.split_once('}').ok_or("${ without }")?;
            let value = self.environment.get(name);
            let value =
                value.ok_or_else(|| format!("the environment variable {name} is not set"))?;
            if value.trim().is_empty() {
                return Err(format!("the environment variable {name} is empty"));
            }
            out.push_str(before);
            out.push_str(value);
            rest = after;
        }
        out.push_str(rest);
        Ok(out)
    }

    /// A message about the value at a place in the file, with the variables that fill it in.
    pub(super) fn naming_variables(&self, offset: usize, message: String) -> String {
        let names: Vec<&str> = variables_of(self.text.get(offset..).unwrap_or_default());
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
        .collect()
}
