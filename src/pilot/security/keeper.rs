//! Keeps the security of a running database true: certificates are exchanged when the spec has
//! others, users when others are mounted; both count once the database showed that it took them.

use std::{sync::Arc, time::Duration};

use jiff::Timestamp;
use tokio::time::{Instant, sleep};
use tracing::{info, warn};

use super::{
    NodeSecurity, SecurityReading, SecurityReport,
    findings::CertificateFindings,
    node_key::NodeKeys,
    report::served_certificate,
    users_mount::{self, UsersMountError},
};
use crate::{
    api::v1beta1::{Authentication, PilotSecurity, ServedCertificate},
    engine::{pki::CertificateUse, users::UsersDocument},
    error::chain,
    pilot::{
        driver::{DatabaseNode, Driver, Error, SecuredDatabase, SecuredPort},
        tls::{self, FormerFiles, HandshakeError, NodeCertificates},
        volume::data_volume::{Volume, VolumeTimeout},
    },
};

/// Pause between two turns while something is waited for, and while nothing is.
const SOON: Duration = Duration::from_secs(2);
const AT_REST: Duration = Duration::from_secs(30);
/// Limit for one handshake, and the pause between two looks at a port that showed what it is to.
const HANDSHAKE: Duration = Duration::from_secs(5);
const LOOK_EVERY: Duration = Duration::from_secs(300);
/// How long a database may take to show a certificate that was exchanged (5 s were measured), and
/// the pause between two looks meanwhile.
const RELOAD: Duration = Duration::from_secs(30);
const RELOAD_POLL: Duration = Duration::from_secs(1);
/// After how long something is tried again that the database did not take.
const AGAIN: Duration = Duration::from_secs(300);

/// The security of one run of the database.
pub struct SecurityKeeper {
    own: NodeSecurity,
    driver: Arc<dyn Driver>,
    volume: Volume,
    /// The certificates whose files the database finds.
    installed: Option<NodeCertificates>,
    /// Those that were written down on the volume.
    kept: Option<NodeCertificates>,
    served: ServedPorts,
    next_look: Option<Instant>,
    failed: Option<FailedExchange>,
    users: AppliedUsers,
    /// What was told last.
    last: SecurityReport,
    reload_limit: Duration,
}

/// What the ports showed in this run.
#[derive(Debug, Default)]
struct ServedPorts {
    internode: Option<ServedCertificate>,
    client: Option<ServedCertificate>,
    /// Every port showed what it is to, at least once.
    all: bool,
    /// What a port shows in place of that.
    wrong: Option<String>,
}

/// Certificates that the database did not show.
#[derive(Debug)]
struct FailedExchange {
    certificates: NodeCertificates,
    when: Instant,
    why: String,
}

#[derive(Debug, Default)]
struct AppliedUsers {
    /// Revision of the users that the database showed to have.
    revision: Option<String>,
    /// When it showed that.
    checked: Option<Instant>,
    /// A revision that it would not take, when that was, and why.
    refused: Option<(String, Instant, String)>,
}

impl SecurityKeeper {
    pub fn new(node_security: NodeSecurity, driver: Arc<dyn Driver>, volume: Volume) -> Self {
        Self {
            own: node_security,
            driver,
            volume,
            installed: None,
            kept: None,
            served: ServedPorts::default(),
            next_look: None,
            failed: None,
            users: AppliedUsers::default(),
            last: SecurityReport::default(),
            reload_limit: RELOAD,
        }
    }

    /// Does what is to be done now. Returns what is to be told, and after how long to come again at
    /// the latest; `None` where nothing is to be secured. May be dropped at any await: then the next
    /// keeper finds what was done.
    pub async fn reconcile(&mut self, node: &DatabaseNode) -> Option<(SecurityReport, Duration)> {
        let security = node.pilot.spec.security.clone()?;
        let driver = self.driver.clone();
        let database = driver.secured_database()?;
        let running_security = database.running_security();
        let runs_encrypted = !running_security.ports.is_empty();
        let Ok((mut report, findings)) =
            self.judge_certificates(node, &security, runs_encrypted).await
        else {
            // The volume hangs, which its own conditions tell.
            return Some((self.last.clone(), SOON));
        };
        let mut is_settled = true;
        if runs_encrypted {
            if let Some((keys, findings)) = &findings {
                if let Some(installed) = &self.installed {
                    keys.present_certificate(database.pinned_leaves(), installed);
                }
                if !self.served.all {
                    // What is shown now tells whether it is worth to be put back.
                    self.check_ports(database, &running_security.ports, keys).await;
                }
                self.exchange_certificates(
                    database,
                    node,
                    &running_security.ports,
                    (keys, findings),
                )
                .await;
                let is_shown = self.check_ports(database, &running_security.ports, keys).await;
                is_settled &= is_shown;
                if is_shown {
                    self.keep_certificates().await;
                    self.forget_former_key(keys).await;
                }
                // Nobody tells when the kubelet brings it.
                is_settled &= !findings.awaits_key;
            }
            report.internode.clone_from(&self.served.internode);
            report.client.clone_from(&self.served.client);
            let is_good = report.certificates.as_ref().is_some_and(|reading| reading.good);
            let failure = self.failed.as_ref().map(|failed| failed.why.clone());
            if let Some(reason) = failure.or(self.served.wrong.clone()).filter(|_| is_good) {
                report.certificates = Some(SecurityReading::bad("ReloadFailed", reason));
            }
        }
        if running_security.serves_both {
            // What cannot be asked is not known: the last answer is not told again.
            report.clients = database.client_connections().await.ok();
        }
        let requires_password = security.authentication == Authentication::Password;
        if running_security.takes_users && (requires_password || security.users.is_some()) {
            let reading = self.keep_users(database, node, security.users.as_deref()).await;
            is_settled &= reading.good;
            report.users.clone_from(&self.users.revision);
            report.users_applied = Some(reading);
        }
        self.last = report.clone();
        Some((report, if is_settled { AT_REST } else { SOON }))
    }

    /// Judges the certificates in the spec, and finds out at first with which the database runs.
    async fn judge_certificates(
        &mut self,
        node: &DatabaseNode,
        security: &PilotSecurity,
        runs_encrypted: bool,
    ) -> Result<(SecurityReport, Option<(NodeKeys, CertificateFindings)>), VolumeTimeout> {
        let (node_security, node, security) = (self.own.clone(), node.clone(), security.clone());
        let installed_certificates = self.installed.clone();
        let visit = self.volume.visit(move |_| {
            let in_use = installed_certificates
                .or_else(|| node_security.tls_folder().read_current().ok().flatten());
            let in_use = in_use.filter(|_| runs_encrypted);
            let (report, findings) =
                node_security.judge_certificates(&node, &security, in_use.as_ref());
            (in_use, report, findings)
        });
        let (in_use, report, findings) = visit.await?;
        self.installed = in_use;
        Ok((report, findings))
    }

    /// Puts the certificates of the spec in the place of those in use, where they are others. Puts the
    /// old ones back when the database does not show the new ones, and had shown the old ones.
    async fn exchange_certificates(
        &mut self,
        database: &dyn SecuredDatabase,
        node: &DatabaseNode,
        ports: &[SecuredPort],
        (keys, findings): (&NodeKeys, &CertificateFindings),
    ) {
        let Some(desired_certificates) = &findings.usable else { return };
        if self.installed.as_ref() == Some(desired_certificates) {
            self.failed = None;
            return;
        }
        let last_failure =
            self.failed.as_ref().filter(|failed| failed.certificates == *desired_certificates);
        if last_failure.is_some_and(|failed| failed.when.elapsed() < AGAIN) {
            return;
        }
        info!("Exchanging the node's certificates");
        let old_certificates = self.installed.clone();
        database
            .pinned_leaves()
            .set_installed([desired_certificates].into_iter().chain(&old_certificates));
        let failure = match self.install_certificates(database, keys, desired_certificates).await {
            Err(reason) => Some(reason),
            Ok(former_files) => {
                self.installed = Some(desired_certificates.clone());
                let reload_result = self.reload_and_verify(database, node, ports, keys).await;
                match reload_result {
                    Ok(()) => None,
                    Err(reason) => {
                        self.put_back(database, node, former_files, old_certificates).await;
                        Some(reason)
                    }
                }
            }
        };
        self.next_look = None;
        self.failed = failure.map(|why| {
            warn!(error = why, "Certificates were not taken");
            FailedExchange { certificates: desired_certificates.clone(), when: Instant::now(), why }
        });
        if self.failed.is_none() {
            info!("The database shows the node's new certificates");
        }
    }

    /// Writes down what the database shows, once for each installation.
    async fn keep_certificates(&mut self) {
        let Some(shown_certificates) =
            self.installed.clone().filter(|shown| self.kept.as_ref() != Some(shown))
        else {
            return;
        };
        let (node_security, certificates) = (self.own.clone(), shown_certificates.clone());
        match self.volume.visit(move |_| node_security.keep_certificates(&certificates)).await {
            Ok(Ok(())) => self.kept = Some(shown_certificates),
            Ok(Err(error)) => warn!(%error, "The certificates cannot be written down"),
            Err(error) => warn!(%error, "The certificates cannot be written down"),
        }
    }

    /// Forgets the node's former key, once the database shows certificates of the newest one.
    async fn forget_former_key(&self, keys: &NodeKeys) {
        let is_newest =
            self.installed.as_ref().is_some_and(|certificates| keys.are_newest(certificates));
        if keys.former.is_none() || !is_newest {
            return;
        }
        let (node_security, keys) = (self.own.clone(), keys.clone());
        match self.volume.visit(move |_| node_security.forget_former_key(&keys)).await {
            Ok(Ok(())) => info!("The node's new private key took the place of the former one"),
            Ok(Err(error)) => warn!(error = %chain(&error), "The former key cannot be forgotten"),
            Err(error) => warn!(%error, "The former key cannot be forgotten"),
        }
    }

    async fn install_certificates(
        &self,
        database: &dyn SecuredDatabase,
        keys: &NodeKeys,
        desired_certificates: &NodeCertificates,
    ) -> Result<Option<FormerFiles>, String> {
        let files = database.tls_files(&keys.tls_keys(desired_certificates), desired_certificates);
        let (tls, user, certificates) =
            (self.own.tls_folder(), self.own.database_user(), desired_certificates.clone());
        let visit_result =
            self.volume.visit(move |_| tls.install_files(&files, &certificates, user)).await;
        let install_result = visit_result.map_err(|volume_timeout| volume_timeout.to_string())?;
        install_result.map_err(|error| format!("failed to write the new certificates: {error}"))
    }

    /// Has the database read its files again, and waits until it shows what lies there.
    async fn reload_and_verify(
        &mut self,
        database: &dyn SecuredDatabase,
        node: &DatabaseNode,
        ports: &[SecuredPort],
        keys: &NodeKeys,
    ) -> Result<(), String> {
        let reload_result = database.reload_tls(node).await;
        reload_result.map_err(|error| format!("failed to reload: {}", chain(&error)))?;
        let since = Instant::now();
        loop {
            let reason = match self.shake_hands(database, ports, keys).await {
                Ok(()) => return Ok(()),
                Err(reason) => reason,
            };
            if since.elapsed() >= self.reload_limit {
                return Err(format!("not shown after {:?}: {reason}", self.reload_limit));
            }
            sleep(RELOAD_POLL).await;
        }
    }

    async fn put_back(
        &mut self,
        database: &dyn SecuredDatabase,
        node: &DatabaseNode,
        former_files: Option<FormerFiles>,
        old_certificates: Option<NodeCertificates>,
    ) {
        let Some(former_files) = former_files.filter(|_| self.served.all) else {
            // No port of this run showed the old ones either: nothing is gained by them.
            return;
        };
        let tls = self.own.tls_folder();
        match self.volume.visit(move |_| tls.put_back(former_files)).await {
            Ok(Ok(())) => self.installed = old_certificates,
            Ok(Err(error)) => warn!(%error, "Former certificates cannot be put back"),
            Err(error) => warn!(%error, "Former certificates cannot be put back"),
        }
        if let Err(error) = database.reload_tls(node).await {
            warn!(error = %chain(&error), "Former certificates were not read again");
        }
    }

    /// Looks at the ports when it is time to. Returns whether all of them showed what they are to.
    async fn check_ports(
        &mut self,
        database: &dyn SecuredDatabase,
        ports: &[SecuredPort],
        keys: &NodeKeys,
    ) -> bool {
        if self.next_look.is_some_and(|next| Instant::now() < next) {
            return self.served.all;
        }
        let handshakes = self.shake_hands(database, ports, keys).await;
        self.next_look = handshakes.is_ok().then(|| Instant::now() + LOOK_EVERY);
        handshakes.is_ok()
    }

    /// Shakes hands with every port. Fails with the first that does not show what lies in its files.
    async fn shake_hands(
        &mut self,
        database: &dyn SecuredDatabase,
        ports: &[SecuredPort],
        keys: &NodeKeys,
    ) -> Result<(), String> {
        let Some(installed) = self.installed.clone() else { return Err("no files".to_owned()) };
        let pem = keys.node_key(&installed).to_pem();
        self.served.wrong = None;
        for SecuredPort { usage, shows, address } in ports.iter().copied() {
            let own_certificate = installed
                .internode
                .as_ref()
                .map(|certificate| (certificate.chain.as_str(), pem.as_str()));
            // Only nodes show each other their certificates.
            let own_certificate = own_certificate.filter(|_| usage == CertificateUse::Internode);
            let handshake =
                tls::shake_hands(address, database.pinned_leaves(), own_certificate, HANDSHAKE)
                    .await;
            let place = match usage {
                CertificateUse::Internode => &mut self.served.internode,
                CertificateUse::Client => &mut self.served.client,
            };
            match handshake {
                Ok(port) => {
                    let trust = installed.trust(shows);
                    *place = served_certificate(&port, &trust, Timestamp::now());
                    let shown_sha256 = place.as_ref().map(|certificate| &certificate.sha256);
                    let expected = installed.leaf(shows).map(|leaf| leaf.sha256);
                    if expected.is_none() || expected.as_ref() != shown_sha256 {
                        return Err(format!("{address} shows the former certificate"));
                    }
                    if !port.accepts.is_empty() && !trust.has_just_subjects(&port.accepts) {
                        return Err(format!("{address} accepts the former CAs"));
                    }
                }
                Err(error) => {
                    let text = chain(&error).to_string();
                    if matches!(error, HandshakeError::Foreign(_)) {
                        *place = None;
                        self.served.wrong = Some(text.clone());
                    }
                    return Err(text);
                }
            }
        }
        self.served.all = true;
        Ok(())
    }

    /// Brings the users of the database up to date; `wanted` is the revision in the spec. Others that
    /// are mounted are not taken: who may write a Secret may not say who logs in.
    async fn keep_users(
        &mut self,
        database: &dyn SecuredDatabase,
        node: &DatabaseNode,
        desired_revision: Option<&str>,
    ) -> SecurityReading {
        let mounted = users_mount::read_users(&self.own.users).await;
        let apply_result = match &mounted {
            Ok(Some(users)) if Some(users.revision()) == desired_revision => {
                self.apply_users(database, node, users).await
            }
            _ => Ok(()),
        };
        let current_revision = self.users.revision.as_deref();
        users_reading(desired_revision, &mounted, current_revision, apply_result)
    }

    async fn apply_users(
        &mut self,
        database: &dyn SecuredDatabase,
        node: &DatabaseNode,
        users: &UsersDocument,
    ) -> Result<(), UsersTrouble> {
        let revision = users.revision();
        let recheck = database.recheck_users();
        let is_recent = |when: Instant| recheck.is_none_or(|pause| when.elapsed() < pause);
        if self.users.revision.as_deref() == Some(revision)
            && self.users.checked.is_some_and(is_recent)
        {
            return Ok(());
        }
        if let Some((refused_revision, when, reason)) = &self.users.refused
            && refused_revision == revision
            && when.elapsed() < AGAIN
        {
            return Err(UsersTrouble::Refused(reason.clone()));
        }
        match database.apply_users(node, users).await {
            Ok(()) => {
                if self.users.revision.as_deref() != Some(revision) {
                    info!(revision, "The database has the mounted users");
                }
                self.users = AppliedUsers {
                    revision: Some(revision.to_owned()),
                    checked: Some(Instant::now()),
                    refused: None,
                };
                Ok(())
            }
            Err(Error::Refused(reason)) => {
                warn!(revision, error = reason, "The database did not take the mounted users");
                self.users.refused = Some((revision.to_owned(), Instant::now(), reason.clone()));
                Err(UsersTrouble::Refused(reason))
            }
            Err(error) => Err(UsersTrouble::Open(chain(&error).to_string())),
        }
    }
}

/// Why the database does not have the mounted users.
#[derive(Clone, Debug, PartialEq, Eq)]
enum UsersTrouble {
    Refused(String),
    /// It is not known yet.
    Open(String),
}

/// Reads the condition `UsersApplied`: the revision that is wanted, what is mounted, and what the
/// database has.
fn users_reading(
    desired_revision: Option<&str>,
    mounted: &Result<Option<UsersDocument>, UsersMountError>,
    current_revision: Option<&str>,
    apply_result: Result<(), UsersTrouble>,
) -> SecurityReading {
    let pending = |reason: String| SecurityReading::bad("UsersPending", reason);
    let mounted_revision = match mounted {
        Ok(Some(users)) => users.revision(),
        Ok(None) => return pending("no users are mounted yet".to_owned()),
        Err(error) => {
            let message = format!("{}; the database keeps those it has", chain(error));
            return SecurityReading::bad("UsersRejected", message);
        }
    };
    match apply_result {
        Err(UsersTrouble::Refused(reason)) => SecurityReading::bad("UsersRejected", reason),
        Err(UsersTrouble::Open(reason)) => {
            pending(format!("users {mounted_revision} are being taken: {reason}"))
        }
        Ok(()) => match (desired_revision, current_revision) {
            (Some(revision), _) if revision != mounted_revision => pending(format!(
                "users {revision} are wanted, and {mounted_revision} are mounted: kubelet brings a change within \
                 two minutes"
            )),
            (None, _) => pending(format!(
                "users {mounted_revision} are mounted, and the controller has named none yet"
            )),
            _ => SecurityReading::good("UsersCurrent", current_revision.unwrap_or_default()),
        },
    }
}

#[cfg(test)]
pub(super) mod testing;
#[cfg(test)]
mod tests;
