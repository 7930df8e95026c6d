//! Measures the memory of idle connections, running calls and waiting duplicates: the growth of the process for each.

use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use tokio::time::sleep;

use super::Fallible;
use super::client::Client;
use super::processes::Process;

/// Connections that are opened first, so that memory which is allocated once is not counted.
const BEFORE: usize = 50;
/// How many of each are opened. Together they stay below 1,024 files.
const IDLE: usize = 300;
const RUNNING: usize = 100;
const WAITING: usize = 200;
/// By then every request has arrived and waits.
const SETTLED: Duration = Duration::from_secs(2);

/// Bytes for each.
#[derive(Serialize)]
pub(super) struct Held {
    pub(super) idle_connection: f64,
    /// With its connection, and the connection to the tool.
    pub(super) running_call: f64,
    /// With its connection.
    pub(super) waiting_duplicate: f64,
}

/// Measures a gateway that has just been started. `None` where the system does not show the memory of a process.
pub(super) async fn measure(gateway: &Process) -> Fallible<Option<Held>> {
    let mut clients = Vec::new();
    let mut more = async |count: usize, key: fn(usize) -> Option<String>| {
        let before = gateway.memory();
        for number in 0..count {
            let mut client = Client::connect(number, gateway.address, &Arc::default()).await?;
            match key(number) {
                Some(key) => client.begin_slow(&key).await?,
                None => drop(client.get("/healthz").await?),
            }
            clients.push(client);
        }
        sleep(SETTLED).await;
        let held = gateway.memory().zip(before);
        Fallible::Ok(held.map(|(after, before)| (after - before) / count as f64))
    };
    more(BEFORE, |_| None).await?;
    let idle = more(IDLE, |_| None).await?;
    let running = more(RUNNING, |number| Some(format!("slow-{number}"))).await?;
    let waiting = more(WAITING, |_| Some("slow-0".to_owned())).await?;
    let (Some(idle_connection), Some(running_call), Some(waiting_duplicate)) =
        (idle, running, waiting)
    else {
        return Ok(None);
    };
    Ok(Some(Held {
        idle_connection,
        running_call,
        waiting_duplicate,
    }))
}
