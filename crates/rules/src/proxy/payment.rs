//! Payments that agents send with a request, and what APIs say of them.
//!
//! Sources: x402, transports of versions 1 and 2 (`X-PAYMENT`, `PAYMENT-SIGNATURE`); the `Payment` scheme of HTTP
//! authentication (draft-httpauth-payment-00).

use super::Message;
use super::names::folded;

/// Headers that hold a payment.
pub const HEADERS: [&str; 2] = ["payment-signature", "x-payment"];

/// Headers of an answer that hold a receipt.
const RECEIPTS: [&str; 3] = ["payment-receipt", "payment-response", "x-payment-response"];

/// The scheme of a payment in `Authorization`.
const SCHEME: &str = "payment";

/// Whether a header holds a payment. `name` is in lower case.
pub fn is_payment(name: &str, value: &str) -> bool {
    is_header(name) || name == "authorization" && is_of_scheme(value)
}

/// Whether a header of this name holds a payment, in any spelling. `name` is in lower case.
pub(super) fn is_header(name: &str) -> bool {
    HEADERS.contains(&&*folded(name))
}

/// Whether a header of this name holds a payment or a receipt. `name` is in lower case.
pub(super) fn is_secret(name: &str) -> bool {
    is_header(name) || RECEIPTS.contains(&&*folded(name))
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
}

#[cfg(test)]
mod tests {
    use super::*;

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
            ("x-other", "Payment e30=", false),
            ("payment-receipt", "e30=", false),
        ] {
            assert_eq!(is_payment(name, value), is, "{name}: {value}");
        }
        let mixed = "Bearer a, Payment e30=";
        assert!(!is_payment("authorization", mixed) && is_mixed("authorization", mixed));
        assert!(!is_mixed("authorization", "Payment id=\"1\", realm=\"x\""));
        for name in ["x-payment-response", "payment-receipt", "payment_response"] {
            assert!(is_secret(name), "{name}");
        }
        assert!(!is_secret("payment-required"), "a challenge is shown");
    }
}
