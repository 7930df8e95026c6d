//! The tables and functions of an installation: made, found, or refused.

use crate::link::{Link, refused, said};
use crate::target::Schema;
use oncegate_store::{FOREIGN, Reason, Result};

/// The version of the tables. A gateway makes what is missing up to it, and refuses a newer one.
pub(crate) const LAYOUT: i32 = 1;
const TABLES: &str = include_str!("../sql/tables.sql");
const VERBS: &str = include_str!("../sql/verbs.sql");

/// What a schema is, and what the role may do: the newest version, other relations, rights.
const FIND: &str = "SELECT
    to_regnamespace($1) IS NOT NULL,
    EXISTS (SELECT FROM pg_class WHERE relnamespace = to_regnamespace($1) AND relname = 'oncegate_versions'),
    EXISTS (SELECT FROM pg_class WHERE relnamespace = to_regnamespace($1)),
    coalesce(has_schema_privilege(to_regnamespace($1)::oid, 'USAGE'), false),
    coalesce((SELECT string_agg(what, ', ') FROM (
      SELECT 'SELECT on ' || relname AS what FROM pg_class WHERE relnamespace = to_regnamespace($1) AND relkind = 'r'
        AND NOT has_table_privilege(oid, 'SELECT')
      UNION ALL SELECT 'EXECUTE on ' || proname FROM pg_proc WHERE pronamespace = to_regnamespace($1) AND prosecdef
        AND NOT has_function_privilege(oid, 'EXECUTE')) missing), '')";
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
pub(crate) async fn prepare(link: &Link, schema: &Schema) -> Result<Option<Reason>> {
    let mut found = find(link, schema).await?;
    if let Found::Nothing = found {
        if let Some(reason) = make(link, schema).await? {
            return Ok(Some(reason));
        }
        found = find(link, schema).await?;
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
    let statement = link.statement(FIND).await.map_err(refused)?;
    let found = link.client.query_one(&statement, &[&name]).await;
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
async fn make(link: &Link, schema: &Schema) -> Result<Option<Reason>> {
    let name = schema.as_str();
    let make = format!(
        "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE;
         SET LOCAL lock_timeout = '10s';
         SELECT pg_advisory_xact_lock(hashtextextended('oncegate ' || '{name}', 0));
         CREATE SCHEMA IF NOT EXISTS {name};
         DO $made$ BEGIN IF to_regclass('{name}.oncegate_versions') IS NULL THEN EXECUTE $tables${}$tables$; END IF; END $made$;
         COMMIT",
        tables(schema)
    );
    let Err(error) = link.client.batch_execute(&make).await else {
        return Ok(None);
    };
    drop(link.client.batch_execute("ROLLBACK").await);
    let text = format!(
        "the tables of oncegate are not there, and could not be made: {}; an administrator runs what `oncegate store sql` prints",
        said(&error)
    );
    Ok(Some(Reason::new("layout", text)))
}

/// All tables and functions, for a schema that is in the search path.
fn tables(schema: &Schema) -> String {
    let secure = format!(
        "SECURITY DEFINER SET search_path = {}, pg_temp",
        schema.as_str()
    );
    let verbs = VERBS.replace("@secure@", &secure);
    format!("{TABLES}\n{verbs}\nINSERT INTO oncegate_versions VALUES ({LAYOUT});\n")
}

/// What an administrator runs, so that the gateway's role can neither make nor delete anything by itself.
pub fn administrators_sql(schema: &Schema, role: &str) -> String {
    let (name, role) = (schema.as_str(), quoted(role));
    format!(
        "-- The tables of oncegate, for its role {role}. Run this as the owner of the database, once:\n\
         --   oncegate store sql --config FILE | psql --single-transaction -v ON_ERROR_STOP=1 DATABASE\n\
         -- The role itself: CREATE ROLE {role} LOGIN PASSWORD '…'; GRANT pg_monitor TO {role};\n\
         SELECT pg_advisory_xact_lock(hashtextextended('oncegate ' || '{name}', 0));\n\
         CREATE SCHEMA {name};\n\
         SET LOCAL search_path = {name};\n\
         {}\n\
         REVOKE ALL ON ALL FUNCTIONS IN SCHEMA {name} FROM PUBLIC;\n\
         GRANT USAGE ON SCHEMA {name} TO {role};\n\
         GRANT SELECT ON ALL TABLES IN SCHEMA {name} TO {role};\n\
         GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA {name} TO {role};\n",
        tables(schema)
    )
}

/// A name as an identifier.
fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}
