//! The programs that are asked: one process for each section, for all callers.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::task::JoinSet;

use super::program::{Server, Start};

/// The programs that were needed so far, by the names of their sections.
#[derive(Default)]
pub(in crate::downstream) struct Programs(Mutex<HashMap<String, Arc<Server>>>);

impl fmt::Debug for Programs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Programs").finish_non_exhaustive()
    }
}

impl Programs {
    /// A program, started if it was not needed before, or is another one by now.
    ///
    /// Requests under way end at the one that they were sent to.
    pub(in crate::downstream) fn server(&self, start: Start) -> Arc<Server> {
        let mut servers = self.lock();
        match servers.get(&start.name) {
            Some(server) if server.start == start => server.clone(),
            _ => {
                let server = Arc::new(Server::new(start.clone()));
                servers.insert(start.name, server.clone());
                server
            }
        }
    }

    /// Ends those that are not among these any more.
    pub(in crate::downstream) fn keep(&self, wanted: &[Start]) {
        let mut servers = self.lock();
        servers.retain(|_, server| wanted.contains(&server.start));
    }

    /// Ends all, and waits until they have ended.
    pub(in crate::downstream) async fn stop(&self) {
        let servers: Vec<_> = self.lock().drain().map(|(_, server)| server).collect();
        let mut stopping = JoinSet::new();
        for server in servers {
            stopping.spawn(async move { server.stop().await });
        }
        stopping.join_all().await;
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, Arc<Server>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
