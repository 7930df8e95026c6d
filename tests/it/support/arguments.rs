//! Arguments of a store's verbs, copied for a verb that runs later.

use std::borrow::Borrow;

use oncegate::store::verbs::layer::{CallId, Kind, Position, Timestamp};

/// An argument of a verb, of which a copy is kept for later.
pub trait Argument<'a> {
    type Kept: Clone + Send + Sync + 'static;

    fn keep(self) -> Self::Kept;
    fn lend(kept: &'a Self::Kept) -> Self;
}

impl<'a, T> Argument<'a> for &'a T
where
    T: ToOwned + ?Sized,
    T::Owned: Clone + Send + Sync + 'static,
{
    type Kept = T::Owned;

    fn keep(self) -> T::Owned {
        self.to_owned()
    }

    fn lend(kept: &'a T::Owned) -> Self {
        kept.borrow()
    }
}

macro_rules! copied {
    ($($ty:ty),*) => { $(
        impl<'a> Argument<'a> for $ty {
            type Kept = Self;

            fn keep(self) -> Self {
                self
            }

            fn lend(kept: &'a Self) -> Self {
                *kept
            }
        }
    )* };
}
copied!(CallId, Timestamp, Kind, Option<Position>, u32, bool);
