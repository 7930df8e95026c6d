//! `oncegate store inspect` and `upgrade` over a Redis.

use std::fmt::Write as _;

use oncegate::app;
use oncegate::store::redis::{STEPS, Settings, Standing};

use super::{Failure, say};

/// Prints the format of a Redis, who shares it, and what an upgrade would do.
///
/// # Errors
/// The store is not reached, or with `dry_run`: it cannot be upgraded now.
pub(super) fn inspect(settings: Settings, dry_run: bool) -> Result<(), Failure> {
    let target = settings.target.to_string();
    let runtime = tokio::runtime::Runtime::new()?;
    let standing = runtime.block_on(app::standing(settings))?;
    say(&text(&target, &standing)?)?;
    match standing.obstacle() {
        Some(why) if dry_run => Err(why.into()),
        _ => Ok(()),
    }
}

/// Moves a Redis to the newest format.
///
/// # Errors
/// The store is not ready, or a gateway that shares it does not know the format. Nothing has changed.
pub(super) fn upgrade(settings: Settings) -> Result<(), Failure> {
    let runtime = tokio::runtime::Runtime::new()?;
    let before = runtime.block_on(app::move_on(settings))?;
    if before.steps().next().is_none() {
        return say("nothing to do: the store has the newest format\n");
    }
    say(&format!(
        "the store is upgraded from format {} to {}: {}; releases before do not use it any more\n",
        before.format,
        before.newest,
        gains(&before)
    ))
}

fn text(target: &str, standing: &Standing) -> Result<String, std::fmt::Error> {
    let mut out = format!("{target}: format {}", standing.format);
    let step = STEPS.iter().find(|step| step.to == standing.format);
    match step {
        Some(step) => writeln!(
            out,
            ", calls of version {}; {} and later can use it",
            step.calls, step.release
        )?,
        None => writeln!(
            out,
            "; this release knows formats {} to {}",
            STEPS[0].to, standing.newest
        )?,
    }
    write!(out, "epoch {}", standing.epoch)?;
    match standing.whole_since {
        Some(since) => writeln!(out, ", whole since {since:.0}")?,
        None => writeln!(out)?,
    }
    if standing.gateways.is_empty() {
        writeln!(out, "no gateway has announced itself yet")?;
    }
    for one in &standing.gateways {
        let ([format, newest_format], [call, newest_call]) = (one.can.formats, one.can.calls);
        let state = match (one.can.stopped_us.is_some(), standing.is_gone(one)) {
            (true, _) => ", stopped",
            (_, true) => ", gone",
            _ => "",
        };
        writeln!(
            out,
            "gateway {}: release {}, formats {format} to {newest_format}, calls of version {call} to {newest_call}, seen {:.0}{state}",
            one.gateway, one.can.release, one.seen
        )?;
    }
    let gains = gains(standing);
    match standing.obstacle() {
        _ if gains.is_empty() => writeln!(out, "there is nothing to upgrade")?,
        Some(why) => writeln!(out, "{why}")?,
        None => writeln!(
            out,
            "`oncegate store upgrade` would move it to format {}: {gains}; it takes some seconds while gateways serve, and releases before do not use it afterwards",
            standing.newest
        )?,
    }
    Ok(out)
}

/// What the steps add.
fn gains(standing: &Standing) -> String {
    let steps = standing.steps().map(|step| step.what);
    steps.collect::<Vec<_>>().join("; ")
}
