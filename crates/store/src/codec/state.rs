//! The state of a call as it is stored.

use std::time::Duration;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::text::Text;
use oncegate_rules::record::{Content, Failure, FailureKind, State};

/// A state. The order of the variants is part of the format.
#[derive(Serialize, Deserialize)]
#[serde(bound(deserialize = "'de: 'a"))]
pub(super) enum StoredState<'a> {
    Running,
    Succeeded(StoredContent<'a>),
    Failed {
        kind: u8,
        status: Option<u16>,
        has_body: bool,
        retry_after_ms: Option<u64>,
        why: Text<'a>,
    },
    Unknown(Text<'a>),
    Compensating(Option<StoredContent<'a>>),
    Compensated(Option<StoredContent<'a>>),
    Stuck(Option<StoredContent<'a>>),
    Proposed,
    Approved,
}

#[derive(Serialize, Deserialize)]
#[serde(bound(deserialize = "'de: 'a"))]
pub(super) enum StoredContent<'a> {
    /// The store keeps the result beside this value.
    Stored,
    Unavailable(Text<'a>),
}

impl<'a> StoredState<'a> {
    pub(super) fn of(state: &'a State) -> Self {
        let content = |content: &'a Option<Content>| content.as_ref().map(StoredContent::of);
        match state {
            State::Running => Self::Running,
            State::Succeeded(content) => Self::Succeeded(StoredContent::of(content)),
            State::Failed(failure) => Self::Failed {
                kind: code(&FailureKind::ALL, failure.kind),
                status: failure.status,
                has_body: failure.body.is_some(),
                retry_after_ms: failure
                    .retry_after
                    .map(|wait| u64::try_from(wait.as_millis()).unwrap_or(u64::MAX)),
                why: Text::of(&failure.why),
            },
            State::Unknown(why) => Self::Unknown(Text::of(why)),
            State::Compensating(stored) => Self::Compensating(content(stored)),
            State::Compensated(stored) => Self::Compensated(content(stored)),
            State::Stuck(stored) => Self::Stuck(content(stored)),
            State::Proposed => Self::Proposed,
            State::Approved => Self::Approved,
        }
    }

    /// Decodes a state. `None`: its result is missing, or a code is unknown.
    pub(super) fn read(self, result: Option<Bytes>) -> Option<State> {
        let content = |content: Option<StoredContent<'_>>| match content {
            None => Some(None),
            Some(content) => content.read(result.clone()).map(Some),
        };
        Some(match self {
            Self::Running => State::Running,
            Self::Succeeded(content) => State::Succeeded(content.read(result)?),
            Self::Failed {
                kind,
                status,
                has_body,
                retry_after_ms,
                why,
            } => State::Failed(Failure {
                kind: decoded(&FailureKind::ALL, kind)?,
                status,
                body: if has_body { Some(result?) } else { None },
                sealed: None,
                retry_after: retry_after_ms.map(Duration::from_millis),
                why: why.read(),
            }),
            Self::Unknown(why) => State::Unknown(why.read()),
            Self::Compensating(stored) => State::Compensating(content(stored)?),
            Self::Compensated(stored) => State::Compensated(content(stored)?),
            Self::Stuck(stored) => State::Stuck(content(stored)?),
            Self::Proposed => State::Proposed,
            Self::Approved => State::Approved,
        })
    }
}

impl<'a> StoredContent<'a> {
    pub(super) fn of(content: &'a Content) -> Self {
        match content {
            Content::Stored(_) => Self::Stored,
            Content::Unavailable(unread) => Self::Unavailable(Text::of(&unread.why)),
        }
    }

    pub(super) fn read(self, result: Option<Bytes>) -> Option<Content> {
        match self {
            Self::Stored => result.map(Content::Stored),
            Self::Unavailable(why) => Some(Content::Unavailable(why.read().into())),
        }
    }
}

/// The code of a value: its index in `all`. So the order of `all` is part of the format.
pub(super) fn code<T: PartialEq>(all: &[T], one: T) -> u8 {
    let place = all.iter().position(|other| *other == one);
    place
        .and_then(|place| place.try_into().ok())
        .unwrap_or(u8::MAX)
}

pub(super) fn decoded<T: Copy>(all: &[T], code: u8) -> Option<T> {
    all.get(usize::from(code)).copied()
}
