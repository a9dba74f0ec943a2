//! Over what the pilot's metrics are served: as its Pilot says, with the certificate that the node
//! shows to clients.

use std::{sync::Arc, time::Duration};

use rustls::{
    ServerConfig,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
};
use tokio::{sync::watch, time::sleep};
use tracing::warn;

use crate::{
    api::v1beta1::{MetricsTls, PilotSecurity},
    error::chain,
    pilot::{kube::intent::IntentReceiver, security::NodeSecurity, volume::data_volume::Volume},
    runtime::{Shutdown, admin::PortSecurity},
};

/// Pause between two looks at the certificate: it is renewed weeks before it ends.
const LOOK_EVERY: Duration = Duration::from_secs(30);
/// Pause while there is none, which closes the port.
const SOON: Duration = Duration::from_secs(2);

/// Keeps the port true until shutdown. Before the pilot knows its Pilot it serves plain text: it has
/// nothing to tell then but that.
pub(super) async fn maintain_port(
    node_security: NodeSecurity,
    volume: Volume,
    mut intent: IntentReceiver,
    port: watch::Sender<PortSecurity>,
    shutdown: Shutdown,
) {
    let mut served_chain = None;
    loop {
        let security = intent
            .borrow_and_update()
            .as_ref()
            .map(|snapshot| snapshot.pilot.spec.security.clone());
        let pause = match security
            .flatten()
            .filter(|security| security.metrics == Some(MetricsTls::Required))
        {
            None => {
                served_chain = None;
                port.send_if_modified(|port| {
                    !std::mem::replace(port, PortSecurity::Plain).is_plain()
                });
                None
            }
            Some(security) => {
                Some(update_port(&node_security, &volume, security, &mut served_chain, &port).await)
            }
        };
        let rest = async {
            match pause {
                Some(pause) => sleep(pause).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = shutdown.triggered() => return,
            () = rest => {}
            changed = intent.changed() => if changed.is_err() {
                return;
            },
        }
    }
}

/// Serves with the certificate that there is, and nobody without one. Returns when to look again.
async fn update_port(
    node_security: &NodeSecurity,
    volume: &Volume,
    security: PilotSecurity,
    served_chain: &mut Option<String>,
    port: &watch::Sender<PortSecurity>,
) -> Duration {
    let node_security = node_security.clone();
    let Ok(certificate) = volume.visit(move |_| node_security.client_certificate(&security)).await
    else {
        // The volume hangs: what is served is served on.
        return LOOK_EVERY;
    };
    let Some((chain, key)) = certificate else {
        *served_chain = None;
        port.send_replace(PortSecurity::Closed);
        return SOON;
    };
    if served_chain.as_ref() == Some(&chain) {
        return LOOK_EVERY;
    }
    match server_config(&chain, &key) {
        Ok(config) => {
            port.send_replace(PortSecurity::Encrypted(config));
            *served_chain = Some(chain);
            LOOK_EVERY
        }
        Err(error) => {
            warn!(error = %chain_of(&error), "Metrics cannot be served with the node's certificate");
            port.send_replace(PortSecurity::Closed);
            LOOK_EVERY
        }
    }
}

fn chain_of(error: &ServerConfigError) -> String {
    chain(error).to_string()
}

/// Why a certificate cannot be served.
#[derive(Debug, thiserror::Error)]
enum ServerConfigError {
    #[error("it is no PEM")]
    Pem(#[from] rustls::pki_types::pem::Error),
    #[error("it cannot be used")]
    Tls(#[from] rustls::Error),
}

fn server_config(chain: &str, key: &str) -> Result<Arc<ServerConfig>, ServerConfigError> {
    let chain = CertificateDer::pem_slice_iter(chain.as_bytes()).collect::<Result<Vec<_>, _>>()?;
    let key = PrivateKeyDer::from_pem_slice(key.as_bytes())?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_single_cert(chain, key)?;
    Ok(Arc::new(config))
}
