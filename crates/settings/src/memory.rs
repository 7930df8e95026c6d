//! How much memory the machine has, and the bounds that follow from the budget.

use std::fs;
use std::path::{Path, PathBuf};

use bytesize::ByteSize;

use oncegate_budget::Budget;

/// The default budget if the size of the machine's memory cannot be read.
const UNSEEN: usize = 1 << 30;
/// Requests and answers of the largest size that must fit.
const LARGEST: usize = 8;

/// Half of the memory of the control group or the machine, whichever is smaller.
pub(super) fn default_budget() -> usize {
    seen(Path::new("/")).map_or(UNSEEN, |bytes| bytes / 2)
}

/// The memory that this process may have, if the system says.
fn seen(root: &Path) -> Option<usize> {
    let read = |path: &str| fs::read_to_string(root.join(path)).ok();
    let number = |text: String| text.trim().parse::<usize>().ok();
    let machine = read("proc/meminfo").and_then(|text| {
        let line = text
            .lines()
            .find_map(|line| line.strip_prefix("MemTotal:"))?;
        Some(number(line.trim().trim_end_matches(" kB").to_owned())? * 1024)
    });
    let old = read("sys/fs/cgroup/memory/memory.limit_in_bytes").and_then(number);
    // In a container the own group may appear as the root. Each group above bounds the memory, too.
    let group = read("proc/self/cgroup").and_then(|text| {
        Some(
            text.lines()
                .find_map(|line| line.strip_prefix("0::/"))?
                .to_owned(),
        )
    });
    let group = PathBuf::from(group.unwrap_or_default());
    let groups = group.ancestors().filter_map(|group| {
        let path = Path::new("sys/fs/cgroup").join(group).join("memory.max");
        read(path.to_str()?).and_then(number)
    });
    groups.chain(old).chain(machine).min()
}

/// Why a budget is not enough for requests and answers of these sizes.
pub(super) fn mistake(budget: &Budget, max_body: usize, max_result: usize) -> Option<String> {
    let least = LARGEST * (max_body + max_result);
    (budget.total() < least).then(|| {
        format!(
            "this must be at least {}, {LARGEST} times max_body and max_result together",
            ByteSize::b(least as u64).display().iec()
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_of_all_bounds_on_memory_counts() {
        let root = tempfile::tempdir().expect("a folder");
        let write = |path: &str, text: &str| {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().expect("a folder")).expect("made");
            fs::write(path, text).expect("written");
        };
        let seen = || seen(root.path());
        assert_eq!(seen(), None);
        write("proc/meminfo", "MemTotal:        1000 kB\nMemFree: 1 kB\n");
        assert_eq!(seen(), Some(1_024_000));
        write("sys/fs/cgroup/memory.max", "max\n");
        assert_eq!(seen(), Some(1_024_000));
        write("proc/self/cgroup", "0::/system.slice/oncegate.service\n");
        write(
            "sys/fs/cgroup/system.slice/oncegate.service/memory.max",
            "500000\n",
        );
        assert_eq!(seen(), Some(500_000));
        write("sys/fs/cgroup/system.slice/memory.max", "400000\n");
        assert_eq!(seen(), Some(400_000));
        write("sys/fs/cgroup/memory/memory.limit_in_bytes", "300000\n");
        assert_eq!(seen(), Some(300_000));
    }
}
