//! Calls that join sagas, and whether they may be sent. The rules are in `rules::saga` and `rules::undo`.

use super::registry::SagaRegistry;
use crate::error::ErrorKind;
use oncegate_rules::key;
use oncegate_rules::record::Intent;
use oncegate_rules::saga::{Event, SagaId};
use oncegate_rules::undo;
use oncegate_store as store;

impl SagaRegistry {
    /// Whether the saga of a call that was just claimed lets it be sent.
    ///
    /// The first call that names a saga begins it. The caller sends nothing before this has answered: an abort after
    /// that finds the call.
    ///
    /// # Errors
    /// Why the call must not be sent.
    pub(crate) async fn join_saga(&self, intent: &Intent) -> Result<(), ErrorKind> {
        if intent.key_source == key::Source::Compensation {
            let why = "what it was to undo is settled";
            return match self.is_wanted(intent).await {
                Ok(true) => Ok(()),
                Ok(false) => Err(ErrorKind::WrongState(why.into())),
                Err(_) => Err(ErrorKind::StoreUnavailable),
            };
        }
        let Some(id) = saga_of(intent) else {
            return Ok(());
        };
        let saga = self.ensure_saga(&id, &intent.made_by).await;
        let saga = saga.map_err(ErrorKind::of_store)?;
        if saga.is_open() {
            return Ok(());
        }
        let state = saga.state().as_str();
        let why = format!("its saga is {state} and takes no calls any more");
        Err(ErrorKind::WrongState(why))
    }

    /// Whether the saga of a call that was not sent yet lets it be sent.
    pub(crate) async fn is_open_for(&self, intent: &Intent) -> Result<bool, store::Error> {
        let Some(id) = saga_of(intent) else {
            return Ok(true);
        };
        Ok(self.saga(&id).await?.is_none_or(|saga| saga.is_open()))
    }

    /// Whether a compensation is still to be sent.
    async fn is_wanted(&self, intent: &Intent) -> Result<bool, store::Error> {
        let Some(undone) = undo::undone_by(&intent.key) else {
            return Ok(true);
        };
        let undone = self.base.store.load(undone).await?;
        Ok(undo::is_wanted(intent.call_id, undone.as_ref()))
    }

    /// Whether the saga of an unknown call lets it be sent again.
    pub(crate) async fn is_wanted_again(&self, intent: &Intent) -> Result<bool, store::Error> {
        if intent.key_source == key::Source::Compensation {
            return self.is_wanted(intent).await;
        }
        let Some(id) = saga_of(intent) else {
            return Ok(true);
        };
        let saga = self.saga(&id).await?;
        Ok(saga.is_none_or(|saga| saga.may_send_again()))
    }

    /// Makes sure that the saga of a call without an owner exists.
    ///
    /// The saga may not have begun, or may have ended without the call.
    ///
    /// # Errors
    /// The saga cannot be read or written; that was logged.
    pub(crate) async fn find_saga_of(&self, intent: &Intent) -> Result<(), store::Error> {
        let Some(id) = saga_of(intent) else {
            return Ok(());
        };
        if intent.key_source != key::Source::Compensation {
            self.ensure_saga(&id, &intent.made_by).await?;
        }
        self.change_saga(&id, &Event::CallFound).await.map(drop)
    }
}

/// The saga that a call names.
fn saga_of(intent: &Intent) -> Option<SagaId> {
    let id = &intent.saga_id;
    (!id.is_empty()).then(|| SagaId::new(&intent.tenant, id))
}
