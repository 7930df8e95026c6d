//! A page for each problem: what its `type` leads to.

use axum::extract::Path;
use axum::extract::rejection::PathRejection;
use axum::response::Html;

use super::problem::{Problem, Slug};

/// `GET /problems`
pub(super) async fn index() -> Html<String> {
    let rows: String = Slug::ALL
        .iter()
        .map(|slug| {
            let row = slug.row();
            let name = slug.as_str();
            format!(
                "<li><a href=\"/problems/{name}\">{name}</a> ({}): {}</li>\n",
                row.status.as_u16(),
                row.title
            )
        })
        .collect();
    Html(document("Problems", &format!("<ul>\n{rows}</ul>")))
}

/// `GET /problems/{slug}`
pub(super) async fn page(slug: Result<Path<String>, PathRejection>) -> Result<Html<String>, Problem> {
    let slug = slug.map_or_else(|_| String::new(), |Path(slug)| slug);
    let slug = Slug::ALL.iter().find(|known| known.as_str() == slug);
    let slug = slug.ok_or_else(Problem::unknown_problem)?;
    let row = slug.row();
    let text = format!(
        "<p>{}</p>\n<dl><dt>status</dt><dd>{}</dd><dt>effect</dt><dd>{}</dd><dt>key_action</dt><dd>{}</dd></dl>\n<p><a href=\"/problems\">All problems</a></p>",
        row.text,
        row.status.as_u16(),
        row.effect.as_str(),
        row.key_action.as_str(),
    );
    Ok(Html(document(row.title, &text)))
}

fn document(title: &str, body: &str) -> String {
    format!(
        "<!doctype html>\n<html lang=\"en\"><meta charset=\"utf-8\"><title>{title} - oncegate</title>\n<h1>{title}</h1>\n{body}\n</html>\n"
    )
}
