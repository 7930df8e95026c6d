//! The memory of one connection, its owner, and when it last showed a valid token.

use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::{Instant, timeout_at};

use super::{Budget, Charge, Client, Exhausted, Party};

/// Bytes that an open connection takes: its task and buffers.
const BASE: usize = 16 * 1024;
/// Bytes that a request takes: its head, its task and a small answer.
const REQUEST: usize = 8 * 1024;
/// Bytes that a new connection takes. Its first request is among them, so that it can always show a valid token.
pub const OPENING: usize = BASE + REQUEST;
/// The longest head of a request, with all its lines; HTTP/2 counts them decompressed.
pub const MAX_HEAD: usize = 16 * 1024;
/// Requests under way at once on a connection without a valid token.
const FEW: usize = 8;
/// Bytes of a request that waits for a permit, beside its head.
const WAITING: usize = 1024;
/// How long one more request waits for a permit.
///
/// A valid token, or the end of another request, gives it one.
const TOKEN_WAIT: Duration = Duration::from_secs(1);

/// An open connection.
#[derive(Debug)]
pub struct Connection {
    budget: Budget,
    /// Bytes in all charges of the connection.
    own: Arc<AtomicUsize>,
    state: Mutex<State>,
    changed: Notify,
}

#[derive(Debug)]
struct State {
    /// Its base, and the head that is being read; on the account of unauthenticated clients until a valid token is
    /// shown.
    base: Charge,
    head: usize,
    /// Whether the first request is still to come, for which the base has room.
    is_new: bool,
    opened_at: Instant,
    /// When a request with a valid token last began or ended.
    known_at: Option<Instant>,
    /// Requests under way, and how many showed a valid token.
    requests: usize,
    known: usize,
}

impl Connection {
    /// # Errors
    /// There is no room for one more unauthenticated client.
    pub fn open(budget: &Budget, client: Client) -> Result<Arc<Self>, Exhausted> {
        let connection = Self::new(budget, client);
        connection.state().base.grow(OPENING)?;
        Ok(Arc::new(connection))
    }

    /// Opens one of the few connections that need no room.
    pub fn open_anyway(budget: &Budget, client: Client) -> Arc<Self> {
        let connection = Self::new(budget, client);
        connection.state().base.grow_anyway(OPENING);
        Arc::new(connection)
    }

    fn new(budget: &Budget, client: Client) -> Self {
        let state = State {
            base: budget.empty(Party::Unauthenticated(client), None),
            head: 0,
            is_new: true,
            opened_at: Instant::now(),
            known_at: None,
            requests: 0,
            known: 0,
        };
        Self {
            budget: budget.clone(),
            own: Arc::default(),
            state: Mutex::new(state),
            changed: Notify::new(),
        }
    }

    /// Bytes of a head came in.
    ///
    /// # Errors
    /// The connection is an unauthenticated client's, and the budget has no room for these bytes.
    pub fn head_grows(&self, bytes: usize) -> Result<(), Exhausted> {
        let mut state = self.state();
        if state.requests > 0 {
            return Ok(());
        }
        // The buffer is twice as large as what is in it, at most. Frames between requests stay in no buffer.
        let bytes = bytes.saturating_mul(2).min(2 * MAX_HEAD - state.head);
        let first = if state.is_new { REQUEST } else { 0 };
        let needed = BASE + first.max(state.head + bytes);
        let more = needed.saturating_sub(state.base.bytes());
        state.base.grow_bounding_unauthenticated(more)?;
        state.head += bytes;
        Ok(())
    }

    /// How long the connection has been without a valid token.
    ///
    /// Connections that never had one sort first; `None`: a request with one is being served.
    pub fn without_token(&self) -> Option<Trust> {
        let state = self.state();
        let (was_known, since) = match state.known_at {
            Some(at) => (true, at),
            None => (false, state.opened_at),
        };
        (state.known == 0).then_some(Trust { was_known, since })
    }

    /// Whether the connection has shown no valid token yet.
    pub fn is_unauthenticated(&self) -> bool {
        self.state().base.party.is_unauthenticated()
    }

    /// Begins a request.
    ///
    /// On a connection without a valid token few run at once; a further one waits. `head`: the length of its head.
    ///
    /// # Errors
    /// There is no room for it.
    pub async fn begin(self: &Arc<Self>, head: usize) -> Result<Guest, Exhausted> {
        if let Some(begun) = self.begin_now() {
            return begun;
        }
        let until = Instant::now() + TOKEN_WAIT;
        // While it waits its head is held, on the connection's account: it may have only few more.
        let mut waiting = self.nothing(Some(self.own.clone()));
        loop {
            let mut changed = std::pin::pin!(self.changed.notified());
            // Registered before the state is read, so that no later change is missed.
            changed.as_mut().enable();
            if let Some(begun) = self.begin_now() {
                return begun;
            }
            if waiting.bytes() == 0 {
                waiting.grow(WAITING + 2 * head)?;
            }
            timeout_at(until, changed).await.map_err(|_| Exhausted)?;
        }
    }

    fn begin_now(self: &Arc<Self>) -> Option<Result<Guest, Exhausted>> {
        let mut state = self.state();
        if state.base.party.is_unauthenticated() && state.requests >= FEW {
            return None;
        }
        let party = state.base.party.clone();
        let mut charge = self.budget.empty(party, Some(self.own.clone()));
        // Other tenants may share a known connection. Whose request it is, and whether there is room for it, is known
        // when its token was read.
        if state.is_new {
            // The room that was kept for it.
            state.base.shrink_to(BASE);
            charge.grow_anyway(REQUEST);
        } else if let Err(exhausted) = charge.grow_bounding_unauthenticated(REQUEST) {
            return Some(Err(exhausted));
        }
        state.is_new = false;
        state.requests += 1;
        state.head = 0;
        state.base.shrink_to(BASE);
        let request = Request {
            charge,
            is_known: false,
        };
        Some(Ok(Guest(Arc::new(Inner {
            connection: self.clone(),
            request: Mutex::new(request),
        }))))
    }

    fn nothing(&self, of: Option<Arc<AtomicUsize>>) -> Charge {
        let party = self.state().base.party.clone();
        self.budget.empty(party, of)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// How much a connection is trusted; the least trusted sorts first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Trust {
    pub was_known: bool,
    /// Since when there is no valid token.
    pub since: Instant,
}

/// Bytes of an answer that are charged elsewhere.
#[derive(Debug, Clone, Copy)]
pub struct Elsewhere(pub usize);

/// One request, from its head to the end of its answer.
#[derive(Debug, Clone)]
pub struct Guest(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    connection: Arc<Connection>,
    request: Mutex<Request>,
}

#[derive(Debug)]
struct Request {
    charge: Charge,
    is_known: bool,
}

impl Guest {
    /// Moves the request to its tenant's account, with room for its answer.
    ///
    /// # Errors
    /// There is no room for them.
    pub fn is_known(&self, tenant: &str, bytes: usize) -> Result<(), Exhausted> {
        let mut request = self.request();
        let party = Party::Tenant(tenant.into());
        let mut state = self.0.connection.state();
        if !request.is_known {
            request.is_known = true;
            state.known += 1;
        }
        state.known_at = Some(Instant::now());
        if state.base.party.is_unauthenticated() {
            state.base.move_to(party.clone());
            self.0.connection.changed.notify_waiters();
        }
        drop(state);
        if request.charge.party != party {
            request.charge.move_to(party);
        }
        request.charge.grow(bytes)
    }

    /// A part of its body came.
    ///
    /// # Errors
    /// There is no room for it.
    pub fn grow(&self, bytes: usize) -> Result<(), Exhausted> {
        self.request().charge.grow(bytes)
    }

    /// Charges only the answer from now on.
    ///
    /// `bytes`: its length, if it is known; otherwise all that was reserved stays charged. Answers
    /// with the charge, and whether there is room for the answer: a large one on a connection
    /// without a token may have none.
    pub fn is_answered(&self, bytes: Option<usize>) -> (Arc<Charge>, bool) {
        let mut request = self.request();
        let mut charge = std::mem::replace(&mut request.charge, self.0.connection.nothing(None));
        let mut fits = true;
        if let Some(bytes) = bytes {
            let needed = REQUEST.saturating_add(bytes);
            charge.shrink_to(needed);
            let more = needed - charge.bytes();
            // A known caller's request was admitted before, and may already have had an effect.
            if request.is_known {
                charge.grow_anyway(more);
            } else {
                fits = charge.grow(more).is_ok();
            }
        }
        (Arc::new(charge), fits)
    }

    fn request(&self) -> MutexGuard<'_, Request> {
        self.0
            .request
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        let request = self
            .request
            .get_mut()
            .unwrap_or_else(PoisonError::into_inner);
        let is_known = request.is_known;
        let mut state = self.connection.state();
        state.requests -= 1;
        if is_known {
            state.known -= 1;
            state.known_at = Some(Instant::now());
        }
        drop(state);
        self.connection.changed.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use futures_util::future::join_all;

    use super::super::UNAUTHENTICATED;
    use super::*;

    fn trust(connection: &Connection) -> Trust {
        connection.without_token().expect("no token is served")
    }

    #[tokio::test(start_paused = true)]
    async fn a_stranger_has_few_requests_at_once_until_it_shows_a_token() {
        let budget = Budget::new(64 << 20);
        let connection = Connection::open(&budget, None).expect("room");
        let mut guests = Vec::new();
        for _ in 0..FEW {
            guests.push(connection.begin(300).await.expect("room"));
        }
        assert!(
            connection.begin(300).await.is_err(),
            "it has waited, and nothing has changed"
        );
        let (further, ()) = tokio::join!(connection.begin(300), async {
            guests[0].is_known("shop", 1_000).expect("room");
        });
        guests.push(further.expect("it has shown a token"));
        for _ in 0..50 {
            guests.push(connection.begin(300).await.expect("room"));
        }
        assert_eq!(budget.held(), BASE + REQUEST * (FEW + 51) + 1_000);
        assert_eq!(
            connection.without_token(),
            None,
            "one with a token is under way"
        );
        drop(guests);
        assert_eq!(budget.held(), BASE);
        drop(connection);
        assert_eq!(budget.held(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn requests_that_wait_for_a_token_hold_their_heads_on_their_connections_account() {
        let budget = Budget::new(64 << 20);
        let connection = Connection::open(&budget, None).expect("room");
        let guests: Vec<_> = join_all((0..FEW).map(|_| connection.begin(300))).await;
        let held = budget.held();
        let all = (0..100).map(|_| connection.begin(MAX_HEAD));
        let (refused, most) = tokio::join!(join_all(all), async {
            tokio::task::yield_now().await;
            budget.held()
        });
        assert!(refused.iter().all(Result::is_err), "no token has come");
        assert!(
            most >= held + 2 * MAX_HEAD && most <= BASE + UNAUTHENTICATED,
            "{held} {most}"
        );
        assert_eq!((guests.len(), budget.held()), (FEW, held));
    }

    #[tokio::test(start_paused = true)]
    async fn a_tenant_without_room_blocks_no_other_on_the_same_connection() {
        let budget = Budget::new(1 << 20);
        let connection = Connection::open(&budget, None).expect("room");
        connection
            .begin(300)
            .await
            .expect("room")
            .is_known("one", 0)
            .expect("room");
        let mut of_one = Vec::new();
        while let Ok(charge) = budget.charge("one", REQUEST) {
            of_one.push(charge);
        }
        let one = connection
            .begin(300)
            .await
            .expect("it is not known yet whose it is");
        assert!(one.is_known("one", REQUEST).is_err());
        let other = connection
            .begin(300)
            .await
            .expect("it is not known yet whose it is");
        other.is_known("other", REQUEST).expect("room");
    }

    #[tokio::test(start_paused = true)]
    async fn who_never_had_a_token_is_trusted_least_and_then_who_had_one_long_ago() {
        let budget = Budget::new(64 << 20);
        let open = || Connection::open(&budget, None).expect("room");
        let (known, later) = (open(), open());
        for connection in [&known, &later] {
            let guest = connection.begin(300).await.expect("room");
            guest.is_known("shop", 0).expect("room");
            tokio::time::advance(Duration::from_secs(1)).await;
        }
        tokio::time::advance(Duration::from_secs(60)).await;
        let unknown = open();
        assert!(trust(&unknown) < trust(&known) && trust(&known) < trust(&later));
    }

    #[tokio::test(start_paused = true)]
    async fn many_small_requests_at_once_wait_for_the_first_token() {
        let budget = Budget::new(64 << 20);
        let connection = Connection::open(&budget, None).expect("room");
        let mut first = Vec::new();
        for _ in 0..FEW {
            first.push(connection.begin(500).await.expect("room"));
        }
        let others = join_all((FEW..100).map(|_| connection.begin(500)));
        let (others, ()) = tokio::join!(others, async {
            tokio::task::yield_now().await;
            first[0].is_known("shop", 0).expect("room");
        });
        assert!(others.iter().all(Result::is_ok));
    }

    #[tokio::test]
    async fn a_new_connection_has_room_for_its_first_request_whatever_others_hold() {
        let budget = Budget::new(8 << 20);
        let client = |n: u8| Some(std::net::Ipv4Addr::new(10, 0, 0, n).into());
        let newcomer = Connection::open(&budget, client(1)).expect("room");
        let mut others = Vec::new();
        for n in 2..200 {
            while let Ok(connection) = Connection::open(&budget, client(n)) {
                connection.head_grows(MAX_HEAD).ok();
                others.push(connection);
            }
        }
        assert!(
            Connection::open(&budget, client(201)).is_err(),
            "nothing is left"
        );
        newcomer.head_grows(REQUEST / 2).expect("a small head");
        let guest = newcomer.begin(REQUEST / 2).await.expect("room was kept");
        guest.is_known("shop", 1 << 20).expect("room");
    }

    #[test]
    fn who_holds_much_gives_way_itself_and_otherwise_who_holds_most() {
        let budget = Budget::new(64 << 20);
        let client = |n: u8| Some(std::net::Ipv4Addr::new(10, 0, 0, n).into());
        let open = |n, all| -> Vec<_> {
            (0..all)
                .map(|_| Connection::open(&budget, client(n)).expect("room"))
                .collect()
        };
        let _open = (open(1, 100), open(2, 20), open(3, 1));
        for (newcomer, greediest) in [(1, 1), (2, 2), (3, 1), (4, 1)] {
            assert_eq!(budget.greediest(client(newcomer)), client(greediest));
        }
        assert_eq!(budget.greediest(None), client(1));
    }

    #[test]
    fn strangers_together_and_each_of_them_are_bounded() {
        let budget = Budget::new(1 << 20);
        let open: Vec<_> = std::iter::from_fn(|| Connection::open(&budget, None).ok()).collect();
        assert_eq!(open.len(), (1 << 20) / 3 / OPENING);
        assert!(
            budget.charge("shop", 300 << 10).is_ok(),
            "the rest is for others"
        );
        let budget = Budget::new(1 << 30);
        let connection = Connection::open(&budget, None).expect("room");
        connection.head_grows(100_000).expect("room");
        assert_eq!(budget.held(), BASE + 2 * MAX_HEAD);
        let guest = connection.begin_now().expect("the first").expect("room");
        assert_eq!(budget.held(), BASE + REQUEST, "the head is the request's");
        assert!(
            guest.grow(300 << 10).is_err(),
            "more than one unauthenticated client may hold"
        );
        assert!(!guest.is_answered(Some(300 << 10)).1);
    }

    #[test]
    fn an_answer_holds_what_it_is_long_as_long_as_a_part_of_it_is_there() {
        let budget = Budget::new(1 << 30);
        let connection = Connection::open(&budget, None).expect("room");
        let guest = connection.begin_now().expect("the first").expect("room");
        guest.is_known("shop", 4 << 20).expect("room");
        let (charge, fits) = guest.is_answered(Some(1_000));
        assert!(fits);
        let body = super::super::attach(bytes::Bytes::from(vec![0; 1_000]), &charge);
        drop((guest, charge));
        assert_eq!(budget.held(), BASE + REQUEST + 1_000);
        drop(body);
        assert_eq!(budget.held(), BASE);
    }
}
