//! The permits of connections, in all and for each address, and which connection gives way.

use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, Ipv6Addr};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use super::bounds::{Bounds, Network, mask};
use oncegate_budget::{Budget, Connection, Trust};

/// Connections beyond the bound that are told so; one more waits for a permit.
pub(super) const SPARE: usize = 64;
/// How long without a valid token makes a connection closable.
const WITHOUT_TOKEN: Duration = Duration::from_secs(1);
/// How long to wait for a permit before closing a connection.
const NO_PERMIT: Duration = Duration::from_millis(20);
/// How many connections are closed at once if there is no permit at all.
const AT_ONCE: usize = 16;
/// How long a connection waits for a closed one's permit.
const GIVES_WAY: Duration = Duration::from_secs(1);

/// What counts as one client: an IPv4 address, or an IPv6 network of 64 bits.
fn client(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() & mask(64)).into(),
        address => address,
    }
}

/// The permits of a listener.
pub(super) struct Permits {
    ordinary: Arc<Semaphore>,
    spare: Arc<Semaphore>,
    per_address: usize,
    proxies: Vec<Network>,
    budget: Budget,
    open: Arc<Mutex<Open>>,
    next: AtomicUsize,
}

/// The connections with a permit, by their rising numbers.
#[derive(Default)]
struct Open {
    /// Connections without a valid token at the last look.
    unauthenticated: BTreeMap<usize, Listed>,
    known: BTreeMap<usize, Listed>,
    /// Connections that were told to give way, and have not ended.
    leaving: BTreeMap<usize, Listed>,
    /// How many ordinary connections each client has.
    clients: HashMap<IpAddr, usize>,
}

impl Open {
    fn add(&mut self, number: usize, listed: Listed) {
        if let Some(client) = listed.client.filter(|_| !listed.is_spare) {
            *self.clients.entry(client).or_default() += 1;
        }
        self.unauthenticated.insert(number, listed);
    }

    fn remove(&mut self, number: usize) {
        let listed = self
            .unauthenticated
            .remove(&number)
            .or_else(|| self.known.remove(&number));
        let Some(listed) = listed.or_else(|| self.leaving.remove(&number)) else {
            return;
        };
        let Some(client) = listed.client.filter(|_| !listed.is_spare) else {
            return;
        };
        if let Some(count) = self.clients.get_mut(&client) {
            *count -= 1;
            if *count == 0 {
                self.clients.remove(&client);
            }
        }
    }

    /// The least trusted connection that may give way.
    fn least_trusted(&mut self, may_give_way: impl Fn(&Listed) -> bool) -> Option<(usize, Trust)> {
        let mut found = None;
        // The oldest first. Those that have shown a token meanwhile are put where they belong, so each is passed once.
        let mut shown = Vec::new();
        for (number, listed) in &self.unauthenticated {
            match listed.connection.without_token() {
                Some(trust) if !trust.was_known => {
                    if may_give_way(listed) {
                        found = Some((*number, trust));
                        break;
                    }
                }
                _ => shown.push(*number),
            }
        }
        for number in shown {
            if let Some(listed) = self.unauthenticated.remove(&number) {
                self.known.insert(number, listed);
            }
        }
        let known = self.known.iter().filter(|(_, listed)| may_give_way(listed));
        let known = known
            .filter_map(|(number, listed)| Some((*number, listed.connection.without_token()?)));
        found.or_else(|| known.min_by_key(|(_, trust)| *trust))
    }
}

/// A connection that has a permit.
struct Listed {
    /// `None`: it is a balancer's.
    client: Option<IpAddr>,
    is_spare: bool,
    connection: Arc<Connection>,
    gives_way: CancellationToken,
}

/// A taken permit; dropped, it is free again.
pub(super) struct Permit {
    pub(super) is_spare: bool,
    _held: Option<OwnedSemaphorePermit>,
}

/// Which connection was told to give way, and when.
type AskedToLeave = Option<(usize, Instant)>;

/// The listing of a connection; dropped, it ends.
pub(super) struct Listing {
    number: usize,
    open: Arc<Mutex<Open>>,
    pub(super) connection: Arc<Connection>,
    /// Cancelled when it has to give up its permit.
    pub(super) gives_way: CancellationToken,
}

impl Drop for Listing {
    fn drop(&mut self) {
        lock(&self.open).remove(self.number);
    }
}

fn lock(open: &Mutex<Open>) -> MutexGuard<'_, Open> {
    open.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Permits {
    pub(super) fn new(bounds: &Bounds, budget: Budget) -> Self {
        let max_connections = bounds.max_connections.min(Semaphore::MAX_PERMITS);
        Self {
            ordinary: Arc::new(Semaphore::new(max_connections)),
            spare: Arc::new(Semaphore::new(SPARE)),
            per_address: bounds.per_address,
            proxies: bounds.proxies.clone(),
            budget,
            open: Arc::default(),
            next: AtomicUsize::new(0),
        }
    }

    /// A permit, an ordinary one if there is one. If there is none at all, some other connections are
    /// closed: one by one would let in only as many as there are pauses.
    pub(super) async fn some(&self) -> Permit {
        let mut asked = [None; AT_ONCE];
        loop {
            tokio::select! {
                biased;
                held = self.ordinary.clone().acquire_owned() => return Permit { is_spare: false, _held: held.ok() },
                held = self.spare.clone().acquire_owned() => return Permit { is_spare: true, _held: held.ok() },
                () = sleep(NO_PERMIT) => {
                    let [first, others @ ..] = &mut asked;
                    self.close_one(first, |_| true);
                    for asked in others {
                        self.close_one(asked, |listed| listed.connection.is_unauthenticated());
                    }
                }
            }
        }
    }

    /// An ordinary permit instead of a spare one, if there is one.
    pub(super) fn better(&self, permit: Permit) -> Permit {
        match self.ordinary.clone().try_acquire_owned() {
            Ok(held) if permit.is_spare => Permit {
                is_spare: false,
                _held: Some(held),
            },
            _ => permit,
        }
    }

    /// A permit for a last connection, also beyond the bound.
    pub(super) fn now(&self) -> Permit {
        let held = self.ordinary.clone().try_acquire_owned();
        Permit {
            is_spare: held.is_err(),
            _held: held.ok(),
        }
    }

    /// Lists a connection, if it can have a permit.
    ///
    /// For an ordinary permit, others that are trusted less give way. `None`: there is not even a spare one.
    pub(super) async fn settle(
        &self,
        mut permit: Permit,
        address: IpAddr,
    ) -> Option<(Permit, Listing)> {
        let client =
            (!self.proxies.iter().any(|proxy| proxy.holds(address))).then(|| client(address));
        let mut asked = None;
        if permit.is_spare && self.close_one(&mut asked, |listed| !listed.is_spare) {
            let held = tokio::time::timeout(GIVES_WAY, self.ordinary.clone().acquire_owned()).await;
            if let Ok(Ok(held)) = held {
                permit = Permit {
                    is_spare: false,
                    _held: Some(held),
                };
            }
        }
        let until = Instant::now() + GIVES_WAY;
        while !permit.is_spare {
            let open = client.and_then(|client| lock(&self.open).clients.get(&client).copied());
            let is_one_too_many = client.is_some() && open.unwrap_or_default() >= self.per_address;
            if !is_one_too_many && let Ok(connection) = Connection::open(&self.budget, client) {
                return Some((permit, self.list(client, false, connection)));
            }
            let greediest = self.budget.greediest(client);
            let gave_way = self.close_one(&mut asked, |listed| {
                // For want of memory a connection with a valid token is kept.
                let may_go = match is_one_too_many {
                    true => listed.client == client,
                    false => listed.connection.is_unauthenticated() && listed.client == greediest,
                };
                !listed.is_spare && may_go
            });
            if !gave_way || Instant::now() > until {
                permit = Permit {
                    is_spare: true,
                    _held: Some(self.spare.clone().try_acquire_owned().ok()?),
                };
            } else {
                sleep(NO_PERMIT).await;
            }
        }
        let connection = Connection::open_anyway(&self.budget, client);
        Some((permit, self.list(client, true, connection)))
    }

    fn list(&self, client: Option<IpAddr>, is_spare: bool, connection: Arc<Connection>) -> Listing {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let gives_way = CancellationToken::new();
        let listed = Listed {
            client,
            is_spare,
            connection: connection.clone(),
            gives_way: gives_way.clone(),
        };
        lock(&self.open).add(number, listed);
        Listing {
            number,
            open: self.open.clone(),
            connection,
            gives_way,
        }
    }

    /// Closes the connection that has gone longest without a valid token.
    ///
    /// Only one of those that may give way, and only if that is long. Whether there was one. A connection that is serving a
    /// request with a valid token is none. One that was asked before has some time to go before another one is closed.
    fn close_one(&self, asked: &mut AskedToLeave, may_give_way: impl Fn(&Listed) -> bool) -> bool {
        let mut open = lock(&self.open);
        if let Some((number, at)) = *asked
            && at.elapsed() < GIVES_WAY
            && open.leaving.contains_key(&number)
        {
            return true;
        }
        let least = open.least_trusted(may_give_way);
        let Some((number, _)) = least.filter(|(_, trust)| trust.since.elapsed() >= WITHOUT_TOKEN)
        else {
            return false;
        };
        let listed = open
            .unauthenticated
            .remove(&number)
            .or_else(|| open.known.remove(&number));
        if let Some(listed) = listed {
            listed.gives_way.cancel();
            open.leaving.insert(number, listed);
        }
        *asked = Some((number, Instant::now()));
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_of_ipv6_is_a_network_of_64_bits() {
        let client = |text: &str| client(text.parse().expect("an address"));
        assert_eq!(client("2001:db8::1"), client("2001:db8:0:0:ffff::1"));
        assert_ne!(client("2001:db8::1"), client("2001:db8:0:1::1"));
        assert_eq!(client("::ffff:10.0.0.1"), client("10.0.0.1"));
        assert_ne!(client("10.0.0.2"), client("10.0.0.1"));
    }
}
