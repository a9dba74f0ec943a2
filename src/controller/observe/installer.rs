//! The containers that install pilots in a pod's shared volume: the init container, and later
//! ephemeral containers.

use std::time::Duration;

use k8s_openapi::{
    api::core::v1::{ContainerStatus, Pod},
    jiff::Timestamp,
};

use super::{WAITING, age};
use crate::api::names::INSTALL_CONTAINER;

/// A container that installs, or installed, the pilot of its image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct InstallerContainer {
    /// 0 is the init container; the others are numbered as they were added.
    pub(crate) number: u32,
    pub(crate) image: String,
    pub(crate) state: InstallState,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum InstallState {
    /// The install is not done yet; the text is the kubelet's reason.
    Pending(String),
    Done {
        /// Id of this installation; the pilot that runs it reports the same id. Empty when the
        /// image was too old to give one.
        program: String,
        at: Timestamp,
        age: Duration,
    },
    Failed {
        reason: &'static str,
        message: String,
    },
}

/// Returns the name of the install container with this number.
pub(crate) fn installer_name(number: u32) -> String {
    format!("{INSTALL_CONTAINER}-{number}")
}

/// Returns the number in the name of an install container; see [`installer_name`].
fn parse_number(name: &str) -> Option<u32> {
    match name.strip_prefix(INSTALL_CONTAINER)? {
        "" => Some(0),
        rest => rest.strip_prefix('-')?.parse().ok(),
    }
}

/// Returns the install containers of a pod: the init container, then ephemeral ones in the order in
/// which they were added. The pod's own list has another order: a strategic merge puts new entries
/// first.
pub(super) fn installer_containers(pod: &Pod, now: Timestamp) -> Vec<InstallerContainer> {
    let (Some(spec), status) = (&pod.spec, pod.status.clone().unwrap_or_default()) else {
        return Vec::new();
    };
    let init = spec.init_containers.iter().flatten().filter(|c| c.name == INSTALL_CONTAINER);
    let ephemeral = spec.ephemeral_containers.iter().flatten();
    let statuses: Vec<ContainerStatus> = [
        status.init_container_statuses.unwrap_or_default(),
        status.ephemeral_container_statuses.unwrap_or_default(),
    ]
    .concat();
    let mut installers: Vec<_> = init
        .map(|c| (&c.name, &c.image))
        .chain(ephemeral.map(|c| (&c.name, &c.image)))
        .filter_map(|(name, image)| {
            Some(InstallerContainer {
                number: parse_number(name)?,
                image: image.clone().unwrap_or_default(),
                state: install_state(statuses.iter().find(|status| status.name == *name), now),
            })
        })
        .collect();
    installers.sort_by_key(|installer| installer.number);
    installers
}

fn install_state(status: Option<&ContainerStatus>, now: Timestamp) -> InstallState {
    let Some(state) = status.and_then(|status| status.state.as_ref()) else {
        return InstallState::Pending("the kubelet has not seen it yet".to_owned());
    };
    if let Some(termination) = &state.terminated {
        let message = termination.message.clone().unwrap_or_default();
        let finished_at =
            termination.finished_at.as_ref().map_or(Timestamp::UNIX_EPOCH, |time| time.0);
        if termination.exit_code == 0 {
            return InstallState::Done {
                program: message.trim().to_owned(),
                at: finished_at,
                age: age(finished_at, now),
            };
        }
        let reason = termination.reason.as_deref().unwrap_or("Error");
        let message = format!("exit code {}, {reason}: {}", termination.exit_code, message.trim());
        return InstallState::Failed { reason: "PilotInstallFailed", message };
    }
    let waiting_state = state.waiting.clone().unwrap_or_default();
    let word = waiting_state.reason.unwrap_or_else(|| "Running".to_owned());
    let message =
        waiting_state.message.map_or_else(|| word.clone(), |text| format!("{word}: {text}"));
    match WAITING.iter().find(|(listed_reason, _)| *listed_reason == word) {
        Some((_, "ImagePullFailed")) => InstallState::Failed { reason: "ImagePullFailed", message },
        Some(_) => InstallState::Failed { reason: "PilotInstallFailed", message },
        None => InstallState::Pending(message),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_the_kubelet_says_of_an_installer_is_sorted() {
        let pod = serde_json::from_value(json!({
            "metadata": {},
            "spec": {
                "containers": [],
                "initContainers": [
                    {"name": "install-pilot", "image": "navigator:1"},
                    {"name": "sysctl", "image": "busybox"},
                ],
                "ephemeralContainers": [
                    {"name": "install-pilot-10", "image": "navigator:5"},
                    {"name": "install-pilot-3", "image": "navigator:4"},
                    {"name": "debugger-x", "image": "busybox"},
                    {"name": "install-pilot-2", "image": "navigator:3"},
                    {"name": "install-pilot-1", "image": "navigator:2"},
                ],
            },
            "status": {
                "initContainerStatuses": [status("install-pilot", &json!({"terminated": {
                    "exitCode": 0, "finishedAt": "2026-01-01T00:00:00Z", "message": "a-1\n",
                }}))],
                "ephemeralContainerStatuses": [
                    status("install-pilot-1", &json!({"terminated": {
                        "exitCode": 1, "reason": "Error", "message": "no space left",
                    }})),
                    status("install-pilot-2", &json!({"waiting": {
                        "reason": "ImagePullBackOff", "message": "not found",
                    }})),
                    status("install-pilot-3", &json!({"waiting": {"reason": "ContainerCreating"}})),
                ],
            },
        }))
        .unwrap();
        let at: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
        let now = "2026-01-01T00:01:00Z".parse().unwrap();
        let age = Duration::from_secs(60);
        let failed =
            |reason, message: &str| InstallState::Failed { reason, message: message.into() };
        let wanted = [
            InstallState::Done { program: "a-1".into(), at, age },
            failed("PilotInstallFailed", "exit code 1, Error: no space left"),
            failed("ImagePullFailed", "ImagePullBackOff: not found"),
            InstallState::Pending("ContainerCreating".into()),
            InstallState::Pending("the kubelet has not seen it yet".into()),
        ];
        let found = installer_containers(&pod, now);
        assert_eq!(found.len(), wanted.len());
        for (number, (found, wanted)) in found.into_iter().zip(wanted).enumerate() {
            assert_eq!(found.image, format!("navigator:{}", number + 1));
            assert_eq!(found.state, wanted);
        }
    }

    fn status(name: &str, state: &serde_json::Value) -> serde_json::Value {
        json!({
            "name": name, "image": "", "imageID": "", "ready": false, "restartCount": 0,
            "state": state,
        })
    }
}
