//! The credentials of an API, which an operator has to fill in.

use serde_json::Value;

use super::document::{Document, items, members, text};
use super::operations::Operation;
use super::parameters::{Parameter, Place};
use super::text::line;
use oncegate_rules::proxy::SECRETS;

/// The credentials of an operation.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(super) struct Credentials {
    /// Headers, and their values.
    pub(super) headers: Vec<(String, String)>,
    /// Sentences about schemes that are not a header, and about alternatives.
    pub(super) notes: Vec<String>,
}

/// Words in names of tokens that are not secrets: positions in a list, or idempotency tokens.
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

/// Endings of names that say something about a secret, but are not secrets.
const ABOUT: [&str; 5] = ["-mode", "-name", "-status", "-type", "-version"];

/// The longest prefix of a variable's name.
const MAX_PREFIX: usize = 28;

/// The credentials of an operation: of several alternatives the first that is in headers.
pub(super) fn of(document: &Document, operation: &Operation<'_>) -> Credentials {
    let owner = match operation.node.get("security") {
        Some(_) => operation.node,
        None => &document.root,
    };
    // An empty list and an empty object ask for no credentials.
    let mut ways: Vec<Vec<&str>> = Vec::new();
    for way in items(owner, "security").iter().filter_map(Value::as_object) {
        let names: Vec<&str> = way.keys().map(String::as_str).collect();
        if !names.is_empty() && !ways.contains(&names) {
            ways.push(names);
        }
    }
    let all: Vec<Credentials> = ways.iter().map(|way| together(document, way)).collect();
    let in_headers = all.iter().find(|way| !way.headers.is_empty());
    let mut chosen = in_headers.or(all.first()).cloned().unwrap_or_default();
    if ways.len() > 1 {
        let ways: Vec<String> = ways.iter().map(|way| way.join(" with ")).collect();
        let notes = format!("one of these is enough: {}", ways.join(", "));
        chosen.notes.push(notes);
    }
    chosen
}

/// Removes the parameters that are credentials, which no model may choose.
pub(super) fn take(document: &Document, sent: &mut Vec<Parameter>, notes: &mut Vec<String>) {
    let keys: Vec<(&str, &str)> = schemes(document)
        .filter_map(|(_, scheme)| document.resolve(scheme).ok())
        .filter_map(|scheme| Some((text(scheme, "in")?, text(scheme, "name")?)))
        .collect();
    let is_taken = |parameter: &mut Parameter| {
        let place = parameter.place.word();
        let is_key =
            |(of, name): &(&str, &str)| *of == place && name.eq_ignore_ascii_case(&parameter.name);
        keys.iter().any(is_key) || parameter.place != Place::Path && is_credential(parameter)
    };
    for Parameter { place, name, .. } in sent.extract_if(.., is_taken) {
        let place = place.word();
        notes.push(format!(
            "left out: the {place} parameter `{name}` is a credential"
        ));
    }
}

/// Whether a parameter looks like a credential, whatever the schemes say.
fn is_credential(parameter: &Parameter) -> bool {
    let description = parameter.description().to_lowercase();
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
        // In a query, `session` is what the request asks about.
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

/// The schemes of credentials, by their names.
pub(super) fn schemes(document: &Document) -> impl Iterator<Item = (&String, &Value)> {
    let components = document.root.get("components").into_iter();
    components.flat_map(|components| members(components, "securitySchemes"))
}

/// The credentials of schemes that are needed together.
fn together(document: &Document, names: &[&str]) -> Credentials {
    let mut found = Credentials::default();
    for name in names {
        let scheme = schemes(document).find(|(scheme, _)| scheme == name);
        let scheme = scheme.and_then(|(_, scheme)| document.resolve(scheme).ok());
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
        found.notes.push(said);
    }
    found
}

/// The header of a scheme, with the name of a variable in it.
fn header(document: &Document, scheme: &Value) -> Option<(String, String)> {
    let variable = |end: &str| format!("${{{}_{end}}}", prefix(document));
    let authorization = |kind: &str, end: &str| {
        let value = format!("{kind} {}", variable(end));
        Some(("Authorization".to_owned(), value))
    };
    match text(scheme, "type")? {
        "http" => match &*text(scheme, "scheme")?.to_ascii_lowercase() {
            "basic" => authorization("Basic", "BASIC"),
            "bearer" => authorization("Bearer", "TOKEN"),
            _ => None,
        },
        "oauth2" | "openIdConnect" => authorization("Bearer", "TOKEN"),
        "apiKey" if !signs(scheme) => {
            let name = text(scheme, "name").filter(|name| is_header(name))?;
            match text(scheme, "in")? {
                "header" => Some((name.to_owned(), variable("KEY"))),
                "cookie" => Some((
                    "Cookie".to_owned(),
                    format!("{name}={}", variable("COOKIE")),
                )),
                _ => None,
            }
        }
        _ => None,
    }
}

/// The sentence about a scheme that is not a header.
fn other(name: &str, scheme: &Value) -> String {
    let text = |word: &str| text(scheme, word).unwrap_or_default();
    match (text("type"), text("in")) {
        _ if signs(scheme) => {
            format!(
                "{name} signs each request, which the gateway does not: put a signing proxy before the API"
            )
        }
        ("apiKey", "query") => {
            let key = line(text("name"));
            format!("{name} is `{key}` in the query: put ?{key}=${{…}} at the end of url")
        }
        ("mutualTLS", _) => {
            format!("{name} is a client certificate, which the gateway does not have")
        }
        (kind, _) => {
            let kind = line(kind);
            format!("{name} ({kind}) is nothing that the gateway can send")
        }
    }
}

/// Whether the header is a signature of each request.
fn signs(scheme: &Value) -> bool {
    let kind = text(scheme, "x-amazon-apigateway-authtype");
    kind.is_some_and(|kind| kind.eq_ignore_ascii_case("awsSigv4"))
}

fn is_header(name: &str) -> bool {
    !name.is_empty()
        && name
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_'))
}

/// The prefix of variables' names, from the title of the API.
///
/// It always has a second word, so that no name is that of a common variable.
fn prefix(document: &Document) -> String {
    let title = document.info("title").to_ascii_uppercase();
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
