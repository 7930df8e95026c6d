use super::format::FORMAT;
use super::*;

const NEW: Format = Format::begun(FORMAT);

fn whole(epoch: &str, writes: u64) -> Sight {
    let manifest = Manifest {
        epoch: epoch.into(),
        complete: true,
        ..Manifest::after(&["older"], NEW)
    };
    Sight {
        manifest: Some(manifest),
        epochs: vec![epoch.into(); PARTITIONS.into()],
        writes: known(writes),
        forgotten: Writes::default(),
        tokens: BTreeMap::new(),
    }
}

/// The counts of two gateways, in every partition.
fn known(writes: u64) -> Writes {
    let mut known = Writes::default();
    for partition in Partition::all() {
        known.count("me", partition, writes);
        known.count("other", partition, writes);
    }
    known
}

fn partition(number: usize) -> Partition {
    Partition::all().nth(number).expect("a partition")
}

fn missing(finding: Finding) -> Option<u64> {
    match finding {
        Finding::Lost { writes, .. } => Some(writes),
        _ => None,
    }
}

#[test]
fn a_store_that_has_all_remembered_writes_is_whole() {
    assert_eq!(
        compare(&whole("e", 5), "e", &known(5), FORMAT),
        Finding::Whole
    );
    let later = compare(&whole("e", 6), "e", &known(5), FORMAT);
    assert_eq!(later, Finding::Whole, "written during the inspection");
}

#[test]
fn missing_writes_are_counted() {
    for gateway in ["me", "other"] {
        let mut more = known(5);
        more.count(gateway, partition(7), 8);
        assert_eq!(
            missing(compare(&whole("e", 5), "e", &more, FORMAT)),
            Some(3)
        );
    }
}

#[test]
fn the_writes_of_a_forgotten_gateway_are_missing_only_beyond_its_last_counts() {
    let mut sight = whole("e", 5);
    sight.writes = Writes::default();
    Partition::all().for_each(|at| sight.writes.count("me", at, 9));
    assert_eq!(sight.writes.gateways().collect::<Vec<_>>(), ["me"]);
    assert_eq!(known(5).absent_from(&sight.writes), ["other"]);
    assert_eq!(
        missing(compare(&sight, "e", &known(5), FORMAT)),
        Some(5 * 64),
        "no last counts were written"
    );
    for (last, lost) in [(5, None), (7, None), (4, Some(64))] {
        sight.forgotten = Writes::default();
        Partition::all().for_each(|at| sight.forgotten.count("other", at, last));
        assert_eq!(
            missing(compare(&sight, "e", &known(5), FORMAT)),
            lost,
            "{last}"
        );
    }
    // Last counts do not hide that a counter is there again and too low.
    let mut set_back = sight.clone();
    Partition::all().for_each(|at| set_back.forgotten.count("other", at, 7));
    assert_eq!(compare(&set_back, "e", &known(5), FORMAT), Finding::Whole);
    set_back.writes.count("other", partition(9), 3);
    assert_eq!(missing(compare(&set_back, "e", &known(5), FORMAT)), Some(2));
    // The gateway is remembered until no partition has a counter of it.
    let mut remembered = known(5);
    let mut half = sight.writes.clone();
    half.count("other", partition(63), 5);
    remembered.forget_absent(&half, "me");
    assert_eq!(remembered, known(5));
    remembered.forget_absent(&sight.writes, "me");
    assert_eq!(remembered.gateways().collect::<Vec<_>>(), ["me"]);
    remembered.forget_absent(&Writes::default(), "me");
    assert_eq!(remembered.of("me", partition(0)), 5, "never its own");
}

#[test]
fn a_loss_that_one_gateway_has_found_closes_the_store_for_all() {
    let mut sight = whole("e", 5);
    let manifest = sight.manifest.as_mut().expect("a manifest");
    manifest.lost = "the newest 3 writes are missing".into();
    assert_eq!(missing(compare(&sight, "e", &known(5), FORMAT)), Some(0));
    assert_eq!(
        missing(compare(&sight, "", &Writes::default(), FORMAT)),
        Some(0),
        "also for a new gateway"
    );
}

#[test]
fn an_empty_store_is_fresh_only_for_a_gateway_without_an_epoch() {
    let empty = Sight {
        epochs: vec![String::new(); 64],
        ..Sight::default()
    };
    assert!(matches!(
        compare(&empty, "", &Writes::default(), FORMAT),
        Finding::Fresh(_)
    ));
    assert_eq!(
        missing(compare(&empty, "e", &known(1), FORMAT)),
        Some(128),
        "flushed"
    );
    let mut half = empty.clone();
    half.epochs[3] = "e".into();
    assert!(
        missing(compare(&half, "", &Writes::default(), FORMAT)).is_some(),
        "one master of a cluster was flushed"
    );
}

#[test]
fn a_warning_names_the_epoch_of_its_gateway_and_is_given_once() {
    let new = warning(None, ("e", NEW), "gone", true).expect("a warning");
    assert_eq!(
        (new.lost.as_str(), &new.follows[..]),
        ("gone", &["e".to_owned()][..])
    );
    assert!(new.complete && new.epoch != "e");
    assert_eq!(
        warning(Some(&new), ("e", NEW), "gone", true),
        None,
        "it was given"
    );
    // A newcomer has set up the emptied store, or another gateway has warned without knowing this epoch.
    let lost = Manifest {
        lost: "first".into(),
        ..Manifest::after(&[], NEW)
    };
    for (before, what) in [(Manifest::after(&[], NEW), "gone"), (lost, "first")] {
        assert_eq!(
            warning(Some(&before), ("e", NEW), "gone", false),
            None,
            "another Redis"
        );
        let both = warning(Some(&before), ("e", NEW), "gone", true).expect("a warning");
        assert_eq!(
            (both.lost.as_str(), &both.follows[..]),
            (what, &["e".to_owned()][..])
        );
        assert_eq!(
            (&both.epoch, both.complete),
            (&before.epoch, before.complete)
        );
    }
    let accepting = Manifest::after(&["e"], NEW);
    assert_eq!(
        warning(Some(&accepting), ("e", NEW), "gone", true),
        None,
        "it is being accepted"
    );
    let whole = whole("e", 0).manifest.expect("a manifest");
    assert!(whole.complete && !whole.follows.is_empty());
    let second = warning(Some(&whole), ("e", NEW), "gone again", true).expect("a warning");
    assert_eq!(second.lost, "gone again", "a second loss is a loss, too");
}

#[test]
fn an_epoch_is_adopted_by_newcomers_and_after_an_accepted_loss() {
    let accepted = whole("e2", 0);
    assert_eq!(
        compare(&accepted, "", &Writes::default(), FORMAT),
        Finding::Adopt("e2".into())
    );
    assert_eq!(
        compare(&accepted, "older", &known(9), FORMAT),
        Finding::Adopt("e2".into())
    );
    assert!(missing(compare(&accepted, "stranger", &known(9), FORMAT)).is_some());
}

#[test]
fn a_partition_without_the_epoch_is_lost() {
    let mut sight = whole("e", 5);
    sight.epochs[63].clear();
    assert_eq!(missing(compare(&sight, "e", &known(5), FORMAT)), Some(0));
}

#[test]
fn an_interrupted_set_up_goes_on_and_an_interrupted_acceptance_does_not() {
    let begun = Manifest::after(&[], NEW);
    let sight = Sight {
        manifest: Some(begun.clone()),
        epochs: vec![String::new(); 64],
        ..Sight::default()
    };
    assert_eq!(
        compare(&sight, "", &Writes::default(), FORMAT),
        Finding::Fresh(begun)
    );
    let known = compare(&sight, "e", &Writes::default(), FORMAT);
    assert!(missing(known).is_some(), "a gateway that knew other data");
    let accepting = Manifest::after(&["e"], NEW);
    let sight = Sight {
        manifest: Some(accepting),
        ..sight
    };
    assert!(missing(compare(&sight, "e", &Writes::default(), FORMAT)).is_some());
    let newcomer = compare(&sight, "", &Writes::default(), FORMAT);
    assert!(missing(newcomer).is_some(), "nor at a new gateway");
}

#[test]
fn a_new_epoch_follows_each_earlier_one_once() {
    let manifest = Manifest::after(&["a", "", "b", "a"], NEW);
    assert_eq!(manifest.follows, ["a", "b"]);
    assert!(manifest.has_followed("a") && manifest.has_followed("b"));
    assert!(!manifest.has_followed("c"));
}

#[test]
fn a_count_of_no_writes_is_the_count_of_no_gateway() {
    let mut writes = Writes::default();
    writes.count("me", partition(3), 0);
    assert_eq!(writes.gateways().count(), 0);
    writes.count("me", partition(3), 1);
    assert_eq!(writes.gateways().collect::<Vec<_>>(), ["me"]);
    // In all other partitions neither has any.
    assert!(writes.absent_from(&writes).is_empty());
}

#[test]
fn no_token_is_below_that_of_an_accepted_loss() {
    let mut sight = whole("e", 5);
    sight.tokens.insert("me".into(), 7);
    assert_eq!((sight.accepted_token(), sight.token()), (0, 7));
    sight.manifest.as_mut().expect("a manifest").token = 9;
    assert_eq!((sight.accepted_token(), sight.token()), (9, 9));
    assert_eq!(Sight::default().token(), 0);
}

#[test]
fn a_gateway_is_known_by_its_writes_or_by_its_token() {
    let mut sight = Sight::default();
    sight.writes.count("writes", partition(3), 1);
    sight.tokens.insert("token".into(), 7);
    assert_eq!(sight.gateways().collect::<Vec<_>>(), ["writes", "token"]);
}

#[test]
fn counts_of_another_epoch_prove_nothing() {
    let mut writes = Writes::default();
    writes.count("g", Partition::FIRST, 10);
    for (epoch, has_them) in [("e", true), (CLOSED, true), ("", true), ("f", false)] {
        let seen = Sight {
            epochs: vec!["e".into(), epoch.into()],
            writes: writes.clone(),
            ..Sight::default()
        };
        assert_eq!(seen.has(&writes, "e"), has_them, "{epoch}");
        let mut more = writes.clone();
        more.count("g", Partition::FIRST, 11);
        assert!(!seen.has(&more, "e"), "{epoch}");
    }
}
