//! Shares of a budget: how much one party may hold.

/// The most that a party holds: so many-th of what is free after that.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Part(usize);

/// The part of one tenant: as much as is left free.
pub const TENANT: Part = Part(1);
/// The part of all connections together that showed no valid token: half of what is left free.
pub const UNAUTHENTICATED: Part = Part(2);
/// The part of one connection that showed a valid token: half of what is left free.
pub const CONNECTION: Part = Part(2);

/// The part of one client among them: as much as is left of what all of them may hold.
const CLIENT: Part = Part(1);
/// A client without a valid token that holds less than this is not bounded by what other clients hold.
///
/// It is enough for some connections, each with one small head.
pub const SMALL_CLIENT: usize = 256 * 1024;

/// How much connections without a valid token hold.
#[derive(Debug, Clone, Copy)]
pub struct Unauthenticated {
    pub by_all: usize,
    /// By those of the same client; `None`: it is a balancer, behind which are many clients.
    pub by_client: Option<usize>,
}

/// Whether a client without a valid token may take `more`.
///
/// All of them together have their part of the whole. Of that, one client leaves as much as it holds for the others,
/// so a client always finds some of it, however much other clients hold.
pub fn fits_unauthenticated(total: usize, used: usize, held: Unauthenticated, more: usize) -> bool {
    let is_fair = held.by_client.is_none_or(|own| {
        own.saturating_add(more) <= SMALL_CLIENT
            || fits(UNAUTHENTICATED.alone(total), held.by_all, own, more, CLIENT)
    });
    is_fair && fits(total, used, held.by_all, more, UNAUTHENTICATED)
}

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
        assert_eq!(greedy(900, 0, UNAUTHENTICATED), 300);
        for part in [TENANT, UNAUTHENTICATED, CONNECTION] {
            assert_eq!(greedy(900, 0, part), part.alone(900));
        }
    }

    #[test]
    fn many_greedy_strangers_leave_room_for_a_small_one() {
        const TOTAL: usize = 64 << 20;
        let step = 24 * 1024;
        for clients in [1, 2, 8, 20] {
            let mut held = vec![0; clients];
            let fits = |held: &[usize], own| {
                let by_all = held.iter().sum();
                let unauthenticated = Unauthenticated {
                    by_all,
                    by_client: Some(own),
                };
                fits_unauthenticated(TOTAL, by_all, unauthenticated, step)
            };
            // In turns, until none of them may take more.
            while let Some(greedy) = (0..clients)
                .filter(|n| fits(&held, held[*n]))
                .min_by_key(|n| held[*n])
            {
                held[greedy] += step;
            }
            assert!(held[0] > SMALL_CLIENT, "{clients}");
            // A newcomer has some connections all the same.
            held.push(0);
            for _ in 0..SMALL_CLIENT / step {
                assert!(fits(&held, held[clients]), "{clients}: {held:?}");
                held[clients] += step;
            }
        }
        let unauthenticated = Unauthenticated {
            by_all: 0,
            by_client: None,
        };
        assert!(
            fits_unauthenticated(TOTAL, 0, unauthenticated, TOTAL / 3),
            "a balancer has no bound of its own"
        );
        assert!(!fits_unauthenticated(TOTAL, 0, unauthenticated, TOTAL / 2));
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
        assert!(fits(100, 0, 0, 0, UNAUTHENTICATED));
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
