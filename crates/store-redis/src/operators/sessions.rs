//! Sessions for operators, and their acts. Must not decide anything.

use async_trait::async_trait;
use jiff::Timestamp;
use redis::FromRedisValue;

use crate::calls::record;
use crate::calls::session::{identity, lock};
use crate::keys;
use crate::link::answer::unreadable;
use crate::scripts::Run;
use crate::store::Redis;
use oncegate_rules::record::{CallId, Entry};
use oncegate_rules::session::{Lock, Session, SessionId};
use oncegate_store::{Result, Sessions};

#[async_trait]
impl Sessions for Redis {
    async fn session(&self, id: &SessionId) -> Result<Session> {
        let [session, line, _, events] = keys::session(id);
        let run = Run::new(&self.server.scripts.look).key((session, line, events));
        type Found = ([Option<String>; 6], Vec<(String, f64)>, Vec<Vec<u8>>);
        let found = self.server.link.run(&run).await?;
        let (fields, line, events) = Found::from_redis_value(found).map_err(unreadable)?;
        let [token, frozen, call_id, lock_token, lease, free_from] = fields;
        let lock_fields = [call_id, lock_token, lease, free_from];
        let waiting = line.into_iter().map(|(id, since)| {
            let since = Timestamp::from_microsecond(since as i64);
            Ok((identity(&id)?, since.map_err(unreadable)?))
        });
        Ok(Session {
            token: token.and_then(|token| token.parse().ok()),
            frozen: frozen.is_some_and(|frozen| !frozen.is_empty()),
            lock: lock(lock_fields.map(Option::unwrap_or_default))?,
            waiting: waiting.collect::<Result<_>>()?,
            events: record::read_events(&events).map_err(unreadable)?,
        })
    }

    async fn unlock(&self, id: &SessionId, lock: &Lock, entry: &Entry) -> Result<bool> {
        let unlocked = self.act(id, "unlock", entry, Some(lock)).await?;
        self.server.announce(lock.call_id).await;
        Ok(unlocked)
    }

    async fn set_frozen(&self, id: &SessionId, frozen: bool, entry: &Entry) -> Result<bool> {
        self.act(id, if frozen { "freeze" } else { "thaw" }, entry, None)
            .await
    }

    async fn leave_line(&self, id: &SessionId, call_id: CallId) -> Result<()> {
        let [_, line, waiters, _] = keys::session(id);
        let run = Run::new(&self.server.scripts.leave).key((line, waiters));
        self.server.run(run.arg(keys::id(call_id))).await?;
        self.server.announce(call_id).await;
        Ok(())
    }
}

impl Redis {
    /// Applies an operator's act to a session; answers whether it changed the session.
    ///
    /// Refused where the script finds that data is missing, and while that is not known.
    async fn act(
        &self,
        id: &SessionId,
        what: &str,
        entry: &Entry,
        lock: Option<&Lock>,
    ) -> Result<bool> {
        if self.server.status.is_in_doubt() {
            self.server.status.must_be_open()?;
        }
        let (partition, [session, _, _, events]) = (keys::partition_of(id), keys::session(id));
        let script = &self.server.scripts.act;
        let lock = lock.map(|lock| [keys::id(lock.call_id), lock.token.to_string()]);
        let keys = [session, events];
        let run = self.server.writing_two(script, partition, keys);
        let run = run.arg((what, record::entry(entry)));
        let run = run.arg(&lock.unwrap_or_default());
        let answer = self.server.run_guarded(run).await?;
        self.server.counted(partition, &answer, 0).await?;
        Ok(answer.word == "done")
    }
}
