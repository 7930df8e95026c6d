//! Ports for servers that are killed and started again.

use std::fs::{File, OpenOptions};
use std::net::TcpListener;
use std::ops::Range;
use std::sync::{Mutex, PoisonError};

/// Below those that systems choose for listeners on port 0 and for outgoing connections.
const PORTS: Range<u16> = 12_000..32_000;
/// Ports that one test process takes in one go.
const BLOCK: u16 = 500;

/// The folder of the locks, which all test processes of a machine share.
const LOCKS: &str = "/tmp";

/// The ports that this process may still give out, and the locks on its blocks.
static MINE: Mutex<(Range<u16>, Vec<File>)> = Mutex::new((0..0, Vec::new()));

/// A free port that no other test gets, of no other test process either, as long as these tests run.
///
/// While its server is down, another one could take it if it was given out twice.
pub fn free_port() -> u16 {
    let mut mine = MINE.lock().unwrap_or_else(PoisonError::into_inner);
    let (left, locks) = &mut *mine;
    loop {
        let is_free = |port: &u16| TcpListener::bind(("127.0.0.1", *port)).is_ok();
        if let Some(port) = left.find(is_free) {
            return port;
        }
        let (block, lock) = take_block().expect("a block of ports that no other process has");
        *left = block;
        locks.push(lock);
    }
}

/// The first block that no process has, and its lock.
fn take_block() -> Option<(Range<u16>, File)> {
    PORTS.step_by(usize::from(BLOCK)).find_map(|first| {
        let lock = format!("{LOCKS}/oncegate-tests-ports-{first}.lock");
        let lock = OpenOptions::new()
            .create(true)
            .append(true)
            .open(lock)
            .ok()?;
        lock.try_lock().ok()?;
        Some((first..first + BLOCK, lock))
    })
}
