//! `oncegate store`: acts of an operator on the store.

#[cfg(feature = "sqlite")]
use std::path::Path;
use std::path::PathBuf;

use clap::Subcommand;
use oncegate::app;
use oncegate::config::{Config, Log, StoreAt};
use oncegate::gateway::AFTER_LOSS;
#[cfg(feature = "postgres")]
use oncegate::store::postgres::administrators_sql;
#[cfg(feature = "sqlite")]
use oncegate::store::sqlite::{self, Backup, Opening};
use oncegate::telemetry;

#[cfg(feature = "redis")]
use super::shared_store as shared;
use super::{Failure, complain, read, say};

#[derive(Subcommand)]
pub(super) enum StoreAct {
    /// Accept that the store has lost data, and open it again. Calls that ran, or may run again, become
    /// unknown first. A call that the store has forgotten may be executed once more.
    AcceptLoss {
        #[arg(long)]
        config: PathBuf,
        /// What happened, for the ledger and the log.
        #[arg(long)]
        reason: String,
    },
    /// Say how many stored calls of each tool would go sooner or later by the retention of this configuration, and with
    /// --apply have it count for them. Without it, it counts for calls that end from now on. Works while gateways serve,
    /// but not of a SQLite file.
    Retention {
        #[arg(long)]
        config: PathBuf,
        #[arg(long)]
        apply: bool,
    },
    /// Print what a SQLite file is and has: its layout, which releases can read it, its calls, its oldest promise, and
    /// what an upgrade would do. Of a Redis, its format, the gateways that share it, what each can read, and what an
    /// upgrade would do. Works while gateways serve. Changes nothing.
    Inspect {
        #[arg(long)]
        config: PathBuf,
        /// Upgrade a copy beside the file, say how long it took, and delete the copy. Of a Redis, fail if it cannot be
        /// upgraded now.
        #[arg(long)]
        dry_run: bool,
    },
    /// Print the SQL that makes the tables in a PostgreSQL, for an administrator to run: then the gateway's own role can
    /// neither make nor delete anything.
    #[cfg(feature = "postgres")]
    Sql {
        #[arg(long)]
        config: PathBuf,
    },
    /// Write a copy of a SQLite file, which only this user may read. Works while a gateway serves from it.
    #[cfg(feature = "sqlite")]
    Backup {
        #[arg(long)]
        config: PathBuf,
        file: PathBuf,
    },
    /// Upgrade a SQLite file of an earlier release now, while no gateway serves from it. The next start does the same.
    /// Upgrade a Redis while gateways serve, once all that share it know the newest format. Earlier releases do not use it
    /// afterwards.
    Upgrade {
        #[arg(long)]
        config: PathBuf,
        /// Where the copy of the file as it is goes, instead of beside the file.
        #[arg(long, conflicts_with = "no_backup")]
        backup: Option<PathBuf>,
        /// Make no copy: you have one.
        #[arg(long)]
        no_backup: bool,
    },
    /// Write a SQLite file again without its free pages, while no gateway serves from it. Takes room for a second file.
    #[cfg(feature = "sqlite")]
    Compact {
        #[arg(long)]
        config: PathBuf,
    },
}

impl StoreAct {
    /// Does it, and prints what was done.
    ///
    /// # Errors
    /// A sentence. The store is as it was.
    pub(super) fn run(self) -> Result<(), Failure> {
        match self {
            Self::AcceptLoss { config, reason } => accept_loss(read(&config)?, &reason),
            Self::Retention { config, apply } => retention(read(&config)?, apply),
            Self::Inspect { config, dry_run } => inspect(read(&config)?.store, dry_run),
            #[cfg(feature = "postgres")]
            Self::Sql { config } => sql(&read(&config)?.store),
            #[cfg(feature = "sqlite")]
            Self::Backup { config, file } => {
                sqlite::backup(&file_of(&config)?, &file)?;
                say(&format!("{} is complete\n", file.display()))
            }
            Self::Upgrade {
                config,
                backup,
                no_backup,
            } => upgrade(read(&config)?.store, backup, no_backup),
            #[cfg(feature = "sqlite")]
            Self::Compact { config } => {
                let (before, after) = sqlite::compact(&file_of(&config)?)?;
                let megabytes = |bytes: u64| bytes as f64 / 1e6;
                say(&format!(
                    "the file had {:.1} MB and has {:.1} MB now\n",
                    megabytes(before),
                    megabytes(after)
                ))
            }
        }
    }
}

#[cfg_attr(
    not(any(feature = "sqlite", feature = "redis")),
    expect(unused_variables, reason = "no store")
)]
fn inspect(store: StoreAt, dry_run: bool) -> Result<(), Failure> {
    match store {
        #[cfg(feature = "sqlite")]
        StoreAt::Sqlite(file) => say(&sqlite::inspect(&file, dry_run)?.to_string()),
        #[cfg(not(feature = "sqlite"))]
        StoreAt::Sqlite(_) => Err("this build has no SQLite".into()),
        #[cfg(feature = "redis")]
        StoreAt::Redis(settings) => shared::inspect(*settings, dry_run),
        #[cfg(feature = "postgres")]
        StoreAt::Postgres(_) => Err(OWN_TOOLS.into()),
    }
}

/// What `inspect` and `upgrade` say of a PostgreSQL.
#[cfg(feature = "postgres")]
const OWN_TOOLS: &str = "this is for SQLite files and Redis; a PostgreSQL is looked into by its own tools, and upgraded by `oncegate store sql` (docs/postgres.md)";

/// Prints what an administrator runs for a PostgreSQL.
#[cfg(feature = "postgres")]
fn sql(store: &StoreAt) -> Result<(), Failure> {
    let StoreAt::Postgres(settings) = store else {
        return Err("store.url names no PostgreSQL: other stores make their own tables".into());
    };
    let user = settings.target.user();
    say(&administrators_sql(&settings.schema, user))
}

#[cfg_attr(
    not(feature = "sqlite"),
    expect(unused_variables, reason = "a Redis is not copied")
)]
fn upgrade(store: StoreAt, backup: Option<PathBuf>, no_backup: bool) -> Result<(), Failure> {
    match store {
        #[cfg(feature = "sqlite")]
        StoreAt::Sqlite(file) => {
            let backup = match backup {
                Some(file) => Backup::At(std::path::absolute(file)?),
                None if no_backup => Backup::None,
                None => Backup::Beside,
            };
            upgrade_file(&file, backup)
        }
        #[cfg(not(feature = "sqlite"))]
        StoreAt::Sqlite(_) => Err("this build has no SQLite".into()),
        #[cfg(feature = "redis")]
        StoreAt::Redis(_) if backup.is_some() => {
            Err("a Redis is copied by its own tools (docs/redis.md): leave --backup out".into())
        }
        #[cfg(feature = "redis")]
        StoreAt::Redis(settings) => shared::upgrade(*settings),
        #[cfg(feature = "postgres")]
        StoreAt::Postgres(_) => Err(OWN_TOOLS.into()),
    }
}

/// The SQLite file of a configuration.
#[cfg(feature = "sqlite")]
fn file_of(config: &Path) -> Result<PathBuf, Failure> {
    match read(config)?.store {
        StoreAt::Sqlite(file) => Ok(file),
        #[cfg(feature = "redis")]
        StoreAt::Redis(_) => {
            let why = "this is for SQLite files; a Redis is copied and measured by its own tools (docs/redis.md)";
            Err(why.into())
        }
        #[cfg(feature = "postgres")]
        StoreAt::Postgres(_) => {
            let why = "this is for SQLite files; a PostgreSQL is copied and measured by its own tools (docs/postgres.md)";
            Err(why.into())
        }
    }
}

#[cfg(feature = "sqlite")]
fn upgrade_file(file: &Path, backup: Backup) -> Result<(), Failure> {
    let opening = Opening { backup };
    match sqlite::upgrade_file(file, &opening)? {
        None => say("nothing to do: the file has today's layout\n"),
        Some(done) => {
            let backup = match &done.backup {
                Some(copy) => format!("the file as it was is {}", copy.display()),
                None => "no copy was made".to_owned(),
            };
            say(&format!(
                "the file is upgraded from layout {} to {}; {backup}\n",
                done.from, done.to
            ))
        }
    }
}

fn retention(config: Config, apply: bool) -> Result<(), Failure> {
    let telemetry = telemetry::start(&warnings_only(&config.log), None)?;
    let runtime = tokio::runtime::Runtime::new()?;
    let counted = runtime.block_on(app::apply_retention(config, !apply));
    telemetry.lines.flush();
    let mut lines = String::new();
    for (tool, counts) in counted? {
        lines += &format!("{tool}: {counts}\n");
    }
    if !apply {
        lines += "nothing was changed: --apply has it count for these calls\n";
    }
    say(&lines)
}

fn warnings_only(log: &Log) -> Log {
    Log {
        level: "warn".into(),
        ..log.clone()
    }
}

fn accept_loss(config: Config, reason: &str) -> Result<(), Failure> {
    let telemetry = telemetry::start(&warnings_only(&config.log), None)?;
    let runtime = tokio::runtime::Runtime::new()?;
    complain("the loss is being accepted, which takes up to half a minute over Redis\n".into());
    let accepted = runtime.block_on(app::accept_loss(config, reason));
    telemetry.lines.flush();
    let marked = accepted?;
    say(&format!(
        "the loss is accepted; {marked} calls became unknown; {AFTER_LOSS}\n"
    ))
}
