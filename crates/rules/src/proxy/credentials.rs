//! Headers that count as the caller's own credentials.
//!
//! A key scheme keeps a list of counted headers. Two texts in that list, which are not names of headers, say that
//! credentials count as well, and which of them do not.

use serde_json::{Map, Value};

use super::CREDENTIALS;
use super::names::folded;
use super::payment;
use super::secrets::{changes_by_itself, is_of_scheme, is_secret};

/// In a list of counted headers: all headers that sound like a credential count.
///
/// The list is stored with the key scheme. Other rules for names need another text, or stored calls would not be found.
pub const ALL: &str = "oncegate:credentials";

/// In a list of counted headers, before the name of a header: it does not count as a credential.
const EXCEPT: &str = "oncegate:not:";

/// Headers whose names sound like credentials, and that clients make anew for each request.
const NONE: [&str; 2] = ["postman-token", "sec-websocket-key"];

/// The member of a compared form with the credentials that count.
const MEMBER: &str = ALL;

/// The texts for a list of counted headers. `uncounted`: names in lower case.
pub(super) fn in_list(uncounted: &[String]) -> Vec<String> {
    let mut excepted: Vec<String> = uncounted
        .iter()
        .map(|name| format!("{EXCEPT}{name}"))
        .collect();
    excepted.sort();
    excepted.dedup();
    [vec![ALL.to_owned()], excepted].concat()
}

fn counts_any(list: &[String]) -> bool {
    list.iter().any(|one| one == ALL)
}

fn exceptions(list: &[String]) -> impl Iterator<Item = &str> {
    list.iter().filter_map(|one| one.strip_prefix(EXCEPT))
}

/// Whether a header counts as a credential by a list.
///
/// `Authorization` and `Cookie` have a rule of their own ([`CREDENTIAL`](super::compared_form::CREDENTIAL)).
fn counts(list: &[String], name: &str, value: &str) -> bool {
    counts_any(list)
        && !CREDENTIALS.contains(&name)
        && !NONE.contains(&name)
        // A request that is sent again with a payment is the same one. No release has counted a payment.
        && !payment::is_payment(name, value)
        && (is_secret(name) || is_of_scheme(value))
        && exceptions(list).all(|excepted| folded(excepted) != folded(name))
}

/// Whether a request has a credential that counts by a list.
pub fn are_in(list: &[String], headers: &[(String, String)]) -> bool {
    headers
        .iter()
        .any(|(name, value)| counts(list, name, value))
}

/// Whether a list counts every credential that another list counts.
pub fn are_all_in(list: &[String], other: &[String]) -> bool {
    let is_excepted = |name: &str| exceptions(other).any(|one| one == name);
    !counts_any(other) || counts_any(list) && exceptions(list).all(is_excepted)
}

/// Adds the credentials that count by a list to a compared form, which has all headers of the request.
pub(super) fn add_to(compared_form: &mut Value, list: &[String]) {
    let counted = of(compared_form, list);
    if !counted.is_empty() {
        compared_form[MEMBER] = counted.into();
    }
}

/// The credentials of a compared form that count by a list.
fn of(compared_form: &Value, list: &[String]) -> Map<String, Value> {
    let headers = compared_form["headers"].as_object().into_iter().flatten();
    let counted = headers.filter(|(name, values)| {
        let mut values = values.as_array().into_iter().flatten();
        values.any(|value| counts(list, name, value.as_str().unwrap_or_default()))
    });
    counted
        .map(|(name, values)| (name.clone(), values.clone()))
        .collect()
}

/// Whether a compared form has a credential that counts by the first list, and not by the second.
pub fn are_missed(compared_form: &Value, list: &[String], by: &[String]) -> bool {
    let counted = of(compared_form, by);
    of(compared_form, list)
        .keys()
        .any(|name| !counted.contains_key(name))
}

/// Leaves only the credentials that stay the same when a request is repeated.
pub fn leave_lasting(counted: &mut Value) {
    let Some(compared_form) = counted.as_object_mut() else {
        return;
    };
    if let Some(credentials) = compared_form.get_mut(MEMBER).and_then(Value::as_object_mut) {
        credentials.retain(|name, _| !changes_by_itself(name));
        if credentials.is_empty() {
            compared_form.remove(MEMBER);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::compared_form::{compared_form, with_headers};
    use super::super::tests::post;
    use super::*;

    fn with(name: &str, value: &str) -> Value {
        let mut asked = post("application/json", "{}");
        asked.headers.push((name.to_owned(), value.to_owned()));
        compared_form(&asked, "")
    }

    #[test]
    fn a_view_has_the_credentials_that_count_and_a_key_those_that_last() {
        let list = in_list(&["x-sort-key".to_owned()]);
        let counted = |name: &str, value: &str| with_headers(with(name, value), &list);
        let key = |name: &str, value: &str| {
            let mut counted = counted(name, value);
            leave_lasting(&mut counted);
            counted
        };
        for (name, in_compared, in_key) in [
            ("x-api-key", true, true),
            ("dd-application-key", true, true),
            ("x-sig", true, false),
            ("x-shopify-hmac-sha256", true, false),
            ("x-sort-key", false, false),
            ("authorization", false, false),
            ("postman-token", false, false),
            ("payment-signature", false, false),
            ("x-request-id", false, false),
        ] {
            assert_eq!(
                counted(name, "a") != counted(name, "b"),
                in_compared,
                "{name}"
            );
            assert_eq!(key(name, "a") != key(name, "b"), in_key, "{name}");
        }
        assert_ne!(counted("x-own", "Bearer a"), counted("x-own", "Bearer b"));
        // Without credentials a compared form is the same as that of a gateway that knows none.
        assert_eq!(counted("x-own", "a").get(MEMBER), None);
        let none = with_headers(with("x-api-key", "a"), &[]);
        assert_eq!(none, with_headers(with("x-api-key", "b"), &[]));
    }

    #[test]
    fn lists_are_compared_by_what_they_count() {
        let (all, some) = (in_list(&[]), in_list(&["x-sig".to_owned()]));
        for (list, other, is) in [
            (&all, &all, true),
            (&all, &some, true),
            (&some, &all, false),
            (&vec![], &all, false),
            (&all, &vec![], true),
            (&vec![], &vec![], true),
        ] {
            assert_eq!(are_all_in(list, other), is, "{list:?} {other:?}");
        }
        assert!(are_missed(&with("x-sig", "a"), &all, &some));
        assert!(!are_missed(&with("x-sig", "a"), &some, &all));
        assert!(!are_missed(&with("x-own", "a"), &all, &[]));
    }
}
