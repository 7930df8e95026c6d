//! Why a request gets no result.

use std::time::Duration;

use crate::core::caller::Caller;
use crate::core::key;
use crate::core::record::CallId;
use crate::core::record::Failure;
use crate::core::session::Refusal;
use crate::core::work::Blocker;
use crate::store;

/// Why a request got no result. `http::problem` alone turns it into a status.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{kind}")]
pub struct Error {
    pub kind: ErrorKind,
    pub call_id: Option<CallId>,
    /// The call's key as the caller knows it.
    pub key: Option<String>,
    /// Whether this is the stored outcome of a call that the request did not run. `None`: it is no outcome.
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
    #[error("it is not known whether the call was executed")]
    OutcomeUnknown {
        /// When it is looked at next; `None`: not by itself.
        retry_after: Option<Duration>,
    },
    #[error("the key stands for another call")]
    KeyReused {
        call_id: CallId,
        reused: Reused,
        differs: Differs,
    },
    #[error("the request answers no round that is known here")]
    UnknownRound,
    #[error("the tool asks for more, and this caller cannot be asked")]
    InputRequired,
    #[error("the key is too old")]
    KeyExpired {
        /// The earlier call has the same arguments.
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
    #[error("a request that is no call was passed on and not answered")]
    NotAnswered { is_read: bool },
    #[error("the tool executed the call, but its result could not be read: {0}")]
    ResultUnavailable(String),
    #[error("to send the call once more may have an effect: {0}")]
    ReplayUnsafe(&'static str),
    #[error("not in this state: {0}")]
    WrongState(String),
    #[error("the session does not let it begin: {0}")]
    Refused(Refusal),
    #[error("the tool has seen a newer fencing token")]
    Fenced(Failure),
    #[error("too many calls are under way")]
    RateLimited,
    #[error("there is no memory for it or for its answer")]
    NoRoom,
    #[error("too many requests with this token")]
    TooFast { retry_after: Duration },
    #[error("too many new calls with this token")]
    TooManyNewKeys { retry_after: Duration },
    /// Other gateways may not know yet how the keys of this tool are made since its settings have changed.
    #[error("the settings of the tool's key have just changed")]
    KeysSettle { retry_after: Duration },
    #[error("the store is not available")]
    StoreUnavailable,
    #[error("the gateway is shutting down")]
    ShuttingDown,
    #[error("a person has paused the tool")]
    ToolPaused,
}

/// How a request differs from the call that stands under its key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reused {
    /// It asks for something else, and a new key would stand for a new intent.
    Other,
    /// It asks for something else, and every key that comes with its business fields meets the same call.
    SameFields,
    /// It may be the same: the two cannot be compared.
    Unclear,
    /// It answers questions that were answered otherwise.
    Answered,
}

/// Where a request differs from the call that stands under its key: JSON Pointers.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Differs {
    pub places: Vec<String>,
    /// The token that made the call; those that may not read the call are told no places.
    pub(super) made_by: String,
}

/// What a failure of the store means to a caller that need not know more.
pub(super) fn unavailable<E>(_: E) -> Error {
    ErrorKind::StoreUnavailable.alone()
}

/// The same, where what cannot be read is told.
pub(super) fn of_store(error: store::Error) -> Error {
    ErrorKind::of_store(error).alone()
}

/// # Errors
/// Who asks is no administrator.
pub(super) fn must_be_admin(caller: &Caller) -> Result<(), Error> {
    if caller.is_admin() {
        Ok(())
    } else {
        Err(ErrorKind::Forbidden.alone())
    }
}

impl ErrorKind {
    /// As it is told to this caller.
    pub(super) fn told_to(mut self, caller: &Caller, tool: &str) -> Self {
        if let Self::KeyReused { differs, .. } = &mut self
            && !caller.may_read_call(&caller.tenant, tool, &differs.made_by)
        {
            differs.places.clear();
        }
        self
    }

    /// What comes of a key that stands for a call of another saga, or of none.
    pub(super) fn of_another_saga() -> Self {
        Self::WrongState(
            "the key stands for a call of another saga, with which it would be undone".into(),
        )
    }

    /// What the store's failure means to who asks: what cannot be read is no store that is unavailable.
    pub(super) fn of_store(error: store::Error) -> Self {
        match error {
            error @ store::Error::Unreadable(_) => Self::WrongState(error.to_string()),
            store::Error::Refused(_) | store::Error::Ambiguous(_) => Self::StoreUnavailable,
        }
    }

    /// Whether this says how a call ended, for good or until it is sent again.
    pub(super) fn is_outcome(&self) -> bool {
        matches!(
            self,
            Self::ToolRejected(_)
                | Self::Fenced(_)
                | Self::ToolUnreachable(_)
                | Self::ToolUnavailable(_)
                | Self::ResultUnavailable(_)
        )
    }

    /// What it means to work that had to make a call, and was refused.
    pub(super) fn blocker(&self) -> Blocker {
        match self {
            Self::CallInProgress { .. }
            | Self::ToolPaused
            | Self::BreakerOpen { .. }
            | Self::RateLimited
            | Self::NoRoom
            | Self::TooManyNewKeys { .. }
            | Self::KeysSettle { .. }
            | Self::StoreUnavailable
            | Self::ShuttingDown
            | Self::Refused(Refusal::Frozen | Refusal::Busy { .. }) => Blocker::Busy,
            Self::OutcomeUnknown { .. } | Self::UnknownTool => Blocker::Unknown,
            Self::InvalidArguments(_)
            | Self::InvalidRequest(_)
            | Self::KeyReused { .. }
            | Self::UnknownRound
            | Self::KeyExpired { .. } => Blocker::Final,
            _ => Blocker::Failed,
        }
    }

    /// About one call.
    pub(super) fn of_call(self, call_id: CallId) -> Error {
        Error {
            call_id: Some(call_id),
            ..self.alone()
        }
    }

    /// Without a call or a key yet.
    pub fn alone(self) -> Error {
        Error {
            kind: self,
            call_id: None,
            key: None,
            replayed: None,
        }
    }
}
