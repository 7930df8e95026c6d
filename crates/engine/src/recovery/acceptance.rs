//! How far the acceptance of a loss is. It may take half a minute, which no request should.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use oncegate_store::Reason;

/// How long the result of an acceptance is there for a request that asks again.
const THERE_FOR: Duration = Duration::from_secs(600);

/// What became of a request to accept a loss.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Accepted {
    /// It is accepted; so many calls became unknown.
    Done(usize),
    /// It is under way, and goes on without the request.
    UnderWay,
}

/// How far the acceptance of a loss is, and how the last one ended.
#[derive(Debug, Default)]
pub(crate) struct Progress(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// What the acceptance under way does or awaits.
    step: Option<String>,
    /// Why the last acceptance failed.
    failure: Option<String>,
    /// How many calls became unknown, and since when no request has been told.
    unreported: Option<(usize, Instant)>,
}

impl Progress {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Says what the acceptance does or awaits from now on.
    pub(crate) fn is_at(&self, step: impl Into<String>) {
        *self.state() = State {
            step: Some(step.into()),
            ..State::default()
        };
    }

    /// The acceptance has ended. `failure`: why it failed.
    pub(crate) fn ended(&self, failure: Option<String>) {
        let mut state = self.state();
        if state.step.take().is_some() {
            state.failure = failure;
        }
    }

    /// Keeps a result of which no request was told.
    pub(crate) fn keep(&self, marked: usize) {
        self.state().unreported = Some((marked, Instant::now()));
    }

    /// The result of the last acceptance, if no request was told of it.
    pub(crate) fn unreported(&self) -> Option<usize> {
        let unreported = self.state().unreported.take();
        let (marked, _) = unreported.filter(|(_, since)| since.elapsed() < THERE_FOR)?;
        Some(marked)
    }

    /// What is awaited, or why the last acceptance failed. `is_lost`: whether a loss still has to be accepted.
    pub(crate) fn reason(&self, is_lost: bool) -> Option<Reason> {
        let mut state = self.state();
        if let Some(step) = &state.step {
            let text = format!("the loss of data is being accepted: {step}");
            return Some(Reason::new("accepting", text));
        }
        if !is_lost {
            state.failure = None;
        }
        let why = state.failure.as_ref()?;
        let text =
            format!("the last acceptance of the loss has failed: {why}; accept it once more");
        Some(Reason::new("acceptance_failed", text))
    }

    pub(crate) fn is_under_way(&self) -> bool {
        self.state().step.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_result_of_an_acceptance_is_told_once_and_not_long_after() {
        let progress = Progress::default();
        assert_eq!(progress.unreported(), None);
        progress.keep(3);
        assert_eq!(
            (progress.unreported(), progress.unreported()),
            (Some(3), None)
        );
        progress.keep(3);
        tokio::time::advance(THERE_FOR).await;
        assert_eq!(progress.unreported(), None);
        progress.keep(3);
        progress.is_at("a further loss");
        assert_eq!(progress.unreported(), None);
    }

    #[test]
    fn a_failed_acceptance_is_named_as_long_as_the_store_is_lost() {
        let code = |progress: &Progress, is_lost| {
            let reason = progress.reason(is_lost);
            reason.map(|reason| reason.code)
        };
        let progress = Progress::default();
        progress.ended(Some("nothing is lost".into()));
        assert_eq!(code(&progress, true), None, "it had not begun");
        progress.is_at("a step");
        assert_eq!(code(&progress, false), Some("accepting"));
        progress.ended(Some("no disk".into()));
        assert_eq!(code(&progress, true), Some("acceptance_failed"));
        assert_eq!(code(&progress, false), None);
        assert_eq!(code(&progress, true), None, "another loss");
        progress.is_at("a step");
        progress.ended(None);
        assert_eq!(code(&progress, true), None);
    }
}
