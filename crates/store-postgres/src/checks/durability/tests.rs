use super::*;

fn strict() -> Facts {
    Facts {
        started_us: 1,
        clock_us: 2,
        version: "PostgreSQL 15.18 on x86_64".into(),
        is_in_recovery: false,
        is_read_only: false,
        fsync: true,
        full_page_writes: true,
        synchronous_commit: "on".into(),
        standby_names: String::new(),
        checksums: true,
        wal_level: "replica".into(),
        encoding: "UTF8".into(),
        is_monitor: true,
        is_superuser: false,
        standbys: 0,
        sync_standbys: 0,
    }
}

fn replicated() -> Facts {
    Facts {
        standby_names: "ANY 1 (*)".into(),
        standbys: 1,
        sync_standbys: 1,
        ..strict()
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
fn a_primary_alone_or_with_a_synchronous_standby_is_strict() {
    for facts in [strict(), replicated()] {
        let verdict = judge(&facts, DEMAND);
        assert_eq!(verdict.class.durability, Durability::Strict, "{facts:?}");
        assert_eq!(
            (verdict.class.reasons, verdict.class.warnings),
            (vec![], vec![])
        );
    }
    let unseen = Facts {
        is_monitor: false,
        sync_standbys: 0,
        ..replicated()
    };
    let verdict = judge(&unseen, DEMAND);
    assert_eq!(
        (
            codes(&verdict.class.reasons),
            codes(&verdict.class.warnings)
        ),
        (vec![], vec!["no_monitor"])
    );
}

#[test]
fn a_server_that_cannot_be_a_store_is_refused_under_every_demand() {
    let version = |text: &str| Facts {
        version: text.into(),
        ..strict()
    };
    for (facts, code) in [
        (version("PostgreSQL 13.9 on x86_64"), "version"),
        (version("CockroachDB CCL v23.1"), "version"),
        (version("PostgreSQL 11.2-YB-2.15 on x86"), "version"),
        (
            Facts {
                is_in_recovery: true,
                is_read_only: true,
                ..strict()
            },
            "role",
        ),
        (
            Facts {
                is_read_only: true,
                ..strict()
            },
            "role",
        ),
        (
            Facts {
                encoding: "SQL_ASCII".into(),
                ..strict()
            },
            "encoding",
        ),
    ] {
        for durability in Durability::ALL {
            let verdict = judge(
                &facts,
                Demand {
                    durability,
                    ..DEMAND
                },
            );
            assert_eq!(codes(&verdict.class.reasons), [code], "{facts:?}");
            assert!(verdict.is_unfit);
        }
    }
}

#[test]
fn a_weakness_is_a_reason_where_more_is_demanded_and_otherwise_a_warning() {
    let off = Demand {
        clock_offset_us: -2_000_001,
        ..DEMAND
    };
    for (facts, demand, class, code) in [
        (
            Facts {
                fsync: false,
                ..strict()
            },
            DEMAND,
            Durability::Relaxed,
            "fsync",
        ),
        (
            Facts {
                full_page_writes: false,
                ..strict()
            },
            DEMAND,
            Durability::Relaxed,
            "full_page_writes",
        ),
        (
            Facts {
                standbys: 1,
                ..strict()
            },
            DEMAND,
            Durability::Relaxed,
            "replicas",
        ),
        (
            Facts {
                synchronous_commit: "remote_write".into(),
                ..replicated()
            },
            DEMAND,
            Durability::Bounded,
            "remote_write",
        ),
        (
            Facts {
                sync_standbys: 0,
                ..replicated()
            },
            DEMAND,
            Durability::Relaxed,
            "no_standby",
        ),
        (strict(), off, Durability::Relaxed, "clock"),
    ] {
        for durability in Durability::ALL {
            let verdict = judge(
                &facts,
                Demand {
                    durability,
                    ..demand
                },
            );
            let (reasons, warnings) = (
                codes(&verdict.class.reasons),
                codes(&verdict.class.warnings),
            );
            let expected = [code];
            assert_eq!(verdict.class.durability, class, "{code}");
            if class < durability {
                assert_eq!(
                    (&reasons[..], &warnings[..]),
                    (&expected[..], &[][..]),
                    "{code}"
                );
            } else {
                assert_eq!(
                    (&reasons[..], &warnings[..]),
                    (&[][..], &expected[..]),
                    "{code}"
                );
            }
            assert!(!verdict.is_unfit);
        }
    }
}

#[test]
fn what_an_operator_declares_is_said_and_raises_no_class() {
    let declared = |class| Demand {
        declared: Some(class),
        ..DEMAND
    };
    let followed = Facts {
        standbys: 1,
        ..strict()
    };
    let verdict = judge(&followed, declared(Durability::Strict));
    assert_eq!(
        (verdict.class.durability, codes(&verdict.class.warnings)),
        (Durability::Strict, vec!["declared"])
    );
    let verdict = judge(&strict(), declared(Durability::Bounded));
    assert_eq!(verdict.class.durability, Durability::Bounded);
    let verdict = judge(
        &Facts {
            fsync: false,
            ..strict()
        },
        declared(Durability::Strict),
    );
    assert_eq!(
        (verdict.class.durability, codes(&verdict.class.reasons)),
        (Durability::Relaxed, vec!["fsync"])
    );
}

#[test]
fn what_changes_no_class_is_a_warning() {
    for (facts, code) in [
        (
            Facts {
                checksums: false,
                ..strict()
            },
            "checksums",
        ),
        (
            Facts {
                wal_level: "minimal".into(),
                ..strict()
            },
            "wal_level",
        ),
        (
            Facts {
                is_superuser: true,
                ..strict()
            },
            "superuser",
        ),
    ] {
        let verdict = judge(&facts, DEMAND);
        assert_eq!(
            (verdict.class.durability, codes(&verdict.class.warnings)),
            (Durability::Strict, vec![code])
        );
    }
}

#[test]
fn what_is_no_postgres_or_an_old_one_is_named() {
    for (version, word) in [
        (
            "CockroachDB CCL v23.1.11 (x86_64-pc-linux-gnu)",
            "this is CockroachDB",
        ),
        (
            "PostgreSQL 11.2-YB-2.21.0.0-b0 on x86_64",
            "this is YugabyteDB",
        ),
        (
            "PostgreSQL 9.6.24 on x86_64",
            "PostgreSQL 9.6.24 is too old",
        ),
        (
            "PostgreSQL 13.23 (Debian 13.23-0+deb11u1) on x86_64",
            "is too old",
        ),
    ] {
        let why = unusable(version);
        assert!(why.is_some_and(|why| why.contains(word)), "{version}");
    }
    for version in [
        "PostgreSQL 14.0 on x86_64",
        "PostgreSQL 18devel on aarch64",
        "",
    ] {
        assert_eq!(unusable(version), None, "{version}");
    }
}
