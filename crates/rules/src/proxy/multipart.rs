//! The boundary of a multipart body, in any spelling.

/// The boundary that a `Content-Type` names. `None`: it is not multipart, or names none.
///
/// Case does not count in the type and in names of parameters; spaces around `=` are what some clients write.
pub(super) fn boundary(kind: &str) -> Option<String> {
    let (name, parameters) = kind.split_once(';')?;
    let name = name.trim().to_ascii_lowercase();
    if !name.starts_with("multipart/") {
        return None;
    }
    let mut rest = parameters;
    loop {
        rest = rest.trim_start_matches([' ', '\t', ';']);
        let (name, after) = rest.split_once('=')?;
        let after = after.trim_start();
        let value;
        (value, rest) = match after.strip_prefix('"') {
            Some(quoted) => unquoted(quoted)?,
            None => {
                let (value, rest) = after.split_once(';').unwrap_or((after, ""));
                (value.trim_end().to_owned(), rest)
            }
        };
        let name = name.rsplit(';').next().unwrap_or_default();
        if name.trim().eq_ignore_ascii_case("boundary") {
            return Some(value).filter(|value| !value.is_empty());
        }
    }
}

/// A quoted string after its first quote (RFC 9110, section 5.6.4), and what stands behind it.
fn unquoted(text: &str) -> Option<(String, &str)> {
    let mut value = String::new();
    let mut all = text.char_indices();
    loop {
        match all.next()? {
            (at, '"') => return Some((value, &text[at + 1..])),
            (_, '\\') => value.push(all.next()?.1),
            (_, c) => value.push(c),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::boundary;

    #[test]
    fn a_boundary_is_found_in_any_spelling() {
        for (kind, found) in [
            ("multipart/form-data; boundary=a", Some("a")),
            ("Multipart/Mixed;BOUNDARY=\"a b\"; x=y", Some("a b")),
            ("multipart/form-data; boundary = a ;x", Some("a")),
            (
                "multipart/form-data; x=\"; boundary=b\\\"\"; boundary=a",
                Some("a"),
            ),
            ("multipart/form-data; xboundary=b; boundary=a", Some("a")),
            ("multipart/form-data; flag; boundary=a", Some("a")),
            ("multipart/form-data; boundary=", None),
            ("multipart/form-data; boundary=\"a", None),
            ("multipart/form-data", None),
            ("text/plain; boundary=a", None),
        ] {
            assert_eq!(boundary(kind).as_deref(), found, "{kind}");
        }
    }
}
