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
    MANAGER, NodeContext, ignore_stale_write,
    launch::{self, ContainerRole, LaunchContext},
    pod_status::{self, ObservedPod},
    probes::{self, ContainerHealth},
    process::{DetachedProcess, LOOK, LaunchSpec, ProcessExit, REAPED, boot_id},
    referenced_objects::ReferencedObjects,
    variables::{EnvVars, build_variables},
    volumes,
};
use crate::{
    api::names,
    error::chain,
    local::{
        homes::image_tag,
        state_folder::{read_if_exists, write_private},
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
        let text = read_if_exists(&folder.join(RECORD)).ok()??;
        serde_json::from_str(&text).ok()
    }

    /// Does the pilot's process still run?
    pub fn is_running(&self) -> bool {
        self.process().is_some()
    }

    /// Returns the pilot's process, if it still runs.
    pub(super) fn process(&self) -> Option<DetachedProcess> {
        let is_same_boot = self.boot.is_empty() || self.boot == boot_id();
        is_same_boot.then(|| DetachedProcess::adopt(self.pid, self.started))?
    }

    /// Returns the pilot's grace period.
    pub(super) fn grace_period(&self) -> Duration {
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
pub(crate) async fn run_pod(host: Arc<NodeContext>, mut pods: watch::Receiver<PodUpdate>) {
    let Some(pod) = pods.borrow_and_update().clone() else { return };
    let mut worker = PodWorker {
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
    worker.adopt_process().await;
    let stop_reason = Box::pin(worker.run()).await;
    worker.stop_pod(stop_reason).await;
}

impl PodWorker {
    fn pod_dir(&self) -> PathBuf {
        let (namespace, name) = launch::pod_key(&self.pod);
        self.host.folder.pod(namespace, name)
    }

    /// Takes over the process that an earlier daemon started for this pod, or ends an earlier pod
    /// of its name.
    async fn adopt_process(&mut self) {
        let uid = self.pod.metadata.uid.clone().unwrap_or_default();
        let folder = self.pod_dir();
        if let Some(record) = PodRecord::read(&folder) {
            self.process = record.process();
            if record.uid == uid {
                self.record = record;
            } else {
                // The pod was replaced while no daemon ran; the old one's database is stopped as
                // usual.
                self.terminate_process(record.grace_period()).await;
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
        let containers =
            spec.containers.into_iter().chain(spec.init_containers.unwrap_or_default());
        let ignored_containers = containers
            .filter(|container| launch::container_role(&self.host.databases, container).is_none());
        self.view.ignored = ignored_containers.map(|container| container.name).collect();
    }

    async fn run(&mut self) -> StopReason {
        let pilot_container = loop {
            match self.prepare_pilot().await {
                Ok(pilot_container) => break pilot_container,
                Err(WaitingReason(reason, message)) => self.report_waiting(reason, &message).await,
            }
            if let Some(stop_reason) = self.wait_for_stop(AGAIN).await {
                return stop_reason;
            }
        };
        self.warn_missing_mounts(&pilot_container).await;
        if self.process.is_none() {
            let pilot = self.pilot_launch(&pilot_container, EnvVars::new());
            self.process =
                pilot.and_then(|pilot| DetachedProcess::find(&pilot.program, &pilot.args));
        }
        if let Some(stop_reason) = self.run_installers(&pilot_container).await {
            return stop_reason;
        }
        if self.process.is_none()
            && pod_status::started_at(self.container_status(&pilot_container)).is_some()
        {
            self.report_exit(&pilot_container, ProcessExit::Unseen, Duration::ZERO).await;
        }
        let (mut crashes, mut pause) = (0, Duration::ZERO);
        loop {
            if self.process.is_none() {
                if let Some(stop_reason) = self.wait_for_stop(pause).await {
                    return stop_reason;
                }
                let variables = match self.write_volumes(&pilot_container).await {
                    Ok(variables) => variables,
                    Err(WaitingReason(reason, message)) => {
                        self.report_waiting(reason, &message).await;
                        pause = AGAIN;
                        continue;
                    }
                };
                if let Err(error) = self.start_pilot(&pilot_container, variables) {
                    self.report_waiting("RunContainerError", &error.to_string()).await;
                    crashes += 1;
                    pause = restart_delay(crashes);
                    continue;
                }
            }
            let started_at = Instant::now();
            let exit = match self.supervise(&pilot_container).await {
                Ok(exit) => exit,
                Err(stop_reason) => return stop_reason,
            };
            if started_at.elapsed() >= RAN_WELL {
                crashes = 0;
            }
            pause = restart_delay(crashes);
            self.report_exit(&pilot_container, exit, pause).await;
            crashes += 1;
        }
    }

    /// Prepares what the pod needs before any of its programs starts, or returns what it waits for.
    async fn prepare_pilot(&mut self) -> Result<PilotContainer, WaitingReason> {
        let (namespace, name) = launch::pod_key(&self.pod);
        let host = &self.host;
        let to_waiting_reason = |action: &str, error: &io::Error| {
            WaitingReason("CreateContainerError", format!("failed to {action}: {error}"))
        };
        let spec = self.pod.spec.clone().unwrap_or_default();
        let pilot = spec.containers.iter().find_map(|container| {
            match launch::container_role(&host.databases, container)? {
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
            .ensure_address(namespace, name)
            .map_err(|error| to_waiting_reason("find an address", &error))?;
        let folder = host.folder.pod(namespace, name);
        for folder in [folder, host.folder.logs(namespace, name)] {
            fs::create_dir_all(&folder)
                .map_err(|error| to_waiting_reason("make a folder", &error))?;
        }
        for volume in volumes::mounted_volumes(&self.pod, &self.local_containers()) {
            if let Some(claim) = &volume.persistent_volume_claim {
                let claims: Api<PersistentVolumeClaim> =
                    Api::namespaced(host.client.clone(), namespace);
                let claim_result = claims.get_opt(&claim.claim_name).await;
                let current_claim = claim_result.map_err(|error| {
                    WaitingReason(
                        "ContainerCreating",
                        format!("no claim was read: {}", chain(&error)),
                    )
                })?;
                let phase = current_claim.and_then(|claim| claim.status?.phase);
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
            let version = image_tag(image).unwrap_or("latest");
            let home_result = host.homes.find(database, version);
            home_result.map_err(|error| WaitingReason("ErrImagePull", error.to_string()))?.path
        };
        let credentials = (host.credentials)(&self.pod)
            .map_err(|text| WaitingReason("CreateContainerConfigError", text))?;
        write_private(&launch::kubeconfig_path(&host.folder, &self.pod), credentials.as_bytes())
            .map_err(|error| to_waiting_reason("write credentials", &error))?;
        self.record.address = address.to_string();
        self.record.home.clone_from(&home);
        self.record.grace = self.grace_period().as_secs();
        self.save_record();
        self.view.address = Some(address);
        let pilot_container = PilotContainer { container, database, home, address };
        if self.process.is_none() {
            self.write_volumes(&pilot_container).await?;
        }
        Ok(pilot_container)
    }

    /// Returns the containers whose program this host runs: installers and pilots.
    fn local_containers(&self) -> Vec<Container> {
        let spec = self.pod.spec.clone().unwrap_or_default();
        let containers =
            spec.containers.into_iter().chain(spec.init_containers.unwrap_or_default());
        containers
            .filter(|container| launch::container_role(&self.host.databases, container).is_some())
            .collect()
    }

    /// Writes the files of volumes from the present Secrets and ConfigMaps; returns the pilot's
    /// variables.
    async fn write_volumes(
        &self,
        pilot_container: &PilotContainer,
    ) -> Result<EnvVars, WaitingReason> {
        let containers = self.local_containers();
        let volumes = volumes::mounted_volumes(&self.pod, &containers);
        let (namespace, _) = launch::pod_key(&self.pod);
        let objects = ReferencedObjects::read(&self.host.client, namespace, &containers, &volumes);
        let objects = Box::pin(objects).await;
        let objects = objects.map_err(|error| {
            WaitingReason("ContainerCreating", format!("nothing was read: {}", chain(&error)))
        })?;
        let context = self.launch_context(pilot_container);
        for volume in &volumes {
            volumes::write_volume(&context, &self.pod, volume, &objects)
                .map_err(|text| WaitingReason(FAILED_MOUNT, text))?;
        }
        build_variables(&context, &self.pod, &pilot_container.container, &objects)
            .map_err(|text| WaitingReason("CreateContainerConfigError", text))
    }

    /// Warns of volumes that are mounted at paths which do not exist on this host, so that programs
    /// do not find them.
    async fn warn_missing_mounts(&self, pilot_container: &PilotContainer) {
        let PilotContainer { container, database, .. } = pilot_container;
        let known_paths =
            [names::SHARED_DIR, names::USERS_DIR, launch::CONFIG_DIR, database.names.data_dir];
        let volumes = volumes::mounted_volumes(&self.pod, std::slice::from_ref(container));
        for mount in container.volume_mounts.iter().flatten() {
            let volume = volumes.iter().find(|volume| volume.name == mount.name);
            let Some(volume) = volume.filter(|_| !known_paths.contains(&mount.mount_path.as_str()))
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
            self.publish_event(&EventNotice::warning("NotMounted", text)).await;
        }
    }

    fn launch_context(&self, pilot_container: &PilotContainer) -> LaunchContext<'_> {
        let host = &self.host;
        LaunchContext {
            folder: &host.folder,
            program: &host.program,
            machine: &host.machine,
            address: pilot_container.address,
            environment: &host.environment,
            java: host.java.as_deref(),
            root: host.root,
        }
    }

    fn pilot_launch(
        &self,
        pilot_container: &PilotContainer,
        variables: EnvVars,
    ) -> Option<LaunchSpec> {
        let PilotContainer { container, database, home, address: _ } = pilot_container;
        launch::build_pilot_launch(
            &self.launch_context(pilot_container),
            &self.pod,
            container,
            database,
            home,
            variables,
        )
    }

    /// Runs the init containers, unless this build of the program is installed in the pod already.
    async fn run_installers(&mut self, pilot_container: &PilotContainer) -> Option<StopReason> {
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
                let state = match launch::container_role(&self.host.databases, container) {
                    Some(ContainerRole::Installer) => {
                        self.run_installer(pilot_container, container).await
                    }
                    _ => Ok((0, "not run: it is in an image".to_owned())),
                };
                let (code, message) =
                    state.unwrap_or_else(|error| (1, format!("failed to run it: {error}")));
                let terminated_state = pod_status::terminated_state(
                    Some(code),
                    &message,
                    Some(pod_status::now()),
                    None,
                );
                let mut container_status = pod_status::new_status(container, terminated_state);
                container_status.ready = code == 0;
                self.view.init.push(container_status);
                if code == 0 {
                    break;
                }
                self.write_status().await;
                if let Some(stop_reason) = self.wait_for_stop(FIRST_DELAY).await {
                    return Some(stop_reason);
                }
                self.view.init.pop();
            }
        }
        self.record.installed.clone_from(&self.host.installation);
        self.save_record();
        None
    }

    /// Runs an installer to its end. Returns its exit code and its termination message.
    async fn run_installer(
        &self,
        pilot_container: &PilotContainer,
        container: &Container,
    ) -> io::Result<(i32, String)> {
        let context = self.launch_context(pilot_container);
        let launch = launch::build_installer_launch(&context, &self.pod, container);
        let launch = launch.ok_or_else(|| io::Error::other("its folder is no volume"))?;
        let log = launch::termination_log(context.folder, &self.pod, &container.name);
        fs::write(&log, "")?;
        let mut process = DetachedProcess::start(&launch)?;
        let code = loop {
            match process.poll_exit() {
                Some(ProcessExit::Code(code)) => break code,
                Some(ProcessExit::Unseen) => break 1,
                None => sleep(LOOK).await,
            }
        };
        Ok((code, fs::read_to_string(&log).unwrap_or_default()))
    }

    fn start_pilot(
        &mut self,
        pilot_container: &PilotContainer,
        variables: EnvVars,
    ) -> io::Result<()> {
        let pilot = self.pilot_launch(pilot_container, variables);
        let pilot = pilot.ok_or_else(|| io::Error::other("a folder that it needs is no volume"))?;
        let (namespace, name) = launch::pod_key(&self.pod);
        let container = &pilot_container.container.name;
        let previous = self.host.folder.log(namespace, name, container, true);
        match fs::rename(&pilot.log, previous) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        fs::write(launch::termination_log(&self.host.folder, &self.pod, container), "")?;
        let process = DetachedProcess::start(&pilot)?;
        info!(namespace, name, pid = process.pid, "Started a pilot");
        (self.record.pid, self.record.started) = (process.pid, process.started);
        self.record.boot = boot_id();
        self.process = Some(process);
        self.save_record();
        let status = self.container_status(pilot_container);
        let previous_state = status.state.replace(pod_status::running_state(pod_status::now()));
        if let Some(terminated_state) = previous_state.filter(|state| state.terminated.is_some()) {
            status.last_state = Some(terminated_state);
            status.restart_count += 1;
        }
        (status.ready, status.started) = (false, Some(false));
        Ok(())
    }

    /// Returns the status of the pilot's container, and adds missing statuses of containers.
    fn container_status(&mut self, pilot_container: &PilotContainer) -> &mut ContainerStatus {
        let spec = self.pod.spec.clone().unwrap_or_default();
        for container in &spec.containers {
            if self.view.containers.iter().all(|status| status.name != container.name) {
                let state = self.view.waiting_state(&container.name, "ContainerCreating", "");
                self.view.containers.push(pod_status::new_status(container, state));
            }
        }
        let pid = self.record.pid;
        let mut statuses = self.view.containers.iter_mut();
        let status = statuses.find(|status| status.name == pilot_container.container.name);
        let status = status.expect("a status was made for each container of the spec");
        status.container_id = (pid > 0).then(|| pod_status::container_id(pid));
        status.image_id = format!("file://{}", pilot_container.home.display());
        status
    }

    /// Supervises the process until it has ended, or the pod is to end.
    async fn supervise(
        &mut self,
        pilot_container: &PilotContainer,
    ) -> Result<ProcessExit, StopReason> {
        let status = self.container_status(pilot_container);
        if status.state.as_ref().is_none_or(|state| state.running.is_none()) {
            status.state = Some(pod_status::running_state(pod_status::now()));
        }
        // An adopted process keeps the health that its pod's status says until a probe says
        // otherwise.
        let health = ContainerHealth {
            started: status.started == Some(true),
            ready: status.ready,
            ..ContainerHealth::default()
        };
        let (sender, mut health) = watch::channel(health);
        let probes =
            probes::run_probes(pilot_container.container.clone(), pilot_container.address, sender);
        let mut probes = Box::pin(probes);
        let mut asking = true;
        let mut looks = interval(LOOK);
        let mut updated_at = Instant::now();
        let mut annotations = self.pod.metadata.annotations.clone();
        loop {
            if let Some(exit) = self.process.as_mut().and_then(DetachedProcess::poll_exit) {
                return Ok(exit);
            }
            if let Some(stop_reason) = self.stop_reason() {
                return Err(stop_reason);
            }
            let current_health = health.borrow_and_update().clone();
            let status = self.container_status(pilot_container);
            (status.started, status.ready) = (Some(current_health.started), current_health.ready);
            self.view.unready = current_health.unready;
            if let Some(reason) = current_health.dead {
                self.publish_event(&EventNotice::warning(
                    "Killing",
                    format!("the container is restarted: {reason}"),
                ))
                .await;
                return Ok(self.terminate_process(self.grace_period()).await);
            }
            self.run_ephemeral_installers(pilot_container).await;
            self.write_status().await;
            // As kubelet does: a pod that was marked anew is looked at now.
            let has_new_annotations = self.pod.metadata.annotations != annotations;
            if has_new_annotations || updated_at.elapsed() >= REFRESH {
                updated_at = Instant::now();
                annotations.clone_from(&self.pod.metadata.annotations);
                if let Err(WaitingReason(reason, message)) =
                    self.write_volumes(pilot_container).await
                {
                    debug!(reason, message, "Files of a pod are as they were");
                }
            }
            tokio::select! {
                () = &mut probes, if asking => asking = false,
                _ = looks.tick() => {}
                _ = self.pods.changed() => self.receive_update(),
            }
        }
    }

    /// Runs the ephemeral containers that install another build of the pilot.
    async fn run_ephemeral_installers(&mut self, pilot_container: &PilotContainer) {
        let spec = self.pod.spec.clone().unwrap_or_default();
        for ephemeral_container in spec.ephemeral_containers.iter().flatten() {
            if self.view.ephemeral.iter().any(|status| status.name == ephemeral_container.name) {
                continue;
            }
            // An ephemeral container differs only in naming the container that it debugs.
            let text = json!(ephemeral_container).to_string();
            let container = serde_json::from_str(&text).unwrap_or_default();
            let (code, message) = match launch::container_role(&self.host.databases, &container) {
                Some(ContainerRole::Installer) => self
                    .run_installer(pilot_container, &container)
                    .await
                    .unwrap_or_else(|error| (1, format!("failed to run it: {error}"))),
                _ => (1, "images are not run on this host".to_owned()),
            };
            let terminated_state =
                pod_status::terminated_state(Some(code), &message, Some(pod_status::now()), None);
            self.view.ephemeral.push(pod_status::new_status(&container, terminated_state));
        }
    }

    /// Reports that the pilot's process ended, and the back-off after which it is started again.
    async fn report_exit(
        &mut self,
        pilot_container: &PilotContainer,
        exit: ProcessExit,
        delay: Duration,
    ) {
        let (pid, code) = (self.record.pid, exit_code(exit));
        self.process = None;
        let log =
            launch::termination_log(&self.host.folder, &self.pod, &pilot_container.container.name);
        let message = fs::read_to_string(log).unwrap_or_default();
        let (namespace, name) = launch::pod_key(&self.pod);
        warn!(namespace, name, pid, code, explanation = message.trim(), "A pilot ended");
        let status = self.container_status(pilot_container);
        let terminated_state =
            pod_status::terminated_state(code, &message, pod_status::started_at(status), Some(pid));
        status.last_state = Some(terminated_state);
        status.restart_count += 1;
        (status.ready, status.started) = (false, Some(false));
        let text = format!("back-off {} s restarting the container", delay.as_secs());
        status.state = Some(pod_status::waiting_state("CrashLoopBackOff", &text));
        (self.record.pid, self.record.started) = (0, 0);
        self.save_record();
        self.write_status().await;
    }

    async fn report_waiting(&mut self, reason: &'static str, message: &str) {
        let spec = self.pod.spec.clone().unwrap_or_default();
        for container in &spec.containers {
            let state = self.view.waiting_state(&container.name, reason, message);
            match self.view.containers.iter_mut().find(|status| status.name == container.name) {
                Some(status) => (status.state, status.ready) = (Some(state), false),
                None => self.view.containers.push(pod_status::new_status(container, state)),
            }
        }
        if self.write_status().await {
            let (namespace, name) = launch::pod_key(&self.pod);
            info!(namespace, name, reason, explanation = message, "A pod waits");
            if reason != "ContainerCreating" {
                let event_reason = if reason == FAILED_MOUNT { FAILED_MOUNT } else { "Failed" };
                self.publish_event(&EventNotice::warning(event_reason, message)).await;
            }
        }
    }

    /// Waits for `pause`, or until the pod is to end.
    async fn wait_for_stop(&mut self, pause: Duration) -> Option<StopReason> {
        let until = Instant::now() + pause;
        let (stopping, shutdown) = (self.host.stopping.clone(), self.host.shutdown.clone());
        loop {
            if let Some(stop_reason) = self.stop_reason() {
                return Some(stop_reason);
            }
            self.write_status().await;
            tokio::select! {
                () = tokio::time::sleep_until(until) => return None,
                _ = self.pods.changed() => self.receive_update(),
                () = stopping.triggered() => {}
                () = shutdown.triggered() => {}
            }
        }
    }

    /// Takes over a newer version of the Pod object from the watch.
    fn receive_update(&mut self) {
        match self.pods.borrow_and_update().clone() {
            Some(pod) => self.pod = pod,
            None => self.gone = true,
        }
    }

    fn stop_reason(&self) -> Option<StopReason> {
        let is_deleted = self.pod.metadata.deletion_timestamp.is_some();
        if self.host.stopping.is_triggered() {
            Some(StopReason::Stopped)
        } else if self.host.shutdown.is_triggered() || self.pods.has_changed().is_err() {
            Some(StopReason::Daemon)
        } else if self.gone {
            Some(StopReason::Gone)
        } else {
            is_deleted.then_some(StopReason::Deleted)
        }
    }

    /// Returns the grace period that the pod's spec asks for.
    fn grace_period(&self) -> Duration {
        let spec_seconds =
            self.pod.spec.as_ref().and_then(|spec| spec.termination_grace_period_seconds);
        let spec_seconds = spec_seconds.and_then(|seconds| u64::try_from(seconds).ok());
        spec_seconds.map_or(DEFAULT_GRACE, Duration::from_secs)
    }

    /// Returns the grace period that the pod's deletion granted; a later deletion may shorten it.
    fn deletion_grace_period(&self) -> Duration {
        let granted_seconds = self.pod.metadata.deletion_grace_period_seconds;
        let granted_seconds = granted_seconds.and_then(|seconds| u64::try_from(seconds).ok());
        granted_seconds.map_or_else(|| self.grace_period(), Duration::from_secs)
    }

    /// Asks the process to end, and kills it when it takes longer than its grace period.
    async fn terminate_process(&mut self, grace: Duration) -> ProcessExit {
        let Some(mut process) = self.process.take() else { return ProcessExit::Unseen };
        let started_at = Instant::now();
        let is_deleted = self.pod.metadata.deletion_timestamp.is_some();
        process.send_signal(Signal::SIGTERM);
        let mut killed_at = None;
        loop {
            if let Some(exit) = process.poll_exit() {
                return exit;
            }
            let grace = if is_deleted { grace.min(self.deletion_grace_period()) } else { grace };
            if killed_at.is_none() && started_at.elapsed() >= grace {
                process.send_signal(Signal::SIGKILL);
                killed_at = Some(Instant::now());
            }
            if killed_at.is_some_and(|since| since.elapsed() > REAPED) {
                warn!(pid = process.pid, "A process does not end although it was killed");
                return ProcessExit::Unseen;
            }
            tokio::select! {
                () = sleep(LOOK) => {}
                Ok(()) = self.pods.changed() => self.receive_update(),
            }
        }
    }

    async fn stop_pod(&mut self, end: StopReason) {
        let (namespace, name) = launch::pod_key(&self.pod);
        let (namespace, name) = (namespace.to_owned(), name.to_owned());
        let grace = match end {
            StopReason::Daemon => return,
            StopReason::Stopped => self.grace_period(),
            StopReason::Deleted => self.deletion_grace_period(),
            StopReason::Gone => Duration::ZERO,
        };
        if self.process.is_some() {
            info!(namespace, name, ?end, "Stopping a pilot");
            let pid = self.record.pid;
            let exit = self.terminate_process(grace).await;
            self.record_stop(exit, pid);
        }
        if end == StopReason::Stopped {
            self.not_before = Instant::now();
            self.write_status().await;
            return;
        }
        if end == StopReason::Deleted {
            self.not_before = Instant::now();
            self.write_status().await;
        }
        if let Err(error) = fs::remove_dir_all(self.pod_dir())
            && error.kind() != io::ErrorKind::NotFound
        {
            warn!(namespace, name, %error, "The folder of a pod stays");
        }
        if end == StopReason::Deleted {
            self.delete_pod(&namespace, &name).await;
        }
    }

    /// Records the end of a pilot that was asked to stop.
    fn record_stop(&mut self, exit: ProcessExit, pid: i32) {
        (self.record.pid, self.record.started) = (0, 0);
        self.save_record();
        for status in &mut self.view.containers {
            if let Some(started_at) = pod_status::started_at(status) {
                status.state = Some(pod_status::terminated_state(
                    exit_code(exit),
                    "",
                    Some(started_at),
                    Some(pid),
                ));
                (status.ready, status.started) = (false, Some(false));
            }
        }
    }

    /// Deletes the Pod object, once none of the pod's processes runs any more.
    async fn delete_pod(&mut self, namespace: &str, name: &str) {
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
            match ignore_stale_write(api.delete(name, &params).await.map(drop)) {
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
    async fn write_status(&mut self) -> bool {
        let now = Instant::now();
        if now < self.not_before {
            return false;
        }
        let status = pod_status::build_status(&self.pod, &self.written, &self.view);
        if status == self.written {
            return false;
        }
        let (namespace, name) = launch::pod_key(&self.pod);
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

    fn save_record(&self) {
        let text = serde_json::to_string_pretty(&self.record).unwrap_or_default();
        let folder = self.pod_dir();
        if let Err(error) = write_private(&folder.join(RECORD), text.as_bytes()) {
            // The next daemon also finds the process by its arguments.
            warn!(folder = %folder.display(), %error, "What a pod is was not written down");
        }
    }

    async fn publish_event(&self, notice: &EventNotice) {
        let (namespace, name) = launch::pod_key(&self.pod);
        let pod_reference = ObjectReference {
            api_version: Some("v1".to_owned()),
            kind: Some("Pod".to_owned()),
            namespace: Some(namespace.to_owned()),
            name: Some(name.to_owned()),
            uid: self.pod.metadata.uid.clone(),
            ..ObjectReference::default()
        };
        self.host.events.publish(&pod_reference, notice).await;
    }
}

fn exit_code(exit: ProcessExit) -> Option<i32> {
    match exit {
        ProcessExit::Code(code) => Some(code),
        ProcessExit::Unseen => None,
    }
}

/// Returns the restart back-off after `crashes` ends in a row that came soon after their start.
fn restart_delay(crashes: u32) -> Duration {
    match crashes {
        0 => Duration::ZERO,
        count => (FIRST_DELAY * 2_u32.saturating_pow(count.min(10) - 1)).min(LONGEST_DELAY),
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
        assert!(of(boot_id()).is_running() && of(String::new()).is_running());
        assert!(!of("of another start of the machine".into()).is_running());
    }

    #[test]
    fn restarts_wait_longer_each_time_up_to_five_minutes() {
        let all = [0, 1, 2, 3, 4, 5, 6, 40].map(|crashes| restart_delay(crashes).as_secs());
        assert_eq!(all, [0, 10, 20, 40, 80, 160, 300, 300]);
    }
}
