//! Reads, page by page, the calls that a loss of data puts at risk.
//!
//! A page begins behind the last entry of the page before, so a restart does not disturb it as it would disturb SCAN.
//! After a restart or a failover the pages begin anew: the new master may list calls that the old one no longer had.

use redis::FromRedisValue;
use serde::{Deserialize, Serialize};

use crate::checks::run_id;
use crate::keys::Partition;
use crate::link::answer::unreadable;
use crate::loss::put_back::put_all_back;
use crate::scripts::{Run, command};
use crate::server::Server;
use oncegate_rules::position::Position;
use oncegate_rules::record::CallId;
use oncegate_store::{Error, Result};

/// The indexes, in the order in which they are read. Calls that become unknown meanwhile are not read twice.
const INDEXES: [&str; 4] = ["unknown", "failed", "waiting", "running"];
/// How often a page is read if the server restarts meanwhile.
const TRIES: usize = 3;

/// Where a page begins.
#[derive(Serialize, Deserialize)]
struct Cursor {
    /// The numbers of index and partition.
    index: (usize, usize),
    /// The score of the last entry that was read, and the entry.
    behind: (String, Vec<u8>),
    /// The servers from which the earlier pages were read.
    servers: String,
}

impl Cursor {
    fn first(servers: &str) -> Self {
        Self {
            index: (0, 0),
            behind: ("-inf".into(), Vec::new()),
            servers: servers.to_owned(),
        }
    }
}

/// One page of the calls at risk, and where the next begins.
pub(crate) async fn calls_at_risk(
    server: &Server,
    from: &str,
    limit: u32,
) -> Result<(Vec<CallId>, Option<String>)> {
    for _ in 0..TRIES {
        let servers = run_ids(server).await?;
        let from = match serde_json::from_str::<Cursor>(from) {
            Ok(from) if from.servers == servers => from,
            _ => {
                // The restarted server may lack a call that runs here.
                put_all_back(server).await?;
                Cursor::first(&servers)
            }
        };
        let (calls, next) = page_at_risk(server, from, limit).await?;
        if run_ids(server).await? == servers {
            let next = next.map(|next| serde_json::to_string(&next)).transpose();
            return Ok((calls, next.map_err(unreadable)?));
        }
    }
    let why = "Redis restarted while its calls at risk were read";
    Err(Error::Refused(why.into()))
}

/// The run ids of all masters. A restart changes them, and so does a failover.
async fn run_ids(server: &Server) -> Result<String> {
    let infos = server.link.ask_masters(command("INFO", "server")).await?;
    let run_id = |info| {
        let info = String::from_redis_value(info).map_err(unreadable)?;
        run_id(&info).ok_or_else(|| Error::Refused("INFO names no run_id".into()))
    };
    let mut runs: Vec<String> = infos.into_iter().map(run_id).collect::<Result<_, _>>()?;
    runs.sort();
    Ok(runs.join("+"))
}

/// The first page behind a place that has calls.
async fn page_at_risk(
    server: &Server,
    mut from: Cursor,
    limit: u32,
) -> Result<(Vec<CallId>, Option<Cursor>)> {
    let mut indexes = Vec::new();
    for (number, name) in (0..).zip(INDEXES) {
        for partition in Partition::all() {
            indexes.push(((number, partition.index()), partition.key(name)));
        }
    }
    indexes.retain(|(index, _)| *index >= from.index);
    let exists = indexes.iter().map(|(_, key)| command("EXISTS", key));
    let exist: Vec<bool> = server.link.ask_many(exists).await?;
    let existing = indexes.into_iter().zip(exist).filter(|(_, exists)| *exists);
    for ((index, key), _) in existing {
        if index != from.index {
            // The last entry that was read is of another index, which may be gone by now.
            from = Cursor {
                index,
                ..Cursor::first(&from.servers)
            };
        }
        let run = Run::new(&server.scripts.at_risk).key(key);
        let (score, place) = &from.behind;
        let run = run.arg((score, &place[..], limit));
        let found = server.link.run(&run).await?;
        let found = Vec::<(Vec<u8>, String)>::from_redis_value(found).map_err(unreadable)?;
        if let Some((place, score)) = found.last().cloned() {
            let places = found.iter().map(|(place, _)| Position::from_bytes(place));
            let calls = places.flatten().map(|place| place.call_id()).collect();
            from.behind = (score, place);
            return Ok((calls, Some(from)));
        }
    }
    Ok((Vec::new(), None))
}
