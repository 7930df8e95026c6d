//! The calls of a saga that are to be undone, each with its compensation.

use super::registry::SagaRegistry;
use crate::base::ids::new_call_id;
use crate::transition::{self, Moved, OnConflict};
use oncegate_rules::actor::By;
use oncegate_rules::call::{Event, Illegal};
use oncegate_rules::compensation::{Policy, Template};
use oncegate_rules::key::Lookup;
use oncegate_rules::record::{CallId, Compensation, Record, State, Undo};
use oncegate_rules::undo;
use oncegate_store as store;

impl SagaRegistry {
    /// The stuck call with its tool's present compensation, if that differs from the mark.
    ///
    /// Only if the old compensation surely was not executed. While the call is stuck nothing is sent for it, so the old
    /// compensation does not run either.
    pub(super) async fn decide_anew(&self, record: Record) -> Record {
        let Policy::By(template) = self.base.policy_of(&record).compensation else {
            return record;
        };
        let decided = record.compensation();
        let Some(decided) = decided.filter(|decided| decided.tool != template.tool) else {
            return record;
        };
        match self.base.store.load(decided.call_id).await {
            Ok(None) => {}
            Ok(Some(made)) if matches!(made.state, State::Failed(_)) => {}
            Ok(Some(_)) | Err(_) => return record,
        }
        // A compensation by this tool that was decided on even earlier, and failed as well, holds the key.
        let lookup = lookup_of(&record, &template);
        let Ok(holders) = self.base.store.holders(&[lookup]).await else {
            return record;
        };
        let call_id = match holders.first() {
            Some(holder) => holder.record.intent.call_id,
            None => new_call_id(&lookup),
        };
        let compensation = Some(Compensation {
            tool: template.tool,
            call_id,
        });
        Record {
            undo: Some(Undo {
                compensation,
                skipped: false,
            }),
            ..record
        }
    }

    /// Marks a call as one to be undone, by its compensation.
    ///
    /// # Errors
    /// The store did not take the mark.
    pub(super) async fn to_compensate(
        &self,
        record: &Record,
        by: By,
    ) -> Result<Moved, store::Error> {
        let tool = self.base.policy_of(record);
        let compensation = match (record.compensation(), &tool.compensation) {
            (Some(decided), _) => Some(decided.clone()),
            (None, Policy::By(template)) => Some(Compensation {
                tool: template.tool.clone(),
                call_id: new_call_id(&lookup_of(record, template)),
            }),
            (None, Policy::Undeclared | Policy::Needless) => None,
        };
        let event = Event::ToCompensate { by, compensation };
        let (record, now) = (record.clone(), self.base.now());
        let give_up = OnConflict::GiveUp;
        let moved = transition::apply(&self.base, &tool, record, &event, now, give_up).await;
        if let Ok(Moved::Written { record, .. }) = &moved
            && matches!(record.state, State::Compensated(_))
        {
            self.count_undo(record, "empty");
        }
        moved
    }

    /// Applies an event. Returns the call after it; `None`: there is no such call.
    ///
    /// # Errors
    /// The store failed. If it did not answer, the change may be written.
    pub async fn apply(
        &self,
        call_id: CallId,
        event: &Event,
    ) -> Result<Option<Result<Record, Illegal>>, store::Error> {
        let retry = OnConflict::RetryOnLatest;
        let moved = transition::load_and_apply(&self.base, call_id, event, retry).await?;
        match moved {
            None | Some(Moved::Lost(None)) => Ok(None),
            Some(Moved::Written { record, .. } | Moved::Unchanged(record, _)) => {
                Ok(Some(Ok(record)))
            }
            Some(Moved::Refused(_, illegal)) => Ok(Some(Err(illegal))),
            Some(Moved::Lost(Some(_))) => {
                Err(store::Error::Refused("a call changes too fast".into()))
            }
        }
    }

    pub(super) fn count_undo(&self, record: &Record, result: &str) {
        let undone = &self.base.metrics.compensations;
        let labels = [&record.intent.tool, result];
        undone.with_label_values(&labels).inc();
    }
}

/// The lookup key of a call's compensation.
fn lookup_of(record: &Record, by: &Template) -> Lookup {
    let intent = &record.intent;
    Lookup::new(&intent.tenant, &by.tool, &undo::key_of(intent.call_id))
}
