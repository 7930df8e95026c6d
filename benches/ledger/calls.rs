//! The calls that fill a store.

use std::error::Error;
use std::ops::Range;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use oncegate::core::call::{Arrival, Change, Event, next};
use oncegate::core::key::{Lookup, Source};
use oncegate::core::key_scheme::KeySchemeId;
use oncegate::core::outcome::{Body, Evidence};
use oncegate::core::record::{AttemptId, CallId, InstanceId, Intent};
use oncegate::core::session::Preconditions;
use oncegate::core::timings::Timings;
use oncegate::core::tool::Tool;
use oncegate::store::{Claimed, Replaced, Store};
use tokio::task::JoinSet;
use tokio::time::sleep;
use uuid::Uuid;

pub(super) type Fallible<T> = Result<T, Box<dyn Error + Send + Sync>>;

/// The days over which the calls are spread.
pub(super) const DAYS: i64 = 15;
pub(super) const TOOLS: [&str; 4] = ["pay", "ship", "mail", "book"];
pub(super) const ME: InstanceId = InstanceId(Uuid::from_u128(1));

/// Whose a call is: its tenant, and the user of the call with a number.
pub(super) type Whose<'a> = (&'a str, fn(usize) -> String);

/// Makes the calls with these numbers, `writers` at once.
pub(super) async fn fill(
    store: &Arc<dyn Store>,
    whose: Whose<'static>,
    numbers: Range<usize>,
    writers: usize,
    time: impl Fn(usize) -> Timestamp + Copy + Send + 'static,
) -> Fallible<()> {
    let mut all = JoinSet::new();
    for writer in 0..writers {
        let (store, numbers) = (store.clone(), numbers.clone());
        all.spawn(async move {
            let tool = Tool::new("act");
            for n in numbers.skip(writer).step_by(writers) {
                write(&*store, &tool, whose, n, time(n)).await?;
            }
            Fallible::Ok(())
        });
    }
    all.join_all().await.into_iter().collect()
}

/// Makes one call, from its claim to its outcome.
pub(super) async fn write(
    store: &dyn Store,
    tool: &Tool,
    whose: Whose<'_>,
    n: usize,
    at: Timestamp,
) -> Fallible<()> {
    // A verb that timed out on a busy machine is repeated: claim and replace recognise their own attempt.
    let claim = arrival(tool, whose, n, at)?;
    let record = loop {
        match store.claim(&claim, &[]).await {
            Ok(Claimed::Yours(record)) => break record,
            Ok(other) => return Err(format!("not claimed: {other:?}").into()),
            Err(_) => sleep(Duration::from_millis(500)).await,
        }
    };
    // Nearly all calls succeed. A few stay running, as if their gateway had ended.
    if n.is_multiple_of(150) && n < 9_600 {
        return Ok(());
    }
    let status = match n % 1_000 {
        1..=5 => 500,
        6..=25 => 422,
        _ => 200,
    };
    let json = format!(
        "{{\"order_id\":\"ord_{n:012}\",\"status\":\"created\",\"note\":\"{:40}\"}}",
        ""
    );
    let evidence = Evidence::Answer {
        status,
        body: Body::Whole(json.into()),
        retry_after: None,
        newest_token: None,
    };
    let event = Event::ended(&record, evidence);
    let ended_at = at + SignedDuration::from_millis(80);
    let change =
        next(tool, Some(&record), &event, ended_at).map_err(|error| format!("{error:?}"))?;
    let change = change.change.ok_or("nothing to write")?;
    loop {
        match store.replace(&change, &record).await {
            Ok(Replaced::Done(_)) => return Ok(()),
            Ok(other) => return Err(format!("not written: {other:?}").into()),
            Err(_) => sleep(Duration::from_millis(500)).await,
        }
    }
}

pub(super) fn key_of(n: usize) -> String {
    format!("key-{n:016}")
}

pub(super) fn user_of(n: usize) -> String {
    format!("user-{:04}", n % 200)
}

pub(super) fn session_of(n: usize) -> String {
    format!("session-{:010}", n / 50)
}

/// A trace id of 32 hex digits, as the gateway makes them.
pub(super) fn trace_of(n: usize) -> String {
    let spread = 0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835_u128;
    format!("{:032x}", (n as u128 / 8 + 1).wrapping_mul(spread))
}

fn arrival(
    tool: &Tool,
    (tenant, user): Whose<'_>,
    n: usize,
    created_at: Timestamp,
) -> Fallible<Change> {
    let (name, key) = (TOOLS[n % TOOLS.len()], key_of(n));
    let lookup = Lookup::new(tenant, name, &key);
    let note = "as agreed by telephone; ".repeat(9);
    let intent = Intent {
        call_id: CallId::new(Uuid::now_v7(), &lookup),
        tenant: tenant.into(),
        tool: name.into(),
        lookup,
        lookups: Vec::new(),
        key_scheme: KeySchemeId([3; 16]),
        key,
        key_source: Source::Runtime,
        fingerprint: [7; 32],
        user_id: user(n),
        session_id: session_of(n),
        saga_id: String::new(),
        trace_id: trace_of(n),
        made_by: "agent".into(),
        client_ids: String::new(),
        similar: None,
        args: format!(
            "{{\"business_id\":\"B-{n:012}\",\"sku\":\"widget-7\",\"amount_cents\":1999,\"note\":\"{note}\"}}"
        )
        .into(),
        created_at,
    };
    let (intent, preconditions) = (Arc::new(intent), Preconditions::default());
    let event = Event::Arrived(Arrival {
        intent,
        fingerprints: Arc::default(),
        preconditions,
        attempt: AttemptId(Uuid::new_v4()),
        owner: ME,
    });
    let change = next(tool, None, &event, created_at).map_err(|error| format!("{error:?}"))?;
    change.change.ok_or_else(|| "nothing to write".into())
}

pub(super) fn now() -> Timestamp {
    static NOW: OnceLock<Timestamp> = OnceLock::new();
    *NOW.get_or_init(Timestamp::now)
}

/// For claims at times of long ago, which are not too late for their leases.
pub(super) fn patient() -> Timings {
    Timings {
        lease_margin: Duration::from_secs(2 * 24 * 3_600 * (DAYS as u64 + 1)),
        ..Timings::default()
    }
}

/// When the n-th of so many calls was made.
pub(super) fn time_of(n: usize, most: usize) -> Timestamp {
    let days = SignedDuration::from_hours(24 * DAYS);
    now() - days + SignedDuration::from_secs_f64(days.as_secs_f64() * n as f64 / most as f64)
}
