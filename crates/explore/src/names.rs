//! Names, numbers and times of the model.

use jiff::{SignedDuration, Timestamp};
use uuid::Uuid;

use super::scene::TICK;
use oncegate_rules::key::Lookup;
use oncegate_rules::record::{CallId, InstanceId, Record};

/// A name of the model: a key, or the key of a compensation.
pub(super) type Name = u8;

/// The instance of a process that has ended.
pub(super) const ENDED: InstanceId = InstanceId(Uuid::from_u128(0xdead));

/// The name that is made of the arguments which all keys of a model have in common.
pub(super) const ARGUMENTS: Name = 0x40;
/// The bit of the names of compensations.
pub(super) const UNDOES: Name = 0x80;
/// Most calls of one key. Calls are forgotten before a key has more.
pub(super) const CALLS_OF_KEY: u128 = 8;

pub(super) fn instance(gateway: u8) -> InstanceId {
    InstanceId(Uuid::from_u128(u128::from(gateway) + 1))
}

pub(super) fn lookup(name: Name) -> Lookup {
    Lookup([name; Lookup::LEN])
}

pub(super) fn name_of(record: &Record) -> Name {
    record.intent.lookup.0[0]
}

/// All names of a call, its key first.
pub(super) fn names_of(record: &Record) -> impl Iterator<Item = Name> {
    record.intent.all_lookups().map(|lookup| lookup.0[0])
}

/// The name of a call's compensation.
pub(super) fn name_of_undo(call_id: CallId) -> Name {
    UNDOES | number(call_id)
}

/// The number of the call that the compensation of this name undoes.
pub(super) fn undone_by(name: Name) -> Option<CallId> {
    let number = name & !UNDOES;
    (name >= UNDOES).then(|| CallId(Uuid::from_u128(u128::from(number))))
}

pub(super) fn number(call_id: CallId) -> u8 {
    u8::try_from(call_id.0.as_u128()).unwrap_or(u8::MAX)
}

/// The time at a tick.
pub(super) fn at(tick: i64) -> Timestamp {
    let since = SignedDuration::try_from(TICK).unwrap_or_default();
    let first = Timestamp::from_second(1_800_000_000).unwrap_or_default();
    first
        .checked_add(since * i32::try_from(tick).unwrap_or(i32::MAX))
        .unwrap_or(Timestamp::MAX)
}

/// The first tick that is not before a time.
pub(super) fn tick_of(time: Timestamp) -> i64 {
    let ms = time.duration_since(at(0)).as_millis();
    let tick = i128::try_from(TICK.as_millis()).unwrap_or(1);
    i64::try_from(-(-ms).div_euclid(tick)).unwrap_or(i64::MAX)
}
