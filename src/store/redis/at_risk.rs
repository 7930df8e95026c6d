//! Reading, page by page, the calls that a loss of data puts at risk.
//!
//! A page begins behind the last entry of the one before it. That holds over a restart, which
//! changes the order in which SCAN meets entries. After a failover all begins anew: the new master
//! may list calls that the old one no longer had.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use redis::FromRedisValue;

use super::answer::unreadable;
use super::checks::run_id;
use super::keys::Partition;
use super::put_back::Restorer;
use super::scripts::{Run, command};
use crate::core::position::Position;
use crate::core::record::CallId;
use crate::store::Error;

/// The indexes that are read. Those that become unknown meanwhile are not met again.
const INDEXES: [&str; 3] = ["unknown", "failed", "running"];
/// How often a page is read whose server is started anew meanwhile.
const TRIES: usize = 3;

/// Where a page begins.
struct Place {
    /// Index and partition.
    index: (usize, usize),
    /// The score of the last entry that was read, and its place in the index.
    behind: (String, Vec<u8>),
    /// The servers that the pages so far are from.
    servers: String,
}

impl Place {
    fn first(servers: &str) -> Self {
        Self {
            index: (0, 0),
            behind: ("-inf".into(), Vec::new()),
            servers: servers.to_owned(),
        }
    }

    fn parse(text: &str) -> Option<Self> {
        let mut parts = text.split(':');
        let mut next = || parts.next();
        Some(Self {
            index: (next()?.parse().ok()?, next()?.parse().ok()?),
            behind: (next()?.to_owned(), URL_SAFE_NO_PAD.decode(next()?).ok()?),
            servers: next()?.to_owned(),
        })
    }

    fn text(&self) -> String {
        let ((index, partition), (score, place)) = (self.index, &self.behind);
        let place = URL_SAFE_NO_PAD.encode(place);
        format!("{index}:{partition}:{score}:{place}:{}", self.servers)
    }
}

impl Restorer {
    /// One page of the calls at risk, and where the next begins.
    pub(super) async fn calls_at_risk(
        &self,
        from: &str,
        limit: u32,
    ) -> Result<(Vec<CallId>, Option<String>), Error> {
        for _ in 0..TRIES {
            let servers = self.run_ids().await?;
            let from = Place::parse(from).filter(|from| from.servers == servers);
            if from.is_none() {
                // What runs here may have been forgotten a moment ago.
                self.put_all_back().await?;
            }
            let from = from.unwrap_or_else(|| Place::first(&servers));
            let (calls, next) = self.page_at_risk(from, limit).await?;
            if self.run_ids().await? == servers {
                return Ok((calls, next.map(|next| next.text())));
            }
        }
        let why = "Redis was started anew while its calls at risk were read";
        Err(Error::Refused(why.into()))
    }

    /// The runs of all masters. A restart changes them, and so does a failover.
    async fn run_ids(&self) -> Result<String, Error> {
        let infos = self
            .server
            .link
            .ask_masters(command("INFO", "server"))
            .await?;
        let run_id = |info| {
            let info = String::from_redis_value(info).map_err(unreadable)?;
            run_id(&info).ok_or_else(|| Error::Refused("INFO names no run_id".into()))
        };
        let mut runs = infos
            .into_iter()
            .map(run_id)
            .collect::<Result<Vec<_>, _>>()?;
        runs.sort();
        Ok(runs.join("+"))
    }

    /// The first page behind a place that has calls.
    async fn page_at_risk(
        &self,
        mut from: Place,
        limit: u32,
    ) -> Result<(Vec<CallId>, Option<Place>), Error> {
        let places = (0..).zip(INDEXES).flat_map(|(number, name)| {
            (0..)
                .zip(Partition::all())
                .map(move |(at, partition)| ((number, at), partition.key(name)))
        });
        let (places, keys): (Vec<_>, Vec<_>) =
            places.skip_while(|(at, _)| *at < from.index).unzip();
        let exist = keys.iter().map(|key| command("EXISTS", key)).collect();
        let exist: Vec<bool> = self.server.link.ask_many(exist).await?;
        for ((index, key), _) in places
            .into_iter()
            .zip(keys)
            .zip(exist)
            .filter(|(_, exists)| *exists)
        {
            if index != from.index {
                // An entry is of one index only, which may have vanished since.
                from = Place {
                    index,
                    ..Place::first(&from.servers)
                };
            }
            let mut run = Run::new(&self.server.scripts.at_risk);
            run.key(key)
                .arg((&from.behind.0, &from.behind.1[..], limit));
            let found = self.server.link.run(&run).await?;
            let found = Vec::<(Vec<u8>, String)>::from_redis_value(found).map_err(unreadable)?;
            let Some((place, score)) = found.last().cloned() else {
                continue;
            };
            let places = found
                .iter()
                .filter_map(|(place, _)| Position::from_bytes(place));
            let calls = places.map(|place| place.call_id()).collect();
            from.behind = (score, place);
            return Ok((calls, Some(from)));
        }
        Ok((Vec::new(), None))
    }
}
