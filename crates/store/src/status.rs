//! Whether calls may be claimed over a shared store: the result of the last inspection, and later closings.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, RwLock};

use super::lock::{lock, read, write};
use super::{Durability, Error, NO_SPACE, Readiness, Reason, ReplayCache, Result, UNREACHABLE};

/// The state of a shared store, and whether calls may be claimed.
pub struct Status {
    /// What the server is called.
    kind: &'static str,
    seen: RwLock<Readiness>,
    /// How often the store was closed between inspections.
    closings: AtomicU64,
    /// The sentences that were logged since the store was last ready.
    said: Mutex<BTreeSet<String>>,
    /// The memory of succeeded calls, which is in doubt whenever the store is not ready.
    pub replay_cache: OnceLock<Arc<ReplayCache>>,
}

/// Most reasons for it that are logged until it is reached.
const MAX_SAID: usize = 8;

/// The readiness of a store that is not reached.
pub fn unreachable(why: String) -> Readiness {
    Readiness {
        reasons: vec![Reason::new(UNREACHABLE, why)],
        ..Readiness::default()
    }
}

impl Status {
    /// Before the first inspection of a store of this kind.
    pub fn new(kind: &'static str) -> Self {
        let why = format!("{kind} has not been reached yet");
        Self {
            kind,
            seen: RwLock::new(unreachable(why)),
            closings: AtomicU64::new(0),
            said: Mutex::default(),
            replay_cache: OnceLock::new(),
        }
    }

    /// What the server is called.
    pub fn kind(&self) -> &'static str {
        self.kind
    }

    fn doubt(&self) {
        if let Some(replay_cache) = self.replay_cache.get() {
            replay_cache.doubt();
        }
    }

    /// The result of the last inspection.
    pub fn get(&self) -> Readiness {
        read(&self.seen).clone()
    }

    /// How often the store was closed between inspections.
    pub fn closings(&self) -> u64 {
        self.closings.load(Ordering::SeqCst)
    }

    /// Whether the store was reached at the last inspection.
    pub fn is_reached(&self) -> bool {
        read(&self.seen).durability.is_some()
    }

    /// Whether data may be missing.
    pub fn is_in_doubt(&self) -> bool {
        read(&self.seen).may_lack_data()
    }

    /// Whether calls may be claimed.
    pub fn is_open(&self) -> bool {
        self.must_be_open().is_ok()
    }

    /// Refuses while nothing may be claimed.
    ///
    /// # Errors
    /// The first reason.
    pub fn must_be_open(&self) -> Result<()> {
        self.refuse_for(|_| true)
    }

    /// Refuses while the server has no room.
    ///
    /// # Errors
    /// The reason.
    pub fn must_have_space(&self) -> Result<()> {
        self.refuse_for(|code| NO_SPACE.contains(&code))
    }

    /// Refuses while the last inspection has a reason with one of these codes.
    fn refuse_for(&self, is_meant: impl Fn(&str) -> bool) -> Result<()> {
        let seen = read(&self.seen);
        let mut reasons = seen.reasons.iter();
        match reasons.find(|reason| is_meant(reason.code)) {
            Some(reason) => Err(Error::Refused(reason.text.clone())),
            None => Ok(()),
        }
    }

    /// Closes the store for claims, until an inspection that begins after this finds everything well.
    pub fn close_for(&self, reason: &Reason) {
        self.closings.fetch_add(1, Ordering::SeqCst);
        let mut status = write(&self.seen);
        if status.reasons.is_empty() {
            let text = "the store is closed until it has been inspected";
            tracing::warn!(reason = reason.text, "{text}");
            status.reasons.push(reason.clone());
        }
        drop(status);
        self.doubt();
    }

    /// Whether the store is not reached for a reason that was not logged yet.
    ///
    /// The code says nothing of it: a wrong password follows on a refused connection, and on a start.
    fn is_new_trouble(&self, reasons: &[Reason]) -> bool {
        let mut said = lock(&self.said);
        if reasons.is_empty() {
            said.clear();
        }
        let mut reasons = reasons.iter();
        let trouble = reasons.find(|reason| reason.code == UNREACHABLE);
        trouble.is_some_and(|reason| said.len() < MAX_SAID && said.insert(reason.text.clone()))
    }

    /// Publishes the readiness that an inspection has found, and logs changes.
    pub fn publish(&self, seen: Readiness, store: &dyn fmt::Display) {
        let codes =
            |reasons: &[Reason]| -> Vec<_> { reasons.iter().map(|reason| reason.code).collect() };
        let before = std::mem::replace(&mut *write(&self.seen), seen.clone());
        if !seen.reasons.is_empty() {
            self.doubt();
        }
        let is_news = codes(&before.reasons) != codes(&seen.reasons)
            || codes(&before.warnings) != codes(&seen.warnings)
            || before.durability != seen.durability
            || self.is_new_trouble(&seen.reasons);
        if !is_news {
            return;
        }
        let texts = |reasons: &[Reason]| {
            let texts: Vec<&str> = reasons.iter().map(|reason| reason.text.as_str()).collect();
            texts.join("; ")
        };
        let durability = seen.durability.map_or("not known", Durability::as_str);
        let (reasons, warnings) = (texts(&seen.reasons), texts(&seen.warnings));
        let is_passing = |code: &&str| matches!(*code, "starting" | "restarted");
        if seen.reasons.is_empty() {
            tracing::info!(%store, durability, warnings, "the store is ready");
        } else if codes(&seen.reasons).iter().all(is_passing) {
            tracing::warn!(%store, durability, reasons, warnings, "the store is not ready yet");
        } else {
            tracing::error!(%store, durability, reasons, warnings, "the store is not ready");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{FOREIGN, LOST_DATA, SETTLING};

    /// What an inspection has found: this reason, or none.
    fn found(code: Option<&'static str>) -> Readiness {
        let reasons = code.map(|code| Reason::new(code, "a test"));
        Readiness {
            durability: Some(Durability::Strict),
            reasons: reasons.into_iter().collect(),
            ..Readiness::default()
        }
    }

    #[test]
    fn a_store_is_closed_for_any_reason_and_in_doubt_where_data_may_be_missing() {
        let status = Status::new("it");
        assert!(status.is_in_doubt() && !status.is_open() && !status.is_reached());
        let may_be_missing = [LOST_DATA, FOREIGN, UNREACHABLE];
        let may_be_missing = may_be_missing.into_iter().chain(SETTLING);
        let all = may_be_missing.map(|code| (code, true));
        for (code, in_doubt) in all.chain([(NO_SPACE[0], false), ("eviction", false)]) {
            status.publish(found(Some(code)), &"a store");
            assert!(
                !status.is_open() && status.must_be_open().is_err(),
                "{code}"
            );
            assert!(status.is_reached(), "{code}");
            assert_eq!(status.is_in_doubt(), in_doubt, "{code}");
            assert_eq!(
                status.must_have_space().is_err(),
                code == NO_SPACE[0],
                "{code}"
            );
        }
        status.publish(found(None), &"a store");
        assert!(status.is_open() && !status.is_in_doubt());
        let before = status.closings();
        status.close_for(&Reason::new("suspect", "a test"));
        assert!(!status.is_open() && status.is_in_doubt());
        assert_ne!(
            status.closings(),
            before,
            "an inspection that began before may have seen nothing of it"
        );
    }

    #[test]
    fn each_reason_why_a_store_is_not_reached_is_news_once_until_it_is_reached() {
        let status = Status::new("it");
        let is_news = |why: Option<&str>| {
            let reasons = why.map(|why| unreachable(why.into()).reasons);
            status.is_new_trouble(&reasons.unwrap_or_default())
        };
        assert!(is_news(Some("WRONGPASS")), "the first one, too");
        assert!(!is_news(Some("WRONGPASS")));
        assert!(is_news(Some("refused")) && !is_news(Some("WRONGPASS")));
        assert!(!is_news(None));
        assert!(is_news(Some("WRONGPASS")), "it was reached in between");
        let news = (0..100).filter(|number| is_news(Some(&number.to_string())));
        assert_eq!(
            news.count(),
            MAX_SAID - 1,
            "a reason that differs each time"
        );
    }

    #[test]
    fn memory_of_calls_is_in_doubt_whenever_the_store_is_closed() {
        let status = Status::new("it");
        let replay_cache = Arc::new(ReplayCache::of_shared_store(1 << 20));
        assert!(status.replay_cache.set(replay_cache.clone()).is_ok());
        let is_in_doubt_after = |closes: &dyn Fn()| {
            let tracking = replay_cache.begin_tracking();
            closes();
            tracking.is_over()
        };
        assert!(!is_in_doubt_after(
            &|| status.publish(found(None), &"a store")
        ));
        assert!(is_in_doubt_after(
            &|| status.close_for(&Reason::new("suspect", "a test"))
        ));
        assert!(is_in_doubt_after(
            &|| status.publish(found(Some(NO_SPACE[0])), &"a store")
        ));
    }
}
