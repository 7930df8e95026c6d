//! What an approval binds: the call exactly as it was shown.

use super::proposal::{Digest, Proposal};
use crate::record::{CallId, Record};
use crate::secret::Secret;

/// A call as a gateway would begin it now.
#[derive(Debug, Clone, Copy)]
pub struct Built<'a> {
    /// The digest of the rule by which it asks.
    pub rule: &'a Digest,
    /// The request for the tool, without credentials, attempt and fencing token.
    pub request: &'a [u8],
    /// The similar calls that are shown.
    pub similar: &'a [CallId],
}

/// What a gateway shows of a proposal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shown {
    /// The call as it would begin.
    pub bound: Digest,
    /// The same, in this ask and with the approvals so far.
    pub seen: Digest,
}

/// The MAC over a call as it would begin.
pub fn bound(secret: &Secret, record: &Record, built: Built<'_>) -> Digest {
    let intent = &record.intent;
    let id = intent.call_id.0.into_bytes();
    let similar: Vec<u8> = built
        .similar
        .iter()
        .flat_map(|call_id| call_id.0.into_bytes())
        .collect();
    secret.mac_of(
        "approval: bound",
        &[
            &id,
            intent.tenant.as_bytes(),
            intent.tool.as_bytes(),
            &intent.lookup.0,
            &intent.fingerprint,
            &intent.key_scheme.0,
            &intent.args,
            built.rule,
            &similar,
            built.request,
        ],
    )
}

/// The MAC over what an approver sees: the call as it would begin, the ask, and the approvals so far.
pub fn seen(secret: &Secret, proposal: &Proposal, bound: &Digest) -> Digest {
    let ask = proposal.ask.to_be_bytes();
    let mut parts: Vec<&[u8]> = vec![bound, &ask];
    for approval in &proposal.approvals {
        parts.push(approval.by.as_bytes());
        parts.push(&approval.seen);
    }
    secret.mac_of("approval: seen", &parts)
}

/// What a gateway shows of a proposal; `None`: the call was never asked about.
pub fn shown(secret: &Secret, record: &Record, built: Built<'_>) -> Option<Shown> {
    let proposal = record.proposal.as_deref()?;
    let bound = bound(secret, record, built);
    let seen = seen(secret, proposal, &bound);
    Some(Shown { bound, seen })
}
