//! The tables and functions of an installation: made, found, or refused.

use crate::link::{Link, refused, said};
use crate::server::Server;
use crate::target::Schema;
use oncegate_store::{FOREIGN, Reason, Result};

/// The version of the tables. A gateway makes what is missing up to it, and refuses a newer one.
pub(crate) const LAYOUT: i32 = 1;
const TABLES: &str = include_str!("../sql/tables.sql");
const VERBS: &str = include_str!("../sql/verbs.sql");

const FIND: &str = include_str!("../sql/schema.sql");
const VERSION: &str = "SELECT coalesce(max(version), 0) FROM oncegate_versions";

/// The state of a schema.
enum Found {
    /// It is not there, or empty.
    Nothing,
    /// It has tables of something else.
    Foreign,
    /// It is ours, but the role lacks these rights.
    Forbidden(String),
    Version(i32),
}

/// Finds the tables, or makes them. The reason says what an administrator has to do.
pub(crate) async fn prepare(server: &Server) -> Result<Option<Reason>> {
    let (link, schema) = (server.inspector.link().await?, &server.schema);
    let mut found = find(&link, schema).await?;
    if let Found::Nothing = found {
        if let Some(reason) = make(server).await? {
            return Ok(Some(reason));
        }
        found = find(&link, schema).await?;
    }
    let name = schema.as_str();
    let (code, text) = match found {
        Found::Version(LAYOUT) => return Ok(None),
        Found::Nothing => ("layout", "the tables could not be made".to_owned()),
        Found::Version(other) if other > LAYOUT => (
            FOREIGN,
            format!(
                "the schema {name} was made by a newer oncegate (version {other}, this one knows {LAYOUT}): use that one"
            ),
        ),
        Found::Version(other) => (
            "layout",
            format!(
                "the schema {name} has version {other}, and this gateway needs {LAYOUT}: an administrator runs what `oncegate \
                 store sql` prints"
            ),
        ),
        Found::Foreign => (
            FOREIGN,
            format!(
                "the schema {name} has tables of another application: name another one in store.schema"
            ),
        ),
        Found::Forbidden(what) => (
            "rights",
            format!(
                "the gateway's role lacks {what}: an administrator runs what `oncegate store sql` prints"
            ),
        ),
    };
    Ok(Some(Reason::new(code, text)))
}

async fn find(link: &Link, schema: &Schema) -> Result<Found> {
    let name = schema.as_str();
    let found = link.client.query_one(FIND, &[&name]).await;
    let row = found.map_err(refused)?;
    let is = |column: usize| row.get::<_, bool>(column);
    Ok(match (is(0), is(1), is(2), is(3)) {
        (false, ..) | (true, false, false, _) => Found::Nothing,
        (true, false, true, _) => Found::Foreign,
        (true, true, _, false) => Found::Forbidden(format!("USAGE on the schema {name}")),
        (true, true, _, true) => {
            let missing: String = row.get(4);
            if !missing.is_empty() {
                return Ok(Found::Forbidden(missing));
            }
            let version = link.client.query_one(VERSION, &[]).await;
            Found::Version(version.map_err(refused)?.get(0))
        }
    })
}

/// Makes all tables, unless another gateway does so at the same time.
///
/// On a connection of its own: an inspection may be dropped while this is half done, and a connection with half a transaction
/// answers nothing else.
async fn make(server: &Server) -> Result<Option<Reason>> {
    let make = filled(include_str!("../sql/make.sql"), &server.schema);
    let link = server.dialer.connect().await?;
    let Err(error) = link.client.batch_execute(&make).await else {
        return Ok(None);
    };
    let text = format!(
        "the tables of oncegate are not there, and could not be made: {}; an administrator runs what `oncegate store sql` prints",
        said(&error)
    );
    Ok(Some(Reason::new("layout", text)))
}

/// A text of SQL, with the name of the schema, and with all tables and functions.
fn filled(text: &str, schema: &Schema) -> String {
    let version = format!("INSERT INTO oncegate_versions VALUES ({LAYOUT});\n");
    let secure = "SECURITY DEFINER SET search_path = @schema@, pg_temp";
    let tables = [TABLES, VERBS, &version].join("\n");
    let text = text.replace("@tables@", &tables.replace("@secure@", secure));
    text.replace("@schema@", schema.as_str())
}

/// What an administrator runs, so that the gateway's role can neither make nor delete anything by itself.
pub fn administrators_sql(schema: &Schema, role: &str) -> String {
    let text = filled(include_str!("../sql/administrator.sql"), schema);
    text.replace("@role@", &format!("\"{}\"", role.replace('"', "\"\"")))
}
