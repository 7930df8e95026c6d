//! Erases the data of users: at once what has ended, and the rest when it has ended.
//!
//! `oncegate_rules::call` decides what is erased, `oncegate_rules::erasure` when a wish is looked at again.

use std::sync::Arc;
use std::time::Duration;

use futures_util::stream::{self, StreamExt};
use jiff::{SignedDuration, Timestamp};
use tokio::time::Instant;

use crate::audit;
use crate::base::Base;
use crate::error::{Error, ErrorKind, unavailable};
use crate::transition::{self, Moved, OnConflict, ROUNDS};
use oncegate_hooks::crash;
use oncegate_rules::actor::By;
use oncegate_rules::audit::{Act, Action, Target};
use oncegate_rules::call::{Event, Illegal};
use oncegate_rules::caller::Caller;
use oncegate_rules::document::{Document, Kind};
use oncegate_rules::erasure::{Erasure, Look, UserDigest};
use oncegate_rules::ledger::{Filter, LIMITS};
use oncegate_rules::record::Record;
use oncegate_rules::time::{after, signed};
use oncegate_store::{self as store, Put};

/// Calls that one request looks at, and one round of the worker; and how long either may take.
const OF_A_REQUEST: (usize, Duration) = (1_000, Duration::from_secs(5));
const OF_A_ROUND: (usize, Duration) = (20_000, Duration::from_secs(20));
/// Calls that are erased at once. Live traffic shares the store's writes with them.
const AT_ONCE: usize = 16;
/// Wishes of one round.
const WISHES: u32 = 16;
/// How far ahead the clock of another gateway may be.
const CLOCKS: SignedDuration = SignedDuration::from_secs(10);
/// How long a call is kept at least that no tool of this configuration has made.
const LONGEST: Duration = Duration::from_secs(30 * 24 * 3_600);

const OLD_GATEWAYS: &str = "gateways of 0.2.0 may share this store, and would send the arguments of an erased call as they are \
                            then: stop them, and run `oncegate store upgrade`";

/// Erases the data of users.
pub struct Erasures {
    pub(crate) base: Arc<Base>,
}

impl Erasures {
    /// Erases what a user's calls hold of it, as far as they have ended, and sees to the others later.
    ///
    /// Returns the wish as it is stored now, and how many calls this request has erased. Another request for the same user
    /// goes on. A user without calls is not an error: what the gateway has forgotten, and what never was, look the same.
    ///
    /// # Errors
    /// The caller is not an administrator, gateways of an earlier release share the store, or it does not answer.
    pub async fn erase_user(
        self: &Arc<Self>,
        caller: &Caller,
        tenant: &str,
        user_id: &str,
    ) -> Result<(Erasure, u64), Error> {
        self.base.admit_operator(caller).await?;
        if !self.base.store.takes_new_acts() {
            return Err(ErrorKind::WrongState(OLD_GATEWAYS.to_owned()).alone());
        }
        let user = UserDigest::of(tenant, user_id);
        let target = Target::User(user.to_hex());
        let act = Act::new(caller, Action::Erase, tenant, target, "");
        let (erasures, tenant, by) = (self.clone(), tenant.to_owned(), caller.name.clone());
        let doing = async move { erasures.ask(&tenant, user, &by).await };
        audit::recorded_to_its_end(&self.base, act, doing).await
    }

    async fn ask(&self, tenant: &str, user: UserDigest, by: &str) -> Result<(Erasure, u64), Error> {
        // The wish is stored before anything is erased: if the gateway ends meanwhile, another one goes on.
        let mut wish = None;
        for _ in 0..ROUNDS {
            let earlier = self.stored(tenant, user).await?;
            let now = self.base.now();
            let until = if self.base.store.is_shared() {
                after(now, CLOCKS)
            } else {
                // Of calls that are made within this microsecond, too.
                after(now, SignedDuration::from_micros(1))
            };
            let mut asked = Erasure::asked((tenant, user), by, earlier.as_ref(), (now, until));
            asked.due_at = Some(self.base.busy_until(now, OF_A_REQUEST.1));
            match self.put(&asked).await.map_err(unavailable)? {
                Ok(()) => {
                    wish = Some(asked);
                    break;
                }
                Err(_newer) => {}
            }
        }
        let wish = wish.ok_or_else(|| unavailable(()))?;
        crash::point("erasure_asked");
        let look = self.look(&wish, OF_A_REQUEST).await.map_err(unavailable)?;
        let wish = self.note(wish, &look).await.map_err(unavailable)?;
        tracing::info!(
            tenant,
            by,
            erased = look.erased,
            progress = wish.progress().as_str(),
            "the data of a user was erased"
        );
        Ok((wish, look.erased))
    }

    /// Looks at every wish that is due. Returns how many calls were erased.
    ///
    /// Several gateways may do this at once: each wish is looked at by one of them.
    ///
    /// # Errors
    /// The store failed; what was erased stays so.
    pub async fn erase_due(&self, now: Timestamp) -> Result<u64, store::Error> {
        let due = self.base.store.due_documents(Kind::Erasure, now, WISHES);
        let due = self.base.readable("due_documents", due.await)?;
        let mut erased = 0;
        for document in due {
            if self.base.draining.is_cancelled() {
                break;
            }
            let busy_until = self.base.busy_until(now, OF_A_ROUND.1);
            let Ok(wish) = Erasure::from_document(&document) else {
                self.base.put_aside(document, busy_until).await;
                continue;
            };
            let taken = wish.taken(busy_until);
            // Another gateway has taken it, or an operator has asked again.
            if self.put(&taken).await?.is_err() {
                continue;
            }
            let look = self.look(&taken, OF_A_ROUND).await?;
            erased += look.erased;
            self.note_at(taken, &look, now).await?;
        }
        Ok(erased)
    }

    /// Erases the user's calls that have ended, from the wish's position on, within these bounds.
    async fn look(
        &self,
        wish: &Erasure,
        (most, time): (usize, Duration),
    ) -> Result<Look, store::Error> {
        let filter = Filter {
            user: Some(wish.user),
            until: Some(wish.until),
            // What such a record lacks is what is erased.
            is_brief: true,
            ..Filter::default()
        };
        let began = Instant::now();
        let by = By::token(&wish.by, "");
        let (mut look, mut looked) = (Look::default(), 0);
        look.next = wish.position;
        loop {
            let page = self
                .base
                .store
                .list(&wish.tenant, &filter, look.next, LIMITS.1)
                .await?;
            looked += page.found.len();
            look.waiting.unreadable += page.unreadable;
            let records = page.found.into_iter().map(|listed| listed.record);
            let mut erasing = stream::iter(records.map(|record| self.erase(record, &by)))
                .buffer_unordered(AT_ONCE);
            while let Some(done) = erasing.next().await {
                match done? {
                    Erased::Now(until) => {
                        look.erased += 1;
                        look.stored_until = look.stored_until.max(until);
                    }
                    Erased::NotYet(record) => look.waiting.count(&record),
                    Erased::Gone => {}
                }
            }
            look.next = page.next;
            let is_spent = looked >= most || began.elapsed() >= time;
            if look.next.is_none() || is_spent || self.base.draining.is_cancelled() {
                return Ok(look);
            }
        }
    }

    /// Erases one call, if it has ended.
    async fn erase(&self, record: Record, by: &By) -> Result<Erased, store::Error> {
        let (tool, event) = (
            self.base.policy_of(&record),
            Event::Erased { by: by.clone() },
        );
        let (now, again) = (self.base.now(), OnConflict::RetryOnLatest);
        let moved = transition::apply(&self.base, &tool, record, &event, now, again).await?;
        Ok(match moved {
            Moved::Written { record, .. } => Erased::Now(record.retain_until),
            Moved::Refused(_, Illegal::ErasedBefore) => Erased::Gone,
            Moved::Refused(record, _) | Moved::Unchanged(record, _) | Moved::Lost(Some(record)) => {
                Erased::NotYet(Box::new(record))
            }
            Moved::Lost(None) => Erased::Gone,
        })
    }

    async fn note(&self, wish: Erasure, look: &Look) -> Result<Erasure, store::Error> {
        self.note_at(wish, look, self.base.now()).await
    }

    /// Writes down what a look has done. If the wish has changed since, only how much was erased.
    async fn note_at(
        &self,
        mut wish: Erasure,
        look: &Look,
        now: Timestamp,
    ) -> Result<Erasure, store::Error> {
        let mut looked = wish.clone().looked(look, self.longest(), now);
        for _ in 0..ROUNDS {
            match self.put(&looked).await? {
                Ok(()) => return Ok(looked),
                Err(Some(newer)) => {
                    looked = newer.clone().also_erased(look);
                    wish = newer;
                }
                // Cleanup has deleted it: nothing of the user was left.
                Err(None) => return Ok(wish),
            }
        }
        Ok(wish)
    }

    /// The longest time for which a call is kept.
    fn longest(&self) -> SignedDuration {
        let tools = self.base.tools();
        let retention = tools.values().map(|at| at.tool.retention);
        signed(retention.fold(LONGEST, Duration::max))
    }

    async fn stored(&self, tenant: &str, user: UserDigest) -> Result<Option<Erasure>, Error> {
        let id = Erasure::id_of(user);
        let found = self.base.store.document(Kind::Erasure, tenant, &id).await;
        Ok(found.map_err(unavailable)?.as_ref().and_then(readable))
    }

    /// Writes a wish, or answers with the one that is stored in its place.
    async fn put(&self, wish: &Erasure) -> Result<Result<(), Option<Erasure>>, store::Error> {
        let put = self.base.store.put_document(&wish.to_document()).await?;
        Ok(match put {
            Put::Done => Ok(()),
            Put::Lost(stored) => Err(stored.as_ref().and_then(readable)),
        })
    }
}

/// What became of one call.
enum Erased {
    /// The rest of it is kept until this time.
    Now(Option<Timestamp>),
    NotYet(Box<Record>),
    /// It was deleted, or erased by another gateway.
    Gone,
}

fn readable(document: &Document) -> Option<Erasure> {
    let read = Erasure::from_document(document);
    read.inspect_err(|why| tracing::error!(why, "the wish that a user is erased cannot be read"))
        .ok()
}
