//! The bytes of a key for a tool, as other systems print them.

use base64::Engine;
use base64::engine::general_purpose::STANDARD_NO_PAD;

/// The longest spelling of a key: `urn:uuid:` before five groups of digits in brackets is shorter.
const MAX_LEN: usize = 64;

/// The bytes of a key in any spelling; `None`: the text has another form.
pub(super) fn bytes_of<const N: usize>(text: &str) -> Option<[u8; N]> {
    let text = text.trim();
    if text.len() > MAX_LEN {
        return None;
    }
    in_hex(text).or_else(|| in_base64(text))
}

/// The bytes of a key in hex digits, with the prefixes, brackets and separators that systems print.
fn in_hex<const N: usize>(text: &str) -> Option<[u8; N]> {
    let lower = text.to_ascii_lowercase();
    let prefixes = ["urn:uuid:", "0x", "\\x", "x'"];
    let bare = prefixes
        .iter()
        .find_map(|prefix| lower.strip_prefix(prefix));
    let bare = bare.unwrap_or(&lower);
    let bare = bare.trim_matches(['{', '}', '(', ')', '\'', '"']);
    let digits: String = bare
        .chars()
        .filter(|one| !matches!(one, '-' | ':' | ' '))
        .collect();
    let mut bytes = [0; N];
    hex::decode_to_slice(&digits, &mut bytes).ok()?;
    Some(bytes)
}

/// The bytes of a key in base64 of either alphabet, with padding or without.
fn in_base64<const N: usize>(text: &str) -> Option<[u8; N]> {
    let plain = text
        .trim_end_matches('=')
        .replace('-', "+")
        .replace('_', "/");
    STANDARD_NO_PAD.decode(plain).ok()?.try_into().ok()
}
