//! Who acts. The text of an actor is kept in entries, and is frozen.

use std::fmt;

use super::record::InstanceId;

/// The actor of an entry in the history.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Actor<'a> {
    /// A run of the process; its log names it at the start.
    Gateway(InstanceId),
    /// The gateway of an attempt before the newest; its name is not kept.
    EarlierAttempt,
    /// A person or a program, by the name of its token.
    Token(&'a str),
    Reconciliation(&'a str),
}

impl fmt::Display for Actor<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Gateway(instance) => write!(f, "gateway {instance}"),
            Self::EarlierAttempt => f.write_str("the gateway of an earlier attempt"),
            Self::Token(name) => write!(f, "token {name}"),
            Self::Reconciliation(name) => write!(f, "reconciliation {name}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
