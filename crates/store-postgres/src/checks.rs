//! The inspection of a PostgreSQL: reachable, durable, its tables, and loss of data.
//!
//! Runs at the start, on every trouble with a connection, and every second.

pub(crate) mod durability; // how durable a PostgreSQL is
pub(crate) mod layout; // tables and functions: made, found, or refused

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::{Mutex, Notify};
use tokio::time::{Instant, timeout};

use self::durability::{Facts, LOOK};
use crate::loss::epoch::Epochs;

use super::target::Settings;
use crate::server::{SUSPECT, Server};
use oncegate_store::lock::lock;
use oncegate_store::shared::clock::local_time;
use oncegate_store::shared::demand::Demand;
use oncegate_store::shared::inspection::{Inspects, Settling};
use oncegate_store::watermarks::Need;
use oncegate_store::{Error, Readiness, Reason, Result};

/// How often an unreachable or unfit server is inspected.
const TRY_EVERY: Duration = Duration::from_millis(250);
/// How long it may take to make the tables.
const LAYOUT: Duration = Duration::from_secs(20);
/// How long a beat may take.
const BEATS: Duration = Duration::from_secs(2);

/// Inspects a PostgreSQL, all of it each time.
pub(crate) struct Watch {
    server: Arc<Server>,
    pub(crate) epochs: Epochs,
    turn: Mutex<()>,
    settings: Settings,
    settling: Settling<i64>,
    /// The run of the server in which the tables were found.
    has_layout: Mutex<Option<i64>>,
}

#[async_trait]
impl Inspects for Watch {
    fn trouble(&self) -> Arc<Notify> {
        self.server.dialer.trouble.clone()
    }

    fn pause(&self) -> Duration {
        let every = self.settings.timings.redis_look_every;
        if self.server.status.is_open() {
            every
        } else {
            TRY_EVERY.min(every)
        }
    }

    fn turn(&self) -> &Mutex<()> {
        &self.turn
    }

    async fn inspect_in_turn(&self) {
        let (server, closings) = (&self.server, self.server.status.closings());
        let found = self.look().await;
        let is_saved = server.memory.keep(Need::IfOld).await;
        let (target, trouble, seen) = (&server.target, &server.dialer.trouble, &self.epochs.seen);
        let status = &server.status;
        status.conclude(target, found, closings, is_saved, trouble, seen);
    }
}

impl Watch {
    pub(crate) fn new(server: Arc<Server>, settings: Settings) -> Self {
        Self {
            epochs: Epochs::new(server.clone()),
            turn: Mutex::default(),
            server,
            settling: Settling::new(settings.timings.redis_others_look),
            settings,
            has_layout: Mutex::default(),
        }
    }

    async fn look(&self) -> Result<Readiness> {
        let server = &self.server;
        let asked = Instant::now();
        let facts: Facts = server.inspector.ask_json(LOOK, &[]).await?;
        let (here, took) = (local_time().as_microsecond(), asked.elapsed());
        let known = server.clock.offset_us();
        let clock_offset_us = offset(known, facts.clock_us, here, took);
        server.clock.set(clock_offset_us);
        let demand = Demand {
            durability: self.settings.durability,
            declared: self.settings.declared,
            clock_offset_us,
        };
        let verdict = durability::judge(&facts, demand);
        let mut class = verdict.class;
        if verdict.is_unfit {
            // Another server may be the primary by now.
            server.inspector.give_up().await;
        } else if let Some(reason) = self.lacks_layout(&facts).await? {
            class.reasons.push(reason);
        } else {
            self.look_for_loss(&facts, &mut class.reasons).await?;
        }
        class.warnings.extend(server.memory.exposed());
        Ok(Readiness {
            durability: Some(class.durability),
            reasons: class.reasons,
            warnings: class.warnings,
            ..Readiness::default()
        })
    }

    /// Looks for the tables once in each run of the server, and makes them if there are none.
    async fn lacks_layout(&self, facts: &Facts) -> Result<Option<Reason>> {
        let mut has_layout = self.has_layout.lock().await;
        if *has_layout == Some(facts.started_us) {
            return Ok(None);
        }
        let prepared = timeout(LAYOUT, layout::prepare(&self.server));
        let late = |_| Error::Refused("the tables were not found in time".into());
        let reason = prepared.await.map_err(late)??;
        *has_layout = reason.is_none().then_some(facts.started_us);
        Ok(reason)
    }

    /// Looks for lost data, and beats if nothing is lost.
    async fn look_for_loss(&self, facts: &Facts, reasons: &mut Vec<Reason>) -> Result<()> {
        let server = &self.server;
        let settled = server.memory.settled_run();
        self.settling.saw(facts.started_us, settled, Instant::now());
        let before = server.now();
        let now = before.as_microsecond().unsigned_abs();
        reasons.extend(server.memory.tokens_ahead(now));
        if let Some(reason) = self.epochs.look_for_loss(facts).await? {
            reasons.push(reason);
            return Ok(());
        }
        match timeout(BEATS, server.beat()).await {
            Ok(Ok(true)) => {
                let beat = server.memory.beat();
                lock(&self.epochs.seen.moments).saw_whole(before, beat);
            }
            Ok(Ok(false)) => reasons.push(Reason::new("suspect", SUSPECT)),
            Ok(Err(error)) => {
                reasons.push(Reason::new("beat", format!("a commit failed: {error}")))
            }
            Err(_) => {
                let text =
                    "a commit was not answered within 2 s: is a synchronous standby connected?";
                reasons.push(Reason::new("beat", text));
            }
        }
        if let Some(left) = self.settling.left() {
            let text = format!(
                "PostgreSQL was restarted or exchanged: for {} ms every gateway checks whether it has lost data",
                left.as_millis()
            );
            reasons.push(Reason::new("restarted", text));
        } else {
            server.memory.note_settled(facts.started_us);
        }
        Ok(())
    }
}

/// From this machine's clock to the server's, in microseconds, after an answer that `took` so long and came at `here`.
///
/// The server may have looked at its clock at any moment of that time. Of what is possible this is the nearest to what is known, so
/// that time does not jump with each slow answer.
fn offset(known: i64, clock_us: i64, here: i64, took: Duration) -> i64 {
    let took = i64::try_from(took.as_micros()).unwrap_or(i64::MAX);
    let least = clock_us - here;
    known.clamp(least, least.saturating_add(took))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slow_answer_does_not_move_the_clock_and_one_that_is_set_does() {
        let took = Duration::from_micros(100);
        assert_eq!(offset(0, 950, 1_000, took), 0, "as it was");
        assert_eq!(offset(-70, 950, 1_000, took), -50, "at least");
        assert_eq!(offset(3_000, 950, 1_000, took), 50, "at most");
        assert_eq!(offset(0, 7_000_950, 1_000, took), 6_999_950);
    }
}
