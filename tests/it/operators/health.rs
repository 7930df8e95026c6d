//! `oncegate health`, which images without a shell use for their health check.

use std::path::Path;
use std::process::Output;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio::time::Instant;

use crate::support::binary::{Process, command, free_port, run, write_config};

const TOOL: &str = "[tools.act]\nurl = \"http://127.0.0.1:9/\"\n";
const CONFIG: [&str; 3] = ["health", "--config", "oncegate.toml"];

/// Its exit status, and what it says on standard output and on standard error.
fn said(output: &Output) -> (Option<i32>, String, String) {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (
        output.status.code(),
        text(&output.stdout),
        text(&output.stderr),
    )
}

/// What is said of an address while this test goes on answering there.
async fn health_at(url: String) -> (Option<i32>, String, String) {
    let asked = tokio::task::spawn_blocking(move || {
        run(Path::new("/"), &["health", "--timeout", "1", "--url", &url])
    });
    said(&asked.await.expect("it ends"))
}

#[tokio::test]
async fn a_gateway_that_serves_is_ready_and_one_that_is_gone_is_not() {
    let folder = tempfile::tempdir().expect("a folder");
    let port = free_port();
    let at = format!("http://127.0.0.1:{port}");
    let gateway = Process::start(folder.path(), port, TOOL).await;
    let ready = (Some(0), format!("{at} is ready\n"), String::new());
    assert_eq!(said(&run(folder.path(), &CONFIG)), ready);
    let with_a_path = format!("{at}/anything?x=1");
    assert_eq!(
        health_at(with_a_path).await,
        ready,
        "only the address counts"
    );
    drop(gateway);
    let (status, out, why) = said(&run(folder.path(), &CONFIG));
    assert_eq!((status, out.as_str()), (Some(1), ""));
    assert!(why.starts_with(&format!("{at} is not ready: ")), "{why}");
    assert_eq!(why.lines().count(), 1, "{why}");
}

#[tokio::test]
async fn a_gateway_that_listens_everywhere_is_asked_on_this_machine() {
    let folder = tempfile::tempdir().expect("a folder");
    let port = free_port();
    write_config(folder.path(), port, "");
    let config = std::fs::read_to_string(folder.path().join("oncegate.toml")).expect("a file");
    let token = "[[auth.tokens]]\nname = \"a\"\ntenant = \"a\"\nscopes = [\"call\"]\nsha256 = \"4b3c1bf421d96f1b49942450483ffb00bad52cbc5be4cc39b9552bb8fa56395c\"\n";
    for (everywhere, here) in [("0.0.0.0", "127.0.0.1"), ("[::]", "[::1]")] {
        let config = config.replace("127.0.0.1", everywhere) + token;
        std::fs::write(folder.path().join("oncegate.toml"), config).expect("written");
        let (status, _, why) = said(&run(folder.path(), &CONFIG));
        assert_eq!(status, Some(1));
        let at = format!("http://{here}:{port} is not ready: ");
        assert!(why.starts_with(&at), "{why}");
    }
}

#[tokio::test]
async fn a_gateway_with_a_certificate_of_another_name_is_asked_over_tls() {
    let folder = tempfile::tempdir().expect("a folder");
    let made = rcgen::generate_simple_self_signed(["gate.example".to_owned()]).expect("one");
    std::fs::write(folder.path().join("cert.pem"), made.cert.pem()).expect("written");
    let key = made.signing_key.serialize_pem();
    std::fs::write(folder.path().join("key.pem"), key).expect("written");
    let port = free_port();
    let tls = "[server.tls]\ncert = \"cert.pem\"\nkey = \"key.pem\"\n";
    let config = TOOL.to_owned() + tls;
    let _gateway = Process::start(folder.path(), port, &config).await;
    let ready = format!("https://127.0.0.1:{port} is ready\n");
    let said = said(&run(folder.path(), &CONFIG));
    assert_eq!(said, (Some(0), ready, String::new()));
}

#[tokio::test]
async fn the_reasons_of_a_gateway_that_is_not_ready_are_said() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let url = format!("http://{}", listener.local_addr().expect("one"));
    let body =
        r#"{"ready":false,"durability":null,"reasons":["lost_data","secret"],"warnings":[]}"#;
    let length = body.len();
    let answer = format!("HTTP/1.1 503 x\r\ncontent-length: {length}\r\n\r\n{body}");
    tokio::spawn(async move {
        for answer in [
            answer.as_str(),
            "HTTP/1.1 404 x\r\ncontent-length: 0\r\n\r\n",
            "220 mail\r\n",
        ] {
            let (mut stream, _) = listener.accept().await.expect("a connection");
            let mut request = [0; 1024];
            assert!(stream.read(&mut request).await.expect("a request") > 0);
            stream.write_all(answer.as_bytes()).await.expect("written");
        }
        // From here on one that never answers.
        let _silent = listener.accept().await;
        std::future::pending::<()>().await;
    });
    for wanted in [
        "lost_data, secret",
        "/readyz answered 404 Not Found",
        "what answers there does not speak HTTP",
        "no answer in 1 s",
    ] {
        let begun = Instant::now();
        let said = health_at(url.clone()).await;
        let sentence = format!("{url} is not ready: {wanted}\n");
        assert_eq!(said, (Some(1), String::new(), sentence));
        assert!(begun.elapsed().as_secs() < 10);
    }
}

#[test]
fn an_address_that_cannot_be_asked_is_a_mistake() {
    let folder = tempfile::tempdir().expect("a folder");
    let asked = |arguments: &[&str]| {
        let output = command(folder.path(), arguments).output();
        said(&output.expect("it runs"))
    };
    let (status, _, why) = asked(&["health"]);
    assert_eq!(status, Some(2), "{why}");
    let (status, _, why) = asked(&["health", "--url", "ftp://127.0.0.1"]);
    let wanted = "ftp://127.0.0.1/ is not an address such as http://127.0.0.1:8080\n";
    assert_eq!((status, why.as_str()), (Some(1), wanted));
    write_config(folder.path(), 0, "");
    let (status, _, why) = asked(&CONFIG);
    assert_eq!(status, Some(1));
    assert!(why.contains("port 0"), "{why}");
}
