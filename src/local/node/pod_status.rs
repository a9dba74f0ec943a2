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

pub(crate) fn waiting(reason: &str, message: &str) -> ContainerState {
    ContainerState {
        waiting: Some(ContainerStateWaiting {
            reason: Some(reason.to_owned()),
            message: (!message.is_empty()).then(|| message.to_owned()),
        }),
        ..ContainerState::default()
    }
}

pub(crate) fn running(since: Time) -> ContainerState {
    ContainerState {
        running: Some(ContainerStateRunning { started_at: Some(since) }),
        ..ContainerState::default()
    }
}

/// Builds the state of a container that ended. `code` is `None` where the exit code is not known.
pub(crate) fn terminated(
    code: Option<i32>,
    message: &str,
    begun: Option<Time>,
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
            started_at: begun,
            finished_at: Some(now()),
            container_id: pid.map(id),
            signal: None,
        }),
        ..ContainerState::default()
    }
}

/// Makes a container id from the pid of its process.
pub(crate) fn id(pid: i32) -> String {
    format!("process://{pid}")
}

/// Returns the status of a container about which nothing is known yet.
pub(crate) fn unknown(container: &Container, state: ContainerState) -> ContainerStatus {
    ContainerStatus {
        name: container.name.clone(),
        image: container.image.clone().unwrap_or_default(),
        started: Some(false),
        state: Some(state),
        ..ContainerStatus::default()
    }
}

/// Returns when a running container was started.
pub(crate) fn began(status: &ContainerStatus) -> Option<Time> {
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
    pub(crate) fn waiting(&self, name: &str, reason: &str, message: &str) -> ContainerState {
        if self.ignored.iter().any(|ignored| ignored == name) {
            return waiting("NotRun", "images are not run on this host");
        }
        waiting(reason, message)
    }
}

/// Builds the pod's whole status. A condition that did not change keeps its transition time.
pub(crate) fn status(pod: &Pod, before: &PodStatus, view: &ObservedPod) -> PodStatus {
    let ObservedPod { address, init, containers, ephemeral, ignored, unready } = view;
    let counts = |status: &&ContainerStatus| !ignored.contains(&status.name);
    let done = |status: &ContainerStatus| {
        let ended = status.state.as_ref().and_then(|state| state.terminated.as_ref());
        ended.is_some_and(|ended| ended.exit_code == 0)
    };
    let initialized = init.iter().filter(counts).all(done)
        && pod
            .spec
            .as_ref()
            .is_some_and(|spec| spec.init_containers.as_ref().map_or(0, Vec::len) == init.len());
    let mine: Vec<_> = containers.iter().filter(counts).collect();
    let ready = !mine.is_empty() && mine.iter().all(|status| status.ready);
    let begun = mine.iter().any(|status| {
        let state = status.state.as_ref();
        status.restart_count > 0
            || state.is_some_and(|state| state.running.is_some() || state.terminated.is_some())
    });
    let missing: Vec<_> =
        mine.iter().filter(|status| !status.ready).map(|status| status.name.as_str()).collect();
    let not_ready = format!("containers with unready status: [{}] {unready}", missing.join(" "));
    let condition = |type_: &str, is: bool, reason: &str, message: &str| {
        let status = if is { "True" } else { "False" };
        let known = before.conditions.iter().flatten().find(|known| known.type_ == type_);
        let since = known
            .filter(|known| known.status == status)
            .and_then(|known| known.last_transition_time.clone());
        let told = |text: &str| (!is && !text.is_empty()).then(|| text.trim().to_owned());
        PodCondition {
            type_: type_.to_owned(),
            status: status.to_owned(),
            reason: told(reason),
            message: told(message),
            last_transition_time: Some(since.unwrap_or_else(now)),
            observed_generation: pod.metadata.generation,
            ..PodCondition::default()
        }
    };
    let ips = address.map(|address| address.to_string());
    PodStatus {
        phase: Some(if begun { "Running" } else { "Pending" }.to_owned()),
        conditions: Some(vec![
            condition("PodScheduled", true, "", ""),
            condition("Initialized", initialized, "ContainersNotInitialized", ""),
            condition("ContainersReady", ready, "ContainersNotReady", &not_ready),
            condition("Ready", ready, "ContainersNotReady", &not_ready),
        ]),
        host_ip: Some(Ipv4Addr::LOCALHOST.to_string()),
        host_ips: Some(vec![HostIP { ip: Ipv4Addr::LOCALHOST.to_string() }]),
        pod_ip: ips.clone(),
        pod_ips: ips.map(|ip| vec![PodIP { ip }]),
        start_time: before.start_time.clone().or_else(|| Some(now())),
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
        let pending = unknown(&spec.containers[0], waiting("PodInitializing", ""));
        let mut view = ObservedPod { containers: vec![pending], ..ObservedPod::default() };
        let first = status(&pod, &PodStatus::default(), &view);
        assert_eq!(first.phase.as_deref(), Some("Pending"));
        assert_eq!(told(&first, "Initialized").0, "False");

        let init = &spec.init_containers.as_ref().unwrap()[0];
        view.init = vec![unknown(init, terminated(Some(0), "a-1\n", None, None))];
        view.containers[0].state = Some(running(now()));
        view.address = Some(Ipv4Addr::new(127, 30, 1, 1));
        let second = status(&pod, &first, &view);
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
        let third = status(&pod, &known, &view);
        assert_eq!(told(&third, "Initialized"), ("True".into(), Some(long_ago.clone())));
        assert_eq!(told(&third, "Ready").0, "True");
        assert_ne!(told(&third, "Ready").1, Some(long_ago));
    }

    #[test]
    fn what_is_only_in_an_image_holds_nothing_up() {
        let mut pod = pod();
        let spec = pod.spec.as_mut().unwrap();
        spec.containers.push(Container { name: "sidecar".into(), ..Container::default() });
        let mut database = unknown(&spec.containers[0], running(now()));
        database.ready = true;
        let sidecar = unknown(&spec.containers[1], waiting("NotRun", "it is in an image"));
        let view = ObservedPod {
            init: vec![unknown(&spec.containers[0], terminated(Some(0), "", None, None))],
            containers: vec![database, sidecar],
            ignored: vec!["sidecar".to_owned()],
            ..ObservedPod::default()
        };
        assert_eq!(told(&status(&pod, &PodStatus::default(), &view), "Ready").0, "True");
    }

    #[test]
    fn an_end_that_nobody_saw_is_told_as_the_kubelet_tells_it() {
        let unseen = terminated(None, "", None, Some(7)).terminated.unwrap();
        assert_eq!(
            (unseen.exit_code, unseen.reason.as_deref()),
            (137, Some("ContainerStatusUnknown"))
        );
        let failed = terminated(Some(64), " no API \n", None, None).terminated.unwrap();
        assert_eq!(
            (failed.message.as_deref(), failed.reason.as_deref()),
            (Some("no API"), Some("Error"))
        );
    }
}
