//! Stored documents, page after page.

use super::Base;
use oncegate_rules::document::{Document, Kind};
use oncegate_rules::ledger::LIMITS;
use oncegate_store::{self as store, DocumentQuery};

/// The documents of one kind and state, page after page.
pub struct Documents {
    query: DocumentQuery,
    is_over: bool,
}

impl Documents {
    pub fn new(kind: Kind, state: &str) -> Self {
        Self {
            query: DocumentQuery::in_state(kind, state, LIMITS.1),
            is_over: false,
        }
    }

    /// The readable documents of the next page. `None`: there are no more pages.
    ///
    /// # Errors
    /// The store does not answer.
    pub async fn next(&mut self, base: &Base) -> Result<Option<Vec<Document>>, store::Error> {
        if self.is_over {
            return Ok(None);
        }
        let (found, next) = base.readable_page(&self.query).await?;
        self.is_over = next.is_none();
        self.query.before = next;
        Ok(Some(found))
    }
}
