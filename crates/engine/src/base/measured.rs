//! A layer around the store that times each verb, and counts and logs its errors.

use std::sync::Arc;
use std::time::Duration;

use tokio::task::futures::TaskLocalFuture;
use tokio::task_local;
use tokio::time::Instant;

use crate::metrics::Metrics;
use oncegate_rules::record::Intent;
use oncegate_store::repeats::Repeats;
use oncegate_store::verbs::LABELS;
use oncegate_store::verbs::layer::*;

task_local! {
    /// The call that the current task works on.
    static CALL: Arc<Intent>;
}

/// Runs work on a call: store errors in it are logged with that call.
pub(crate) fn with_call_context<F>(call: Arc<Intent>, work: F) -> TaskLocalFuture<Arc<Intent>, F>
where
    F: Future,
{
    CALL.scope(call, work)
}

/// How often the same failure of a verb is logged. While a store is closed, each request meets one.
const SAME_EVERY: Duration = Duration::from_secs(10);
/// The verbs whose failure may have left something of a call behind.
const WRITES_CALL: [&str; 2] = ["claim", "replace"];

/// The store with metrics. The measured time includes all other layers, such as encryption.
pub(crate) struct Measured {
    store: Arc<dyn Store>,
    metrics: Arc<Metrics>,
    repeats: Repeats,
}

impl Measured {
    /// Declares each verb's metrics at zero, so that its first error is an increase.
    pub(crate) fn new(store: Arc<dyn Store>, metrics: Arc<Metrics>) -> Self {
        LABELS.iter().for_each(|verb| metrics.expect_verb(verb));
        let repeats = Repeats::every(SAME_EVERY);
        Self {
            store,
            metrics,
            repeats,
        }
    }

    fn done(&self, operation: &str, began: Instant, about: About<'_>, error: Option<&Error>) {
        self.metrics.took(operation, began.elapsed().as_secs_f64());
        let Some(error) = error else { return };
        let errors = &self.metrics.store_errors;
        errors.with_label_values(&[operation, error.kind()]).inc();
        let call = CALL.try_with(Arc::clone).ok();
        let About { call_id, trace_id } = match &call {
            Some(call) => about.within(call),
            None => about,
        };
        // A refusal, and a question without an answer, is the same for all calls. What may have been written is not.
        let is_of_call = match error {
            Error::Refused(_) => false,
            Error::Ambiguous(_) => WRITES_CALL.contains(&operation),
            Error::Unreadable(_) => true,
        };
        let of_call = call_id.filter(|_| is_of_call).map(|id| id.0);
        let same = (operation, error.to_string(), of_call);
        let Some(left_out) = self.repeats.note(same) else {
            return;
        };
        let call_id = call_id.map(tracing::field::display);
        tracing::error!(operation, call_id, trace_id, left_out, %error, "store operation failed");
    }
}

macro_rules! measured {
    ($self:ident, $label:expr, $verb:ident($($arg:ident),*)) => {{
        let began = Instant::now();
        let answer = $self.store.$verb($($arg),*).await;
        let about = [$($arg.about()),*].into_iter().fold(About::default(), About::or);
        $self.done($label, began, about, answer.as_ref().err());
        answer
    }};
}
each_verb!(implement, Measured, measured);

forward_health!(Measured);
forward_secrets!(Measured);

/// The call of a verb, for the log.
#[derive(Default)]
struct About<'a> {
    call_id: Option<CallId>,
    trace_id: Option<&'a str>,
}

impl<'a> About<'a> {
    fn of(intent: &'a Intent) -> Self {
        Self {
            call_id: Some(intent.call_id),
            trace_id: Some(&intent.trace_id),
        }
    }

    /// The call of a verb within work on a call.
    ///
    /// For a verb about another call the trace is not known.
    fn within(self, call: &'a Intent) -> Self {
        let is_other = self.call_id.is_some_and(|id| id != call.call_id);
        if is_other {
            self
        } else {
            self.or(Self::of(call))
        }
    }

    fn or(self, other: Self) -> Self {
        Self {
            call_id: self.call_id.or(other.call_id),
            trace_id: self.trace_id.or(other.trace_id),
        }
    }
}

/// An argument of a verb: most name no single call.
trait Argument {
    fn about(&self) -> About<'_> {
        About::default()
    }
}

impl Argument for Record {
    fn about(&self) -> About<'_> {
        About::of(&self.intent)
    }
}

impl Argument for Change {
    fn about(&self) -> About<'_> {
        self.record.about()
    }
}

impl Argument for CallId {
    fn about(&self) -> About<'_> {
        About {
            call_id: Some(*self),
            trace_id: None,
        }
    }
}

macro_rules! about_no_call {
    ($($ty:ty),*) => { $(impl Argument for $ty {})* };
}
about_no_call!(
    [Record],
    Lookup,
    [Lookup],
    [String],
    str,
    u32,
    bool,
    Timestamp,
    Filter
);
about_no_call!(Duplicates, SessionId, Lock, Entry, Document, Kind);
about_no_call!(DocumentQuery, Option<Position>);

#[cfg(test)]
mod tests {
    use super::*;
    use oncegate_rules::key::Source;
    use oncegate_rules::testing::record;
    use oncegate_rules::testing::tool;

    #[test]
    fn a_verb_is_logged_with_the_trace_of_its_own_call_only() {
        let call = record(&tool("t"), Source::Runtime, &[]).intent;
        let trace_id = Some(call.trace_id.as_str());
        let other = CallId(uuid::Uuid::from_u128(99));
        let said = |id: Option<CallId>| {
            let about = id.as_ref().map(Argument::about).unwrap_or_default();
            let within = about.within(&call);
            (within.call_id, within.trace_id.map(str::to_owned))
        };
        let own = (Some(call.call_id), trace_id.map(str::to_owned));
        assert_eq!(said(None), own);
        assert_eq!(said(Some(call.call_id)), own);
        assert_eq!(said(Some(other)), (Some(other), None));
    }
}
