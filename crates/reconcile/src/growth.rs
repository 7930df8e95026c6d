//! A run comes sooner where unknown calls grow: in an incident the source knows what became of them.

use jiff::Timestamp;

use super::report::Progress;
use super::service::Reconciler;
use super::settings::Reconciliation;
use oncegate_rules::document::{self, Document, Kind as DocumentKind};
use oncegate_rules::time::after;
use oncegate_store::{self as store, Put};

/// When a reconciliation runs that has no `every`, unless its run is brought forward.
const NEVER: std::time::Duration = std::time::Duration::from_hours(24 * 365 * 100);

impl Reconciliation {
    /// When the run after one that ends now is due.
    pub(super) fn next_after(&self, now: Timestamp) -> Timestamp {
        after(
            now,
            oncegate_rules::time::signed(self.every.unwrap_or(NEVER)),
        )
    }
}

impl Reconciler {
    pub(super) async fn unknown_of(&self, of: &Reconciliation) -> Option<u64> {
        of.when_unknown?;
        self.unknown.of(&*self.base.store, of).await
    }

    /// Brings the next run forward if so many more calls are unknown than after the last one.
    ///
    /// It begins after the lag: a run judges nothing that is newer.
    ///
    /// # Errors
    /// The progress cannot be read or written.
    pub(super) async fn bring_forward(
        &self,
        of: &Reconciliation,
        found: Document,
        now: Timestamp,
    ) -> Result<(), store::Error> {
        let soon = after(now, of.lag);
        let may_come_sooner =
            found.state == "waiting" && found.due_at.is_some_and(|due_at| due_at > soon);
        if !may_come_sooner {
            return Ok(());
        }
        let (Some(most), Some(unknown)) = (of.when_unknown, self.unknown_of(of).await) else {
            return Ok(());
        };
        let mut progress = self.progress_of(&found)?;
        let before = progress.unknown.unwrap_or_default();
        let has_grown = unknown >= before.saturating_add(most);
        // Without this, calls that were settled meanwhile would hide as many new ones.
        let has_fallen = unknown <= before / 2 && before > 0;
        if !has_grown && !has_fallen {
            return Ok(());
        }
        progress.unknown = Some(unknown);
        let next = Document {
            version: found.version + 1,
            due_at: if has_grown { Some(soon) } else { found.due_at },
            body: document::body(&progress),
            ..found
        };
        // Another gateway may have written the same, and then has said so.
        let is_ours = matches!(self.base.store.put_document(&next).await?, Put::Done);
        if has_grown && is_ours {
            let name = &of.name;
            tracing::warn!(
                reconciliation = name,
                unknown,
                before,
                "unknown calls have grown: the next run is brought forward"
            );
        }
        Ok(())
    }

    /// The progress of a reconciliation that runs only when unknown calls grow, before its first run.
    pub(super) async fn begin_to_wait(
        &self,
        of: &Reconciliation,
        now: Timestamp,
    ) -> Result<(), store::Error> {
        // Calls that are unknown already count as grown.
        let progress = Progress::default();
        let (kind, body) = (DocumentKind::Reconciliation, document::body(&progress));
        let document = Document {
            due_at: Some(of.next_after(now)),
            ..Document::new(kind, &of.name, "waiting", now, body)
        };
        drop(self.base.store.put_document(&document).await?);
        Ok(())
    }
}
