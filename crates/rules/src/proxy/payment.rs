//! Payments that agents send with a request, and what APIs say of them.
//!
//! Sources: x402, transports of versions 1 and 2 (`X-PAYMENT`, `PAYMENT-SIGNATURE`); the `Payment` scheme of HTTP
//! authentication (draft-httpauth-payment-00).

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD_NO_PAD, URL_SAFE_NO_PAD};
use serde_json::Value;

use super::Message;
use super::names::folded;
use crate::json;

/// Headers that hold a payment.
pub const HEADERS: [&str; 3] = ["payment-authorization", "payment-signature", "x-payment"];

/// Headers of an answer that hold a receipt.
const RECEIPTS: [&str; 3] = ["payment-receipt", "payment-response", "x-payment-response"];

/// A word of a sentence is shorter.
const LONG_TOKEN: usize = 16;

/// The scheme of a payment in `Authorization`.
const SCHEME: &str = "payment";

/// Whether a header holds a payment. `name` is in lower case.
///
/// A challenge may name another header than `Authorization` for it, so the scheme counts in each, before what looks like one.
pub fn is_payment(name: &str, value: &str) -> bool {
    let looks_like_one = || is_token(value) || read(value).is_some_and(|value| value.is_object());
    let may_be_one = || name == "authorization" || name != "cookie" && looks_like_one();
    is_header(name) || is_of_scheme(value) && may_be_one()
}

/// Whether a scheme stands before one long token (RFC 9110, token68), which need not be readable.
fn is_token(value: &str) -> bool {
    let token = value.trim().split_once([' ', '\t']);
    let token = token.map_or("", |(_, token)| token.trim());
    let is_of_token = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~+/=".contains(&byte);
    token.len() >= LONG_TOKEN && token.bytes().all(is_of_token)
}

/// Whether a header of this name holds a payment, in any spelling. `name` is in lower case.
pub(super) fn is_header(name: &str) -> bool {
    HEADERS.contains(&&*folded(name))
}

/// Whether a header of an answer says what became of a payment: it was tried. `name` is in lower case.
pub fn is_receipt(name: &str) -> bool {
    RECEIPTS.contains(&&*folded(name))
}

/// Whether a header holds a payment or a receipt. `name` is in lower case.
pub(super) fn is_secret(name: &str, value: &str) -> bool {
    is_payment(name, value) || is_receipt(name)
}

/// The JSON of a payment, with its scheme or without.
fn read(value: &str) -> Option<Value> {
    let encoded = match is_of_scheme(value) {
        true => value.trim_start().split_once([' ', '\t'])?.1,
        false => value,
    };
    let encoded = encoded.trim().trim_end_matches('=');
    let decoded = URL_SAFE_NO_PAD
        .decode(encoded)
        .or_else(|_| STANDARD_NO_PAD.decode(encoded));
    json::parse_bounded(str::from_utf8(&decoded.ok()?).ok()?).ok()
}

fn is_of_scheme(value: &str) -> bool {
    let scheme = value.trim_start().split([' ', '\t']).next();
    scheme.is_some_and(|scheme| scheme.eq_ignore_ascii_case(SCHEME))
}

/// Whether a header has a payment behind another credential, where it would not be seen.
pub fn is_mixed(name: &str, value: &str) -> bool {
    let mut parts = value.split(',').skip(1);
    name == "authorization" && parts.any(is_of_scheme)
}

impl Message {
    /// Whether the request pays.
    pub fn pays(&self) -> bool {
        self.headers
            .iter()
            .any(|(name, value)| is_payment(name, value))
    }

    /// The payment as JSON. `None`: there is none, there are several, or it is not JSON in base64.
    pub fn payment(&self) -> Option<Value> {
        let headers = self.headers.iter();
        let mut payments = headers.filter(|(name, value)| is_payment(name, value));
        match (payments.next(), payments.next()) {
            (Some((_, value)), None) => read(value),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_payment_is_read_in_either_alphabet_and_never_guessed() {
        let of = |headers: &[(&str, &str)]| {
            let headers = headers.iter();
            let headers = headers.map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
            let message = Message {
                headers: headers.collect(),
                ..Message::default()
            };
            message.payment()
        };
        // {"id":"?~"}
        let paid = Some(serde_json::json!({ "id": "?~" }));
        assert_eq!(of(&[("authorization", "Payment eyJpZCI6Ij9-In0")]), paid);
        assert_eq!(of(&[("x-payment", "eyJpZCI6Ij9+In0=")]), paid);
        let named = ("payment-authorization", "Payment eyJpZCI6Ij9-In0");
        assert_eq!(of(&[named]), paid);
        assert_eq!(of(&[("payment-signature", "not json")]), None);
        assert_eq!(of(&[("authorization", "Bearer eyJpZCI6Ij9-In0")]), None);
        let two = [("x-payment", "e30="), ("payment-signature", "e30=")];
        assert_eq!(of(&two), None);
    }

    #[test]
    fn payments_are_known_by_header_and_scheme() {
        for (name, value, is) in [
            ("x-payment", "e30=", true),
            ("x_payment", "e30=", true),
            ("payment-signature", "e30=", true),
            ("authorization", "Payment e30=", true),
            ("authorization", " payment\te30=", true),
            ("authorization", "Bearer e30=", false),
            ("authorization", "Payments e30=", false),
            ("payment-authorization", "Payment e30=", true),
            ("payment_authorization", "", true),
            ("x-other", "Payment e30=", true),
            (
                "x-other",
                "Payment eyJhIjoxODQ0Njc0NDA3MzcwOTU1MTYxNX0",
                true,
            ),
            ("x-other", "Payment abcdefgh.abcdefgh.abcdefgh", true),
            ("cookie", "Payment e30=", false),
            ("x-other", "Payment received", false),
            ("x-other", "Payment of the invoice of November", false),
            ("x-other", "Payment 1", false),
            ("x-other", "e30=", false),
            ("payment-receipt", "e30=", false),
        ] {
            assert_eq!(is_payment(name, value), is, "{name}: {value}");
        }
        let mixed = "Bearer a, Payment e30=";
        assert!(!is_payment("authorization", mixed) && is_mixed("authorization", mixed));
        assert!(!is_mixed("authorization", "Payment id=\"1\", realm=\"x\""));
        for name in ["x-payment-response", "payment-receipt", "payment_response"] {
            assert!(is_secret(name, ""), "{name}");
        }
        assert!(!is_secret("payment-required", ""), "a challenge is shown");
    }
}
