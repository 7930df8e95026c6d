//! The store as a gateway reaches it: late, not at all, or without an answer.

use std::future::Future;
use std::sync::Arc;

use jiff::SignedDuration;

use super::arguments::Argument;
use super::dice::Dice;
use super::judge::{Target, Watched};
use super::life::{AGENT, Life};
use super::memory::Memory;
use super::plan::{Break, Rates};
use crate::core::record::State;
use crate::store::verbs::layer::*;
use crate::store::{Health, Listener, Readiness, ReplayCache};

/// How much later than its answer is lost a verb is carried out, at most.
const LATEST_MS: u64 = 300;

pub(super) struct SimStore {
    life: Arc<Life>,
    store: Arc<dyn Store>,
}

/// What goes wrong with one verb.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    Nothing,
    Refused,
    Unanswered,
    Late(u64),
    Twice,
}

impl SimStore {
    pub(super) fn of(life: Arc<Life>) -> Self {
        let store = Broken {
            store: life.world.memory.clone(),
            broken: life.world.plan.broken,
        };
        Self {
            life,
            store: Arc::new(store),
        }
    }

    /// Carries out one verb, or what a fault makes of it.
    async fn ask<T, F>(
        &self,
        label: &str,
        about: String,
        watched: Option<Target>,
        verb: impl Fn(Arc<dyn Store>) -> F + Send + Sync,
    ) -> Result<T, Error>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, Error>> + Send + 'static,
    {
        let (life, world) = (&self.life, &self.life.world);
        // What tasks of requests ask is told apart by the agents that wait for them.
        let agent = AGENT.try_with(|agent| *agent).unwrap_or_default();
        let name = format!("{} {label} {about} {agent}", life.name);
        life.awake(&name).await;
        let mut dice = world.dice(&name);
        let way_ms = if world.is_calm() {
            1
        } else {
            world.plan.way_ms
        };
        let [there, back] = [dice.below(way_ms), dice.below(way_ms)];
        world.turns.wait(name.clone(), there).await;
        if life.is_over() && dice.chance(50) {
            return std::future::pending().await;
        }
        let fault = if world.is_calm() {
            Fault::Nothing
        } else if world.plan.is_down(world.now()) {
            Fault::Refused
        } else {
            drawn(&mut dice, world.plan.store)
        };
        let watch = Watched {
            world: world.clone(),
            by: life.name.clone(),
            target: watched,
        };
        let run = || {
            let (verb, watch) = (verb(self.store.clone()), watch.clone());
            async move {
                let before = watch.look().await;
                let answer = verb.await;
                watch.compare(before).await;
                answer
            }
        };
        let unanswered = || Err(Error::Ambiguous("the answer was lost".to_owned()));
        let answer = match fault {
            Fault::Nothing => run().await,
            Fault::Refused => Err(Error::Refused("it is not there".to_owned())),
            Fault::Unanswered => {
                world.count("answers of the store lost");
                drop(run().await);
                unanswered()
            }
            Fault::Late(after_ms) => {
                world.count("writes of the store late");
                let (late, world, name) = (run(), world.clone(), format!("late {name}"));
                drop(tokio::spawn(async move {
                    world.turns.wait(name, after_ms).await;
                    drop(late.await);
                }));
                unanswered()
            }
            Fault::Twice => {
                drop(run().await);
                run().await
            }
        };
        life.turn(&name, back).await;
        answer
    }
}

fn drawn(dice: &mut Dice, rates: Rates) -> Fault {
    let mut left = dice.below(100);
    let late = Fault::Late(dice.below(LATEST_MS));
    for (rate, fault) in [
        (rates.refused, Fault::Refused),
        (rates.unanswered, Fault::Unanswered),
        (rates.late, late),
        (rates.twice, Fault::Twice),
    ] {
        let Some(rest) = left.checked_sub(rate) else {
            return fault;
        };
        left = rest;
    }
    Fault::Nothing
}

macro_rules! simulated {
    ($self:ident, $label:expr, $verb:ident($($arg:ident),*)) => {{
        let about: [String; _] = [$(Described::short(&$arg)),*];
        let watched: [Option<Target>; _] = [$(Described::changes(&$arg)),*];
        let given = ($(Argument::keep($arg),)*);
        let run = move |store: Arc<dyn Store>| {
            let ($($arg,)*) = given.clone();
            async move { store.$verb($(Argument::lend(&$arg)),*).await }
        };
        let watched = watched.into_iter().flatten().next();
        $self.ask($label, about.join(" "), watched, run).await
    }};
}
each_verb!(implement, SimStore, simulated);

forward_secrets!(SimStore);

#[async_trait::async_trait]
impl Health for SimStore {
    async fn readiness(&self) -> Readiness {
        self.store.readiness().await
    }

    fn clock_offset(&self) -> SignedDuration {
        self.store.clock_offset()
    }

    /// One gateway may have the store for itself: then it remembers what has succeeded.
    fn is_shared(&self) -> bool {
        self.life.world.plan.gateways > 1
    }

    fn listen(&self, call_id: CallId) -> Option<Listener> {
        self.store.listen(call_id)
    }

    fn track(&self, _: &Arc<ReplayCache>) -> bool {
        false
    }

    fn cancel_acceptance(&self) {}

    async fn close(&self) {}
}

/// The store itself, with what a test breaks in it.
struct Broken {
    store: Memory,
    broken: Break,
}

macro_rules! broken {
    ($self:ident, $label:expr, claim($change:ident, $replaced:ident)) => {{
        let mut given_up = $replaced.to_vec();
        if $self.broken == Break::ClaimTakesHeldKey {
            let lookups: Vec<Lookup> = $change.record.intent.all_lookups().copied().collect();
            let held = $self.store.holders(&lookups).await?;
            given_up.extend(held.into_iter().map(|holder| holder.record));
        }
        $self.store.claim($change, &given_up).await
    }};
    ($self:ident, $label:expr, replace($change:ident, $expected:ident)) => {{
        let stored = $self.store.load($expected.intent.call_id).await?;
        match ($self.broken, stored) {
            (Break::ReplacesWithoutComparing, Some(stored)) => {
                $self.store.replace($change, &stored).await
            }
            (Break::AcknowledgesUnwritten, _)
                if matches!($change.record.state, State::Succeeded(_))
                    && $change.record.version == 2 =>
            {
                Ok(Replaced::Done($change.record.clone()))
            }
            _ => $self.store.replace($change, $expected).await,
        }
    }};
    ($self:ident, $label:expr, document($kind:ident, $tenant:ident, $id:ident)) => {{
        let mut found = $self.store.document($kind, $tenant, $id).await?;
        if $self.broken == Break::ReopensSagas
            && let Some(saga) = found.as_mut().filter(|found| found.kind == Kind::Saga)
            && matches!(saga.state.as_str(), "completed" | "compensated")
        {
            saga.state = "open".to_owned();
        }
        Ok(found)
    }};
    ($self:ident, $label:expr, due($now:ident, $limit:ident)) => {
        match $self.broken {
            Break::RecoversNothing => Ok(Found::default()),
            _ => $self.store.due($now, $limit).await,
        }
    };
    ($self:ident, $label:expr, prune($now:ident, $limit:ident)) => {{
        let is_unknown = |(record, _): &(Record, _)| matches!(record.state, State::Unknown(_));
        if $self.broken == Break::ForgetsUnknown && $self.store.records().iter().any(is_unknown) {
            $self.store.forget_calls();
        }
        $self.store.prune($now, $limit).await
    }};
    ($self:ident, $label:expr, $verb:ident($($arg:ident),*)) => {{
        let store: &dyn Store = &$self.store;
        store.$verb($($arg),*).await
    }};
}
each_verb!(implement, Broken, broken);

forward_secrets!(Broken);
forward_health!(Broken);

/// An argument of a verb: a few words about it, and what the verb is to change.
trait Described {
    fn short(&self) -> String;

    fn changes(&self) -> Option<Target> {
        None
    }
}

impl Described for &Change {
    fn short(&self) -> String {
        let record = &self.record;
        format!(
            "{} v{} {}",
            record.intent.call_id,
            record.version,
            record.state.as_str()
        )
    }

    fn changes(&self) -> Option<Target> {
        Some(Target::Call(self.record.intent.call_id))
    }
}

impl Described for &Document {
    fn short(&self) -> String {
        format!("{} {} v{}", self.kind.as_str(), self.id, self.version)
    }

    fn changes(&self) -> Option<Target> {
        (self.kind == Kind::Saga).then(|| Target::Saga(self.tenant.clone(), self.id.clone()))
    }
}

macro_rules! described {
    ($($ty:ty: |$value:ident| $short:expr;)*) => { $(
        impl Described for $ty {
            fn short(&self) -> String {
                let $value = self;
                $short
            }
        }
    )* };
}
described! {
    &Record: |record| format!("{} v{}", record.intent.call_id, record.version);
    &[Record]: |records| records.len().to_string();
    &Lookup: |name| Lookup::short(name);
    &[Lookup]: |lookups| lookups.iter().map(Lookup::short).collect::<Vec<_>>().join(" ");
    &[String]: |lookups| lookups.len().to_string();
    &str: |text| (*text).to_owned();
    &Filter: |_filter| String::new();
    &DocumentQuery: |query| format!("{query:?}");
    &Duplicates: |later| later.count.to_string();
    &SessionId: |session| format!("{session:?}");
    &Lock: |lock| lock.call_id.to_string();
    &Entry: |entry| entry.event.to_string();
    CallId: |call_id| format!("{call_id:?}");
    Timestamp: |time| format!("{time:?}");
    Kind: |kind| format!("{kind:?}");
    Option<Position>: |position| format!("{position:?}");
    u32: |number| number.to_string();
    bool: |is_so| is_so.to_string();
}
