//! Cookies that came on several lines.

const COOKIE: &str = "cookie";

/// Joins the lines of `Cookie` to one, as HTTP/1.1 needs it (RFC 9113, section 8.2.3).
///
/// Clients split them over HTTP/2, and never in the same way.
pub fn join(headers: &mut Vec<(String, String)>) {
    let is_cookie = |(name, _): &(String, String)| name == COOKIE;
    let Some(at) = headers.iter().position(is_cookie) else {
        return;
    };
    let all: Vec<String> = headers
        .extract_if(.., |header| is_cookie(header))
        .map(|(_, value)| value)
        .collect();
    headers.insert(at, (COOKIE.to_owned(), all.join("; ")));
}

#[cfg(test)]
mod tests {
    use super::join;

    fn headers(all: &[(&str, &str)]) -> Vec<(String, String)> {
        let own = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
        all.iter().map(own).collect()
    }

    #[test]
    fn cookies_are_joined_in_their_order_and_nothing_else_is() {
        let mut split = headers(&[
            ("a", "1"),
            ("cookie", "b=2"),
            ("a", "3"),
            ("cookie", "c=4; d=5"),
        ]);
        join(&mut split);
        assert_eq!(
            split,
            headers(&[("a", "1"), ("cookie", "b=2; c=4; d=5"), ("a", "3")])
        );
        let mut none = headers(&[("a", "1"), ("a", "2")]);
        join(&mut none);
        assert_eq!(none, headers(&[("a", "1"), ("a", "2")]));
    }
}
