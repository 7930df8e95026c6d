//! Shares of a budget: how much one party may hold. Only values.

/// A fraction of what is free.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Part {
    pub numerator: usize,
    pub denominator: usize,
}

/// The part of one tenant.
pub const TENANT: Part = Part {
    numerator: 1,
    denominator: 1,
};
/// The part of all connections together that showed no valid token.
pub const STRANGERS: Part = Part {
    numerator: 1,
    denominator: 2,
};
/// The part of one connection that showed a valid token.
pub const CONNECTION: Part = Part {
    numerator: 1,
    denominator: 2,
};

impl Part {
    /// The most that a party holds while no other holds anything.
    pub fn alone(self, total: usize) -> usize {
        let (numerator, denominator) = (self.numerator as u128, self.denominator as u128);
        let most = total as u128 * numerator / (numerator + denominator);
        usize::try_from(most).unwrap_or(usize::MAX)
    }
}

/// Whether a party that holds `own` of the `used` bytes may take `more`.
///
/// Afterwards it holds no more than its part of what is still free. So there is always something
/// left for the next party, however many there are: one tenant alone holds at most half, two hold
/// at most a third each.
pub fn fits(total: usize, used: usize, own: usize, more: usize, part: Part) -> bool {
    let Some(free) = used
        .checked_add(more)
        .and_then(|used| total.checked_sub(used))
    else {
        return false;
    };
    let own = own as u128 + more as u128;
    own * part.denominator as u128 <= free as u128 * part.numerator as u128
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
    fn a_part_is_its_fraction_of_what_is_free_afterwards() {
        let part = Part {
            numerator: 2,
            denominator: 3,
        };
        assert_eq!(part.alone(1_000), 400);
        assert!(fits(1_000, 0, 0, 400, part) && !fits(1_000, 0, 0, 401, part));
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
