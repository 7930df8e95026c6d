//! The console: acts on many, on anomalies, and a tool that is asked at once. As forms, without any script.

use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::console::pages::{call, with_tokens};
use crate::operators::many::probe_of;
use crate::reconcile::anomalies::only;
use crate::reconcile::runs::config;
use crate::sagas::undone::{MADE, SOON, shop};
use crate::support::books::Books;
use crate::support::browser::Browser;
use crate::support::gateway::one_tool;
use crate::support::stores::{Stores, on_both_stores};
use crate::support::{Act, Answer, Gateway, Tool, until};

on_both_stores! {
    all_unknown_calls_of_a_list_are_settled_once_their_number_is_confirmed,
    tools_are_asked_about_one_call_and_about_all_of_a_list,
    all_stuck_sagas_of_a_list_are_tried_again_or_skipped,
    anomalies_of_older_runs_are_shown_and_acted_on_with_a_reason,
    a_users_data_is_erased_from_the_list_of_its_calls,
}

/// Markup as a reason, and how a page shows it.
const HOSTILE: &str = "'\"><script>alert(1)</script>&\u{202e}";
const SHOWN: &str = "'&quot;&gt;&lt;script&gt;alert(1)&lt;/script&gt;&amp;\\u{202e}";

/// Long enough for a busy machine to reach the tool.
const SHORT: &str = "timeout = \"1s\"\ndeadline = \"1s\"\nretry = { attempts = 1 }\nbreaker = { failures = 1000 }\n";

async fn unknown(gateway: &Gateway, key: &str) -> String {
    let body = json!({ "args": {}, "idempotency_key": key });
    let call = call(gateway, "agents", &body).await;
    call.expect_problem("outcome-unknown").id()
}

async fn get(gateway: &Gateway, path: &str) -> Answer {
    let request = gateway.client.get(gateway.url(path)).bearer_auth("ops");
    Answer::to(request).await.expect_ok()
}

/// The addresses to which the forms of a page go.
fn forms(page: &str) -> Vec<String> {
    let forms = page.split("action=\"").skip(1);
    let forms = forms.filter_map(|rest| rest.split('"').next());
    forms.map(|to| to.replace("&amp;", "&")).collect()
}

/// The fields that the confirming form of a page has, but for the session's own.
fn kept(page: &str) -> Vec<(String, String)> {
    let field = |name: &str| {
        let value = page.split(&format!("name=\"{name}\" value=\"")).nth(1)?;
        let value = value.split('"').next()?;
        let value = value.replace("&quot;", "\"").replace("&lt;", "<");
        let value = value.replace("&gt;", ">").replace("&amp;", "&");
        Some((name.to_owned(), value))
    };
    let fields = ["reason", "result", "count", "digest"];
    fields.into_iter().filter_map(field).collect()
}

/// Submits what a page asks to confirm.
async fn confirm(ops: &Browser, to: &str, page: &str) -> Answer {
    let kept = kept(page);
    let fields: Vec<(&str, &str)> = kept
        .iter()
        .map(|(name, value)| (name.as_str(), value.as_str()))
        .collect();
    ops.submit(to, &fields).await
}

async fn all_unknown_calls_of_a_list_are_settled_once_their_number_is_confirmed(stores: &Stores) {
    let tool = Tool::start().await;
    tool.always(Act::ExecuteThenDrop);
    let gateway = stores.gateway(&with_tokens(&one_tool(&tool, SHORT))).await;
    let mut ids = Vec::new();
    for n in 0..12 {
        ids.push(unknown(&gateway, &format!("k{n}")).await);
    }
    let ops = Browser::sign_in(&gateway, "ops").await;
    let list = "/console/calls?state=unknown&tool=act&limit=5";
    let page = ops.see(list).await.expect_ok().text;
    let to = "/console/many/calls/succeeded?state=unknown&tool=act";
    assert!(forms(&page).iter().any(|one| one == to), "{page}");
    // The state says what can be done to all: without one there is nothing.
    let page = ops.see("/console/calls?tool=act").await.expect_ok().text;
    assert!(!page.contains("/console/many"), "{page}");

    let told = [("reason", HOSTILE), ("result", " {\"by\": \"<b>\"} ")];
    let dry = ops.submit(to, &told).await.expect_ok().text;
    for said in [
        "12 calls",
        "Nothing has been done yet",
        SHOWN,
        "{&quot;by&quot;: &quot;&lt;b&gt;&quot;}",
        ids[11].as_str(),
    ] {
        assert!(dry.contains(said), "{said}: {dry}");
    }
    assert!(
        !dry.contains("<script>") && !dry.contains("<b>&quot;"),
        "{dry}"
    );
    assert!(!dry.contains(&ids[0]), "the newest ten: {dry}");
    let states = async || {
        let calls = get(&gateway, "/v1/calls?limit=500").await.at("/calls");
        let calls = calls.as_array().expect("a list").clone();
        calls.iter().filter(|one| one["state"] == "unknown").count()
    };
    assert_eq!(states().await, 12, "looking changes nothing");
    let none = get(&gateway, "/v1/audit?act=resolve").await.at("/acts");
    assert_eq!(none, json!([]));

    // Another act, another result, another number, or one more call is not what was confirmed.
    let failed = "/console/many/calls/failed?state=unknown&tool=act";
    let other = confirm(&ops, failed, &dry).await;
    assert_eq!(other.status, 409, "{}", other.text);
    let other = confirm(&ops, to, &dry.replace("value=\"12\"", "value=\"11\"")).await;
    assert_eq!(other.status, 409, "{}", other.text);
    let wrong = confirm(&ops, to, &dry.replace("value=\"12\"", "value=\"many\"")).await;
    assert_eq!(wrong.status, 400, "{}", wrong.text);
    unknown(&gateway, "one-more").await;
    let late = confirm(&ops, to, &dry).await;
    assert_eq!(late.status, 409, "{}", late.text);
    assert!(late.text.contains("12 were confirmed"), "{}", late.text);
    assert_eq!(states().await, 13);

    let dry = ops.submit(to, &told).await.expect_ok().text;
    let done = confirm(&ops, to, &dry).await.expect_ok().text;
    assert!(done.contains("13 of 13 are done"), "{done}");
    assert_eq!(states().await, 0);
    let body = json!({ "args": {}, "idempotency_key": "k3" });
    let duplicate = call(&gateway, "agents", &body).await.expect_ok();
    assert_eq!(duplicate.result(), "{\"by\": \"<b>\"}");
    let acts = get(&gateway, "/v1/audit?act=resolve").await.at("/acts");
    assert_eq!(acts[0]["reason"], HOSTILE);
    assert_eq!(
        (&acts[0]["by"], &acts[0]["outcome"]),
        (&json!("ops"), &json!("done"))
    );
    // Sent once more, as by a reload, it does nothing.
    let again = confirm(&ops, to, &dry).await;
    assert_eq!(again.status, 409, "{}", again.text);
    for wrong in [
        "/console/many/calls/dance?state=unknown",
        "/console/many/calls/failed?state=failed",
        "/console/many/calls/failed?colour=red",
    ] {
        let refused = ops.submit(wrong, &[("reason", "R")]).await;
        assert!(
            (400..500).contains(&refused.status),
            "{wrong}: {}",
            refused.text
        );
    }
}

async fn tools_are_asked_about_one_call_and_about_all_of_a_list(stores: &Stores) {
    let tool = Tool::start().await;
    tool.choose(|seen, _| match seen.line.starts_with("GET") {
        true => Act::Tell(200, "", b"{\"order\":7}"),
        false => Act::ExecuteThenDrop,
    });
    let rules = format!("{SHORT}{}", probe_of(&tool));
    let gateway = stores.gateway(&with_tokens(&one_tool(&tool, &rules))).await;
    let mut ids = Vec::new();
    for n in 0..4 {
        ids.push(unknown(&gateway, &format!("k{n}")).await);
    }
    let ops = Browser::sign_in(&gateway, "ops").await;
    let probe = format!("/console/calls/{}/probe", ids[0]);
    let needs = ops.see("/console").await.expect_ok().text;
    assert!(forms(&needs).contains(&probe), "{needs}");
    let asked = ops.submit(&probe, &[("reason", HOSTILE)]).await;
    assert_eq!(asked.status, 303, "{}", asked.text);
    let page = ops.see(asked.header("location")).await.expect_ok().text;
    assert!(
        page.contains("Call of act: succeeded") && page.contains(SHOWN),
        "{page}"
    );
    // It is not unknown any more.
    let again = ops.submit(&probe, &[("reason", "R")]).await;
    assert_eq!(again.status, 409, "{}", again.text);

    let all = "/console/many/calls/probe?state=unknown";
    let dry = ops.submit(all, &[("reason", "R")]).await.expect_ok().text;
    assert!(dry.contains("3 calls"), "{dry}");
    let done = confirm(&ops, all, &dry).await.expect_ok().text;
    assert!(
        done.contains("3 of 3 are done") && done.contains("data-state=\"succeeded\""),
        "{done}"
    );
    assert_eq!(tool.effects(), 4, "nothing was sent again");
    let dry = ops.submit(all, &[("reason", "R")]).await.expect_ok().text;
    assert!(dry.contains("0 calls") && kept(&dry).is_empty(), "{dry}");
}

#[tokio::test]
async fn a_tool_without_a_probe_is_not_offered_to_be_asked() {
    let tool = Tool::start().await;
    tool.always(Act::ExecuteThenDrop);
    let gateway = Gateway::start(&with_tokens(&one_tool(&tool, SHORT))).await;
    let id = unknown(&gateway, "k").await;
    let ops = Browser::sign_in(&gateway, "ops").await;
    for path in [
        format!("/console/calls/{id}"),
        "/console".to_owned(),
        "/console/calls?state=unknown&tool=act".to_owned(),
    ] {
        let page = ops.see(&path).await.expect_ok().text;
        assert!(
            page.contains("Settle") || page.contains("/succeeded"),
            "{path}: {page}"
        );
        let asks = forms(&page).into_iter().find(|to| to.contains("/probe"));
        assert_eq!(asks, None, "{path}");
    }
    gateway.stop().await;
}

#[tokio::test]
async fn the_filters_name_only_tools_that_the_token_may_call() {
    let tool = Tool::start().await;
    let looks = format!(
        "[[auth.tokens]]\nname = \"looks\"\ntenant = \"shop\"\nsha256 = \"{}\"\nscopes = [\"read\"]\n",
        hex::encode(Sha256::digest("looks"))
    );
    let config = format!("{}{looks}", with_tokens(&one_tool(&tool, "")));
    let gateway = Gateway::start(&config).await;
    for (token, is_named) in [("reads", true), ("ops", true), ("looks", false)] {
        let page = Browser::sign_in(&gateway, token).await;
        let page = page.see("/console/calls").await.expect_ok().text;
        assert!(page.contains("datalist"), "{page}");
        assert_eq!(page.contains("<option value=\"act\">"), is_named, "{token}");
    }
}

#[tokio::test]
async fn a_form_takes_away_only_the_lock_that_it_shows() {
    let tool = Tool::start().await;
    tool.always(Act::ExecuteThenDrop);
    let rules = format!("{SHORT}session = \"exclusive\"\n");
    let gateway = Gateway::start(&with_tokens(&one_tool(&tool, &rules))).await;
    let body = json!({ "args": {}, "idempotency_key": "k", "session_id": "S" });
    let made = call(&gateway, "agents", &body).await;
    made.expect_problem("outcome-unknown");
    let ops = Browser::sign_in(&gateway, "ops").await;
    let seen = ops.seen("/console/session?id=S&tenant=shop").await;
    let unlock = "/console/session/unlock?id=S&tenant=shop";
    for (shown, status) in [("", 409), (&"0".repeat(32)[..], 409), (&seen, 303)] {
        let fields = [("reason", "it hangs"), ("seen", shown)];
        let answer = ops.submit(unlock, &fields).await;
        assert_eq!(answer.status, status, "{}", answer.text);
    }
}

async fn all_stuck_sagas_of_a_list_are_tried_again_or_skipped(stores: &Stores) {
    let tool = Tool::start().await;
    tool.always(MADE);
    let gateway = stores.gateway(&with_tokens(&shop(&tool, SOON))).await;
    let ops = Browser::sign_in(&gateway, "ops").await;
    let sagas = ["G", "<b>", "skip"];
    for saga in sagas {
        let body =
            json!({ "args": {}, "session_id": "S", "saga_id": saga, "idempotency_key": saga });
        let made = gateway.post_as("agents", "/v1/tools/order/calls", &body);
        made.await.expect_ok();
    }
    tool.always(Act::Answer(422, "", b"{}"));
    for saga in ["G", "%3Cb%3E", "skip"] {
        let abort = format!("/console/saga/abort?id={saga}&tenant=shop");
        let aborted = ops.submit(&abort, &[("reason", "sold out")]).await;
        assert_eq!(aborted.status, 303, "{}", aborted.text);
    }
    let list = async |state: &str| {
        let list = format!("/console/sagas?state={state}");
        ops.see(&list).await.expect_ok().text
    };
    until("all are stuck", async || {
        list("stuck").await.matches("<tr>").count() == 4
    })
    .await;
    let to = "/console/many/sagas/retry?state=stuck";
    assert!(forms(&list("stuck").await).iter().any(|one| one == to));
    assert!(!list("compensated").await.contains("/console/many"));
    let dry = ops
        .submit(to, &[("reason", HOSTILE)])
        .await
        .expect_ok()
        .text;
    assert!(
        dry.contains("3 stuck sagas") && dry.contains(SHOWN),
        "{dry}"
    );
    assert!(
        dry.contains("&lt;b&gt;") && !dry.contains("<b>&lt;"),
        "{dry}"
    );
    let skip = "/console/many/sagas/skip?state=stuck";
    let other = confirm(&ops, skip, &dry).await;
    assert_eq!(
        other.status, 409,
        "a different action was confirmed: {}",
        other.text
    );
    tool.always(MADE);
    let done = confirm(&ops, to, &dry).await.expect_ok().text;
    assert!(done.contains("3 of 3 are done"), "{done}");
    until("all are undone", async || {
        list("compensated").await.matches("<tr>").count() == 4
    })
    .await;
    let none = ops.submit(skip, &[("reason", "R")]).await.expect_ok().text;
    assert!(none.contains("0 stuck sagas"), "{none}");
}

async fn anomalies_of_older_runs_are_shown_and_acted_on_with_a_reason(stores: &Stores) {
    let books = Books::open().await;
    let gateway = stores
        .gateway_of_old(&with_tokens(&config(&books, "", "")))
        .await;
    let undone = books.make_beside(Some("'\"><script>alert(1)</script>"));
    let run = async |body: &Value| {
        let run = gateway.post_as("ops", "/v1/reconciliations/books/run", body);
        run.await.expect_ok()
    };
    let found = run(&json!({})).await;
    let first = only(&found)["id"].as_str().expect("an id").to_owned();
    books.make_beside(Some("beside"));
    let second = run(&json!({})).await;
    let listed = second.at("/anomalies");
    let listed = listed.as_array().expect("a list");
    let other = listed.iter().find(|one| one["id"] != json!(first));
    let other = other.expect("another")["id"]
        .as_str()
        .expect("an id")
        .to_owned();
    // The last run finds none: the source does not show them any more.
    books.forget(1);
    assert_eq!(run(&json!({})).await.at("/anomalies"), json!([]));

    let ops = Browser::sign_in(&gateway, "ops").await;
    let needs = ops.see("/console").await.expect_ok().text;
    let page = |id: &str| format!("/console/anomaly?name=books&id={id}");
    let act = |id: &str, act: &str| format!("/console/anomaly/{act}?name=books&id={id}");
    let place = |id: &str| needs.find(&page(id).replace('&', "&amp;"));
    let (older, newer) = (place(&first).expect("shown"), place(&other).expect("shown"));
    assert!(newer < older, "the newest first: {needs}");
    assert!(
        needs.contains("Anomalies") && needs.contains(" ago</small>"),
        "{needs}"
    );
    assert!(!needs.contains("<script>alert"), "{needs}");
    // What would be refused is not offered: no key of this gateway's form.
    let offered = forms(&needs);
    for (what, is_offered) in [("compensate", true), ("ignore", true), ("adopt", false)] {
        assert_eq!(offered.contains(&act(&first, what)), is_offered, "{what}");
    }
    let no_reason = ops.submit(&act(&first, "ignore"), &[]).await;
    assert_eq!(no_reason.status, 400, "{}", no_reason.text);
    let ignored = ops
        .submit(&act(&other, "ignore"), &[("reason", HOSTILE)])
        .await;
    assert_eq!(ignored.status, 303, "{}", ignored.text);
    let shown = ops.see(ignored.header("location")).await.expect_ok().text;
    for said in [
        "Done. It stands in the audit",
        SHOWN,
        "data-state=\"ignored\"",
    ] {
        assert!(shown.contains(said), "{said}: {shown}");
    }
    assert!(!forms(&shown).contains(&act(&other, "ignore")), "{shown}");
    let compensated = ops
        .submit(
            &act(&first, "compensate"),
            &[("reason", "no call has made it")],
        )
        .await;
    assert_eq!(compensated.status, 303, "{}", compensated.text);
    // On a busy machine the worker tries once more.
    until("it is undone", async || {
        let needs = ops.see("/console").await.text;
        books.undone().contains_key(&undone) && !needs.contains("/console/anomaly")
    })
    .await;
    assert_eq!(books.undone().get(&undone), Some(&1));
    let adopted = ops.submit(&act(&first, "adopt"), &[("reason", "R")]).await;
    assert_eq!(adopted.status, 409, "{}", adopted.text);
    let acts = get(&gateway, "/v1/audit?act=ignore").await.at("/acts");
    assert_eq!(
        (&acts[0]["reason"], &acts[0]["by"]),
        (&json!(HOSTILE), &json!("ops"))
    );
    let audit = ops.see("/console/audit?act=ignore").await.expect_ok().text;
    assert!(
        audit.contains(&page(&other).replace('&', "&amp;")),
        "{audit}"
    );
    for path in [page("none"), act(&first, "dance")] {
        let missing = match path.contains("dance") {
            true => ops.submit(&path, &[("reason", "R")]).await,
            false => ops.see(&path).await,
        };
        assert_eq!(missing.status, 404, "{path}: {}", missing.text);
    }
    // It is for administrators, like all that looks at every tenant.
    let reads = Browser::sign_in(&gateway, "reads").await;
    assert_eq!(reads.see(&page(&first)).await.status, 403);
}

async fn a_users_data_is_erased_from_the_list_of_its_calls(stores: &Stores) {
    let tool = Tool::start().await;
    let gateway = stores.gateway(&with_tokens(&one_tool(&tool, ""))).await;
    let user = "b\"o'b<&>\u{e4}";
    for (n, user) in [user, user, "eve"].into_iter().enumerate() {
        let body = json!({ "args": {}, "idempotency_key": format!("k{n}"), "user_id": user });
        call(&gateway, "agents", &body).await.expect_ok();
    }
    let named = "user_id=b%22o%27b%3C%26%3E%C3%A4&tenant=shop";
    let list = format!("/console/calls?{named}");
    let reads = Browser::sign_in(&gateway, "reads").await;
    let page = reads.see(&list).await.expect_ok().text;
    assert!(!page.contains("Erase the user"), "{page}");
    let ops = Browser::sign_in(&gateway, "ops").await;
    let all = ops.see("/console/calls").await.expect_ok().text;
    assert!(!all.contains("Erase the user"), "no user is named");
    let page = ops.see(&list).await.expect_ok().text;
    let to = forms(&page)
        .into_iter()
        .find(|to| to.starts_with("/console/user/erase"));
    let done = ops.submit(&to.expect("a form"), &[]).await.expect_ok().text;
    assert!(
        done.contains("Erased now") && done.contains("Nothing is left to do"),
        "{done}"
    );
    assert!(!done.contains("b\"o'b<"), "{done}");
    let audit = ops.see("/console/audit").await.expect_ok().text;
    assert!(
        audit.contains("<b>erase</b>") && !audit.contains("o'b"),
        "{audit}"
    );
    let left = get(&gateway, &format!("/v1/calls?{named}")).await;
    assert_eq!(left.at("/calls"), json!([]));
    let all = get(&gateway, "/v1/calls").await;
    assert_eq!(all.at("/calls/0/user_id"), "eve");
}
