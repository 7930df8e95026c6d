//! Which names and values of a request sound like secrets.

use percent_encoding::percent_decode_str;

use super::names::folded;

/// Words that make a name secret wherever they stand in it.
pub const SECRETS: [&str; 13] = [
    "access-key",
    "api-key",
    "apikey",
    "auth",
    "cookie",
    "credential",
    "jwt",
    "password",
    "secret",
    "session",
    "signature",
    "subscription-key",
    "token",
];

/// More such words. They are too short for [`SECRETS`], whose words also tell which parameters `import` leaves out.
const MORE: [&str; 7] = [
    "accesskey",
    "csrf",
    "hmac",
    "masterkey",
    "passphrase",
    "passwd",
    "privatekey",
];

/// Words that make a name secret where they stand alone in it.
const ALONE: [&str; 8] = [
    "assertion",
    "dpop",
    "key",
    "otp",
    "pass",
    "pwd",
    "sig",
    "xsrf",
];

/// Whole names that are secret.
const WHOLE: [&str; 3] = ["code", "code-verifier", "device-code"];

/// Words in the names of values that a client may make anew for each request.
const CHANGING: [&str; 10] = [
    "csrf",
    "dpop",
    "hmac",
    "jwt",
    "otp",
    "session",
    "sig",
    "signature",
    "signatures",
    "xsrf",
];

/// Schemes of credentials, as they begin a value.
const SCHEMES: [&str; 2] = ["basic ", "bearer "];

/// A name in lower case, with a dash between its words: `apiKey` and `API_KEY` are `api-key`.
fn dashed(name: &str) -> String {
    let mut spaced = String::new();
    let mut was_lower = false;
    for letter in name.chars() {
        if was_lower && letter.is_ascii_uppercase() {
            spaced.push('-');
        }
        was_lower = letter.is_ascii_lowercase();
        spaced.push(letter);
    }
    folded(&spaced)
}

/// Whether a header or a name in a query may be a secret.
pub fn is_secret(name: &str) -> bool {
    let (dashed, joined) = (dashed(name), folded(name));
    // A key of this kind is not a secret: every answer shows it.
    if dashed.contains("idempoten") {
        return false;
    }
    let has = |word: &&str| dashed.contains(*word) || joined.contains(*word);
    let mut words = dashed.split('-').chain(joined.split('-'));
    SECRETS.iter().chain(&MORE).any(has)
        || words.any(|word| ALONE.contains(&word))
        || WHOLE.contains(&dashed.trim_matches('-'))
}

/// Whether a client may make the values of this name anew for each request. `name`: that of a secret.
pub(super) fn changes_by_itself(name: &str) -> bool {
    dashed(name).split('-').any(|word| CHANGING.contains(&word))
}

/// Whether a value holds a credential, whatever its name: one of a known scheme, or an address with a secret.
pub(super) fn is_secret_value(value: &str) -> bool {
    is_of_scheme(value) || is_secret_address(value)
}

/// Whether a value is a credential by its scheme.
pub(super) fn is_of_scheme(value: &str) -> bool {
    let begins = |scheme: &&str| {
        let start = value.trim_start().get(..scheme.len());
        start.is_some_and(|start| start.eq_ignore_ascii_case(scheme))
    };
    SCHEMES.iter().any(begins)
}

/// Whether a text has an address with a password, or with a secret in its query or fragment.
fn is_secret_address(text: &str) -> bool {
    let authorities = text.split("://").skip(1);
    let mut authorities = authorities.filter_map(|rest| rest.split(['/', '?', '#']).next());
    let of_parameters = text.split(['?', '#']).skip(1);
    let mut names = of_parameters
        .flat_map(|text| text.split(['&', ';', '?', '#', '>', '"', ' ']))
        .filter_map(|part| part.split_once('='));
    authorities.any(|authority| authority.contains('@'))
        || names.any(|(name, _)| is_secret(&percent_decode_str(name).decode_utf8_lossy()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_known_by_the_words_of_their_names() {
        for name in [
            "x-api-key",
            "api_key",
            "dd-application-key",
            "x-functions-key",
            "X-Parse-Master-Key",
            "x-sig",
            "x-shopify-hmac-sha256",
            "sig",
            "KEY",
            "code",
            "userPass",
            "masterKey",
            "MASTERKEY",
            "card[pwd]",
            "access_token",
            "APIKey",
        ] {
            assert!(is_secret(name), "{name}");
        }
        for name in [
            "idempotency-key",
            "x-idempotency_key",
            "x-status-code",
            "country_code",
            "passenger",
            "design",
            "monkey",
            "keyword",
            "limit",
            "compass",
        ] {
            assert!(!is_secret(name), "{name}");
        }
        for (name, changes) in [
            ("x-sig", true),
            ("X-Shopify-Hmac-Sha256", true),
            ("x-csrf-token", true),
            ("x-api-key", false),
            ("x-access-token", false),
            ("x-sign-key", false),
        ] {
            assert_eq!(changes_by_itself(name), changes, "{name}");
        }
    }

    #[test]
    fn addresses_and_schemes_with_secrets_are_known() {
        for value in [
            "Bearer abc",
            "basic eDp5",
            "https://u:p@h/x",
            "https://h/x?a=1&code=5",
            "/x#access_token=5",
            "</x?page=2&%6Bey=5>; rel=\"next\"",
        ] {
            assert!(is_secret_value(value), "{value}");
        }
        for value in [
            "",
            "bearer",
            "https://h/x?limit=3",
            "https://h/a@b",
            "key=5",
            "a; charset=utf-8",
            "ä",
        ] {
            assert!(!is_secret_value(value), "{value}");
        }
    }
}
