//! Forms of pages: whose they are, and that they come from a page of this session.

use axum::RequestExt;
use axum::extract::rejection::PathRejection;
use axum::extract::{FromRequest, Path, Request};
use axum::response::{IntoResponse, Redirect, Response};
use sha2::{Digest, Sha256};

use super::super::problem::Problem;
use super::super::read::{self, read_body};
use super::super::{Http, host};
use super::address::{self, Asked};
use super::page;
use super::person::Person;

/// A form of a page of this session.
pub(super) struct Form {
    pub(super) person: Person,
    pub(super) fields: Asked,
}

impl FromRequest<Http> for Form {
    type Rejection = Response;

    async fn from_request(mut request: Request, http: &Http) -> Result<Self, Response> {
        let person = request
            .extract_parts_with_state::<Person, Http>(http)
            .await?;
        let read = async {
            let (parts, body) = request.into_parts();
            if !host::has_own_origin(&parts) {
                return Err(Problem::forbidden(
                    "the form comes from a page of another site",
                ));
            }
            let fields = Asked::read(&read_body(body, http.max_body).await?);
            let sign_ins = &http.gateway.sign_ins;
            if !sign_ins.has_made(&person.sign_in, fields.text("form")) {
                let why = "the form is of another session; load its page anew";
                return Err(Problem::forbidden(why));
            }
            Ok(fields)
        };
        match read.await {
            Ok(fields) => Ok(Self { person, fields }),
            Err(problem) => Err(page::failure(&problem, Some(&person.around()))),
        }
    }
}

impl Form {
    /// Why the person does it.
    pub(super) fn reason(&self) -> Result<String, Problem> {
        read::reason(self.fields.text("reason").to_owned())
    }

    /// The same, where none is needed.
    pub(super) fn optional_reason(&self) -> Result<String, Problem> {
        match self.fields.get("reason") {
            Some(_) => self.reason(),
            None => Ok(String::new()),
        }
    }

    /// The page to go back to, which says that it is done; or why it is not.
    pub(super) fn answer(
        &self,
        done: Result<(), Problem>,
        path: &[&str],
        of: &[(&str, &str)],
    ) -> Response {
        match done {
            Ok(()) => {
                let done = self::done(&self.person.form_token, &address::to(path, &[]));
                let of = [of, &[("done", done.as_str())]].concat();
                Redirect::to(&address::to(path, &of)).into_response()
            }
            Err(problem) => self.failure(&problem),
        }
    }

    /// A page, or why there is none.
    pub(super) fn page(&self, page: Result<Response, Problem>) -> Response {
        page.unwrap_or_else(|problem| self.failure(&problem))
    }

    /// The page that says why something was not done.
    pub(super) fn failure(&self, problem: &Problem) -> Response {
        page::failure(problem, Some(&self.person.around()))
    }
}

/// A form of an act: the word in its path, and what its address names.
pub(super) struct Act {
    pub(super) http: Http,
    pub(super) word: String,
    pub(super) asked: Asked,
    pub(super) form: Form,
}

impl FromRequest<Http> for Act {
    type Rejection = Response;

    async fn from_request(mut request: Request, http: &Http) -> Result<Self, Response> {
        let word: Result<Path<String>, PathRejection> = request.extract_parts().await;
        let Path(word) = word.map_err(IntoResponse::into_response)?;
        Ok(Self {
            http: http.clone(),
            word,
            asked: Asked::of(request.uri()),
            form: Form::from_request(request, http).await?,
        })
    }
}

/// What the address of a page says after an act. No other session, page or site can make it.
pub(super) fn done(form_token: &str, path: &str) -> String {
    hex::encode(&Sha256::digest([form_token, path].join(" "))[..8])
}
