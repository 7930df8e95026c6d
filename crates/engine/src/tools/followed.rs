//! The tasks of MCP servers that this gateway follows.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use oncegate_rules::record::CallId;

/// The tasks that are followed here, and their calls.
///
/// A server that gives one task for two calls executes at most one of them.
#[derive(Default)]
pub(crate) struct Followed(Mutex<HashMap<(String, String), CallId>>);

impl Followed {
    /// Follows a task of an upstream; `None`: it is another call's.
    pub(crate) fn begin(
        self: &Arc<Self>,
        upstream: &str,
        id: &str,
        call_id: CallId,
    ) -> Option<Following> {
        let name = (upstream.to_owned(), id.to_owned());
        let mut tasks = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if tasks.get(&name).is_some_and(|other| *other != call_id) {
            return None;
        }
        tasks.insert(name.clone(), call_id);
        let all = self.clone();
        Some(Following { all, name })
    }
}

/// A task that is followed until this is dropped.
pub(crate) struct Following {
    all: Arc<Followed>,
    name: (String, String),
}

impl Drop for Following {
    fn drop(&mut self) {
        let mut tasks = self.all.0.lock().unwrap_or_else(PoisonError::into_inner);
        tasks.remove(&self.name);
    }
}
