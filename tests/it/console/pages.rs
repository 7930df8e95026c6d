//! The console: who gets in, what an act does, and what it refuses.

use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::sagas::undone::{MADE, SOON, shop};
use crate::support::browser::{Browser, try_to_sign_in};
use crate::support::gateway::one_tool;
use crate::support::stores::{Stores, on_both_stores};
use crate::support::{Act, Answer, Gateway, Tool, until};

on_both_stores! {
    every_gateway_of_a_store_accepts_a_session,
    an_unknown_call_is_settled_and_its_duplicate_gets_the_result,
    sessions_tools_and_sagas_are_stopped_and_go_on,
}

/// The names of tokens, which are their secrets too, with tenants and scopes.
const TOKENS: [(&str, &str, &str); 4] = [
    ("agents", "shop", "\"call\""),
    ("reads", "shop", "\"call\", \"read\""),
    ("bank", "bank", "\"call\", \"read\""),
    ("ops", "ops", "\"call\", \"admin\""),
];

/// A configuration with these tokens.
pub fn with_tokens(config: &str) -> String {
    let tokens = TOKENS.map(|(name, tenant, scopes)| {
        let digest = hex::encode(Sha256::digest(name));
        format!("[[auth.tokens]]\nname = \"{name}\"\ntenant = \"{tenant}\"\nsha256 = \"{digest}\"\nscopes = [{scopes}]\n")
    });
    format!("{config}\n{}", tokens.concat())
}

/// A call of `act` with a token.
pub async fn call(gateway: &Gateway, token: &str, body: &Value) -> Answer {
    gateway.post_as(token, "/v1/tools/act/calls", body).await
}

/// A call whose outcome is unknown.
pub async fn unknown(gateway: &Gateway, key: &str) -> String {
    let body = json!({ "args": { "sku": "gizmo" }, "idempotency_key": key, "session_id": "S" });
    let call = call(gateway, "agents", &body).await;
    call.expect_problem("outcome-unknown").id()
}

/// Two signed in at a gateway, and its configuration without the first one's token.
pub async fn two_signed_in() -> (Gateway, Browser, Browser, String) {
    let tool = Tool::start().await;
    let config = with_tokens(&one_tool(&tool, ""));
    let gateway = Gateway::start(&config).await;
    let ops = Browser::sign_in(&gateway, "ops").await;
    let reads = Browser::sign_in(&gateway, "reads").await;
    let without = config.replace(&hex::encode(Sha256::digest("ops")), &hex::encode([7; 32]));
    (gateway, ops, reads, without)
}

async fn every_gateway_of_a_store_accepts_a_session(stores: &Stores) {
    let tool = Tool::start().await;
    let gateways = stores.gateways(&with_tokens(&one_tool(&tool, ""))).await;
    let browser = Browser::sign_in(&gateways[0], "ops").await;
    let form = browser.form_token().await;
    for gateway in &gateways {
        let there = Browser::with_cookie(gateway, &browser.cookie);
        let page = there.see("/console").await.expect_ok();
        assert!(page.text.contains("<h1>Needs an operator"), "{}", page.text);
        // A form of one gateway is taken by the other.
        let fields = [("form", form.as_str()), ("reason", "it hangs")];
        let act = if gateway.address == gateways[0].address {
            "pause"
        } else {
            "resume"
        };
        let paused =
            Answer::to(there.form(&format!("/console/tool/{act}?name=act"), &fields)).await;
        assert_eq!(paused.status, 303, "{}", paused.text);
    }
    if gateways.len() == 1 {
        // The session outlives the process.
        let gateways = gateways
            .into_iter()
            .next()
            .expect("a gateway")
            .restart()
            .await;
        let there = Browser::with_cookie(&gateways, &browser.cookie);
        there.see("/console").await.expect_ok();
    }
}

async fn an_unknown_call_is_settled_and_its_duplicate_gets_the_result(stores: &Stores) {
    let tool = Tool::start().await;
    tool.always(Act::ExecuteThenDrop);
    let short = "timeout = \"200ms\"\ndeadline = \"200ms\"\nretry = { attempts = 1 }\n";
    let gateway = stores.gateway(&with_tokens(&one_tool(&tool, short))).await;
    let (first, second) = (unknown(&gateway, "k1").await, unknown(&gateway, "k2").await);
    let ops = Browser::sign_in(&gateway, "ops").await;
    let needs = ops.see("/console").await.expect_ok().text;
    for id in [&first, &second] {
        assert!(
            needs.contains(&format!("href=\"/console/calls/{id}\"")),
            "{needs}"
        );
    }
    assert!(needs.contains("will not settle by themselves"), "{needs}");
    let page = ops
        .see(&format!("/console/calls/{first}"))
        .await
        .expect_ok()
        .text;
    let why = "closed before message completed";
    for told in ["k1", "ended", "unknown", why, "Settle: it was executed"] {
        assert!(page.contains(told), "{told}: {page}");
    }
    assert!(
        !page.contains("Undo this call"),
        "what fits another state: {page}"
    );

    let settle = format!("/console/calls/{first}/succeeded");
    let no_json = ops
        .submit(&settle, &[("result", "it is there"), ("reason", "R")])
        .await;
    assert_eq!(no_json.status, 400, "{}", no_json.text);
    let no_reason = ops
        .submit(&settle, &[("result", "{}"), ("reason", "  ")])
        .await;
    assert_eq!(no_reason.status, 400, "{}", no_reason.text);
    let result = "{\"order\": 7.50}";
    let seen = ops.seen(&format!("/console/calls/{first}")).await;
    let settled = ops
        .submit(
            &settle,
            &[
                ("result", result),
                ("reason", "the shop has it"),
                ("seen", &seen),
            ],
        )
        .await;
    assert_eq!(settled.status, 303, "{}", settled.text);
    let shown = ops.see(settled.header("location")).await.expect_ok().text;
    assert!(
        shown.contains("Done. It stands in the audit") && shown.contains("the shop has it"),
        "{shown}"
    );
    let body = json!({ "args": { "sku": "gizmo" }, "idempotency_key": "k1", "session_id": "S" });
    let duplicate = call(&gateway, "agents", &body).await.expect_ok();
    assert_eq!(
        (duplicate.result(), duplicate.at("/replayed")),
        (result.into(), true.into())
    );
    let failed = format!("/console/calls/{second}/failed");
    // As long as its request may still be under way it is not settled as failed.
    until("it is settled", async || {
        let seen = ops.seen(&format!("/console/calls/{second}")).await;
        let fields = [("reason", "the shop has nothing"), ("seen", &seen)];
        ops.submit(&failed, &fields).await.status == 303
    })
    .await;
    let again = ops.submit(&failed, &[("reason", "once more")]).await;
    assert_eq!(again.status, 409, "{}", again.text);
    assert!(
        again.text.contains("Not in this state")
            && again.header("content-type").starts_with("text/html")
    );

    let acts = gateway
        .client
        .get(gateway.url("/v1/audit"))
        .bearer_auth("ops");
    let acts = Answer::to(acts).await.expect_ok();
    let told: Vec<Value> = (0..2)
        .map(|n| acts.at(&format!("/acts/{n}/reason")))
        .collect();
    assert_eq!(told, ["once more", "the shop has nothing"]);
    assert_eq!(acts.at("/acts/1/by"), "ops");
    let audit = ops
        .see("/console/audit?act=resolve&limit=500")
        .await
        .expect_ok()
        .text;
    assert!(
        audit.contains("the shop has it") && audit.contains("refused"),
        "{audit}"
    );
    let needs = ops.see("/console").await.expect_ok().text;
    assert!(!needs.contains("will not settle"), "{needs}");
}

async fn sessions_tools_and_sagas_are_stopped_and_go_on(stores: &Stores) {
    let tool = Tool::start().await;
    tool.always(MADE);
    let gateway = stores.gateway(&with_tokens(&shop(&tool, SOON))).await;
    let in_saga = async |name: &str, key: &str| {
        let body = json!({ "args": {}, "session_id": "S", "saga_id": "G", "idempotency_key": key });
        gateway
            .post_as("agents", &format!("/v1/tools/{name}/calls"), &body)
            .await
    };
    in_saga("order", "a").await.expect_ok();
    in_saga("pay", "b").await.expect_ok();
    let ops = Browser::sign_in(&gateway, "ops").await;
    let act = async |path: &str, reason: &str| {
        let done = ops.submit(path, &[("reason", reason)]).await;
        assert_eq!(done.status, 303, "{path}: {}", done.text);
        ops.see(done.header("location")).await.expect_ok().text
    };
    let paused = act("/console/tool/pause?name=order", "it doubles").await;
    assert!(
        paused.contains("data-state=\"paused\"") && paused.contains("it doubles"),
        "{paused}"
    );
    in_saga("order", "c").await.expect_problem("tool-paused");
    let frozen = act("/console/session/freeze?id=S&tenant=shop", "it loops").await;
    assert!(frozen.contains("data-state=\"frozen\""), "{frozen}");
    in_saga("pay", "d").await.expect_problem("session-frozen");
    let needs = ops.see("/console").await.expect_ok().text;
    for told in ["Paused tool", "it doubles", "Frozen session", "it loops"] {
        assert!(needs.contains(told), "{told}: {needs}");
    }
    act("/console/tool/resume?name=order", "").await;
    act("/console/session/thaw?id=S&tenant=shop", "mended").await;
    let list = ops.see("/console/sessions").await.expect_ok().text;
    assert!(!list.contains("data-state=\"frozen\""), "{list}");

    tool.always(Act::Answer(422, "", b"{\"why\":\"not settled\"}"));
    act("/console/saga/abort?id=G&tenant=shop", "sold out").await;
    until("it is stuck", async || {
        let needs = ops.see("/console").await.expect_ok().text;
        needs.contains("Stuck saga") && needs.contains("/console/saga/retry?id=G&amp;tenant=shop")
    })
    .await;
    // A form of a page that shows other trouble skips nothing.
    let stale = [("reason", "R"), ("seen", &"0".repeat(32)[..])];
    let skip = ops.submit("/console/saga/skip?id=G&tenant=shop", &stale);
    assert_eq!(skip.await.status, 409);
    let page = ops.see("/console/saga?id=G&tenant=shop").await.text;
    assert!(
        page.contains("data-state=\"stuck\"") && page.contains("name=\"seen\""),
        "{page}"
    );
    tool.always(MADE);
    act("/console/saga/retry?id=G&tenant=shop", "mended").await;
    until("it is undone", async || {
        let page = ops
            .see("/console/saga?id=G&tenant=shop")
            .await
            .expect_ok()
            .text;
        page.contains("Saga G: compensated")
    })
    .await;
}

#[tokio::test]
async fn a_token_opens_a_session_whose_cookie_is_sealed_and_narrow() {
    let tool = Tool::start().await;
    let gateway = Gateway::start(&with_tokens(&one_tool(&tool, ""))).await;
    let signed = try_to_sign_in(&gateway, "ops").await;
    assert_eq!(
        (signed.status, signed.header("location")),
        (303, "/console/calls?state=unknown")
    );
    let cookie = signed.header("set-cookie");
    let (value, rest) = cookie.split_once(';').expect("attributes");
    assert_eq!(
        rest,
        " Path=/console; HttpOnly; SameSite=Strict; Max-Age=28800"
    );
    let digest = hex::encode(Sha256::digest("ops"));
    assert!(
        !value.contains("ops") && !value.contains(&digest),
        "{value}"
    );
    // Every session is another, also of the same token.
    let again = try_to_sign_in(&gateway, "ops").await;
    assert_ne!(again.header("set-cookie"), cookie);
    let over_tls = gateway.client.post(gateway.url("/console/sign-in"));
    let over_tls = over_tls.header("origin", gateway.url("").replace("http:", "https:"));
    let over_tls = Answer::to(over_tls.body("token=ops")).await;
    assert!(
        over_tls.header("set-cookie").ends_with("; Secure"),
        "{over_tls:?}"
    );
    assert_eq!(over_tls.header("location"), "/console");
    gateway.stop().await;
}

#[tokio::test]
async fn without_a_session_a_page_leads_to_the_form_and_a_wrong_token_stays_there() {
    let tool = Tool::start().await;
    let gateway = Gateway::start(&with_tokens(&one_tool(&tool, ""))).await;
    let nobody = Browser::with_cookie(&gateway, "");
    let asked = nobody.see("/console/calls?state=unknown").await;
    let form = asked.header("location");
    assert_eq!(
        (asked.status, form),
        (
            303,
            "/console/sign-in?next=%2Fconsole%2Fcalls%3Fstate%3Dunknown"
        )
    );
    let form = nobody.see(form).await.expect_ok().text;
    assert!(
        form.contains("name=\"next\" value=\"/console/calls?state=unknown\""),
        "{form}"
    );
    // A link on another site brings no cookie: the page asks for itself once more.
    let linked = nobody
        .request("/console/audit")
        .header("sec-fetch-site", "cross-site");
    let linked = Answer::to(linked).await.expect_ok();
    assert_eq!(linked.header("refresh"), "0; url=/console/audit");
    let before = gateway
        .metric("oncegate_refused_tokens_total{reason=\"unknown\"}")
        .await;
    let wrong = try_to_sign_in(&gateway, "wrong").await;
    assert_eq!(
        (wrong.status, wrong.header("set-cookie")),
        (401, ""),
        "{}",
        wrong.text
    );
    assert!(
        wrong.text.contains("No valid token") && !wrong.text.contains("wrong"),
        "{}",
        wrong.text
    );
    let after = gateway
        .metric("oncegate_refused_tokens_total{reason=\"unknown\"}")
        .await;
    assert_eq!(after, before + 1.0);
    let posted = Answer::to(nobody.form("/console/tool/pause?name=act", &[("reason", "R")])).await;
    assert_eq!(posted.status, 401, "{}", posted.text);
    gateway.stop().await;
}

#[tokio::test]
async fn a_cookie_that_was_changed_or_is_of_another_store_opens_nothing() {
    let tool = Tool::start().await;
    let config = with_tokens(&one_tool(&tool, ""));
    let (gateway, elsewhere) = (Gateway::start(&config).await, Gateway::start(&config).await);
    let good = Browser::sign_in(&gateway, "ops").await.cookie;
    let of_another = Browser::sign_in(&elsewhere, "ops").await.cookie;
    let mut changed = good.clone();
    let last = changed.pop().expect("a letter");
    changed.push(if last == 'A' { 'Q' } else { 'A' });
    let twice = format!("{good}; {good}");
    for cookie in [
        &of_another,
        &changed,
        &twice,
        "oncegate_console=",
        "oncegate_console=ops",
    ] {
        let page = Browser::with_cookie(&gateway, cookie).see("/console").await;
        assert_eq!(page.status, 303, "{cookie}");
    }
    let beside = format!("a=b; {good}; c");
    Browser::with_cookie(&gateway, &beside)
        .see("/console")
        .await
        .expect_ok();
    gateway.stop().await;
    elsewhere.stop().await;
}

#[tokio::test]
async fn a_token_that_is_removed_ends_its_sessions() {
    let (gateway, ops, reads, without) = two_signed_in().await;
    let form = ops.form_token().await;
    assert!(gateway.reload(&without).await);
    assert_eq!(ops.see("/console").await.status, 303);
    let late = ops.form(
        "/console/tool/pause?name=act",
        &[("form", &form), ("reason", "R")],
    );
    assert_eq!(Answer::to(late).await.status, 401);
    reads.see("/console").await.expect_ok();
    gateway.stop().await;
}

#[tokio::test]
async fn an_act_needs_its_own_form_its_own_site_and_its_scope() {
    let tool = Tool::start().await;
    tool.always(Act::ExecuteThenDrop);
    let gateway = Gateway::start(&with_tokens(&one_tool(&tool, ""))).await;
    let id = unknown(&gateway, "k").await;
    let ops = Browser::sign_in(&gateway, "ops").await;
    let (own, of_another) = (
        ops.form_token().await,
        Browser::sign_in(&gateway, "ops").await.form_token().await,
    );
    let acts = [
        format!("/console/calls/{id}/failed"),
        format!("/console/calls/{id}/succeeded"),
        format!("/console/calls/{id}/compensate"),
        format!("/console/calls/{id}/verify"),
        format!("/console/calls/{id}/probe"),
        "/console/many/calls/failed?state=unknown".into(),
        "/console/many/sagas/retry".into(),
        "/console/anomaly/ignore?name=books&id=1".into(),
        "/console/tool/pause?name=act".into(),
        "/console/session/freeze?id=S&tenant=shop".into(),
        "/console/saga/abort?id=G&tenant=shop".into(),
        "/console/store/accept-loss".into(),
        "/console/sign-out".into(),
    ];
    let origin = gateway.url("");
    let foreign = [
        ("origin", "https://evil.example"),
        ("origin", "null"),
        ("sec-fetch-site", "cross-site"),
        ("sec-fetch-site", "same-site"),
    ];
    for path in &acts {
        for token in ["", "0", &of_another] {
            let fields = [("form", token), ("reason", "R"), ("result", "1")];
            let refused = Answer::to(ops.form(path, &fields)).await;
            assert_eq!(refused.status, 403, "{path} {token}: {}", refused.text);
        }
        for header in foreign {
            let fields = [("form", own.as_str()), ("reason", "R"), ("result", "1")];
            let refused = Answer::to(ops.form(path, &fields).header(header.0, header.1)).await;
            assert_eq!(refused.status, 403, "{path} {header:?}: {}", refused.text);
        }
    }
    // A token without the scope: its page shows no form of an act, and an act is refused.
    let reads = Browser::sign_in(&gateway, "reads").await;
    let page = reads
        .see(&format!("/console/calls/{id}"))
        .await
        .expect_ok()
        .text;
    assert!(
        !page.contains("Settle") && page.contains("Acts need one with the scope"),
        "{page}"
    );
    for path in acts.iter().filter(|path| !path.contains("sign-out")) {
        let refused = reads
            .submit(path, &[("reason", "R"), ("result", "1")])
            .await;
        assert_eq!(refused.status, 403, "{path}: {}", refused.text);
    }
    // Another tenant's call is as one that is not there.
    let bank = Browser::sign_in(&gateway, "bank").await;
    assert_eq!(bank.see(&format!("/console/calls/{id}")).await.status, 404);
    let list = bank.see("/console/calls").await.expect_ok().text;
    assert!(!list.contains(&id), "{list}");
    let state = gateway
        .client
        .get(gateway.url(&format!("/v1/calls/{id}")))
        .bearer_auth("ops");
    assert_eq!(Answer::to(state).await.at("/state"), "unknown");
    let own_site = ops.form(
        "/console/tool/pause?name=act",
        &[("form", &own), ("reason", "R")],
    );
    let done = Answer::to(
        own_site
            .header("origin", origin)
            .header("sec-fetch-site", "same-origin"),
    )
    .await;
    assert_eq!(done.status, 303, "{}", done.text);
    let out = ops.submit("/console/sign-out", &[]).await;
    assert!(
        out.header("set-cookie")
            .contains("oncegate_console=; Path=/console")
            && out.header("set-cookie").contains("Max-Age=0")
    );
    gateway.stop().await;
}

#[tokio::test]
async fn without_tokens_the_console_is_open_to_this_machine_alone() {
    let tool = Tool::start().await;
    let gateway = Gateway::with_tool(&tool, "").await;
    let here = Browser::with_cookie(&gateway, "");
    here.see("/console").await.expect_ok();
    let signed = here.see("/console/sign-in").await;
    assert_eq!(
        (signed.status, signed.header("location")),
        (303, "/console")
    );
    let done = here
        .submit("/console/tool/pause?name=act", &[("reason", "it hangs")])
        .await;
    assert_eq!(done.status, 303, "{}", done.text);
    for (name, value) in [("host", "evil.example"), ("sec-fetch-site", "cross-site")] {
        let page = Answer::to(here.request("/console").header(name, value)).await;
        assert_eq!(page.status, 403, "{name}: {}", page.text);
    }
    let form = here.form_token().await;
    let act = here.form("/console/tool/resume?name=act", &[("form", &form)]);
    let act = Answer::to(act.header("origin", "http://evil.example")).await;
    assert_eq!(act.status, 403, "{}", act.text);
    gateway.stop().await;
}
