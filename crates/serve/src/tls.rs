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

/// Which file is wrong, and why.
#[derive(Debug, PartialEq, Eq)]
pub enum Unfit {
    Cert(String),
    Key(String),
}

/// The certificate of new connections.
#[derive(Clone)]
pub struct Tls(Arc<ArcSwap<ServerConfig>>);

impl Tls {
    /// # Errors
    /// Which of the files is wrong.
    pub fn read(cert: &Path, key: &Path) -> Result<Self, Unfit> {
        Ok(Self(Arc::new(ArcSwap::from_pointee(config(cert, key)?))))
    }

    /// Sets the certificate for new connections; open ones keep theirs.
    pub fn set(&self, other: &Self) {
        self.0.store(other.0.load_full());
    }

    pub(super) async fn greet(&self, stream: TcpStream) -> std::io::Result<TlsStream<TcpStream>> {
        TlsAcceptor::from(self.0.load_full()).accept(stream).await
    }
}

impl std::fmt::Debug for Tls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Tls")
    }
}

fn config(cert: &Path, key: &Path) -> Result<ServerConfig, Unfit> {
    let named = |path: &Path, why: &dyn std::fmt::Display| format!("{}: {why}", path.display());
    let chain =
        CertificateDer::pem_file_iter(cert).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    let chain = chain.map_err(|error| Unfit::Cert(named(cert, &error)))?;
    if chain.is_empty() {
        return Err(Unfit::Cert(named(cert, &"there is no certificate in it")));
    }
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
    Ok(config)
}
