//! The credentials of an API, which a person has to fill in.

use serde_json::{Map, Value};

use super::document::Document;
use super::operations::Operation;
use super::parameters::{Parameter, Parameters, Place};
use super::text;
use crate::core::proxy::SECRETS;

/// The credentials of an operation.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(super) struct Credentials {
    /// Headers, and their values.
    pub(super) headers: Vec<(String, String)>,
    /// Sentences about schemes that are no header, and about the way that was chosen.
    pub(super) told: Vec<String>,
}

/// Words in names of tokens that are no secrets: places in a list, or names of an intent.
const OF_LISTS: [&str; 9] = [
    "continuation",
    "cursor",
    "idempoten",
    "next",
    "page",
    "paging",
    "resume",
    "start",
    "sync",
];

/// Endings of names that are about a secret, and are none.
const ABOUT: [&str; 5] = ["-mode", "-name", "-status", "-type", "-version"];

/// The longest prefix of a variable's name.
const MAX_PREFIX: usize = 28;

/// The credentials of an operation.
pub(super) fn of(document: &Document, operation: &Operation<'_>) -> Credentials {
    let own = operation.node.get("security");
    let asked = own.or_else(|| document.root().get("security"));
    let asked: Vec<&Value> = match asked.and_then(Value::as_array) {
        Some(listed) => listed.iter().collect(),
        None => return Credentials::default(),
    };
    // Nothing is asked, or an empty object says that nothing will do, too.
    let mut ways: Vec<Vec<&str>> = Vec::new();
    for way in asked.iter().filter_map(|way| way.as_object()) {
        let names: Vec<&str> = way.keys().map(String::as_str).collect();
        if !names.is_empty() && !ways.contains(&names) {
            ways.push(names);
        }
    }
    let mut found: Option<Credentials> = None;
    for way in &ways {
        let this = together(document, way);
        let is_better = found
            .as_ref()
            .is_none_or(|before| before.headers.is_empty() && !this.headers.is_empty());
        if is_better {
            found = Some(this);
        }
    }
    let mut found = found.unwrap_or_default();
    if ways.len() > 1 {
        let ways: Vec<String> = ways.iter().map(|way| way.join(" with ")).collect();
        found
            .told
            .push(format!("one of these is enough: {}", ways.join(", ")));
    }
    found
}

/// Removes the parameters that are credentials: no model chooses them.
pub(super) fn take(document: &Document, parameters: &mut Parameters) {
    let schemes = schemes(document).and_then(Value::as_object);
    let keys: Vec<(&str, &str)> = schemes
        .into_iter()
        .flat_map(Map::values)
        .filter_map(|scheme| document.resolve(scheme).ok())
        .filter_map(|scheme| Some((scheme.get("in")?.as_str()?, scheme.get("name")?.as_str()?)))
        .collect();
    let Parameters { sent, left_out } = parameters;
    sent.retain(|parameter| {
        let place = parameter.place.word();
        let is_key =
            |(of, name): &(&str, &str)| *of == place && name.eq_ignore_ascii_case(&parameter.name);
        let is_credential =
            keys.iter().any(is_key) || parameter.place != Place::Path && is_credential(parameter);
        if is_credential {
            left_out.push(format!(
                "the {place} parameter `{}` is a credential",
                parameter.name
            ));
        }
        !is_credential
    });
}

/// Whether a parameter looks like a credential, whatever the schemes say.
fn is_credential(parameter: &Parameter) -> bool {
    let description = parameter.description.as_deref().unwrap_or_default();
    let description = description.to_lowercase();
    if description.contains("idempoten") {
        return false;
    }
    let name = dashed(&parameter.name);
    if ABOUT.iter().any(|end| name.ends_with(end)) {
        return false;
    }
    let name = format!("-{name}-");
    let is_of_list = OF_LISTS.iter().any(|word| name.contains(word));
    let is_query = parameter.place == Place::Query;
    let has = |word: &&str| match *word {
        "auth" => name.contains("-auth-"),
        // A query that has one asks for it.
        "session" if is_query => false,
        "token" if is_of_list => false,
        word => name.contains(&format!("{word}-")),
    };
    SECRETS.iter().any(has) || is_query && name == "-key-" && description.contains("api key")
}

/// A name in lower case, with a dash between its words.
fn dashed(name: &str) -> String {
    let mut out = String::new();
    let mut was_lower = false;
    for letter in name.chars() {
        let is_apart = !letter.is_ascii_alphanumeric();
        if (is_apart || was_lower && letter.is_ascii_uppercase()) && !out.ends_with('-') {
            out.push('-');
        }
        if !is_apart {
            out.push(letter.to_ascii_lowercase());
        }
        was_lower = letter.is_ascii_lowercase();
    }
    out
}

/// Whether the description names any credentials.
pub(super) fn are_said(document: &Document) -> bool {
    schemes(document)
        .and_then(Value::as_object)
        .is_some_and(|schemes| !schemes.is_empty())
}

fn schemes(document: &Document) -> Option<&Value> {
    document.root().get("components")?.get("securitySchemes")
}

/// All schemes that are needed together.
fn together(document: &Document, names: &[&str]) -> Credentials {
    let schemes = document
        .root()
        .get("components")
        .and_then(|parts| parts.get("securitySchemes"));
    let mut found = Credentials::default();
    for name in names {
        let scheme = schemes.and_then(|schemes| schemes.get(*name));
        let scheme = scheme.and_then(|scheme| document.resolve(scheme).ok());
        let said = match scheme.map(|scheme| (scheme, header(document, scheme))) {
            Some((_, Some(header))) => {
                let has = |(name, _): &(String, String)| name.eq_ignore_ascii_case(&header.0);
                if !found.headers.iter().any(has) {
                    found.headers.push(header);
                    continue;
                }
                format!("{name} goes into {}, too, which has one value", header.0)
            }
            Some((scheme, None)) => other(name, scheme),
            None => format!("the description does not say what {name} is"),
        };
        found.told.push(said);
    }
    found
}

/// The header of a scheme, with the name of a variable in it.
fn header(document: &Document, scheme: &Value) -> Option<(String, String)> {
    let text = |word: &str| scheme.get(word).and_then(Value::as_str);
    let variable = |end: &str| format!("${{{}_{end}}}", prefix(document));
    let authorization = |value| Some(("Authorization".to_owned(), value));
    match text("type")? {
        "http" if text("scheme")?.eq_ignore_ascii_case("basic") => {
            authorization(format!("Basic {}", variable("BASIC")))
        }
        "http" if text("scheme")?.eq_ignore_ascii_case("bearer") => {
            authorization(format!("Bearer {}", variable("TOKEN")))
        }
        "oauth2" | "openIdConnect" => authorization(format!("Bearer {}", variable("TOKEN"))),
        "apiKey" if signs(scheme) => None,
        "apiKey" if text("in") == Some("header") => {
            let name = text("name").filter(|name| is_header(name))?;
            Some((name.to_owned(), variable("KEY")))
        }
        "apiKey" if text("in") == Some("cookie") => {
            let name = text("name").filter(|name| is_header(name))?;
            Some((
                "Cookie".to_owned(),
                format!("{name}={}", variable("COOKIE")),
            ))
        }
        _ => None,
    }
}

/// The sentence about a scheme that is no header.
fn other(name: &str, scheme: &Value) -> String {
    let text = |word: &str| scheme.get(word).and_then(Value::as_str).unwrap_or_default();
    match (text("type"), text("in")) {
        _ if signs(scheme) => {
            format!(
                "{name} signs each request, which the gateway does not: put a signing proxy before the API"
            )
        }
        ("apiKey", "query") => format!(
            "{name} is `{}` in the query: put ?{}=${{…}} at the end of url",
            text::line(text("name")),
            text::line(text("name"))
        ),
        ("mutualTLS", _) => {
            format!("{name} is a client certificate, which the gateway does not have")
        }
        (kind, _) => format!(
            "{name} ({}) is nothing that the gateway can send",
            text::line(kind)
        ),
    }
}

/// Whether the header is a signature of each request.
fn signs(scheme: &Value) -> bool {
    let kind = scheme
        .get("x-amazon-apigateway-authtype")
        .and_then(Value::as_str);
    kind.is_some_and(|kind| kind.eq_ignore_ascii_case("awsSigv4"))
}

fn is_header(name: &str) -> bool {
    !name.is_empty()
        && name
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_'))
}

/// The prefix of variables' names: the title of the API.
///
/// Never so that a name is that of a common variable.
fn prefix(document: &Document) -> String {
    let info = document.root().get("info");
    let title = info.and_then(|info| info.get("title")?.as_str());
    let title = title.unwrap_or_default().to_ascii_uppercase();
    let words = title.split(|c: char| !c.is_ascii_alphanumeric());
    let mut out = "API".to_owned();
    for word in words.filter(|word| !word.is_empty() && *word != "API") {
        if out.len() + word.len() < MAX_PREFIX {
            out.push('_');
            out.push_str(word);
        }
    }
    match out.contains('_') {
        true => out,
        false => "API_IMPORTED".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    fn is_secret(place: Place, name: &str, description: &str) -> bool {
        is_credential(&Parameter {
            place,
            name: name.into(),
            schema: Value::Null,
            description: Some(description.into()),
            is_required: false,
            lists: None,
        })
    }

    #[test]
    fn a_credential_is_known_by_the_words_of_its_name() {
        for name in [
            "X-Api-Key",
            "X-RapidAPI-Key",
            "apikey",
            "apiKey",
            "token",
            "authToken",
            "accesstoken",
            "X-Auth-Key",
            "client_secret",
            "Ocp-Apim-Subscription-Key",
            "X-Hub-Signature-256",
        ] {
            assert!(is_secret(Place::Query, name, ""), "{name}");
            assert!(is_secret(Place::Header, name, ""), "{name}");
        }
        for name in [
            "author",
            "authority",
            "page_token",
            "nextToken",
            "tokens",
            "token_type",
            "key",
            "ids",
        ] {
            assert!(!is_secret(Place::Query, name, ""), "{name}");
        }
        assert!(is_secret(Place::Query, "key", "Your API key."));
        assert!(is_secret(Place::Header, "X-Session", ""));
        assert!(!is_secret(Place::Query, "session", ""));
        assert!(!is_secret(
            Place::Query,
            "clientToken",
            "Makes it idempotent."
        ));
    }
}
