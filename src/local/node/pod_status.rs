//! Builds the status of a pod from the states of its programs. Pure.

use std::net::Ipv4Addr;

use k8s_openapi::{
    api::core::v1::{
        Container, ContainerState, ContainerStateRunning, ContainerStateTerminated,
        ContainerStateWaiting, ContainerStatus, HostIP, Pod, PodCondition, PodIP, PodStatus,
    },
    apimachinery::pkg::apis::meta::v1::Time,
    jiff::Timestamp,
};

/// Limit of a termination message in characters; the kubelet keeps 4096 bytes.
const MESSAGE: usize = 4096;

/// Returns the present time in whole seconds, as Kubernetes writes times.
pub(crate) fn now() -> Time {
    let now = Timestamp::now();
    Time(Timestamp::from_second(now.as_second()).unwrap_or(now))
}

pub(crate) fn waiting_state(reason: &str, message: &str) -> ContainerState {
    ContainerState {
        waiting: Some(ContainerStateWaiting {
            reason: Some(reason.to_owned()),
            message: (!message.is_empty()).then(|| message.to_owned()),
        }),
        ..ContainerState::default()
    }
}

pub(crate) fn running_state(started_at: Time) -> ContainerState {
    ContainerState {
        running: Some(ContainerStateRunning { started_at: Some(started_at) }),
        ..ContainerState::default()
    }
}

/// Builds the state of a container that ended. `code` is `None` where the exit code is not known.
pub(crate) fn terminated_state(
    code: Option<i32>,
    message: &str,
    started_at: Option<Time>,
    pid: Option<i32>,
) -> ContainerState {
    let reason = match code {
        Some(0) => "Completed",
        Some(_) => "Error",
        None => "ContainerStatusUnknown",
    };
    let message: String = message.trim().chars().take(MESSAGE).collect();
    ContainerState {
        terminated: Some(ContainerStateTerminated {
            // The kubelet reports 137 for a container whose end it did not see.
            exit_code: code.unwrap_or(137),
            reason: Some(reason.to_owned()),
            message: (!message.is_empty()).then_some(message),
            started_at,
            finished_at: Some(now()),
            container_id: pid.map(container_id),
            signal: None,
        }),
        ..ContainerState::default()
    }
}

/// Makes a container id from the pid of its process.
pub(crate) fn container_id(pid: i32) -> String {
    format!("process://{pid}")
}

/// Returns the status of a container about which nothing is known yet.
pub(crate) fn new_status(container: &Container, state: ContainerState) -> ContainerStatus {
    ContainerStatus {
        name: container.name.clone(),
        image: container.image.clone().unwrap_or_default(),
        started: Some(false),
        state: Some(state),
        ..ContainerStatus::default()
    }
}

/// Returns when a running container was started.
pub(crate) fn started_at(status: &ContainerStatus) -> Option<Time> {
    status.state.as_ref()?.running.as_ref()?.started_at.clone()
}

/// What the node knows of a pod.
#[derive(Clone, Debug, Default)]
pub(crate) struct ObservedPod {
    pub(crate) address: Option<Ipv4Addr>,
    pub(crate) init: Vec<ContainerStatus>,
    pub(crate) containers: Vec<ContainerStatus>,
    pub(crate) ephemeral: Vec<ContainerStatus>,
    /// Containers that are not run, because their program is in an image; they do not count for the
    /// pod's status.
    pub(crate) ignored: Vec<String>,
    /// Why the pod is not ready, from its readiness probe.
    pub(crate) unready: String,
}

impl ObservedPod {
    /// Returns the state of a container that does not run. One whose program is in an image never
    /// will.
    pub(crate) fn waiting_state(&self, name: &str, reason: &str, message: &str) -> ContainerState {
        if self.ignored.iter().any(|ignored_name| ignored_name == name) {
            return waiting_state("NotRun", "images are not run on this host");
        }
        waiting_state(reason, message)
    }
}

/// Builds the pod's whole status. A condition that did not change keeps its transition time.
pub(crate) fn build_status(
    pod: &Pod,
    previous_status: &PodStatus,
    view: &ObservedPod,
) -> PodStatus {
    let ObservedPod { address, init, containers, ephemeral, ignored, unready } = view;
    let is_counted = |status: &&ContainerStatus| !ignored.contains(&status.name);
    let is_completed = |status: &ContainerStatus| {
        let termination = status.state.as_ref().and_then(|state| state.terminated.as_ref());
        termination.is_some_and(|termination| termination.exit_code == 0)
    };
    let is_initialized = init.iter().filter(is_counted).all(is_completed)
        && pod
            .spec
            .as_ref()
            .is_some_and(|spec| spec.init_containers.as_ref().map_or(0, Vec::len) == init.len());
    let counted_statuses: Vec<_> = containers.iter().filter(is_counted).collect();
    let is_ready =
        !counted_statuses.is_empty() && counted_statuses.iter().all(|status| status.ready);
    let has_started = counted_statuses.iter().any(|status| {
        let state = status.state.as_ref();
        status.restart_count > 0
            || state.is_some_and(|state| state.running.is_some() || state.terminated.is_some())
    });
    let unready_names: Vec<_> = counted_statuses
        .iter()
        .filter(|status| !status.ready)
        .map(|status| status.name.as_str())
        .collect();
    let unready_message =
        format!("containers with unready status: [{}] {unready}", unready_names.join(" "));
    let condition = |type_: &str, is_met: bool, reason: &str, message: &str| {
        let status = if is_met { "True" } else { "False" };
        let previous_condition =
            previous_status.conditions.iter().flatten().find(|condition| condition.type_ == type_);
        let transition_time = previous_condition
            .filter(|condition| condition.status == status)
            .and_then(|condition| condition.last_transition_time.clone());
        let failure_text =
            |text: &str| (!is_met && !text.is_empty()).then(|| text.trim().to_owned());
        PodCondition {
            type_: type_.to_owned(),
            status: status.to_owned(),
            reason: failure_text(reason),
            message: failure_text(message),
            last_transition_time: Some(transition_time.unwrap_or_else(now)),
            observed_generation: pod.metadata.generation,
            ..PodCondition::default()
        }
    };
    let ips = address.map(|address| address.to_string());
    PodStatus {
        phase: Some(if has_started { "Running" } else { "Pending" }.to_owned()),
        conditions: Some(vec![
            condition("PodScheduled", true, "", ""),
            condition("Initialized", is_initialized, "ContainersNotInitialized", ""),
            condition("ContainersReady", is_ready, "ContainersNotReady", &unready_message),
            condition("Ready", is_ready, "ContainersNotReady", &unready_message),
        ]),
        host_ip: Some(Ipv4Addr::LOCALHOST.to_string()),
        host_ips: Some(vec![HostIP { ip: Ipv4Addr::LOCALHOST.to_string() }]),
        pod_ip: ips.clone(),
        pod_ips: ips.map(|ip| vec![PodIP { ip }]),
        start_time: previous_status.start_time.clone().or_else(|| Some(now())),
        qos_class: Some("Burstable".to_owned()),
        init_container_statuses: Some(init.clone()),
        container_statuses: Some(containers.clone()),
        ephemeral_container_statuses: (!ephemeral.is_empty()).then(|| ephemeral.clone()),
        ..PodStatus::default()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pod() -> Pod {
        serde_json::from_value(json!({
            "metadata": {"name": "demo-0"},
            "spec": {"initContainers": [{"name": "install"}], "containers": [{"name": "database"}]},
        }))
        .unwrap()
    }

    fn told(status: &PodStatus, type_: &str) -> (String, Option<Time>) {
        let found = status.conditions.iter().flatten().find(|found| found.type_ == type_).unwrap();
        (found.status.clone(), found.last_transition_time.clone())
    }

    #[test]
    fn a_pod_goes_from_pending_to_ready_and_keeps_its_times() {
        let pod = pod();
        let spec = pod.spec.as_ref().unwrap();
        let pending = new_status(&spec.containers[0], waiting_state("PodInitializing", ""));
        let mut view = ObservedPod { containers: vec![pending], ..ObservedPod::default() };
        let first = build_status(&pod, &PodStatus::default(), &view);
        assert_eq!(first.phase.as_deref(), Some("Pending"));
        assert_eq!(told(&first, "Initialized").0, "False");

        let init = &spec.init_containers.as_ref().unwrap()[0];
        view.init = vec![new_status(init, terminated_state(Some(0), "a-1\n", None, None))];
        view.containers[0].state = Some(running_state(now()));
        view.address = Some(Ipv4Addr::new(127, 30, 1, 1));
        let second = build_status(&pod, &first, &view);
        assert_eq!(second.phase.as_deref(), Some("Running"));
        assert_eq!(second.pod_ip.as_deref(), Some("127.30.1.1"));
        assert_eq!(
            (told(&second, "Initialized").0, told(&second, "Ready").0),
            ("True".into(), "False".into())
        );

        view.containers[0].ready = true;
        let mut known = second.clone();
        let long_ago = Time("2026-01-01T00:00:00Z".parse().unwrap());
        for condition in known.conditions.iter_mut().flatten() {
            condition.last_transition_time = Some(long_ago.clone());
        }
        let third = build_status(&pod, &known, &view);
        assert_eq!(told(&third, "Initialized"), ("True".into(), Some(long_ago.clone())));
        assert_eq!(told(&third, "Ready").0, "True");
        assert_ne!(told(&third, "Ready").1, Some(long_ago));
    }

    #[test]
    fn what_is_only_in_an_image_holds_nothing_up() {
        let mut pod = pod();
        let spec = pod.spec.as_mut().unwrap();
        spec.containers.push(Container { name: "sidecar".into(), ..Container::default() });
        let mut database = new_status(&spec.containers[0], running_state(now()));
        database.ready = true;
        let sidecar = new_status(&spec.containers[1], waiting_state("NotRun", "it is in an image"));
        let view = ObservedPod {
            init: vec![new_status(&spec.containers[0], terminated_state(Some(0), "", None, None))],
            containers: vec![database, sidecar],
            ignored: vec!["sidecar".to_owned()],
            ..ObservedPod::default()
        };
        assert_eq!(told(&build_status(&pod, &PodStatus::default(), &view), "Ready").0, "True");
    }

    #[test]
    fn an_end_that_nobody_saw_is_told_as_the_kubelet_tells_it() {
        let unseen = terminated_state(None, "", None, Some(7)).terminated.unwrap();
        assert_eq!(
            (unseen.exit_code, unseen.reason.as_deref()),
            (137, Some("ContainerStatusUnknown"))
        );
        let failed = terminated_state(Some(64), " no API \n", None, None).terminated.unwrap();
        assert_eq!(
            (failed.message.as_deref(), failed.reason.as_deref()),
            (Some("no API"), Some("Error"))
        );
    }
}
