//! How much room the file takes, and giving back what it does not need.
//!
//! Pages of deleted calls are used for new ones. If there are many more than that takes, cleanup gives the last of them back
//! to the disk, a few at a time. Files from before layout 16 cannot do it until they were compacted.

use std::path::Path;

use rusqlite::{Connection, Result};

use crate::query::pragma;
use oncegate_store::Space;

/// Most pages that one cleanup gives back: 2 MB.
const AT_ONCE: i64 = 512;
/// Free pages that are kept, so that a small file does not change its length all the time: 16 MB.
const SPARE: i64 = 4_096;

/// How many of the free pages are given back now: those beyond a quarter of the file.
fn surplus(pages: i64, free: i64) -> i64 {
    let stored = (pages / 4).max(SPARE);
    (free - stored).clamp(0, AT_ONCE)
}

/// Gives pages back to the disk if there are many free ones. Part of cleanup.
pub(crate) fn shrink(connection: &Connection) -> Result<()> {
    let number = |name| pragma::<i64>(connection, name).map(Option::unwrap_or_default);
    let pages = surplus(number("page_count")?, number("freelist_count")?);
    if pages > 0 {
        let sql = format!("PRAGMA incremental_vacuum({pages})");
        let mut vacuum = connection.prepare(&sql)?;
        let mut rows = vacuum.query([])?;
        // Each step moves one page.
        while rows.next()?.is_some() {}
    }
    Ok(())
}

/// The room that a database takes, and that its disk still has.
pub(crate) fn of(connection: &Connection, path: &Path) -> Result<Space> {
    let number = |name| {
        pragma::<i64>(connection, name).map(|found| found.unwrap_or_default().unsigned_abs())
    };
    let page = number("page_size")?;
    let disk = rustix::fs::statvfs(path).ok();
    Ok(Space {
        file: number("page_count")?.saturating_mul(page),
        free: number("freelist_count")?.saturating_mul(page),
        disk_free: disk.map(|disk| disk.f_bavail.saturating_mul(disk.f_frsize)),
        checked: 0,
        checked_at: None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn free_pages_beyond_a_quarter_of_the_file_are_given_back_a_few_at_a_time() {
        assert_eq!(surplus(1_000, 900), 0, "a small file keeps them");
        assert_eq!(surplus(100_000, 25_000), 0, "new calls use them");
        assert_eq!(surplus(100_000, 25_100), 100);
        assert_eq!(surplus(100_000, 90_000), AT_ONCE);
    }

    #[test]
    fn a_new_file_becomes_shorter_when_its_calls_are_gone() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("oncegate.db");
        let connection = Connection::open(&path).expect("opened");
        let fill = "PRAGMA auto_vacuum = INCREMENTAL; CREATE TABLE t (a BLOB);
            WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 10000)
            INSERT INTO t SELECT zeroblob(4000) FROM n; DELETE FROM t;";
        connection.execute_batch(fill).expect("filled");
        let before = of(&connection, &path).expect("space");
        shrink(&connection).expect("shrunk");
        let after = of(&connection, &path).expect("space");
        // A page of the map of pages may go with them.
        let given = (before.file - after.file) / 4_096;
        assert!((512..=514).contains(&given), "{given}");
        assert!(after.disk_free.is_some());
    }
}
