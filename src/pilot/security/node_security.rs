//! What a node must have before its database starts: its key, and certificates of it.

use std::{
    path::PathBuf,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use jiff::Timestamp;
use tokio::time::Instant;
use tracing::{info, warn};

use super::{
    SecurityReading, SecurityReport,
    findings::{self, CertificateFindings, CertificateQuestion},
    node_key::{self, NodeKey, NodeKeyError, NodeKeys},
    users_mount,
};
use crate::{
    api::v1beta1::{Authentication, CertificateRequest, PilotSecurity},
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
    /// Since when a start has waited for a certificate with the node's address.
    address_wait: Option<Instant>,
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

    fn known(&self) -> MutexGuard<'_, SecurityMemory> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn tls(&self) -> TlsFolder {
        TlsFolder::new(&self.config)
    }

    /// Reads or makes the node's key. For a caller that may block.
    pub(super) fn key(&self) -> Result<Arc<NodeKey>, NodeKeyError> {
        if let Some(key) = &self.known().key {
            return Ok(key.clone());
        }
        let key = Arc::new(NodeKey::ensure(&self.files)?);
        self.known().key = Some(key.clone());
        Ok(key)
    }

    /// Returns the certificate that the node shows to clients, as its database has it or will have it,
    /// and its key, both as PEM; `None` while there is none. For a caller that may block.
    pub fn client_certificate(&self, told: &PilotSecurity) -> Option<(String, String)> {
        let installed = self.tls().current().ok().flatten().and_then(|one| one.client);
        let own = self.key().ok()?;
        [installed, told.client_certificate.clone()].into_iter().flatten().find_map(|one| {
            let mounted = one.mounted_key.as_ref().and_then(|_| node_key::mounted(&self.users));
            let key = if one.mounted_key.is_some() { mounted.as_ref()? } else { &own.key };
            let details = CertificateDetails::read(&one.chain)?;
            (details.key_sha256 == key.sha256()).then(|| (one.chain, key.to_pem()))
        })
    }

    /// Judges the certificates of the node; `in_use` are those of a database that runs. For a caller
    /// that may block.
    pub(super) fn examine(
        &self,
        node: &DatabaseNode,
        security: &PilotSecurity,
        in_use: Option<&NodeCertificates>,
    ) -> (SecurityReport, Option<(NodeKeys, CertificateFindings)>) {
        let mut report = SecurityReport::default();
        if !security.encrypts() {
            return (report, None);
        }
        let key = match self.key() {
            Ok(key) => key,
            Err(error) => {
                let message = chain(&error).to_string();
                report.certificates = Some(SecurityReading::bad("KeyUnusable", message));
                return (report, None);
            }
        };
        let is_given =
            security.client_certificate.as_ref().is_some_and(|one| one.mounted_key.is_some());
        let mounted = is_given.then(|| node_key::mounted(&self.users)).flatten();
        let mounted_sha256 = mounted.as_ref().map(PrivateKey::sha256);
        let found = findings::find(&CertificateQuestion {
            security,
            key_sha256: &key.key.sha256(),
            mounted_sha256: mounted_sha256.as_deref(),
            pilot: node.pilot.metadata.name.as_deref().unwrap_or_default(),
            address: node.address,
            in_use,
            now: Timestamp::now(),
        });
        let Some(found) = found else { return (report, None) };
        report.certificates = Some(found.reading.clone());
        let (csr, reason) = (key.request.clone(), found.request.clone());
        report.request = Some(CertificateRequest { csr, reason });
        (report, Some((NodeKeys { own: key, mounted: mounted.map(Arc::new) }, found)))
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
        if driver.security().is_none() {
            let why = "this pilot cannot encrypt what the database sends, nor have it ask for \
                       passwords: set spec.security.mode to Open";
            return (None, Err(Error::ConfigRejected(why.to_owned())));
        }
        let asks_passwords = security.authentication == Authentication::Password;
        let had = node.pilot.status.security.as_ref().and_then(|had| had.users.as_ref());
        let users: Vec<_> = security.users.iter().chain(had).cloned().collect();
        let (report, found) = self.examine(node, security, None);
        let start = match found {
            Some((keys, CertificateFindings { usable: Some(certificates), covers, .. })) => {
                if !covers && self.waits_for_address() {
                    let why = "waits for a certificate with the node's address";
                    return (Some(report), Err(Error::NotYet(why.to_owned())));
                }
                StartSecurity { keys: Some(keys), certificates, asks_passwords, users }
            }
            None if !security.encrypts() => StartSecurity {
                keys: None,
                certificates: NodeCertificates::default(),
                asks_passwords,
                users,
            },
            _ => {
                let told = report.certificates.as_ref();
                let why = told.map(|told| format!("{}: {}", told.reason, told.message));
                return (Some(report), Err(Error::NotYet(why.unwrap_or_default())));
            }
        };
        (Some(report), Ok(Some(start)))
    }

    /// Tells whether a start waits for a better certificate: from when it is first asked, for
    /// [`ADDRESS_WAIT`].
    fn waits_for_address(&self) -> bool {
        let since = *self.known().address_wait.get_or_insert_with(Instant::now);
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
        self.known().address_wait = None;
        if let Some(keys) = keys {
            let files = database.tls_files(&keys.of(certificates), certificates);
            let path = self.config.join(TLS_FOLDER);
            let written = self.tls().install(&files, certificates, self.user);
            written.map_err(|source| Error::Write { path, source })?;
            database.pins().set_installed([certificates]);
            keys.show(database.pins(), certificates);
        }
        if *asks_passwords {
            let mounted = match users_mount::read(&self.users).await {
                Ok(mounted) => mounted,
                Err(error) => {
                    warn!(error = %chain(&error), "Starting without users: none can be read");
                    None
                }
            };
            let wanted =
                |mounted: &UsersDocument| users.iter().any(|one| one == mounted.revision());
            let (wanted, other) = match mounted {
                Some(mounted) if wanted(&mounted) => (Some(mounted), None),
                other => (None, other),
            };
            if let Some(users) = &wanted {
                info!(revision = users.revision(), "Starting with the mounted users");
            }
            if let Some(users) = other {
                let revision = users.revision();
                warn!(revision, "Starting without the mounted users: the spec names others");
            }
            database.lay_out_users(node, wanted.as_ref())?;
        }
        Ok(())
    }

    pub(super) fn user(&self) -> Option<ProcessUser> {
        self.user
    }
}

#[cfg(test)]
mod tests;
