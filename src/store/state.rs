//! A state in parts, as both stores keep it. Must not decide anything.

use std::time::Duration;

use bytes::Bytes;

use crate::core::record::{Content, Failure, FailureKind, State};

/// What a state holds beside its name.
#[derive(Default)]
pub(super) struct Parts<'a> {
    /// The result, or the body of a rejection.
    pub(super) result: Option<&'a Bytes>,
    /// The kind of a failure.
    pub(super) failure: Option<&'static str>,
    pub(super) why: Option<&'a str>,
    pub(super) tool_status: Option<u16>,
    pub(super) retry_after_ms: Option<u64>,
}

impl<'a> Parts<'a> {
    pub(super) fn of(state: &'a State) -> Self {
        let none = Self::default();
        match state {
            State::Unknown(why) => Self {
                why: Some(why),
                ..none
            },
            State::Failed(failure) => Self {
                result: failure.body.as_ref(),
                failure: Some(failure.kind.as_str()),
                why: Some(&failure.why),
                tool_status: failure.status,
                retry_after_ms: failure
                    .retry_after
                    .map(|wait| u64::try_from(wait.as_millis()).unwrap_or(u64::MAX)),
            },
            state => match state.content() {
                Some(Content::Kept(json)) => Self {
                    result: Some(json),
                    ..none
                },
                Some(Content::Unavailable(why)) => Self {
                    why: Some(why),
                    ..none
                },
                None => none,
            },
        }
    }
}

/// What was read of a state.
pub(super) struct Read<'a> {
    pub(super) name: &'a str,
    pub(super) result: Option<Bytes>,
    pub(super) failure: Option<&'a str>,
    pub(super) why: Option<String>,
    pub(super) tool_status: Option<u16>,
    pub(super) retry_after_ms: Option<u64>,
}

impl Read<'_> {
    /// `None`: this was never written. A damaged record is never taken for an absent one.
    pub(super) fn state(self) -> Option<State> {
        let Self { result, why, .. } = self;
        let content = |why: Option<String>| {
            result
                .clone()
                .map(Content::Kept)
                .or(why.map(Content::Unavailable))
        };
        Some(match self.name {
            "running" => State::Running,
            "unknown" => State::Unknown(why.unwrap_or_default()),
            "succeeded" => State::Succeeded(content(Some(why.unwrap_or_default()))?),
            "compensating" => State::Compensating(content(why)),
            "compensated" => State::Compensated(content(why)),
            "stuck" => State::Stuck(content(why)),
            "failed" => State::Failed(Failure {
                kind: word(FailureKind::ALL, FailureKind::as_str, self.failure?)?,
                status: self.tool_status,
                body: result,
                retry_after: self.retry_after_ms.map(Duration::from_millis),
                why: why.unwrap_or_default(),
            }),
            _ => return None,
        })
    }
}

/// The one of `words` that was written.
pub(super) fn word<T: Copy, const N: usize>(
    words: [T; N],
    name: fn(T) -> &'static str,
    written: &str,
) -> Option<T> {
    words.into_iter().find(|word| name(*word) == written)
}
