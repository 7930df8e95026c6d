//! Hides texts of a tool's configuration in its answers: some tools repeat the request that they got.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use percent_encoding::{NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};
use reqwest::Url;
use serde_json::Value;

use super::plan::texts;
use oncegate_engine::ToolAt;
use oncegate_rules::redact;
use oncegate_tools::Endpoint;

/// From this length on a text of the configuration may be a secret, in bytes.
const SECRET: usize = 8;
/// From this length on a path segment may be a secret, as in a webhook's URL.
const SEGMENT: usize = 16;

/// A text of a tool, without its secrets.
pub(super) fn hide(at: &ToolAt, text: &str) -> String {
    let constants = at.tool.request().into_iter().flat_map(|shape| &shape.set);
    let secrets = secrets(&at.endpoint, constants.map(|(_, value)| value));
    let hidden = |text: String, secret: String| text.replace(&secret, redact::MASK);
    secrets.into_iter().fold(text.to_owned(), hidden)
}

/// Texts that may be secret, longest first, in each form in which an answer may have them.
///
/// A text that is so short that it may stand anywhere is left out.
fn secrets<'a>(tool: &Endpoint, constants: impl Iterator<Item = &'a Value>) -> Vec<String> {
    let values = tool
        .headers
        .values()
        .filter_map(|value| value.to_str().ok());
    let mut all = Vec::new();
    // A tool may repeat a token without "Bearer", and user and password of "Basic" decoded.
    for word in values.flat_map(str::split_whitespace) {
        let pair = BASE64.decode(word).ok().map(String::from_utf8);
        if let Some(Ok(pair)) = pair
            && let Some((user, password)) = pair.split_once(':')
        {
            all.extend([user, password].map(str::to_owned));
        }
        all.push(word.to_owned());
    }
    for url in [Some(&tool.url), tool.probe.as_ref()].into_iter().flatten() {
        all.extend(of_url(url));
    }
    all.extend(constants.flat_map(texts));
    let all = all.iter().filter(|text| text.len() >= SECRET);
    let mut all: Vec<String> = all.flat_map(|text| forms(text)).collect();
    all.sort_by(|one, other| other.len().cmp(&one.len()).then_with(|| one.cmp(other)));
    all.dedup();
    all
}

fn decoded(text: &str) -> String {
    percent_decode_str(text).decode_utf8_lossy().into_owned()
}

/// The secrets of a URL: user, password, both as a header, query values, long segments.
fn of_url(url: &Url) -> Vec<String> {
    let (user, password) = (url.username(), url.password().unwrap_or_default());
    let pair = format!("{}:{}", decoded(user), decoded(password));
    let mut all = vec![decoded(user), decoded(password)];
    if pair.len() > 1 {
        all.push(BASE64.encode(pair));
    }
    all.extend(url.query_pairs().map(|(_, value)| value.into_owned()));
    let segments = url.path_segments().into_iter().flatten();
    all.extend(segments.filter(|at| at.len() >= SEGMENT).map(decoded));
    all
}

/// A text as it is, and as JSON and URLs write it.
fn forms(text: &str) -> Vec<String> {
    let quoted = Value::from(text).to_string();
    let quoted = quoted.trim_matches('"').to_owned();
    let slashed = quoted.replace('/', "\\/");
    let percent = utf8_percent_encode(text, NON_ALPHANUMERIC).to_string();
    let decoded = |text: &str, codes: [(&str, &str); 4]| {
        let plain = |text: String, (code, plain)| text.replace(code, plain);
        codes.into_iter().fold(text.to_owned(), plain)
    };
    // Most encoders leave unreserved characters as they are, and in a path some others.
    let unreserved = [("%2D", "-"), ("%5F", "_"), ("%2E", "."), ("%7E", "~")];
    let usual = decoded(&percent, unreserved);
    let of_path = [("%3A", ":"), ("%40", "@"), ("%2B", "+"), ("%3D", "=")];
    let in_path = decoded(&usual, of_path);
    let in_form = usual.replace("%20", "+");
    let lower = in_small_letters(&usual);
    vec![
        text.to_owned(),
        quoted,
        slashed,
        percent,
        usual,
        in_path,
        in_form,
        lower,
    ]
}

/// The percent-encoded bytes of a text in small letters; the rest as it is.
fn in_small_letters(text: &str) -> String {
    let mut pieces = text.split('%');
    let mut out = pieces.next().unwrap_or_default().to_owned();
    for piece in pieces {
        let (code, rest) = piece.split_at(piece.len().min(2));
        out.extend(["%", &code.to_ascii_lowercase(), rest]);
    }
    out
}

#[cfg(test)]
mod tests {
    use reqwest::header::{AUTHORIZATION, HeaderValue};
    use serde_json::json;

    use super::*;
    use crate::tests::tool;

    #[track_caller]
    fn hides(tool: &Endpoint, constant: &Value, expected: &[&str]) {
        let found = secrets(tool, std::iter::once(constant));
        for text in expected {
            assert!(found.iter().any(|found| found == text), "{text}: {found:?}");
        }
    }

    #[test]
    fn texts_that_may_be_secret_are_found_in_headers_urls_and_constants() {
        let url = "https://sk_live_user:pass%2Fword@shop.internal/hooks/T0123456789abcdefXYZ?limit=5&api_key=s3cr3t%2Bs3cr3t";
        let tool = tool(url);
        let constant = json!({ "account": { "token": "constant/one" }, "mode": "live" });
        hides(
            &tool,
            &constant,
            &[
                "secret-of-shop",
                "sk_live_user",
                "pass/word",
                "c2tfbGl2ZV91c2VyOnBhc3Mvd29yZA==",
                "T0123456789abcdefXYZ",
                "s3cr3t+s3cr3t",
                "constant/one",
            ],
        );
        let short = secrets(&tool, std::iter::once(&constant));
        assert!(!short.iter().any(|text| text == "hooks" || text == "live"));
    }

    #[test]
    fn a_short_password_is_hidden_in_its_header() {
        let tool = tool("https://sk_live:pw@shop.internal/orders");
        hides(&tool, &Value::Null, &["c2tfbGl2ZTpwdw=="]);
    }

    #[test]
    fn user_and_password_of_a_basic_header_are_hidden() {
        let mut tool = tool("https://shop.internal/orders");
        let value = HeaderValue::from_static("Basic YWNjb3VudC0xOnBhc3N3b3Jk");
        tool.headers.insert(AUTHORIZATION, value);
        let both = ["YWNjb3VudC0xOnBhc3N3b3Jk", "account-1", "password"];
        hides(&tool, &Value::Null, &both);
    }

    #[test]
    fn a_secret_is_hidden_in_the_forms_that_answers_have() {
        let tool = tool("https://shop.internal/orders");
        let forms = [
            "top/se_cr+t=\"1",
            "top/se_cr+t=\\\"1",
            "top\\/se_cr+t=\\\"1",
            "top%2Fse_cr%2Bt%3D%221",
            "top%2fse_cr%2bt%3d%221",
            "top%2Fse_cr+t=%221",
        ];
        hides(&tool, &json!("top/se_cr+t=\"1"), &forms);
    }
}
