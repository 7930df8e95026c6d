//! Lanes: few connections over which all callers write.
//!
//! All verbs that wait for a lane become one transaction, which is sent as a whole: its locks in one order, the verbs, and the
//! commit. So a commit is shared, no lock is held during a round trip, and two transactions never wait for each other in a
//! circle. One call of a function writes several claims or changes, because each statement costs the server time of its
//! own. If one verb fails, nothing of the transaction was done, and each of its verbs gets a transaction of its own.

use std::collections::{BTreeMap, HashMap};
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;

use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, timeout};
use tokio_postgres::Row;
use tokio_postgres::types::ToSql;

use crate::link::assignment::{Assignment, Assignments, LANES};
use crate::link::rows::ChangeRow;
use crate::link::{Dialer, Link, Param, Slot, said};
use crate::target::SILENT;
use oncegate_store::shared::pages::portions;
use oncegate_store::{Error, Result};

/// How many verbs one transaction has at most.
const MOST: usize = 64;
/// How many bytes of arguments and results one batch has at most; a larger verb is a batch of its own.
const MOST_BYTES: usize = 1 << 20;
/// How many verbs wait for a lane at most; more callers wait until there is room.
const WAITING: usize = 1_024;

const BEGIN: &str = "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE";

/// A key that a transaction locks, and whether others may share it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Lock {
    key: i64,
    is_shared: bool,
}

impl Lock {
    /// Only one transaction at a time works on what this key names.
    pub(crate) fn alone(id: &[u8; 16]) -> Self {
        // Both halves: ids of one millisecond begin alike.
        let halves = id.as_chunks().0;
        Self {
            key: i64::from_be_bytes(halves[0]) ^ i64::from_be_bytes(halves[1]),
            is_shared: false,
        }
    }

    /// Others may work on it that lock it as shared, too.
    pub(crate) fn shared(id: &[u8; 16]) -> Self {
        Self {
            is_shared: true,
            ..Self::alone(id)
        }
    }
}

/// A verb that writes: a function of `verbs.sql` with one row as its answer.
pub(crate) struct Verb {
    pub(crate) function: &'static str,
    pub(crate) values: Values,
    pub(crate) locks: Vec<Lock>,
}

/// What the function of a verb is called with.
pub(crate) enum Values {
    /// All verbs of a function have the same number of these.
    Params(Vec<Param>),
    /// One element of the array that the function takes: the verbs of a batch share the array.
    Row(Box<ChangeRow>),
}

impl Verb {
    pub(crate) fn new(function: &'static str, params: Vec<Param>, locks: Vec<Lock>) -> Self {
        Self {
            function,
            values: Values::Params(params),
            locks,
        }
    }

    /// A claim or a change.
    pub(crate) fn row(function: &'static str, row: ChangeRow, locks: Vec<Lock>) -> Self {
        Self {
            function,
            values: Values::Row(Box::new(row)),
            locks,
        }
    }

    fn as_row(&self) -> Option<&ChangeRow> {
        match &self.values {
            Values::Row(row) => Some(row),
            Values::Params(_) => None,
        }
    }

    /// A verb that needs no lock.
    pub(crate) fn plain(function: &'static str, params: Vec<Param>) -> Self {
        Self::new(function, params, Vec::new())
    }

    /// A verb about what this id names.
    pub(crate) fn about(id: &[u8; 16], function: &'static str, params: Vec<Param>) -> Self {
        Self::new(function, params, vec![Lock::alone(id)])
    }
}

/// A verb that waits for a lane.
struct Waiting {
    verb: Verb,
    round: usize,
    since: Instant,
    assignment: Assignment,
    answer: oneshot::Sender<Result<Row>>,
}

impl Waiting {
    fn end(self, answer: Result<Row>) {
        // First, so that the caller's next verb finds the lane free.
        drop(self.assignment);
        // A caller that is gone does not need its answer.
        drop(self.answer.send(answer));
    }
}

/// All lanes. They end when this is dropped.
pub(crate) struct Lanes {
    lanes: Vec<mpsc::Sender<Waiting>>,
    assignments: Arc<Assignments>,
}

impl Lanes {
    pub(crate) fn new(dialer: &Arc<Dialer>) -> Self {
        let lane = |_| {
            let (sender, waiting) = mpsc::channel(WAITING);
            let lane = Lane {
                dialer: dialer.clone(),
                slot: Slot::new(dialer, false),
            };
            tokio::spawn(lane.run(waiting));
            sender
        };
        Self {
            lanes: (0..LANES).map(lane).collect(),
            assignments: Arc::default(),
        }
    }

    /// Runs a verb.
    ///
    /// # Errors
    /// `Refused`: nothing was written. `Ambiguous`: the server did not say whether it was.
    pub(crate) async fn run(&self, verb: Verb) -> Result<Row> {
        let first = verb.locks.iter().find(|lock| !lock.is_shared);
        let assignment = self.assignments.assign(first.map(|lock| lock.key));
        let lane = &self.lanes[assignment.lane];
        let (answer, answered) = oneshot::channel();
        let waiting = Waiting {
            verb,
            round: 0,
            since: Instant::now(),
            assignment,
            answer,
        };
        let sent = lane.send(waiting).await;
        sent.map_err(|_| Error::Refused("the store is closed".into()))?;
        // A lane that ends without an answer may have sent the verb.
        answered
            .await
            .map_err(|_| Error::Ambiguous("the store was closed meanwhile".into()))?
    }
}

/// What became of a transaction.
enum Done {
    /// It is committed.
    Written(Vec<Row>),
    /// Nothing of it was written.
    Nothing(String),
    /// It may be written.
    Unknown(String),
}

struct Lane {
    dialer: Arc<Dialer>,
    slot: Slot,
}

impl Lane {
    async fn run(self, mut waiting: mpsc::Receiver<Waiting>) {
        let mut verbs = Vec::with_capacity(MOST);
        while waiting.recv_many(&mut verbs, MOST).await > 0 {
            self.write(std::mem::take(&mut verbs)).await;
        }
    }

    /// Writes these verbs together, or each alone if that fails.
    async fn write(&self, mut verbs: Vec<Waiting>) {
        self.refuse_late(&mut verbs);
        if verbs.is_empty() {
            return;
        }
        sort(&mut verbs);
        match self.transaction(&verbs).await {
            Done::Written(rows) => {
                for (waiting, row) in verbs.into_iter().zip(rows) {
                    waiting.end(Ok(row));
                }
            }
            Done::Nothing(why) if verbs.len() == 1 => answer(verbs, &Error::Refused(why)),
            Done::Nothing(_) => {
                for waiting in verbs {
                    Box::pin(self.write(vec![waiting])).await;
                }
            }
            Done::Unknown(why) => {
                self.slot.give_up().await;
                self.dialer.trouble.notify_one();
                answer(verbs, &Error::Ambiguous(why));
            }
        }
    }

    /// Answers verbs that have waited for too long, of which nothing was sent, and drops those without a caller.
    fn refuse_late(&self, verbs: &mut Vec<Waiting>) {
        let is_late = |waiting: &mut Waiting| waiting.since.elapsed() >= SILENT;
        let late = verbs.extract_if(.., is_late).collect();
        answer(late, &Error::Refused("PostgreSQL does not answer".into()));
        verbs.retain(|waiting| !waiting.answer.is_closed());
    }

    async fn transaction(&self, verbs: &[Waiting]) -> Done {
        let link = match self.slot.link().await {
            Ok(link) => link,
            Err(error) => return Done::Nothing(error.to_string()),
        };
        match timeout(SILENT, send(&link, verbs)).await {
            Ok(done) => done,
            Err(_) => Done::Unknown("PostgreSQL did not answer in time".into()),
        }
    }
}

fn answer(verbs: Vec<Waiting>, error: &Error) {
    for waiting in verbs {
        waiting.end(Err(error.clone()));
    }
}

/// The locks of all verbs, each once, in the order that all gateways keep.
fn all_locks(verbs: &[Waiting]) -> (Vec<i64>, Vec<bool>) {
    let mut locks = BTreeMap::new();
    for lock in verbs.iter().flat_map(|waiting| &waiting.verb.locks) {
        let is_shared = locks.entry(lock.key).or_insert(true);
        *is_shared &= lock.is_shared;
    }
    locks.into_iter().unzip()
}

/// Gives each verb a round, counted over all functions, so that no two verbs of one round need the same lock: neither sees what the
/// other one writes. Then sorts by function and round. None has been answered yet, so no caller can tell.
fn sort(verbs: &mut [Waiting]) {
    // From which round on a lock can be had: alone, or shared. A shared lock delays only those that want it alone.
    let mut free: HashMap<i64, [usize; 2]> = HashMap::new();
    for waiting in verbs.iter_mut() {
        let locks = &waiting.verb.locks;
        let of = |lock: &Lock| {
            free.get(&lock.key)
                .map(|at| at[usize::from(lock.is_shared)])
        };
        waiting.round = locks.iter().filter_map(of).max().unwrap_or(0);
        let next = waiting.round + 1;
        for lock in locks {
            let [alone, shared] = free.entry(lock.key).or_default();
            *alone = next.max(*alone);
            *shared = if lock.is_shared { *shared } else { next };
        }
    }
    verbs.sort_by_key(|waiting| (waiting.verb.function, waiting.round));
}

/// Sorted verbs in batches: one call of a function for each.
fn batches(verbs: &[Waiting]) -> Vec<&[Waiting]> {
    let fits = |one: &Waiting, next: &Waiting| {
        let is_row = one.verb.as_row().is_some();
        is_row && one.round == next.round && one.verb.function == next.verb.function
    };
    let portions = verbs.chunk_by(fits).map(|verbs| {
        let size = |waiting: &Waiting| waiting.verb.as_row().map_or(0, ChangeRow::size);
        let sizes: Vec<usize> = verbs.iter().map(size).collect();
        portions(verbs, &sizes, (MOST, MOST_BYTES))
    });
    portions.flatten().collect()
}

type Sent<'a> = Pin<Box<dyn Future<Output = Result<Vec<Row>, tokio_postgres::Error>> + Send + 'a>>;

/// Sends a transaction in one go, and reads its answers, in the order of its verbs.
async fn send(link: &Link, verbs: &[Waiting]) -> Done {
    let (keys, shared) = all_locks(verbs);
    let lock: [&(dyn ToSql + Sync); 2] = [&keys, &shared];
    let batches = batches(verbs);
    let changes: Vec<Vec<&ChangeRow>> = batches
        .iter()
        .map(|verbs| verbs.iter().filter_map(|one| one.verb.as_row()).collect())
        .collect();
    let mut calls = vec![("lock_1", 1, lock.to_vec())];
    for (verbs, changes) in batches.iter().zip(&changes) {
        let values: Vec<&(dyn ToSql + Sync)> = match &verbs[0].verb.values {
            Values::Params(values) => values.iter().map(|value| &**value as _).collect(),
            Values::Row(_) => vec![changes],
        };
        calls.push((verbs[0].verb.function, verbs.len(), values));
    }
    let mut prepared = Vec::with_capacity(calls.len());
    for (function, _, values) in &calls {
        match link.call(function, values.len()).await {
            Ok(statement) => prepared.push(statement),
            Err(error) => return Done::Nothing(said(&error)),
        }
    }
    let warnings = link.warnings();
    let client = &link.client;
    let simple = |sql: &'static str| -> Sent<'_> {
        Box::pin(async move { client.batch_execute(sql).await.map(|()| Vec::new()) })
    };
    let mut sent: Vec<Sent<'_>> = vec![simple(BEGIN)];
    for (statement, (.., values)) in prepared.iter().zip(&calls) {
        sent.push(Box::pin(client.query(statement, values)));
    }
    sent.push(simple("COMMIT"));
    let mut answers = in_order(sent).await;
    let committed = answers.pop();
    let mut rows = Vec::with_capacity(1 + verbs.len());
    // The first answer is that of BEGIN, which has no row.
    let expected = std::iter::once(0).chain(calls.iter().map(|(_, count, _)| *count));
    for (answer, expected) in answers.into_iter().zip(expected) {
        match answer {
            Ok(answered) if answered.len() == expected => rows.extend(answered),
            Ok(_) => return Done::Unknown("PostgreSQL did not answer each verb".into()),
            // The server says so before it has read the commit, which then undoes everything.
            Err(error) if error.as_db_error().is_some() => return Done::Nothing(said(&error)),
            // A value that cannot be sent: the verbs around it may be committed.
            Err(error) => return Done::Unknown(said(&error)),
        }
    }
    match committed {
        Some(Err(error)) => Done::Unknown(said(&error)),
        // A cancelled wait for the standby answers success, with a warning.
        _ if link.warnings() != warnings => {
            Done::Unknown("PostgreSQL warned while it committed".into())
        }
        // The answer of the locks comes first.
        _ => Done::Written(rows.split_off(1)),
    }
}

/// The answers of all, which are sent in this order.
async fn in_order<T>(mut all: Vec<Pin<Box<dyn Future<Output = T> + Send + '_>>>) -> Vec<T> {
    let mut answers: Vec<Option<T>> = all.iter().map(|_| None).collect();
    poll_fn(|cx| {
        let mut is_done = true;
        for (future, answer) in all.iter_mut().zip(&mut answers) {
            if answer.is_none() {
                match future.as_mut().poll(cx) {
                    Poll::Ready(done) => *answer = Some(done),
                    Poll::Pending => is_done = false,
                }
            }
        }
        if is_done {
            Poll::Ready(())
        } else {
            Poll::Pending
        }
    })
    .await;
    answers.into_iter().flatten().collect()
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use uuid::Uuid;

    use super::*;

    fn waiting(verb: Verb) -> Waiting {
        Waiting {
            verb,
            round: 0,
            since: Instant::now(),
            assignment: Arc::<Assignments>::default().assign(None),
            answer: oneshot::channel().0,
        }
    }

    #[tokio::test]
    async fn verbs_of_one_batch_share_no_lock_and_are_not_large() {
        let id = |name: u128| Uuid::from_u128(name).into_bytes();
        let lock = |name| Lock::alone(&id(name));
        let all = Lock::shared(&id(0xff));
        let row = |bytes| ChangeRow {
            args: Some(vec![0; bytes]),
            ..ChangeRow::default()
        };
        let claim = |locks| waiting(Verb::row("claim_1", row(10), locks));
        let large = || waiting(Verb::row("replace_1", row(MOST_BYTES / 2), Vec::new()));
        let beat = || waiting(Verb::plain("beat_1", Vec::new()));
        let mut verbs = vec![
            claim(vec![lock(1), all]),
            large(),
            claim(vec![lock(2), lock(2), all]),
            beat(),
            claim(vec![lock(3), lock(1)]),
            claim(vec![lock(1), all]),
            large(),
            claim(vec![lock(4), lock(0xff), all]),
            beat(),
            claim(vec![lock(5), all]),
            large(),
        ];
        sort(&mut verbs);
        let batches = batches(&verbs);
        let counts: Vec<usize> = batches.iter().map(|verbs| verbs.len()).collect();
        assert_eq!(counts, [1, 1, 2, 1, 1, 1, 1, 2, 1]);
        let is_common =
            |one: &Lock, other: &Lock| one.key == other.key && !(one.is_shared && other.is_shared);
        for verbs in batches {
            for (nth, verb) in verbs.iter().enumerate() {
                let mut earlier = verbs[..nth].iter().flat_map(|one| &one.verb.locks);
                let has = |lock: &Lock| verb.verb.locks.iter().any(|own| is_common(own, lock));
                assert!(!earlier.any(has), "two verbs of one batch need a lock");
            }
        }
    }

    #[tokio::test]
    async fn a_verb_that_a_lane_took_and_never_answered_is_in_doubt() {
        let (sender, mut waiting) = mpsc::channel(1);
        let lanes = Lanes {
            lanes: vec![sender],
            assignments: Arc::default(),
        };
        let beat = || lanes.run(Verb::plain("beat_1", Vec::new()));
        let (answer, ()) = tokio::join!(beat(), async { drop(waiting.recv().await) });
        assert!(matches!(answer, Err(Error::Ambiguous(_))), "{answer:?}");
        drop(waiting);
        let answer = beat().await;
        assert!(matches!(answer, Err(Error::Refused(_))), "{answer:?}");
    }

    #[test]
    fn calls_of_one_millisecond_do_not_wait_for_each_others_locks() {
        // Their first half is the same: the time, and the high digits of a counter.
        let id = |n: u64| Uuid::from_u64_pair(0x0199_0000_0000_7abc, n << 20);
        let lock = |n| Lock::alone(&id(n).into_bytes()).key;
        let locks: HashSet<i64> = (0..1_000).map(lock).collect();
        assert_eq!(locks.len(), 1_000);
    }
}
