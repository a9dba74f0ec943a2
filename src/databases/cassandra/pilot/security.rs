//! How a node of Cassandra is secured: its files, its ports, and its users.
//!
//! Cassandra reads the files of TLS again when it is told to, and takes a key that does not match its
//! certificate without complaint. So a handshake alone tells what it uses. Users are rows that the
//! whole ring shares; see `logins`.

use std::{collections::BTreeSet, net::SocketAddr, time::Duration};

use serde_json::{Value, json};

use super::{CassandraDriver, access::NodeAccess, logins};
use crate::{
    api::v1beta1::{Authentication, ClientConnections, ClientTls, InternodeTls, PilotSecurity},
    databases::cassandra::{facts::Release, names::port},
    engine::{pki::CertificateUse, users::UsersDocument},
    pilot::{
        driver::{
            DatabaseNode, DriverAnswer, Error, RunningSecurity, SecuredDatabase, SecuredPort,
        },
        tls::{NodeCertificates, PinnedLeaves, TlsFile, TlsKeys},
    },
};

/// Limit for reading the files of TLS again.
const RELOAD: Duration = Duration::from_secs(30);
/// One entry for each connection of a client, as `nodetool clientstats --all` shows them.
pub(super) const CONNECTIONS: &str = "org.apache.cassandra.metrics:type=Client,name=connections";
/// Most addresses that are told.
const TOLD: usize = 5;
const MESSAGING: &str = "org.apache.cassandra.net:type=MessagingService";

/// Returns how a node is to be secured; `None` where it is open.
pub(super) fn desired_security(
    security: Option<&PilotSecurity>,
    release: Release,
) -> Result<Option<&PilotSecurity>, Error> {
    let Some(security) = security.filter(|security| !security.is_open()) else { return Ok(None) };
    let reject = |message: String| Err(Error::ConfigRejected(message));
    if !release.is_secured() {
        return reject("this build secures Cassandra from 4.1 on".to_owned());
    }
    let PilotSecurity { internode, client, authentication, .. } = security;
    // Words of a later release.
    if let InternodeTls::Other(word) = internode {
        return reject(format!("internode.tls {word:?} is not known to this pilot"));
    }
    if let ClientTls::Other(word) = client {
        return reject(format!("client.tls {word:?} is not known to this pilot"));
    }
    if let Authentication::Other(word) = authentication {
        return reject(format!("authentication {word:?} is not known to this pilot"));
    }
    Ok(Some(security))
}

/// Counts connections by whether they are encrypted, but for the pilot's own, which follows the node.
fn count_connections(
    connections: &[Value],
    own_address: Option<SocketAddr>,
) -> Result<ClientConnections, Error> {
    let mut counts = ClientConnections::default();
    let mut plain_hosts = BTreeSet::new();
    for connection in connections.iter().filter(|connection| !is_own(connection, own_address)) {
        match connection["ssl"].as_str() {
            Some("true") => counts.tls += 1,
            Some("false") => {
                counts.plain += 1;
                let address = connection["address"].as_str().unwrap_or_default();
                let host = address.trim_start_matches('/').rsplit_once(':');
                plain_hosts.extend(host.map(|(host, _)| host.to_owned()));
            }
            _ => {
                let message = "the list of clients does not say who is connected with TLS";
                return Err(Error::NotYet(message.to_owned()));
            }
        }
    }
    counts.plain_from = plain_hosts.into_iter().take(TOLD).collect();
    Ok(counts)
}

/// Is it the connection whose other end, the pilot's, is `own`?
pub(super) fn is_own(connection: &Value, own_address: Option<SocketAddr>) -> bool {
    let address = connection["address"].as_str().unwrap_or_default().rsplit('/').next();
    own_address.is_some() && address.and_then(|address| address.parse().ok()) == own_address
}

/// Does the node ask for passwords?
pub(super) fn requires_passwords(security: Option<&PilotSecurity>) -> bool {
    security.is_some_and(|security| security.authentication == Authentication::Password)
}

impl SecuredDatabase for CassandraDriver {
    fn tls_files(&self, keys: &TlsKeys, certificates: &NodeCertificates) -> Vec<TlsFile> {
        let TlsKeys { node, client } = keys;
        // Cassandra wants key and certificate in one file.
        let certificate_files = [
            (["internode/node.pem", "internode/ca.pem"], &certificates.internode, node),
            (["client/node.pem", "client/ca.pem"], &certificates.client, client),
        ];
        let files = certificate_files.into_iter().filter_map(
            |([key_path, trust_path], certificate, key)| {
                let certificate = certificate.as_ref()?;
                let key_file = TlsFile {
                    path: key_path,
                    text: format!("{}\n{}", key.trim_end(), certificate.chain),
                };
                Some([
                    key_file,
                    TlsFile {
                        path: trust_path,
                        text: certificate.client_trust_bundle().to_owned(),
                    },
                ])
            },
        );
        let server_ca = certificates.client.as_ref();
        let server_ca =
            server_ca.map(|certificate| TlsFile::server_ca("client/server-ca.pem", certificate));
        files.flatten().chain(server_ca).collect()
    }

    /// Users are no files of a node.
    fn lay_out_users(
        &self,
        _node: &DatabaseNode,
        _users: Option<&UsersDocument>,
    ) -> Result<(), Error> {
        Ok(())
    }

    fn running_security(&self) -> RunningSecurity {
        let Some(access) = self.access.get() else { return RunningSecurity::default() };
        let NodeAccess { address, internode, client, serves_both, asks_passwords: _, founding } =
            access;
        let mut ports = Vec::new();
        if internode {
            let address = SocketAddr::new(address, port::STORAGE);
            ports.push(SecuredPort::new(CertificateUse::Internode, address));
        }
        if client && !founding {
            let address = access.client_port();
            ports.push(SecuredPort::new(CertificateUse::Client, address));
        }
        // A ring that does not ask for passwords yet is given its users all the same.
        RunningSecurity { ports, takes_users: true, serves_both: serves_both && !founding }
    }

    fn client_connections(&self) -> DriverAnswer<'_, ClientConnections> {
        Box::pin(async move {
            // It may begin another connection meanwhile: the next look leaves that out.
            let own_address = self.session.local_address().await;
            let connections: Vec<Value> =
                self.jolokia()?.read_attribute(CONNECTIONS, "Value").await?;
            count_connections(&connections, own_address)
        })
    }

    fn pinned_leaves(&self) -> &PinnedLeaves {
        self.access.pinned_leaves()
    }

    fn reload_tls<'a>(&'a self, _node: &'a DatabaseNode) -> DriverAnswer<'a, ()> {
        Box::pin(async move {
            let jolokia = self.jolokia()?;
            jolokia
                .execute_operation(MESSAGING, "reloadSslCertificates()", &json!([]), RELOAD)
                .await?
                .fail_if_refused()
        })
    }

    fn recheck_users(&self) -> Option<Duration> {
        Some(logins::LOOK_EVERY)
    }

    fn apply_users<'a>(
        &'a self,
        node: &'a DatabaseNode,
        users: &'a UsersDocument,
    ) -> DriverAnswer<'a, ()> {
        Box::pin(self.take_users(node, users))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_are_counted_as_the_database_lists_them() {
        let list = json!([
            {"address": "/10.0.0.7:41214", "user": "anonymous", "ssl": "false"},
            {"address": "/10.0.0.7:41216", "user": "anonymous", "ssl": "false"},
            {"address": "/127.0.0.1:33102", "user": "anonymous", "ssl": "true", "cipher": "x"},
        ]);
        let found = count_connections(list.as_array().unwrap(), None).unwrap();
        assert_eq!((found.tls, found.plain), (1, 2));
        assert_eq!(found.plain_from, ["10.0.0.7"]);
        // A pilot waits for clients, and is none.
        let own = "127.0.0.1:33102".parse().ok();
        assert_eq!(count_connections(list.as_array().unwrap(), own).unwrap().tls, 0);
        let list = [json!({"address": "localhost/127.0.0.1:33102", "ssl": "true"})];
        assert_eq!(count_connections(&list, own).unwrap().tls, 0);
        assert_eq!(count_connections(&list, "127.0.0.1:33103".parse().ok()).unwrap().tls, 1);
        // What does not say it is not taken for encrypted.
        assert!(count_connections(&[json!({"address": "/10.0.0.7:1"})], None).is_err());
    }
}
