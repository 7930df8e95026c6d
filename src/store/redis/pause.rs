//! Paused tools, and the acts of operators on a tool: in the first partition, for all gateways.
//!
//! Must not know what they mean.

use async_trait::async_trait;

use super::answer::unreadable;
use super::keys::{self, Partition};
use super::record;
use super::scripts::command;
use super::store::Redis;
use crate::core::record::Entry;
use crate::store::{Error, Pauses};

#[async_trait]
impl Pauses for Redis {
    async fn paused(&self) -> Result<Vec<(String, Entry)>, Error> {
        let tools: Vec<(String, Vec<u8>)> = self
            .server
            .link
            .ask(&command("HGETALL", keys::paused()))
            .await?;
        let tools = tools
            .into_iter()
            .map(|(tool, entry)| Ok((tool, record::read_entry(&entry)?)));
        tools
            .collect::<Result<_, record::Corrupt>>()
            .map_err(unreadable)
    }

    async fn set_paused(&self, tool: &str, paused: bool, entry: &Entry) -> Result<bool, Error> {
        const PARTITION: Partition = Partition::FIRST;
        let names = [keys::paused(), keys::tool_events(tool)];
        let mut run = self
            .server
            .writing_to(&self.server.scripts.pause, PARTITION, names);
        let what = if paused { "pause" } else { "resume" };
        run.arg((what, tool, record::entry(entry)));
        let answer = self.server.run(&run).await?;
        self.server.counted(PARTITION, &answer, 0).await?;
        Ok(answer.word == "done")
    }

    async fn tool_events(&self, tool: &str) -> Result<Vec<Entry>, Error> {
        let ask = command("LRANGE", (keys::tool_events(tool), 0, -1));
        let events: Vec<Vec<u8>> = self.server.link.ask(&ask).await?;
        // The newest was put in front.
        let events = events
            .iter()
            .rev()
            .map(|text| record::read_entry(text).map_err(unreadable));
        events.collect()
    }
}
