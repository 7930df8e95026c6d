//! Tells the memory of finished calls what other gateways change: `CLIENT TRACKING`, on a connection of its own.
//!
//! The server tells only of keys that this connection has read after `CLIENT CACHING YES`. The two keys of a call, its
//! holder and its text, are read by one plain command: of the keys that a script reads, servers before 7.2 know only the
//! declared ones. Not over a cluster, whose servers would each need a connection. Why memory is then never older than
//! the store: see [`tracking`](crate::store::tracking).

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, RwLock, Weak};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{
    AsyncConnectionConfig, Cmd, Pipeline, PushInfo, PushKind, RedisError, RedisResult, ServerError,
    ServerErrorKind, Value,
};
use tokio::time::{Instant, sleep, timeout};

use super::answer::stored_in;
use super::checks::run_id;
use super::keys::{self, About, Partition};
use super::server::Server;
use crate::core::key::Lookup;
use crate::core::record::{CallId, Record};
use crate::store::lock::{lock, read, write};
use crate::store::tracking::Tracking;
use crate::store::{Error, Finished};

/// How often the connection is asked whether it is alive, while remembered calls are asked for.
const ASK_EVERY: Duration = Duration::from_millis(200);
/// So many times it is still asked after the last remembered call.
const LINGERS: u32 = 5;
/// The time limit of a connection and of each answer.
const ANSWERED: Duration = Duration::from_secs(1);
/// The shortest time between two connections.
const PAUSE: Duration = Duration::from_secs(1);
/// How long a server is left alone that does not allow tracking.
const REFUSED: Duration = Duration::from_secs(60);

/// Tells a memory of changes, as long as the connection and the store are well.
pub(super) struct Tracker {
    server: Arc<Server>,
    finished: Arc<Finished>,
    wire: RwLock<Option<Wire>>,
    /// Until when no further connection is tried.
    rests_until: Mutex<Option<Instant>>,
    is_refused: AtomicBool,
}

/// The connection that tells of changes.
#[derive(Clone)]
struct Wire {
    connection: MultiplexedConnection,
    tracking: Arc<Tracking>,
}

/// Keeps a connection that tells of changes, as long as a handle of the store is open.
async fn keep_tracking(tracker: Weak<Tracker>) {
    let mut lingers = 0;
    loop {
        let Some(tracker) = tracker.upgrade() else {
            return;
        };
        lingers = tracker.look_after(lingers).await;
        drop(tracker);
        sleep(ASK_EVERY).await;
    }
}

impl Tracker {
    /// Tells this memory of changes from now on, unless it is a cluster.
    pub(super) fn begin(server: &Arc<Server>, finished: &Arc<Finished>) -> Option<Arc<Self>> {
        if server.link.target.is_cluster() || server.status.finished.set(finished.clone()).is_err()
        {
            return None;
        }
        let tracker = Arc::new(Self {
            server: server.clone(),
            finished: finished.clone(),
            wire: RwLock::default(),
            rests_until: Mutex::default(),
            is_refused: false.into(),
        });
        tokio::spawn(keep_tracking(Arc::downgrade(&tracker)));
        Some(tracker)
    }

    /// The call, if it holds this name. From now on the server tells of its changes.
    pub(super) async fn watch(
        &self,
        name: &Lookup,
        call_id: CallId,
    ) -> Result<Option<Record>, Error> {
        let wire = read(&self.wire).clone();
        let Some(wire) = wire.filter(|wire| !wire.tracking.is_over()) else {
            return Err(Error::Refused("no connection tells of changes".into()));
        };
        let names = [Partition::of(name).holder(name), keys::call(call_id)];
        let sent = wire.tracking.now();
        let found = wire.query(&tracked(&names)).await;
        let (found,): (Vec<Value>,) = found.map_err(|error| Error::Refused(error.to_string()))?;
        wire.tracking.answered(sent);
        let [holder, text] = <[Value; 2]>::try_from(found)
            .map_err(|found| Error::Refused(format!("{} answers for two keys", found.len())))?;
        let is_holder =
            matches!(holder, Value::BulkString(id) if id == keys::id(call_id).as_bytes());
        match stored_in(text)? {
            Some(record) if is_holder => Ok(Some(self.server.settled(record).await?)),
            _ => Ok(None),
        }
    }

    /// Connects where there is no connection, and asks the one that there is. Returns how often it is still asked
    /// although no remembered call is.
    async fn look_after(&self, lingers: u32) -> u32 {
        let wire = read(&self.wire).clone();
        let Some(wire) = wire.filter(|wire| !wire.tracking.is_over()) else {
            // Before anything is read for the next one.
            *write(&self.wire) = None;
            self.connect().await;
            return 0;
        };
        let lingers = if wire.tracking.take_asked() {
            LINGERS
        } else {
            lingers
        };
        if lingers == 0 {
            return 0;
        }
        let sent = wire.tracking.now();
        match wire.query::<()>(redis::pipe().cmd("PING").ignore()).await {
            Ok(()) => wire.tracking.answered(sent),
            Err(error) => {
                tracing::debug!(%error, "the connection that tells of changes does not answer");
                self.finished.end_tracking(&wire.tracking);
            }
        }
        lingers - 1
    }

    /// Connects, if the store is ready and the server tells of changes.
    async fn connect(&self) {
        let rests = lock(&self.rests_until).is_some_and(|until| Instant::now() < until);
        if rests || !self.server.status.is_open() {
            return;
        }
        let tracking = self.finished.begin_tracking();
        let late = |_| Err(Why::Failed("no answer in time".into()));
        let connected = timeout(ANSWERED * 4, self.try_connect(&tracking)).await;
        let rest = match connected.unwrap_or_else(late) {
            // It may have been closed before the memory could be told.
            Ok(wire) if self.server.status.is_open() => {
                self.is_refused.store(false, Ordering::Relaxed);
                return *write(&self.wire) = Some(wire);
            }
            Ok(_) => PAUSE,
            Err(Why::Failed(error)) => {
                tracing::debug!(error, "no connection tells of changes");
                PAUSE
            }
            Err(Why::Refused(error)) => {
                if !self.is_refused.swap(true, Ordering::Relaxed) {
                    let text = "Redis does not tell of changes: each replay is read from it";
                    tracing::info!(error, "{text}");
                }
                REFUSED
            }
        };
        self.finished.end_tracking(&tracking);
        *lock(&self.rests_until) = Some(Instant::now() + rest);
    }

    async fn try_connect(&self, tracking: &Arc<Tracking>) -> Result<Wire, Why> {
        let trial = Partition::FIRST.key(&format!("trial:{}", self.server.memory.gateway()));
        let has_told = Arc::new(AtomicBool::new(false));
        let ear = Ear {
            finished: self.finished.clone(),
            tracking: tracking.clone(),
            trial: trial.clone().into_bytes(),
            has_told: has_told.clone(),
        };
        let hear = move |push: PushInfo| {
            ear.hear(push);
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
        begin
            .cmd("CLIENT")
            .arg(("TRACKING", "ON", "OPTIN"))
            .ignore();
        wire.query::<()>(&begin).await.map_err(Why::of_server)?;
        let mut info = redis::pipe();
        info.cmd("INFO").arg("server");
        let (info,): (String,) = wire.query(&info).await?;
        // After a failover the store may still be looked at on another server.
        let run = run_id(&info).unwrap_or_default();
        if run.is_empty() || !read(&self.server.tried_on).contains(&run) {
            return Err(Why::Failed("another server than the store's".into()));
        }
        // What a server does not tell of its own keys, it tells of none.
        let tried = wire.query::<()>(tracked(&[&trial]).ignore()).await;
        tried.map_err(Why::of_server)?;
        let mut change = redis::pipe();
        change.cmd("SET").arg((&trial, "")).ignore();
        change.cmd("DEL").arg(&trial).ignore();
        change.cmd("PING").ignore();
        wire.query::<()>(&change).await?;
        if !has_told.load(Ordering::SeqCst) {
            return Err(Why::Refused("it was not told of a change".into()));
        }
        Ok(wire)
    }
}

/// Why there is no connection.
enum Why {
    /// Another attempt may succeed.
    Failed(String),
    /// The server does not do it, or does not allow it.
    Refused(String),
}

impl Why {
    /// By the answer to a command that some servers refuse.
    fn of_server(error: RedisError) -> Self {
        let text = error.to_string();
        let is_refusal = |(_, error): &(usize, ServerError)| {
            let kind = error.kind();
            matches!(
                kind,
                Some(ServerErrorKind::NoPerm | ServerErrorKind::ResponseError)
            )
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

/// Reads these keys, of whose changes the server tells from then on.
fn tracked(keys: &[impl redis::ToRedisArgs]) -> Pipeline {
    let mut commands = redis::pipe();
    commands.cmd("CLIENT").arg(("CACHING", "YES")).ignore();
    let mut read = Cmd::new();
    read.arg("MGET").arg(keys);
    commands.add_command(read);
    commands
}

/// Hears what the server tells on one connection.
struct Ear {
    finished: Arc<Finished>,
    tracking: Arc<Tracking>,
    /// A key that is only changed to see whether the server tells of it.
    trial: Vec<u8>,
    has_told: Arc<AtomicBool>,
}

impl Ear {
    /// Runs in the task that reads the connection, so before any later answer is passed on.
    fn hear(&self, push: PushInfo) {
        match push.kind {
            PushKind::Invalidate => match push.data.into_iter().next() {
                Some(Value::Array(keys)) => keys.into_iter().for_each(|key| self.is_changed(key)),
                // Everything was deleted.
                _ => self.finished.end_tracking(&self.tracking),
            },
            PushKind::Disconnection => self.finished.end_tracking(&self.tracking),
            _ => {}
        }
    }

    fn is_changed(&self, key: Value) {
        let Value::BulkString(key) = key else {
            return self.finished.end_tracking(&self.tracking);
        };
        match keys::about(&key) {
            Some(About::Name(name)) => self.finished.touch([&name].into_iter()),
            Some(About::Call(call_id)) => self.tracking.changed(call_id),
            None if key == self.trial => self.has_told.store(true, Ordering::SeqCst),
            None => self.finished.end_tracking(&self.tracking),
        }
    }
}
