//! Calls: claims, changes, and finding those that need work.

pub(crate) mod row; // calls as rows
pub(crate) mod session; // conditions of claims, and denials

use std::collections::HashMap;

use async_trait::async_trait;
use jiff::Timestamp;
use tokio_postgres::Row;
use tokio_postgres::types::ToSql;
use uuid::Uuid;

use self::row::{record, record_at, select};
use self::session::denied;
use super::store::Postgres;
use crate::link::lanes::Verb;
use crate::link::rows::ChangeRow;
use crate::link::rows::{get, signed, unexpected, unreadable};
use oncegate_rules::call::Change;
use oncegate_rules::key::Lookup;
use oncegate_rules::record::{CallId, Holder, Record, State};
use oncegate_store::codec::{self, Unreadable};
use oncegate_store::{
    Calls, Census, Claimed, Due, Error, Found, Replaced, Result, UNREADABLE, other_holder,
};

const CLAIM: &str = "claim_1";
const REPLACE: &str = "replace_1";
/// That no call holds a name is an answer only of the server that was inspected: another one may have older data.
const HOLDERS: &str = include_str!("sql/holders.sql");
const LOAD: &str = "SELECT intent, args, progress, result, token, similar_to, other FROM stored('', $1) WHERE word <> 'gone'";
const DUE: &str = select!("whole WHERE state = 0 AND due_at <= $1 ORDER BY due_at LIMIT $2");
const DUE_RECHECKS: &str = select!(
    "unnest($1::text[]) t CROSS JOIN LATERAL (
      SELECT * FROM whole WHERE state = 3 AND tool = t AND due_at <= $2 ORDER BY due_at LIMIT $3) w ORDER BY due_at"
);
const UNSCHEDULED: &str =
    select!("whole WHERE state = 3 AND due_at IS NULL AND tool = ANY ($1::text[]) LIMIT $2");
const DUE_PROPOSALS: &str =
    select!("whole WHERE state IN (7, 8) AND due_at <= $1 ORDER BY due_at LIMIT $2");
const CENSUS: &str = include_str!("sql/census.sql");

#[async_trait]
impl Calls for Postgres {
    async fn claim(&self, change: &Change, replaced: &[Record]) -> Result<Claimed> {
        match self.try_claim(change, replaced).await {
            // Nothing may be claimed, but a stored result can still be replayed.
            Err(Error::Refused(why)) if self.server.status.is_reached() => {
                let lookups: Vec<Lookup> = change.record.intent.all_lookups().copied().collect();
                let holders = self.holders(&lookups).await;
                other_holder(why, change, replaced, holders).map(Claimed::Existing)
            }
            claimed => claimed,
        }
    }

    async fn replace(&self, change: &Change, expected: &Record) -> Result<Replaced> {
        let (server, record) = (&self.server, &change.record);
        let intent = &record.intent;
        // A change after which a request is sent, or that claims lookup keys, needs a store that is open.
        let runs = matches!(record.state, State::Running);
        let begins = runs || !change.takes.lookups.is_empty();
        if begins {
            server.status.must_be_open()?;
        }
        let lookups = || intent.all_lookups().filter(|_| runs);
        let (needed, takes) = (row::ids(lookups()), row::ids(&change.takes.lookups));
        let erases = change.erases.is_some();
        let writes_intent = runs || erases;
        let mut row = ChangeRow {
            known: begins.then(|| server.known()),
            names: (!needed.is_empty()).then_some(needed),
            givers: row::givers(&change.takes.replaced, &takes),
            takes: (!takes.is_empty()).then_some(takes),
            lists: erases.then(|| row::lists(intent)),
            was_version: signed(expected.version),
            was_attempt: expected.attempt.id.0,
            was_fencing: expected.fencing.map(signed),
            similar_to: record.similar_to.map(|similar| similar.0),
            intent: writes_intent.then(|| codec::intent(intent)),
            args: writes_intent.then(|| intent.args.to_vec()),
            conditions: server.conditions(change)?,
            latest: server.latest_begin(record),
            ..row::written(change)
        };
        session::release(change, &mut row);
        let lookups = lookups().chain(&change.takes.lookups);
        let locks = row::locks(change, lookups, &change.takes.replaced);
        let verb = Verb::row(REPLACE, row, locks);
        let answer = server.run_guarded(verb).await?;
        let word: &str = get(&answer, 0)?;
        if let Some(denied) = denied(&answer, word)? {
            return Ok(Replaced::Denied(denied));
        }
        match word {
            "done" => {
                let record = self.written(change, &answer).await?;
                if !runs {
                    self.say_ended(intent.call_id);
                }
                Ok(Replaced::Done(record))
            }
            "gone" => Ok(Replaced::Lost(None)),
            "late" | "changed" => {
                if word == "late" {
                    server.was_late(&answer)?;
                }
                // After "late" as it was: the change is made again from it, at the right time.
                Ok(Replaced::Lost(Some(record_at(&answer, 1)?)))
            }
            _ => Err(damaged(word)),
        }
    }

    async fn holders(&self, lookups: &[Lookup]) -> Result<Vec<Holder>> {
        let server = &self.server;
        let params: [&(dyn ToSql + Sync); 2] = [&row::ids(lookups), &server.known()];
        let rows = server.calls.ask(HOLDERS, &params).await?;
        let is_known: Option<bool> = rows.first().map_or(Ok(None), |row| get(row, 0))?;
        match is_known {
            None => {}
            Some(true) => return Ok(Vec::new()),
            Some(false) => {
                // While the store is closed its server may not have been inspected yet.
                server.status.must_be_open()?;
                return Err(server.suspect());
            }
        }
        let holder = |row: &Row| {
            let (record, names) = (record_at(row, 2)?, get::<Vec<Uuid>>(row, 1)?);
            let lookups: Vec<Lookup> = names
                .into_iter()
                .map(|id| Lookup(id.into_bytes()))
                .collect();
            let is_its_own = |name: &Lookup| record.all_lookups().any(|own| own == name);
            if !lookups.iter().all(is_its_own) {
                return Err(unreadable(Unreadable::Damaged("name")));
            }
            Ok(Holder { record, lookups })
        };
        rows.iter().map(holder).collect()
    }

    async fn load(&self, call_id: CallId) -> Result<Option<Record>> {
        let rows = self.server.calls.ask(LOAD, &[&call_id.0]).await?;
        let Some(record) = rows.first().map(record).transpose()? else {
            return Ok(None);
        };
        if record.intent.call_id != call_id {
            return Err(unreadable(Unreadable::Damaged("id")));
        }
        Ok(Some(record))
    }

    async fn watch(&self, _: &Lookup, _: CallId) -> Result<Option<Record>> {
        let why = "the replay memory is not notified of changes";
        Err(Error::Refused(why.into()))
    }

    async fn due(&self, now: Timestamp, limit: u32) -> Result<Found<Due>> {
        // A gateway cannot tell whether the owner has ended, only that the lease is over.
        let now = now.as_microsecond();
        let ledger = &self.server.ledger;
        let found = ledger.search(DUE, &[&now], limit, record, row::id).await?;
        Ok(found.map(|record| Due {
            record,
            owner_ended: false,
        }))
    }

    async fn due_rechecks(
        &self,
        now: Timestamp,
        tools: &[String],
        each: u32,
    ) -> Result<Found<Record>> {
        if self.server.status.is_in_doubt() {
            return Ok(Found::default());
        }
        let (now, limit) = (now.as_microsecond(), i64::from(each));
        let mut found = Found::default();
        for limit in [limit, limit + i64::from(UNREADABLE)] {
            let listed: [&(dyn ToSql + Sync); 3] = [&tools, &now, &limit];
            let rows = self.server.ledger.ask(DUE_RECHECKS, &listed).await?;
            found = Found::read(&rows, u32::MAX, record, row::id);
            if found.unreadable.is_empty() {
                break;
            }
        }
        let mut taken = HashMap::<String, u32>::new();
        found.calls.retain(|record| {
            let taken = taken.entry(record.intent.tool.clone()).or_default();
            *taken += 1;
            *taken <= each
        });
        Ok(found)
    }

    async fn unscheduled_unknown(&self, tools: &[String], limit: u32) -> Result<Found<Record>> {
        self.server.status.must_be_open()?;
        let ledger = &self.server.ledger;
        ledger
            .search(UNSCHEDULED, &[&tools], limit, record, row::id)
            .await
    }

    async fn due_proposals(&self, now: Timestamp, limit: u32) -> Result<Found<Record>> {
        if self.server.status.is_in_doubt() {
            return Ok(Found::default());
        }
        let now = now.as_microsecond();
        let ledger = &self.server.ledger;
        ledger
            .search(DUE_PROPOSALS, &[&now], limit, record, row::id)
            .await
    }

    async fn census(&self) -> Result<Vec<Census>> {
        let rows = self.server.ledger.ask(CENSUS, &[]).await?;
        let census = |row: &Row| {
            Ok(Census {
                tool: get::<Option<String>>(row, 0)?.unwrap_or_default(),
                state: get(row, 1)?,
                calls: get::<i64>(row, 2)?.unsigned_abs(),
            })
        };
        rows.iter().map(census).collect()
    }
}

/// The error of an answer that names half of a call: its key stays taken.
fn damaged(word: &str) -> Error {
    match word {
        "half" | "gone" => unreadable(Unreadable::Missing("call")),
        word => unexpected(word),
    }
}

impl Postgres {
    async fn try_claim(&self, change: &Change, replaced: &[Record]) -> Result<Claimed> {
        let (server, record) = (&self.server, &change.record);
        server.status.must_be_open()?;
        let intent = &record.intent;
        let epoch = server.memory.epoch().unwrap_or_default().to_string();
        let is_listed = server.tools.has(&epoch, &intent.tenant, &intent.tool);
        let lookups = row::ids(intent.all_lookups());
        let row = ChangeRow {
            known: Some(server.known()),
            givers: row::givers(replaced, &lookups),
            names: Some(lookups),
            created_at: intent.created_at.as_microsecond(),
            lists: Some(row::lists(intent)),
            tenant: (!is_listed).then(|| intent.tenant.clone()),
            tool: (!is_listed).then(|| intent.tool.clone()),
            intent: Some(codec::intent(intent)),
            args: Some(intent.args.to_vec()),
            conditions: server.conditions(change)?,
            latest: server.latest_begin(record),
            ..row::written(change)
        };
        let locks = row::locks(change, intent.all_lookups(), replaced);
        let verb = Verb::row(CLAIM, row, locks);
        let answer = server.run_guarded(verb).await?;
        let word: &str = get(&answer, 0)?;
        if let Some(denied) = denied(&answer, word)? {
            return Ok(Claimed::Denied(denied));
        }
        match word {
            "new" | "done" => {
                let record = self.written(change, &answer).await?;
                server.tools.learn(&epoch, &intent.tenant, &intent.tool);
                Ok(Claimed::Yours(record))
            }
            "late" => {
                server.was_late(&answer)?;
                Ok(Claimed::Late)
            }
            "held" => {
                let holder = record_at(&answer, 1)?;
                let mut lookups = intent.all_lookups();
                if !lookups.any(|name| holder.all_lookups().any(|held| held == name)) {
                    return Err(unreadable(Unreadable::Damaged("name")));
                }
                Ok(Claimed::Existing(holder))
            }
            _ => Err(damaged(word)),
        }
    }

    /// The record as a function has written it.
    ///
    /// Notes its token, and the write, which no beat has proved yet.
    async fn written(&self, change: &Change, answer: &Row) -> Result<Record> {
        let (mut record, memory) = (change.record.clone(), &self.server.memory);
        if change.admission.is_some() {
            record.fencing = get::<Option<i64>>(answer, 5)?.map(i64::unsigned_abs);
            record.similar_to = get::<Option<Uuid>>(answer, 6)?.map(CallId);
        }
        let id = record.intent.call_id.0;
        memory.wrote(id, (record.version, record.retain_until));
        if let (Some(admission), Some(token)) = (&change.admission, record.fencing) {
            memory.note_token(admission.token, token).await?;
        }
        Ok(record)
    }
}
