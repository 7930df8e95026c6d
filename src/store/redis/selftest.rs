//! A trial of every script, once on each run of the servers: a permission that is missing is found now
//! and not in the middle of a call. It also loads the scripts.

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
        let load = async || {
            for script in &self.scripts.texts {
                self.link
                    .ask_masters(command("SCRIPT", ("LOAD", script)))
                    .await?;
            }
            self.try_each().await
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

    /// A claim, a conflict, a zombie, a completion, a look, and what is done to a session and a tool, in a
    /// corner of the first partition.
    async fn try_each(&self) -> Result<(), Error> {
        let prefix = format!(
            "{}selftest:{}:",
            Partition::FIRST.prefix(),
            self.memory.gateway()
        );
        let names = [
            "key", "call:0", "epoch", "writes", "census", "running", "unknown", "failed",
            "session", "line", "alive", "budget", "similar", "retained", "stream", "tenants",
            "runs", "unclear", "fails", "list", "key:1", "call:1", "paused", "events",
        ];
        let names = names.map(|name| format!("{prefix}{name}"));
        let [
            key,
            call,
            epoch,
            writes,
            _,
            running,
            _,
            failed,
            session,
            line,
            ..,
            list,
            _,
            _,
            paused,
            events,
        ] = &names;
        let (retained, tenants, of_call) = (&names[13], &names[15], &names[..21]);
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
        self.link.ask::<()>(&clean).await?;
        self.link.ask::<()>(&command("SET", (epoch, "e"))).await?;
        // What every script is told first: prefix, gateway, epoch, known writes.
        let begun = |known| (&prefix, "g", "e", known);
        let claim = async |id: &str| {
            let mut run = Run::new(&self.scripts.claim);
            run.key(of_call).arg(begun(0));
            run.arg((
                id,
                "{}",
                "1:a",
                "{}",
                "{}",
                "p1",
                "{}",
                "t",
                1,
                admission(id),
            ));
            run.arg(("", "", "position", "tenant"));
            Answer::read(self.link.run(&run).await?)
        };
        let claimed = claim("0").await?;
        let drawn = claimed.text(0).unwrap_or_default();
        let held = claim("1").await?.word;
        let replace = async |script: &Script, expected: &str, cas: &str| {
            let mut run = Run::new(script);
            run.key(of_call).arg(begun(1));
            run.arg((
                "0", expected, &drawn, cas, "p2", 1, "r", "e:2", "{}", "t", "failed", 1,
            ));
            run.arg((
                1,
                "",
                "keep",
                "",
                "1",
                "1",
                self.announcement(false),
                "",
                "position",
                1,
            ));
            self.say(run.arg(("{}", "{}", "{}"))).await
        };
        let refused = replace(&self.scripts.finish, "9:z", "10:z").await?;
        let changed = replace(&self.scripts.begin, "1:a", "2:a").await?;
        let again = replace(&self.scripts.finish, "1:a", "2:a").await?;
        let found = self
            .link
            .run(Run::new(&self.scripts.holders).key(key).arg(&prefix))
            .await?;
        let found = matches!(found, Value::Array(found) if found.len() == 1);
        let mut run = Run::new(&self.scripts.assert);
        run.key(of_call).arg(begun(0));
        run.arg(("0", 3, "3:a", "{}", "{}", "p3", "1", 0, "", "t", "unknown"));
        run.arg((1, 1, "e:3", "{}", "{}", "", "1", "", "position", "tenant"));
        let put = self.say(&run).await?;
        let mut run = Run::new(&self.scripts.arrived);
        let arrived = self.say(run.key(call).arg((1, 1, "[1,\"\",\"\"]"))).await?;
        for command in [
            command("ZRANGE", (list, "+", "-", "BYLEX", "REV", "LIMIT", 0, 1)),
            command("SMEMBERS", tenants),
            command("ZSCAN", (running, 0)),
            command("ZCOUNT", (retained, "-inf", 1)),
            command("HSTRLEN", (call, "args")),
        ] {
            self.link.ask::<Value>(&command).await?;
        }
        let mut run = Run::new(&self.scripts.forget);
        run.key((retained, failed, epoch, writes, call, key, list));
        run.arg(("", "g", "e", 0, 2, 1, 1, "0", "position", 1, "1"));
        self.link.run(&run).await?;
        let about = |script, name: &str| {
            let mut run = Run::new(script);
            run.key((name, events, epoch, writes))
                .arg(("", "g", "e", 0));
            run
        };
        let mut run = Run::new(&self.scripts.forget_gateways);
        run.key((paused, paused, epoch, writes, events))
            .arg(("", "g", "e", 0));
        let taken_out = self.say(run.arg(("forgotten", "nobody", 0, "[0]"))).await?;
        self.link
            .ask::<Value>(&command("HSETNX", (paused, "t", "")))
            .await?;
        self.link
            .ask::<()>(&command("DEL", (paused, events)))
            .await?;
        let swapped = self
            .say(Run::new(&self.scripts.swap).key(paused).arg(("", "{}")))
            .await?;
        self.link.ask::<()>(&command("DEL", paused)).await?;
        let of_session = |script| {
            let mut run = Run::new(script);
            run.key((session, session, epoch, writes, &names[8..13]))
                .arg(("", "g", "e", 0));
            run
        };
        let entered = self
            .say(of_session(&self.scripts.enter).arg(admission("0")))
            .await?;
        let denied = self
            .say(of_session(&self.scripts.enter).arg(admission("1")))
            .await?;
        let frozen = self
            .say(about(&self.scripts.act, session).arg(("freeze", "{}", "", "")))
            .await?;
        let mut run = Run::new(&self.scripts.look);
        self.link.run(run.key((session, line, events))).await?;
        for what in ["pause", "resume"] {
            let mut run = about(&self.scripts.pause, paused);
            self.link.run(run.arg((what, "t", "{}"))).await?;
        }
        self.link.ask::<Value>(&command("HGETALL", paused)).await?;
        let tried = self.try_documents(&prefix, epoch, writes).await?;
        self.link
            .run(of_session(&self.scripts.leave).arg(("0", "1", "1", "1")))
            .await?;
        self.link.ask::<()>(&clean).await?;
        let words = [
            claimed.word,
            held,
            refused,
            changed,
            again,
            put,
            arrived,
            entered,
            denied,
            frozen,
            taken_out,
            swapped,
        ];
        let right = [
            "done", "held", "changed", "done", "done", "put", "done", "done", "denied", "done",
            "done", "done",
        ];
        if words != right || !found || tried != ["done", "changed", "done", "done"] {
            return Err(Error::Refused(format!(
                "it answered {words:?}, {tried:?}, found: {found}"
            )));
        }
        Ok(())
    }

    /// A document is made, made again with another text, changed and deleted. Answers what was said to each.
    async fn try_documents(
        &self,
        prefix: &str,
        epoch: &str,
        writes: &str,
    ) -> Result<[String; 4], Error> {
        let mut names: Vec<String> = (1..=12).map(|n| format!("{prefix}document:{n}")).collect();
        epoch.clone_into(&mut names[2]);
        writes.clone_into(&mut names[3]);
        let begun = ("", "g", "e", 0, "digest", "place");
        let put = async |script: &Script, before: [&str; 2], version: u64, text: &str| {
            let mut run = Run::new(script);
            run.key(&names).arg((begun, &before));
            self.say(run.arg((version, "open", "{}", text, 1, 1))).await
        };
        let made = put(&self.scripts.create_document, ["", ""], 1, "a").await?;
        let again = put(&self.scripts.create_document, ["", ""], 1, "b").await?;
        let changed = put(&self.scripts.change_document, ["1", "open"], 2, "b").await?;
        let mut run = Run::new(&self.scripts.forget_document);
        let forgotten = self
            .say(run.key(&names[..10]).arg((begun, 2, "open")))
            .await?;
        names.drain(2..4);
        self.link.ask::<()>(&command("DEL", &names)).await?;
        Ok([made, again, changed, forgotten])
    }

    /// What a script says.
    async fn say(&self, run: &Run<'_>) -> Result<String, Error> {
        Ok(Answer::read(self.link.run(run).await?)?.word)
    }
}
