//! What a request would meet if it were sent now, and which tools there are. Nothing is claimed and
//! nothing is counted.

use std::sync::Arc;
use std::time::Duration;

use super::call::{ask, read};
use super::{Arrival, Error, ErrorKind, Gateway, Request, ToolAt};
use crate::core::call::{self, Action};
use crate::core::caller::Caller;
use crate::core::record::{Intent, Record};

/// Which call a request is, and what would become of it.
#[derive(Debug)]
pub struct Preview {
    /// What the call would be stored as; its id is of no meaning.
    pub intent: Arc<Intent>,
    pub would: Would,
    /// The call that holds the key now, if the caller may read it.
    pub meets: Option<Record>,
}

/// What would become of a request, as far as its key decides it. Whether its session, its tool and the
/// store let it begin is not asked.
#[derive(Debug)]
pub enum Would {
    Run,
    /// The call is running; its result would be waited for.
    Wait,
    /// The stored result would be answered.
    Replay,
    /// This would be answered instead, and nothing would run.
    Refuse(ErrorKind),
}

impl Gateway {
    /// The tools that a caller may call, by name; an administrator sees all of them.
    pub fn tools_of(&self, caller: &Caller) -> Vec<Arc<ToolAt>> {
        let tools = self.tools();
        let may_see = |at: &&Arc<ToolAt>| caller.is_admin() || caller.may_call(&at.tool.name);
        tools.values().filter(may_see).cloned().collect()
    }

    /// Reads a request as a call does, and looks once what is there under its key.
    ///
    /// # Errors
    /// Why the request would be refused whatever is there, or the store does not answer.
    pub async fn preview(&self, caller: &Caller, request: Request) -> Result<Preview, Error> {
        let at = self.tool_for(caller, &request.tool)?;
        let asked = ask(at, caller, request, &Arrival::default(), self.limits.sample, self.now())?;
        let intent = &asked.intent;
        let with_key = |kind: ErrorKind| Error { key: Some(intent.key.clone()), ..kind.alone() };
        let found = self.counted("holder", self.store.holder(intent.lookup).await);
        let holder = found.map_err(|_| with_key(ErrorKind::StoreUnavailable))?;
        let next = call::next(&asked.at.tool, holder.as_ref(), &self.arrival(&asked), self.now());
        let next = next.map_err(|_| with_key(ErrorKind::StoreUnavailable))?;
        let would = match (next.action, &holder) {
            (Action::Claim { .. } | Action::Run, _) => Would::Run,
            (Action::Wait, _) => Would::Wait,
            (Action::Answer, Some(held)) => {
                match read(&Arc::new(held.clone()), true, Duration::ZERO, self.now()) {
                    Ok(_) => Would::Replay,
                    Err(kind) => Would::Refuse(kind),
                }
            }
            (Action::RefuseReused, _) => Would::Refuse(ErrorKind::KeyReused),
            (Action::RefuseExpired, held) => Would::Refuse(ErrorKind::expired(intent, held.as_ref())),
            (Action::RefuseOtherSaga, _) => Would::Refuse(ErrorKind::of_another_saga()),
            (Action::RefuseUnfit(why), _) => Would::Refuse(ErrorKind::InvalidRequest(why.into())),
            // An arrival leads to nothing else.
            _ => return Err(with_key(ErrorKind::StoreUnavailable)),
        };
        let meets = holder.filter(|held| caller.may_read(&held.intent.tenant));
        Ok(Preview { intent: asked.intent, would, meets })
    }
}
