//! Acts of persons on anomalies. What they may ask for is in `core::reconcile::anomaly`.

use std::sync::Arc;

use super::service::Reconciler;
use crate::core::audit::Act;
use crate::core::caller::Caller;
use crate::core::reconcile::anomaly::{self, Acted, Event, Illegal, Listed, Request};
use crate::gateway::audit;
use crate::gateway::error::{Error, ErrorKind, must_be_admin, unavailable};
use crate::gateway::transition::ROUNDS;
use crate::store::Put;

impl Reconciler {
    /// Does what a person asks for about one anomaly. Returns how it is now.
    ///
    /// The request is written first, so that a gateway that ends in the middle is followed by another. The same request
    /// once more changes nothing.
    ///
    /// # Errors
    /// The caller is no administrator, there is no such anomaly, something else is done about it, or the store does not
    /// answer.
    pub async fn act_on_anomaly(
        self: &Arc<Self>,
        caller: &Caller,
        name: &str,
        id: &str,
        request: Request,
        reason: &str,
    ) -> Result<Listed, Error> {
        must_be_admin(caller)?;
        self.reconciliation(name)?;
        self.anomaly(name, id).await?;
        let act = Act::on_anomaly(caller, request, name, id, reason);
        let acted = Acted {
            act: request,
            by: caller.name.clone(),
            reason: reason.to_owned(),
            at: self.base.now().as_microsecond(),
        };
        let (gateway, name, id) = (self.clone(), name.to_owned(), id.to_owned());
        let doing = async move {
            let asking = gateway.ask(&name, &id, acted);
            audit::kept(&gateway.base, act, asking).await
        };
        // A caller that hangs up does not end it.
        self.base.to_its_end(doing).await
    }

    async fn ask(&self, name: &str, id: &str, acted: Acted) -> Result<Listed, Error> {
        let of = self.reconciliation(name)?;
        for _ in 0..ROUNDS {
            let case = self.anomaly(name, id).await?;
            let now = self.base.now();
            let is_lost = self.anomalies.is_lost(&case).await.map_err(unavailable)?;
            let acted = acted.clone();
            let event = Event::Asked { acted, is_lost };
            let asked = anomaly::next(&case, &event, of.retention, now);
            let document = match asked {
                Ok(case) => case.to_document(),
                Err(Illegal::Kept | Illegal::NotDue) => return Ok(case.listed_now(false)),
                Err(Illegal::Contrary(why)) => return Err(ErrorKind::WrongState(why).alone()),
            };
            match self.base.store.put_document(&document).await {
                Ok(Put::Done) => {
                    self.anomalies.work_on_anomaly(document, now).await;
                    let case = self.anomaly(name, id).await?;
                    return Ok(case.listed_now(false));
                }
                Ok(Put::Lost(_)) => {}
                Err(error) => return Err(unavailable(error)),
            }
        }
        Err(unavailable(()))
    }
}
