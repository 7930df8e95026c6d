//! Requests that answer what a server asked.

use std::sync::Arc;

use super::engine::Engine;
use super::prepared::{Answers, Request};
use crate::core::caller::Caller;
use crate::core::json;
use crate::core::mcp::round::{self, Answer};
use crate::core::recipe::prints::{Prints, Sameness};
use crate::core::record::{Intent, Record};
use crate::gateway::error::{Error, ErrorKind};
use crate::gateway::tools::ToolAt;

impl Engine {
    /// A request with the answers that it brings among its arguments, if it answers a call that asked, with the
    /// arguments of that call.
    ///
    /// # Errors
    /// It does not, or that cannot be looked up. Nothing was run.
    pub(super) async fn with_answers(
        &self,
        at: &Arc<ToolAt>,
        caller: &Caller,
        mut request: Request,
    ) -> Result<Request, Error> {
        let Answers::Round(answer) = std::mem::take(&mut request.answers) else {
            return Ok(request);
        };
        let asked = self.base.store.load(answer.asked_by).await;
        let asked = asked.map_err(|_| ErrorKind::StoreUnavailable.alone())?;
        let asked = asked.filter(|asked| is_its_round(asked, at, caller, &request, &answer));
        let asked = asked.ok_or_else(|| ErrorKind::UnknownRound.alone())?;
        if !self.asks_for_the_same(at, &request, &asked)? {
            return Err(ErrorKind::UnknownRound.alone());
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
        let args = round::as_asked(&request.args, &asked.intent.args);
        let args = json::parse_bounded(&args)
            .map_err(|error| ErrorKind::InvalidRequest(format!("args: {error}")).alone())?;
        let (earlier, secrets) = (
            self.prepare.recipes.earlier(at),
            self.prepare.secrets.current(),
        );
        let prints = Prints::of(&at.recipe, &earlier, &secrets, &args);
        let intent = Intent {
            fingerprint: at.recipe.fingerprint(&secrets.today, &args),
            recipe: at.recipe_id,
            ..(*asked.intent).clone()
        };
        Ok(prints.compare(&intent, asked) == Sameness::Same)
    }
}

fn is_its_round(
    asked: &Record,
    at: &ToolAt,
    caller: &Caller,
    request: &Request,
    answer: &Answer,
) -> bool {
    let intent = &asked.intent;
    let is_callers = intent.tenant == caller.tenant && intent.user_id == request.user_id;
    let has_asked = round::asked_by(asked).is_some_and(|round| round.state == answer.state);
    is_callers && intent.tool == at.tool.name && at.is_of_upstream() && has_asked
}
