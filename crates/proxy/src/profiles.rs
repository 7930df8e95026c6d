//! Rows of settings for protocols that agents speak. No code knows a protocol: a row is values of the settings of a proxy.

use oncegate_settings::reader::{self, Section};

/// The settings of each protocol, as TOML.
const ROWS: [(&str, &str); 5] = [
    // What a proxy does anyway: draft-ietf-httpapi-idempotency-key-header-07.
    ("ietf", ""),
    // Agentic Commerce Protocol, rfcs/rfc.agentic_checkout.md, section 6.
    (
        "acp@2026-04-17",
        r#"key_scope = "path"
remember_rejections = true
never_keep = [401, 402, 403, 408, 409, 425, 429]
uncounted_headers = ["signature", "signature-input"]
dedup_window = "24h"
expired = "new"
echo_key = true
answers = "acp"
"#,
    ),
    // Universal Commerce Protocol, docs/specification/signatures.md, replay protection.
    (
        "ucp",
        r#"compare = "bytes"
send_key = "as_is"
authority = "caller"
uncounted_headers = ["request-signature", "signature", "signature-input"]
dedup_window = "48h"
answers = "ucp"
"#,
    ),
    // Machine Payments Protocol, draft-httpauth-payment-00: a challenge is paid once.
    (
        "mpp",
        r#"unkeyed = "pass"
key_from = ["/payment/challenge/id"]
answers = "payment"
"#,
    ),
    // x402, transports of versions 1 and 2, and the extension payment-identifier.
    (
        "x402",
        r#"unkeyed = "pass"
key_from = ["/payment/extensions/payment-identifier/info/id", "/payment"]
answers = "payment"
"#,
    ),
];

/// The settings of a protocol, as TOML. `None`: no row has this name.
pub fn row(name: &str) -> Option<&'static str> {
    let found = ROWS.iter().find(|(of, _)| *of == name);
    found.map(|(_, row)| *row)
}

/// Reads `profile`, and presets the settings of its row. Returns its name.
pub(crate) fn preset(section: &mut Section<'_, '_>) -> Option<String> {
    let read = |name: &str| {
        let known = ROWS.map(|(name, _)| name).join(", ");
        let row = row(name).ok_or(format!("there is no such profile; known here: {known}"))?;
        Ok((name.to_owned(), row))
    };
    let (name, row) = section.parsed("profile", read)?;
    reader::preset(section, "profile", row);
    Some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_code_names_a_protocol() {
        let code = [
            include_str!("lib.rs"),
            include_str!("tokenless.rs"),
            include_str!("proxies.rs"),
            include_str!("settings.rs"),
        ];
        for (name, _) in ROWS {
            let name = name.split('@').next().unwrap_or_default();
            for code in code {
                assert!(!code.contains(&format!("\"{name}")), "{name}");
            }
        }
    }
}
