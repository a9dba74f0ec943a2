//! Machine upgrades for the status page: what the coordinator reports in its ClusterUpgrades. The
//! controller decides nothing by them.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use k8s_openapi::jiff::Timestamp;
use kube::{Api, Client, api::ListParams};
use tokio::time::sleep;
use tracing::warn;

use crate::{
    api::containership::{ClusterUpgrade, ClusterUpgradeStatus},
    error::chain,
};

/// Most runs that are read.
const RUNS: u32 = 200;
/// Interval of looks while a run is under way.
const OFTEN: Duration = Duration::from_secs(10);
/// Interval of looks while none is.
const SELDOM: Duration = Duration::from_secs(60);
/// Poll interval if no server serves the kind, or the controller may not read it.
const ABSENT: Duration = Duration::from_secs(300);
/// How long a run that succeeded is shown.
const SHOWN: Duration = Duration::from_secs(24 * 3600);

/// The runs that were read last.
#[derive(Clone, Debug, Default)]
pub(super) struct MachineRuns(Arc<Mutex<Vec<ClusterUpgrade>>>);

impl MachineRuns {
    /// Returns the runs that are not over, those that failed, and those that ended lately.
    pub(super) fn recent_upgrades(&self, now: Timestamp) -> Vec<ClusterUpgrade> {
        let upgrades = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        upgrades.iter().filter(|run| is_recent(run, now)).cloned().collect()
    }

    /// Reads the runs again and again. May be dropped anywhere.
    pub(super) async fn poll_upgrades(self, client: Client) {
        let api: Api<ClusterUpgrade> = Api::all(client);
        let mut last_error = String::new();
        loop {
            let pause = match api.list(&ListParams::default().limit(RUNS)).await {
                Ok(list) => {
                    last_error.clear();
                    let is_over = |run: &ClusterUpgrade| {
                        run.status.as_ref().is_some_and(ClusterUpgradeStatus::is_finished)
                    };
                    let pause = if list.items.iter().all(is_over) { SELDOM } else { OFTEN };
                    *self.0.lock().unwrap_or_else(PoisonError::into_inner) = list.items;
                    pause
                }
                Err(kube::Error::Api(answer)) if matches!(answer.code, 403 | 404) => {
                    self.0.lock().unwrap_or_else(PoisonError::into_inner).clear();
                    ABSENT
                }
                Err(error) => {
                    let text = chain(&error).to_string();
                    if text != last_error {
                        warn!(error = text, "Upgrades of machines were not read, trying again");
                        last_error = text;
                    }
                    SELDOM
                }
            };
            sleep(pause).await;
        }
    }
}

fn is_recent(run: &ClusterUpgrade, now: Timestamp) -> bool {
    use crate::api::containership::UpgradePhase::Success;
    let Some(status) = run.status.as_ref().filter(|status| status.phase == Some(Success)) else {
        return true;
    };
    let age =
        status.completion_time.as_ref().and_then(|time| now.duration_since(time.0).try_into().ok());
    age.is_some_and(|ago: Duration| ago < SHOWN)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_failed_stays_and_what_succeeded_goes_after_a_day() {
        let now: Timestamp = "2026-11-22T12:00:00Z".parse().unwrap();
        let run = |phase: &str, ended: Option<&str>| {
            let run = serde_json::from_value(json!({
                "metadata": {"name": "r"}, "spec": {"type": "reboot"},
                "status": {"phase": phase, "completionTime": ended},
            }));
            is_recent(&run.unwrap(), now)
        };
        assert!(run("Success", Some("2026-11-22T11:00:00Z")));
        assert!(!run("Success", Some("2026-11-21T11:00:00Z")));
        assert!(run("Failed", Some("2026-01-01T00:00:00Z")));
        assert!(run("InProgress", None));
    }
}
