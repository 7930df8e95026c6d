//! Payments in the messages of MCP.
//!
//! Sources: x402, MCP transport (versions 1 and 2); the payment extension of MCP (`org.paymentauth`).

use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use super::members::{Members, object};

/// Members of a request's `_meta` that hold a payment. They go to the server, and are kept nowhere.
pub const META: [&str; 2] = ["org.paymentauth/credential", "x402/payment"];

/// Members of a result's `_meta` that hold a receipt.
pub const RECEIPTS: [&str; 2] = ["org.paymentauth/receipt", "x402/payment-response"];

/// The error code for "the payment has to come first", which other extensions use as well.
const REQUIRED: i64 = -32_042;
/// The code of x402's first version.
const OF_STATUS: i64 = 402;

/// The payments in a request's `_meta`.
pub fn of(meta: &Map<String, Value>) -> Map<String, Value> {
    let is_payment = |(name, _): &(&String, &Value)| META.contains(&name.as_str());
    let payments = meta.iter().filter(is_payment);
    payments
        .map(|(name, value)| (name.clone(), value.clone()))
        .collect()
}

/// The ways to pay that an answer offers.
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Offers<'a> {
    #[serde(borrow)]
    challenges: Option<&'a RawValue>,
    #[serde(borrow)]
    accepts: Option<&'a RawValue>,
    #[serde(borrow)]
    x402_version: Option<&'a RawValue>,
}

impl Offers<'_> {
    fn has_challenges(&self) -> bool {
        self.challenges.is_some_and(is_list)
    }

    fn is_of_x402(&self) -> bool {
        self.x402_version.is_some() && self.accepts.is_some_and(is_list)
    }
}

fn is_list(value: &RawValue) -> bool {
    value.get().starts_with('[')
}

/// Whether a kept answer asks for a payment, as an error or as a result.
pub fn is_demanded(answer: &[u8]) -> bool {
    is_demand(answer) || is_result_demand(answer)
}

/// Whether an error of JSON-RPC asks for a payment.
pub fn is_demand(error: &[u8]) -> bool {
    #[derive(Deserialize)]
    struct Demand<'a> {
        code: i64,
        #[serde(borrow, default)]
        data: Option<Offers<'a>>,
    }
    object::<Demand<'_>>(error).is_some_and(|error| {
        let offers = error.data.unwrap_or_default();
        match error.code {
            REQUIRED => offers.has_challenges(),
            OF_STATUS => offers.is_of_x402(),
            _ => false,
        }
    })
}

/// Whether a tool's result asks for a payment: an error whose structured content offers ways to pay.
pub fn is_result_demand(result: &[u8]) -> bool {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Demand<'a> {
        #[serde(default)]
        is_error: bool,
        #[serde(borrow, default)]
        structured_content: Option<Offers<'a>>,
    }
    object::<Demand<'_>>(result).is_some_and(|result| {
        let offers = result.structured_content.unwrap_or_default();
        result.is_error && offers.is_of_x402()
    })
}

/// Whether a tool's result says what became of a payment: it was tried. One that cannot be read may say so.
pub fn has_receipt(result: &[u8]) -> bool {
    #[derive(Deserialize)]
    struct Receipts<'a> {
        #[serde(borrow, default, rename = "_meta")]
        meta: Option<&'a RawValue>,
    }
    let Some(result) = object::<Receipts<'_>>(result) else {
        return true;
    };
    let Some(meta) = result.meta else {
        return false;
    };
    object::<Members<'_>>(meta.get().as_bytes()).is_none_or(|meta| {
        let mut names = meta.0.iter().map(|(name, _)| &**name);
        names.any(|name| RECEIPTS.contains(&name))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_receipt_shows_that_a_payment_was_tried() {
        for (result, has) in [
            (r#"{"isError":true}"#, false),
            (r#"{"_meta":{"progress":1}}"#, false),
            (
                r#"{"_meta":{"x402/payment-response":{"success":false}}}"#,
                true,
            ),
            (r#"{"_meta":{"x402\u002fpayment-response":1}}"#, true),
            (r#"{"_meta":{"org.paymentauth/receipt":1}}"#, true),
            (r#"{"_meta":7}"#, true),
        ] {
            assert_eq!(has_receipt(result.as_bytes()), has, "{result}");
        }
    }

    #[test]
    fn a_demand_names_ways_to_pay() {
        for (error, is) in [
            (
                r#"{"code":-32042,"message":"","data":{"challenges":[{"id":"c"}]}}"#,
                true,
            ),
            (
                r#"{"code":-32042,"message":"","data":{"elicitations":[]}}"#,
                false,
            ),
            (r#"{"code":-32042,"message":""}"#, false),
            (
                r#"{"code":402,"message":"","data":{"x402Version":1,"accepts":[]}}"#,
                true,
            ),
            (r#"{"code":402,"message":""}"#, false),
            (
                r#"{"code":-32000,"message":"","data":{"challenges":[]}}"#,
                false,
            ),
            (r#"{"code":-32042,"data":7}"#, false),
        ] {
            assert_eq!(is_demand(error.as_bytes()), is, "{error}");
        }
        for (result, is) in [
            (
                r#"{"isError":true,"structuredContent":{"x402Version":2,"accepts":[]}}"#,
                true,
            ),
            (
                r#"{"isError":false,"structuredContent":{"x402Version":2,"accepts":[]}}"#,
                false,
            ),
            (
                r#"{"isError":true,"structuredContent":{"accepts":[]}}"#,
                false,
            ),
            (r#"{"isError":true,"content":[]}"#, false),
        ] {
            assert_eq!(is_result_demand(result.as_bytes()), is, "{result}");
        }
    }

    #[test]
    fn only_payments_are_taken_from_a_requests_meta() {
        let meta =
            serde_json::json!({ "x402/payment": { "a": 1 }, "secret": 1, "progressToken": 2 });
        let payments = of(meta.as_object().expect("an object"));
        assert_eq!(
            Value::Object(payments),
            serde_json::json!({ "x402/payment": { "a": 1 } })
        );
    }
}
