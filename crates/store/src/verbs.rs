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
use super::{Feed, Listener, Readiness, ReplayCache, Space};

/// What a layer around a store needs in scope: the verbs, the macros and all types of the verbs.
pub mod layer {
    pub use jiff::Timestamp;

    pub use crate::verbs::{Store, each_verb, forward_health, forward_secrets, implement};
    pub use crate::{Census, Claimed, DocumentQuery, Due, Error, Found, Put, Replaced, Result};
    pub use oncegate_rules::call::Change;
    pub use oncegate_rules::document::{Document, Kind};
    pub use oncegate_rules::key::Lookup;
    pub use oncegate_rules::ledger::{Duplicates, Filter, History, Listed, Maker, Page};
    pub use oncegate_rules::position::Position;
    pub use oncegate_rules::record::{CallId, Entry, Holder, Record};
    pub use oncegate_rules::session::{Lock, Session, SessionId};
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

            /// Calls: claims of their keys, changes, and searches for calls that need work.
            Calls {
                /// Claims all lookup keys of `change.record` for its attempt, if the change's conditions hold.
                ///
                /// Writes the record (its call is running or proposed, or has succeeded already), its first ledger entry, its
                /// fencing token, the session's lock, and its places in budgets and near-duplicate groups. If a
                /// condition does not hold, it writes at most a place in the line for the lock.
                ///
                /// If a lookup key is held, it writes nothing and answers with the holder of the first such lookup key. But
                /// holders that are still exactly one of the records `replaced` give up these lookup keys in the same
                /// step; their calls stay in the ledger. A second claim with the same attempt answers `Yours`, as
                /// long as the call has not changed.
                async fn claim(change: &Change, replaced: &[Record]) -> Claimed;

                /// Writes `change` if the stored record still has `expected`'s version, attempt and token.
                ///
                /// A change to running needs all lookup keys of the call, and a change may take further lookup keys. If
                /// another call holds one of them, nothing is written and that call is the answer. Only a change
                /// that begins an attempt writes arguments and fingerprint; one that erases writes arguments and names,
                /// and no list of the erased names has the call any more. Conditions are as in `claim`. Locks
                /// and places that the change releases are freed in the same step. The same change again answers
                /// `Done`.
                async fn replace(change: &Change, expected: &Record) -> Replaced;

                /// The calls of one tenant that hold these lookup keys, each once, in the order of the lookup keys.
                async fn holders(lookups: &[Lookup]) -> Vec<Holder>;

                async fn load(call_id: CallId) -> Option<Record>;

                /// The call, if it holds this lookup key. From now on the store tells of its changes.
                ///
                /// It tells the memory that was given to [`Health::track`]. Without such a memory it refuses.
                async fn watch(name: &Lookup, call_id: CallId) -> Option<Record>;

                /// Running calls without a living owner, oldest first, at most `limit`.
                ///
                /// Their lease is over, or their owner is known to have ended.
                async fn due(now: Timestamp, limit: u32) -> Found<Due>;

                /// Unknown calls of these tools whose next check is due, longest waiting first.
                ///
                /// At most `each` of one tool, so that a backlog of one tool does not delay other tools.
                async fn due_rechecks(now: Timestamp, tools: &[String], each: u32) -> Found<Record>
                    as "to_check";

                /// Unknown calls of these tools whose checks were neither planned nor given up.
                async fn unscheduled_unknown(tools: &[String], limit: u32) -> Found<Record>
                    as "unchecked";

                /// Calls that wait for approval and are past their time, and approved calls, longest waiting first.
                ///
                /// At most `limit`. None while data is known to be lost.
                async fn due_proposals(now: Timestamp, limit: u32) -> Found<Record>;

                /// Counts per tool the calls that are running, unknown, proposed or approved.
                async fn census() -> Vec<Census>;
            }

            /// The ledger: questions about calls, and their deletion.
            Ledger {
                /// The maker of a call. Its cost does not grow with the call's history.
                async fn maker(call_id: CallId) -> Option<Maker>;

                /// A call with the newest `limit` entries of its history, and its duplicates.
                async fn history(call_id: CallId, limit: u32) -> Option<History>;

                /// All tenants with calls, and maybe some whose calls were deleted.
                async fn tenants() -> Vec<String>;

                /// Calls of a tenant that pass the filter, newest first, before a position.
                ///
                /// At most `limit`, and about [`PAGE_BYTES`](oncegate_rules::ledger::PAGE_BYTES). It reads a bounded
                /// number of calls, so a page may end early. The page says where the next one begins.
                async fn list(
                    tenant: &str,
                    filter: &Filter,
                    before: Option<Position>,
                    limit: u32
                ) -> Page<Listed>;

                /// Adds to the duplicates of a call, if it is still kept.
                async fn count_duplicates(call_id: CallId, later: &Duplicates) -> ();

                /// Deletes calls, sessions and documents past their retention. Answers how many.
                ///
                /// At most `limit` of each. If it deleted fewer than `limit`, nothing past its retention is left.
                async fn prune(now: Timestamp, limit: u32) -> u64;
            }

            /// Sessions: their locks, and the acts of operators.
            Sessions {
                /// A session. Empty if it had no call in the last week.
                async fn session(id: &SessionId) -> Session;

                /// Frees a session's lock if it is still exactly this one. Answers whether it did.
                ///
                /// Then it records the entry. Refused while data is known to be lost, like `set_frozen`.
                async fn unlock(id: &SessionId, lock: &Lock, entry: &Entry) -> bool;

                /// Freezes or thaws a session. Answers whether that changed it, and then records the entry.
                ///
                /// While a session is frozen, no condition of a claim in it holds.
                async fn set_frozen(id: &SessionId, frozen: bool, entry: &Entry) -> bool;

                /// Gives up a call's place in the session's line, if it has one.
                async fn leave_line(id: &SessionId, call_id: CallId) -> ();
            }

            /// Pauses: tools that operators have stopped.
            Pauses {
                /// The paused tools, each with the entry of its pause: time, actor and reason.
                async fn paused() -> Vec<(String, Entry)>;

                /// Pauses or resumes a tool. Answers whether that changed it, and then records the entry.
                ///
                /// It does not prevent claims: callers read `paused` before they claim.
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
                /// It is as durable as a call. The same document again answers `Done`. Like a claim, a first
                /// version is refused while the store is not ready. A later version is refused while data may be
                /// lost.
                async fn put_document(document: &Document) -> Put;

                /// Writes a version again that this or another store had before.
                ///
                /// It does so also while data is known to be lost, and while there is little room. Then it refuses
                /// only documents that need spare room. Otherwise it is as `put_document`.
                async fn put_back_document(document: &Document) -> Put;

                /// Due documents of a kind, longest waiting first, at most `limit`.
                ///
                /// If no key decrypts one, its body stays encrypted.
                async fn due_documents(kind: Kind, now: Timestamp, limit: u32) -> Found<Document>;

                /// Documents, newest first. Also answers the position of the last one, if there may be more.
                ///
                /// An unreadable one is named by its id, or by its digest if its id is
                /// unreadable, too.
                async fn documents(query: &DocumentQuery) -> (Found<Document>, Option<Position>);

                /// How many documents of a kind are in each state.
                async fn count_documents(kind: Kind) -> Vec<(String, u64)>;
            }

            /// Recovery after a store has lost data. `Health::cancel_acceptance` belongs to it.
            LossRecovery {
                /// Running, failed, unknown, proposed and approved calls: a lost write may have sent them.
                ///
                /// A page of about `limit`, and the `from` of the next page. The first page has an empty `from`. A
                /// call that changes its state between pages may come twice. None that stays in these states is
                /// left out.
                async fn calls_at_risk_after_loss(
                    from: &str,
                    limit: u32
                ) -> (Vec<CallId>, Option<String>) as "doubtful";

                /// A time before which surely nothing is lost. `None`: not known.
                ///
                /// It is asked after a loss, before the loss is accepted.
                async fn whole_until() -> Option<Timestamp>;

                /// Begins the acceptance of a loss of data by an operator.
                ///
                /// From now on this process may change documents. Everything else stays closed for all gateways,
                /// also if the process ends here. Refused if nothing is lost.
                async fn prepare_acceptance(reason: &str) -> ();

                /// Completes the acceptance of a loss: from now on the store counts as whole.
                ///
                /// Begins the acceptance if that was not done. Refused if nothing is lost.
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

        /// All verbs of a store.
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
        impl $crate::$aggregate for $layer { $(
            async fn $verb(&self, $($arg: $ty),*) -> Result<$answer, $crate::Error> {
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

    /// The copy of the secret. Empty or `None`: no copy.
    ///
    /// # Errors
    /// The copy is damaged, or no key decrypts it.
    fn remembered_secret(&self) -> Result<Option<Bytes>, Error>;

    fn remember_secret(&self, secret: &Bytes);
}

/// A store's health and life cycle.
#[async_trait]
pub trait Health: Send + Sync + 'static {
    async fn readiness(&self) -> Readiness;

    /// How far the store's clock is ahead of this machine's.
    ///
    /// All gateways that share a store go by its clock. Of several clocks it is the one that is furthest behind.
    fn clock_offset(&self) -> SignedDuration;

    /// Whether other gateways use the store, too.
    fn is_shared(&self) -> bool;

    /// Begins to listen for the end of a call that another process runs.
    ///
    /// The listener gets hints to read the call. `None`: this store has none.
    fn listen(&self, call_id: CallId) -> Option<Listener>;

    /// Tells this memory of changes to calls that `watch` has read. False: this store cannot.
    fn track(&self, _: &Arc<ReplayCache>) -> bool {
        false
    }

    /// Events after this number in the order in which they were written, of at most `limit` that are looked at.
    ///
    /// `between`: only those of this time; may add some of its first and its last second. A call that was deleted has none. `None`: this store has no feed.
    async fn feed(
        &self,
        _after: u64,
        _between: (Timestamp, Timestamp),
        _limit: u32,
    ) -> Result<Option<Feed>, Error> {
        Ok(None)
    }

    /// How much room the calls take. `None`: this store does not say.
    async fn space(&self) -> Option<Space> {
        None
    }

    /// Whether acts that 0.2.0 does not know may be stored in the audit. Not as long as its gateways may share the store.
    fn takes_new_acts(&self) -> bool {
        true
    }

    /// Cancels the acceptance of a loss: documents may not be changed any more.
    fn cancel_acceptance(&self);

    /// Writes state that must outlive the process. No verb may be called after it.
    async fn close(&self);
}

/// Implements [`Health`] for a layer by asking the store inside.
#[doc(hidden)]
#[macro_export]
macro_rules! forward_store_health {
    ($layer:ty) => {
        #[async_trait::async_trait]
        impl $crate::Health for $layer {
            async fn readiness(&self) -> $crate::Readiness {
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
                call_id: $crate::oncegate_rules::record::CallId,
            ) -> Option<$crate::Listener> {
                self.store.listen(call_id)
            }

            fn track(&self, replay_cache: &std::sync::Arc<$crate::ReplayCache>) -> bool {
                self.store.track(replay_cache)
            }

            async fn feed(
                &self,
                after: u64,
                between: (jiff::Timestamp, jiff::Timestamp),
                limit: u32,
            ) -> $crate::Result<Option<$crate::Feed>> {
                self.store.feed(after, between, limit).await
            }

            async fn space(&self) -> Option<$crate::Space> {
                self.store.space().await
            }

            fn takes_new_acts(&self) -> bool {
                self.store.takes_new_acts()
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
        impl $crate::Secrets for $layer {
            fn sealing_key(&self) -> String {
                self.store.sealing_key()
            }

            fn remembered_secret(&self) -> Result<Option<bytes::Bytes>, $crate::Error> {
                self.store.remembered_secret()
            }

            fn remember_secret(&self, secret: &bytes::Bytes) {
                self.store.remember_secret(secret);
            }
        }
    };
}
pub use forward_store_secrets as forward_secrets;
