//! Who may adopt, what remains of an adoption that breaks off, and the runbook's commands after a loss.

use oncegate::core::caller::Caller;
use oncegate::core::key::Lookup;
use serde_json::json;

use crate::reconcile::adopting::{RESULT, charge, lost};
use crate::reconcile::anomalies::only;
use crate::reconcile::runs::{config, report};
use crate::sagas::losses::Place;
use crate::stores::contract::ME;
use crate::support::books::Books;
use crate::support::faulty::{Fault, FaultStore, Verb};
use crate::support::gateway::Bare;
use crate::support::memory::Memory;
use crate::support::{Answer, Gateway, Tool, client};

fn token(name: &str, tenant: &str, scopes: &str) -> String {
    let digest = hex::encode(<sha2::Sha256 as sha2::Digest>::digest(name));
    format!(
        "[[auth.tokens]]\nname = \"{name}\"\ntenant = \"{tenant}\"\nsha256 = \"{digest}\"\nscopes = [{scopes}]\n"
    )
}

#[tokio::test]
async fn only_an_administrator_adopts_and_the_call_is_of_the_tenant_whose_key_it_has() {
    let books = Books::open().await;
    let tokens = [
        token("ops", "staff", "\"admin\""),
        token("reads", "shop", "\"read\""),
        token("shops", "shop", "\"call\", \"read\""),
        token("banks", "bank", "\"call\", \"read\""),
    ];
    let tokens = tokens.concat();
    let gateway = Gateway::start(&format!("{tokens}{}", config(&books, "", RESULT))).await;
    books.make_beside(Some(&Lookup::new("shop", "act", "k1").for_tool()));
    let run = "/v1/reconciliations/books/run";
    let found = only(&gateway.post_as("ops", run, &json!({})).await.expect_ok());
    let id = found["id"].as_str().expect("an id");
    let body = json!({ "reason": "r" });
    for act in ["adopt", "compensate", "ignore"] {
        let path = format!("/v1/reconciliations/books/anomalies/{id}/{act}");
        for reader in ["reads", "shops"] {
            let refused = gateway.post_as(reader, &path, &body).await;
            refused.expect_problem("forbidden");
        }
    }
    let path = format!("/v1/reconciliations/books/anomalies/{id}/adopt");
    let adopted = gateway.post_as("ops", &path, &body).await.expect_ok();
    assert_eq!(
        (adopted.at("/state"), adopted.at("/acted/by")),
        (json!("done"), json!("ops"))
    );
    // Only one byte of the key says that the call is this tenant's, so the tenant does not see it before a request proves it.
    let path = format!(
        "/v1/calls/{}",
        adopted.at("/call_id").as_str().expect("an id")
    );
    let get = async |token: &str, path: &str| {
        let request = gateway.client.get(gateway.url(path));
        Answer::to(request.bearer_auth(token)).await
    };
    for reader in ["reads", "shops"] {
        get(reader, &path).await.expect_problem("unknown-call");
        let listed = get(reader, "/v1/calls").await.expect_ok();
        assert_eq!(listed.at("/calls"), json!([]), "{reader}");
    }
    get("ops", &path).await.expect_ok();
    let calls = "/v1/tools/act/calls";
    let body = json!({ "args": { "amount": 1, "plan": "" }, "idempotency_key": "k1" });
    let of_bank = gateway.post_as("banks", calls, &body).await.expect_ok();
    assert_eq!(of_bank.at("/replayed"), false, "another tenant's key");
    let of_shop = gateway.post_as("shops", calls, &body).await.expect_ok();
    assert_eq!(
        (of_shop.at("/replayed"), of_shop.at("/call_id")),
        (json!(true), adopted.at("/call_id"))
    );
    assert_eq!(books.live().len(), 2);
    get("reads", &path).await.expect_ok();
    let listed = get("reads", "/v1/calls").await.expect_ok();
    assert_eq!(listed.at("/calls/0/call_id"), adopted.at("/call_id"));
}

/// One call results, whichever claims the store leaves unanswered and wherever a gateway ends.
#[tokio::test]
async fn an_adoption_that_breaks_off_is_made_once() {
    for (verb, fault, times) in [
        (Verb::Claim, Fault::ErrBefore, 1),
        (Verb::Claim, Fault::ExecuteThenTimeout, 1),
        (Verb::Claim, Fault::ExecuteThenTimeout, 3),
        (Verb::Claim, Fault::Duplicate, 1),
    ] {
        let (tool, books) = (Tool::start().await, Books::open().await);
        let faulty = FaultStore::over(Memory::default());
        let rules = config(&books, "on = { orphan = \"adopt\" }", RESULT);
        let rules = rules.replace("[tools.act]\n", "");
        let (_, rules) = rules.split_once('\n').expect("its URL");
        let bare = Bare::over(faulty.clone(), ME, &tool, rules).await;
        let gateway = &bare.gateway;
        gateway.base.set_tenants(Caller::tenants(&[]));
        let key = Lookup::new("default", "act", "k1").for_tool();
        books.make_beside(Some(&key));
        faulty.next(verb, fault, times);
        let post = async |path: &str| {
            let request = client().post(bare.url_of(path));
            Answer::to(request.body("{}")).await.expect_ok()
        };
        let found = only(&post("/v1/reconciliations/books/run").await);
        // Much later, as another gateway would come.
        let later = gateway.now() + jiff::SignedDuration::from_hours(1);
        let worker = &bare.wings.reconciler.anomalies;
        worker.work_on_anomalies_once(later).await.expect("worked");
        let shown = Answer::to(client().get(bare.url_of("/v1/reconciliations/books"))).await;
        let shown = only(&shown.expect_ok());
        assert_eq!(
            (&shown["id"], &shown["state"]),
            (&found["id"], &json!("done")),
            "{verb:?} {fault:?} {times}: {shown}"
        );
        let calls = Answer::to(client().get(bare.url_of("/v1/calls"))).await;
        let calls = calls.expect_ok().at("/calls");
        assert_eq!(calls.as_array().map(Vec::len), Some(1), "one call");
        assert_eq!(calls[0]["call_id"], shown["call_id"]);
        assert_eq!(tool.requests(), 0, "nothing was sent");
        bare.stop().await;
    }
}

/// The commands of the runbook's page about lost data, as printed: pause, accept, report, adopt, refund, resume.
fn lines_of_the_runbook() -> Vec<String> {
    let book = include_str!("../../../docs/runbook.md");
    let page = book
        .split("\n## ")
        .find(|page| page.starts_with("OncegateStoreLostData"));
    let is_of_them = |line: &&str| {
        let words = [
            "/pause ",
            "/accept-loss ",
            "report.json",
            "/compensate ",
            "/resume ",
        ];
        words.iter().any(|word| line.contains(word))
    };
    let lines = page.expect("a page").lines().filter(is_of_them);
    let lines: Vec<String> = lines.map(str::to_owned).collect();
    assert_eq!(lines.len(), 6, "{lines:#?}");
    lines
}

/// What the shell prints for a line; `None`: curl or jq is not installed.
fn shell(line: &str, folder: &std::path::Path) -> Option<String> {
    let run = |line: &str| {
        let mut shell = std::process::Command::new("sh");
        shell.args(["-c", line]).current_dir(folder).output()
    };
    let has_both = run("command -v jq && command -v curl").expect("a shell");
    has_both.status.success().then(|| {
        let done = run(line).expect("a shell");
        let wrong = String::from_utf8_lossy(&done.stderr);
        assert!(done.status.success(), "{line}: {wrong}");
        String::from_utf8(done.stdout).expect("text")
    })
}

/// Pause, accept, report, look, adopt or refund, resume: the forgotten charge is a replay, and the double is refunded.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_runbooks_commands_after_a_loss_adopt_and_refund_as_they_are_printed() {
    let books = Books::open().await;
    let shows = "show = [\"/amount\"]";
    let rules = config(&books, shows, &format!("{RESULT}\ntime = \"/made_at\""));
    let gateways = lost(
        &mut Place::Sqlite,
        &rules,
        async |_| {},
        async |gateway| {
            for n in [1, 2] {
                charge(gateway, n).await.expect_ok();
            }
            // The tool executes this charge twice.
            gateway.plan(3, "duplicate").await.expect_ok();
        },
    )
    .await;
    let gateway = &gateways[0];
    let folder = tempfile::tempdir().expect("a folder");
    let since = gateway.get("/v1/reconciliations").await.expect_ok();
    assert_eq!(since.at("/reconciliations/0/name"), "books");
    let mut shown = String::new();
    for line in lines_of_the_runbook() {
        let mut line = line
            .replace("http://127.0.0.1:8080", &gateway.url(""))
            .replace("TOOL", "act")
            .replace("NAME", "books");
        // The loss was a moment ago and the ledger is new, so no start of the window is named.
        line = line.replace("{\"since\":\"SINCE\"}", "{}");
        if line.contains("/v1/store/accept-loss") {
            gateway.accept_loss("a test").await.expect_ok();
            gateway.until_ready().await;
            continue;
        }
        if line.contains("/resume") {
            let paused = charge(gateway, 4).await;
            paused.expect_problem("tool-paused");
        }
        if line.contains("ANOMALY") {
            // No call adopts the second effect of a key; a further run lists it as a duplicate.
            let report = report(gateway).await;
            let anomalies = report.at("/anomalies");
            let double = anomalies
                .as_array()
                .and_then(|all| all.iter().find(|one| one["kind"] == "duplicate"));
            let double = double.unwrap_or_else(|| panic!("{}", report.text));
            line = line.replace("ANOMALY", double["id"].as_str().expect("an id"));
        }
        let Some(printed) = shell(&line, folder.path()) else {
            return;
        };
        if line.contains("tee report.json") {
            shown = printed;
        }
    }
    assert_eq!(shown.lines().count(), 4, "{shown}");
    assert!(
        shown.contains("orphan\t") && shown.contains("\"/amount\":1"),
        "{shown}"
    );
    for n in [1, 2] {
        let answer = charge(gateway, n).await.expect_ok();
        assert_eq!(answer.at("/replayed"), true);
    }
    let answer = gateway.plan(3, "duplicate").await.expect_ok();
    assert_eq!(answer.at("/replayed"), true);
    let refunded: usize = books.undone().values().sum();
    assert_eq!((books.live().len(), refunded), (3, 1));
    charge(gateway, 4).await.expect_ok();
}
