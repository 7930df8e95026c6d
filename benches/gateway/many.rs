//! Replays of more calls than fit into the gateway's memory of succeeded ones.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::Fallible;
use super::client::{Ask, Client, Serials};

/// Calls that fit, and calls that do not.
const FEW: usize = 1_000;
const MANY: usize = 200_000;
/// Clients that make the calls, and clients that replay them.
const MAKERS: usize = 64;
const CLIENTS: usize = 16;

/// Requests a second.
#[derive(Serialize)]
pub(super) struct Replays {
    pub(super) calls: [usize; 2],
    pub(super) per_second: [f64; 2],
}

/// Makes calls with numbers from 1,000 on, and replays them in no order: first some, then any of them.
///
/// `share`: the part of the usual number of calls.
pub(super) async fn measure(
    gateway: SocketAddr,
    serials: &Arc<Serials>,
    time: Duration,
    share: f64,
) -> Fallible<Replays> {
    let many = ((MANY as f64 * share) as usize).max(FEW);
    let mut makers = JoinSet::new();
    for maker in 0..MAKERS {
        let mut client = Client::connect(maker, gateway, serials).await?;
        makers.spawn(async move {
            for number in (maker..many).step_by(MAKERS) {
                client.number = FEW + number;
                client.ask(Ask::Claim).await?;
            }
            Fallible::Ok(())
        });
    }
    makers
        .join_all()
        .await
        .into_iter()
        .collect::<Fallible<()>>()?;
    let mut per_second = [0.0; 2];
    for (rate, calls) in per_second.iter_mut().zip([FEW, many]) {
        // Once for memory, once for the figure.
        for _ in 0..2 {
            *rate = replay_for(gateway, serials, calls, time).await?;
        }
    }
    Ok(Replays {
        calls: [FEW, many],
        per_second,
    })
}

/// Replays for so long. Returns the requests a second.
async fn replay_for(
    gateway: SocketAddr,
    serials: &Arc<Serials>,
    calls: usize,
    time: Duration,
) -> Fallible<f64> {
    let mut clients = JoinSet::new();
    for number in 0..CLIENTS {
        let mut client = Client::connect(number, gateway, serials).await?;
        clients.spawn(async move {
            let (mut count, until) = (0_u32, Instant::now() + time);
            let mut random = number as u64 + 1;
            while Instant::now() < until {
                // Knuth's linear congruential generator.
                random = random
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1_442_695_040_888_963_407);
                client.number = FEW + (random >> 33) as usize % calls;
                client.ask(Ask::Replay).await?;
                count += 1;
            }
            Fallible::Ok(count)
        });
    }
    let counts = clients.join_all().await.into_iter();
    let counts = counts.collect::<Fallible<Vec<u32>>>()?;
    Ok(f64::from(counts.iter().sum::<u32>()) / time.as_secs_f64())
}
