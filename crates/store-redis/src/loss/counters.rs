//! The loss counters of a partition, as `marks.lua` writes them.

/// The epoch of a partition, and each gateway's writes there.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct LossCounters {
    /// The epoch; empty if there is none.
    pub(crate) epoch: String,
    pub(crate) writes: Vec<(String, u64)>,
}

impl LossCounters {
    /// Reads loss counters. An unreadable line counts as absent, which the loss check notices as lost writes.
    pub(crate) fn read(text: &[u8]) -> Self {
        let text = String::from_utf8_lossy(text);
        let mut lines = text.split('\n');
        let epoch = lines.next().unwrap_or_default().to_owned();
        let count = |line: &str| {
            let (gateway, writes) = line.rsplit_once('=')?;
            Some((gateway.to_owned(), writes.parse().ok()?))
        };
        Self {
            epoch,
            writes: lines.filter_map(count).collect(),
        }
    }

    /// How many writes this gateway has made.
    pub(crate) fn of(&self, gateway: &str) -> u64 {
        let found = self.writes.iter().find(|(name, _)| name == gateway);
        found.map_or(0, |(_, writes)| *writes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unreadable_lines_of_marks_count_as_absent() {
        assert_eq!(LossCounters::read(b""), LossCounters::default());
        let counters = LossCounters::read(b"e\ng=000000000000012\n=\nh=x\ni=7");
        assert_eq!(counters.epoch, "e");
        assert_eq!(
            (counters.of("g"), counters.of("h"), counters.of("i")),
            (12, 0, 7)
        );
        assert_eq!(LossCounters::read(b"\ng=000000000000001").of("g"), 1);
    }
}
