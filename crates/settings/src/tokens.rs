//! Bearer tokens: the entries of `[[auth.tokens]]`, and making a new one.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use clap::Args;
use jiff::Timestamp;
use sha2::{Digest, Sha256};

use super::common::token_digest;
use super::reader::Section;
use oncegate_rules::caller::{Caller, Scope, Timings, Token};
use oncegate_rules::rate::Rate;
use oncegate_rules::tenant::RESERVED_TENANT;

/// Random bytes of a token: too many to guess.
pub const SECRET_BYTES: usize = 32;
/// The beginning of every token.
///
/// By it scanners find a token in a log or a repository.
const PREFIX: &str = "og_";
/// Why a token that calls does not approve.
const CALLS_AND_APPROVES: &str =
    "a token that may call tools must not approve calls: it would approve its own";
/// Largest rate: a gateway does not serve more in a second.
const MAX_RATE: u32 = 1_000_000;

/// A token to be made, as given on the command line.
#[derive(Debug, Args)]
pub struct NewToken {
    /// For logs and the ledger. Two tokens of one name may be valid at once, while one replaces the other.
    #[arg(long)]
    name: String,
    /// The tenant that its calls belong to.
    #[arg(long)]
    tenant: String,
    /// call, call:TOOL, read, admin, approve or approve:TOOL; may be given several times.
    #[arg(long = "scope", required = true)]
    scopes: Vec<String>,
    /// When it expires, like 2027-01-01T00:00:00Z. Default: never.
    #[arg(long)]
    expires: Option<String>,
}

impl NewToken {
    /// Prints the token, which is kept nowhere else, and its lines of configuration.
    ///
    /// # Errors
    /// Why there is no such token, in a sentence.
    pub fn print(&self, secret: &[u8; SECRET_BYTES], now: Timestamp) -> Result<String, String> {
        let token = format!("{PREFIX}{}", URL_SAFE_NO_PAD.encode(secret));
        let scopes = self
            .scopes
            .iter()
            .map(|word| quoted(&word.parse::<Scope>()?.to_string()));
        let scopes = scopes.collect::<Result<Vec<_>, String>>()?.join(", ");
        let expires = match self.expires.as_deref().map(time).transpose()? {
            Some(expires) if expires <= now => return Err(format!("{expires} is in the past")),
            Some(expires) => format!("expires = \"{expires}\"\n"),
            None => String::new(),
        };
        let (name, tenant) = (quoted(&self.name)?, quoted(&self.tenant)?);
        let sha256 = hex::encode(Sha256::digest(&token));
        let block = format!(
            "[[auth.tokens]]\nname = {name}\ntenant = {tenant}\nsha256 = \"{sha256}\"\nscopes = [{scopes}]\n{expires}",
        );
        Ok(format!("{token}\n\n{block}"))
    }
}

/// A text quoted as both TOML and JSON write it.
fn quoted(text: &str) -> Result<String, String> {
    if text.is_empty() || text.chars().any(char::is_control) {
        return Err(format!(
            "{text:?} is not a name: it must be some text in one line"
        ));
    }
    serde_json::to_string(text).map_err(|error| error.to_string())
}

fn time(text: &str) -> Result<Timestamp, String> {
    text.parse()
        .map_err(|_| format!("{text:?} is not a time; one looks like \"2027-01-01T00:00:00Z\""))
}

pub(super) fn tokens(mut section: Section<'_, '_>) -> Vec<Token> {
    let mut tokens: Vec<Token> = Vec::new();
    for mut section in section.list_of_sections("tokens") {
        if let Some(token) = token(&mut section) {
            check_beside(&section, &tokens, &token);
            tokens.push(token);
        }
    }
    tokens
}

fn token(section: &mut Section<'_, '_>) -> Option<Token> {
    let name: Option<String> = section.need("name");
    let tenant: Option<String> = section.need("tenant");
    let why = format!("{RESERVED_TENANT} is the gateway's own: no token may have it");
    section.check(tenant.as_deref() != Some(RESERVED_TENANT), "tenant", &why);
    section.require("sha256");
    let sha256 = section.parsed("sha256", token_digest);
    section.require("scopes");
    let scopes = section.each_parsed("scopes", str::parse::<Scope>);
    let expires = section.parsed("expires", time);
    let timings = Timings {
        rate: rate(section, "rate"),
        new_keys: rate(section, "new_keys"),
    };
    let caller = Caller {
        name: name?,
        tenant: tenant?,
        scopes,
        timings,
    };
    let is_both = caller.is_approver() && caller.may_call_any();
    section.check(!is_both, "scopes", CALLS_AND_APPROVES);
    Some(Token {
        sha256: sha256?,
        caller,
        expires,
    })
}

/// How fast a caller may be.
pub fn rate(section: &mut Section<'_, '_>, key: &'static str) -> Option<Rate> {
    let mut section = section.section(key)?;
    let mut count = |key| {
        let count: u32 = section.need(key)?;
        let why = format!("must be at most {MAX_RATE}");
        section.check(count <= MAX_RATE, key, &why);
        Some(count)
    };
    let (per_second, burst) = (count("per_second"), count("burst"));
    Some(Rate {
        per_second: per_second?,
        burst: burst?,
    })
}

/// Checks that tokens of one name are one caller.
fn check_beside(section: &Section<'_, '_>, others: &[Token], token: &Token) {
    let is_new = others.iter().all(|other| other.sha256 != token.sha256);
    section.check(is_new, "sha256", "another entry has the same token");
    let mut twins = others
        .iter()
        .filter(|other| other.caller.name == token.caller.name);
    let Some(twin) = twins.next() else { return };
    let why =
        "at most two tokens may have the same name, while one replaces the other; this is a third";
    section.check(twins.next().is_none(), "name", why);
    let why = "tokens with the same name must have the same tenant";
    section.check(twin.caller.tenant == token.caller.tenant, "tenant", why);
    let is_both =
        |one: &Token, other: &Token| one.caller.is_approver() && other.caller.may_call_any();
    let is_both = is_both(twin, token) || is_both(token, twin);
    section.check(!is_both, "scopes", CALLS_AND_APPROVES);
    let why =
        "tokens with the same name share their limits: rate and new_keys must be the same for both";
    section.check(twin.caller.timings == token.caller.timings, "name", why);
}
