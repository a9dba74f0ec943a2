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
    fn note(&mut self, rows: &[RoleRow], is_ours: impl Fn(&RoleRow) -> bool) {
        for row in rows {
            let Some(hash) = &row.hash else { continue };
            let before = self.hashes.insert(row.name.clone(), hash.clone());
            if before.is_some_and(|before| before != *hash) && is_ours(row) {
                self.changed.insert(row.name.clone(), hash.clone());
            }
        }
    }

    /// Forgets changes before which no connection is left. A login that has changed once more since
    /// stays.
    fn settle(&mut self, closed: &BTreeMap<String, String>) {
        self.changed.retain(|name, hash| closed.get(name) != Some(hash));
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

    fn known(&self) -> MutexGuard<'_, KnownPasswords> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if known.seen.is_none() {
            let read = fs::read(&self.path).ok();
            let seen = read.and_then(|json| serde_json::from_slice(&json).ok());
            known.seen = Some(seen.unwrap_or_default());
        }
        known
    }

    /// Begins again, for a run of the database to which no client is connected.
    pub(super) fn forget(&self) -> Result<(), Error> {
        match fs::remove_file(&self.path) {
            Err(source) if source.kind() != io::ErrorKind::NotFound => {
                return Err(Error::Write { path: self.path.clone(), source });
            }
            _ => {}
        }
        *self.known() = KnownPasswords { seen: Some(SeenPasswords::default()), since: None };
        Ok(())
    }

    /// Notes the passwords of the ring's roles; `is_ours` says whose connections are closed.
    pub(super) fn note(
        &self,
        rows: &[RoleRow],
        is_ours: impl Fn(&RoleRow) -> bool,
    ) -> Result<(), Error> {
        self.change(|seen| seen.note(rows, is_ours))
    }

    /// Returns the logins whose password changed, with the hashes of the present ones, and for how long
    /// this program has known it.
    fn changed(&self) -> (BTreeMap<String, String>, Duration) {
        let mut known = self.known();
        let changed = known.seen.as_ref().map(|seen| seen.changed.clone()).unwrap_or_default();
        if changed.is_empty() {
            known.since = None;
            return (changed, Duration::ZERO);
        }
        let since = *known.since.get_or_insert_with(Instant::now);
        (changed, since.elapsed())
    }

    fn is_restarting(&self) -> bool {
        self.known().seen.as_ref().is_some_and(|seen| seen.restarting)
    }

    /// What is not written down is not known either: the next look tries again.
    fn change(&self, change: impl FnOnce(&mut SeenPasswords)) -> Result<(), Error> {
        let mut known = self.known();
        let mut seen = known.seen.clone().unwrap_or_default();
        change(&mut seen);
        if known.seen.as_ref() != Some(&seen) {
            let json = serde_json::to_vec(&seen).expect("it is made of texts");
            write_whole(&self.path, &json, 0o600)?;
            known.seen = Some(seen);
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
        let (changed, waited) = self.passwords.changed();
        if changed.is_empty() || !access.asks_passwords {
            return Ok(());
        }
        let jolokia = self.jolokia()?;
        // The ring has the new passwords: from here on the former ones let nobody in.
        let forgotten = jolokia.execute(CREDENTIALS, "invalidate()", &json!([]), PATIENCE).await?;
        done(forgotten, "the node still goes by former passwords")?;
        sleep(self.passwords.login).await;
        let own = self.session.local().await;
        let all: Vec<Value> = jolokia.attribute(CONNECTIONS, "Value").await?;
        let open = connected(&all, &changed, own);
        if open.is_empty() {
            return self.passwords.change(|seen| seen.settle(&changed));
        }
        let names = open.into_iter().collect::<Vec<_>>().join(", ");
        let left = turn(node.address, &self.seen().live).saturating_sub(waited);
        if !left.is_zero() {
            return Err(Error::NotYet(format!(
                "connections of {names} are from before the password changed, and are closed in {} s: \
                 the nodes take turns",
                left.as_secs() + 1
            )));
        }
        let mode: String = jolokia.attribute(STORAGE_SERVICE, "OperationMode").await?;
        if mode != "NORMAL" {
            // Cassandra would stop the native transport, and not start it again.
            return Err(Error::NotYet(format!(
                "connections of {names} are from before the password changed, and cannot be closed \
                 while the node is {mode}"
            )));
        }
        info!(names, "Restarting the native transport: a password changed");
        self.session.close().await;
        self.passwords.change(|seen| seen.restarting = true)?;
        let restarted = jolokia.execute_all(STORAGE_SERVICE, &RESTART, RESTART_LIMIT).await?;
        done(restarted, "connections from before a password changed are not closed yet")?;
        self.passwords.change(|seen| {
            seen.settle(&changed);
            seen.restarting = false;
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
        let started = jolokia.execute(STORAGE_SERVICE, start, &json!([]), PATIENCE).await?;
        done(started, "the native transport was stopped, and does not start")?;
        self.passwords.change(|seen| seen.restarting = false)
    }
}

/// Fails unless the operation has ended well; it is tried again.
fn done(outcome: OperationOutcome, otherwise: &str) -> Result<(), Error> {
    match outcome {
        OperationOutcome::Done(_) => Ok(()),
        OperationOutcome::Failed(why) => Err(Error::NotYet(format!("{otherwise}: {why}"))),
        OperationOutcome::StillRunning => Err(Error::NotYet(otherwise.to_owned())),
    }
}

/// Returns which of the logins are connected, but for the pilot's own connection.
fn connected(
    all: &[Value],
    changed: &BTreeMap<String, String>,
    own: Option<SocketAddr>,
) -> BTreeSet<String> {
    let others = all.iter().filter(|one| !is_own(one, own));
    let names = others.filter_map(|one| one["user"].as_str());
    names.filter(|name| changed.contains_key(*name)).map(str::to_owned).collect()
}

/// Returns how long a node waits for the nodes of the ring that come before it.
fn turn(own: IpAddr, live: &LiveNodes) -> Duration {
    let all: BTreeSet<&IpAddr> = live.values().flatten().collect();
    let count = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
    let before = all.iter().filter(|other| ***other < own).count();
    TURN.min(ALL_TURNS / count(all.len().max(1))) * count(before)
}

#[cfg(test)]
mod tests;
