//! What a pilot is told when it starts.

use std::{net::IpAddr, path::PathBuf, time::Duration};

use sha2::{Digest, Sha256};

use crate::{
    api::v1beta1::{Instance, Pilot, PilotSpec},
    pilot::{database::DrivenDatabase, node::probes::ProbePorts, process::supervisor::ProcessUser},
};

/// Where the intent comes from and the report goes to.
#[derive(Clone)]
pub enum IntentSource {
    /// The intent is the API's. A Pilot that is missing there is made from this one, when there
    /// is one: on a host, where no controller makes it.
    Client { client: kube::Client, missing: Option<Box<Pilot>> },
    /// No API at all: the intent is this file's.
    Alone(Box<Pilot>),
}

#[derive(Clone)]
pub struct RunnerSettings {
    pub database: &'static DrivenDatabase,
    pub api: IntentSource,
    /// Name and namespace of the Pilot.
    pub name: String,
    pub namespace: String,
    /// Name of its cluster, where it was told at the start.
    pub cluster: Option<String>,
    pub address: IpAddr,
    pub home: PathBuf,
    pub data: PathBuf,
    pub config: PathBuf,
    pub shared: PathBuf,
    /// Bytes that the pilot and its database may take, where the command line says it.
    pub memory_limit: Option<u64>,
    /// The data directory must be a mount.
    pub require_mount: bool,
    /// Start although the kernel's limits are lower than the database needs.
    pub allow_low_limits: bool,
    /// The pod's uid, in Kubernetes.
    pub pod_uid: Option<String>,
    /// Name of the machine; in Kubernetes, of the node.
    pub machine: Option<String>,
    pub grace: Duration,
    /// How long a database that answered before may be silent.
    pub silence: Duration,
    pub termination_log: PathBuf,
    /// The database's lines become records of the log.
    pub records: bool,
    pub user: Option<ProcessUser>,
    /// See `runner::faults`.
    #[cfg(debug_assertions)]
    pub panic_file: Option<PathBuf>,
    pub bind: IpAddr,
    pub ports: ProbePorts,
}

impl RunnerSettings {
    pub(super) fn instance(&self) -> Instance {
        let (runtime, uid) = match &self.pod_uid {
            Some(uid) => ("Kubernetes", uid.clone()),
            None => ("Process", self.place()),
        };
        Instance { runtime: runtime.to_owned(), node: self.machine.clone(), uid: Some(uid) }
    }

    /// The limit in the Pilot's spec takes precedence over the flag.
    pub(super) fn silence_limit(&self, pilot: &PilotSpec) -> Duration {
        let said = pilot.pilot_settings.as_ref().and_then(|said| said.silence_limit_seconds);
        let seconds = said.and_then(|seconds| u64::try_from(seconds).ok());
        seconds.map_or(self.silence, Duration::from_secs)
    }

    /// The setting in the Pilot's spec takes precedence over the flag.
    pub(super) fn allows_low_limits(&self, pilot: &PilotSpec) -> bool {
        let said = pilot.pilot_settings.as_ref().and_then(|said| said.allow_low_limits);
        said.unwrap_or(self.allow_low_limits)
    }

    /// An id that is the same for every process at this address with these data, and for no other.
    fn place(&self) -> String {
        let place = format!("{} {}", self.address, self.data.display());
        let hash = Sha256::digest(place);
        hash.iter().take(16).fold(String::new(), |hex, byte| format!("{hex}{byte:02x}"))
    }
}
