//! Addresses of pages and their parameters. Values of callers are encoded in them.

use axum::http::Uri;
use form_urlencoded::Serializer;

/// Where all pages are.
pub(crate) const ROOT: &str = "/console";

/// The address of a page, by the words of its path and its parameters. Empty ones are left out.
///
/// Names that callers chose are parameters: a browser would take `..` in a path for a step upwards.
pub(crate) fn to(path: &[&str], parameters: &[(&str, &str)]) -> String {
    let mut address = ROOT.to_owned();
    for word in path.iter().filter(|word| !word.is_empty()) {
        address.push('/');
        address.push_str(word);
    }
    let query = query(parameters);
    if !query.is_empty() {
        address.push('?');
        address.push_str(&query);
    }
    address
}

/// The address of an anomaly's page.
pub(crate) fn of_anomaly(reconciliation: &str, id: &str) -> String {
    to(&["anomaly"], &[("name", reconciliation), ("id", id)])
}

fn query(parameters: &[(&str, &str)]) -> String {
    let mut query = Serializer::new(String::new());
    query.extend_pairs(parameters.iter().filter(|(_, value)| !value.is_empty()));
    query.finish()
}

/// The path and the query of a request.
pub(crate) fn here(uri: &Uri) -> &str {
    uri.path_and_query().map_or(ROOT, |here| here.as_str())
}

/// The words of a path below the root. `None`: it is not a path of the console.
pub(crate) fn words(path: &str) -> Option<Vec<&str>> {
    let rest = path.strip_prefix(ROOT)?;
    let is_below = rest.is_empty() || rest.starts_with('/');
    is_below.then(|| rest.split('/').filter(|word| !word.is_empty()).collect())
}

/// The parameters of an address, or the fields of a form. An empty value counts as absent.
#[derive(Debug, Default, Clone)]
pub(crate) struct Asked(Vec<(String, String)>);

impl Asked {
    pub(crate) fn of(uri: &Uri) -> Self {
        Self::read(uri.query().unwrap_or_default().as_bytes())
    }

    pub(crate) fn read(query: &[u8]) -> Self {
        let pairs = form_urlencoded::parse(query);
        let pairs = pairs.filter(|(_, value)| !value.is_empty());
        Self(
            pairs
                .map(|(name, value)| (name.into(), value.into()))
                .collect(),
        )
    }

    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        let mut pairs = self.0.iter();
        pairs.find_map(|(have, value)| (have == name).then_some(value.as_str()))
    }

    /// The value of a parameter; empty if it is not there.
    pub(crate) fn text(&self, name: &str) -> &str {
        self.get(name).unwrap_or_default()
    }

    pub(crate) fn owned(&self, name: &str) -> Option<String> {
        self.get(name).map(str::to_owned)
    }

    /// The parameters without some, as the query of a URL.
    pub(crate) fn query_without(&self, names: &[&str]) -> String {
        query(&self.without(names))
    }

    /// The address of another page with the same parameters, but for some.
    pub(crate) fn to(&self, path: &[&str], without: &[&str]) -> String {
        to(path, &self.without(without))
    }

    /// The address of a page with the same parameters, one of them set.
    pub(crate) fn with(&self, path: &[&str], name: &str, value: &str) -> String {
        let mut pairs = self.without(&[name, "done"]);
        pairs.push((name, value));
        to(path, &pairs)
    }

    fn without(&self, names: &[&str]) -> Vec<(&str, &str)> {
        let pairs = self
            .0
            .iter()
            .map(|(name, value)| (name.as_str(), value.as_str()));
        pairs.filter(|(name, _)| !names.contains(name)).collect()
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
