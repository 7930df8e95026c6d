//! Log lines on their way to standard error: a bounded queue, and one thread that writes.
//!
//! A pipe that is not read must not stop a call. When the queue is full, lines are dropped and counted.

use std::borrow::Cow;
use std::collections::VecDeque;
use std::io::{self, Write};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use prometheus::IntCounter;

/// The bytes that may wait to be written.
const MAX_BYTES: usize = 1024 * 1024;
/// How long the last lines may take when the process ends.
const LAST_LINES: Duration = Duration::from_secs(1);

/// The queue of log lines. Clones share it.
#[derive(Clone)]
pub struct Lines(Arc<Queue>);

struct Queue {
    state: Mutex<State>,
    /// A line was queued, or the last one was written.
    changed: Condvar,
}

#[derive(Default)]
struct State {
    lines: VecDeque<Vec<u8>>,
    bytes: usize,
    is_writing: bool,
    dropped: u64,
    /// How many dropped lines the log has mentioned.
    mentioned: u64,
    counter: Option<IntCounter>,
}

impl Lines {
    /// Starts the thread that writes to `to`.
    ///
    /// # Errors
    /// The operating system gives no thread.
    pub(super) fn start(to: impl Write + Send + 'static) -> io::Result<Self> {
        let lines = Self(Arc::new(Queue {
            state: Mutex::default(),
            changed: Condvar::new(),
        }));
        let queue = lines.0.clone();
        std::thread::Builder::new()
            .name("log".into())
            .spawn(move || queue.write_all(to))?;
        Ok(lines)
    }

    /// Counts dropped lines here too, including those that were dropped before.
    pub fn count_in(&self, counter: IntCounter) {
        let mut state = self.0.state();
        counter.inc_by(state.dropped);
        state.counter = Some(counter);
    }

    /// Waits until everything is written, at most for a second.
    pub fn flush(&self) {
        let state = self.0.state();
        let is_busy = |state: &mut State| state.is_writing || !state.lines.is_empty();
        drop(
            self.0
                .changed
                .wait_timeout_while(state, LAST_LINES, is_busy),
        );
    }

    fn push(&self, line: &[u8]) {
        let line = escaped(line);
        let mut state = self.0.state();
        if state.bytes + line.len() > MAX_BYTES {
            state.dropped += 1;
            if let Some(counter) = &state.counter {
                counter.inc();
            }
            return;
        }
        state.bytes += line.len();
        state.lines.push_back(line.into_owned());
        drop(state);
        self.0.changed.notify_all();
    }
}

impl Queue {
    fn write_all(&self, mut to: impl Write) {
        loop {
            let line = self.next();
            // A log on a full disk must not stop a call.
            drop(to.write_all(&line));
            let mut state = self.state();
            state.is_writing = false;
            state.bytes -= line.len();
            let is_idle = state.lines.is_empty();
            let dropped = if is_idle {
                state.dropped - state.mentioned
            } else {
                0
            };
            state.mentioned += dropped;
            drop(state);
            if dropped > 0 {
                tracing::warn!(
                    dropped,
                    "log lines were dropped: they were not taken fast enough"
                );
            }
            self.changed.notify_all();
        }
    }

    fn next(&self) -> Vec<u8> {
        let is_idle = |state: &mut State| state.lines.is_empty();
        let waited = self.changed.wait_while(self.state(), is_idle);
        let mut state = waited.unwrap_or_else(PoisonError::into_inner);
        state.is_writing = true;
        state.lines.pop_front().unwrap_or_default()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Escapes what changes the order or the lines of a text on a screen, so that it cannot show another text than the line
/// has.
///
/// Callers and operators give texts that are logged, such as reasons.
fn escaped(line: &[u8]) -> Cow<'_, [u8]> {
    let Ok(text) = std::str::from_utf8(line) else {
        return line.into();
    };
    if !text.contains(is_deceptive) {
        return line.into();
    }
    let mut plain = String::with_capacity(text.len() + 16);
    for char in text.chars() {
        if is_deceptive(char) {
            // In a line of JSON it stands for the same character.
            plain.push_str(&format!("\\u{:04x}", u32::from(char)));
        } else {
            plain.push(char);
        }
    }
    plain.into_bytes().into()
}

/// Marks of direction, and separators of lines and paragraphs.
fn is_deceptive(char: char) -> bool {
    matches!(
        char,
        '\u{061c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}'
    )
}

/// Each write is one line.
impl Write for Lines {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.push(line);
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    /// Hands each line over only when it is asked for.
    struct Reader(mpsc::SyncSender<Vec<u8>>);

    impl Write for Reader {
        fn write(&mut self, line: &[u8]) -> io::Result<usize> {
            self.0.send(line.to_vec()).map_err(io::Error::other)?;
            Ok(line.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn marks_that_change_the_order_of_a_text_are_escaped_and_the_text_stays_the_same() {
        let characters = "\u{61c}\u{200e}\u{200f}\u{2028}\u{2029}\u{202a}\u{202b}\u{202c}\u{202d}\u{202e}\u{2066}\u{2067}\u{2068}\u{2069}";
        let line = serde_json::json!({ "reason": format!("a{characters}b ü 日") }).to_string();
        let escaped = escaped(line.as_bytes()).into_owned();
        let text = String::from_utf8(escaped).expect("text");
        assert!(
            !text.chars().any(|char| characters.contains(char)),
            "{text}"
        );
        assert!(
            text.contains("\\u202e") && text.contains("b ü 日"),
            "{text}"
        );
        let read = |text: &str| serde_json::from_str::<serde_json::Value>(text).expect("JSON");
        assert_eq!(read(&text), read(&line));
        for plain in [&b"plain"[..], b"\xff\xe2\x80\xae", b""] {
            assert_eq!(&*super::escaped(plain), plain);
        }
    }

    #[test]
    fn what_is_not_taken_is_dropped_and_counted_and_the_rest_keeps_its_order() {
        let (give, take) = mpsc::sync_channel(0);
        let lines = Lines::start(Reader(give)).expect("a thread");
        let big = |n: u8| vec![n; MAX_BYTES / 4];
        for n in 0..10 {
            lines.push(&big(n));
        }
        let counter = IntCounter::new("a", "b").expect("a name");
        lines.count_in(counter.clone());
        assert_eq!(counter.get(), 6);
        lines.push(&big(10));
        assert_eq!(counter.get(), 7);
        for n in 0..4 {
            assert!(take.recv().expect("a line") == big(n), "{n}");
        }
        lines.flush();
        lines.push(b"later");
        assert_eq!(take.recv().expect("a line"), b"later");
    }
}
