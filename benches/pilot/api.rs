//! An API for the pilots that are measured: our server behind the scripted kube-apiserver, and
//! TLS in front of it, as a pod's pilot finds it.

use std::{fs, net::SocketAddr, path::PathBuf, sync::Arc};

use base64::{Engine, prelude::BASE64_STANDARD};
use navigator::databases::cassandra::names::label;
use rcgen::{CertificateParams, KeyPair};
use rustls::pki_types::PrivateKeyDer;
use serde_json::json;
use tokio::{
    io::copy_bidirectional,
    net::{TcpListener, TcpStream},
    runtime::Runtime,
};
use tokio_rustls::TlsAcceptor;

use super::support::bed::{Bed, member_of};

pub(super) struct Api {
    runtime: Runtime,
    bed: Bed,
    address: SocketAddr,
    certificate: String,
}

impl Api {
    pub(super) fn start() -> Self {
        rustls::crypto::ring::default_provider().install_default().unwrap();
        let runtime = Runtime::new().unwrap();
        let bed = runtime.block_on(Bed::start());
        let behind: SocketAddr = bed.world.kube.url.trim_start_matches("http://").parse().unwrap();
        let key = KeyPair::generate().unwrap();
        let names = vec!["127.0.0.1".to_owned()];
        let certificate = CertificateParams::new(names).unwrap().self_signed(&key).unwrap();
        let chain = vec![certificate.der().clone()];
        let key = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
        let config = rustls::ServerConfig::builder().with_no_client_auth();
        let config = config.with_single_cert(chain, key).unwrap();
        let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
        let address = listener.local_addr().unwrap();
        runtime.spawn(pass_on(listener, TlsAcceptor::from(Arc::new(config)), behind));
        Self { runtime, bed, address, certificate: certificate.pem() }
    }

    /// Makes the Pilot of this name, in a cluster of its own; returns its kubeconfig.
    pub(super) fn credentials(&self, name: &str) -> PathBuf {
        let spec = json!({
            "version": "5.0.6", "jvm": {"heap": "384Mi"},
            "cassandra": {"clusterName": name, "datacenter": "d", "rack": "r"},
        });
        let pilot = member_of(name, "CassandraCluster", label::CLUSTER, name, &spec);
        self.runtime.block_on(self.bed.create(&pilot));
        let path = self.bed.credentials(name);
        let ca = BASE64_STANDARD.encode(&self.certificate);
        let plain = format!("server: \"{}\"", self.bed.world.kube.url);
        let secured =
            format!("certificate-authority-data: {ca}, server: \"https://{}\"", self.address);
        let text = fs::read_to_string(&path).unwrap().replace(&plain, &secured);
        fs::write(&path, text).unwrap();
        path
    }
}

async fn pass_on(listener: TcpListener, acceptor: TlsAcceptor, behind: SocketAddr) {
    while let Ok((plain, _)) = listener.accept().await {
        let acceptor = acceptor.clone();
        tokio::spawn(async move {
            let (mut near, mut far) =
                tokio::try_join!(acceptor.accept(plain), TcpStream::connect(behind))?;
            copy_bidirectional(&mut near, &mut far).await
        });
    }
}
