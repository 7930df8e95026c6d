//! Who acts. Entries keep the text of an actor, so that text never changes.

use std::fmt;

use crate::record::{Entry, InstanceId, Intent};

/// The actor of an entry in the history.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Actor<'a> {
    /// One run of a gateway process, which logs this id at its start.
    Gateway(InstanceId),
    /// The gateway of an attempt before the newest; its id is not kept.
    EarlierAttempt,
    /// An operator or a program, by the name of its token.
    Token(&'a str),
    Reconciliation(&'a str),
}

/// Who acts, and why, as the entries of a history say it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct By {
    /// The text of an [`Actor`].
    pub actor: String,
    pub reason: String,
}

impl By {
    pub fn new(actor: impl fmt::Display, reason: impl Into<String>) -> Self {
        Self {
            actor: actor.to_string(),
            reason: reason.into(),
        }
    }

    /// The operator or program with the token of this name.
    pub fn token(name: &str, reason: &str) -> Self {
        Self::new(Actor::Token(name), reason)
    }
}

/// The prefix of tokens in entries.
const TOKEN: &str = "token ";
/// The detail of a run after a failure.
const AGAIN: &str = "the same key came again after a failure";

/// The detail of a further run of a call. It names the token that asked for the run.
pub(crate) fn came_again(token: &str) -> String {
    if token.is_empty() {
        AGAIN.to_owned()
    } else {
        format!("{AGAIN}, with {TOKEN}{token}")
    }
}

impl Entry {
    /// The name of the token that acted.
    pub fn token(&self) -> Option<&str> {
        self.by.strip_prefix(TOKEN)
    }

    /// The name of the token that acted, or that asked for a run that a gateway began.
    pub fn token_in<'a>(&'a self, intent: &'a Intent) -> Option<&'a str> {
        let asker = match &*self.event {
            "claimed" => Some(intent.made_by.as_str()),
            "run_again" => {
                let rest = self.detail.strip_prefix(AGAIN);
                rest.and_then(|rest| rest.strip_prefix(", with ")?.strip_prefix(TOKEN))
            }
            _ => None,
        };
        asker
            .filter(|name| !name.is_empty())
            .or_else(|| self.token())
    }
}

impl fmt::Display for Actor<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Gateway(instance) => write!(f, "gateway {instance}"),
            Self::EarlierAttempt => f.write_str("the gateway of an earlier attempt"),
            Self::Token(name) => write!(f, "{TOKEN}{name}"),
            Self::Reconciliation(name) => write!(f, "reconciliation {name}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{at, succeeded};

    #[test]
    fn a_run_names_the_token_that_asked_for_it() {
        let mut intent = (*succeeded("1").intent).clone();
        let gateway = Actor::Gateway(InstanceId(uuid::Uuid::nil()));
        let entry = |event, by: Actor<'_>, detail: String| Entry::new(at(0), event, by, detail);
        let again = |token| entry("run_again", gateway, came_again(token));
        intent.made_by = "agent".into();
        for (entry, token) in [
            (
                entry("claimed", gateway, "the key was free".into()),
                Some("agent"),
            ),
            (again("agent"), Some("agent")),
            (
                again("other, with token agent"),
                Some("other, with token agent"),
            ),
            (entry("ended", gateway, String::new()), None),
            (
                entry("resolved", Actor::Token("ops"), String::new()),
                Some("ops"),
            ),
        ] {
            assert_eq!(entry.token_in(&intent), token, "{entry:?}");
        }
        intent.made_by.clear();
        let own = entry("claimed", gateway, String::new());
        assert_eq!(own.token_in(&intent), None, "a call of the gateway itself");
        intent.made_by = "agent".into();
        let unnamed = entry("run_again", gateway, AGAIN.into());
        assert_eq!(unnamed.token_in(&intent), None, "an earlier build's");
        assert_eq!(again("").token_in(&intent), None);
    }

    #[test]
    fn entries_say_what_they_have_always_said() {
        let instance = InstanceId(uuid::Uuid::nil());
        let said = [
            Actor::Gateway(instance),
            Actor::EarlierAttempt,
            Actor::Token("ops"),
            Actor::Reconciliation("orders"),
        ];
        assert_eq!(
            said.map(|actor| actor.to_string()),
            [
                "gateway 00000000000000000000000000000000",
                "the gateway of an earlier attempt",
                "token ops",
                "reconciliation orders"
            ]
        );
    }
}
