//! `GET /v1/export`: all calls of a user, a session, a time or a tenant, as lines that can be resumed.

use axum::body::{Body, Bytes};
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use futures_util::stream;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use utoipa::IntoParams;

use super::CallView;
use super::listing::{STREAMED_AT_ONCE, view};
use crate::headers::NDJSON;
use crate::openapi::Route;
use crate::problem::{Problem, Slug};
use crate::read::{On, QueryOf, moment};
use oncegate_engine::{Error, Query};
use oncegate_rules::ledger::{Filter, Listed, Page};
use oncegate_rules::position::Position;

/// The route of exports.
pub(crate) fn routes() -> Vec<Route> {
    let about = "All calls of a user, a session, a time or a tenant, one a line, newest first";
    vec![
        Route::get("/v1/export", "export_calls", about, export)
            .params::<Parameters>()
            .problems(&[
                Slug::InvalidRequest,
                Slug::RateLimited,
                Slug::StoreUnavailable,
            ])
            .text(
                NDJSON,
                "Lines `{\"call\":…,\"cursor\":…}`. The last one is `{\"end\":true,\"calls\":…,\"unreadable\":…}`; without it the export is not whole.",
            ),
    ]
}

/// Which calls.
#[derive(Deserialize, Serialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(crate) struct Parameters {
    /// Tenant of the calls; an administrator who names none gets all.
    #[serde(skip_serializing_if = "Option::is_none")]
    tenant: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    user_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    session_id: Option<String>,
    /// Created at this time or later.
    #[param(format = DateTime)]
    #[serde(skip_serializing_if = "Option::is_none")]
    since: Option<String>,
    /// Created before this time.
    #[param(format = DateTime)]
    #[serde(skip_serializing_if = "Option::is_none")]
    until: Option<String>,
    /// The `cursor` of a line of an export with the same parameters: goes on after that line.
    #[serde(skip_serializing)]
    after: Option<String>,
}

/// A call of an export.
#[derive(Serialize)]
struct Line<'a> {
    call: CallView<'a>,
    cursor: String,
}

/// The last line of an export that is whole.
#[derive(Serialize)]
struct End {
    end: bool,
    /// How many lines this answer had before.
    calls: u64,
    /// Calls that are left out because they cannot be read.
    unreadable: u64,
}

/// `GET /v1/export`
///
/// Each page is read once the page before it is sent, so at most one page is in memory. If the store fails midway, the
/// response breaks off without a last line.
async fn export(on: On<QueryOf<Parameters>>) -> Result<Response, Problem> {
    let (http, caller, asked) = (on.http, on.caller, on.target.0);
    // Without `after`: what the cursors of this export belong to.
    let filter_json = serde_json::to_string(&asked).unwrap_or_default();
    // An administrator who names no tenant reads all; everyone else reads their own.
    let scope = match &asked.tenant {
        Some(tenant) => Some(&tenant[..]),
        None => (!caller.is_admin()).then_some(&caller.tenant[..]),
    };
    let tag = tag(scope, &filter_json);
    let before = asked.after.map(|text| {
        let position = text.strip_suffix(&tag).and_then(Position::from_cursor);
        position.ok_or_else(|| {
            Problem::invalid_request(
                "after is not a cursor of this export: send the cursor of a line with the same tenant and the same parameters",
            )
        })
    });
    let filter = Filter {
        user_id: asked.user_id,
        session_id: asked.session_id,
        since: moment("since", asked.since)?,
        until: moment("until", asked.until)?,
        ..Filter::default()
    };
    let query = Query {
        before: before.transpose()?,
        ..Query::newest(asked.tenant, filter, STREAMED_AT_ONCE)
    };
    let ledger = &http.gateway.ledger;
    let place = ledger.permit_to_export(&caller)?;
    // The first page is read before the response begins, so that a failure still has its status.
    let first = ledger.list_calls(&caller, &query).await?;
    ledger
        .note_export(&caller, query.tenant.as_deref(), filter_json)
        .await;
    let begin = Some((Some(first), query, (0, 0), place));
    let pages = stream::try_unfold(begin, move |state| {
        let (http, caller, tag) = (http.clone(), caller.clone(), tag.clone());
        async move {
            let Some((read, query, (calls, unreadable), place)) = state else {
                return Ok(None);
            };
            let page = match read {
                Some(page) => page,
                None => http.gateway.ledger.list_calls(&caller, &query).await?,
            };
            let so_far = (
                calls + page.found.len() as u64,
                unreadable + page.unreadable,
            );
            let mut text = lines(&page, &tag);
            let next = match page.next {
                Some(next) => {
                    let before = Some(next);
                    Some((None, Query { before, ..query }, so_far, place))
                }
                None => {
                    let (calls, unreadable) = so_far;
                    write_line(
                        &mut text,
                        &End {
                            end: true,
                            calls,
                            unreadable,
                        },
                    );
                    None
                }
            };
            Ok::<_, Error>(Some((Bytes::from(text), next)))
        }
    });
    Ok(([(CONTENT_TYPE, NDJSON)], Body::from_stream(pages)).into_response())
}

/// The end of the cursors of one export: nothing but a mistake would send it to another one, so it is short.
///
/// `tenant`: `None` is all tenants.
fn tag(tenant: Option<&str>, filter_json: &str) -> String {
    let digest = Sha256::new()
        .chain_update(filter_json)
        .chain_update([u8::from(tenant.is_some())])
        .chain_update(tenant.unwrap_or_default())
        .finalize();
    let hex: String = digest[..6]
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    format!(".{hex}")
}

fn lines(page: &Page<Listed>, tag: &str) -> Vec<u8> {
    let mut text = Vec::new();
    for listed in &page.found {
        let line = Line {
            call: view(listed),
            cursor: Position::of(&listed.record).to_cursor() + tag,
        };
        write_line(&mut text, &line);
    }
    text
}

fn write_line(text: &mut Vec<u8>, line: &impl Serialize) {
    // A view always serializes.
    text.extend(serde_json::to_vec(line).unwrap_or_default());
    text.push(b'\n');
}
