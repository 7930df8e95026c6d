//! Subscribes to the ends of other gateways' calls, on a connection of its own.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use redis::{ErrorKind, FromRedisValue, PushInfo, PushKind, RedisError};
use tokio::time::timeout;

use super::{Link, Wire};
use crate::keys::{self, Partition};
use oncegate_store::Endings;
use oncegate_store::repeats::Repeats;

/// How often it is logged that it fails.
const SAME_EVERY: Duration = Duration::from_secs(60);
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
    repeats: Repeats,
}

impl Subscriber {
    pub(crate) fn new(link: &Arc<Link>) -> Self {
        Self {
            link: Arc::new(link.beside(ANSWERED)),
            endings: Arc::default(),
            is_due: Arc::new(true.into()),
            connections: Arc::default(),
            repeats: Repeats::every(SAME_EVERY),
        }
    }

    /// Makes the next inspection subscribe again.
    pub(crate) fn renew(&self) {
        self.is_due.store(true, Ordering::SeqCst);
    }

    /// Subscribes to the ends of calls, unless it has. If it fails or is dropped, the next inspection subscribes.
    pub(crate) async fn subscribe(&self) {
        if !self.is_due.swap(false, Ordering::SeqCst) {
            return;
        }
        let mut again = Again(Some(self));
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
            if let Some(left_out) = self.repeats.note(error.to_string()) {
                let text = "ends of other gateways' calls cannot be received";
                tracing::warn!(%error, left_out, "{text}");
            }
            return;
        }
        again.0 = None;
    }
}

/// Makes the next inspection subscribe again, unless it is emptied first.
struct Again<'a>(Option<&'a Subscriber>);

impl Drop for Again<'_> {
    fn drop(&mut self) {
        if let Some(subscriber) = self.0 {
            subscriber.renew();
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;
    use crate::target::Target;

    #[tokio::test]
    async fn a_subscription_that_is_dropped_half_way_is_made_again() {
        let silent = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let port = silent.local_addr().expect("an address").port();
        let target = Target::parse(&format!("redis://127.0.0.1:{port}")).expect("a target");
        let subscriber = Subscriber::new(&Arc::new(Link::new(target, None)));
        let given_up = timeout(Duration::from_millis(20), subscriber.subscribe()).await;
        assert!(given_up.is_err() && subscriber.is_due.load(Ordering::SeqCst));
    }
}
