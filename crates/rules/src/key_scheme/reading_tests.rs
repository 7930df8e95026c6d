//! Calls of proxies that 0.2.0 stored: it read bodies in another way.

use std::sync::Arc;

use serde_json::Value;

use super::fingerprints::Sameness;
use super::identity::{Asking, Identity, identify};
use super::{KeyScheme, KeySchemeId};
use crate::key::Source;
use crate::proxy::Message;
use crate::proxy::compared_form::compared_form;
use crate::record::{Intent, Record};
use crate::secret::{Secret, Secrets};
use crate::testing::record;
use crate::testing::tool;
use crate::tool::{Protocol, Proxy, Tool};

/// `{"a":1}`, as two encoders write it.
const GZIP: [&str; 2] = [
    "1f8b0800000000000403ab564a54b232ac0500afac1b5607000000",
    "1f8b08000500000002ffab564a54b232ac0500afac1b5607000000",
];

fn proxy() -> Tool {
    let mut tool = tool("api");
    tool.protocol = Protocol::Proxy(Proxy::default());
    tool
}

fn today() -> Arc<KeyScheme> {
    Arc::new(KeyScheme::of(&proxy()))
}

/// The key scheme as 0.2.0 stored it.
fn earlier() -> (KeySchemeId, Arc<KeyScheme>) {
    let mut json = today().to_json();
    let headers = json["headers"].as_array_mut().expect("headers");
    let (before, later) = (headers.len(), ["oncegate:decoded", "oncegate:credentials"]);
    headers.retain(|name| !later.iter().any(|one| name == one));
    assert_eq!(headers.len() + later.len(), before);
    let key_scheme: KeyScheme = serde_json::from_value(json.clone()).expect("a key scheme");
    assert_eq!(key_scheme.to_json(), json, "its id stays");
    (key_scheme.id(), Arc::new(key_scheme))
}

fn message(headers: &[(&str, &str)], body: Vec<u8>) -> Message {
    let own = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
    Message {
        method: "POST".into(),
        path: "/x".into(),
        headers: headers.iter().map(own).collect(),
        body: body.into(),
        ..Message::default()
    }
}

fn gzip(which: usize) -> Message {
    let headers = [
        ("content-encoding", "gzip"),
        ("content-type", "application/json"),
    ];
    message(&headers, hex::decode(GZIP[which]).expect("hex"))
}

fn parts(kind: &str, boundary: &str) -> Message {
    let body = format!("--{boundary}\r\n\r\n1\r\n--{boundary}--\r\n");
    message(&[("content-type", kind)], body.into_bytes())
}

fn secrets() -> Secrets {
    Secrets::one(Secret::new([7; 32]))
}

fn identity(
    today: &Arc<KeyScheme>,
    earlier: &[(KeySchemeId, Arc<KeyScheme>)],
    args: &Value,
) -> Identity {
    let asking = Asking {
        tenant: "shop",
        user_id: "",
        earlier_user: None,
        client_call: None,
        runtime: None,
        args,
        secrets: &secrets(),
    };
    identify(today, earlier, &asking)
}

/// A call that 0.2.0 stored.
fn stored(sent: &Message) -> Record {
    let (key_scheme, earlier) = earlier();
    let identity = identity(&earlier, &[], &compared_form(sent, ""));
    let there = record(&proxy(), Source::Derived, &[]);
    let intent = Intent {
        lookup: identity.lookups[0].lookup,
        key_scheme,
        fingerprint: identity.fingerprint,
        args: proxy().proxy().expect("a policy").stored_form(sent),
        ..(*there.intent).clone()
    };
    Record {
        intent: Arc::new(intent),
        ..there
    }
}

/// How an arrival of today compares with a call, and whether it looks under the call's name.
fn arrives(sent: &Message, there: &Record) -> (Sameness, bool) {
    let today = today();
    let identity = identity(&today, &[earlier()], &compared_form(sent, ""));
    let intent = Intent {
        lookup: identity.lookups[0].lookup,
        key_scheme: today.id(),
        fingerprint: identity.fingerprint,
        ..(*there.intent).clone()
    };
    let found = identity
        .lookups
        .iter()
        .any(|name| name.lookup == there.intent.lookup);
    (identity.fingerprints.compare(&intent, there), found)
}

#[test]
fn a_call_stored_with_its_encoded_bytes_is_the_same_call_today() {
    let there = stored(&gzip(0));
    assert_eq!(arrives(&gzip(0), &there), (Sameness::Same, true));
    // Its derived key was another one. Under a key of the caller it is the same call.
    assert_eq!(arrives(&gzip(1), &there).0, Sameness::Same);
    let other = message(
        &[("content-type", "application/json")],
        b"{\"a\":2}".to_vec(),
    );
    assert_eq!(arrives(&other, &there), (Sameness::Other, false));
}

#[test]
fn a_call_stored_with_its_boundary_is_the_same_call_today() {
    let kind = "Multipart/Form-Data; boundary=";
    let there = stored(&parts(&format!("{kind}a"), "a"));
    assert_eq!(
        arrives(&parts(&format!("{kind}a"), "a"), &there),
        (Sameness::Same, true)
    );
    assert_eq!(
        arrives(&parts(&format!("{kind}b"), "b"), &there).0,
        Sameness::Same
    );
}

#[test]
fn a_stored_call_that_cannot_be_read_again_is_never_taken_for_another_one() {
    let mut there = stored(&gzip(0));
    let intent = Arc::make_mut(&mut there.intent);
    intent.args = br#"{"method":"POST","path":"/x","headers":[],"text":"[redacted]"}"#
        .as_slice()
        .into();
    assert_eq!(arrives(&gzip(0), &there), (Sameness::Same, true));
    assert_eq!(arrives(&gzip(1), &there).0, Sameness::Unclear);
}

#[test]
fn a_plain_body_is_the_same_call_by_both_key_schemes_and_an_encoded_one_is_the_same_as_its_plain_one()
 {
    let kind = "application/json";
    let plain = message(&[("content-type", kind)], b"{\"a\":1}".to_vec());
    let usual = parts("multipart/form-data; boundary=\"a\"", "a");
    for sent in [&plain, &usual] {
        assert_eq!(arrives(sent, &stored(sent)), (Sameness::Same, true));
    }
    let of = |sent: &Message| identity(&today(), &[], &compared_form(sent, "")).lookups[0].lookup;
    assert_eq!(of(&gzip(0)), of(&plain));
    assert_eq!(of(&gzip(1)), of(&plain));
}
