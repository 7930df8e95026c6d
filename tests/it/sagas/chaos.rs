//! Sagas while everything goes wrong: each saga ends, and each call is done and undone at most once, in the right
//! order.
//!
//! Agents carry out plans of two to eight steps. Their tools misbehave, and so do the compensations. Agents abort,
//! complete or forget their plans at any moment, while other calls of the plan are under way, and go on asking after
//! that. Gateways are killed and come back. Then all faults end, operators settle what only they can settle, and the
//! records of the tool and of the ledger are compared with the promises.
//!
//! `SAGA_SEED` repeats a run, as far as concurrent events can be repeated. `SAGA_RUNS` is the number of sagas.

mod checks; // what must hold
mod life; // what agents and operators do
mod shop; // tools with every rule, and how they misbehave

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};
use uuid::Uuid;

use self::shop::Shop;
use crate::support::binary::{Process, free_port};
#[cfg(feature = "postgres")]
use crate::support::postgres::{Postgres, place};
use crate::support::redis::Redis;
use crate::support::stores::Stores;
use crate::support::{client, times};

/// Sagas in all four worlds together.
const RUNS: usize = 112;
/// Plans that are carried out at once in one world; more would only make the machine slow.
const AT_ONCE: usize = 20;

/// Pseudo-random numbers (SplitMix64).
pub(crate) struct Dice(u64);

impl Dice {
    fn of(seed: u64, n: u64) -> Self {
        Self(seed ^ n.wrapping_mul(0xd6e8_feb8_6659_fd93))
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit.max(1)
    }
}

/// How often each event has happened. An event that never happened proves nothing.
#[derive(Default)]
struct Tally(Mutex<BTreeMap<&'static str, usize>>);

impl Tally {
    fn add(&self, what: &'static str, times: usize) {
        *self
            .0
            .lock()
            .expect("not poisoned")
            .entry(what)
            .or_default() += times;
    }

    fn has(&self, what: &str) -> bool {
        self.0.lock().expect("not poisoned").contains_key(what)
    }

    fn shows(&self, least: &[(&str, usize)]) {
        let counted = self.0.lock().expect("not poisoned");
        for (what, least) in least {
            let times = counted.get(what).copied().unwrap_or(0);
            assert!(times >= *least, "only {times} times: {what}: {counted:?}");
        }
    }
}

struct World {
    seed: u64,
    sagas: usize,
    shop: Shop,
    ports: Vec<u16>,
    client: reqwest::Client,
    tally: Tally,
    /// When each key was first asked for.
    asked: Mutex<HashMap<String, Instant>>,
}

impl World {
    async fn of(ports: Vec<u16>, shop: Shop, seed: u64) -> Arc<Self> {
        let sagas = number("SAGA_RUNS")
            .map_or_else(|| times(RUNS), |runs| runs as usize)
            .div_ceil(4);
        Arc::new(Self {
            seed,
            sagas,
            shop,
            ports,
            client: client(),
            tally: Tally::default(),
            asked: Mutex::default(),
        })
    }

    fn dice(&self, n: u64) -> Dice {
        Dice::of(self.seed, n)
    }

    async fn live(self: &Arc<Self>) {
        let (mut agents, places) = (JoinSet::new(), Arc::new(Semaphore::new(AT_ONCE)));
        for n in 0..self.sagas {
            let (world, places) = (self.clone(), places.clone());
            agents.spawn(async move {
                let _place = places.acquire().await;
                let dice = world.dice(1 + n as u64);
                world.carry_out(n, dice).await;
            });
        }
        agents.join_all().await;
    }

    /// Ends all faults, waits until all sagas have ended, and checks the promises.
    async fn judge(self: &Arc<Self>) {
        self.shop.heal();
        self.come_to_rest(self.dice(1_000_001)).await;
        self.check(self.dice(1_000_002)).await;
        self.ask_again(self.dice(1_000_003)).await;
        // Half of the numbers of long runs: chance and the machine decide how many sagas come so far.
        self.tally.shows(&[
            ("compensated", self.in_long_runs(self.sagas / 8)),
            ("completed", self.in_long_runs(1)),
            ("undone", self.in_long_runs(self.sagas / 6)),
            ("empty", self.in_long_runs(1)),
            ("undone without knowing", self.in_long_runs(1)),
            ("refused because of the saga", self.in_long_runs(1)),
            ("settled by an operator", self.in_long_runs(1)),
            ("told that it is undone", self.in_long_runs(1)),
        ]);
    }

    fn in_long_runs(&self, least: usize) -> usize {
        if self.sagas > 100 { least } else { 0 }
    }
}

fn name_of(n: usize) -> String {
    format!("g{n}")
}

fn number_of(name: &str) -> usize {
    name.trim_start_matches('g')
        .parse()
        .expect("a name of ours")
}

/// A number from the environment of the test.
#[expect(clippy::disallowed_methods, reason = "a test has no other argument")]
fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

fn seed() -> u64 {
    number("SAGA_SEED").unwrap_or_else(|| Uuid::new_v4().as_u64_pair().0 >> 1)
}

async fn under_fire(stores: &Stores) {
    let seed = seed();
    let shop = Shop::open(seed).await;
    let gateways = stores.gateways(&shop.config()).await;
    let ports = gateways
        .iter()
        .map(|gateway| gateway.address.port())
        .collect();
    let world = World::of(ports, shop, seed).await;
    world.live().await;
    world.judge().await;
    world.tally.shows(&[
        ("compensated", world.sagas / 8),
        ("undone", world.sagas / 6),
    ]);
    world.tally.shows(&[
        ("retried", world.in_long_runs(1)),
        ("left stuck", world.in_long_runs(1)),
    ]);
    for gateway in gateways {
        gateway.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sagas_over_a_file_come_to_their_end_whatever_the_tools_do() {
    under_fire(&Stores::Sqlite).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sagas_over_redis_come_to_their_end_whatever_the_tools_do() {
    let redis = Redis::strict().await;
    under_fire(&Stores::Redis(redis.url())).await;
}

#[cfg(feature = "postgres")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sagas_over_postgres_come_to_their_end_whatever_the_tools_do() {
    let place = place().await;
    under_fire(&Stores::Postgres(place)).await;
}

/// Kills one of the gateways now and then and starts it again, until the run is over. Returns the gateways.
async fn kill_now_and_then(
    world: Arc<World>,
    mut gateways: Vec<Process>,
    folders: Vec<std::path::PathBuf>,
    environment: Vec<(String, String)>,
    is_over: Arc<AtomicBool>,
) -> Vec<Process> {
    let mut dice = world.dice(2_000_000);
    let environment: Vec<(&str, &str)> = environment
        .iter()
        .map(|(name, value)| (name.as_str(), value.as_str()))
        .collect();
    while !is_over.load(Ordering::SeqCst) {
        sleep(Duration::from_millis(200 + dice.below(800))).await;
        let which = dice.below(gateways.len() as u64) as usize;
        let killed = gateways.remove(which);
        let port = killed.port;
        killed.kill();
        sleep(Duration::from_millis(dice.below(60))).await;
        let again =
            Process::start_in(&folders[which], port, &world.shop.config(), &environment).await;
        // Without this wait no gateway of a slow machine would ever be ready, and no saga would begin.
        while !is_over.load(Ordering::SeqCst) {
            let asked = world.client.get(again.url("/readyz")).send().await;
            if asked.is_ok_and(|answer| answer.status() == 200) {
                break;
            }
            sleep(Duration::from_millis(20)).await;
        }
        gateways.insert(which, again);
        world.tally.add("killed", 1);
    }
    gateways
}

async fn under_kills(store: Option<String>, number: usize) {
    let seed = seed();
    let shop = Shop::open(seed).await;
    let folders: Vec<tempfile::TempDir> = (0..number)
        .map(|_| tempfile::tempdir().expect("a folder"))
        .collect();
    let paths: Vec<_> = folders
        .iter()
        .map(|folder| folder.path().to_owned())
        .collect();
    let environment: Vec<_> = store
        .into_iter()
        .map(|url| ("ONCEGATE_STORE__URL".to_owned(), url))
        .collect();
    let named: Vec<(&str, &str)> = environment
        .iter()
        .map(|(name, value)| (name.as_str(), value.as_str()))
        .collect();
    let mut gateways = Vec::new();
    for path in &paths {
        gateways.push(Process::start_in(path, free_port(), &shop.config(), &named).await);
    }
    let ports = gateways.iter().map(|gateway| gateway.port).collect();
    let world = World::of(ports, shop, seed).await;
    let is_over = Arc::<AtomicBool>::default();
    let killing = tokio::spawn(kill_now_and_then(
        world.clone(),
        gateways,
        paths,
        environment,
        is_over.clone(),
    ));
    world.live().await;
    // The kills go on for a while, so that they interrupt the last calls.
    sleep(Duration::from_secs(2)).await;
    is_over.store(true, Ordering::SeqCst);
    let gateways = killing.await.expect("no panic");
    world.judge().await;
    world.tally.shows(&[
        ("killed", 1),
        ("killed", world.in_long_runs(4)),
        ("left stuck", world.in_long_runs(1)),
    ]);
    for gateway in gateways {
        gateway.signal("TERM");
        assert!(gateway.ended().await);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sagas_over_a_file_come_to_their_end_however_often_the_gateway_is_killed() {
    under_kills(None, 1).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sagas_over_redis_come_to_their_end_however_often_one_of_two_gateways_is_killed() {
    let redis = Redis::strict().await;
    under_kills(Some(redis.url()), 2).await;
}

#[cfg(feature = "postgres")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sagas_over_postgres_come_to_their_end_however_often_one_of_two_gateways_is_killed() {
    let server = Postgres::with(&[]).await;
    under_kills(Some(server.url()), 2).await;
}
