//! Tries every script once on each run of the servers.
//!
//! A missing permission is found now and not in the middle of a call. It also loads the scripts.

use redis::{Script, Value};
use serde_json::json;

use super::answer::Answer;
use super::keys::Partition;
use super::scripts::{Run, command};
use super::server::Server;
use crate::store::lock::{read, write};
use crate::store::{Error, Reason};

impl Server {
    /// Why the scripts do not work here.
    pub(super) async fn try_scripts(&self, servers: &str) -> Option<Reason> {
        if *read(&self.tried_on) == servers {
            return None;
        }
        let _one = self.trial.lock().await;
        if *read(&self.tried_on) == servers {
            return None;
        }
        let load = async || {
            for script in &self.scripts.texts {
                self.link
                    .ask_masters(command("SCRIPT", ("LOAD", script)))
                    .await?;
            }
            Trial(self).try_each().await
        };
        match load().await {
            Ok(()) => {
                servers.clone_into(&mut write(&self.tried_on));
                None
            }
            Err(error) => Some(Reason::new(
                "selftest",
                format!("a trial of the scripts failed: {error}"),
            )),
        }
    }
}

/// A trial of the scripts of a server.
struct Trial<'a>(&'a Server);

impl Trial<'_> {
    /// Tries every script, in a corner of the first partition.
    ///
    /// A claim, a conflict, a zombie, a completion, a look, and the acts of persons on a session
    /// and a tool.
    async fn try_each(&self) -> Result<(), Error> {
        let prefix = format!(
            "{}selftest:{}:",
            Partition::FIRST.prefix(),
            self.0.memory.gateway()
        );
        let names = [
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
            "list",
            "key:1",
            "call:1",
            "paused",
            "events",
            "again",
            "last",
            "last_before",
            "key:2",
        ];
        let names = names.map(|name| format!("{prefix}{name}"));
        let [key, call, marks, earliest, ..] = &names;
        let [failed, session, line, alive] = [7, 8, 9, 10].map(|at| &names[at]);
        let [retained, tenants, list] = [13, 15, 19].map(|at| &names[at]);
        let [paused, events, again] = [22, 23, 24].map(|at| &names[at]);
        let of_call = &names[..21];
        // Every term is asked, and none is in the way.
        let admission = |call: &str| {
            let place = json!({ "max": 2, "window_us": 60_000_000, "refuses": false });
            json!({
                "call": call, "token": "next", "floor": "1", "lock": true, "lease": "1", "line_us": 3_000_000,
                "line_length": 2, "budget": place, "similar": place,
            })
            .to_string()
        };
        let clean = command("DEL", &names);
        self.0.link.ask::<()>(&clean).await?;
        let mut run = Run::new(&self.0.scripts.mark);
        let marked = self.say(run.key(marks).arg(("", "e"))).await?;
        // What every script is told first: prefix, gateway, epoch, known writes.
        let begun = |known| (&*prefix, "g", "e", known);
        let told = if self.0.tells { "{}" } else { "" };
        let claim = async |id: &str, keys: &[String]| {
            let mut run = about_call(&self.0.scripts.claim, begun(0), id, keys);
            run.arg((&cas(1)[..], "intent", "args", "p1", "entry", told));
            run.arg((1, admission(id), "tenant"));
            run.arg(("", "running", "r", ""));
            Answer::read(self.0.link.run(&run).await?)
        };
        let claimed = claim("0", of_call).await?;
        let drawn = claimed.text(0).unwrap_or_default();
        let held = claim("1", of_call).await?.word;
        let mut of_another = of_call.to_vec();
        of_another.pop();
        of_another[0].clone_from(&names[27]);
        let denied = claim("1", &of_another).await?.word;
        let replace = async |script: &Script, before: u8, after: u8| {
            let mut run = about_call(script, begun(1), "0", of_call);
            run.arg((&cas(before)[..], &drawn, &cas(after)[..]));
            run.arg(("p2", "result", "entry", told, "failed", "f", 1));
            run.arg((1, "", "1", "1", self.0.announcement(false), "", 1));
            self.say(run.arg(("1", "intent", "args"))).await
        };
        let refused = replace(&self.0.scripts.finish, 9, 10).await?;
        let changed = replace(&self.0.scripts.begin, 1, 2).await?;
        let repeated = replace(&self.0.scripts.finish, 1, 2).await?;
        let found = self
            .0
            .link
            .run(Run::new(&self.0.scripts.holders).key(key).arg(&prefix))
            .await?;
        let found = matches!(found, Value::Array(found) if found.len() == 1);
        let mut run = about_call(&self.0.scripts.assert, begun(0), "0", of_call);
        run.arg((3, &cas(3)[..], "intent", "args", "p3", "1", "result"));
        run.arg(("unknown", "u", 1, 1, "entry", told, "", "1", "", "tenant"));
        let put = self.say(&run).await?;
        let mut run = Run::new(&self.0.scripts.arrived);
        let arrived = self.say(run.key((call, again)).arg((1, 1, "one"))).await?;
        for command in [
            command("ZRANGE", (list, "+", "-", "BYLEX", "REV", "LIMIT", 0, 1)),
            command("SMEMBERS", tenants),
            command("GETRANGE", (call, 0, 1)),
            command("STRLEN", call),
            command("MGET", (marks, earliest)),
            command("EXISTS", (marks, earliest)),
        ] {
            self.0.link.ask::<Value>(&command).await?;
        }
        let mut run = Run::new(&self.0.scripts.at_risk);
        self.0.link.run(run.key(failed).arg((1, "a", 1))).await?;
        let mut run = Run::new(&self.0.scripts.forget);
        run.key((retained, failed, marks, earliest, call, again, key, list));
        run.arg(("", "g", "e", 0, 2, 1, 1, "0", "position", 1, "1"));
        self.0.link.run(&run).await?;
        let about = |script, name: &str| {
            let mut run = Run::new(script);
            run.key((name, events, marks)).arg(("", "g", "e", 0));
            run
        };
        // It comes back from what was its last count, and is forgotten again.
        let last = &names[25..27];
        let kept = command("HSET", (&last[1], "h", "000000000000007"));
        self.0.link.ask::<()>(&kept).await?;
        let mut run = Run::new(&self.0.scripts.come_back);
        run.key((marks, marks, marks, last)).arg(("", "h", "e", 0));
        let back = self.say(&run).await?;
        let mut run = Run::new(&self.0.scripts.forget_gateways);
        run.key((paused, paused, marks, last));
        run.arg(("", "g", "e", 0, "forgotten", "h", 7));
        let taken_out = self.say(&run).await?;
        let renamed = command("RENAME", (&last[0], &last[1]));
        self.0.link.ask::<()>(&renamed).await?;
        let kept: Option<u64> = self.0.link.ask(&command("HGET", (&last[1], "h"))).await?;
        let found = found && kept == Some(7);
        self.0
            .link
            .ask::<()>(&command("DEL", (paused, events)))
            .await?;
        let swapped = self
            .say(Run::new(&self.0.scripts.swap).key(paused).arg(("", "{}")))
            .await?;
        let mut run = Run::new(&self.0.scripts.barrier);
        let raised = self.say(run.key(paused)).await?;
        let mut run = Run::new(&self.0.scripts.take_out);
        let emptied = self.say(run.key((call, retained)).arg("position")).await?;
        let mut run = Run::new(&self.0.scripts.postpone);
        let later = self.say(run.key(retained).arg((1, "position", 0))).await?;
        self.0.link.ask::<()>(&command("DEL", paused)).await?;
        let frozen = self
            .say(about(&self.0.scripts.act, session).arg(("freeze", "{}", "", "")))
            .await?;
        let mut run = Run::new(&self.0.scripts.look);
        self.0.link.run(run.key((session, line, events))).await?;
        for what in ["pause", "resume"] {
            let mut run = about(&self.0.scripts.pause, paused);
            self.0.link.run(run.arg((what, "t", "{}"))).await?;
        }
        self.0
            .link
            .ask::<Value>(&command("HGETALL", paused))
            .await?;
        let tried = self.try_documents(&prefix, marks).await?;
        let mut run = Run::new(&self.0.scripts.leave);
        self.0.link.run(run.key((line, alive)).arg("0")).await?;
        self.0.link.ask::<()>(&clean).await?;
        let words = [
            marked,
            claimed.word,
            held,
            denied,
            refused,
            changed,
            repeated,
            put,
            arrived,
            frozen,
            taken_out,
            back,
            swapped,
            raised,
            emptied,
            later,
        ];
        let right = [
            "done", "done", "held", "denied", "changed", "done", "done", "put", "done", "done",
            "done", "done", "done", "done", "done", "done",
        ];
        if words != right || !found || tried != ["done", "changed", "done", "done"] {
            return Err(Error::Refused(format!(
                "it answered {words:?}, {tried:?}, found: {found}"
            )));
        }
        Ok(())
    }

    /// Makes, remakes, changes and deletes a document. Answers with the word for each.
    async fn try_documents(&self, prefix: &str, marks: &str) -> Result<[String; 4], Error> {
        let mut names: Vec<String> = (1..=11).map(|n| format!("{prefix}document:{n}")).collect();
        marks.clone_into(&mut names[2]);
        let begun = ("", "g", "e", 0, "digest", "place");
        let put = async |script: &Script, before: [&str; 2], version: u64, text: &str| {
            let mut run = Run::new(script);
            run.key(&names).arg((begun, &before));
            self.say(run.arg((version, "open", "{}", text, 1, 1))).await
        };
        let made = put(&self.0.scripts.create_document, ["", ""], 1, "a").await?;
        let again = put(&self.0.scripts.create_document, ["", ""], 1, "b").await?;
        let changed = put(&self.0.scripts.change_document, ["1", "open"], 2, "b").await?;
        let mut run = Run::new(&self.0.scripts.forget_document);
        let forgotten = self
            .say(run.key(&names[..9]).arg((begun, 2, "open")))
            .await?;
        names.remove(2);
        self.0.link.ask::<()>(&command("DEL", &names)).await?;
        Ok([made, again, changed, forgotten])
    }

    /// The word of a script's answer.
    async fn say(&self, run: &Run<'_>) -> Result<String, Error> {
        Ok(Answer::read(self.0.link.run(run).await?)?.word)
    }
}

/// A script about a call with one list.
fn about_call<'a>(
    script: &'a Script,
    begun: (&str, &str, &str, u64),
    id: &str,
    keys: &[String],
) -> Run<'a> {
    let mut run = Run::new(script);
    run.key(keys).arg(begun);
    run.arg((1, 0, id, "position", "t"));
    run
}

/// The version and attempt for compare-and-swap.
fn cas(version: u8) -> [u8; 24] {
    let mut cas = [b'a'; 24];
    cas[..8].copy_from_slice(&u64::from(version).to_be_bytes());
    cas
}
