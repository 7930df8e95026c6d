//! A PostgreSQL that is refused: it is left as it is, and the sentence says what to do.

use oncegate::store::postgres::{Schema, administrators_sql};
use oncegate::store::{Calls as _, Error, Health as _};

use tokio::io::{AsyncReadExt, AsyncWriteExt, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream};

use super::{folder, pair, refused};
use crate::stores::contract::{
    ME, arrival, claimed, ended, open_postgres, open_postgres_as_it_is, replaced,
};
use crate::support::postgres::{Postgres, place, run_in};
use crate::support::until;

#[tokio::test(flavor = "multi_thread")]
async fn a_schema_of_something_else_or_of_a_newer_version_is_refused_and_left_alone() {
    let (folder, foreign, newer) = (folder(), place().await, place().await);
    let schema = foreign.split_once('#').expect("a place").1.to_owned();
    run_in(&foreign, &format!("CREATE SCHEMA {schema}; CREATE TABLE {schema}.orders (id integer); GRANT ALL ON SCHEMA {schema} TO gate")).await;
    let store = open_postgres_as_it_is(&foreign, folder.path()).await;
    let why = refused(&store, "foreign").await;
    assert!(why.contains("another application"), "{why}");
    store.close().await;
    drop(store);
    let store = open_postgres(&newer, folder.path()).await;
    store.close().await;
    drop(store);
    run_in(&newer, "INSERT INTO oncegate_versions VALUES (99)").await;
    let store = open_postgres_as_it_is(&newer, folder.path()).await;
    let why = refused(&store, "foreign").await;
    assert!(why.contains("newer"), "{why}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_role_that_may_only_call_functions_is_enough_and_a_missing_right_is_named() {
    let server = Postgres::with(&[]).await;
    server
        .run("REVOKE CREATE ON DATABASE postgres FROM gate")
        .await;
    let folder = folder();
    let url = format!("{}#least", server.url());
    let store = open_postgres_as_it_is(&url, folder.path()).await;
    let why = refused(&store, "layout").await;
    assert!(why.contains("oncegate store sql"), "{why}");
    let schema = Schema::parse("least").expect("a schema");
    server
        .run(&format!(
            "BEGIN; {} COMMIT",
            administrators_sql(&schema, "gate")
        ))
        .await;
    until("it is ready", async || {
        store.readiness().await.reasons.is_empty()
    })
    .await;
    let record = claimed(&store, &arrival("k", "S", 0, ME)).await;
    replaced(&store, &ended(&record, 200, 1), &record).await;
    store.close().await;
    drop(store);
    server
        .run("REVOKE EXECUTE ON FUNCTION least.leave_line_1 FROM gate")
        .await;
    let store = open_postgres_as_it_is(&url, folder.path()).await;
    let why = refused(&store, "rights").await;
    assert!(why.contains("EXECUTE on leave_line_1"), "{why}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_standby_is_refused_and_so_is_a_commit_that_no_standby_answers() {
    let (primary, mut standby, place) = pair(true).await;
    let folder = folder();
    let alone = format!("{}#pair", standby.url());
    let store = open_postgres_as_it_is(&alone, folder.path()).await;
    let why = refused(&store, "unreachable").await;
    assert!(why.contains("name the primary"), "{why}");
    store.close().await;
    drop(store);
    let store = open_postgres(&place, folder.path()).await;
    standby.kill();
    let why = refused(&store, "no_standby").await;
    assert!(why.contains("no synchronous standby"), "{why}");
    standby.start_again().await;
    until("it is ready", async || {
        store.readiness().await.reasons.is_empty()
    })
    .await;
    drop(primary);
}

/// A pooler before a server, as PgBouncer is: it refuses the options of a connection, or does not pass them on.
async fn pooler(port: u16, refuses: bool) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let own = listener.local_addr().expect("an address").port();
    tokio::spawn(async move {
        while let Ok((mut near, _)) = listener.accept().await {
            let mut startup = vec![0; 4_096];
            let Ok(read @ 1..) = near.read(&mut startup).await else {
                continue;
            };
            startup.truncate(read);
            if refuses {
                let fields = b"SFATAL\0VFATAL\0C08P01\0Munsupported startup parameter: options\0\0";
                let length = u32::try_from(fields.len() + 4).expect("short");
                let error = [b"E", &length.to_be_bytes()[..], fields].concat();
                drop(near.write_all(&error).await);
                continue;
            }
            let name = b"options\0";
            let from = startup.windows(name.len()).position(|some| some == name);
            let from = from.expect("options") + name.len();
            let value = startup[from..].iter_mut().take_while(|byte| **byte != 0);
            value.for_each(|byte| *byte = b' ');
            let mut far = TcpStream::connect(("127.0.0.1", port))
                .await
                .expect("a server");
            far.write_all(&startup).await.expect("sent");
            tokio::spawn(async move { copy_bidirectional(&mut near, &mut far).await });
        }
    });
    own
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pooler_before_a_postgres_is_noticed_and_named() {
    let server = Postgres::with(&[]).await;
    for refuses in [true, false] {
        let (port, folder) = (pooler(server.port, refuses).await, folder());
        let place = format!("postgres://gate@127.0.0.1:{port}/postgres#oncegate");
        let store = open_postgres_as_it_is(&place, folder.path()).await;
        let why = refused(&store, "unreachable").await;
        assert!(why.contains("a pooler stands between"), "{refuses}: {why}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_postgres_that_does_not_sync_is_refused_where_strict_is_demanded() {
    let server = Postgres::with(&["fsync = off"]).await;
    let folder = folder();
    let store = open_postgres_as_it_is(&server.place(), folder.path()).await;
    let why = refused(&store, "fsync").await;
    assert!(why.contains("fsync is off"), "{why}");
    let claim = store.claim(&arrival("k", "S", 0, ME), &[]).await;
    assert!(matches!(claim, Err(Error::Refused(_))), "{claim:?}");
}

/// One message of a server.
fn message(kind: u8, content: &[u8]) -> Vec<u8> {
    let length = u32::try_from(content.len() + 4).expect("short");
    [&[kind], &length.to_be_bytes()[..], content].concat()
}

/// A server that is no PostgreSQL of today: it does not know a setting of the gateway's connections, and says what it is.
async fn other_server(version: &'static str) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let own = listener.local_addr().expect("an address").port();
    tokio::spawn(async move {
        while let Ok((mut near, _)) = listener.accept().await {
            tokio::spawn(async move {
                let mut said = vec![0; 4_096];
                let read = near.read(&mut said).await.unwrap_or(0);
                let asks = |some: &[u8]| said[..read].windows(some.len()).any(|part| part == some);
                if asks(b"plan_cache_mode") {
                    let fields = b"SFATAL\0VFATAL\0C42704\0Munrecognized configuration parameter \"plan_cache_mode\"\0\0";
                    drop(near.write_all(&message(b'E', fields)).await);
                    return;
                }
                let ready = message(b'Z', b"I");
                let welcome = [message(b'R', &[0; 4]), ready.clone()].concat();
                near.write_all(&welcome).await.expect("sent");
                let column = b"version\0\0\0\0\0\0\0\0\0\0\x19\xff\xff\0\0\0\0\0\0".as_slice();
                // The statement is prepared, and then carried out.
                while let Ok(1..) = near.read(&mut said).await {
                    let columns = message(b'T', &[&[0, 1][..], column].concat());
                    let row = |value: &str| {
                        let length = u32::try_from(value.len()).expect("short");
                        let value = [&[0, 1][..], &length.to_be_bytes(), value.as_bytes()].concat();
                        [message(b'D', &value), message(b'C', b"SELECT 1\0")].concat()
                    };
                    let answer = match said[0] {
                        // Whether it is read-only.
                        b'Q' => [columns, row("off")].concat(),
                        b'P' => [message(b'1', &[]), message(b't', &[0, 0]), columns].concat(),
                        b'B' => [message(b'2', &[]), row(version)].concat(),
                        _ => return,
                    };
                    let answer = [answer, ready.clone()].concat();
                    near.write_all(&answer).await.expect("sent");
                }
            });
        }
    });
    own
}

#[tokio::test(flavor = "multi_thread")]
async fn what_only_speaks_like_postgres_and_an_old_one_are_refused_by_name() {
    for (version, words) in [
        (
            "CockroachDB CCL v23.1.11 (x86_64-pc-linux-gnu)",
            "this is CockroachDB",
        ),
        (
            "PostgreSQL 11.2-YB-2.21.0.0-b0 on x86_64",
            "this is YugabyteDB",
        ),
        (
            "PostgreSQL 9.6.24 on x86_64-pc-linux-gnu",
            "PostgreSQL 9.6.24 is too old",
        ),
    ] {
        let (port, folder) = (other_server(version).await, folder());
        let place = format!("postgres://gate@127.0.0.1:{port}/postgres#oncegate");
        let store = open_postgres_as_it_is(&place, folder.path()).await;
        let why = refused(&store, "unreachable").await;
        assert!(why.contains(words), "{version}: {why}");
    }
}
