//! Searches what a gateway has written for texts that must not be there.

use std::fs;
use std::path::Path;

use memchr::memmem;

/// Everything that a gateway has written into its folder, but for its configuration.
pub fn all_bytes(folder: &Path) -> Vec<u8> {
    let mut bytes = Vec::new();
    for entry in fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("a file").path();
        if path.is_dir() {
            bytes.extend(all_bytes(&path));
        } else if path.extension().is_none_or(|ending| ending != "toml") {
            bytes.extend(fs::read(path).expect("a file"));
        }
    }
    bytes
}

pub fn holds(bytes: &[u8], some: impl AsRef<[u8]>) -> bool {
    memmem::find(bytes, some.as_ref()).is_some()
}

/// How often it is there.
pub fn count(bytes: &[u8], some: &str) -> usize {
    memmem::find_iter(bytes, some).count()
}
