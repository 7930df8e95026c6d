//! Which server of a description the tools get, and what is said of the others.

use oncegate::import::{Asked, openapi};
use serde_json::json;

#[test]
fn a_server_without_https_is_not_dropped_silently() {
    let act = json!({ "operationId": "act", "responses": {} });
    let printed = |urls: &[&str]| {
        let servers: Vec<_> = urls.iter().map(|url| json!({ "url": url })).collect();
        let description = json!({
            "openapi": "3.1.0", "servers": servers, "paths": { "/a": { "post": act } }
        });
        let printed = openapi(&description.to_string(), &Asked::default());
        printed.expect("a description").text
    };
    for other in ["http://b.example", "HTTP://b.example/v1"] {
        let text = printed(&["https://a.example", other]);
        assert!(text.contains("url = \"https://a.example/a\""), "{text}");
        let note = text.lines().find(|line| line.contains(other));
        let note = note.unwrap_or_else(|| panic!("nothing is said of {other}: {text}"));
        assert!(note.contains("without https"), "{note}");
        // The order does not matter.
        assert!(printed(&[other, "https://a.example"]).contains(note));
    }
    let text = printed(&["http://a.example", "HTTPS://b.example"]);
    assert!(text.contains("url = \"HTTPS://b.example/a\""), "{text}");
    let alone = printed(&["http://a.example", "http://b.example"]);
    assert!(alone.contains("url = \"http://a.example/a\""), "{alone}");
    assert!(alone.contains("http://b.example"), "{alone}");
}
