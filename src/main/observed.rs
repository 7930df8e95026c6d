//! Timeouts beside the calls that a gateway has seen.

use std::time::Duration;

use oncegate::gateway::ToolAt;
use reqwest::redirect::Policy;
use reqwest::{Client, StatusCode, Url};
use serde_json::Value;

/// The newest calls of a tool that are looked at.
const NEWEST: usize = 200;
/// With fewer calls nothing is said of a tool.
const FEWEST: usize = 20;
/// How long one answer of the gateway may take.
const PATIENCE: Duration = Duration::from_secs(30);

/// A call, as far as it says how long its tool takes.
struct Seen {
    state: String,
    latency_ms: Option<u64>,
}

/// The tools whose timeouts are likely too short, each in a sentence.
///
/// # Errors
/// The gateway at this address does not say which calls it has.
#[expect(
    clippy::disallowed_methods,
    reason = "its requests only read, and reach no tool"
)]
pub(super) fn warnings(
    gateway: &Url,
    token: Option<&str>,
    tools: &[ToolAt],
) -> Result<Vec<String>, String> {
    drop(rustls::crypto::ring::default_provider().install_default());
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let runtime = runtime.map_err(|error| error.to_string())?;
    runtime.block_on(async {
        let client = Client::builder()
            .timeout(PATIENCE)
            .redirect(Policy::none())
            .build();
        let client = client.map_err(|error| error.to_string())?;
        let mut found = Vec::new();
        for at in tools {
            let (name, timeout) = (&at.tool.name, at.tool.timeout);
            let calls = newest(&client, gateway, token, name).await?;
            found.extend(warning(name, timeout, &calls));
        }
        Ok(found)
    })
}

async fn newest(
    client: &Client,
    gateway: &Url,
    token: Option<&str>,
    tool: &str,
) -> Result<Vec<Seen>, String> {
    let url = gateway.join("/v1/calls");
    let mut url = url.map_err(|error| error.to_string())?;
    let query = [("tool", tool), ("limit", &NEWEST.to_string())];
    url.query_pairs_mut().extend_pairs(query);
    let mut request = client.get(url);
    if let Some(token) = token {
        request = request.bearer_auth(token);
    }
    let cannot =
        |why: &dyn ToString| format!("the calls of {tool} cannot be read: {}", why.to_string());
    let answer = request.send().await.map_err(|error| cannot(&error))?;
    if answer.status() != StatusCode::OK {
        return Err(cannot(&format!("the gateway answered {}", answer.status())));
    }
    let page = answer.text().await.map_err(|error| cannot(&error))?;
    let page: Value = serde_json::from_str(&page).map_err(|error| cannot(&error))?;
    let calls = page["calls"].as_array();
    let calls = calls.ok_or_else(|| cannot(&"the answer has no list of calls"))?;
    let seen = |call: &Value| Seen {
        state: call["state"].as_str().unwrap_or_default().to_owned(),
        latency_ms: call["latency_ms"].as_u64(),
    };
    Ok(calls.iter().map(seen).collect())
}

/// What the calls of a tool say of its timeout; `None`: it is long enough, or there are too few calls.
fn warning(tool: &str, timeout: Duration, calls: &[Seen]) -> Option<String> {
    let is_known = |call: &&Seen| matches!(&*call.state, "succeeded" | "failed" | "compensated");
    let known = calls.iter().filter(is_known);
    let mut took: Vec<u64> = known.filter_map(|call| call.latency_ms).collect();
    let unknown = calls.iter().filter(|call| call.state == "unknown").count();
    if took.len() + unknown < FEWEST {
        return None;
    }
    took.sort_unstable();
    // The 99th percentile, by the nearest rank.
    let rank = (took.len() * 99).div_ceil(100);
    let slowest = Duration::from_millis(rank.checked_sub(1).map_or(0, |at| took[at]));
    let is_near = slowest * 2 > timeout;
    if !is_near && unknown == 0 {
        return None;
    }
    let observed = format!(
        "{tool}: of its newest {} calls 99 % took up to {slowest:?}, and the outcome of {unknown} is unknown",
        calls.len()
    );
    let advice = if is_near {
        format!(
            "; its timeout is {timeout:?}, and the result of a call that takes longer is lost: set timeout to {} s or more",
            (slowest * 2).as_secs() + 1
        )
    } else {
        format!("; its timeout is {timeout:?}, which does not look too short")
    };
    Some(observed + &advice)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn calls(states: &[(&str, u64, usize)]) -> Vec<Seen> {
        let each = states.iter().flat_map(|(state, ms, times)| {
            (0..*times).map(|_| Seen {
                state: (*state).to_owned(),
                latency_ms: Some(*ms),
            })
        });
        each.collect()
    }

    #[test]
    fn a_timeout_is_short_if_twice_the_slowest_but_one_percent_is_longer() {
        let timeout = Duration::from_secs(10);
        let said = |states: &[(&str, u64, usize)]| warning("act", timeout, &calls(states));
        assert_eq!(said(&[("succeeded", 5_000, 100)]), None);
        let near = said(&[("succeeded", 100, 98), ("succeeded", 5_001, 2)]);
        let near = near.expect("two of a hundred");
        assert!(
            near.ends_with("set timeout to 11 s or more")
                && near.contains("99 % took up to 5.001s"),
            "{near}"
        );
        // One of a hundred is beyond the percentile.
        let rare = [("succeeded", 100, 99), ("succeeded", 9_000, 1)];
        assert_eq!(said(&rare), None);
    }

    #[test]
    fn unknown_outcomes_are_said_and_few_calls_say_nothing() {
        let timeout = Duration::from_secs(10);
        let said = |states: &[(&str, u64, usize)]| warning("act", timeout, &calls(states));
        assert_eq!(said(&[("succeeded", 9_000, 19)]), None);
        assert_eq!(said(&[("running", 9_000, 50)]), None, "they have not ended");
        let unknown = said(&[("succeeded", 10, 30), ("unknown", 10_000, 3)]).expect("three");
        assert!(
            unknown.contains("the outcome of 3 is unknown")
                && unknown.ends_with("does not look too short"),
            "{unknown}"
        );
        assert!(said(&[("unknown", 10_000, 20)]).is_some());
    }
}
