//! Why a request gets no result.

use std::time::Duration;

use jiff::Timestamp;

use oncegate_rules::caller::Caller;
use oncegate_rules::key;
use oncegate_rules::many::Different;
use oncegate_rules::record::{CallId, Failure};
use oncegate_rules::session::Refusal;
use oncegate_rules::work::Blocker;
use oncegate_store as store;

/// Why a request got no result. Only `http::problem` turns it into a status.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{kind}")]
pub struct Error {
    pub kind: ErrorKind,
    pub call_id: Option<CallId>,
    /// The call's key as the caller knows it.
    pub key: Option<String>,
    /// Whether this is the stored outcome of another request's call. `None`: it is not an outcome.
    pub replayed: Option<bool>,
}

#[derive(Debug, Clone, thiserror::Error)]
pub enum ErrorKind {
    #[error("the request cannot be read: {0}")]
    InvalidRequest(String),
    #[error(transparent)]
    Key(key::Refused),
    #[error("this token may not do that")]
    Forbidden,
    #[error("the caller is not known: {0}")]
    Unauthenticated(&'static str),
    #[error("it was not found out who the caller is")]
    NotChecked,
    #[error("there is no tool of this name")]
    UnknownTool,
    #[error("there is no such call")]
    UnknownCall,
    #[error("there is no such saga")]
    UnknownSaga,
    #[error("there is no such reconciliation")]
    UnknownReconciliation,
    #[error("the arguments do not fit the tool's schema")]
    InvalidArguments(Vec<(String, String)>),
    #[error("the call is still running")]
    CallInProgress { retry_after: Duration },
    #[error("the call has just changed")]
    JustChanged,
    #[error("the call waits for approval")]
    ApprovalRequired {
        asked_at: Timestamp,
        /// Until when it may be decided.
        expires_at: Timestamp,
        retry_after: Duration,
    },
    #[error("an approver declined the call")]
    ApprovalDeclined {
        /// What the approver says to the agent; empty: nothing.
        tell: String,
    },
    #[error("the call was not approved in time, or was taken back")]
    ApprovalLapsed {
        /// Whether the same request asks again.
        may_ask_again: bool,
    },
    #[error("too many calls wait for approval")]
    TooManyProposals { retry_after: Duration },
    #[error("the call would not be sent as it was shown")]
    NotAsShown,
    #[error("it is not known whether the call was executed")]
    OutcomeUnknown {
        /// The time until its next check; `None`: none is planned.
        retry_after: Option<Duration>,
    },
    #[error("the outcome cannot be written down yet")]
    OutcomeUnwritten { retry_after: Duration },
    #[error("the key stands for another call")]
    KeyReused {
        call_id: CallId,
        reused: Reused,
        differs: Differs,
    },
    #[error("the request answers an unknown elicitation")]
    UnknownElicitation,
    #[error("the tool asks for more, and this caller cannot be asked")]
    InputRequired,
    #[error("the key is too old")]
    KeyExpired {
        /// Whether the earlier call has the same arguments.
        is_repetition: bool,
    },
    #[error("the tool rejected the call")]
    ToolRejected(Failure),
    #[error("the tool was not reached")]
    ToolUnreachable(Failure),
    #[error("the tool did not take the call")]
    ToolUnavailable(Failure),
    #[error("the tool keeps failing and is left alone for a while")]
    BreakerOpen { retry_after: Duration },
    #[error("a forwarded request was not answered")]
    NotAnswered { is_read: bool },
    #[error("the tool executed the call, but its result could not be read: {0}")]
    ResultUnavailable(String),
    #[error("to send the call once more may have an effect: {0}")]
    ReplayUnsafe(&'static str),
    #[error("not in this state: {0}")]
    WrongState(String),
    #[error("not as it was confirmed: {0}")]
    NotConfirmed(Different),
    #[error("the session does not let it begin: {0}")]
    Refused(Refusal),
    #[error("the tool has seen a newer fencing token")]
    Fenced(Failure),
    #[error("too many calls are under way")]
    RateLimited,
    #[error("there is no memory for it or for its answer")]
    NoMemory,
    #[error("too many requests with this token")]
    TooFast { retry_after: Duration },
    #[error("too many new calls with this token")]
    TooManyNewKeys { retry_after: Duration },
    /// Other gateways may not know this tool's new settings of keys yet.
    #[error("the settings of the tool's key have just changed")]
    KeysSettle { retry_after: Duration },
    #[error("the store is not available")]
    StoreUnavailable,
    #[error("the gateway is shutting down")]
    ShuttingDown,
    #[error("an operator has paused the tool")]
    ToolPaused,
}

/// How a request differs from the call that has its key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reused {
    /// The request has another intent, and needs a new key.
    Other,
    /// The request has another intent, but every key with these business fields meets the same call.
    SameFields,
    /// The request may have the same intent: the two cannot be compared.
    Unclear,
    /// The request answers an elicitation that was answered otherwise.
    Answered,
}

/// Where a request differs from the call that has its key: JSON Pointers.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Differs {
    pub places: Vec<String>,
    /// The token that made the call. A caller that may not read the call is told no places.
    pub(super) made_by: String,
}

/// A failure of the store, without details.
pub fn unavailable<E>(_: E) -> Error {
    ErrorKind::StoreUnavailable.alone()
}

/// A failure of the store. If data is unreadable, the error names it.
pub(super) fn of_store(error: store::Error) -> Error {
    ErrorKind::of_store(error).alone()
}

/// # Errors
/// The caller is not an administrator.
pub fn must_be_admin(caller: &Caller) -> Result<(), Error> {
    if caller.is_admin() {
        Ok(())
    } else {
        Err(ErrorKind::Forbidden.alone())
    }
}

/// The tenant that a caller may list: the named one, or its own. `None`: all tenants, for an administrator.
///
/// # Errors
/// The caller may not read the calls of that tenant.
pub(super) fn tenant_to_list(
    caller: &Caller,
    named: Option<&String>,
) -> Result<Option<String>, Error> {
    let own = (!caller.is_admin()).then_some(&caller.tenant);
    match named.or(own) {
        Some(tenant) if !caller.may_read(tenant) => Err(ErrorKind::Forbidden.alone()),
        tenant => Ok(tenant.cloned()),
    }
}

impl ErrorKind {
    /// The failure, as far as this caller may know it.
    pub(super) fn for_caller(mut self, caller: &Caller, tool: &str) -> Self {
        if let Self::KeyReused { differs, .. } = &mut self
            && !caller.may_read_call(&caller.tenant, tool, &differs.made_by)
        {
            differs.places.clear();
        }
        self
    }

    /// A failure of the store. If data is unreadable, the error names it.
    pub(super) fn of_store(error: store::Error) -> Self {
        match error {
            error @ store::Error::Unreadable(_) => Self::WrongState(error.to_string()),
            store::Error::Refused(_) | store::Error::Ambiguous(_) => Self::StoreUnavailable,
        }
    }

    /// Whether this is the outcome of a call, final or until the call is sent again.
    pub(super) fn is_outcome(&self) -> bool {
        matches!(
            self,
            Self::ToolRejected(_)
                | Self::Fenced(_)
                | Self::ToolUnreachable(_)
                | Self::ToolUnavailable(_)
                | Self::ResultUnavailable(_)
                | Self::ApprovalDeclined { .. }
                | Self::ApprovalLapsed { .. }
        )
    }

    /// Whether a claim that is refused by this says that nothing ran because the store has no earlier call.
    pub(super) fn rests_on_all_data(&self) -> bool {
        matches!(
            self,
            Self::ToolPaused
                | Self::RateLimited
                | Self::BreakerOpen { .. }
                | Self::TooManyNewKeys { .. }
                | Self::TooManyProposals { .. }
                | Self::KeysSettle { .. }
                | Self::InvalidArguments(_)
                | Self::InvalidRequest(_)
        )
    }

    /// The blocker for work whose call was refused.
    pub fn blocker(&self) -> Blocker {
        match self {
            Self::CallInProgress { .. }
            | Self::ToolPaused
            | Self::BreakerOpen { .. }
            | Self::RateLimited
            | Self::NoMemory
            | Self::TooManyNewKeys { .. }
            | Self::TooManyProposals { .. }
            | Self::ApprovalRequired { .. }
            | Self::KeysSettle { .. }
            | Self::StoreUnavailable
            | Self::ShuttingDown
            | Self::Refused(Refusal::Frozen | Refusal::Busy { .. }) => Blocker::Busy,
            Self::OutcomeUnknown { .. } | Self::OutcomeUnwritten { .. } | Self::UnknownTool => {
                Blocker::Unknown
            }
            Self::InvalidArguments(_)
            | Self::InvalidRequest(_)
            | Self::KeyReused { .. }
            | Self::UnknownElicitation
            | Self::KeyExpired { .. } => Blocker::Final,
            _ => Blocker::Failed,
        }
    }

    /// The failure, about one call.
    pub fn of_call(self, call_id: CallId) -> Error {
        Error {
            call_id: Some(call_id),
            ..self.alone()
        }
    }

    /// The failure, without a call or a key.
    pub fn alone(self) -> Error {
        Error {
            kind: self,
            call_id: None,
            key: None,
            replayed: None,
        }
    }
}

/// Why a server may not have the answers that were sent to it.
pub enum Unheard {
    Refused,
    /// It is not known; says why.
    Unknown(String),
}
