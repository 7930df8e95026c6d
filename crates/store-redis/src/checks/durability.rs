//! Whether a Redis may be used, and how durable it is: version, role, memory, replicas, fsync. Pure.

use std::collections::HashMap;

use oncegate_store::shared::demand::{Class, Demand, Weakness};
use oncegate_store::{Durability, Reason};

/// The oldest version that works: earlier ones have no flags of scripts and no permissions of keys.
const OLDEST: (u32, u32) = (7, 0);
/// The share of the memory limit from which on nothing is claimed, so that outcomes have room.
const FULL_PERCENT: u64 = 80;
/// The code of a server whose memory is nearly full.
pub(crate) const MEMORY: &str = "memory";

/// The state of one master.
#[derive(Debug, Default)]
pub(crate) struct Node {
    /// The fields of `INFO`.
    pub(crate) info: HashMap<String, String>,
    /// The answer to `CONFIG GET`; `None` if that is not allowed.
    pub(crate) config: Option<HashMap<String, String>>,
    /// Whether sentinels or the cluster may make a replica the master, connected or not.
    pub(crate) fails_over: bool,
}

/// The result of an inspection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Verdict {
    pub(crate) class: Class,
    /// How many replicas must have a write before it is acknowledged.
    pub(crate) wait_for: u32,
}

/// Judges the masters, which together are as durable as the weakest of them.
pub(crate) fn judge(nodes: &[Node], demand: Demand) -> Verdict {
    let (mut class, mut wait_for) = (Class::strict(), 0);
    if nodes.is_empty() {
        class.durability = Durability::Relaxed;
        let reason = Reason::new("no_master", "there is no master");
        class.reasons.push(reason);
    }
    for node in nodes {
        class.reasons.extend(fatal(node));
        class.weaken(demand, weaknesses(node, demand));
        if node.setting("aof-load-truncated") == Some("yes") {
            let text = "aof-load-truncated is yes: after a crash the newest writes may be dropped without a word, which \
                        the counters then notice";
            class.warnings.push(Reason::new("aof_truncated", text));
        }
        // Whatever else is amiss: the outcomes of running calls must still be written as promised.
        let may_fail_over =
            node.fails_over || (demand.durability == Durability::Bounded && node.has_replicas());
        if may_fail_over && demand.durability >= Durability::Bounded {
            wait_for = wait_for.max(node.min_replicas().max(1));
        }
    }
    remove_repeats(&mut class.reasons);
    remove_repeats(&mut class.warnings);
    Verdict { class, wait_for }
}

/// Reasons that no demanded durability allows.
fn fatal(node: &Node) -> Vec<Reason> {
    let (version, role) = (node.info("redis_version"), node.info("role"));
    let mut numbers = version.split('.').map(|part| part.parse().unwrap_or(0));
    let number = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    let policy = node.info("maxmemory_policy");
    let aof_fails = node.info("aof_enabled") == "1" && node.info("aof_last_write_status") == "err";
    let (good, needed) = (node.info("min_slaves_good_slaves"), node.min_replicas());
    let (used, limit) = (node.number("used_memory"), node.number("maxmemory"));
    let is_full = limit > 0 && used.saturating_mul(100) >= limit.saturating_mul(FULL_PERCENT);
    let mut reasons = Vec::new();
    let mut refuse_if = |is_so: bool, code, text: String| {
        reasons.extend(is_so.then(|| Reason::new(code, text)));
    };
    let oldest = format!("{}.{}", OLDEST.0, OLDEST.1);
    let text = format!("Redis {version} is too old; {oldest} is the oldest");
    refuse_if(number < OLDEST, "version", text);
    let text = format!("this Redis is a {role}, not a master");
    refuse_if(role != "master", "role", text);
    let text = format!("maxmemory-policy is {policy}: it deletes keys; it must be noeviction");
    refuse_if(policy != "noeviction", "eviction", text);
    let is_loading = node.info("loading") == "1";
    refuse_if(is_loading, "loading", "Redis is loading its data".into());
    let text = "Redis cannot write its append-only file";
    refuse_if(aof_fails, "aof_error", text.into());
    let are_missing = good.parse().is_ok_and(|good: u32| good < needed);
    let text =
        format!("{good} replicas are connected and keep up; min-replicas-to-write is {needed}");
    refuse_if(are_missing, "replicas", text);
    let text = format!(
        "Redis uses {used} of {limit} bytes; from {FULL_PERCENT} % on nothing new is taken"
    );
    refuse_if(is_full, MEMORY, text);
    reasons
}

/// The weaknesses of a master, each with the best class that it allows.
fn weaknesses(node: &Node, demand: Demand) -> Vec<Weakness> {
    use Durability::{Bounded, Relaxed, Strict};
    let has_aof = node.info("aof_enabled") == "1";
    let is_inspected = node.config.is_some();
    let may_fail_over = node.number("connected_slaves") > 0 || node.fails_over;
    let mut weaknesses = Vec::new();
    let mut weak_if = |is_so: bool, class, code, text: &str| {
        weaknesses.extend(is_so.then(|| (class, Reason::new(code, text))));
    };
    let text = "appendonly is off: a restart loses everything since the last snapshot";
    weak_if(!has_aof, Relaxed, "no_aof", text);
    let syncs_always = !is_inspected || node.setting("appendfsync") == Some("always");
    let text = "appendfsync is not always: a power loss loses the last seconds";
    weak_if(has_aof && !syncs_always, Relaxed, "fsync", text);
    let pauses_sync = node.setting("no-appendfsync-on-rewrite") == Some("yes");
    let text = "no-appendfsync-on-rewrite is yes: during a rewrite nothing is synced";
    weak_if(pauses_sync, Relaxed, "fsync_on_rewrite", text);
    let is_undeclared = !is_inspected && demand.declared != Some(Strict);
    let declared = demand.declared.unwrap_or(Relaxed);
    let text = "CONFIG is not allowed, so the durability of this Redis cannot be inspected; declare it in \
                store.declared_durability";
    weak_if(is_undeclared, declared, "undeclared", text);
    let loses_writes = is_inspected && may_fail_over && node.min_replicas() == 0;
    let text =
        "it has replicas and min-replicas-to-write is 0: a failover may lose the newest writes";
    weak_if(loses_writes, Relaxed, "replicas", text);
    let needs_wait = node.fails_over || (node.has_replicas() && demand.durability == Bounded);
    let text = "a failover may lose what no replica has yet, so WAIT is asked for each write";
    weak_if(needs_wait, Bounded, "failover", text);
    weaknesses.extend(demand.clock());
    weaknesses
}

impl Node {
    fn info(&self, field: &str) -> &str {
        self.info.get(field).map_or("", String::as_str)
    }

    fn number(&self, field: &str) -> u64 {
        self.info(field).parse().unwrap_or(0)
    }

    fn setting(&self, name: &str) -> Option<&str> {
        self.config.as_ref()?.get(name).map(String::as_str)
    }

    fn has_replicas(&self) -> bool {
        self.number("connected_slaves") > 0 || self.min_replicas() > 0
    }

    fn min_replicas(&self) -> u32 {
        let setting = self.setting("min-replicas-to-write");
        setting.and_then(|number| number.parse().ok()).unwrap_or(0)
    }
}

/// Several masters may have the same weakness.
fn remove_repeats(reasons: &mut Vec<Reason>) {
    let mut seen = Vec::new();
    reasons.retain(|reason| {
        let is_new = !seen.contains(reason);
        seen.extend(is_new.then(|| reason.clone()));
        is_new
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields(pairs: &[(&str, &str)]) -> HashMap<String, String> {
        pairs
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
            .collect()
    }

    fn strict() -> Node {
        let info = fields(&[
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
        let config = fields(&[
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

    const DEMAND: Demand = Demand {
        durability: Durability::Strict,
        declared: None,
        clock_offset_us: 0,
    };

    fn codes(reasons: &[Reason]) -> Vec<&str> {
        reasons.iter().map(|reason| reason.code).collect()
    }

    #[test]
    fn a_strict_redis_is_strict_and_one_unfit_master_makes_all_unfit() {
        let good = judge(&[strict(), strict()], DEMAND);
        assert_eq!(
            (good.class.durability, good.class.reasons, good.wait_for),
            (Durability::Strict, vec![], 0)
        );
        let mut bad = strict();
        bad.info
            .insert("maxmemory_policy".into(), "allkeys-lru".into());
        assert_eq!(
            codes(&judge(&[strict(), bad], DEMAND).class.reasons),
            ["eviction"]
        );
        assert_eq!(codes(&judge(&[], DEMAND).class.reasons), ["no_master"]);
    }

    #[test]
    fn a_fatal_state_is_a_reason_under_every_demanded_durability() {
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
                        ..DEMAND
                    },
                );
                assert_eq!(
                    codes(&verdict.class.reasons),
                    [code],
                    "{field} {durability:?}"
                );
            }
        }
    }

    #[test]
    fn a_weakness_is_a_reason_where_more_is_demanded_and_otherwise_a_warning() {
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
                                ..DEMAND
                            }
                        )
                        .class
                        .reasons
                    ),
                    [code]
                );
            }
            let relaxed = judge(
                &nodes,
                Demand {
                    durability: Durability::Relaxed,
                    ..DEMAND
                },
            );
            assert_eq!(
                (relaxed.class.durability, codes(&relaxed.class.reasons)),
                (Durability::Relaxed, vec![])
            );
            assert_eq!(codes(&relaxed.class.warnings), [code]);
        }
        let late = Demand {
            clock_offset_us: -2_000_001,
            ..DEMAND
        };
        assert_eq!(codes(&judge(&[strict()], late).class.reasons), ["clock"]);
    }

    #[test]
    fn if_a_failover_may_happen_a_replica_must_have_each_write() {
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
            ..DEMAND
        };
        let verdict = judge(&replicated(true, "2", "1"), bounded);
        assert_eq!(
            (
                verdict.class.durability,
                verdict.wait_for,
                verdict.class.reasons
            ),
            (Durability::Bounded, 1, vec![])
        );
        assert_eq!(
            codes(&judge(&replicated(true, "2", "1"), DEMAND).class.reasons),
            ["failover"]
        );
        let alone = judge(&replicated(false, "1", "1"), DEMAND);
        assert_eq!(
            (alone.class.durability, alone.wait_for),
            (Durability::Strict, 0),
            "no failover without an operator"
        );
        // A replica that is not connected may be promoted all the same.
        for connected in ["0", "1"] {
            for durability in [Durability::Strict, Durability::Bounded] {
                let verdict = judge(
                    &replicated(true, connected, "0"),
                    Demand {
                        durability,
                        ..DEMAND
                    },
                );
                assert_eq!(
                    codes(&verdict.class.reasons)[0],
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
        assert_eq!(codes(&late.class.reasons), ["clock"]);
        assert_eq!(
            late.wait_for, 1,
            "outcomes wait for a replica, whatever else is amiss"
        );
    }

    #[test]
    fn a_redis_that_forbids_config_is_as_durable_as_its_operator_declares() {
        let nodes = [Node {
            config: None,
            ..strict()
        }];
        assert_eq!(codes(&judge(&nodes, DEMAND).class.reasons), ["undeclared"]);
        let declared = Demand {
            declared: Some(Durability::Strict),
            ..DEMAND
        };
        let fails_over = [Node {
            config: None,
            fails_over: true,
            ..strict()
        }];
        assert_eq!(
            codes(&judge(&fails_over, declared).class.reasons),
            ["failover"],
            "no declaration makes a failover strict"
        );
        let verdict = judge(&nodes, declared);
        assert_eq!(
            (verdict.class.durability, verdict.class.reasons),
            (Durability::Strict, vec![])
        );
        let less = Demand {
            declared: Some(Durability::Bounded),
            ..DEMAND
        };
        assert_eq!(codes(&judge(&nodes, less).class.reasons), ["undeclared"]);
    }

    #[test]
    fn a_bounded_write_waits_for_as_many_replicas_as_the_master_demands() {
        for (fails_over, connected, needed, wait_for) in [
            (false, "0", "0", 0),
            (false, "1", "0", 1),
            (false, "0", "1", 1),
            (false, "2", "2", 2),
            (true, "0", "0", 1),
        ] {
            let mut node = strict();
            node.fails_over = fails_over;
            let (info, config) = (&mut node.info, node.config.as_mut().expect("a config"));
            info.insert("connected_slaves".into(), connected.into());
            config.insert("min-replicas-to-write".into(), needed.into());
            let durability = Durability::Bounded;
            let demand = Demand {
                durability,
                ..DEMAND
            };
            let verdict = judge(&[strict(), node], demand);
            assert_eq!(
                verdict.wait_for, wait_for,
                "{fails_over} {connected} {needed}"
            );
        }
    }

    #[test]
    fn what_is_just_enough_is_no_reason() {
        let mut unlimited = strict();
        unlimited.info.insert("maxmemory".into(), "0".into());
        assert_eq!(judge(&[unlimited], DEMAND).class.reasons, []);
        for (good, reasons) in [("0", &["replicas"][..]), ("1", &[]), ("2", &[])] {
            let mut node = strict();
            node.info
                .insert("min_slaves_good_slaves".into(), good.into());
            let config = node.config.as_mut().expect("a config");
            config.insert("min-replicas-to-write".into(), "1".into());
            assert_eq!(
                codes(&judge(&[node], DEMAND).class.reasons),
                reasons,
                "{good}"
            );
        }
        for (clock_offset_us, text) in [
            (2_000_000, None),
            (-2_000_000, None),
            (
                2_345_678,
                Some("its clock is 2345 ms away from this machine's"),
            ),
        ] {
            let late = Demand {
                clock_offset_us,
                ..DEMAND
            };
            let found = judge(&[strict(), strict()], late).class.reasons;
            let texts: Vec<&str> = found.iter().map(|reason| &*reason.text).collect();
            assert_eq!(texts, Vec::from_iter(text), "each once");
        }
    }
}
