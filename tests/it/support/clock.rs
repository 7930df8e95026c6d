//! A wall clock that a test can set under running processes, by a small library in C that is loaded
//! before the system's.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::process::Command;

use tempfile::TempDir;

/// Shared by the processes that are started in its [`environment`](Self::environment). It is right
/// until it is set.
pub struct Clock {
    seconds_ahead: File,
    /// Where these seconds stand, and the library.
    paths: [String; 2],
    _folder: TempDir,
}

impl Clock {
    pub fn new() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let paths = ["seconds_ahead", "clock.so"].map(|name| {
            folder
                .path()
                .join(name)
                .to_str()
                .expect("a path in UTF-8")
                .to_owned()
        });
        let source = folder.path().join("clock.c");
        fs::write(&source, include_str!("clock.c")).expect("a file");
        let mut compiler = Command::new("cc");
        compiler.args([
            "-std=gnu99",
            "-O1",
            "-Wall",
            "-Wextra",
            "-Werror",
            "-shared",
            "-fPIC",
            "-o",
        ]);
        let compiled = compiler.arg(&paths[1]).arg(&source).output();
        let compiled = compiled.expect("a C compiler named cc");
        assert!(
            compiled.status.success(),
            "{}",
            String::from_utf8_lossy(&compiled.stderr)
        );
        let clock = Self {
            seconds_ahead: File::create(&paths[0]).expect("a file"),
            paths,
            _folder: folder,
        };
        clock.set_ahead(0);
        clock
    }

    /// What a process must find in its environment to go by this clock.
    pub fn environment(&self) -> [(&str, &str); 2] {
        let [seconds_ahead, library] = &self.paths;
        [("LD_PRELOAD", library), ("TEST_CLOCK", seconds_ahead)]
    }

    /// Sets it, at once and for all who go by it. Negative: back.
    pub fn set_ahead(&self, seconds: i64) {
        self.seconds_ahead
            .write_all_at(&seconds.to_ne_bytes(), 0)
            .expect("written");
    }
}
