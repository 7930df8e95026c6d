//! The way of a call, on the side of the one who asks: read the request, join or begin the flight of
//! its key, wait, answer. The other side is `run`: a task of its own, to which this one only attaches.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use jiff::Timestamp;
use serde_json::Value;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until, timeout_at};
use uuid::Uuid;

use super::engine::Engine;
use super::error::{Error, ErrorKind};
use super::flight::Phase;
use super::ids::new_call_id;
use super::places::Owner;
use super::session::heard;
use super::throttle::NewKeys;
use super::tools::ToolAt;
use super::trace::{Arrival as Seen, Trace};
use crate::core::call::elapsed_ms;
use crate::core::caller::Caller;
use crate::core::ledger::Duplicate;
use crate::core::recipe::identity::{Asking, Name};
use crate::core::recipe::prints::Prints;
use crate::core::recipe::{Recipe, RecipeId, identity};
use crate::core::record::{CallId, Intent, Record, State};
use crate::core::record::{Content, FailureKind};
use crate::core::secret::{Secret, Secrets};
use crate::core::session::{self, Brought, LINE_LENGTH};
use crate::core::tool::Tool;
use crate::core::{json, key, redact, unknown};
use crate::crash;
use crate::metrics::Arrival;

/// How long a caller waits for the claim, however short it wants to wait for the result.
const CLAIM_WAIT: Duration = Duration::from_secs(10);
/// How long a caller waits for an outcome that the store will not take.
const UNWRITTEN_WAIT: Duration = Duration::from_secs(1);

/// One request for a call, as it came in.
#[derive(Debug, Default)]
pub struct Request {
    pub tool: String,
    /// JSON, as the caller wrote it.
    pub args: String,
    /// Empty if the caller named none; so is `session_id`.
    pub user_id: String,
    pub session_id: String,
    /// Empty if the call belongs to no saga.
    pub saga_id: String,
    pub trace_id: Option<String>,
    /// The request as a span.
    pub arrival: Seen,
    /// The value of the `Idempotency-Key` header line.
    pub key_header: Option<Bytes>,
    /// The body's `idempotency_key`.
    pub key_member: Option<String>,
    pub brought: Brought,
    pub patience: Patience,
}

/// How long a caller waits (RFC 7240).
#[derive(Debug, Default, Clone, Copy)]
pub struct Patience {
    /// `wait`: at the most this long.
    pub wait: Option<Duration>,
    /// `respond-async`: a running call is answered as accepted rather than waited for.
    pub respond_async: bool,
}

/// What a caller gets.
#[derive(Debug, Clone)]
pub enum Answer {
    Result(Stored),
    /// The call runs; ask for it later.
    Accepted(Arc<Record>),
}

impl Answer {
    /// As it is told to a request with these names.
    fn for_names(self, names: &[Name]) -> Self {
        match self {
            Self::Result(stored) => {
                let is_similar = stored
                    .record
                    .answers_as_similar(names.iter().map(|name| name.lookup));
                Self::Result(Stored {
                    is_similar,
                    ..stored
                })
            }
            accepted @ Self::Accepted(_) => accepted,
        }
    }
}

/// A stored result.
#[derive(Debug, Clone)]
pub struct Stored {
    pub record: Arc<Record>,
    /// One JSON text, as the tool sent it.
    pub json: Bytes,
    /// Of a replay: how long ago the call was asked for first.
    pub replayed_age_ms: Option<u64>,
    /// The request has another key than the call, and looks like it.
    pub is_similar: bool,
}

/// An arrival whose tool, arguments and key are known to be good.
#[derive(Clone)]
pub(super) struct Asked {
    pub at: Arc<ToolAt>,
    pub intent: Arc<Intent>,
    /// What it may be found by, today's key first. Of a stored call that is sent once more: none.
    pub names: Arc<[Name]>,
    /// What it is by earlier recipes.
    pub prints: Arc<Prints>,
    /// What its names follow from. `None`: from nothing that changes.
    pub read_by: Option<ReadWith>,
    /// The key that the caller's runtime brought.
    pub runtime: Option<key::Key>,
    /// The arguments as they came, until it is known which call it is.
    pub raw: Bytes,
    /// Why it is no call by the configuration of today. It is told if no call is found that is the same.
    pub complaint: Option<ErrorKind>,
    /// The recipes of keys are written down, so that it may be claimed.
    pub may_claim: bool,
    /// The key that the caller is told where it gets no result.
    pub told_key: Option<String>,
    /// What the tool gets. Of the intent's own arguments some may be masked.
    pub args: Bytes,
    pub brought: Brought,
    /// How many calls may be in line for its session before it.
    pub longest_line: u32,
    /// What bounds the claims of whoever asks.
    pub new_keys: Option<Arc<NewKeys>>,
    /// Where what is done for it belongs.
    pub trace: Trace,
}

/// What a request was read with beside today's recipe.
#[derive(Clone)]
pub(super) struct ReadWith {
    /// The earlier ones.
    pub recipes: Arc<[RecipeId]>,
    pub secrets: Arc<Secrets>,
}

impl Asked {
    /// A stored call, to be sent once more, for nobody in particular.
    pub(super) fn again(at: Arc<ToolAt>, record: &Record, trace: Trace) -> Self {
        let (intent, args) = (record.intent.clone(), record.intent.args.clone());
        Self {
            at,
            intent,
            names: [].into(),
            prints: Arc::default(),
            read_by: None,
            runtime: None,
            raw: Bytes::new(),
            complaint: None,
            may_claim: true,
            told_key: None,
            args,
            brought: Brought::default(),
            longest_line: LINE_LENGTH,
            new_keys: None,
            trace,
        }
    }

    /// The same request, read by other earlier recipes or secrets. `None`: its arguments are not there any more.
    pub(super) fn read_again(
        &self,
        earlier: &[(RecipeId, Arc<Recipe>)],
        secrets: Arc<Secrets>,
    ) -> Option<Self> {
        let args = json::parse(str::from_utf8(&self.raw).ok()?).ok()?;
        let Intent {
            tenant, user_id, ..
        } = &*self.intent;
        let asking = Asking {
            tenant,
            user_id,
            runtime: self.runtime.as_ref(),
            args: &args,
            secrets: &secrets,
        };
        let identity = identity::identify(&self.at.recipe, earlier, &asking);
        let (first, key) = (identity.names.first()?, identity.keys.first()?);
        let value = identity.counted.as_ref().unwrap_or(&args);
        let similar = session::similar_group(&self.at.tool, tenant, user_id, value, &secrets.today);
        let intent = Intent {
            lookup: first.lookup,
            names: identity.names[1..].iter().map(|name| name.lookup).collect(),
            key: key.key.as_str().to_owned(),
            key_source: key.source,
            fingerprint: identity.fingerprint,
            similar,
            ..(*self.intent).clone()
        };
        Some(Self {
            intent: Arc::new(intent),
            names: identity.names.into(),
            prints: Arc::new(identity.prints),
            read_by: Some(ReadWith {
                recipes: ids_of(earlier),
                secrets,
            }),
            ..self.clone()
        })
    }
}

fn ids_of(recipes: &[(RecipeId, Arc<Recipe>)]) -> Arc<[RecipeId]> {
    recipes.iter().map(|(id, _)| *id).collect()
}

impl Engine {
    /// Runs a call, or answers with what is known of it.
    ///
    /// Dropping the future does not stop a call that was begun.
    ///
    /// # Errors
    /// Why there is no result, and by the kind of it whether there may have been an effect.
    pub async fn call(
        self: &Arc<Self>,
        caller: &Caller,
        mut request: Request,
    ) -> Result<Answer, Error> {
        let began = Instant::now();
        let seen = std::mem::take(&mut request.arrival);
        let patience = request.patience;
        // A gateway that drains waits for those who were let in before.
        let let_in = self.base.tasks.token();
        let at = self.tool_for(caller, &request.tool)?;
        seen.is_for(&at.tool.name);
        let asked = match self.ask(at.clone(), caller, request, &seen).await {
            Ok(asked) => asked,
            Err(error) => {
                seen.came_to(Arrival::Refused.as_str(), None);
                self.runner
                    .count_arrival(&at.tool.name, Arrival::Refused, began);
                return Err(error);
            }
        };
        let (key, names) = (asked.told_key.clone(), asked.names.clone());
        let came = Instant::now();
        let (intent, new_keys) = (&asked.intent, asked.new_keys.clone());
        let (phases, pilot) = self.runs.join_or_begin((
            intent.lookup,
            intent.fingerprint,
            asked.brought,
            intent.saga_id.clone(),
            new_keys,
        ));
        let first = pilot.is_some();
        match pilot {
            Some(pilot) => drop(self.base.tasks.spawn(self.clone().fly(asked, pilot, began))),
            // Who joins and waits need not keep its arguments in memory.
            None => drop(asked),
        }
        drop(let_in);
        let phase = if first {
            let wait = at.tool.longest();
            self.attend(phases, patience, wait, at.tool.session.wait)
                .await
        } else {
            // The first has its place by being the first; the bound is for those who join it.
            let place = self.waiting.take(Owner::of_caller(caller));
            let wait = if place.is_some() {
                self.base.limits.join_wait
            } else {
                Duration::ZERO
            };
            let patience = if place.is_some() {
                patience
            } else {
                Patience {
                    wait: None,
                    ..patience
                }
            };
            self.attend(phases, patience, wait, at.tool.session.wait)
                .await
        };
        let phase = self.wait_for_rest(caller, phase, patience, came).await;
        let arrival = if first && phase.is_ours() {
            Arrival::First
        } else {
            arrival_of(&phase)
        };
        seen.came_to(arrival.as_str(), phase.record().map(Arc::as_ref));
        // A flight counts the arrival that ran it by itself, for its caller may have gone.
        if !(first && phase.is_ours()) {
            self.runner.count_arrival(&at.tool.name, arrival, began);
            if let Some(record) = phase.record() {
                let (by, kind) = (caller.name.clone(), arrival.as_str().to_owned());
                self.duplicates.note_duplicate(
                    record.intent.call_id,
                    Duplicate {
                        at: self.base.now(),
                        by,
                        kind,
                    },
                );
                let gap = elapsed_ms(record.intent.created_at, self.base.now()) as f64 / 1000.0;
                self.base
                    .metrics
                    .duplicate_gap
                    .with_label_values(&[&at.tool.name])
                    .observe(gap);
            }
        }
        crash::point("before_reply");
        let told = tell(
            &phase,
            patience,
            first,
            self.retry_after(&at, &phase),
            self.base.now(),
        );
        let told = told.map(|answer| answer.for_names(&names));
        told.map_err(|(kind, call_id)| {
            let replayed = kind.is_outcome().then_some(!(first && phase.is_ours()));
            Error {
                kind: kind.told_to(caller, &at.tool.name),
                call_id,
                key,
                replayed,
            }
        })
    }

    /// Reads a request by the recipe of today and by all that are remembered.
    ///
    /// # Errors
    /// It cannot be read, or gives no name to look for; or the recipes are not known.
    pub(super) async fn ask(
        &self,
        at: Arc<ToolAt>,
        caller: &Caller,
        request: Request,
        seen: &Seen,
    ) -> Result<Asked, Error> {
        let may_claim = self
            .recipes
            .know_recipes(&at)
            .await
            .map_err(ErrorKind::alone)?;
        let (earlier, secrets) = (self.recipes.earlier(&at), self.secrets.current());
        let (bytes, share, now) = (request.args.len(), self.base.limits.sample, self.base.now());
        let by = ReadBy {
            earlier: &earlier,
            secrets: &secrets,
        };
        let ask = || ask(at, &by, caller, request, seen, share, now);
        let asked = self.large.read_off_workers(bytes, ask).await?;
        Ok(Asked { may_claim, ..asked })
    }

    /// How soon to ask again for a call that is this far.
    fn retry_after(&self, at: &ToolAt, phase: &Phase) -> Duration {
        match phase.record() {
            Some(record) => at.retry_after_of(record, self.base.now()),
            None => at.health.retry_after(Duration::ZERO),
        }
    }

    pub(super) fn tool_for(&self, caller: &Caller, name: &str) -> Result<Arc<ToolAt>, Error> {
        if !caller.may_call(name) {
            return Err(ErrorKind::Forbidden.alone());
        }
        if self.base.draining.is_cancelled() {
            return Err(ErrorKind::ShuttingDown.alone());
        }
        self.base
            .tool_at(name)
            .ok_or_else(|| ErrorKind::UnknownTool.alone())
    }
}

/// The key of a request, by the configuration of today; of a tool that does not redact arguments. Nothing is claimed, and
/// nothing is looked up.
///
/// # Errors
/// The request cannot be read, does not fit the tool's schema, or has no good key.
pub fn identify(tool: &Tool, request: &Request) -> Result<key::Chosen, Error> {
    // Without redact.args no key depends on it.
    let none = Secrets::one(Secret::new([0; 32]));
    let read = read_request(tool, &Arc::new(Recipe::of(tool)), &[], "", request, &none)?;
    let refuse = |kind: ErrorKind| Error {
        key: read.brought(),
        ..kind.alone()
    };
    if let Some(complaint) = &read.complaint {
        return Err(refuse(complaint.clone()));
    }
    let key = read
        .identity
        .key
        .clone()
        .map_err(|why| refuse(ErrorKind::Key(why)))?;
    Ok(key)
}

/// A request that could be read.
struct Read {
    identity: identity::Identity,
    /// The arguments that count today.
    value: Value,
    /// What the tool will get: the caller's own bytes, unless the model's key had to be taken out.
    args: Bytes,
    /// The arguments as they came.
    raw: Bytes,
    /// Why it is no call by the configuration of today.
    complaint: Option<ErrorKind>,
    /// The key that the caller's runtime brought.
    runtime: Option<key::Key>,
}

impl Read {
    fn brought(&self) -> Option<String> {
        self.runtime.as_ref().map(|key| key.as_str().to_owned())
    }
}

/// Reads a request by today's recipe and by earlier ones.
fn read_request(
    tool: &Tool,
    today: &Arc<Recipe>,
    earlier: &[(RecipeId, Arc<Recipe>)],
    tenant: &str,
    request: &Request,
    secrets: &Secrets,
) -> Result<Read, Error> {
    let unreadable = |why: String| ErrorKind::InvalidRequest(why).alone();
    let args =
        json::parse_bounded(&request.args).map_err(|error| unreadable(format!("args: {error}")))?;
    if !args.is_object() {
        return Err(unreadable("args is no JSON object".into()));
    }
    let runtime = key::from_runtime(request.key_header.as_deref(), request.key_member.as_deref());
    let runtime = runtime.map_err(|why| ErrorKind::Key(why).alone())?;
    let asking = Asking {
        tenant,
        user_id: &request.user_id,
        runtime: runtime.as_ref(),
        args: &args,
        secrets,
    };
    let mut identity = identity::identify(today, earlier, &asking);
    let counted = identity.counted.take();
    let raw = Bytes::from(request.args.clone());
    let sent = counted
        .as_ref()
        .map_or_else(|| raw.clone(), |counted| counted.to_string().into());
    let value = counted.unwrap_or(args);
    let complaint = complaint(tool, &identity, &value);
    Ok(Read {
        identity,
        value,
        args: sent,
        raw,
        complaint,
        runtime,
    })
}

/// Why a request is no call by the configuration of today.
fn complaint(tool: &Tool, identity: &identity::Identity, value: &Value) -> Option<ErrorKind> {
    let refused = identity.key.as_ref().err();
    let is_bad_key = matches!(
        refused,
        Some(key::Refused::Invalid(..) | key::Refused::Reserved)
    );
    let mistakes = tool
        .schema
        .as_ref()
        .filter(|_| !is_bad_key)
        .map(|schema| schema.mistakes(value));
    match mistakes.filter(|mistakes| !mistakes.is_empty()) {
        Some(mistakes) => Some(ErrorKind::InvalidArguments(mistakes)),
        None => refused.cloned().map(ErrorKind::Key),
    }
}

/// What a request is read by beside today's recipe.
struct ReadBy<'a> {
    earlier: &'a [(RecipeId, Arc<Recipe>)],
    secrets: &'a Arc<Secrets>,
}

fn ask(
    at: Arc<ToolAt>,
    by: &ReadBy<'_>,
    caller: &Caller,
    request: Request,
    seen: &Seen,
    share: f64,
    now: Timestamp,
) -> Result<Asked, Error> {
    let read = read_request(
        &at.tool,
        &at.recipe,
        by.earlier,
        &caller.tenant,
        &request,
        by.secrets,
    )?;
    let brought = read.brought();
    let Read {
        identity,
        value,
        args,
        raw,
        complaint,
        runtime,
    } = read;
    let names = identity.names;
    // By the configuration of today it may have no key; then it is looked for under its other names.
    let (Some(first), Some(key)) = (names.first(), identity.keys.first()) else {
        let kind = complaint.unwrap_or(ErrorKind::Key(key::Refused::Missing));
        return Err(Error {
            key: brought,
            ..kind.alone()
        });
    };
    let similar = session::similar_group(
        &at.tool,
        &caller.tenant,
        &request.user_id,
        &value,
        &by.secrets.today,
    );
    let intent = Intent {
        call_id: new_call_id(&first.lookup),
        tenant: caller.tenant.clone(),
        tool: at.tool.name.clone(),
        lookup: first.lookup,
        names: names[1..].iter().map(|name| name.lookup).collect(),
        recipe: at.recipe_id,
        key: key.key.as_str().to_owned(),
        key_source: key.source,
        fingerprint: identity.fingerprint,
        user_id: request.user_id,
        session_id: request.session_id,
        saga_id: request.saga_id,
        trace_id: request
            .trace_id
            .unwrap_or_else(|| Uuid::new_v4().simple().to_string()),
        made_by: caller.name.clone(),
        similar,
        args: redact::mask(&args, &at.tool.redact.args),
        created_at: now,
    };
    let (session, new_keys) = (request.brought, NewKeys::of(caller));
    let trace = seen.belongs_to(&intent, share);
    let told_key = if complaint.is_some() {
        brought
    } else {
        Some(intent.key.clone())
    };
    Ok(Asked {
        at,
        intent: Arc::new(intent),
        names: names.into(),
        prints: Arc::new(identity.prints),
        read_by: Some(ReadWith {
            recipes: ids_of(by.earlier),
            secrets: by.secrets.clone(),
        }),
        runtime,
        raw,
        complaint,
        may_claim: true,
        told_key,
        args,
        brought: session,
        longest_line: LINE_LENGTH,
        new_keys,
        trace,
    })
}

impl Engine {
    /// Waits for a flight until it is over or the caller will not wait any longer, and answers how
    /// far it was then.
    pub(super) async fn attend(
        &self,
        mut phases: watch::Receiver<Phase>,
        patience: Patience,
        default: Duration,
        session_wait: Duration,
    ) -> Phase {
        let came = Instant::now();
        let default = if patience.respond_async {
            Duration::ZERO
        } else {
            default
        };
        let until = came + patience.wait.unwrap_or(default);
        loop {
            let phase = phases.borrow_and_update().clone();
            let until = match &phase {
                Phase::Ended { .. } | Phase::Lost { .. } => return phase,
                // It may be written in a moment; after that the caller is told the truth.
                Phase::Unwritten { .. } => until.min(Instant::now() + UNWRITTEN_WAIT),
                // Without a claim there is no call that one could ask for later.
                Phase::Claiming => until.max(came + CLAIM_WAIT),
                Phase::Queued if patience.wait.is_some() => until,
                Phase::Queued => until.max(came + session_wait + CLAIM_WAIT),
                Phase::Running { .. } => until,
            };
            match timeout_at(until, phases.changed()).await {
                Ok(Ok(())) => {}
                // The flight is over. If its last word is not the end, it broke off.
                Ok(Err(_)) => {
                    return match phases.borrow().clone() {
                        ended @ Phase::Ended { .. } => ended,
                        broken => Phase::Lost {
                            record: broken.record().cloned(),
                        },
                    };
                }
                Err(_) => return phase,
            }
        }
    }
}

impl Engine {
    /// Who asks for an unknown call and is willing to wait gets what settles it meanwhile: a late answer,
    /// a probe, a person.
    async fn wait_for_rest(
        &self,
        caller: &Caller,
        phase: Phase,
        patience: Patience,
        came: Instant,
    ) -> Phase {
        let Phase::Ended {
            record: Ok(record), ..
        } = &phase
        else {
            return phase;
        };
        let (State::Unknown(_), Some(wait)) = (&record.state, patience.wait) else {
            return phase;
        };
        let Some(_place) = self.waiting.take(Owner::of_caller(caller)) else {
            return phase;
        };
        let (call_id, until) = (record.intent.call_id, came + wait);
        let listener = self.base.store.listen(call_id);
        let (mut pause, longest_pause) = self.base.limits.pace.poll;
        while Instant::now() < until {
            match self.base.store.load(call_id).await {
                Ok(Some(Record {
                    state: State::Unknown(_) | State::Running,
                    ..
                })) => {}
                Ok(Some(record)) => {
                    // Without room for its result it is asked for again; that it ran must not be hidden.
                    let Ok(record) = self.memory.with_room(record) else {
                        return phase;
                    };
                    return Phase::Ended {
                        record: Ok(Arc::new(record)),
                        ours: false,
                    };
                }
                Ok(None) | Err(_) => return phase,
            }
            tokio::select! {
                () = sleep_until(until.min(Instant::now() + pause)) => {}
                () = heard(listener.as_ref()) => {}
            }
            pause = (pause * 2).min(longest_pause);
        }
        phase
    }
}

/// What a caller is told who saw a flight that far. `first`: its request began the flight.
fn tell(
    phase: &Phase,
    patience: Patience,
    first: bool,
    retry_after: Duration,
    now: Timestamp,
) -> Result<Answer, (ErrorKind, Option<CallId>)> {
    let id = |record: &Arc<Record>| Some(record.intent.call_id);
    match phase {
        Phase::Ended {
            record: Err(kind), ..
        } => Err((kind.clone(), None)),
        Phase::Ended {
            record: Ok(record),
            ours,
        } => read(record, !(first && *ours), retry_after, now).map_err(|kind| (kind, id(record))),
        Phase::Running { record, .. } if patience.respond_async => {
            Ok(Answer::Accepted(record.clone()))
        }
        Phase::Running { record, .. } => {
            Err((ErrorKind::CallInProgress { retry_after }, id(record)))
        }
        Phase::Claiming | Phase::Queued => Err((ErrorKind::CallInProgress { retry_after }, None)),
        // It is offered to the store again and again.
        Phase::Unwritten { record } => Err((
            ErrorKind::OutcomeUnknown {
                retry_after: Some(retry_after),
            },
            id(record),
        )),
        Phase::Lost { record } => {
            let next = record
                .as_ref()
                .and_then(|record| unknown::next_look(record, now));
            let retry_after = next.or(Some(retry_after));
            Err((
                ErrorKind::OutcomeUnknown { retry_after },
                record.as_ref().and_then(id),
            ))
        }
    }
}

/// What a stored record answers.
pub(super) fn read(
    record: &Arc<Record>,
    replayed: bool,
    retry_after: Duration,
    now: Timestamp,
) -> Result<Answer, ErrorKind> {
    match &record.state {
        State::Succeeded(Content::Kept(json))
        | State::Compensating(Some(Content::Kept(json)))
        | State::Compensated(Some(Content::Kept(json)))
        | State::Stuck(Some(Content::Kept(json))) => {
            let age_ms = replayed.then(|| elapsed_ms(record.intent.created_at, now));
            let (record, json) = (record.clone(), json.clone());
            Ok(Answer::Result(Stored {
                record,
                json,
                replayed_age_ms: age_ms,
                is_similar: false,
            }))
        }
        State::Succeeded(Content::Unavailable(why))
        | State::Compensating(Some(Content::Unavailable(why)))
        | State::Compensated(Some(Content::Unavailable(why)))
        | State::Stuck(Some(Content::Unavailable(why))) => {
            Err(ErrorKind::ResultUnavailable(why.clone()))
        }
        State::Failed(failure) => Err(match failure.kind {
            FailureKind::Rejected => ErrorKind::ToolRejected(failure.clone()),
            FailureKind::Fenced => ErrorKind::Fenced(failure.clone()),
            FailureKind::SagaClosed => ErrorKind::WrongState(failure.why.clone()),
            FailureKind::Unreachable => ErrorKind::ToolUnreachable(failure.clone()),
            FailureKind::Unavailable | FailureKind::NotExecuted => {
                ErrorKind::ToolUnavailable(failure.clone())
            }
        }),
        State::Unknown(_) => Err(ErrorKind::OutcomeUnknown {
            retry_after: unknown::next_look(record, now),
        }),
        State::Running => Err(ErrorKind::CallInProgress { retry_after }),
        State::Compensated(None) => {
            let why = "the call was taken back before anybody knew that it had run, and will not run any more";
            Err(ErrorKind::WrongState(why.into()))
        }
        // It may have been executed, and may not be undone yet.
        State::Compensating(None) | State::Stuck(None) => Err(ErrorKind::OutcomeUnknown {
            retry_after: unknown::next_look(record, now),
        }),
    }
}

/// What became of a request that did not run the call itself.
fn arrival_of(phase: &Phase) -> Arrival {
    match phase {
        Phase::Ended { record: Err(_), .. } => Arrival::Refused,
        Phase::Ended {
            record: Ok(record),
            ours,
        } => match record.state {
            State::Unknown(_) | State::Running => Arrival::Suppressed,
            _ if *ours => Arrival::Joined,
            _ => Arrival::Replayed,
        },
        Phase::Claiming
        | Phase::Queued
        | Phase::Running { .. }
        | Phase::Unwritten { .. }
        | Phase::Lost { .. } => Arrival::Suppressed,
    }
}
