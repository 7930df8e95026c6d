//! A trial of every script, once on each run of the servers: a permission that is missing is found now
//! and not in the middle of a call. It also loads the scripts.

use redis::{Script, Value, cmd};
use serde_json::json;

use super::answer::{reply, text};
use super::keys::Partition;
use super::scripts::Run;
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
                    .ask_masters(cmd("SCRIPT").arg("LOAD").arg(script).to_owned())
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
        let [key, call, epoch, .., list, _, _, paused, events] = &names;
        // Every term is asked, and none is in the way.
        let admission = |call: &str| {
            let place = json!({ "max": 2, "window_us": 60_000_000, "refuses": false });
            json!({
                "call": call, "token": "next", "floor": "1", "lock": true, "lease": "1", "line_us": 3_000_000,
                "line_length": 2, "budget": place, "similar": place,
            })
            .to_string()
        };
        let clean = cmd("DEL").arg(&names).to_owned();
        self.link.ask::<()>(&clean).await?;
        self.link.ask::<()>(cmd("SET").arg(epoch).arg("e")).await?;
        // What every script is told first: prefix, gateway, epoch, known writes.
        fn begin<'a>(script: &'a Script, names: &[String], prefix: &str, known: u64) -> Run<'a> {
            let mut run = Run::new(script);
            run.key(&names[..21])
                .arg(prefix)
                .arg("g")
                .arg("e")
                .arg(known);
            run
        }
        fn of_session<'a>(script: &'a Script, names: &[String]) -> Run<'a> {
            let mut run = Run::new(script);
            run.key(&names[8])
                .key(&names[8])
                .key(&names[2..4])
                .key(&names[8..13]);
            run.arg("").arg("g").arg("e").arg(0);
            run
        }
        let claim = async |id: &str| {
            let mut run = begin(&self.scripts.claim, &names, &prefix, 0);
            run.arg(id).arg("{}");
            run.arg("1:a")
                .arg("{}")
                .arg("{}")
                .arg("p1")
                .arg("{}")
                .arg("t")
                .arg(1)
                .arg(admission(id))
                .arg("")
                .arg("")
                .arg("position")
                .arg("tenant");
            reply(self.link.run(&run).await?)
        };
        let (claimed, told) = claim("0").await?;
        let drawn = text(&told, 0).unwrap_or_default();
        let (held, _) = claim("1").await?;
        let replace = async |script: &Script, expected: &str, cas: &str| {
            let mut run = begin(script, &names, &prefix, 1);
            run.arg("0")
                .arg(expected)
                .arg(&drawn)
                .arg(cas)
                .arg("p2")
                .arg(1)
                .arg("r")
                .arg("e:2")
                .arg("{}");
            run.arg("t")
                .arg("failed")
                .arg(1)
                .arg(1)
                .arg("")
                .arg("keep")
                .arg("")
                .arg("1")
                .arg("1");
            run.arg(self.announcement(false))
                .arg("")
                .arg("position")
                .arg(1)
                .arg("{}")
                .arg("{}")
                .arg("{}");
            reply(self.link.run(&run).await?).map(|(word, _)| word)
        };
        let refused = replace(&self.scripts.finish, "9:z", "10:z").await?;
        let begun = replace(&self.scripts.begin, "1:a", "2:a").await?;
        let again = replace(&self.scripts.finish, "1:a", "2:a").await?;
        let mut run = Run::new(&self.scripts.holders);
        let found = self.link.run(run.key(key).arg(&prefix)).await?;
        let found = matches!(found, Value::Array(found) if found.len() == 1);
        let mut run = begin(&self.scripts.assert, &names, &prefix, 0);
        run.arg("0")
            .arg(3)
            .arg("3:a")
            .arg("{}")
            .arg("{}")
            .arg("p3")
            .arg("1")
            .arg(0)
            .arg("")
            .arg("t");
        run.arg("unknown")
            .arg(1)
            .arg(1)
            .arg("e:3")
            .arg("{}")
            .arg("{}")
            .arg("")
            .arg("1")
            .arg("");
        run.arg("position").arg("tenant");
        let (put, _) = reply(self.link.run(&run).await?)?;
        let mut run = Run::new(&self.scripts.arrived);
        let (arrived, _) = reply(
            self.link
                .run(run.key(call).arg(1).arg(1).arg("[1,\"\",\"\"]"))
                .await?,
        )?;
        let mut ask = cmd("ZRANGE");
        ask.arg(list)
            .arg("+")
            .arg("-")
            .arg("BYLEX")
            .arg("REV")
            .arg("LIMIT")
            .arg(0)
            .arg(1);
        self.link.ask::<Value>(&ask).await?;
        self.link
            .ask::<Value>(cmd("SMEMBERS").arg(&names[15]))
            .await?;
        self.link
            .ask::<Value>(cmd("ZSCAN").arg(&names[5]).arg(0))
            .await?;
        self.link
            .ask::<Value>(cmd("ZCOUNT").arg(&names[13]).arg("-inf").arg(1))
            .await?;
        self.link
            .ask::<Value>(cmd("HSTRLEN").arg(call).arg("args"))
            .await?;
        let mut run = Run::new(&self.scripts.forget);
        run.key(&names[13])
            .key(&names[7])
            .key(&names[2..4])
            .key(call)
            .key(key)
            .key(list);
        run.arg("").arg("g").arg("e").arg(0).arg(2).arg(1).arg(1);
        self.link
            .run(run.arg("0").arg("position").arg(1).arg("1"))
            .await?;
        let mut run = Run::new(&self.scripts.forget_gateways);
        run.key(paused)
            .key(paused)
            .key(&names[2..4])
            .key(events)
            .arg("")
            .arg("g")
            .arg("e")
            .arg(0);
        run.arg("forgotten").arg("nobody").arg(0).arg("[0]");
        let (taken_out, _) = reply(self.link.run(&run).await?)?;
        self.link
            .ask::<Value>(cmd("HSETNX").arg(paused).arg("t").arg(""))
            .await?;
        self.link
            .ask::<()>(cmd("DEL").arg(paused).arg(events))
            .await?;
        let mut run = Run::new(&self.scripts.swap);
        let (swapped, _) = reply(self.link.run(run.key(paused).arg("").arg("{}")).await?)?;
        self.link.ask::<()>(cmd("DEL").arg(paused)).await?;
        let enter = async |id: &str| {
            let mut run = of_session(&self.scripts.enter, &names);
            reply(self.link.run(run.arg(admission(id))).await?).map(|(word, _)| word)
        };
        let entered = enter("0").await?;
        let denied = enter("1").await?;
        let about = |script, name: &str| {
            let mut run = Run::new(script);
            run.key(name).key(events).key(&names[2..4]);
            run.arg("").arg("g").arg("e").arg(0);
            run
        };
        let mut run = about(&self.scripts.act, &names[8]);
        let (frozen, _) = reply(
            self.link
                .run(run.arg("freeze").arg("{}").arg("").arg(""))
                .await?,
        )?;
        let mut run = Run::new(&self.scripts.look);
        self.link
            .run(run.key(&names[8]).key(&names[9]).key(events))
            .await?;
        for what in ["pause", "resume"] {
            let mut run = about(&self.scripts.pause, paused);
            self.link.run(run.arg(what).arg("t").arg("{}")).await?;
        }
        self.link.ask::<Value>(cmd("HGETALL").arg(paused)).await?;
        let tried = self.try_documents(&prefix, epoch, &names[3]).await?;
        let mut run = of_session(&self.scripts.leave, &names);
        self.link
            .run(run.arg("0").arg("1").arg("1").arg("1"))
            .await?;
        self.link.ask::<()>(&clean).await?;
        let words = [
            &claimed, &held, &refused, &begun, &again, &put, &arrived, &entered, &denied, &frozen,
            &taken_out, &swapped,
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
        let put = async |script: &Script, before: [&str; 2], version: u64, text: &str| {
            let mut run = Run::new(script);
            run.key(&names)
                .arg("")
                .arg("g")
                .arg("e")
                .arg(0)
                .arg("digest")
                .arg("place")
                .arg(&before);
            run.arg(version)
                .arg("open")
                .arg("{}")
                .arg(text)
                .arg(1)
                .arg(1);
            reply(self.link.run(&run).await?).map(|(word, _)| word)
        };
        let made = put(&self.scripts.create_document, ["", ""], 1, "a").await?;
        let again = put(&self.scripts.create_document, ["", ""], 1, "b").await?;
        let changed = put(&self.scripts.change_document, ["1", "open"], 2, "b").await?;
        let mut run = Run::new(&self.scripts.forget_document);
        run.key(&names[..10])
            .arg("")
            .arg("g")
            .arg("e")
            .arg(0)
            .arg("digest")
            .arg("place")
            .arg(2)
            .arg("open");
        let (forgotten, _) = reply(self.link.run(&run).await?)?;
        names.drain(2..4);
        self.link.ask::<()>(cmd("DEL").arg(&names)).await?;
        Ok([made, again, changed, forgotten])
    }
}
