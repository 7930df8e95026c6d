//! The connection: sends scripts and commands, and judges what their failures prove.
//!
//! A command is sent only once, with one exception: a server said that it has not run it (`MOVED`, `ASK`, `TRYAGAIN`).

pub(crate) mod answer; // answers of scripts and commands
pub(crate) mod barrier; // WAIT, for writes that replicas must have
pub(crate) mod subscriber; // hears the ends of other gateways' calls
pub(crate) mod tracker; // hears what other gateways change

use std::sync::{Arc, RwLock};
use std::time::Duration;

use futures_util::future::try_join_all;
use redis::aio::{ConnectionLike, ConnectionManager, ConnectionManagerConfig};
use redis::cluster::ClusterClientBuilder;
use redis::cluster_async::ClusterConnection;
use redis::cluster_routing::{MultipleNodeRoutingInfo, RoutingInfo, SingleNodeRoutingInfo};
use redis::sentinel::{SentinelClientBuilder, SentinelServerType};
use redis::{
    Client, Cmd, ErrorKind, FromRedisValue, Pipeline, PushInfo, RedisError, RedisFuture,
    RedisResult, Script, ServerErrorKind, TlsCertificates, ToRedisArgs, Value,
};
use tokio::sync::Notify;
use tokio::time::sleep;

use super::keys::Partition;
use super::scripts::{Run, command};
use super::target::{Kind, Target, no_delay};
use oncegate_store::lock::{read, write};
use oncegate_store::{Error, Result};

/// The time limit of a command. Longer than a slow fsync.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(1);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
/// How many keys one `EXISTS` asks for.
const EXIST_AT_ONCE: usize = 8;
/// How often a command that no server has run is sent again.
const RESENDS: usize = 5;

/// One connection, shared by all requests.
#[derive(Clone)]
pub(super) enum Wire {
    One(ConnectionManager),
    Cluster(ClusterConnection),
}

impl ConnectionLike for Wire {
    fn req_packed_command<'a>(&'a mut self, cmd: &'a Cmd) -> RedisFuture<'a, Value> {
        match self {
            Self::One(manager) => manager.req_packed_command(cmd),
            Self::Cluster(cluster) => cluster.req_packed_command(cmd),
        }
    }

    fn req_packed_commands<'a>(
        &'a mut self,
        pipeline: &'a Pipeline,
        offset: usize,
        count: usize,
    ) -> RedisFuture<'a, Vec<Value>> {
        match self {
            Self::One(manager) => manager.req_packed_commands(pipeline, offset, count),
            Self::Cluster(cluster) => cluster.req_packed_commands(pipeline, offset, count),
        }
    }

    fn get_db(&self) -> i64 {
        match self {
            Self::One(manager) => manager.get_db(),
            Self::Cluster(cluster) => cluster.get_db(),
        }
    }
}

/// The connection to a Redis. It is made by [`connect`](Self::connect) only.
pub(super) struct Link {
    pub(super) target: Target,
    tls: Option<TlsCertificates>,
    /// How long a command waits for its answer.
    response_timeout: Duration,
    wire: RwLock<Option<Wire>>,
    /// Notified when the Redis should be inspected at once.
    pub(super) trouble: Arc<Notify>,
}

impl Link {
    pub(super) fn new(target: Target, tls: Option<TlsCertificates>) -> Self {
        Self {
            target,
            tls,
            response_timeout: RESPONSE_TIMEOUT,
            wire: RwLock::default(),
            trouble: Arc::default(),
        }
    }

    /// A second link to the same Redis, for blocking commands and subscriptions.
    pub(super) fn beside(&self, response_timeout: Duration) -> Self {
        Self {
            response_timeout,
            ..Self::new(self.target.clone(), self.tls.clone())
        }
    }

    pub(super) fn is_connected(&self) -> bool {
        read(&self.wire).is_some()
    }

    /// Forgets the connection; the next [`connect`](Self::connect) makes a new one.
    pub(super) fn disconnect(&self) {
        write(&self.wire).take();
    }

    /// Connects, after asking the sentinels, if any, for the master. `hear` gets the server's pushes.
    pub(super) async fn connect<F>(&self, hear: F) -> RedisResult<Wire>
    where
        F: Fn(PushInfo) + Send + Sync + 'static,
    {
        let hear = move |push: PushInfo| {
            hear(push);
            Ok::<_, redis::aio::SendError>(())
        };
        let wire = match &self.target.kind {
            Kind::Cluster => {
                let mut builder = ClusterClientBuilder::new(self.target.nodes.clone())
                    // A command whose answer is lost may have run: it is never sent again by itself.
                    .retries(0)
                    .connection_timeout(CONNECT_TIMEOUT)
                    .response_timeout(self.response_timeout)
                    .tcp_settings(no_delay())
                    .use_protocol(redis::ProtocolVersion::RESP3)
                    .push_sender(hear);
                if let Some(tls) = &self.tls {
                    builder = builder.certs(tls.clone());
                }
                Wire::Cluster(builder.build()?.get_async_connection().await?)
            }
            _ => {
                let client = self.client().await?;
                let config = ConnectionManagerConfig::new()
                    .set_number_of_retries(1)
                    .set_min_delay(Duration::from_millis(20))
                    .set_max_delay(Duration::from_millis(100))
                    .set_connection_timeout(Some(CONNECT_TIMEOUT))
                    .set_response_timeout(Some(self.response_timeout))
                    .set_pipeline_buffer_size(512)
                    .set_push_sender(hear)
                    .set_automatic_resubscription();
                Wire::One(ConnectionManager::new_with_config(client, config).await?)
            }
        };
        *write(&self.wire) = Some(wire.clone());
        Ok(wire)
    }

    /// A client of the single master, or of the master that sentinels name.
    pub(super) async fn client(&self) -> RedisResult<Client> {
        match (&self.target.kind, &self.tls) {
            (Kind::Sentinel { name, db }, _) => self.find_master(name, *db).await,
            (_, Some(tls)) => Client::build_with_tls(self.target.nodes[0].clone(), tls.clone()),
            (_, None) => Client::open(self.target.nodes[0].clone()),
        }
    }

    async fn find_master(&self, name: &str, db: i64) -> RedisResult<Client> {
        let addresses = self.target.nodes.iter().map(|node| node.addr().clone());
        let mut builder = SentinelClientBuilder::new(addresses, name, SentinelServerType::Master)?
            .set_client_to_redis_db(db)
            .set_client_to_redis_protocol(redis::ProtocolVersion::RESP3)
            .set_client_to_redis_tcp_settings(no_delay());
        let first = &self.target.nodes[0];
        if let Some(username) = first.redis_settings().username() {
            builder = builder.set_client_to_redis_username(username);
        }
        if let Some(password) = first.redis_settings().password() {
            builder = builder.set_client_to_redis_password(password);
        }
        if matches!(first.addr(), redis::ConnectionAddr::TcpTls { .. }) {
            builder = builder
                .set_client_to_redis_tls_mode(redis::TlsMode::Secure)
                .set_client_to_sentinel_tls_mode(redis::TlsMode::Secure);
        }
        if let Some(tls) = &self.tls {
            builder = builder
                .set_client_to_redis_certificates(tls.clone())
                .set_client_to_sentinel_certificates(tls.clone());
        }
        let mut sentinels = builder.build()?;
        let found = tokio::time::timeout(CONNECT_TIMEOUT * 3, sentinels.async_get_client()).await;
        found.unwrap_or_else(|_| Err((ErrorKind::Io, "no sentinel answered").into()))
    }

    fn wire(&self) -> Result<Wire> {
        let wire = read(&self.wire).clone();
        wire.ok_or_else(|| Error::Refused("not connected to Redis".into()))
    }

    /// Runs one command.
    pub(super) async fn ask<T: FromRedisValue>(
        &self,
        name: &str,
        arguments: impl ToRedisArgs,
    ) -> Result<T> {
        self.ask_command(&command(name, arguments)).await
    }

    async fn ask_command<T: FromRedisValue>(&self, command: &Cmd) -> Result<T> {
        let answer = self.send(command).await?;
        answer.map_err(|error| self.judge(&error))
    }

    /// Sends one command, and again if a server says that it has not run it.
    async fn send<T: FromRedisValue>(&self, command: &Cmd) -> Result<RedisResult<T>> {
        let mut wire = self.wire()?;
        let mut resends = RESENDS;
        loop {
            let mut answer = command.query_async(&mut wire).await;
            if let (Wire::Cluster(cluster), Err(error)) = (&mut wire, &answer)
                && let Some(to) = asks_elsewhere(error)
            {
                answer = ask_at(to, cluster, command).await;
            }
            match answer {
                Err(error) if has_not_run(&error) && resends > 0 => {
                    resends -= 1;
                    sleep(Duration::from_millis(20)).await;
                }
                answer => return Ok(answer),
            }
        }
    }

    /// Runs one script, loading it if the server does not have it.
    pub(super) async fn run(&self, run: &Run<'_>) -> Result<Value> {
        if let Some(answer) = self.run_if_loaded(run).await? {
            return Ok(answer);
        }
        let mut wire = self.wire()?;
        let loaded = run.script.load_async(&mut wire).await;
        loaded.map_err(|error| self.judge(&error))?;
        let answer = self.run_if_loaded(run).await?;
        answer.ok_or_else(|| Error::Refused("the server forgets its scripts".into()))
    }

    /// Runs one script; `None` if the server does not have it.
    ///
    /// A restarted server has no scripts, so this cannot write to data that was not inspected since.
    pub(super) async fn run_if_loaded(&self, run: &Run<'_>) -> Result<Option<Value>> {
        match self.send(&run.command()).await? {
            Ok(answer) => Ok(Some(answer)),
            Err(error) if lacks_script(&error) => Ok(None),
            Err(error) => Err(self.judge(&error)),
        }
    }

    /// Sends every master the same command.
    pub(super) async fn ask_masters(&self, command: Cmd) -> Result<Vec<Value>> {
        match self.wire()? {
            Wire::One(mut manager) => {
                let answer = command.query_async(&mut manager).await;
                Ok(vec![answer.map_err(|error| self.judge(&error))?])
            }
            Wire::Cluster(mut cluster) => {
                let masters = RoutingInfo::MultiNode((MultipleNodeRoutingInfo::AllMasters, None));
                let answer = cluster.route_command(command, masters).await;
                match answer.map_err(|error| self.judge(&error))? {
                    Value::Map(answers) => {
                        Ok(answers.into_iter().map(|(_, answer)| answer).collect())
                    }
                    other => Ok(vec![other]),
                }
            }
        }
    }

    /// Runs one command whose failure needs no inspection of the Redis.
    pub(super) async fn ask_quietly<T: FromRedisValue>(
        &self,
        name: &str,
        arguments: impl ToRedisArgs,
    ) -> Result<T> {
        let mut wire = self.wire()?;
        let answer = command(name, arguments).query_async(&mut wire).await;
        answer.map_err(|error: RedisError| Error::Refused(error.to_string()))
    }

    /// Runs a command for each partition.
    pub(super) async fn ask_each<T: FromRedisValue>(
        &self,
        command: impl Fn(Partition) -> Cmd,
    ) -> Result<Vec<T>> {
        self.ask_many(Partition::all().map(command)).await
    }

    /// Runs many commands; in one pipeline, except over a cluster.
    pub(super) async fn ask_many<T: FromRedisValue>(
        &self,
        commands: impl Iterator<Item = Cmd>,
    ) -> Result<Vec<T>> {
        let commands: Vec<Cmd> = commands.collect();
        if commands.is_empty() {
            return Ok(Vec::new());
        }
        match self.wire()? {
            Wire::One(mut manager) => {
                let mut all = redis::pipe();
                for command in commands {
                    all.add_command(command);
                }
                let answers = all.query_async(&mut manager).await;
                answers.map_err(|error| self.judge(&error))
            }
            Wire::Cluster(_) => {
                try_join_all(commands.iter().map(|command| self.ask_command(command))).await
            }
        }
    }

    /// Runs commands one after the other; in one round trip, except over a cluster.
    ///
    /// # Errors
    /// One has failed. Those after it may have run all the same.
    pub(super) async fn ask_in_order(&self, commands: Vec<Cmd>) -> Result<Vec<Value>> {
        match self.wire()? {
            Wire::One(mut manager) => {
                let mut all = redis::pipe();
                all.ignore_errors();
                for command in commands {
                    all.add_command(command);
                }
                let answers = all.query_async(&mut manager).await;
                let answers: Vec<RedisResult<Value>> =
                    answers.map_err(|error| self.judge(&error))?;
                let judged = |answer: RedisResult<_>| answer.map_err(|error| self.judge(&error));
                answers.into_iter().map(judged).collect()
            }
            Wire::Cluster(_) => {
                let mut answers = Vec::with_capacity(commands.len());
                for command in &commands {
                    answers.push(self.ask_command(command).await?);
                }
                Ok(answers)
            }
        }
    }

    /// The texts at these keys; by one command, except over a cluster.
    pub(super) async fn get_all(
        &self,
        keys: impl Iterator<Item = String>,
    ) -> Result<Vec<Option<Vec<u8>>>> {
        let keys: Vec<String> = keys.collect();
        if keys.is_empty() {
            return Ok(Vec::new());
        }
        match self.wire()? {
            Wire::One(_) => self.ask("MGET", keys).await,
            Wire::Cluster(_) => {
                let gets = keys.into_iter().map(|key| command("GET", key));
                self.ask_many(gets).await
            }
        }
    }

    /// Drops keys that do not exist, as far as few commands can tell; over a cluster none.
    pub(super) async fn existing(&self, mut keys: Vec<String>) -> Result<Vec<String>> {
        if matches!(self.wire()?, Wire::One(_)) {
            // Mostly none of them exists, which one command tells.
            for at_once in [keys.len().max(1), EXIST_AT_ONCE] {
                let chunks: Vec<&[String]> = keys.chunks(at_once).collect();
                let exists = chunks.iter().map(|chunk| command("EXISTS", *chunk));
                let existing: Vec<u64> = self.ask_many(exists).await?;
                let chunks = chunks.into_iter().zip(existing);
                let chunks = chunks.filter(|(_, existing)| *existing > 0);
                keys = chunks.flat_map(|(chunk, _)| chunk.to_vec()).collect();
            }
        }
        Ok(keys)
    }

    /// Sends every master the same command; `None` where it is forbidden or unknown.
    pub(super) async fn ask_masters_if_allowed(&self, command: Cmd) -> Result<Option<Vec<Value>>> {
        const REFUSALS: [&str; 4] = [
            "NOPERM",
            "no permissions",
            "unknown command",
            "unknown subcommand",
        ];
        match self.ask_masters(command).await {
            Err(Error::Refused(why) | Error::Ambiguous(why))
                if REFUSALS.iter().any(|refusal| why.contains(refusal)) =>
            {
                Ok(None)
            }
            answers => answers.map(Some),
        }
    }

    /// Runs commands one after the other, at the server that has the keys of the first.
    ///
    /// If the server lacks the script, loads it and runs all of them again.
    pub(super) async fn ask_in_turn<T: FromRedisValue>(
        &self,
        commands: &Pipeline,
        script: &Script,
    ) -> Result<T> {
        let mut wire = self.wire()?;
        let mut answer = commands.query_async(&mut wire).await;
        if answer.as_ref().is_err_and(lacks_script) {
            let loaded = script.load_async(&mut wire).await;
            loaded.map_err(|error| self.judge(&error))?;
            answer = commands.query_async(&mut wire).await;
        }
        answer.map_err(|error| self.judge(&error))
    }

    /// What a failure proves. Refused only if the command surely was not run; otherwise ambiguous.
    fn judge(&self, error: &RedisError) -> Error {
        let refused = match error.kind() {
            ErrorKind::Server(kind) => matches!(
                kind,
                ServerErrorKind::BusyLoading
                    | ServerErrorKind::NoScript
                    | ServerErrorKind::Moved
                    | ServerErrorKind::Ask
                    | ServerErrorKind::TryAgain
                    | ServerErrorKind::ClusterDown
                    | ServerErrorKind::CrossSlot
                    | ServerErrorKind::MasterDown
                    | ServerErrorKind::ReadOnly
            ),
            ErrorKind::Extension => matches!(
                error.code(),
                Some("OOM" | "NOREPLICAS" | "MISCONF" | "BUSY" | "NOAUTH" | "WRONGPASS")
            ),
            ErrorKind::AuthenticationFailed
            | ErrorKind::ClusterConnectionNotFound
            | ErrorKind::InvalidClientConfig
            | ErrorKind::MasterNameNotFoundBySentinel
            | ErrorKind::EmptySentinelList => true,
            ErrorKind::Io => error.is_connection_refusal(),
            _ => false,
        };
        self.trouble.notify_one();
        if refused {
            Error::Refused(error.to_string())
        } else {
            Error::Ambiguous(error.to_string())
        }
    }
}

fn lacks_script(error: &RedisError) -> bool {
    error.kind() == ErrorKind::Server(ServerErrorKind::NoScript)
}

/// The address to which a server redirects a command whose keys have moved, while their slot moves.
fn asks_elsewhere(error: &RedisError) -> Option<SingleNodeRoutingInfo> {
    if error.kind() != ErrorKind::Server(ServerErrorKind::Ask) {
        return None;
    }
    let (host, port) = error.redirect_node()?.0.rsplit_once(':')?;
    Some(SingleNodeRoutingInfo::ByAddress {
        host: host.to_owned(),
        port: port.parse().ok()?,
    })
}

async fn ask_at<T: FromRedisValue>(
    to: SingleNodeRoutingInfo,
    cluster: &mut ClusterConnection,
    command: &Cmd,
) -> RedisResult<T> {
    let mut asking = redis::pipe();
    asking.cmd("ASKING").ignore().add_command(command.clone());
    let answers = cluster.route_pipeline(asking, 1, 1, to).await?;
    let answer = answers.into_iter().next().unwrap_or(Value::Nil);
    Ok(T::from_redis_value(answer.extract_error()?)?)
}

/// Whether the command surely was not run, and may be in a moment.
fn has_not_run(error: &RedisError) -> bool {
    matches!(
        error.kind(),
        ErrorKind::Server(
            ServerErrorKind::Moved | ServerErrorKind::Ask | ServerErrorKind::TryAgain
        ) | ErrorKind::ClusterConnectionNotFound
    )
}

#[cfg(test)]
mod tests;
