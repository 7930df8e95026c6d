//! The verdicts of a trial from the tool's answers. `oncegate verify-tool` sends the requests.
//!
//! The rule is that of `outcome`: nothing is proved or refuted without positive evidence.

mod effects; // how many effects a few answers speak of
pub mod lines; // which lines of configuration that justifies
mod seen; // answers

use std::fmt;
use std::time::Duration;

use jiff::SignedDuration;
use serde::Serialize;
use serde_json::{Value, json};

use self::effects::Effects;
pub use self::seen::{Naming, Seen, Step, Verdict};
use super::compensation::Template;
use super::record::{CallId, Content};
use super::{replay, unknown};

/// A claim about a tool.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Claim {
    OnceInSequence,
    OnceAtOnce,
    OnceLater,
    OtherArgumentsRefused,
    ProbeOfUnusedKey,
    ProbeOfUsedKey,
    UndoneTwice,
}

impl fmt::Display for Claim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::OnceInSequence => "the same key twice, one after the other: one effect",
            Self::OnceAtOnce => "the same key twice at once: one effect",
            Self::OnceLater => "the same key again after a while: one effect",
            Self::OtherArgumentsRefused => "other arguments under a used key: refused",
            Self::ProbeOfUnusedKey => "the probe for a key that was never sent: not found",
            Self::ProbeOfUsedKey => "the probe for a key that was executed: found, with the effect",
            Self::UndoneTwice => "the compensation twice under one key: the second does no harm",
        })
    }
}

/// A claim, its verdict, and the reason in one sentence.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    pub claim: Claim,
    pub verdict: Verdict,
    pub why: String,
}

/// Two requests at once under a key of their own. A third answer is a later repetition's.
#[derive(Debug, Clone)]
pub struct Round {
    pub step: Step,
    /// Whether both were sent before one was answered.
    pub is_together: bool,
}

/// Requests with other arguments.
#[derive(Debug, Clone)]
pub struct Other {
    pub under_used_key: Step,
    /// Under a new key, if they were refused under the used one.
    pub under_new_key: Option<Step>,
}

/// The answers of the probe.
#[derive(Debug, Clone)]
pub struct Probed {
    pub unused: unknown::Finding,
    pub used: unknown::Finding,
}

/// The first call's effect was undone twice.
#[derive(Debug, Clone)]
pub struct Undone {
    pub naming: Naming,
    pub first: Step,
    pub again: Step,
    /// The effect of another key was undone.
    pub other: Option<Step>,
}

/// All observations of a trial.
#[derive(Debug, Clone)]
pub struct Trial {
    pub naming: Naming,
    pub first: Step,
    pub again: Step,
    pub rounds: Vec<Round>,
    pub later: Step,
    /// How long after the first answer that was.
    pub after: Duration,
    /// `None`: there are no other arguments.
    pub other: Option<Other>,
    /// `None`: the tool has no probe.
    pub probed: Option<Probed>,
    /// `None`: the tool has no compensation.
    pub undone: Option<Result<Undone, String>>,
}

impl Trial {
    /// The findings about each claim.
    pub fn findings(&self) -> Vec<Finding> {
        let effects = self.effects();
        let repeated = |step| effects.of_repetition(&self.first, step);
        let mut findings = vec![
            finding(Claim::OnceInSequence, repeated(&self.again)),
            finding(Claim::OnceAtOnce, self.at_once(&effects)),
            finding(Claim::OnceLater, self.later(repeated(&self.later))),
            finding(Claim::OtherArgumentsRefused, self.other(&effects)),
        ];
        if let Some(probed) = &self.probed {
            let (unused, used) = (of_unused(&probed.unused), self.of_used(&effects, probed));
            findings.push(finding(Claim::ProbeOfUnusedKey, unused));
            findings.push(finding(Claim::ProbeOfUsedKey, used));
        }
        match &self.undone {
            Some(Ok(undone)) => findings.push(finding(Claim::UndoneTwice, undone.verdict())),
            Some(Err(why)) => {
                findings.push(finding(Claim::UndoneTwice, not_shown(why.clone())));
            }
            None => {}
        }
        findings
    }

    /// The effects with known ids, each once.
    pub fn known_effects(&self) -> Vec<String> {
        let mut effects = self.effects();
        let other = self.other.iter().map(|other| &other.under_used_key);
        effects.of_keys.extend([&self.again, &self.later]);
        effects.of_keys.extend(other);
        effects.known()
    }

    /// Whether the first effect was undone.
    pub fn is_undone(&self) -> bool {
        let Some(Ok(undone)) = &self.undone else {
            return false;
        };
        undone.first.seen.iter().any(Seen::is_executed)
    }

    /// Whether the effect of another key was undone.
    pub fn is_another_undone(&self) -> bool {
        let Some(Ok(undone)) = &self.undone else {
            return false;
        };
        let other = undone.other.iter().flat_map(|step| &step.seen);
        other.into_iter().any(Seen::is_executed)
    }

    /// Whether repetitions got the first result, and not only a refusal.
    pub fn gives_results_again(&self) -> bool {
        let last_is_executed = |step: &Step| step.seen.last().is_some_and(Seen::is_executed);
        last_is_executed(&self.again) && last_is_executed(&self.later)
    }

    fn effects(&self) -> Effects<'_> {
        let rounds = self.rounds.iter().map(|round| &round.step);
        let new = self.other.iter().filter_map(|at| at.under_new_key.as_ref());
        let of_keys = std::iter::once(&self.first).chain(rounds).chain(new);
        Effects {
            naming: &self.naming,
            of_keys: of_keys.collect(),
        }
    }

    fn at_once(&self, effects: &Effects<'_>) -> (Verdict, String) {
        let mut all = Vec::new();
        for (number, round) in (1..).zip(&self.rounds) {
            let (verdict, why) = effects.of_round(&self.first, &round.step);
            all.push((verdict, format!("round {number}: {why}")));
        }
        let together = self.rounds.iter().filter(|at| at.is_together).count();
        let rounds = self.rounds.len();
        // Of the worst round.
        match all.into_iter().rev().max_by_key(|(verdict, _)| *verdict) {
            Some((Verdict::Proved, _)) if together == 0 => not_shown(
                "in no round were both requests under way at once: one was answered before the other had left",
            ),
            Some((Verdict::Proved, why)) => {
                let all = format!(
                    "both requests were under way at once in {together} of {rounds} rounds; {why}"
                );
                (Verdict::Proved, all)
            }
            Some(other) => other,
            None => not_shown("there was no round"),
        }
    }

    fn later(&self, (verdict, why): (Verdict, String)) -> (Verdict, String) {
        let after = friendly(self.after);
        let why = match verdict {
            Verdict::Proved => format!(
                "for at least {after}, and the tool's documentation must say for how long: {why}"
            ),
            Verdict::NotShown | Verdict::Refuted => format!("after {after} {why}"),
        };
        (verdict, why)
    }

    fn other(&self, effects: &Effects<'_>) -> (Verdict, String) {
        let Some(other) = &self.other else {
            return not_shown("there are no other arguments: name a file with --other-args");
        };
        let Some(seen) = other.under_used_key.seen.last() else {
            return not_shown("nothing was sent");
        };
        if seen.is_executed() {
            let (verdict, _) = effects.of_repetition(&self.first, &other.under_used_key);
            let why = match verdict {
                Verdict::Proved => {
                    "they were answered with the first result, as if they were the same"
                }
                Verdict::Refuted => {
                    "they were executed: the key alone does not say what is the same"
                }
                Verdict::NotShown => {
                    "they were not refused; whether they were executed is not shown"
                }
            };
            return (Verdict::Refuted, why.into());
        }
        if !seen.is_rejected() {
            return not_shown(seen.why.clone());
        }
        if other
            .under_used_key
            .change
            .is_some_and(|change| change != 0)
        {
            let why = format!("the count has changed although {}", seen.why);
            return (Verdict::Refuted, why);
        }
        let new = other.under_new_key.iter().flat_map(|step| &step.seen);
        match new.last() {
            Some(new) if new.is_executed() => {
                let why = format!("{}, and under a new key they were executed", seen.why);
                (Verdict::Proved, why)
            }
            _ => not_shown(format!(
                "{}, but under a new key they were not executed either: it may not be for the key",
                seen.why
            )),
        }
    }

    fn of_used(&self, effects: &Effects<'_>, probed: &Probed) -> (Verdict, String) {
        let found = match &probed.used {
            unknown::Finding::Found(Content::Kept(json)) => json,
            unknown::Finding::Found(Content::Unavailable(why)) => {
                return not_shown(format!("it says found, and its body cannot be read: {why}"));
            }
            unknown::Finding::NotFound => {
                let why = "it says not found of a key that was executed: its answer may never be taken as final";
                return (Verdict::Refuted, why.into());
            }
            unknown::Finding::Unclear(why) => return not_shown(why.clone()),
        };
        // A tool that does not deduplicate has several effects of this key, and may name any.
        let steps = [&self.first, &self.again, &self.later];
        let of_key: Vec<Value> = steps
            .iter()
            .flat_map(|step| &step.seen)
            .filter_map(Seen::result)
            .collect();
        let Ok(found) = serde_json::from_slice::<Value>(found) else {
            return not_shown("it says found, and there is no JSON to compare");
        };
        let Some(id) = &self.naming.id else {
            return self.body_of_used(&of_key, &found);
        };
        let place = id.as_str();
        if let Err(why) = effects.tell_apart() {
            return not_shown(format!("it says found, but {why}"));
        }
        let Some(found) = found.pointer(place) else {
            return not_shown(format!("it says found, and has nothing at {place}"));
        };
        let shown = self.naming.show(id, found);
        let mut ids = of_key.iter().filter_map(|result| result.pointer(place));
        if ids.any(|id| id == found) {
            let why = format!("it says found, and has {shown} at {place} as the tool's answer has");
            return (Verdict::Proved, why);
        }
        let why = format!("it says found, but has another effect, {shown}, at {place}");
        (Verdict::Refuted, why)
    }

    /// The body of the probe for a used key, if no other answer equals it.
    ///
    /// Without an id the probe has to give the result of the key.
    fn body_of_used(&self, of_key: &[Value], found: &Value) -> (Verdict, String) {
        let differences = |other: &Value| {
            let (one, other) = (found.to_string(), other.to_string());
            replay::differences(one.as_bytes(), other.as_bytes(), &self.naming.ignore)
        };
        let of_key: Vec<Vec<String>> = of_key.iter().map(differences).collect();
        if let Some(places) = of_key.first()
            && of_key.iter().all(|places| !places.is_empty())
        {
            let places = effects::listed(places);
            return not_shown(format!(
                "it says found, and differs from the tool's answer at {places}; --id names where the effect's id stands"
            ));
        }
        let others = self.rounds.iter().flat_map(|round| &round.step.seen);
        let others: Vec<Value> = others.filter_map(Seen::result).collect();
        if !others.is_empty() && others.iter().all(|other| !differences(other).is_empty()) {
            let why = "it says found with the body of the tool's answer, which no other key got";
            return (Verdict::Proved, why.into());
        }
        not_shown("it says found with a body that other keys got, too")
    }
}

impl Undone {
    fn verdict(&self) -> (Verdict, String) {
        let (Some(first), Some(again)) = (self.first.seen.last(), self.again.seen.last()) else {
            return not_shown("nothing was sent");
        };
        if !first.is_executed() {
            return not_shown(format!("the first did not undo anything: {}", first.why));
        }
        let effects = Effects {
            naming: &self.naming,
            of_keys: std::iter::once(&self.first).chain(&self.other).collect(),
        };
        let counted = self.again.change.is_some_and(|change| change != 0);
        if again.is_rejected() && !counted {
            let why = format!(
                "the second was refused, which is taken as not executed: {}",
                again.why
            );
            return (Verdict::Proved, why);
        }
        effects.of_repetition(&self.first, &self.again)
    }
}

/// The arguments of the compensation of a call of a trial.
///
/// # Errors
/// What cannot be found: then nothing must be sent.
pub fn undoing(
    template: &Template,
    args: &[u8],
    seen: &Seen,
    key: &str,
    call_id: CallId,
) -> Result<Value, String> {
    let mut from =
        json!({ "call": { "call_id": call_id.to_string(), "key": key, "tool_key": key } });
    if let Ok(args) = serde_json::from_slice(args) {
        from["args"] = args;
    }
    if let Some(result) = seen.result() {
        from["result"] = result;
    }
    template.make(&from)
}

fn of_unused(found: &unknown::Finding) -> (Verdict, String) {
    match found {
        unknown::Finding::NotFound => (Verdict::Proved, "it says not found".into()),
        unknown::Finding::Found(_) => {
            let why = "it says found of a key that was never sent: it would make every unknown call a success";
            (Verdict::Refuted, why.into())
        }
        unknown::Finding::Unclear(why) => not_shown(why.clone()),
    }
}

/// A duration as a configuration writes it.
pub fn friendly(span: Duration) -> String {
    SignedDuration::try_from(span).map_or_else(|_| "ever".into(), |span| format!("{span:#}"))
}

fn finding(claim: Claim, (verdict, why): (Verdict, String)) -> Finding {
    Finding {
        claim,
        verdict,
        why,
    }
}

fn not_shown(why: impl Into<String>) -> (Verdict, String) {
    (Verdict::NotShown, why.into())
}

#[cfg(test)]
#[path = "trial_tests.rs"]
mod tests;
