//! Addresses of pages, and what they ask for. Values of callers are encoded in them.

use axum::http::Uri;
use form_urlencoded::Serializer;

/// Where all pages are.
pub(super) const ROOT: &str = "/console";

/// The address of a page: words of its path, and its parameters. Empty values are left out.
///
/// What callers have named stands in parameters: a browser would take `..` in a path for a step.
pub(super) fn to(path: &[&str], parameters: &[(&str, &str)]) -> String {
    let mut address = ROOT.to_owned();
    for word in path {
        address.push('/');
        address.push_str(word);
    }
    let mut query = Serializer::new(String::new());
    for (name, value) in parameters.iter().filter(|(_, value)| !value.is_empty()) {
        query.append_pair(name, value);
    }
    let query = query.finish();
    if !query.is_empty() {
        address.push('?');
        address.push_str(&query);
    }
    address
}

/// The words of a path below the root. `None`: it is no path of the console.
pub(super) fn words(path: &str) -> Option<Vec<&str>> {
    let rest = path.strip_prefix(ROOT)?;
    let rest = match rest.strip_prefix('/') {
        Some(rest) => rest,
        None if rest.is_empty() => rest,
        None => return None,
    };
    Some(rest.split('/').filter(|word| !word.is_empty()).collect())
}

/// What an address asks for. A value that is empty was left open in a form.
#[derive(Debug, Default, Clone)]
pub(super) struct Asked(Vec<(String, String)>);

impl Asked {
    pub(super) fn of(uri: &Uri) -> Self {
        Self::read(uri.query().unwrap_or_default().as_bytes())
    }

    pub(super) fn read(query: &[u8]) -> Self {
        let pairs = form_urlencoded::parse(query);
        let pairs = pairs.filter(|(_, value)| !value.is_empty());
        Self(
            pairs
                .map(|(name, value)| (name.into_owned(), value.into_owned()))
                .collect(),
        )
    }

    pub(super) fn get(&self, name: &str) -> Option<&str> {
        let mut pairs = self.0.iter();
        pairs.find_map(|(have, value)| (have == name).then_some(value.as_str()))
    }

    /// The value of a parameter; empty if it is not there.
    pub(super) fn text(&self, name: &str) -> &str {
        self.get(name).unwrap_or_default()
    }

    pub(super) fn owned(&self, name: &str) -> Option<String> {
        self.get(name).map(str::to_owned)
    }

    /// The same without some parameters, as the query of a URL.
    pub(super) fn query_without(&self, names: &[&str]) -> String {
        let mut query = Serializer::new(String::new());
        for (name, value) in &self.0 {
            if !names.contains(&name.as_str()) {
                query.append_pair(name, value);
            }
        }
        query.finish()
    }

    /// The address of another page with the same parameters, but for some.
    pub(super) fn to(&self, path: &[&str], without: &[&str]) -> String {
        let kept = self.0.iter();
        let kept = kept.filter(|(name, _)| !without.contains(&name.as_str()));
        let kept: Vec<(&str, &str)> = kept
            .map(|(name, value)| (name.as_str(), value.as_str()))
            .collect();
        to(path, &kept)
    }

    /// The same page with one parameter set.
    pub(super) fn with(&self, path: &[&str], name: &str, value: &str) -> String {
        let mut pairs: Vec<(&str, &str)> = self
            .0
            .iter()
            .filter(|(have, _)| have != name && have != "done")
            .map(|(have, value)| (have.as_str(), value.as_str()))
            .collect();
        pairs.push((name, value));
        to(path, &pairs)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_reads_back_as_it_was_put_in() {
        for id in [
            "S",
            "a/b",
            "../..",
            ".",
            "ü?#&=+ %",
            "%2F",
            "\u{1}\r\n",
            "'\"<",
        ] {
            let address = to(&["session"], &[("id", id), ("cursor", "")]);
            let (path, query) = address.split_once('?').expect("a query");
            assert_eq!(words(path), Some(vec!["session"]));
            assert_eq!(Asked::read(query.as_bytes()).get("id"), Some(id));
            assert!(!address.contains("cursor") && address.is_ascii());
        }
    }

    #[test]
    fn only_paths_below_the_root_are_of_the_console() {
        assert_eq!(words("/console"), Some(Vec::new()));
        assert_eq!(words("/console/"), Some(Vec::new()));
        assert_eq!(words("/console/calls/1"), Some(vec!["calls", "1"]));
        assert_eq!((words("/consoles"), words("/v1/calls")), (None, None));
    }

    #[test]
    fn one_parameter_is_set_and_the_others_stay() {
        let asked = Asked::read(b"state=unknown&cursor=1&tool=&done=1");
        let next = asked.with(&["calls"], "cursor", "2");
        assert_eq!(next, "/console/calls?state=unknown&cursor=2");
        assert_eq!(asked.query_without(&["cursor", "done"]), "state=unknown");
        let other = asked.to(&["many", "calls", "probe"], &["cursor", "done"]);
        assert_eq!(other, "/console/many/calls/probe?state=unknown");
    }
}
