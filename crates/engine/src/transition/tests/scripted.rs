//! A store that fails as a plan says, for the tests of changes.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use tempfile::TempDir;
use tokio_util::sync::CancellationToken;

use crate::base::{Base, Limits};
use crate::metrics::Metrics;
use crate::transition::{Moved, OnConflict, load_and_apply};
use oncegate_rules::call::Event;
use oncegate_rules::record::InstanceId;
use oncegate_rules::session::{Admission, Denied, Line};
use oncegate_store::verbs::layer::*;
use oncegate_store_sqlite::Sqlite;

/// What happens to one write.
pub(super) enum Fault {
    /// The store has not carried it out, and says so.
    Refused,
    /// The store has not carried it out, and does not say so.
    Lost,
    /// The store has carried it out, and its answer is lost.
    Unanswered,
    Denied,
    /// Another writer applies this event first.
    Overtaken(Event),
    /// The store has carried it out, its answer is lost, and another writer applies this event.
    UnansweredThen(Event),
    /// The key stands for this call.
    Replaced(Box<Record>),
}

/// A store that does with each next write what the plan says, and then works.
pub(super) struct Scripted {
    pub(super) store: Arc<dyn Store>,
    pub(super) plan: Mutex<VecDeque<Fault>>,
    pub(super) writes: AtomicU32,
    /// The longest line of the last claim.
    pub(super) longest_line: AtomicU32,
    /// A gateway whose writes are not in the plan.
    other: Base,
    _folder: TempDir,
}

impl Scripted {
    pub(super) fn new(owner: InstanceId) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let (path, fatal) = (folder.path().join("oncegate.db"), CancellationToken::new());
        let store: Arc<dyn Store> = Arc::new(Sqlite::open(&path, owner, &fatal).expect("a store"));
        let metrics = Arc::new(Metrics::new());
        Self {
            other: Base::new(store.clone(), Vec::new(), metrics, owner, Limits::least()),
            store,
            plan: Mutex::default(),
            writes: AtomicU32::new(0),
            longest_line: AtomicU32::new(0),
            _folder: folder,
        }
    }

    fn next(&self) -> Option<Fault> {
        self.writes.fetch_add(1, Ordering::SeqCst);
        self.plan.lock().expect("not poisoned").pop_front()
    }

    /// Another writer applies an event to the stored call.
    pub(super) async fn apply(&self, call_id: CallId, event: &Event) {
        let moved = load_and_apply(&self.other, call_id, event, OnConflict::GiveUp).await;
        assert!(matches!(moved, Ok(Some(Moved::Written { .. }))));
    }
}

fn refused<T>() -> Result<T, Error> {
    Err(Error::Refused("it is down".into()))
}

fn unanswered<T>() -> Result<T, Error> {
    Err(Error::Ambiguous("no answer".into()))
}

macro_rules! scripted {
    ($self:ident, $label:expr, claim($change:ident, $replaced:ident)) => {{
        if let Some(Admission { lock: Some(Line::Waits { longest }), .. }) = $change.admission {
            $self.longest_line.store(longest, Ordering::SeqCst);
        }
        match $self.next() {
            None => $self.store.claim($change, $replaced).await,
            Some(Fault::Refused) => refused(),
            Some(Fault::Lost) => unanswered(),
            Some(Fault::Unanswered) => {
                $self.store.claim($change, $replaced).await?;
                unanswered()
            }
            Some(Fault::Denied) => Ok(Claimed::Denied(Denied::Frozen)),
            Some(_) => unreachable!("not of a claim"),
        }
    }};
    ($self:ident, $label:expr, replace($change:ident, $expected:ident)) => {{
        let call_id = $expected.intent.call_id;
        match $self.next() {
            None => {}
            Some(Fault::Refused) => return refused(),
            Some(Fault::Lost) => return unanswered(),
            Some(Fault::Unanswered) => {
                $self.store.replace($change, $expected).await?;
                return unanswered();
            }
            Some(Fault::Denied) => return Ok(Replaced::Denied(Denied::Frozen)),
            Some(Fault::Overtaken(event)) => $self.apply(call_id, &event).await,
            Some(Fault::UnansweredThen(event)) => {
                $self.store.replace($change, $expected).await?;
                $self.apply(call_id, &event).await;
                return unanswered();
            }
            Some(Fault::Replaced(other)) => return Ok(Replaced::Lost(Some(*other))),
        }
        $self.store.replace($change, $expected).await
    }};
    ($self:ident, $label:expr, $verb:ident($($arg:ident),*)) => {{
        $self.store.$verb($($arg),*).await
    }};
}
each_verb!(implement, Scripted, scripted);
forward_secrets!(Scripted);
forward_health!(Scripted);
