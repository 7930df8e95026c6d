//! Forms of pages: whose they are, and that they come from a page of this session.

use axum::body::Body;
use axum::extract::{FromRequest, FromRequestParts, Request};
use axum::http::request::Parts;
use axum::response::{IntoResponse, Redirect, Response};

use super::super::problem::Problem;
use super::super::read::{self, read_body};
use super::super::{Http, host};
use super::address::{self, Asked};
use super::context::Context;
use super::page;

/// A form of a page of this session.
pub(super) struct Form {
    /// The request, whose address names the target of the act.
    pub(super) context: Context,
    pub(super) fields: Asked,
}

impl FromRequest<Http> for Form {
    type Rejection = Response;

    async fn from_request(request: Request, http: &Http) -> Result<Self, Response> {
        let (mut parts, body) = request.into_parts();
        let context = Context::from_request_parts(&mut parts, http).await?;
        let fields = fields(http, &parts, body).await.and_then(|fields| {
            let sign_ins = &http.gateway.sign_ins;
            if !sign_ins.has_made(&context.person.sign_in, fields.text("form")) {
                let why = "the form is of another session; load its page anew";
                return Err(Problem::forbidden(why));
            }
            Ok(fields)
        });
        match fields {
            Ok(fields) => Ok(Self { context, fields }),
            Err(problem) => Err(page::failure(&problem, Some(&context.person))),
        }
    }
}

/// The fields of a form that a page of this gateway sent.
///
/// # Errors
/// It comes from another site, or cannot be read.
pub(super) async fn fields(http: &Http, parts: &Parts, body: Body) -> Result<Asked, Problem> {
    if !host::has_own_origin(parts) {
        let why = "the form comes from a page of another site";
        return Err(Problem::forbidden(why));
    }
    Ok(Asked::read(&read_body(body, http.max_body).await?))
}

impl Form {
    /// The operator's reason for the act.
    pub(super) fn reason(&self) -> Result<String, Problem> {
        read::reason(self.fields.text("reason").to_owned())
    }

    /// The reason for an act that needs none. Without one the text is empty.
    pub(super) fn optional_reason(&self) -> Result<String, Problem> {
        match self.fields.get("reason") {
            Some(_) => self.reason(),
            None => Ok(String::new()),
        }
    }

    /// Leads back to a page, which says that the act is done; or says why it is not.
    pub(super) fn answer(
        &self,
        done: Result<(), Problem>,
        path: &[&str],
        of: &[(&str, &str)],
    ) -> Response {
        self.page(done.map(|()| {
            let mark = self.context.person.done_mark(&address::to(path, &[]));
            let of = [of, &[("done", mark.as_str())]].concat();
            Redirect::to(&address::to(path, &of)).into_response()
        }))
    }

    /// A page, or the failure that stands in its place.
    pub(super) fn page(&self, page: Result<Response, Problem>) -> Response {
        page.unwrap_or_else(|problem| page::failure(&problem, Some(&self.context.person)))
    }
}
