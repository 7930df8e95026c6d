//! Forms of pages: whose they are, and that they come from a page of this session.

use axum::body::{Body, Bytes};
use axum::extract::{FromRequest, FromRequestParts, Request};
use axum::http::request::Parts;
use axum::response::{IntoResponse, Redirect, Response};
use serde_json::value::RawValue;

use crate::access::context::Context;
use crate::frame::address::{self, Asked};
use crate::frame::page;
use oncegate_http::problem::Problem;
use oncegate_http::read::{self, identity, read_body};
use oncegate_http::{Http, host};

/// A form of a page of this session.
pub(crate) struct Form {
    /// The request, whose address names the target of the act.
    pub(crate) context: Context,
    pub(crate) fields: Asked,
}

impl FromRequest<Http> for Form {
    type Rejection = Response;

    async fn from_request(request: Request, http: &Http) -> Result<Self, Response> {
        let (mut parts, body) = request.into_parts();
        let context = Context::from_request_parts(&mut parts, http).await?;
        let fields = fields(http, &parts, body).await.and_then(|fields| {
            let sign_ins = &context.console.sign_ins;
            if !sign_ins.has_made(&context.operator.sign_in, fields.text("form")) {
                let why = "the form is of another session; load its page anew";
                return Err(Problem::forbidden(why));
            }
            Ok(fields)
        });
        match fields {
            Ok(fields) => Ok(Self { context, fields }),
            Err(problem) => Err(page::failure(&problem, Some(&context.operator))),
        }
    }
}

/// The fields of a form that a page of this gateway sent.
///
/// # Errors
/// It comes from another site, or cannot be read.
pub(crate) async fn fields(http: &Http, parts: &Parts, body: Body) -> Result<Asked, Problem> {
    if !host::has_own_origin(parts) {
        let why = "the form comes from a page of another site";
        return Err(Problem::forbidden(why));
    }
    Ok(Asked::read(&read_body(body, http.max_body).await?))
}

impl Form {
    /// The operator's reason for the act.
    pub(crate) fn reason(&self) -> Result<String, Problem> {
        read::reason(self.fields.text("reason").to_owned())
    }

    /// The reason for an act that needs none. Without one the text is empty.
    pub(crate) fn optional_reason(&self) -> Result<String, Problem> {
        match self.fields.get("reason") {
            Some(_) => self.reason(),
            None => Ok(String::new()),
        }
    }

    /// The result that an operator wrote, without the spaces around it.
    pub(crate) fn result(&self) -> Result<Bytes, Problem> {
        let read: Result<&RawValue, _> = serde_json::from_str(self.fields.text("result"));
        let read = read.map_err(|error| {
            let why = format!(
                "the result is not JSON ({error}); write null where the tool answers nothing"
            );
            Problem::invalid_request(&why)
        })?;
        Ok(Bytes::copy_from_slice(read.get().as_bytes()))
    }

    /// The session or saga of an act. Without a tenant in the address, it is of the operator's own tenant.
    pub(crate) fn id_and_tenant(&self) -> [(&'static str, &str); 2] {
        let asked = &self.context.asked;
        let tenant = asked.get("tenant");
        let tenant = tenant.unwrap_or(&self.context.caller().tenant);
        [("id", asked.text("id")), ("tenant", tenant)]
    }

    /// The same, checked.
    pub(crate) fn checked_id_and_tenant(&self) -> Result<[String; 2], Problem> {
        let [(_, id), (_, tenant)] = self.id_and_tenant();
        Ok([
            identity("the id", id.to_owned())?,
            identity("tenant", tenant.to_owned())?,
        ])
    }

    /// Leads back to a page, which says that the act is done.
    pub(crate) fn back_to(&self, path: &[&str], of: &[(&str, &str)]) -> Response {
        let token = self.context.operator.done_token(&address::to(path, &[]));
        let of = [of, &[("done", token.as_str())]].concat();
        Redirect::to(&address::to(path, &of)).into_response()
    }

    /// The failure that stands in the place of a page.
    pub(crate) fn failure(&self, problem: &Problem) -> Response {
        page::failure(problem, Some(&self.context.operator))
    }
}
