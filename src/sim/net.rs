//! The network of one gateway, and the tools behind it: a request comes early, late, never or twice, and so do answers.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body, Frame};
use jiff::Timestamp;
use reqwest::Url;
use tokio::sync::oneshot;

use super::books::{Done, Flight};
use super::dice::Dice;
use super::life::Life;
use super::plan::{Break, DECLARED_LATE, KINDS, Kind};
use super::world::World;
use crate::core::record::Record;
use crate::downstream::line::{Coming, Letter, Line};
use crate::store::Calls;
use oncegate_hooks::seed;

pub(super) struct Net {
    life: Arc<Life>,
}

/// What becomes of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    /// It is executed and answered.
    Made,
    /// No connection is made.
    Unreachable,
    /// Answered with this status, and not executed.
    Refused(u16),
    /// Answered with 500.
    Fails { executes: bool },
    /// The connection ends without an answer.
    Drops { executes: bool },
    /// There is no answer.
    Silent { executes: bool },
    /// Executed; the answer breaks off.
    Cut,
    /// Executed and answered as late as possible.
    Late,
    /// Something on the way sends it again.
    Twice,
}

impl Fate {
    fn drawn(dice: &mut Dice, trouble: u64, kind: &Kind) -> Self {
        if !dice.chance(trouble) {
            return Self::Made;
        }
        let executes = dice.chance(60);
        match dice.below(10) {
            0 => Self::Unreachable,
            1 => Self::Refused(422),
            2 => Self::Refused(429),
            3 => Self::Fails { executes },
            4 => Self::Drops { executes },
            5 | 6 => Self::Silent { executes },
            7 => Self::Cut,
            8 => Self::Late,
            _ if kind.deduplicates() => Self::Twice,
            _ => Self::Late,
        }
    }
}

/// What comes back.
enum Reply {
    Status(u16),
    Made(u64),
    /// A success whose body breaks off.
    Cut,
}

impl Net {
    pub(super) fn of(life: Arc<Life>) -> Self {
        Self { life }
    }

    fn world(&self) -> &Arc<World> {
        &self.life.world
    }

    /// The request of a letter, as its tool sees it.
    async fn flight(&self, letter: &Letter) -> Flight {
        let header = |name: &str| {
            let value = letter
                .headers
                .get(name)
                .and_then(|value| value.to_str().ok());
            value.unwrap_or_default().to_owned()
        };
        let args: serde_json::Value = serde_json::from_slice(&letter.body).unwrap_or_default();
        let path = letter.url.path().trim_start_matches('/').to_owned();
        let kind = KINDS.iter().find(|kind| kind.name == path);
        let kind = kind.expect("a tool of the simulation");
        let record = self
            .world()
            .memory
            .load(letter.call_id)
            .await
            .ok()
            .flatten();
        let name = record.as_ref().map(|record| record.intent.key.clone());
        Flight {
            name: format!("{path} {}", name.unwrap_or_default()),
            call: letter.call_id.to_string(),
            key: header("idempotency-key"),
            tool: kind.name,
            session: header("x-session-id"),
            undoes: args["of"].as_str().unwrap_or_default().to_owned(),
            until: self.latest(record.as_ref(), kind),
        }
    }

    /// Until when a request may reach its tool: the end of its lease, or as much later as is declared.
    fn latest(&self, record: Option<&Record>, kind: &Kind) -> u64 {
        let now = seed::wall().unwrap_or(Timestamp::UNIX_EPOCH);
        let left = record.map_or(0, |record| {
            let left = record.attempt.lease_until.duration_since(now).as_millis();
            u64::try_from(left).unwrap_or(0)
        });
        let declared = if kind.is_asked() {
            DECLARED_LATE.as_millis() as u64
        } else {
            0
        };
        self.world().now() + left + declared
    }

    async fn carry(&self, letter: Letter) -> Result<reqwest::Response, String> {
        let world = self.world().clone();
        let flight = self.flight(&letter).await;
        let name = format!("{}: {}", self.life.name, flight.name);
        let mut dice = world.dice(&name);
        let trouble = if world.is_calm() { 0 } else { world.plan.tools };
        let kind = Kind::named(flight.tool);
        let fate = Fate::drawn(&mut dice, trouble, kind);
        let slow = if trouble > 0 {
            dice.pick(&[5, 20, 60, 300])
        } else {
            5
        };
        self.life
            .turn(&format!("connect {name}"), dice.below(slow))
            .await;
        if fate == Fate::Unreachable {
            return Err("no connection".to_owned());
        }
        // It may have stalled or waited: the lease may be another one.
        let flight = self.flight(&letter).await;
        if world.plan.broken != Break::LeavesWithoutGate {
            (letter.pass)()?;
        }
        world.say(format!("{name} is sent: {fate:?}"));
        world.count("requests sent");
        world.judge_send(&flight);
        let number = world.books().sent(flight.clone());
        let (answer, answered) = oneshot::channel();
        let way = Way {
            world: world.clone(),
            name: name.clone(),
            flight,
            number,
            slow,
            dice: dice.clone(),
        };
        drop(tokio::spawn(way.travel(fate, answer)));
        let reply = match answered.await {
            Ok(Some(reply)) => reply,
            Ok(None) => {
                self.life
                    .turn(&format!("drop {name}"), dice.below(slow))
                    .await;
                return Err("the connection was closed".to_owned());
            }
            Err(_) => return std::future::pending().await,
        };
        self.life
            .turn(&format!("answer {name}"), dice.below(slow))
            .await;
        Ok(response(&reply))
    }

    /// Asks whether a key was executed.
    async fn probe(&self, url: Url) -> Result<reqwest::Response, String> {
        let world = self.world();
        let key = url.path().trim_start_matches("/known/").to_owned();
        let name = format!("{} asks for {key}", self.life.name);
        let mut dice = world.dice(&name);
        let trouble = if world.is_calm() {
            0
        } else {
            world.plan.tools / 2
        };
        let (is_mute, is_cut) = (dice.chance(trouble), dice.chance(trouble / 2));
        self.life.turn(&name, dice.below(20)).await;
        let known = world.books().known(&key);
        world.count("probes");
        world.say(format!(
            "{name}: {known:?}, {}",
            if is_mute { "unsaid" } else { "said" }
        ));
        self.life
            .turn(&name, dice.below(if trouble > 0 { 300 } else { 5 }))
            .await;
        match (is_mute, known) {
            (true, _) if is_cut => Err("the connection was closed".to_owned()),
            (true, _) => Ok(response(&Reply::Status(500))),
            (false, Some(number)) => Ok(response(&Reply::Made(number))),
            (false, None) => Ok(response(&Reply::Status(404))),
        }
    }
}

impl Line for Net {
    fn send(self: Arc<Self>, letter: Letter) -> Coming {
        Box::pin(async move { self.carry(letter).await })
    }

    fn ask(self: Arc<Self>, url: Url) -> Coming {
        Box::pin(async move { self.probe(url).await })
    }
}

/// A request on its way, which no gateway can call back.
struct Way {
    world: Arc<World>,
    name: String,
    flight: Flight,
    number: u64,
    slow: u64,
    dice: Dice,
}

impl Way {
    /// Nothing is answered where the sender is dropped; `None`: the connection ends.
    async fn travel(mut self, fate: Fate, answer: oneshot::Sender<Option<Reply>>) {
        let left = self.flight.until.saturating_sub(self.world.now());
        let is_too_late = self.world.plan.broken == Break::ArrivesTooLate;
        let after_ms = match fate {
            Fate::Late | Fate::Silent { executes: true } if is_too_late => left + 2_500,
            // Before the end of the lease, and mostly after the attempt was given up.
            Fate::Late | Fate::Silent { executes: true } => {
                self.dice.below(left.saturating_sub(40))
            }
            _ => self.dice.below(self.slow).min(left.saturating_sub(40)),
        };
        let name = format!("arrive {}", self.name);
        self.world.turns.wait(name.clone(), after_ms).await;
        let reply = match fate {
            Fate::Refused(status) => Some(Reply::Status(status)),
            Fate::Fails { executes: false } => Some(Reply::Status(500)),
            Fate::Drops { executes: false } => None,
            Fate::Silent { executes: false } | Fate::Unreachable => {
                self.world.books().over(self.number);
                return;
            }
            Fate::Made | Fate::Late => Some(Reply::Made(self.execute())),
            Fate::Twice => {
                let number = self.execute();
                self.world.turns.wait(name, 20).await;
                self.execute();
                Some(Reply::Made(number))
            }
            Fate::Fails { executes: true } => {
                self.execute();
                Some(Reply::Status(500))
            }
            Fate::Drops { executes: true } => {
                self.execute();
                None
            }
            Fate::Silent { executes: true } => {
                self.execute();
                return;
            }
            Fate::Cut => {
                self.execute();
                Some(Reply::Cut)
            }
        };
        self.world.books().over(self.number);
        // Its gateway may be gone.
        answer.send(reply).ok();
    }

    /// The effect, as the history has it. Of a call that is forgotten the next of its key is another one.
    fn note(&self, done: Done) {
        let flight = &self.flight;
        if !flight.undoes.is_empty() || Kind::named(flight.tool).is_forgotten() {
            return;
        }
        let f = match done {
            Done::Now(_) => "effect",
            Done::Before(_) => "find",
        };
        let mut events = self.world.events();
        let begun = events.begin(f, key_in(&flight.name));
        events.end(&begun, "ok", &done.number().to_string().into());
    }

    fn execute(&self) -> u64 {
        let world = &self.world;
        let kind = Kind::named(self.flight.tool);
        if world.plan.broken == Break::UndoesNothing && !self.flight.undoes.is_empty() {
            return 0;
        }
        let is_honest = world.plan.broken != Break::DeduplicatesNothing;
        let done = {
            let mut books = world.books();
            books.over(self.number);
            books.execute(&self.flight, kind.deduplicates() && is_honest, world.now())
        };
        self.note(done);
        match done {
            Done::Now(number) => {
                world.say(format!("{} is executed: {number}", self.name));
                world.count("effects");
                world.judge_effect(&self.flight);
            }
            Done::Before(number) => world.say(format!("{} is known: {number}", self.name)),
        }
        match world.plan.broken {
            Break::GarblesResults => done.number() + 1_000,
            _ => done.number(),
        }
    }
}

/// The key of a call in its name.
fn key_in(name: &str) -> &str {
    name.split_once(' ').map_or(name, |(_, key)| key)
}

fn response(reply: &Reply) -> reqwest::Response {
    let (status, body) = match reply {
        Reply::Status(status) => (*status, "{}".to_owned()),
        Reply::Made(number) => (200, format!("{{\"made\":{number}}}")),
        Reply::Cut => (200, "{\"ma".to_owned()),
    };
    let body = Breaking {
        bytes: Some(body.into()),
        breaks: matches!(reply, Reply::Cut),
    };
    let response = axum::http::Response::builder()
        .status(status)
        .header("content-type", "application/json")
        .body(reqwest::Body::wrap(body));
    response.expect("a response").into()
}

/// A body that may break off.
struct Breaking {
    bytes: Option<Bytes>,
    breaks: bool,
}

impl Body for Breaking {
    type Data = Bytes;
    type Error = std::io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, std::io::Error>>> {
        if let Some(bytes) = self.bytes.take() {
            return Poll::Ready(Some(Ok(Frame::data(bytes))));
        }
        let is_broken = std::mem::take(&mut self.breaks);
        Poll::Ready(is_broken.then(|| Err(std::io::Error::other("it broke off"))))
    }
}
