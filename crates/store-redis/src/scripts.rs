//! The scripts and their arguments.

use redis::{Arg, Cmd, RedisWrite as _, Script, ToRedisArgs};

/// One script per verb.
pub(super) struct Scripts {
    pub(super) claim: Script,
    /// A change after which a request may be sent.
    pub(super) begin: Script,
    /// A change after which nothing is sent.
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
    pub(super) set_epoch: Script,
    pub(super) swap: Script,
    pub(super) barrier: Script,
    pub(super) create_document: Script,
    pub(super) change_document: Script,
    /// Puts the first version of a document back, which triggers no sending.
    ///
    /// Not this gateway's own: that a server has it does not say that its data was inspected.
    pub(super) make_again: Script,
    /// The same for a later version.
    pub(super) put_back: Script,
    pub(super) forget_document: Script,
    pub(super) at_risk: Script,
    pub(super) take_out: Script,
    pub(super) postpone: Script,
    /// The texts of all scripts, for `SCRIPT LOAD`.
    pub(super) texts: Vec<String>,
}

impl Scripts {
    /// Builds the scripts of a gateway.
    ///
    /// The scripts after which a request may be sent, and most of those that delete, are this gateway's own. A
    /// restarted server lacks them until this gateway has inspected its data, whatever other gateways have loaded.
    pub(super) fn new(gateway: &str) -> Self {
        // Flags: some scripts need memory to be free, others work when memory is full.
        const NEEDS_SPACE: &str = "";
        const ALWAYS: &str = " flags=allow-oom";
        const READS: &str = " flags=no-writes";
        // Functions that several scripts share.
        const COUNTERS: &str = include_str!("lua/marks.lua");
        let of_session = &[COUNTERS, include_str!("lua/session.lua")].concat();
        let of_call = &[of_session, include_str!("lua/common.lua")].concat();
        let (alone, shared) = ("", "");
        let own = &format!("\n-- of gateway {gateway}\n");
        let mut texts = Vec::new();
        let mut script = |flags: &str, functions: &str, text: &str, owner: &str| {
            let text = format!("#!lua{flags}\n{functions}{text}{owner}");
            let script = Script::new(&text);
            texts.push(text);
            script
        };
        let replace = include_str!("lua/replace.lua");
        let put = include_str!("lua/put_document.lua");
        let forget_gateways = include_str!("lua/loss/forget_gateways.lua");
        let forget_document = include_str!("lua/forget_document.lua");
        Self {
            claim: script(NEEDS_SPACE, of_call, include_str!("lua/claim.lua"), own),
            begin: script(NEEDS_SPACE, of_call, replace, own),
            finish: script(ALWAYS, of_call, replace, shared),
            assert: script(ALWAYS, of_call, include_str!("lua/assert.lua"), shared),
            holders: script(READS, COUNTERS, include_str!("lua/holders.lua"), shared),
            leave: script(ALWAYS, alone, include_str!("lua/leave.lua"), shared),
            act: script(ALWAYS, of_session, include_str!("lua/act.lua"), own),
            look: script(READS, alone, include_str!("lua/look.lua"), shared),
            forget: script(ALWAYS, COUNTERS, include_str!("lua/forget.lua"), own),
            forget_gateways: script(ALWAYS, COUNTERS, forget_gateways, own),
            come_back: script(
                ALWAYS,
                COUNTERS,
                include_str!("lua/loss/come_back.lua"),
                shared,
            ),
            arrived: script(ALWAYS, alone, include_str!("lua/arrived.lua"), shared),
            pause: script(ALWAYS, COUNTERS, include_str!("lua/pause.lua"), shared),
            set_epoch: script(ALWAYS, alone, include_str!("lua/loss/mark.lua"), shared),
            swap: script(ALWAYS, alone, include_str!("lua/loss/swap.lua"), shared),
            barrier: script(ALWAYS, alone, include_str!("lua/loss/barrier.lua"), shared),
            create_document: script(NEEDS_SPACE, COUNTERS, put, own),
            change_document: script(ALWAYS, COUNTERS, put, own),
            make_again: script(NEEDS_SPACE, COUNTERS, put, shared),
            put_back: script(ALWAYS, COUNTERS, put, shared),
            forget_document: script(ALWAYS, COUNTERS, forget_document, own),
            at_risk: script(READS, alone, include_str!("lua/at_risk.lua"), shared),
            take_out: script(ALWAYS, alone, include_str!("lua/take_out.lua"), shared),
            postpone: script(ALWAYS, alone, include_str!("lua/postpone.lua"), shared),
            texts,
        }
    }
}

/// Room for the keys and arguments of most scripts about a call, so that their buffers need not grow.
const KEYS: usize = 32;
const KEY_BYTES: usize = 40;
const ARGUMENTS: usize = 32;
const ARGUMENT_BYTES: usize = 64;
/// `EVALSHA`, the hash of the script, and the number of keys.
const HEAD: usize = 3;
const HEAD_BYTES: usize = 64;

/// A script with its keys and arguments.
pub(super) struct Run<'a> {
    pub(super) script: &'a Script,
    /// Two lists of texts, each in one buffer. Neither is sent: `command` makes one command of both.
    keys: Cmd,
    arguments: Cmd,
}

impl<'a> Run<'a> {
    pub(super) fn new(script: &'a Script) -> Self {
        Self {
            script,
            keys: Cmd::with_capacity(KEYS, KEYS * KEY_BYTES),
            arguments: Cmd::with_capacity(ARGUMENTS, ARGUMENTS * ARGUMENT_BYTES),
        }
    }

    pub(super) fn key(mut self, key: impl ToRedisArgs) -> Self {
        self.keys.arg(key);
        self
    }

    pub(super) fn arg(mut self, argument: impl ToRedisArgs) -> Self {
        self.arguments.arg(argument);
        self
    }

    /// The command that runs the script.
    pub(super) fn command(&self) -> Cmd {
        // A list has no cursors: only commands that search have them.
        let bytes_of = |part| match part {
            Arg::Simple(bytes) => bytes,
            _ => &[][..],
        };
        let keys = self.keys.args_iter().map(bytes_of);
        let parts = keys.clone().chain(self.arguments.args_iter().map(bytes_of));
        let length = parts.clone().map(<[u8]>::len).sum::<usize>();
        let mut command = Cmd::with_capacity(parts.clone().count() + HEAD, length + HEAD_BYTES);
        command.arg(("EVALSHA", self.script.get_hash(), keys.count()));
        parts.for_each(|bytes| command.write_arg(bytes));
        command
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
    fn a_gateways_own_scripts_are_not_loaded_by_others_nor_by_putting_back() {
        let [one, other] = ["one", "other"].map(Scripts::new);
        let hashes = |scripts: &[&Script]| -> Vec<String> {
            let hashes = scripts.iter().map(|script| script.get_hash().to_owned());
            hashes.collect()
        };
        let own = |all: &Scripts| {
            hashes(&[
                &all.claim,
                &all.begin,
                &all.act,
                &all.create_document,
                &all.change_document,
                &all.forget_document,
            ])
        };
        let shared = |all: &Scripts| hashes(&[&all.make_again, &all.put_back, &all.finish]);
        assert_eq!(shared(&one), shared(&other), "loaded by any gateway");
        for (own, of_other) in own(&one).iter().zip(own(&other)) {
            assert_ne!(own, &of_other);
            assert!(!shared(&one).contains(own));
        }
    }
}
