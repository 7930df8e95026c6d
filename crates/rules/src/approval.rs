//! Approval of the exact call: when a call needs it, what was asked, and what an approver has seen.
//!
//! Only values; `call` decides what they do to a call.

mod binding; // what an approval binds
pub mod notice; // what the webhook is told
mod proposal; // what is stored of an approval
mod when; // the conditions on arguments

use std::time::Duration;

use serde_json::Value;

pub use self::binding::{Built, Shown, bound, seen, shown};
pub use self::proposal::{Approval, Digest, MAX_ASKS, Proposal};
pub use self::when::When;
use crate::key::{self, Pointer};

/// The reason of a call beyond its tool's budget. Proposals are stored with it, so it stays as it is.
const OVER_BUDGET: &str = "the budget of the tool is used up";

/// What only the claim of a call finds, and an approver may be asked about instead of refusing the call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Found {
    /// An earlier call looks the same.
    Similar,
    /// The budget is used up.
    OverBudget,
}

/// A tool's rule about approval.
#[derive(Debug, Clone, PartialEq)]
pub struct Policy {
    /// Any of them asks.
    pub when: Vec<When>,
    /// How long there is to decide.
    pub expires: Duration,
    /// From the approval to the begin of the call.
    pub good_for: Duration,
    /// How many approvers have to approve.
    pub approvals: u8,
    /// The names of approvers' tokens; empty: all that may approve.
    pub from: Vec<String>,
    /// What a notice may contain of the arguments. No approval depends on it.
    pub show: Vec<Pointer>,
}

/// How many calls may wait for approval at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Of one tenant.
    pub max_open: u32,
    pub max_open_per_session: u32,
    /// When to ask again if there are too many.
    pub retry_after: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            max_open: 200,
            max_open_per_session: 5,
            retry_after: Duration::from_secs(60),
        }
    }
}

/// A request needs approval, by this rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ask {
    /// Why the call needs approval: one sentence for each condition that asks.
    pub why: Vec<String>,
    pub expires: Duration,
    pub good_for: Duration,
    pub needed: u8,
    pub from: Vec<String>,
    /// Whether it is asked about a call that looks like an earlier one.
    pub similar: bool,
    /// Whether it is asked about a call beyond its tool's budget.
    pub over_budget: bool,
}

impl Policy {
    /// Why these arguments need approval; `None`: no condition asks.
    pub fn ask(&self, args: &Value) -> Option<Ask> {
        let why: Vec<String> = self
            .when
            .iter()
            .filter_map(|when| when.asks(args))
            .collect();
        (!why.is_empty()).then(|| self.ask_for(why))
    }

    /// What is asked, for these reasons.
    pub fn ask_for(&self, why: Vec<String>) -> Ask {
        Ask {
            why,
            expires: self.expires,
            good_for: self.good_for,
            needed: self.approvals.max(1),
            from: self.from.clone(),
            similar: false,
            over_budget: false,
        }
    }

    /// Whether a call that looks like an earlier one is asked about.
    pub fn asks_about_similar(&self) -> bool {
        self.when.contains(&When::Similar)
    }

    /// Whether a call beyond its tool's budget is asked about.
    pub fn asks_over_budget(&self) -> bool {
        self.when.contains(&When::OverBudget)
    }

    /// What is asked about a call of which its claim has found this, besides what is `asked` already.
    ///
    /// `None`: nothing more, so the call is refused.
    pub fn ask_about(&self, found: Found, asked: Option<&Ask>) -> Option<Ask> {
        let mut ask = asked.cloned().unwrap_or_else(|| self.ask_for(Vec::new()));
        let (asks, is_asked, why) = match found {
            Found::Similar => {
                let why = "an earlier call looks the same";
                (self.asks_about_similar(), &mut ask.similar, why)
            }
            Found::OverBudget => (self.asks_over_budget(), &mut ask.over_budget, OVER_BUDGET),
        };
        if !asks || std::mem::replace(is_asked, true) {
            return None;
        }
        ask.why.push(why.to_owned());
        Some(ask)
    }

    /// What is asked of a call once more, if only its claim has shown that it needs approval; `None`: that is not asked about.
    pub fn ask_as_before(&self, earlier: &Proposal) -> Option<Ask> {
        let (similar, over_budget) = (self.asks_about_similar(), self.asks_over_budget());
        (similar || over_budget).then(|| Ask {
            similar,
            over_budget: over_budget && earlier.is_over_budget(),
            ..self.ask_for(earlier.why.clone())
        })
    }

    /// The digest of the rule. Approvals by another rule are void.
    pub fn digest(&self) -> Digest {
        let when: Vec<String> = self.when.iter().map(ToString::to_string).collect();
        let numbers = [
            self.expires.as_millis(),
            self.good_for.as_millis(),
            u128::from(self.approvals),
        ];
        let listed = |texts: &[String]| Value::from(texts.to_vec()).to_string();
        key::digest([
            "approval rule",
            &listed(&when),
            &numbers.map(|number| number.to_string()).join(","),
            &listed(&self.from),
        ])
    }
}

#[cfg(test)]
mod tests;
