//! Requests to systems that are no tools: sources of reconciliations, and the webhook.
//!
//! Neither has an effect that a repetition could double.

use std::collections::HashSet;
use std::fmt;
use std::time::Duration;

use bytes::Bytes;
use jiff::Timestamp;
use reqwest::Url;
use reqwest::header::{CONTENT_TYPE, HeaderMap};
use serde_json::{Value, json};
use tokio::time::Instant;

use super::body::read_until;
use super::pools::{Party, Pool};
use super::{Downstream, SECURE, in_time, origin_only, send};
use crate::core::key::Pointer;
use crate::core::outcome::Body;
use crate::core::reconcile::{Item, Rules};

/// How long a connection is kept for the next page.
const OUTSIDE_REUSE: Duration = Duration::from_secs(2);
/// The largest page of a source, in bytes.
const MAX_PAGE: usize = 32 << 20;
/// The largest size of all pages of a run, in bytes: they are held in memory.
const MAX_PAGES_BYTES: usize = 256 << 20;
/// Most pages of one run: an endless list is a mistake of the source.
const MAX_PAGES: usize = 10_000;

/// Bytes that are left for the pages of one run.
///
/// All its sources share them.
#[derive(Debug)]
pub struct Room(usize);

impl Default for Room {
    fn default() -> Self {
        Self(MAX_PAGES_BYTES)
    }
}

impl Room {
    fn take(&mut self, bytes: usize) -> Result<(), String> {
        const MIB: usize = MAX_PAGES_BYTES >> 20;
        let left = self.0.checked_sub(bytes);
        let too_long = || format!("the pages of one run are longer than {MIB} MiB together");
        self.0 = left.ok_or_else(too_long)?;
        Ok(())
    }
}

/// The list of a system's items.
#[derive(Clone)]
pub struct Source {
    /// The URL, with `{since}`, `{until}` and perhaps `{cursor}` in its query.
    pub url: Url,
    pub headers: HeaderMap,
    /// The time limit of one page.
    pub timeout: Duration,
    /// The pointer to the items; `None`: the answer is the list.
    pub items: Option<Pointer>,
    /// The pointer to the cursor of the next page.
    pub next: Option<Pointer>,
}

impl fmt::Debug for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&origin_only(&self.url))
    }
}

impl Source {
    /// The URL of a page. Without a cursor, its parameter is left out.
    fn page(&self, since: Timestamp, until: Timestamp, cursor: Option<&str>) -> Url {
        let mut url = self.url.clone();
        let (since, until) = (format!("{since:.3}"), format!("{until:.3}"));
        let pairs = self
            .url
            .query_pairs()
            .filter(|(_, value)| cursor.is_some() || value != "{cursor}");
        let fill_in = |value: &str| match value {
            "{cursor}" => cursor.unwrap_or_default().to_owned(),
            value => value.replace("{since}", &since).replace("{until}", &until),
        };
        let pairs: Vec<(String, String)> = pairs
            .map(|(name, value)| (name.into_owned(), fill_in(&value)))
            .collect();
        url.query_pairs_mut().clear().extend_pairs(pairs);
        url
    }
}

/// A system that gets events.
#[derive(Clone)]
pub struct Webhook {
    pub url: Url,
    pub headers: HeaderMap,
    pub timeout: Duration,
}

impl fmt::Debug for Webhook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&origin_only(&self.url))
    }
}

impl Downstream {
    /// All items of a source in this time.
    ///
    /// Reads page after page, at most `limit` items.
    ///
    /// # Errors
    /// Not all of it could be had, and why: a part of it would look like missing effects.
    pub async fn collect(
        &self,
        source: &Source,
        (since, until): (Timestamp, Timestamp),
        limit: usize,
        rules: &Rules,
        room: &mut Room,
    ) -> Result<Vec<Item>, String> {
        let (mut found, mut cursors) = (Vec::new(), HashSet::new());
        let mut cursor: Option<String> = None;
        for _ in 0..MAX_PAGES {
            let page = self
                .get(source, source.page(since, until, cursor.as_deref()))
                .await?;
            room.take(page.len())?;
            let page: Value = serde_json::from_slice(&page)
                .map_err(|error| format!("a page is no JSON: {error}"))?;
            let (items, place) = match source.items.as_ref().map(Pointer::as_str) {
                Some(place) => (page.pointer(place), place),
                None => (Some(&page), "the top"),
            };
            let items = items.and_then(Value::as_array);
            let items = items.ok_or_else(|| format!("a page has no list at {place}"))?;
            if found.len() + items.len() > limit {
                return Err(format!("it has more than {limit} items (max_items)"));
            }
            found.extend(items.iter().map(|item| rules.item(item)));
            let Some(next) = &source.next else {
                return Ok(found);
            };
            cursor = match page.pointer(next.as_str()) {
                Some(Value::Null | Value::Bool(false)) => return Ok(found),
                Some(Value::String(text)) if text.is_empty() => return Ok(found),
                Some(Value::String(text)) => Some(text.clone()),
                Some(Value::Number(number)) => Some(number.to_string()),
                Some(_) => return Err("a page names no cursor that can be used".into()),
                // Perhaps an answer of another kind, which says nothing of further pages.
                None => {
                    return Err(format!(
                        "a page has nothing at {}, where null would end it",
                        next.as_str()
                    ));
                }
            };
            if !cursors.insert(cursor.clone()) {
                return Err("a page leads back to one that was read".into());
            }
        }
        Err(format!("it has more than {MAX_PAGES} pages"))
    }

    /// The client for a system that is not a tool.
    fn client_outside(&self, url: &Url) -> Result<reqwest::Client, String> {
        let pool = Pool {
            party: Party::Outside,
            reuse: Some(OUTSIDE_REUSE),
            is_secure: url.scheme() == SECURE,
        };
        self.pools.client(&pool)
    }

    async fn get(&self, source: &Source, url: Url) -> Result<Bytes, String> {
        let by = Instant::now() + source.timeout;
        let client = self.client_outside(&url)?;
        let asked = client.get(url).headers(source.headers.clone());
        let response = in_time(by, send(asked)).await?;
        let status = response.status().as_u16();
        match read_until(by, response, MAX_PAGE).await {
            // Any other success may be a part of it, or something else.
            _ if status != 200 => Err(format!("it answered {status}")),
            Body::Whole(body) => Ok(body),
            Body::Broken(why) => Err(format!("a page could not be read: {why}")),
        }
    }

    /// Sends an event. A repetition has the same `Idempotency-Key`.
    ///
    /// # Errors
    /// It may not have been heard; says why.
    pub async fn tell(
        &self,
        webhook: &Webhook,
        event: &str,
        id: &str,
        data: &Value,
    ) -> Result<(), String> {
        let by = Instant::now() + webhook.timeout;
        let body = json!({ "event": event, "id": id, "data": data }).to_string();
        let client = self.client_outside(&webhook.url)?;
        let event = client
            .post(webhook.url.clone())
            .header(CONTENT_TYPE, "application/json")
            .header("idempotency-key", format!("{event}:{id}"))
            .headers(webhook.headers.clone())
            .body(body);
        match in_time(by, send(event)).await?.status() {
            status if status.is_success() => Ok(()),
            status => Err(format!("it answered {}", status.as_u16())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(url: &str) -> Source {
        Source {
            url: url.parse().expect("a URL"),
            headers: HeaderMap::new(),
            timeout: Duration::from_secs(1),
            items: None,
            next: None,
        }
    }

    #[test]
    fn the_pages_of_all_sources_of_a_run_share_one_room() {
        let mut room = Room::default();
        for _ in 0..MAX_PAGES_BYTES / MAX_PAGE {
            room.take(MAX_PAGE).expect("room");
        }
        assert!(room.take(1).is_err());
    }

    #[test]
    fn a_page_is_asked_for_by_times_and_cursor() {
        let at = |second| Timestamp::from_second(second).expect("a time");
        let source = source("http://h/a?x=1&from={since}&to={until}&after={cursor}");
        let (since, until) = (
            "1970-01-01T00%3A00%3A01.000Z",
            "1970-01-01T00%3A00%3A02.000Z",
        );
        let first = source.page(at(1), at(2), None);
        assert_eq!(
            first.as_str(),
            format!("http://h/a?x=1&from={since}&to={until}")
        );
        let next = source.page(at(1), at(2), Some("a&b={since}"));
        assert_eq!(
            next.as_str(),
            format!("http://h/a?x=1&from={since}&to={until}&after=a%26b%3D%7Bsince%7D"),
            "a cursor is never read as anything else"
        );
    }
}
