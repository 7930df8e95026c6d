//! Verdicts from observations.

mod sentences;

use super::lines::{Setting, end, lines};
use super::*;
use crate::outcome::{Body, Evidence, Sent, classify};
use crate::tool::{Dedup, OnUnknown, Tool};

fn seen_with(key: &str, status: u16, body: &Value) -> Seen {
    let evidence = Evidence::Answer {
        status,
        body: Body::Whole(body.to_string().into()),
        retry_after: None,
        newest_token: None,
    };
    let (outcome, why) = classify(&Tool::new("t"), &evidence, Sent::default());
    Seen {
        sent: vec![key.to_owned()],
        status: Some(status),
        outcome,
        why,
    }
}

/// An answer with this id; 0: the tool refused with this status.
fn seen(key: &str, status: u16, id: u32) -> Seen {
    let body = if id == 0 {
        json!({})
    } else {
        json!({ "id": id, "key": key, "a": "ok" })
    };
    seen_with(key, status, &body)
}

fn step(seen: Vec<Seen>) -> Step {
    Step { seen, change: None }
}

fn counted(change: i64, step: Step) -> Step {
    Step {
        change: Some(change),
        ..step
    }
}

fn naming(id: &str) -> Naming {
    Naming {
        id: (!id.is_empty()).then(|| id.parse().expect("a pointer")),
        ..Naming::default()
    }
}

/// A trial of a tool that deduplicates.
fn trial() -> Trial {
    let round = |key: &str, id| Round {
        step: step(vec![seen(key, 201, id), seen(key, 201, id)]),
        is_together: true,
    };
    Trial {
        naming: naming("/id"),
        first: step(vec![seen("key-of-the-first", 201, 1)]),
        again: step(vec![seen("key-of-the-first", 201, 1)]),
        rounds: vec![round("key-of-the-second", 2), round("key-of-the-third", 3)],
        later: step(vec![seen("key-of-the-first", 201, 1)]),
        after: Duration::from_secs(5),
        other: None,
        probed: None,
        undone: None,
    }
}

#[track_caller]
fn check(trial: &Trial, claim: Claim, verdict: Verdict, words: &str) {
    let findings = trial.findings();
    let found = findings.iter().find(|finding| finding.claim == claim);
    let found = found.expect("a finding");
    assert_eq!(found.verdict, verdict, "{}", found.why);
    assert!(found.why.contains(words), "{}", found.why);
}

use Claim::{OnceAtOnce, OnceInSequence, OnceLater, OtherArgumentsRefused, UndoneTwice};
use Verdict::{NotShown, Proved, Refuted};

#[test]
fn the_same_id_again_proves_one_effect_and_another_one_refutes_it() {
    let mut trial = trial();
    for claim in [OnceInSequence, OnceAtOnce, OnceLater] {
        check(&trial, claim, Proved, "at /id");
    }
    check(&trial, OnceLater, Proved, "at least 5s");
    trial.again = step(vec![seen("key-of-the-first", 201, 9)]);
    check(&trial, OnceInSequence, Refuted, "1 and 9 at /id");
    check(&trial, OnceLater, Proved, "");
}

#[test]
fn an_id_that_tells_no_effects_apart_proves_nothing() {
    // All keys get the same value.
    let constant = Trial {
        naming: naming("/a"),
        ..trial()
    };
    check(
        &constant,
        OnceInSequence,
        NotShown,
        "another key got the same",
    );
    check(&constant, OnceAtOnce, NotShown, "another key got the same");
    // The tool repeats the key of the request.
    let echo = Trial {
        naming: naming("/key"),
        ..trial()
    };
    check(&echo, OnceInSequence, NotShown, "was sent with the request");
    let nowhere = Trial {
        naming: naming("/nowhere"),
        ..trial()
    };
    check(&nowhere, OnceInSequence, NotShown, "nothing at /nowhere");
    let mut null = trial();
    let nothing = || seen_with("k", 201, &json!({ "id": null }));
    (null.first, null.again) = (step(vec![nothing()]), step(vec![nothing()]));
    check(&null, OnceInSequence, NotShown, "nothing at /id");
    let whole = Trial {
        naming: naming(""),
        ..trial()
    };
    check(
        &whole,
        OnceInSequence,
        NotShown,
        "are equal, which proves nothing",
    );
    check(
        &whole,
        OnceInSequence,
        NotShown,
        "something else at /id, /key",
    );
    // No other key was executed.
    let mut alone = trial();
    for round in &mut alone.rounds {
        round.step = step(vec![seen("k", 422, 0), seen("k", 422, 0)]);
    }
    check(&alone, OnceInSequence, NotShown, "--fresh");
}

/// A tool that makes its ids from its keys.
#[track_caller]
fn check_ids_of_keys(make: impl Fn(&str) -> String, verdict: Verdict, words: &str) {
    let of = |key: &str| seen_with(key, 201, &json!({ "id": make(key) }));
    let mut trial = trial();
    let keys = [
        "5f8aeb16c292b029a238dc250af6ab4e",
        "ef488f6538fd4b8ca67cd17fbef65df7",
    ];
    trial.first = step(vec![of(keys[0])]);
    (trial.again, trial.later) = (trial.first.clone(), trial.first.clone());
    trial.rounds.truncate(1);
    trial.rounds[0].step = step(vec![of(keys[1]), of(keys[1])]);
    for claim in [OnceInSequence, OnceAtOnce, OnceLater] {
        check(&trial, claim, verdict, words);
    }
}

#[test]
fn an_id_that_has_the_characters_of_the_key_proves_nothing() {
    let hyphens = |key: &str| format!("{}-{}-{}", &key[..8], &key[8..12], &key[12..]);
    let check = |make: &dyn Fn(&str) -> String| {
        check_ids_of_keys(make, NotShown, "was sent with the request");
    };
    check(&hyphens);
    check(&|key| hyphens(key).to_uppercase());
    check(&|key| format!("ord_{}", hyphens(key)));
    check(&|key| key[..8].to_owned());
    check(&|key| format!("ord_{}", &key[..12]));
    // Other ways to make ids of keys are not recognised, so the sentence names its ground.
    let reversed = |key: &str| key.chars().rev().collect();
    check_ids_of_keys(reversed, Proved, "by ids alone: ");
}

#[test]
fn a_number_that_was_sent_is_no_id() {
    let numbered = |key: &str, id: u32| Seen {
        sent: vec![id.to_string()],
        ..seen(key, 200, id)
    };
    let one = |id| step(vec![numbered("u", id)]);
    let echoed = undone(one(4711), one(4711), Some(one(4712)));
    check(&echoed, UndoneTwice, NotShown, "was sent with the request");
}

#[test]
fn an_answer_that_may_hide_an_effect_proves_nothing() {
    let mut trial = trial();
    let key = "key-of-the-second";
    trial.rounds[0].step = step(vec![
        seen(key, 201, 2),
        seen(key, 500, 0),
        seen(key, 201, 2),
    ]);
    check(
        &trial,
        OnceAtOnce,
        NotShown,
        "round 1: the tool answered 500",
    );
    // But two ids are two effects, whatever the other answers are.
    trial.rounds[0].step = step(vec![
        seen(key, 201, 2),
        seen(key, 500, 0),
        seen(key, 201, 4),
    ]);
    check(&trial, OnceAtOnce, Refuted, "2 and 4");
}

#[test]
fn a_second_request_may_be_refused_if_a_later_one_gets_the_first_result() {
    let mut trial = trial();
    let key = "key-of-the-second";
    for status in [409, 425, 429] {
        let busy = seen(key, status, 0);
        assert!(busy.is_refused_for_now());
        trial.rounds[0].step = step(vec![seen(key, 201, 2), busy.clone(), seen(key, 201, 2)]);
        check(&trial, OnceAtOnce, Proved, "");
        trial.rounds[0].step = step(vec![seen(key, 201, 2), busy.clone(), seen(key, 201, 7)]);
        check(&trial, OnceAtOnce, Refuted, "");
        trial.rounds[0].step = step(vec![seen(key, 201, 2), busy.clone(), busy]);
        check(&trial, OnceAtOnce, NotShown, "no two ids");
    }
}

#[test]
fn rounds_in_which_one_was_answered_before_the_other_was_sent_prove_nothing() {
    let mut trial = trial();
    trial.rounds[0].is_together = false;
    check(&trial, OnceAtOnce, Proved, "in 1 of 2");
    trial.rounds[1].is_together = false;
    check(&trial, OnceAtOnce, NotShown, "in no round");
    // Rounds that were not at once can still refute the claim.
    trial.rounds[1].step = step(vec![seen("k", 201, 3), seen("k", 201, 4)]);
    check(&trial, OnceAtOnce, Refuted, "round 2: ");
}

/// A trial with a count of the effects, and without ids.
fn by_count(first: i64, again: Step, round: i64) -> Trial {
    let mut trial = Trial {
        naming: naming(""),
        ..trial()
    };
    trial.first.change = Some(first);
    trial.again = again;
    for at in &mut trial.rounds {
        at.step.change = Some(round);
    }
    trial
}

#[test]
fn a_count_proves_one_effect_and_refutes_it() {
    let same = || step(vec![seen("k", 201, 1)]);
    let trial = by_count(2, counted(0, same()), 2);
    check(&trial, OnceInSequence, Proved, "not with the repetition");
    check(&trial, OnceAtOnce, Proved, "as by one request");
    let by_both = Trial {
        naming: naming("/id"),
        ..trial
    };
    for finding in &by_both.findings()[..2] {
        assert!(!finding.why.contains("alone"), "{}", finding.why);
    }
    let trial = by_count(2, counted(2, same()), 4);
    check(&trial, OnceInSequence, Refuted, "by 2");
    check(&trial, OnceAtOnce, Refuted, "by 4, and by 2 with one");
    let trial = by_count(0, counted(0, same()), 0);
    check(&trial, OnceInSequence, NotShown, "did not change");
    check(&trial, OnceAtOnce, NotShown, "did not change");
}

#[test]
fn a_count_weighs_more_than_a_repeated_id() {
    let mut trial = trial();
    trial.first.change = Some(1);
    trial.again.change = Some(1);
    check(&trial, OnceInSequence, Refuted, "changed the count by 1");
    trial.again = counted(0, step(vec![seen("key-of-the-first", 201, 8)]));
    check(&trial, OnceInSequence, Refuted, "1 and 8");
}

#[test]
fn a_request_that_the_tool_did_not_hear_or_refused_otherwise_proves_nothing_by_a_count() {
    let refused = |status| counted(0, step(vec![seen("k", status, 0)]));
    check(&by_count(1, refused(409), 1), OnceInSequence, Proved, "");
    for status in [425, 429, 500, 503] {
        let trial = by_count(1, refused(status), 1);
        check(&trial, OnceInSequence, NotShown, &status.to_string());
    }
    // The tool may refuse every request after the first.
    let mut trial = by_count(1, refused(409), 1);
    for round in &mut trial.rounds {
        round.step.seen = vec![seen("k", 409, 0), seen("k", 409, 0)];
    }
    check(&trial, OnceInSequence, NotShown, "409");
    // The tool heard only one of the two requests at once.
    let mut trial = by_count(1, refused(409), 1);
    trial.rounds[0].step.seen = vec![seen("k", 201, 2), seen("k", 429, 0)];
    check(&trial, OnceAtOnce, NotShown, "429");
}

#[test]
fn other_arguments_are_refused_for_their_key_only_if_a_new_key_takes_them() {
    let with = |used: Step, new: Option<Step>| Trial {
        other: Some(Other {
            under_used_key: used,
            under_new_key: new,
        }),
        ..trial()
    };
    let key = "key-of-the-first";
    let refused = || step(vec![seen(key, 422, 0)]);
    let claim = OtherArgumentsRefused;
    check(&trial(), claim, NotShown, "--other-args");
    let executed = step(vec![seen("new", 201, 5)]);
    check(
        &with(refused(), Some(executed.clone())),
        claim,
        Proved,
        "422",
    );
    check(
        &with(refused(), Some(refused())),
        claim,
        NotShown,
        "new key",
    );
    let anew = step(vec![seen(key, 201, 5)]);
    check(&with(anew, None), claim, Refuted, "were executed");
    let old = step(vec![seen(key, 201, 1)]);
    check(&with(old, None), claim, Refuted, "the first result");
    let lost = step(vec![seen(key, 500, 0)]);
    check(&with(lost, Some(executed.clone())), claim, NotShown, "500");
    let counted = counted(1, refused());
    check(&with(counted, Some(executed)), claim, Refuted, "count");
}

fn found(body: &Value) -> unknown::Finding {
    unknown::Finding::Found(Content::Stored(body.to_string().into()))
}

#[test]
fn a_probe_has_to_tell_keys_apart_and_to_have_the_effect() {
    let with = |unused: unknown::Finding, used: unknown::Finding| Trial {
        probed: Some(Probed { unused, used }),
        ..trial()
    };
    let not_found = || unknown::Finding::NotFound;
    let first = || found(&json!({ "id": 1, "key": "key-of-the-first", "a": "ok" }));
    let (unused, used) = (Claim::ProbeOfUnusedKey, Claim::ProbeOfUsedKey);
    let good = with(not_found(), first());
    check(&good, unused, Proved, "not found");
    check(&good, used, Proved, "1 at /id as the tool's answer");
    check(&with(first(), not_found()), unused, Refuted, "never sent");
    check(&with(first(), not_found()), used, Refuted, "was executed");
    let unclear = || unknown::Finding::Unclear("it answered 500".into());
    check(&with(unclear(), unclear()), unused, NotShown, "500");
    check(&with(unclear(), unclear()), used, NotShown, "500");
    let other = with(not_found(), found(&json!({ "id": 2 })));
    check(&other, used, Refuted, "another effect, 2");
    // A tool that does not deduplicate may name either of its effects.
    let mut twice = with(not_found(), found(&json!({ "id": 7 })));
    twice.again = step(vec![seen("key-of-the-first", 201, 7)]);
    check(&twice, used, Proved, "7 at /id");
    let empty = with(not_found(), found(&json!({ "ok": true })));
    check(&empty, used, NotShown, "nothing at /id");
    // Without an id: the whole body, if no other key got it.
    let whole = |trial: Trial| Trial {
        naming: naming(""),
        ..trial
    };
    check(&whole(good), used, Proved, "no other key");
    check(&whole(other), used, NotShown, "differs");
    let mut same = whole(with(not_found(), first()));
    let body = json!({ "id": 1, "key": "key-of-the-first", "a": "ok" });
    same.rounds[0].step = step(vec![seen_with("k", 201, &body)]);
    check(&same, used, NotShown, "other keys got");
}

fn undone(first: Step, again: Step, other: Option<Step>) -> Trial {
    Trial {
        undone: Some(Ok(Undone {
            naming: naming("/id"),
            first,
            again,
            other,
        })),
        ..trial()
    }
}

#[test]
fn a_second_compensation_is_harmless_by_a_count_an_id_or_a_rejection() {
    let one = |status, id| step(vec![seen("u", status, id)]);
    let claim = UndoneTwice;
    let by_id = |again| undone(one(200, 1), one(200, again), Some(one(200, 2)));
    check(&by_id(1), claim, Proved, "1 at /id");
    check(&by_id(3), claim, Refuted, "1 and 3");
    check(&undone(one(200, 1), one(200, 1), None), claim, NotShown, "");
    check(
        &undone(one(200, 1), one(409, 0), None),
        claim,
        Proved,
        "409",
    );
    let counted = |change| undone(counted(5, one(200, 1)), counted(change, one(200, 1)), None);
    check(&counted(0), claim, Proved, "count");
    check(&counted(5), claim, Refuted, "by 5");
    let refused = undone(counted_step(5, 200), counted_step(5, 409), None);
    check(&refused, claim, Refuted, "by 5");
    check(
        &undone(one(422, 0), one(422, 0), None),
        claim,
        NotShown,
        "422",
    );
    check(
        &undone(one(200, 1), one(500, 0), None),
        claim,
        NotShown,
        "500",
    );
    let unmade = Trial {
        undone: Some(Err("there is nothing at /result/x".into())),
        ..trial()
    };
    check(&unmade, claim, NotShown, "/result/x");
}

fn counted_step(change: i64, status: u16) -> Step {
    counted(
        change,
        step(vec![seen("u", status, u32::from(status == 200))]),
    )
}

#[test]
fn ids_that_are_redacted_are_compared_and_not_shown() {
    let mut trial = trial();
    trial.naming.hidden = vec!["/id".parse().expect("a pointer")];
    check(&trial, OnceInSequence, Proved, "[redacted] at /id");
    assert_eq!(trial.known_effects(), ["[redacted]"]);
    trial.again = step(vec![seen("key-of-the-first", 201, 9)]);
    check(&trial, OnceInSequence, Refuted, "[redacted] and [redacted]");
}

#[track_caller]
fn settings(tool: &Tool, trial: &Trial) -> (Vec<(Setting, Verdict)>, Verdict) {
    let lines = lines(tool, trial.probed.is_some(), trial, &trial.findings());
    let settings = lines.iter().map(|line| (line.setting, line.verdict));
    (settings.collect(), end(&lines))
}

#[test]
fn a_line_is_justified_by_all_its_claims_and_refuted_by_one() {
    let mut tool = Tool::new("t");
    let good = trial();
    let both = |verdict| vec![(Setting::Dedup, verdict), (Setting::Retry, verdict)];
    assert_eq!(settings(&tool, &good), (both(Proved), Proved));
    let mut bad = trial();
    bad.later = step(vec![seen("key-of-the-first", 201, 9)]);
    assert_eq!(
        settings(&tool, &bad),
        (both(Refuted), Proved),
        "nothing is declared"
    );
    tool.dedup = Dedup::Key;
    assert_eq!(settings(&tool, &bad).1, Refuted);
    let unclear = Trial {
        naming: naming(""),
        ..trial()
    };
    assert_eq!(settings(&tool, &unclear), (both(NotShown), NotShown));
    tool.unknown = OnUnknown::Retry;
    assert_eq!(settings(&tool, &good).1, Proved);
    // A repetition that is refused is not a second effect, and brings no result.
    let refused = by_count(1, counted(0, step(vec![seen("k", 409, 0)])), 1);
    let refused = Trial {
        later: counted(0, step(vec![seen("k", 409, 0)])),
        ..refused
    };
    let expected = vec![(Setting::Dedup, Proved), (Setting::Retry, NotShown)];
    assert_eq!(settings(&tool, &refused), (expected, NotShown));
    tool.redact.args = vec!["/card".parse().expect("a pointer")];
    assert_eq!(settings(&tool, &good).0, [(Setting::Dedup, Proved)]);
}
