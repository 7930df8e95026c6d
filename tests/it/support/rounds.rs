//! One round of a worker, for which a test does not wait until its time has come.

use jiff::Timestamp;
use oncegate::gateway::Gateway;
use oncegate::store;
use tokio::task::JoinHandle;

/// The result of one round.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Rested {
    /// What was due.
    pub due: usize,
    /// What this gateway has settled.
    pub settled: usize,
}

/// Checks the unknown calls that are due.
pub async fn recheck(gateway: &Gateway, now: Timestamp) -> Rested {
    let begun = gateway.rechecks.begin_rechecks(now).await;
    end(begun.expect("an answer")).await
}

/// Works on the sagas that are due.
pub async fn work_on_sagas(gateway: &Gateway, now: Timestamp) -> Result<Rested, store::Error> {
    let begun = gateway.saga_worker.begin_saga_work(now).await?;
    Ok(end(begun).await)
}

async fn end(begun: Vec<JoinHandle<bool>>) -> Rested {
    let due = begun.len();
    let mut settled = 0;
    for work in begun {
        settled += usize::from(work.await.unwrap_or(false));
    }
    Rested { due, settled }
}
