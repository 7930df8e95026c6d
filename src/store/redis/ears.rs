//! Listens for the ends of other gateways' calls, on a connection of its own.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use redis::{ErrorKind, FromRedisValue, PushInfo, PushKind, RedisError};
use tokio::time::timeout;

use super::keys::{self, Partition};
use super::link::{Link, Wire};
use crate::store::Endings;

/// How long a subscription may take.
const HEARD: Duration = Duration::from_secs(1);
/// How long all subscriptions together may take, with their connection.
const SUBSCRIBED: Duration = Duration::from_secs(2);

/// Listens for the ends of calls that other gateways run.
pub(super) struct Ears {
    /// A connection of its own.
    ///
    /// A server closes one with subscriptions as soon as the answers on it are many megabytes
    /// behind.
    link: Arc<Link>,
    pub(super) endings: Arc<Endings>,
    /// Whether the next look subscribes anew.
    is_deaf: Arc<AtomicBool>,
    /// How many connections have subscribed.
    hearings: Arc<AtomicU64>,
}

impl Ears {
    pub(super) fn new(link: &Arc<Link>) -> Self {
        Self {
            link: Arc::new(link.beside(HEARD)),
            endings: Arc::default(),
            is_deaf: Arc::new(true.into()),
            hearings: Arc::default(),
        }
    }

    /// Makes the next look subscribe anew.
    pub(super) fn is_cut_off(&self) {
        self.is_deaf.store(true, Ordering::SeqCst);
    }

    /// Subscribes to the ends of calls, if needed.
    pub(super) async fn hear_endings(&self) {
        if !self.is_deaf.swap(false, Ordering::SeqCst) {
            return;
        }
        // What an earlier connection still says does not count.
        let number = self.hearings.fetch_add(1, Ordering::SeqCst) + 1;
        let (endings, is_deaf, hearings) = (
            self.endings.clone(),
            self.is_deaf.clone(),
            self.hearings.clone(),
        );
        let hear = move |push: PushInfo| match push.kind {
            PushKind::Message | PushKind::SMessage => {
                let id = push
                    .data
                    .into_iter()
                    .nth(1)
                    .and_then(|id| Vec::<u8>::from_redis_value(id).ok());
                if let Some(call_id) = id.and_then(|id| keys::call_id(&id)) {
                    endings.say(call_id);
                }
            }
            PushKind::Disconnection if hearings.load(Ordering::SeqCst) == number => {
                is_deaf.store(true, Ordering::SeqCst);
            }
            _ => {}
        };
        let channels: Vec<String> = Partition::all().map(Partition::endings).collect();
        let subscribe = async {
            match self.link.connect(hear).await? {
                Wire::One(mut manager) => manager.subscribe(&channels).await,
                Wire::Cluster(mut cluster) => {
                    for channel in &channels {
                        cluster.ssubscribe(channel).await?;
                    }
                    Ok(())
                }
            }
        };
        // A server that is connected and says nothing must not keep the look.
        let subscribed = timeout(SUBSCRIBED, subscribe).await;
        let late = || Err(RedisError::from((ErrorKind::Io, "no answer in time")));
        if let Err(error) = subscribed.unwrap_or_else(|_| late()) {
            // Waiting calls still look for themselves; it only takes longer.
            tracing::warn!(%error, "the ends of other gateways' calls cannot be heard");
            self.is_deaf.store(true, Ordering::SeqCst);
        }
    }
}
