//! Retries, owners, locks and leases of a running call.

use super::*;

#[test]
fn a_retry_waits_no_longer_than_the_deadline_allows() {
    let mut tool = tool("t");
    tool.dedup = Dedup::Key;
    let mut running = record(&tool, key::Source::Derived, &[]);
    let slow = Evidence::Answer {
        status: 429,
        body: outcome::Body::Whole("{}".into()),
        retry_after: Some(Duration::from_secs(20)),
        newest_token: None,
    };
    let event = ended_with(1, slow, Some(2));
    assert_eq!(
        cell(&tool, Some(&running), &event, 9),
        "Retry in 20s -> running"
    );
    assert_eq!(cell(&tool, Some(&running), &event, 10), "Finish -> failed");
    running.attempt.number = tool.retry.attempts;
    assert_eq!(
        cell(&tool, Some(&running), &event, 1),
        "Finish -> failed",
        "attempts are bounded"
    );
}

#[test]
fn a_zombie_with_an_old_token_is_refused() {
    let tool = tool("t");
    let mut running = record(&tool, key::Source::Derived, &[]);
    running.fencing = Some(8);
    let old = Event::Ended(Ended {
        attempt: attempt(1),
        fencing: Some(7),
        evidence: answer(200),
        retry: None,
    });
    assert_eq!(
        next(&tool, Some(&running), &old, at(1)),
        Err(Illegal::NotOwner)
    );
}

#[test]
fn only_the_run_that_has_the_lock_can_lose_it() {
    let tool = tool("t");
    let mut running = record(&tool, key::Source::Derived, &[]);
    running.fencing = Some(8);
    let refused = next(&tool, Some(&running), &unlocked(), at(1));
    assert_eq!(refused, Err(Illegal::NotOwner));
    running.fencing = None;
    assert!(next(&tool, Some(&running), &unlocked(), at(1)).is_ok());
}

#[test]
fn a_lock_is_free_once_the_outcome_is_known_or_else_at_the_end_of_the_lease() {
    let exclusive = Tool {
        session: SessionPolicy {
            mode: Mode::Exclusive,
            ..Default::default()
        },
        ..tool("t")
    };
    let running = record(&exclusive, key::Source::Derived, &[]);
    let free_from = |tool: &Tool, record: &Record, event: &Event| {
        let next = next(tool, Some(record), event, at(3)).expect("a change");
        next.change.expect("a change").release.lock_from
    };
    let lease_end = Some(running.attempt.lease_until);
    for evidence in [answer(200), answer(422), not_sent()] {
        assert_eq!(
            free_from(&exclusive, &running, &ended_with(1, evidence, None)),
            Some(at(3))
        );
    }
    for event in [
        ended_with(1, no_answer(), None),
        Event::OwnerLost { by: ME },
    ] {
        assert_eq!(
            free_from(&exclusive, &running, &event),
            lease_end,
            "{event:?}"
        );
    }
    let lease_from_now = Some(at(3 + 40));
    assert_eq!(
        free_from(&exclusive, &running, &store_lost()),
        lease_from_now,
        "a later run may be there"
    );
    let retried = ended_with(1, not_sent(), Some(2));
    assert_eq!(
        free_from(&exclusive, &running, &retried),
        None,
        "it goes on"
    );
    let unknown = moved(
        &exclusive,
        Some(&running),
        &ended_with(1, no_answer(), None),
        1,
    )
    .expect("unknown");
    assert_eq!(
        free_from(&exclusive, &unknown, &ended_with(1, answer(200), None)),
        Some(at(3))
    );
    assert_eq!(free_from(&exclusive, &unknown, &unlocked()), Some(at(3)));
    assert_eq!(
        free_from(&tool("t"), &running, &ended_with(1, answer(200), None)),
        None,
        "it never had it"
    );
}

#[test]
fn not_found_proves_nothing_before_the_lease_and_the_operators_time_are_over() {
    let seconds = |seconds| Some(Duration::from_secs(seconds));
    let tool = |negative_final_after, dedup| Tool {
        unknown: OnUnknown::Probe,
        negative_final_after,
        dedup,
        ..tool("t")
    };
    for (tool, final_after) in [
        (tool(seconds(5), Dedup::None), Some(5)),
        (tool(seconds(5), Dedup::Key), Some(0)),
        (tool(None, Dedup::Key), Some(0)),
        (tool(None, Dedup::None), None),
    ] {
        let unknown = record(
            &tool,
            key::Source::Derived,
            &[(ended_with(1, no_answer(), None), 1)],
        );
        let lease_end = unknown.attempt.lease_until.as_second() - at(0).as_second();
        let found_nothing = |at| cell(&tool, Some(&unknown), &probed(Finding::NotFound), at);
        let last = lease_end + final_after.unwrap_or(1_000_000);
        assert_eq!(found_nothing(last - 1), "Finish -> unknown");
        assert_eq!(
            found_nothing(last) == "Finish -> failed",
            final_after.is_some()
        );
        let asked_early = probed_at(Finding::NotFound, last - 1);
        assert_eq!(
            cell(&tool, Some(&unknown), &asked_early, last + 9),
            "Finish -> unknown",
            "a late answer"
        );
    }
}

#[test]
fn a_clock_set_back_does_no_harm() {
    let tool = tool("t");
    let running = record(&tool, key::Source::Derived, &[]);
    let done = moved(
        &tool,
        Some(&running),
        &ended_with(1, answer(200), None),
        -3600,
    )
    .expect("done");
    assert_eq!(done.latency_ms, Some(0));
    let over = done.expires_at.expect("a window");
    assert!(
        over.duration_since(running.updated_at) >= jiff::SignedDuration::from_hours(1),
        "its key is not over when the clock is right again: {over}"
    );
}

#[test]
fn a_saga_turns_away_only_the_attempt_that_asked_it() {
    let tool = tool("t");
    let running = record(&tool, key::Source::Derived, &[]);
    let of_another = Event::NotJoined {
        by: ME,
        attempt: attempt(9),
        why: Failure::new(FailureKind::SagaClosed, "it is aborted"),
    };
    assert_eq!(cell(&tool, Some(&running), &of_another, 1), "(NotOwner)");
    let own = not_joined(FailureKind::SagaClosed);
    assert_eq!(cell(&tool, Some(&running), &own, 1), "Finish -> failed");
}
