//! Signatures of events: Standard Webhooks, version 1.
//!
//! The receiver computes HMAC-SHA256 over `id.time.body` with the secret that both know. An event signed with an old and a
//! new secret is taken by receivers that know either.

use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, STANDARD_NO_PAD};
use jiff::Timestamp;
use reqwest::header::{HeaderMap, HeaderName, HeaderValue};
use ring::{digest, hmac};

/// What a secret in text begins with.
const PREFIX: &str = "whsec_";
/// How many bytes a secret has.
const BYTES: std::ops::RangeInclusive<usize> = 24..=64;
/// Most secrets: the one in use and the next, or the last.
pub const MAX_SECRETS: usize = 2;

/// A secret that signs events.
#[derive(Clone, PartialEq, Eq)]
pub struct SigningSecret(Vec<u8>);

impl fmt::Debug for SigningSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SigningSecret(…)")
    }
}

impl SigningSecret {
    /// Reads a secret: `whsec_` and 24 to 64 bytes in base64.
    ///
    /// # Errors
    /// It is not one. Says why, without the text.
    pub fn read(text: &str) -> Result<Self, String> {
        let bytes = text.strip_prefix(PREFIX);
        let bytes = bytes.map(|text| text.trim_end_matches('='));
        let bytes = bytes.and_then(|text| STANDARD_NO_PAD.decode(text).ok());
        match bytes {
            Some(bytes) if BYTES.contains(&bytes.len()) => Ok(Self(bytes)),
            _ => Err("a secret is whsec_ and 24 to 64 random bytes in base64".into()),
        }
    }

    fn signature(&self, id: &str, time: i64, body: &str) -> String {
        let key = hmac::Key::new(hmac::HMAC_SHA256, &self.0);
        let signed = hmac::sign(&key, format!("{id}.{time}.{body}").as_bytes());
        format!("v1,{}", STANDARD.encode(signed))
    }
}

/// The headers that sign an event; none without a secret. A repetition has the same id, and the time of today.
pub(super) fn headers(
    secrets: &[SigningSecret],
    about: &str,
    body: &str,
    now: Timestamp,
) -> HeaderMap {
    let mut headers = HeaderMap::new();
    if secrets.is_empty() {
        return headers;
    }
    // Without a full stop, which ends the id in what is signed.
    let digest = digest::digest(&digest::SHA256, about.as_bytes());
    let hex: String = digest.as_ref()[..16]
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    let (id, time) = (format!("msg_{hex}"), now.as_second());
    let signatures: Vec<String> = secrets
        .iter()
        .map(|secret| secret.signature(&id, time, body))
        .collect();
    let values = [
        ("webhook-id", id),
        ("webhook-timestamp", time.to_string()),
        ("webhook-signature", signatures.join(" ")),
    ];
    for (name, value) in values {
        // Base64, digits and letters always make a value.
        if let Ok(value) = HeaderValue::from_str(&value) {
            headers.insert(HeaderName::from_static(name), value);
        }
    }
    headers
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The example of the specification.
    #[test]
    fn the_signature_is_that_of_the_specification() {
        let secret = SigningSecret::read("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw").expect("one");
        let (id, time) = ("msg_p5jXN8AQM9LWM0D4loKWxJek", 1_614_265_330);
        let signature = secret.signature(id, time, r#"{"test": 2432232314}"#);
        assert_eq!(signature, "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=");
        assert_eq!(format!("{secret:?}"), "SigningSecret(…)");
    }

    #[test]
    fn what_is_not_a_secret_is_refused() {
        let of = |bytes: usize| format!("whsec_{}", STANDARD.encode(vec![7; bytes]));
        for good in [24, 32, 64] {
            let read = SigningSecret::read(&of(good)).expect("a secret");
            let bare = of(good).replace('=', "");
            assert_eq!(SigningSecret::read(&bare), Ok(read), "{good}");
        }
        let bare = STANDARD.encode([7; 32]);
        for bad in ["", "whsec_", "whsec_???", &of(23), &of(65), &bare] {
            assert!(SigningSecret::read(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn each_secret_signs_the_same_event_and_without_one_nothing_is_added() {
        let secret = |byte: u8| SigningSecret(vec![byte; 32]);
        let now = Timestamp::from_second(1_800_000_000).expect("a time");
        assert!(headers(&[], "saga:1", "{}", now).is_empty());
        let both = headers(&[secret(1), secret(2)], "saga:1", "{}", now);
        let alone = headers(&[secret(2)], "saga:1", "{}", now);
        let text = |of: &HeaderMap, name: &str| of[name].to_str().expect("text").to_owned();
        let signatures = text(&both, "webhook-signature");
        let (_, second) = signatures.split_once(' ').expect("two");
        assert_eq!(second, text(&alone, "webhook-signature"));
        assert_eq!(text(&both, "webhook-timestamp"), "1800000000");
        let id = text(&both, "webhook-id");
        assert!(!id.contains('.') && id == text(&alone, "webhook-id"));
        let other = headers(&[secret(1)], "saga:2", "{}", now);
        assert_ne!(text(&other, "webhook-id"), id);
    }
}
