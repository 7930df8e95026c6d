//! Reloading the configuration of a running gateway.
//!
//! Tools, proxies and tokens are swapped as a whole, and so is what reconciliations do about anomalies. Other changes are
//! logged: they need a restart.

use std::sync::Arc;

use crate::config::{Config, Log, Written, retention_mistakes};
use crate::core::caller::Caller;
use crate::core::reconcile::anomaly::Act;
use crate::gateway::Gateway;
use crate::gateway::reconcile::Reconciliation;
use crate::http::Tokens;
use crate::serve::Tls;

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
/// Settings of a reconciliation that a reload may change, if nothing else of it has changed.
const RELOADED_OF_RECONCILIATION: [&str; 2] = ["on", "show"];

/// Puts another configuration into a running gateway.
pub struct Reloader {
    pub(super) gateway: Arc<Gateway>,
    pub(super) tokens: Tokens,
    pub(super) tls: Option<Tls>,
    /// The configuration that the process was started with.
    pub(super) written: Written,
}

impl Reloader {
    /// Takes over tools, tokens and certificate of a configuration.
    ///
    /// If it has mistakes, each is logged and nothing changes. Running calls go on with what they began with. Answers with
    /// the log settings that hold now.
    pub async fn reload(&self, config: Result<Config, Vec<String>>) -> Option<Log> {
        let taken_over = match config {
            Ok(config) => self.take_over(config).await,
            Err(mistakes) => Err(mistakes),
        };
        let metrics = &self.gateway.base.metrics;
        match &taken_over {
            Ok(_) => metrics.reloaded(self.gateway.base.wall_time().as_second()),
            Err(mistakes) => {
                metrics.reload_failed();
                for mistake in mistakes {
                    tracing::error!("the configuration was not reloaded: {mistake}");
                }
            }
        }
        taken_over.ok()
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
        let reconciliations = self.reloaded(&config.reconciliations, &changed);
        let mut restart = changed;
        restart.retain(|key| {
            let mut taken_over = reconciliations.iter();
            let is_taken_over = taken_over.any(|of| setting_of(key, &of.name).is_some());
            !is_reloaded(key, &RELOADED) && !is_taken_over
        });
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
        let adopted = self.gateway.recipes.adopt_recipes(&config.tools).await;
        adopted.map_err(|error| vec![error.to_string()])?;
        let (tools, tokens) = (config.tools.len(), config.tokens.len());
        // The tools first: they may still be refused, and then nothing has changed.
        self.gateway
            .set_tools(config.tools, config.upstreams)
            .map_err(|error| {
                vec![format!(
                    "the HTTP client for the tools cannot be made: {error}"
                )]
            })?;
        self.gateway.reconciler.take_over(&reconciliations);
        let tenants = Caller::tenants(&config.tokens);
        self.gateway.base.set_tenants(tenants);
        self.tokens.set(config.tokens);
        self.gateway.base.tell_listeners();
        if let (Some(tls), Some(new)) = (&self.tls, &config.server.tls) {
            tls.set(new);
        }
        tracing::info!(tools, tokens, "the configuration was read again");
        Ok(config.log)
    }

    /// Reconciliations of which nothing has changed but what is taken over.
    fn reloaded<'a>(&self, all: &'a [Reconciliation], changed: &[&str]) -> Vec<&'a Reconciliation> {
        let needs_webhook = |of: &Reconciliation| of.on.values().any(|on| *on == Act::Webhook);
        let keeps_rest = |of: &&Reconciliation| {
            let mut rest = changed.iter().filter_map(|key| setting_of(key, &of.name));
            rest.all(|rest| is_reloaded(rest, &RELOADED_OF_RECONCILIATION))
        };
        let has_webhook = self.gateway.anomalies.has_webhook();
        all.iter()
            .filter(keeps_rest)
            .filter(|of| has_webhook || !needs_webhook(of))
            .collect()
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

/// The setting of a reconciliation without the names of its section.
fn setting_of<'a>(key: &'a str, reconciliation: &str) -> Option<&'a str> {
    let rest = key.strip_prefix("reconciliations.")?;
    rest.strip_prefix(reconciliation)?.strip_prefix('.')
}

fn is_reloaded(key: &str, reloaded: &[&str]) -> bool {
    reloaded.iter().any(|reloaded| {
        key.strip_prefix(reloaded)
            .is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
    })
}
