//! What was asked about a call, as it is stored behind the call's progress.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::text::Text;
use super::value::{Id, Unreadable, since, time};
use oncegate_rules::approval::{Approval, Digest, Proposal};
use oncegate_rules::record::{CallId, Intent};

/// Times are microseconds since the call was created.
#[derive(Serialize, Deserialize)]
#[serde(bound(deserialize = "'de: 'a"))]
pub(super) struct StoredProposal<'a> {
    ask: u32,
    requested: u32,
    asked_at: i64,
    until: i64,
    good_for_ms: u64,
    why: Vec<Text<'a>>,
    needed: u8,
    from: Vec<Text<'a>>,
    fencing: Option<u64>,
    confirmed: Option<Id>,
    approvals: Vec<StoredApproval<'a>>,
    bound: Option<Digest>,
    good_until: Option<i64>,
    tell: Text<'a>,
}

/// Token, time, reason, and what was seen.
type StoredApproval<'a> = (Text<'a>, i64, Text<'a>, Digest);

impl<'a> StoredProposal<'a> {
    pub(super) fn of(proposal: &'a Proposal, intent: &Intent) -> Self {
        let since = |time: Timestamp| since(intent, time);
        let texts = |texts: &'a [String]| texts.iter().map(|text| Text::of(text)).collect();
        let approval = |one: &'a Approval| {
            let (by, reason) = (Text::of(&one.by), Text::of(&one.reason));
            (by, since(one.at), reason, one.seen)
        };
        Self {
            ask: proposal.ask,
            requested: proposal.requested,
            asked_at: since(proposal.asked_at),
            until: since(proposal.until),
            good_for_ms: proposal.good_for_ms,
            why: texts(&proposal.why),
            needed: proposal.needed,
            from: texts(&proposal.from),
            fencing: proposal.fencing,
            confirmed: proposal.confirmed.map(|call_id| call_id.0.into_bytes()),
            approvals: proposal.approvals.iter().map(approval).collect(),
            bound: proposal.bound,
            good_until: proposal.good_until.map(since),
            tell: Text::of(&proposal.tell),
        }
    }

    pub(super) fn read(self, created_at: Timestamp) -> Result<Proposal, Unreadable> {
        let time = |since| time(created_at, since, "progress");
        let texts = |texts: Vec<Text<'_>>| texts.into_iter().map(Text::read).collect();
        let approval = |(by, at, reason, seen): StoredApproval<'_>| {
            let (by, at, reason) = (by.read(), time(at)?, reason.read());
            Ok(Approval {
                by,
                at,
                reason,
                seen,
            })
        };
        let approvals: Result<Vec<_>, Unreadable> =
            self.approvals.into_iter().map(approval).collect();
        Ok(Proposal {
            ask: self.ask,
            requested: self.requested,
            asked_at: time(self.asked_at)?,
            until: time(self.until)?,
            good_for_ms: self.good_for_ms,
            why: texts(self.why),
            needed: self.needed,
            from: texts(self.from),
            fencing: self.fencing,
            confirmed: self.confirmed.map(|id| CallId(Uuid::from_bytes(id))),
            approvals: approvals?,
            bound: self.bound,
            good_until: self.good_until.map(time).transpose()?,
            tell: self.tell.read(),
        })
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use oncegate_rules::approval::{Approval, Ask, Proposal};
    use oncegate_rules::record::{Record, State};
    use oncegate_rules::testing::{at, succeeded};

    use crate::codec::{self, Beside};

    fn read_back(record: &Record) -> Result<Record, codec::Unreadable> {
        let beside = Beside {
            args: record.intent.args.clone(),
            result: record.state.stored().cloned(),
            fencing: record.fencing,
            similar_to: record.similar_to,
        };
        let intent = codec::intent(&record.intent);
        codec::read(&intent, &codec::progress(record), beside)
    }

    #[test]
    fn a_proposal_comes_back_whole_and_a_call_without_one_has_no_byte_of_it() {
        let plain = succeeded("1");
        let ask = Ask {
            why: vec!["/amount is above 5".into()],
            expires: std::time::Duration::from_secs(60),
            good_for: std::time::Duration::from_secs(5),
            needed: 2,
            from: vec!["ann".into()],
            similar: true,
            over_budget: false,
        };
        let mut proposal = Proposal::new(&ask, None, Some(7), Some(plain.intent.call_id), at(1));
        proposal.approvals.push(Approval {
            by: "ann".into(),
            at: at(2),
            reason: "seen".into(),
            seen: [3; 32],
        });
        proposal.bound = Some([4; 32]);
        proposal.good_until = Some(at(9));
        proposal.tell = "no".into();
        for state in [State::Proposed, State::Approved] {
            let record = Record {
                state,
                proposal: Some(Box::new(proposal.clone())),
                ..plain.clone()
            };
            assert_eq!(read_back(&record), Ok(record.clone()));
            let mut packed = codec::unpack(&codec::pack(&record)).expect("it is whole");
            assert_eq!(packed.proposal, record.proposal);
            packed.proposal = None;
            let bytes = codec::progress(&record);
            assert!(bytes.starts_with(&codec::progress(&packed)));
            let cut = Bytes::copy_from_slice(&bytes[..bytes.len() - 1]);
            let intent = codec::intent(&record.intent);
            assert!(codec::read(&intent, &cut, Beside::default()).is_err());
            assert!(codec::stamp(&bytes).is_ok());
            for (task, cancel_asked) in [(Some("t-1"), false), (None, true), (Some(""), true)] {
                let mut with_task = record.clone();
                with_task.attempt.remote_task = task.map(str::to_owned);
                with_task.cancel_asked = cancel_asked;
                assert_eq!(read_back(&with_task), Ok(with_task.clone()));
                assert!(codec::progress(&with_task).starts_with(&codec::progress(&packed)));
            }
        }
        assert_eq!(read_back(&plain), Ok(plain));
    }
}
