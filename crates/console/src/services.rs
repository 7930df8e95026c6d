//! What the pages need beside the services of the kernel.

use std::sync::Arc;

use crate::access::links::Links;
use crate::access::sign_ins::SignIns;
use crate::live::watches::Watches;
use crate::tools::samples::Samples;
use oncegate_engine::{Base, Gateway};
#[cfg(feature = "reconcile")]
use oncegate_reconcile::Reconciler;

/// The service whose findings the screens of reconciliations show.
#[cfg(feature = "reconcile")]
pub type Reconciliations = Arc<Reconciler>;
/// There are no such screens.
#[cfg(not(feature = "reconcile"))]
pub type Reconciliations = ();

/// The services of the console.
pub struct Console {
    pub(crate) sign_ins: SignIns,
    pub(crate) links: Links,
    pub(crate) watches: Watches,
    pub(crate) samples: Samples,
    base: Arc<Base>,
    #[cfg_attr(
        not(feature = "reconcile"),
        expect(dead_code, reason = "nothing is shown of it")
    )]
    pub(crate) reconciler: Reconciliations,
}

impl Console {
    /// The services of a gateway's console. `reconciler`: the service whose findings it shows.
    pub fn new(gateway: &Gateway, reconciler: Reconciliations) -> Self {
        let base = &gateway.base;
        Self {
            links: Links::default(),
            sign_ins: SignIns::new(base.clone(), gateway.secrets.clone()),
            watches: Watches::new(base.clone()),
            samples: Samples::new(base.clone()),
            base: base.clone(),
            reconciler,
        }
    }

    /// Makes a code that signs in once, at `/console/enter/{code}`, with the token of this SHA-256. It lasts some minutes.
    pub fn link(&self, token: [u8; 32]) -> String {
        self.links.make(token)
    }

    /// Takes a sample of each tool; to be called every [`SAMPLE_EVERY`](crate::SAMPLE_EVERY).
    pub fn take_samples(&self) {
        self.samples.take_samples(self.base.now());
    }
}
