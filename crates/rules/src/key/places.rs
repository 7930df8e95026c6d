//! Keys that stand in the arguments of a request, or in its payment.

use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::{Key, Refused, not_ours};
use crate::json::canonical;

/// The key of a request that has one in its arguments, beside what it may have in its header.
///
/// # Errors
/// The value is not a key, or the two keys differ.
pub fn in_arguments(value: &Value, header: Option<&Key>) -> Result<Key, Refused> {
    let key = value.as_str().and_then(|text| Key::parse(text).ok());
    let key = key.ok_or(Refused::Invalid("arguments"))?;
    if header.is_some_and(|header| *header != key) {
        return Err(Refused::Conflict);
    }
    not_ours(Some(key))?.ok_or(Refused::Missing)
}

/// The key that a value of a payment makes. It shows nothing of the value, which may be a credential.
pub fn of_payment(value: &Value) -> Key {
    let digest: [u8; 32] = Sha256::digest(canonical(&json!({ "payment": value }))).into();
    Key(hex::encode(&digest[..16]))
}
