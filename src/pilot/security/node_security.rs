//! What a node must have before its database starts: its key, and certificates of it.

use std::{
    path::PathBuf,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use tokio::time::Instant;
use tracing::{info, warn};

use super::{
    SecurityReading, SecurityReport,
    findings::{self, CertificateFindings, CertificateQuestion},
    node_key::{self, NextKey, NodeKey, NodeKeyError, NodeKeys},
    users_mount,
};
use crate::{
    api::v1beta1::{Authentication, CertificateRequest, NewKeyRequest, PilotSecurity},
    engine::{pki::PrivateKey, users::UsersDocument},
    error::chain,
    machinery::x509::CertificateDetails,
    pilot::{
        driver::{DatabaseNode, Driver, Error, SecuredDatabase},
        process::supervisor::ProcessUser,
        tls::{NodeCertificates, TLS_FOLDER, TlsFolder},
        volume::pilot_files::PilotFiles,
    },
};

/// How long a start waits for a certificate with the node's new address, where the node has one
/// without it: nodes do not compare addresses, some clients do.
const ADDRESS_WAIT: Duration = Duration::from_secs(10);

/// The security of one node: where its files are, and its key once that was read. Clones share it.
#[derive(Clone, Debug)]
pub struct NodeSecurity {
    config: PathBuf,
    files: PilotFiles,
    /// Where the users of the database are mounted.
    pub(super) users: PathBuf,
    /// The user whom the database runs as, where that is not the pilot's.
    user: Option<ProcessUser>,
    known: Arc<Mutex<SecurityMemory>>,
}

#[derive(Debug, Default)]
struct SecurityMemory {
    key: Option<Arc<NodeKey>>,
    /// The key that is to take its place.
    next: Option<Arc<NextKey>>,
    /// That key was looked for on the volume.
    next_is_known: bool,
    /// Since when a start has waited for a certificate with the node's address.
    address_wait: Option<Instant>,
}

/// The keys that lie on a node's volume.
struct OwnKeys {
    own: Arc<NodeKey>,
    former: Option<Arc<NodeKey>>,
    new: Option<NewKeyRequest>,
}

/// With what a database is to be started.
#[derive(Debug)]
pub struct StartSecurity {
    keys: Option<NodeKeys>,
    certificates: NodeCertificates,
    asks_passwords: bool,
    /// Revisions of users with which it may start: the one in the spec, and the one that it had.
    users: Vec<String>,
}

impl NodeSecurity {
    /// Names the places of one node. Reads nothing.
    pub fn new(
        files: PilotFiles,
        config: PathBuf,
        users: PathBuf,
        user: Option<ProcessUser>,
    ) -> Self {
        Self { config, files, users, user, known: Arc::default() }
    }

    fn lock_memory(&self) -> MutexGuard<'_, SecurityMemory> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn tls_folder(&self) -> TlsFolder {
        TlsFolder::new(&self.config)
    }

    /// Reads or makes the node's key. For a caller that may block.
    pub(super) fn ensure_key(&self) -> Result<Arc<NodeKey>, NodeKeyError> {
        if let Some(key) = &self.lock_memory().key {
            return Ok(key.clone());
        }
        let key = Arc::new(NodeKey::ensure(&self.files)?);
        self.lock_memory().key = Some(key.clone());
        Ok(key)
    }

    /// Returns the certificate that the node shows to clients, as its database has it or will have it,
    /// and its key, both as PEM; `None` while there is none. For a caller that may block.
    pub fn client_certificate(&self, security: &PilotSecurity) -> Option<(String, String)> {
        let installed = self
            .tls_folder()
            .read_current()
            .ok()
            .flatten()
            .and_then(|certificates| certificates.client);
        let own_key = self.ensure_key().ok()?;
        let next = self.next_key(&own_key);
        [installed, security.client_certificate.clone()].into_iter().flatten().find_map(
            |certificate| {
                let mounted = certificate
                    .mounted_key
                    .as_ref()
                    .and_then(|_| node_key::read_mounted_key(&self.users));
                let next = next.as_ref().map(|next| &next.own.key);
                let keys = match certificate.mounted_key {
                    Some(_) => [mounted.as_ref(), None],
                    None => [Some(&own_key.key), next],
                };
                let details = CertificateDetails::from_pem(&certificate.chain)?;
                let key = keys
                    .into_iter()
                    .flatten()
                    .find(|key| key.public_key_sha256() == details.key_sha256)?;
                Some((certificate.chain, key.to_pem()))
            },
        )
    }

    /// Returns the key that is to take the place of the node's, where there is one that can be read.
    fn next_key(&self, own_key: &NodeKey) -> Option<Arc<NextKey>> {
        if self.lock_memory().next_is_known {
            return self.lock_memory().next.clone();
        }
        match NextKey::read(&self.files, own_key) {
            Ok(next) => {
                let next = next.map(Arc::new);
                self.set_next_key(next.clone());
                next
            }
            Err(error) => {
                warn!(error = %chain(&error), "The node's next private key cannot be read");
                None
            }
        }
    }

    fn set_next_key(&self, next: Option<Arc<NextKey>>) {
        let mut memory = self.lock_memory();
        (memory.next, memory.next_is_known) = (next, true);
    }

    /// Returns the node's key by the record in the spec, the one before it where certificates of that
    /// may be in use, and what is to be signed in its place.
    fn resolve_keys(&self, security: &PilotSecurity) -> Result<OwnKeys, NodeKeyError> {
        let own_key = self.ensure_key()?;
        let on_record = security.key.as_ref().map(|key| key.sha256.as_str());
        let next = self.next_key(&own_key);
        if on_record != Some(&own_key.key.public_key_sha256()) {
            let next =
                next.filter(|next| Some(next.own.key.public_key_sha256().as_str()) == on_record);
            return Ok(match next {
                Some(next) => OwnKeys { own: next.own.clone(), former: Some(own_key), new: None },
                None => OwnKeys { own: own_key, former: None, new: None },
            });
        }
        let Some(asked_at) = &security.new_key_at else {
            if next.is_some() {
                // Nothing of it was signed, and nothing asks for it any more.
                if let Err(error) = self.files.remove_next_key() {
                    warn!(%error, "The node's next private key cannot be removed");
                }
                self.set_next_key(None);
            }
            return Ok(OwnKeys { own: own_key, former: None, new: None });
        };
        let next = next.filter(|next| next.is_for(asked_at));
        let next = next.or_else(|| self.make_next_key(&own_key, asked_at));
        Ok(OwnKeys { own: own_key, former: None, new: next.map(|next| next.build_request()) })
    }

    /// Makes a key that is to take the place of the node's; `None` where it cannot be kept.
    fn make_next_key(&self, own_key: &NodeKey, asked_at: &Time) -> Option<Arc<NextKey>> {
        match NextKey::generate(&self.files, own_key, asked_at) {
            Ok(next) => {
                info!("Made a new private key for the node");
                let next = Arc::new(next);
                self.set_next_key(Some(next.clone()));
                Some(next)
            }
            Err(error) => {
                warn!(error = %chain(&error), "The node's private key cannot be replaced");
                None
            }
        }
    }

    /// Makes the newest key the node's only one: certificates of it are in use. For a caller that may
    /// block.
    pub(super) fn forget_former_key(&self, keys: &NodeKeys) -> Result<(), NodeKeyError> {
        self.files.set_node_key(&keys.own.key.to_pem()).map_err(NodeKeyError::Write)?;
        self.lock_memory().key = Some(keys.own.clone());
        self.set_next_key(None);
        self.files.remove_next_key().map_err(NodeKeyError::Write)
    }

    /// Judges the certificates of the node; `in_use` are those of a database that runs. For a caller
    /// that may block.
    pub(super) fn judge_certificates(
        &self,
        node: &DatabaseNode,
        security: &PilotSecurity,
        in_use: Option<&NodeCertificates>,
    ) -> (SecurityReport, Option<(NodeKeys, CertificateFindings)>) {
        let mut report = SecurityReport::default();
        if !security.has_encryption() {
            return (report, None);
        }
        let OwnKeys { own: key, former, new } = match self.resolve_keys(security) {
            Ok(keys) => keys,
            Err(error) => {
                let message = chain(&error).to_string();
                report.certificates = Some(SecurityReading::bad("KeyUnusable", message));
                return (report, None);
            }
        };
        let is_given = security
            .client_certificate
            .as_ref()
            .is_some_and(|certificate| certificate.mounted_key.is_some());
        let mounted = is_given.then(|| node_key::read_mounted_key(&self.users)).flatten();
        let findings = build_findings(node, security, &key, mounted.as_ref(), in_use);
        let Some(findings) = findings else { return (report, None) };
        report.certificates = Some(findings.reading.clone());
        let (csr, reason) = (key.request.clone(), findings.request.clone());
        report.request = Some(CertificateRequest { csr, reason, new_key: new });
        (report, Some((NodeKeys { own: key, former, mounted: mounted.map(Arc::new) }, findings)))
    }

    /// Decides whether a database may start, and with what; `Ok(None)` where nothing is encrypted and
    /// nobody asked. The report tells what the node asks for. For a caller that may block.
    pub fn before_start(
        &self,
        driver: &dyn Driver,
        node: &DatabaseNode,
    ) -> (Option<SecurityReport>, Result<Option<StartSecurity>, Error>) {
        let security = node.pilot.spec.security.as_ref();
        let Some(security) = security.filter(|security| !security.is_open()) else {
            return (None, Ok(None));
        };
        if driver.secured_database().is_none() {
            let message = "this pilot cannot encrypt what the database sends, nor have it ask for \
                       passwords: set spec.security.mode to Open";
            return (None, Err(Error::ConfigRejected(message.to_owned())));
        }
        let asks_passwords = security.authentication == Authentication::Password;
        let former_users =
            node.pilot.status.security.as_ref().and_then(|status| status.users.as_ref());
        let users: Vec<_> = security.users.iter().chain(former_users).cloned().collect();
        let (report, findings) = self.judge_certificates(node, security, None);
        let findings = findings.map(|(keys, findings)| {
            match self.former_certificates(node, security, &keys, &findings) {
                Some(certificates) => (
                    keys,
                    CertificateFindings { usable: Some(certificates), covers: true, ..findings },
                ),
                None => (keys, findings),
            }
        });
        let start = match findings {
            Some((keys, CertificateFindings { usable: Some(certificates), covers, .. })) => {
                if !covers && self.is_waiting_for_address() {
                    let message = "waits for a certificate with the node's address";
                    return (Some(report), Err(Error::NotYet(message.to_owned())));
                }
                StartSecurity { keys: Some(keys), certificates, asks_passwords, users }
            }
            None if !security.has_encryption() => StartSecurity {
                keys: None,
                certificates: NodeCertificates::default(),
                asks_passwords,
                users,
            },
            _ => {
                let reading = report.certificates.as_ref();
                let message =
                    reading.map(|reading| format!("{}: {}", reading.reason, reading.message));
                return (Some(report), Err(Error::NotYet(message.unwrap_or_default())));
            }
        };
        (Some(report), Ok(Some(start)))
    }

    /// Returns the certificates that the database showed last, where those in the spec cannot be used and
    /// these still can.
    fn former_certificates(
        &self,
        node: &DatabaseNode,
        security: &PilotSecurity,
        keys: &NodeKeys,
        findings: &CertificateFindings,
    ) -> Option<NodeCertificates> {
        if !findings.may_use_former {
            return None;
        }
        let NodeCertificates { internode, client } = self.files.read_certificates().ok()??;
        let former_security = PilotSecurity {
            internode_certificate: internode,
            client_certificate: client,
            ..security.clone()
        };
        let former_certificates =
            build_findings(node, &former_security, &keys.own, keys.mounted.as_deref(), None)?
                .usable?;
        let reason = findings.reading.reason;
        warn!(
            reason,
            "Starting with the certificates of the last run: the spec has none that can be used"
        );
        Some(former_certificates)
    }

    /// Writes down the certificates that the database shows, for a start that finds worse ones in the
    /// spec. For a caller that may block.
    pub(super) fn keep_certificates(&self, certificates: &NodeCertificates) -> std::io::Result<()> {
        if self.files.read_certificates()?.as_ref() == Some(certificates) {
            return Ok(());
        }
        self.files.set_certificates(certificates)
    }

    /// Tells whether a start waits for a better certificate: from when it is first asked, for
    /// [`ADDRESS_WAIT`].
    fn is_waiting_for_address(&self) -> bool {
        let since = *self.lock_memory().address_wait.get_or_insert_with(Instant::now);
        since.elapsed() < ADDRESS_WAIT
    }

    /// Writes the files with which the database starts, after it was configured. A mount of users
    /// that is missing, damaged or of a revision that nobody named holds no start up: then the pilot
    /// alone may log in. For a caller that may block.
    pub async fn lay_out(
        &self,
        database: &dyn SecuredDatabase,
        node: &DatabaseNode,
        start: &StartSecurity,
    ) -> Result<(), Error> {
        let StartSecurity { keys, certificates, asks_passwords, users } = start;
        self.lock_memory().address_wait = None;
        if let Some(keys) = keys {
            let files = database.tls_files(&keys.tls_keys(certificates), certificates);
            let path = self.config.join(TLS_FOLDER);
            let install_result = self.tls_folder().install_files(&files, certificates, self.user);
            install_result.map_err(|source| Error::Write { path, source })?;
            database.pinned_leaves().set_installed([certificates]);
            keys.present_certificate(database.pinned_leaves(), certificates);
        }
        if *asks_passwords {
            let mounted = match users_mount::read_users(&self.users).await {
                Ok(mounted) => mounted,
                Err(error) => {
                    warn!(error = %chain(&error), "Starting without users: none can be read");
                    None
                }
            };
            let is_desired =
                |mounted: &UsersDocument| users.iter().any(|one| one == mounted.revision());
            let (desired_users, other_users) = match mounted {
                Some(mounted) if is_desired(&mounted) => (Some(mounted), None),
                other => (None, other),
            };
            if let Some(users) = &desired_users {
                info!(revision = users.revision(), "Starting with the mounted users");
            }
            if let Some(users) = other_users {
                let revision = users.revision();
                warn!(revision, "Starting without the mounted users: the spec names others");
            }
            database.lay_out_users(node, desired_users.as_ref())?;
        }
        Ok(())
    }

    pub(super) fn database_user(&self) -> Option<ProcessUser> {
        self.user
    }
}

/// Judges the certificates in `security` for a node with these keys.
fn build_findings(
    node: &DatabaseNode,
    security: &PilotSecurity,
    own_key: &NodeKey,
    mounted: Option<&PrivateKey>,
    in_use: Option<&NodeCertificates>,
) -> Option<CertificateFindings> {
    findings::build_findings(&CertificateQuestion {
        security,
        key_sha256: &own_key.key.public_key_sha256(),
        mounted_sha256: mounted.map(PrivateKey::public_key_sha256).as_deref(),
        pilot: node.pilot.metadata.name.as_deref().unwrap_or_default(),
        address: node.address,
        in_use,
        now: Timestamp::now(),
    })
}

#[cfg(test)]
mod tests;
