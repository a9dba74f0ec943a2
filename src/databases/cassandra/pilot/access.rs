//! How the pilot gets into its own node, as a start decided it. And the certificate of the one client that a node is
//! open to while its ring has no logins.

use std::{
    fs, io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    path::{Path, PathBuf},
    time::Duration,
};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::cql::{CqlLogin, CqlTarget, CqlTls};
use crate::{
    databases::cassandra::{
        facts::{KEY_FILE, TRUST_FILE},
        names::port,
    },
    engine::pki::{CertificateAuthority, CertificateUse, KeyRequest, LeafOrder, PrivateKey},
    pilot::{driver::Error, tls::PinnedLeaves, volume::config_files::write_whole},
};

/// Folder with the key and the certificate of the client that makes the ring's logins.
const FOUNDING: &str = "founding";
/// Name in that certificate. Nobody but this pilot connects with it.
const OWN_NAME: &str = "localhost";
/// Life of that certificate: much longer than making logins takes.
const FOUNDING_LIFE: Duration = Duration::from_secs(7 * 24 * 3600);
/// Limit for a connection, and for each statement.
const LIMIT: Duration = Duration::from_secs(10);

/// How to get into a node that is secured.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct NodeAccess {
    /// Address of the node among its peers.
    pub(super) address: IpAddr,
    /// The port between nodes speaks TLS.
    pub(super) internode: bool,
    /// The port of clients speaks TLS.
    pub(super) client: bool,
    /// The port of clients takes plain text too.
    #[serde(default)]
    pub(super) serves_both: bool,
    pub(super) asks_passwords: bool,
    /// The node runs for its pilot alone, which makes the ring's logins.
    pub(super) founding: bool,
}

impl NodeAccess {
    /// Where the node listens for clients that are on its own machine.
    pub(super) fn client_port(&self) -> SocketAddr {
        (own_host(self.address), port::CQL).into()
    }

    /// Returns how to connect as a client: one that accepts `pins`.
    pub(super) fn cql_target(
        &self,
        config: &Path,
        pins: &PinnedLeaves,
        login: Option<CqlLogin>,
    ) -> Result<CqlTarget, Error> {
        let unusable_error =
            |error: Box<dyn std::error::Error + Send + Sync>| Error::Unreachable { source: error };
        let tls = if self.founding {
            let folder = founding_folder(config);
            let text = |name: &str| {
                let path = folder.join(name);
                fs::read_to_string(&path).map_err(|source| Error::Read { path, source })
            };
            let (key_pem, trust_pem) = (text(KEY_FILE)?, text(TRUST_FILE)?);
            let tls = CqlTls::new(&trust_pem, OWN_NAME, Some((&key_pem, &key_pem)));
            Some(tls.map_err(|error| unusable_error(error.into()))?)
        } else if self.client {
            let config = pins.client_config().map_err(|error| unusable_error(error.into()))?;
            Some(CqlTls::from_config(config, own_host(self.address)))
        } else {
            None
        };
        Ok(CqlTarget { address: self.client_port(), tls, login, timeout: LIMIT })
    }
}

/// The address on which the node of this address serves clients of its own machine.
fn own_host(address: IpAddr) -> IpAddr {
    match address {
        address if address.is_loopback() => address,
        IpAddr::V4(_) => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(_) => Ipv6Addr::LOCALHOST.into(),
    }
}

/// Where the certificate lies of the one client that a node is open to while its ring has no logins.
pub(super) fn founding_folder(config: &Path) -> PathBuf {
    config.join(FOUNDING)
}

/// Makes that certificate, which this start alone uses, for the node and for its client.
pub(super) fn prepare_founding(config: &Path) -> Result<(), Error> {
    let creation_error = |error: Box<dyn std::error::Error + Send + Sync>| {
        Error::Unprepared(format!(
            "no certificate can be made for the ring's first client: {error}"
        ))
    };
    let now = Timestamp::now();
    let authority = CertificateAuthority::create("navigator founding", now);
    let authority = authority.map_err(|error| creation_error(error.into()))?;
    let key = PrivateKey::generate().map_err(|error| creation_error(error.into()))?;
    let request = KeyRequest::create(&key).map_err(|error| creation_error(error.into()))?;
    let request = KeyRequest::from_pem(&request).map_err(|error| creation_error(error.into()))?;
    let order = LeafOrder {
        common_name: OWN_NAME,
        dns_names: &[OWN_NAME.to_owned()],
        addresses: &[],
        usage: CertificateUse::Internode,
        life: FOUNDING_LIFE,
    };
    let chain = authority
        .issue_certificate(&request, &order, now)
        .map_err(|error| creation_error(error.into()))?;
    let folder = founding_folder(config);
    fs::create_dir_all(&folder).map_err(|source| Error::Write { path: folder.clone(), source })?;
    let key_pem = key.to_pem() + &chain;
    write_whole(&folder.join(KEY_FILE), key_pem.as_bytes(), 0o600)?;
    write_whole(&folder.join(TRUST_FILE), authority.trust_bundle().to_pem().as_bytes(), 0o600)
}

/// Removes it, once the ring has logins.
pub(super) fn forget_founding(config: &Path) -> Result<(), Error> {
    remove_if_exists(founding_folder(config), |path| fs::remove_dir_all(path))
}

fn remove_if_exists(
    path: PathBuf,
    remove: impl FnOnce(&Path) -> io::Result<()>,
) -> Result<(), Error> {
    match remove(&path) {
        Err(source) if source.kind() != io::ErrorKind::NotFound => {
            Err(Error::Write { path, source })
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn access(address: [u8; 4]) -> NodeAccess {
        NodeAccess {
            address: address.into(),
            internode: true,
            client: true,
            serves_both: false,
            asks_passwords: true,
            founding: false,
        }
    }

    #[test]
    fn a_pilot_connects_on_loopback_with_the_certificate_that_its_start_needs() {
        let place = tempfile::tempdir().unwrap();
        let pins = PinnedLeaves::default();
        let of = |access: &NodeAccess| access.cql_target(place.path(), &pins, None);
        let target = of(&access([10, 0, 0, 1])).unwrap();
        assert_eq!(target.address.to_string(), "127.0.0.1:9042");
        assert!(target.tls.is_some());
        assert!(of(&NodeAccess { client: false, ..access([10, 0, 0, 1]) }).unwrap().tls.is_none());
        let founding = NodeAccess { founding: true, client: false, ..access([127, 0, 1, 9]) };
        assert!(of(&founding).is_err(), "its certificate is not made yet");
        prepare_founding(place.path()).unwrap();
        let target = of(&founding).unwrap();
        assert_eq!(target.address.to_string(), "127.0.1.9:9042");
        assert!(target.tls.is_some());
        let about = fs::metadata(founding_folder(place.path()).join(KEY_FILE)).unwrap();
        assert_eq!(about.permissions().mode() & 0o777, 0o600);
        forget_founding(place.path()).unwrap();
        forget_founding(place.path()).unwrap();
        assert!(!founding_folder(place.path()).exists());
    }
}
