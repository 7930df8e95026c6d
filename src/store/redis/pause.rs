//! Paused tools, and what operators have done to a tool: in the first partition, for all gateways.
//! Must not know what that means.

use async_trait::async_trait;
use redis::cmd;

use super::answer::{reply, unreadable};
use super::keys::{self, Partition};
use super::record;
use super::store::Redis;
use crate::core::record::Entry;
use crate::store::{Error, Pauses};

#[async_trait]
impl Pauses for Redis {
    async fn paused(&self) -> Result<Vec<(String, Entry)>, Error> {
        let tools: Vec<(String, Vec<u8>)> = self
            .server
            .link
            .ask(cmd("HGETALL").arg(keys::paused()))
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
        run.arg(if paused { "pause" } else { "resume" })
            .arg(tool)
            .arg(record::entry(entry));
        let (word, rest) = reply(self.server.link.run(&run).await?)?;
        self.server.saw_count(PARTITION, &rest, 0);
        self.server.barrier.pass(PARTITION).await?;
        Ok(word == "done")
    }

    async fn tool_events(&self, tool: &str) -> Result<Vec<Entry>, Error> {
        let mut ask = cmd("LRANGE");
        ask.arg(keys::tool_events(tool)).arg(0).arg(-1);
        let events: Vec<Vec<u8>> = self.server.link.ask(&ask).await?;
        // The newest was put in front.
        let events = events
            .iter()
            .rev()
            .map(|text| record::read_entry(text).map_err(unreadable));
        events.collect()
    }
}
