//! Texts of others that the rules read, changed at random.

use std::hint::black_box;

use proptest::prelude::*;
use proptest::test_runner::TestCaseError;
use serde_json::Value;

use crate::json;
use crate::key::Key;
use crate::mcp::lines::{Line, Lines, Said, one_line};
use crate::mcp::sse::Decoder;
use crate::mcp::{elicitation, evidence, progress, revision};
use crate::proxy::stored_form;
use crate::trace::{self, Context, SpanId};
use oncegate_fuzz::{attack, corpus};

type Held = Result<(), TestCaseError>;

#[test]
fn json_is_read_as_another_reader_reads_it_or_refused() {
    attack(&corpus("json"), |bytes| {
        let Ok(text) = str::from_utf8(bytes) else {
            return Ok(());
        };
        let theirs = serde_json::from_str::<Value>(text).ok();
        let Ok(ours) = json::parse_bounded(text) else {
            return Ok(());
        };
        prop_assert_eq!(Some(&ours), theirs.as_ref());
        let canonical = json::canonical(&ours);
        let oracle = serde_json_canonicalizer::to_vec(&ours).expect("canonical");
        prop_assert_eq!(canonical.as_bytes(), oracle);
        let again = json::parse(&canonical);
        // A number beyond 2^53 may be written with an exponent, and is canonical without one.
        if let Ok(again) = again {
            prop_assert_eq!(json::canonical(&again), canonical);
        }
        Ok(())
    });
}

#[test]
fn a_key_of_a_header_is_one_key_bare_and_quoted() {
    attack(&corpus("headers"), |line| {
        let Ok(key) = Key::from_header(line) else {
            return Ok(());
        };
        let text = key.as_str();
        prop_assert!((1..=255).contains(&text.len()));
        prop_assert!(text.bytes().all(|byte| (0x21..=0x7e).contains(&byte)));
        let escaped = text.replace('\\', "\\\\").replace('"', "\\\"");
        let quoted = Key::from_header(format!(" \"{escaped}\"\t").as_bytes());
        prop_assert_eq!(quoted.as_ref().map(Key::as_str), Ok(text));
        Ok(())
    });
}

#[test]
fn headers_of_traces_and_of_mcp_are_passed_on_as_they_were_read() {
    attack(&corpus("headers"), |line| {
        let text = String::from_utf8_lossy(line);
        if let Some(context) = Context::parse(&text, &text) {
            prop_assert!(
                context
                    .state
                    .bytes()
                    .all(|byte| (b' '..=b'~').contains(&byte))
            );
            let ours = trace::traceparent(&context.trace_id, SpanId::new(7), context.sampled);
            let ours =
                ours.ok_or_else(|| TestCaseError::fail("a trace id that is not forwarded"))?;
            let again = Context::parse(&ours, "").map(|again| (again.trace_id, again.sampled));
            prop_assert_eq!(again, Some((context.trace_id, context.sampled)));
        }
        let encoded = revision::encode(&text);
        prop_assert!(encoded.bytes().all(|byte| (b' '..=b'~').contains(&byte)));
        let decoded = revision::decode(&encoded);
        prop_assert_eq!(decoded.as_deref(), Some(&*text));
        drop(revision::decode(&text));
        Ok(())
    });
}

/// The input in three pieces. Where they end depends on the input.
fn pieces(bytes: &[u8]) -> [&[u8]; 3] {
    let sum = bytes.iter().map(|byte| usize::from(*byte)).sum::<usize>();
    let (first, rest) = bytes.split_at(sum % (bytes.len() + 1));
    let (second, third) = rest.split_at(sum % (rest.len() + 1));
    [first, second, third]
}

#[test]
fn a_stream_is_read_the_same_wherever_its_pieces_end() {
    attack(&corpus("events"), |bytes| {
        let mut whole = Decoder::default();
        let expected = whole.push(bytes);
        let mut cut = Decoder::default();
        let read = pieces(bytes).map(|piece| cut.push(piece)).concat();
        prop_assert_eq!(&read, &expected);
        prop_assert_eq!(cut.held(), whole.held());
        prop_assert!(whole.held() <= bytes.len());
        lines_are_the_same(bytes)?;
        for event in &read {
            answers_are_read(event)?;
        }
        Ok(())
    });
}

fn lines_are_the_same(bytes: &[u8]) -> Held {
    let read = |parts: &[&[u8]]| -> Vec<Line> {
        let mut lines = Lines::new(64);
        let mut read: Vec<Line> = parts.iter().flat_map(|part| lines.push(part)).collect();
        read.extend(lines.end());
        read
    };
    prop_assert_eq!(read(&pieces(bytes)), read(&[bytes]));
    Ok(())
}

/// Reading a message of a server does not panic, and as one line the message reads the same.
fn answers_are_read(message: &[u8]) -> Held {
    black_box(evidence::matches(message, "1"));
    black_box(evidence::is_error(message));
    black_box(evidence::has(message, "/a/0"));
    drop(progress::read(message));
    black_box(elicitation::asked(message));
    black_box(elicitation::is_answer(message));
    let line = one_line(message);
    prop_assert_eq!(line.iter().filter(|byte| **byte == b'\n').count(), 1);
    let value = |bytes: &[u8]| serde_json::from_slice::<Value>(bytes).ok();
    if let Some(said) = value(message) {
        prop_assert_eq!(value(&line), Some(said));
    }
    let kind = |bytes| std::mem::discriminant(&Said::read(bytes));
    if value(message).is_some() {
        prop_assert_eq!(kind(message), kind(&line));
    }
    Ok(())
}

#[test]
fn messages_of_servers_never_panic() {
    attack(&corpus("mcp"), answers_are_read);
}

#[test]
fn a_stored_request_of_a_proxy_is_read_or_refused() {
    attack(&corpus("json"), |bytes| {
        drop(stored_form::message(bytes));
        drop(stored_form::target(bytes));
        Ok(())
    });
}
