//! What a connection over TLS trusts, and what it shows.

use std::{net::IpAddr, sync::Arc};

use rustls::{
    ClientConfig, RootCertStore,
    pki_types::{CertificateDer, InvalidDnsNameError, PrivateKeyDer, ServerName, pem::PemObject},
};

/// Why TLS cannot be spoken with what was given.
#[derive(Debug, thiserror::Error)]
pub enum CqlTlsError {
    #[error("the trusted certificates are no PEM")]
    Trust(#[source] rustls::pki_types::pem::Error),
    #[error("the client's certificate and key are no PEM")]
    Client(#[source] rustls::pki_types::pem::Error),
    #[error("TLS cannot be spoken with these certificates")]
    Config(#[source] rustls::Error),
    #[error("no certificate can be of the name {0:?}")]
    Name(String, #[source] InvalidDnsNameError),
}

/// A client's TLS: whom it trusts, what it shows, and which name the server's certificate must cover.
#[derive(Clone)]
pub struct CqlTls {
    pub(super) config: Arc<ClientConfig>,
    pub(super) server: ServerName<'static>,
}

impl CqlTls {
    /// Trusts the CAs in `trust` (PEM) to speak for `server`, a DNS name or an address; shows a
    /// certificate with its chain and its key (PEM), if there is one.
    ///
    /// # Errors
    /// When these are not what they should be.
    pub fn new(
        trust: &str,
        server: &str,
        client: Option<(&str, &str)>,
    ) -> Result<Self, CqlTlsError> {
        let mut roots = RootCertStore::empty();
        for ca in CertificateDer::pem_slice_iter(trust.as_bytes()) {
            roots.add(ca.map_err(CqlTlsError::Trust)?).map_err(CqlTlsError::Config)?;
        }
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(CqlTlsError::Config)?
            .with_root_certificates(roots);
        let config = match client {
            None => config.with_no_client_auth(),
            Some((chain, key)) => {
                let chain = CertificateDer::pem_slice_iter(chain.as_bytes())
                    .collect::<Result<Vec<_>, _>>()
                    .map_err(CqlTlsError::Client)?;
                let key =
                    PrivateKeyDer::from_pem_slice(key.as_bytes()).map_err(CqlTlsError::Client)?;
                config.with_client_auth_cert(chain, key).map_err(CqlTlsError::Config)?
            }
        };
        let name = ServerName::try_from(server.to_owned());
        let server = name.map_err(|source| CqlTlsError::Name(server.to_owned(), source))?;
        Ok(Self { config: Arc::new(config), server })
    }

    /// Speaks TLS with these settings to the server at `address`.
    pub fn from_config(config: ClientConfig, address: IpAddr) -> Self {
        Self { config: Arc::new(config), server: ServerName::IpAddress(address.into()) }
    }
}
