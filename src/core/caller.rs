//! Who is calling and what they may do. The tenant comes from the credential, never from a request.

use std::str::FromStr;

use subtle::ConstantTimeEq;

/// One right that a token carries.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Scope {
    /// `call`: every tool.
    Call,
    /// `call:TOOL`: this tool.
    CallTool(String),
    /// `read`: the calls of the token's own tenant.
    Read,
    /// `admin`: every tenant's calls, and acts upon them.
    Admin,
}

impl FromStr for Scope {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once(':') {
            None if text == "call" => Ok(Self::Call),
            None if text == "read" => Ok(Self::Read),
            None if text == "admin" => Ok(Self::Admin),
            Some(("call", tool)) if !tool.is_empty() => Ok(Self::CallTool(tool.to_owned())),
            _ => Err(format!("unknown scope {text:?}; it is one of call, call:TOOL, read, admin")),
        }
    }
}

/// The one behind a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Caller {
    /// The token's name in the configuration: what a log line or a ledger event may say.
    pub name: String,
    /// Whose calls these are. Every key is scoped by it.
    pub tenant: String,
    pub scopes: Vec<Scope>,
}

impl Caller {
    /// The caller of a gateway without tokens, which listens on loopback only: tenant `default`, every scope.
    pub fn open() -> Self {
        Self {
            name: "open".into(),
            tenant: "default".into(),
            scopes: vec![Scope::Call, Scope::Read, Scope::Admin],
        }
    }

    /// Whoever runs a command where the gateway's configuration is.
    pub fn operator() -> Self {
        Self { name: "command line".into(), tenant: String::new(), scopes: vec![Scope::Admin] }
    }

    pub fn is_admin(&self) -> bool {
        self.scopes.contains(&Scope::Admin)
    }

    pub fn may_call(&self, tool: &str) -> bool {
        self.scopes.iter().any(|scope| match scope {
            Scope::Call => true,
            Scope::CallTool(name) => name == tool,
            Scope::Read | Scope::Admin => false,
        })
    }

    /// Whether this caller may read a call of `tenant`.
    pub fn may_read(&self, tenant: &str) -> bool {
        self.scopes.iter().any(|scope| match scope {
            Scope::Admin => true,
            Scope::Read => self.tenant == tenant,
            Scope::Call | Scope::CallTool(_) => false,
        })
    }
}

/// A bearer token as it is configured: by its digest only.
#[derive(Debug, Clone)]
pub struct Token {
    /// SHA-256 of the token.
    pub sha256: [u8; 32],
    pub caller: Caller,
}

/// The caller whose token has this SHA-256 digest. Compares with every token in constant time, so
/// that the time taken tells nothing about a digest.
pub fn find<'a>(tokens: &'a [Token], sha256: &[u8; 32]) -> Option<&'a Caller> {
    tokens.iter().fold(
        None,
        |found, token| if bool::from(token.sha256.ct_eq(sha256)) { Some(&token.caller) } else { found },
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn caller(scopes: &[&str]) -> Caller {
        let scopes = scopes.iter().map(|scope| scope.parse().expect("a scope")).collect();
        Caller { name: "agents".into(), tenant: "shop".into(), scopes }
    }

    #[test]
    fn each_scope_opens_its_own_door_and_no_other() {
        for (scopes, ship, pay, own, other) in [
            (&["call"][..], true, true, false, false),
            (&["call:ship"], true, false, false, false),
            (&["read"], false, false, true, false),
            (&["admin"], false, false, true, true),
            (&[], false, false, false, false),
        ] {
            let caller = caller(scopes);
            let got = (
                caller.may_call("ship"),
                caller.may_call("pay"),
                caller.may_read("shop"),
                caller.may_read("bank"),
            );
            assert_eq!(got, (ship, pay, own, other), "{scopes:?}");
        }
    }

    #[test]
    fn an_unknown_scope_is_refused() {
        for text in ["", "call:", "calls", "read:shop", "root"] {
            assert!(text.parse::<Scope>().is_err(), "{text:?}");
        }
    }

    #[test]
    fn only_the_digest_opens() {
        let token = Token { sha256: [7; 32], caller: caller(&["call"]) };
        assert_eq!(find(std::slice::from_ref(&token), &[7; 32]), Some(&token.caller));
        assert_eq!(find(&[token], &[8; 32]), None);
        assert_eq!(find(&[], &[8; 32]), None);
    }
}
