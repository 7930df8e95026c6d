//! The verdicts of a trial from the tool's answers. `oncegate verify-tool` sends the requests.
//!
//! The rule is that of `outcome`: nothing is proved or refuted without positive evidence.

mod effects; // how many effects some answers show
pub mod lines; // which lines of configuration a trial justifies
mod seen; // answers, steps and verdicts

use std::fmt;
use std::time::Duration;

use jiff::SignedDuration;
use serde::Serialize;
use serde_json::{Value, json};

use self::effects::Effects;
use self::seen::{Judgement, not_shown, proved, refuted};
pub use self::seen::{Naming, Seen, Step, Verdict};
use crate::compensation::Template;
use crate::record::{CallId, Content, Unread};
use crate::unknown;

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

/// Two requests at once under a key of their own. A third answer is that of a later repetition.
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
        let mut judged = vec![
            (Claim::OnceInSequence, repeated(&self.again)),
            (Claim::OnceAtOnce, self.at_once(&effects)),
            (Claim::OnceLater, self.later(repeated(&self.later))),
            (Claim::OtherArgumentsRefused, self.other(&effects)),
        ];
        if let Some(Probed { unused, used }) = &self.probed {
            judged.push((Claim::ProbeOfUnusedKey, of_unused(unused)));
            judged.push((Claim::ProbeOfUsedKey, self.of_used(&effects, used)));
        }
        judged.extend(self.undone.iter().map(|undone| {
            let judgement = undone.as_ref().map(Undone::judge);
            let judgement = judgement.unwrap_or_else(|why| not_shown(why.as_str()));
            (Claim::UndoneTwice, judgement)
        }));
        let finding = |(claim, (verdict, why))| Finding {
            claim,
            verdict,
            why,
        };
        judged.into_iter().map(finding).collect()
    }

    /// The effects with known ids, each once.
    pub fn known_effects(&self) -> Vec<String> {
        let mut effects = self.effects();
        let other = self.other.iter().map(|other| &other.under_used_key);
        effects.of_keys.extend([&self.again, &self.later]);
        effects.of_keys.extend(other);
        effects.known()
    }

    /// Whether the first effect was undone, and whether that of another key was.
    pub fn undone_effects(&self) -> (bool, bool) {
        let Some(Ok(undone)) = &self.undone else {
            return (false, false);
        };
        let other = undone.other.as_ref();
        (
            undone.first.is_executed(),
            other.is_some_and(Step::is_executed),
        )
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

    fn at_once(&self, effects: &Effects<'_>) -> Judgement {
        let judged = self.rounds.iter().enumerate().map(|(index, round)| {
            let (verdict, why) = effects.of_round(&self.first, &round.step);
            (verdict, format!("round {}: {why}", index + 1))
        });
        let together = self.rounds.iter().filter(|at| at.is_together).count();
        let rounds = self.rounds.len();
        // The first of the worst rounds decides.
        match judged.rev().max_by_key(|(verdict, _)| *verdict) {
            Some((Verdict::Proved, _)) if together == 0 => not_shown(
                "in no round were both requests under way at once: one was answered before the other had left",
            ),
            Some((Verdict::Proved, why)) => proved(format!(
                "both requests were under way at once in {together} of {rounds} rounds; {why}"
            )),
            Some(other) => other,
            None => not_shown("there was no round"),
        }
    }

    fn later(&self, (verdict, why): Judgement) -> Judgement {
        let after = friendly(self.after);
        let why = match verdict {
            Verdict::Proved => format!(
                "for at least {after}, and the tool's documentation must say for how long: {why}"
            ),
            Verdict::NotShown | Verdict::Refuted => format!("after {after} {why}"),
        };
        (verdict, why)
    }

    fn other(&self, effects: &Effects<'_>) -> Judgement {
        let Some(other) = &self.other else {
            return not_shown("there are no other arguments: name a file with --other-args");
        };
        let Some(seen) = other.under_used_key.seen.last() else {
            return not_shown("nothing was sent");
        };
        if seen.is_executed() {
            let (verdict, _) = effects.of_repetition(&self.first, &other.under_used_key);
            return refuted(match verdict {
                Verdict::Proved => {
                    "they were answered with the first result, as if they were the same"
                }
                Verdict::Refuted => {
                    "they were executed: the key alone does not say what is the same"
                }
                Verdict::NotShown => {
                    "they were not refused; whether they were executed is not shown"
                }
            });
        }
        if !seen.is_rejected() {
            return not_shown(seen.why.as_str());
        }
        if other.under_used_key.has_changed_the_count() {
            return refuted(format!("the count has changed although {}", seen.why));
        }
        let new = other.under_new_key.iter().flat_map(|step| &step.seen);
        match new.last() {
            Some(new) if new.is_executed() => proved(format!(
                "{}, and under a new key they were executed",
                seen.why
            )),
            _ => not_shown(format!(
                "{}, but under a new key they were not executed either: it may not be for the key",
                seen.why
            )),
        }
    }

    fn of_used(&self, effects: &Effects<'_>, found: &unknown::Finding) -> Judgement {
        let found = match found {
            unknown::Finding::Found(Content::Stored(json)) => json,
            unknown::Finding::Found(Content::Unavailable(Unread { why, .. })) => {
                return not_shown(format!("it says found, and its body cannot be read: {why}"));
            }
            unknown::Finding::NotFound => {
                return refuted(
                    "it says not found of a key that was executed: its answer may never be taken as final",
                );
            }
            unknown::Finding::Unclear(why) => return not_shown(why.as_str()),
        };
        // A tool that does not deduplicate has several effects of this key, and may name any of them.
        let steps = [&self.first, &self.again, &self.later];
        let of_key: Vec<Value> = steps.into_iter().flat_map(Step::results).collect();
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
        match ids.any(|id| id == found) {
            true => proved(format!(
                "it says found, and has {shown} at {place} as the tool's answer has"
            )),
            false => refuted(format!(
                "it says found, but has another effect, {shown}, at {place}"
            )),
        }
    }

    /// Judges the body of the probe for a used key, where no id is known.
    ///
    /// It has to be the result of this key, and of no other.
    fn body_of_used(&self, of_key: &[Value], found: &Value) -> Judgement {
        let differences = |other: &Value| self.naming.differences(found, other);
        let of_key: Vec<Vec<String>> = of_key.iter().map(differences).collect();
        if let Some(places) = of_key.first()
            && of_key.iter().all(|places| !places.is_empty())
        {
            let places = effects::listed(places);
            return not_shown(format!(
                "it says found, and differs from the tool's answer at {places}; --id names where the effect's id stands"
            ));
        }
        let others = self.rounds.iter().flat_map(|round| round.step.results());
        let mut others = others.peekable();
        if others.peek().is_some() && others.all(|other| !differences(&other).is_empty()) {
            return proved(
                "it says found with the body of the tool's answer, which no other key got",
            );
        }
        not_shown("it says found with a body that other keys got, too")
    }
}

impl Undone {
    fn judge(&self) -> Judgement {
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
        if again.is_rejected() && !self.again.has_changed_the_count() {
            return proved(format!(
                "the second was refused, which is taken as not executed: {}",
                again.why
            ));
        }
        effects.of_repetition(&self.first, &self.again)
    }
}

/// The arguments of the compensation of a call of a trial.
///
/// # Errors
/// Which value is missing: then nothing must be sent.
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

fn of_unused(found: &unknown::Finding) -> Judgement {
    match found {
        unknown::Finding::NotFound => proved("it says not found"),
        unknown::Finding::Found(_) => refuted(
            "it says found of a key that was never sent: it would make every unknown call a success",
        ),
        unknown::Finding::Unclear(why) => not_shown(why.as_str()),
    }
}

/// A duration as a configuration writes it.
pub fn friendly(span: Duration) -> String {
    SignedDuration::try_from(span).map_or_else(|_| "ever".into(), |span| format!("{span:#}"))
}

#[cfg(test)]
mod tests;
