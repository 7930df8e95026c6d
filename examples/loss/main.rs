//! What `make loss` runs in its network namespaces: a slow tool, clients that repeat themselves until
//! they are answered, and the comparison of what both have seen. `scripts/loss` is what loses packets.
//!
//! The tool does not deduplicate: it executes each request that comes in whole, even if no client waits
//! for it any more, and writes one line per effect into a file, on disk before it answers. The file names
//! the intent by what stands in the arguments, so it owes nothing to the gateway's keys.
//!
//! A client sends its intent, always with the same key, until it gets a definite answer: a result, or that
//! it is unknown (409 `outcome-unknown`), or that it was executed and its result is lost.

#![expect(
    clippy::disallowed_methods,
    reason = "another program, with a client of its own"
)]

use std::collections::{BTreeMap, HashMap, HashSet};
use std::error::Error;
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::body::Bytes;
use axum::http::{HeaderMap, StatusCode};
use axum::routing::post;
use axum::{Json, Router};
use clap::Parser;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};
use uuid::Uuid;

use crate::history::{Operation, now};

mod history; // what crates/judge judges

const INTENTS: u32 = 300;
/// As many clients ask at the same time.
const CLIENTS: u32 = 50;
/// How long a client waits for one answer. Many executions take longer under loss, and are asked again.
const CLIENT_TIMEOUT: Duration = Duration::from_secs(3);
/// The longest that a client waits before it asks again.
const CLIENT_PAUSE: Duration = Duration::from_secs(2);
/// The tool takes this and up to as many milliseconds more.
const TOOL_DELAY_MS: (u64, u64) = (200, 1_300);
/// An execution that has not shown itself after this without loss is not to be expected any more.
const QUIET: Duration = Duration::from_secs(5);
/// Nothing takes longer; who waits for more waits for a mistake.
const PATIENCE: Duration = Duration::from_secs(180);

type Fallible<T> = Result<T, Box<dyn Error + Send + Sync>>;

#[derive(Parser)]
#[command(about = "The tool, the clients and the check of `make loss`")]
enum Args {
    /// Serves the slow tool.
    Tool {
        #[arg(long)]
        listen: String,
        /// Where each effect gets its line.
        #[arg(long)]
        effects: PathBuf,
        #[arg(long)]
        history: PathBuf,
    },
    /// Asks for everything, until everything is answered.
    Ask {
        #[command(flatten)]
        gateway: Gateway,
        /// Where the answers are kept for the check.
        #[arg(long)]
        answers: PathBuf,
    },
    /// Without loss: asks for everything once more, and compares.
    Check {
        #[command(flatten)]
        gateway: Gateway,
        #[arg(long)]
        answers: PathBuf,
        #[arg(long)]
        effects: PathBuf,
    },
}

#[derive(clap::Args, Clone)]
struct Gateway {
    /// Like http://10.0.0.1:8080
    #[arg(long)]
    gateway: String,
    #[arg(long)]
    token: String,
    /// Where requests and answers are recorded for crates/judge.
    #[arg(long)]
    history: PathBuf,
}

#[tokio::main]
async fn main() -> Fallible<()> {
    match Args::parse() {
        Args::Tool {
            listen,
            effects,
            history,
        } => serve(&listen, &effects, history).await,
        Args::Ask { gateway, answers } => {
            let asked = timeout(PATIENCE, ask_for_all(gateway)).await;
            fs::write(
                answers,
                serde_json::to_vec(&asked.map_err(|_| "not everything was answered")??)?,
            )?;
            Ok(())
        }
        Args::Check {
            gateway,
            answers,
            effects,
        } => {
            let asked = serde_json::from_slice(&fs::read(answers)?)?;
            timeout(PATIENCE, check(&gateway, asked, &effects))
                .await
                .map_err(|_| "it never became quiet")?
        }
    }
}

/// One effect, as the tool answers it and writes it down.
#[derive(Serialize, Deserialize, Clone, PartialEq)]
struct Effect {
    intent: u32,
    effect: Uuid,
    /// The `Idempotency-Key` that the tool was sent.
    key: String,
}

#[derive(Serialize, Deserialize)]
struct Intent {
    intent: u32,
}

async fn serve(listen: &str, effects: &Path, history: PathBuf) -> Fallible<()> {
    let log = Arc::new(Mutex::new(File::create(effects)?));
    let handler = async |headers: HeaderMap, body: Bytes| {
        // A task of its own: it is executed even if the line is cut meanwhile.
        let executed = tokio::spawn(execute(log, history, headers, body)).await;
        match executed {
            Ok(Ok(effect)) => Ok(Json(effect)),
            _ => Err(StatusCode::INTERNAL_SERVER_ERROR),
        }
    };
    let router = Router::new().route("/act", post(handler));
    axum::serve(TcpListener::bind(listen).await?, router).await?;
    Ok(())
}

async fn execute(
    log: Arc<Mutex<File>>,
    history: PathBuf,
    headers: HeaderMap,
    body: Bytes,
) -> io::Result<Effect> {
    let Intent { intent } = serde_json::from_slice(&body)?;
    let arrived = now();
    let key = headers
        .get("idempotency-key")
        .and_then(|key| key.to_str().ok())
        .unwrap_or_default()
        .to_owned();
    let (least, more) = TOOL_DELAY_MS;
    sleep(Duration::from_millis(least + random() % more)).await;
    let effect = Effect {
        intent,
        effect: Uuid::new_v4(),
        key,
    };
    let mut log = log.lock().unwrap_or_else(PoisonError::into_inner);
    log.write_all(format!("{}\n", serde_json::to_string(&effect)?).as_bytes())?;
    log.sync_data()?;
    let made = effect.effect.to_string();
    Operation::new("effect", intent, arrived).ends(&history, "ok", Some(&made))?;
    Ok(effect)
}

fn random() -> u64 {
    Uuid::new_v4().as_u64_pair().1
}

/// What the clients have seen.
#[derive(Serialize, Deserialize)]
struct Asked {
    seconds: u64,
    intents: Vec<Answered>,
}

#[derive(Serialize, Deserialize)]
struct Answered {
    intent: u32,
    requests: u32,
    answer: Answer,
}

/// What a client does not ask again for.
#[derive(Serialize, Deserialize, Clone, PartialEq)]
enum Answer {
    /// The tool's result, byte for byte.
    Success(String),
    Unknown,
    /// It was executed, and the result is lost.
    ResultLost,
}

async fn ask_for_all(gateway: Gateway) -> Fallible<Asked> {
    let (begun, next) = (Instant::now(), Arc::new(AtomicU32::new(0)));
    let mut clients = JoinSet::new();
    for _ in 0..CLIENTS {
        let (gateway, next) = (gateway.clone(), Arc::clone(&next));
        clients.spawn(async move {
            let (client, mut answered) = (client()?, Vec::new());
            loop {
                let intent = next.fetch_add(1, Ordering::Relaxed);
                if intent >= INTENTS {
                    return Fallible::Ok(answered);
                }
                answered.push(ask_until_answered(&gateway, &client, intent).await?);
            }
        });
    }
    let mut intents = Vec::new();
    while let Some(answered) = clients.join_next().await {
        intents.extend(answered??);
    }
    Ok(Asked {
        seconds: begun.elapsed().as_secs(),
        intents,
    })
}

async fn ask_until_answered(
    gateway: &Gateway,
    client: &reqwest::Client,
    intent: u32,
) -> Fallible<Answered> {
    let mut requests = 0;
    loop {
        requests += 1;
        // Whatever became of it, a request that was not answered is simply sent again.
        if let Some(answer) = gateway.ask(client, intent, CLIENT_TIMEOUT).await?.0 {
            return Ok(Answered {
                intent,
                requests,
                answer,
            });
        }
        let pause = u64::try_from(CLIENT_PAUSE.as_millis())?;
        sleep(Duration::from_millis(random() % pause)).await;
    }
}

/// What came back for one request.
struct Reply {
    status: u16,
    body: String,
}

impl Reply {
    /// `None`: ask again with the same key.
    ///
    /// # Errors
    /// The gateway says what it has no reason to say here.
    fn definite(&self) -> Fallible<Option<Answer>> {
        #[derive(Deserialize)]
        struct Body<'a> {
            #[serde(borrow)]
            result: &'a RawValue,
        }
        if self.status == 200 {
            let body: Body<'_> = serde_json::from_str(&self.body)?;
            return Ok(Some(Answer::Success(body.result.get().to_owned())));
        }
        let problem: Value = serde_json::from_str(&self.body)?;
        match problem["type"].as_str().unwrap_or_default() {
            "/problems/outcome-unknown" => Ok(Some(Answer::Unknown)),
            "/problems/result-unavailable" => Ok(Some(Answer::ResultLost)),
            _ if matches!(problem["key_action"].as_str(), Some("reuse" | "wait")) => Ok(None),
            _ => Err(format!("a client got {}", self.body).into()),
        }
    }

    fn is_replayed(&self) -> bool {
        serde_json::from_str::<Value>(&self.body).is_ok_and(|body| body["replayed"] == true)
    }
}

impl Gateway {
    async fn call(&self, client: &reqwest::Client, intent: u32) -> reqwest::Result<Reply> {
        let request = client
            .post(format!("{}/v1/tools/act/calls", self.gateway))
            .bearer_auth(&self.token)
            .header("idempotency-key", format!("intent-{intent}"))
            .body(json!({ "args": Intent { intent } }).to_string());
        let response = request.send().await?;
        Ok(Reply {
            status: response.status().as_u16(),
            body: response.text().await?,
        })
    }

    async fn is_ready(&self, client: &reqwest::Client) -> reqwest::Result<bool> {
        Ok(client
            .get(format!("{}/readyz", self.gateway))
            .send()
            .await?
            .status()
            == StatusCode::OK)
    }

    /// The counters of one name: what their labels are, and how much it is.
    async fn count(
        &self,
        client: &reqwest::Client,
        name: &str,
        label: &str,
    ) -> reqwest::Result<BTreeMap<String, u64>> {
        let metrics = client
            .get(format!("{}/metrics", self.gateway))
            .send()
            .await?
            .text()
            .await?;
        let lines = metrics
            .lines()
            .filter_map(|line| line.strip_prefix(name)?.strip_prefix('{'));
        let counts = lines.filter_map(|line| {
            let (labels, count) = line.split_once("} ")?;
            let value = labels
                .split(',')
                .find_map(|pair| pair.strip_prefix(label)?.strip_prefix("=\""))?;
            Some((value.trim_end_matches('"').to_owned(), count.parse().ok()?))
        });
        Ok(counts.collect())
    }
}

async fn check(gateway: &Gateway, asked: Asked, effects: &Path) -> Fallible<()> {
    let client = client()?;
    wait_until_quiet(gateway, &client, effects).await?;
    let arrivals = gateway
        .count(&client, "oncegate_arrivals_total", "kind")
        .await?;

    let (mut identical, mut settled, mut broken) = (0, 0, Vec::new());
    for Answered { intent, answer, .. } in &asked.intents {
        let (again, reply) = gateway.ask(&client, *intent, PATIENCE).await?;
        let reply = reply.ok_or("the gateway does not answer")?;
        match (answer, again) {
            (Answer::Success(_), Some(again)) if *answer == again && reply.is_replayed() => {
                identical += 1
            }
            // The tool's answer came after the client's.
            (Answer::Unknown, Some(Answer::Success(_))) if reply.is_replayed() => settled += 1,
            (Answer::Unknown | Answer::ResultLost, Some(again)) if *answer == again => {}
            _ => broken.push(format!(
                "intent {intent} is answered otherwise now: {}",
                reply.body
            )),
        }
    }

    // Last, so that an effect of the replays would be seen, too.
    let executed = read(effects)?;
    let mut by_intent: HashMap<u32, Vec<&Effect>> = HashMap::new();
    for effect in &executed {
        by_intent.entry(effect.intent).or_default().push(effect);
    }
    for Answered { intent, answer, .. } in &asked.intents {
        let effects = by_intent.get(intent).map_or(&[][..], Vec::as_slice);
        let is_as_told = match (answer, effects) {
            (Answer::Success(result), [effect]) => {
                serde_json::from_str::<Effect>(result)? == **effect
            }
            (Answer::ResultLost, [_]) | (Answer::Unknown, [] | [_]) => true,
            _ => false,
        };
        if !is_as_told {
            broken.push(format!(
                "intent {intent} has {} effects, which is not what was told",
                effects.len()
            ));
        }
    }
    let twice = by_intent
        .values()
        .filter(|effects| effects.len() > 1)
        .count();
    let keys: HashSet<&str> = executed.iter().map(|effect| effect.key.as_str()).collect();
    if keys.len() < executed.len() {
        broken.push("the tool has executed an Idempotency-Key twice".to_owned());
    }

    let count = |is: fn(&Answer) -> bool| {
        asked
            .intents
            .iter()
            .filter(|asked| is(&asked.answer))
            .count()
    };
    let succeeded = count(|answer| matches!(answer, Answer::Success(_)));
    let unknown = count(|answer| *answer == Answer::Unknown);
    let requests: u32 = asked.intents.iter().map(|asked| asked.requests).sum();
    // These found their call claimed already. An effect too many would be one that did not.
    let kinds = ["replayed", "joined", "suppressed"];
    let suppressed: u64 = kinds.iter().filter_map(|kind| arrivals.get(*kind)).sum();
    let extra = executed.len() - by_intent.len();
    let duplicates = suppressed + u64::try_from(extra)?;
    let percent = 100 * suppressed / duplicates.max(1);
    if asked.intents.len() != usize::try_from(INTENTS)? || requests <= INTENTS || suppressed == 0 {
        broken.push("too little has happened to show anything".to_owned());
    }

    let kinds: Vec<String> = arrivals
        .iter()
        .map(|(kind, count)| format!("{count} {kind}"))
        .collect();
    writeln!(
        io::stdout(),
        "intents                        {INTENTS} in {} s, {CLIENTS} clients at a time\n\
         requests sent                  {requests}\n\
         requests that arrived          {} ({})\n\
         duplicates suppressed          {suppressed} of {duplicates} ({percent} %)\n\
         succeeded                      {succeeded}\n\
         told that it is unknown        {unknown}, {settled} of them settled by a late answer\n\
         executed, result lost          {}\n\
         effects                        {}\n\
         intents with two effects       {twice}\n\
         successes replayed identical   {identical} of {succeeded}",
        asked.seconds,
        arrivals.values().sum::<u64>(),
        kinds.join(", "),
        count(|answer| *answer == Answer::ResultLost),
        executed.len(),
    )?;
    if broken.is_empty() {
        return Ok(());
    }
    writeln!(io::stdout(), "{}", broken.join("\n"))?;
    Err(format!("{} things are not as promised", broken.len()).into())
}

/// Nothing runs, and for a while nothing was executed.
async fn wait_until_quiet(
    gateway: &Gateway,
    client: &reqwest::Client,
    effects: &Path,
) -> Fallible<()> {
    let (mut known, mut since) = (0, Instant::now());
    while since.elapsed() < QUIET {
        sleep(Duration::from_millis(200)).await;
        // Who has just lost its connection answers with an error for a moment.
        let is_ready = gateway.is_ready(client).await.unwrap_or(false);
        let running = gateway
            .count(client, "oncegate_running_calls", "tool")
            .await
            .unwrap_or_default();
        let executed = read(effects)?.len();
        if !is_ready || running.get("act") != Some(&0) || executed != known {
            (known, since) = (executed, Instant::now());
        }
    }
    Ok(())
}

/// The effects so far.
fn read(effects: &Path) -> Fallible<Vec<Effect>> {
    let text = fs::read_to_string(effects)?;
    Ok(text
        .lines()
        .map(serde_json::from_str)
        .collect::<Result<_, _>>()?)
}

fn client() -> Fallible<reqwest::Client> {
    drop(rustls::crypto::ring::default_provider().install_default());
    let builder = reqwest::Client::builder()
        .retry(reqwest::retry::never())
        .no_proxy();
    Ok(builder.timeout(PATIENCE).build()?)
}
