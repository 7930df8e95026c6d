//! TLS: a certificate and its key from two PEM files, which can be read again while in use.

use std::path::Path;
use std::sync::Arc;

use arc_swap::ArcSwap;
use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use x509_cert::Certificate;
use x509_cert::der::Decode;

/// Which file is wrong, and why.
#[derive(Debug, PartialEq, Eq)]
pub enum Unfit {
    Cert(String),
    Key(String),
}

/// The certificate of new connections.
#[derive(Clone)]
pub struct Tls {
    config: Arc<ArcSwap<ServerConfig>>,
    expires_at: Option<i64>,
}

impl Tls {
    /// # Errors
    /// Which of the files is wrong.
    pub fn read(cert: &Path, key: &Path) -> Result<Self, Unfit> {
        let (config, expires_at) = config(cert, key)?;
        Ok(Self {
            config: Arc::new(ArcSwap::from_pointee(config)),
            expires_at,
        })
    }

    /// When the certificate that was read expires, in seconds since 1970; `None`: it does not say so readably.
    pub fn expires_at(&self) -> Option<i64> {
        self.expires_at
    }

    /// Sets the certificate for new connections; open ones keep theirs.
    pub fn set(&self, other: &Self) {
        self.config.store(other.config.load_full());
    }

    pub(super) async fn greet(&self, stream: TcpStream) -> std::io::Result<TlsStream<TcpStream>> {
        TlsAcceptor::from(self.config.load_full())
            .accept(stream)
            .await
    }
}

impl std::fmt::Debug for Tls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Tls")
    }
}

/// When a certificate expires, in seconds since 1970 (RFC 5280, section 4.1.2.5).
fn expiry(certificate: &CertificateDer<'_>) -> Option<i64> {
    let read = Certificate::from_der(certificate).ok()?;
    let expires = read.tbs_certificate.validity.not_after;
    i64::try_from(expires.to_unix_duration().as_secs()).ok()
}

/// Reads the files. Returns when the certificate expires, too.
fn config(cert: &Path, key: &Path) -> Result<(ServerConfig, Option<i64>), Unfit> {
    let named = |path: &Path, why: &dyn std::fmt::Display| format!("{}: {why}", path.display());
    let chain =
        CertificateDer::pem_file_iter(cert).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    let chain = chain.map_err(|error| Unfit::Cert(named(cert, &error)))?;
    if chain.is_empty() {
        return Err(Unfit::Cert(named(cert, &"there is no certificate in it")));
    }
    let expires_at = chain.first().and_then(expiry);
    let private =
        PrivateKeyDer::from_pem_file(key).map_err(|error| Unfit::Key(named(key, &error)))?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder =
        ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let builder = builder.map_err(|error| Unfit::Cert(error.to_string()))?;
    let mut config = builder
        .with_no_client_auth()
        .with_single_cert(chain, private)
        .map_err(|error| Unfit::Key(named(key, &error)))?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok((config, expires_at))
}
