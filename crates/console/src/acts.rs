//! Acts by forms: rows over one handler. Each calls the service that the JSON route of the same act calls.

use std::pin::Pin;

use axum::response::Response;
use axum::routing::{MethodRouter, post};

use crate::access::form::Form;
use crate::frame::address;
use oncegate_http::Http;
use oncegate_http::problem::{self, Problem};

/// The acts on one kind of things.
pub(crate) struct Acts {
    /// The path of their forms. Its last word is that of the act.
    pub(crate) path: &'static str,
    /// The page to which an act leads back.
    pub(crate) page: for<'a> fn(&'a Form) -> Page<'a>,
    pub(crate) rows: &'static [Row],
}

/// An act: its word, and what it does.
pub(crate) type Row = (&'static str, for<'a> fn(&'a Form) -> Doing<'a>);

/// An act that is being done.
pub(crate) type Doing<'a> = Pin<Box<dyn Future<Output = Result<Done, Problem>> + Send + 'a>>;

/// What an act leads to.
pub(crate) enum Done {
    /// The page of the thing, which says that it is done.
    Back,
    /// A page of its own.
    Page(Response),
}

/// The address of a page: the words of its path, and its parameters.
pub(crate) struct Page<'a> {
    pub(crate) path: Vec<&'a str>,
    pub(crate) of: Vec<(&'a str, &'a str)>,
}

/// The handler of these acts.
pub(crate) fn on(acts: &'static Acts) -> MethodRouter<Http> {
    post(move |form: Form| act(acts, form))
}

async fn act(acts: &'static Acts, form: Form) -> Response {
    let words = address::words(form.context.uri.path()).unwrap_or_default();
    let mut rows = acts.rows.iter();
    let row = rows.find(|(word, _)| words.last() == Some(word));
    let done = match row {
        Some((_, does)) => does(&form).await,
        None => Err(problem::unknown_path().await),
    };
    match done {
        Ok(Done::Page(page)) => page,
        Ok(Done::Back) => {
            let Page { path, of } = (acts.page)(&form);
            form.back_to(&path, &of)
        }
        Err(problem) => form.failure(&problem),
    }
}
