//! The rates of callers in this process. The rule is in `rules::rate`.
//!
//! Tokens of one name share their rates, so that replacing a token does not double them.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::time::Instant;

use crate::base::lock::lock;
use crate::error::{Error, ErrorKind};
use crate::metrics::Metrics;
use oncegate_rules::caller::Caller;
use oncegate_rules::rate::{Rate, Spent};

/// The two rates of a caller, as labels of the metric.
const REQUESTS: &str = "rate";
const NEW_KEYS: &str = "new_keys";

/// How much of their rates all callers have taken.
pub struct Throttle {
    metrics: Arc<Metrics>,
    start: Instant,
    /// By caller and rate: at most two for each token of the configuration.
    spent: Mutex<HashMap<(String, &'static str), Spent>>,
}

/// The caller's name and its bound on new keys.
#[derive(Debug, PartialEq, Eq, Hash)]
pub(crate) struct NewKeys {
    pub(crate) name: String,
    pub(crate) rate: Rate,
}

/// The right to claim a new key. Dropped unused, it is given back.
pub(crate) struct NewKey<'a> {
    throttle: &'a Throttle,
    of: Arc<NewKeys>,
    is_used: bool,
}

impl Throttle {
    pub(crate) fn new(metrics: Arc<Metrics>) -> Self {
        Self {
            metrics,
            start: Instant::now(),
            spent: Mutex::default(),
        }
    }

    /// Counts a request of this caller.
    ///
    /// # Errors
    /// The request comes too early, and must not be read.
    pub fn admit_request(&self, caller: &Caller) -> Result<(), Error> {
        let Some(rate) = caller.timings.rate else {
            return Ok(());
        };
        let taken = self.take(&caller.name, REQUESTS, rate);
        taken.map_err(|retry_after| ErrorKind::TooFast { retry_after }.alone())
    }

    /// Takes the right to claim a new key. `None`: new keys are not bounded.
    ///
    /// # Errors
    /// The caller has claimed too many new keys.
    pub(crate) fn take_new_key(
        &self,
        of: Option<&Arc<NewKeys>>,
    ) -> Result<Option<NewKey<'_>>, ErrorKind> {
        let Some(of) = of else { return Ok(None) };
        let taken = self.take(&of.name, NEW_KEYS, of.rate);
        taken.map_err(|retry_after| ErrorKind::TooManyNewKeys { retry_after })?;
        Ok(Some(NewKey {
            throttle: self,
            of: of.clone(),
            is_used: false,
        }))
    }

    /// Takes one unit of a rate, or says how long to wait for it.
    fn take(&self, name: &str, what: &'static str, rate: Rate) -> Result<(), Duration> {
        let mut spent = lock(&self.spent);
        let spent = spent.entry((name.to_owned(), what)).or_default();
        rate.take(spent, self.start.elapsed()).inspect_err(|_| {
            let throttled = &self.metrics.throttled;
            throttled.with_label_values(&[name, what]).inc();
        })
    }
}

impl NewKey<'_> {
    /// The key is claimed, or may be: the right is not given back.
    pub(crate) fn used(this: &mut Option<Self>) {
        if let Some(mut new_key) = this.take() {
            new_key.is_used = true;
        }
    }
}

impl Drop for NewKey<'_> {
    fn drop(&mut self) {
        let of = (self.of.name.clone(), NEW_KEYS);
        if !self.is_used
            && let Some(spent) = lock(&self.throttle.spent).get_mut(&of)
        {
            self.of.rate.give_back(spent);
        }
    }
}

impl NewKeys {
    /// `None`: new keys are not bounded.
    pub(crate) fn of(caller: &Caller) -> Option<Arc<Self>> {
        let rate = caller.timings.new_keys?;
        let name = caller.name.clone();
        Some(Arc::new(Self { name, rate }))
    }
}
