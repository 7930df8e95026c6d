//! Rows that functions of `verbs.sql` take, and columns of answers. Must not decide anything.

use std::fmt;

use postgres_types::{FromSql, ToSql};
use tokio_postgres::Row;
use tokio_postgres::row::RowIndex;
use uuid::Uuid;

use oncegate_store::{Error, Result};

/// A claim or a change of a call. Lists that would be empty are `None`.
#[derive(Debug, Default, ToSql)]
#[postgres(name = "change_1")]
pub(crate) struct ChangeRow {
    /// The server and data that must be there.
    pub(crate) known: Option<String>,
    pub(crate) call_id: Uuid,
    pub(crate) session: Uuid,
    pub(crate) names: Option<Vec<Uuid>>,
    pub(crate) takes: Option<Vec<Uuid>>,
    pub(crate) givers: Option<Vec<Giver>>,
    pub(crate) created_at: i64,
    pub(crate) lists: Option<Vec<Option<i64>>>,
    /// A tool that the store may not list yet.
    pub(crate) tenant: Option<String>,
    pub(crate) tool: Option<String>,
    pub(crate) was_version: i64,
    pub(crate) was_attempt: Uuid,
    pub(crate) was_fencing: Option<i64>,
    pub(crate) state: i16,
    pub(crate) version: i64,
    pub(crate) attempt: Uuid,
    pub(crate) due_at: Option<i64>,
    /// The tool of a call that is searched for by it: a running, unknown or waiting one.
    pub(crate) searched: Option<String>,
    /// The list of its state.
    pub(crate) by_state: Option<i64>,
    pub(crate) retain_until: Option<i64>,
    pub(crate) similar_to: Option<Uuid>,
    pub(crate) intent: Option<Vec<u8>>,
    pub(crate) args: Option<Vec<u8>>,
    pub(crate) progress: Vec<u8>,
    pub(crate) entry: Vec<u8>,
    pub(crate) result: Option<Vec<u8>>,
    pub(crate) conditions: Option<Conditions>,
    /// The latest time at which its run may begin.
    pub(crate) latest: Option<i64>,
    /// From when on the session's lock is free; 0: now.
    pub(crate) free_from: Option<i64>,
    /// Whether the lock is taken again if the store has lost who has it.
    pub(crate) retakes: bool,
    /// The group of similar calls that it leaves.
    pub(crate) leaves: Option<Uuid>,
}

impl ChangeRow {
    /// How many bytes its large parts have: arguments and result.
    pub(crate) fn size(&self) -> usize {
        let large = [&self.args, &self.result].into_iter().flatten();
        large.map(Vec::len).sum()
    }
}

/// The conditions of a claim.
#[derive(Debug, Default, ToSql)]
#[postgres(name = "conditions_1")]
pub(crate) struct Conditions {
    pub(crate) this_token: Option<i64>,
    pub(crate) keeps: bool,
    pub(crate) floor: i64,
    pub(crate) latest_clock: i64,
    pub(crate) explained: i64,
    pub(crate) locks: bool,
    pub(crate) lease: i64,
    pub(crate) line_us: Option<i64>,
    pub(crate) line_length: i64,
    pub(crate) budget: Option<Uuid>,
    pub(crate) budget_max: Option<i64>,
    pub(crate) budget_us: Option<i64>,
    pub(crate) alike: Option<Uuid>,
    pub(crate) alike_us: Option<i64>,
    pub(crate) refuses: bool,
    pub(crate) confirmed: Option<Uuid>,
}

/// A call that gives up its names.
#[derive(Debug, ToSql)]
#[postgres(name = "giver_1")]
pub(crate) struct Giver {
    pub(crate) call_id: Uuid,
    pub(crate) version: i64,
    pub(crate) attempt: Uuid,
    pub(crate) list: Option<i64>,
}

/// A number as a signed one. No number here comes near the limit.
pub(crate) fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// The error of an answer with a word that the gateway does not know.
pub(crate) fn unexpected(word: &str) -> Error {
    unreadable(format!("PostgreSQL answered {word:?}"))
}

/// A column of an answer.
pub(crate) fn get<'a, T: FromSql<'a>>(
    row: &'a Row,
    column: impl RowIndex + fmt::Display,
) -> Result<T> {
    row.try_get(column).map_err(unreadable)
}

pub(crate) fn unreadable(error: impl ToString) -> Error {
    Error::Unreadable(error.to_string())
}
