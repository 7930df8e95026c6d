//! Pages of the ledger of a shared store: positions out of an index, and the calls at them, in portions.

use async_trait::async_trait;
use uuid::Uuid;

use crate::Result;
use oncegate_rules::ledger::{Filter, Listed, PAGE_BYTES, Page};
use oncegate_rules::position::Position;

/// How many calls one page looks at at most. If few of them match, the page ends early.
pub const LOOKS: usize = 2_000;
/// How many calls one round looks at at least: few may match, and a round for each missing one would be too many rounds.
const LEAST: usize = 64;

/// A search for calls of a tenant.
#[async_trait]
pub trait Listing: Sync {
    /// How many calls, and how many bytes of them, one read has at most.
    const PORTION: (usize, usize);

    fn filter(&self) -> &Filter;

    /// The positions of the next calls in the filter's index, newest first. Some may not pass the filter, but none is too new.
    ///
    /// `unreadable`: how many could not be placed; each round finds the same ones again.
    async fn positions(&self, before: Option<Position>, limit: usize) -> Result<Page<Position>>;

    /// How many bytes a read of each of these calls has.
    async fn sizes(&self, positions: &[Position]) -> Result<Vec<usize>>;

    /// The calls at these positions; `None` for one that is gone, unreadable, or of another tenant. And how many are unreadable.
    async fn read(&self, positions: &[Position]) -> Result<(Vec<(Position, Option<Listed>)>, u64)>;
}

/// The calls that pass the filter, newest first.
pub async fn page<L: Listing>(
    listing: &L,
    before: Option<Position>,
    limit: usize,
) -> Result<Page<Listed>> {
    let filter = listing.filter();
    // No id of that time comes before the nil id.
    let until = filter.until.map(|created_at| Position {
        created_at,
        id: Uuid::nil(),
    });
    let mut page = Page {
        found: Vec::new(),
        next: until.into_iter().chain(before).min(),
        unreadable: 0,
    };
    let (mut looked, mut bytes, mut unplaced) = (0, 0, 0);
    let most = filter.looks.map_or(LOOKS, |most| most.min(LOOKS));
    loop {
        let wanted = (limit - page.found.len()).max(LEAST).min(most.max(1));
        let places = listing.positions(page.next, wanted).await?;
        looked += places.found.len();
        page.unreadable += places.unreadable.saturating_sub(unplaced);
        unplaced = places.unreadable.max(unplaced);
        for some in split(listing, &places.found).await? {
            let (calls, unreadable) = listing.read(some).await?;
            page.unreadable += unreadable;
            for (position, call) in calls {
                bytes += call.as_ref().map_or(0, Listed::size);
                page.found.extend(call.filter(|call| filter.lists(call)));
                if page.found.len() >= limit || bytes >= PAGE_BYTES {
                    page.next = Some(position);
                    return Ok(page);
                }
            }
        }
        page.next = places.next;
        if page.next.is_none() || looked >= most {
            return Ok(page);
        }
    }
}

/// Splits calls into portions that are small enough for one read.
async fn split<'a, L: Listing>(
    listing: &L,
    positions: &'a [Position],
) -> Result<Vec<&'a [Position]>> {
    if listing.filter().is_brief || positions.is_empty() {
        return Ok(positions.chunks(L::PORTION.0).collect());
    }
    let sizes = listing.sizes(positions).await?;
    Ok(portions(positions, &sizes, L::PORTION))
}

/// Splits items of these sizes into portions. Each has at most so many items and bytes, or is a single item.
pub fn portions<'a, T>(
    items: &'a [T],
    sizes: &[usize],
    (most, most_bytes): (usize, usize),
) -> Vec<&'a [T]> {
    let (mut portions, mut start, mut bytes) = (Vec::new(), 0, 0);
    for (at, size) in sizes.iter().enumerate() {
        let is_full = at - start == most || bytes + size > most_bytes;
        if is_full && at > start {
            portions.push(&items[start..at]);
            (start, bytes) = (at, 0);
        }
        bytes += size;
    }
    if start < items.len() {
        portions.push(&items[start..]);
    }
    portions
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn portions_are_as_large_as_allowed_and_never_empty() {
        const BYTES: usize = 3_000;
        let lengths = |sizes: &[usize]| {
            let items: Vec<usize> = (0..sizes.len()).collect();
            let portions = portions(&items, sizes, (32, BYTES));
            assert_eq!(portions.concat(), items, "each once, in their order");
            portions
                .iter()
                .map(|portion| portion.len())
                .collect::<Vec<_>>()
        };
        assert_eq!(lengths(&[]), [0_usize; 0]);
        assert_eq!(lengths(&[1; 70]), [32, 32, 6]);
        assert_eq!(lengths(&[BYTES / 3; 7]), [3, 3, 1]);
        assert_eq!(lengths(&[BYTES / 2; 3]), [2, 1], "filled exactly");
        assert_eq!(lengths(&[2 * BYTES, 1, 1, 2 * BYTES, BYTES]), [1, 2, 1, 1]);
    }
}
