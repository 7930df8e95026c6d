//! A gateway before an API of agents that buy ends at each point of a call. No order is made twice, or told to another caller.

use std::process::Child;
use std::time::Duration;

use tokio::time::sleep;

use crate::accidents::points_world::POINTS;
use crate::proxies::commerce::is_replay;
use crate::proxies::requests::api;
use crate::support::binary::{free_port, spawn_with_points};
use crate::support::stores::{Stores, on_both_stores};
use crate::support::{Act, Answer, Tool, client, until_ready};

on_both_stores! {
    an_order_of_acp_is_made_once_wherever_its_gateway_ends,
}

// What a store knows of a call at each point does not depend on the protocol.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_order_of_ucp_over_a_file_is_made_once_wherever_its_gateway_ends() {
    an_order_of_ucp_is_made_once_wherever_its_gateway_ends(&Stores::Sqlite).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_purchase_of_x402_over_a_file_is_settled_once_wherever_its_gateway_ends() {
    a_purchase_of_x402_is_settled_once_wherever_its_gateway_ends(&Stores::Sqlite).await;
}

/// What is configured and sent, and the statuses of "not known yet" and of another caller's request with the same key.
struct Case {
    config: String,
    headers: Vec<(&'static str, String)>,
    not_yet: u16,
    other_caller: Option<(&'static str, &'static str)>,
}

const ALICE: &str = "Bearer alice";

fn token(name: &str, tenant: &str) -> String {
    let digest = hex::encode(<sha2::Sha256 as sha2::Digest>::digest(name));
    format!(
        "[[auth.tokens]]\nname = \"{name}\"\ntenant = \"{tenant}\"\nsha256 = \"{digest}\"\nscopes = [\"call\"]\n"
    )
}

async fn an_order_of_acp_is_made_once_wherever_its_gateway_ends(stores: &Stores) {
    let tool = Tool::start().await;
    let more = "profile = \"acp@2026-04-17\"\ncaller = \"passed\"\ntenant = \"shop\"\nrate = { per_second = 1000, burst = 1000 }";
    let case = Case {
        config: format!("{}{}", token("desk", "shop"), api(&tool, more)),
        headers: vec![("authorization", ALICE.to_owned())],
        not_yet: 409,
        other_caller: Some(("authorization", "Bearer bob")),
    };
    made_once(stores, &tool, &case).await;
}

async fn an_order_of_ucp_is_made_once_wherever_its_gateway_ends(stores: &Stores) {
    let tool = Tool::start().await;
    let more = "profile = \"ucp\"\nhost = \"shop.example\"\npass_authorization = true";
    let tokens = token("one", "a") + &token("two", "b");
    let case = Case {
        config: format!("{tokens}{}", api(&tool, more)),
        headers: vec![("oncegate-token", "Bearer one".to_owned())],
        not_yet: 503,
        other_caller: Some(("oncegate-token", "Bearer two")),
    };
    made_once(stores, &tool, &case).await;
}

async fn a_purchase_of_x402_is_settled_once_wherever_its_gateway_ends(stores: &Stores) {
    let tool = Tool::start().await;
    let case = Case {
        config: api(&tool, "profile = \"x402\""),
        headers: vec![],
        not_yet: 503,
        other_caller: None,
    };
    made_once(stores, &tool, &case).await;
}

/// A gateway that ends with the test, also if the test fails.
struct Gateway(Child);

impl Drop for Gateway {
    fn drop(&mut self) {
        // It may have ended before.
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

/// Ends a gateway at each point of one order, and sends the order again to the next gateway.
async fn made_once(stores: &Stores, tool: &Tool, case: &Case) {
    let folder = tempfile::tempdir().expect("a folder");
    let port = free_port();
    let store = stores.shared().cloned();
    let store = store.unwrap_or_else(|| "sqlite:oncegate.db".to_owned());
    let store = match store.split_once('#') {
        Some((url, schema)) => format!("url = \"{url}\"\nschema = \"{schema}\""),
        None => format!("url = \"{store}\""),
    };
    // The lease lasts a second longer than the deadline.
    let limits = "timeout = \"1s\"\ndeadline = \"1s\"\n";
    let config = format!(
        "[server]\nlisten = \"127.0.0.1:{port}\"\nshutdown_grace = \"1s\"\n[store]\n{store}\n{}{limits}",
        case.config
    );
    std::fs::write(folder.path().join("oncegate.toml"), config).expect("a file");
    tool.always(Act::after_ms(200, Act::Numbered));
    let url = |path: &str| format!("http://127.0.0.1:{port}{path}");
    for (number, point) in POINTS.into_iter().enumerate() {
        let key = format!("key-of-order-{number}");
        let ask = |other: Option<(&'static str, &'static str)>| {
            let request = client().post(url("/proxy/api/orders"));
            let request = request.header("idempotency-key", &key).body("{}");
            let payment = base64_of(&format!("{{\"payload\":\"{key}\"}}"));
            let request = match case.other_caller {
                Some(_) => request,
                None => request.header("payment-signature", payment),
            };
            let of_case = case.headers.iter().map(|(name, value)| (*name, &**value));
            let headers = match other {
                Some(other) => vec![other],
                None => of_case.collect(),
            };
            let headers = headers.into_iter();
            headers.fold(request, |request, (name, value)| {
                request.header(name, value)
            })
        };
        let before = tool.effects();
        let points = format!("{point}=1*return");
        let mut gateway = Gateway(spawn_with_points(folder.path(), &points));
        until_ready(&url("/readyz")).await;
        let cut_off = ask(None).send().await;
        assert!(cut_off.is_err(), "{point}: it ends before it answers");
        gateway.0.wait().expect("it has ended");
        // What was sent is executed after the gateway has ended.
        sleep(Duration::from_millis(500)).await;
        let made = tool.effects() - before;
        let is_over = ["after_completion", "before_reply"].contains(&point);
        assert!(!is_over || made == 1, "{point}");
        let gateway = Gateway(spawn_with_points(folder.path(), ""));
        until_ready(&url("/readyz")).await;
        // Also once the lease of the first gateway is over.
        for wait_ms in [0, 500, 1_200] {
            sleep(Duration::from_millis(wait_ms)).await;
            let again = Answer::to(ask(None)).await;
            if is_over {
                assert!(again.status == 200 && is_replay(&again), "{}", again.text);
            } else {
                assert_eq!(again.status, case.not_yet, "{point}: {}", again.text);
                assert!(!again.header("retry-after").is_empty(), "{point}");
                assert_eq!(again.header("www-authenticate"), "", "{point}");
            }
        }
        assert_eq!(tool.effects() - before, made, "{point}: not once more");
        if let Some(other) = case.other_caller {
            let others = Answer::to(ask(Some(other))).await;
            assert!(!is_replay(&others), "{point}: {}", others.text);
            let own = tool.effects() - before - made;
            assert_eq!(own, usize::from(others.status == 200), "{}", others.text);
        }
        drop(gateway);
    }
}

fn base64_of(text: &str) -> String {
    use base64::Engine as _;
    base64::engine::general_purpose::STANDARD.encode(text)
}
