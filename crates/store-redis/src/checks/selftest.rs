//! Tries every script once on each run of the servers.
//!
//! So a missing permission is found now and not in the middle of a call. It also loads the scripts.

use futures_util::future::try_join_all;
use redis::{Cmd, FromRedisValue, Script, ToRedisArgs, Value};
use serde_json::json;

use crate::keys::Partition;
use crate::link::answer::{Answer, unreadable};
use crate::scripts::{Run, command};
use crate::server::Server;
use oncegate_store::lock::{read, write};
use oncegate_store::{Error, Reason, Result};

impl Server {
    /// Why the scripts do not work on these servers.
    pub(crate) async fn try_scripts(&self, servers: &str) -> Option<Reason> {
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
const OF_CALL: [&str; 24] = [
    "key",
    "call:0",
    "marks",
    "earliest",
    "census",
    "running",
    "unknown",
    "failed",
    "session",
    "line",
    "alive",
    "budget",
    "similar",
    "retained",
    "stream",
    "tenants",
    "tools",
    "unclear",
    "fails",
    "asks",
    "may_begin",
    "waiting",
    "list",
    "key:1",
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

/// One command of the trial: its name, the command, and the answer that it must get.
type Step = (&'static str, Cmd, Must);

/// The answer that a step must get.
enum Must {
    /// This word, first in the answer of a script.
    Say(&'static str),
    /// This number.
    Be(u64),
    Succeed,
}

/// The first arguments of scripts about no call: no prefix, gateway, epoch and known writes.
const COUNTED: (&str, &str, &str, u64) = ("", "g", "e", 0);

impl Trial<'_> {
    /// All steps are sent at once, and run in their order.
    async fn load_and_try(&self) -> Result<()> {
        let link = &self.server.link;
        let texts = self.server.scripts.texts.iter();
        let loads: Vec<Cmd> = texts
            .map(|text| command("SCRIPT", ("LOAD", text)))
            .collect();
        let mut steps = Vec::new();
        if link.target.is_cluster() {
            let load = |command: Cmd| link.ask_masters(command);
            try_join_all(loads.into_iter().map(load)).await?;
        } else {
            steps.extend(loads.into_iter().map(|load| ("load", load, Must::Succeed)));
        }
        let keys = self.keys(&[&OF_CALL[..], &OTHERS, &OF_DOCUMENT].concat());
        let delete = || ("DEL", command("DEL", &keys), Must::Succeed);
        steps.push(delete());
        steps.extend(self.of_calls());
        steps.extend(self.of_gateways());
        steps.extend(self.of_acts());
        steps.push(delete());
        let (musts, commands): (Vec<_>, Vec<_>) = steps
            .into_iter()
            .map(|(name, command, must)| ((name, must), command))
            .unzip();
        let answers = link.ask_in_order(commands).await?;
        (musts.into_iter().zip(answers))
            .try_for_each(|((name, must), answer)| must.hold(name, answer))
    }

    /// A claim, a conflict, a claim that comes too late, a denial, a zombie, a completion, a record that is put back, and a deletion.
    fn of_calls(&self) -> Vec<Step> {
        let scripts = &self.server.scripts;
        // Every condition is compared, and holds as long as no other call has the lock. The token is 1.
        let place = json!({ "max": 2, "window_us": 60_000_000, "refuses": false });
        let conditions = json!({
            "token": "next", "floor": "1", "latest": "0", "lock": true, "lease": "1", "line_us": 3_000_000,
            "line_length": 2, "budget": place, "similar": place,
        });
        let conditions = conditions.to_string();
        let claim = |id, keys: &[&str], latest: &str| {
            let claim = self.about_call(&scripts.claim, keys, id, 1, ["running", "r", ""]);
            claim.arg((&conditions, "tenant", latest))
        };
        let mut of_another = OF_CALL;
        of_another[0] = "key:2";
        let replace = |script, before: u8, after: u8| {
            self.about_call(script, &OF_CALL, "0", after, ["failed", "f", "1"])
                .arg(("", &cas(before), "1", "1", "1", ""))
                .arg((self.server.publish_command(), 1, "", ""))
        };
        let set_epoch = self.run(&scripts.set_epoch, &["marks"]).arg(("", "e"));
        let holders = self.run(&scripts.holders, &["key", "marks"]);
        let holders = holders.arg((&self.prefix, "g", "e", 0));
        let list = (self.key("list"), "+", "-", "BYLEX", "REV", "LIMIT", 0, 1);
        let assert = self
            .about_call(&scripts.assert, &OF_CALL, "0", 3, ["unknown", "u", "1"])
            .arg(("1", "", "1", "", "tenant"));
        let arrived = self.run(&scripts.arrived, &["call:0", "again"]);
        let forget = self
            .run(&scripts.forget, &OF_DELETED)
            .arg((COUNTED, 2, 1, 1, "0", "position", 1, "1"));
        let take_out = self.run(&scripts.take_out, &["call:0", "retained"]);
        let postpone = self.run(&scripts.postpone, &["retained"]);
        let at_risk = self.run(&scripts.at_risk, &["failed"]);
        vec![
            says("mark", "done", set_epoch),
            says("claim", "done", claim("0", &OF_CALL, "")),
            says("claim", "held", claim("1", &OF_CALL, "")),
            says("claim", "late", claim("1", &of_another[..23], "1")),
            says("claim", "denied", claim("1", &of_another[..23], "")),
            says("replace", "changed", replace(&scripts.finish, 9, 10)),
            says("replace", "done", replace(&scripts.begin, 1, 2)),
            says("replace", "done", replace(&scripts.finish, 1, 2)),
            says("holders", "held", holders),
            succeeds("ZRANGE", list),
            succeeds("SMEMBERS", self.key("tenants")),
            succeeds("GETRANGE", (self.key("call:0"), 0, 1)),
            succeeds("STRLEN", self.key("call:0")),
            succeeds("MGET", self.keys(&["marks", "earliest"])),
            succeeds("EXISTS", self.keys(&["marks", "earliest"])),
            says("assert", "put", assert),
            says("arrived", "done", arrived.arg((1, 1, "one"))),
            says("forget", "done", forget),
            says("take_out", "done", take_out.arg("position")),
            says("postpone", "done", postpone.arg((1, "position", 0))),
            ("at_risk", at_risk.arg((1, "a", 1)).command(), Must::Succeed),
        ]
    }

    /// A gateway comes back from its last count, and is forgotten again.
    fn of_gateways(&self) -> Vec<Step> {
        let scripts = &self.server.scripts;
        let last = self.keys(&["last", "older"]);
        let of_counters = ["marks", "marks", "marks", "last", "older"];
        let come_back = self.run(&scripts.come_back, &of_counters);
        let of_tokens = ["tokens", "tokens", "marks", "last", "older"];
        let forget = self.run(&scripts.forget_gateways, &of_tokens);
        let forget = forget.arg((COUNTED, "forgotten", "h", 7));
        vec![
            succeeds("HSET", (&last[1], "h", "000000000000007")),
            says("come_back", "done", come_back.arg(("", "h", "e", 0))),
            says("forget_gateways", "done", forget),
            succeeds("RENAME", &last),
            ("HGET", command("HGET", (&last[1], "h")), Must::Be(7)),
        ]
    }

    /// Acts of operators on a session and on a tool, documents, and scripts that only need some key.
    fn of_acts(&self) -> Vec<Step> {
        let scripts = &self.server.scripts;
        let freeze = self.run(&scripts.act, &["session", "events", "marks"]);
        let pause = |what: &str| {
            let pause = self.run(&scripts.pause, &["paused", "events", "marks"]);
            pause.arg((COUNTED, what, "t", "{}"))
        };
        let leave = self.run(&scripts.leave, &["line", "alive"]);
        let put = |script, before: [&str; 2], version: u64, text: &str| {
            self.run(script, &OF_DOCUMENT)
                .arg((COUNTED, "digest", "place", &before))
                .arg((version, "open", "{}", text, 1, 1))
        };
        let create = |text| put(&scripts.create_document, ["", ""], 1, text);
        let change = put(&scripts.change_document, ["1", "open"], 2, "b");
        let forget = self
            .run(&scripts.forget_document, &OF_DOCUMENT[..9])
            .arg((COUNTED, "digest", "place", 2, "open"));
        let swap = self.run(&scripts.swap, &["manifest"]).arg(("", "{}"));
        let barrier = self.run(&scripts.barrier, &["barrier"]);
        let look = self.run(&scripts.look, &["session", "line", "events"]);
        vec![
            says("act", "done", freeze.arg((COUNTED, "freeze", "{}", "", ""))),
            says("pause", "done", pause("pause")),
            says("pause", "done", pause("resume")),
            says("leave", "done", leave.arg("0")),
            says("put_document", "done", create("a")),
            says("put_document", "changed", create("b")),
            says("put_document", "done", change),
            says("forget_document", "done", forget),
            says("swap", "done", swap),
            says("barrier", "done", barrier),
            ("look", look.command(), Must::Succeed),
            succeeds("HGETALL", self.key("paused")),
        ]
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
}

/// A script that must answer with this word.
fn says(script: &'static str, word: &'static str, run: Run<'_>) -> Step {
    (script, run.command(), Must::Say(word))
}

fn succeeds(name: &'static str, arguments: impl ToRedisArgs) -> Step {
    (name, command(name, arguments), Must::Succeed)
}

impl Must {
    fn hold(self, name: &str, answer: Value) -> Result<()> {
        let wrong = |why: String| Err(Error::Refused(format!("{name} answered {why}")));
        match self {
            Self::Say(word) => match Answer::read(answer)?.word {
                said if said == word => Ok(()),
                said => wrong(format!("{said:?} and not {word:?}")),
            },
            Self::Be(number) => {
                match Option::<u64>::from_redis_value(answer).map_err(unreadable)? {
                    Some(is) if is == number => Ok(()),
                    is => wrong(format!("{is:?} and not {number}")),
                }
            }
            Self::Succeed => Ok(()),
        }
    }
}

/// The version and attempt for compare-and-swap.
fn cas(version: u8) -> [u8; 24] {
    let mut cas = [b'a'; 24];
    cas[..8].copy_from_slice(&u64::from(version).to_be_bytes());
    cas
}
