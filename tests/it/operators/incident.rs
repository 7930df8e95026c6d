//! An incident, worked with the commands of the runbook as they are printed, and counted.
//!
//! 40 calls are unknown, two sagas are stuck, a conversation was frozen, a gateway is killed while it makes a call, and
//! then its Redis comes back with an older snapshot: it has forgotten five charges. They are adopted, so that their
//! repetitions are replays.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Child;

use jiff::Timestamp;
use serde_json::{Value, json};

use crate::support::binary::{command, free_port};
use crate::support::gateway::OPS_TOKEN;
use crate::support::redis::Redis;
use crate::support::tool::Seen;
use crate::support::{Act, Answer, Gateway, Tool, client, until, until_ready};

/// Most commands until everything is named, stopped, settled, undone and counted.
const MOST_COMMANDS: usize = 15;

/// The commands of a page of the runbook, as they are printed.
fn printed(page: &str) -> Vec<String> {
    let book = include_str!("../../../docs/runbook.md");
    let pages = book.split("\n## ");
    let page = pages.filter(|one| one.lines().next() == Some(page));
    let blocks = page.flat_map(|page| page.split("```").skip(1).step_by(2));
    let lines = blocks.flat_map(str::lines).filter(|line| *line != "sh");
    lines.map(str::to_owned).collect()
}

/// An operator at a shell, with the runbook.
struct Desk {
    folder: tempfile::TempDir,
    /// The gateway at which the commands are given.
    address: String,
    given: Vec<String>,
}

impl Desk {
    /// Gives the one command of a page that has these words, with the names of the incident in place of those that the
    /// runbook prints in capitals. Returns what it prints.
    fn give(&mut self, page: &str, words: &[&str], names: &[(&str, &str)]) -> String {
        let mut commands = printed(page);
        commands.retain(|line| words.iter().all(|word| line.contains(word)));
        let [line] = &commands[..] else {
            panic!("{page} has not one command with {words:?}: {commands:#?}");
        };
        let mut line = line.replace("127.0.0.1:8080", &self.address);
        for (name, with) in names {
            assert!(line.contains(name), "{line}");
            line = line.replace(name, with);
        }
        self.given.push(line.clone());
        let done = std::process::Command::new("sh")
            .args(["-c", &line])
            .env("OPS_TOKEN", OPS_TOKEN)
            .current_dir(self.folder.path())
            .output()
            .expect("a shell");
        let error = String::from_utf8_lossy(&done.stderr);
        assert!(done.status.success(), "{line}: {error}");
        String::from_utf8(done.stdout).expect("text")
    }

    /// The lines of a file that a command has written.
    fn lines(&self, file: &str) -> Vec<Value> {
        let text = std::fs::read_to_string(self.folder.path().join(file)).expect(file);
        let lines = text.lines();
        lines
            .map(|line| serde_json::from_str(line).unwrap_or_else(|_| panic!("{file}: {line}")))
            .collect()
    }
}

fn json_of(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

/// What the shop has been paid, as a source of a reconciliation.
fn books(before: &[Seen]) -> Act {
    let paid = before.iter().enumerate();
    let paid = paid.filter(|(_, one)| one.executed && one.line.contains("/pay"));
    let item = |(n, one): (usize, &Seen)| {
        let key = one.header("idempotency-key");
        json!({ "id": format!("p{n}"), "key": key, "asked": json_of(&one.body), "answer": { "made": 7 } })
    };
    let items: Vec<Value> = paid.map(item).collect();
    let page = json!({ "items": items }).to_string();
    Act::Tell(200, "", page.into_bytes().leak())
}

/// A shop that executes and does not say so, or does not execute, as its arguments say; and can be asked.
async fn shop() -> Tool {
    let tool = Tool::start().await;
    tool.choose(|seen, before| {
        if seen.line.contains("/books") {
            return books(before);
        }
        let key = seen.line.split("/by-key/").nth(1);
        if let Some(key) = key.and_then(|rest| rest.split(' ').next()) {
            let has = |one: &&Seen| one.executed && one.header("idempotency-key") == key;
            return match before.iter().any(|one| has(&one)) {
                true => Act::Tell(200, "", b"{\"made\":7}"),
                false => Act::Tell(404, "", b"{}"),
            };
        }
        match &seen.body {
            body if body.contains("\"cut\"") => Act::ExecuteThenDrop,
            body if body.contains("\"lost\"") => Act::Drop,
            body if body.contains("\"hangs\"") => Act::ExecuteThenDrip(b""),
            _ if seen.line.contains("/cancel") => Act::Answer(422, "", b"{}"),
            _ => Act::Ok("{\"made\":7}"),
        }
    });
    tool
}

fn config(tool: &Tool) -> String {
    let at = |path: &str| format!("http://127.0.0.1:{}/{path}", tool.port);
    let probe = at("by-key/{key}");
    let rules = "timeout = \"1s\"\ndeadline = \"1s\"\nretry = { attempts = 1 }\nbreaker = { failures = 1000 }\n";
    let mut config =
        "[sagas]\nretry = { attempts = 1, base = \"10ms\", max = \"20ms\" }\n".to_owned();
    for (name, more) in [
        ("pay", ""),
        ("order", "compensation = { tool = \"cancel\" }\n"),
        ("cancel", ""),
    ] {
        let url = at(name);
        config += &format!(
            "[tools.{name}]\nurl = \"{url}\"\n{rules}probe = {{ url = \"{probe}\" }}\n{more}"
        );
    }
    let books = at("books?since={since}&until={until}");
    config
        + &format!(
            "[reconciliations.payments]\ntools = [\"pay\"]\nlag = \"0s\"\nshow = [\"/asked\"]\n\
             [[reconciliations.payments.sources]]\nname = \"shop\"\nurl = \"{books}\"\nitems = \"/items\"\n\
             key = \"/key\"\nid = \"/id\"\nadopt = {{ result = \"/answer\" }}\n"
        )
}

/// Another gateway over the same Redis, as a process that can be killed.
fn other_gateway(folder: &Path, port: u16, redis: &Redis, tool: &Tool) -> Child {
    let server = format!("[server]\nlisten = \"127.0.0.1:{port}\"\n");
    let store = format!(
        "[store]\nurl = \"{}\"\n[log]\nlevel = \"error\"\n",
        redis.url()
    );
    let whole = format!("{server}{store}{}", config(tool));
    std::fs::write(folder.join("oncegate.toml"), whole).expect("a file");
    let mut command = command(folder, &["serve", "--config", "oncegate.toml"]);
    command.spawn().expect("the binary starts")
}

async fn pay(url: &str, key: &str, args: Value) -> Answer {
    let body = json!({ "args": args, "idempotency_key": key, "session_id": "S" });
    let url = format!("{url}/v1/tools/pay/calls");
    Answer::to(client().post(url).body(body.to_string())).await
}

/// How many calls of a tool the ledger has in each state.
async fn states(gateway: &Gateway, tool: &str) -> BTreeMap<String, usize> {
    let calls = gateway
        .get(&format!("/v1/calls?tool={tool}&limit=500"))
        .await;
    let mut states = BTreeMap::new();
    for call in calls.at("/calls").as_array().expect("a list") {
        let state = call["state"].as_str().expect("a word").to_owned();
        *states.entry(state).or_default() += 1;
    }
    states
}

/// What the tool has executed, by the path.
fn executed(tool: &Tool, path: &str) -> usize {
    let executed = tool.executed();
    executed
        .iter()
        .filter(|seen| seen.line.contains(path))
        .count()
}

/// Unknown calls: executed and not executed, but for the one of the gateway that is killed.
const CUT: usize = 28;
const LOST: usize = 11;
/// Charges that succeeded after the snapshot, and that the ledger forgets.
const FORGOTTEN: usize = 5;

const UNKNOWN: &str = "oncegate_unknown_calls{tool=\"pay\"}";

/// What happens. Returns the folder of the gateway that was killed.
async fn goes_wrong(gateway: &Gateway, redis: &mut Redis, tool: &Tool) -> PathBuf {
    let url = format!("http://{}", gateway.address);
    for n in 0..CUT + LOST {
        let how = if n < CUT { "cut" } else { "lost" };
        let call = pay(&url, &format!("k{n}"), json!({ how: n })).await;
        call.expect_problem("outcome-unknown");
    }
    assert_eq!(gateway.metric(UNKNOWN).await, (CUT + LOST) as f64);
    for saga in ["trip-1", "trip-2"] {
        gateway.in_saga("order", saga, saga).await.expect_ok();
        gateway.end_saga(saga, "abort").await.expect_ok();
    }
    for saga in ["trip-1", "trip-2"] {
        gateway.saga_that_is(saga, "stuck").await;
    }
    let folder = tempfile::tempdir().expect("a folder").keep();
    let port = free_port();
    let other = format!("http://127.0.0.1:{port}");
    let mut process = other_gateway(&folder, port, redis, tool);
    until_ready(&format!("{other}/readyz")).await;
    let hanging = tokio::spawn({
        let other = other.clone();
        async move {
            let body = json!({ "args": { "hangs": 1 }, "idempotency_key": "hangs" });
            let request = client().post(format!("{other}/v1/tools/pay/calls"));
            drop(request.body(body.to_string()).send().await);
        }
    });
    until("it hangs", async || {
        tool.seen().iter().any(|seen| seen.body.contains("hangs"))
    })
    .await;
    let snapshot = redis.snapshot();
    // From here on the store forgets everything.
    for n in 0..FORGOTTEN {
        pay(&other, &format!("late{n}"), json!({ "n": n }))
            .await
            .expect_ok();
    }
    let reason = json!({ "reason": "it goes in circles" });
    let freeze = "/v1/sessions/S/freeze";
    gateway.post_to(freeze, &reason).await.expect_ok();
    process.kill().expect("killed");
    process.wait().expect("it has ended");
    hanging.await.expect("no panic");
    redis.restore(snapshot.path()).await;
    folder
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_incident_over_redis_is_worked_with_the_commands_of_the_runbook_as_printed() {
    let mut redis = Redis::strict().await;
    let tool = shop().await;
    let gateway = Gateway::sharing(&redis.url(), &config(&tool)).await;
    gateway.until_ready().await;
    let killed = goes_wrong(&gateway, &mut redis, &tool).await;
    let charged = executed(&tool, "/pay");
    assert_eq!(charged, CUT + 1 + FORGOTTEN, "the truth");

    let mut desk = Desk {
        folder: tempfile::tempdir().expect("a folder"),
        address: gateway.address.to_string(),
        given: Vec::new(),
    };
    let url = format!("http://{}", gateway.address);
    const LOSS: &str = "OncegateStoreLostData";
    let pay_tool = [("TOOL", "pay")];

    // Named: what is wrong, and since when.
    until("the loss is noticed", async || {
        gateway.reasons().await.contains("accept-loss")
    })
    .await;
    let firing = gateway.metric(UNKNOWN).await;
    let ready = json_of(&desk.give(LOSS, &["/readyz"], &[]));
    let why = ready["reasons"].to_string();
    assert!(
        why.contains("writes are missing") && why.contains("reconcile since 20"),
        "{why}"
    );
    assert_eq!(firing, (CUT + LOST) as f64, "no alert has ended meanwhile");
    let since = why.split("reconcile since ").nth(1);
    let since = since.and_then(|rest| rest.split('"').next()?.parse::<Timestamp>().ok());
    let since = since.expect("a time");

    // Stopped.
    let paused = json_of(&desk.give(LOSS, &["/pause"], &pay_tool));
    assert_eq!(paused["paused"], true);
    // The page says that the same command is given again while the acceptance is under way.
    until("the loss is accepted", async || {
        let accepted = json_of(&desk.give(LOSS, &["accept-loss"], &[]));
        accepted["accepted"] == true
    })
    .await;
    gateway.until_ready().await;

    // What is forgotten would be charged again now.
    for n in 0..FORGOTTEN {
        let again = pay(&url, &format!("late{n}"), json!({ "n": n })).await;
        again.expect_problem("tool-paused");
    }

    // Settled: the tools are asked first.
    let dry = desk.give(LOSS, &["/v1/calls/probe", ">dry.json"], &[]);
    assert_eq!(dry, "");
    let dry = desk.lines("dry.json").remove(0);
    // The two calls that undo have failed before the loss, and are in doubt like all that have failed.
    let in_doubt = CUT + LOST + 1 + 2;
    assert_eq!(dry["count"], in_doubt, "{dry}");
    let totals = json_of(&desk.give(LOSS, &["/v1/calls/probe", "jq"], &[]));
    let expected = json!({ "succeeded": CUT + 1, "unknown": LOST + 2 });
    assert_eq!(totals["states"], expected, "{totals}");
    desk.give(LOSS, &["state=unknown"], &[]);
    let rest = desk.lines("unknown.ndjson");
    assert_eq!(rest.len(), LOST + 2);
    let books = tool.effects_by_key();
    for call in &rest {
        let key = call["tool_key"].as_str().expect("a key");
        assert_eq!(books.get(key), None, "what an operator sees in the books");
    }
    desk.give(LOSS, &["/v1/calls/resolve", ">dry.json"], &[]);
    assert_eq!(desk.lines("dry.json")[0]["count"], LOST + 2);
    // Their requests may be under way for a lease after the acceptance.
    until("no request can be under way any more", async || {
        let body = json!({ "filter": {}, "as": "failed", "reason": "r" });
        gateway
            .post_to("/v1/calls/resolve", &body)
            .await
            .at("/refused")
            == 0
    })
    .await;
    let totals = json_of(&desk.give(LOSS, &["/v1/calls/resolve", "jq"], &[]));
    assert_eq!(totals["states"], json!({ "failed": LOST + 2 }), "{totals}");

    // Reported and looked at; what the ledger has forgotten is adopted.
    let names = [("NAME", "payments"), ("SINCE", &since.to_string())];
    let looked = desk.give(LOSS, &["report.json", "/run"], &names);
    let report = desk.lines("report.json").remove(0);
    assert_eq!(report["counts"], json!({ "orphan": FORGOTTEN }), "{report}");
    assert_eq!(report["matched"], CUT + 1, "{report}");
    assert_eq!(looked.lines().count(), FORGOTTEN, "{looked}");
    for n in 0..FORGOTTEN {
        let asked = format!("\\\\\"n\\\\\":{n}}}");
        assert!(looked.contains(&asked), "{asked}: {looked}");
    }
    let adopted = desk.give(LOSS, &["/adopt"], &[("NAME", "payments")]);
    let adopted = serde_json::Deserializer::from_str(&adopted).into_iter::<Value>();
    let adopted: Vec<Value> = adopted.map(|one| one.expect("JSON")).collect();
    let all_done = adopted.iter().all(|one| one["state"] == "done");
    assert!(all_done && adopted.len() == FORGOTTEN, "{adopted:#?}");

    // Undone.
    tool.choose(|_, _| Act::Ok("{\"made\":7}"));
    const STUCK: &str = "OncegateSagasStuck";
    desk.give(STUCK, &["/v1/sagas/retry", ">dry.json"], &[]);
    let dry = desk.lines("dry.json").remove(0);
    assert_eq!(dry["count"], 2);
    for saga in dry["sample"].as_array().expect("a list") {
        let why = saga["trouble"]["why"].as_str().expect("a sentence");
        let own = saga["trouble"]["call_id"].is_string() && !why.starts_with("the store");
        assert!(own, "its own trouble is still there: {why}");
    }
    let totals = json_of(&desk.give(STUCK, &["/v1/sagas/retry", "jq"], &[]));
    assert_eq!(totals["done"], 2, "{totals}");
    for saga in ["trip-1", "trip-2"] {
        gateway.saga_that_is(saga, "compensated").await;
    }
    assert_eq!(executed(&tool, "/cancel"), 2);

    // Stopped for longer, and going on.
    let session = [("SESSION", "S"), ("TENANT", "default")];
    let frozen = json_of(&desk.give(LOSS, &["/freeze"], &session));
    assert_eq!(frozen["frozen"], true);
    let resumed = json_of(&desk.give(LOSS, &["/resume"], &pay_tool));
    assert_eq!(resumed["paused"], false);

    // Counted: the numbers are the truth. Frozen sessions are counted every few seconds.
    until("it is counted", async || {
        gateway.metric("oncegate_frozen_sessions").await >= 1.0
    })
    .await;
    let counted = desk.give(LOSS, &["/metrics"], &[]);
    for line in [
        "oncegate_unknown_calls{tool=\"pay\"} 0",
        "oncegate_unknown_calls{tool=\"cancel\"} 0",
        "oncegate_stuck_sagas 0",
        "oncegate_frozen_sessions 1",
        "oncegate_tool_paused{tool=\"pay\"} 0",
    ] {
        assert!(counted.contains(line), "{line}: {counted}");
    }
    let expected = BTreeMap::from([
        ("failed".to_owned(), LOST),
        ("succeeded".to_owned(), CUT + 1 + FORGOTTEN),
    ]);
    assert_eq!(states(&gateway, "pay").await, expected);
    // The repetition of a forgotten and adopted charge is a replay.
    for n in 0..FORGOTTEN {
        let again = pay(&url, &format!("late{n}"), json!({ "n": n })).await;
        let again = again.expect_ok();
        let told = (again.at("/replayed"), again.at("/result"));
        assert_eq!(told, (json!(true), json!({ "made": 7 })), "{}", again.text);
    }
    assert_eq!(
        executed(&tool, "/pay"),
        charged,
        "nothing was charged again"
    );
    let acts = gateway.get("/v1/audit?limit=100").await.at("/acts");
    let acts = acts.as_array().expect("a list").iter();
    let acts: Vec<_> = acts
        .map(|act| act["act"].as_str().expect("a word"))
        .collect();
    for act in [
        "pause",
        "accept-loss",
        "probe",
        "resolve",
        "reconcile",
        "adopt",
        "retry",
        "freeze",
        "resume",
    ] {
        assert!(acts.contains(&act), "{act}: {acts:?}");
    }
    // An acceptance that is under way is asked for again, as its answer says: on a busy machine more often.
    let mut given = desk.given.clone();
    given.dedup();
    let number = given.len();
    assert!(number <= MOST_COMMANDS, "{number}: {given:#?}");
    std::fs::remove_dir_all(killed).expect("removed");
}
