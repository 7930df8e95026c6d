//! The verbs of a store.
//!
//! Each is listed here once: the traits and the layers around a store are made from the list.
//!
//! Every verb is atomic: a crash leaves it done or not begun. A verb that writes answers only when what it
//! wrote is durable, as far as the store's [`Durability`](super::Durability) goes.

use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use jiff::SignedDuration;

use self::layer::*;
use super::{Finished, Listener, Readiness};

/// What a layer around a store needs in scope: the verbs, the macros and all types of the verbs.
pub mod layer {
    pub use jiff::Timestamp;

    pub use crate::core::call::Change;
    pub use crate::core::document::{Document, Kind};
    pub use crate::core::key::Lookup;
    pub use crate::core::ledger::{Duplicates, Filter, History, Listed, Maker, Page};
    pub use crate::core::position::Position;
    pub use crate::core::record::{CallId, Entry, Holder, Record};
    pub use crate::core::session::{Lock, Session, SessionId};
    pub use crate::store::verbs::{Store, each_verb, forward_health, forward_secrets, implement};
    pub use crate::store::{Census, Claimed, Due, Error, Found, Put, Replaced};
}

/// Hands the list of verbs to a macro, after the macro's own arguments.
///
/// The answer of each is `Result<_, Error>`. `as` is its name in metrics, where that is another.
#[doc(hidden)]
#[macro_export]
macro_rules! each_store_verb {
    ($to:ident $(, $with:ident)*) => {
        $to! {
            ($($with),*)

            /// Calls: claiming their keys, changing them, finding those that need work.
            Calls {
                /// Claims all names of `change.record` for its attempt, if the change's conditions hold.
                ///
                /// The record is written in its state: it runs, or has succeeded already.
                /// Writes its first ledger entry and what follows from the conditions: the fencing token, the
                /// session's lock, its place in budgets and among near duplicates. If the conditions do not hold,
                /// nothing is written but a place in the line for the lock.
                ///
                /// If any of the names is held, nothing is written and the first holder, in the order of the
                /// names, is returned; unless each holder is still exactly one of the records `instead_of`:
                /// those give up these names in the same step and stay in the ledger. Asked again with the
                /// same attempt it answers `Yours`, as long as the call was not changed since.
                async fn claim(change: &Change, instead_of: &[Record]) -> Claimed;

                /// Writes `change` if the stored record still has `expected`'s version, attempt and token.
                ///
                /// A change by which the call runs needs its names as well: if another call holds one of them
                /// by now, nothing is written and that one is returned. Arguments and fingerprint are written
                /// by a change that begins an attempt, and by no other. Conditions are as in `claim`; what the
                /// change releases is given back in the same step, and names that it takes are claimed: if
                /// another call holds one of them, nothing is written and that one is returned. Asked again
                /// with the same change it answers `Done`.
                async fn replace(change: &Change, expected: &Record) -> Replaced;

                /// The calls of one tenant that hold these names, each once, in their order.
                async fn holders(names: &[Lookup]) -> Vec<Holder>;

                async fn load(call_id: CallId) -> Option<Record>;

                /// The call, if it holds this name, and from now on the store tells of its changes.
                ///
                /// To the memory that was given to [`Health::track`]; otherwise it is refused.
                async fn watch(name: &Lookup, call_id: CallId) -> Option<Record>;

                /// Running calls without a living owner, oldest first, at most `limit`.
                ///
                /// Their lease is over, or their owner is known to have ended.
                async fn due(now: Timestamp, limit: u32) -> Found<Due>;

                /// Unknown calls of these tools whose next check is due, longest waiting first.
                ///
                /// At most `each` of one tool, so that one tool's backlog does not delay another's checks.
                async fn due_rechecks(now: Timestamp, tools: &[String], each: u32) -> Found<Record>
                    as "to_check";

                /// Unknown calls of these tools without a next check that were not given up.
                async fn unscheduled_unknown(tools: &[String], limit: u32) -> Found<Record>
                    as "unchecked";

                /// Counts running and unknown calls per tool.
                async fn census() -> Vec<Census>;
            }

            /// The ledger: questions about calls, and forgetting them.
            Ledger {
                /// The maker of a call. Costs the same however long the call's history is.
                async fn maker(call_id: CallId) -> Option<Maker>;

                /// A call with the newest `limit` entries of its history, and its duplicates.
                async fn history(call_id: CallId, limit: u32) -> Option<History>;

                /// All tenants with a call that is kept, and maybe some whose calls are gone.
                async fn tenants() -> Vec<String>;

                /// Calls of a tenant that pass the filter, newest first, before a position.
                ///
                /// At most `limit`, and about [`PAGE_BYTES`](crate::core::ledger::PAGE_BYTES). Takes a bounded
                /// number of operations, so it may find fewer than there are, and says up to where it has
                /// looked.
                async fn list(
                    tenant: &str,
                    filter: &Filter,
                    before: Option<Position>,
                    limit: u32
                ) -> Page<Listed>;

                /// Adds to the duplicates of a call, if it is still kept.
                async fn count_duplicates(call_id: CallId, later: &Duplicates) -> ();

                /// Deletes records past their retention; answers how many.
                ///
                /// At most `limit` records and as many sessions and documents: nothing is left if fewer than
                /// `limit` were deleted.
                async fn prune(now: Timestamp, limit: u32) -> u64;
            }

            /// Sessions: their locks, and the acts of operators.
            Sessions {
                /// A session; an empty one if it was never seen, or not for a week.
                async fn session(id: &SessionId) -> Session;

                /// Frees a session's lock if it is still exactly this one; answers whether it was.
                ///
                /// Records the entry. Refused while data is known to be lost, like `set_frozen`.
                async fn unlock(id: &SessionId, lock: &Lock, entry: &Entry) -> bool;

                /// Freezes or thaws a session and records the entry; answers whether that changed it.
                ///
                /// While it is frozen no conditions of it hold.
                async fn set_frozen(id: &SessionId, frozen: bool, entry: &Entry) -> bool;

                /// Gives up a call's place in the session's line, if it has one.
                async fn leave_line(id: &SessionId, call_id: CallId) -> ();
            }

            /// Pauses: tools that operators have stopped.
            Pauses {
                /// The paused tools, each with the entry that says since when, by whom and why.
                async fn paused() -> Vec<(String, Entry)>;

                /// Pauses or resumes a tool and records the entry; answers whether that changed it.
                ///
                /// It does not prevent a claim: callers look at `paused` before they claim.
                async fn set_paused(tool: &str, paused: bool, entry: &Entry) -> bool;

                /// The acts of operators on a tool: the newest hundred entries, oldest first.
                async fn tool_events(tool: &str) -> Vec<Entry>;
            }

            /// Documents, which are stored beside the calls.
            Documents {
                /// A document. After a loss of data it may be older, or gone.
                async fn document(kind: Kind, tenant: &str, id: &str) -> Option<Document>;

                /// Writes a document if its previous version is stored, or none for version 1.
                ///
                /// It is as durable as a call. Asked again with the same document it answers `Done`. Like the
                /// claim of a call, a first version is refused while the store is not ready; a later one while
                /// it is not known that all data is there.
                async fn put_document(document: &Document) -> Put;

                /// Puts back a version that existed before, or elsewhere.
                ///
                /// Also while data is known to be lost, and where there is little room; there it refuses only what
                /// needs room to spare.
                ///
                /// Otherwise as `put_document`.
                async fn put_back_document(document: &Document) -> Put;

                /// Due documents of a kind, longest waiting first, at most `limit`.
                ///
                /// If no key opens one, its body stays encrypted.
                async fn due_documents(kind: Kind, now: Timestamp, limit: u32) -> Found<Document>;

                /// Documents of a kind, newest first, before a position, at most `limit`.
                ///
                /// Of one tenant, or of all; in one state, or in any. Answers up to where it has looked, if there
                /// may be more. One that cannot be read or opened is named by its id, or by its digest where the
                /// id cannot be read either.
                async fn documents(
                    kind: Kind,
                    tenant: Option<&str>,
                    state: Option<&str>,
                    before: Option<&Position>,
                    limit: u32
                ) -> (Found<Document>, Option<Position>);

                /// How many documents of a kind are in each state.
                async fn count_documents(kind: Kind) -> Vec<(String, u64)>;
            }

            /// Recovery after a store has lost data. `Health::cancel_acceptance` belongs to it.
            LossRecovery {
                /// Running, failed and unknown calls: those that a lost write makes dangerous.
                ///
                /// A page of about `limit`, and where the next one begins, which is given back as `from`; empty
                /// for the first page. A call that changes its state meanwhile may come twice; none is left out
                /// that is in one of these states all the time.
                async fn calls_at_risk_after_loss(
                    from: &str,
                    limit: u32
                ) -> (Vec<CallId>, Option<String>) as "doubtful";

                /// A time until which the store surely has everything that was written; `None`: not known.
                ///
                /// Asked after a loss, before it is accepted.
                async fn whole_until() -> Option<Timestamp>;

                /// An operator is about to accept that the store has lost data.
                ///
                /// Documents may be changed from now on, by this process only; everything else stays closed for
                /// all gateways, also if the process ends here. Refused where nothing is lost.
                async fn prepare_acceptance(reason: &str) -> ();

                /// An operator accepts that the store has lost data: from now on it counts as whole.
                ///
                /// Prepared first if it was not. Refused where nothing is lost.
                async fn accept_loss(reason: &str) -> ();
            }
        }
    };
}
pub use each_store_verb as each_verb;

macro_rules! declare {
    (() $(
        $(#[$about:meta])*
        $aggregate:ident { $(
            $(#[$doc:meta])*
            async fn $verb:ident($($arg:ident: $ty:ty),*) -> $answer:ty $(as $label:literal)?;
        )* }
    )*) => {
        $(
            $(#[$about])*
            #[async_trait]
            pub trait $aggregate: Send + Sync + 'static { $(
                $(#[$doc])*
                async fn $verb(&self, $($arg: $ty),*) -> Result<$answer, Error>;
            )* }
        )*

        /// Everything that a gateway asks a store.
        pub trait Store: $($aggregate +)* Secrets + Health {}

        impl<T: $($aggregate +)* Secrets + Health> Store for T {}

        /// The verbs by their names in metrics.
        pub const LABELS: &[&str] = &[$($([$($label,)? stringify!($verb)][0],)*)*];
    };
}
each_verb!(declare);

/// Implements all verbs for a layer around a store.
///
/// `$body` is the macro that makes the body of one, from the layer, the verb's name in metrics, and
/// the call of the verb.
#[doc(hidden)]
#[macro_export]
macro_rules! implement_store_verbs {
    (($layer:ident, $body:ident) $(
        $(#[$about:meta])*
        $aggregate:ident { $(
            $(#[$doc:meta])*
            async fn $verb:ident($($arg:ident: $ty:ty),*) -> $answer:ty $(as $label:literal)?;
        )* }
    )*) => { $(
        #[async_trait::async_trait]
        impl $crate::store::$aggregate for $layer { $(
            async fn $verb(&self, $($arg: $ty),*) -> Result<$answer, $crate::store::Error> {
                $body!(self, [$($label,)? stringify!($verb)][0], $verb($($arg),*))
            }
        )* }
    )* };
}
pub use implement_store_verbs as implement;

/// The gateway's copy of the secret of fingerprints, beside its watermarks.
pub trait Secrets: Send + Sync + 'static {
    /// The name of the key that encrypts now; empty if nothing is encrypted.
    fn sealing_key(&self) -> String {
        String::new()
    }

    /// The copy of the secret; empty or `None`: there is none.
    ///
    /// # Errors
    /// It cannot be opened.
    fn remembered_secret(&self) -> Result<Option<Bytes>, Error>;

    fn remember_secret(&self, secret: &Bytes);
}

/// A store's health and life cycle.
#[async_trait]
pub trait Health: Send + Sync + 'static {
    async fn readiness(&self) -> Readiness;

    /// How far the store's clock is ahead of this machine's.
    ///
    /// All gateways that share a store go by its clock. Of several clocks the one that is furthest behind.
    fn clock_offset(&self) -> SignedDuration;

    /// Whether other gateways use the store, too.
    fn is_shared(&self) -> bool;

    /// Begins to listen for the end of a call that another process runs.
    ///
    /// A hint that it is time to look, nothing more. `None`: no other process uses this store.
    fn listen(&self, call_id: CallId) -> Option<Listener>;

    /// Tells this memory from now on of changes to calls that were read by `watch`. False: this store cannot.
    fn track(&self, _: &Arc<Finished>) -> bool {
        false
    }

    /// Cancels a prepared acceptance of a loss: documents are closed again. Changes nothing else.
    fn cancel_acceptance(&self);

    /// Writes the state that has to outlive the process. No verb may be called after it.
    async fn close(&self);
}

/// Implements [`Health`] for a layer by asking the store inside.
#[doc(hidden)]
#[macro_export]
macro_rules! forward_store_health {
    ($layer:ty) => {
        #[async_trait::async_trait]
        impl $crate::store::Health for $layer {
            async fn readiness(&self) -> $crate::store::Readiness {
                self.store.readiness().await
            }

            fn clock_offset(&self) -> jiff::SignedDuration {
                self.store.clock_offset()
            }

            fn is_shared(&self) -> bool {
                self.store.is_shared()
            }

            fn listen(
                &self,
                call_id: $crate::core::record::CallId,
            ) -> Option<$crate::store::Listener> {
                self.store.listen(call_id)
            }

            fn track(&self, finished: &std::sync::Arc<$crate::store::Finished>) -> bool {
                self.store.track(finished)
            }

            fn cancel_acceptance(&self) {
                self.store.cancel_acceptance();
            }

            async fn close(&self) {
                self.store.close().await;
            }
        }
    };
}
pub use forward_store_health as forward_health;

/// Implements [`Secrets`] for a layer by asking the store inside.
#[doc(hidden)]
#[macro_export]
macro_rules! forward_store_secrets {
    ($layer:ty) => {
        impl $crate::store::Secrets for $layer {
            fn sealing_key(&self) -> String {
                self.store.sealing_key()
            }

            fn remembered_secret(&self) -> Result<Option<bytes::Bytes>, $crate::store::Error> {
                self.store.remembered_secret()
            }

            fn remember_secret(&self, secret: &bytes::Bytes) {
                self.store.remember_secret(secret);
            }
        }
    };
}
pub use forward_store_secrets as forward_secrets;
