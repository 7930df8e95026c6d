//! Connections: made with their limits, asked, and given up when the server is silent.

mod assignment; // which lane a verb gets
pub(crate) mod lanes; // few connections over which all callers write
pub(crate) mod rows; // rows that functions take

use std::collections::HashMap;
use std::future::poll_fn;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use rustls::{ClientConfig, RootCertStore};
use rustls_platform_verifier::ConfigVerifierExt as _;
use serde::de::DeserializeOwned;
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout};
use tokio_postgres::error::{Severity, SqlState};
use tokio_postgres::types::ToSql;
use tokio_postgres::{AsyncMessage, Client, Config, Row, Statement};
use tokio_postgres_rustls::MakeRustlsConnect;
use uuid::Uuid;

use super::target::{SILENT, Settings};
use crate::checks::durability::{not_postgres, unusable};
use crate::link::rows::{get, unreadable};
use oncegate_rules::record::CallId;
use oncegate_store::lock::lock;
use oncegate_store::shared::OpenError;
use oncegate_store::status::Status;
use oncegate_store::{Endings, Error, Found, Reason, Result, UNREADABLE};

const POOLER: &str = "a pooler stands between the gateway and PostgreSQL: it hides failovers, and mixes the settings of clients or \
                      refuses them; connect to PostgreSQL itself, a gateway keeps six connections";

/// For how long a connection that could not be made stands for others. In an outage each call would otherwise dial several times,
/// and a standby that becomes the primary would be busy with them.
const FAILURE_STANDS: Duration = Duration::from_millis(200);

/// A value that a verb sends.
pub(crate) type Param = Box<dyn ToSql + Sync + Send>;

/// The values of a list of parameters, each in a box of its own.
macro_rules! params {
    ($($value:expr),* $(,)?) => {{
        let all: Vec<$crate::link::Param> = vec![$(Box::new($value)),*];
        all
    }};
}
pub(crate) use params;

/// Makes connections to the primary of a store.
pub(crate) struct Dialer {
    config: Config,
    /// Without the settings of the gateway's connections.
    plain: Config,
    tls: MakeRustlsConnect,
    /// Proves that the server sees the options of a connection. A pooler between them would not pass them on.
    mark: String,
    /// On which ends of calls are told.
    pub(crate) channel: String,
    /// When a connection could not be made last, and why, if none was made since.
    failed: Mutex<Option<(Instant, Error)>>,
    status: Arc<Status>,
    /// Told of trouble with a connection.
    pub(crate) trouble: Arc<Notify>,
    pub(crate) endings: Arc<Endings>,
}

impl Dialer {
    pub(crate) fn new(settings: &Settings, status: Arc<Status>) -> Result<Self, OpenError> {
        let mark = Uuid::new_v4().simple().to_string();
        let schema = settings.schema.as_str();
        // A transaction never waits for a gateway: its verbs are sent together with its commit.
        let options = format!(
            "-c search_path={schema} -c lock_timeout=1000 -c statement_timeout=5000 \
             -c idle_in_transaction_session_timeout=5000 -c plan_cache_mode=force_generic_plan \
             -c jit=off -c enable_seqscan=off -c enable_hashjoin=off -c enable_mergejoin=off \
             -c client_min_messages=warning -c oncegate.connection={mark}"
        );
        Ok(Self {
            config: settings.target.config(&options),
            plain: settings.target.config(""),
            tls: MakeRustlsConnect::new(tls(settings)?),
            mark,
            channel: format!("oncegate_{schema}"),
            failed: Mutex::default(),
            status,
            trouble: Arc::default(),
            endings: Arc::default(),
        })
    }

    /// Connects to the primary, if that has not just failed.
    async fn connect_if_hopeful(&self) -> Result<Arc<Link>> {
        let failed = lock(&self.failed).clone();
        match failed.filter(|(at, _)| at.elapsed() < FAILURE_STANDS) {
            Some((_, error)) => Err(error),
            None => self.connect().await,
        }
    }

    /// Connects to the primary.
    pub(crate) async fn connect(&self) -> Result<Arc<Link>> {
        let connected = self.try_to_connect().await;
        let failed = connected.as_ref().err();
        *lock(&self.failed) = failed.map(|error| (Instant::now(), error.clone()));
        connected
    }

    async fn try_to_connect(&self) -> Result<Arc<Link>> {
        let connect = async {
            let connected = self.config.connect(self.tls.clone()).await;
            let (client, mut connection) = match connected {
                Ok(connected) => connected,
                Err(error) => return Err(self.not_connected(error).await),
            };
            let warnings = Arc::new(AtomicU64::new(0));
            let (count, status) = (warnings.clone(), self.status.clone());
            let (trouble, endings) = (self.trouble.clone(), self.endings.clone());
            let driver = tokio::spawn(async move {
                while let Some(Ok(message)) = poll_fn(|cx| connection.poll_message(cx)).await {
                    match message {
                        // It comes before the answer that it is about.
                        AsyncMessage::Notice(notice)
                            if notice.parsed_severity() == Some(Severity::Warning) =>
                        {
                            count.fetch_add(1, Ordering::SeqCst);
                            tracing::warn!(warning = notice.message(), "PostgreSQL warns");
                        }
                        AsyncMessage::Notification(note) => {
                            let ids = note.payload().split(' ').map(Uuid::parse_str);
                            ids.flatten().for_each(|id| endings.say(CallId(id)));
                        }
                        _ => {}
                    }
                }
                // The next server to answer may be another one, or the same with other data.
                let text = "a connection to PostgreSQL was lost";
                status.close_for(&Reason::new("disconnected", text));
                trouble.notify_one();
            });
            let link = Arc::new(Link {
                client,
                statements: Mutex::default(),
                warnings,
                driver,
            });
            let sql =
                "SELECT coalesce(current_setting('oncegate.connection', true), ''), version()";
            let row = link.client.query_one(sql, &[]).await.map_err(refused)?;
            let (seen, version): (&str, &str) = (row.get(0), row.get(1));
            if let Some(why) = not_postgres(version) {
                return Err(Error::Refused(why));
            }
            if seen != self.mark {
                return Err(Error::Refused(POOLER.into()));
            }
            Ok(link)
        };
        let late = |_| Error::Refused("PostgreSQL did not answer in time".into());
        timeout(2 * SILENT, connect).await.map_err(late)?
    }

    /// Why a connection could not be made.
    async fn not_connected(&self, error: tokio_postgres::Error) -> Error {
        // PgBouncer has no code of its own for it.
        if said(&error).contains("unsupported startup parameter") {
            return Error::Refused(POOLER.into());
        }
        if said(&error).contains("database does not allow writes") {
            let why = "each server is a standby or read-only; name the primary, too";
            return Error::Refused(why.into());
        }
        // A server of another kind, or an old one, does not know all settings.
        if error.code() == Some(&SqlState::UNDEFINED_OBJECT)
            && let Some(version) = self.version().await
            && let Some(why) = unusable(&version)
        {
            return Error::Refused(why);
        }
        refused(error)
    }

    /// What the server says that it is.
    async fn version(&self) -> Option<String> {
        let (client, connection) = self.plain.connect(self.tls.clone()).await.ok()?;
        tokio::spawn(async move { drop(connection.await) });
        let row = client.query_one("SELECT version()", &[]).await.ok()?;
        row.try_get(0).ok()
    }

    /// Begins to hear of the ends of other gateways' calls.
    pub(crate) async fn listen(&self, link: &Link) -> Result<()> {
        let listen = format!("LISTEN {}", self.channel);
        link.client.batch_execute(&listen).await.map_err(refused)
    }
}

/// How a server is verified. Without TLS the value is not used.
fn tls(settings: &Settings) -> Result<ClientConfig, OpenError> {
    let mut roots = RootCertStore::empty();
    match settings.target.root.as_ref().or(settings.ca.as_ref()) {
        Some(path) => {
            let unreadable = |why: String| OpenError::Ca(path.clone(), why);
            let found = CertificateDer::pem_file_iter(path).and_then(Iterator::collect);
            let found: Vec<_> = found.map_err(|error| unreadable(error.to_string()))?;
            for certificate in found {
                let added = roots.add(certificate);
                added.map_err(|error| unreadable(error.to_string()))?;
            }
            if roots.is_empty() {
                return Err(unreadable("there is no certificate in it".into()));
            }
        }
        None if settings.target.has_tls => {
            let config = ClientConfig::with_platform_verifier();
            return config.map_err(|error| OpenError::Tls(error.to_string()));
        }
        None => {}
    }
    let config = ClientConfig::builder().with_root_certificates(roots);
    Ok(config.with_no_client_auth())
}

/// One connection. Ends when it is dropped.
pub(crate) struct Link {
    pub(crate) client: Client,
    statements: Mutex<HashMap<&'static str, Statement>>,
    warnings: Arc<AtomicU64>,
    driver: JoinHandle<()>,
}

impl Link {
    /// The statement that calls a function with so many values.
    pub(crate) async fn call(
        &self,
        function: &'static str,
        values: usize,
    ) -> Result<Statement, tokio_postgres::Error> {
        let text = || {
            let values: Vec<_> = (1..=values).map(|value| format!("${value}")).collect();
            format!("SELECT * FROM {function}({})", values.join(", "))
        };
        self.statement(function, text).await
    }

    /// The statement of this name, which the server parses once.
    async fn statement(
        &self,
        name: &'static str,
        sql: impl FnOnce() -> String,
    ) -> Result<Statement, tokio_postgres::Error> {
        if let Some(known) = lock(&self.statements).get(name) {
            return Ok(known.clone());
        }
        let statement = self.client.prepare(&sql()).await?;
        lock(&self.statements).insert(name, statement.clone());
        Ok(statement)
    }

    /// How many warnings the server has sent.
    pub(crate) fn warnings(&self) -> u64 {
        self.warnings.load(Ordering::SeqCst)
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

/// A connection that is made again when it has ended.
pub(crate) struct Slot {
    dialer: Arc<Dialer>,
    link: tokio::sync::Mutex<Option<Arc<Link>>>,
    /// Whether it hears of the ends of other gateways' calls.
    listens: bool,
}

impl Slot {
    pub(crate) fn new(dialer: &Arc<Dialer>, listens: bool) -> Self {
        Self {
            dialer: dialer.clone(),
            link: tokio::sync::Mutex::default(),
            listens,
        }
    }

    /// The connection, or a new one.
    pub(crate) async fn link(&self) -> Result<Arc<Link>> {
        let mut slot = self.link.lock().await;
        if let Some(link) = slot.as_ref().filter(|link| !link.client.is_closed()) {
            return Ok(link.clone());
        }
        *slot = None;
        let link = if self.listens {
            // The inspections find out when the server is back.
            let link = self.dialer.connect().await?;
            self.dialer.listen(&link).await?;
            link
        } else {
            self.dialer.connect_if_hopeful().await?
        };
        Ok(slot.insert(link).clone())
    }

    /// Gives the connection up: the next question makes another.
    pub(crate) async fn give_up(&self) {
        *self.link.lock().await = None;
    }

    /// Asks a question. It writes nothing, so a lost answer does no harm.
    pub(crate) async fn ask(
        &self,
        sql: &'static str,
        params: &[&(dyn ToSql + Sync)],
    ) -> Result<Vec<Row>> {
        let ask = async {
            let link = self.link().await?;
            let rows = async {
                let statement = link.statement(sql, || sql.into()).await?;
                link.client.query(&statement, params).await
            };
            rows.await.map_err(refused)
        };
        match timeout(SILENT, ask).await {
            Ok(answer) => answer,
            Err(_) => {
                self.give_up().await;
                self.dialer.trouble.notify_one();
                Err(Error::Refused("PostgreSQL did not answer in time".into()))
            }
        }
    }

    /// Asks a question with one answer, which is JSON.
    pub(crate) async fn ask_json<T: DeserializeOwned>(
        &self,
        sql: &'static str,
        params: &[&(dyn ToSql + Sync)],
    ) -> Result<T> {
        let rows = self.ask(sql, params).await?;
        let json = rows.first().map_or(Ok(""), |row| get(row, 0))?;
        serde_json::from_str(json).map_err(unreadable)
    }

    /// The readable ones of a search, whose last parameter is how many rows it reads. `id` names an unreadable one.
    ///
    /// It reads further only if some were unreadable, so that they do not hide others.
    pub(crate) async fn search<T>(
        &self,
        sql: &'static str,
        params: &[&(dyn ToSql + Sync)],
        limit: u32,
        read: impl Fn(&Row) -> Result<T>,
        id: impl Fn(&Row) -> String,
    ) -> Result<Found<T>> {
        let mut found = Found::default();
        for most in [limit, limit.saturating_add(UNREADABLE)] {
            let most = i64::from(most);
            let last: [&(dyn ToSql + Sync); 1] = [&most];
            let rows = self.ask(sql, &[params, &last].concat()).await?;
            found = Found::read(&rows, limit, &read, &id);
            if found.unreadable.is_empty() {
                break;
            }
        }
        Ok(found)
    }
}

/// The error of a server that has changed nothing.
pub(crate) fn refused(error: tokio_postgres::Error) -> Error {
    Error::Refused(said(&error))
}

/// What went wrong, with its causes.
pub(crate) fn said(error: &tokio_postgres::Error) -> String {
    if let Some(error) = error.as_db_error() {
        return format!("{} ({})", error.message(), error.code().code());
    }
    let mut text = error.to_string();
    let mut cause = std::error::Error::source(error);
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}
