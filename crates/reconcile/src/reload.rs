//! What a reload of the configuration may change: what is done about anomalies, and what they show.

use std::sync::Arc;

use super::rules::anomaly::Act;
use super::service::Reconciler;
use super::settings::Reconciliation;
use oncegate_settings::is_below;

/// Settings that a reload may change, if nothing else of the reconciliation has changed.
const RELOADED: [&str; 3] = ["max_anomalies", "on", "show"];

impl Reconciler {
    /// The reconciliations of a new configuration of which nothing else has changed. `changed`: the settings that differ.
    pub fn reloadable<'a>(
        &self,
        all: &'a [Reconciliation],
        changed: &[&str],
    ) -> Vec<&'a Reconciliation> {
        let needs_webhook = |of: &Reconciliation| of.on.values().any(|on| *on == Act::Webhook);
        let keeps_rest = |of: &&Reconciliation| {
            let mut rest = changed.iter().filter_map(|key| of.setting_in(key));
            rest.all(|rest| is_below(rest, &RELOADED))
        };
        let has_webhook = self.anomalies.has_webhook();
        all.iter()
            .filter(keeps_rest)
            .filter(|of| has_webhook || !needs_webhook(of))
            .collect()
    }

    /// Takes over what these say of anomalies. All other settings stay as they were at the start.
    pub fn take_over(&self, new: &[&Reconciliation]) {
        let mut all = (*self.anomalies.all.load_full()).clone();
        for new in new {
            if let Some(known) = all.get_mut(&new.name) {
                let known = Arc::make_mut(known);
                (known.on, known.show) = (new.on.clone(), new.show.clone());
                known.max_anomalies = new.max_anomalies;
            }
        }
        self.anomalies.all.store(Arc::new(all));
    }
}

impl Reconciliation {
    /// Whether a reload may change this setting, if nothing else of the reconciliation changes.
    pub fn may_take_over(&self, key: &str) -> bool {
        let setting = self.setting_in(key);
        setting.is_some_and(|setting| is_below(setting, &RELOADED))
    }

    /// The setting of this reconciliation that a key of the file names, without the names of its section.
    pub fn setting_in<'a>(&self, key: &'a str) -> Option<&'a str> {
        let rest = key.strip_prefix("reconciliations.")?;
        rest.strip_prefix(self.name.as_str())?.strip_prefix('.')
    }
}
