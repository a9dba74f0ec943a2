//! Renders what a node encrypts and whom it asks for a password.
//!
//! Cassandra reads keys and certificates as PEM from 4.1 on. One port between nodes takes TLS and
//! plain text as `optional` says, and sends what `internode_encryption` says.

use std::path::Path;

use serde_json::{Value, json};

use crate::api::v1beta1::{ClientTls, InternodeTls};

/// The class that reads PEM files.
const PEM: &str = "org.apache.cassandra.security.PEMBasedSslContextFactory";

/// Files of a port with TLS, below the folder of each use.
pub(in crate::databases::cassandra) const KEY_FILE: &str = "node.pem";
pub(in crate::databases::cassandra) const TRUST_FILE: &str = "ca.pem";

/// What a node encrypts and whom it asks.
#[derive(Clone, Copy, Debug)]
pub struct SecuritySettings<'a> {
    pub internode: &'a InternodeTls,
    pub client: &'a ClientTls,
    /// Clients are asked for a certificate.
    pub asks_certificates: bool,
    /// Clients are asked for a user and a password.
    pub asks_passwords: bool,
    /// Folder with the files of TLS: `internode` and `client`.
    pub tls: &'a Path,
    /// The ring's logins are not made yet: clients are served on loopback, and only one with the
    /// certificate in this folder.
    pub founding: Option<&'a Path>,
}

/// Returns the settings of a node that is not open.
pub(super) fn render_settings(settings: &SecuritySettings<'_>) -> Vec<(&'static str, Value)> {
    let SecuritySettings { internode, client, asks_certificates, asks_passwords, tls, founding } =
        *settings;
    let mut options = Vec::new();
    if *internode != InternodeTls::Off {
        options.push((
            "server_encryption_options",
            internode_encryption(internode, &tls.join("internode")),
        ));
    }
    if let Some(folder) = founding {
        options.push(("client_encryption_options", client_encryption(folder, false, true)));
    } else if *client != ClientTls::Off {
        let is_optional = *client == ClientTls::Optional;
        options.push((
            "client_encryption_options",
            client_encryption(&tls.join("client"), is_optional, asks_certificates),
        ));
    }
    if asks_passwords {
        let [authenticator, authorizer] = if founding.is_some() {
            ["AllowAllAuthenticator", "AllowAllAuthorizer"]
        } else {
            ["PasswordAuthenticator", "CassandraAuthorizer"]
        };
        options.push(("authenticator", json!(authenticator)));
        options.push(("authorizer", json!(authorizer)));
        options.push(("role_manager", json!("CassandraRoleManager")));
    }
    options
}

fn internode_encryption(tls: &InternodeTls, folder: &Path) -> Value {
    let (encryption, is_optional) = match tls {
        InternodeTls::Allow => ("none", true),
        InternodeTls::Prefer => ("all", true),
        _ => ("all", false),
    };
    json!({
        "internode_encryption": encryption,
        "optional": is_optional,
        "ssl_context_factory": {"class_name": PEM},
        "keystore": folder.join(KEY_FILE),
        "truststore": folder.join(TRUST_FILE),
        // Any certificate of the CA between nodes is a node of this ring. Nodes are known by
        // addresses that change, which nodes do not compare.
        "require_client_auth": true,
        "require_endpoint_verification": false,
    })
}

fn client_encryption(folder: &Path, is_optional: bool, requires_certificate: bool) -> Value {
    json!({
        "enabled": true,
        "optional": is_optional,
        "ssl_context_factory": {"class_name": PEM},
        "keystore": folder.join(KEY_FILE),
        "truststore": folder.join(TRUST_FILE),
        "require_client_auth": requires_certificate,
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn rendered(
        internode: &InternodeTls,
        client: &ClientTls,
        founding: Option<&Path>,
    ) -> BTreeMap<&'static str, Value> {
        let tls = Path::new("/config/tls");
        let settings = SecuritySettings {
            internode,
            client,
            asks_certificates: *client == ClientTls::Required,
            asks_passwords: true,
            tls,
            founding,
        };
        render_settings(&settings).into_iter().collect()
    }

    #[test]
    fn rungs_are_what_a_node_takes_and_what_it_sends() {
        for (tls, expected) in [
            (InternodeTls::Allow, json!(["none", true])),
            (InternodeTls::Prefer, json!(["all", true])),
            (InternodeTls::Required, json!(["all", false])),
        ] {
            let all = rendered(&tls, &ClientTls::Off, None);
            let options = &all["server_encryption_options"];
            let found = json!([options["internode_encryption"], options["optional"]]);
            assert_eq!(found, expected, "{tls}");
            assert_eq!(options["require_client_auth"], true);
            assert_eq!(options["keystore"], "/config/tls/internode/node.pem");
            assert!(!all.contains_key("client_encryption_options"));
        }
        let all = rendered(&InternodeTls::Off, &ClientTls::Optional, None);
        assert!(!all.contains_key("server_encryption_options"));
        let options = &all["client_encryption_options"];
        assert_eq!(
            (&options["optional"], &options["require_client_auth"]),
            (&json!(true), &json!(false))
        );
        let all = rendered(&InternodeTls::Required, &ClientTls::Required, None);
        assert_eq!(all["client_encryption_options"]["require_client_auth"], true);
        assert_eq!(all["authenticator"], "PasswordAuthenticator");
        assert_eq!(all["authorizer"], "CassandraAuthorizer");
    }

    #[test]
    fn while_logins_are_made_a_certificate_is_asked_for_whatever_clients_meet_later() {
        for client in [ClientTls::Off, ClientTls::Optional, ClientTls::Required] {
            let all = rendered(&InternodeTls::Required, &client, Some(Path::new("/founding")));
            let options = &all["client_encryption_options"];
            assert_eq!(options["keystore"], "/founding/node.pem");
            let asked = (&options["optional"], &options["require_client_auth"]);
            assert_eq!(asked, (&json!(false), &json!(true)), "{client}");
            assert_eq!(all["authenticator"], "AllowAllAuthenticator");
        }
    }
}
