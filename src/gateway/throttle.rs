//! The rates of callers in this process. The rule is in `core::rate`.
//!
//! Tokens of one name share their rates, so that replacing one does not double them.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use super::error::{Error, ErrorKind};
use crate::core::caller::Caller;
use crate::core::rate::{Rate, Spent};
use crate::metrics::Metrics;

/// How much of their rates all callers have taken.
///
/// There are as many as the configuration names.
pub struct Throttle {
    metrics: Arc<Metrics>,
    start: Instant,
    callers: Mutex<HashMap<String, Taken>>,
}

/// How much of its rates one caller has taken.
#[derive(Default)]
struct Taken {
    requests: Spent,
    new_keys: Spent,
}

/// The caller's name and its bound on new keys.
#[derive(Debug, PartialEq, Eq, Hash)]
pub(super) struct NewKeys {
    pub(super) name: String,
    pub(super) rate: Rate,
}

/// A new key that may be claimed. Dropped unused, it is given back.
pub(super) struct NewKey<'a> {
    throttle: &'a Throttle,
    of: Arc<NewKeys>,
    is_used: bool,
}

impl Throttle {
    pub(super) fn new(metrics: Arc<Metrics>) -> Self {
        Self {
            metrics,
            start: Instant::now(),
            callers: Mutex::default(),
        }
    }

    fn take_request(&self, name: &str, rate: Rate) -> Result<(), Duration> {
        let mut callers = self.callers();
        rate.take(
            &mut callers.entry(name.to_owned()).or_default().requests,
            self.start.elapsed(),
        )
    }

    /// Takes the right to claim a new key, or says how long to wait for it.
    pub(super) fn take_new_key<'a>(
        &'a self,
        of: Option<&Arc<NewKeys>>,
        new_key: &mut Option<NewKey<'a>>,
    ) -> Result<(), Duration> {
        let Some(of) = of else { return Ok(()) };
        let mut callers = self.callers();
        let taken = callers.entry(of.name.clone()).or_default();
        let taken = of.rate.take(&mut taken.new_keys, self.start.elapsed());
        taken.inspect_err(|_| self.count(&of.name, "new_keys"))?;
        drop(callers);
        *new_key = Some(NewKey {
            throttle: self,
            of: of.clone(),
            is_used: false,
        });
        Ok(())
    }

    fn count(&self, name: &str, what: &str) {
        self.metrics
            .throttled
            .with_label_values(&[name, what])
            .inc();
    }

    /// Counts a request of this caller.
    ///
    /// # Errors
    /// It comes too early; nothing of it is to be looked at.
    pub fn admit_request(&self, caller: &Caller) -> Result<(), Error> {
        let Some(rate) = caller.pace.rate else {
            return Ok(());
        };
        self.take_request(&caller.name, rate)
            .map_err(|retry_after| {
                self.count(&caller.name, "rate");
                ErrorKind::TooFast { retry_after }.alone()
            })
    }

    fn callers(&self) -> MutexGuard<'_, HashMap<String, Taken>> {
        self.callers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl NewKey<'_> {
    /// The key is claimed, or may be: the right is not given back.
    pub(super) fn used(this: &mut Option<Self>) {
        if let Some(mut new_key) = this.take() {
            new_key.is_used = true;
        }
    }
}

impl Drop for NewKey<'_> {
    fn drop(&mut self) {
        if !self.is_used
            && let Some(taken) = self.throttle.callers().get_mut(&self.of.name)
        {
            self.of.rate.give_back(&mut taken.new_keys);
        }
    }
}

impl NewKeys {
    /// `None`: new keys are not bounded.
    pub(super) fn of(caller: &Caller) -> Option<Arc<Self>> {
        caller.pace.new_keys.map(|rate| {
            Arc::new(Self {
                name: caller.name.clone(),
                rate,
            })
        })
    }
}
