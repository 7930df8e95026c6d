//! An anomaly for tests.

use crate::rules::{Anomaly, Kind};

/// An effect that no call has made.
pub(crate) fn orphan() -> Anomaly {
    Anomaly {
        kind: Kind::Orphan,
        source: "shop".into(),
        key: "b700221b7ed665c90e13a4fa78c6f69c".into(),
        call_id: None,
        id: "e1".into(),
        detail: "no call has made it".into(),
        doubt: None,
        rival: None,
        item: None,
    }
}
