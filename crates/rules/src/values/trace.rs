//! W3C Trace Context: the trace of a call, and its span in it.

use std::fmt;

use sha2::{Digest, Sha256};

use crate::record::AttemptId;

/// The longest `tracestate` that is forwarded. W3C asks for at least 512.
const MAX_STATE: usize = 512;

/// Names one span of a trace: 64 bits, not all zero.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct SpanId(u64);

impl SpanId {
    /// From random bits. Zero would mean "no span".
    pub fn new(bits: u64) -> Self {
        Self(bits.max(1))
    }

    /// The span id of an attempt.
    ///
    /// It is half of the attempt's id, so that tool, ledger and trace name the attempt alike.
    pub fn of(attempt: AttemptId) -> Self {
        Self::new(attempt.0.as_u64_pair().0)
    }
}

impl fmt::Display for SpanId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// The trace context of a caller.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Context {
    pub trace_id: String,
    /// The caller's own span.
    pub parent: SpanId,
    /// Whether the caller records its trace.
    pub sampled: bool,
    /// The caller's `tracestate`; empty if it cannot be forwarded.
    pub state: String,
}

impl Context {
    /// Reads the lines `traceparent` and `tracestate`.
    ///
    /// A later version may have more fields than version 00. Without a valid `traceparent` the result is
    /// `None`.
    pub fn parse(traceparent: &str, tracestate: &str) -> Option<Self> {
        let mut fields = traceparent.split('-');
        let (version, trace_id) = (fields.next()?, fields.next()?);
        let (span_id, flags) = (fields.next()?, fields.next()?);
        let is_version =
            is_hex(version, 2) && version != "ff" && (version != "00" || fields.next().is_none());
        if !is_version || !is_trace_id(trace_id) || !is_hex(span_id, 16) || !is_hex(flags, 2) {
            return None;
        }
        let parent = u64::from_str_radix(span_id, 16).ok();
        let parent = parent.filter(|id| *id != 0)?;
        let sampled = u8::from_str_radix(flags, 16).ok()? & 1 == 1;
        let is_fit =
            tracestate.len() <= MAX_STATE && tracestate.bytes().all(|b| (b' '..=b'~').contains(&b));
        let state = if is_fit { tracestate } else { "" };
        Some(Self {
            trace_id: trace_id.to_owned(),
            parent: SpanId(parent),
            sampled,
            state: state.to_owned(),
        })
    }
}

/// The `traceparent` for a tool; `None` for a trace id in another form.
pub fn traceparent(trace_id: &str, span: SpanId, sampled: bool) -> Option<String> {
    is_trace_id(trace_id).then(|| format!("00-{trace_id}-{span}-{:02x}", u8::from(sampled)))
}

/// The trace id for exported spans. An id in another form than W3C's is hashed.
pub fn exported(trace_id: &str) -> u128 {
    if is_trace_id(trace_id)
        && let Ok(id) = u128::from_str_radix(trace_id, 16)
    {
        return id;
    }
    let digest: [u8; 32] = Sha256::digest(trace_id).into();
    let half = digest.first_chunk().copied().unwrap_or([1; 16]);
    u128::from_be_bytes(half).max(1)
}

/// Whether a trace is recorded for which the caller has not decided that.
///
/// The same trace and share always give the same answer: W3C says which bits of the id are random.
pub fn is_sampled(trace_id: &str, share: f64) -> bool {
    const BITS: u32 = 56;
    let random = exported(trace_id) & ((1 << BITS) - 1);
    // The rounding of 56 bits is small enough for a share.
    (random as f64) / ((1_u64 << BITS) as f64) < share
}

fn is_trace_id(text: &str) -> bool {
    is_hex(text, 32) && text.bytes().any(|digit| digit != b'0')
}

fn is_hex(text: &str, length: usize) -> bool {
    text.len() == length
        && text
            .bytes()
            .all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b))
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;

    const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";

    #[test]
    fn only_a_valid_traceparent_names_the_trace() {
        let context =
            Context::parse(&format!("00-{TRACE}-00f067aa0ba902b7-01"), "a=1,b=2").expect("valid");
        assert_eq!((context.trace_id.as_str(), context.sampled), (TRACE, true));
        assert_eq!(
            (context.parent.to_string().as_str(), context.state.as_str()),
            ("00f067aa0ba902b7", "a=1,b=2")
        );
        for (flags, sampled) in [("00", false), ("01", true), ("02", false), ("ff", true)] {
            let line = format!("00-{TRACE}-00f067aa0ba902b7-{flags}");
            let context = Context::parse(&line, "").expect("valid");
            assert_eq!(context.sampled, sampled, "{flags}");
        }
        let later =
            Context::parse(&format!("01-{TRACE}-00f067aa0ba902b7-02-more"), "").expect("valid");
        assert_eq!((later.trace_id.as_str(), later.sampled), (TRACE, false));
        for line in [
            "",
            "00",
            &format!("00-{TRACE}-00f067aa0ba902b7"),
            &format!("00-{TRACE}-00f067aa0ba902b7-01-more"),
            &format!("ff-{TRACE}-00f067aa0ba902b7-01"),
            &format!("00-{TRACE}-0000000000000000-01"),
            &format!("00-{TRACE}-00f067aa0ba902b-01"),
            &format!("00-{TRACE}-00f067aa0ba902b7-1"),
            &format!("00-{TRACE}-00f067aa0ba902b7-zz"),
            "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
            "00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01",
            "00-+bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
        ] {
            assert_eq!(Context::parse(line, ""), None, "{line:?}");
        }
    }

    #[test]
    fn a_state_that_is_too_long_or_not_printable_is_left_out() {
        let state = |state: &str| {
            Context::parse(&format!("00-{TRACE}-00f067aa0ba902b7-01"), state)
                .expect("valid")
                .state
        };
        assert_eq!(state(&"a".repeat(512)), "a".repeat(512));
        assert_eq!(state(&"a".repeat(513)), "");
        assert_eq!(state("a=\u{7f}"), "");
        assert_eq!(state("a=\t"), "");
    }

    #[test]
    fn a_tool_is_told_the_attempts_span_and_whether_it_is_recorded() {
        let attempt = AttemptId(Uuid::from_u128(0x1234_5678_9abc_def0_0000_0000_0000_0001));
        let span = SpanId::of(attempt);
        assert_eq!(span.to_string(), attempt.to_string()[..16]);
        assert_eq!(
            traceparent(TRACE, span, true),
            Some(format!("00-{TRACE}-123456789abcdef0-01"))
        );
        assert_eq!(
            traceparent(TRACE, span, false),
            Some(format!("00-{TRACE}-123456789abcdef0-00"))
        );
        assert_eq!(traceparent("trace-7", span, true), None);
        assert_eq!(SpanId::new(0).to_string(), "0000000000000001");
    }

    #[test]
    fn a_share_of_all_traces_is_recorded_and_always_the_same_ones() {
        let ids = || {
            (0..1_000_u128).map(|n| format!("{:032x}", n.wrapping_mul(0x9e37_79b9_7f4a_7c15) + 1))
        };
        let share = |share| ids().filter(|id| is_sampled(id, share)).count();
        assert_eq!((share(0.0), share(1.0)), (0, 1_000));
        assert!(!is_sampled("10000000000000000000000000000000", 0.0));
        assert!((400..600).contains(&share(0.5)), "{}", share(0.5));
        let is_monotone = |id: &String| is_sampled(id, 0.3) <= is_sampled(id, 0.4);
        assert!(
            ids().all(|id| is_monotone(&id)),
            "a larger share holds the smaller one"
        );
        assert_eq!(format!("{:032x}", exported(TRACE)), TRACE);
        assert_eq!(exported("trace-7"), exported("trace-7"));
        assert_ne!(exported("trace-7"), exported("trace-8"));
    }
}
