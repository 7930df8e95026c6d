//! Memory as a budget: how many bytes are held, and on which account.
//!
//! Accounts: each tenant, each unauthenticated client (an address whose connections have shown no valid token), all
//! unauthenticated clients together, and each connection.
//! `rules::share` has the rule for how much each may hold. Free bytes may be *lent* to one borrower, which gives them
//! back as soon as a charge fits only without them.
//!
//! ```
//! use oncegate_budget::Budget;
//!
//! let budget = Budget::new(1 << 20);
//! let charge = budget.charge("acme", 1_000)?;
//! assert_eq!(budget.held(), 1_000);
//! assert!(budget.charge("acme", 1 << 20).is_err());
//! drop(charge);
//! assert_eq!(budget.held(), 0);
//! # Ok::<(), oncegate_budget::Exhausted>(())
//! ```

mod connection; // what is held for one connection

use std::collections::HashMap;
use std::fmt;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use bytes::Bytes;

pub use self::connection::{Connection, Elsewhere, Guest, MAX_HEAD, OPENING, Trust};
use oncegate_rules::share::{self, CONNECTION, SMALL_CLIENT, TENANT, Unauthenticated};

/// Most bytes that one connection without a valid token may hold beside its base.
const UNAUTHENTICATED: usize = 256 * 1024;

/// The budget has no room for a charge now.
#[derive(Debug, Clone, Copy, thiserror::Error)]
#[error("the memory budget is used up")]
pub struct Exhausted;

/// Marks a request whose connection comes from a load balancer or proxy of the operator (`server.proxies`).
#[derive(Debug, Clone, Copy)]
pub struct OfBalancer;

/// A total of bytes, and the accounts that hold some of them. Clones share one budget.
#[derive(Clone)]
pub struct Budget(Arc<Pool>);

/// A borrower: it uses free bytes of the budget until a charge needs them.
pub trait Lent: Send + Sync {
    /// How many bytes it holds now.
    fn bytes(&self) -> usize;

    /// Frees all its bytes.
    fn give_back(&self);
}

struct Pool {
    total: usize,
    lent: OnceLock<Arc<dyn Lent>>,
    held: Mutex<Held>,
    refused: AtomicU64,
}

#[derive(Default)]
struct Held {
    all: usize,
    unauthenticated: usize,
    by_party: HashMap<Party, usize>,
}

/// A client without a valid token, by its address; `None`: a balancer's connection.
pub type Client = Option<IpAddr>;

/// The account of a charge.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Party {
    Unauthenticated(Client),
    Tenant(Arc<str>),
}

impl Party {
    fn is_unauthenticated(&self) -> bool {
        matches!(self, Self::Unauthenticated(_))
    }
}

impl Held {
    fn of(&self, party: &Party) -> usize {
        self.by_party.get(party).copied().unwrap_or_default()
    }

    fn add(&mut self, party: &Party, bytes: usize) {
        if bytes == 0 {
            return;
        }
        self.all += bytes;
        if party.is_unauthenticated() {
            self.unauthenticated += bytes;
        }
        match self.by_party.get_mut(party) {
            Some(held) => *held += bytes,
            None => drop(self.by_party.insert(party.clone(), bytes)),
        }
    }

    fn take(&mut self, party: &Party, bytes: usize) {
        if bytes == 0 {
            return;
        }
        self.all -= bytes;
        if party.is_unauthenticated() {
            self.unauthenticated -= bytes;
        }
        match self.by_party.get_mut(party) {
            Some(held) if *held > bytes => *held -= bytes,
            held => {
                debug_assert!(
                    held.is_some_and(|held| *held == bytes),
                    "no more than is held"
                );
                self.by_party.remove(party);
            }
        }
    }
}

impl fmt::Debug for Budget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Budget")
            .field("total", &self.total())
            .field("held", &self.held())
            .finish()
    }
}

impl Budget {
    pub fn new(total: usize) -> Self {
        Self(Arc::new(Pool {
            total,
            lent: OnceLock::new(),
            held: Mutex::default(),
            refused: AtomicU64::new(0),
        }))
    }

    pub fn total(&self) -> usize {
        self.0.total
    }

    /// How many bytes are held now.
    pub fn held(&self) -> usize {
        self.0.held().all
    }

    /// Sets the one borrower. Its bytes count as held, until a charge fits only without them.
    pub fn lend(&self, to: Arc<dyn Lent>) {
        drop(self.0.lent.set(to));
    }

    /// Whether the borrower may have so many bytes, beside what is held now.
    pub fn may_lend(&self, bytes: usize) -> bool {
        self.held().saturating_add(bytes) <= self.total()
    }

    /// How often the budget had no room, since the start.
    pub fn refused(&self) -> u64 {
        self.0.refused.load(Ordering::Relaxed)
    }

    /// Bytes on a tenant's account, held until the charge is dropped.
    ///
    /// # Errors
    /// The tenant would hold more than its share.
    pub fn charge(&self, tenant: &str, bytes: usize) -> Result<Charge, Exhausted> {
        let mut charge = self.empty(Party::Tenant(tenant.into()), None);
        charge.grow(bytes)?;
        Ok(charge)
    }

    /// The client whose connections should give way for one more of this client.
    ///
    /// Itself if it holds much, otherwise the one that holds most.
    pub fn greediest(&self, newcomer: Client) -> Client {
        let held = self.0.held();
        if newcomer.is_some() && held.of(&Party::Unauthenticated(newcomer)) >= SMALL_CLIENT {
            return newcomer;
        }
        let unauthenticated = held
            .by_party
            .iter()
            .filter_map(|(party, bytes)| match party {
                Party::Unauthenticated(client) => Some((*client, *bytes)),
                Party::Tenant(_) => None,
            });
        let most = unauthenticated.max_by_key(|(_, bytes)| *bytes);
        most.map_or(newcomer, |(client, _)| client)
    }

    fn empty(&self, party: Party, connection: Option<Arc<AtomicUsize>>) -> Charge {
        Charge {
            budget: self.clone(),
            party,
            connection,
            bytes: 0,
        }
    }
}

impl Pool {
    /// How many bytes are lent.
    fn lent(&self) -> usize {
        self.lent.get().map_or(0, |lent| lent.bytes())
    }

    fn held(&self) -> MutexGuard<'_, Held> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Bytes that are held until this is dropped.
#[derive(Debug)]
pub struct Charge {
    budget: Budget,
    party: Party,
    /// Bytes in all charges of the connection; changed under the lock of the budget only.
    connection: Option<Arc<AtomicUsize>>,
    bytes: usize,
}

impl Charge {
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Holds more bytes.
    ///
    /// # Errors
    /// There is no room for all of it; nothing is changed.
    pub fn grow(&mut self, more: usize) -> Result<(), Exhausted> {
        let pool = self.budget.0.clone();
        let lent = pool.lent();
        if self.grow_beside(&pool, lent, more) {
            return Ok(());
        }
        // A charge that does not fit even without the borrower's bytes does not empty it.
        if let (Some(borrower), 1..) = (pool.lent.get(), lent)
            && self.grow_beside(&pool, 0, more)
        {
            borrower.give_back();
            return Ok(());
        }
        pool.refused.fetch_add(1, Ordering::Relaxed);
        Err(Exhausted)
    }

    /// Holds more bytes, if they fit beside `lent` bytes of the borrower.
    fn grow_beside(&mut self, pool: &Pool, lent: usize, more: usize) -> bool {
        let mut held = pool.held();
        let used = held.all.saturating_add(lent);
        let fits = |own, part| share::fits(pool.total, used, own, more, part);
        let of_connection = self
            .connection
            .as_ref()
            .map_or(0, |own| own.load(Ordering::Relaxed));
        let of_party = held.of(&self.party);
        let fits = match self.party {
            Party::Unauthenticated(client) => {
                let unauthenticated = Unauthenticated {
                    by_all: held.unauthenticated,
                    by_client: client.map(|_| of_party),
                };
                of_connection + more <= UNAUTHENTICATED
                    && share::fits_unauthenticated(pool.total, used, unauthenticated, more)
            }
            Party::Tenant(_) => {
                fits(of_party, TENANT)
                    && (self.connection.is_none() || fits(of_connection, CONNECTION))
            }
        };
        if fits {
            self.add(&mut held, more);
        }
        fits
    }

    /// Holds more bytes: only those of unauthenticated clients need room.
    ///
    /// # Errors
    /// There is no room for all of an unauthenticated client's; nothing is changed.
    fn grow_bounding_unauthenticated(&mut self, more: usize) -> Result<(), Exhausted> {
        if self.party.is_unauthenticated() {
            return self.grow(more);
        }
        self.grow_anyway(more);
        Ok(())
    }

    /// Holds more bytes, also above the bound.
    fn grow_anyway(&mut self, more: usize) {
        let budget = self.budget.clone();
        self.add(&mut budget.0.held(), more);
    }

    fn add(&mut self, held: &mut Held, more: usize) {
        held.add(&self.party, more);
        if let Some(own) = &self.connection {
            own.fetch_add(more, Ordering::Relaxed);
        }
        self.bytes += more;
    }

    /// Holds no more than so many bytes from now on.
    pub fn shrink_to(&mut self, bytes: usize) {
        let less = self.bytes.saturating_sub(bytes);
        let mut held = self.budget.0.held();
        held.take(&self.party, less);
        if let Some(own) = &self.connection {
            own.fetch_sub(less, Ordering::Relaxed);
        }
        self.bytes -= less;
    }

    /// Moves the bytes to another account, also above its bound.
    fn move_to(&mut self, party: Party) {
        let mut held = self.budget.0.held();
        held.take(&self.party, self.bytes);
        held.add(&party, self.bytes);
        self.party = party;
    }

    /// A copy of these bytes that holds the charge.
    ///
    /// The charge is shrunk to their length, and lasts as long as a part of the copy.
    pub fn keep(mut self, bytes: &[u8]) -> Bytes {
        self.shrink_to(bytes.len());
        attach(Bytes::copy_from_slice(bytes), &Arc::new(self))
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.shrink_to(0);
    }
}

/// Bytes with their charge.
struct Charged {
    bytes: Bytes,
    _charge: Arc<Charge>,
}

impl AsRef<[u8]> for Charged {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

/// The same bytes, which hold the charge while they exist.
pub fn attach(bytes: Bytes, charge: &Arc<Charge>) -> Bytes {
    Bytes::from_owner(Charged {
        bytes,
        _charge: charge.clone(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_dropped_is_free_again() {
        let budget = Budget::new(1_000);
        let mut one = budget.charge("one", 400).expect("room");
        assert!(budget.charge("one", 200).is_err(), "more than its share");
        let two = budget.charge("two", 200).expect("room for another");
        assert_eq!((budget.held(), budget.refused()), (600, 1));
        one.shrink_to(100);
        drop(two);
        assert_eq!(budget.held(), 100);
        let charged = one.keep(b"0123456789");
        let part = charged.slice(2..4);
        drop(charged);
        assert_eq!((budget.held(), &part[..]), (10, &b"23"[..]));
        drop(part);
        assert_eq!(budget.held(), 0);
        assert!(
            budget.0.held().by_party.is_empty(),
            "nothing is left of a tenant that holds nothing"
        );
    }

    /// Holds so many bytes until it gives them back.
    struct Borrower(AtomicUsize);

    impl Lent for Borrower {
        fn bytes(&self) -> usize {
            self.0.load(Ordering::Relaxed)
        }

        fn give_back(&self) {
            self.0.store(0, Ordering::Relaxed);
        }
    }

    #[test]
    fn lent_memory_is_given_back_for_what_has_room_without_it_and_for_nothing_else() {
        let budget = Budget::new(1_000);
        let borrower = Arc::new(Borrower(AtomicUsize::new(400)));
        budget.lend(borrower.clone());
        let first = budget.charge("a", 200).expect("room beside it");
        assert_eq!(borrower.bytes(), 400);
        budget
            .charge("a", 700)
            .expect_err("more than its share of an empty budget");
        assert_eq!(borrower.bytes(), 400, "it would not have helped");
        assert!(budget.may_lend(800) && !budget.may_lend(801));
        let second = budget.charge("a", 250).expect("room without it");
        assert_eq!(borrower.bytes(), 0);
        drop((first, second));
        assert_eq!(budget.held(), 0);
    }
}
