//! Callers, and what they may do. The tenant comes from the credential, never from a request.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use jiff::Timestamp;
use subtle::ConstantTimeEq;

use crate::rate::Rate;
use crate::record::Record;
use crate::time::after;

/// How long before a token expires an operator is warned.
const NOTICE: Duration = Duration::from_secs(14 * 24 * 3_600);

/// The name of the caller of a gateway without tokens.
pub const OPEN: &str = "open";

/// One scope of a token.
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
    /// `approve`: decide about calls that wait for approval.
    Approve,
    /// `approve:TOOL`: about those of this tool.
    ApproveTool(String),
}

impl FromStr for Scope {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once(':') {
            None if text == "call" => Ok(Self::Call),
            None if text == "read" => Ok(Self::Read),
            None if text == "admin" => Ok(Self::Admin),
            None if text == "approve" => Ok(Self::Approve),
            Some(("approve", tool)) if !tool.is_empty() => Ok(Self::ApproveTool(tool.to_owned())),
            Some(("call", tool)) if !tool.is_empty() => Ok(Self::CallTool(tool.to_owned())),
            _ => Err(format!(
                "unknown scope {text:?}; it is one of call, call:TOOL, read, admin, approve, approve:TOOL"
            )),
        }
    }
}

impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Call => f.write_str("call"),
            Self::CallTool(tool) => write!(f, "call:{tool}"),
            Self::Read => f.write_str("read"),
            Self::Admin => f.write_str("admin"),
            Self::Approve => f.write_str("approve"),
            Self::ApproveTool(tool) => write!(f, "approve:{tool}"),
        }
    }
}

/// How fast a caller may be; `None`: no bound.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Timings {
    /// Requests of any kind.
    pub rate: Option<Rate>,
    /// Calls that would claim a new key. Repetitions of a call cost nothing.
    pub new_keys: Option<Rate>,
}

/// The caller of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Caller {
    /// The token's name in the configuration, for log and ledger.
    pub name: String,
    /// The tenant of the caller's calls. Every key is scoped by it.
    pub tenant: String,
    pub scopes: Vec<Scope>,
    /// Shared by all tokens of this name.
    pub timings: Timings,
}

impl Caller {
    /// The caller of a gateway without tokens: tenant `default`, every scope.
    ///
    /// Such a gateway listens on loopback only.
    pub fn open() -> Self {
        Self {
            name: OPEN.into(),
            tenant: "default".into(),
            scopes: vec![Scope::Call, Scope::Read, Scope::Admin],
            timings: Timings::default(),
        }
    }

    /// The tenants of callers with these tokens.
    pub fn tenants(tokens: &[Token]) -> BTreeSet<String> {
        if tokens.is_empty() {
            return [Self::open().tenant].into();
        }
        let tenants = tokens.iter().map(|token| token.caller.tenant.clone());
        tenants.collect()
    }

    /// The operator who runs a command beside the gateway's configuration.
    pub fn operator() -> Self {
        Self {
            name: "command line".into(),
            tenant: String::new(),
            scopes: vec![Scope::Admin],
            timings: Timings::default(),
        }
    }

    pub fn is_admin(&self) -> bool {
        self.scopes.contains(&Scope::Admin)
    }

    pub fn may_call(&self, tool: &str) -> bool {
        self.scopes.iter().any(|scope| match scope {
            Scope::Call => true,
            Scope::CallTool(name) => name == tool,
            Scope::Read | Scope::Admin | Scope::Approve | Scope::ApproveTool(_) => false,
        })
    }

    /// Whether this caller may call any tool.
    pub fn may_call_any(&self) -> bool {
        let mut scopes = self.scopes.iter();
        scopes.any(|scope| matches!(scope, Scope::Call | Scope::CallTool(_)))
    }

    /// Whether this caller has a scope to approve calls of this tool. An administrator's may be of any tenant.
    pub fn may_approve(&self, tenant: &str, tool: &str) -> bool {
        let may = self.scopes.iter().any(|scope| match scope {
            Scope::Approve => true,
            Scope::ApproveTool(name) => name == tool,
            Scope::Call | Scope::CallTool(_) | Scope::Read | Scope::Admin => false,
        });
        may && (self.tenant == tenant || self.is_admin())
    }

    /// Whether this caller may approve calls of any tool.
    pub fn is_approver(&self) -> bool {
        let mut scopes = self.scopes.iter();
        scopes.any(|scope| matches!(scope, Scope::Approve | Scope::ApproveTool(_)))
    }

    /// Whether this caller may see any call that waits for approval.
    pub fn may_see_proposals(&self) -> bool {
        self.is_approver() || self.may_read(&self.tenant)
    }

    /// Whether this caller may see what was asked about a call of this tenant and tool.
    pub fn may_see_proposal(&self, tenant: &str, tool: &str) -> bool {
        self.may_read(tenant) || self.may_approve(tenant, tool)
    }

    /// Whether this caller may read a call: it made the call, or it may read all calls of the tenant.
    pub fn may_read_call(&self, tenant: &str, tool: &str, made_by: &str) -> bool {
        let is_own = self.tenant == tenant && self.name == made_by && self.may_call(tool);
        is_own || self.may_read(tenant)
    }

    /// Whether this caller may get the answer of a call by the call's id: it may read the call, and call its tool.
    ///
    /// `hides`: the ledger hides a part of the tool's calls. An answer hides nothing, so it is given to the token that made
    /// the call alone.
    pub fn may_ask_for(&self, tenant: &str, tool: &str, made_by: &str, hides: bool) -> bool {
        let is_own = self.tenant == tenant && self.name == made_by;
        self.may_read_call(tenant, tool, made_by) && self.may_call(tool) && (is_own || !hides)
    }

    /// Whether this caller may see this call of a tenant whose calls it may read.
    ///
    /// Only administrators see a call whose tenant is not proven.
    pub fn may_see(&self, record: &Record) -> bool {
        self.is_admin() || record.is_proven()
    }

    /// Whether this caller may read any call of `tenant`.
    pub fn may_read(&self, tenant: &str) -> bool {
        self.scopes.iter().any(|scope| match scope {
            Scope::Admin => true,
            Scope::Read => self.tenant == tenant,
            Scope::Call | Scope::CallTool(_) | Scope::Approve | Scope::ApproveTool(_) => false,
        })
    }
}

/// A configured bearer token. Only its digest is known.
#[derive(Debug, Clone)]
pub struct Token {
    /// SHA-256 of the token.
    pub sha256: [u8; 32],
    pub caller: Caller,
    /// When the token expires; `None`: never.
    pub expires: Option<Timestamp>,
}

impl Token {
    /// The warning about a token that has expired, or expires soon.
    pub fn warning(&self, now: Timestamp) -> Option<String> {
        let (name, expires) = (&self.caller.name, self.expires?);
        let notice = after(now, NOTICE);
        match expires {
            _ if expires <= now => Some(format!(
                "a token of {name} has expired at {expires}: it is not accepted any more"
            )),
            _ if expires <= notice => Some(format!(
                "a token of {name} expires at {expires}: replace it in time"
            )),
            _ => None,
        }
    }
}

/// Why a token is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Closed {
    Unknown,
    Expired,
}

/// The caller whose token has this SHA-256 digest.
///
/// Compares with every token in constant time, so that the time tells nothing about a digest.
///
/// # Errors
/// No token has this digest, or the token has expired.
pub fn find<'a>(
    tokens: &'a [Token],
    sha256: &[u8; 32],
    now: Timestamp,
) -> Result<&'a Caller, Closed> {
    let found = tokens.iter().fold(None, |found, token| {
        is_same(&token.sha256, sha256).then_some(token).or(found)
    });
    let token = found.ok_or(Closed::Unknown)?;
    if token.expires.is_some_and(|expires| expires <= now) {
        Err(Closed::Expired)
    } else {
        Ok(&token.caller)
    }
}

/// Whether two digests of tokens are equal, in constant time.
pub fn is_same(one: &[u8; 32], other: &[u8; 32]) -> bool {
    one.ct_eq(other).into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key;
    use crate::testing::caller;

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

    fn token(expires: Option<i64>) -> Token {
        let expires = expires.map(|second| Timestamp::from_second(second).expect("a time"));
        Token {
            sha256: [7; 32],
            caller: caller(&["call"]),
            expires,
        }
    }

    #[test]
    fn a_scope_is_written_as_it_is_read() {
        for text in [
            "call",
            "call:ship",
            "read",
            "admin",
            "approve",
            "approve:ship",
        ] {
            assert_eq!(text.parse::<Scope>().expect("a scope").to_string(), text);
        }
    }

    #[test]
    fn only_the_digest_opens() {
        let now = Timestamp::UNIX_EPOCH;
        let token = token(None);
        assert_eq!(
            find(std::slice::from_ref(&token), &[7; 32], now),
            Ok(&token.caller)
        );
        assert_eq!(find(&[token], &[8; 32], now), Err(Closed::Unknown));
        assert_eq!(find(&[], &[8; 32], now), Err(Closed::Unknown));
    }

    #[test]
    fn a_token_opens_until_its_time_is_over_and_is_warned_of_two_weeks_before() {
        const DAY: i64 = 24 * 3_600;
        let tokens = [token(Some(100 * DAY))];
        for (second, opens, warns_of) in [
            (86 * DAY - 1, true, None),
            (86 * DAY, true, Some("expires at 1970-04-11T00:00:00Z")),
            (100 * DAY - 1, true, Some("expires at")),
            (100 * DAY, false, Some("has expired at")),
        ] {
            let now = Timestamp::from_second(second).expect("a time");
            assert_eq!(find(&tokens, &[7; 32], now).is_ok(), opens, "{second}");
            let warning = tokens[0].warning(now);
            assert_eq!(warning.is_some(), warns_of.is_some(), "{warning:?}");
            assert!(warns_of.is_none_or(|words| warning.is_some_and(|text| text.contains(words))));
        }
    }

    #[test]
    fn only_the_admin_scope_makes_an_administrator() {
        for (scopes, is_admin) in [(&["call", "read"][..], false), (&["admin"], true)] {
            assert_eq!(caller(scopes).is_admin(), is_admin, "{scopes:?}");
        }
        assert!(Caller::open().is_admin() && Caller::operator().is_admin());
    }

    #[test]
    fn a_call_is_read_by_who_made_it_and_may_call_its_tool_or_reads_the_tenant() {
        for (scopes, tenant, tool, made_by, may) in [
            (&["call"][..], "shop", "ship", "agents", true),
            (&["call:ship"], "shop", "ship", "agents", true),
            (&["call:ship"], "shop", "pay", "agents", false),
            (&["call"], "shop", "ship", "others", false),
            (&["call"], "bank", "ship", "agents", false),
            (&["read"], "shop", "ship", "others", true),
            (&["read"], "bank", "ship", "agents", false),
            (&["admin"], "bank", "ship", "others", true),
            (&[], "shop", "ship", "agents", false),
        ] {
            let got = caller(scopes).may_read_call(tenant, tool, made_by);
            assert_eq!(got, may, "{scopes:?} {tenant} {tool} {made_by}");
        }
    }

    #[test]
    fn only_the_scope_to_approve_approves_and_admin_only_widens_it() {
        for (scopes, tenant, tool, may_approve, may_see) in [
            (&["approve"][..], "shop", "ship", true, true),
            (&["approve"], "bank", "ship", false, false),
            (&["approve:ship"], "shop", "ship", true, true),
            (&["approve:ship"], "shop", "pay", false, false),
            (&["approve", "admin"], "bank", "ship", true, true),
            (&["approve:ship", "admin"], "bank", "pay", false, true),
            (&["admin"], "shop", "ship", false, true),
            (&["read"], "shop", "ship", false, true),
            (&["call"], "shop", "ship", false, false),
        ] {
            let caller = caller(scopes);
            let got = (
                caller.may_approve(tenant, tool),
                caller.may_see_proposal(tenant, tool),
            );
            assert_eq!(got, (may_approve, may_see), "{scopes:?} {tenant} {tool}");
            assert!(!caller.is_approver() || !caller.may_call_any());
        }
    }

    #[test]
    fn digests_are_the_same_only_if_every_byte_is() {
        assert!(is_same(&[7; 32], &[7; 32]));
        let mut other = [7; 32];
        other[31] = 8;
        assert!(!is_same(&[7; 32], &other));
    }

    #[test]
    fn tenants_are_those_of_the_tokens_or_the_one_of_an_open_gateway() {
        let of = |tenant: &str| Token {
            caller: Caller {
                tenant: tenant.into(),
                ..caller(&[])
            },
            ..token(None)
        };
        let tenants = |tokens: &[Token]| Caller::tenants(tokens).into_iter().collect::<Vec<_>>();
        assert_eq!(tenants(&[]), ["default"]);
        assert_eq!(
            tenants(&[of("shop"), of("bank"), of("shop")]),
            ["bank", "shop"]
        );
    }

    #[test]
    fn only_administrators_see_a_call_whose_tenant_is_not_proven() {
        let call = crate::testing::succeeded("{}");
        let mut guessed = call.clone();
        std::sync::Arc::make_mut(&mut guessed.intent).key_source = key::Source::Adopted;
        let (admin, reader) = (caller(&["admin"]), caller(&["read"]));
        assert!(admin.may_see(&call) && reader.may_see(&call));
        assert!(admin.may_see(&guessed) && !reader.may_see(&guessed));
    }
}
