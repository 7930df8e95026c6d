//! What must hold of the branches of one session where something bounds them.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use jiff::SignedDuration;
use oncegate::core::record::{CallId, Record, State};
use oncegate::core::session::Lock;
use tokio::time::{Instant, sleep};

use super::checks::{attempt_of, short};
use super::scenario::{Ask, Budget, SESSIONS, fresh_key, like_of, lookup_of, session_of, usual};
use super::world::{ANSWERED, World};
use crate::support::gateway::Bare;
use crate::support::tool::Seen;

/// How often each session is asked for one more call: at each gateway, and at the one that comes later.
pub(super) const ONE_MORE: usize = 3;

impl World {
    /// Ends the leases of unknown calls of which the tool has seen all that will ever come: their
    /// attempt has arrived, and what becomes of it is settled. So nothing is freed early, although
    /// no call waits for ten seconds.
    pub(super) fn end_leases(&self) {
        let settled: HashSet<String> = self.settled_attempts();
        self.memory
            .end_leases(|record| settled.contains(&short(&record.attempt.id.to_string())));
    }

    fn settled_attempts(&self) -> HashSet<String> {
        let seen = self.tool.seen();
        let settled = seen.iter().filter(|seen| seen.until.is_some());
        settled.map(|seen| attempt_of(seen).to_owned()).collect()
    }

    /// When all is well, each exclusive session runs one more call in bounded time.
    pub(super) async fn run_one_more(&self, gateway: &Bare, n: usize) {
        if self.bounds.exclusive_wait_ms.is_none() {
            return;
        }
        let run = |session: usize| async move {
            if !self.waits_for_a_lease(session) {
                self.run_in(gateway, session, fresh_key(session, n)).await;
            }
        };
        tokio::join!(run(0), run(1));
    }

    async fn run_in(&self, gateway: &Bare, session: usize, key: usize) {
        let began = Instant::now();
        let time_passes = async {
            loop {
                self.tool.forget();
                self.end_leases();
                sleep(Duration::from_millis(20)).await;
            }
        };
        let runs = async {
            while began.elapsed() < ANSWERED {
                let ask = Ask {
                    wait: None,
                    ..usual(key)
                };
                let answer = self.ask(gateway, ask).await;
                match answer.map(|answer| answer.problem()).as_deref() {
                    Some("session-busy") => sleep(Duration::from_millis(20)).await,
                    // On a slow machine the tool may seem slow.
                    Some("" | "outcome-unknown" | "tool-unreachable") => return Ok(()),
                    Some("budget-exceeded") if self.bounds.budget.is_some() => return Ok(()),
                    other => return Err(format!("told {other:?}")),
                }
            }
            Err("busy for too long".to_owned())
        };
        let has_run = tokio::select! {
            has_run = runs => has_run,
            () = time_passes => unreachable!("it has no end"),
        };
        if let Err(why) = has_run {
            let sessions = self.memory.sessions();
            self.breaks(format!(
                "L6: S{session} does not run k{key}, {why}: {sessions:?}"
            ));
        }
    }

    /// Whether the session is locked by an unknown call that may stay unknown
    /// before its lease is: it may never have been sent.
    fn waits_for_a_lease(&self, session: usize) -> bool {
        let settled = self.settled_attempts();
        let locks = self.locks();
        let (_, lock, record) = match locks
            .iter()
            .find(|(name, ..)| *name == format!("S{session}"))
        {
            Some(found) => found,
            None => return false,
        };
        record.as_ref().is_some_and(|record| {
            let is_known = settled.contains(&short(&record.attempt.id.to_string()));
            matches!(record.state, State::Unknown(_)) && lock.free_from.is_some() && !is_known
        })
    }

    /// Who has the locks of the sessions.
    fn locks(&self) -> Vec<(String, Lock, Option<Record>)> {
        let records: HashMap<CallId, Record> = self
            .memory
            .records()
            .into_iter()
            .map(|(record, _)| (record.intent.call_id, record))
            .collect();
        let sessions = self.memory.sessions().into_iter();
        let locks = sessions.filter_map(|(id, session)| Some((id.id, session.lock?)));
        locks
            .map(|(id, lock)| (id, lock, records.get(&lock.call_id).cloned()))
            .collect()
    }

    /// A lock is free as soon as its call has ended; at the latest, when its lease is over.
    pub(super) fn check_locks(&self) {
        for (session, lock, record) in self.locks() {
            let latest = match record.as_ref().map(|record| &record.state) {
                Some(State::Succeeded(_) | State::Failed(_)) => {
                    record.map(|record| record.updated_at)
                }
                Some(State::Unknown(_)) => Some(lock.lease_until),
                _ => None,
            };
            if lock.free_from.is_none() || lock.free_from > latest {
                self.breaks(format!("L6: {session} stays locked: {lock:?}"));
            }
        }
    }

    pub(super) fn check_sessions(&self, seen: &[Seen]) {
        if self.bounds.exclusive_wait_ms.is_some() {
            (0..SESSIONS).for_each(|session| self.check_exclusive(&session_of(session), seen));
        }
        if let Some(budget) = self.bounds.budget {
            (0..SESSIONS).for_each(|session| self.check_budget(&session_of(session), budget));
        }
        if self.bounds.similar {
            self.check_similar(seen);
        }
    }

    /// At the tool one request of a session has ended before the next arrives, and that is of the same
    /// run or has a higher token.
    fn check_exclusive(&self, session: &str, seen: &[Seen]) {
        let mut requests: Vec<&Seen> = seen
            .iter()
            .filter(|seen| seen.header("x-session-id") == session)
            .collect();
        requests.sort_by_key(|seen| seen.at);
        for pair in requests.windows(2) {
            let (one, next) = (pair[0], pair[1]);
            if one.until.is_none() || one.until > next.at {
                self.breaks(format!(
                    "S21: two calls of {session} at once: {one:?} and {next:?}"
                ));
            }
            let run = |seen: &Seen| {
                let token: u64 = seen.header("fencing-token").parse().unwrap_or_default();
                (token, seen.header("x-call-id").to_owned())
            };
            let (one, next) = (run(one), run(next));
            if next.0 <= one.0 && next != one {
                self.breaks(format!(
                    "S11: tokens of {session} do not rise: {one:?}, then {next:?}"
                ));
            }
        }
    }

    /// In no window more calls begin than may.
    fn check_budget(&self, session: &str, budget: Budget) {
        let mut begun = Vec::new();
        for (record, entries) in self.memory.records() {
            let is_here = record.intent.session_id == session;
            let begins = entries
                .iter()
                .filter(|entry| matches!(&*entry.event, "claimed" | "run_again"));
            begun.extend(
                begins
                    .filter(|_| is_here)
                    .map(|entry| (entry.at, record.intent.call_id)),
            );
        }
        for (last, _) in &begun {
            let first = *last - SignedDuration::from_millis(budget.window_ms.into());
            let calls: HashSet<CallId> = begun
                .iter()
                .filter(|(at, _)| first < *at && at <= last)
                .map(|(_, call_id)| *call_id)
                .collect();
            if calls.len() > budget.max {
                self.breaks(format!(
                    "S22: {} calls of {session} began, and {budget:?}",
                    calls.len()
                ));
            }
        }
    }

    /// No two effects look alike, and who is refused for that is told of a call that there is.
    fn check_similar(&self, seen: &[Seen]) {
        let mut effects: HashMap<usize, HashSet<usize>> = HashMap::new();
        for key in 0..fresh_key(0, ONE_MORE) {
            let name = lookup_of(key).for_tool();
            if seen
                .iter()
                .any(|seen| seen.executed && seen.header("idempotency-key") == name)
            {
                effects.entry(like_of(key)).or_default().insert(key);
            }
        }
        for keys in effects.values().filter(|keys| keys.len() > 1) {
            self.breaks(format!("S23: the effects of {keys:?} look alike"));
        }
        let calls: HashSet<String> = self
            .memory
            .records()
            .iter()
            .map(|(record, _)| record.intent.call_id.to_string())
            .collect();
        for heard in self.heard.lock().expect("not poisoned").iter() {
            let Some(answer) = heard
                .answer
                .as_ref()
                .filter(|answer| answer.problem() == "possible-duplicate")
            else {
                continue;
            };
            if !answer
                .at("/similar_to")
                .as_str()
                .is_some_and(|call_id| calls.contains(call_id))
            {
                self.breaks(format!("S23: k{} heard {}", heard.ask.key, answer.text));
            }
        }
    }
}
