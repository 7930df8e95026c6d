//! The feed: each event of each call once, in the order in which they were written.

use std::collections::HashMap;

use jiff::Timestamp;
use uuid::Uuid;

use super::ledger::{Ledger, MAX_ENTRIES};
use crate::error::{Error, ErrorKind, tenant_to_list, unavailable};
use oncegate_rules::caller::Caller;
use oncegate_rules::ledger::History;
use oncegate_rules::record::{CallId, Entry};
use oncegate_store::{self as store, Fed, Feed};

/// The fewest and the most events that one look at the feed takes.
const LOOK: (u32, u32) = (100, 500);
/// The most looks for one page.
const LOOKS: usize = 8;
const NO_FEED: &str =
    "this store keeps no feed of events; GET /v1/calls with since and until lists calls";
const OTHER_DATA: &str = "the cursor is of data that was lost: events may have another order now, or be gone. Begin without \
                          a cursor, and compare call ids";
const TOO_OLD: &str = "the events after this cursor are older than the feed, which keeps a week; export the calls with GET \
                       /v1/calls, and begin without a cursor";

/// A question for events.
#[derive(Debug, Clone)]
pub struct FeedQuery {
    /// The cursor of an earlier answer; `None`: from the oldest on.
    pub after: Option<String>,
    /// `None`: all that the caller may read.
    pub tenant: Option<String>,
    pub since: Option<Timestamp>,
    pub until: Option<Timestamp>,
    /// Only events with this outcome.
    pub outcome: Option<String>,
    pub limit: u32,
}

/// An event with its call.
#[derive(Debug, Clone)]
pub struct FeedEvent {
    /// Where to go on after it.
    pub cursor: String,
    pub call_id: CallId,
    pub tenant: String,
    pub tool: String,
    /// Empty: none; so is `session_id`.
    pub user_id: String,
    pub session_id: String,
    pub entry: Entry,
}

/// A part of the feed.
#[derive(Debug, Clone, Default)]
pub struct FeedPage {
    pub events: Vec<FeedEvent>,
    /// Where the next page begins, also if there are no events after it yet.
    pub next: String,
    /// Whether there may be more already.
    pub has_more: bool,
    /// Events that are left out because their call cannot be read.
    pub unreadable: u64,
}

fn cursor(epoch: Uuid, number: u64) -> String {
    format!("{}-{number}", epoch.simple())
}

fn parse(cursor: &str) -> Option<(Uuid, u64)> {
    let (epoch, number) = cursor.split_once('-')?;
    Some((Uuid::try_parse(epoch).ok()?, number.parse().ok()?))
}

/// The entry that has made this version of a call, if it is among the newest.
fn entry_of(history: &History, version: u64) -> Option<&Entry> {
    let later = history.record.version.checked_sub(version)?;
    let last = history.entries.len().checked_sub(1)?;
    let index = last.checked_sub(usize::try_from(later).ok()?)?;
    history.entries.get(index)
}

impl Ledger {
    /// A part of the feed.
    ///
    /// The work for one page is bounded, so a page may hold fewer events than there are, even none. It says where the next
    /// one begins.
    ///
    /// # Errors
    /// The caller may not read these calls, the store has no feed or does not answer, or the feed does not go back to the
    /// cursor.
    pub async fn list_events(&self, caller: &Caller, query: &FeedQuery) -> Result<FeedPage, Error> {
        let tenant = tenant_to_list(caller, query.tenant.as_ref())?;
        let after = match &query.after {
            None => None,
            Some(text) => {
                let why = || ErrorKind::InvalidRequest("after is not a cursor".to_owned()).alone();
                Some(parse(text).ok_or_else(why)?)
            }
        };
        let asked = Asked {
            tenant,
            since: query.since.unwrap_or(Timestamp::MIN),
            until: query.until.unwrap_or(Timestamp::MAX),
            outcome: query.outcome.as_deref(),
        };
        let refused = |why: &str| ErrorKind::WrongState(why.to_owned()).alone();
        let look = query.limit.clamp(LOOK.0, LOOK.1);
        let mut position = after.map_or(0, |(_, number)| number);
        let mut page = FeedPage::default();
        for _ in 0..LOOKS {
            let feed = self
                .base
                .store
                .feed(position, (asked.since, asked.until), look);
            let feed = feed.await.map_err(unavailable)?;
            let feed = feed.ok_or_else(|| refused(NO_FEED))?;
            if after.is_some_and(|(epoch, _)| epoch != feed.epoch) {
                return Err(refused(OTHER_DATA));
            }
            if after.is_some() && position.saturating_add(1) < feed.oldest {
                return Err(refused(TOO_OLD));
            }
            let left = query.limit as usize - page.events.len();
            let mut found = self.events_of(caller, &asked, &feed, &mut page).await?;
            page.has_more = feed.last != position;
            position = feed.last;
            if found.len() >= left {
                found.truncate(left);
                page.has_more = true;
                position = found.last().map_or(position, |(number, _)| *number);
            }
            page.next = cursor(feed.epoch, position);
            page.events
                .extend(found.into_iter().map(|(_, event)| event));
            if page.events.len() >= query.limit as usize || !page.has_more {
                break;
            }
        }
        Ok(page)
    }

    /// The events of one look that were asked for, in order, each with its number.
    ///
    /// Each call is read once, after the look, so that it has every event of the look; and only one is held at a time.
    async fn events_of(
        &self,
        caller: &Caller,
        asked: &Asked<'_>,
        feed: &Feed,
        page: &mut FeedPage,
    ) -> Result<Vec<(u64, FeedEvent)>, Error> {
        let mut calls: HashMap<CallId, Vec<&Fed>> = HashMap::new();
        for fed in &feed.events {
            calls.entry(fed.call_id).or_default().push(fed);
        }
        let mut found = Vec::new();
        for (call_id, events) in calls {
            let history = match self.history_of(call_id, asked).await {
                Ok(Some(history)) if caller.may_see(&history.record) => history,
                Ok(_) => continue,
                // Otherwise one damaged call would end the feed for good.
                Err(store::Error::Unreadable(why)) => {
                    page.unreadable += events.len() as u64;
                    if self.base.is_not_logged_yet(&call_id.to_string()) {
                        tracing::error!(%call_id, why, "a stored call cannot be read: its events are left out");
                    }
                    continue;
                }
                Err(error) => return Err(unavailable(error)),
            };
            let intent = &history.record.intent;
            for fed in events {
                let entry = entry_of(&history, fed.version).filter(|entry| asked.has(entry));
                let event = entry.map(|entry| FeedEvent {
                    cursor: cursor(feed.epoch, fed.number),
                    call_id,
                    tenant: intent.tenant.clone(),
                    tool: intent.tool.clone(),
                    user_id: intent.user_id.clone(),
                    session_id: intent.session_id.clone(),
                    entry: entry.clone(),
                });
                found.extend(event.map(|event| (fed.number, event)));
            }
        }
        found.sort_by_key(|(number, _)| *number);
        Ok(found)
    }

    /// A call with its newest events, if it is of the tenant that is asked for. Calls of others are not read.
    async fn history_of(
        &self,
        call_id: CallId,
        asked: &Asked<'_>,
    ) -> Result<Option<History>, store::Error> {
        if let Some(tenant) = &asked.tenant {
            let maker = self.base.store.maker(call_id).await?;
            if maker.is_none_or(|maker| maker.tenant != *tenant) {
                return Ok(None);
            }
        }
        self.base.store.history(call_id, MAX_ENTRIES).await
    }
}

/// Which events are asked for.
struct Asked<'a> {
    /// `None`: all tenants.
    tenant: Option<String>,
    since: Timestamp,
    until: Timestamp,
    outcome: Option<&'a str>,
}

impl Asked<'_> {
    fn has(&self, entry: &Entry) -> bool {
        let outcome = entry.outcome.as_deref();
        (self.since..self.until).contains(&entry.at)
            && (self.outcome.is_none() || self.outcome == outcome)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_reads_back_and_nothing_else_is_one() {
        let epoch = Uuid::from_u128(7);
        assert_eq!(parse(&cursor(epoch, 12)), Some((epoch, 12)));
        for text in [
            "",
            "12",
            "-12",
            "x-12",
            "00000000000000000000000000000007-x",
        ] {
            assert_eq!(parse(text), None, "{text}");
        }
    }
}
