//! Puts writes back that a Redis has lost and this gateway remembers.

use super::memory::CallWrite;
use crate::calls::record;
use crate::keys;
use crate::server::Server;
use oncegate_rules::ledger::Index;
use oncegate_rules::record::{CallId, Record, State};
use oncegate_store::{Result, codec};

/// Puts back every remembered write that the store lacks.
pub(crate) async fn put_all_back(server: &Server) -> Result<()> {
    let mut all = Ok(());
    let recent = server.memory.recent();
    for versions in recent.chunk_by(|one, next| one.call_id() == next.call_id()) {
        for (number, write) in (1..).zip(versions) {
            let logged = match put_lookups_back(server, write).await {
                // Only the newest version shows which call a lookup key belongs to.
                Ok(holders) if number == versions.len() => {
                    log_holders(server, &write.record, holders).await
                }
                put => put.map(drop),
            };
            // A call that cannot be put back must not block the others.
            all = logged.and(all);
        }
    }
    all
}

/// Puts a lost record back, and logs other calls that hold its lookup keys by now.
pub(crate) async fn put_back(server: &Server, write: &CallWrite) -> Result<()> {
    let holders = put_lookups_back(server, write).await?;
    log_holders(server, &write.record, holders).await
}

/// Puts a record back with its lookup keys. Returns the other calls that hold a lookup key of it.
///
/// A lookup key goes back to this call if its holder's window was over when this call's run began. May be repeated: the
/// result is the same as after one run.
async fn put_lookups_back(server: &Server, write: &CallWrite) -> Result<Vec<CallId>> {
    let holders = try_put_back(server, write, &[]).await?;
    let mut over = Vec::new();
    for holder in &holders {
        let holder = server.fields_of(*holder).await?;
        over.extend(holder.filter(|holder| is_over(holder, &write.record)));
    }
    if over.is_empty() {
        return Ok(holders);
    }
    try_put_back(server, write, &over).await
}

/// Logs the holders of a call's lookup keys, except calls that began after its window.
async fn log_holders(server: &Server, record: &Record, holders: Vec<CallId>) -> Result<()> {
    let intent = &record.intent;
    for holder in holders {
        let newest = server.fields_of(intent.call_id).await?;
        let later = server.fields_of(holder).await?;
        if newest
            .zip(later)
            .is_some_and(|(newest, later)| is_over(&newest, &later))
        {
            continue;
        }
        // Until everything is put back each inspection tries all of it again.
        if server.repeats.note((intent.call_id.0, holder.0)).is_none() {
            continue;
        }
        tracing::error!(
            call_id = %intent.call_id,
            tool = intent.tool,
            %holder,
            "a call that the store had lost was put back, but another call holds one of its lookup keys by now: \
             the same intent may have run twice",
        );
    }
    Ok(())
}

/// Runs the script once. Returns the other calls that hold a lookup key.
async fn try_put_back(
    server: &Server,
    write: &CallWrite,
    givers: &[Record],
) -> Result<Vec<CallId>> {
    let CallWrite {
        record,
        entry,
        is_locked,
    } = write;
    let intent = &record.intent;
    let mut lists = keys::lists(intent);
    // A call that does not get its key's name back is found by this list.
    if !matches!(lists[..], [Index::Key(_), ..]) {
        lists.insert(0, Index::Key(&intent.key));
    }
    let lease = record.attempt.lease_until.as_microsecond().to_string();
    let [lease, free_from] = match (&record.state, *is_locked) {
        (State::Running, true) => [&*lease, ""],
        // Its request may be under way until the lease ends.
        (State::Unknown(_), true) => [&*lease, &*lease],
        _ => ["", ""],
    };
    let conditions = keys::conditions(intent, None, None);
    let script = &server.scripts.assert;
    let run = server
        .about_call(
            script,
            String::new(),
            (record, entry),
            conditions,
            &lists,
            givers,
        )
        .arg((codec::intent(intent), &intent.args[..]))
        .arg(record::or_empty(record.fencing))
        .arg(record::or_empty(record.similar_to.map(keys::id)))
        .arg((lease, free_from, &intent.tenant));
    let answer = server.run(run).await?;
    if answer.word != "conflict" {
        return Ok(Vec::new());
    }
    let holders = answer.texts().filter_map(|id| keys::call_id(id.as_bytes()));
    Ok(holders.collect())
}

/// Whether the window of `earlier` was over when the run of `later` began.
///
/// The start of the run counts, not the creation: a request may wait for its session before it claims its lookup keys.
fn is_over(earlier: &Record, later: &Record) -> bool {
    earlier
        .expires_at
        .is_some_and(|expires_at| expires_at <= later.attempt.run_started_at)
}
