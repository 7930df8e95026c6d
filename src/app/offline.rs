//! Acts of an operator on a store, from the command line.

use std::collections::BTreeMap;

use super::{Config, Error, encrypt, gateway_over, visit};
use crate::core::caller::Caller;
use crate::gateway::{self, Gateway};
#[cfg(feature = "redis")]
use crate::store::redis::{self, Redis};

/// Accepts a loss of data from the command line.
///
/// Answers how many calls became unknown.
///
/// # Errors
/// Nothing is lost, or the store is not reached.
pub async fn accept_loss(config: Config, reason: &str) -> Result<usize, Error> {
    let gateway = without_serving(config).await?;
    let (by, reason) = (Caller::operator(), reason.to_owned());
    let accepted = gateway.loss.accept_loss(by, reason).await;
    close(&gateway).await;
    accepted.map_err(|error| refused("the loss was not accepted", error))
}

/// Counts this configuration's retention for stored calls, or says what that would change, by tool.
///
/// # Errors
/// The store is not reached or not ready, or a gateway serves from the SQLite file. What was changed stays so.
pub async fn apply_retention(
    config: Config,
    is_dry_run: bool,
) -> Result<BTreeMap<String, gateway::RetentionCounts>, Error> {
    let gateway = without_serving(config).await?;
    let counted = gateway.expiry.apply_retention(is_dry_run).await;
    close(&gateway).await;
    counted.map_err(|error| refused("the retention was not counted for all calls", error))
}

/// A gateway over the store that takes no requests. It knows the configured tools, and not those that upstreams list.
async fn without_serving(mut config: Config) -> Result<Gateway, Error> {
    drop(rustls::crypto::ring::default_provider().install_default());
    let instance = gateway::new_instance();
    let store = visit(&config.store, instance).await?;
    let store = encrypt(store, config.store_keys.take());
    config.upstreams.clear();
    config.webhook = None;
    gateway_over(store, instance, &mut config)
}

/// Lets go of a SQLite file.
async fn close(gateway: &Gateway) {
    if !gateway.base.store.is_shared() {
        gateway.base.store.close().await;
    }
}

fn refused(what: &str, error: gateway::Error) -> Error {
    let why = match error.kind {
        gateway::ErrorKind::WrongState(why) => why,
        kind => kind.to_string(),
    };
    Error::Other(format!("{what}: {why}"))
}

/// The format of a Redis, and the gateways that share it.
///
/// # Errors
/// The store is not reached, or is empty.
#[cfg(feature = "redis")]
pub async fn standing(settings: redis::Settings) -> Result<redis::Standing, Error> {
    Ok(visit_redis(settings).await?.standing().await?)
}

/// Moves a Redis to the newest format. Answers where it stood before.
///
/// # Errors
/// The store is not ready, or a gateway that shares it does not know the format.
#[cfg(feature = "redis")]
pub async fn move_on(settings: redis::Settings) -> Result<redis::Standing, Error> {
    let moved = visit_redis(settings).await?.move_on().await;
    moved.map_err(|error| Error::Other(format!("the store was not upgraded: {error}")))
}

#[cfg(feature = "redis")]
async fn visit_redis(settings: redis::Settings) -> Result<Redis, Error> {
    drop(rustls::crypto::ring::default_provider().install_default());
    Ok(Redis::visit(settings).await?)
}
