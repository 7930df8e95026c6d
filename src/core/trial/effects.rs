//! How many effects the answers show, by the ids in them and by a count.

use serde_json::Value;

use super::seen::{Naming, Seen, Step, Verdict};
use crate::core::key::Pointer;
use crate::core::outcome::Outcome;
use crate::core::redact::MASK;
use crate::core::replay;

/// The longest id that is shown, in characters.
const MAX_SHOWN: usize = 80;
/// Most places that a sentence names.
const MAX_PLACES: usize = 6;
/// How many letters and digits of the request in an id are no chance.
const LONG: usize = 8;
/// How many letters and digits of a part of an id are no chance. A shorter one may be a time.
const LONG_PART: usize = 12;

/// Whether a sign shows one effect or several.
enum Sign {
    One(String),
    Several(String),
    /// It shows nothing, and why.
    Silent(String),
}

impl Naming {
    /// An id as it may be printed.
    pub(super) fn show(&self, at: &Pointer, value: &Value) -> String {
        let is_in = |place: &str, holder: &str| {
            place
                .strip_prefix(holder)
                .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        };
        let mut hidden = self.hidden.iter().map(Pointer::as_str);
        if hidden.any(|hidden| is_in(hidden, at.as_str()) || is_in(at.as_str(), hidden)) {
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
    /// Whether a repetition had an effect of its own.
    pub(super) fn of_repetition(&self, first: &Step, again: &Step) -> (Verdict, String) {
        let answers: Vec<&Seen> = first.seen.iter().chain(&again.seen).collect();
        let counted = match (first.change, again.change) {
            (Some(0), Some(0)) => {
                Sign::Silent("the count did not change with the first request".into())
            }
            (Some(_), Some(0)) => self.unless_unheard(
                "the count changed with the first request and not with the repetition",
                again,
                1,
            ),
            (Some(_), Some(change)) => Sign::Several(format!(
                "the repetition changed the count by {change} (if nothing else did)"
            )),
            _ => Sign::Silent(String::new()),
        };
        join(self.by_id(&answers), counted)
    }

    /// Whether two requests at once had one effect.
    pub(super) fn of_round(&self, first: &Step, round: &Step) -> (Verdict, String) {
        let answers: Vec<&Seen> = round.seen.iter().collect();
        let counted = match (first.change, round.change) {
            (Some(0), Some(_)) | (Some(_), Some(0)) => {
                Sign::Silent("the count did not change".into())
            }
            (Some(one), Some(change)) if one == change => {
                self.unless_unheard("the count changed as by one request", round, 2)
            }
            (Some(one), Some(change)) => Sign::Several(format!(
                "the count changed by {change}, and by {one} with one request (if nothing else changed it)"
            )),
            _ => Sign::Silent(String::new()),
        };
        join(self.by_id(&answers), counted)
    }

    /// A request that did not arrive, or was refused for other reasons, shows nothing without an
    /// effect.
    fn unless_unheard(&self, counted: &str, step: &Step, at_least: usize) -> Sign {
        let others = self.of_keys.iter().skip(1).flat_map(|step| &step.seen);
        let others_are_executed = others.clone().any(Seen::is_executed);
        let is_heard =
            |seen: &&Seen| seen.is_executed() || seen.is_rejected() && others_are_executed;
        let heard = step.seen.iter().filter(is_heard).count();
        if heard >= at_least {
            return Sign::One(counted.to_owned());
        }
        let unheard = step.seen.iter().find(|seen| !is_heard(seen));
        let why = unheard.map_or("nothing was answered", |seen| seen.why.as_str());
        Sign::Silent(format!("the count did not change, but {why}"))
    }

    fn by_id(&self, answers: &[&Seen]) -> Sign {
        let Some(id) = &self.naming.id else {
            return Sign::Silent(self.compare_bodies(answers));
        };
        let place = id.as_str();
        let (mut found, mut silent) = (Vec::<Value>::new(), None);
        for seen in answers {
            match seen.result() {
                None => silent = Some(seen.why.clone()),
                Some(result) => match result.pointer(place) {
                    None | Some(Value::Null) => {
                        silent = Some(format!("an answer has nothing at {place}"));
                    }
                    Some(value) => found.push(value.clone()),
                },
            }
        }
        if let [one, others @ ..] = found.as_slice()
            && let Some(other) = others.iter().find(|other| *other != one)
        {
            let (one, other) = (self.naming.show(id, one), self.naming.show(id, other));
            return Sign::Several(format!("the answers have {one} and {other} at {place}"));
        }
        // What may have been executed is an effect that no answer shows.
        if let Some(seen) = answers.iter().find(|seen| seen.outcome == Outcome::Unknown) {
            return Sign::Silent(seen.why.clone());
        }
        if found.len() < 2 {
            let why = silent.unwrap_or_else(|| "there is nothing to compare".into());
            return Sign::Silent(format!("there are no two ids to compare: {why}"));
        }
        if let Err(why) = self.tell_apart() {
            return Sign::Silent(why);
        }
        let shown = self.naming.show(id, &found[0]);
        Sign::One(format!(
            "the answers have {shown} at {place}, and no other key got that"
        ))
    }

    /// Whether the ids tell the effects of different keys apart.
    ///
    /// # Errors
    /// They do not, or it is not shown.
    pub(super) fn tell_apart(&self) -> Result<(), String> {
        let Some(id) = &self.naming.id else {
            return Err("--id does not say where the effect's id stands".into());
        };
        let place = id.as_str();
        let mut ids = Vec::<Value>::new();
        let mut refused = None;
        for step in &self.of_keys {
            let mut found = step.seen.iter().filter_map(|seen| {
                let value = seen.result()?.pointer(place)?.clone();
                (!value.is_null()).then_some((seen, value))
            });
            let Some((seen, value)) = found.next() else {
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

    /// Compares whole answers, where no place is known to name the effect.
    fn compare_bodies(&self, answers: &[&Seen]) -> String {
        let results: Vec<Value> = answers.iter().filter_map(|seen| seen.result()).collect();
        let [one, others @ ..] = results.as_slice() else {
            return "there are no two answers to compare".into();
        };
        let differing = others
            .iter()
            .find_map(|other| Some(self.places(one, other)).filter(|places| !places.is_empty()));
        if let Some(places) = differing {
            let places = listed(&places);
            return format!(
                "the answers differ at {places}, and --id does not say whether one of them is the effect's id"
            );
        }
        if others.is_empty() {
            return "there are no two answers to compare".into();
        }
        let another = self
            .of_keys
            .iter()
            .skip(1)
            .flat_map(|step| &step.seen)
            .filter_map(Seen::result)
            .find(|other| other != one);
        let hint = another.map_or_else(String::new, |another| {
            let places = listed(&self.places(one, &another));
            format!("; another key got something else at {places}")
        });
        format!(
            "the answers are equal, which proves nothing as long as --id does not say where the effect's id stands{hint}"
        )
    }

    fn places(&self, one: &Value, other: &Value) -> Vec<String> {
        let (one, other) = (one.to_string(), other.to_string());
        replay::differences(one.as_bytes(), other.as_bytes(), &self.naming.ignore)
    }

    /// The ids of all effects in the answers, each once.
    pub(super) fn known(&self) -> Vec<String> {
        let Some(id) = &self.naming.id else {
            return Vec::new();
        };
        let seen = self.of_keys.iter().flat_map(|step| &step.seen);
        let mut known = Vec::new();
        for result in seen.filter_map(Seen::result) {
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

/// Whether an id holds a text of the request, whatever stands between letters and digits.
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

/// Joins both signs. Several effects weigh more than one: a tool may say the same twice.
fn join(by_id: Sign, counted: Sign) -> (Verdict, String) {
    let both = |one: String, other: String| {
        let texts = [one, other].into_iter().filter(|text| !text.is_empty());
        texts.collect::<Vec<_>>().join("; ")
    };
    match (by_id, counted) {
        (Sign::Several(why), Sign::Several(too)) => (Verdict::Refuted, both(why, too)),
        (Sign::Several(why), _) | (_, Sign::Several(why)) => (Verdict::Refuted, why),
        (Sign::One(why), Sign::One(too)) => (Verdict::Proved, both(why, too)),
        // A tool that makes ids of keys shows the same id, however often it was executed.
        (Sign::One(why), Sign::Silent(_)) => (Verdict::Proved, format!("by ids alone: {why}")),
        (Sign::Silent(_), Sign::One(why)) => (Verdict::Proved, why),
        (Sign::Silent(why), Sign::Silent(too)) => (Verdict::NotShown, both(why, too)),
    }
}

/// A few places in a sentence.
pub(super) fn listed(places: &[String]) -> String {
    let named: Vec<&str> = places
        .iter()
        .take(MAX_PLACES)
        .map(|place| if place.is_empty() { "the top" } else { place })
        .collect();
    let more = places.len().saturating_sub(MAX_PLACES);
    let more = if more == 0 {
        String::new()
    } else {
        format!(" and {more} more places")
    };
    format!("{}{more}", named.join(", "))
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
