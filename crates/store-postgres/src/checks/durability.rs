//! How durable a PostgreSQL is, judged by what it says of itself. Pure.

use serde::Deserialize;

use oncegate_store::shared::demand::{Class, Demand, Weakness};
use oncegate_store::{Durability, Reason};

/// The oldest version that works.
const OLDEST: u32 = 14;

/// The question whose answer is [`Facts`], as JSON.
pub(crate) const LOOK: &str = include_str!("../sql/facts.sql");

/// What a server says of itself.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub(crate) struct Facts {
    /// When the server was started, in microseconds: names its run.
    pub(crate) started_us: i64,
    pub(crate) clock_us: i64,
    version: String,
    is_in_recovery: bool,
    is_read_only: bool,
    fsync: bool,
    full_page_writes: bool,
    synchronous_commit: String,
    pub(crate) standby_names: String,
    checksums: bool,
    wal_level: String,
    encoding: String,
    is_monitor: bool,
    is_superuser: bool,
    standbys: i64,
    sync_standbys: i64,
}

/// The result of an inspection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Verdict {
    pub(crate) class: Class,
    /// Whether nothing at all may be written here.
    pub(crate) is_unfit: bool,
}

/// Judges a server.
pub(crate) fn judge(facts: &Facts, demand: Demand) -> Verdict {
    let mut class = Class {
        reasons: unfit(facts),
        warnings: warnings(facts),
        ..Class::strict()
    };
    let is_unfit = !class.reasons.is_empty();
    class.weaken(demand, weaknesses(facts, demand));
    if let (Some(declared), false) = (demand.declared, is_unfit) {
        let text = format!(
            "the operator has declared this PostgreSQL to be {}: that is not inspected",
            declared.as_str()
        );
        class.warnings.push(Reason::new("declared", text));
        class.durability = class.durability.min(declared);
    }
    Verdict { class, is_unfit }
}

/// Reasons that no demanded durability allows.
fn unfit(facts: &Facts) -> Vec<Reason> {
    let is_read_only = !facts.is_in_recovery && facts.is_read_only;
    let standby = "this PostgreSQL is a standby, not a primary: name the primary, or all of them";
    let read_only = "this PostgreSQL is read-only (default_transaction_read_only)";
    let name = &facts.encoding;
    let encoding = format!("the database has the encoding {name}; make one with UTF8");
    let reasons = [
        unusable(&facts.version).map(|why| Reason::new("version", why)),
        Reason::given(facts.is_in_recovery, "role", standby),
        Reason::given(is_read_only, "role", read_only),
        Reason::given(facts.encoding != "UTF8", "encoding", encoding),
    ];
    reasons.into_iter().flatten().collect()
}

/// Why a server of this `version()` is none to use, because it only speaks like PostgreSQL.
pub(crate) fn not_postgres(version: &str) -> Option<String> {
    let others = [
        ("CockroachDB", "CockroachDB"),
        ("YugabyteDB", "YugabyteDB"),
        ("-YB-", "YugabyteDB"),
    ];
    let (_, name) = others
        .into_iter()
        .find(|(word, _)| version.contains(word))?;
    Some(format!(
        "this is {name}, which only speaks like PostgreSQL: it has no advisory locks to rely on; use a PostgreSQL"
    ))
}

/// Why a server of this `version()` is none to use; `None`: its version is not why.
pub(crate) fn unusable(version: &str) -> Option<String> {
    not_postgres(version).or_else(|| {
        let name = version.split(" on ").next().unwrap_or_default();
        let number = name.strip_prefix("PostgreSQL ")?.split(['.', ' ']).next()?;
        let is_old = number.parse().is_ok_and(|number: u32| number < OLDEST);
        is_old.then(|| format!("{name} is too old; PostgreSQL {OLDEST} is the oldest"))
    })
}

/// The weaknesses of a server, each with the best class that it allows.
fn weaknesses(facts: &Facts, demand: Demand) -> Vec<Weakness> {
    use Durability::{Bounded, Relaxed, Strict};
    let is_replicated = !facts.standby_names.is_empty();
    let tears = !facts.full_page_writes;
    let may_lose = facts.standbys > 0 && !is_replicated && demand.declared != Some(Strict);
    let is_late = is_replicated && facts.synchronous_commit == "remote_write";
    let is_alone = is_replicated && facts.is_monitor && facts.sync_standbys == 0;
    let fsync = "fsync is off: a power loss loses writes, and may damage all data";
    let pages = "full_page_writes is off: a power loss may damage data";
    let replicas = "it has standbys and synchronous_standby_names is empty: a failover may lose the newest writes; if they are never \
                    promoted, declare that in store.declared_durability";
    let late =
        "synchronous_commit is remote_write: a standby may lose with power what it has not flushed";
    let alone = "no synchronous standby is connected, so no commit is answered";
    let weaknesses = [
        (Relaxed, Reason::given(!facts.fsync, "fsync", fsync)),
        (Relaxed, Reason::given(tears, "full_page_writes", pages)),
        (Relaxed, Reason::given(may_lose, "replicas", replicas)),
        (Bounded, Reason::given(is_late, "remote_write", late)),
        // Worse than every class.
        (Relaxed, Reason::given(is_alone, "no_standby", alone)),
    ];
    let found = weaknesses
        .into_iter()
        .filter_map(|(class, reason)| Some((class, reason?)));
    found.chain(demand.clock()).collect()
}

/// What does not change the class.
fn warnings(facts: &Facts) -> Vec<Reason> {
    let is_unseen = !facts.standby_names.is_empty() && !facts.is_monitor;
    let unseen = "the role is not a member of pg_monitor, so the state of standbys is not seen";
    let checksums = "data checksums are off: damage by a disk is noticed late";
    let minimal = "wal_level is minimal: no standby and no continuous backup can follow";
    let superuser = "the gateway is a superuser; a role that may do only what it needs is made by `oncegate store sql`";
    let warnings = [
        Reason::given(is_unseen, "no_monitor", unseen),
        Reason::given(!facts.checksums, "checksums", checksums),
        Reason::given(facts.wal_level == "minimal", "wal_level", minimal),
        Reason::given(facts.is_superuser, "superuser", superuser),
    ];
    warnings.into_iter().flatten().collect()
}

#[cfg(test)]
mod tests;
