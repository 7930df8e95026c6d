//! Whether calls may be claimed: the result of the last inspection, and later closings.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, RwLock};

use super::durability::MEMORY;
use super::target::Target;
use oncegate_store::lock::{read, write};
use oncegate_store::{Durability, Error, Finished, LOST_DATA, Readiness, Reason, Result, SETTLING};

/// The state of a Redis, and whether calls may be claimed.
pub(super) struct Status {
    seen: RwLock<Readiness>,
    /// How often the store was closed between inspections.
    closings: AtomicU64,
    /// The memory of succeeded calls, which is in doubt whenever the store is not ready.
    pub(super) finished: OnceLock<Arc<Finished>>,
}

/// The readiness of a Redis that is not reached.
pub(super) fn unreachable(why: String) -> Readiness {
    Readiness {
        reasons: vec![Reason::new("unreachable", why)],
        ..Readiness::default()
    }
}

impl Status {
    pub(super) fn new() -> Self {
        Self {
            seen: RwLock::new(unreachable("Redis has not been reached yet".into())),
            closings: AtomicU64::new(0),
            finished: OnceLock::new(),
        }
    }

    fn doubt(&self) {
        if let Some(finished) = self.finished.get() {
            finished.doubt();
        }
    }

    pub(super) fn get(&self) -> Readiness {
        read(&self.seen).clone()
    }

    pub(super) fn closings(&self) -> u64 {
        self.closings.load(Ordering::SeqCst)
    }

    pub(super) fn is_reached(&self) -> bool {
        read(&self.seen).durability.is_some()
    }

    /// Whether data may be missing.
    pub(super) fn is_in_doubt(&self) -> bool {
        let doubts = ["unreachable", "foreign", LOST_DATA];
        self.refuse_for(|code| doubts.contains(&code) || SETTLING.contains(&code))
            .is_err()
    }

    pub(super) fn is_open(&self) -> bool {
        self.must_be_open().is_ok()
    }

    pub(super) fn must_be_open(&self) -> Result<()> {
        self.refuse_for(|_| true)
    }

    /// Refuses while the server's memory is nearly full.
    pub(super) fn must_have_room(&self) -> Result<()> {
        self.refuse_for(|code| code == MEMORY)
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
    pub(super) fn close_for(&self, reason: &Reason) {
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

    /// Publishes the readiness that an inspection has found, and logs changes.
    pub(super) fn publish(&self, seen: Readiness, store: &Target) {
        let codes =
            |reasons: &[Reason]| -> Vec<_> { reasons.iter().map(|reason| reason.code).collect() };
        let before = std::mem::replace(&mut *write(&self.seen), seen.clone());
        if !seen.reasons.is_empty() {
            self.doubt();
        }
        let is_news = codes(&before.reasons) != codes(&seen.reasons)
            || codes(&before.warnings) != codes(&seen.warnings)
            || before.durability != seen.durability;
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

    /// What an inspection has found: this reason, or none.
    fn found(code: Option<&'static str>) -> Readiness {
        let reasons = code.map(|code| Reason::new(code, "a test"));
        Readiness {
            durability: Some(Durability::Strict),
            reasons: reasons.into_iter().collect(),
            ..Readiness::default()
        }
    }

    fn target() -> Target {
        Target::parse("redis://localhost").expect("a target")
    }

    #[test]
    fn a_store_is_closed_for_any_reason_and_in_doubt_where_data_may_be_missing() {
        let status = Status::new();
        assert!(status.is_in_doubt() && !status.is_open() && !status.is_reached());
        let may_be_missing = [LOST_DATA, "foreign", "unreachable"];
        let may_be_missing = may_be_missing.into_iter().chain(SETTLING);
        let all = may_be_missing.map(|code| (code, true));
        for (code, in_doubt) in all.chain([(MEMORY, false), ("eviction", false)]) {
            status.publish(found(Some(code)), &target());
            assert!(
                !status.is_open() && status.must_be_open().is_err(),
                "{code}"
            );
            assert!(status.is_reached(), "{code}");
            assert_eq!(status.is_in_doubt(), in_doubt, "{code}");
            assert_eq!(status.must_have_room().is_err(), code == MEMORY, "{code}");
        }
        status.publish(found(None), &target());
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
    fn memory_of_calls_is_in_doubt_whenever_the_store_is_closed() {
        let status = Status::new();
        let finished = Arc::new(Finished::of_shared_store(1 << 20));
        assert!(status.finished.set(finished.clone()).is_ok());
        let is_in_doubt_after = |closes: &dyn Fn()| {
            let tracking = finished.begin_tracking();
            closes();
            tracking.is_over()
        };
        assert!(!is_in_doubt_after(
            &|| status.publish(found(None), &target())
        ));
        assert!(is_in_doubt_after(
            &|| status.close_for(&Reason::new("suspect", "a test"))
        ));
        assert!(is_in_doubt_after(
            &|| status.publish(found(Some(MEMORY)), &target())
        ));
    }
}
