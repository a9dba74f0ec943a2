//! What agents say of upgrades, each on its own Node.

use serde::{Deserialize, Serialize};

/// What an agent says, in the annotation [`super::name::UPGRADE`] of its own Node. Fields of newer
/// agents are ignored.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct UpgradeReport {
    /// Version of the machine's control groups: 1 or 2.
    pub cgroup: u8,
    /// The disk has room for new programs and a copy of etcd's data: 2 GiB.
    pub has_room: bool,
    /// Newest form of a job that the runner on the machine knows; none where no runner was installed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub runner: Option<u32>,
    /// The last job.
    #[serde(flatten)]
    pub job: Option<JobReport>,
}

/// How far the runner of a machine is with a job.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub struct JobReport {
    /// uid of the ClusterUpgrade.
    pub id: String,
    /// How often the machine began.
    pub attempt: i32,
    /// What is done, or was tried last.
    pub step: JobStep,
    /// None while the step is under way.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub code: Option<JobCode>,
    /// What failed, in a sentence.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}

/// The steps of a job, in their order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum JobStep {
    /// The programs are fetched.
    Fetch,
    /// They are the ones that were named.
    Checksum,
    /// They lie ready and say the right version; what a way back needs is kept.
    Stage,
    /// kubeadm upgrades the machine's part of the cluster. From here on a failure is undone.
    Kubeadm,
    /// The new kubelet takes the place of the old one.
    Swap,
    /// It is started.
    Restart,
    /// It answers.
    Health,
    /// The old kubelet comes back.
    RollBack,
    Done,
}

/// How a job stands, as the exit code of its runner.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(into = "u8", try_from = "u8")]
#[repr(u8)]
pub enum JobCode {
    Done = 0,
    /// A step failed that is tried again.
    Again = 10,
    /// The machine is as it was before.
    RolledBack = 20,
    /// Neither one nor the other: a person must see to it.
    Dirty = 30,
}

impl From<JobCode> for u8 {
    fn from(code: JobCode) -> Self {
        code as Self
    }
}

impl TryFrom<u8> for JobCode {
    type Error = String;

    fn try_from(code: u8) -> Result<Self, String> {
        let job_codes = [Self::Done, Self::Again, Self::RolledBack, Self::Dirty];
        let job_code = job_codes.into_iter().find(|candidate| u8::from(*candidate) == code);
        job_code.ok_or_else(|| format!("{code} is no code of a job"))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_report_is_flat_and_may_lack_a_job() {
        let idle = UpgradeReport { cgroup: 2, has_room: true, runner: Some(1), job: None };
        assert_eq!(json!(idle), json!({"cgroup": 2, "hasRoom": true, "runner": 1}));
        assert_eq!(serde_json::from_value::<UpgradeReport>(json!(idle)).unwrap(), idle);
        let job = JobReport {
            id: "u".to_owned(),
            attempt: 2,
            step: JobStep::RollBack,
            code: Some(JobCode::RolledBack),
            message: None,
        };
        let report = UpgradeReport { job: Some(job), ..idle };
        let written = json!(report);
        assert_eq!((&written["step"], &written["code"]), (&json!("rollback"), &json!(20)));
        assert_eq!(serde_json::from_value::<UpgradeReport>(written).unwrap(), report);
        let empty: UpgradeReport = serde_json::from_value(json!({"newer": 1})).unwrap();
        assert_eq!(empty, UpgradeReport::default());
        assert!(JobCode::try_from(11).is_err());
    }
}
