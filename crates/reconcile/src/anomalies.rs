//! Anomalies as operators see them, and the acts of operators on them. The rules are in `rules::anomaly`.

use std::cmp::Reverse;
use std::sync::Arc;

use super::service::Reconciler;
use crate::rules::anomaly::{self, Acted, Case, Event, Illegal, Listed, Request, State};
use oncegate_engine::wings::{must_be_admin, recorded_to_its_end, unavailable};
use oncegate_engine::{Error, ErrorKind};
use oncegate_rules::audit::{Act, Target};
use oncegate_rules::caller::Caller;
use oncegate_rules::document::Kind as DocumentKind;
use oncegate_store::{DocumentQuery, Put};

/// How often a request is repeated if another gateway changes the anomaly at the same time.
const ROUNDS: usize = 8;

impl Reconciler {
    /// An anomaly of a reconciliation.
    ///
    /// # Errors
    /// The caller is not an administrator, the anomaly does not exist, or the store does not answer.
    pub async fn find_anomaly(&self, caller: &Caller, name: &str, id: &str) -> Result<Case, Error> {
        must_be_admin(caller)?;
        self.reconciliation(name)?;
        self.anomaly(name, id).await
    }

    /// The newest anomalies of all runs that are neither done nor ignored, and whether more exist.
    ///
    /// # Errors
    /// The caller is not an administrator, or the store does not answer.
    pub async fn unsettled_anomalies(
        &self,
        caller: &Caller,
        limit: u32,
    ) -> Result<(Vec<Case>, bool), Error> {
        must_be_admin(caller)?;
        let (mut found, mut has_more) = (Vec::new(), false);
        for state in State::UNSETTLED {
            let query = DocumentQuery::in_state(DocumentKind::Anomaly, state.as_str(), limit);
            let some = self.base.readable_page(&query).await;
            let (some, next) = some.map_err(unavailable)?;
            has_more |= next.is_some();
            found.extend(some.iter().filter_map(Case::from_document));
        }
        found.sort_by_key(|case| Reverse((case.created_at, case.listed.id.clone())));
        has_more |= found.len() > limit as usize;
        found.truncate(limit as usize);
        Ok((found, has_more))
    }

    async fn anomaly(&self, name: &str, id: &str) -> Result<Case, Error> {
        let found = self.anomalies.document(id).await;
        let case = found
            .map_err(unavailable)?
            .as_ref()
            .and_then(Case::from_document);
        let case = case.filter(|case| case.reconciliation == name);
        case.ok_or_else(|| ErrorKind::UnknownReconciliation.alone())
    }

    /// Does what an operator asks for about one anomaly. Returns the anomaly as it is then.
    ///
    /// The request is written before the work, so another gateway goes on with it if this one ends. The same request
    /// once more changes nothing.
    ///
    /// # Errors
    /// The caller is not an administrator, the anomaly does not exist, another act contradicts the request, or the
    /// store does not answer.
    pub async fn act_on_anomaly(
        self: &Arc<Self>,
        caller: &Caller,
        name: &str,
        id: &str,
        request: Request,
        reason: &str,
    ) -> Result<Listed, Error> {
        self.find_anomaly(caller, name, id).await?;
        let target = Target::Anomaly {
            reconciliation: name.to_owned(),
            id: id.to_owned(),
        };
        let act = Act::new(caller, request.into(), "", target, reason);
        let acted = Acted {
            act: request,
            by: caller.name.clone(),
            reason: reason.to_owned(),
            at: self.base.now().as_microsecond(),
        };
        let (reconciler, name, id) = (self.clone(), name.to_owned(), id.to_owned());
        let asking = async move { reconciler.ask(&name, &id, acted).await };
        recorded_to_its_end(&self.base, act, asking).await
    }

    async fn ask(&self, name: &str, id: &str, acted: Acted) -> Result<Listed, Error> {
        let of = self.reconciliation(name)?;
        for _ in 0..ROUNDS {
            let case = self.anomaly(name, id).await?;
            let now = self.base.now();
            let is_lost = self.anomalies.is_lost(&case).await.map_err(unavailable)?;
            let acted = acted.clone();
            let event = Event::Asked { acted, is_lost };
            let document = match anomaly::next(&case, &event, of.anomaly_retention, now) {
                Ok(case) => case.to_document(),
                Err(Illegal::Unchanged | Illegal::NotDue) => return Ok(case.listed_now(false)),
                Err(Illegal::Contrary(why)) => return Err(ErrorKind::WrongState(why).alone()),
            };
            let put = self.base.store.put_document(&document).await;
            if put.map_err(unavailable)? == Put::Done {
                self.anomalies.work_on_anomaly(document, now).await;
                let case = self.anomaly(name, id).await?;
                return Ok(case.listed_now(false));
            }
        }
        Err(unavailable(()))
    }
}
