//! A port that shows a certificate, for tests.

use std::{
    net::SocketAddr,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use jiff::Timestamp;
use rustls::{
    RootCertStore, ServerConfig,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
    server::WebPkiClientVerifier,
};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

use crate::engine::pki::{CertificateAuthority, CertificateUse, KeyRequest, LeafOrder, PrivateKey};

/// A server that shakes hands and hangs up. It ends with the test's runtime.
pub(in crate::pilot) struct TlsServer {
    pub(in crate::pilot) address: SocketAddr,
    pub(in crate::pilot) chain: String,
    config: Arc<Mutex<Arc<ServerConfig>>>,
    clients: Arc<AtomicUsize>,
}

/// Signs a key for the node `es-a-0` at 127.0.0.1.
pub(in crate::pilot) fn sign(ca: &CertificateAuthority, key: &PrivateKey) -> String {
    let request = KeyRequest::from_pem(&KeyRequest::create(key).unwrap()).unwrap();
    let order = LeafOrder {
        common_name: "es-a-0",
        dns_names: &["es-a-0".to_owned()],
        addresses: &["127.0.0.1".parse().unwrap()],
        usage: CertificateUse::Internode,
        life: Duration::from_secs(3600),
    };
    ca.issue_certificate(&request, &order, Timestamp::now()).unwrap()
}

fn config(
    chain: &str,
    key: &PrivateKey,
    trust: Option<&CertificateAuthority>,
) -> Arc<ServerConfig> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ServerConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()
        .unwrap();
    let config = match trust {
        None => config.with_no_client_auth(),
        Some(ca) => {
            let mut roots = RootCertStore::empty();
            roots.add(CertificateDer::from_pem_slice(ca.chain_pem().as_bytes()).unwrap()).unwrap();
            let verifier = WebPkiClientVerifier::builder_with_provider(roots.into(), provider);
            config.with_client_cert_verifier(verifier.build().unwrap())
        }
    };
    let chain = CertificateDer::pem_slice_iter(chain.as_bytes()).map(Result::unwrap).collect();
    let key = PrivateKeyDer::from_pem_slice(key.to_pem().as_bytes()).unwrap();
    // A chain and another key: what is shown is not the server's own.
    let resolved = rustls::crypto::ring::sign::any_supported_type(&key).unwrap();
    let certified = rustls::sign::CertifiedKey::new(chain, resolved);
    Arc::new(config.with_cert_resolver(Arc::new(OneCertificate(Arc::new(certified)))))
}

#[derive(Debug)]
struct OneCertificate(Arc<rustls::sign::CertifiedKey>);

impl rustls::server::ResolvesServerCert for OneCertificate {
    fn resolve(
        &self,
        _hello: rustls::server::ClientHello<'_>,
    ) -> Option<Arc<rustls::sign::CertifiedKey>> {
        Some(self.0.clone())
    }
}

impl TlsServer {
    /// Shows a new certificate of `key`; `asks`: only to those that show one of the same CA.
    pub(in crate::pilot) async fn start(
        ca: &CertificateAuthority,
        key: &PrivateKey,
        asks: bool,
    ) -> Self {
        Self::show(sign(ca, key), key, asks.then_some(ca)).await
    }

    /// Shows a certificate, and signs with a key that may be another's.
    #[expect(
        clippy::disallowed_methods,
        reason = "a server for one test, which ends with its runtime"
    )]
    pub(in crate::pilot) async fn show(
        chain: String,
        key: &PrivateKey,
        trust: Option<&CertificateAuthority>,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let settings = Arc::new(Mutex::new(config(&chain, key, trust)));
        let clients = Arc::new(AtomicUsize::new(0));
        let (now, count) = (settings.clone(), clients.clone());
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let config = now.lock().unwrap().clone();
                if TlsAcceptor::from(config).accept(stream).await.is_ok() {
                    count.fetch_add(1, Ordering::SeqCst);
                }
            }
        });
        Self { address, chain, config: settings, clients }
    }

    /// Shows another certificate from now on, as a database that was reloaded.
    pub(in crate::pilot) fn reload(&self, chain: &str, key: &PrivateKey) {
        *self.config.lock().unwrap() = config(chain, key, None);
    }

    pub(in crate::pilot) fn leaf(&self) -> CertificateDer<'static> {
        CertificateDer::from_pem_slice(self.chain.as_bytes()).unwrap()
    }

    /// Waits until the server has accepted a client's handshake to its end.
    pub(in crate::pilot) async fn took_a_client(&self) -> bool {
        for _ in 0..500 {
            if self.clients.load(Ordering::SeqCst) > 0 {
                return true;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        false
    }
}
