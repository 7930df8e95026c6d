//! A call that needs approval reaches its tool only after an approver has seen exactly this call.

pub mod agents; // what an agent can try
pub mod asked; // what an agent is told, and what reaches the tool
pub mod bound; // what an approval binds, and what voids it
pub mod conditions; // similar calls and spent budgets
pub mod decided; // who decides, and what a decision does
pub mod held; // pauses, sessions, sagas, losses and ends of processes
pub mod many; // many calls are declined at once
pub mod notices; // what the webhook is told
pub mod settings; // what `check` refuses

use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use tokio::sync::watch;

use crate::support::{Act, Answer, Gateway, Tool, until};

/// A token whose text is its name.
fn token(name: &str, tenant: &str, scopes: &str) -> String {
    let digest = hex::encode(Sha256::digest(name));
    format!(
        "[[auth.tokens]]\nname = \"{name}\"\ntenant = \"{tenant}\"\nsha256 = \"{digest}\"\nscopes = [{scopes}]\n"
    )
}

/// The tokens of all tests: an agent, two approvers, an administrator, and approvers of other things.
pub fn tokens() -> String {
    [
        ("agent", "shop", "\"call\", \"read\""),
        ("ann", "shop", "\"approve\""),
        ("bob", "shop", "\"approve:act\""),
        ("boss", "shop", "\"admin\""),
        ("other", "bank", "\"approve\""),
        ("elsewhere", "shop", "\"approve:other\""),
    ]
    .map(|(name, tenant, scopes)| token(name, tenant, scopes))
    .concat()
}

/// A tool `act` whose calls need approval, by these settings, and with further ones.
pub fn config_with(url: &str, approval: &str, more: &str) -> String {
    format!(
        "[tools.act]\nurl = \"{url}\"\n{more}\n[tools.act.approval]\n{approval}\n{}",
        tokens()
    )
}

/// The same with a rule that always asks.
pub fn config(tool: &Tool, more: &str) -> String {
    config_with(&tool.url(), "when = [\"always\"]", more)
}

/// A call of the agent, with this preference.
pub async fn ask_as(gateway: &Gateway, prefer: &str, body: &Value) -> Answer {
    let request = gateway
        .client
        .post(gateway.url("/v1/tools/act/calls"))
        .bearer_auth("agent")
        .header("prefer", prefer);
    Answer::to(request.body(body.to_string())).await
}

/// A call of the agent under this key.
pub async fn ask(gateway: &Gateway, key: &str, args: Value) -> Answer {
    let body = json!({ "args": args, "idempotency_key": key });
    ask_as(gateway, "wait=0", &body).await
}

/// A route of a call, with the token of this name.
pub async fn post(gateway: &Gateway, by: &str, call: &Answer, act: &str, body: Value) -> Answer {
    let path = format!("/v1/calls/{}/{act}", call.id());
    gateway.post_as(by, &path, &body).await
}

pub async fn get_as(gateway: &Gateway, by: &str, path: &str) -> Answer {
    Answer::to(gateway.client.get(gateway.url(path)).bearer_auth(by)).await
}

/// What an approver sees of a call.
pub async fn look(gateway: &Gateway, by: &str, call: &Answer) -> Answer {
    let path = format!("/v1/calls/{}/approval", call.id());
    get_as(gateway, by, &path).await
}

/// The mark of what is shown now.
pub async fn seen(gateway: &Gateway, by: &str, call: &Answer) -> String {
    let shown = look(gateway, by, call).await.expect_ok().at("/seen");
    shown.as_str().expect("a mark").to_owned()
}

/// Approves what is shown now.
pub async fn approve(gateway: &Gateway, by: &str, call: &Answer) -> Answer {
    let seen = seen(gateway, by, call).await;
    post(gateway, by, call, "approve", json!({ "seen": seen })).await
}

/// The state of a call.
pub async fn state(gateway: &Gateway, call: &Answer) -> String {
    let path = format!("/v1/calls/{}", call.id());
    let found = get_as(gateway, "boss", &path).await.expect_ok();
    found.at("/state").as_str().expect("a word").to_owned()
}

/// The events of a call.
pub async fn events(gateway: &Gateway, call: &Answer) -> Vec<String> {
    let path = format!("/v1/calls/{}", call.id());
    get_as(gateway, "boss", &path).await.expect_ok().events()
}

/// Waits until a call is in this state.
pub async fn until_state(gateway: &Gateway, call: &Answer, expected: &str) {
    until(expected, async || state(gateway, call).await == expected).await;
}

/// What makes the calls of a session take turns.
pub const EXCLUSIVE: &str = "session = \"exclusive\"\nsession_wait = \"1s\"";

/// A call of the session S that waits for approval.
pub async fn ask_in_session(gateway: &Gateway, key: &str) -> Answer {
    let body = json!({ "args": { "key": key }, "idempotency_key": key, "session_id": "S" });
    ask_as(gateway, "wait=0", &body).await
}

/// An approved call at the tool, which has the session S for itself until this is dropped.
pub async fn occupy(gateway: &Gateway, tool: &Tool) -> watch::Sender<()> {
    let (release, held) = Act::held(Act::Numbered);
    tool.then(held);
    let (asked, before) = (ask_in_session(gateway, "first").await, tool.requests());
    until("it is at the tool", async || {
        // On a busy machine a short approval may be over before the call begins.
        if state(gateway, &asked).await == "proposed" {
            approve(gateway, "ann", &asked).await.expect_ok();
        }
        tool.requests() > before
    })
    .await;
    release
}

/// Approves a call of the occupied session. It cannot begin yet.
pub async fn approve_held(gateway: &Gateway, asked: &Answer) {
    approve(gateway, "ann", asked).await.expect_ok();
    assert_eq!(state(gateway, asked).await, "approved");
}

/// Waits until no begin of an approved call is under way that knows neither the newest pause nor the newest configuration.
pub async fn until_tried(gateways: &[&Gateway]) {
    const LOOKS: &str =
        "oncegate_store_operation_duration_seconds_count{operation=\"due_proposals\"}";
    for gateway in gateways {
        let looks = async || gateway.metric(LOOKS).await;
        let before = looks().await;
        // A look is followed by the next only when what it has found was tried.
        until("it was tried", async || looks().await > before + 2.0).await;
    }
}
