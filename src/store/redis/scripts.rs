//! The scripts and their arguments.

use redis::{Cmd, Script, ToRedisArgs};

/// One script per verb.
pub(super) struct Scripts {
    pub(super) claim: Script,
    /// A change after which a request may be sent.
    pub(super) begin: Script,
    /// A change after which nothing is sent; works when memory is full.
    pub(super) finish: Script,
    pub(super) assert: Script,
    pub(super) holders: Script,
    pub(super) leave: Script,
    pub(super) act: Script,
    pub(super) look: Script,
    pub(super) forget: Script,
    pub(super) forget_gateways: Script,
    pub(super) come_back: Script,
    pub(super) arrived: Script,
    pub(super) pause: Script,
    /// Works when memory is full; so does `swap`.
    pub(super) mark: Script,
    pub(super) swap: Script,
    /// Works when memory is full: what was stored then is confirmed, too.
    pub(super) barrier: Script,
    pub(super) create_document: Script,
    /// Works when memory is full.
    pub(super) change_document: Script,
    /// Puts a document back, which triggers no sending; not of this gateway alone, so that to load it tells nothing of a
    /// look at the data.
    pub(super) make_again: Script,
    /// The same for a later version. Works when memory is full.
    pub(super) put_back: Script,
    pub(super) forget_document: Script,
    pub(super) at_risk: Script,
    pub(super) take_out: Script,
    /// Works when memory is full.
    pub(super) postpone: Script,
    /// All of them, to be loaded.
    pub(super) texts: Vec<String>,
}

impl Scripts {
    /// Loads the scripts.
    ///
    /// Those after which something may be sent, and those that delete, are this gateway's own: a
    /// server that was started anew has them only since this gateway has looked at its data,
    /// whatever others have loaded.
    pub(super) fn new(gateway: &str) -> Self {
        const MARKS: &str = include_str!("lua/marks.lua");
        const SESSION: &str = include_str!("lua/session.lua");
        // What scripts have in common, as far as they need it.
        let [alone, counted] = ["", MARKS];
        let of_session = [MARKS, SESSION].concat();
        let of_call = [MARKS, SESSION, include_str!("lua/common.lua")].concat();
        let mut texts = Vec::new();
        let mut script = |flags: &str, common: &str, text: &str| {
            let text = format!("#!lua{flags}\n{common}{text}");
            let script = Script::new(&text);
            texts.push(text);
            script
        };
        let own = format!("\n-- of gateway {gateway}\n");
        let of_its_own = |text: &str| text.to_owned() + &own;
        // Works when memory is full.
        const ALWAYS: &str = " flags=allow-oom";
        const READS: &str = " flags=no-writes";
        let (replace, put) = (
            include_str!("lua/replace.lua"),
            include_str!("lua/put_document.lua"),
        );
        let document = of_its_own(put);
        Self {
            claim: script("", &of_call, &of_its_own(include_str!("lua/claim.lua"))),
            begin: script("", &of_call, &of_its_own(replace)),
            finish: script(ALWAYS, &of_call, replace),
            assert: script(ALWAYS, &of_call, include_str!("lua/assert.lua")),
            holders: script(READS, alone, include_str!("lua/holders.lua")),
            leave: script(ALWAYS, alone, include_str!("lua/leave.lua")),
            act: script(
                ALWAYS,
                &of_session,
                &of_its_own(include_str!("lua/act.lua")),
            ),
            look: script(READS, alone, include_str!("lua/look.lua")),
            forget: script(ALWAYS, counted, &of_its_own(include_str!("lua/forget.lua"))),
            forget_gateways: script(
                ALWAYS,
                counted,
                &of_its_own(include_str!("lua/forget_gateways.lua")),
            ),
            come_back: script(ALWAYS, counted, include_str!("lua/come_back.lua")),
            arrived: script(ALWAYS, alone, include_str!("lua/arrived.lua")),
            pause: script(ALWAYS, counted, include_str!("lua/pause.lua")),
            mark: script(ALWAYS, alone, include_str!("lua/mark.lua")),
            swap: script(ALWAYS, alone, include_str!("lua/swap.lua")),
            barrier: script(ALWAYS, alone, include_str!("lua/barrier.lua")),
            at_risk: script(READS, alone, include_str!("lua/at_risk.lua")),
            take_out: script(ALWAYS, alone, include_str!("lua/take_out.lua")),
            postpone: script(ALWAYS, alone, include_str!("lua/postpone.lua")),
            create_document: script("", counted, &document),
            change_document: script(ALWAYS, counted, &document),
            make_again: script("", counted, put),
            put_back: script(ALWAYS, counted, put),
            forget_document: script(
                ALWAYS,
                counted,
                &of_its_own(include_str!("lua/forget_document.lua")),
            ),
            texts,
        }
    }
}

/// A script with its keys and arguments.
pub(super) struct Run<'a> {
    pub(super) script: &'a Script,
    keys: Vec<Vec<u8>>,
    arguments: Vec<Vec<u8>>,
}

impl<'a> Run<'a> {
    pub(super) fn new(script: &'a Script) -> Self {
        Self {
            script,
            keys: Vec::new(),
            arguments: Vec::new(),
        }
    }

    pub(super) fn key(&mut self, key: impl ToRedisArgs) -> &mut Self {
        key.write_redis_args(&mut self.keys);
        self
    }

    pub(super) fn arg(&mut self, argument: impl ToRedisArgs) -> &mut Self {
        argument.write_redis_args(&mut self.arguments);
        self
    }

    pub(super) fn command(&self) -> Cmd {
        let called = (self.script.get_hash(), self.keys.len());
        command("EVALSHA", (called, &self.keys, &self.arguments))
    }
}

/// A command with its arguments.
pub(super) fn command(name: &str, arguments: impl ToRedisArgs) -> Cmd {
    let mut command = redis::cmd(name);
    command.arg(arguments);
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_runs_before_a_look_loads_nothing_that_waits_for_one() {
        let [one, other] = ["one", "other"].map(Scripts::new);
        let hashes = |scripts: &[&Script]| -> Vec<String> {
            let hashes = scripts.iter().map(|script| script.get_hash().to_owned());
            hashes.collect()
        };
        let waits = |all: &Scripts| {
            hashes(&[
                &all.claim,
                &all.begin,
                &all.act,
                &all.create_document,
                &all.change_document,
                &all.forget_document,
            ])
        };
        let does_not = |all: &Scripts| hashes(&[&all.make_again, &all.put_back, &all.finish]);
        assert_eq!(does_not(&one), does_not(&other), "loaded by any gateway");
        for (mine, anothers) in waits(&one).iter().zip(waits(&other)) {
            assert_ne!(mine, &anothers);
            assert!(!does_not(&one).contains(mine));
        }
    }
}
