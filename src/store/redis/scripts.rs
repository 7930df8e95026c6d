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
        Self {
            claim: script("", &(include_str!("lua/claim.lua").to_owned() + &own)),
            begin: script("", &(include_str!("lua/replace.lua").to_owned() + &own)),
            finish: script(" flags=allow-oom", include_str!("lua/replace.lua")),
            assert: script(" flags=allow-oom", include_str!("lua/assert.lua")),
            holders: script(" flags=no-writes", include_str!("lua/holders.lua")),
            enter: script("", &(include_str!("lua/enter.lua").to_owned() + &own)),
            leave: script(" flags=allow-oom", include_str!("lua/leave.lua")),
            act: script(
                " flags=allow-oom",
                &(include_str!("lua/act.lua").to_owned() + &own),
            ),
            look: script(" flags=no-writes", include_str!("lua/look.lua")),
            forget: script(
                " flags=allow-oom",
                &(include_str!("lua/forget.lua").to_owned() + &own),
            ),
            forget_gateways: script(
                " flags=allow-oom",
                &(include_str!("lua/forget_gateways.lua").to_owned() + &own),
            ),
            arrived: script(" flags=allow-oom", include_str!("lua/arrived.lua")),
            pause: script(" flags=allow-oom", include_str!("lua/pause.lua")),
            swap: script(" flags=allow-oom", include_str!("lua/swap.lua")),
            create_document: script(
                "",
                &(include_str!("lua/put_document.lua").to_owned() + &own),
            ),
            change_document: script(
                " flags=allow-oom",
                &(include_str!("lua/put_document.lua").to_owned() + &own),
            ),
            forget_document: script(
                " flags=allow-oom",
                &(include_str!("lua/forget_document.lua").to_owned() + &own),
            ),
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
        let mut command = redis::cmd("EVALSHA");
        command
            .arg(self.script.get_hash())
            .arg(self.keys.len())
            .arg(&self.keys)
            .arg(&self.arguments);
        command
    }
}
