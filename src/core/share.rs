//! Shares of a budget: how much one party may hold.

/// The most that a party holds: so many-th of what is free after that.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Part(usize);

/// The part of one tenant: as much as is left free.
pub const TENANT: Part = Part(1);
/// The part of all connections together that showed no valid token: half of what is left free.
pub const STRANGERS: Part = Part(2);
/// The part of one connection that showed a valid token: half of what is left free.
pub const CONNECTION: Part = Part(2);

impl Part {
    /// The most that a party holds while no other holds anything.
    pub fn alone(self, total: usize) -> usize {
        total / (self.0 + 1)
    }
}

/// Whether a party that holds `own` of the `used` bytes may take `more`.
///
/// Afterwards it holds no more than its part of what is still free. So something is always left for the
/// next party, however many there are: one tenant alone holds at most half, two hold at most a third
/// each.
pub fn fits(total: usize, used: usize, own: usize, more: usize, part: Part) -> bool {
    let used = used.checked_add(more);
    let free = used.and_then(|used| total.checked_sub(used));
    free.is_some_and(|free| (own as u128 + more as u128) * part.0 as u128 <= free as u128)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The most that a party can take in steps of one.
    fn greedy(total: usize, used: usize, part: Part) -> usize {
        (0..)
            .find(|own| !fits(total, used + own, *own, 1, part))
            .expect("an end")
    }

    #[test]
    fn a_party_alone_gets_its_part_and_the_next_one_still_gets_some() {
        assert_eq!(greedy(900, 0, TENANT), 450);
        assert_eq!(greedy(900, 450, TENANT), 225);
        assert_eq!(greedy(900, 0, STRANGERS), 300);
        for part in [TENANT, STRANGERS, CONNECTION] {
            assert_eq!(greedy(900, 0, part), part.alone(900));
        }
    }

    #[test]
    fn a_part_is_a_fraction_of_what_is_free_afterwards() {
        let part = Part(4);
        assert_eq!(part.alone(1_000), 200);
        assert!(fits(1_000, 0, 0, 200, part) && !fits(1_000, 0, 0, 201, part));
    }

    #[test]
    fn nothing_fits_beyond_the_total_or_the_largest_number() {
        assert!(!fits(100, 100, 0, 1, TENANT));
        assert!(!fits(100, 200, 0, 1, TENANT));
        assert!(!fits(
            usize::MAX,
            usize::MAX,
            usize::MAX,
            usize::MAX,
            TENANT
        ));
        assert!(fits(100, 0, 0, 0, STRANGERS));
    }

    proptest! {
        #[test]
        fn something_is_always_left(total in 1_000_usize..1 << 40, parties in 1_usize..30) {
            let mut used = 0;
            for _ in 0..parties {
                let most = (total - used) / 2;
                prop_assert!(fits(total, used, 0, most, TENANT));
                prop_assert!(!fits(total, used, 0, most + 1, TENANT));
                used += most;
            }
            prop_assert!(used < total);
        }
    }
}
