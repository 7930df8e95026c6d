//! The lookup keys of a request, with the key and the key scheme behind each.

use super::*;
use crate::mcp::elicitation;
use crate::proxy::compared_form::whole_form;
use crate::proxy::{self, Compare, KeyScope, Message};
use crate::tool::{Protocol, Proxy};

/// The names of a request, each with its key, its source and its part.
fn lookups(
    today: &Tool,
    earlier: &[&Tool],
    runtime: Option<&str>,
    args: &Value,
    secrets: &Secrets,
) -> Vec<(String, Source, Part)> {
    let runtime = runtime.map(|key| Key::parse(key).expect("a key"));
    let asking = Asking {
        tenant: "shop",
        user_id: "U",
        earlier_user: None,
        client_call: None,
        runtime: runtime.as_ref(),
        args,
        secrets,
    };
    let earlier: Vec<_> = earlier
        .iter()
        .map(|tool| Arc::new(KeyScheme::of(tool)))
        .map(|key_scheme| (key_scheme.id(), key_scheme))
        .collect();
    let identity = identify(&Arc::new(KeyScheme::of(today)), &earlier, &asking);
    assert_eq!(identity.lookups.len(), identity.keys.len());
    let both = identity.lookups.into_iter().zip(identity.keys);
    both.map(|(name, chosen)| {
        let key = chosen.key.as_str();
        assert_eq!(name.lookup, Lookup::new("shop", &today.name, key));
        assert_eq!(name.is_runtime, chosen.source == Source::Runtime, "{key}");
        (key.to_owned(), chosen.source, name.part)
    })
    .collect()
}

/// The key that `act` derives from `{"id":1}` as its business field for the user `U`.
fn business_key(tool: &Tool, secrets: &Secrets) -> String {
    let found = lookups(tool, &[], None, &json!({ "id": 1 }), secrets);
    assert_eq!(found.len(), 1 + secrets.earlier.len(), "{found:?}");
    found[0].0.clone()
}

#[test]
fn the_runtimes_key_is_a_second_name_only_where_the_fields_make_the_key() {
    let (plain, mut business, mut runtime_first) = (tool("act"), tool("act"), tool("act"));
    business.key.fields = pointers(&["/id"]);
    runtime_first.key = key::Policy {
        prefer: Prefer::Runtime,
        ..business.key.clone()
    };
    let args = json!({ "id": 1 });
    let read =
        |today, earlier: &[&Tool], runtime| lookups(today, earlier, runtime, &args, &SECRETS);
    let by_fields = business_key(&business, &SECRETS);
    let fields = |part| (by_fields.clone(), Source::Business, part);
    let runtime = |part| ("k".to_owned(), Source::Runtime, part);
    use Part::{Earlier, Fallback, Today};
    assert_eq!(read(&business, &[], None), [fields(Today)]);
    assert_eq!(
        read(&business, &[], Some("k")),
        [fields(Today), runtime(Fallback)]
    );
    for today in [&plain, &runtime_first] {
        assert_eq!(read(today, &[], Some("k")), [runtime(Today)]);
        assert_eq!(
            read(today, &[&business], Some("k")),
            [runtime(Today), fields(Earlier)],
            "no name is there twice"
        );
    }
    let mut moved = business.clone();
    moved.key.fields = pointers(&["/other"]);
    assert_eq!(
        read(&moved, &[&business], Some("k")),
        [runtime(Fallback), fields(Earlier)],
        "a key scheme that gives no key gives no lookup key of it"
    );
}

#[test]
fn an_answer_to_a_round_has_no_other_name() {
    let (plain, mut business) = (tool("act"), tool("act"));
    business.key.fields = pointers(&["/id"]);
    let id = uuid::Uuid::from_u128(7);
    let args = json!({ "id": 1, (elicitation::MEMBER): { "call": id.to_string() } });
    for tool in [&plain, &business] {
        let found = lookups(tool, &[], Some("k"), &args, &SECRETS);
        let key = format!("{}{id}", key::ELICITATION);
        assert_eq!(found, [(key, Source::Elicitation, Part::Today)]);
    }
}

#[test]
fn redacted_arguments_give_a_name_under_every_secret_of_the_store() {
    let (mut redacting, mut business) = (tool("act"), tool("act"));
    redacting.redact.args = pointers(&["/id"]);
    business.redact = redacting.redact.clone();
    business.key.fields = pointers(&["/id"]);
    let one = |n| Secrets::one(Secret::new([n; 32]));
    let all = Secrets {
        earlier: vec![Secret::new([8; 32]), Secret::new([9; 32])],
        ..one(7)
    };
    let args = json!({ "id": 1 });
    for (tool, source) in [(&redacting, Source::Derived), (&business, Source::Business)] {
        let keys = [7, 8, 9].map(|n| business_key(tool, &one(n)));
        let expected = keys.clone().map(|key| (key, source, Part::Today));
        assert_eq!(lookups(tool, &[], None, &args, &all), expected);
        let mut other = tool.clone();
        other.key.required = true;
        other.key.fields.clear();
        let found = lookups(&other, &[tool], None, &args, &all);
        let expected = keys.map(|key| (key, source, Part::Earlier));
        assert_eq!(found, expected, "also by an earlier key scheme");
    }
    let plain = lookups(&tool("act"), &[], None, &args, &all);
    assert_eq!(plain.len(), 1, "what needs no secret has one name");
    let runtime = lookups(&redacting, &[], Some("k"), &args, &all);
    assert_eq!(runtime, [("k".to_owned(), Source::Runtime, Part::Today)]);
}

#[test]
fn a_key_in_the_arguments_is_the_runtimes_and_calls_from_before_are_still_found() {
    let (plain, mut placed) = (tool("act"), tool("act"));
    placed.key.places = pointers(&["/meta/key", "/key"]);
    let args = json!({ "meta": { "key": "k" } });
    let found = |today, earlier: &[&Tool]| lookups(today, earlier, None, &args, &SECRETS);
    let (derived, ..) = found(&plain, &[])[0].clone();
    let runtime = |part| ("k".to_owned(), Source::Runtime, part);
    assert_eq!(found(&placed, &[]), [runtime(Part::Today)]);
    let before = (derived.clone(), Source::Derived, Part::Earlier);
    assert_eq!(found(&placed, &[&plain]), [runtime(Part::Today), before]);
    let today = (derived, Source::Derived, Part::Today);
    assert_eq!(found(&plain, &[&placed]), [today, runtime(Part::Earlier)]);

    let key = |header: Option<&str>, args: Value| {
        let header = header.map(|key| Key::parse(key).expect("a key"));
        let (chosen, _) = read(&placed, header.as_ref(), &args);
        chosen.map(|chosen| chosen.key.as_str().to_owned())
    };
    assert_eq!(key(Some("k"), args.clone()), Ok("k".to_owned()));
    let second = json!({ "meta": { "key": null }, "key": "k" });
    assert_eq!(key(None, second), Ok("k".to_owned()));
    assert_eq!(key(Some("other"), args), Err(Refused::Conflict));
    for wrong in [json!(7), json!(""), json!("a b")] {
        let invalid = Err(Refused::Invalid("arguments"));
        assert_eq!(key(None, json!({ "key": wrong })), invalid);
    }
    let own = json!({ "key": format!("{}x", key::COMPENSATION) });
    assert_eq!(key(None, own), Err(Refused::Reserved));
}

/// A proxy whose keys come in a header.
fn proxy(policy: proxy::Policy) -> Tool {
    Tool {
        keeps_key_member: true,
        protocol: Protocol::Proxy(Proxy {
            policy,
            ..Proxy::default()
        }),
        ..tool("api")
    }
}

fn asked_for(tool: &Tool, path: &str, body: &'static str) -> Identity {
    let message = Message {
        method: "POST".to_owned(),
        path: path.to_owned(),
        headers: vec![
            ("content-type".to_owned(), "application/json".to_owned()),
            ("x-payment".to_owned(), "eyJpZCI6InAxIn0".to_owned()),
        ],
        body: body.into(),
        ..Message::default()
    };
    let key = Key::parse("k").expect("a key");
    let asking = Asking {
        tenant: "shop",
        user_id: "",
        earlier_user: None,
        client_call: None,
        runtime: Some(&key),
        args: &whole_form(&message, ""),
        secrets: &SECRETS,
    };
    identify(&Arc::new(KeyScheme::of(tool)), &[], &asking)
}

#[test]
fn a_key_of_a_proxy_counts_for_all_paths_or_for_one() {
    let mut policy = proxy::Policy::default();
    let name = |policy: &proxy::Policy, path| {
        let identity = asked_for(&proxy(policy.clone()), path, "{}");
        assert_eq!(identity.keys[0].key.as_str(), "k");
        identity.lookups[0].lookup
    };
    assert_eq!(name(&policy, "/a"), name(&policy, "/b"));
    policy.key_scope = KeyScope::Path;
    assert_eq!(name(&policy, "/a"), name(&policy, "/a"));
    assert_ne!(name(&policy, "/a"), name(&policy, "/b"));
    assert_ne!(name(&policy, "/a"), Lookup::new("shop", "api", "k"));
}

#[test]
fn bodies_of_a_proxy_are_compared_by_what_they_mean_or_byte_for_byte() {
    let mut policy = proxy::Policy::default();
    let print = |policy: &proxy::Policy, body| {
        let identity = asked_for(&proxy(policy.clone()), "/a", body);
        let counted = identity.counted.expect("a part of the request").to_string();
        for aside in ["oncegate:exact", "oncegate:payment", "p1"] {
            assert!(!counted.contains(aside), "{aside}: {counted}");
        }
        identity.fingerprint
    };
    let (one, other) = ("{\"a\":1}", "{ \"a\": 1.0 }");
    assert_eq!(print(&policy, one), print(&policy, other));
    policy.compare = Compare::Bytes;
    assert_eq!(print(&policy, one), print(&policy, one));
    assert_ne!(print(&policy, one), print(&policy, other));
}
