//! Documents that flag frozen sessions, so that they can be listed. The session itself decides whether it is frozen.

use bytes::Bytes;
use jiff::{SignedDuration, Timestamp};

use crate::document::{Document, Kind};
use crate::session::SessionId;
use crate::time::after;

/// The state of the flag while its session is frozen.
pub const FROZEN: &str = "frozen";
const THAWED: &str = "thawed";
/// How long the flag of a thawed session is kept.
const RETENTION: SignedDuration = SignedDuration::from_hours(24);

/// The flag of a session after an act; `None`: the flag does not change.
pub fn flagged(
    id: &SessionId,
    before: Option<&Document>,
    frozen: bool,
    now: Timestamp,
) -> Option<Document> {
    let state = if frozen { FROZEN } else { THAWED };
    let was = before.map_or(THAWED, |flag| flag.state.as_str());
    let created_at = before.map_or(now, |flag| flag.created_at);
    let body = Bytes::from_static(b"{}");
    (was != state).then(|| Document {
        tenant: id.tenant.clone(),
        version: before.map_or(0, |flag| flag.version) + 1,
        retain_until: (!frozen).then(|| after(now, RETENTION)),
        ..Document::new(Kind::Session, &id.id, state, created_at, body)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::at;

    #[test]
    fn a_mark_is_kept_as_long_as_its_session_is_frozen() {
        let id = SessionId {
            tenant: "shop".into(),
            id: "S".into(),
        };
        assert_eq!(flagged(&id, None, false, at(1)), None);
        let frozen = flagged(&id, None, true, at(1)).expect("a mark");
        assert_eq!((frozen.version, frozen.retain_until), (1, None));
        assert_eq!(flagged(&id, Some(&frozen), true, at(2)), None);
        let thawed = flagged(&id, Some(&frozen), false, at(3)).expect("a mark");
        assert_eq!((thawed.version, thawed.created_at), (2, at(1)));
        assert_eq!(thawed.retain_until, Some(after(at(3), RETENTION)));
        let again = flagged(&id, Some(&thawed), true, at(4)).expect("a mark");
        assert_eq!((again.version, again.retain_until), (3, None));
        assert_eq!(again.digest(), frozen.digest());
    }
}
