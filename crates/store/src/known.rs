//! The tenants and tools that the store is known to list, so that not every claim lists them again.

use std::collections::HashSet;
use std::sync::Mutex;

use crate::lock::lock;

/// How many pairs are remembered at most. Beyond it all are forgotten, and listed again.
const MOST: usize = 10_000;

/// Pairs of tenant and tool that are listed in the data of one epoch.
#[derive(Default)]
pub struct Known(Mutex<(String, HashSet<(String, String)>)>);

impl Known {
    /// Whether this pair is listed in the data of this epoch.
    pub fn has(&self, epoch: &str, tenant: &str, tool: &str) -> bool {
        let known = lock(&self.0);
        // Data of another epoch may lack the list: then the ledger would not find the call.
        known.0 == epoch && known.1.contains(&(tenant.to_owned(), tool.to_owned()))
    }

    /// Notes that a claim has listed this pair in the data of this epoch.
    pub fn learn(&self, epoch: &str, tenant: &str, tool: &str) {
        let mut known = lock(&self.0);
        if known.0 != epoch || known.1.len() >= MOST {
            *known = (epoch.to_owned(), HashSet::new());
        }
        known.1.insert((tenant.to_owned(), tool.to_owned()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pair_that_was_listed_in_another_epoch_is_not_known() {
        let known = Known::default();
        assert!(!known.has("", "a", "t"));
        known.learn("e", "a", "t");
        assert!(known.has("e", "a", "t"));
        assert!(
            !known.has("e", "a", "u") && !known.has("e", "b", "t") && !known.has("f", "a", "t")
        );
        known.learn("e", "b", "t");
        assert!(
            known.has("e", "a", "t") && known.has("e", "b", "t"),
            "several are known at once"
        );
        known.learn("f", "b", "t");
        assert!(!known.has("f", "a", "t") && !known.has("e", "a", "t"));
        for n in 0..=MOST {
            known.learn("f", &n.to_string(), "t");
        }
        assert!(lock(&known.0).1.len() <= MOST);
    }
}
