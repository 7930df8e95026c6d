//! Many gateways over one PostgreSQL.

pub mod failovers; // the primary is lost
pub mod kept; // what a store keeps, whatever the server was set to
pub mod losses; // a PostgreSQL that has lost data
pub mod refused; // what is refused, and left alone
pub mod shared; // two gateways
pub mod silent; // a server that does not answer

use oncegate::store::Health as _;
use oncegate::store::postgres::Postgres as Store;

use crate::support::postgres::Postgres;
use crate::support::until;

pub(crate) fn folder() -> tempfile::TempDir {
    tempfile::tempdir().expect("a folder")
}

/// Waits until a store is not ready for this reason, and returns its sentence.
pub(crate) async fn refused(store: &Store, code: &str) -> String {
    let mut text = String::new();
    until(code, async || {
        let readiness = store.readiness().await;
        let reason = readiness
            .reasons
            .into_iter()
            .find(|reason| reason.code == code);
        text = reason.map(|reason| reason.text).unwrap_or_default();
        !text.is_empty()
    })
    .await;
    text
}

/// A primary with a standby, and a place that names both.
pub(crate) async fn pair(is_synchronous: bool) -> (Postgres, Postgres, String) {
    let names = if is_synchronous {
        "synchronous_standby_names = 'ANY 1 (*)'"
    } else {
        ""
    };
    let mut primary = Postgres::with(&[]).await;
    let standby = primary.standby(&[]).await;
    until("it follows", async || {
        let sql = "SELECT count(*) FROM pg_stat_replication WHERE state = 'streaming'";
        primary.ask(sql).await[0].get::<_, i64>(0) == 1
    })
    .await;
    if !names.is_empty() {
        primary.set(names).await;
    }
    let place = format!(
        "postgres://gate@127.0.0.1:{},127.0.0.1:{}/postgres#pair",
        primary.port, standby.port
    );
    (primary, standby, place)
}
