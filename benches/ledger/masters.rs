//! How the work of many tenants is spread over the masters of a cluster.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use oncegate::core::tool::Tool;
use oncegate::store::redis::{FORMAT, Redis, Settings, Target};
use oncegate::store::{Durability, Store};
use tokio::task::JoinSet;
use tokio::time::sleep;

use super::calls::{Fallible, now, patient, user_of, write};
use super::table::{processor_time_of, say};
use super::{Server, WRITERS, free_port};

/// Tenants whose calls are made in turn, and gateways that make them.
const TENANTS: usize = 60;
const GATEWAYS: usize = 2;
/// Calls of one round, and rounds of each kind of Redis, in turn.
const CALLS: usize = 20_000;
const ROUNDS: usize = 3;
const SLOTS: [[&str; 2]; 3] = [["0", "5460"], ["5461", "10922"], ["10923", "16383"]];

/// Servers with two gateways before them.
struct Kind {
    servers: Vec<Server>,
    gateways: Vec<Arc<dyn Store>>,
    /// Processor time of each server for its calls, in microseconds.
    used: Vec<f64>,
}

/// Prints the processor time of a call on one master, and on the busiest of three.
pub(super) async fn measure(folder: &Path) -> Fallible<()> {
    let mut kinds = [one(folder).await?, three(folder).await?];
    for round in 0..ROUNDS {
        for kind in &mut kinds {
            kind.make_calls(1_000_000 * (round + 1)).await?;
        }
    }
    let of_call = |used: &f64| used / (ROUNDS * CALLS) as f64;
    let [one, three] = kinds.map(|kind| kind.used.iter().map(of_call).collect::<Vec<_>>());
    let busiest = three.iter().copied().fold(0.0, f64::max);
    say(&format!(
        "\n{TENANTS} tenants, {GATEWAYS} gateways: a call takes {:.0} µs of one master, and {:.0}, {:.0} and {:.0} µs of \
         three; the busiest has {:.2} of the one",
        one[0],
        three[0],
        three[1],
        three[2],
        busiest / one[0]
    ));
    Ok(())
}

async fn one(folder: &Path) -> Fallible<Kind> {
    let server = Server::start(&subfolder(folder, "one")?, &[])?;
    let url = format!("redis://127.0.0.1:{}", server.port);
    Kind::of(vec![server], &url, folder).await
}

async fn three(folder: &Path) -> Fallible<Kind> {
    let mut servers = Vec::new();
    for (epoch, [from, to]) in (1..).zip(SLOTS) {
        let folder = subfolder(folder, &format!("master-{epoch}"))?;
        let bus = free_port()?.to_string();
        let settings = ["--cluster-enabled", "yes", "--cluster-port", &bus];
        let server = Server::start(&folder, &settings)?;
        server
            .ask(&["CLUSTER", "SET-CONFIG-EPOCH", &epoch.to_string()])
            .await?;
        server.ask(&["CLUSTER", "ADDSLOTSRANGE", from, to]).await?;
        servers.push((server, bus));
    }
    for (server, bus) in &servers[1..] {
        let port = server.port.to_string();
        let (first, _) = &servers[0];
        first
            .ask(&["CLUSTER", "MEET", "127.0.0.1", &port, bus])
            .await?;
    }
    let servers: Vec<Server> = servers.into_iter().map(|(server, _)| server).collect();
    let nodes: Vec<String> = servers
        .iter()
        .map(|server| format!("127.0.0.1:{}", server.port))
        .collect();
    let url = format!("redis+cluster://{}", nodes.join(","));
    Kind::of(servers, &url, folder).await
}

fn subfolder(folder: &Path, name: &str) -> Fallible<std::path::PathBuf> {
    let subfolder = folder.join(name);
    fs::create_dir(&subfolder)?;
    Ok(subfolder)
}

impl Kind {
    async fn of(servers: Vec<Server>, url: &str, folder: &Path) -> Fallible<Self> {
        let mut gateways: Vec<Arc<dyn Store>> = Vec::new();
        for number in 0..GATEWAYS {
            let watermarks = folder.join(format!("watermarks-{}-{number}", servers.len()));
            let store = Redis::open(Settings {
                target: Target::parse(url)?,
                durability: Durability::Relaxed,
                declared: None,
                ca: None,
                watermarks,
                stream: false,
                timings: patient(),
                newest_format: FORMAT,
            });
            let store: Arc<dyn Store> = Arc::new(store.await?);
            while !store.readiness().await.reasons.is_empty() {
                sleep(Duration::from_millis(100)).await;
            }
            gateways.push(store);
        }
        let used = vec![0.0; servers.len()];
        Ok(Self {
            servers,
            gateways,
            used,
        })
    }

    /// Makes one round of calls, with numbers from `first`.
    async fn make_calls(&mut self, first: usize) -> Fallible<()> {
        let processor_times = |servers: &[Server]| -> Vec<f64> {
            servers
                .iter()
                .map(|server| processor_time_of(&server.process.id().to_string()))
                .collect()
        };
        let before = processor_times(&self.servers);
        let mut all = JoinSet::new();
        for writer in 0..WRITERS {
            let store = self.gateways[writer % GATEWAYS].clone();
            all.spawn(async move {
                let tool = Tool::new("act");
                for n in (first..first + CALLS).skip(writer).step_by(WRITERS) {
                    let tenant = format!("tenant-{:02}", n % TENANTS);
                    write(&*store, &tool, (&tenant, user_of), n, now()).await?;
                }
                Fallible::Ok(())
            });
        }
        all.join_all().await.into_iter().collect::<Fallible<()>>()?;
        let after = processor_times(&self.servers);
        for (used, (after, before)) in self.used.iter_mut().zip(after.iter().zip(before)) {
            *used += after - before;
        }
        Ok(())
    }
}
