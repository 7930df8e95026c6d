//! What an operator says of reconciliations, and of the webhook.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::SignedDuration;
use reqwest::Url;
use reqwest::header::HeaderMap;
use serde_json::Value as Json;

use super::reader::{Count, Section};
use super::tools::{is_in_the_open, placeholder};
use crate::core::compensation;
use crate::core::key::Pointer;
use crate::core::reconcile::{Compare, Join, Kind, Path, Root, Rules};
use crate::core::tool::Effect;
use crate::downstream::outside::{Source, Webhook};
use crate::downstream::secret_header;
use crate::gateway::ToolAt;
use crate::gateway::reconcile::{Action, Reconciliation, SourceAt};

/// More items or anomalies than this are not held in memory.
const MAX_ITEMS: u32 = 1_000_000;
const MAX_ANOMALIES: u32 = 10_000;
/// A source is not asked more often than this.
const MIN_EVERY: Duration = Duration::from_secs(1);

pub(super) fn webhook(mut section: Section<'_, '_>, warnings: &mut Vec<String>) -> Option<Webhook> {
    let url = url(&mut section, &[]);
    let headers: HeaderMap = section
        .entries("headers", secret_header)
        .into_iter()
        .collect();
    let timeout = section.get_or("timeout", Duration::from_secs(5));
    section.finish();
    let url = url?;
    if is_in_the_open(&url) {
        warnings.push("the webhook's URL is plain http:// to another machine".into());
    }
    Some(Webhook {
        url,
        headers,
        timeout,
    })
}

/// A URL in which only these placeholders are filled in.
fn url(section: &mut Section<'_, '_>, known: &[&str]) -> Option<Url> {
    let text = section.need::<String>("url")?;
    match text.parse::<Url>() {
        Ok(_) if let Some(place) = placeholder(&text, known) => {
            section.mistake(
                "url",
                &format!("{place} would be sent as it stands: nothing fills it in"),
            );
            None
        }
        Ok(url) if matches!(url.scheme(), "http" | "https") && url.has_host() => Some(url),
        // The text may hold a secret, so it is not repeated.
        _ => {
            section.mistake("url", "this is no http:// or https:// URL");
            None
        }
    }
}

/// What else of the configuration a reconciliation refers to.
pub(super) struct Around<'a> {
    pub(super) tools: &'a [ToolAt],
    pub(super) has_webhook: bool,
}

pub(super) fn reconciliation(
    name: &str,
    mut section: Section<'_, '_>,
    around: &Around<'_>,
    warnings: &mut Vec<String>,
) -> Option<Reconciliation> {
    let plain = name
        .bytes()
        .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-'));
    if !plain || name.is_empty() || name.len() > 64 {
        section.mistake(
            "",
            "a reconciliation's name has 1 to 64 characters of a-z, A-Z, 0-9, _ and -",
        );
    }
    let names: Vec<String> = section.need("tools").unwrap_or_default();
    let mut tools: Vec<&ToolAt> = Vec::new();
    for tool in &names {
        match around.tools.iter().find(|at| at.tool.name == *tool) {
            None => section.mistake("tools", &format!("there is no tool {tool}")),
            Some(at) if at.tool.effect == Effect::Read => {
                section.mistake("tools", &format!("{tool} only reads: it has no effects"));
            }
            Some(at) => tools.push(at),
        }
    }
    if section.has_taken("tools") && names.is_empty() {
        section.mistake("tools", "without tools there is nothing to compare");
    }
    let sources = section.list_of_sections("sources");
    if sources.is_empty() {
        section.mistake(
            "sources",
            "without sources there is nothing to compare with",
        );
    }
    let mut found: Vec<SourceAt> = Vec::new();
    for source in sources {
        if let Some(at) = source_at(source, &tools, &found, warnings) {
            found.push(at);
        }
    }
    let read = Reconciliation {
        name: name.to_owned(),
        every: section.get("every"),
        lag: section
            .get("lag")
            .map_or(SignedDuration::from_mins(1), signed),
        window: section
            .get("window")
            .map_or(SignedDuration::from_hours(1), signed),
        retention: section
            .get("retention")
            .map_or(SignedDuration::from_hours(30 * 24), signed),
        max_items: section
            .get("max_items")
            .map_or(100_000, |Count(count)| count) as usize,
        max_anomalies: section
            .get("max_anomalies")
            .map_or(1_000, |Count(count)| count) as usize,
        on: section.section("on").map(actions).unwrap_or_default(),
        tools: names,
        sources: found,
    };
    check(&read, &tools, around, &section);
    section.finish();
    Some(read)
}

fn signed(time: Duration) -> SignedDuration {
    SignedDuration::try_from(time).unwrap_or(SignedDuration::MAX)
}

fn actions(mut section: Section<'_, '_>) -> BTreeMap<Kind, Action> {
    let words = [
        ("report", Action::Report),
        ("compensate", Action::Compensate),
        ("webhook", Action::Webhook),
    ];
    let kinds = [
        (Kind::Missing, "missing"),
        (Kind::Orphan, "orphan"),
        (Kind::Duplicate, "duplicate"),
        (Kind::Mismatch, "mismatch"),
    ];
    let mut actions = BTreeMap::new();
    for (kind, key) in kinds {
        actions.extend(section.word(key, &words).map(|action| (kind, action)));
    }
    section.finish();
    actions
}

fn check(read: &Reconciliation, tools: &[&ToolAt], around: &Around<'_>, section: &Section<'_, '_>) {
    if let Some(every) = read.every {
        if every < MIN_EVERY {
            section.mistake("every", "no source is asked more often than once a second");
        }
        if signed(every) > read.window {
            section.mistake(
                "every",
                "a run looks at one window at the most, so it would fall behind",
            );
        }
    }
    if read.window.is_zero() {
        section.mistake("window", "in no time nothing happens");
    }
    if read.max_items > MAX_ITEMS as usize {
        section.mistake(
            "max_items",
            &format!("more than {MAX_ITEMS} items are not held in memory"),
        );
    }
    if read.max_anomalies > MAX_ANOMALIES as usize {
        section.mistake(
            "max_anomalies",
            &format!("more than {MAX_ANOMALIES} anomalies help nobody"),
        );
    }
    for at in tools {
        let margin = read.margin(std::iter::once(&at.tool));
        if read.window.saturating_add(margin.saturating_mul(3)) > signed(at.tool.retention) {
            let name = &at.tool.name;
            section.mistake(
                "window",
                &format!("the calls of {name} would be deleted before: see its retention"),
            );
        }
    }
    if read.on.values().any(|action| *action == Action::Webhook) && !around.has_webhook {
        section.mistake("on", "there is no [webhook]");
    }
    let compensates = |kinds: [Kind; 2]| {
        kinds
            .iter()
            .any(|kind| read.on.get(kind) == Some(&Action::Compensate))
    };
    let undoes = |at: &ToolAt| matches!(at.tool.compensation, compensation::Policy::By(_));
    let is_needed = compensates([Kind::Missing, Kind::Mismatch])
        || compensates([Kind::Orphan, Kind::Duplicate]);
    for at in tools.iter().filter(|at| is_needed && !undoes(at)) {
        section.mistake("on", &format!("{} declares no compensation", at.tool.name));
    }
    if read.on.get(&Kind::Missing) == Some(&Action::Compensate) {
        for at in tools.iter().filter(|at| at.endpoint.probe.is_none()) {
            let why = format!(
                "what is missing is undone only if its tool says so, too: {} has no probe",
                at.tool.name
            );
            section.mistake("on", &why);
        }
    }
    if compensates([Kind::Orphan, Kind::Duplicate]) {
        for source in &read.sources {
            let name = &source.rules.source;
            if source.rules.id.is_none() {
                section.mistake(
                    "on",
                    &format!("what is to be undone needs a name: {name} has no id"),
                );
            }
            if source.tool.is_none() {
                section.mistake(
                    "on",
                    &format!("whose effects are undone? {name} has no tool"),
                );
            }
        }
    }
}

fn source_at(
    mut section: Section<'_, '_>,
    tools: &[&ToolAt],
    others: &[SourceAt],
    warnings: &mut Vec<String>,
) -> Option<SourceAt> {
    let name = section.need::<String>("name").unwrap_or_default();
    if section.has_taken("name")
        && (name.is_empty() || name.len() > 64 || name.chars().any(char::is_control))
    {
        section.mistake("name", "a source's name has 1 to 64 characters");
    }
    if others.iter().any(|other| other.rules.source == name) {
        section.mistake("name", "another source has this name");
    }
    let url = url(&mut section, &["{since}", "{until}", "{cursor}"]);
    let next = pointer(&mut section, "next");
    if let Some(url) = &url {
        check_url(url, next.is_some(), &section);
        if is_in_the_open(url) {
            warnings.push(format!(
                "the URL of the source {name} is plain http:// to another machine"
            ));
        }
    }
    let items: String = section.need("items").unwrap_or_default();
    let items = if items.is_empty() {
        None
    } else {
        items
            .parse()
            .map_err(|why: String| section.mistake("items", &why))
            .ok()
    };
    let timeout = section.get_or("timeout", Duration::from_secs(10));
    let headers: HeaderMap = section
        .entries("headers", secret_header)
        .into_iter()
        .collect();
    let key: Option<Pointer> = section
        .need::<String>("key")
        .and_then(|text| read_pointer(&text, "key", &section));
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
        && section.has_taken("tool")
        && !tools.iter().any(|at| at.tool.name == *tool)
    {
        section.mistake(
            "tool",
            &format!("{tool} is none of the tools of this reconciliation"),
        );
    }
    let joined = match &join {
        Join::At(path) => Some(path),
        Join::Key => None,
    };
    for (what, path) in joined
        .map(|path| ("join", path))
        .into_iter()
        .chain(compare.iter().map(|one| ("compare", &one.call)))
    {
        check_secret(what, path, tools, &section);
    }
    let rules = Rules {
        source: name,
        key: key.unwrap_or_else(Pointer::nowhere),
        join,
        id: pointer(&mut section, "id"),
        call_id: pointer(&mut section, "call_id"),
        compare,
        status: pointer(&mut section, "status"),
        ignore: section.get("ignore").unwrap_or_default(),
        ignores_keyless: section.word("without_key", &words).unwrap_or(false),
    };
    if !rules.ignore.is_empty() && rules.status.is_none() {
        section.mistake("ignore", "this needs a status");
    }
    let result = pointer(&mut section, "result");
    section.finish();
    let source = Source {
        url: url?,
        headers,
        timeout,
        items,
        next,
    };
    Some(SourceAt {
        rules,
        source,
        tool,
        result,
    })
}

/// A text that is a pointer, if it is there.
fn pointer(section: &mut Section<'_, '_>, key: &'static str) -> Option<Pointer> {
    section.parsed(key, |text| text.parse())
}

fn read_pointer(text: &str, key: &str, section: &Section<'_, '_>) -> Option<Pointer> {
    text.parse()
        .map_err(|why: String| section.mistake(key, &why))
        .ok()
}

fn check_url(url: &Url, has_next: bool, section: &Section<'_, '_>) {
    let values: Vec<String> = url
        .query_pairs()
        .map(|(_, value)| value.into_owned())
        .collect();
    for place in ["{since}", "{until}"] {
        if !values.iter().any(|value| value.contains(place)) {
            section.mistake(
                "url",
                &format!("its query must hold {place}, or it answers with more and more"),
            );
        }
    }
    let has_cursor = values.iter().any(|value| value == "{cursor}");
    if has_cursor != has_next {
        section.mistake(
            "next",
            "pages need both: a query value that is {cursor} in url, and next",
        );
    }
}

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

/// What is kept nowhere cannot be compared, and what is not shown must not be told by a report.
fn check_secret(what: &'static str, path: &Path, tools: &[&ToolAt], section: &Section<'_, '_>) {
    for at in tools {
        let secret = match path.root {
            Root::Args => &at.tool.redact.args,
            Root::Result => &at.tool.redact.result,
        };
        let is_within = |place: &str, of: &str| {
            place
                .strip_prefix(of)
                .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        };
        let path = path.pointer.as_str();
        if secret
            .iter()
            .any(|secret| is_within(path, secret.as_str()) || is_within(secret.as_str(), path))
        {
            section.mistake(what, &format!("{path} is secret in {}", at.tool.name));
        }
    }
}
