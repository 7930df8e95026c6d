//! The sources of a reconciliation: lists of effects, read page by page.

use std::collections::HashSet;
use std::fmt;
use std::time::Duration;

use bytes::Bytes;
use jiff::Timestamp;
use reqwest::Url;
use reqwest::header::HeaderMap;
use serde_json::Value;

use crate::rules::{Item, Rules};
use oncegate_rules::json;
use oncegate_rules::key::Pointer;
use oncegate_tools::{Downstream, origin_only};

/// The largest size of all pages of a run, in bytes: they are held in memory.
const MAX_PAGES_BYTES: usize = 256 << 20;
/// Most pages of one run: an endless list is a mistake of the source.
const MAX_PAGES: usize = 10_000;

/// Bytes that an item takes beside its text.
const ITEM: usize = 512;

/// Bytes that are left for the pages of one run, and the memory that is held for them.
///
/// All its sources share them.
pub(crate) struct Reservation {
    left: usize,
    held: Box<dyn Memory>,
}

/// Bytes of memory that are held until this is dropped.
pub(crate) trait Memory: Send {
    /// How many are held now.
    fn bytes(&self) -> usize;

    /// Holds more bytes. Returns whether there is room for them.
    fn grow(&mut self, more: usize) -> bool;

    /// Holds no more than so many from now on.
    fn shrink_to(&mut self, bytes: usize);
}

impl Reservation {
    /// The reservation of a run, which takes its bytes from this memory.
    pub(crate) fn new(held: impl Memory + 'static) -> Self {
        Self {
            left: MAX_PAGES_BYTES,
            held: Box::new(held),
        }
    }

    /// A part of a page has come.
    fn take(&mut self, bytes: usize) -> Result<(), String> {
        const MIB: usize = MAX_PAGES_BYTES >> 20;
        let left = self.left.checked_sub(bytes);
        let too_long = || format!("the pages of one run are longer than {MIB} MiB together");
        self.left = left.ok_or_else(too_long)?;
        self.hold(bytes)
    }

    fn hold(&mut self, bytes: usize) -> Result<(), String> {
        match self.held.grow(bytes) {
            true => Ok(()),
            false => Err("there is no memory for its pages now (server.max_memory)".into()),
        }
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

    /// Takes the items of a page one after the other, so that their values are not held together.
    ///
    /// `take` returns how many there are now.
    fn items_of(
        &self,
        page: &str,
        limit: usize,
        mut take: impl FnMut(&str) -> Result<usize, String>,
    ) -> Result<(), String> {
        let place = self.items.as_ref().map_or("the top", Pointer::as_str);
        let steps = self.items.iter().flat_map(Pointer::steps);
        let list = json::at(page, steps).map_err(|error| format!("a page is not JSON: {error}"))?;
        let list = list.filter(|list| list.starts_with('['));
        let list = list.ok_or_else(|| format!("a page has no list at {place}"))?;
        let mut why = None;
        let each = json::each(list, |item| {
            let taken = take(item).and_then(|found| match found > limit {
                true => Err(format!("it has more than {limit} items (max_items)")),
                false => Ok(()),
            });
            taken.map_err(|error| why.insert(error).clone())
        });
        match why {
            Some(why) => Err(why),
            None => each.map_err(|error| format!("a page is not JSON: {error}")),
        }
    }

    /// All items of a source in this time.
    ///
    /// Reads page after page, at most `limit` items.
    ///
    /// # Errors
    /// Not all of it could be had, and why: a part of it would look like missing effects.
    pub(crate) async fn collect(
        &self,
        downstream: &Downstream,
        (since, until): (Timestamp, Timestamp),
        limit: usize,
        rules: &Rules,
        reservation: &mut Reservation,
    ) -> Result<Vec<Item>, String> {
        let (mut found, mut cursors) = (Vec::new(), HashSet::new());
        let mut cursor: Option<String> = None;
        for _ in 0..MAX_PAGES {
            let before = reservation.held.bytes();
            let url = self.page(since, until, cursor.as_deref());
            let page = self.read(downstream, url, reservation).await?;
            let page =
                str::from_utf8(&page).map_err(|error| format!("a page is not JSON: {error}"))?;
            let first = found.len();
            self.items_of(page, limit, |item| {
                reservation.hold(item.len() + ITEM)?;
                let item = json::read(item.as_bytes());
                let item = item.map_err(|error| format!("an item cannot be read: {error}"))?;
                found.push(rules.item(&item));
                Ok(found.len())
            })?;
            let items = found[first..].iter().map(|item| item.raw.len() + ITEM);
            reservation.held.shrink_to(before + items.sum::<usize>());
            let Some(next) = &self.next else {
                return Ok(found);
            };
            cursor = match value_at(page, next)? {
                Some(Value::Null | Value::Bool(false)) => return Ok(found),
                Some(Value::String(text)) if text.is_empty() => return Ok(found),
                Some(Value::String(text)) => Some(text),
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

    async fn read(
        &self,
        downstream: &Downstream,
        url: Url,
        reservation: &mut Reservation,
    ) -> Result<Bytes, String> {
        let (headers, timeout) = (self.headers.clone(), self.timeout);
        let take = |bytes| reservation.take(bytes);
        downstream.get_outside(url, headers, timeout, take).await
    }
}

/// The value at a place of a page; `None`: there is none.
fn value_at(page: &str, place: &Pointer) -> Result<Option<Value>, String> {
    let found = json::at(page, place.steps()).map_err(|error| error.to_string())?;
    let read = found.map(|found| json::read(found.as_bytes()));
    read.transpose().map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use oncegate_tools::outside::MAX_PAGE;

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
        let mut reservation = Reservation::new(Most(1 << 30, 0));
        for _ in 0..MAX_PAGES_BYTES / MAX_PAGE {
            reservation.take(MAX_PAGE).expect("room");
        }
        assert!(reservation.take(1).is_err());
        let mut small = Reservation::new(Most(1_000, 0));
        small.take(900).expect("room");
        assert!(small.take(101).expect_err("no room").contains("no memory"));
    }

    /// So many bytes at most, and how many are held.
    struct Most(usize, usize);

    impl Memory for Most {
        fn bytes(&self) -> usize {
            self.1
        }

        fn grow(&mut self, more: usize) -> bool {
            let fits = self.1 + more <= self.0;
            self.1 += if fits { more } else { 0 };
            fits
        }

        fn shrink_to(&mut self, bytes: usize) {
            self.1 = self.1.min(bytes);
        }
    }

    #[test]
    fn items_are_taken_one_by_one_and_each_has_a_bound() {
        let source = Source {
            items: Some("/data".parse().expect("a pointer")),
            ..source("http://h/")
        };
        let take = |page: &str, limit| {
            let mut seen = 0;
            let taken = source.items_of(page, limit, |item| {
                json::read(item.as_bytes()).map_err(|error| error.to_string())?;
                seen += 1;
                Ok(seen)
            });
            taken.map(|()| seen)
        };
        let list = format!("{{\"data\":[{}0]}}", "{\"\":0},".repeat(json::MAX_VALUES));
        assert_eq!(take(&list, 1_000_000), Ok(json::MAX_VALUES + 1));
        for (page, why) in [
            ("[]", "no list at /data"),
            ("{\"data\":{}}", "no list at /data"),
            ("{\"data\":[1,2,3,4]}", "more than 3 items (max_items)"),
            ("{\"data\":[1", "not JSON"),
            (
                &*format!("{{\"data\":[{list}]}}"),
                "more than 100000 values",
            ),
        ] {
            let error = take(page, 3).expect_err(why);
            assert!(error.contains(why), "{error}");
        }
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
