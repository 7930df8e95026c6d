//! The text of each problem, as one snapshot: read it as a model would.

use uuid::Uuid;

use super::*;
use oncegate_engine::{Differs, ErrorKind, Reused};
use oncegate_rules::key;
use oncegate_rules::many::Different;
use oncegate_rules::record::Failure;
use oncegate_rules::record::FailureKind;
use oncegate_rules::session::Refusal;

fn failure(kind: FailureKind) -> Failure {
    Failure {
        kind,
        status: Some(422),
        body: None,
        sealed: None,
        retry_after: None,
        why: "it says no".into(),
    }
}

#[test]
fn every_problem_says_what_to_do_next_and_none_leads_to_a_second_effect() {
    let time = Duration::from_secs(7);
    let call_id = CallId(Uuid::nil());
    let mut differs = Differs::default();
    differs.places = vec!["/amount".into(), "/lines/0".into()];
    let kinds = [
        ErrorKind::InvalidRequest("args is not a JSON object".into()),
        ErrorKind::Key(key::Refused::Missing),
        ErrorKind::Key(key::Refused::Invalid("header")),
        ErrorKind::Key(key::Refused::Reserved),
        ErrorKind::Key(key::Refused::Conflict),
        ErrorKind::Key(key::Refused::FieldMissing("/id".into())),
        ErrorKind::Forbidden,
        ErrorKind::Unauthenticated("the API has not let this caller in"),
        ErrorKind::NotChecked,
        ErrorKind::UnknownTool,
        ErrorKind::UnknownCall,
        ErrorKind::UnknownSaga,
        ErrorKind::UnknownReconciliation,
        ErrorKind::InvalidArguments(vec![("/a".into(), "is not a number".into())]),
        ErrorKind::CallInProgress { retry_after: time },
        ErrorKind::JustChanged,
        ErrorKind::ApprovalRequired {
            asked_at: jiff::Timestamp::UNIX_EPOCH,
            expires_at: jiff::Timestamp::UNIX_EPOCH,
            retry_after: time,
        },
        ErrorKind::ApprovalDeclined {
            tell: "Ask for at most 50.".into(),
        },
        ErrorKind::ApprovalDeclined {
            tell: String::new(),
        },
        ErrorKind::ApprovalLapsed {
            may_ask_again: true,
        },
        ErrorKind::ApprovalLapsed {
            may_ask_again: false,
        },
        ErrorKind::TooManyProposals { retry_after: time },
        ErrorKind::NotAsShown,
        ErrorKind::NotConfirmed(Different::Members { then: 40, now: 39 }),
        ErrorKind::OutcomeUnknown {
            retry_after: Some(time),
        },
        ErrorKind::OutcomeUnknown { retry_after: None },
        ErrorKind::OutcomeUnwritten { retry_after: time },
        ErrorKind::KeyReused {
            call_id,
            reused: Reused::Other,
            differs: differs.clone(),
        },
        ErrorKind::KeyReused {
            call_id,
            reused: Reused::Other,
            differs: Differs::default(),
        },
        ErrorKind::KeyReused {
            call_id,
            reused: Reused::SameFields,
            differs,
        },
        ErrorKind::KeyReused {
            call_id,
            reused: Reused::Unclear,
            differs: Differs::default(),
        },
        ErrorKind::KeyReused {
            call_id,
            reused: Reused::Answered,
            differs: Differs::default(),
        },
        ErrorKind::UnknownElicitation,
        ErrorKind::InputRequired,
        ErrorKind::KeyExpired {
            is_repetition: true,
        },
        ErrorKind::KeyExpired {
            is_repetition: false,
        },
        ErrorKind::ToolRejected(failure(FailureKind::Rejected)),
        ErrorKind::ToolUnreachable(failure(FailureKind::Unreachable)),
        ErrorKind::ToolUnavailable(failure(FailureKind::Unavailable)),
        ErrorKind::BreakerOpen { retry_after: time },
        ErrorKind::ResultUnavailable("it was cut".into()),
        ErrorKind::ReplayUnsafe("the tool does not deduplicate"),
        ErrorKind::WrongState("the saga is completed".into()),
        ErrorKind::Refused(Refusal::Frozen),
        ErrorKind::Refused(Refusal::Stale),
        ErrorKind::Refused(Refusal::NotGiven),
        ErrorKind::Refused(Refusal::Busy { retry_after: time }),
        ErrorKind::Refused(Refusal::Spent { retry_after: time }),
        ErrorKind::Refused(Refusal::Similar { call_id }),
        ErrorKind::Refused(Refusal::SimilarPending {
            call_id,
            retry_after: Some(time),
        }),
        ErrorKind::Refused(Refusal::SimilarPending {
            call_id,
            retry_after: None,
        }),
        ErrorKind::Fenced(failure(FailureKind::Fenced)),
        ErrorKind::RateLimited,
        ErrorKind::NoMemory,
        ErrorKind::TooFast { retry_after: time },
        ErrorKind::TooManyNewKeys { retry_after: time },
        ErrorKind::KeysSettle { retry_after: time },
        ErrorKind::StoreUnavailable,
        ErrorKind::ShuttingDown,
        ErrorKind::ToolPaused,
    ];
    let mut sentences = String::new();
    for kind in kinds {
        let problem = Problem::from(kind);
        let (effect, action) = (problem.effect, problem.key_action);
        let wait = problem
            .retry_after
            .map_or("null".to_owned(), |wait| wait.as_millis().to_string());
        let slug = problem.slug.as_str();
        sentences += &format!(
            "{slug} {} {} {wait}\n  {}\n",
            effect.as_str(),
            action.as_str(),
            problem.detail
        );
        // What may have been executed is never sent with another key, except where it surely is another intent.
        let is_new_intent = slug == "key-expired";
        assert!(
            action != KeyAction::Rotate || effect == Effect::None || is_new_intent,
            "{slug}"
        );
        // A time to wait is given only where the same request is worth repeating.
        let repeats = matches!(action, KeyAction::Reuse | KeyAction::Wait);
        assert!(
            problem.retry_after.is_none() || repeats,
            "{slug} waits for nothing"
        );
    }
    insta::assert_snapshot!("sentences", sentences);
}
