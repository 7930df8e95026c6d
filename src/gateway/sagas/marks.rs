//! The marks on the calls of sagas: that they are to be undone, and by which compensation.

use super::registry::SagaRegistry;
use crate::core::actor::By;
use crate::core::call::{Event, Illegal};
use crate::core::compensation::{Policy, Template};
use crate::core::key::Lookup;
use crate::core::record::{CallId, Compensation, Record, State, Undo};
use crate::core::undo;
use crate::gateway::ids::new_call_id;
use crate::gateway::transition::{self, Moved, OnConflict};
use crate::store;

/// The result of marking a call.
pub(in crate::gateway) enum Marked {
    Done(Box<Record>),
    /// Another writer has changed the call meanwhile.
    Changed,
    /// The store did not take the mark. That was logged.
    Unwritten,
    Illegal(Illegal),
}

impl SagaRegistry {
    /// The stuck call with its tool's present compensation, if that differs from the mark.
    ///
    /// Only if the old compensation surely was not executed. As long as the call is stuck nothing
    /// is sent for it, so the old one does not run either.
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
        // One that was decided on before that, and failed, too, holds its key.
        let lookup = lookup_of(&record, &template);
        let Ok(there) = self.base.store.holders(&[lookup]).await else {
            return record;
        };
        let call_id = match there.first() {
            Some(there) => there.record.intent.call_id,
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

    /// Marks a call with its compensation, and writes the mark.
    pub(in crate::gateway) async fn to_compensate(&self, record: &Record, by: By) -> Marked {
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
        match transition::apply(&self.base, &tool, record, &event, now, OnConflict::GiveUp).await {
            Ok(Moved::Written { record, .. }) => {
                if matches!(record.state, State::Compensated(_)) {
                    self.count_undo(&record, "empty");
                }
                Marked::Done(Box::new(record))
            }
            Ok(Moved::Refused(_, illegal)) => Marked::Illegal(illegal),
            Ok(Moved::Unchanged(..) | Moved::Lost(_)) => Marked::Changed,
            Err(_) => Marked::Unwritten,
        }
    }

    /// The call after an event; `None`: there is no such call.
    pub(in crate::gateway) async fn apply(
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

    pub(in crate::gateway) fn count_undo(&self, record: &Record, result: &str) {
        self.base
            .metrics
            .compensations
            .with_label_values(&[&record.intent.tool, result])
            .inc();
    }
}

/// The lookup key of a call's compensation.
fn lookup_of(record: &Record, by: &Template) -> Lookup {
    let intent = &record.intent;
    Lookup::new(&intent.tenant, &by.tool, &undo::key_of(intent.call_id))
}
