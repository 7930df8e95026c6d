//! Requests that answer a server's questions.

use std::sync::Arc;

use super::engine::Engine;
use super::prepared::{Answers, Request};
use crate::error::{Error, ErrorKind, unavailable};
use crate::tools::ToolAt;
use oncegate_rules::caller::Caller;
use oncegate_rules::json;
use oncegate_rules::key_scheme::fingerprints::{Fingerprints, Sameness};
use oncegate_rules::mcp::elicitation::{self, Answer};
use oncegate_rules::record::{Intent, Record};

impl Engine {
    /// Adds the answers to an elicitation to the arguments of the first call.
    ///
    /// # Errors
    /// The request does not answer the elicitation, or the call cannot be looked up. Nothing was run.
    pub(super) async fn with_answers(
        &self,
        at: &Arc<ToolAt>,
        caller: &Caller,
        mut request: Request,
        answer: Answer,
    ) -> Result<Request, Error> {
        let (store, unknown) = (&self.base.store, || ErrorKind::UnknownElicitation.alone());
        // Asked first: a call of another tenant must take as long as one that does not exist.
        let maker = store.maker(answer.asked_by).await.map_err(unavailable)?;
        maker
            .filter(|by| by.tenant == caller.tenant && by.tool == at.tool.name)
            .ok_or_else(unknown)?;
        // Held for the call that asked, until it is compared.
        let reservation = self
            .memory
            .reserve(&caller.tenant, None, request.args.len());
        let _reservation = reservation.ok_or_else(|| ErrorKind::NoMemory.alone())?;
        let asked = store.load(answer.asked_by).await.map_err(unavailable)?;
        let is_its_elicitation = |asked: &Record| {
            at.is_of_upstream()
                && asked.intent.user_id == request.user_id
                && elicitation::asked_by(asked)
                    .is_some_and(|elicitation| elicitation.state == answer.state)
        };
        let asked = asked.filter(is_its_elicitation).ok_or_else(unknown)?;
        if !self.asks_for_the_same(at, &request, &asked)? {
            return Err(unknown());
        }
        // An abort of the saga of the call that asked must also undo the effect of this call.
        if request.saga_id.is_empty() {
            request.saga_id.clone_from(&asked.intent.saga_id);
        }
        Ok(Request {
            args: answer.added_to(&request.args),
            answers: Answers::InArgs,
            ..request
        })
    }

    /// Whether a request has the arguments of the call that asked.
    fn asks_for_the_same(
        &self,
        at: &ToolAt,
        request: &Request,
        asked: &Record,
    ) -> Result<bool, Error> {
        let args = elicitation::as_asked(&request.args, &asked.intent.args);
        let args = json::parse_bounded(&args)
            .map_err(|error| ErrorKind::InvalidRequest(format!("args: {error}")).alone())?;
        let secrets = self.secrets.current();
        let earlier = self.key_schemes.earlier(at);
        let fingerprints = Fingerprints::of(&at.key_scheme, &earlier, &secrets, &args);
        let intent = Intent {
            fingerprint: at.key_scheme.fingerprint(&secrets.today, &args),
            key_scheme: at.key_scheme_id,
            ..(*asked.intent).clone()
        };
        Ok(fingerprints.compare(&intent, asked) == Sameness::Same)
    }
}
