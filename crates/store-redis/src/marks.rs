//! The marks of a partition, as `marks.lua` writes them.

/// The epoch of a partition, and each gateway's writes there.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Marks {
    /// The epoch; empty if there is none.
    pub(super) epoch: String,
    pub(super) writes: Vec<(String, u64)>,
}

impl Marks {
    /// Reads marks. An unreadable line counts as absent, which the loss check notices as lost writes.
    pub(super) fn read(text: &[u8]) -> Self {
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
    pub(super) fn of(&self, gateway: &str) -> u64 {
        let found = self.writes.iter().find(|(name, _)| name == gateway);
        found.map_or(0, |(_, writes)| *writes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unreadable_lines_of_marks_count_as_absent() {
        assert_eq!(Marks::read(b""), Marks::default());
        let marks = Marks::read(b"e\ng=000000000000012\n=\nh=x\ni=7");
        assert_eq!(marks.epoch, "e");
        assert_eq!((marks.of("g"), marks.of("h"), marks.of("i")), (12, 0, 7));
        assert_eq!(Marks::read(b"\ng=000000000000001").of("g"), 1);
    }
}
