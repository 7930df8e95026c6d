//! The scripts, and what they are told.

use redis::{Cmd, Script, ToRedisArgs};

/// One script per verb.
pub(super) struct Scripts {
    pub(super) claim: Script,
    /// A change after which something is sent.
    pub(super) begin: Script,
    /// A change after which nothing is sent; works when memory is full.
    pub(super) finish: Script,
    pub(super) assert: Script,
    pub(super) holders: Script,
    pub(super) enter: Script,
    pub(super) leave: Script,
    pub(super) act: Script,
    pub(super) look: Script,
    pub(super) forget: Script,
    pub(super) forget_gateways: Script,
    pub(super) arrived: Script,
    pub(super) pause: Script,
    /// Works when memory is full.
    pub(super) swap: Script,
    pub(super) create_document: Script,
    /// Works when memory is full.
    pub(super) change_document: Script,
    pub(super) forget_document: Script,
    /// All of them, to be loaded.
    pub(super) texts: Vec<String>,
}

impl Scripts {
    /// The scripts after which something may be sent, and those that delete, are this gateway's own: a server that was started
    /// anew has them only since this gateway has looked at its data, whatever others have loaded.
    pub(super) fn new(gateway: &str) -> Self {
        const SESSION: &str = include_str!("lua/session.lua");
        const COMMON: &str = include_str!("lua/common.lua");
        let mut texts = Vec::new();
        let mut script = |flags: &str, text: &str| {
            let text = format!("#!lua{flags}\n{SESSION}{COMMON}{text}");
            let script = Script::new(&text);
            texts.push(text);
            script
        };
        let own = format!("\n-- of gateway {gateway}\n");
        let of_its_own = |text: &str| text.to_owned() + &own;
        // Works when memory is full.
        const ALWAYS: &str = " flags=allow-oom";
        const READS: &str = " flags=no-writes";
        let (replace, document) = (
            include_str!("lua/replace.lua"),
            of_its_own(include_str!("lua/put_document.lua")),
        );
        Self {
            claim: script("", &of_its_own(include_str!("lua/claim.lua"))),
            begin: script("", &of_its_own(replace)),
            finish: script(ALWAYS, replace),
            assert: script(ALWAYS, include_str!("lua/assert.lua")),
            holders: script(READS, include_str!("lua/holders.lua")),
            enter: script("", &of_its_own(include_str!("lua/enter.lua"))),
            leave: script(ALWAYS, include_str!("lua/leave.lua")),
            act: script(ALWAYS, &of_its_own(include_str!("lua/act.lua"))),
            look: script(READS, include_str!("lua/look.lua")),
            forget: script(ALWAYS, &of_its_own(include_str!("lua/forget.lua"))),
            forget_gateways: script(ALWAYS, &of_its_own(include_str!("lua/forget_gateways.lua"))),
            arrived: script(ALWAYS, include_str!("lua/arrived.lua")),
            pause: script(ALWAYS, include_str!("lua/pause.lua")),
            swap: script(ALWAYS, include_str!("lua/swap.lua")),
            create_document: script("", &document),
            change_document: script(ALWAYS, &document),
            forget_document: script(ALWAYS, &of_its_own(include_str!("lua/forget_document.lua"))),
            texts,
        }
    }
}

/// A script with what it is told.
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
