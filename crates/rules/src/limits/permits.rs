//! Fair shares of permits for tenants, and for the tokens of a tenant.
//!
//! One holder alone may use most of the permits. The last ones are for small holders, so that a newcomer finds a
//! permit, however long the others keep theirs.

/// An eighth of the permits is left for small holders.
///
/// Once for tenants, and once more for the tokens of a tenant.
const LEFT: usize = 8;
/// A holder of less than a 64th of the permits, or of none, is small.
const SMALL: usize = 64;

/// How many permits are taken.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Held {
    pub by_all: usize,
    pub by_tenant: usize,
    pub by_token: usize,
}

/// Whether a token may take one more permit.
pub fn has_permit(permits: usize, held: Held) -> bool {
    let for_tenant = open_to(permits, permits.saturating_sub(held.by_all), held.by_tenant);
    open_to(permits, for_tenant, held.by_token) > 0
}

/// How long the line may be that a call of a token joins. `held`: calls of the token in the line.
pub fn line_length(longest: u32, held: usize) -> u32 {
    let permits = usize::try_from(longest).unwrap_or(usize::MAX);
    if held < small(permits) {
        longest
    } else {
        longest - longest / LEFT as u32
    }
}

/// How many free permits are open to a holder of so many.
fn open_to(permits: usize, free: usize, held: usize) -> usize {
    let of_small_share = small(permits).saturating_sub(held).min(free);
    free.saturating_sub(permits / LEFT).max(of_small_share)
}

fn small(permits: usize) -> usize {
    (permits / SMALL).max(1)
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    /// A pool of permits, and who has how many of them.
    struct Pool {
        permits: usize,
        held: HashMap<(u8, u8), usize>,
    }

    impl Pool {
        fn held(&self, tenant: u8, token: u8) -> Held {
            let of = self.held.iter().filter(|((of, _), _)| *of == tenant);
            Held {
                by_all: self.held.values().sum(),
                by_tenant: of.map(|(_, held)| held).sum(),
                by_token: self.held.get(&(tenant, token)).copied().unwrap_or(0),
            }
        }

        fn take(&mut self, tenant: u8, token: u8) -> bool {
            let may = has_permit(self.permits, self.held(tenant, token));
            if may {
                *self.held.entry((tenant, token)).or_default() += 1;
            }
            may
        }

        fn give_back(&mut self, tenant: u8, token: u8) {
            self.held
                .entry((tenant, token))
                .and_modify(|held| *held = held.saturating_sub(1));
        }

        /// Takes as many as it may.
        fn fill(&mut self, tenant: u8, token: u8) -> usize {
            std::iter::repeat_with(|| self.take(tenant, token))
                .take_while(|taken| *taken)
                .count()
        }
    }

    fn pool(permits: usize) -> Pool {
        Pool {
            permits,
            held: HashMap::new(),
        }
    }

    #[test]
    fn one_alone_may_use_most_of_a_room_and_others_find_places() {
        let mut thousand = pool(1_000);
        assert_eq!(thousand.fill(0, 0), 750);
        assert_eq!(thousand.fill(0, 1), 15, "another token of the tenant");
        assert_eq!(thousand.fill(1, 0), 15, "another tenant");
        let mut full = pool(1_000);
        let of_tenant: usize = (0..20).map(|token| full.fill(0, token)).sum();
        assert_eq!(of_tenant, 875, "all tokens of one tenant");
        assert_eq!(
            (1..9)
                .map(|tenant| full.fill(tenant, 0))
                .collect::<Vec<_>>(),
            [15; 8]
        );
        // Rooms that are too small to be shared: first come, first served.
        for permits in 0..8 {
            assert_eq!(pool(permits).fill(0, 0), permits);
        }
        let mut sixteen = pool(16);
        assert_eq!(
            [sixteen.fill(0, 0), sixteen.fill(0, 1), sixteen.fill(1, 0)],
            [12, 1, 1]
        );
    }

    #[test]
    fn the_last_part_of_a_line_is_for_tokens_that_do_not_stand_in_it() {
        assert_eq!(
            [0, 1, 2, 99].map(|held| line_length(100, held)),
            [100, 88, 88, 88]
        );
    }

    proptest! {
        /// This holds whatever others take and give back.
        #[test]
        fn a_tenant_that_holds_nothing_finds_a_place_and_none_is_given_twice(
            permits in 8_usize..300,
            acts in prop::collection::vec((0_u8..7, 0_u8..3, prop::bool::weighted(0.8), 1_usize..60), 0..60),
        ) {
            let mut pool = pool(permits);
            // As many as have their small shares in the last part, and one more.
            let tenants = u8::try_from((permits / LEFT / small(permits)).min(8) - 1).expect("few");
            for (tenant, token, takes, times) in acts {
                if tenant >= tenants {
                    continue;
                }
                for _ in 0..times {
                    if takes { pool.take(tenant, token); } else { pool.give_back(tenant, token); }
                }
                let newcomer = pool.held(100, 0);
                prop_assert!(newcomer.by_all <= permits);
                prop_assert!(has_permit(permits, newcomer), "{newcomer:?} of {permits}");
            }
        }

        /// This holds whatever the tenant's other tokens do, if no other tenant is there.
        #[test]
        fn a_token_that_holds_nothing_finds_a_place_of_its_tenant(
            permits in 64_usize..300,
            acts in prop::collection::vec((0_u8..4, prop::bool::weighted(0.8), 1_usize..60), 0..60),
        ) {
            let mut pool = pool(permits);
            for (token, takes, times) in acts {
                for _ in 0..times {
                    if takes { pool.take(0, token); } else { pool.give_back(0, token); }
                }
                prop_assert!(has_permit(permits, pool.held(0, 100)));
            }
        }
    }
}
