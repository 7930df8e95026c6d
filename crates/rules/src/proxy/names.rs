//! Names of headers that no caller may set, in every spelling that a server may take for them.

use super::{CREDENTIALS, Message, is_of_connection};

/// Names that the gateway owns.
const OWNED: [&str; 4] = [
    "fencing-token",
    "idempotency-key",
    "oncegate-token",
    "x-call-id",
];

/// Names that say where a request was forwarded from, beside those that begin with `x-forwarded`.
const FORWARDED: [&str; 4] = ["forwarded", "true-client-ip", "x-client-ip", "x-real-ip"];

/// Headers that no caller may set in another spelling than this: servers could read it instead.
const OF_CONTENT: [&str; 2] = ["content-encoding", "content-type"];

/// A name as servers read it that pass headers on as variables: in one case, and with one sign for all that is neither
/// letter nor digit.
pub fn folded(name: &str) -> String {
    let fold = |letter: char| match letter.is_ascii_alphanumeric() {
        true => letter.to_ascii_lowercase(),
        false => '-',
    };
    name.chars().map(fold).collect()
}

/// Takes out the headers that no caller may set.
///
/// `configured`: the names of the headers that the gateway adds, [`folded`]. `is_forwarded`: whether the request came over
/// a proxy of the operator, which says where it comes from.
pub fn take_out_owned(
    message: &mut Message,
    key_header: &str,
    configured: &[String],
    is_forwarded: bool,
) {
    let key = folded(key_header);
    message.headers.retain(|(name, _)| {
        let as_read = folded(name);
        let is_owned = name != key_header && (as_read == key || OWNED.contains(&&*as_read));
        let is_of_proxy = as_read.starts_with("x-forwarded") || FORWARDED.contains(&&*as_read);
        let is_other_spelling = *name != as_read
            && (is_of_connection(&as_read, &[])
                || CREDENTIALS.contains(&&*as_read)
                || OF_CONTENT.contains(&&*as_read));
        let is_configured = configured.contains(&as_read);
        !is_owned && !is_other_spelling && !is_configured && (is_forwarded || !is_of_proxy)
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_gateway_owns_is_taken_out_in_every_spelling() {
        let left = |name: &str, is_forwarded: bool| {
            let mut message = Message {
                headers: vec![(name.to_owned(), "1".to_owned())],
                ..Message::default()
            };
            let configured = ["x-own-key".to_owned()];
            take_out_owned(&mut message, "request-id", &configured, is_forwarded);
            !message.headers.is_empty()
        };
        for name in [
            "idempotency-key",
            "idempotency_key",
            "request_id",
            "request.id",
            "x-call_id",
            "fencing-token",
            "oncegate_token",
            "x-own-key",
            "x_own_key",
            "content_length",
            "content_type",
            "transfer_encoding",
        ] {
            assert!(!left(name, true), "{name}");
        }
        for name in ["request-id", "content-type", "x-id", "x-session-id", "via"] {
            assert!(left(name, false), "{name}");
        }
        for name in [
            "x-forwarded-for",
            "x_forwarded_host",
            "forwarded",
            "x-real-ip",
        ] {
            assert_eq!(
                (left(name, false), left(name, true)),
                (false, true),
                "{name}"
            );
        }
    }
}
