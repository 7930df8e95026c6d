//! The desk of `oncegate wrap --approve`: a console on this machine for calls that wait, and a socket for
//! `oncegate approvals`.
//!
//! It stops mistakes, not attackers: a program of the same user can read the folder of the socket.

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, UnixListener, UnixStream};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use super::desk_text as text;
use crate::app::{Error, WingServices, routes};
use crate::config::Environment;
use crate::core::approval::{self, Policy, When};
use crate::core::caller::{Caller, Scope, Token};
use crate::core::record::CallId;
use crate::gateway::{ApprovalLook, Gateway};
use crate::http::{self, Http, Tokens};
use crate::serve::{self, Bounds, Ends, Listening, Routers};

/// The ending of the sockets of wrapped servers.
pub(super) const SOCKET: &str = "approvals";
/// The name of the approver in the ledger.
const APPROVER: &str = "approver at this machine";
/// How often it looks for the first call that waits.
const LOOK_EVERY: Duration = Duration::from_millis(300);
/// The longest request to the socket, in bytes, and how long it may take.
const MAX_REQUEST: u64 = 64 << 10;
const REQUEST_TIME: Duration = Duration::from_secs(5);
/// How long a page with a link lies in the folder.
const PAGE_LASTS: Duration = Duration::from_mins(5);

/// Which calls wait for approval.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Asks {
    /// Those of all tools that write.
    Writes,
    /// Those of these tools.
    Of(BTreeSet<String>),
}

impl FromStr for Asks {
    type Err = Infallible;

    fn from_str(text: &str) -> Result<Self, Infallible> {
        let names = text.split(',').map(str::trim);
        let names: BTreeSet<String> = names
            .filter(|name| !name.is_empty())
            .map(str::to_owned)
            .collect();
        Ok(match names.len() == 1 && names.contains("writes") {
            true => Self::Writes,
            false => Self::Of(names),
        })
    }
}

/// The rule about each call that waits.
pub(super) fn rule() -> Policy {
    Policy {
        when: vec![When::Always],
        expires: Duration::from_secs(3_600),
        good_for: Duration::from_secs(300),
        approvals: 1,
        from: Vec::new(),
        show: Vec::new(),
    }
}

/// The port of a console that is not served yet.
pub(super) struct Place {
    listener: TcpListener,
    address: SocketAddr,
}

impl Place {
    /// # Errors
    /// No port of this machine is free.
    pub(super) fn take() -> Result<Self, Error> {
        let wrong = |error: io::Error| Error::Other(format!("no port for approvals: {error}"));
        let listener = serve::listen((Ipv4Addr::LOCALHOST, 0).into()).map_err(wrong)?;
        let address = listener.local_addr().map_err(wrong)?;
        Ok(Self { listener, address })
    }

    /// Where the page of a call is, without the call's id.
    pub(super) fn pages(&self) -> String {
        format!("http://{}/console/approvals", self.address)
    }
}

/// Whether a browser can be opened here.
pub(super) fn has_display(environment: &Environment) -> bool {
    let is_set = |name| environment.get(name).is_some_and(|value| !value.is_empty());
    cfg!(target_os = "macos") || is_set("DISPLAY") || is_set("WAYLAND_DISPLAY")
}

/// Serves the console for approvals, and the socket of `oncegate approvals` in this folder, until it is dropped.
///
/// # Errors
/// The socket cannot be made.
pub(super) fn begin(
    of: (&Arc<Gateway>, &Arc<WingServices>),
    place: Place,
    (folder, has_display): (PathBuf, bool),
    http: &Http,
    bounds: Bounds,
    tell: impl Fn(String) + Send + Sync + 'static,
) -> Result<JoinSet<()>, Error> {
    let desk = Desk::new(of, &place, folder, has_display)?;
    desk.serve(place, http, bounds, tell)
}

/// A desk that is served.
struct Desk {
    gateway: Arc<Gateway>,
    wings: Arc<WingServices>,
    address: SocketAddr,
    /// The SHA-256 of the approver's token, which was forgotten.
    token: [u8; 32],
    caller: Caller,
    /// The folder that only its user sees.
    folder: PathBuf,
    has_display: bool,
}

/// The files of a desk, removed at its end.
struct Files(Vec<PathBuf>);

impl Drop for Files {
    fn drop(&mut self) {
        for file in &self.0 {
            drop(fs::remove_file(file));
        }
    }
}

impl Desk {
    fn new(
        (gateway, wings): (&Arc<Gateway>, &Arc<WingServices>),
        place: &Place,
        folder: PathBuf,
        has_display: bool,
    ) -> Result<Self, Error> {
        let mut secret = [0; 32];
        getrandom::fill(&mut secret).map_err(|error| Error::Other(error.to_string()))?;
        let caller = Caller {
            name: APPROVER.to_owned(),
            scopes: vec![Scope::Approve],
            ..Caller::open()
        };
        Ok(Self {
            gateway: gateway.clone(),
            wings: wings.clone(),
            address: place.address,
            token: Sha256::digest(secret).into(),
            caller,
            folder,
            has_display,
        })
    }

    /// Serves the console and the socket, and says when the first call waits. Ends only if it is dropped.
    ///
    /// # Errors
    /// The socket cannot be made.
    fn serve(
        self,
        place: Place,
        http: &Http,
        bounds: Bounds,
        tell: impl Fn(String) + Send + Sync + 'static,
    ) -> Result<JoinSet<()>, Error> {
        let path = self.folder.join(format!("{}.{SOCKET}", std::process::id()));
        let wrong = |error: io::Error| Error::Other(format!("{}: {error}", path.display()));
        match fs::remove_file(&path) {
            // Of a process that has ended and had this number.
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(wrong(error)),
        }
        let socket = UnixListener::bind(&path).map_err(wrong)?;
        let files = Files(vec![path]);
        let token = Token {
            sha256: self.token,
            caller: self.caller.clone(),
            expires: None,
        };
        let http = Http {
            tokens: Tokens::new(vec![token]),
            ..http.clone()
        };
        let listening = Listening {
            listener: place.listener,
            routers: Routers {
                all: routes::console_router(http.clone(), &self.wings),
                spare: http::spare_router(http),
            },
            tls: None,
            bounds,
            memory: self.gateway.engine.memory.budget.clone(),
        };
        let mut work = JoinSet::new();
        let open = self.gateway.base.metrics.connections.clone();
        work.spawn(async move {
            serve::serve(listening, Ends::default(), open).await;
        });
        let desk = Arc::new(self);
        work.spawn(desk.clone().answer(socket, files));
        work.spawn(desk.call_the_user(tell));
        Ok(work)
    }

    /// A link that signs in once.
    fn link(&self) -> String {
        let code = self.wings.console.link(self.token);
        format!("http://{}/console/enter/{code}", self.address)
    }

    /// Waits for the first call that waits, and leads the user to it.
    async fn call_the_user(self: Arc<Self>, tell: impl Fn(String)) {
        let look = ApprovalLook::default();
        loop {
            let waiting = self.gateway.approvals.list(&self.caller, &look).await;
            if waiting.is_ok_and(|waiting| !waiting.found.is_empty()) {
                break;
            }
            sleep(LOOK_EVERY).await;
        }
        if self.has_display {
            match self.open_browser().await {
                Ok(page) => {
                    sleep(PAGE_LASTS).await;
                    drop(page);
                    return std::future::pending().await;
                }
                Err(why) => tell(format!("no browser could be opened: {why}")),
            }
        }
        tell("a call waits for approval: `oncegate approvals` shows it".into());
        std::future::pending().await
    }

    /// Opens the user's browser with a link.
    ///
    /// Other users see the arguments of a process, so the browser gets a page that leads to the link, and that only its user
    /// may read.
    async fn open_browser(&self) -> io::Result<Files> {
        let page = self.folder.join(format!("{}.html", std::process::id()));
        drop(fs::remove_file(&page));
        let mut file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&page)?;
        let files = Files(vec![page.clone()]);
        let link = self.link();
        let html = format!(
            "<!doctype html><meta charset=\"utf-8\"><title>Approvals</title><meta http-equiv=\"refresh\" content=\"0; url={link}\"><a href=\"{link}\">Approvals</a>\n"
        );
        file.write_all(html.as_bytes())?;
        let program = match cfg!(target_os = "macos") {
            true => "open",
            false => "xdg-open",
        };
        let mut command = tokio::process::Command::new(program);
        let command = command.arg(&page).stdin(Stdio::null());
        let command = command.stdout(Stdio::null()).stderr(Stdio::null());
        let status = command.status().await?;
        match status.success() {
            true => Ok(files),
            false => Err(io::Error::other(format!("{program} failed"))),
        }
    }

    /// Answers `oncegate approvals`.
    async fn answer(self: Arc<Self>, socket: UnixListener, files: Files) {
        let _files = files;
        loop {
            match socket.accept().await {
                Ok((stream, _)) => {
                    let answering = self.answer_one(stream);
                    drop(timeout(REQUEST_TIME, answering).await);
                }
                Err(_) => sleep(LOOK_EVERY).await,
            }
        }
    }

    async fn answer_one(&self, stream: UnixStream) -> io::Result<()> {
        let (input, mut output) = stream.into_split();
        let mut line = String::new();
        let mut input = BufReader::new(input.take(MAX_REQUEST));
        input.read_line(&mut line).await?;
        let asked: Value = serde_json::from_str(&line).unwrap_or_default();
        let answer = match self.act(&asked).await {
            Ok(answer) => answer,
            Err(why) => json!({ "error": why }),
        };
        output.write_all(answer.to_string().as_bytes()).await
    }

    async fn act(&self, asked: &Value) -> Result<Value, String> {
        let word = |name: &str| asked[name].as_str().unwrap_or_default();
        let call_id = || {
            let id = word("call_id").parse().map(CallId);
            id.map_err(|_| "this is not an id of a call".to_owned())
        };
        let (approvals, caller) = (&self.gateway.approvals, &self.caller);
        let refused = |error: crate::gateway::Error| {
            let problem = http::problem::Problem::from(error);
            format!("{}: {}", problem.slug.row().title, problem.detail)
        };
        match word("act") {
            "list" => {
                let waiting = approvals.list(caller, &ApprovalLook::default()).await;
                let waiting = waiting.map_err(refused)?;
                Ok(json!({ "calls": waiting.found.iter().map(text::line).collect::<Vec<_>>() }))
            }
            "show" => {
                let shown = approvals.show(caller, call_id()?).await.map_err(refused)?;
                let seen = shown.seen.map(hex::encode);
                Ok(json!({ "text": text::page(&shown), "seen": seen }))
            }
            "approve" => {
                let mut seen = approval::Digest::default();
                hex::decode_to_slice(word("seen"), &mut seen)
                    .map_err(|_| "there is no mark of what was shown".to_owned())?;
                let approving = approvals.approve(caller, call_id()?, seen, "");
                approving.await.map_err(refused)?;
                Ok(json!({ "text": "approved" }))
            }
            "decline" => {
                let (reason, tell) = (word("reason"), word("tell"));
                let reason = http::read::reason(reason.to_owned()).map_err(|why| why.detail)?;
                let tell = http::read::checked_tell(tell.to_owned()).map_err(|why| why.detail)?;
                let declining = approvals.decline(caller, call_id()?, &reason, &tell);
                declining.await.map_err(refused)?;
                Ok(json!({ "text": "declined" }))
            }
            "link" => Ok(json!({ "text": self.link() })),
            _ => Err("this is not known here".into()),
        }
    }
}

/// The sockets of the wrapped servers in this folder.
pub fn sockets(folder: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(folder) else {
        return Vec::new();
    };
    let paths = entries.filter_map(|entry| Some(entry.ok()?.path()));
    let mut found: Vec<PathBuf> = paths
        .filter(|path| path.extension().is_some_and(|ending| ending == SOCKET))
        .collect();
    found.sort();
    found
}
