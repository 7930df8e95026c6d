//! Numbers that a seed decides.

use oncegate_hooks::seed::mixed;

/// Numbers for one purpose. They depend on the seed and the purpose, and on nothing else that happens.
#[derive(Debug, Clone)]
pub(super) struct Dice {
    seed: u64,
    thrown: u64,
}

impl Dice {
    /// Those of the n-th use of a purpose.
    pub(super) fn of(seed: u64, purpose: &str, n: u64) -> Self {
        let named = purpose
            .bytes()
            .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
                (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
            });
        Self {
            seed: mixed(&[seed, named, n]),
            thrown: 0,
        }
    }

    /// A number below this one.
    pub(super) fn below(&mut self, limit: u64) -> u64 {
        self.thrown += 1;
        mixed(&[self.seed, self.thrown]) % limit.max(1)
    }

    pub(super) fn between(&mut self, least: u64, most: u64) -> u64 {
        least + self.below(most.saturating_sub(least) + 1)
    }

    /// True in so many of a hundred cases.
    pub(super) fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    pub(super) fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len() as u64) as usize]
    }
}
