//! The programs of MCP servers: one process for each section, for all callers.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures_util::future::join_all;

use super::program::{Server, Start};

/// The programs that may be asked, and earlier ones.
#[derive(Default)]
pub(crate) struct Programs(Mutex<Known>);

#[derive(Default)]
struct Known {
    wanted: Vec<Start>,
    /// By the name of the section.
    servers: HashMap<String, Arc<Server>>,
}

impl Programs {
    /// A program, started if it was not needed before.
    ///
    /// # Errors
    /// It is configured no more, or otherwise by now: then a call that began before must not start the earlier one again.
    pub(crate) fn server(&self, start: Start) -> Result<Arc<Server>, String> {
        let mut known = self.lock();
        if let Some(server) = known.servers.get(&start.name)
            && server.start == start
        {
            return Ok(server.clone());
        }
        if !known.wanted.contains(&start) {
            return Err(
                "the server is not configured any more, or its settings have changed".into(),
            );
        }
        let server = Arc::new(Server::new(start.clone()));
        known.servers.insert(start.name, server.clone());
        Ok(server)
    }

    /// Sets the programs that may be asked from now on. Others end after their last answer.
    pub(crate) fn keep(&self, wanted: Vec<Start>) {
        let mut known = self.lock();
        known
            .servers
            .retain(|_, server| wanted.contains(&server.start));
        known.wanted = wanted;
    }

    /// Ends all programs, and waits for them. None is started after that.
    pub(crate) async fn stop(&self) {
        let known = std::mem::take(&mut *self.lock());
        join_all(known.servers.values().map(|server| server.stop())).await;
    }

    fn lock(&self) -> MutexGuard<'_, Known> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
