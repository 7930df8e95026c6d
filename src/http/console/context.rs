//! What every screen is made with.

use jiff::Timestamp;
use maud::{Markup, html};

use super::super::Http;
use super::super::problem::Problem;
use super::super::read::{cursor, identity, limit};
use super::address::Asked;
use super::person::Person;
use super::words::text;
use crate::core::ledger::LIMITS;
use crate::core::position::Position;

/// What a screen is made with.
pub(super) struct Context<'a> {
    pub(super) http: &'a Http,
    pub(super) person: &'a Person,
    /// Ages count up to this time.
    pub(super) now: Timestamp,
    pub(super) asked: &'a Asked,
    /// Where the person's commands would go to, for the commands that a page shows.
    pub(super) origin: &'a str,
}

/// A text that a person puts into a form.
#[derive(Clone, Copy)]
pub(super) enum Field<'a> {
    /// Why, in a sentence. It is needed.
    Reason,
    /// The same, and may be left out.
    OptionalReason,
    /// What the person has seen, which the act is about. Not shown.
    Seen(&'a str),
    /// A JSON text.
    Json { label: &'a str, value: &'a str },
}

impl Context<'_> {
    pub(super) fn is_admin(&self) -> bool {
        self.person.caller.is_admin()
    }

    /// The tenant that the address names, if it names one.
    pub(super) fn named_tenant(&self) -> Result<Option<String>, Problem> {
        let tenant = self.asked.owned("tenant");
        tenant.map(|tenant| identity("tenant", tenant)).transpose()
    }

    /// The tenant of one thing: the named one, or the person's own.
    pub(super) fn tenant(&self) -> Result<String, Problem> {
        let own = || self.person.caller.tenant.clone();
        Ok(self.named_tenant()?.unwrap_or_else(own))
    }

    pub(super) fn before(&self) -> Result<Option<Position>, Problem> {
        cursor(self.asked.owned("cursor"), Position::from_cursor)
    }

    pub(super) fn limit(&self) -> Result<u32, Problem> {
        limit(self.asked.owned("limit"), LIMITS.0)
    }

    /// A form for an act, closed until it is opened. For administrators only, as the act is.
    pub(super) fn act(&self, to: &str, what: &str, about: &str, fields: &[Field<'_>]) -> Markup {
        if !self.is_admin() {
            return html! {};
        }
        html! {
            details.act {
                summary { (text(what)) }
                form method="post" action=(to) {
                    input type="hidden" name="form" value=(self.person.form_token);
                    p { (text(about)) }
                    @for field in fields { (input(field)) }
                    button type="submit" { (text(what)) }
                }
            }
        }
    }

    /// A form of one small button, for what changes nothing at a tool.
    pub(super) fn button(&self, to: &str, what: &str) -> Markup {
        if !self.is_admin() {
            return html! {};
        }
        html! {
            form.small method="post" action=(to) {
                input type="hidden" name="form" value=(self.person.form_token);
                button type="submit" { (text(what)) }
            }
        }
    }

    /// Said where there would be acts, to a person who may not act.
    pub(super) fn may_not_act(&self) -> Markup {
        html! {
            @if !self.is_admin() {
                p.note { "This token may look. Acts need one with the scope " code { "admin" } "." }
            }
        }
    }
}

fn input(field: &Field<'_>) -> Markup {
    html! {
        @match field {
            Field::Reason => label {
                "Reason"
                input type="text" name="reason" required maxlength="1000" autocomplete="off";
            }
            Field::OptionalReason => label {
                "Reason, if there is one to keep"
                input type="text" name="reason" maxlength="1000" autocomplete="off";
            }
            Field::Seen(mark) => { input type="hidden" name="seen" value=(mark); }
            Field::Json { label, value } => label {
                (text(label))
                textarea name="result" rows="4" required spellcheck="false" { (text(value)) }
            }
        }
    }
}
