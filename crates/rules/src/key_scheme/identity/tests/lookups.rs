//! The lookup keys of a request, with the key and the key scheme behind each.

use super::*;
use crate::mcp::elicitation;

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
