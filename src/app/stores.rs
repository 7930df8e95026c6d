//! The stores of this build: opened for a gateway that serves, or for one act of an operator.

use std::sync::Arc;

use tokio_util::sync::CancellationToken;

use crate::config::StoreAt;
use crate::core::record::InstanceId;
#[cfg(feature = "postgres")]
use crate::store::postgres::Postgres;
#[cfg(feature = "redis")]
use crate::store::redis::Redis;
#[cfg(feature = "sqlite")]
use crate::store::sqlite::{self, Sqlite};
use crate::store::{self, Store};

/// Why a gateway does not start, or stopped by itself.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[cfg(feature = "sqlite")]
    #[error("the store cannot be opened: {0}")]
    Sqlite(#[from] sqlite::OpenError),
    #[error("the store cannot be opened: {0}")]
    Shared(#[from] store::shared::OpenError),
    #[error("calls left over from the last run cannot be settled: {0}")]
    Recovery(#[from] store::Error),
    #[error("the store's file can no longer be trusted")]
    StoreFailed,
    #[error("{0}")]
    Other(String),
}

/// Opens the store of a gateway that serves.
///
/// # Errors
/// It cannot be opened, or this build does not have it.
#[cfg_attr(not(feature = "sqlite"), expect(unused_variables, reason = "a file"))]
pub(super) async fn open_store(
    at: &StoreAt,
    instance: InstanceId,
    fatal: &CancellationToken,
) -> Result<Arc<dyn Store>, Error> {
    Ok(match at {
        #[cfg(feature = "sqlite")]
        StoreAt::Sqlite(path) => Arc::new(Sqlite::open(path, instance, fatal)?),
        #[cfg(feature = "redis")]
        StoreAt::Redis(settings) => Arc::new(Box::pin(Redis::open(*settings.clone())).await?),
        #[cfg(feature = "postgres")]
        StoreAt::Postgres(settings) => Arc::new(Box::pin(Postgres::open(*settings.clone())).await?),
        #[cfg(not(feature = "sqlite"))]
        StoreAt::Sqlite(_) => return Err(Error::Other("this build has no SQLite".into())),
    })
}

/// Opens a store for one act of an operator, a shared one beside the gateways that use it.
///
/// # Errors
/// It cannot be opened, or this build does not have it.
pub(super) async fn visit(at: &StoreAt, instance: InstanceId) -> Result<Arc<dyn Store>, Error> {
    Ok(match at {
        #[cfg(feature = "redis")]
        StoreAt::Redis(settings) => Arc::new(Redis::visit(*settings.clone()).await?),
        #[cfg(feature = "postgres")]
        StoreAt::Postgres(settings) => {
            Arc::new(Box::pin(Postgres::visit(*settings.clone())).await?)
        }
        of_process => open_store(of_process, instance, &CancellationToken::new()).await?,
    })
}
