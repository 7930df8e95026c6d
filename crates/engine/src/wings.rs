//! What wings build on: parts of the gateway that services of a wing use, and no request does.
//!
//! A wing is a crate beside the kernel. It is given a [`Gateway`](crate::Gateway), and the kernel does not name it.

pub use crate::adopt::{Adopted, adopt};
pub use crate::audit::{outcome, recorded_as, recorded_to_its_end};
use crate::base::Base;
pub use crate::base::documents::Documents;
pub use crate::base::ids::{new_call_id, new_run_id};
pub use crate::base::lock::lock;
pub use crate::callers::permits::{FairPermit, FairPermits, Owner};
pub use crate::calls::{Engine, InternalCall, Sender};
pub use crate::error::{must_be_admin, unavailable};
pub use crate::sagas::{SagaRegistry, Sagas};
pub use crate::secret::KnownSecrets;
pub use crate::webhook::Notifier;
use oncegate_rules::caller::Caller;

impl Engine {
    /// A permit for a request that is forwarded, as a call has one. `None`: the caller has as many as it may have.
    pub fn permit_for(&self, caller: &Caller) -> Option<FairPermit> {
        self.running.take(Owner::of_caller(caller))
    }
}

impl Base {
    /// Whether other gateways share the store.
    pub fn is_shared(&self) -> bool {
        self.store.is_shared()
    }

    /// Waits until the gateway takes no new calls.
    pub async fn drains(&self) {
        self.draining.cancelled().await;
    }
}
