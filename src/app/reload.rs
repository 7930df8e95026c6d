//! Reloading the configuration of a running gateway.
//!
//! Tools, proxies and tokens are swapped as a whole, and so is what reconciliations do about anomalies. Other changes are
//! logged: they need a restart.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use super::WingServices;
use crate::config::{Config, Log, Written, is_below, retention_mistakes};
use crate::core::caller::{Caller, Token};
use crate::gateway::Gateway;
use crate::http::Tokens;
use crate::serve::Tls;
use crate::store::lock::lock;

/// Settings that a reload may change, with everything below them.
const RELOADED: [&str; 7] = [
    "auth",
    "log.level",
    "outcomes",
    "proxies",
    "server.tls",
    "tools",
    "upstreams",
];
/// Most characters about one reload in the audit.
const MAX_AUDITED: usize = 4_000;

/// Puts another configuration into a running gateway.
pub struct Reloader {
    pub(super) gateway: Arc<Gateway>,
    pub(super) wings: Arc<WingServices>,
    pub(super) tokens: Tokens,
    pub(super) tls: Option<Tls>,
    /// The configuration that the process was started with.
    pub(super) written: Written,
    /// The configuration of the last accepted reload, or of the start.
    pub(super) in_force: Mutex<Written>,
}

impl Reloader {
    /// Takes over tools, tokens and certificate of a configuration.
    ///
    /// If it has mistakes, each is logged and nothing changes. Running calls go on with what they began with. Answers with
    /// the log settings that hold now.
    pub async fn reload(&self, config: Result<Config, Vec<String>>) -> Option<Log> {
        let taken_over = match config {
            Ok(config) => {
                let written = config.written.clone();
                self.take_over(config).await.map(|log| (log, written))
            }
            Err(mistakes) => Err(mistakes),
        };
        let metrics = &self.gateway.base.metrics;
        match taken_over {
            Ok((log, written)) => {
                let hash = written.number();
                metrics.reloaded(self.gateway.base.wall_time().as_second(), hash);
                let before = std::mem::replace(&mut *lock(&self.in_force), written.clone());
                let changed = before.differing(&written).join(", ");
                let changed = if changed.is_empty() {
                    "nothing"
                } else {
                    &changed
                };
                let digest = hex::encode(written.digest());
                self.record(&format!("changed: {changed}; configuration {digest}"), true)
                    .await;
                Some(log)
            }
            Err(mistakes) => {
                metrics.reload_failed();
                for mistake in &mistakes {
                    tracing::error!("the configuration was not reloaded: {mistake}");
                }
                self.record(&mistakes.join("\n"), false).await;
                None
            }
        }
    }

    /// Keeps a reload in the audit: the changed settings without their values, which may be secrets, or the mistakes.
    async fn record(&self, what: &str, is_done: bool) {
        let what: String = what.chars().take(MAX_AUDITED).collect();
        self.gateway.record_reload(&what, is_done).await;
    }

    async fn take_over(&self, config: Config) -> Result<Log, Vec<String>> {
        let mistakes = self.misfits(&config);
        if !mistakes.is_empty() {
            return Err(mistakes);
        }
        for warning in config.warnings_at(self.gateway.base.wall_time()) {
            tracing::warn!("{warning}");
        }
        let changed = self.written.differing(&config.written);
        let of_wings = self.wings.reloadable(&config.wings, &changed);
        let mut restart = changed;
        restart.retain(|key| !is_below(key, &RELOADED) && !of_wings.takes_over(key));
        // A reload can replace a certificate, but not turn TLS on or off.
        if config.server.tls.is_some() != self.tls.is_some() {
            restart.push("server.tls");
        }
        if !restart.is_empty() {
            tracing::warn!(
                keys = restart.join(", "),
                "these changes take a restart and were not applied"
            );
        }
        // Before anything is claimed by them; what is refused here has changed nothing.
        let adopted = self
            .gateway
            .key_schemes
            .adopt_key_schemes(&config.tools)
            .await;
        adopted.map_err(|error| vec![error.to_string()])?;
        let (tools, tokens) = (config.tools.len(), config.tokens.len());
        let tenants = tenants(&config);
        // The tools first: they may still be refused, and then nothing has changed.
        self.wings
            .set_tools(&self.gateway, config.tools, config.upstreams)
            .map_err(|error| {
                vec![format!(
                    "the HTTP client for the tools cannot be made: {error}"
                )]
            })?;
        self.wings.take_over(&of_wings);
        self.gateway.base.set_tenants(tenants);
        note_expiry(&self.gateway, &config.tokens, config.server.tls.as_ref());
        self.tokens.set(config.tokens);
        self.gateway.base.tell_listeners();
        if let (Some(tls), Some(new)) = (&self.tls, &config.server.tls) {
            tls.set(new);
        }
        tracing::info!(tools, tokens, "the configuration was read again");
        Ok(config.log)
    }

    /// Settings that fit together in the file but do not fit the running gateway.
    fn misfits(&self, config: &Config) -> Vec<String> {
        // `sagas.retention` stays as it was until a restart.
        let shorter = retention_mistakes(self.gateway.base.saga_policy(), &config.tools);
        let shorter = shorter.iter();
        let shorter = shorter.map(|why| format!("{why}; sagas.retention takes a restart"));
        let mut mistakes: Vec<String> = shorter.collect();
        // A file that is half written looks like this, too.
        if config.tokens.is_empty() && !self.tokens.now().is_empty() {
            mistakes.push(
                "without [[auth.tokens]] callers are not authenticated; that takes a restart"
                    .into(),
            );
        }
        mistakes
    }
}

/// The tenants of tokens, and of callers of proxies that bring no token.
pub(super) fn tenants(config: &Config) -> BTreeSet<String> {
    let policies = config.tools.iter().filter_map(|at| at.tool.proxy());
    let tokenless = policies.filter_map(|policy| Some(policy.tokenless.as_ref()?.tenant.clone()));
    let mut tenants = Caller::tenants(&config.tokens);
    tenants.extend(tokenless);
    tenants
}

/// Whether a change of this setting takes a restart, as far as the setting's name says it.
pub fn takes_restart(setting: &str, config: &Config) -> bool {
    !is_below(setting, &RELOADED) && !config.wings.may_take_over(setting)
}

/// Notes when the tokens and the certificate in use expire.
pub(super) fn note_expiry(gateway: &Gateway, tokens: &[Token], tls: Option<&Tls>) {
    let expiring = tokens.iter().filter_map(|token| {
        let at = token.expires?.as_second();
        Some((token.caller.name.as_str(), at))
    });
    let certificate = tls.and_then(Tls::expires_at);
    gateway.base.metrics.expire(expiring, certificate);
}
