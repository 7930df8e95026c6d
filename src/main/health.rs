//! `oncegate health`: ask a gateway whether it is ready, for health checks of images without a shell.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use http_body_util::{BodyExt as _, Empty, Limited};
use hyper::header::HOST;
use hyper::{Request, StatusCode, client};
use hyper_util::rt::TokioIo;
use reqwest::Url;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{self, WebPkiSupportedAlgorithms};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, SignatureScheme};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use super::{Failure, read};

/// The longest answer that is read.
const MOST: usize = 64 << 10;

/// The command line of `health`.
#[derive(Args)]
pub(super) struct Health {
    /// The configuration of the gateway, which is asked at its `server.listen`.
    #[arg(long, required_unless_present = "url")]
    config: Option<PathBuf>,
    /// The gateway's address, as in http://127.0.0.1:8080. Nothing else is read.
    #[arg(long, conflicts_with = "config")]
    url: Option<Url>,
    /// How many seconds the answer may take.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..=60))]
    timeout: u64,
}

impl Health {
    /// The sentence that it is ready.
    ///
    /// # Errors
    /// It is not ready or does not answer.
    pub(super) fn run(self) -> Result<String, Failure> {
        let url = match (self.url, self.config) {
            (Some(url), _) => url,
            (None, Some(config)) => {
                let server = read(&config)?.server;
                address(server.listen, server.tls.is_some())?
            }
            (None, None) => return Err("give --config or --url".into()),
        };
        let at = origin(&url)?;
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let limit = Duration::from_secs(self.timeout);
        let answered = runtime.block_on(async { tokio::time::timeout(limit, ask(&url)).await });
        // A name may still be looked up.
        runtime.shutdown_background();
        let answered = answered.map_err(|_| format!("no answer in {} s", self.timeout).into());
        match answered.flatten() {
            Ok((StatusCode::OK, _)) => Ok(format!("{at} is ready\n")),
            Ok((status, body)) => {
                Err(format!("{at} is not ready: {}", reasons(status, &body)).into())
            }
            Err(why) => Err(format!("{at} is not ready: {why}").into()),
        }
    }
}

/// Where a gateway with this `server.listen` is asked from its own machine.
fn address(listen: SocketAddr, is_tls: bool) -> Result<Url, Failure> {
    if listen.port() == 0 {
        return Err("server.listen has port 0, so the port is not known; give --url".into());
    }
    let host = match listen.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    let scheme = if is_tls { "https" } else { "http" };
    let address = SocketAddr::new(host, listen.port());
    Ok(Url::parse(&format!("{scheme}://{address}"))?)
}

/// The address without path and credentials.
fn origin(url: &Url) -> Result<String, Failure> {
    match url.scheme() {
        "http" | "https" if url.has_host() => Ok(url.origin().ascii_serialization()),
        _ => Err(format!("{url} is not an address such as http://127.0.0.1:8080").into()),
    }
}

/// The status and the body of the answer of `/readyz`.
async fn ask(url: &Url) -> Result<(StatusCode, Vec<u8>), Failure> {
    let host = url.host_str().unwrap_or_default();
    let host = host.trim_start_matches('[').trim_end_matches(']');
    let port = url.port_or_known_default().unwrap_or_default();
    let stream = TcpStream::connect((host, port)).await?;
    if url.scheme() == "http" {
        return ask_over(TokioIo::new(stream), url).await;
    }
    let name = ServerName::try_from(host.to_owned())?;
    let stream = connector()?.connect(name, stream).await?;
    ask_over(TokioIo::new(stream), url).await
}

async fn ask_over<S>(stream: TokioIo<S>, url: &Url) -> Result<(StatusCode, Vec<u8>), Failure>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let (mut sender, connection) = client::conn::http1::handshake(stream).await?;
    // Its error is that of the request, too.
    tokio::spawn(async move { connection.await.ok() });
    let authority = url.authority().rsplit('@').next().unwrap_or_default();
    let request = Request::get("/readyz").header(HOST, authority);
    let answer = sender.send_request(request.body(Empty::<&[u8]>::new())?);
    // Cancelled: what answers spoke before it was asked.
    let answer = answer.await.map_err(|error| -> Failure {
        match error.is_parse() || error.is_canceled() {
            true => "what answers there does not speak HTTP".into(),
            false => error.into(),
        }
    })?;
    let status = answer.status();
    let body = Limited::new(answer.into_body(), MOST).collect().await;
    Ok((
        status,
        body.map_or_else(|_| Vec::new(), |body| body.to_bytes().to_vec()),
    ))
}

/// Why a gateway is not ready, from its answer.
fn reasons(status: StatusCode, body: &[u8]) -> String {
    let body: serde_json::Value = serde_json::from_slice(body).unwrap_or_default();
    let reasons = body["reasons"].as_array().into_iter().flatten();
    let reasons: Vec<&str> = reasons.filter_map(serde_json::Value::as_str).collect();
    match reasons.as_slice() {
        [] => format!("/readyz answered {status}"),
        reasons => reasons.join(", "),
    }
}

fn connector() -> Result<TlsConnector, Failure> {
    let provider = Arc::new(crypto::ring::default_provider());
    let verifier = AnyCertificate(provider.signature_verification_algorithms);
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(verifier))
        .with_no_client_auth();
    Ok(TlsConnector::from(Arc::new(config)))
}

/// Accepts every certificate, as the probes of Kubernetes do.
///
/// The gateway's own names its public host, and is asked here at another address. Nothing secret is sent.
#[derive(Debug)]
struct AnyCertificate(WebPkiSupportedAlgorithms);

impl ServerCertVerifier for AnyCertificate {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        crypto::verify_tls12_signature(message, cert, signed, &self.0)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        crypto::verify_tls13_signature(message, cert, signed, &self.0)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.supported_schemes()
    }
}
