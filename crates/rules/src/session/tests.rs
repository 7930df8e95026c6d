//! The conditions of a call, and whether a denied call waits.

use std::sync::Arc;

use proptest::prelude::*;
use serde_json::json;
use uuid::Uuid;

use super::*;
use crate::record::{Attempt, AttemptId, InstanceId};
use crate::testing::tool;
use crate::tool::Similar;

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_second(1_800_000_000 + seconds).expect("a time")
}

fn call(number: u128) -> CallId {
    CallId(Uuid::from_u128(number))
}

fn intent(session_id: &str, user_id: &str) -> Intent {
    let made = crate::testing::intent(Source::Runtime, 1);
    Intent {
        call_id: call(1),
        user_id: user_id.into(),
        session_id: session_id.into(),
        similar: Some(GroupKey([7; 32])),
        ..(*made).clone()
    }
}

fn with_mode(mode: Mode) -> Tool {
    Tool {
        session: SessionPolicy {
            mode,
            ..SessionPolicy::default()
        },
        ..tool("t")
    }
}

#[test]
fn only_a_write_has_conditions_and_only_an_exclusive_one_takes_the_lock() {
    let preconditions = Preconditions {
        fencing: Some(7),
        confirmed: None,
    };
    let asked = |tool: &Tool| {
        let admission = admission(tool, &intent("S", "U"), preconditions).expect("it is fit");
        admission.map(|admission| (admission.token, admission.lock))
    };
    assert_eq!(
        asked(&with_mode(Mode::Exclusive)),
        Some((
            Token::This(7),
            Some(Line::Waits {
                longest: LINE_LENGTH
            })
        ))
    );
    assert_eq!(
        asked(&with_mode(Mode::Fenced)),
        Some((Token::This(7), None))
    );
    assert_eq!(
        asked(&with_mode(Mode::Shared)),
        Some((Token::Next, None)),
        "whatever token it has"
    );
    assert_eq!(
        asked(&Tool {
            effect: Effect::Read,
            ..with_mode(Mode::Exclusive)
        }),
        None
    );
    let mut hurried = with_mode(Mode::Exclusive);
    hurried.session.wait = Duration::ZERO;
    assert_eq!(asked(&hurried), Some((Token::This(7), Some(Line::Leaves))));
}

#[test]
fn a_budget_is_a_sessions_or_a_users_and_of_one_tool_and_tenant() {
    let group = |per, tool_name: &str, tenant: &str, session_id: &str, user_id: &str| {
        let budget = Budget {
            per,
            max: 5,
            window: Duration::from_secs(60),
        };
        let mut intent = intent(session_id, user_id);
        intent.tool = tool_name.into();
        intent.tenant = tenant.into();
        let tool = Tool {
            budget: Some(budget),
            ..tool(tool_name)
        };
        let admission = admission(&tool, &intent, Preconditions::default()).expect("it is fit");
        admission
            .and_then(|admission| admission.budget)
            .expect("a budget")
            .group
    };
    let session = group(Per::Session, "t", "shop", "S", "U");
    assert_eq!(session, group(Per::Session, "t", "shop", "S", "V"));
    assert_ne!(session, group(Per::Session, "t", "shop", "T", "U"));
    assert_ne!(session, group(Per::Session, "u", "shop", "S", "U"));
    assert_ne!(session, group(Per::Session, "t", "bank", "S", "U"));
    assert_ne!(
        session,
        group(Per::User, "t", "shop", "S", "S"),
        "a user may be called as a session is"
    );
    assert_eq!(
        group(Per::User, "t", "shop", "S", "U"),
        group(Per::User, "t", "shop", "T", "U")
    );
}

#[test]
fn similar_calls_have_equal_fields_and_one_user() {
    let fields = ["/sku", "/amount"]
        .map(|field| field.parse().expect("a pointer"))
        .into();
    let similar = Similar {
        fields,
        window: Duration::from_secs(60),
        action: OnSimilar::Flag,
    };
    let tool = Tool {
        similar: Some(similar),
        ..tool("t")
    };
    let group = |user, args| similar_group(&tool, "shop", user, &args, &Secret::new([7; 32]));
    let first = group("U", json!({ "sku": "w", "amount": 5, "note": 1 })).expect("a group");
    assert_eq!(
        group("U", json!({ "note": 2, "amount": 5.0, "sku": "w" })),
        Some(first)
    );
    for (user, other) in [
        ("V", json!({ "sku": "w", "amount": 5 })),
        ("U", json!({ "sku": "w", "amount": 6 })),
        ("U", json!({ "sku": "w" })),
        ("U", json!({ "sku": "w", "amount": null })),
    ] {
        assert_ne!(group(user, other.clone()), Some(first), "{other}");
    }
    assert_eq!(
        group("U", json!({ "note": 1 })),
        None,
        "they have nothing in common that counts"
    );
    assert_eq!(
        similar_group(
            &Tool {
                effect: Effect::Read,
                ..tool
            },
            "shop",
            "U",
            &json!({ "sku": "w" }),
            &Secret::new([7; 32])
        ),
        None
    );
}

#[test]
fn a_token_is_accepted_only_if_the_session_or_an_accepted_loss_explains_it() {
    let explained = 50;
    for (token, newest, denied) in [
        (7, Some(7), None),
        (6, Some(7), Some(Denied::Stale)),
        (8, Some(7), None),
        (50, Some(7), None),
        (51, Some(7), Some(Denied::NotGiven)),
        (50, None, None),
        (51, None, Some(Denied::NotGiven)),
        (0, None, Some(Denied::NotGiven)),
        (0, Some(0), Some(Denied::NotGiven)),
        (70, Some(70), None),
        (69, Some(70), Some(Denied::Stale)),
        (u64::MAX, Some(70), Some(Denied::NotGiven)),
    ] {
        assert_eq!(
            token_denied(Token::This(token), newest, explained),
            denied,
            "{token} {newest:?}"
        );
    }
    assert_eq!(
        token_denied(Token::This(8), Some(7), 0),
        Some(Denied::NotGiven),
        "nothing was lost"
    );
    assert_eq!(token_denied(Token::Next, Some(7), 0), None);
    assert!(
        admission(
            &with_mode(Mode::Exclusive),
            &intent("", "U"),
            Preconditions::default()
        )
        .is_err()
    );
}

/// How long a call usually takes.
const USUAL: Duration = Duration::from_secs(3);

fn lock() -> Lock {
    Lock {
        call_id: call(9),
        token: 5,
        lease_until: at(40),
        free_from: None,
    }
}

#[test]
fn a_call_waits_for_its_turn_and_for_nothing_else() {
    let policy = SessionPolicy {
        mode: Mode::Exclusive,
        wait: Duration::from_secs(5),
    };
    let busy = |free_from, behind| Denied::Busy {
        lock: Some(Lock {
            free_from,
            ..lock()
        }),
        behind,
    };
    let after = |seconds, denied: &Denied| {
        verdict(&policy, denied, Duration::from_secs(seconds), USUAL, at(10))
    };
    let refused = Err;
    let waits = Ok(call(9));
    assert_eq!(after(4, &busy(None, Some(call(9)))), waits);
    let retry_after = USUAL;
    assert_eq!(
        after(5, &busy(None, Some(call(9)))),
        refused(Refusal::Busy { retry_after })
    );
    assert_eq!(
        after(0, &busy(None, None)),
        refused(Refusal::Busy { retry_after }),
        "the line is full"
    );
    let held = busy(Some(at(40)), Some(call(9)));
    assert_eq!(
        after(5, &held),
        refused(Refusal::Busy {
            retry_after: Duration::from_secs(30)
        })
    );
    for (denied, refusal) in [
        (Denied::Frozen, Refusal::Frozen),
        (Denied::Stale, Refusal::Stale),
        (Denied::NotGiven, Refusal::NotGiven),
        (
            Denied::Spent { frees_at: at(70) },
            Refusal::Spent {
                retry_after: Duration::from_secs(60),
            },
        ),
        (
            Denied::Spent { frees_at: at(0) },
            Refusal::Spent {
                retry_after: Duration::ZERO,
            },
        ),
        (
            Denied::Similar { call_id: call(3) },
            Refusal::Similar { call_id: call(3) },
        ),
    ] {
        assert_eq!(after(0, &denied), refused(refusal));
    }
}

fn holder(state: State, token: u64) -> Record {
    let attempt = Attempt {
        remote_task: None,
        id: AttemptId(Uuid::from_u128(1)),
        owner: InstanceId(Uuid::from_u128(1)),
        number: 1,
        run_started_at: at(0),
        lease_until: at(40),
    };
    Record {
        fencing: Some(token),
        ..Record::first(Arc::new(intent("S", "U")), state, attempt, at(0))
    }
}

#[test]
fn time_alone_frees_no_lock() {
    let unknown = || State::Unknown("lost".into());
    assert!(!is_left_over(&lock(), None, at(39)), "it may be on its way");
    assert!(is_left_over(&lock(), None, at(40)), "it was never claimed");
    assert!(
        !is_left_over(&lock(), Some(&holder(State::Running, 5)), at(4_000)),
        "first it becomes unknown"
    );
    assert!(
        is_left_over(&lock(), Some(&holder(State::Running, 6)), at(40)),
        "another run has another lock"
    );
    assert!(is_left_over(&lock(), Some(&holder(unknown(), 5)), at(40)));
    assert!(!is_left_over(&lock(), Some(&holder(unknown(), 5)), at(39)));
}

proptest! {
    /// A refused call gets a time to come again, and no call waits for ever.
    #[test]
    fn a_wait_ends(waited in 0..100_u64, wait in 0..50_u64, free_from in prop::option::of(-100..100_i64), in_line: bool) {
        let policy = SessionPolicy { mode: Mode::Exclusive, wait: Duration::from_secs(wait) };
        let lock = Lock { free_from: free_from.map(at), ..lock() };
        let denied = Denied::Busy { lock: Some(lock), behind: in_line.then(|| call(9)) };
        match verdict(&policy, &denied, Duration::from_secs(waited), USUAL, at(0)) {
            Ok(_) => prop_assert!(in_line && waited < wait),
            Err(Refusal::Busy { retry_after }) => {
                prop_assert!(!in_line || waited >= wait);
                prop_assert!(retry_after >= USUAL);
            }
            Err(other) => prop_assert!(false, "{other}"),
        }
    }
}

#[test]
fn a_session_is_as_large_as_its_texts_and_its_lists() {
    let entry = |by: &str, detail: &str| Entry::new(at(0), "frozen", by, detail);
    let session = Session {
        waiting: vec![(call(1), at(0)); 3],
        events: vec![entry("token ops", "why"), entry("token me", "again")],
        ..Session::default()
    };
    let texts = "token ops".len() + "why".len() + "token me".len() + "again".len();
    let lists = 2 * size_of::<Entry>() + 3 * size_of::<(CallId, Timestamp)>();
    assert_eq!(session.size(), texts + lists);
    assert_eq!(Session::default().size(), 0);
}

#[test]
fn every_refusal_has_its_word() {
    let (call_id, retry_after) = (call(1), Duration::ZERO);
    let pending = Refusal::SimilarPending {
        call_id,
        retry_after: None,
    };
    let words = [
        Refusal::Frozen,
        Refusal::Stale,
        Refusal::NotGiven,
        Refusal::Busy { retry_after },
        Refusal::Spent { retry_after },
        Refusal::Similar { call_id },
    ];
    assert_eq!(words.map(|refusal| refusal.as_str()), Refusal::WORDS);
    assert_eq!(pending.as_str(), "similar");
}

#[test]
fn a_call_is_not_refused_where_similar_ones_are_only_flagged() {
    for (action, refuses) in [
        (OnSimilar::Flag, false),
        (OnSimilar::Refuse, true),
        (OnSimilar::Replay, true),
    ] {
        let tool = Tool {
            similar: Some(Similar {
                fields: Vec::new(),
                window: Duration::from_secs(60),
                action,
            }),
            ..with_mode(Mode::Shared)
        };
        let preconditions = Preconditions {
            fencing: None,
            confirmed: Some(call(9)),
        };
        let admitted = admission(&tool, &intent("S", "U"), preconditions);
        let expected = Admission {
            token: Token::Next,
            lock: None,
            budget: None,
            similar: Some(NearDuplicateRule {
                group: GroupKey([7; 32]),
                window: Duration::from_secs(60),
                refuses,
                confirmed: Some(call(9)),
            }),
        };
        assert_eq!(admitted, Ok(Some(expected)));
    }
}

#[test]
fn an_approver_may_be_asked_about_similar_calls_and_spent_budgets_alone() {
    let found = |denied: Denied| denied.found();
    assert_eq!(
        found(Denied::Similar { call_id: call(2) }),
        Some(Found::Similar)
    );
    assert_eq!(
        found(Denied::Spent { frees_at: at(9) }),
        Some(Found::OverBudget)
    );
    let busy = Denied::Busy {
        lock: None,
        behind: None,
    };
    for denied in [Denied::Frozen, Denied::Stale, Denied::NotGiven, busy] {
        assert_eq!(found(denied), None);
    }
}
