//! The sections `[reconciliations.*]` of the configuration.

use std::collections::BTreeMap;
use std::time::Duration;

use reqwest::Url;
use serde_json::Value as Json;

use super::report::MOST;
use super::settings::{Reconciliation, SourceAt};
use super::source::Source;
use crate::rules::anomaly::{Act, MAX_SHOWN};
use crate::rules::{Compare, Join, Kind, Path, Root, Rules};
use oncegate_engine::ToolAt;
use oncegate_rules::compensation;
use oncegate_rules::key::Pointer;
use oncegate_rules::time::signed;
use oncegate_rules::tool::Effect;
use oncegate_rules::unknown::is_searched;
use oncegate_settings::reader::Section;

/// Items that are held in memory, at most.
const MAX_ITEMS: usize = 1_000_000;
/// So many more unknown calls bring a scheduled run forward, by default.
const WHEN_UNKNOWN: u32 = 50;
/// The shortest interval between two runs.
const MIN_EVERY: Duration = Duration::from_secs(1);

/// Reads every section `[reconciliations.*]`. `tools`: all of the file.
pub fn settings(
    root: &mut Section<'_, '_>,
    tools: &[ToolAt],
    has_webhook: bool,
) -> Vec<Reconciliation> {
    root.named("reconciliations", |name, section| {
        reconciliation(name, section, tools, has_webhook)
    })
}

/// A reconciliation of some of these tools.
fn reconciliation(
    name: &str,
    mut section: Section<'_, '_>,
    all_tools: &[ToolAt],
    has_webhook: bool,
) -> Option<Reconciliation> {
    section.check_name(name, "a reconciliation's");
    let names: Vec<String> = section.need("tools").unwrap_or_default();
    let mut tools: Vec<&ToolAt> = Vec::new();
    for tool in &names {
        match all_tools.iter().find(|at| at.tool.name == *tool) {
            None => section.mistake("tools", &format!("there is no tool {tool}")),
            Some(at) if at.tool.effect == Effect::Read => {
                section.mistake("tools", &format!("{tool} only reads: it has no effects"));
            }
            Some(at) => tools.push(at),
        }
    }
    let is_empty = section.has_taken("tools") && names.is_empty();
    let why = "without tools there is nothing to compare";
    section.check(!is_empty, "tools", why);
    let sources = section.list_of_sections("sources");
    let why = "without sources there is nothing to compare with";
    section.check(!sources.is_empty(), "sources", why);
    let mut found: Vec<SourceAt> = Vec::new();
    for source in sources {
        if let Some(at) = source_at(source, &tools, &found) {
            found.push(at);
        }
    }
    let retention = signed(section.get_or("retention", Duration::from_hours(30 * 24)));
    // No run looks further back than any tool keeps calls.
    let calls_stored = tools.iter().map(|at| signed(at.tool.retention)).min();
    let every: Option<Duration> = section.get("every");
    let when_unknown: Option<u32> = section.get("when_unknown");
    let when_unknown = when_unknown.or(every.map(|_| WHEN_UNKNOWN));
    let when_unknown = when_unknown.map(u64::from);
    let read = Reconciliation {
        name: name.to_owned(),
        every,
        lag: signed(section.get_or("lag", Duration::from_mins(1))),
        window: signed(section.get_or("window", Duration::from_hours(1))),
        retention,
        anomaly_retention: retention.max(calls_stored.unwrap_or_default()),
        max_items: section.count_or("max_items", 100_000),
        max_anomalies: section.count_or("max_anomalies", 1_000),
        when_unknown,
        on: actions(section.defaulted("on")),
        show: section.pointers("show"),
        tools: names,
        sources: found,
    };
    check(&read, &tools, has_webhook, &section);
    Some(read)
}

fn actions(mut section: Section<'_, '_>) -> BTreeMap<Kind, Act> {
    let words = [
        ("report", Act::Report),
        ("compensate", Act::Compensate),
        ("webhook", Act::Webhook),
    ];
    let kinds = [
        (Kind::Missing, "missing"),
        (Kind::Orphan, "orphan"),
        (Kind::Duplicate, "duplicate"),
        (Kind::Mismatch, "mismatch"),
    ];
    let mut actions = BTreeMap::new();
    for (kind, key) in kinds {
        let adopts = (kind == Kind::Orphan).then_some(("adopt", Act::Adopt));
        let words: Vec<_> = words.into_iter().chain(adopts).collect();
        actions.extend(section.word(key, &words).map(|action| (kind, action)));
    }
    actions
}

fn check(read: &Reconciliation, tools: &[&ToolAt], has_webhook: bool, section: &Section<'_, '_>) {
    if let Some(every) = read.every {
        let why = "must be at least one second";
        section.check(every >= MIN_EVERY, "every", why);
        let why = "a run looks at one window at the most, so it would fall behind";
        section.check(signed(every) <= read.window, "every", why);
    }
    let why = "a window must be longer than zero";
    section.check(!read.window.is_zero(), "window", why);
    let why = format!("must be at most {MAX_ITEMS}");
    section.check(read.max_items <= MAX_ITEMS, "max_items", &why);
    let why = format!("must be at most {MOST}");
    section.check(read.max_anomalies <= MOST, "max_anomalies", &why);
    let why = format!("must be at most {MAX_SHOWN} values");
    section.check(read.show.len() <= MAX_SHOWN, "show", &why);
    for at in tools {
        let margin = read.margin(std::iter::once(&at.tool));
        let needed = read.window.saturating_add(margin.saturating_mul(3));
        let name = &at.tool.name;
        let why = format!("the calls of {name} would be deleted before: see its retention");
        section.check(needed <= signed(at.tool.retention), "window", &why);
    }
    let needs_webhook = read.on.values().any(|action| *action == Act::Webhook);
    let why = "there is no [webhook]";
    section.check(!needs_webhook || has_webhook, "on", why);
    let compensates = |kind| read.on.get(&kind) == Some(&Act::Compensate);
    let is_undone = read.on.values().any(|action| *action == Act::Compensate);
    let undoes_missing = compensates(Kind::Missing);
    let undoes_surplus = compensates(Kind::Orphan) || compensates(Kind::Duplicate);
    for at in tools {
        let (name, tool) = (&at.tool.name, &at.tool);
        let by = match &tool.compensation {
            compensation::Policy::By(template) => Some(template),
            compensation::Policy::Undeclared | compensation::Policy::Needless => None,
        };
        let lacks_time = is_searched(tool) && tool.negative_final_after.is_none();
        let mistakes = [
            (
                is_undone && by.is_none(),
                format!("{name} declares no compensation"),
            ),
            (
                undoes_missing && !at.has_probe(),
                format!(
                    "what is missing is undone only if its tool says so, too: {name} has no probe"
                ),
            ),
            (
                undoes_missing && lacks_time,
                format!(
                    "the probe of {name} is a search, and without negative_final_after none of its \"not found\" is believed"
                ),
            ),
            (
                undoes_surplus && by.is_some_and(|by| !by.takes_result()),
                format!(
                    "the compensation of {name} takes nothing below /result, so it would undo the call instead of the surplus effect"
                ),
            ),
        ];
        for (is_mistake, why) in &mistakes {
            section.check(!is_mistake, "on", why);
        }
    }
    check_adoption(read, section);
    if undoes_surplus {
        for source in &read.sources {
            let name = &source.rules.source;
            let why = format!("what is to be undone needs a name: {name} has no id");
            section.check(source.rules.id.is_some(), "on", &why);
            let why = format!("it is not said of which tool the effects of {name} are: add tool");
            section.check(source.tool.is_some(), "on", &why);
        }
    }
}

/// What is adopted has the key that the tool got, and is a call of that tool.
fn check_adoption(read: &Reconciliation, section: &Section<'_, '_>) {
    if read.on.get(&Kind::Orphan) != Some(&Act::Adopt) {
        return;
    }
    for source in &read.sources {
        let name = &source.rules.source;
        let why = format!(
            "what is adopted is found by the key that the tool got: {name} joins by another value"
        );
        section.check(source.rules.join == Join::Key, "on", &why);
        let why = format!("it is not said of which tool the effects of {name} are: add tool");
        section.check(source.tool.is_some(), "on", &why);
    }
}

fn source_at(
    mut section: Section<'_, '_>,
    tools: &[&ToolAt],
    others: &[SourceAt],
) -> Option<SourceAt> {
    let name = section.need::<String>("name").unwrap_or_default();
    if section.has_taken("name")
        && (name.is_empty() || name.len() > 64 || name.chars().any(char::is_control))
    {
        section.mistake("name", "a source's name has 1 to 64 characters");
    }
    let is_new = others.iter().all(|other| other.rules.source != name);
    section.check(is_new, "name", "another source has this name");
    let url = section.url(&["{since}", "{until}", "{cursor}"]);
    let next: Option<Pointer> = section.get("next");
    if let Some(url) = &url {
        check_url(url, next.is_some(), &section);
        section.warn_in_the_open(&format!("the URL of the source {name}"), url);
    }
    section.require("items");
    let items = section.parsed("items", |text| match text {
        "" => Ok(None),
        text => text.parse().map(Some),
    });
    let timeout = section.get_or("timeout", Duration::from_secs(10));
    let headers = section.headers();
    let key = section.need("key");
    let join = section
        .parsed("join", |text| match text {
            "idempotency_key" => Ok(Join::Key),
            text => Path::read(text)
                .map(Join::At)
                .map_err(|why| format!("{why}, nor is it \"idempotency_key\"")),
        })
        .unwrap_or(Join::Key);
    let compare = compare(&mut section);
    let words = [("orphan", false), ("ignore", true)];
    let tool = section.get::<String>("tool").or_else(|| match tools {
        [only] => Some(only.tool.name.clone()),
        _ => None,
    });
    if let Some(tool) = &tool
        && !tools.iter().any(|at| at.tool.name == *tool)
    {
        let why = format!("{tool} is not one of the tools of this reconciliation");
        section.mistake("tool", &why);
    }
    if let Join::At(path) = &join {
        check_secret("join", path, tools, &section);
    }
    for one in &compare {
        check_secret("compare", &one.call, tools, &section);
    }
    let rules = Rules {
        source: name,
        key: key.unwrap_or_else(Pointer::nowhere),
        join,
        id: section.get("id"),
        call_id: section.get("call_id"),
        compare,
        time: section.get("time"),
        status: section.get("status"),
        ignore: section.get("ignore").unwrap_or_default(),
        ignores_keyless: section.word_or("without_key", &words, false),
    };
    let is_read = rules.ignore.is_empty() || rules.status.is_some();
    section.check(is_read, "ignore", "this needs a status");
    let result = section.get("result");
    let adopted_result = section.defaulted("adopt").get("result");
    let source = Source {
        url: url?,
        headers,
        timeout,
        items: items.flatten(),
        next,
    };
    Some(SourceAt {
        rules,
        source,
        tool,
        result,
        adopted_result,
    })
}

fn check_url(url: &Url, has_next: bool, section: &Section<'_, '_>) {
    let values: Vec<String> = url
        .query_pairs()
        .map(|(_, value)| value.into_owned())
        .collect();
    for place in ["{since}", "{until}"] {
        let is_there = values.iter().any(|value| value.contains(place));
        let why = format!("its query must hold {place}, or it answers with more and more");
        section.check(is_there, "url", &why);
    }
    let has_cursor = values.iter().any(|value| value == "{cursor}");
    let why = "pages need both: a query value that is {cursor} in url, and next";
    section.check(has_cursor == has_next, "next", why);
}

/// The compared values: pointers into item and call.
///
/// A text is a place in the item and, below `/args`, in the call.
fn compare(section: &mut Section<'_, '_>) -> Vec<Compare> {
    let read = |one: &Json| -> Result<Compare, String> {
        let text = |value: Option<&Json>| value.and_then(Json::as_str).map(str::to_owned);
        match one {
            Json::String(text) => Ok(Compare {
                item: text.parse()?,
                call: Path::read(&format!("/args{text}"))?,
            }),
            Json::Object(members) if members.len() == 2 => {
                match (text(members.get("item")), text(members.get("call"))) {
                    (Some(item), Some(call)) => Ok(Compare {
                        item: item.parse()?,
                        call: Path::read(&call)?,
                    }),
                    _ => Err("each needs item and call".into()),
                }
            }
            _ => Err("each is a JSON Pointer, or { item = …, call = … }".into()),
        }
    };
    match section.get::<Json>("compare") {
        None => Vec::new(),
        Some(Json::Array(all)) => {
            let read = all.iter().map(|one| {
                read(one)
                    .map_err(|why| section.mistake("compare", &why))
                    .ok()
            });
            read.flatten().collect()
        }
        Some(_) => {
            section.mistake("compare", "this must be a list");
            Vec::new()
        }
    }
}

/// Notes redacted values that would be compared: they are not kept, or a report must not show them.
fn check_secret(what: &'static str, path: &Path, tools: &[&ToolAt], section: &Section<'_, '_>) {
    for at in tools {
        let secret = match path.root {
            Root::Args => &at.tool.redact.args,
            Root::Result => &at.tool.redact.result,
        };
        let is_shown = !secret.iter().any(|secret| secret.overlaps(&path.pointer));
        let why = format!("{} is secret in {}", path.pointer.as_str(), at.tool.name);
        section.check(is_shown, what, &why);
    }
}
