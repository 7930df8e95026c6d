//! What gateways read in the answers of tools and servers.

use crate::world::{Said, Seen};
use oncegate_rules::call::Event;
use oncegate_rules::evidence::McpAnswer;
use oncegate_rules::mcp::remote;
use oncegate_rules::outcome::{Body, Evidence};
use oncegate_rules::record::Content;

/// The id of every task: a call has one task for each attempt.
pub(crate) const TASK: &str = "t";

/// The evidence of an attempt, as the gateway reads it.
pub(crate) fn evidence(seen: Seen) -> Evidence {
    let answer = |status, text: String| Evidence::Answer {
        status,
        body: Body::Whole(text.into()),
        retry_after: None,
        newest_token: None,
    };
    match seen {
        Seen::NotSent => Evidence::NotSent { why: String::new() },
        Seen::NoAnswer | Seen::Gone => Evidence::NoAnswer { why: String::new() },
        Seen::Executed(effect) => answer(200, effect.to_string()),
        Seen::Refused => answer(429, "{}".into()),
        Seen::Task => Evidence::Task {
            id: TASK.into(),
            why: String::new(),
        },
        Seen::Ended(effect) => Evidence::Mcp(message(&tool_result(effect))),
    }
}

/// What the gateway reads in a server's answer about its task.
pub(crate) fn seen_of_task(said: Said) -> remote::Seen {
    let task = match said {
        Said::Runs => format!(r#"{{"taskId":"{TASK}","status":"working"}}"#),
        Said::Ended(effect) => format!(
            r#"{{"taskId":"{TASK}","status":"completed","result":{}}}"#,
            tool_result(effect)
        ),
        Said::Gone => format!(r#"{{"taskId":"{TASK}","status":"cancelled"}}"#),
    };
    remote::seen(&message(&task), TASK)
}

/// Whether a server has said that its task is gone.
pub(crate) fn is_gone(event: &Event) -> bool {
    let Event::TaskSeen { seen, .. } = event else {
        return false;
    };
    matches!(seen, remote::Seen::Gone(_))
}

/// An MCP server's answer with this result.
fn message(result: &str) -> McpAnswer {
    let message = format!(r#"{{"jsonrpc":"2.0","id":"","result":{result}}}"#);
    McpAnswer {
        status: 200,
        body: Body::Whole(message.into()),
        has_session: false,
        names_request: true,
        is_forgotten: false,
    }
}

/// The result of a tool of an MCP server, with the number of its effect.
fn tool_result(effect: u8) -> String {
    format!(r#"{{"content":[],"structuredContent":{{"effect":{effect}}}}}"#)
}

/// The number of the effect that a result belongs to.
pub(crate) fn effect_in(content: &Content) -> Option<u8> {
    let Content::Stored(json) = content else {
        return None;
    };
    let text = std::str::from_utf8(json).ok()?;
    // Either the number itself, or the last member of the result of an MCP server.
    let (_, number) = text.rsplit_once(':').unwrap_or(("", text));
    Some(number.trim_end_matches('}').parse().unwrap_or(0))
}
