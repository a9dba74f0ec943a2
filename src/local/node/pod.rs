//! Runs one pod: its folders, the installer, the pilot's process, its probes, restarts, and its
//! end.
//!
//! Invariant: no program of the pod runs twice. A process that an earlier daemon started is found
//! before anything is started.

use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use k8s_openapi::api::core::v1::{
    Container, ContainerStatus, ObjectReference, PersistentVolumeClaim, Pod, PodStatus,
};
use kube::{
    Api,
    api::{DeleteParams, Patch, PatchParams, Preconditions},
};
use nix::sys::signal::Signal;
use serde::{Deserialize, Serialize};
use serde_json::json;
use tokio::{
    sync::watch,
    time::{Instant, interval, sleep},
};
use tracing::{debug, info, warn};

use super::{
    MANAGER, NodeContext, gone,
    launch::{self, ContainerRole, LaunchContext},
    pod_status::{self, ObservedPod},
    probes::{self, ContainerHealth},
    process::{DetachedProcess, LOOK, LaunchSpec, ProcessExit, REAPED, boot},
    referenced_objects::ReferencedObjects,
    variables::{EnvVars, variables},
    volumes,
};
use crate::{
    api::names,
    error::chain,
    local::{
        homes::tag,
        state_folder::{read_if_there, write_own},
    },
    pilot::database::DrivenDatabase,
    runtime::events::EventNotice,
};

/// Pause before a waiting pod checks again for what it lacks.
const AGAIN: Duration = Duration::from_secs(3);
/// Pause before a status that could not be written is written again.
const REWRITE: Duration = Duration::from_secs(1);
/// First pause of the restart back-off. A container that ended soon is started again at once, then
/// after this pause, and then after twice as long each time, up to `LONGEST_DELAY`.
const FIRST_DELAY: Duration = Duration::from_secs(10);
const LONGEST_DELAY: Duration = Duration::from_secs(300);
/// A container that ran at least this long begins its back-off anew.
const RAN_WELL: Duration = Duration::from_secs(600);
/// Interval at which files are updated from their Secrets and ConfigMaps, as the kubelet's.
const REFRESH: Duration = Duration::from_secs(60);
/// Reason of a container that waits for a volume.
const FAILED_MOUNT: &str = "FailedMount";
/// Grace period that Kubernetes grants a pod that asks for none.
const DEFAULT_GRACE: Duration = Duration::from_secs(30);

/// The record of a pod in its folder, from which the next daemon knows the pod.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PodRecord {
    pub uid: String,
    pub address: String,
    /// Id of the build of this program that was installed in the pod.
    #[serde(default)]
    pub installed: String,
    /// Folder of the distribution that the pilot runs.
    #[serde(default)]
    pub home: PathBuf,
    /// Pid of the pilot's process; `started` is its start time in the kernel's ticks.
    #[serde(default)]
    pub pid: i32,
    #[serde(default)]
    pub started: u64,
    /// Boot id of the kernel that counted the ticks of `started`; empty in records of earlier
    /// releases.
    #[serde(default)]
    pub boot: String,
    /// Grace period in seconds; 0 stands for Kubernetes' default.
    #[serde(default)]
    pub grace: u64,
}

impl PodRecord {
    /// Reads the record in a pod's folder; `None` where there is no readable one.
    pub fn read(folder: &Path) -> Option<Self> {
        let text = read_if_there(&folder.join(RECORD)).ok()??;
        serde_json::from_str(&text).ok()
    }

    /// Does the pilot's process still run?
    pub fn runs(&self) -> bool {
        self.process().is_some()
    }

    /// Returns the pilot's process, if it still runs.
    pub(super) fn process(&self) -> Option<DetachedProcess> {
        let is_of_now = self.boot.is_empty() || self.boot == boot();
        is_of_now.then(|| DetachedProcess::adopt(self.pid, self.started))?
    }

    /// Returns the pilot's grace period.
    pub(super) fn grace(&self) -> Duration {
        if self.grace == 0 { DEFAULT_GRACE } else { Duration::from_secs(self.grace) }
    }
}

const RECORD: &str = "state.json";

/// Why a task stops running its pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StopReason {
    /// The daemon ends, and the pod's processes keep running.
    Daemon,
    /// All pods are stopped, and start again with the next daemon.
    Stopped,
    Deleted,
    /// The Pod object is gone already.
    Gone,
}

/// Why a pod waits: reason and message for its containers' state.
struct WaitingReason(&'static str, String);

/// What is needed to start a pod's pilot.
struct PilotContainer {
    container: Container,
    database: &'static DrivenDatabase,
    home: PathBuf,
    address: std::net::Ipv4Addr,
}

struct PodWorker {
    host: Arc<NodeContext>,
    pods: watch::Receiver<PodUpdate>,
    pod: Arc<Pod>,
    /// The Pod object is gone.
    gone: bool,
    view: ObservedPod,
    /// The status that was last written to the API server.
    written: PodStatus,
    not_before: Instant,
    record: PodRecord,
    process: Option<DetachedProcess>,
}

/// The Pod object, or `None` when it was deleted. The sender lives as long as the daemon, so a
/// closed channel says nothing about the pod.
pub(crate) type PodUpdate = Option<Arc<Pod>>;

/// Runs one pod until its end.
pub(crate) async fn live(host: Arc<NodeContext>, mut pods: watch::Receiver<PodUpdate>) {
    let Some(pod) = pods.borrow_and_update().clone() else { return };
    let mut life = PodWorker {
        written: pod.status.clone().unwrap_or_default(),
        host,
        pods,
        pod,
        gone: false,
        view: ObservedPod::default(),
        not_before: Instant::now(),
        record: PodRecord::default(),
        process: None,
    };
    life.recall().await;
    let end = Box::pin(life.run()).await;
    life.end(end).await;
}

impl PodWorker {
    fn folder(&self) -> PathBuf {
        let (namespace, name) = launch::key(&self.pod);
        self.host.folder.pod(namespace, name)
    }

    /// Takes over the process that an earlier daemon started for this pod, or ends an earlier pod
    /// of its name.
    async fn recall(&mut self) {
        let uid = self.pod.metadata.uid.clone().unwrap_or_default();
        let folder = self.folder();
        if let Some(record) = PodRecord::read(&folder) {
            self.process = record.process();
            if record.uid == uid {
                self.record = record;
            } else {
                // The pod was replaced while no daemon ran; the old one's database is stopped as
                // usual.
                self.terminate(record.grace()).await;
            }
        }
        if self.record.uid != uid {
            // An earlier pod of this name may have left files.
            drop(fs::remove_dir_all(&folder));
            self.record = PodRecord { uid, ..PodRecord::default() };
        }
        self.view.init = self.written.init_container_statuses.clone().unwrap_or_default();
        self.view.containers = self.written.container_statuses.clone().unwrap_or_default();
        self.view.ephemeral = self.written.ephemeral_container_statuses.clone().unwrap_or_default();
        let spec = self.pod.spec.clone().unwrap_or_default();
        let all = spec.containers.into_iter().chain(spec.init_containers.unwrap_or_default());
        let ignored = all.filter(|it| launch::role(&self.host.databases, it).is_none());
        self.view.ignored = ignored.map(|container| container.name).collect();
    }

    async fn run(&mut self) -> StopReason {
        let prepared = loop {
            match self.prepare().await {
                Ok(prepared) => break prepared,
                Err(WaitingReason(reason, message)) => self.tell_waiting(reason, &message).await,
            }
            if let Some(end) = self.wait(AGAIN).await {
                return end;
            }
        };
        self.tell_mounts(&prepared).await;
        if self.process.is_none() {
            let pilot = self.pilot(&prepared, EnvVars::new());
            self.process =
                pilot.and_then(|pilot| DetachedProcess::find(&pilot.program, &pilot.args));
        }
        if let Some(end) = self.install(&prepared).await {
            return end;
        }
        if self.process.is_none() && pod_status::began(self.container(&prepared)).is_some() {
            self.ended(&prepared, ProcessExit::Unseen, Duration::ZERO).await;
        }
        let (mut crashes, mut pause) = (0, Duration::ZERO);
        loop {
            if self.process.is_none() {
                if let Some(end) = self.wait(pause).await {
                    return end;
                }
                let variables = match self.give(&prepared).await {
                    Ok(variables) => variables,
                    Err(WaitingReason(reason, message)) => {
                        self.tell_waiting(reason, &message).await;
                        pause = AGAIN;
                        continue;
                    }
                };
                if let Err(error) = self.start(&prepared, variables) {
                    self.tell_waiting("RunContainerError", &error.to_string()).await;
                    crashes += 1;
                    pause = delay(crashes);
                    continue;
                }
            }
            let begun = Instant::now();
            let exit = match self.supervise(&prepared).await {
                Ok(exit) => exit,
                Err(end) => return end,
            };
            if begun.elapsed() >= RAN_WELL {
                crashes = 0;
            }
            pause = delay(crashes);
            self.ended(&prepared, exit, pause).await;
            crashes += 1;
        }
    }

    /// Prepares what the pod needs before any of its programs starts, or returns what it waits for.
    async fn prepare(&mut self) -> Result<PilotContainer, WaitingReason> {
        let (namespace, name) = launch::key(&self.pod);
        let host = &self.host;
        let failed = |what: &str, error: &io::Error| {
            WaitingReason("CreateContainerError", format!("failed to {what}: {error}"))
        };
        let spec = self.pod.spec.clone().unwrap_or_default();
        let pilot = spec.containers.iter().find_map(|container| {
            match launch::role(&host.databases, container)? {
                ContainerRole::Pilot(database) => Some((container.clone(), database)),
                ContainerRole::Installer => None,
            }
        });
        let Some((container, database)) = pilot else {
            let text = "images are not run on this host, and nothing in this pod is a pilot";
            return Err(WaitingReason("CreateContainerError", text.to_owned()));
        };
        let address = host
            .addresses
            .of(namespace, name)
            .map_err(|error| failed("find an address", &error))?;
        let folder = host.folder.pod(namespace, name);
        for folder in [folder, host.folder.logs(namespace, name)] {
            fs::create_dir_all(&folder).map_err(|error| failed("make a folder", &error))?;
        }
        for volume in volumes::mounted(&self.pod, &self.run_here()) {
            if let Some(claim) = &volume.persistent_volume_claim {
                let claims: Api<PersistentVolumeClaim> =
                    Api::namespaced(host.client.clone(), namespace);
                let found = claims.get_opt(&claim.claim_name).await;
                let found = found.map_err(|error| {
                    WaitingReason(
                        "ContainerCreating",
                        format!("no claim was read: {}", chain(&error)),
                    )
                })?;
                let phase = found.and_then(|claim| claim.status?.phase);
                if phase.as_deref() != Some("Bound") {
                    let text = format!("claim {} is not bound", claim.claim_name);
                    return Err(WaitingReason("ContainerCreating", text));
                }
            }
        }
        let home = if self.process.is_some() && !self.record.home.as_os_str().is_empty() {
            self.record.home.clone()
        } else {
            let image = container.image.as_deref().unwrap_or_default();
            let version = tag(image).unwrap_or("latest");
            let found = host.homes.find(database, version);
            found.map_err(|missing| WaitingReason("ErrImagePull", missing.to_string()))?.path
        };
        let credentials = (host.credentials)(&self.pod)
            .map_err(|text| WaitingReason("CreateContainerConfigError", text))?;
        write_own(&launch::kubeconfig(&host.folder, &self.pod), credentials.as_bytes())
            .map_err(|error| failed("write credentials", &error))?;
        self.record.address = address.to_string();
        self.record.home.clone_from(&home);
        self.record.grace = self.grace().as_secs();
        self.save();
        self.view.address = Some(address);
        let prepared = PilotContainer { container, database, home, address };
        if self.process.is_none() {
            self.give(&prepared).await?;
        }
        Ok(prepared)
    }

    /// Returns the containers whose program this host runs: installers and pilots.
    fn run_here(&self) -> Vec<Container> {
        let spec = self.pod.spec.clone().unwrap_or_default();
        let all = spec.containers.into_iter().chain(spec.init_containers.unwrap_or_default());
        all.filter(|container| launch::role(&self.host.databases, container).is_some()).collect()
    }

    /// Writes the files of volumes from the present Secrets and ConfigMaps; returns the pilot's
    /// variables.
    async fn give(&self, prepared: &PilotContainer) -> Result<EnvVars, WaitingReason> {
        let containers = self.run_here();
        let volumes = volumes::mounted(&self.pod, &containers);
        let (namespace, _) = launch::key(&self.pod);
        let given = ReferencedObjects::read(&self.host.client, namespace, &containers, &volumes);
        let given = Box::pin(given).await;
        let given = given.map_err(|error| {
            WaitingReason("ContainerCreating", format!("nothing was read: {}", chain(&error)))
        })?;
        let place = self.place(prepared);
        for volume in &volumes {
            volumes::make(&place, &self.pod, volume, &given)
                .map_err(|text| WaitingReason(FAILED_MOUNT, text))?;
        }
        variables(&place, &self.pod, &prepared.container, &given)
            .map_err(|text| WaitingReason("CreateContainerConfigError", text))
    }

    /// Warns of volumes that are mounted at paths which do not exist on this host, so that programs
    /// do not find them.
    async fn tell_mounts(&self, prepared: &PilotContainer) {
        let PilotContainer { container, database, .. } = prepared;
        let known =
            [names::SHARED_DIR, names::USERS_DIR, launch::CONFIG_DIR, database.names.data_dir];
        let volumes = volumes::mounted(&self.pod, std::slice::from_ref(container));
        for mount in container.volume_mounts.iter().flatten() {
            let volume = volumes.iter().find(|volume| volume.name == mount.name);
            let Some(volume) = volume.filter(|_| !known.contains(&mount.mount_path.as_str()))
            else {
                continue;
            };
            let folder = launch::volume_folder(&self.host.folder, &self.pod, volume);
            let folder = folder.unwrap_or_default();
            let text = format!(
                "volume {:?} is at {}, and not at {}: programs of this host see the host's files",
                mount.name,
                folder.display(),
                mount.mount_path
            );
            self.event(&EventNotice::warning("NotMounted", text)).await;
        }
    }

    fn place(&self, prepared: &PilotContainer) -> LaunchContext<'_> {
        let host = &self.host;
        LaunchContext {
            folder: &host.folder,
            program: &host.program,
            machine: &host.machine,
            address: prepared.address,
            environment: &host.environment,
            java: host.java.as_deref(),
            root: host.root,
        }
    }

    fn pilot(&self, prepared: &PilotContainer, variables: EnvVars) -> Option<LaunchSpec> {
        let PilotContainer { container, database, home, address: _ } = prepared;
        launch::pilot(&self.place(prepared), &self.pod, container, database, home, variables)
    }

    /// Runs the init containers, unless this build of the program is installed in the pod already.
    async fn install(&mut self, prepared: &PilotContainer) -> Option<StopReason> {
        let spec = self.pod.spec.clone().unwrap_or_default();
        let containers = spec.init_containers.unwrap_or_default();
        if self.record.installed == self.host.installation
            && self.view.init.len() == containers.len()
        {
            return None;
        }
        self.view.init.clear();
        for container in &containers {
            loop {
                let state = match launch::role(&self.host.databases, container) {
                    Some(ContainerRole::Installer) => self.run_installer(prepared, container).await,
                    _ => Ok((0, "not run: it is in an image".to_owned())),
                };
                let (code, message) =
                    state.unwrap_or_else(|error| (1, format!("failed to run it: {error}")));
                let ended =
                    pod_status::terminated(Some(code), &message, Some(pod_status::now()), None);
                let mut known = pod_status::unknown(container, ended);
                known.ready = code == 0;
                self.view.init.push(known);
                if code == 0 {
                    break;
                }
                self.write().await;
                if let Some(end) = self.wait(FIRST_DELAY).await {
                    return Some(end);
                }
                self.view.init.pop();
            }
        }
        self.record.installed.clone_from(&self.host.installation);
        self.save();
        None
    }

    /// Runs an installer to its end. Returns its exit code and its termination message.
    async fn run_installer(
        &self,
        prepared: &PilotContainer,
        container: &Container,
    ) -> io::Result<(i32, String)> {
        let place = self.place(prepared);
        let launch = launch::installer(&place, &self.pod, container);
        let launch = launch.ok_or_else(|| io::Error::other("its folder is no volume"))?;
        let log = launch::termination_log(place.folder, &self.pod, &container.name);
        fs::write(&log, "")?;
        let mut process = DetachedProcess::start(&launch)?;
        let code = loop {
            match process.ended() {
                Some(ProcessExit::Code(code)) => break code,
                Some(ProcessExit::Unseen) => break 1,
                None => sleep(LOOK).await,
            }
        };
        Ok((code, fs::read_to_string(&log).unwrap_or_default()))
    }

    fn start(&mut self, prepared: &PilotContainer, variables: EnvVars) -> io::Result<()> {
        let pilot = self.pilot(prepared, variables);
        let pilot = pilot.ok_or_else(|| io::Error::other("a folder that it needs is no volume"))?;
        let (namespace, name) = launch::key(&self.pod);
        let container = &prepared.container.name;
        let previous = self.host.folder.log(namespace, name, container, true);
        match fs::rename(&pilot.log, previous) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        fs::write(launch::termination_log(&self.host.folder, &self.pod, container), "")?;
        let process = DetachedProcess::start(&pilot)?;
        info!(namespace, name, pid = process.pid, "Started a pilot");
        (self.record.pid, self.record.started) = (process.pid, process.started);
        self.record.boot = boot();
        self.process = Some(process);
        self.save();
        let known = self.container(prepared);
        let before = known.state.replace(pod_status::running(pod_status::now()));
        if let Some(ended) = before.filter(|before| before.terminated.is_some()) {
            known.last_state = Some(ended);
            known.restart_count += 1;
        }
        (known.ready, known.started) = (false, Some(false));
        Ok(())
    }

    /// Returns the status of the pilot's container, and adds missing statuses of containers.
    fn container(&mut self, prepared: &PilotContainer) -> &mut ContainerStatus {
        let spec = self.pod.spec.clone().unwrap_or_default();
        for container in &spec.containers {
            if self.view.containers.iter().all(|known| known.name != container.name) {
                let state = self.view.waiting(&container.name, "ContainerCreating", "");
                self.view.containers.push(pod_status::unknown(container, state));
            }
        }
        let pid = self.record.pid;
        let mut all = self.view.containers.iter_mut();
        let known = all.find(|known| known.name == prepared.container.name);
        let known = known.expect("a status was made for each container of the spec");
        known.container_id = (pid > 0).then(|| pod_status::id(pid));
        known.image_id = format!("file://{}", prepared.home.display());
        known
    }

    /// Supervises the process until it has ended, or the pod is to end.
    async fn supervise(&mut self, prepared: &PilotContainer) -> Result<ProcessExit, StopReason> {
        let known = self.container(prepared);
        if known.state.as_ref().is_none_or(|state| state.running.is_none()) {
            known.state = Some(pod_status::running(pod_status::now()));
        }
        // An adopted process keeps the health that its pod's status says until a probe says
        // otherwise.
        let health = ContainerHealth {
            started: known.started == Some(true),
            ready: known.ready,
            ..ContainerHealth::default()
        };
        let (sender, mut health) = watch::channel(health);
        let probes = probes::ask(prepared.container.clone(), prepared.address, sender);
        let mut probes = Box::pin(probes);
        let mut asking = true;
        let mut looks = interval(LOOK);
        let mut given = Instant::now();
        let mut marks = self.pod.metadata.annotations.clone();
        loop {
            if let Some(exit) = self.process.as_mut().and_then(DetachedProcess::ended) {
                return Ok(exit);
            }
            if let Some(end) = self.ending() {
                return Err(end);
            }
            let told = health.borrow_and_update().clone();
            let known = self.container(prepared);
            (known.started, known.ready) = (Some(told.started), told.ready);
            self.view.unready = told.unready;
            if let Some(why) = told.dead {
                self.event(&EventNotice::warning(
                    "Killing",
                    format!("the container is restarted: {why}"),
                ))
                .await;
                return Ok(self.terminate(self.grace()).await);
            }
            self.deliver(prepared).await;
            self.write().await;
            // As kubelet does: a pod that was marked anew is looked at now.
            let marked = self.pod.metadata.annotations != marks;
            if marked || given.elapsed() >= REFRESH {
                given = Instant::now();
                marks.clone_from(&self.pod.metadata.annotations);
                if let Err(WaitingReason(reason, message)) = self.give(prepared).await {
                    debug!(reason, message, "Files of a pod are as they were");
                }
            }
            tokio::select! {
                () = &mut probes, if asking => asking = false,
                _ = looks.tick() => {}
                _ = self.pods.changed() => self.heard(),
            }
        }
    }

    /// Runs the ephemeral containers that install another build of the pilot.
    async fn deliver(&mut self, prepared: &PilotContainer) {
        let spec = self.pod.spec.clone().unwrap_or_default();
        for added in spec.ephemeral_containers.iter().flatten() {
            if self.view.ephemeral.iter().any(|known| known.name == added.name) {
                continue;
            }
            // An ephemeral container differs only in naming the container that it debugs.
            let text = json!(added).to_string();
            let container = serde_json::from_str(&text).unwrap_or_default();
            let (code, message) = match launch::role(&self.host.databases, &container) {
                Some(ContainerRole::Installer) => self
                    .run_installer(prepared, &container)
                    .await
                    .unwrap_or_else(|error| (1, format!("failed to run it: {error}"))),
                _ => (1, "images are not run on this host".to_owned()),
            };
            let ended = pod_status::terminated(Some(code), &message, Some(pod_status::now()), None);
            self.view.ephemeral.push(pod_status::unknown(&container, ended));
        }
    }

    /// Reports that the pilot's process ended, and the back-off after which it is started again.
    async fn ended(&mut self, prepared: &PilotContainer, exit: ProcessExit, delay: Duration) {
        let (pid, code) = (self.record.pid, code(exit));
        self.process = None;
        let log = launch::termination_log(&self.host.folder, &self.pod, &prepared.container.name);
        let message = fs::read_to_string(log).unwrap_or_default();
        let (namespace, name) = launch::key(&self.pod);
        warn!(namespace, name, pid, code, explanation = message.trim(), "A pilot ended");
        let known = self.container(prepared);
        let ended = pod_status::terminated(code, &message, pod_status::began(known), Some(pid));
        known.last_state = Some(ended);
        known.restart_count += 1;
        (known.ready, known.started) = (false, Some(false));
        let text = format!("back-off {} s restarting the container", delay.as_secs());
        known.state = Some(pod_status::waiting("CrashLoopBackOff", &text));
        (self.record.pid, self.record.started) = (0, 0);
        self.save();
        self.write().await;
    }

    async fn tell_waiting(&mut self, reason: &'static str, message: &str) {
        let spec = self.pod.spec.clone().unwrap_or_default();
        for container in &spec.containers {
            let state = self.view.waiting(&container.name, reason, message);
            match self.view.containers.iter_mut().find(|known| known.name == container.name) {
                Some(known) => (known.state, known.ready) = (Some(state), false),
                None => self.view.containers.push(pod_status::unknown(container, state)),
            }
        }
        if self.write().await {
            let (namespace, name) = launch::key(&self.pod);
            info!(namespace, name, reason, explanation = message, "A pod waits");
            if reason != "ContainerCreating" {
                let failed = if reason == FAILED_MOUNT { FAILED_MOUNT } else { "Failed" };
                self.event(&EventNotice::warning(failed, message)).await;
            }
        }
    }

    /// Waits for `pause`, or until the pod is to end.
    async fn wait(&mut self, pause: Duration) -> Option<StopReason> {
        let until = Instant::now() + pause;
        let (stopping, shutdown) = (self.host.stopping.clone(), self.host.shutdown.clone());
        loop {
            if let Some(end) = self.ending() {
                return Some(end);
            }
            self.write().await;
            tokio::select! {
                () = tokio::time::sleep_until(until) => return None,
                _ = self.pods.changed() => self.heard(),
                () = stopping.triggered() => {}
                () = shutdown.triggered() => {}
            }
        }
    }

    /// Takes over a newer version of the Pod object from the watch.
    fn heard(&mut self) {
        match self.pods.borrow_and_update().clone() {
            Some(pod) => self.pod = pod,
            None => self.gone = true,
        }
    }

    fn ending(&self) -> Option<StopReason> {
        let deleted = self.pod.metadata.deletion_timestamp.is_some();
        if self.host.stopping.is_triggered() {
            Some(StopReason::Stopped)
        } else if self.host.shutdown.is_triggered() || self.pods.has_changed().is_err() {
            Some(StopReason::Daemon)
        } else if self.gone {
            Some(StopReason::Gone)
        } else {
            deleted.then_some(StopReason::Deleted)
        }
    }

    /// Returns the grace period that the pod's spec asks for.
    fn grace(&self) -> Duration {
        let wanted = self.pod.spec.as_ref().and_then(|spec| spec.termination_grace_period_seconds);
        let wanted = wanted.and_then(|seconds| u64::try_from(seconds).ok());
        wanted.map_or(DEFAULT_GRACE, Duration::from_secs)
    }

    /// Returns the grace period that the pod's deletion granted; a later deletion may shorten it.
    fn granted(&self) -> Duration {
        let granted = self.pod.metadata.deletion_grace_period_seconds;
        let granted = granted.and_then(|seconds| u64::try_from(seconds).ok());
        granted.map_or_else(|| self.grace(), Duration::from_secs)
    }

    /// Asks the process to end, and kills it when it takes longer than its grace period.
    async fn terminate(&mut self, grace: Duration) -> ProcessExit {
        let Some(mut process) = self.process.take() else { return ProcessExit::Unseen };
        let begun = Instant::now();
        let deleted = self.pod.metadata.deletion_timestamp.is_some();
        process.signal(Signal::SIGTERM);
        let mut killed = None;
        loop {
            if let Some(exit) = process.ended() {
                return exit;
            }
            let grace = if deleted { grace.min(self.granted()) } else { grace };
            if killed.is_none() && begun.elapsed() >= grace {
                process.signal(Signal::SIGKILL);
                killed = Some(Instant::now());
            }
            if killed.is_some_and(|since| since.elapsed() > REAPED) {
                warn!(pid = process.pid, "A process does not end although it was killed");
                return ProcessExit::Unseen;
            }
            tokio::select! {
                () = sleep(LOOK) => {}
                Ok(()) = self.pods.changed() => self.heard(),
            }
        }
    }

    async fn end(&mut self, end: StopReason) {
        let (namespace, name) = launch::key(&self.pod);
        let (namespace, name) = (namespace.to_owned(), name.to_owned());
        let grace = match end {
            StopReason::Daemon => return,
            StopReason::Stopped => self.grace(),
            StopReason::Deleted => self.granted(),
            StopReason::Gone => Duration::ZERO,
        };
        if self.process.is_some() {
            info!(namespace, name, ?end, "Stopping a pilot");
            let pid = self.record.pid;
            let exit = self.terminate(grace).await;
            self.stopped(exit, pid);
        }
        if end == StopReason::Stopped {
            self.not_before = Instant::now();
            self.write().await;
            return;
        }
        if end == StopReason::Deleted {
            self.not_before = Instant::now();
            self.write().await;
        }
        if let Err(error) = fs::remove_dir_all(self.folder())
            && error.kind() != io::ErrorKind::NotFound
        {
            warn!(namespace, name, %error, "The folder of a pod stays");
        }
        if end == StopReason::Deleted {
            self.release(&namespace, &name).await;
        }
    }

    /// Records the end of a pilot that was asked to stop.
    fn stopped(&mut self, exit: ProcessExit, pid: i32) {
        (self.record.pid, self.record.started) = (0, 0);
        self.save();
        for known in &mut self.view.containers {
            if let Some(began) = pod_status::began(known) {
                known.state = Some(pod_status::terminated(code(exit), "", Some(began), Some(pid)));
                (known.ready, known.started) = (false, Some(false));
            }
        }
    }

    /// Deletes the Pod object, once none of the pod's processes runs any more.
    async fn release(&mut self, namespace: &str, name: &str) {
        let api: Api<Pod> = Api::namespaced(self.host.client.clone(), namespace);
        let params = DeleteParams {
            grace_period_seconds: Some(0),
            preconditions: Some(Preconditions {
                uid: self.pod.metadata.uid.clone(),
                resource_version: None,
            }),
            ..DeleteParams::default()
        };
        loop {
            match gone(api.delete(name, &params).await.map(drop)) {
                Ok(()) => return,
                Err(error) => debug!(namespace, name, error = %chain(&error), "A pod stays"),
            }
            tokio::select! {
                () = sleep(REWRITE) => {}
                () = self.host.shutdown.triggered() => return,
            }
        }
    }

    /// Writes the status when it differs from the last one written; returns whether it did.
    async fn write(&mut self) -> bool {
        let now = Instant::now();
        if now < self.not_before {
            return false;
        }
        let status = pod_status::status(&self.pod, &self.written, &self.view);
        if status == self.written {
            return false;
        }
        let (namespace, name) = launch::key(&self.pod);
        let api: Api<Pod> = Api::namespaced(self.host.client.clone(), namespace);
        let patch = json!({"metadata": {"uid": self.pod.metadata.uid}, "status": status});
        let params =
            PatchParams { field_manager: Some(MANAGER.to_owned()), ..PatchParams::default() };
        match api.patch_status(name, &params, &Patch::Merge(&patch)).await {
            Ok(_) => {
                self.written = status;
                true
            }
            Err(error) => {
                debug!(namespace, name, error = %chain(&error), "Status is written again");
                self.not_before = now + REWRITE;
                false
            }
        }
    }

    fn save(&self) {
        let text = serde_json::to_string_pretty(&self.record).unwrap_or_default();
        let folder = self.folder();
        if let Err(error) = write_own(&folder.join(RECORD), text.as_bytes()) {
            // The next daemon also finds the process by its arguments.
            warn!(folder = %folder.display(), %error, "What a pod is was not written down");
        }
    }

    async fn event(&self, notice: &EventNotice) {
        let (namespace, name) = launch::key(&self.pod);
        let about = ObjectReference {
            api_version: Some("v1".to_owned()),
            kind: Some("Pod".to_owned()),
            namespace: Some(namespace.to_owned()),
            name: Some(name.to_owned()),
            uid: self.pod.metadata.uid.clone(),
            ..ObjectReference::default()
        };
        self.host.events.publish(&about, notice).await;
    }
}

fn code(exit: ProcessExit) -> Option<i32> {
    match exit {
        ProcessExit::Code(code) => Some(code),
        ProcessExit::Unseen => None,
    }
}

/// Returns the restart back-off after `crashes` ends in a row that came soon after their start.
fn delay(crashes: u32) -> Duration {
    match crashes {
        0 => Duration::ZERO,
        more => (FIRST_DELAY * 2_u32.saturating_pow(more.min(10) - 1)).min(LONGEST_DELAY),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::local::node::process::start_time;

    #[test]
    fn a_process_of_an_earlier_boot_is_another_one() {
        let pid = std::process::id().cast_signed();
        let started = start_time(pid).unwrap();
        let of = |boot: String| PodRecord { pid, started, boot, ..PodRecord::default() };
        assert!(of(boot()).runs() && of(String::new()).runs());
        assert!(!of("of another start of the machine".into()).runs());
    }

    #[test]
    fn restarts_wait_longer_each_time_up_to_five_minutes() {
        let all = [0, 1, 2, 3, 4, 5, 6, 40].map(|crashes| delay(crashes).as_secs());
        assert_eq!(all, [0, 10, 20, 40, 80, 160, 300, 300]);
    }
}
