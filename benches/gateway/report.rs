//! Prints the figures as a table and as ratios, and writes them as JSON and as a picture.

use std::fmt::Write as _;
use std::fs;

use serde_json::json;

use super::Fallible;
use super::many::Replays;
use super::memory::Held;
use super::rows::{Row, report_folder};

pub(super) const HEAD: &str = "connections  row                    requests/s   p50 ms   p99 ms   CPU us  store us  memory MiB";

pub(super) fn line(row: &Row) -> String {
    let figures = &row.figures;
    let maybe = |figure: Option<f64>, digits: usize| {
        figure.map_or_else(|| "-".to_owned(), |figure| format!("{figure:.digits$}"))
    };
    format!(
        "{:>11}  {:<22} {:>10.0} {:>8.3} {:>8.3} {:>8} {:>9} {:>11}",
        row.connections,
        row.name,
        figures.per_second,
        figures.p50,
        figures.p99,
        maybe(figures.cpu_us, 1),
        maybe(figures.redis_us, 1),
        maybe(figures.memory_mib, 1),
    )
}

pub(super) fn held(held: &Held) -> String {
    let kilobytes = |bytes: f64| bytes / 1024.0;
    format!(
        "an idle connection holds {:.1} KiB; a running call with its connections {:.1}; a waiting duplicate with its \
         connection {:.1}",
        kilobytes(held.idle_connection),
        kilobytes(held.running_call),
        kilobytes(held.waiting_duplicate)
    )
}

pub(super) fn many(replays: &Replays) -> String {
    let ([few, many], [of_few, of_many]) = (replays.calls, replays.per_second);
    format!(
        "replays a second over SQLite, in no order: {of_few:.0} of {few} calls, {of_many:.0} of {many}"
    )
}

/// Rows of this build and of another one, whose gateways have the same work behind them.
const BEFORE: [(&str, &str); 4] = [
    ("replay, SQLite, now", "replay, SQLite, before"),
    ("first, SQLite, now", "first, SQLite, before"),
    ("replay, Redis, now", "replay, Redis, before"),
    ("first, Redis, now", "first, Redis, before"),
];

/// A ratio with its goal.
pub(super) struct Ratio {
    what: String,
    goal: f64,
    reached: f64,
}

/// The ratios for which all rows were measured.
pub(super) fn ratios(rows: &[Row], many: &Replays, held: Option<&Held>) -> Vec<Ratio> {
    let at = |name: &str, connections: usize| {
        let is_it = |row: &&Row| row.name == name && row.connections == connections;
        rows.iter().find(is_it).map(|row| &row.figures)
    };
    let cpu = |name: &str| at(name, 16).and_then(|row| row.cpu_us);
    let of = |this: Option<f64>, that: Option<f64>| Some(this? / that?);
    let mut ratios = Vec::new();
    let mut add = |what: String, goal: Option<f64>, reached: Option<f64>| {
        let both = goal.zip(reached);
        ratios.extend(both.map(|(goal, reached)| Ratio {
            what,
            goal,
            reached,
        }));
    };
    for store in ["SQLite", "Redis"] {
        let (replay, first) = (format!("replay, {store}"), format!("first, {store}"));
        add(
            format!("CPU of a {replay}, in nginx hops"),
            Some(1.5),
            of(cpu(&replay), cpu("nginx")),
        );
        let added = cpu(&replay).zip(cpu("null"));
        add(
            format!("us of CPU that a {replay} takes more than an empty handler"),
            Some(12.0),
            added.map(|(replay, null)| replay - null),
        );
        add(
            format!("CPU of a {first}, to that of the durable bare gateway"),
            Some(1.6),
            of(cpu(&first), cpu(&format!("durable, {store}"))),
        );
        let added = |name: &str| Some(at(name, 1)?.p50 - at("direct", 1)?.p50);
        add(
            format!("ms that a {replay} adds to a direct call, alone"),
            Some(0.06),
            added(&replay),
        );
        let busy = at(&format!("busy {replay}"), 16).zip(at(&replay, 16));
        add(
            format!("p99 of a {replay} while new calls keep the store busy, to that alone"),
            Some(2.0),
            busy.map(|(busy, alone)| busy.p99 / alone.p99),
        );
    }
    add(
        "CPU of a first, Redis, in first arrivals of the bare gateway".into(),
        Some(2.5),
        of(cpu("first, Redis"), cpu("bare first")),
    );
    add(
        "us of CPU of Redis for a first arrival".into(),
        Some(60.0),
        at("first, Redis", 16).and_then(|row| row.redis_us),
    );
    add(
        "CPU of a first arrival of the bare gateway, in nginx hops".into(),
        Some(2.0),
        of(cpu("bare first"), cpu("nginx")),
    );
    for (now, before) in BEFORE {
        add(
            format!("CPU of a {now}, to that of the binary before"),
            Some(1.03),
            of(cpu(now), cpu(before)),
        );
    }
    let (of_redis, of_postgres) = (at("first, Redis", 64), at("first, PostgreSQL", 64));
    add(
        "first arrivals a second over PostgreSQL, to those over Redis, at 64 (more is better)"
            .into(),
        Some(1.0),
        of_redis
            .zip(of_postgres)
            .map(|(redis, postgres)| postgres.per_second / redis.per_second),
    );
    add(
        "CPU of PostgreSQL for a first arrival, in 300 us".into(),
        Some(1.0),
        of_postgres
            .and_then(|row| row.redis_us)
            .map(|us| us / 300.0),
    );
    for what in ["replay", "first"] {
        let reached = cpu(&format!("{what} by MCP")).zip(cpu(&format!("{what}, SQLite")));
        add(
            format!("CPU of a {what} by MCP, to that by HTTP"),
            Some(1.3),
            reached.map(|(mcp, http)| mcp / http),
        );
    }
    for peer in ["Python", "Restate"] {
        for (what, goal) in [("replay", 10.0), ("first", 15.0)] {
            let ours = cpu(&format!("{what}, SQLite"));
            let reached = cpu(&format!("{what}, {peer}")).zip(ours);
            add(
                format!("CPU of a {what}, {peer}, to that over SQLite (more is better)"),
                Some(goal),
                reached.map(|(theirs, ours)| theirs / ours),
            );
        }
    }
    for (what, goal, bytes) in [
        (
            "an idle connection",
            16.0,
            held.map(|held| held.idle_connection),
        ),
        ("a running call", 48.0, held.map(|held| held.running_call)),
    ] {
        add(
            format!("KiB of {what}"),
            Some(goal),
            bytes.map(|bytes| bytes / 1024.0),
        );
    }
    let [few, all] = many.per_second;
    add(
        format!(
            "replays a second of {} calls, to those of {}",
            many.calls[0], many.calls[1]
        ),
        Some(1.5),
        Some(few / all),
    );
    ratios
}

pub(super) fn ratio_line(ratio: &Ratio) -> String {
    let Ratio {
        what,
        goal,
        reached,
    } = ratio;
    format!("{reached:>7.2}  (goal {goal:.2})  {what}")
}

/// Writes `speed.json` and `speed.svg`. Returns their folder.
pub(super) fn write(
    rows: &[Row],
    ratios: &[Ratio],
    held: Option<&Held>,
    many: &Replays,
) -> Fallible<String> {
    let folder = report_folder();
    fs::create_dir_all(&folder)?;
    let ratio =
        |ratio: &Ratio| json!({ "what": ratio.what, "goal": ratio.goal, "reached": ratio.reached });
    let ratios: Vec<_> = ratios.iter().map(ratio).collect();
    let all = json!({ "rows": rows, "ratios": ratios, "memory": held, "many": many });
    fs::write(folder.join("speed.json"), serde_json::to_vec_pretty(&all)?)?;
    fs::write(folder.join("speed.svg"), picture(rows)?)?;
    Ok(folder.display().to_string())
}

/// A bar chart of the processor time of each row, at 16 connections.
fn picture(rows: &[Row]) -> Result<String, std::fmt::Error> {
    // Rows that only compare two binaries are not in it.
    let is_compared = |row: &&Row| {
        [", now", ", before"]
            .iter()
            .any(|end| row.name.ends_with(end))
    };
    let shown: Vec<(&str, f64)> = rows
        .iter()
        .filter(|row| row.connections == 16 && !is_compared(row))
        .filter_map(|row| Some((row.name, row.figures.cpu_us?)))
        .collect();
    let most = shown.iter().map(|(_, cpu)| *cpu).fold(1.0, f64::max);
    let (left, width, step) = (150.0, 420.0, 24.0);
    let height = step * shown.len() as f64 + 40.0;
    let mut svg = String::new();
    writeln!(
        svg,
        r##"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 640 {height}" font-family="sans-serif" font-size="13">
<rect width="640" height="{height}" fill="#fff"/>
<text x="8" y="20">CPU microseconds of the process per request, 16 connections</text>"##
    )?;
    for (at, (name, cpu)) in shown.into_iter().enumerate() {
        let top = 32.0 + step * at as f64;
        let bar = cpu / most * width;
        let others = ["bare", "durable", "Python", "Restate"];
        let is_call = name.contains("replay") || name.contains("first");
        let is_ours = is_call && !others.iter().any(|other| name.contains(other));
        let color = if is_ours { "#2563eb" } else { "#94a3b8" };
        let (text, end) = (top + 14.0, left + bar + 6.0);
        writeln!(
            svg,
            r#"<text x="8" y="{text}">{name}</text><rect x="{left}" y="{top}" width="{bar:.1}" height="18" fill="{color}"/><text x="{end:.1}" y="{text}">{cpu:.0}</text>"#
        )?;
    }
    svg.push_str("</svg>\n");
    Ok(svg)
}
