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
    /// The intent comes from the API. A Pilot that does not exist there is made from `missing`,
    /// when there is one: on a host, where no controller makes it.
    Client { client: kube::Client, missing: Option<Box<Pilot>> },
    /// There is no API: the intent is that of a Pilot in a file.
    Alone(Box<Pilot>),
}

#[derive(Clone)]
pub struct RunnerSettings {
    pub database: &'static DrivenDatabase,
    pub api: IntentSource,
    /// Name of the Pilot; `namespace` is where it lies.
    pub name: String,
    pub namespace: String,
    /// Name of the Pilot's cluster, where it was given at the start.
    pub cluster: Option<String>,
    pub address: IpAddr,
    pub home: PathBuf,
    pub data: PathBuf,
    pub config: PathBuf,
    pub shared: PathBuf,
    /// Where the users of the database are mounted.
    pub users: PathBuf,
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
    /// The file whose appearance makes the pilot panic, for tests (see `runner::faults`).
    #[cfg(debug_assertions)]
    pub panic_file: Option<PathBuf>,
    pub bind: IpAddr,
    pub ports: ProbePorts,
}

impl RunnerSettings {
    pub(super) fn instance(&self) -> Instance {
        let (runtime, uid) = match &self.pod_uid {
            Some(uid) => ("Kubernetes", uid.clone()),
            None => ("Process", self.host_instance_id()),
        };
        Instance { runtime: runtime.to_owned(), node: self.machine.clone(), uid: Some(uid) }
    }

    /// Returns the limit of silence: the one in the Pilot's spec takes precedence over the flag.
    pub(super) fn silence_limit(&self, pilot: &PilotSpec) -> Duration {
        let limit_seconds =
            pilot.pilot_settings.as_ref().and_then(|settings| settings.silence_limit_seconds);
        let seconds = limit_seconds.and_then(|seconds| u64::try_from(seconds).ok());
        seconds.map_or(self.silence, Duration::from_secs)
    }

    /// May the database start with low kernel limits? The setting in the Pilot's spec takes
    /// precedence over the flag.
    pub(super) fn allows_low_limits(&self, pilot: &PilotSpec) -> bool {
        let is_allowed =
            pilot.pilot_settings.as_ref().and_then(|settings| settings.allow_low_limits);
        is_allowed.unwrap_or(self.allow_low_limits)
    }

    /// Returns an id of the process on a host, made of the address and the path of the data: a
    /// later process for the same node has the same id.
    fn host_instance_id(&self) -> String {
        let place = format!("{} {}", self.address, self.data.display());
        let hash = Sha256::digest(place);
        hash.iter().take(16).fold(String::new(), |hex, byte| format!("{hex}{byte:02x}"))
    }
}
