//! HTTPS by the gateway's own certificate: with the real binary, because it is read again on SIGHUP.

use std::path::Path;
use std::sync::Arc;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use crate::support::binary::{Process, free_port, log, run, write_config};
use crate::support::gateway::one_tool;
use crate::support::mcp::token;
use crate::support::{Answer, Gateway, Tool, until};

const TLS: &str = "[server.tls]\ncert = \"cert.pem\"\nkey = \"key.pem\"\n";

/// Puts a new certificate for this name into the folder.
fn certify(folder: &Path, name: &str) {
    let made = rcgen::generate_simple_self_signed([name.to_owned()]).expect("a certificate");
    std::fs::write(folder.join("cert.pem"), made.cert.pem()).expect("written");
    std::fs::write(folder.join("key.pem"), made.signing_key.serialize_pem()).expect("written");
}

/// What is answered over TLS to who trusts the certificate in the folder and offers these protocols: the chosen
/// protocol, and the answer to a call in HTTP/1.1. `None`: no TLS.
async fn ask(folder: &Path, port: u16, name: &str, protocols: &[&str]) -> Option<(String, String)> {
    let mut roots = RootCertStore::empty();
    let cert = CertificateDer::from_pem_file(folder.join("cert.pem")).expect("a certificate");
    roots.add(cert).expect("a root");
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let client =
        ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let mut client = client
        .expect("versions")
        .with_root_certificates(roots)
        .with_no_client_auth();
    client.alpn_protocols = protocols
        .iter()
        .map(|name| name.as_bytes().to_vec())
        .collect();
    let stream = TcpStream::connect(("127.0.0.1", port))
        .await
        .expect("a connection");
    let name = ServerName::try_from(name.to_owned()).expect("a name");
    let mut stream = TlsConnector::from(Arc::new(client))
        .connect(name, stream)
        .await
        .ok()?;
    let protocol = String::from_utf8(
        stream
            .get_ref()
            .1
            .alpn_protocol()
            .unwrap_or_default()
            .to_vec(),
    );
    let body = "{\"args\":{}}";
    let call = format!(
        "POST /v1/tools/act/calls HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(call.as_bytes()).await.expect("written");
    let mut answer = Vec::new();
    // Over HTTP/2 that is not a request, and how it ends is not looked at.
    drop(stream.read_to_end(&mut answer).await);
    Some((
        protocol.expect("text"),
        String::from_utf8_lossy(&answer).into_owned(),
    ))
}

#[tokio::test]
async fn calls_are_taken_over_tls_and_a_new_certificate_is_used_after_a_reload() {
    let tool = Tool::start().await;
    let folder = tempfile::tempdir().expect("a folder");
    certify(folder.path(), "one.example");
    let config = format!("{}{TLS}", one_tool(&tool, ""));
    let gateway = Process::start(folder.path(), free_port(), &config).await;
    let port = gateway.port;
    let (protocol, answer) = ask(folder.path(), port, "one.example", &["http/1.1"])
        .await
        .expect("TLS");
    assert!(
        protocol == "http/1.1" && answer.starts_with("HTTP/1.1 200 OK"),
        "{protocol}: {answer}"
    );
    assert!(
        answer.contains("strict-transport-security: max-age=31536000\r\n"),
        "{answer}"
    );
    let (protocol, _) = ask(folder.path(), port, "one.example", &["h2", "http/1.1"])
        .await
        .expect("TLS");
    assert_eq!(protocol, "h2");
    // Without TLS nothing is answered.
    let mut plain = TcpStream::connect(("127.0.0.1", port))
        .await
        .expect("a connection");
    plain
        .write_all(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n")
        .await
        .expect("written");
    let mut answer = Vec::new();
    drop(plain.read_to_end(&mut answer).await);
    assert!(!answer.starts_with(b"HTTP"), "{answer:?}");

    // A key that does not fit is said, and the old certificate stays.
    let good = std::fs::read(folder.path().join("key.pem")).expect("a key");
    let other = tempfile::tempdir().expect("a folder");
    certify(other.path(), "one.example");
    std::fs::copy(other.path().join("key.pem"), folder.path().join("key.pem")).expect("copied");
    gateway.signal("HUP");
    let said = || std::fs::read_to_string(log(folder.path())).expect("a log");
    until("it is said", async || {
        said().contains("server.tls.key: key.pem: ")
    })
    .await;
    std::fs::write(folder.path().join("key.pem"), good).expect("written");
    ask(folder.path(), port, "one.example", &[])
        .await
        .expect("TLS");

    certify(folder.path(), "two.example");
    assert!(
        ask(folder.path(), port, "two.example", &[]).await.is_none(),
        "it is not read yet"
    );
    gateway.signal("HUP");
    until("the new one is used", async || {
        ask(folder.path(), port, "two.example", &[]).await.is_some()
    })
    .await;
    assert_eq!(tool.requests(), 1, "the others were the same call");

    // That there is TLS at all takes a restart.
    write_config(folder.path(), port, &one_tool(&tool, ""));
    gateway.signal("HUP");
    until("it is said", async || {
        said().contains("\"keys\":\"server.tls\"")
    })
    .await;
    ask(folder.path(), port, "two.example", &[])
        .await
        .expect("TLS as before");
}

/// The beginning of this year.
fn year(year: i32) -> f64 {
    let begins: jiff::Timestamp = format!("{year}-01-01T00:00:00Z").parse().expect("a time");
    begins.as_second() as f64
}

#[tokio::test]
async fn metrics_say_when_the_certificate_and_the_tokens_in_use_expire() {
    let tool = Tool::start().await;
    let folder = tempfile::tempdir().expect("a folder");
    let file = |name: &str| folder.path().join(name);
    let certify_until = |year: i32| {
        let names = vec!["one.example".to_owned()];
        let mut params = rcgen::CertificateParams::new(names).expect("a name");
        params.not_after = rcgen::date_time_ymd(year, 1, 1);
        let key = rcgen::KeyPair::generate().expect("a key");
        let cert = params.self_signed(&key).expect("a certificate");
        std::fs::write(file("cert.pem"), cert.pem()).expect("written");
        std::fs::write(file("key.pem"), key.serialize_pem()).expect("written");
    };
    let config = |tokens: &str| {
        format!(
            "[server]\nops_listen = \"127.0.0.1:0\"\n[server.tls]\ncert = \"{}\"\nkey = \"{}\"\n{}",
            file("cert.pem").display(),
            file("key.pem").display(),
            one_tool(&tool, tokens)
        )
    };
    let token = |secret: &str, name: &str, expires: &str| {
        token(secret, "[\"call\"]", expires).replace(
            &format!("name = \"{secret}\""),
            &format!("name = \"{name}\""),
        )
    };
    certify_until(2090);
    let tokens = [
        token("a", "shop", "expires = \"2092-01-01T00:00:00Z\""),
        token("b", "shop", "expires = \"2091-01-01T00:00:00Z\""),
        token("c", "for-ever", ""),
    ];
    let gateway = Gateway::start(&config(&tokens.concat())).await;
    let metrics = async || {
        let ops = gateway.ops_address.expect("an address");
        let request = gateway.client.get(format!("http://{ops}/metrics"));
        Answer::to(request).await.expect_ok().text
    };
    let has = |text: &str, line: &str, value: f64| {
        let found = text.lines().find_map(|have| have.strip_prefix(line));
        let found = found.and_then(|found| found.trim().parse::<f64>().ok());
        assert_eq!(found, Some(value), "{line}: {text}");
    };
    let (cert, of_token) = (
        "oncegate_certificate_expires_timestamp_seconds",
        "oncegate_token_expires_timestamp_seconds",
    );
    let text = metrics().await;
    has(&text, cert, year(2090));
    has(&text, &format!("{of_token}{{token=\"shop\"}}"), year(2091));
    assert!(!text.contains(&format!("{of_token}{{token=\"for-ever\"}}")));
    certify_until(2093);
    assert!(gateway.reload(&config(&tokens[2])).await);
    let text = metrics().await;
    has(&text, cert, year(2093));
    assert!(!text.contains(&format!("{of_token}{{")), "{text}");
    gateway.stop().await;
}

#[test]
fn files_that_are_no_certificate_and_key_are_mistakes_with_a_place() {
    let folder = tempfile::tempdir().expect("a folder");
    let check = || {
        write_config(folder.path(), 1, TLS);
        let output = run(folder.path(), &["check", "--config", "oncegate.toml"]);
        String::from_utf8(output.stderr).expect("text")
    };
    assert!(
        check().contains("oncegate.toml:7:8: server.tls.cert: cert.pem: "),
        "not there: {}",
        check()
    );
    certify(folder.path(), "one.example");
    assert_eq!(check(), "");
    let write =
        |name: &str, text: &str| std::fs::write(folder.path().join(name), text).expect("written");
    write("key.pem", "no key");
    assert!(
        check().contains("oncegate.toml:8:7: server.tls.key: key.pem: "),
        "{}",
        check()
    );
    certify(folder.path(), "one.example");
    write("cert.pem", "no certificate");
    assert!(
        check().contains("cert.pem: there is no certificate in it"),
        "{}",
        check()
    );
    let said = check();
    assert!(
        !said.contains("PRIVATE"),
        "nothing of the key is quoted: {said}"
    );
}
