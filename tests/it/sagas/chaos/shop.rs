//! The shop of these worlds: tools with every rule there is, what undoes them, and how they misbehave.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::Value;

use super::Dice;
use crate::support::tool::Seen;
use crate::support::{Act, Tool};

/// Executes and says what has been made.
const MADE: Act = Act::Ok("{\"made\":7}");
const RULES: &str = "timeout = \"500ms\"\ndeadline = \"1s\"\nsession_wait = \"500ms\"\n\
     retry = { attempts = 2, base = \"10ms\", max = \"20ms\" }\nbreaker = { failures = 100000 }\n\
     recheck = { base = \"100ms\", max = \"300ms\" }\n";
const DEDUPLICATES: &str = "dedup = \"key\"\nunknown = \"retry\"\n";

/// What does something: its name, its rules, and what undoes it.
const FORWARD: [(&str, &str, &str); 10] = [
    ("order", "session = \"shared\"\n", "undo_order"),
    ("pay", "session = \"fenced\"\n", "undo_pay"),
    ("ship", "session = \"exclusive\"\n", "undo_ship"),
    ("send", "compensate_unknown = \"send\"\n", "undo_send"),
    (
        "send_excl",
        "compensate_unknown = \"send\"\nsession = \"exclusive\"\n",
        "undo_order",
    ),
    ("dedup", DEDUPLICATES, "undo_dedup"),
    (
        "dedup_send",
        "compensate_unknown = \"send\"\ndedup = \"key\"\nunknown = \"retry\"\n",
        "undo_dedup",
    ),
    ("probe", "unknown = \"probe\"\n", "undo_probe"),
    ("note", DEDUPLICATES, ""),
    ("mail", "", ""),
];
/// What undoes.
const BACKWARD: [(&str, &str); 6] = [
    ("undo_order", "session = \"shared\"\n"),
    (
        "undo_pay",
        "session = \"fenced\"\noutcomes = { 503 = \"not_executed\" }\n",
    ),
    ("undo_ship", "session = \"exclusive\"\n"),
    ("undo_send", "remember_rejections = true\n"),
    ("undo_dedup", DEDUPLICATES),
    ("undo_probe", "unknown = \"probe\"\n"),
];

/// All of it in one place, which knows the tools by their paths.
#[derive(Clone)]
pub(super) struct Shop {
    pub(super) tool: Tool,
    is_healed: Arc<AtomicBool>,
}

impl Shop {
    pub(super) async fn open(seed: u64) -> Self {
        let tool = Tool::start().await;
        tool.deduplicate_if(|seen| path(seen).contains("dedup") || path(seen) == "note");
        let is_healed = Arc::<AtomicBool>::default();
        let well = is_healed.clone();
        tool.choose(move |seen, before| {
            let mut dice = Dice::of(seed, before.len() as u64);
            if seen.line.starts_with("GET") {
                return probed(
                    seen,
                    before,
                    !well.load(Ordering::SeqCst) && dice.below(4) == 0,
                );
            }
            match (well.load(Ordering::SeqCst), saga_undone_by(seen)) {
                // What these have done cannot be undone by anybody, and what those have only later. A tool that
                // deduplicates would be asked for ever, once it had not answered.
                (_, Some(saga)) if is_hopeless(saga) && !path(seen).contains("dedup") => {
                    Act::Answer(422, "", b"{\"no\":1}")
                }
                (false, Some(saga)) if saga.is_multiple_of(4) => {
                    Act::Answer(422, "", b"{\"no\":1}")
                }
                (true, _) => MADE,
                (false, _) => misbehave(&mut dice),
            }
        });
        Self { tool, is_healed }
    }

    /// Nothing goes wrong any more.
    pub(super) fn heal(&self) {
        self.is_healed.store(true, Ordering::SeqCst);
    }

    pub(super) fn config(&self) -> String {
        let at = |path: &str| format!("http://127.0.0.1:{}/{path}", self.tool.port);
        let probe = format!(
            "probe = {{ url = \"{}\", negative_final_after = \"0s\" }}\n",
            at("known/{key}")
        );
        let mut config = "[sagas]\ndeadline = \"8s\"\non_timeout = \"abort\"\n\
             retry = { attempts = 3, base = \"30ms\", max = \"200ms\" }\n"
            .to_owned();
        let mut add = |name: &str, rules: &str| {
            config += &format!("[tools.{name}]\nurl = \"{}\"\n{RULES}{rules}", at(name));
            if rules.contains("\"probe\"") {
                config += &probe;
            }
        };
        for (name, rules, undo) in FORWARD {
            // An unknown call has no result.
            let made = if rules.contains("send") {
                ""
            } else {
                ", made = \"/result/made\""
            };
            let args = format!("of = \"/call/call_id\", saga = \"/call/saga_id\"{made}");
            let undone = match undo {
                "" => "compensation = \"none\"\n".to_owned(),
                undo => format!("compensation = {{ tool = \"{undo}\", args = {{ {args} }} }}\n"),
            };
            add(name, &format!("{rules}{undone}"));
        }
        for (name, rules) in BACKWARD {
            add(name, rules);
        }
        add("look", "effect = \"read\"\n");
        config
    }

    /// What was done and undone, in this order.
    pub(super) fn effects(&self) -> Vec<Seen> {
        let is_effect =
            |seen: &Seen| seen.executed && seen.line.starts_with("POST") && path(seen) != "look";
        let mut executed: Vec<Seen> = self.tool.seen().into_iter().filter(is_effect).collect();
        executed.sort_by_key(|seen| seen.until);
        executed
    }
}

/// A tool of these, some more often than others.
pub(super) fn any(dice: &mut Dice) -> &'static str {
    match dice.below(FORWARD.len() as u64 + 4) as usize {
        n if n < FORWARD.len() => FORWARD[n].0,
        n if n == FORWARD.len() => "order",
        n if n == FORWARD.len() + 1 => "look",
        // What is rare, that it is undone without knowing, is to happen in each run.
        _ => "send",
    }
}

/// Whether unknown calls are undone, too.
pub(super) fn undoes_unknown(tool: &str) -> bool {
    tool.contains("send") && !tool.starts_with("undo")
}

/// Whether there is nothing to undo.
pub(super) fn is_needless(tool: &str) -> bool {
    FORWARD
        .iter()
        .any(|(name, _, undo)| *name == tool && undo.is_empty())
}

/// Whether only an operator settles its unknown calls.
pub(super) fn is_held(tool: &str) -> bool {
    let rules = FORWARD
        .iter()
        .map(|(name, rules, _)| (*name, *rules))
        .chain(BACKWARD);
    let comes_to_rest = |rules: &str| rules.contains("\"retry\"") || rules.contains("\"probe\"");
    rules
        .into_iter()
        .any(|(name, rules)| name == tool && !comes_to_rest(rules))
}

/// Whether what a saga has done can never be undone, and no operator resolves it.
pub(super) fn is_hopeless(saga: usize) -> bool {
    saga.is_multiple_of(8)
}

fn saga_undone_by(seen: &Seen) -> Option<usize> {
    let sent: Value = serde_json::from_str(&seen.body).expect("JSON");
    sent["saga"].as_str().map(super::number_of)
}

fn misbehave(dice: &mut Dice) -> Act {
    match dice.below(100) {
        0..56 => MADE,
        56..62 => Act::Answer(422, "", b"{\"no\":1}"),
        62..67 => Act::Answer(429, "", b"{}"),
        67..71 => Act::Answer(503, "", b"{}"),
        71..74 => Act::Drop,
        74..78 => Act::ExecuteThenDrop,
        78..80 => Act::ExecuteThenReset,
        80..82 => Act::ExecuteThenAnswer(500),
        82..84 => Act::HalfBody(200),
        84..86 => Act::Hang,
        86..94 => Act::after_ms(10 + dice.below(150), MADE),
        // No caller waits for it any more.
        94..98 => Act::after_ms(550 + dice.below(500), MADE),
        _ => Act::after_ms(550 + dice.below(300), Act::Answer(422, "", b"{}")),
    }
}

/// Whether the key was executed, as far as the tool says.
fn probed(seen: &Seen, before: &[Seen], is_mute: bool) -> Act {
    let key = seen
        .line
        .split(' ')
        .nth(1)
        .and_then(|path| path.strip_prefix("/known/"))
        .unwrap_or_default();
    let is_known = before
        .iter()
        .any(|seen| seen.executed && seen.header("idempotency-key") == key);
    match (is_mute, is_known) {
        (true, _) => Act::Answer(500, "", b"{}"),
        (false, true) => Act::Answer(200, "", b"{\"made\":7}"),
        (false, false) => Act::Answer(404, "", b"{}"),
    }
}

pub(super) fn path(seen: &Seen) -> &str {
    seen.line
        .split(' ')
        .nth(1)
        .unwrap_or_default()
        .trim_start_matches('/')
}

/// The call that this request undoes; `None`: it undoes nothing.
pub(super) fn undone_by(seen: &Seen) -> Option<String> {
    serde_json::from_str::<Value>(&seen.body).ok()?["of"]
        .as_str()
        .map(str::to_owned)
}
