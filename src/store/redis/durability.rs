//! The durability of a Redis, by its role, memory policy and fsync. Pure.

use std::collections::HashMap;

use crate::store::{Durability, Reason};

/// The oldest Redis: before it scripts have no flags and keys no permissions.
const OLDEST: (u32, u32) = (7, 0);
/// The share of the memory limit from which on nothing is claimed.
///
/// Outcomes still need room.
const FULL_PERCENT: u64 = 80;
/// The code of a server whose memory is nearly full.
pub(super) const MEMORY: &str = "memory";
/// How far the server's clock may be from this machine's, in microseconds.
const CLOCK_SLACK_US: u64 = 2_000_000;

/// The state of one master.
#[derive(Debug, Default)]
pub(super) struct Node {
    /// The fields of INFO.
    pub(super) info: HashMap<String, String>,
    /// The answer to CONFIG GET; `None` if that is not allowed.
    pub(super) config: Option<HashMap<String, String>>,
    /// Whether sentinels or the cluster may make a replica the master, connected or not.
    pub(super) fails_over: bool,
}

/// The demanded durability, and facts from elsewhere.
#[derive(Debug, Clone, Copy)]
pub(super) struct Demand {
    /// The least durability.
    pub(super) durability: Durability,
    /// The operator's declaration about a Redis that cannot be inspected.
    pub(super) declared: Option<Durability>,
    /// From this machine's clock to the server's, in microseconds; of several masters the furthest
    /// off.
    pub(super) clock_offset_us: i64,
}

/// The result of an inspection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Verdict {
    pub(super) durability: Durability,
    /// Why nothing may be claimed.
    pub(super) reasons: Vec<Reason>,
    /// Weaknesses that the demanded durability allows.
    pub(super) warnings: Vec<Reason>,
    /// How many replicas must have a write before it is acknowledged.
    pub(super) wait_for: u32,
}

/// Judges the masters, which together are as durable as the weakest of them.
pub(super) fn judge(nodes: &[Node], demand: Demand) -> Verdict {
    let verdicts = nodes.iter().map(|node| judge_one(node, demand));
    let whole = verdicts.reduce(|one, other| Verdict {
        durability: one.durability.min(other.durability),
        reasons: union(one.reasons, other.reasons),
        warnings: union(one.warnings, other.warnings),
        wait_for: one.wait_for.max(other.wait_for),
    });
    whole.unwrap_or_else(|| Verdict {
        durability: Durability::Relaxed,
        reasons: vec![Reason::new("no_master", "there is no master")],
        warnings: Vec::new(),
        wait_for: 0,
    })
}

fn judge_one(node: &Node, demand: Demand) -> Verdict {
    let mut reasons = fatal(node);
    let weak = weaknesses(node, demand);
    let found = weak
        .iter()
        .map(|(class, _)| *class)
        .min()
        .unwrap_or(Durability::Strict);
    let (refused, tolerated): (Vec<_>, Vec<_>) = weak
        .into_iter()
        .partition(|(class, _)| *class < demand.durability);
    reasons.extend(refused.into_iter().map(|(_, reason)| reason));
    let mut warnings: Vec<Reason> = tolerated.into_iter().map(|(_, reason)| reason).collect();
    if node.is_set("aof-load-truncated", "yes") {
        let text = "aof-load-truncated is yes: after a crash the newest writes may be dropped without a word, which \
                    the counters then notice";
        warnings.push(Reason::new("aof_truncated", text));
    }
    // Also while something else is amiss: what runs must still be written as it was promised.
    let may_fail_over =
        node.fails_over || (demand.durability == Durability::Bounded && node.has_replicas());
    let wait_for = if may_fail_over && demand.durability >= Durability::Bounded {
        node.min_replicas().max(1)
    } else {
        0
    };
    Verdict {
        durability: found,
        reasons,
        warnings,
        wait_for,
    }
}

/// Reasons that no demanded durability allows.
fn fatal(node: &Node) -> Vec<Reason> {
    let mut reasons = Vec::new();
    let mut because = |code, text: String| reasons.push(Reason::new(code, text));
    let version = node.info("redis_version");
    let mut parts = version.split('.').map(|part| part.parse().unwrap_or(0));
    if (parts.next().unwrap_or(0), parts.next().unwrap_or(0)) < OLDEST {
        because(
            "version",
            format!(
                "Redis {version} is too old; {}.{} is the oldest",
                OLDEST.0, OLDEST.1
            ),
        );
    }
    let role = node.info("role");
    if role != "master" {
        because("role", format!("this Redis is a {role}, not a master"));
    }
    let policy = node.info("maxmemory_policy");
    if policy != "noeviction" {
        because(
            "eviction",
            format!("maxmemory-policy is {policy}: it deletes keys; it must be noeviction"),
        );
    }
    if node.info("loading") == "1" {
        because("loading", "Redis is loading its data".into());
    }
    if node.info("aof_enabled") == "1" && node.info("aof_last_write_status") == "err" {
        because(
            "aof_error",
            "Redis cannot write its append-only file".into(),
        );
    }
    let (good, needed) = (node.info("min_slaves_good_slaves"), node.min_replicas());
    if good.parse().is_ok_and(|good: u32| good < needed) {
        because(
            "replicas",
            format!("{good} replicas are connected and keep up; min-replicas-to-write is {needed}"),
        );
    }
    let (used, limit) = (node.number("used_memory"), node.number("maxmemory"));
    if limit > 0 && used.saturating_mul(100) >= limit.saturating_mul(FULL_PERCENT) {
        because(
            MEMORY,
            format!(
                "Redis uses {used} of {limit} bytes; from {FULL_PERCENT} % on nothing new is taken"
            ),
        );
    }
    reasons
}

/// The weaknesses of a master, each with the best class that it allows.
fn weaknesses(node: &Node, demand: Demand) -> Vec<(Durability, Reason)> {
    use Durability::{Bounded, Relaxed, Strict};
    let mut weak = Vec::new();
    let mut allows = |class, code, text: &str| weak.push((class, Reason::new(code, text)));
    let replicas = node.number("connected_slaves");
    if node.info("aof_enabled") != "1" {
        allows(
            Relaxed,
            "no_aof",
            "appendonly is off: a restart loses everything since the last snapshot",
        );
    } else if node.config.is_some() && !node.is_set("appendfsync", "always") {
        allows(
            Relaxed,
            "fsync",
            "appendfsync is not always: a power loss loses the last seconds",
        );
    }
    if node.is_set("no-appendfsync-on-rewrite", "yes") {
        allows(
            Relaxed,
            "fsync_on_rewrite",
            "no-appendfsync-on-rewrite is yes: during a rewrite nothing is synced",
        );
    }
    if node.config.is_none() {
        let text = "CONFIG is not allowed, so how durable this Redis is cannot be seen; store.declared_durability \
                    says it in its stead";
        let class = demand.declared.unwrap_or(Relaxed);
        if class < Strict || demand.declared.is_none() {
            allows(class, "undeclared", text);
        }
    } else if (replicas > 0 || node.fails_over) && node.min_replicas() == 0 {
        allows(
            Relaxed,
            "replicas",
            "it has replicas and min-replicas-to-write is 0: a failover may lose the newest writes",
        );
    }
    if node.fails_over || (node.has_replicas() && demand.durability == Bounded) {
        allows(
            Bounded,
            "failover",
            "a failover may lose what no replica has yet, so WAIT is asked for each write",
        );
    }
    if demand.clock_offset_us.unsigned_abs() > CLOCK_SLACK_US {
        let text = format!(
            "its clock is {} ms away from this machine's",
            demand.clock_offset_us / 1_000
        );
        allows(Relaxed, "clock", &text);
    }
    weak
}

impl Node {
    fn info(&self, field: &str) -> &str {
        self.info.get(field).map_or("", String::as_str)
    }

    fn number(&self, field: &str) -> u64 {
        self.info(field).parse().unwrap_or(0)
    }

    fn is_set(&self, setting: &str, value: &str) -> bool {
        self.config
            .as_ref()
            .is_some_and(|config| config.get(setting).is_some_and(|have| have == value))
    }

    fn has_replicas(&self) -> bool {
        self.number("connected_slaves") > 0 || self.min_replicas() > 0
    }

    fn min_replicas(&self) -> u32 {
        let config = self
            .config
            .as_ref()
            .and_then(|config| config.get("min-replicas-to-write"));
        config.and_then(|number| number.parse().ok()).unwrap_or(0)
    }
}

fn union(mut one: Vec<Reason>, other: Vec<Reason>) -> Vec<Reason> {
    for reason in other {
        if !one.contains(&reason) {
            one.push(reason);
        }
    }
    one
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(pairs: &[(&str, &str)]) -> HashMap<String, String> {
        pairs
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
            .collect()
    }

    fn strict() -> Node {
        let info = words(&[
            ("redis_version", "7.0.15"),
            ("role", "master"),
            ("maxmemory_policy", "noeviction"),
            ("loading", "0"),
            ("aof_enabled", "1"),
            ("aof_last_write_status", "ok"),
            ("used_memory", "79"),
            ("maxmemory", "100"),
            ("connected_slaves", "0"),
        ]);
        let config = words(&[
            ("appendfsync", "always"),
            ("no-appendfsync-on-rewrite", "no"),
            ("min-replicas-to-write", "0"),
        ]);
        Node {
            info,
            config: Some(config),
            fails_over: false,
        }
    }

    const ASKED: Demand = Demand {
        durability: Durability::Strict,
        declared: None,
        clock_offset_us: 0,
    };

    fn codes(reasons: &[Reason]) -> Vec<&str> {
        reasons.iter().map(|reason| reason.code).collect()
    }

    #[test]
    fn a_strict_one_is_strict_and_one_bad_master_spoils_it() {
        let good = judge(&[strict(), strict()], ASKED);
        assert_eq!(
            (good.durability, good.reasons, good.wait_for),
            (Durability::Strict, vec![], 0)
        );
        let mut bad = strict();
        bad.info
            .insert("maxmemory_policy".into(), "allkeys-lru".into());
        assert_eq!(codes(&judge(&[strict(), bad], ASKED).reasons), ["eviction"]);
        assert_eq!(codes(&judge(&[], ASKED).reasons), ["no_master"]);
    }

    #[test]
    fn what_no_demand_makes_good_is_a_reason_under_every_demand() {
        for (field, value, code) in [
            ("redis_version", "6.2.7", "version"),
            ("role", "slave", "role"),
            ("maxmemory_policy", "volatile-ttl", "eviction"),
            ("loading", "1", "loading"),
            ("aof_last_write_status", "err", "aof_error"),
            ("used_memory", "80", "memory"),
        ] {
            for durability in Durability::ALL {
                let mut node = strict();
                node.info.insert(field.into(), value.into());
                let verdict = judge(
                    &[node],
                    Demand {
                        durability,
                        ..ASKED
                    },
                );
                assert_eq!(codes(&verdict.reasons), [code], "{field} {durability:?}");
            }
        }
    }

    #[test]
    fn a_weakness_is_a_reason_for_a_class_that_asks_for_more_and_a_warning_for_the_rest() {
        let set = |setting: &str, value: &str| {
            let mut node = strict();
            node.config
                .as_mut()
                .expect("a config")
                .insert(setting.into(), value.into());
            node
        };
        let without_aof = || {
            let mut node = strict();
            node.info.insert("aof_enabled".into(), "0".into());
            node
        };
        let with_replica = || {
            let mut node = strict();
            node.info.insert("connected_slaves".into(), "1".into());
            node
        };
        for (node, code) in [
            (set("appendfsync", "everysec"), "fsync"),
            (set("no-appendfsync-on-rewrite", "yes"), "fsync_on_rewrite"),
            (without_aof(), "no_aof"),
            (with_replica(), "replicas"),
        ] {
            let nodes = [node];
            for durability in [Durability::Strict, Durability::Bounded] {
                assert_eq!(
                    codes(
                        &judge(
                            &nodes,
                            Demand {
                                durability,
                                ..ASKED
                            }
                        )
                        .reasons
                    ),
                    [code]
                );
            }
            let relaxed = judge(
                &nodes,
                Demand {
                    durability: Durability::Relaxed,
                    ..ASKED
                },
            );
            assert_eq!(
                (relaxed.durability, codes(&relaxed.reasons)),
                (Durability::Relaxed, vec![])
            );
            assert_eq!(codes(&relaxed.warnings), [code]);
        }
        let late = Demand {
            clock_offset_us: -2_000_001,
            ..ASKED
        };
        assert_eq!(codes(&judge(&[strict()], late).reasons), ["clock"]);
    }

    #[test]
    fn where_a_failover_may_happen_a_replica_must_have_each_write() {
        let replicated = |fails_over, connected: &str, needed: &str| {
            let mut node = Node {
                fails_over,
                ..strict()
            };
            node.info
                .insert("connected_slaves".into(), connected.into());
            node.config
                .as_mut()
                .expect("a config")
                .insert("min-replicas-to-write".into(), needed.into());
            [node]
        };
        let bounded = Demand {
            durability: Durability::Bounded,
            ..ASKED
        };
        let verdict = judge(&replicated(true, "2", "1"), bounded);
        assert_eq!(
            (verdict.durability, verdict.wait_for, verdict.reasons),
            (Durability::Bounded, 1, vec![])
        );
        assert_eq!(
            codes(&judge(&replicated(true, "2", "1"), ASKED).reasons),
            ["failover"]
        );
        let alone = judge(&replicated(false, "1", "1"), ASKED);
        assert_eq!(
            (alone.durability, alone.wait_for),
            (Durability::Strict, 0),
            "no failover behind our back"
        );
        // The replica that is away just now may be promoted all the same.
        for connected in ["0", "1"] {
            for durability in [Durability::Strict, Durability::Bounded] {
                let verdict = judge(
                    &replicated(true, connected, "0"),
                    Demand {
                        durability,
                        ..ASKED
                    },
                );
                assert_eq!(
                    codes(&verdict.reasons)[0],
                    "replicas",
                    "{connected} {durability:?}"
                );
            }
        }
        let late = judge(
            &replicated(true, "1", "1"),
            Demand {
                clock_offset_us: 3_000_000,
                ..bounded
            },
        );
        assert_eq!(codes(&late.reasons), ["clock"]);
        assert_eq!(
            late.wait_for, 1,
            "outcomes are waited for, whatever else is amiss"
        );
    }

    #[test]
    fn a_redis_that_does_not_let_itself_be_looked_at_is_what_its_operator_says() {
        let nodes = [Node {
            config: None,
            ..strict()
        }];
        assert_eq!(codes(&judge(&nodes, ASKED).reasons), ["undeclared"]);
        let declared = Demand {
            declared: Some(Durability::Strict),
            ..ASKED
        };
        let fails_over = [Node {
            config: None,
            fails_over: true,
            ..strict()
        }];
        assert_eq!(
            codes(&judge(&fails_over, declared).reasons),
            ["failover"],
            "no word makes that strict"
        );
        let verdict = judge(&nodes, declared);
        assert_eq!(
            (verdict.durability, verdict.reasons),
            (Durability::Strict, vec![])
        );
        let less = Demand {
            declared: Some(Durability::Bounded),
            ..ASKED
        };
        assert_eq!(codes(&judge(&nodes, less).reasons), ["undeclared"]);
    }
}
