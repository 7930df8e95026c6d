//! Tries every script once on each run of the servers.
//!
//! So a missing permission is found now and not in the middle of a call. It also loads the scripts.

use redis::{Script, Value};
use serde_json::json;

use super::answer::Answer;
use super::keys::Partition;
use super::scripts::{Run, command};
use super::server::Server;
use oncegate_store::lock::{read, write};
use oncegate_store::{Error, Reason, Result};

impl Server {
    /// Why the scripts do not work on these servers.
    pub(super) async fn try_scripts(&self, servers: &str) -> Option<Reason> {
        let _one = self.trial.lock().await;
        if *read(&self.tried_on) == servers {
            return None;
        }
        let trial = Trial {
            server: self,
            prefix: format!(
                "{}selftest:{}:",
                Partition::FIRST.prefix(),
                self.memory.gateway()
            ),
        };
        match trial.load_and_try().await {
            Ok(()) => {
                servers.clone_into(&mut write(&self.tried_on));
                None
            }
            Err(error) => {
                let text = format!("a trial of the scripts failed: {error}");
                Some(Reason::new("selftest", text))
            }
        }
    }
}

/// The keys of a script about a call, in the order of `common.lua`: with one list and one further name.
const OF_CALL: [&str; 21] = [
    "key", "call:0", "marks", "earliest", "census", "running", "unknown", "failed", "session",
    "line", "alive", "budget", "similar", "retained", "stream", "tenants", "tools", "unclear",
    "fails", "list", "key:1",
];
/// The keys of a script that deletes this call.
const OF_DELETED: [&str; 8] = [
    "retained", "failed", "marks", "earliest", "call:0", "again", "key", "list",
];
/// The keys of a script about a document.
const OF_DOCUMENT: [&str; 11] = [
    "document", "due", "marks", "retained", "count", "all", "of", "all:open", "of:open", "all:old",
    "of:old",
];
/// The other keys of the trial.
const OTHERS: [&str; 9] = [
    "key:2", "again", "last", "older", "tokens", "events", "paused", "manifest", "barrier",
];

/// A trial of the scripts, on keys of its own in the first partition.
struct Trial<'a> {
    server: &'a Server,
    prefix: String,
}

/// The name of a script, the word that it must answer, and a run of it.
type Step<'a> = (&'static str, &'static str, Run<'a>);

/// The first arguments of scripts about no call: no prefix, gateway, epoch and known writes.
const MARKED: (&str, &str, &str, u64) = ("", "g", "e", 0);

impl Trial<'_> {
    async fn load_and_try(&self) -> Result<()> {
        for script in &self.server.scripts.texts {
            let load = command("SCRIPT", ("LOAD", script));
            self.server.link.ask_masters(load).await?;
        }
        let keys = self.keys(&[&OF_CALL[..], &OTHERS, &OF_DOCUMENT].concat());
        self.server.link.ask::<()>("DEL", &keys).await?;
        self.try_calls().await?;
        self.try_gateways().await?;
        self.try_acts().await?;
        self.server.link.ask::<()>("DEL", &keys).await
    }

    /// A claim, a conflict, a denial, a zombie, a completion, a record that is put back, and a deletion.
    async fn try_calls(&self) -> Result<()> {
        let (link, scripts) = (&self.server.link, &self.server.scripts);
        // Every condition is compared, and holds as long as no other call has the lock. The token is 1.
        let place = json!({ "max": 2, "window_us": 60_000_000, "refuses": false });
        let conditions = json!({
            "token": "next", "floor": "1", "latest": "0", "lock": true, "lease": "1", "line_us": 3_000_000,
            "line_length": 2, "budget": place, "similar": place,
        });
        let conditions = conditions.to_string();
        let claim = |id, keys: &[&str]| {
            let claim = self.about_call(&scripts.claim, keys, id, 1, ["running", "r", ""]);
            claim.arg((&conditions, "tenant"))
        };
        let mut of_another = OF_CALL;
        of_another[0] = "key:2";
        let replace = |script, before: u8, after: u8| {
            self.about_call(script, &OF_CALL, "0", after, ["failed", "f", "1"])
                .arg(("", &cas(before), "1", "1", "1", ""))
                .arg((self.server.publish_command(), 1))
        };
        let mark = self.run(&scripts.mark, &["marks"]).arg(("", "e"));
        self.expect(vec![
            ("mark", "done", mark),
            ("claim", "done", claim("0", &OF_CALL)),
            ("claim", "held", claim("1", &OF_CALL)),
            ("claim", "denied", claim("1", &of_another[..20])),
            ("replace", "changed", replace(&scripts.finish, 9, 10)),
            ("replace", "done", replace(&scripts.begin, 1, 2)),
            ("replace", "done", replace(&scripts.finish, 1, 2)),
        ])
        .await?;
        let holders = self.run(&scripts.holders, &["key"]).arg(&self.prefix);
        let holders = link.run(&holders).await?;
        if !matches!(&holders, Value::Array(found) if found.len() == 1) {
            return Err(Error::Refused(format!("holders answered {holders:?}")));
        }
        let list = (self.key("list"), "+", "-", "BYLEX", "REV", "LIMIT", 0, 1);
        let commands = [
            command("ZRANGE", list),
            command("SMEMBERS", self.key("tenants")),
            command("GETRANGE", (self.key("call:0"), 0, 1)),
            command("STRLEN", self.key("call:0")),
            command("MGET", self.keys(&["marks", "earliest"])),
            command("EXISTS", self.keys(&["marks", "earliest"])),
        ];
        link.ask_many::<Value>(commands.into_iter()).await?;
        let assert = self
            .about_call(&scripts.assert, &OF_CALL, "0", 3, ["unknown", "u", "1"])
            .arg(("1", "", "1", "", "tenant"));
        let arrived = self.run(&scripts.arrived, &["call:0", "again"]);
        let forget = self
            .run(&scripts.forget, &OF_DELETED)
            .arg((MARKED, 2, 1, 1, "0", "position", 1, "1"));
        let take_out = self.run(&scripts.take_out, &["call:0", "retained"]);
        let postpone = self.run(&scripts.postpone, &["retained"]);
        self.expect(vec![
            ("assert", "put", assert),
            ("arrived", "done", arrived.arg((1, 1, "one"))),
            ("forget", "done", forget),
            ("take_out", "done", take_out.arg("position")),
            ("postpone", "done", postpone.arg((1, "position", 0))),
        ])
        .await?;
        let at_risk = self.run(&scripts.at_risk, &["failed"]);
        link.run(&at_risk.arg((1, "a", 1))).await.map(drop)
    }

    /// A gateway comes back from its last count, and is forgotten again.
    async fn try_gateways(&self) -> Result<()> {
        let (link, scripts) = (&self.server.link, &self.server.scripts);
        let last = self.keys(&["last", "older"]);
        let kept = (&last[1], "h", "000000000000007");
        link.ask::<()>("HSET", kept).await?;
        let of_marks = ["marks", "marks", "marks", "last", "older"];
        let come_back = self.run(&scripts.come_back, &of_marks);
        let of_tokens = ["tokens", "tokens", "marks", "last", "older"];
        let forget = self.run(&scripts.forget_gateways, &of_tokens);
        self.expect(vec![
            ("come_back", "done", come_back.arg(("", "h", "e", 0))),
            (
                "forget_gateways",
                "done",
                forget.arg((MARKED, "forgotten", "h", 7)),
            ),
        ])
        .await?;
        link.ask::<()>("RENAME", &last).await?;
        let kept: Option<u64> = link.ask("HGET", (&last[1], "h")).await?;
        if kept != Some(7) {
            return Err(Error::Refused(format!("the last count became {kept:?}")));
        }
        Ok(())
    }

    /// Acts of persons on a session and on a tool, documents, and scripts that only need some key.
    async fn try_acts(&self) -> Result<()> {
        let (link, scripts) = (&self.server.link, &self.server.scripts);
        let freeze = self.run(&scripts.act, &["session", "events", "marks"]);
        let pause = |what: &str| {
            let pause = self.run(&scripts.pause, &["paused", "events", "marks"]);
            pause.arg((MARKED, what, "t", "{}"))
        };
        let leave = self.run(&scripts.leave, &["line", "alive"]);
        let put = |script, before: [&str; 2], version: u64, text: &str| {
            self.run(script, &OF_DOCUMENT)
                .arg((MARKED, "digest", "place", &before))
                .arg((version, "open", "{}", text, 1, 1))
        };
        let create = |text| put(&scripts.create_document, ["", ""], 1, text);
        let change = put(&scripts.change_document, ["1", "open"], 2, "b");
        let forget = self
            .run(&scripts.forget_document, &OF_DOCUMENT[..9])
            .arg((MARKED, "digest", "place", 2, "open"));
        let swap = self.run(&scripts.swap, &["manifest"]).arg(("", "{}"));
        self.expect(vec![
            ("act", "done", freeze.arg((MARKED, "freeze", "{}", "", ""))),
            ("pause", "done", pause("pause")),
            ("pause", "done", pause("resume")),
            ("leave", "done", leave.arg("0")),
            ("put_document", "done", create("a")),
            ("put_document", "changed", create("b")),
            ("put_document", "done", change),
            ("forget_document", "done", forget),
            ("swap", "done", swap),
            ("barrier", "done", self.run(&scripts.barrier, &["barrier"])),
        ])
        .await?;
        let look = self.run(&scripts.look, &["session", "line", "events"]);
        link.run(&look).await?;
        link.ask::<Value>("HGETALL", self.key("paused"))
            .await
            .map(drop)
    }

    fn key(&self, name: &str) -> String {
        format!("{}{name}", self.prefix)
    }

    fn keys(&self, names: &[&str]) -> Vec<String> {
        names.iter().map(|name| self.key(name)).collect()
    }

    fn run<'a>(&self, script: &'a Script, keys: &[&str]) -> Run<'a> {
        Run::new(script).key(self.keys(keys))
    }

    /// A script about a call, with the arguments that all these scripts have in common.
    fn about_call<'a>(
        &self,
        script: &'a Script,
        keys: &[&str],
        id: &str,
        version: u8,
        [state, letter, retain_until]: [&str; 3],
    ) -> Run<'a> {
        let stream_entry = if self.server.has_stream { "{}" } else { "" };
        self.run(script, keys)
            .arg((&self.prefix, "g", "e", 0, 1, "", id, "position", "t"))
            .arg((&cas(version), version, "result", state, letter))
            .arg((1, retain_until, "entry", stream_entry, "intent", "args"))
    }

    /// Runs scripts; an error if one of them does not answer with its word.
    async fn expect(&self, steps: Vec<Step<'_>>) -> Result<()> {
        for (script, word, run) in steps {
            let answer = Answer::read(self.server.link.run(&run).await?)?;
            if answer.word != word {
                let why = format!("{script} answered {:?} and not {word:?}", answer.word);
                return Err(Error::Refused(why));
            }
        }
        Ok(())
    }
}

/// The version and attempt for compare-and-swap.
fn cas(version: u8) -> [u8; 24] {
    let mut cas = [b'a'; 24];
    cas[..8].copy_from_slice(&u64::from(version).to_be_bytes());
    cas
}
