//! Whether a missing pause of a tool was ended by an operator, or lost by the store.

use crate::record::Entry;

/// Whether an operator has resumed the tool since this pause.
///
/// The history is oldest first. Its order counts, not its times: a clock may have been set back.
pub fn is_resumed(pause: &Entry, history: &[Entry]) -> bool {
    let is_resume = |entry: &&Entry| entry.event == "resumed";
    match history.iter().rposition(|entry| entry == pause) {
        Some(at) => history[at + 1..].iter().any(|entry| is_resume(&entry)),
        // A long history has dropped its oldest entries, and a store that has lost data may have lost the pause.
        None => history
            .iter()
            .any(|entry| is_resume(&entry) && entry.at >= pause.at),
    }
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;

    use super::*;

    fn entry(event: &'static str, second: i64) -> Entry {
        let at = Timestamp::from_second(second).expect("a time");
        Entry {
            at,
            event: event.into(),
            attempt: None,
            outcome: None,
            by: "ops".into(),
            detail: String::new(),
        }
    }

    #[test]
    fn a_pause_ends_with_what_comes_after_it_whatever_the_clock_says() {
        let pause = entry("paused", 10);
        for (history, resumed) in [
            (vec![], false),
            (vec![entry("paused", 10)], false),
            (vec![entry("paused", 10), entry("resumed", 20)], true),
            (vec![entry("paused", 10), entry("resumed", 5)], true),
            (vec![entry("paused", 1), entry("resumed", 2)], false),
            (vec![entry("resumed", 20)], true),
            (
                vec![
                    entry("paused", 10),
                    entry("resumed", 20),
                    entry("paused", 10),
                ],
                false,
            ),
        ] {
            assert_eq!(is_resumed(&pause, &history), resumed, "{history:?}");
        }
    }
}
