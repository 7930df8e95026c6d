//! Moves a store to the newest format, once all gateways that share it can do that one.

use std::fmt;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use tokio::time::{sleep, timeout};

use super::Manifest;
use super::abilities::{self, Sharing};
use super::epoch::Epochs;
use super::format::{self, Step};
use oncegate_store::{Error, Result};

/// How long a store may take to be ready.
const OPENS_WITHIN: Duration = Duration::from_secs(10);
/// A gateway that has not announced itself for so long is gone. It would three times.
const GONE_AFTER: SignedDuration = SignedDuration::from_secs(180);

/// The format of a store, and who shares it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Standing {
    pub format: u32,
    /// The newest format that this release knows.
    pub newest: u32,
    pub epoch: String,
    /// Since when every call is known.
    pub whole_since: Option<Timestamp>,
    /// The time by the clock of Redis.
    pub now: Timestamp,
    pub gateways: Vec<Sharing>,
}

impl Standing {
    /// The steps that a move does, in order.
    pub fn steps(&self) -> impl Iterator<Item = &'static Step> {
        let steps = format::STEPS.iter();
        steps.filter(|step| self.format < step.to && step.to <= self.newest)
    }

    /// Whether a gateway has stopped, or was silent for so long that it counts as gone.
    pub fn is_gone(&self, gateway: &Sharing) -> bool {
        gateway.can.stopped_us.is_some() || self.now.duration_since(gateway.seen) >= GONE_AFTER
    }

    /// The gateways that serve and do not know the newest format.
    pub fn in_the_way(&self) -> impl Iterator<Item = &Sharing> {
        let is_in_the_way = |gateway: &&Sharing| {
            !self.is_gone(gateway) && !self.steps().all(|step| gateway.can.knows(step.to))
        };
        self.gateways.iter().filter(is_in_the_way)
    }

    /// Why the store cannot be moved now; `None`: it can, or there is nothing to do.
    pub fn obstacle(&self) -> Option<String> {
        let names: Vec<String> = self.in_the_way().map(ToString::to_string).collect();
        (!names.is_empty()).then(|| {
            format!(
                "the store stays at format {}, because these gateways do not know format {}: {}",
                self.format,
                self.newest,
                names.join(", ")
            )
        })
    }
}

impl fmt::Display for Sharing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (release {})", self.gateway, self.can.release)
    }
}

impl Epochs {
    /// The store's format, and who shares it.
    pub(crate) async fn standing(&self) -> Result<Standing> {
        Ok(self.stored_standing().await?.1)
    }

    /// The same, with the manifest that says it, and its text.
    async fn stored_standing(&self) -> Result<((Vec<u8>, Manifest), Standing)> {
        let no_store = || Error::Refused("no gateway has used this Redis yet".into());
        let stored = self.manifest_text().await?.ok_or_else(no_store)?;
        let manifest = &stored.1;
        let since = manifest.whole_since_us.map(Timestamp::from_microsecond);
        let standing = Standing {
            format: manifest.format,
            newest: self.server.newest_format,
            epoch: manifest.epoch.clone(),
            whole_since: since.and_then(std::result::Result::ok),
            now: self.server.now(),
            gateways: abilities::sharing(&self.server).await?,
        };
        Ok((stored, standing))
    }

    /// Moves the store to the newest format. Answers where it stood before.
    ///
    /// A gateway of an earlier release that has just started may not have announced itself yet. It is waited for before
    /// anything is written in the new form, and the move is taken back if it comes.
    pub(crate) async fn move_on(&self) -> Result<Standing> {
        let refused = |why: String| Err(Error::Refused(why));
        // A visitor looks at the servers for the first time, and waits as after a restart.
        let mut looks = self.server.looks.subscribe();
        let opens =
            async { while !self.server.status.is_open() && looks.changed().await.is_ok() {} };
        drop(timeout(OPENS_WITHIN, opens).await);
        self.server.status.must_be_open()?;
        let ((text, manifest), standing) = self.stored_standing().await?;
        if let Some(why) = standing.obstacle() {
            return refused(why);
        }
        if standing.steps().next().is_none() {
            return Ok(standing);
        }
        let moved = Manifest {
            format: standing.newest,
            moved_us: Some(self.server.now().as_microsecond()),
            ..manifest.clone()
        };
        if !self.swap_text(Some(text), &moved).await? {
            return refused("the store was changed at the same time: try again".into());
        }
        sleep(self.server.format_settles.unsigned_abs() / 2).await;
        let since = Standing {
            gateways: abilities::sharing(&self.server).await?,
            now: self.server.now(),
            ..standing.clone()
        };
        if let Some(why) = since.obstacle() {
            let is_back = self.swap_manifest(Some(&moved), &manifest).await?;
            let and = if is_back {
                ""
            } else {
                ", and could not be moved back"
            };
            return refused(format!("{why}; they came while it was moved{and}"));
        }
        Ok(standing)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::loss::abilities::Ability;

    fn gateway(name: &str, formats: [u32; 2], seen: i64, stopped_us: Option<i64>) -> Sharing {
        Sharing {
            gateway: name.into(),
            seen: Timestamp::from_second(seen).expect("a time"),
            can: Ability {
                formats,
                calls: [1, 1],
                release: "r".into(),
                stopped_us,
            },
        }
    }

    fn standing(gateways: Vec<Sharing>) -> Standing {
        Standing {
            format: 5,
            newest: 6,
            epoch: "e".into(),
            whole_since: None,
            now: Timestamp::from_second(1_000).expect("a time"),
            gateways,
        }
    }

    #[test]
    fn a_store_is_moved_when_each_gateway_that_serves_knows_the_format() {
        let new = || gateway("new", [5, 6], 990, None);
        let silent = gateway("silent", [5, 5], 820, None);
        let stopped = gateway("stopped", [5, 5], 990, Some(995_000_000));
        assert_eq!(standing(vec![new(), silent, stopped]).obstacle(), None);
        let old = gateway("old", [5, 5], 821, None);
        let blocked = standing(vec![new(), old]);
        insta::assert_snapshot!(blocked.obstacle().unwrap_or_default(), @"the store stays at format 5, because these gateways do not know format 6: old (release r)");
        let moved = Standing {
            format: 6,
            ..blocked
        };
        assert_eq!(moved.obstacle(), None, "nothing to do");
        assert_eq!(moved.steps().count(), 0);
    }
}
