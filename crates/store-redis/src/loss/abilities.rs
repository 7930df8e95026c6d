//! What each gateway that shares the store can read, so that a release with another form knows when all can read it.
//!
//! 0.2.0 says nothing here: a gateway without an entry reads format 5 and calls of version 1.

use std::collections::HashMap;
use std::sync::atomic::Ordering;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::format::{OLDEST, calls_of};
use crate::keys;
use crate::server::Server;
use oncegate_store::Result;
use oncegate_store::codec;

/// What a gateway can read, from the oldest to the newest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ability {
    /// Versions of the keys and values of Redis.
    pub formats: [u32; 2],
    /// Versions of the bytes of a call.
    pub calls: [u8; 2],
    pub release: String,
    /// When the gateway stopped, in microseconds; `None`: it serves, or was killed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stopped_us: Option<i64>,
}

impl Ability {
    /// That of a gateway that knows formats up to this one.
    fn own(newest: u32) -> Self {
        Self {
            formats: [OLDEST, newest],
            calls: [codec::OLDEST, calls_of(newest).unwrap_or(codec::VERSION)],
            release: env!("CARGO_PKG_VERSION").to_owned(),
            stopped_us: None,
        }
    }

    /// Whether a gateway that can do this reads and writes this format.
    pub(crate) fn knows(&self, format: u32) -> bool {
        let ([oldest, newest], [oldest_call, newest_call]) = (self.formats, self.calls);
        let is_of_calls = |calls| (oldest_call..=newest_call).contains(&calls);
        (oldest..=newest).contains(&format) && calls_of(format).is_none_or(is_of_calls)
    }

    /// That of a gateway without an entry.
    fn of_0_2_0() -> Self {
        Self {
            formats: [5, 5],
            calls: [1, 1],
            release: "0.2.0".to_owned(),
            stopped_us: None,
        }
    }
}

/// A gateway that has announced itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sharing {
    pub gateway: String,
    /// When it last did, by the clock of Redis.
    pub seen: Timestamp,
    pub can: Ability,
}

/// Says what this gateway can read.
pub(crate) async fn announce(server: &Server) -> Result<()> {
    say(server, &Ability::own(server.newest_format)).await
}

/// Says that this gateway has stopped, if it has said before that it serves.
pub(crate) async fn say_stopped(server: &Server) -> Result<()> {
    server.has_left.store(true, Ordering::Relaxed);
    let link = &server.link;
    let own = (keys::abilities(), server.memory.gateway());
    if link
        .ask_quietly::<Option<String>>("HGET", own)
        .await?
        .is_none()
    {
        return Ok(());
    }
    let stopped = Ability {
        stopped_us: Some(server.now().as_microsecond()),
        ..Ability::own(server.newest_format)
    };
    say(server, &stopped).await
}

async fn say(server: &Server, can: &Ability) -> Result<()> {
    let can = serde_json::json!(can).to_string();
    let entry = (keys::abilities(), server.memory.gateway(), can);
    server.link.ask_quietly::<()>("HSET", entry).await
}

/// Forgets what these gateways could read.
pub(crate) async fn forget(server: &Server, gone: &[&String]) -> Result<()> {
    let entries = (keys::abilities(), gone);
    server.link.ask_quietly::<()>("HDEL", entries).await
}

/// The gateways that share the store, and what each can read.
pub(crate) async fn sharing(server: &Server) -> Result<Vec<Sharing>> {
    let link = &server.link;
    let range = (keys::seen(), "-inf", "+inf", "WITHSCORES");
    let seen: Vec<(String, f64)> = link.ask_quietly("ZRANGEBYSCORE", range).await?;
    let can: HashMap<String, String> = link.ask_quietly("HGETALL", (keys::abilities(),)).await?;
    let sharing = seen.into_iter().map(|(gateway, at)| {
        let said = can.get(&gateway);
        Sharing {
            seen: Timestamp::from_microsecond(at as i64).unwrap_or(Timestamp::UNIX_EPOCH),
            can: ability_of(said.map(String::as_str), at as i64),
            gateway,
        }
    });
    Ok(sharing.collect())
}

/// What a gateway can read, by what it has said. `seen_us`: when it last announced itself.
///
/// A gateway that has stopped and announced itself since is of a release that says nothing: it was replaced by an older one
/// with the same watermarks.
fn ability_of(said: Option<&str>, seen_us: i64) -> Ability {
    let said: Option<Ability> = said.and_then(|said| serde_json::from_str(said).ok());
    let is_current = |said: &Ability| said.stopped_us.is_none_or(|stopped| seen_us <= stopped);
    said.filter(is_current).unwrap_or_else(Ability::of_0_2_0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::loss::format::FORMAT;

    #[test]
    fn a_gateway_that_says_nothing_is_of_0_2_0_also_after_a_newer_one_with_its_watermarks() {
        let said = |stopped_us| {
            let can = Ability {
                stopped_us,
                ..Ability::own(FORMAT)
            };
            serde_json::json!(can).to_string()
        };
        assert_eq!(ability_of(None, 9), Ability::of_0_2_0());
        assert_eq!(ability_of(Some("{}"), 9), Ability::of_0_2_0());
        assert_eq!(ability_of(Some(&said(None)), 9), Ability::own(FORMAT));
        assert!(
            ability_of(Some(&said(Some(9))), 9).knows(FORMAT),
            "it has stopped"
        );
        assert_eq!(ability_of(Some(&said(Some(9))), 10), Ability::of_0_2_0());
    }

    #[test]
    fn a_gateway_knows_a_format_with_the_bytes_of_its_calls() {
        let old = Ability::of_0_2_0();
        assert!(old.knows(5) && !old.knows(6));
        let own = Ability::own(FORMAT);
        assert!(own.knows(5) && own.knows(FORMAT) && !own.knows(FORMAT + 1) && !own.knows(4));
        let other_bytes = Ability {
            calls: [2, 2],
            ..own
        };
        assert!(!other_bytes.knows(FORMAT));
    }
}
