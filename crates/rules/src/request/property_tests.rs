use proptest::prelude::*;
use serde_json::json;
use url::Url;

use super::*;

const TEMPLATE: &str =
    "https://api.example.com:8443/v1/orders/{/id}/lines/x{/line}/refunds?of={/of}&key={key}";

/// Texts that an attacker would choose.
fn hostile() -> impl Strategy<Value = String> {
    let part = prop_oneof![
        Just("../".to_owned()),
        Just("..\\".to_owned()),
        Just("%2e".to_owned()),
        Just("%2F".to_owned()),
        Just("?".to_owned()),
        Just("#".to_owned()),
        Just("//".to_owned()),
        Just("\n".to_owned()),
        Just("@".to_owned()),
        Just(":".to_owned()),
        Just("&".to_owned()),
        Just("=".to_owned()),
        Just(".".to_owned()),
        Just("\\".to_owned()),
        Just("{/id}".to_owned()),
        Just("{key}".to_owned()),
        Just("a".repeat(10_000)),
        any::<String>(),
        "[a-z]{1,8}",
    ];
    prop::collection::vec(part, 1..4).prop_map(|parts| parts.concat())
}

proptest! {
    #[test]
    fn no_argument_changes_where_a_request_goes(id in hostile(), line in hostile(), of in hostile(), q in hostile()) {
        let query = vec![("q".to_owned(), "/q".parse().expect("a pointer"))];
        let target = Target::read(TEMPLATE).expect("a URL").with_query(query, Lists::Repeat);
        let args = json!({ "id": id, "line": line, "of": of, "q": q });
        let Ok(url) = target.url(&args, "k1") else { return Ok(()) };
        let url: Url = url.parse().expect("a URL");
        prop_assert_eq!(url.origin().ascii_serialization(), "https://api.example.com:8443");
        prop_assert_eq!((url.username(), url.password(), url.fragment()), ("", None, None));
        let decode = |text: &str| percent_encoding::percent_decode_str(text).decode_utf8_lossy().into_owned();
        let segments: Vec<String> = url.path_segments().expect("segments").map(decode).collect();
        prop_assert_eq!(segments, ["v1", "orders", &id, "lines", &format!("x{line}"), "refunds"]);
        let pairs: Vec<(String, String)> = url.query_pairs().into_owned().collect();
        let expected = [("of", of.as_str()), ("key", "k1"), ("q", q.as_str())];
        prop_assert_eq!(pairs, expected.map(|(name, value)| (name.to_owned(), value.to_owned())));
    }

    #[test]
    fn a_form_is_read_back_as_its_arguments(name in hostile(), value in hostile()) {
        let body = json!({ "kept": "1", "inner": { name.clone(): value } });
        let body = body.as_object().expect("an object");
        let Ok(text) = write_pairs(body, Lists::Indices) else { return Ok(()) };
        let pairs: Vec<(String, String)> = form_urlencoded::parse(text.as_bytes()).into_owned().collect();
        let inner = (format!("inner[{name}]"), value);
        prop_assert_eq!(pairs, [inner, ("kept".to_owned(), "1".to_owned())]);
    }
}
