//! The wish that the data of a user is erased. It outlives that data, so it holds a digest of the user and no name.
//!
//! Calls that have ended are erased at once; the others when they have ended. So a wish is looked at again and again until
//! nothing of the user is left, and then once a day for as long as the longest retention: a gateway or a backup may bring
//! back what the store had lost.

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

use crate::document::{self, Document, Kind};
use crate::key;
use crate::position::Position;
use crate::record::{Intent, Record, State};
use crate::time::{after, micros};
use crate::words::words;

/// The pause before calls are looked at again that had not ended.
const AGAIN: SignedDuration = SignedDuration::from_secs(30);
/// How soon after its end a wish is looked at once more: a call may have waited for its session meanwhile.
const SOON: SignedDuration = SignedDuration::from_mins(5);
/// The pause after that.
const LATER: SignedDuration = SignedDuration::from_hours(24);

/// A user of a tenant, without the name. It is also what stores make the list of the user's calls of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct UserDigest(pub [u8; 32]);

impl UserDigest {
    pub fn of(tenant: &str, user_id: &str) -> Self {
        Self(key::digest(["list", tenant, "user", user_id]))
    }

    /// Whether a call is of this user.
    pub fn is_of(&self, intent: &Intent) -> bool {
        !intent.user_id.is_empty() && *self == Self::of(&intent.tenant, &intent.user_id)
    }

    pub fn to_hex(self) -> String {
        hex::encode(self.0)
    }

    fn from_hex(text: &str) -> Option<Self> {
        hex::decode(text).ok()?.try_into().ok().map(Self)
    }
}

words! {
    /// How far a wish is, in one word.
    pub enum Progress {
        /// Not all calls were looked at yet.
        GoingOn = "going_on",
        /// Some calls have not ended.
        Waiting = "waiting",
        /// Nothing of the user is left.
        Done = "done",
    }
}

/// The calls of a user that cannot be erased yet.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Waiting {
    pub running: u64,
    pub unknown: u64,
    /// Calls that are being undone, or whose saga has not ended.
    pub in_saga: u64,
    /// Calls that cannot be read.
    pub unreadable: u64,
}

impl Waiting {
    /// Counts a call that has not ended.
    pub fn count(&mut self, record: &Record) {
        match record.state {
            State::Running => self.running += 1,
            State::Unknown(_) => self.unknown += 1,
            _ => self.in_saga += 1,
        }
    }

    fn add(&mut self, other: Self) {
        self.running += other.running;
        self.unknown += other.unknown;
        self.in_saga += other.in_saga;
        self.unreadable += other.unreadable;
    }

    fn is_none(self) -> bool {
        self == Self::default()
    }
}

/// What one look at the calls of a user has done.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Look {
    pub erased: u64,
    /// Until when the last of the erased calls is kept.
    pub stored_until: Option<Timestamp>,
    pub waiting: Waiting,
    /// Where the next look goes on; `None`: there are no further calls.
    pub next: Option<Position>,
}

/// A wish, and how far it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Erasure {
    pub tenant: String,
    pub user: UserDigest,
    pub version: u64,
    /// The name of the operator's token.
    pub by: String,
    pub asked_at: Timestamp,
    /// Calls that were created from then on are not meant.
    pub until: Timestamp,
    /// Where the next look goes on; `None`: at the newest call.
    pub position: Option<Position>,
    /// How many calls were erased.
    pub erased: u64,
    pub stored_until: Option<Timestamp>,
    /// The calls of the last looks that have not ended, back to the newest call.
    pub waiting: Waiting,
    pub done_at: Option<Timestamp>,
    pub due_at: Option<Timestamp>,
    retain_until: Option<Timestamp>,
}

/// The fields that a [`Document`] has no field for.
#[derive(Serialize, Deserialize)]
struct Body {
    by: String,
    #[serde(with = "micros")]
    until: Timestamp,
    position: Option<String>,
    erased: u64,
    #[serde(with = "micros::optional")]
    stored_until: Option<Timestamp>,
    waiting: Waiting,
    #[serde(with = "micros::optional")]
    done_at: Option<Timestamp>,
}

impl Erasure {
    /// A wish of now for all calls that are created before `until`. `earlier`: the stored wish for the same user.
    pub fn asked(
        (tenant, user): (&str, UserDigest),
        by: &str,
        earlier: Option<&Self>,
        (now, until): (Timestamp, Timestamp),
    ) -> Self {
        let was = |value: fn(&Self) -> u64| earlier.map_or(0, value);
        Self {
            tenant: tenant.to_owned(),
            user,
            version: was(|earlier| earlier.version) + 1,
            by: by.to_owned(),
            asked_at: earlier.map_or(now, |earlier| earlier.asked_at),
            until,
            position: None,
            erased: was(|earlier| earlier.erased),
            stored_until: earlier.and_then(|earlier| earlier.stored_until),
            waiting: Waiting::default(),
            done_at: None,
            due_at: Some(now),
            retain_until: None,
        }
    }

    /// The wish while a gateway works on it: no other gateway takes it before this time.
    #[must_use]
    pub fn taken(self, until: Timestamp) -> Self {
        Self {
            version: self.version + 1,
            due_at: Some(until),
            // A look from the newest call on counts anew.
            waiting: match self.position {
                Some(_) => self.waiting,
                None => Waiting::default(),
            },
            ..self
        }
    }

    /// The wish after a look. `longest`: the longest time for which a call is kept.
    #[must_use]
    pub fn looked(self, look: &Look, longest: SignedDuration, now: Timestamp) -> Self {
        let mut looked = self.also_erased(look);
        looked.position = look.next;
        looked.waiting.add(look.waiting);
        if look.next.is_some() {
            looked.due_at = Some(now);
            return looked;
        }
        if !looked.waiting.is_none() {
            (looked.due_at, looked.done_at) = (Some(after(now, AGAIN)), None);
            return looked;
        }
        let done_at = looked.done_at.unwrap_or(now);
        looked.done_at = Some(done_at);
        if after(done_at, longest) <= now {
            (looked.due_at, looked.retain_until) = (None, Some(now));
        } else {
            let soon = after(done_at, SOON);
            looked.due_at = Some(if now < soon { soon } else { after(now, LATER) });
        }
        looked
    }

    /// The wish with what a look has erased, if the wish has changed since that look began.
    #[must_use]
    pub fn also_erased(self, look: &Look) -> Self {
        Self {
            version: self.version + 1,
            erased: self.erased + look.erased,
            stored_until: self.stored_until.max(look.stored_until),
            ..self
        }
    }

    pub fn progress(&self) -> Progress {
        match (self.done_at, self.position) {
            (Some(_), _) => Progress::Done,
            (None, Some(_)) => Progress::GoingOn,
            (None, None) => Progress::Waiting,
        }
    }

    /// The document by which a wish is found.
    pub fn id_of(user: UserDigest) -> String {
        user.to_hex()
    }

    pub fn to_document(&self) -> Document {
        let body = document::body(&Body {
            by: self.by.clone(),
            until: self.until,
            position: self.position.map(Position::to_cursor),
            erased: self.erased,
            stored_until: self.stored_until,
            waiting: self.waiting,
            done_at: self.done_at,
        });
        let (id, state) = (Self::id_of(self.user), self.state());
        Document {
            tenant: self.tenant.clone(),
            version: self.version,
            due_at: self.due_at,
            retain_until: self.retain_until,
            ..Document::new(Kind::Erasure, &id, state, self.asked_at, body)
        }
    }

    fn state(&self) -> &'static str {
        if self.done_at.is_some() {
            "done"
        } else {
            "open"
        }
    }

    /// Reads a wish from its document.
    ///
    /// # Errors
    /// The document was never written so.
    pub fn from_document(document: &Document) -> Result<Self, String> {
        let body: Body = document.read()?;
        let wrong = |what: &str| format!("its {what} cannot be read");
        let position =
            |cursor: String| Position::from_cursor(&cursor).ok_or_else(|| wrong("position"));
        Ok(Self {
            tenant: document.tenant.clone(),
            user: UserDigest::from_hex(&document.id).ok_or_else(|| wrong("user"))?,
            version: document.version,
            by: body.by,
            asked_at: document.created_at,
            until: body.until,
            position: body.position.map(position).transpose()?,
            erased: body.erased,
            stored_until: body.stored_until,
            waiting: body.waiting,
            done_at: body.done_at,
            due_at: document.due_at,
            retain_until: document.retain_until,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::Source;
    use crate::testing::{at, intent};

    const DAY: SignedDuration = SignedDuration::from_hours(24);

    fn wish() -> Erasure {
        let user = UserDigest::of("shop", "bob");
        Erasure::asked(("shop", user), "ops", None, (at(1), at(2)))
    }

    fn look(erased: u64, running: u64, goes_on: bool) -> Look {
        let next = Position {
            created_at: at(0),
            id: uuid::Uuid::nil(),
        };
        Look {
            erased,
            stored_until: (erased > 0).then(|| at(99)),
            waiting: Waiting {
                running,
                ..Waiting::default()
            },
            next: goes_on.then_some(next),
        }
    }

    #[test]
    fn a_wish_reads_back_as_it_was_written_and_holds_no_name() {
        for wish in [
            wish(),
            wish().looked(&look(2, 1, true), DAY, at(3)),
            wish().looked(&look(2, 0, false), DAY, at(3)),
        ] {
            let document = wish.to_document();
            assert_eq!(Erasure::from_document(&document).as_ref(), Ok(&wish));
            let text = String::from_utf8_lossy(&document.body).into_owned() + &document.id;
            assert!(!text.contains("bob"), "{text}");
        }
    }

    #[test]
    fn a_wish_goes_on_until_nothing_of_the_user_is_left() {
        let first = wish().taken(at(60)).looked(&look(2, 1, true), DAY, at(3));
        assert_eq!(
            (first.progress(), first.due_at),
            (Progress::GoingOn, Some(at(3)))
        );
        let second = first.taken(at(60)).looked(&look(1, 0, false), DAY, at(4));
        assert_eq!(
            (second.progress(), second.due_at),
            (Progress::Waiting, Some(at(34)))
        );
        assert_eq!(
            (second.erased, second.waiting.running),
            (3, 1),
            "of both looks"
        );
        let third = second.taken(at(90)).looked(&look(1, 0, false), DAY, at(34));
        assert_eq!((third.progress(), third.erased), (Progress::Done, 4));
        assert_eq!(third.stored_until, Some(at(99)));
    }

    #[test]
    fn a_wish_that_is_done_is_looked_at_until_no_call_can_come_back() {
        let nothing = look(0, 0, false);
        let mut wish = wish().looked(&nothing, DAY, at(3));
        let mut looks = 0;
        while let Some(due_at) = wish.due_at {
            assert_eq!((wish.progress(), wish.retain_until), (Progress::Done, None));
            wish = wish.taken(due_at).looked(&nothing, DAY, due_at);
            looks += 1;
        }
        assert_eq!(looks, 2, "after five minutes, and after a day");
        assert!(wish.retain_until >= Some(after(at(3), DAY)));
    }

    #[test]
    fn asked_again_it_begins_anew_and_remembers_what_was_erased() {
        let done = wish().looked(&look(4, 0, false), DAY, at(3));
        let named = ("shop", done.user);
        let again = Erasure::asked(named, "chief", Some(&done), (at(9), at(10)));
        assert_eq!((again.version, again.erased, again.done_at), (3, 4, None));
        assert_eq!(
            (again.until, again.due_at, again.asked_at),
            (at(10), Some(at(9)), at(1))
        );
    }

    #[test]
    fn the_same_user_of_another_tenant_is_another_user() {
        let bob = UserDigest::of("shop", "bob");
        assert_ne!(bob, UserDigest::of("bank", "bob"));
        let mut call = (*intent(Source::Derived, 1)).clone();
        assert!(
            !UserDigest::of("shop", "").is_of(&call),
            "a call without a user"
        );
        call.user_id = "bob".into();
        assert!(bob.is_of(&call));
        call.tenant = "bank".into();
        assert!(!bob.is_of(&call));
    }
}
