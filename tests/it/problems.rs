use oncegate::http::problem::{Effect, Slug};

use crate::support::Gateway;

#[test]
fn the_table_of_problems() {
    let table: String = Slug::ALL
        .iter()
        .map(|slug| {
            let row = slug.row();
            let (effect, action) = (row.effect.as_str(), row.key_action.as_str());
            format!("{:<20}{} {effect:<8}{action:<7}{}\n", slug.as_str(), row.status.as_u16(), row.title)
        })
        .collect();
    insta::assert_snapshot!("problems", table);
}

#[test]
fn no_failure_that_may_have_had_an_effect_has_a_status_that_libraries_repeat_by_themselves() {
    for slug in Slug::ALL {
        let row = slug.row();
        let repeated = row.status.is_server_error() || matches!(row.status.as_u16(), 408 | 425 | 429);
        // This one is to be repeated, with the same key; the request itself ran nothing.
        let is_exempt = slug.as_str() == "store-unavailable";
        assert!(!repeated || row.effect != Effect::Unknown || is_exempt, "{}", slug.as_str());
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
    gateway.get("/problems/nonsense").await.expect_problem("unknown-path");
    let refused = gateway.get("/v1/tools/act/calls").await.expect_problem("method-not-allowed");
    assert_eq!((refused.status, refused.header("allow")), (405, "POST"));
    gateway.stop().await;
}
