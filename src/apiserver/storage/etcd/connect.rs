//! Where etcd is and how it is trusted.

use std::{
    io,
    path::{Path, PathBuf},
    time::Duration,
};

use etcd_client::{Certificate, Client, ConnectOptions, Identity, TlsOptions};
use tokio::fs;

/// Most time to connect to etcd. These three are upstream's values
/// (storagebackend/factory/etcd3.go).
const DIAL_WITHIN: Duration = Duration::from_secs(20);
const KEEP_ALIVE_EVERY: Duration = Duration::from_secs(30);
const KEEP_ALIVE_WITHIN: Duration = Duration::from_secs(10);

/// An etcd cluster and the place of our objects in it.
#[derive(Clone, Debug, Default)]
pub struct Config {
    /// URLs, for example `https://etcd-0:2379`.
    pub endpoints: Vec<String>,
    /// Prefix of every key in etcd, for example `/registry/navigator.jetstack.io`.
    pub prefix: String,
    pub tls: Option<EtcdTlsFiles>,
}

/// Files in PEM form for TLS with etcd.
#[derive(Clone, Debug)]
pub struct EtcdTlsFiles {
    /// Certificate of the authority that signed etcd's certificates.
    pub ca: PathBuf,
    /// The API server's client certificate and its key.
    pub identity: Option<(PathBuf, PathBuf)>,
}

/// Why etcd cannot be reached with the configuration.
#[derive(Debug, thiserror::Error)]
pub enum EtcdConnectError {
    #[error("no etcd server is named")]
    NoEndpoint,
    #[error("etcd server {0:?} is not an http:// or https:// URL")]
    Scheme(String),
    #[error("etcd server {0:?} needs the file of its certificate authority")]
    AuthorityMissing(String),
    #[error("failed to read {path:?}")]
    Read { path: PathBuf, source: io::Error },
    #[error("failed to set up the connection to etcd")]
    Client(#[from] etcd_client::Error),
}

pub(super) async fn build_client(config: &Config) -> Result<Client, EtcdConnectError> {
    if config.endpoints.is_empty() {
        return Err(EtcdConnectError::NoEndpoint);
    }
    for endpoint in &config.endpoints {
        let is_secure = endpoint.starts_with("https://");
        if !is_secure && !endpoint.starts_with("http://") {
            return Err(EtcdConnectError::Scheme(endpoint.clone()));
        }
        if is_secure && config.tls.is_none() {
            return Err(EtcdConnectError::AuthorityMissing(endpoint.clone()));
        }
    }
    let mut options = ConnectOptions::new()
        .with_connect_timeout(DIAL_WITHIN)
        .with_keep_alive(KEEP_ALIVE_EVERY, KEEP_ALIVE_WITHIN)
        .with_require_leader(true);
    if let Some(tls) = &config.tls {
        let mut tls_options =
            TlsOptions::new().ca_certificate(Certificate::from_pem(read_file(&tls.ca).await?));
        if let Some((certificate, key)) = &tls.identity {
            tls_options = tls_options
                .identity(Identity::from_pem(read_file(certificate).await?, read_file(key).await?));
        }
        options = options.with_tls(tls_options);
    }
    Ok(Client::connect(&config.endpoints, Some(options)).await?)
}

async fn read_file(path: &Path) -> Result<Vec<u8>, EtcdConnectError> {
    fs::read(path).await.map_err(|source| EtcdConnectError::Read { path: path.to_owned(), source })
}
