//! Paths as servers may read them: decoded, joined, without extensions and parameters.

use percent_encoding::percent_decode_str;

/// How many times a path may be percent-encoded. Servers, and what stands before them, may decode it several times.
const ROUNDS: usize = 6;

/// Why a path is refused; `None`: it is forwarded as it is.
pub(super) fn mistake(path: &str) -> Option<&'static str> {
    let mut at = path.to_owned();
    for _ in 0..ROUNDS {
        if at.contains('\\') || at.contains(char::is_control) {
            return Some("the path has a backslash or a control character");
        }
        if at.split('/').any(is_step) {
            return Some("the path has a segment \".\" or \"..\"");
        }
        if has_unicode_escape(&at) {
            return Some("the path has an escape \"%u\"");
        }
        let next = decoded(&at);
        if next == at {
            return None;
        }
        at = next;
    }
    Some("the path is percent-encoded too many times")
}

fn is_step(segment: &str) -> bool {
    matches!(without_parameters(segment), "." | "..")
}

/// Whether a text has `%u` and four hexadecimal digits, which some servers decode.
fn has_unicode_escape(text: &str) -> bool {
    let bytes = text.as_bytes();
    bytes.windows(6).any(|some| {
        some[0] == b'%'
            && some[1].eq_ignore_ascii_case(&b'u')
            && some[2..].iter().all(u8::is_ascii_hexdigit)
    })
}

fn decoded(text: &str) -> String {
    percent_decode_str(text).decode_utf8_lossy().into_owned()
}

/// A segment of a path without the text after a semicolon.
fn without_parameters(segment: &str) -> &str {
    segment.split(';').next().unwrap_or_default()
}

/// A path for a server that decodes it and joins slashes.
fn plain(path: &str) -> String {
    let decoded = decoded(path);
    let segments = decoded.split('/').filter(|segment| !segment.is_empty());
    segments.fold(String::new(), |path, segment| path + "/" + segment)
}

/// A path as servers may read it.
pub(super) struct Path {
    /// As every server reads it; `None`: servers read it in different ways.
    clear: Option<String>,
    /// Its segments without what servers read in different ways.
    blurred: Vec<String>,
    /// The same for a server that splits the path before it decodes it.
    apart: Vec<String>,
}

impl Path {
    pub(super) fn of(path: &str) -> Self {
        Self {
            clear: is_clear(path).then(|| plain(path)),
            blurred: blurred(path),
            apart: apart(path),
        }
    }

    /// Whether every server reads the path as this one or one below it.
    pub(super) fn is_surely_below(&self, prefix: &str) -> bool {
        let Some(path) = &self.clear else {
            return false;
        };
        let prefix = plain(prefix);
        let (mut segments, mut wanted) = (path.split('/'), prefix.split('/'));
        wanted.all(|wanted| {
            let is_it = |segment| segment == wanted || is_any(wanted) && is_whole(segment);
            segments.next().is_some_and(is_it)
        })
    }

    /// Whether a server may read the path as this one or one below it.
    ///
    /// Servers may leave out case, parameters, what looks like an extension, and spaces and dots at an end.
    pub(super) fn may_be_below(&self, prefix: &str) -> bool {
        let prefix = blurred(prefix);
        let fits = |path: &[String]| {
            let last = path.len().saturating_sub(1);
            let pairs = path.iter().zip(&prefix).enumerate();
            let mut fits = pairs.map(|(at, (segment, wanted))| may_be(segment, wanted, at == last));
            prefix.len() <= path.len() && fits.all(|fits| fits)
        };
        fits(&self.blurred) || fits(&self.apart)
    }
}

/// The path without what servers read in different ways.
pub fn plainest(path: &str) -> String {
    blurred(path).join("/")
}

/// The segments of a path that is split before it is decoded, each without what servers read in different ways.
fn apart(path: &str) -> Vec<String> {
    let segments = segments(path).map(|segment| blurred(segment).join("/"));
    segments.filter(|segment| !segment.is_empty()).collect()
}

/// Whether every server reads the path in the same way.
fn is_clear(path: &str) -> bool {
    // Servers differ in how many segments they see in `//` and `%2f`, and in how often they decode.
    let once = decoded(path);
    !path.contains("//") && !path.to_ascii_lowercase().contains("%2f") && decoded(&once) == once
}

/// The segments of a path without what servers read in different ways.
fn blurred(path: &str) -> Vec<String> {
    let mut path = path.to_owned();
    for _ in 0..ROUNDS {
        let next = decoded(&path);
        if next == path {
            break;
        }
        path = next;
    }
    let path = path.to_lowercase();
    // What stands after an encoded question mark is the query for a server that decodes first.
    let path = path.split(['?', '#']).next().unwrap_or_default();
    let segments = path.split('/').map(|segment| {
        let segment = without_parameters(segment).trim_start();
        segment.trim_end_matches(is_left_out).to_owned()
    });
    segments.filter(|segment| !segment.is_empty()).collect()
}

/// Whether some server leaves out this character at the end of a segment.
fn is_left_out(letter: char) -> bool {
    letter.is_whitespace() || matches!(letter, '.' | '+')
}

/// The member with the named segments of a path, beside the request of a call.
pub const NAMED: &str = "oncegate:path";

/// The name of a segment `{name}` of a rule's path, which stands for any one.
pub fn name_of(segment: &str) -> Option<&str> {
    let name = segment.strip_prefix('{')?.strip_suffix('}')?;
    let is_plain = |c: char| c.is_ascii_alphanumeric() || c == '_';
    (!name.is_empty() && name.chars().all(is_plain)).then_some(name)
}

/// Whether no server ends the path, or the segment, within this decoded segment.
fn is_whole(segment: &str) -> bool {
    !segment.contains(['?', '#', ';', '%'])
}

fn is_any(wanted: &str) -> bool {
    name_of(wanted).is_some()
}

/// The segments of a path in the places of a rule's names. `None`: servers read the path in different ways.
///
/// `rule`: the rule's path. The segments are decoded.
pub fn named_segments(rule: &str, path: &str) -> Option<Vec<(String, String)>> {
    let found: Vec<&str> = segments(path).collect();
    let names = segments(rule).enumerate();
    let names = names.filter_map(|(at, segment)| Some((at, name_of(segment)?)));
    names
        .map(|(at, name)| {
            let segment = decoded(found.get(at).filter(|_| is_clear(path))?);
            is_whole(&segment).then(|| (name.to_owned(), segment))
        })
        .collect()
}

fn segments(path: &str) -> impl Iterator<Item = &str> {
    path.split('/').filter(|segment| !segment.is_empty())
}

/// The names of a rule's path.
pub fn names_in(rule: &str) -> impl Iterator<Item = &str> {
    segments(rule).filter_map(name_of)
}

/// Whether a server may take a segment for another one: it may have an extension.
fn may_be(segment: &str, wanted: &str, is_last: bool) -> bool {
    if is_any(wanted) {
        return true;
    }
    let Some(rest) = segment.strip_prefix(wanted) else {
        return false;
    };
    let rest = rest.trim_start_matches(|letter: char| letter.is_whitespace() || letter == '+');
    let extension = rest.strip_prefix('.');
    rest.is_empty()
        || extension.is_some_and(|name| is_last || name.starts_with(char::is_alphabetic))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_may_be_another_one_in_many_spellings() {
        for path in [
            "/v1/accounts",
            "/v1/accounts/7",
            "/v1/accounts.json",
            "/v1/accounts.tar.gz",
            "/v1/accounts.",
            "/v1/accounts%20",
            "/v1/accounts%20.json",
            "/v1/accounts+",
            "/v1/%252561ccounts",
            "/V1;a=b//;c/Accounts;d",
            "/v1/accounts.php/7",
            "/v1/accounts%3Fa=b",
            "/v1/accounts%C2%A0",
        ] {
            assert!(Path::of(path).may_be_below("/v1/accounts"), "{path}");
        }
        for path in [
            "/v1",
            "/v1/account",
            "/v1/accounts-old",
            "/v1/accountsx.json",
            "/v1.1/accounts",
            "/accounts",
            "/v1/x/accounts",
        ] {
            assert!(!Path::of(path).may_be_below("/v1/accounts"), "{path}");
        }
        assert!(Path::of("/v1/a.json").may_be_below("/v1/a.json"));
        assert!(!Path::of("/v1/a.xml").may_be_below("/v1/a.json"));
        assert!(Path::of("/").may_be_below("/") && Path::of("/a").may_be_below("/"));
    }

    #[test]
    fn a_named_segment_stands_for_any_one_and_is_read_only_where_all_servers_agree() {
        let rule = "/sessions/{id}/complete";
        for path in ["/sessions/7/complete", "/sessions/a%20b/complete/now"] {
            assert!(Path::of(path).may_be_below(rule), "{path}");
            assert!(Path::of(path).is_surely_below(rule), "{path}");
        }
        for path in [
            "/sessions/complete",
            "/sessions/7",
            "/sessions/7/8/complete",
        ] {
            assert!(!Path::of(path).may_be_below(rule), "{path}");
            assert!(!Path::of(path).is_surely_below(rule), "{path}");
        }
        for path in ["/sessions/7%3F/complete", "/sessions/7%2Fx/complete"] {
            assert!(Path::of(path).may_be_below(rule), "{path}");
            assert!(!Path::of(path).is_surely_below(rule), "{path}");
        }
        let id = |path| named_segments(rule, path).map(|names| names[0].clone());
        let named = |value: &str| Some(("id".to_owned(), value.to_owned()));
        assert_eq!(id("/sessions/a%20b/complete"), named("a b"));
        assert_eq!(id("/sessions//7/complete"), None);
        assert_eq!(id("/sessions/7%2F8/complete"), None);
        assert_eq!(id("/sessions/%2537/complete"), None);
        assert_eq!(id("/sessions/7%3Fx/complete"), None);
        assert_eq!(id("/sessions/7;x/complete"), None);
        assert_eq!(named_segments(rule, "/sessions"), None);
        assert_eq!(name_of("{a-b}"), None);
    }

    #[test]
    fn a_path_that_servers_decode_in_different_ways_is_refused_or_no_read() {
        for path in ["/%u0061", "/a%2525252525252525%32%65", "/a/%25252e%25252e"] {
            assert!(mistake(path).is_some(), "{path}");
        }
        for path in ["/a%2525", "/%unix", "/a%20b", "/a%"] {
            assert_eq!(mistake(path), None, "{path}");
        }
        assert!(Path::of("/v1/%73earch/x").is_surely_below("/v1/search"));
        assert!(!Path::of("/v1/search/%2562").is_surely_below("/v1/search"));
    }
}
