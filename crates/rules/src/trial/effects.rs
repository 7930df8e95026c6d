//! How many effects the answers show, by the ids in them and by a count.

use serde_json::Value;

use super::seen::{Judgement, Naming, Seen, Step, Verdict, not_shown, proved, refuted};
use crate::key::Pointer;
use crate::outcome::Outcome;
use crate::redact::MASK;

/// The longest id that is shown, in characters.
const MAX_SHOWN: usize = 80;
/// Most places that a sentence names.
const MAX_PLACES: usize = 6;
/// From how many letters and digits on it is not a coincidence that an id repeats the request.
const LONG: usize = 8;
/// The same for a part of an id. A shorter part may be a time.
const LONG_PART: usize = 12;

impl Naming {
    /// An id as it may be printed.
    pub(super) fn show(&self, at: &Pointer, value: &Value) -> String {
        if self.hidden.iter().any(|hidden| hidden.overlaps(at)) {
            return MASK.to_owned();
        }
        value.to_string().chars().take(MAX_SHOWN).collect()
    }
}

/// The answers of a trial, and how to tell their effects apart.
pub(super) struct Effects<'a> {
    pub(super) naming: &'a Naming,
    /// The requests under each key, the first one's first.
    pub(super) of_keys: Vec<&'a Step>,
}

impl Effects<'_> {
    /// Whether a repetition had an effect of its own: that refutes the claim.
    pub(super) fn of_repetition(&self, first: &Step, again: &Step) -> Judgement {
        let answers: Vec<&Seen> = first.seen.iter().chain(&again.seen).collect();
        let counted = match (first.change, again.change) {
            (Some(0), Some(0)) => not_shown("the count did not change with the first request"),
            (Some(_), Some(0)) => self.unless_unheard(
                "the count changed with the first request and not with the repetition",
                again,
                1,
            ),
            (Some(_), Some(change)) => refuted(format!(
                "the repetition changed the count by {change} (if nothing else did)"
            )),
            _ => not_shown(""),
        };
        join(self.by_id(&answers), counted)
    }

    /// Whether two requests at once had one effect.
    pub(super) fn of_round(&self, first: &Step, round: &Step) -> Judgement {
        let answers: Vec<&Seen> = round.seen.iter().collect();
        let counted = match (first.change, round.change) {
            (Some(0), Some(_)) | (Some(_), Some(0)) => not_shown("the count did not change"),
            (Some(one), Some(change)) if one == change => {
                self.unless_unheard("the count changed as by one request", round, 2)
            }
            (Some(one), Some(change)) => refuted(format!(
                "the count changed by {change}, and by {one} with one request (if nothing else changed it)"
            )),
            _ => not_shown(""),
        };
        join(self.by_id(&answers), counted)
    }

    /// Proves by a count, if the tool has heard enough requests of a step.
    ///
    /// A request that did not arrive, or was refused for another reason than its key, has no
    /// effect, and so shows nothing.
    fn unless_unheard(&self, counted: &str, step: &Step, at_least: usize) -> Judgement {
        let others_are_executed = self.of_keys.iter().skip(1).any(|step| step.is_executed());
        let is_heard =
            |seen: &&Seen| seen.is_executed() || seen.is_rejected() && others_are_executed;
        if step.seen.iter().filter(is_heard).count() >= at_least {
            return proved(counted);
        }
        let unheard = step.seen.iter().find(|seen| !is_heard(seen));
        let why = unheard.map_or("nothing was answered", |seen| seen.why.as_str());
        not_shown(format!("the count did not change, but {why}"))
    }

    /// Whether the ids in these answers show one effect.
    fn by_id(&self, answers: &[&Seen]) -> Judgement {
        let Some(id) = &self.naming.id else {
            return not_shown(self.compare_bodies(answers));
        };
        let place = id.as_str();
        let (mut found, mut silent) = (Vec::<Value>::new(), None);
        for seen in answers {
            match id_in(seen, place) {
                Ok(value) => found.push(value),
                Err(why) => silent = Some(why),
            }
        }
        if let [one, others @ ..] = found.as_slice()
            && let Some(other) = others.iter().find(|other| *other != one)
        {
            let (one, other) = (self.naming.show(id, one), self.naming.show(id, other));
            return refuted(format!("the answers have {one} and {other} at {place}"));
        }
        // A request that may have been executed may have an effect that no answer shows.
        if let Some(seen) = answers.iter().find(|seen| seen.outcome == Outcome::Unknown) {
            return not_shown(seen.why.as_str());
        }
        if found.len() < 2 {
            let why = silent.unwrap_or_else(|| "there is nothing to compare".into());
            return not_shown(format!("there are no two ids to compare: {why}"));
        }
        if let Err(why) = self.tell_apart() {
            return not_shown(why);
        }
        let shown = self.naming.show(id, &found[0]);
        proved(format!(
            "the answers have {shown} at {place}, and no other key got that"
        ))
    }

    /// Whether different keys have different ids.
    ///
    /// # Errors
    /// They have not, or the answers do not show it.
    pub(super) fn tell_apart(&self) -> Result<(), String> {
        let Some(id) = &self.naming.id else {
            return Err("--id does not say where the effect's id stands".into());
        };
        let place = id.as_str();
        let mut ids = Vec::<Value>::new();
        let mut refused = None;
        for step in &self.of_keys {
            let mut seen = step.seen.iter();
            let Some((seen, value)) = seen.find_map(|seen| Some((seen, id_in(seen, place).ok()?)))
            else {
                refused = step.seen.first();
                continue;
            };
            if seen.sent.iter().any(|sent| repeats(&value, sent)) {
                return Err(format!(
                    "what stands at {place} was sent with the request, so it names no effect"
                ));
            }
            if ids.contains(&value) {
                return Err(format!(
                    "another key got the same at {place}: it names no effect, or the tool goes by the arguments alone; \
                     --fresh names an argument that is another one for each key"
                ));
            }
            ids.push(value);
        }
        if ids.len() > 1 {
            return Ok(());
        }
        let why = refused.map_or_else(
            || "no other key was sent".to_owned(),
            |seen| format!("{}; --fresh names an argument that has to be new", seen.why),
        );
        Err(format!(
            "whether another key gets another id at {place} is not shown: {why}"
        ))
    }

    /// Says how whole answers differ, where no place is known to name the effect.
    fn compare_bodies(&self, answers: &[&Seen]) -> String {
        let results: Vec<Value> = answers.iter().filter_map(|seen| seen.result()).collect();
        let [one, others @ ..] = results.as_slice() else {
            return "there are no two answers to compare".into();
        };
        let differences = |other| self.naming.differences(one, other);
        let mut differing = others.iter().map(differences);
        if let Some(places) = differing.find(|places| !places.is_empty()) {
            let places = listed(&places);
            return format!(
                "the answers differ at {places}, and --id does not say whether one of them is the effect's id"
            );
        }
        if others.is_empty() {
            return "there are no two answers to compare".into();
        }
        let of_others = self.of_keys.iter().skip(1);
        let another = of_others
            .flat_map(|step| step.results())
            .find(|other| other != one);
        let hint = another.map_or_else(String::new, |another| {
            let places = listed(&self.naming.differences(one, &another));
            format!("; another key got something else at {places}")
        });
        format!(
            "the answers are equal, which proves nothing as long as --id does not say where the effect's id stands{hint}"
        )
    }

    /// The ids of all effects in the answers, each once.
    pub(super) fn known(&self) -> Vec<String> {
        let Some(id) = &self.naming.id else {
            return Vec::new();
        };
        let mut known = Vec::new();
        for result in self.of_keys.iter().flat_map(|step| step.results()) {
            if let Some(value) = result.pointer(id.as_str()) {
                let shown = self.naming.show(id, value);
                if !known.contains(&shown) {
                    known.push(shown);
                }
            }
        }
        known
    }
}

/// The id in an answer.
///
/// # Errors
/// Why the answer has none.
fn id_in(seen: &Seen, place: &str) -> Result<Value, String> {
    let result = seen.result().ok_or_else(|| seen.why.clone())?;
    match result.pointer(place) {
        None | Some(Value::Null) => Err(format!("an answer has nothing at {place}")),
        Some(id) => Ok(id.clone()),
    }
}

/// Whether an id repeats a text of the request. Only letters and digits are compared.
fn repeats(id: &Value, sent: &str) -> bool {
    let id = id.as_str().map_or_else(|| id.to_string(), str::to_owned);
    let plain = |text: &str| -> String {
        let letters = text.chars().filter(|char| char.is_alphanumeric());
        letters.flat_map(char::to_lowercase).collect()
    };
    let (whole, sent_whole) = (plain(&id), plain(sent));
    let is_within = |part: &str, at_least| part.len() >= at_least && sent_whole.contains(part);
    let mut parts = id.split(|char: char| !char.is_alphanumeric());
    id == sent
        || !whole.is_empty() && whole == sent_whole
        || is_within(&whole, LONG)
        || parts.any(|part| is_within(&plain(part), LONG_PART))
        || sent_whole.len() >= LONG && whole.contains(&sent_whole)
}

/// Joins what ids and a count show. A count weighs more: a tool may say the same of two effects.
fn join(by_id: Judgement, counted: Judgement) -> Judgement {
    if by_id.0 == counted.0 {
        let texts = [by_id.1, counted.1].into_iter();
        let texts: Vec<String> = texts.filter(|text| !text.is_empty()).collect();
        return (by_id.0, texts.join("; "));
    }
    match (by_id.0, counted.0) {
        (Verdict::Refuted, _) => by_id,
        (_, Verdict::Refuted) | (Verdict::NotShown, _) => counted,
        // A tool that makes ids of keys shows the same id, however often it was executed.
        (Verdict::Proved, _) => proved(format!("by ids alone: {}", by_id.1)),
    }
}

/// A few places in a sentence.
pub(super) fn listed(places: &[String]) -> String {
    let named = places.iter().take(MAX_PLACES);
    let named = named.map(|place| if place.is_empty() { "the top" } else { place });
    let named: Vec<&str> = named.collect();
    match places.len().saturating_sub(MAX_PLACES) {
        0 => named.join(", "),
        more => format!("{} and {more} more places", named.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_id_repeats_the_request_if_it_is_the_same_text_or_a_long_part_of_it() {
        for (id, sent, expected) in [
            (json!("7"), "7", true),
            (json!(7), "7", true),
            (json!("--"), "--", true),
            (json!("A-1"), "a1", true),
            (json!("--"), "++", false),
            (json!("a1"), "a2", false),
            // A part of the request.
            (json!("key-45678"), "the KEY45678 of the first", true),
            (json!("key-4567"), "the KEY4567 of the first", false),
            // The request as a part of it.
            (json!("order-key45678-1"), "key-45678", true),
            (json!("order-key4567-1"), "key-4567", false),
            // One part of it alone.
            (json!("9-abcdefghijkl"), "x abcdefghijkl", true),
            (json!("9-abcdefghijk"), "x abcdefghijk", false),
        ] {
            assert_eq!(repeats(&id, sent), expected, "{id} {sent}");
        }
    }

    #[test]
    fn an_id_is_hidden_with_what_holds_it_or_stands_in_it() {
        let pointer = |text: &str| text.parse::<Pointer>().expect("a pointer");
        let naming = Naming {
            hidden: vec![pointer("/card/no")],
            ..Naming::default()
        };
        for (at, is_hidden) in [
            ("/card/no", true),
            ("/card", true),
            ("/card/no/0", true),
            ("/card/nothing", false),
            ("/card/n", false),
            ("/id", false),
        ] {
            let shown = naming.show(&pointer(at), &json!(7));
            assert_eq!(shown, if is_hidden { MASK } else { "7" }, "{at:?}");
        }
        let long = naming.show(&pointer("/id"), &json!("x".repeat(99)));
        assert_eq!(long.len(), MAX_SHOWN);
    }

    #[test]
    fn a_sentence_names_six_places_and_says_how_many_more_there_are() {
        let places = |count: usize| -> Vec<String> {
            let places = (0..count).map(|n| {
                if n == 0 {
                    String::new()
                } else {
                    format!("/{n}")
                }
            });
            places.collect()
        };
        assert_eq!(listed(&places(1)), "the top");
        let six = "the top, /1, /2, /3, /4, /5";
        assert_eq!(listed(&places(6)), six);
        assert_eq!(listed(&places(8)), format!("{six} and 2 more places"));
    }
}
