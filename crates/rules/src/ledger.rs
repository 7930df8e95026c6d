//! Searches in the ledger: which calls, in which order, from where on. A store finds the calls.

pub mod audit; // the acts of operators
pub mod document; // what is stored beside the calls
pub mod erasure; // a user whose data is erased
pub mod many; // acts on many calls or sagas at once
pub mod position; // positions in lists

use jiff::Timestamp;

use crate::erasure::UserDigest;
use crate::position::Position;
use crate::record::{Entry, Record, State};

/// The default and the largest number of calls on a page.
pub const LIMITS: (u32, u32) = (50, 500);
/// Bytes of arguments and results after which a page ends early.
pub const PAGE_BYTES: usize = 8 << 20;

/// A filter for the calls of a tenant. A field that is `None` filters nothing.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Filter {
    pub trace_id: Option<String>,
    pub session_id: Option<String>,
    pub user_id: Option<String>,
    /// A user without the name.
    pub user: Option<UserDigest>,
    pub tool: Option<String>,
    pub key: Option<String>,
    pub saga_id: Option<String>,
    /// The name of the token that made the call; empty: the gateway's own calls. Without an index.
    pub by: Option<String>,
    /// Whether an earlier call looked the same when the call began. Without an index.
    pub similar: Option<bool>,
    /// How often the call was asked for again, at least. Without an index.
    pub duplicates_min: Option<u64>,
    /// One of [`STATES`].
    pub state: Option<String>,
    /// At or after this time, by `created_at`.
    pub since: Option<Timestamp>,
    /// Before this time, by `created_at`.
    pub until: Option<Timestamp>,
    /// Changed at or after this time, by `updated_at`. Without an index.
    pub updated_since: Option<Timestamp>,
    /// Unknown at some time from the first of these on, and before the second. Without an index.
    ///
    /// [`matches`](Self::matches) leaves out only calls that surely were not; [`History::was_unknown_in`] decides.
    pub unknown_in: Option<(Timestamp, Timestamp)>,
    /// Whether calls come without their texts: see [`Record::without_texts`].
    pub is_brief: bool,
    /// About how many calls a store looks at for a page; `None`: as many as the store allows.
    pub looks: Option<usize>,
}

/// The states that a filter can name.
pub const STATES: [&str; 9] = [
    "running",
    "succeeded",
    "failed",
    "unknown",
    "compensating",
    "compensated",
    "stuck",
    "proposed",
    "approved",
];
/// States with few calls, each of which has an index.
const INDEXED: [&str; 5] = ["running", "failed", "unknown", "proposed", "approved"];
/// The indexed states in which a call stays. Running calls are found without a list.
const LISTED: [&str; 4] = ["failed", "unknown", "proposed", "approved"];

/// Whether a store keeps a list of the calls in this state.
pub fn is_listed(state: &str) -> bool {
    LISTED.contains(&state)
}

/// The property by which a store finds calls. Each has an index.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Index<'a> {
    /// Every call.
    All,
    Key(&'a str),
    Trace(&'a str),
    Session(&'a str),
    User(&'a str),
    UserDigest(&'a UserDigest),
    Saga(&'a str),
    /// One of the indexed states.
    State(&'a str),
    Tool(&'a str),
}

impl Filter {
    /// The index that leaves the fewest calls to look at.
    pub fn index(&self) -> Index<'_> {
        let state = self.state.as_deref();
        let state = state.filter(|state| INDEXED.contains(state));
        let mut indexes = [
            self.key.as_deref().map(Index::Key),
            self.saga_id.as_deref().map(Index::Saga),
            self.trace_id.as_deref().map(Index::Trace),
            self.session_id.as_deref().map(Index::Session),
            self.user_id.as_deref().map(Index::User),
            self.user.as_ref().map(Index::UserDigest),
            state.map(Index::State),
            self.tool.as_deref().map(Index::Tool),
        ]
        .into_iter();
        indexes.find_map(|index| index).unwrap_or(Index::All)
    }

    /// Whether a call with its duplicates passes the filter.
    pub fn lists(&self, listed: &Listed) -> bool {
        let count = listed.duplicates.count;
        self.matches(&listed.record) && self.duplicates_min.is_none_or(|min| count >= min)
    }

    /// Whether a call passes the filter, whatever its duplicates are.
    pub fn matches(&self, record: &Record) -> bool {
        let intent = &record.intent;
        let is_similar = record.similar_to.is_some();
        let is = |asked: &Option<String>, found: &str| {
            asked.as_deref().is_none_or(|asked| asked == found)
        };
        is(&self.trace_id, &intent.trace_id)
            && is(&self.session_id, &intent.session_id)
            && is(&self.user_id, &intent.user_id)
            && self.user.is_none_or(|user| user.is_of(intent))
            && is(&self.tool, &intent.tool)
            && is(&self.key, &intent.key)
            && is(&self.saga_id, &intent.saga_id)
            && is(&self.by, &intent.made_by)
            && self.similar.is_none_or(|wanted| wanted == is_similar)
            && is(&self.state, record.state.as_str())
            && self.since.is_none_or(|since| intent.created_at >= since)
            && self.until.is_none_or(|until| intent.created_at < until)
            && self
                .updated_since
                .is_none_or(|since| record.updated_at >= since)
            && self.unknown_in.is_none_or(|(since, until)| {
                let is_unknown = matches!(record.state, State::Unknown(_));
                intent.created_at < until && (is_unknown || record.updated_at >= since)
            })
    }
}

/// The indexes that a call is in, without that of its state.
pub fn indexes(record: &Record) -> Vec<Index<'_>> {
    let intent = &record.intent;
    let mut indexes = vec![
        Index::All,
        Index::Key(&intent.key),
        Index::Trace(&intent.trace_id),
        Index::Tool(&intent.tool),
    ];
    if !intent.session_id.is_empty() {
        indexes.push(Index::Session(&intent.session_id));
    }
    if !intent.user_id.is_empty() {
        indexes.push(Index::User(&intent.user_id));
    }
    if !intent.saga_id.is_empty() {
        indexes.push(Index::Saga(&intent.saga_id));
    }
    indexes
}

/// An item of a list that is ordered by positions.
pub trait Placed {
    fn position(&self) -> Position;
}

impl Placed for Position {
    fn position(&self) -> Position {
        *self
    }
}

/// A call as the ledger shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listed {
    pub record: Record,
    pub duplicates: Duplicates,
}

impl Listed {
    /// About how many bytes the call holds of texts from callers and tools.
    pub fn size(&self) -> usize {
        let answer = self.record.state.answer_bytes();
        self.record.intent.args.len() + answer + 1_024
    }
}

impl Placed for Listed {
    fn position(&self) -> Position {
        Position::of(&self.record)
    }
}

/// A call with its history and duplicates.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct History {
    pub record: Record,
    /// Oldest first.
    pub entries: Vec<Entry>,
    pub duplicates: Duplicates,
}

impl History {
    /// Whether the outcome was unknown at some time from `since` on, and before `until`.
    ///
    /// A call that is sent again stays unknown until its outcome is known.
    pub fn was_unknown_in(&self, (since, until): (Timestamp, Timestamp)) -> bool {
        let mut unknown_from: Option<Timestamp> = None;
        for entry in &self.entries {
            match (entry.outcome.as_deref(), unknown_from) {
                (Some("unknown"), None) => unknown_from = Some(entry.at),
                (Some("executed" | "not_executed"), Some(from)) => {
                    if from < until && entry.at > since {
                        return true;
                    }
                    unknown_from = None;
                }
                _ => {}
            }
        }
        unknown_from.is_some_and(|from| from < until)
    }
}

/// The maker of a call, which decides who may read the call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Maker {
    pub tenant: String,
    pub tool: String,
    /// The name of the token; empty for the gateway's own calls.
    pub token: String,
}

/// The requests for a call that did not run it.
///
/// They are counted a moment later, and are lost if their gateway ends before it writes them down.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Duplicates {
    pub count: u64,
    /// The newest duplicates.
    pub last: Vec<Duplicate>,
}

/// How many of the newest duplicates of a call are listed.
pub const LISTED_DUPLICATES: usize = 10;

impl Duplicates {
    /// The newest duplicates, newest first. A store has them in the order in which gateways told it of them.
    pub fn newest_first(&self) -> Vec<&Duplicate> {
        let mut last: Vec<_> = self.last.iter().collect();
        last.sort_by_key(|one| std::cmp::Reverse(one.at));
        last
    }

    /// Adds further duplicates.
    pub fn add(&mut self, later: &Self) {
        self.count += later.count;
        self.last.extend(later.last.iter().cloned());
        self.last.sort_by_key(|one| std::cmp::Reverse(one.at));
        self.last.truncate(LISTED_DUPLICATES);
    }
}

/// One request for a call that did not run it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Duplicate {
    pub at: Timestamp,
    /// The name of the request's token.
    pub by: String,
    /// The answer: `replayed`, `joined`, `suppressed` or `refused`.
    pub kind: String,
}

/// One page of a list, newest first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Page<T> {
    pub found: Vec<T>,
    /// The position where the search ended; `None`: the list has no further items.
    pub next: Option<Position>,
    /// Unreadable items that were skipped. They were logged.
    pub unreadable: u64,
}

impl Page<Position> {
    /// The first positions of a search, of which at most so many were asked for.
    pub fn first(found: Vec<Position>, limit: usize) -> Self {
        Self {
            next: found.last().copied().filter(|_| found.len() >= limit),
            found,
            unreadable: 0,
        }
    }
}

impl<T: Placed> Page<T> {
    /// Merges the pages of several partitions.
    ///
    /// Items below a position that one of the partitions has not reached are left for the next page.
    pub fn merge(pages: Vec<Self>, limit: usize) -> Self {
        let next = pages.iter().filter_map(|page| page.next).max();
        let unreadable = pages.iter().map(|page| page.unreadable).sum();
        let mut found: Vec<T> = pages.into_iter().flat_map(|page| page.found).collect();
        found.retain(|item| next.is_none_or(|until| item.position() >= until));
        found.sort_by_key(|item| std::cmp::Reverse(item.position()));
        let mut page = Self {
            found,
            next,
            unreadable,
        };
        page.cut(limit);
        page
    }

    /// Leaves items beyond the limit for the next page.
    pub fn cut(&mut self, limit: usize) {
        if self.found.len() > limit {
            self.found.truncate(limit);
            self.next = self.found.last().map(Placed::position).or(self.next);
        }
    }
}

impl Page<Listed> {
    /// Ends the page after [`PAGE_BYTES`]. The next page has the other calls.
    pub fn cut_bytes(&mut self) {
        let mut bytes = 0;
        let fits = self.found.iter().take_while(|listed| {
            let fits = bytes < PAGE_BYTES;
            bytes += listed.size();
            fits
        });
        let fits = fits.count();
        self.cut(fits);
    }
}

#[cfg(test)]
mod call_tests;
#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;
    use crate::testing::positions;

    /// The page of one partition that looks at so many calls.
    fn look(all: &[Position], before: Option<Position>, most: usize) -> Page<Position> {
        let rest: Vec<Position> = all
            .iter()
            .copied()
            .filter(|at| before.is_none_or(|before| *at < before))
            .collect();
        let found: Vec<Position> = rest.iter().copied().take(most).collect();
        let next = (rest.len() > most).then(|| found.last().copied()).flatten();
        Page {
            found,
            next,
            unreadable: 0,
        }
    }

    proptest! {
        /// However the calls lie, and however far each place looks: page after page shows each call once, newest first.
        #[test]
        fn pages_show_every_call_once(
            places in prop::collection::vec(prop::collection::btree_set(positions(), 0..30), 1..5),
            most in 1..6_usize, limit in 1..9_usize,
        ) {
            let mut taken = BTreeSet::new();
            let places: Vec<Vec<Position>> = places.into_iter()
                .map(|place: BTreeSet<Position>| place.into_iter().rev().filter(|at| taken.insert(*at)).collect())
                .collect();
            let (mut shown, mut before) = (Vec::<Position>::new(), None);
            loop {
                let looked = places.iter().map(|place| look(place, before, most)).collect();
                let page = Page::merge(looked, limit);
                prop_assert!(page.found.len() <= limit);
                shown.extend(&page.found);
                if page.next.is_none() {
                    break;
                }
                prop_assert!(before.is_none_or(|before| page.next < Some(before)), "it goes on");
                before = page.next;
            }
            prop_assert_eq!(shown, taken.into_iter().rev().collect::<Vec<Position>>());
        }
    }

    #[test]
    fn a_call_was_unknown_from_that_outcome_until_another_one() {
        let at = |second| Timestamp::from_second(second).expect("a time");
        let entry = |second, outcome: Option<&'static str>| Entry {
            outcome: outcome.map(Into::into),
            ..Entry::new(at(second), "it", "g", "")
        };
        let history = |entries: &[(i64, Option<&'static str>)]| History {
            record: crate::testing::record(
                &crate::tool::Tool::new("act"),
                crate::key::Source::Runtime,
                &[],
            ),
            entries: entries
                .iter()
                .map(|(second, outcome)| entry(*second, *outcome))
                .collect(),
            duplicates: Duplicates::default(),
        };
        let settled = history(&[
            (1, None),
            (10, Some("unknown")),
            (15, None),
            (20, Some("executed")),
            (30, None),
        ]);
        let still = history(&[(1, None), (10, Some("unknown")), (15, Some("unknown"))]);
        let never = history(&[
            (1, None),
            (10, Some("not_executed")),
            (20, Some("executed")),
        ]);
        for (since, until, was, is) in [
            (1, 10, false, false),
            (1, 11, true, true),
            (12, 14, true, true),
            (19, 40, true, true),
            (20, 40, false, true),
        ] {
            let between = (at(since), at(until));
            assert_eq!(settled.was_unknown_in(between), was, "{since} {until}");
            assert_eq!(still.was_unknown_in(between), is, "{since} {until}");
            assert!(!never.was_unknown_in(between));
        }
    }

    #[test]
    fn a_filter_uses_the_index_with_the_fewest_calls() {
        let all = Filter {
            trace_id: Some("t".into()),
            session_id: Some("s".into()),
            user_id: Some("u".into()),
            tool: Some("pay".into()),
            key: Some("k".into()),
            state: Some("unknown".into()),
            ..Filter::default()
        };
        assert_eq!(all.index(), Index::Key("k"));
        let all = Filter { key: None, ..all };
        assert_eq!(all.index(), Index::Trace("t"));
        let all = Filter {
            trace_id: None,
            ..all
        };
        assert_eq!(all.index(), Index::Session("s"));
        let all = Filter {
            session_id: None,
            ..all
        };
        assert_eq!(all.index(), Index::User("u"));
        let all = Filter {
            user_id: None,
            ..all
        };
        assert_eq!(all.index(), Index::State("unknown"));
        let all = Filter {
            state: Some("succeeded".into()),
            ..all
        };
        assert_eq!(all.index(), Index::Tool("pay"), "most calls have succeeded");
        assert_eq!(Filter::default().index(), Index::All);
    }
}
