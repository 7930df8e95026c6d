//! Inputs that change at random, for tests of what reads bytes of others.
//!
//! The samples of `tests/corpus/{name}` are tried as they are, and then with random changes: a few hundred of them, or as
//! many as `FUZZ_SECONDS` allow. `make test` changes them in the same way each time, `make fuzz` in new ways.
//!
//! ```
//! use oncegate_fuzz::attack;
//!
//! attack(&[b"[1, 2]".to_vec()], |bytes| {
//!     // Whatever comes, there is no panic.
//!     drop(std::str::from_utf8(bytes).map(str::len));
//!     Ok(())
//! });
//! ```

#![expect(
    clippy::expect_used,
    clippy::disallowed_methods,
    reason = "only tests use it; real time bounds a run"
)]

use std::path::Path;
use std::time::{Duration, Instant};
use std::{env, fs};

use proptest::prelude::*;
use proptest::sample::{Index, select};
use proptest::test_runner::{Config, RngAlgorithm, TestCaseError, TestRng, TestRunner};

/// Cases in a run without `FUZZ_SECONDS`, and in each round of a longer one.
const CASES: u32 = 400;
/// Texts that parsers treat in a way of their own.
const WORDS: [&[u8]; 40] = [
    b"{",
    b"}",
    b"[",
    b"]",
    b"\"",
    b"'",
    b"\\",
    b":",
    b",",
    b"=",
    b"&",
    b"%",
    b"+",
    b"-",
    b";",
    b"#",
    b" ",
    b"\t",
    b"\n",
    b"\r",
    b"\r\n\r\n",
    b"\0",
    b"\x7f",
    b"\xff",
    b"\xef\xbb\xbf",
    b"\\u0000",
    b"\\ud800",
    b"%00",
    b"%2F",
    b"%ff",
    b"null",
    b"true",
    b"-0",
    b"1e999",
    b"9007199254740993",
    b"\"\":",
    b"[[[[[[[[",
    b"{\"a\":",
    b"data:",
    b"=?base64?",
];

/// A change of an input. Places are shares of its length.
#[derive(Debug, Clone)]
enum Change {
    Remove(Index, usize),
    Insert(Index, Vec<u8>),
    Overwrite(Index, u8),
    /// Bytes of the input once more, elsewhere.
    Copy(Index, usize, Index),
    /// What follows comes from another sample.
    GoOnAs(Index, Vec<u8>, Index),
}

impl Change {
    fn made_to(&self, input: &mut Vec<u8>) {
        let place = |index: &Index, len: usize| index.index(len + 1);
        match self {
            Self::Remove(at, len) => {
                let at = place(at, input.len());
                input.drain(at..(at + len).min(input.len()));
            }
            Self::Insert(at, bytes) => {
                let at = place(at, input.len());
                input.splice(at..at, bytes.iter().copied());
            }
            Self::Overwrite(at, byte) => {
                let at = place(at, input.len());
                if let Some(old) = input.get_mut(at) {
                    *old = *byte;
                }
            }
            Self::Copy(from, len, to) => {
                let (from, to) = (place(from, input.len()), place(to, input.len()));
                let copied = input[from..(from + len).min(input.len())].to_vec();
                input.splice(to..to, copied);
            }
            Self::GoOnAs(at, other, from) => {
                input.truncate(place(at, input.len()));
                input.extend_from_slice(&other[place(from, other.len())..]);
            }
        }
    }
}

fn any_change(samples: &[Vec<u8>]) -> impl Strategy<Value = Change> + use<> {
    let at = any::<Index>;
    let words = WORDS.map(<[u8]>::to_vec).to_vec();
    prop_oneof![
        (at(), 1..40_usize).prop_map(|(at, len)| Change::Remove(at, len)),
        (at(), select(words)).prop_map(|(at, word)| Change::Insert(at, word)),
        (at(), prop::collection::vec(any::<u8>(), 1..8))
            .prop_map(|(at, bytes)| Change::Insert(at, bytes)),
        (at(), any::<u8>()).prop_map(|(at, byte)| Change::Overwrite(at, byte)),
        (at(), 1..80_usize, at()).prop_map(|(from, len, to)| Change::Copy(from, len, to)),
        (at(), select(samples.to_vec()), at())
            .prop_map(|(at, other, from)| Change::GoOnAs(at, other, from)),
    ]
}

/// The samples below `tests/corpus/{name}`.
pub fn corpus(name: &str) -> Vec<Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../tests/corpus")
        .join(name);
    let files = fs::read_dir(folder).expect("a folder of samples");
    let mut paths: Vec<_> = files.map(|file| file.expect("an entry").path()).collect();
    paths.sort_unstable();
    let read = paths.iter().map(|path| fs::read(path).expect("a sample"));
    read.collect()
}

/// Checks a claim about each sample, and about what random changes make of them.
///
/// # Panics
/// A claim does not hold, or panics. The message has the smallest input that was found; it belongs into the corpus.
pub fn attack(samples: &[Vec<u8>], claim: impl Fn(&[u8]) -> Result<(), TestCaseError>) {
    for sample in samples {
        let held = claim(sample);
        held.unwrap_or_else(|why| panic!("{why}; the sample {}", sample.escape_ascii()));
    }
    let seconds = env::var_os("FUZZ_SECONDS").map(|text| {
        let number = text.to_str().and_then(|text| text.parse().ok());
        number.expect("FUZZ_SECONDS is a number")
    });
    let until = seconds.map(|seconds| Instant::now() + Duration::from_secs(seconds));
    let config = Config {
        cases: CASES,
        failure_persistence: None,
        ..Config::default()
    };
    let runner = || match until {
        Some(_) => TestRunner::new(config.clone()),
        None => {
            let same = TestRng::deterministic_rng(RngAlgorithm::ChaCha);
            TestRunner::new_with_rng(config.clone(), same)
        }
    };
    let changes = prop::collection::vec(any_change(samples), 1..6);
    let inputs = (select(samples.to_vec()), changes).prop_map(|(mut input, changes)| {
        for change in &changes {
            change.made_to(&mut input);
        }
        Input(input)
    });
    let mut rounds = 0_u64;
    loop {
        let run = runner().run(&inputs, |Input(bytes)| claim(&bytes));
        run.unwrap_or_else(|why| panic!("{why}"));
        rounds += 1;
        if until.is_none_or(|until| until <= Instant::now()) {
            break;
        }
    }
    say(rounds * u64::from(CASES));
}

/// Bytes that are printed as text.
struct Input(Vec<u8>);

impl std::fmt::Debug for Input {
    fn fmt(&self, to: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(to, "b\"{}\"", self.0.escape_ascii())
    }
}

#[expect(clippy::print_stderr, reason = "the figure is what is asked for")]
fn say(inputs: u64) {
    eprintln!("{inputs} inputs");
}
