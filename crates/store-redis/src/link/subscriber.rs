//! Subscribes to the ends of other gateways' calls, on a connection of its own.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use redis::{ErrorKind, FromRedisValue, PushInfo, PushKind, RedisError};
use tokio::time::timeout;

use super::{Link, Wire};
use crate::keys::{self, Partition};
use oncegate_store::Endings;

/// How long one subscription may take.
const ANSWERED: Duration = Duration::from_secs(1);
/// How long all subscriptions together may take, with their connection.
const SUBSCRIBED: Duration = Duration::from_secs(2);

/// Hears the ends of calls that other gateways run.
pub(crate) struct Subscriber {
    /// A connection of its own: Redis closes a subscriber that is many megabytes behind with its answers.
    link: Arc<Link>,
    pub(crate) endings: Arc<Endings>,
    /// Whether the next inspection subscribes.
    is_due: Arc<AtomicBool>,
    /// How many connections have subscribed.
    connections: Arc<AtomicU64>,
}

impl Subscriber {
    pub(crate) fn new(link: &Arc<Link>) -> Self {
        Self {
            link: Arc::new(link.beside(ANSWERED)),
            endings: Arc::default(),
            is_due: Arc::new(true.into()),
            connections: Arc::default(),
        }
    }

    /// Makes the next inspection subscribe again.
    pub(crate) fn renew(&self) {
        self.is_due.store(true, Ordering::SeqCst);
    }

    /// Subscribes to the ends of calls, unless it has.
    pub(crate) async fn subscribe(&self) {
        if !self.is_due.swap(false, Ordering::SeqCst) {
            return;
        }
        // The end of an earlier connection does not count.
        let number = self.connections.fetch_add(1, Ordering::SeqCst) + 1;
        let (endings, is_due) = (self.endings.clone(), self.is_due.clone());
        let connections = self.connections.clone();
        let hear = move |push: PushInfo| match push.kind {
            PushKind::Message | PushKind::SMessage => {
                let id = push.data.into_iter().nth(1);
                let id = id.and_then(|id| Vec::<u8>::from_redis_value(id).ok());
                if let Some(call_id) = id.and_then(|id| keys::call_id(&id)) {
                    endings.say(call_id);
                }
            }
            PushKind::Disconnection if connections.load(Ordering::SeqCst) == number => {
                is_due.store(true, Ordering::SeqCst);
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
        // A server that is connected and silent must not hold up the inspection.
        let subscribed = timeout(SUBSCRIBED, subscribe).await;
        let late = || Err(RedisError::from((ErrorKind::Io, "no answer in time")));
        if let Err(error) = subscribed.unwrap_or_else(|_| late()) {
            // Callers that wait also poll the store, which only takes longer.
            tracing::warn!(%error, "ends of other gateways' calls cannot be received");
            self.renew();
        }
    }
}
