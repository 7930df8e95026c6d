//! Schemas on one server that all tests of a run share.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};

use oncegate::store::postgres::tokio_postgres;
use tokio::sync::{Mutex, OnceCell};

use super::{Postgres, connect_by};

/// The server that all tests of a run share.
static SHARED: OnceCell<Postgres> = OnceCell::const_new();
/// The schemas on it, and the databases of it that were made.
static SCHEMAS: AtomicU64 = AtomicU64::new(0);
static DATABASES: Mutex<BTreeSet<u64>> = Mutex::const_new(BTreeSet::new());
/// Schemas in one of them. A new connection looks through all functions of a name, whatever their schema: with 600 schemas
/// the first calls took twice as long.
const SCHEMAS_EACH: u64 = 32;

/// A new schema on the server that the tests share: a URL, and the schema after a `#`.
pub async fn place() -> String {
    let shared = SHARED.get_or_init(|| Postgres::with(&[])).await;
    let schema = SCHEMAS.fetch_add(1, Ordering::Relaxed);
    let number = schema / SCHEMAS_EACH;
    let database = format!("d{number}");
    let mut made = DATABASES.lock().await;
    if !made.contains(&number) {
        shared.run(&format!("CREATE DATABASE {database}")).await;
        let may_make = format!("GRANT CREATE ON DATABASE {database} TO gate");
        shared.run(&may_make).await;
        made.insert(number);
    }
    format!(
        "postgres://gate@127.0.0.1:{}/{database}#t{schema}",
        shared.port
    )
}

/// Runs a statement as a superuser in the schema of a place.
pub async fn run_in(place: &str, sql: &str) {
    let schema = place.split_once('#').expect("a place").1;
    let sql = format!("SET search_path = {schema}; SET oncegate.prune = on; {sql}");
    let client = connect_to(place).await;
    client.batch_execute(&sql).await.expect("run");
}

/// Deletes everything in a place.
pub async fn empty(place: &str) {
    let schema = place.split_once('#').expect("a place").1;
    run_in(place, &format!("DROP SCHEMA {schema} CASCADE")).await;
}

/// The first column of the first row, which is a text. Asked as a superuser in the schema of a place.
pub async fn text_in(place: &str, sql: &str) -> String {
    let client = connect_to(place).await;
    let schema = place.split_once('#').expect("a place").1;
    client
        .batch_execute(&format!("SET search_path = {schema}"))
        .await
        .expect("set");
    client.query_one(sql, &[]).await.expect("a row").get(0)
}

/// A connection of a superuser to the database of a place.
async fn connect_to(place: &str) -> tokio_postgres::Client {
    let url = place.split_once('#').expect("a place").0;
    let url = url.replacen("gate@", "admin@", 1);
    connect_by(&url).await.expect("a connection")
}
