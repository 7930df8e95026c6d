//! Paused tools, and the acts of operators on a tool. Must not know what they mean.
//!
//! All of them are in the first partition.

use async_trait::async_trait;

use crate::calls::record;
use crate::keys::{self, Partition};
use crate::link::answer::unreadable;
use crate::store::Redis;
use oncegate_rules::record::Entry;
use oncegate_store::{Pauses, Result};

#[async_trait]
impl Pauses for Redis {
    async fn paused(&self) -> Result<Vec<(String, Entry)>> {
        let link = &self.server.link;
        let tools: Vec<(String, Vec<u8>)> = link.ask("HGETALL", keys::paused()).await?;
        let read = |(tool, entry): (String, Vec<u8>)| Ok((tool, record::read_entry(&entry)?));
        let tools: Result<_, record::Corrupt> = tools.into_iter().map(read).collect();
        tools.map_err(unreadable)
    }

    async fn set_paused(&self, tool: &str, paused: bool, entry: &Entry) -> Result<bool> {
        const PARTITION: Partition = Partition::FIRST;
        let what = if paused { "pause" } else { "resume" };
        let keys = [keys::paused(), keys::tool_events(tool)];
        let script = &self.server.scripts.pause;
        let run = self.server.writing_two(script, PARTITION, keys);
        let run = run.arg((what, tool, record::entry(entry)));
        let answer = self.server.run(run).await?;
        self.server.counted(PARTITION, &answer, 0).await?;
        Ok(answer.word == "done")
    }

    async fn tool_events(&self, tool: &str) -> Result<Vec<Entry>> {
        let range = (keys::tool_events(tool), 0, -1);
        let events: Vec<Vec<u8>> = self.server.link.ask("LRANGE", range).await?;
        record::read_events(&events).map_err(unreadable)
    }
}
