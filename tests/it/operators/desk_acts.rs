//! Acts of operators and agents that come in a loop or fail half-way, and lists of locked sessions.

use serde_json::{Value, json};

use crate::operators::desk::{acts, each, get, post, with_tokens};
use crate::support::stores::{Stores, on_both_stores};
use crate::support::{Act, Answer, Tool, until};

on_both_stores! {
    an_agent_that_repeats_its_acts_fills_no_audit,
    locked_sessions_of_all_tenants_come_page_after_page,
    completions_and_verifications_of_an_administrator_stand_in_the_audit,
    a_tenant_is_told_that_a_tool_is_paused_and_not_by_whom_or_why,
}

async fn an_agent_that_repeats_its_acts_fills_no_audit(stores: &Stores) {
    let tool = Tool::start().await;
    let gateway = stores.gateway(&with_tokens(&tool, "")).await;
    for saga in ["G", "H"] {
        let body = json!({ "args": {}, "idempotency_key": saga, "saga_id": saga });
        let bought = post(&gateway, "shop-a", "/v1/tools/act/calls", &body).await;
        bought.expect_ok();
    }
    let end = async |token: &str, path: &str, reason: &str| {
        let path = format!("/v1/sagas/{path}");
        post(&gateway, token, &path, &json!({ "reason": reason })).await
    };
    let kept = async || get(&gateway, "ops", "/v1/audit").await.expect_ok();
    end("shop-a", "H/complete", "R1").await.expect_ok();
    for _ in 0..3 {
        let aborted = end("shop-a", "H/abort", "R2").await;
        aborted.expect_problem("wrong-state");
        end("shop-a", "G/abort", "R3").await.expect_ok();
    }
    assert_eq!(acts(&kept().await), ["abort saga done"]);
    end("ops", "G/abort?tenant=shop", "R4").await.expect_ok();
    let refused = end("ops", "H/abort?tenant=shop", "R5").await;
    refused.expect_problem("wrong-state");
    let kept = kept().await;
    let expected = ["abort saga refused", "abort saga done", "abort saga done"];
    assert_eq!(acts(&kept), expected);
    assert_eq!(each(&kept, "/acts", "by"), ["ops", "ops", "shop-a"]);
    assert_eq!(each(&kept, "/acts", "reason"), ["R5", "R4", "R3"]);
}

async fn a_tenant_is_told_that_a_tool_is_paused_and_not_by_whom_or_why(stores: &Stores) {
    let tool = Tool::start().await;
    let gateway = stores.gateway(&with_tokens(&tool, "")).await;
    let act = async |what: &str| {
        let path = format!("/v1/tools/act/{what}");
        let body = json!({ "reason": "the bank is broke" });
        post(&gateway, "ops", &path, &body).await.expect_ok()
    };
    let shown =
        async |token: &str, tool: &str| get(&gateway, token, &format!("/v1/tools/{tool}")).await;
    let paused = act("pause").await;
    let told = shown("shop-a", "act").await.expect_ok();
    assert_eq!(told.at("/paused"), true);
    assert_eq!(told.at("/since"), paused.at("/since"));
    assert_eq!(each(&told, "/events", "by"), [""; 0]);
    for hidden in ["/by", "/reason"] {
        assert_eq!(told.at(hidden), Value::Null, "{}", told.text);
        assert_ne!(shown("ops", "act").await.at(hidden), Value::Null);
    }
    act("resume").await;
    let told = shown("bank-reads", "act").await.expect_ok();
    assert_eq!(
        (told.at("/paused"), told.at("/since")),
        (false.into(), Value::Null)
    );
    // A tool that a token may not call looks like a tool that does not exist.
    let hidden = shown("shop-reads", "act").await;
    let nothing = shown("shop-reads", "none").await;
    let words = |answer: Answer| answer.expect_problem("unknown-tool").at("/detail");
    assert_eq!(words(hidden), words(nothing));
}

async fn completions_and_verifications_of_an_administrator_stand_in_the_audit(stores: &Stores) {
    let tool = Tool::start().await;
    let more = "dedup = \"key\"\n";
    let gateway = stores.gateway(&with_tokens(&tool, more)).await;
    let mut ids = Vec::new();
    for saga in ["G", "H"] {
        let body = json!({ "args": {}, "idempotency_key": saga, "saga_id": saga });
        let bought = post(&gateway, "shop-a", "/v1/tools/act/calls", &body).await;
        ids.push(bought.expect_ok().id());
    }
    let path = format!("/v1/calls/{}/replay", ids[0]);
    let verify = async || {
        let mode = json!({ "mode": "verify" });
        post(&gateway, "ops", &path, &mode).await
    };
    verify().await.expect_ok();
    // The tool was asked, and its answer cannot be compared.
    tool.always(Act::Answer(500, "", b"{}"));
    verify().await.expect_problem("wrong-state");
    let path = format!("/v1/calls/{}/replay", uuid::Uuid::nil());
    let nothing = post(&gateway, "ops", &path, &json!({ "mode": "verify" })).await;
    nothing.expect_problem("unknown-call");
    // Last, because the completion of a saga changes its calls.
    let why = json!({ "reason": "R" });
    let ended = post(&gateway, "shop-a", "/v1/sagas/G/complete", &why).await;
    ended.expect_ok();
    let path = "/v1/sagas/H/complete?tenant=shop";
    post(&gateway, "ops", path, &why).await.expect_ok();
    let kept = get(&gateway, "ops", "/v1/audit").await.expect_ok();
    let expected = [
        "complete saga done",
        "verify call unknown",
        "verify call done",
    ];
    assert_eq!(acts(&kept), expected);
    assert_eq!(each(&kept, "/acts", "by"), ["ops"; 3]);
    assert_eq!(kept.at("/acts/0/target/id"), "H");
    assert_eq!(kept.at("/acts/2/target/id"), ids[0].as_str());
}

async fn locked_sessions_of_all_tenants_come_page_after_page(stores: &Stores) {
    let tool = Tool::start().await;
    let config = with_tokens(&tool, "session = \"exclusive\"\n");
    let gateway = stores.gateway(&config).await;
    let mut holds = Vec::new();
    for (n, token) in ["shop-a", "bank-reads", "shop-b"].into_iter().enumerate() {
        let (hold, held) = Act::held(Act::Numbered);
        tool.then(held);
        holds.push(hold);
        let body = json!({ "args": {}, "session_id": format!("S{n}"), "idempotency_key": format!("k{n}") });
        let request = gateway.client.post(gateway.url("/v1/tools/act/calls"));
        let request = request.bearer_auth(token).header("prefer", "respond-async");
        let running = Answer::to(request.body(body.to_string())).await;
        assert_eq!(running.status, 202, "{}", running.text);
        until("it runs", async || tool.requests() == n + 1).await;
    }
    let (mut paged, mut cursor) = (Vec::new(), String::new());
    loop {
        let path = format!("/v1/sessions?locked=true&limit=1{cursor}");
        let page = get(&gateway, "ops", &path).await.expect_ok();
        paged.extend(each(&page, "/sessions", "session_id"));
        let Some(next) = page.at("/next_cursor").as_str().map(str::to_owned) else {
            break;
        };
        cursor = format!("&cursor={next}");
    }
    assert_eq!(paged, ["S2", "S1", "S0"]);
    drop(holds);
}
