//! Sessions for operators, and their acts. Must not decide anything.

use async_trait::async_trait;
use jiff::Timestamp;
use redis::FromRedisValue;

use super::answer::unreadable;
use super::keys;
use super::record;
use super::scripts::Run;
use super::session::{identity, lock};
use super::store::Redis;
use crate::core::record::{CallId, Entry};
use crate::core::session::{Lock, Session, SessionId};
use crate::store::{Error, Sessions};

#[async_trait]
impl Sessions for Redis {
    async fn session(&self, id: &SessionId) -> Result<Session, Error> {
        let [session, line, _] = keys::session(id);
        let mut run = Run::new(&self.server.scripts.look);
        run.key(session).key(line).key(keys::session_events(id));
        type Found = (Vec<Option<String>>, Vec<(String, f64)>, Vec<Vec<u8>>);
        let (fields, line, events) =
            Found::from_redis_value(self.server.link.run(&run).await?).map_err(unreadable)?;
        let field = |at: usize| fields.get(at).cloned().flatten().unwrap_or_default();
        let waiting = line.into_iter().map(|(id, came_at)| {
            Ok((
                identity(&id)?,
                Timestamp::from_microsecond(came_at as i64).map_err(unreadable)?,
            ))
        });
        // The newest was put in front.
        let events = events
            .iter()
            .rev()
            .map(|text| record::read_entry(text).map_err(unreadable));
        Ok(Session {
            token: Some(field(0))
                .filter(|token| !token.is_empty())
                .and_then(|token| token.parse().ok()),
            frozen: !field(1).is_empty(),
            lock: lock([&field(2), &field(3), &field(4), &field(5)])?,
            waiting: waiting.collect::<Result<_, Error>>()?,
            events: events.collect::<Result<_, _>>()?,
        })
    }

    async fn unlock(&self, id: &SessionId, lock: &Lock, entry: &Entry) -> Result<bool, Error> {
        let unlocked = self.act(id, "unlock", entry, Some(lock)).await?;
        self.server.announce(lock.call_id).await;
        Ok(unlocked)
    }

    async fn set_frozen(&self, id: &SessionId, frozen: bool, entry: &Entry) -> Result<bool, Error> {
        self.act(id, if frozen { "freeze" } else { "thaw" }, entry, None)
            .await
    }

    async fn leave_line(&self, id: &SessionId, call_id: CallId) -> Result<(), Error> {
        let mut run = Run::new(&self.server.scripts.leave);
        let [_, line, alive] = keys::session(id);
        run.key(line).key(alive).arg(keys::id(call_id));
        self.server.run(&run).await?;
        self.server.announce(call_id).await;
        Ok(())
    }
}

impl Redis {
    /// Applies an operator's act to a session; answers whether it changed it.
    ///
    /// Refused where the script finds that data is missing, and while that is not known.
    async fn act(
        &self,
        id: &SessionId,
        what: &str,
        entry: &Entry,
        lock: Option<&Lock>,
    ) -> Result<bool, Error> {
        if self.server.status.is_in_doubt() {
            self.server.status.must_be_open()?;
        }
        let (partition, [session, ..]) = (keys::partition_of(id), keys::session(id));
        let names = [session, keys::session_events(id)];
        let mut run = self
            .server
            .writing_to(&self.server.scripts.act, partition, names);
        run.arg((what, record::entry(entry)));
        let lock = lock.map(|lock| [keys::id(lock.call_id), lock.token.to_string()]);
        run.arg(&lock.unwrap_or_default()[..]);
        let answer = self.server.run_guarded(&run).await?;
        self.server.counted(partition, &answer, 0).await?;
        Ok(answer.word == "done")
    }
}
