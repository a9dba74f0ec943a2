//! Closes the connections of logins whose password changed. Cassandra looks at a password when a
//! client logs in, and never again.
//!
//! Cassandra has no command that closes the connections of one login. So the pilot restarts the native
//! transport of its own node, which closes all of them, where such a login is connected and nowhere
//! else. The nodes of a ring take turns by their addresses, each some time after it saw the change. No
//! message says whose turn it is, so two nodes that saw it at different times may come together.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt, fs, io,
    net::{IpAddr, SocketAddr},
    path::{Path, PathBuf},
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::time::sleep;
use tracing::info;

use super::{
    CassandraDriver,
    access::NodeAccess,
    node_view::{LiveNodes, STORAGE_SERVICE},
    roles::RoleRow,
    security::{CONNECTIONS, is_own},
};
use crate::pilot::{
    clients::jolokia::{OperationOutcome, PATIENCE},
    driver::{DatabaseNode, Error},
    volume::config_files::write_whole,
};

/// Name of the file, in the configuration folder. It holds hashes of passwords.
const FILE: &str = "navigator-passwords.json";
/// Passwords that the node let somebody in with; what comes after is asked of the ring again.
const CREDENTIALS: &str = "org.apache.cassandra.auth:type=CredentialsCache";
/// How long a login may take that began with the former password.
const LOGIN: Duration = Duration::from_secs(2);
/// What the operations are that restart the native transport, and their limit: 5.0 waits 12 s for
/// requests under way.
const RESTART: [&str; 2] = ["stopNativeTransport()", "startNativeTransport()"];
const RESTART_LIMIT: Duration = Duration::from_secs(50);
/// Time of one node for its turn, and of all nodes of a ring at most.
const TURN: Duration = Duration::from_secs(20);
const ALL_TURNS: Duration = Duration::from_secs(600);

/// The passwords that the ring had while the database has run, as hashes, by the names of the roles.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
struct SeenPasswords {
    /// Those at the last look.
    hashes: BTreeMap<String, String>,
    /// Those at the last look of logins that had another one before, and whose connections were not
    /// closed since.
    changed: BTreeMap<String, String>,
    /// The restart of the native transport was asked for, and its end was not seen.
    restarting: bool,
}

impl SeenPasswords {
    /// Takes the roles of the ring; `is_ours` says whose connections are closed.
    fn record_rows(&mut self, rows: &[RoleRow], is_ours: impl Fn(&RoleRow) -> bool) {
        for row in rows {
            let Some(hash) = &row.hash else { continue };
            let old_hash = self.hashes.insert(row.name.clone(), hash.clone());
            if old_hash.is_some_and(|old_hash| old_hash != *hash) && is_ours(row) {
                self.changed.insert(row.name.clone(), hash.clone());
            }
        }
    }

    /// Forgets changes before which no connection is left. A login that has changed once more since
    /// stays.
    fn remove_closed(&mut self, closed_hashes: &BTreeMap<String, String>) {
        self.changed.retain(|name, hash| closed_hashes.get(name) != Some(hash));
    }
}

/// What this program knows of the file.
#[derive(Default)]
struct KnownPasswords {
    /// `None`: it was neither read nor written.
    seen: Option<SeenPasswords>,
    /// Since when there are connections to close.
    since: Option<Instant>,
}

/// The [`SeenPasswords`] of the database that runs, in a file that the next program of this pilot
/// finds. Another run of the database has no connections of this one.
pub(super) struct PasswordRecord {
    path: PathBuf,
    known: Mutex<KnownPasswords>,
    login: Duration,
}

/// Shows no hash.
impl fmt::Debug for PasswordRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { path, known: _, login: _ } = self;
        f.debug_struct("PasswordRecord").field("path", path).finish_non_exhaustive()
    }
}

impl PasswordRecord {
    /// Names the file in a configuration folder. Reads nothing.
    pub(super) fn new(config: &Path) -> Self {
        Self { path: config.join(FILE), known: Mutex::default(), login: LOGIN }
    }

    fn lock_passwords(&self) -> MutexGuard<'_, KnownPasswords> {
        let mut passwords = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if passwords.seen.is_none() {
            let content = fs::read(&self.path).ok();
            let stored_passwords = content.and_then(|json| serde_json::from_slice(&json).ok());
            passwords.seen = Some(stored_passwords.unwrap_or_default());
        }
        passwords
    }

    /// Begins again, for a run of the database to which no client is connected.
    pub(super) fn clear(&self) -> Result<(), Error> {
        match fs::remove_file(&self.path) {
            Err(source) if source.kind() != io::ErrorKind::NotFound => {
                return Err(Error::Write { path: self.path.clone(), source });
            }
            _ => {}
        }
        *self.lock_passwords() =
            KnownPasswords { seen: Some(SeenPasswords::default()), since: None };
        Ok(())
    }

    /// Notes the passwords of the ring's roles; `is_ours` says whose connections are closed.
    pub(super) fn record_rows(
        &self,
        rows: &[RoleRow],
        is_ours: impl Fn(&RoleRow) -> bool,
    ) -> Result<(), Error> {
        self.update(|seen_passwords| seen_passwords.record_rows(rows, is_ours))
    }

    /// Returns the logins whose password changed, with the hashes of the present ones, and for how long
    /// this program has known it.
    fn changed_hashes(&self) -> (BTreeMap<String, String>, Duration) {
        let mut passwords = self.lock_passwords();
        let hashes = passwords
            .seen
            .as_ref()
            .map(|seen_passwords| seen_passwords.changed.clone())
            .unwrap_or_default();
        if hashes.is_empty() {
            passwords.since = None;
            return (hashes, Duration::ZERO);
        }
        let since = *passwords.since.get_or_insert_with(Instant::now);
        (hashes, since.elapsed())
    }

    fn is_restarting(&self) -> bool {
        self.lock_passwords().seen.as_ref().is_some_and(|seen_passwords| seen_passwords.restarting)
    }

    /// What is not written down is not known either: the next look tries again.
    fn update(&self, change: impl FnOnce(&mut SeenPasswords)) -> Result<(), Error> {
        let mut passwords = self.lock_passwords();
        let mut seen_passwords = passwords.seen.clone().unwrap_or_default();
        change(&mut seen_passwords);
        if passwords.seen.as_ref() != Some(&seen_passwords) {
            let json = serde_json::to_vec(&seen_passwords).expect("it is made of texts");
            write_whole(&self.path, &json, 0o600)?;
            passwords.seen = Some(seen_passwords);
        }
        Ok(())
    }
}

impl CassandraDriver {
    /// Closes the connections of logins whose password changed while the database has run, when it is
    /// this node's turn. Returns once none of them is left.
    pub(super) async fn close_outdated(
        &self,
        node: &DatabaseNode,
        access: &NodeAccess,
    ) -> Result<(), Error> {
        let (changed_hashes, wait_time) = self.passwords.changed_hashes();
        if changed_hashes.is_empty() || !access.asks_passwords {
            return Ok(());
        }
        let jolokia = self.jolokia()?;
        // The ring has the new passwords: from here on the former ones let nobody in.
        let invalidate_outcome =
            jolokia.execute_operation(CREDENTIALS, "invalidate()", &json!([]), PATIENCE).await?;
        check_outcome(invalidate_outcome, "the node still goes by former passwords")?;
        sleep(self.passwords.login).await;
        let own_address = self.session.local_address().await;
        let connections: Vec<Value> = jolokia.read_attribute(CONNECTIONS, "Value").await?;
        let open_users = connected_users(&connections, &changed_hashes, own_address);
        if open_users.is_empty() {
            return self
                .passwords
                .update(|seen_passwords| seen_passwords.remove_closed(&changed_hashes));
        }
        let names = open_users.into_iter().collect::<Vec<_>>().join(", ");
        let remaining =
            restart_delay(node.address, &self.driver_state().live).saturating_sub(wait_time);
        if !remaining.is_zero() {
            return Err(Error::NotYet(format!(
                "connections of {names} are from before the password changed, and are closed in {} s: \
                 the nodes take turns",
                remaining.as_secs() + 1
            )));
        }
        let mode: String = jolokia.read_attribute(STORAGE_SERVICE, "OperationMode").await?;
        if mode != "NORMAL" {
            // Cassandra would stop the native transport, and not start it again.
            return Err(Error::NotYet(format!(
                "connections of {names} are from before the password changed, and cannot be closed \
                 while the node is {mode}"
            )));
        }
        info!(names, "Restarting the native transport: a password changed");
        self.session.close().await;
        self.passwords.update(|seen_passwords| seen_passwords.restarting = true)?;
        let restart_outcome = jolokia.execute_all(STORAGE_SERVICE, &RESTART, RESTART_LIMIT).await?;
        check_outcome(
            restart_outcome,
            "connections from before a password changed are not closed yet",
        )?;
        self.passwords.update(|seen_passwords| {
            seen_passwords.remove_closed(&changed_hashes);
            seen_passwords.restarting = false;
        })
    }

    /// Starts the native transport where it may have been stopped and not started. Where it runs,
    /// Cassandra does nothing.
    pub(super) async fn finish_restart(&self) -> Result<(), Error> {
        if !self.passwords.is_restarting() {
            return Ok(());
        }
        let start = RESTART[1];
        let jolokia = self.jolokia()?;
        let start_outcome =
            jolokia.execute_operation(STORAGE_SERVICE, start, &json!([]), PATIENCE).await?;
        check_outcome(start_outcome, "the native transport was stopped, and does not start")?;
        self.passwords.update(|seen_passwords| seen_passwords.restarting = false)
    }
}

/// Fails unless the operation has ended well; it is tried again.
fn check_outcome(outcome: OperationOutcome, message: &str) -> Result<(), Error> {
    match outcome {
        OperationOutcome::Done(_) => Ok(()),
        OperationOutcome::Failed(reason) => Err(Error::NotYet(format!("{message}: {reason}"))),
        OperationOutcome::StillRunning => Err(Error::NotYet(message.to_owned())),
    }
}

/// Returns which of the logins are connected, but for the pilot's own connection.
fn connected_users(
    connections: &[Value],
    changed_hashes: &BTreeMap<String, String>,
    own_address: Option<SocketAddr>,
) -> BTreeSet<String> {
    let others = connections.iter().filter(|connection| !is_own(connection, own_address));
    let names = others.filter_map(|connection| connection["user"].as_str());
    names.filter(|name| changed_hashes.contains_key(*name)).map(str::to_owned).collect()
}

/// Returns how long a node waits for the nodes of the ring that come before it.
fn restart_delay(own_address: IpAddr, live: &LiveNodes) -> Duration {
    let addresses: BTreeSet<&IpAddr> = live.values().flatten().collect();
    let count = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
    let position = addresses.iter().filter(|other| ***other < own_address).count();
    TURN.min(ALL_TURNS / count(addresses.len().max(1))) * count(position)
}

#[cfg(test)]
mod tests;
