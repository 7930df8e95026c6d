//! A gateway in this process: the same router, store and loops as the binary's.

use std::fs::OpenOptions;
use std::net::SocketAddr;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use oncegate::app::{self, App, Reloader, WingServices, routes};
use oncegate::config::{Config, Environment};
use oncegate::core::ledger::STATES;
use oncegate::core::record::InstanceId;
use oncegate::core::timings::Timings;
use oncegate::downstream::Downstream;
use oncegate::gateway;
use oncegate::http::{Http, MaxBody, Ops, Tokens};
use oncegate::metrics::Metrics;
use oncegate::store::Store;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::task::{AbortHandle, JoinHandle};
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use super::timings::brisk;
use super::{Answer, PATIENCE, PAUSE, Tool, client, until};

pub struct Gateway {
    pub address: SocketAddr,
    pub ops_address: Option<SocketAddr>,
    pub proxy_address: Option<SocketAddr>,
    pub client: reqwest::Client,
    config: String,
    timings: Timings,
    /// Of a store that is shared; `None`: a file of its own.
    store: Option<String>,
    folder: tempfile::TempDir,
    stop: CancellationToken,
    reloader: Arc<Reloader>,
    running: JoinHandle<Result<(), app::Error>>,
}

/// Opens `/metrics` and the sentences of `/readyz`, unless a test's configuration says how they are guarded.
pub const OPS_TOKEN: &str = "ops";

/// What a configuration has of it.
pub fn ops_token_sha256() -> String {
    hex::encode(<sha2::Sha256 as sha2::Digest>::digest(OPS_TOKEN))
}

/// The configuration of one tool named `act` at this place, and whatever else is said of it.
pub fn one_tool(tool: &Tool, more: &str) -> String {
    format!("[tools.act]\nurl = \"{}\"\n{more}\n", tool.url())
}

impl Gateway {
    /// With one tool named `act`, and whatever else is said of it, in lines of TOML.
    pub async fn with_tool(tool: &Tool, more: &str) -> Self {
        Self::start(&one_tool(tool, more)).await
    }

    /// With this configuration; address and store are the harness's.
    pub async fn start(config: &str) -> Self {
        Self::over(
            tempfile::tempdir().expect("a folder"),
            None,
            config,
            brisk(),
        )
        .await
    }

    /// Over a store at this URL, which others may share.
    pub async fn sharing(store: &str, config: &str) -> Self {
        Self::at_pace(brisk(), store, config).await
    }

    /// The same at another pace than that of most tests.
    pub async fn at_pace(timings: Timings, store: &str, config: &str) -> Self {
        Self::over(
            tempfile::tempdir().expect("a folder"),
            Some(store.to_owned()),
            config,
            timings,
        )
        .await
    }

    async fn over(
        folder: tempfile::TempDir,
        store: Option<String>,
        config: &str,
        timings: Timings,
    ) -> Self {
        if store.is_none() {
            make_sparse_reserve(folder.path());
        }
        let url = store.clone().unwrap_or_else(|| own_store(folder.path()));
        let app = App::build(read_over(&url, folder.path(), config).at_pace(timings))
            .await
            .expect("a gateway");
        let (address, ops_address) = (app.address().expect("an address"), app.ops_address());
        let proxy_address = app.proxy_address();
        let (stop, reloader) = (CancellationToken::new(), app.reloader());
        let running = tokio::spawn(app.run(stop.clone(), CancellationToken::new()));
        let config = config.to_owned();
        Self {
            address,
            ops_address,
            proxy_address,
            client: client(),
            config,
            timings,
            store,
            folder,
            stop,
            reloader,
            running,
        }
    }

    /// Takes over another configuration while it runs. Whether it did.
    pub async fn reload(&self, config: &str) -> bool {
        let url = self
            .store
            .clone()
            .unwrap_or_else(|| own_store(self.folder.path()));
        let config = read_over(&url, self.folder.path(), config).at_pace(self.timings);
        self.reloader.reload(Ok(config)).await.is_some()
    }

    /// Over a shared store, with what an earlier gateway has left in its folder.
    pub async fn again(folder: tempfile::TempDir, store: &str, config: &str) -> Self {
        Self::over(folder, Some(store.to_owned()), config, brisk()).await
    }

    /// What it lives in.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Waits until calls may be claimed.
    pub async fn until_ready(&self) {
        let patience = Instant::now() + PATIENCE;
        loop {
            let said = self.get("/readyz").await;
            if said.status == 200 {
                return;
            }
            assert!(
                Instant::now() < patience,
                "not in time: it is ready: {}",
                said.text
            );
            sleep(PAUSE).await;
        }
    }

    /// Why calls may not be claimed, in one text; empty if they may.
    pub async fn reasons(&self) -> String {
        let reasons = self.get("/readyz").await.at("/reasons");
        reasons
            .as_array()
            .expect("a list")
            .iter()
            .map(Value::to_string)
            .collect::<Vec<_>>()
            .join("; ")
    }

    pub fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    pub fn database(&self) -> PathBuf {
        self.folder.path().join("oncegate.db")
    }

    /// Calls `act` with these arguments.
    pub async fn call(&self, args: Value) -> Answer {
        self.post("act", &json!({ "args": args }), &[]).await
    }

    /// Calls `act` with this key.
    pub async fn call_with_key(&self, key: &str, args: Value) -> Answer {
        self.post("act", &json!({ "args": args }), &[("idempotency-key", key)])
            .await
    }

    pub async fn post(&self, tool: &str, body: &Value, headers: &[(&str, &str)]) -> Answer {
        self.post_text(tool, body.to_string(), headers).await
    }

    pub async fn post_text(&self, tool: &str, body: String, headers: &[(&str, &str)]) -> Answer {
        let mut request = self
            .client
            .post(self.url(&format!("/v1/tools/{tool}/calls")))
            .body(body);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        Answer::to(request).await
    }

    /// Posts to any endpoint.
    pub async fn post_to(&self, path: &str, body: &Value) -> Answer {
        Answer::to(self.client.post(self.url(path)).body(body.to_string())).await
    }

    /// The same with this token.
    pub async fn post_as(&self, token: &str, path: &str, body: &Value) -> Answer {
        let request = self.client.post(self.url(path)).bearer_auth(token);
        Answer::to(request.body(body.to_string())).await
    }

    /// Says what became of an unknown call.
    pub async fn resolve(&self, call: &Answer, body: &Value) -> Answer {
        let path = format!("/v1/calls/{}/resolve", call.id());
        self.post_to(&path, body).await
    }

    pub async fn get(&self, path: &str) -> Answer {
        let mut request = self.client.get(self.url(path));
        if matches!(path, "/metrics" | "/readyz") {
            request = request.bearer_auth(OPS_TOKEN);
        }
        Answer::to(request).await
    }

    /// What an operator does when the store has lost data.
    pub async fn accept_loss(&self, reason: &str) -> Answer {
        let body = json!({ "reason": reason }).to_string();
        let end = Instant::now() + PATIENCE;
        loop {
            let request = self
                .client
                .post(self.url("/v1/store/accept-loss"))
                .body(body.clone());
            let answer = Answer::to(request).await;
            // Another gateway has just written what it has found. An operator does as the text says.
            let is_under_way = answer.status == 202;
            if !is_under_way && !answer.text.contains("try again") || Instant::now() > end {
                return answer;
            }
        }
    }

    /// The ledger's view of the call that an answer is about.
    pub async fn record(&self, answer: &Answer) -> Answer {
        self.get(&format!("/v1/calls/{}", answer.id()))
            .await
            .expect_ok()
    }

    /// The value of one line of `/metrics`, 0 if it is not there.
    pub async fn metric(&self, line: &str) -> f64 {
        let text = self.get("/metrics").await.expect_ok().text;
        let value = text
            .lines()
            .find_map(|have| have.strip_prefix(line)?.strip_prefix(' '))
            .map(str::parse);
        value.map_or(0.0, |value| value.expect("a number"))
    }

    /// Says that it shall stop, without waiting for it.
    pub fn begin_stop(&self) {
        self.stop.cancel();
    }

    /// Stops in good order and makes sure that nothing is left as running.
    pub async fn stop(self) -> tempfile::TempDir {
        self.stop.cancel();
        // Or its open connections would be waited for until the shutdown grace has passed.
        drop(self.client);
        self.running.await.expect("no panic").expect("a good end");
        drop(self.reloader);
        if self
            .store
            .as_ref()
            .is_some_and(|store| !store.starts_with("sqlite:"))
        {
            is_free(&self.folder.path().join("watermarks.lock")).await;
            return self.folder;
        }
        store_is_free(self.folder.path()).await;
        assert_eq!(
            count(&self.folder.path().join("oncegate.db"), "running"),
            0,
            "a call was left running"
        );
        self.folder
    }

    /// Stops in good order and starts again over the same store.
    pub async fn restart(self) -> Self {
        let config = self.config.clone();
        self.restart_with(&config).await
    }

    /// The same, with another configuration.
    pub async fn restart_with(self, config: &str) -> Self {
        let (store, timings) = (self.store.clone(), self.timings);
        let gateway = Self::over(self.stop().await, store, config, timings).await;
        gateway.until_ready().await;
        gateway
    }
}

/// A gateway and its router over a store of the test's own, without loops.
pub struct Bare {
    pub gateway: Arc<gateway::Gateway>,
    pub wings: WingServices,
    pub url: String,
    serving: AbortHandle,
}

impl Bare {
    /// With one tool named `act`, and whatever else is said of it, in lines of TOML.
    pub async fn over(store: impl Store, instance: InstanceId, tool: &Tool, more: &str) -> Self {
        Self::over_shared(Arc::new(store), instance, tool, more).await
    }

    /// The same over one that the test goes on with.
    pub async fn over_shared(
        store: Arc<dyn Store>,
        instance: InstanceId,
        tool: &Tool,
        more: &str,
    ) -> Self {
        drop(client());
        let config = read(Path::new("nowhere"), &one_tool(tool, more));
        let endpoints = config.tools.iter().map(|at| &at.endpoint);
        let downstream = Downstream::new(endpoints, 1 << 20).expect("a client");
        let metrics = Arc::new(Metrics::new());
        // On a busy machine calls must not be given up that are about to end.
        let limits = gateway::Limits {
            shutdown_grace: Duration::from_secs(10),
            ..config.limits
        };
        let gateway = Arc::new(gateway::Gateway::new(gateway::Parts {
            store,
            downstream,
            tools: config.tools,
            metrics,
            instance,
            limits,
            webhook: config.webhook,
        }));
        let mut settings = config.wings;
        let wings = WingServices::new(&gateway, config.upstreams, &mut settings);
        let http = Http {
            gateway: gateway.clone(),
            tokens: Tokens::default(),
            max_body: MaxBody {
                bytes: 1 << 20,
                time: Duration::from_secs(30),
            },
            ops: Ops::CodesOnly,
            is_tls: false,
        };
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let url = format!(
            "http://{}/v1/tools/act/calls",
            listener.local_addr().expect("an address")
        );
        let router = routes::router(http, &wings);
        let serving = tokio::spawn(async move { axum::serve(listener, router).await });
        Self {
            gateway,
            wings,
            url,
            serving: serving.abort_handle(),
        }
    }

    /// The URL of another endpoint than that of the calls.
    pub fn url_of(&self, path: &str) -> String {
        self.url.replace("/v1/tools/act/calls", path)
    }

    /// Ends what runs, and takes nothing more.
    pub async fn stop(self) {
        self.gateway.shut_down().await;
        self.serving.abort();
    }
}

/// Waits until the files of the store are closed.
///
/// The threads of a store take a moment to end. And a process that another test has just started has all open files of this
/// process until it runs its own program.
pub async fn store_is_free(folder: &Path) {
    for file in ["oncegate.db.lock", "oncegate.db"] {
        is_free(&folder.join(file)).await;
    }
}

async fn is_free(lock: &Path) {
    let lock = std::fs::File::open(lock).expect("a lock");
    until("the store is free", async || lock.try_lock().is_ok()).await;
    // A process that another test starts at this moment has this file open, too, so that closing it here is not enough.
    lock.unlock().expect("unlocked");
}

/// A line of a configuration: there are two seconds to decide about a call that waits for approval.
pub const SOON: &str = "# asks expire soon";

/// A configuration over a folder. The address is any free one.
pub fn read(folder: &Path, config: &str) -> Config {
    read_over(&own_store(folder), folder, config)
}

/// The reserve of a file, with its size and without blocks. A gateway would write 16 MiB, a third of the time that its start
/// takes. Full disks are tried with gateways that are processes of their own.
pub fn make_sparse_reserve(folder: &Path) {
    let path = folder.join("oncegate.db.reserve");
    let mut options = OpenOptions::new();
    let made = options.write(true).create_new(true).mode(0o600).open(path);
    // A gateway that was here before has left one.
    let Ok(file) = made else { return };
    file.set_len(16 << 20).expect("a size");
}

fn own_store(folder: &Path) -> String {
    format!("sqlite:{}", folder.join("oncegate.db").display())
}

fn read_over(store: &str, folder: &Path, config: &str) -> Config {
    let mut environment = Environment::from([
        (
            "ONCEGATE_SERVER__LISTEN".to_owned(),
            "127.0.0.1:0".to_owned(),
        ),
        (
            "ONCEGATE_SERVER__SHUTDOWN_GRACE".to_owned(),
            "1s".to_owned(),
        ),
        ("ONCEGATE_STORE__URL".to_owned(), store.to_owned()),
    ]);
    if !config.contains("ops_") {
        environment.insert("ONCEGATE_SERVER__OPS_TOKEN".to_owned(), ops_token_sha256());
    }
    if let Some((url, schema)) = store.split_once('#') {
        environment.insert("ONCEGATE_STORE__URL".to_owned(), url.to_owned());
        environment.insert("ONCEGATE_STORE__SCHEMA".to_owned(), schema.to_owned());
    }
    if !store.starts_with("sqlite") {
        let watermarks = folder.join("watermarks").display().to_string();
        environment.insert("ONCEGATE_STORE__WATERMARKS".to_owned(), watermarks);
    }
    let mut read =
        Config::read(config, &environment).unwrap_or_else(|mistakes| panic!("{mistakes:#?}"));
    if config.contains(SOON) {
        let rules = read.tools.iter_mut();
        for rule in rules.filter_map(|at| at.tool.approval.as_mut()) {
            rule.expires = Duration::from_secs(2);
        }
    }
    read.at_pace(brisk())
}

/// How many calls of a store are in this state.
pub fn count(database: &Path, state: &str) -> u64 {
    let place = STATES
        .iter()
        .position(|one| *one == state)
        .expect("a state");
    count_where(database, &format!("calls WHERE state = {place}"))
}

/// How many rows of a store are so.
pub fn count_where(database: &Path, rows: &str) -> u64 {
    let flags = rusqlite::OpenFlags::SQLITE_OPEN_READ_ONLY;
    let connection = rusqlite::Connection::open_with_flags(database, flags).expect("a store");
    connection
        .query_row(&format!("SELECT count(*) FROM {rows}"), [], |row| {
            row.get::<_, i64>(0)
        })
        .expect("a count")
        .unsigned_abs()
}
