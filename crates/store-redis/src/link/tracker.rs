//! Tells the memory of finished calls what other gateways change: `CLIENT TRACKING`, on a connection of its own.
//!
//! The server tells only of keys that this connection has read after `CLIENT CACHING YES`. The two keys of a call, the
//! holder of its name and its text, are read by one plain command: of the keys that a script reads, servers before 7.2
//! track only the declared ones. Not over a cluster, whose servers would each need a connection. Why memory is then never
//! older than the store: see [`tracking`](oncegate_store::tracking).

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, RwLock, Weak};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{
    AsyncConnectionConfig, Pipeline, PushInfo, PushKind, RedisError, RedisResult, ServerError,
    ServerErrorKind, Value,
};
use tokio::time::{Instant, sleep, timeout};

use super::answer::stored_in;
use crate::checks::run_id;
use crate::keys::{self, About, Partition};
use crate::scripts::command;
use crate::server::Server;
use oncegate_rules::key::Lookup;
use oncegate_rules::record::{CallId, Record};
use oncegate_store::lock::{lock, read, write};
use oncegate_store::tracking::Tracking;
use oncegate_store::{Error, ReplayCache, Result};

/// How often the connection is asked whether it is alive, while remembered calls are asked for.
const PING_EVERY: Duration = Duration::from_millis(200);
/// So many pings follow after the last remembered call was asked for.
const LAST_PINGS: u32 = 5;
/// The time limit of a connection and of each answer.
const ANSWERED: Duration = Duration::from_secs(1);
/// The shortest time between two attempts to connect.
const PAUSE: Duration = Duration::from_secs(1);
/// The same for a server that does not allow tracking.
const REFUSED: Duration = Duration::from_secs(60);

/// Tells a memory of changes, as long as the connection and the store are well.
pub(crate) struct Tracker {
    server: Arc<Server>,
    replay_cache: Arc<ReplayCache>,
    wire: RwLock<Option<Wire>>,
    /// When a connection may be tried again.
    try_at: Mutex<Option<Instant>>,
    is_refused: AtomicBool,
}

/// The connection on which the server reports changes.
#[derive(Clone)]
struct Wire {
    connection: MultiplexedConnection,
    tracking: Arc<Tracking>,
}

/// Keeps a connection that reports changes, as long as a handle of the store is open.
async fn keep_tracking(tracker: Weak<Tracker>) {
    let mut pings = 0;
    while let Some(tracker) = tracker.upgrade() {
        pings = tracker.look_after(pings).await;
        drop(tracker);
        sleep(PING_EVERY).await;
    }
}

impl Tracker {
    /// Tells this memory of changes from now on. `None` over a cluster, or if there is a tracker already.
    pub(crate) fn begin(
        server: &Arc<Server>,
        replay_cache: &Arc<ReplayCache>,
    ) -> Option<Arc<Self>> {
        let is_cluster = server.link.target.is_cluster();
        if is_cluster
            || server
                .status
                .replay_cache
                .set(replay_cache.clone())
                .is_err()
        {
            return None;
        }
        let tracker = Arc::new(Self {
            server: server.clone(),
            replay_cache: replay_cache.clone(),
            wire: RwLock::default(),
            try_at: Mutex::default(),
            is_refused: false.into(),
        });
        tokio::spawn(keep_tracking(Arc::downgrade(&tracker)));
        Some(tracker)
    }

    fn live_wire(&self) -> Option<Wire> {
        let wire = read(&self.wire).clone();
        wire.filter(|wire| !wire.tracking.is_over())
    }

    /// The call, if it holds this name. From now on the server tells of its changes.
    pub(crate) async fn watch(&self, name: &Lookup, call_id: CallId) -> Result<Option<Record>> {
        let no_wire = || Error::Refused("no connection reports changes".into());
        let wire = self.live_wire().ok_or_else(no_wire)?;
        let keys = [Partition::of(name).holder(name), keys::call(call_id)];
        let sent = wire.tracking.now();
        let found = wire.query(&tracked_read(&keys)).await;
        let ([holder, text],): ([Value; 2],) =
            found.map_err(|error| Error::Refused(error.to_string()))?;
        wire.tracking.answered(sent);
        let is_holder =
            matches!(holder, Value::BulkString(id) if id == keys::id(call_id).as_bytes());
        match stored_in(text)? {
            Some(record) if is_holder => Ok(Some(self.server.settled(record).await?)),
            _ => Ok(None),
        }
    }

    /// Connects if there is no connection, otherwise pings. Returns how many more pings are due.
    async fn look_after(&self, pings: u32) -> u32 {
        let Some(wire) = self.live_wire() else {
            // Before anything is read on the next connection.
            *write(&self.wire) = None;
            self.connect().await;
            return 0;
        };
        let is_used = wire.tracking.take_asked();
        let pings = if is_used { LAST_PINGS } else { pings };
        if pings == 0 {
            return 0;
        }
        let sent = wire.tracking.now();
        match wire.query::<()>(redis::pipe().cmd("PING").ignore()).await {
            Ok(()) => wire.tracking.answered(sent),
            Err(error) => {
                tracing::debug!(%error, "the connection that reports changes does not answer");
                self.replay_cache.end_tracking(&wire.tracking);
            }
        }
        pings - 1
    }

    /// Connects, if the store is ready and the server reports changes.
    async fn connect(&self) {
        let is_too_early = lock(&self.try_at).is_some_and(|try_at| Instant::now() < try_at);
        if is_too_early || !self.server.status.is_open() {
            return;
        }
        let tracking = self.replay_cache.begin_tracking();
        let late = |_| Err(Why::Failed("no answer in time".into()));
        let connected = timeout(ANSWERED * 4, self.try_connect(&tracking)).await;
        let pause = match connected.unwrap_or_else(late) {
            // The store may have been closed before the memory could be told.
            Ok(wire) if self.server.status.is_open() => {
                self.is_refused.store(false, Ordering::Relaxed);
                return *write(&self.wire) = Some(wire);
            }
            Ok(_) => PAUSE,
            Err(Why::Failed(error)) => {
                tracing::debug!(error, "no connection reports changes");
                PAUSE
            }
            Err(Why::Refused(error)) => {
                if !self.is_refused.swap(true, Ordering::Relaxed) {
                    let text = "Redis does not report changes: each replay is read from it";
                    tracing::info!(error, "{text}");
                }
                REFUSED
            }
        };
        self.replay_cache.end_tracking(&tracking);
        *lock(&self.try_at) = Some(Instant::now() + pause);
    }

    async fn try_connect(&self, tracking: &Arc<Tracking>) -> Result<Wire, Why> {
        let trial = Partition::FIRST.key(&format!("trial:{}", self.server.memory.gateway()));
        let has_reported = Arc::new(AtomicBool::new(false));
        let listener = Listener {
            replay_cache: self.replay_cache.clone(),
            tracking: tracking.clone(),
            trial: trial.clone().into_bytes(),
            has_reported: has_reported.clone(),
        };
        let hear = move |push: PushInfo| {
            listener.hear(push);
            Ok::<_, redis::aio::SendError>(())
        };
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(ANSWERED))
            .set_response_timeout(Some(ANSWERED))
            .set_push_sender(hear);
        let client = self.server.link.client().await?;
        let connection = client.get_multiplexed_async_connection_with_config(&config);
        let wire = Wire {
            connection: connection.await?,
            tracking: tracking.clone(),
        };
        let mut begin = redis::pipe();
        begin.add_command(command("CLIENT", ("TRACKING", "ON", "OPTIN")));
        let begun = wire.query::<()>(begin.ignore()).await;
        begun.map_err(Why::of_server)?;
        let mut info = redis::pipe();
        info.cmd("INFO").arg("server");
        let (info,): (String,) = wire.query(&info).await?;
        // After a failover this may be another server than the one that was inspected.
        let tried_on = read(&self.server.tried_on).clone();
        if !run_id(&info).is_some_and(|run| !run.is_empty() && tried_on.contains(&run)) {
            return Err(Why::Failed("another server than the store's".into()));
        }
        // A server that does not tell of this change tells of none.
        let tried = wire.query::<()>(tracked_read(&[&trial]).ignore()).await;
        tried.map_err(Why::of_server)?;
        let mut change = redis::pipe();
        change.cmd("SET").arg((&trial, "")).ignore();
        change.cmd("DEL").arg(&trial).ignore();
        change.cmd("PING").ignore();
        wire.query::<()>(&change).await?;
        if !has_reported.load(Ordering::SeqCst) {
            return Err(Why::Refused("the server did not report a change".into()));
        }
        Ok(wire)
    }
}

/// Why there is no connection.
enum Why {
    /// Another attempt may succeed.
    Failed(String),
    /// The server cannot track keys, or does not allow it.
    Refused(String),
}

impl Why {
    /// Judges the failure of a command that some servers refuse.
    fn of_server(error: RedisError) -> Self {
        use ServerErrorKind::{NoPerm, ResponseError};
        let text = error.to_string();
        let is_refusal = |(_, error): &(usize, ServerError)| {
            matches!(error.kind(), Some(NoPerm | ResponseError))
        };
        match error.into_server_errors() {
            Some(errors) if errors.iter().any(is_refusal) => Self::Refused(text),
            _ => Self::Failed(text),
        }
    }
}

impl From<RedisError> for Why {
    fn from(error: RedisError) -> Self {
        Self::Failed(error.to_string())
    }
}

impl Wire {
    async fn query<T: redis::FromRedisValue>(&self, commands: &Pipeline) -> RedisResult<T> {
        commands.query_async(&mut self.connection.clone()).await
    }
}

/// Reads these keys. From then on the server tells of their changes.
fn tracked_read(keys: &[impl redis::ToRedisArgs]) -> Pipeline {
    let mut commands = redis::pipe();
    commands.cmd("CLIENT").arg(("CACHING", "YES")).ignore();
    commands.add_command(command("MGET", keys));
    commands
}

/// Hears the changes of which the server tells on one connection.
struct Listener {
    replay_cache: Arc<ReplayCache>,
    tracking: Arc<Tracking>,
    /// A key that is changed only to see whether the server tells of it.
    trial: Vec<u8>,
    has_reported: Arc<AtomicBool>,
}

impl Listener {
    /// Runs in the task that reads the connection, so before a later answer is forwarded.
    fn hear(&self, push: PushInfo) {
        match push.kind {
            PushKind::Invalidate => match push.data.into_iter().next() {
                Some(Value::Array(keys)) => keys.into_iter().for_each(|key| self.changed(key)),
                // Everything was deleted.
                _ => self.replay_cache.end_tracking(&self.tracking),
            },
            PushKind::Disconnection => self.replay_cache.end_tracking(&self.tracking),
            _ => {}
        }
    }

    fn changed(&self, key: Value) {
        let Value::BulkString(key) = key else {
            return self.replay_cache.end_tracking(&self.tracking);
        };
        match keys::about(&key) {
            Some(About::Lookup(name)) => self.replay_cache.touch([&name].into_iter()),
            Some(About::Call(call_id)) => self.tracking.changed(call_id),
            None if key == self.trial => self.has_reported.store(true, Ordering::SeqCst),
            None => self.replay_cache.end_tracking(&self.tracking),
        }
    }
}
