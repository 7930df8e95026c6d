use oncegate::http::problem::{Effect, Slug};
use serde_json::json;

use crate::support::{Act, Answer, Gateway, Tool, client};

#[test]
fn the_table_of_problems() {
    let table: String = Slug::ALL
        .iter()
        .map(|slug| {
            let row = slug.row();
            let (effect, action) = (row.effect.as_str(), row.key_action.as_str());
            format!(
                "{:<20}{} {effect:<8}{action:<7}{}\n",
                slug.as_str(),
                row.status.as_u16(),
                row.title
            )
        })
        .collect();
    insta::assert_snapshot!("problems", table);
}

#[test]
fn no_failure_that_may_have_had_an_effect_has_a_status_that_libraries_repeat_by_themselves() {
    for slug in Slug::ALL {
        let row = slug.row();
        let repeated =
            row.status.is_server_error() || matches!(row.status.as_u16(), 408 | 425 | 429);
        // Clients should repeat these with the same key: the request itself ran nothing.
        let is_exempt = [
            "store-unavailable",
            "caller-not-checked",
            "shutting-down",
            "rate-limited",
        ]
        .contains(&slug.as_str());
        assert!(
            !repeated || row.effect != Effect::Unknown || is_exempt,
            "{}",
            slug.as_str()
        );
    }
}

#[tokio::test]
async fn every_type_of_problem_is_a_page_that_the_gateway_serves() {
    let gateway = Gateway::start("").await;
    let index = gateway.get("/problems").await.expect_ok().text;
    for slug in Slug::ALL {
        let path = format!("/problems/{}", slug.as_str());
        assert!(index.contains(&path), "{path}");
        let page = gateway.get(&path).await.expect_ok();
        assert!(page.header("content-type").starts_with("text/html"));
        assert!(page.text.contains(slug.row().text), "{path}");
    }
    gateway
        .get("/problems/nonsense")
        .await
        .expect_problem("unknown-path");
    let refused = gateway
        .get("/v1/tools/act/calls")
        .await
        .expect_problem("method-not-allowed");
    assert_eq!((refused.status, refused.header("allow")), (405, "POST"));
    gateway.stop().await;
}

#[tokio::test]
async fn a_list_is_refused_as_a_body_by_every_route() {
    let tool = Tool::start().await;
    let gateway = Gateway::with_tool(&tool, "").await;
    tool.then(Act::ExecuteThenDrop);
    let unknown = gateway
        .call(json!({ "n": 1 }))
        .await
        .expect_problem("outcome-unknown");
    let call = format!("/v1/calls/{}", unknown.id());
    for (door, body) in [
        (
            "/v1/tools/act/calls".to_owned(),
            json!([{}, "U", "S", null, "key", null, null, null]),
        ),
        (
            "/v1/tools/act/key".to_owned(),
            json!([{}, "U", "S", null, "key", null, null, null]),
        ),
        (
            format!("{call}/resolve"),
            json!(["failed", null, "it looked so"]),
        ),
        (format!("{call}/replay"), json!(["stored"])),
        (
            "/v1/sessions/S/freeze".to_owned(),
            json!(["it goes in circles"]),
        ),
        (
            "/v1/tools/act/pause".to_owned(),
            json!(["it goes in circles"]),
        ),
        ("/v1/sagas/S/complete".to_owned(), json!(["it is done"])),
    ] {
        let request = client().post(gateway.url(&door)).body(format!(" \n{body}"));
        let answer = Answer::to(request).await;
        let refused = answer.expect_problem("invalid-request");
        assert!(
            refused
                .at("/detail")
                .as_str()
                .is_some_and(|why| why.contains("expected an object")),
            "{door}"
        );
    }
    assert_eq!(gateway.record(&unknown).await.at("/state"), "unknown");
    gateway.call(json!({ "n": 2 })).await.expect_ok();
    assert_eq!(tool.requests(), 2);
    gateway.stop().await;
}
