//! The circuit breakers of one tool: one per tenant, and one for all tenants.
//!
//! The calls of one tenant may fail because of their arguments. That opens the breaker of that tenant only, and a tenant
//! whose calls have not failed may try the tool. If a tool is not reached, the breaker opens for all.

use std::collections::HashMap;
use std::time::Duration;

use super::{Breaker, Policy, Trial};

/// Most tenants that are remembered for one tool. The tenant that was not seen for longest is forgotten first.
const MAX_TENANTS: usize = 1_000;

/// What an attempt shows of the tool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sign {
    /// The tool answered, and works.
    Healthy,
    /// The request was sent, and failed or was not answered.
    Failed,
    /// No connection was made, so the request itself is not the cause.
    Unreached,
}

/// The trials of one call at a half-open tool.
///
/// Pass it when the attempt ends, or give it back.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Trials {
    all: Option<Trial>,
    tenant: Option<Trial>,
}

/// The breakers of one tool, tenant by tenant.
#[derive(Debug, Clone, Default)]
pub struct ToolBreaker {
    /// Attempts of all tenants that did not reach the tool.
    unreached: Breaker,
    tenants: HashMap<String, Tenant>,
    /// Whether any tenant's breaker is open.
    ///
    /// Usually none is open, and `tenants` need not be searched.
    is_any_open: bool,
}

#[derive(Debug, Clone, Copy, Default)]
struct Tenant {
    breaker: Breaker,
    /// When an attempt for it last ended.
    seen_at: Duration,
}

impl ToolBreaker {
    /// Lets a call of a tenant through, or says how long to wait.
    ///
    /// # Errors
    /// The breaker is open, for all or for this tenant.
    pub fn admit(
        &mut self,
        policy: &Policy,
        tenant: &str,
        now: Duration,
    ) -> Result<Trials, Duration> {
        let all = self.unreached.admit(policy, now)?;
        let admitted = self
            .tenants
            .get_mut(tenant)
            .map(|seen| seen.breaker.admit(policy, now));
        match admitted.transpose() {
            Ok(tenant) => Ok(Trials {
                all,
                tenant: tenant.flatten(),
            }),
            Err(wait) => {
                if let Some(trial) = all {
                    self.unreached.give_back(trial, now);
                }
                Err(wait)
            }
        }
    }

    /// An operator says that the tool works again: the next call of each tenant is a trial, without further cooldown.
    pub fn end_cooldown(&mut self, now: Duration) {
        self.unreached.end_cooldown(now);
        for seen in self.tenants.values_mut() {
            seen.breaker.end_cooldown(now);
        }
    }

    /// Gives back trials that have not reached the tool: the next call becomes the trial.
    pub fn give_back(&mut self, tenant: &str, trials: Trials, now: Duration) {
        if let Some(trial) = trials.all {
            self.unreached.give_back(trial, now);
        }
        if let (Some(trial), Some(seen)) = (trials.tenant, self.tenants.get_mut(tenant)) {
            seen.breaker.give_back(trial, now);
        }
    }

    /// An attempt for a tenant ended.
    pub fn ended(
        &mut self,
        policy: &Policy,
        tenant: &str,
        sign: Sign,
        trials: Trials,
        now: Duration,
    ) {
        if sign == Sign::Unreached {
            self.unreached.ended(policy, false, trials.all, now);
            if let (Some(trial), Some(seen)) = (trials.tenant, self.tenants.get_mut(tenant)) {
                seen.breaker.ended(policy, false, Some(trial), now);
            }
            return;
        }
        self.unreached.ended(policy, true, trials.all, now);
        let is_healthy = sign == Sign::Healthy;
        let seen = self.remember(tenant);
        seen.breaker.ended(policy, is_healthy, trials.tenant, now);
        seen.seen_at = now;
        let may_be_open = self.is_any_open || !is_healthy;
        self.is_any_open =
            may_be_open && self.tenants.values().any(|seen| !seen.breaker.is_closed());
    }

    /// Whether all calls of a tenant are let through.
    pub fn is_closed_for(&self, tenant: &str) -> bool {
        let seen = self.tenants.get(tenant);
        self.unreached.is_closed() && seen.is_none_or(|seen| seen.breaker.is_closed())
    }

    /// Whether all calls of all tenants are let through.
    pub fn is_closed(&self) -> bool {
        self.unreached.is_closed() && !self.is_any_open
    }

    /// The state of a tenant. If too many are remembered, a new tenant replaces the one not seen for longest.
    fn remember(&mut self, tenant: &str) -> &mut Tenant {
        if self.tenants.len() >= MAX_TENANTS && !self.tenants.contains_key(tenant) {
            let quiet = self
                .tenants
                .iter()
                .min_by_key(|(_, seen)| (!seen.breaker.is_closed(), seen.seen_at));
            if let Some(name) = quiet.map(|(name, _)| name.clone()) {
                self.tenants.remove(&name);
            }
        }
        self.tenants.entry(tenant.to_owned()).or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{POLICY, at};
    use super::*;

    fn fail(breaker: &mut ToolBreaker, tenant: &str, times: u32, now: Duration) {
        for _ in 0..times {
            breaker.ended(&POLICY, tenant, Sign::Failed, Trials::default(), now);
        }
    }

    fn succeed(breaker: &mut ToolBreaker, tenant: &str, now: Duration) {
        breaker.ended(&POLICY, tenant, Sign::Healthy, Trials::default(), now);
    }

    #[test]
    fn the_failures_of_one_tenant_open_the_breaker_for_no_other() {
        let mut breaker = ToolBreaker::default();
        succeed(&mut breaker, "good", at(0));
        fail(&mut breaker, "bad", 3, at(1));
        assert_eq!(breaker.admit(&POLICY, "bad", at(2)), Err(at(4)));
        assert_eq!(breaker.admit(&POLICY, "good", at(2)), Ok(Trials::default()));
        assert_eq!(
            breaker.admit(&POLICY, "new", at(2)),
            Ok(Trials::default()),
            "its own calls have not failed"
        );
        assert!(!breaker.is_closed() && breaker.is_closed_for("good"));
    }

    #[test]
    fn a_new_tenant_may_try_a_tool_that_fails_for_all_others() {
        let mut breaker = ToolBreaker::default();
        for tenant in ["a", "b", "c"] {
            fail(&mut breaker, tenant, 3, at(0));
        }
        assert!(breaker.is_closed_for("new"));
        for _ in 0..POLICY.failures {
            assert_eq!(breaker.admit(&POLICY, "new", at(1)), Ok(Trials::default()));
            fail(&mut breaker, "new", 1, at(1));
        }
        assert_eq!(breaker.admit(&POLICY, "new", at(2)), Err(at(4)), "its own");
    }

    #[test]
    fn a_trial_that_succeeds_closes_the_breaker_of_its_tenant() {
        let mut breaker = ToolBreaker::default();
        fail(&mut breaker, "first", 3, at(0));
        fail(&mut breaker, "second", 3, at(0));
        let trials = breaker.admit(&POLICY, "second", at(5)).expect("one tries");
        assert!(trials.tenant.is_some());
        let next = breaker.admit(&POLICY, "second", at(5));
        assert!(next.is_err(), "one at a time");
        breaker.ended(&POLICY, "second", Sign::Healthy, trials, at(6));
        let next = breaker.admit(&POLICY, "second", at(6));
        assert_eq!(next, Ok(Trials::default()));
        assert!(!breaker.is_closed_for("first"), "and of no other");
    }

    #[test]
    fn a_tool_that_is_not_reached_opens_the_breaker_for_all_tenants() {
        let mut breaker = ToolBreaker::default();
        succeed(&mut breaker, "good", at(0));
        for _ in 0..3 {
            breaker.ended(&POLICY, "other", Sign::Unreached, Trials::default(), at(1));
        }
        assert_eq!(breaker.admit(&POLICY, "good", at(2)), Err(at(4)));
        let trials = breaker
            .admit(&POLICY, "good", at(6))
            .expect("one call tries");
        assert!(breaker.admit(&POLICY, "other", at(6)).is_err());
        breaker.give_back("good", trials, at(6));
        let trials = breaker
            .admit(&POLICY, "other", at(6))
            .expect("the next one tries");
        breaker.ended(&POLICY, "other", Sign::Failed, trials, at(7));
        assert_eq!(
            breaker.admit(&POLICY, "good", at(7)),
            Ok(Trials::default()),
            "it was reached"
        );
    }

    #[test]
    fn a_denied_call_does_not_take_the_trial_of_all_tenants() {
        let mut breaker = ToolBreaker::default();
        succeed(&mut breaker, "good", at(0));
        fail(&mut breaker, "bad", 3, at(2));
        for _ in 0..3 {
            breaker.ended(&POLICY, "good", Sign::Unreached, Trials::default(), at(0));
        }
        assert!(breaker.admit(&POLICY, "bad", at(6)).is_err());
        assert!(
            breaker
                .admit(&POLICY, "good", at(6))
                .is_ok_and(|trials| trials.all.is_some())
        );
    }

    #[test]
    fn after_the_end_of_a_cooldown_one_call_is_the_trial() {
        let mut breaker = ToolBreaker::default();
        fail(&mut breaker, "bad", 3, at(0));
        for _ in 0..3 {
            breaker.ended(&POLICY, "other", Sign::Unreached, Trials::default(), at(1));
        }
        assert!(breaker.admit(&POLICY, "bad", at(2)).is_err());
        breaker.end_cooldown(at(2));
        assert!(!breaker.is_closed(), "that it works is not known yet");
        let trials = breaker.admit(&POLICY, "bad", at(2)).expect("one tries");
        assert!(breaker.admit(&POLICY, "bad", at(2)).is_err());
        breaker.ended(&POLICY, "bad", Sign::Healthy, trials, at(3));
        assert!(breaker.is_closed());
        breaker.end_cooldown(at(4));
        assert!(breaker.is_closed(), "a closed one stays so");
    }

    #[test]
    fn tenants_are_forgotten_when_there_are_too_many() {
        let mut breaker = ToolBreaker::default();
        fail(&mut breaker, "failing", 3, at(0));
        for n in 0..2 * MAX_TENANTS {
            succeed(&mut breaker, &n.to_string(), at(1));
        }
        assert_eq!(breaker.tenants.len(), MAX_TENANTS);
        assert!(
            breaker.admit(&POLICY, "failing", at(2)).is_err(),
            "one that is open is kept"
        );
    }

    #[test]
    fn a_success_of_one_tenant_leaves_the_breaker_of_another_open() {
        let mut breaker = ToolBreaker::default();
        fail(&mut breaker, "a", 3, at(1));
        assert!(!breaker.is_closed(), "of a");
        succeed(&mut breaker, "b", at(2));
        assert!(!breaker.is_closed(), "b's success says nothing of a");
        assert!(breaker.is_closed_for("b"));
        assert!(!breaker.is_closed_for("a"));
    }

    #[test]
    fn the_quietest_tenant_is_forgotten_first() {
        let mut breaker = ToolBreaker::default();
        for n in 0..MAX_TENANTS {
            succeed(&mut breaker, &n.to_string(), at(1_000 + n as u64));
        }
        fail(&mut breaker, "0", 1, at(5_000));
        succeed(&mut breaker, "one more", at(5_001));
        assert!(breaker.tenants.contains_key("0") && !breaker.tenants.contains_key("1"));
    }
}
