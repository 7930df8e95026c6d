//! The section `[webhook]`: a system that is told what needs an operator.

use std::time::Duration;

use super::reader::Section;
use oncegate_tools::outside::{MAX_SECRETS, SigningSecret, Webhook};

pub(super) fn webhook(mut section: Section<'_, '_>) -> Option<Webhook> {
    let url = section.url(&[]);
    let headers = section.headers();
    let timeout = section.get_or("timeout", Duration::from_secs(5));
    let secrets = section.all_parsed("secrets", SigningSecret::read);
    let secrets = secrets.unwrap_or_default();
    let why = "at most two secrets sign an event: the one in use, and the next or the last";
    section.check(secrets.len() <= MAX_SECRETS, "secrets", why);
    let url = url?;
    section.warn_in_the_open("the webhook's URL", &url);
    Some(Webhook {
        url,
        headers,
        timeout,
        secrets,
    })
}
