//! Anomalies as persons look at them: one, or those of all runs that nothing was done about yet.

use jiff::Timestamp;

use super::service::Reconciler;
use crate::core::caller::Caller;
use crate::core::document::Kind as DocumentKind;
use crate::core::reconcile::anomaly::{Case, Listed, Request, State};
use crate::gateway::error::{Error, ErrorKind, must_be_admin, unavailable};

/// An anomaly as it is now.
#[derive(Debug, Clone)]
pub struct Shown {
    pub reconciliation: String,
    /// The run that found it, or found it again.
    pub run: String,
    /// When it was found first.
    pub found_at: Timestamp,
    pub listed: Listed,
    /// What a person may ask for.
    pub requests: Vec<Request>,
}

impl From<Case> for Shown {
    fn from(case: Case) -> Self {
        Self {
            reconciliation: case.reconciliation.clone(),
            run: case.run.clone(),
            found_at: case.created_at,
            requests: case.requests(),
            listed: case.listed_now(false),
        }
    }
}

impl Reconciler {
    /// An anomaly of a reconciliation.
    ///
    /// # Errors
    /// The caller is no administrator, there is no such anomaly, or the store does not answer.
    pub async fn find_anomaly(
        &self,
        caller: &Caller,
        name: &str,
        id: &str,
    ) -> Result<Shown, Error> {
        must_be_admin(caller)?;
        self.reconciliation(name)?;
        Ok(self.anomaly(name, id).await?.into())
    }

    /// The newest anomalies, of whatever run, that are neither done nor ignored; and whether there are more.
    ///
    /// # Errors
    /// The caller is no administrator, or the store does not answer.
    pub async fn unsettled_anomalies(
        &self,
        caller: &Caller,
        limit: u32,
    ) -> Result<(Vec<Shown>, bool), Error> {
        must_be_admin(caller)?;
        let (mut found, mut has_more) = (Vec::new(), false);
        for state in State::UNSETTLED {
            let (store, state) = (&self.base.store, Some(state.as_str()));
            let some = store.documents(DocumentKind::Anomaly, None, state, None, limit);
            let (some, next) = self.base.readable_page(some.await).map_err(unavailable)?;
            has_more |= next.is_some();
            found.extend(some.iter().filter_map(Case::from_document));
        }
        found.sort_by_key(|case| std::cmp::Reverse((case.created_at, case.listed.id.clone())));
        has_more |= found.len() > limit as usize;
        found.truncate(limit as usize);
        Ok((found.into_iter().map(Shown::from).collect(), has_more))
    }

    /// An anomaly of a reconciliation.
    pub(super) async fn anomaly(&self, name: &str, id: &str) -> Result<Case, Error> {
        let found = self
            .base
            .store
            .document(DocumentKind::Anomaly, "", id)
            .await;
        let found = found.map_err(unavailable)?;
        let case = found.as_ref().and_then(Case::from_document);
        let case = case.filter(|case| case.reconciliation == name);
        case.ok_or_else(|| ErrorKind::UnknownReconciliation.alone())
    }
}
