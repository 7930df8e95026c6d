//! In the place of the screens of reconciliations, in a build without that wing.

use maud::{Markup, html};

use crate::access::context::Context;
use crate::acts::Acts;
use crate::frame::page::Screen;
use oncegate_http::problem::Problem;

/// None of these addresses is a screen.
pub(crate) async fn screen(_: &Context, _: &[&str]) -> Option<Result<Screen, Problem>> {
    None
}

/// There are no acts.
pub(crate) const ACTS: [&Acts; 0] = [];

/// Nothing needs an operator.
pub(crate) async fn needs(_: &Context) -> Result<Markup, Problem> {
    Ok(html! {})
}
