//! The work of one machine of an upgrade: what the agent writes down, what the host's runner takes from
//! it, and what the host's own policy refuses.

use std::path::PathBuf;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::KubeVersion;
use crate::api::containership::{ClusterUpgrade, MachinePhase, ProgramDigests, RunnerMode};

/// The form of a job that this binary writes, and the newest that it reads.
pub const JOB_FORM: u32 = 1;

/// What is to be done to one machine.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct UpgradeJob {
    pub form: u32,
    /// uid of the ClusterUpgrade.
    pub id: String,
    /// How often the machine began.
    pub attempt: i32,
    pub role: MachineRole,
    /// The kubelet's version before, for people.
    pub from: String,
    /// Version that the machine is brought to.
    pub to: String,
    /// Address below which `kubelet` and `kubeadm` lie.
    #[serde(rename = "baseURL")]
    pub base_url: String,
    pub sha256: ProgramDigests,
    /// kubeadm upgrades the etcd beside a control plane, too.
    pub etcd_upgrade: bool,
    /// When the machine may no longer be touched, if it was not before.
    pub deadline: Option<Time>,
}

/// What kubeadm is asked to do on a machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum MachineRole {
    Worker,
    /// The first of a run: `kubeadm upgrade apply`.
    FirstControlPlane,
    ControlPlane,
}

impl UpgradeJob {
    /// Returns the job of a machine whose turn it is; `None` where the run wants nothing of its agent.
    pub fn for_machine(run: &ClusterUpgrade, machine: &str) -> Option<Self> {
        let runner = &run.spec.runner;
        let artifacts = runner.artifacts.as_ref().filter(|_| runner.mode == RunnerMode::Kubeadm)?;
        let nodes = &run.status.as_ref()?.nodes;
        let is_running = |phase| phase == MachinePhase::Run;
        let node = nodes.iter().find(|node| node.name == machine && is_running(node.phase))?;
        let is_done = |phase| matches!(phase, MachinePhase::Settle | MachinePhase::Done);
        let role = match node.control_plane {
            false => MachineRole::Worker,
            true if nodes.iter().any(|node| node.control_plane && is_done(node.phase)) => {
                MachineRole::ControlPlane
            }
            true => MachineRole::FirstControlPlane,
        };
        Some(Self {
            form: JOB_FORM,
            id: run.metadata.uid.clone()?,
            attempt: node.attempt,
            role,
            from: node.from.clone().unwrap_or_default(),
            to: node.to.clone()?,
            base_url: artifacts.base_url.clone(),
            sha256: artifacts.sha256.clone(),
            etcd_upgrade: runner.etcd_upgrade,
            deadline: node.deadline.clone(),
        })
    }

    /// Reads a job that lies in the folder of this id.
    ///
    /// # Errors
    /// When it is none, or of a newer form; the text is for a person.
    pub fn parse(text: &[u8], id: &str) -> Result<Self, String> {
        let value: Value = serde_json::from_slice(text).map_err(|e| format!("no job: {e}"))?;
        let form = value["form"].as_u64().ok_or("no job: it has no form")?;
        if form > u64::from(JOB_FORM) {
            return Err(format!(
                "the job is of form {form}, and this runner knows {JOB_FORM} at most: run `navigator \
                 agent host-install` of the agent's release on this machine"
            ));
        }
        let job: Self = serde_json::from_value(value).map_err(|e| format!("no job: {e}"))?;
        if job.id != id {
            return Err(format!("the job in folder {id:?} is that of {:?}", job.id));
        }
        Ok(job)
    }

    /// Returns the arguments of kubeadm.
    pub fn kubeadm_arguments(&self) -> Vec<String> {
        let mut arguments = vec!["upgrade".to_owned()];
        match self.role {
            MachineRole::FirstControlPlane => {
                arguments.extend(["apply".to_owned(), self.to.clone(), "--yes".to_owned()]);
            }
            MachineRole::Worker | MachineRole::ControlPlane => arguments.push("node".to_owned()),
        }
        if self.role != MachineRole::Worker {
            arguments.push(format!("--etcd-upgrade={}", self.etcd_upgrade));
        }
        arguments
    }
}

/// What a machine lets its runner do, whatever a job says. Lies where no pod can write.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct HostPolicy {
    /// Jobs are done at all.
    pub enabled: bool,
    /// Addresses that programs may come from, with all that lies below: `https://…` or `file://…`.
    #[serde(rename = "baseURLs")]
    pub base_urls: Vec<String>,
    /// Versions that the machine may be brought to.
    pub lowest_version: String,
    pub highest_version: String,
    /// Certificates that a server of programs must be signed by; those of the system without it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ca_file: Option<PathBuf>,
    #[serde(default = "kubelet")]
    pub kubelet: PathBuf,
    /// Files that kubeadm may write and the old kubelet reads: they come back with it.
    #[serde(default = "kept_files")]
    pub kept_files: Vec<PathBuf>,
    /// Commands that start the kubelet anew, one after the other. No shell reads them.
    #[serde(default = "restart")]
    pub restart: Vec<Vec<String>>,
    /// Where the kubelet says that it is well.
    #[serde(rename = "healthURL", default = "health_url")]
    pub health_url: String,
    /// Seconds within which the kubelet must be well.
    #[serde(default = "health_seconds")]
    pub health_seconds: u64,
    /// Seconds for which it must stay so.
    #[serde(default = "stable_seconds")]
    pub stable_seconds: u64,
}

fn kubelet() -> PathBuf {
    "/usr/bin/kubelet".into()
}

fn kept_files() -> Vec<PathBuf> {
    ["config.yaml", "kubeadm-flags.env"]
        .map(|name| PathBuf::from("/var/lib/kubelet").join(name))
        .into()
}

fn restart() -> Vec<Vec<String>> {
    let command = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect();
    vec![command(&["systemctl", "daemon-reload"]), command(&["systemctl", "restart", "kubelet"])]
}

fn health_url() -> String {
    "http://127.0.0.1:10248/healthz".to_owned()
}

fn health_seconds() -> u64 {
    120
}

fn stable_seconds() -> u64 {
    10
}

impl HostPolicy {
    /// Returns the policy of a machine that takes programs from these addresses only; from none, it
    /// does no job.
    pub fn new(base_urls: Vec<String>, lowest_version: String, highest_version: String) -> Self {
        Self {
            enabled: !base_urls.is_empty(),
            base_urls,
            lowest_version,
            highest_version,
            ca_file: None,
            kubelet: kubelet(),
            kept_files: kept_files(),
            restart: restart(),
            health_url: health_url(),
            health_seconds: health_seconds(),
            stable_seconds: stable_seconds(),
        }
    }

    /// Does the machine let its runner do this job?
    ///
    /// # Errors
    /// A sentence that says why not.
    pub fn check_job(&self, job: &UpgradeJob) -> Result<(), String> {
        if !self.enabled {
            return Err("this machine's policy has upgrades disabled".to_owned());
        }
        let url = &job.base_url;
        let scheme = ["https://", "file://"].iter().find_map(|scheme| url.strip_prefix(scheme));
        let is_allowed = |c: char| c.is_ascii_alphanumeric() || "-._~/:+[]".contains(c);
        if !scheme
            .is_some_and(|rest| rest.chars().all(is_allowed) && rest.split('/').all(|s| s != ".."))
        {
            return Err(format!(
                "{url:?} is no plain address that begins with https:// or file://"
            ));
        }
        let is_below = |base: &String| {
            let rest = url.strip_prefix(base.trim_end_matches('/'));
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        };
        if !self.base_urls.iter().any(is_below) {
            return Err(format!("this machine's policy lets nothing come from {url}"));
        }
        let version = |text: &str| {
            KubeVersion::parse(text).ok_or_else(|| format!("{text:?} is no release of Kubernetes"))
        };
        let (low, high) = (version(&self.lowest_version)?, version(&self.highest_version)?);
        let to = version(&job.to)?;
        if !(low..=high).contains(&to) {
            let Self { lowest_version: low, highest_version: high, .. } = self;
            return Err(format!("this machine's policy allows {low} to {high}, and not {to}"));
        }
        Ok(())
    }
}

#[cfg(test)]
pub(super) mod tests {
    use serde_json::json;

    use super::*;

    pub(in super::super) fn job() -> UpgradeJob {
        UpgradeJob {
            form: JOB_FORM,
            id: "u-1".to_owned(),
            attempt: 1,
            role: MachineRole::Worker,
            from: "v1.33.13".to_owned(),
            to: "v1.34.4".to_owned(),
            base_url: "https://example.org/k8s/v1.34.4".to_owned(),
            sha256: ProgramDigests { kubelet: "new".to_owned(), kubeadm: "adm".to_owned() },
            etcd_upgrade: true,
            deadline: None,
        }
    }

    fn policy() -> HostPolicy {
        let urls = vec!["https://example.org/k8s/".to_owned(), "file:///srv".to_owned()];
        HostPolicy::new(urls, "v1.33.0".to_owned(), "v1.34.99".to_owned())
    }

    #[test]
    fn a_job_is_read_as_it_was_written_and_one_of_a_newer_form_is_refused() {
        let read = |value: &Value| UpgradeJob::parse(value.to_string().as_bytes(), "u-1");
        let job_value = json!(job());
        assert_eq!(read(&job_value), Ok(job()));
        let mut newer = job_value.clone();
        newer["form"] = json!(2);
        newer["hooks"] = json!([]);
        assert!(read(&newer).unwrap_err().starts_with("the job is of form 2"));
        let mut more = job_value.clone();
        more["hooks"] = json!([]);
        assert!(read(&more).unwrap_err().contains("hooks"));
        assert!(UpgradeJob::parse(b"{}", "u-1").unwrap_err().contains("no form"));
        assert!(UpgradeJob::parse(job_value.to_string().as_bytes(), "u-2").is_err());
    }

    #[test]
    fn the_policy_wins() {
        let (policy, good) = (policy(), job());
        assert_eq!(policy.check_job(&good), Ok(()));
        for url in ["https://example.org/k8s", "file:///srv/v1.34.4", "file:///srv"] {
            assert_eq!(policy.check_job(&UpgradeJob { base_url: url.into(), ..job() }), Ok(()));
        }
        for url in [
            "https://example.org/k8s.evil",
            "https://example.org/k8s/../other",
            "https://example.org/k8s/%2e%2e/other",
            "https://example.org/k8s/a?b=c",
            "https://example.org.evil/k8s",
            "http://example.org/k8s",
            "file:///srv2",
            "/srv",
        ] {
            assert!(
                policy.check_job(&UpgradeJob { base_url: url.into(), ..job() }).is_err(),
                "{url}"
            );
        }
        for (to, allowed) in
            [("v1.33.0", true), ("v1.32.9", false), ("v1.35.0", false), ("1.34.1", false)]
        {
            assert_eq!(
                policy.check_job(&UpgradeJob { to: to.into(), ..job() }).is_ok(),
                allowed,
                "{to}"
            );
        }
        assert!(HostPolicy { enabled: false, ..policy }.check_job(&good).is_err());
        assert!(!HostPolicy::new(Vec::new(), String::new(), String::new()).enabled);
        let typed = json!({"enabled": true, "baseUrls": []});
        assert!(serde_json::from_value::<HostPolicy>(typed).is_err(), "a typing error is told");
    }

    #[test]
    fn a_job_follows_from_the_run() {
        let run = |nodes: Value| -> ClusterUpgrade {
            let artifacts = json!({
                "baseURL": "https://example.org", "sha256": {"kubelet": "a", "kubeadm": "b"},
            });
            serde_json::from_value(json!({
                "apiVersion": "provision.containership.io/v3", "kind": "ClusterUpgrade",
                "metadata": {"name": "r", "uid": "u-1"},
                "spec": {
                    "type": "kubernetes", "targetVersion": "v1.34.4",
                    "runner": {"mode": "Kubeadm", "artifacts": artifacts, "etcdUpgrade": false},
                },
                "status": {"nodes": nodes},
            }))
            .unwrap()
        };
        let node = |name: &str, plane: bool, phase: &str| {
            json!({
                "name": name, "controlPlane": plane, "phase": phase, "to": "v1.34.4", "attempt": 3,
            })
        };
        let first = run(json!([node("c1", true, "Run"), node("c2", true, "Pending")]));
        let job = UpgradeJob::for_machine(&first, "c1").unwrap();
        assert_eq!(
            (job.id.as_str(), job.attempt, job.role),
            ("u-1", 3, MachineRole::FirstControlPlane)
        );
        assert_eq!(
            job.kubeadm_arguments().join(" "),
            "upgrade apply v1.34.4 --yes --etcd-upgrade=false"
        );
        assert_eq!(UpgradeJob::for_machine(&first, "c2"), None);
        let second = run(json!([node("c1", true, "Done"), node("c2", true, "Run")]));
        let job = UpgradeJob::for_machine(&second, "c2").unwrap();
        assert_eq!(job.kubeadm_arguments().join(" "), "upgrade node --etcd-upgrade=false");
        let third = run(json!([node("c1", true, "Done"), node("w1", false, "Run")]));
        let job = UpgradeJob::for_machine(&third, "w1").unwrap();
        assert_eq!(
            (job.role, job.kubeadm_arguments().join(" ")),
            (MachineRole::Worker, "upgrade node".into())
        );
        let mut external = third;
        external.spec.runner.mode = RunnerMode::External;
        assert_eq!(UpgradeJob::for_machine(&external, "w1"), None);
    }
}
