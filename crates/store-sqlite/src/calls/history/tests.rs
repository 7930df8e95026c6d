//! A change of a call with a long history writes little, and no entry is lost.

use super::*;
use crate::calls::row::Stored;
use crate::tests::{Damaged, at};
use crate::worker::Need;
use oncegate_store::{Calls as _, Ledger as _};

#[tokio::test]
async fn a_long_history_is_kept_whole_while_its_row_stays_short() {
    const CHANGES: i64 = 3_000;
    let damaged = Damaged::new();
    let mut call = damaged.unknown("k", None).await;
    call.retain_until = Some(at(10));
    let other = damaged.claimed("other").await;
    let entry = |n| Entry::new(at(n), "retried", "agent", format!("change {n}"));
    let (store, call_id) = (&damaged.store, call.intent.call_id);
    let change = move |connection: &Connection| {
        let mut longest = 0;
        for n in 0..CHANGES {
            let stored = Stored::of(connection, call_id)?.expect("a call");
            stored.update(connection, &call, &codec::progress(&call), &entry(n))?;
            let sql = "SELECT max(length(history)) FROM calls";
            let length = first(connection, sql, [], |row| row.get::<_, i64>(0))?;
            longest = longest.max(length.expect("a length"));
        }
        Ok(longest)
    };
    let longest = store.writer.run(Need::Plain, change).await;
    let longest = longest.expect("changed");
    assert!(longest < 5_000, "a change has written {longest} bytes");

    let history = async |limit| {
        let history = store.history(call_id, limit).await.expect("an answer");
        history.expect("a call").entries
    };
    let all = history(u32::MAX).await;
    let changes: Vec<Entry> = (0..CHANGES).map(entry).collect();
    assert_eq!(all[0].event, "claimed");
    assert_eq!(all[all.len() - changes.len()..], changes);
    for limit in [0, 1, 100, 1_000] {
        let newest = history(limit).await;
        assert_eq!(newest, all[all.len() - limit as usize..], "{limit}");
    }

    let parts = || {
        let sql = "SELECT count(*) FROM older";
        let parts = damaged.file.query_row(sql, [], |row| row.get::<_, i64>(0));
        parts.expect("a count")
    };
    assert!(
        (11..1_000).contains(&parts()),
        "many entries move in one step: {}",
        parts()
    );
    assert_eq!(store.prune(at(20), 9).await.expect("pruned"), 1);
    assert_eq!(parts(), 0);
    let stored = store.load(other.intent.call_id).await.expect("an answer");
    assert_eq!(stored, Some(other));
}
