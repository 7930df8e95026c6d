//! Reads bodies and headers of callers after random changes.

use axum::http::{HeaderMap, HeaderValue};
use proptest::prelude::*;
use proptest::test_runner::TestCaseError;
use serde_json::Value;

use super::calls;
use super::headers::IDEMPOTENCY_KEY;
use super::ledger::many;
use super::problem::Problem;
use super::read;
use oncegate_fuzz::{attack, corpus};

#[test]
fn a_request_for_a_call_keeps_its_arguments_as_they_were_written() {
    attack(&corpus("calls"), |bytes| {
        let Ok(request) = calls::parse("act".into(), &HeaderMap::new(), bytes) else {
            return Ok(());
        };
        let text = str::from_utf8(bytes).expect("JSON is text");
        prop_assert!(text.contains(&request.args));
        prop_assert!(
            text.trim_start().starts_with('{'),
            "only an object is a request"
        );
        // Half of a surrogate pair in the arguments is refused later.
        let body: Value = serde_json::from_slice(bytes).unwrap_or_default();
        if let (Ok(args), Some(written)) = (
            serde_json::from_str::<Value>(&request.args),
            body.get("args"),
        ) {
            prop_assert_eq!(&args, written);
        }
        for id in [&request.user_id, &request.session_id] {
            prop_assert!(id.len() <= 255 && !id.chars().any(char::is_control));
        }
        Ok(())
    });
}

#[test]
fn a_key_and_a_trace_of_headers_are_read_or_refused() {
    let body = br#"{"args":{}}"#;
    attack(&corpus("headers"), |line| {
        let Ok(value) = HeaderValue::from_bytes(line) else {
            return Ok(());
        };
        let mut headers = HeaderMap::new();
        for name in [IDEMPOTENCY_KEY.as_str(), "traceparent", "tracestate"] {
            headers.insert(
                name.parse::<axum::http::HeaderName>().expect("a name"),
                value.clone(),
            );
        }
        let request = calls::parse("act".into(), &headers, body);
        let args = request.map(|request| request.args).ok();
        prop_assert_eq!(args.as_deref(), Some("{}"));
        headers.append(IDEMPOTENCY_KEY, value);
        prop_assert!(
            calls::parse("act".into(), &headers, body).is_err(),
            "two keys"
        );
        Ok(())
    });
}

/// Checks that a body was refused, or is an object, and so are its members `filter` and `confirm`.
fn is_an_object<T>(read: Result<T, Problem>, bytes: &[u8]) -> Result<(), TestCaseError> {
    if read.is_ok() {
        let Ok(body) = serde_json::from_slice::<Value>(bytes) else {
            return Ok(());
        };
        prop_assert!(body.is_object());
        for member in ["filter", "confirm"] {
            let inner = &body[member];
            prop_assert!(inner.is_object() || inner.is_null(), "{member}");
        }
        prop_assert!(body["as"].is_string() || body["as"].is_null());
    }
    Ok(())
}

#[test]
fn bodies_of_operators_acts_are_objects_of_objects() {
    attack(&corpus("calls"), |bytes| {
        is_an_object(read::object::<many::ResolveBody>(bytes), bytes)?;
        is_an_object(read::object::<many::CallsBody>(bytes), bytes)?;
        is_an_object(read::object::<many::SagasBody>(bytes), bytes)?;
        is_an_object(read::object::<super::ledger::ResolveBody>(bytes), bytes)?;
        is_an_object(read::object::<read::Reason>(bytes), bytes)
    });
}
