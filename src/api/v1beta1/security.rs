//! How a cluster is kept from those who are not meant to read it: encryption, logins, and who may
//! reach it.

use k8s_openapi::{
    api::networking::v1::NetworkPolicyPeer, apimachinery::pkg::apis::meta::v1::Time,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::shared::is_default;
use crate::api::{cluster_kind::ClusterKind, open_enum::open_enum};

open_enum! {
    /// One word for encryption and logins together.
    pub enum SecurityMode {
        /// Nothing is encrypted, and nobody is asked who they are.
        #[default]
        Open,
        /// TLS between nodes and for clients, and passwords.
        Secure,
    }
}

open_enum! {
    /// Encryption between the nodes of a cluster.
    pub enum InternodeTls {
        /// A node takes and sends plain text.
        #[default]
        Off,
        /// A node takes both, and sends plain text.
        Allow,
        /// A node takes both, and sends TLS.
        Prefer,
        /// A node takes and sends TLS.
        Required,
    }
}

open_enum! {
    /// Encryption between clients and nodes.
    pub enum ClientTls {
        /// Clients are served in plain text.
        #[default]
        Off,
        /// Clients are served either way.
        Optional,
        /// Clients are served over TLS.
        Required,
    }
}

open_enum! {
    /// Whether clients must show a certificate.
    pub enum ClientAuth {
        /// They need none.
        #[default]
        None,
        /// They must show one, beside what they log in with.
        Required,
    }
}

open_enum! {
    /// Encryption of the metrics of pilots.
    pub enum MetricsTls {
        /// They are served in plain text.
        #[default]
        Off,
        /// They are served over TLS.
        Required,
    }
}

open_enum! {
    /// In what kind of object CAs are stored.
    pub enum TrustKind {
        #[default]
        Secret,
        ConfigMap,
    }
}

open_enum! {
    /// Whether clients are asked who they are.
    pub enum Authentication {
        /// Nobody is asked.
        #[default]
        Off,
        /// A user and a password are asked for.
        Password,
    }
}

/// How a cluster of one database is kept from those who are not meant to read it.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", bound = "")]
#[schemars(rename = "{K}ClusterSecurity", bound = "K: ClusterKind")]
pub struct DatabaseSecurity<K: ClusterKind> {
    /// What the clusters of all databases share.
    #[serde(flatten)]
    pub shared: ClusterSecurity,
    /// Roles of the database that Navigator makes and keeps as they stand here. Users have them by
    /// name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub roles: Vec<DatabaseRole<K>>,
}

/// A role of a database.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", bound = "")]
#[schemars(rename = "{K}Role", bound = "K: ClusterKind")]
pub struct DatabaseRole<K: ClusterKind> {
    /// Name by which users have the role.
    pub name: String,
    /// What it allows, in the terms of the database.
    #[serde(flatten)]
    pub rights: K::Role,
}

/// How a cluster is kept from those who are not meant to read it: what all databases share.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ClusterSecurity {
    /// `Secure`: TLS between nodes and for clients, and passwords. `Open`: none of them. Each of the
    /// three may also be set alone, below, and wins over `mode`. Where `mode` and one of them are
    /// absent, a new cluster gets `Secure`, or `Open` where it cannot be secured, and an existing one
    /// keeps what it has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<SecurityMode>,
    /// Encryption between nodes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub internode: Option<InternodeSecurity>,
    /// Encryption between clients and nodes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client: Option<ClientSecurity>,
    /// `Password`: clients are asked for a user and a password. `Off`: they are not. Follows `mode`
    /// where it is absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub authentication: Option<Authentication>,
    /// Secret of the cluster's administrator, with the keys `username` and `password`. Without it
    /// one is made, and `status.security.adminSecret` says its name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub admin_secret: Option<SecretName>,
    /// Users of the database beside its administrator.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub users: Vec<DatabaseUser>,
    /// Life and renewal of certificates.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub certificates: Option<CertificateSettings>,
    /// How the metrics of the pilots are served.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metrics: Option<MetricsSecurity>,
    /// Who may connect to the pods of the cluster.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network: Option<NetworkAccess>,
}

/// How far encryption goes, and whether clients are asked who they are.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SecurityRungs {
    /// What the node takes from other nodes, and what it sends.
    #[serde(default)]
    pub internode: InternodeTls,
    /// What it takes from clients.
    #[serde(default)]
    pub client: ClientTls,
    /// `Password`: clients have to give a user and a password.
    #[serde(default)]
    pub authentication: Authentication,
}

impl SecurityRungs {
    /// Is nothing encrypted and nobody asked?
    pub fn is_open(&self) -> bool {
        *self == Self::default()
    }

    /// Is anything encrypted?
    pub fn has_encryption(&self) -> bool {
        self.internode != InternodeTls::Off || self.client != ClientTls::Off
    }
}

impl ClusterSecurity {
    /// Returns who may connect, where Navigator keeps a NetworkPolicy.
    pub fn managed_network(&self) -> Option<&NetworkAccess> {
        self.network.as_ref().filter(|network| network.policy.as_deref() == Some("Managed"))
    }

    /// Is nothing said of encryption and logins?
    pub fn is_unset(&self) -> bool {
        self.mode.is_none() && !self.explicit_modes().contains(&true)
    }

    /// Is it said for all of encryption and logins how they are to be?
    pub fn is_fully_set(&self) -> bool {
        self.mode.is_some() || !self.explicit_modes().contains(&false)
    }

    /// Is TLS between nodes said on its own, TLS for clients, and logins?
    fn explicit_modes(&self) -> [bool; 3] {
        let Self {
            mode: _,
            internode,
            client,
            authentication,
            admin_secret: _,
            users: _,
            certificates: _,
            metrics: _,
            network: _,
        } = self;
        [
            internode.as_ref().is_some_and(|internode| internode.tls.is_some()),
            client.as_ref().is_some_and(|client| client.tls.is_some()),
            authentication.is_some(),
        ]
    }

    /// Takes from `stored` what is not said here of encryption and logins.
    pub fn fill_unset(&mut self, stored: &Self) {
        let [has_internode, has_client, has_authentication] = self.explicit_modes();
        if self.mode.is_none() {
            self.mode.clone_from(&stored.mode);
        }
        if !has_authentication {
            self.authentication.clone_from(&stored.authentication);
        }
        let tls = stored.internode.as_ref().and_then(|internode| internode.tls.clone());
        if let Some(tls) = tls.filter(|_| !has_internode) {
            self.internode.get_or_insert_default().tls = Some(tls);
        }
        let tls = stored.client.as_ref().and_then(|client| client.tls.clone());
        if let Some(tls) = tls.filter(|_| !has_client) {
            self.client.get_or_insert_default().tls = Some(tls);
        }
    }

    /// Must clients show a certificate?
    pub fn requires_client_certificates(&self) -> bool {
        let client_auth = self.client.as_ref().and_then(|client| client.client_auth.as_ref());
        client_auth == Some(&ClientAuth::Required)
    }

    /// Are the metrics of pilots to be served over TLS?
    pub fn encrypts_metrics(&self) -> bool {
        let tls = self.metrics.as_ref().and_then(|metrics| metrics.tls.as_ref());
        tls == Some(&MetricsTls::Required)
    }

    /// Returns the Secret with the certificate that all nodes show to clients, where one is given.
    pub fn certificate_secret_name(&self) -> Option<&str> {
        let client = self.client.as_ref()?;
        client.certificate_secret.as_ref().map(|secret| secret.name.as_str())
    }

    /// Returns where the CAs of nodes elsewhere are stored.
    pub fn trust_sources(&self) -> &[TrustSource] {
        self.internode.as_ref().map_or(&[], |internode| &internode.trust)
    }

    /// Returns what is to be encrypted and who is asked; a word of its own wins over `mode`.
    pub fn desired_modes(&self) -> SecurityRungs {
        let is_secure = self.mode == Some(SecurityMode::Secure);
        let default_modes = if is_secure {
            SecurityRungs {
                internode: InternodeTls::Required,
                client: ClientTls::Required,
                authentication: Authentication::Password,
            }
        } else {
            SecurityRungs::default()
        };
        let internode = self.internode.as_ref().and_then(|internode| internode.tls.clone());
        let client = self.client.as_ref().and_then(|client| client.tls.clone());
        SecurityRungs {
            internode: internode.unwrap_or(default_modes.internode),
            client: client.unwrap_or(default_modes.client),
            authentication: self.authentication.clone().unwrap_or(default_modes.authentication),
        }
    }
}

/// What nodes take from each other, and what they send.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct InternodeSecurity {
    /// `Off`, `Allow` (takes both, sends plain text), `Prefer` (takes both, sends TLS) or
    /// `Required`. Follows `mode` where it is absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tls: Option<InternodeTls>,
    /// Secret with a CA of yours, as `tls.crt` and `tls.key`, that is to sign the nodes of this cluster
    /// and nothing else: whoever has a certificate of it is a node. Without it one is made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ca_secret: Option<SecretName>,
    /// CAs of nodes elsewhere that are members of the same database cluster: of other clusters of this
    /// kind, for example in other datacenters. Whoever has a certificate of one is a node.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub trust: Vec<TrustSource>,
}

/// How the metrics of the pilots are served: port 8080 of each pod, and no other.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct MetricsSecurity {
    /// `Off` (default), or `Required`: with the certificate that the node shows to clients.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tls: Option<MetricsTls>,
}

/// Where CAs are stored, as PEM, in the cluster's namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TrustSource {
    /// `Secret` or `ConfigMap`.
    #[serde(default)]
    pub kind: TrustKind,
    /// Name of the object.
    #[serde(default)]
    pub name: String,
    /// Key in its data, `ca.crt` where it is absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
}

/// What clients meet at the ports that are theirs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ClientSecurity {
    /// `Off`, `Optional` (takes both) or `Required`. Follows `mode` where it is absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tls: Option<ClientTls>,
    /// Secret with a CA of yours, as `tls.crt` and `tls.key`, that is to sign what nodes show to
    /// clients. Another CA in it takes the place of the former one while all serve. Without it one is
    /// made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ca_secret: Option<SecretName>,
    /// Secret with one certificate that all nodes show to clients, as `tls.crt`, `tls.key` and `ca.crt`:
    /// what clients are to trust. Another one in it is shown at once, by all nodes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub certificate_secret: Option<SecretName>,
    /// `None` (default), or `Required`: clients must show a certificate of `clientCA`. It needs TLS for
    /// clients and between nodes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client_auth: Option<ClientAuth>,
    /// CAs of clients. Nodes and their pilots are let in with the certificates that they have.
    #[serde(rename = "clientCA", default, skip_serializing_if = "Option::is_none")]
    pub client_ca: Option<TrustSource>,
    /// DNS names and addresses that the certificates of all nodes hold beside those of their pods
    /// and Services.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "set"))]
    pub alt_names: Vec<String>,
}

/// A Secret in the cluster's namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SecretName {
    /// Name of the Secret.
    #[serde(default)]
    pub name: String,
}

/// A key of a Secret in the cluster's namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SecretKey {
    /// Name of the Secret.
    #[serde(default)]
    pub name: String,
    /// Key in its data, `password` where it is absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
}

/// A user of the database.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct DatabaseUser {
    /// Name with which the user logs in.
    pub name: String,
    /// Where the password lies. Without it one is made, in a Secret that is named after the
    /// cluster's objects and the user.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub password_secret: Option<SecretKey>,
    /// May do everything.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub superuser: Option<bool>,
    /// Roles of the user: those of `security.roles`, or others that the database knows.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "set"))]
    pub roles: Vec<String>,
}

/// How long certificates live, and when they are made anew.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct CertificateSettings {
    /// How long the certificate of a node is valid, for example `2160h` (default). It is renewed at
    /// two thirds of that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub duration: Option<String>,
    /// Any change of this time asks for new certificates of all nodes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub renewed_at: Option<Time>,
    /// Any change of this time has all nodes replace their private keys, while they run. Each proves the
    /// new key with the former one. A certificate of a former key stays valid until it ends: for a key
    /// that others may have, set `caRotatedAt`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub keys_renewed_at: Option<Time>,
    /// Any change of this time asks for new CAs with new keys, for new private keys of all nodes, and for
    /// certificates of both: a key that others may have is of no use to them afterwards. Nodes change
    /// one by one, while all trust both CAs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ca_rotated_at: Option<Time>,
    /// How long clients have to learn of a new CA before nodes show them certificates of it, for
    /// example `24h` (default). `0s`: nothing is waited for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ca_overlap: Option<String>,
}

/// What a node encrypts and asks for, the certificates that were signed for it, and whom it trusts.
/// All of it is public.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PilotSecurity {
    /// What the node takes from other nodes, and what it sends.
    #[serde(default)]
    pub internode: InternodeTls,
    /// Encryption between clients and this node.
    #[serde(default)]
    pub client: ClientTls,
    /// `Password`: clients are asked for a user and a password.
    #[serde(default)]
    pub authentication: Authentication,
    /// The key that was signed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<SignedKey>,
    /// The node is to replace its private key, where that was signed before this time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub new_key_at: Option<Time>,
    /// The cluster wants no node any more. The last of its nodes that leaves a database cluster which it
    /// shares with others closes the logins of this one.
    #[serde(default, skip_serializing_if = "is_default")]
    pub closes_logins: bool,
    /// Certificate for the port between nodes, with what leads to its CA.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub internode_certificate: Option<NodeCertificate>,
    /// Certificate for the ports of clients, with what leads to its CA.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client_certificate: Option<NodeCertificate>,
    /// What the mounted users are made of, to be compared with what is mounted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub users: Option<String>,
    /// `Required`: clients must show a certificate. Absent: they need none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client_auth: Option<ClientAuth>,
    /// How the pilot serves its metrics; absent: in plain text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metrics: Option<MetricsTls>,
}

impl PilotSecurity {
    /// Returns what a node on these rungs is told, without certificates and users; `None` where
    /// everything is open.
    pub fn from_modes(modes: &SecurityRungs) -> Option<Self> {
        let SecurityRungs { internode, client, authentication } = modes.clone();
        (!modes.is_open()).then(|| Self { internode, client, authentication, ..Self::default() })
    }

    /// Must clients show a certificate?
    pub fn requires_client_certificates(&self) -> bool {
        self.client_auth == Some(ClientAuth::Required)
    }

    /// Returns the rungs that the node is told.
    pub fn security_modes(&self) -> SecurityRungs {
        let Self { internode, client, authentication, .. } = self.clone();
        SecurityRungs { internode, client, authentication }
    }

    /// Returns what tells this from any other: 16 hexadecimal digits, which a pilot says again once
    /// it has stored it. What pilots of an earlier release do not know is left out: they could not say it again.
    pub fn revision(&self) -> String {
        let key = self.key.clone().map(|key| SignedKey { since: None, ..key });
        let stable_settings = Self { new_key_at: None, closes_logins: false, key, ..self.clone() };
        let json = serde_json::to_vec(&stable_settings).expect("wire types have string keys");
        Sha256::digest(json)
            .iter()
            .take(8)
            .fold(String::new(), |hex, byte| format!("{hex}{byte:02x}"))
    }

    /// Is anything encrypted?
    pub fn has_encryption(&self) -> bool {
        self.internode != InternodeTls::Off || self.client != ClientTls::Off
    }

    /// Is nothing encrypted and nobody asked?
    pub fn is_open(&self) -> bool {
        !self.has_encryption() && self.authentication == Authentication::Off
    }
}

/// A certificate that was signed for a node, and the CAs that the node trusts on the same port.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NodeCertificate {
    /// Certificate and intermediates, as PEM.
    #[serde(default)]
    pub chain: String,
    /// CAs, as PEM; at most 8.
    #[serde(default)]
    pub trust: String,
    /// SHA-256 of the public key, in hexadecimal, where the certificate is not of the node's own key: its
    /// private key is mounted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mounted_key: Option<String>,
    /// CAs whose certificates clients must show, where they must show one, as PEM; at most 8.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub clients: Option<String>,
}

impl NodeCertificate {
    /// Returns the CAs whose certificates the port accepts, as PEM: by default those that it is trusted
    /// by.
    pub fn client_trust_bundle(&self) -> &str {
        self.clients.as_ref().unwrap_or(&self.trust)
    }
}

/// The key for which certificates were signed, and the volume on which it lies.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SignedKey {
    /// SHA-256 of the public key, in hexadecimal.
    #[serde(default)]
    pub sha256: String,
    /// `metadata.uid` of the node's claim; of its pod, where it has none.
    #[serde(default)]
    pub volume: String,
    /// When it was signed first. Absent where an earlier release signed it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<Time>,
}

open_enum! {
    /// Why a node asks to have its key signed.
    pub enum RequestReason {
        /// It has no certificate.
        #[default]
        First,
        /// Its certificate is at two thirds of its life, or its owner asked for another.
        Renewal,
        /// Its address or one of its names is not in its certificate.
        Address,
        /// For nothing: its key is there to be signed again where names or CAs change.
        Standing,
    }
}

/// What a node uses of what it was told.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PilotSecurityStatus {
    /// Revision of the last `spec.security` that the pilot stored: with it the node starts again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stored: Option<String>,
    /// What the pilot asks to have signed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request: Option<CertificateRequest>,
    /// What the port between nodes showed in a handshake.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub internode: Option<ServedCertificate>,
    /// What the port for clients showed in a handshake.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client: Option<ServedCertificate>,
    /// What the users that the database has are made of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub users: Option<String>,
    /// With what the database was started; while none runs, with what it will be. Absent where it is
    /// open and nothing else is said here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rungs: Option<SecurityRungs>,
    /// How clients are connected, where the node takes both TLS and plain text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub clients: Option<ClientConnections>,
}

/// Connections of clients to a node that takes both TLS and plain text.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ClientConnections {
    /// Number of connections with TLS.
    #[serde(default)]
    pub tls: i32,
    /// Number of connections without.
    #[serde(default)]
    pub plain: i32,
    /// Some of the addresses from which those without come.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub plain_from: Vec<String>,
}

/// A request to sign a node's key.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct CertificateRequest {
    /// PKCS#10 request as PEM. Of it the key is read, and nothing else.
    #[serde(default)]
    pub csr: String,
    /// Why it is asked for.
    #[serde(default)]
    pub reason: RequestReason,
    /// The key that is to take the place of the one on record.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub new_key: Option<NewKeyRequest>,
}

/// A request to sign a new key of a node, in place of the one on record.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NewKeyRequest {
    /// PKCS#10 request as PEM. Of it the key is read, and nothing else.
    #[serde(default)]
    pub csr: String,
    /// Signature of the key on record over the request, in base64.
    #[serde(default)]
    pub proof: String,
    /// The `newKeyAt` for which the key was made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub asked_at: Option<Time>,
}

/// A certificate as a port showed it in a handshake.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ServedCertificate {
    /// SHA-256 of the certificate, in hexadecimal.
    #[serde(default)]
    pub sha256: String,
    /// Since when it is valid.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_before: Option<Time>,
    /// Until when it is valid.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_after: Option<Time>,
    /// SHA-256 of the public key of the CA that it leads to, in hexadecimal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub authority: Option<String>,
    /// SHA-256 of the public keys of the CAs that the port accepts from other nodes, as it said in
    /// the handshake.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub trust: Vec<String>,
}

/// Lists of peers, in the terms of a NetworkPolicy; one without entries lets everybody in. The pods of
/// a cluster always reach each other.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NetworkAccess {
    /// `Managed`: Navigator keeps a NetworkPolicy for the pods, and the lists below hold where the
    /// network enforces policies. `None` (default): it keeps none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy: Option<String>,
    /// Who may reach the ports for clients.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub clients: Vec<NetworkPolicyPeer>,
    /// Who may reach the metrics of the pilots.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub monitoring: Vec<NetworkPolicyPeer>,
    /// Who may reach the ports between nodes, beside the pods of the cluster: nodes of the same
    /// database cluster elsewhere. Without entries nobody else, unless the cluster joins such nodes
    /// (`additionalSeeds`): then everybody.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub internode: Vec<NetworkPolicyPeer>,
}

impl NetworkAccess {
    /// Is anybody named in one of the lists?
    pub fn has_peers(&self) -> bool {
        let Self { policy: _, clients, monitoring, internode } = self;
        [clients, monitoring, internode].into_iter().any(|peers| !peers.is_empty())
    }
}
