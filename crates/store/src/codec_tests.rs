//! The codec reads what it wrote. It refuses other bytes, or they harm one call only.

use std::time::Duration;

use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;

use super::*;
use oncegate_rules::ledger::{Duplicate, Duplicates};
use oncegate_rules::record::{Content, Entry, Failure, FailureKind, State};

/// Texts in the forms that the codec shortens, in similar forms, and any other texts.
fn text() -> impl Strategy<Value = String> {
    prop_oneof![
        Just(String::new()),
        Just("claimed".to_owned()),
        Just("the key was free".to_owned()),
        any::<[u8; 16]>().prop_map(hex::encode),
        any::<[u8; 16]>().prop_map(hex::encode_upper),
        any::<[u8; 16]>().prop_map(|id| Uuid::from_bytes(id).to_string()),
        any::<[u8; 16]>().prop_map(|id| Uuid::from_bytes(id).to_string().to_uppercase()),
        any::<[u8; 16]>().prop_map(|id| Uuid::from_bytes(id).urn().to_string()),
        any::<[u8; 16]>().prop_map(|id| Uuid::from_bytes(id).braced().to_string()),
        any::<[u8; 16]>().prop_map(|id| format!("gateway {}", hex::encode(id))),
        any::<(u16, u64)>()
            .prop_map(|(status, n)| format!("the tool answered {status} with {n} bytes")),
        any::<u16>().prop_map(|n| format!("the tool answered 0{n} with +{n} bytes")),
        any::<[u8; 16]>().prop_map(|id| format!("gateway {}", hex::encode_upper(id))),
        ".{0,40}",
    ]
}

fn id() -> impl Strategy<Value = Uuid> {
    any::<[u8; 16]>().prop_map(Uuid::from_bytes)
}

fn lookups() -> impl Strategy<Value = Vec<Lookup>> {
    vec(any::<[u8; 16]>().prop_map(Lookup), 0..4)
}

fn when() -> impl Strategy<Value = Timestamp> {
    let (first, last) = (
        Timestamp::MIN.as_microsecond(),
        Timestamp::MAX.as_microsecond(),
    );
    (first..=last).prop_map(|at| Timestamp::from_microsecond(at).expect("a time"))
}

fn body() -> impl Strategy<Value = Bytes> {
    vec(any::<u8>(), 0..64).prop_map(Bytes::from)
}

prop_compose! {
    fn any_intent()(
        (call_id, created_at, tenant, tool, made_by) in (id(), when(), text(), text(), text()),
        (lookup, lookups, key_scheme) in (any::<[u8; 16]>(), lookups(), any::<[u8; 16]>()),
        (key, source, fingerprint) in (text(), 0..Source::ALL.len(), any::<[u8; 32]>()),
        (user_id, session_id, saga_id, trace_id, client_ids) in (text(), text(), text(), text(), text()),
        (similar, args) in (option::of(any::<[u8; 32]>()), body()),
    ) -> Intent {
        Intent {
            call_id: CallId(call_id),
            tenant,
            tool,
            lookup: Lookup(lookup),
            lookups,
            key_scheme: KeySchemeId(key_scheme),
            key,
            key_source: Source::ALL[source],
            fingerprint,
            user_id,
            session_id,
            saga_id,
            trace_id,
            made_by,
            client_ids,
            similar: similar.map(GroupKey),
            args,
            created_at,
        }
    }
}

fn content() -> impl Strategy<Value = Content> {
    prop_oneof![
        body().prop_map(Content::Stored),
        text().prop_map(|why| Content::Unavailable(why.into()))
    ]
}

prop_compose! {
    fn any_failure()(
        kind in 0..FailureKind::ALL.len(),
        status in option::of(any::<u16>()),
        body in option::of(body()),
        retry_after in option::of(any::<u64>()),
        why in text(),
    ) -> Failure {
        Failure {
            kind: FailureKind::ALL[kind],
            status,
            body,
            sealed: None,
            retry_after: retry_after.map(Duration::from_millis),
            why,
        }
    }
}

fn any_state() -> impl Strategy<Value = State> {
    prop_oneof![
        Just(State::Running),
        content().prop_map(State::Succeeded),
        any_failure().prop_map(State::Failed),
        text().prop_map(State::Unknown),
        option::of(content()).prop_map(State::Compensating),
        option::of(content()).prop_map(State::Compensated),
        option::of(content()).prop_map(State::Stuck),
    ]
}

prop_compose! {
    fn any_alias()(lookups in lookups(), fingerprint in any::<[u8; 32]>(), key_scheme in any::<[u8; 16]>()) -> Alias {
        Alias { lookups, fingerprint, key_scheme: KeySchemeId(key_scheme) }
    }
}

prop_compose! {
    pub(super) fn any_record()(
        (intent, state, version) in (any_intent(), any_state(), any::<u64>()),
        (attempt, owner, number) in (id(), id(), any::<u32>()),
        (run_started_at, lease_until, updated_at) in (when(), when(), when()),
        (attempts, doubted, latency_ms) in (any::<u32>(), any::<bool>(), option::of(any::<u64>())),
        (fencing, similar_to) in (option::of(any::<u64>()), option::of(id())),
        check in option::of((when(), option::of(when()), any::<u32>())),
        undo in option::of((option::of((text(), id())), any::<bool>())),
        aliases in vec(any_alias(), 0..3),
        (expires_at, retain_until) in (option::of(when()), option::of(when())),
        (remote_task, cancel_asked) in (option::of(text()), any::<bool>()),
    ) -> Record {
        Record {
            proposal: None,
            intent: Arc::new(intent),
            version,
            state,
            attempt: Attempt {
                remote_task,
                id: AttemptId(attempt),
                owner: InstanceId(owner),
                number,
                run_started_at,
                lease_until,
            },
            attempts,
            cancel_asked,
            earlier_attempt_may_have_run: doubted,
            fencing,
            similar_to: similar_to.map(CallId),
            check: check.map(|(since, at, number)| Check { since, at, number }),
            undo: undo.map(|(call, skipped)| Undo {
                compensation: call.map(|(tool, call_id)| Compensation { tool, call_id: CallId(call_id) }),
                skipped,
            }),
            aliases,
            latency_ms,
            updated_at,
            expires_at,
            retain_until,
        }
    }
}

prop_compose! {
    pub(super) fn any_entry()(
        (at, event, by, detail) in (when(), text(), text(), text()),
        (attempt, outcome) in (option::of(id()), option::of(text())),
    ) -> Entry {
        Entry {
            at,
            event: event.into(),
            attempt: attempt.map(AttemptId),
            outcome: outcome.map(Into::into),
            by,
            detail,
        }
    }
}

/// Reads these bytes and the values beside them.
fn read_back(intent: &[u8], progress: &[u8], record: &Record) -> Result<Record, Unreadable> {
    let beside = Beside {
        args: record.intent.args.clone(),
        result: record.state.stored().cloned(),
        fencing: record.fencing,
        similar_to: record.similar_to,
    };
    read(intent, progress, beside)
}

proptest! {
    #[test]
    fn a_call_is_read_as_it_was_written(record in any_record()) {
        let (intent, progress) = (intent(&record.intent), progress(&record));
        prop_assert_eq!(read_back(&intent, &progress, &record), Ok(record.clone()));
        let maker = read_maker(&intent).expect("its maker");
        prop_assert_eq!(maker.tenant, &record.intent.tenant[..]);
        prop_assert_eq!(maker.tool, &record.intent.tool[..]);
        prop_assert_eq!(maker.token, &record.intent.made_by[..]);
    }

    #[test]
    fn a_packed_call_is_read_as_it_was_but_for_its_arguments(mut record in any_record()) {
        let packed = pack(&record);
        Arc::make_mut(&mut record.intent).args = Bytes::new();
        prop_assert_eq!(unpack(&packed), Ok(record));
    }

    #[test]
    fn a_history_is_read_as_it_was_written(
        of in any_intent(),
        entries in vec(any_entry(), 0..6),
        limit in 0_u32..8,
    ) {
        let history: Vec<u8> = entries.iter().flat_map(|one| entry(one, &of)).collect();
        let newest = entries.len().saturating_sub(limit as usize);
        prop_assert_eq!(read_entries(&history, &of, limit), Ok(entries[newest..].to_vec()));
        // Each entry twice: the second one has the attempt and the actor of the first.
        let twice: Vec<Entry> = entries.iter().flat_map(|one| [one.clone(), one.clone()]).collect();
        let mut appended = Vec::new();
        for one in &twice {
            append(&mut appended, one, &of);
        }
        prop_assert!(appended.len() <= 2 * history.len());
        prop_assert_eq!(read_entries(&appended, &of, u32::MAX), Ok(twice));
    }

    #[test]
    fn a_duplicate_is_read_as_it_was_written(at in when(), by in text(), kind in text()) {
        let one = Duplicate { at, by, kind };
        prop_assert_eq!(read_duplicate(&duplicate(&one)), Ok(one));
    }

    #[test]
    fn bytes_of_another_version_are_refused_and_named(record in any_record(), version in 2_u8..) {
        let (mut intent, mut progress) = (intent(&record.intent), progress(&record));
        progress[0] = version;
        prop_assert_eq!(read_back(&intent, &progress, &record), Err(Unreadable::OtherVersion(version)));
        intent[0] = version;
        prop_assert_eq!(read_back(&intent, &progress, &record), Err(Unreadable::OtherVersion(version)));
    }

    #[test]
    fn bytes_that_are_cut_off_or_too_long_are_refused(record in any_record(), at in any::<prop::sample::Index>(), more in any::<u8>()) {
        let (intent, progress) = (intent(&record.intent), progress(&record));
        // The stores have the length of a value, so none is cut off between the progress and what follows it.
        let cut = &progress[..at.index(progress.len())];
        let is_whole = cut == write(&stored_progress(&record));
        prop_assert!(is_whole || read_back(&intent, cut, &record).is_err());
        prop_assert!(read_back(&intent[..at.index(intent.len())], &progress, &record).is_err());
        let longer = |bytes: &[u8]| [bytes, &[more]].concat();
        prop_assert!(read_back(&intent, &longer(&progress), &record).is_err());
        prop_assert!(read_back(&longer(&intent), &progress, &record).is_err());
    }

    #[test]
    fn any_bytes_are_read_or_refused(intent in vec(any::<u8>(), 0..200), progress in vec(any::<u8>(), 0..200), of in any_intent()) {
        for version in [None, Some(VERSION)] {
            let with = |bytes: &[u8]| version.into_iter().chain(bytes.iter().copied()).collect::<Vec<u8>>();
            let (intent, progress) = (with(&intent), with(&progress));
            drop(read(&intent, &progress, Beside::default()));
            drop(read(&super::intent(&of), &progress, Beside::default()));
            drop(read_entries(&progress, &of, 5));
            drop(read_duplicate(&progress));
        }
    }

    #[test]
    fn a_byte_that_was_changed_harms_nothing_but_its_call(record in any_record(), at in any::<prop::sample::Index>(), to in any::<u8>()) {
        let intent = intent(&record.intent);
        let mut progress = progress(&record);
        let at = at.index(progress.len());
        progress[at] = to;
        drop(read_back(&intent, &progress, &record));
    }
}

#[test]
fn a_missing_result_is_not_taken_for_no_result() {
    let record = record(State::Succeeded(Content::Stored(Bytes::from("{}"))));
    let (intent, progress) = (intent(&record.intent), progress(&record));
    let without = Record {
        state: State::Running,
        ..record
    };
    assert_eq!(
        read_back(&intent, &progress, &without),
        Err(Unreadable::Damaged("progress"))
    );
}

/// Each byte counts in a large ledger: this shows when a call takes more of them.
#[test]
fn a_usual_call_takes_few_bytes() {
    let record = record(State::Succeeded(Content::Stored(Bytes::from("{}"))));
    let claimed = Entry {
        attempt: Some(record.attempt.id),
        ..Entry::new(
            record.updated_at,
            "claimed",
            format_args!("gateway {}", record.attempt.owner),
            "the key was free",
        )
    };
    let sizes = [
        intent(&record.intent).len(),
        progress(&record).len(),
        entry(&claimed, &record.intent).len(),
    ];
    assert_eq!(sizes, [164, 66, 44]);
}

/// A call of the tenant `shop`, with the lookup `[1; 16]`.
pub fn record(state: State) -> Record {
    let at = |seconds: i64| Timestamp::from_second(1_800_000_000 + seconds).expect("a time");
    let text = str::to_owned;
    let intent = Intent {
        call_id: CallId(Uuid::from_u128(1)),
        tenant: text("shop"),
        tool: text("create_order"),
        lookup: Lookup::new("shop", "create_order", &hex::encode([3; 16])),
        lookups: Vec::new(),
        key_scheme: KeySchemeId([2; 16]),
        key: hex::encode([3; 16]),
        key_source: Source::Derived,
        fingerprint: [4; 32],
        user_id: text("U123"),
        session_id: text("S-abcdef"),
        saga_id: String::new(),
        trace_id: hex::encode([5; 16]),
        made_by: text("shop-agents"),
        client_ids: String::new(),
        similar: None,
        args: Bytes::from("{}"),
        created_at: at(0),
    };
    Record {
        proposal: None,
        intent: Arc::new(intent),
        version: 2,
        state,
        attempt: Attempt {
            remote_task: None,
            id: AttemptId(Uuid::from_u128(6)),
            owner: InstanceId(Uuid::from_u128(7)),
            number: 1,
            run_started_at: at(0),
            lease_until: at(40),
        },
        attempts: 1,
        cancel_asked: false,
        earlier_attempt_may_have_run: false,
        fencing: Some(1),
        similar_to: None,
        check: None,
        undo: None,
        aliases: Vec::new(),
        latency_ms: Some(12),
        updated_at: at(1),
        expires_at: Some(at(3_600)),
        retain_until: Some(at(30 * 86_400)),
    }
}

/// Stored values must stay readable: if a byte changes here, raise `VERSION`, or the layout of the stores.
#[test]
fn the_bytes_of_each_value_are_pinned() {
    let stored = || Some(Content::Stored(Bytes::from("{}")));
    let failure = Failure {
        kind: FailureKind::ALL[0],
        status: Some(429),
        body: Some(Bytes::from("{}")),
        sealed: None,
        retry_after: Some(Duration::from_secs(2)),
        why: "later".to_owned(),
    };
    let states = [
        State::Running,
        State::Succeeded(Content::Stored(Bytes::from("{}"))),
        State::Succeeded(Content::Unavailable("too large".into())),
        State::Failed(failure),
        State::Unknown("timed out".to_owned()),
        State::Compensating(stored()),
        State::Compensated(stored()),
        State::Stuck(None),
    ];
    let mut pinned = String::new();
    let mut pin = |name: &str, bytes: &[u8]| {
        let bytes = hex::encode(bytes);
        pinned.push_str(&format!("{name}: {bytes}\n"));
    };
    for state in states {
        let record = record(state);
        pin(record.state.as_str(), &progress(&record));
    }
    let plain = record(State::Running);
    pin("intent", &intent(&plain.intent));
    let other = Intent {
        lookup: Lookup([1; 16]),
        lookups: vec![Lookup([8; 16])],
        key_source: Source::Runtime,
        saga_id: "saga".to_owned(),
        trace_id: Uuid::from_u128(9).to_string(),
        client_ids: "{\"a\":1}".to_owned(),
        similar: Some(GroupKey([10; 32])),
        ..(*plain.intent).clone()
    };
    pin("intent with all members", &intent(&other));
    let since = plain.updated_at;
    let more = Record {
        earlier_attempt_may_have_run: true,
        check: Some(Check {
            since,
            at: Some(plain.attempt.lease_until),
            number: 3,
        }),
        undo: Some(Undo {
            compensation: Some(Compensation {
                tool: "cancel_order".to_owned(),
                call_id: CallId(Uuid::from_u128(11)),
            }),
            skipped: true,
        }),
        aliases: vec![Alias {
            lookups: vec![Lookup([12; 16])],
            fingerprint: [13; 32],
            key_scheme: KeySchemeId([14; 16]),
        }],
        ..plain.clone()
    };
    pin("progress with all members", &progress(&more));
    let mut with_task = record(State::Running);
    with_task.attempt.remote_task = Some("task-1".to_owned());
    pin("running as a task", &progress(&with_task));

    let gateway = format!("gateway {}", plain.attempt.owner);
    let ended = Entry {
        attempt: Some(plain.attempt.id),
        outcome: Some("executed".into()),
        ..Entry::new(
            since,
            "ended",
            &gateway,
            "the tool answered 200 with 2 bytes",
        )
    };
    pin("entry", &entry(&ended, &plain.intent));
    let mut history = Vec::new();
    for one in [
        &ended,
        &ended,
        &Entry::new(since, "noted", "ops", "looked at"),
    ] {
        append(&mut history, one, &plain.intent);
    }
    pin("history", &history);
    let one = Duplicate {
        at: since,
        by: "shop-agents".to_owned(),
        kind: "replayed".to_owned(),
    };
    pin("duplicate", &duplicate(&one));
    let some = Duplicates {
        count: 300,
        last: vec![one],
    };
    pin("duplicates", &duplicates(&some));
    for (place, word) in text::WORDS.iter().enumerate() {
        pinned.push_str(&format!("word {place}: {word:?}\n"));
    }
    for (place, source) in Source::ALL.iter().enumerate() {
        pinned.push_str(&format!("source {place}: {source:?}\n"));
    }
    for (place, kind) in FailureKind::ALL.iter().enumerate() {
        pinned.push_str(&format!("kind of failure {place}: {kind:?}\n"));
    }
    insta::assert_snapshot!("bytes", pinned);
}
