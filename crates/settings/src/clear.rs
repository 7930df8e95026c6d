//! Which values of a configuration file are secrets in clear.

use std::collections::BTreeMap;

use serde_json::Value;

/// Parts of the names of keys and headers whose values are secrets.
const NAMES: [&str; 8] = [
    "encryption_keys",
    "secret",
    "password",
    "authorization",
    "api-key",
    "api_key",
    "token",
    "cookie",
];

/// The paths of the values that are secrets in clear, and not taken from a variable.
///
/// Digests of tokens are none: a token is long and random.
pub(super) fn secrets(values: &BTreeMap<String, Value>) -> Vec<String> {
    let is_secret = |(path, value): &(&String, &Value)| {
        holds_one(path.rsplit('.').next().unwrap_or_default(), value)
    };
    let found = values.iter().filter(is_secret);
    found.map(|(path, _)| path.clone()).collect()
}

/// Whether a value of this name is a secret, or has one in it.
fn holds_one(name: &str, value: &Value) -> bool {
    match value {
        Value::String(text) => is_secret(name, text),
        Value::Array(items) => items.iter().any(|item| holds_one(name, item)),
        Value::Object(members) => members.iter().any(|(name, value)| holds_one(name, value)),
        _ => false,
    }
}

fn is_secret(name: &str, text: &str) -> bool {
    let name = name.to_ascii_lowercase();
    // The digest of one.
    if name == "ops_token" {
        return false;
    }
    let is_named = NAMES.iter().any(|part| name.contains(part));
    (is_named || has_password(text)) && !text.is_empty() && !text.contains("${")
}

/// Whether a text is a URL with a password.
fn has_password(text: &str) -> bool {
    let authority = text.split_once("://").map(|(_, rest)| rest);
    let authority = authority.and_then(|rest| rest.split('/').next());
    let credentials = authority.and_then(|authority| authority.rsplit_once('@'));
    credentials.is_some_and(|(credentials, _)| credentials.contains(':'))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn values_that_are_secrets_are_known_by_their_name_or_by_a_password_in_them() {
        let cases = [
            ("store.encryption_keys", json!(["00ff"]), true),
            ("store.encryption_keys", json!(["${KEY}"]), false),
            ("store.url", json!("redis://gate:pw@redis:6379"), true),
            ("store.url", json!("redis://${PW}@redis:6379"), false),
            ("store.url", json!("redis://redis:6379"), false),
            ("store.url", json!("sqlite:oncegate.db"), false),
            ("tools.t.headers.Authorization", json!("Bearer x"), true),
            ("tools.t.headers.X-API-Key", json!("x"), true),
            ("tools.t.headers.Accept", json!("text/plain"), false),
            ("upstreams.u.env.GITHUB_TOKEN", json!("x"), true),
            (
                "reconciliations.r.sources",
                json!([{ "headers": { "Cookie": "x" } }]),
                true,
            ),
            (
                "reconciliations.r.sources",
                json!([{ "headers": { "Accept": "x" } }]),
                false,
            ),
            ("webhook.secret", json!(""), false),
            ("webhook.secrets", json!(["whsec_AAAA"]), true),
            ("webhook.secrets", json!(["${SECRET}"]), false),
            ("proxies.p.pass_authorization", json!(true), false),
            ("tools.t.description", json!("mail a@b.example: x"), false),
        ];
        for (path, value, is_secret) in cases {
            let values = BTreeMap::from([(path.to_owned(), value)]);
            assert_eq!(secrets(&values).len(), usize::from(is_secret), "{values:?}");
        }
    }
}
