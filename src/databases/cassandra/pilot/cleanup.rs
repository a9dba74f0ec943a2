//! Removes rows of ranges that other nodes own now (Cassandra's cleanup), when a person asks for
//! it.
//!
//! Owns which node's turn it is, and the run: keyspace by keyspace, one node of the cluster after
//! the other. Finished keyspaces are saved, so a restarted pilot or database goes on where it was;
//! the keyspace that was under way begins anew. No node is cleaned up unasked: a cleanup reads and
//! writes all of the node's tables.

use std::time::Duration;

use serde_json::json;
use tracing::{info, warn};

use super::{
    CassandraDriver, keyspaces,
    node_view::{NodeView, STORAGE_SERVICE},
    range_survey::query_ranges,
    upkeep::UpkeepState,
};
use crate::{
    api::{
        names::{annotation, condition::CLEANUP_DUE},
        v1beta1::Pilot,
    },
    databases::cassandra::v1beta1::CassandraNode,
    error::chain,
    pilot::{
        clients::jolokia::{JolokiaClient, OperationOutcome},
        driver::{DatabaseNode, Error},
        upkeep_job::{StepOutcome, UpkeepActivity, UpkeepJob, UpkeepRequests},
    },
};

/// Signature of the JMX operation, the same in every release that is run.
const CLEANUP: &str = "forceKeyspaceCleanup(int,java.lang.String,[Ljava.lang.String;)";
/// Files of a table that are read and written at once; the default of `nodetool cleanup`.
const JOBS: u32 = 2;
/// Limit for the cleanup of one keyspace. A cleanup that takes longer counts as failed, and may be
/// requested again.
const LONGEST: Duration = Duration::from_secs(7 * 24 * 3600);
/// Words of Cassandra's refusal while a node joins, leaves or moves.
const MEMBERSHIP: &str = "membership changes";

/// Requests for a cleanup.
const REQUESTS: UpkeepRequests = UpkeepRequests {
    annotation: annotation::CLEANUP,
    condition: CLEANUP_DUE,
    shown: |pilot| {
        let cleanup = pilot.status.part::<CassandraNode>()?.cleanup?;
        Some((cleanup.request, cleanup.phase))
    },
};

/// Returns why a cleanup may not begin now; `None` when it may.
fn pending_ring_change(facts: &NodeView) -> Option<String> {
    if facts.mode != "NORMAL" {
        return Some(format!("waits while the node is {}", facts.mode));
    }
    let restless = [&facts.joining, &facts.leaving, &facts.moving];
    let node = restless.into_iter().flatten().next()?;
    Some(format!("waits until {node} has joined, left or moved"))
}

fn cleanup_outcome(keyspace: &str, operation: OperationOutcome) -> StepOutcome {
    match operation {
        OperationOutcome::Done(status) if status == 0 => StepOutcome::Finished,
        OperationOutcome::Done(status) => StepOutcome::Failed(format!(
            "Cassandra gave the cleanup of keyspace {keyspace} up (status {status}); its log says why"
        )),
        OperationOutcome::Failed(message) if message.contains(MEMBERSHIP) => {
            StepOutcome::Later(message)
        }
        OperationOutcome::Failed(message) => {
            StepOutcome::Failed(format!("the cleanup of keyspace {keyspace} failed: {message}"))
        }
        OperationOutcome::StillRunning => {
            StepOutcome::Failed(format!("the cleanup of keyspace {keyspace} took more than a week"))
        }
    }
}

impl CassandraDriver {
    /// Does the Pilot ask for a cleanup that was not carried out? Drops a cleanup that is no longer
    /// requested.
    pub(super) fn is_asked(&self, pilot: &Pilot) -> bool {
        let Some(request) = REQUESTS.request_of(pilot) else {
            self.upkeep_state(UpkeepState::cancel_job);
            return false;
        };
        // A new volume has no record of an earlier cleanup, but the Pilot may have one.
        !REQUESTS.is_over(pilot, request)
            && self.upkeep_state(|upkeep| {
                let is_over =
                    upkeep.current_job().is_some_and(|it| it.request == request && it.is_over());
                upkeep.pending_keyspaces().is_some() && !is_over
            })
    }

    /// Begins the requested cleanup, or goes on with it, when it is this node's turn.
    pub(super) async fn clean_up(&self, node: &DatabaseNode) -> Result<(), Error> {
        let result = self.go_on(node).await;
        if let Err(error) = &result {
            self.set_waiting(chain(error).to_string());
        }
        result
    }

    fn set_waiting(&self, reason: String) {
        self.upkeep_state(|upkeep| upkeep.activity = UpkeepActivity::Waits(reason));
    }

    async fn go_on(&self, node: &DatabaseNode) -> Result<(), Error> {
        let Some(request) = REQUESTS.request_of(&node.pilot) else { return Ok(()) };
        let begin_job = |upkeep: &mut UpkeepState| {
            let holdings = upkeep.holdings.as_mut()?;
            Some(UpkeepJob::ensure_job(&mut holdings.errand, request).clone())
        };
        let Some(errand) = self.upkeep_state(begin_job) else { return Ok(()) };
        if let Some(peer_ahead) = REQUESTS.find_peer_ahead(&node.pilot, &node.peers) {
            self.set_waiting(format!("waits until {peer_ahead} is cleaned up"));
            return Ok(());
        }
        let jolokia = self.jolokia()?;
        let facts = NodeView::query(&jolokia).await?;
        if let Some(message) = pending_ring_change(&facts) {
            self.set_waiting(message);
            return Ok(());
        }
        let mut keyspace_names = keyspaces::list_keyspaces(&jolokia).await?;
        keyspace_names.sort();
        let count = keyspace_names.len();
        for (index, keyspace) in keyspace_names.into_iter().enumerate() {
            if errand.done.contains(&keyspace) {
                continue;
            }
            let activity =
                UpkeepActivity::Runs { step: keyspace.clone(), number: index + 1, of: count };
            self.upkeep_state(|upkeep| upkeep.activity = activity);
            match self.clean_up_keyspace(&jolokia, &facts, &keyspace).await? {
                StepOutcome::Finished => {}
                StepOutcome::Later(message) => {
                    self.set_waiting(message);
                    return Ok(());
                }
                StepOutcome::Failed(why) => {
                    warn!(why, "Cleanup failed");
                    self.end_errand(Some(why)).await;
                    return Ok(());
                }
            }
        }
        info!(keyspaces = count, "Rows of other nodes' ranges are removed");
        self.end_errand(None).await;
        Ok(())
    }

    async fn clean_up_keyspace(
        &self,
        jolokia: &JolokiaClient,
        facts: &NodeView,
        keyspace: &str,
    ) -> Result<StepOutcome, Error> {
        // Cassandra keeps rows of the ranges that the node owns when the cleanup begins.
        let old_ranges =
            query_ranges(jolokia, facts, vec![keyspace.to_owned()]).await?.owned.remove(keyspace);
        let arguments = json!([JOBS, keyspace, []]);
        let operation =
            jolokia.execute_operation(STORAGE_SERVICE, CLEANUP, &arguments, LONGEST).await?;
        let mut step_outcome = cleanup_outcome(keyspace, operation);
        if let StepOutcome::Failed(_) = step_outcome
            && !keyspaces::list_keyspaces(jolokia).await?.iter().any(|name| name == keyspace)
        {
            // The keyspace was dropped meanwhile, so it has nothing to clean up.
            step_outcome = StepOutcome::Finished;
        }
        if step_outcome == StepOutcome::Finished {
            self.upkeep_state(|upkeep| {
                let current_ranges =
                    upkeep.owned.as_ref().and_then(|owned| owned.get(keyspace)).cloned();
                let Some(holdings) = upkeep.holdings.as_mut() else { return };
                if let Some(old_ranges) = &old_ranges {
                    holdings.record_cleanup(
                        keyspace,
                        old_ranges,
                        &current_ranges.unwrap_or_default(),
                    );
                }
                if let Some(errand) = &mut holdings.errand {
                    errand.done.insert(keyspace.to_owned());
                }
            });
            self.note_unsaved().await;
        }
        Ok(step_outcome)
    }

    async fn end_errand(&self, failure: Option<String>) {
        self.upkeep_state(|upkeep| {
            upkeep.activity = UpkeepActivity::None;
            if let Some(errand) = upkeep.holdings.as_mut().and_then(|it| it.errand.as_mut()) {
                errand.finish_job(failure);
            }
        });
        self.note_unsaved().await;
    }

    /// Saves the holdings and logs a failure: keyspaces that are finished but not saved would be
    /// cleaned up again after a restart.
    async fn note_unsaved(&self) {
        if let Some(why) = self.save_holdings().await {
            warn!(why, "What was cleaned up is not written down");
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;
    use crate::{
        databases::cassandra::{
            pilot::tests::{PEER, facts, peer},
            v1beta1::CassandraCleanup,
        },
        pilot::upkeep_job::{DONE, FAILED, RUNNING},
    };

    fn asked(name: &str, request: &str) -> Pilot {
        let mut pilot = peer(name, "10.0.0.9", true);
        let annotation = (annotation::CLEANUP.to_owned(), request.to_owned());
        pilot.metadata.annotations = Some([annotation].into());
        let mut condition = pilot.status.conditions[0].clone();
        condition.type_ = CLEANUP_DUE.to_owned();
        pilot.status.conditions.push(condition);
        pilot
    }

    fn at(mut pilot: Pilot, request: &str, phase: &str) -> Pilot {
        pilot.status.change_part::<CassandraNode>(|part| {
            part.cleanup = Some(CassandraCleanup {
                request: request.to_owned(),
                phase: phase.to_owned(),
                ..CassandraCleanup::default()
            });
        });
        pilot
    }

    #[test]
    fn one_node_goes_after_the_other_in_the_order_of_requests_and_names() {
        let own = asked("b", "2026-01-02");
        let first = |peer: Pilot| REQUESTS.find_peer_ahead(&own, &[peer]).map(str::to_owned);
        assert_eq!(REQUESTS.find_peer_ahead(&own, &[]), None);
        assert_eq!(first(asked("a", "2026-01-02")).as_deref(), Some("a"), "by name");
        assert_eq!(first(asked("c", "2026-01-02")), None);
        assert_eq!(first(asked("c", "2026-01-01")).as_deref(), Some("c"), "asked before");
        assert_eq!(first(at(asked("a", "2026-01-01"), "2026-01-01", DONE)), None);
        assert_eq!(first(at(asked("a", "2026-01-01"), "2026-01-01", FAILED)), None);
        assert_eq!(first(at(asked("a", "2026-01-02"), "2026-01-01", DONE)).as_deref(), Some("a"));
        let runs = at(asked("c", "2026-01-03"), "2026-01-03", RUNNING);
        assert_eq!(first(runs).as_deref(), Some("c"), "it is under way");
        let mut down = asked("a", "2026-01-01");
        down.status.conditions[0].status = "False".to_owned();
        assert_eq!(first(down), None, "it is not waited for");
        let mut older = asked("a", "2026-01-01");
        older.status.conditions.truncate(1);
        assert_eq!(first(older), None, "its pilot knows of no cleanup");
        assert_eq!(first(peer("a", "10.0.0.9", true)), None, "it was not asked");
    }

    #[test]
    fn nothing_begins_while_the_ring_is_unsettled() {
        assert_eq!(pending_ring_change(&facts("NORMAL")), None);
        assert!(pending_ring_change(&facts("LEAVING")).unwrap().contains("LEAVING"));
        let joins = NodeView { joining: [PEER].into(), ..facts("NORMAL") };
        assert!(pending_ring_change(&joins).unwrap().contains("127.0.1.2"));
    }

    #[test]
    fn a_keyspace_is_cleaned_refused_for_now_or_failed() {
        let of = |executed| cleanup_outcome("shop", executed);
        assert_eq!(of(OperationOutcome::Done(json!(0))), StepOutcome::Finished);
        for failed in [
            OperationOutcome::Done(json!(1)),
            OperationOutcome::Done(Value::Null),
            OperationOutcome::Failed("java.lang.RuntimeException: disk".to_owned()),
            OperationOutcome::StillRunning,
        ] {
            let outcome = of(failed);
            assert!(
                matches!(&outcome, StepOutcome::Failed(why) if why.contains("shop")),
                "{outcome:?}"
            );
        }
        let refusal = "Node is involved in cluster membership changes. Not safe to run cleanup.";
        let later = of(OperationOutcome::Failed(refusal.to_owned()));
        assert_eq!(later, StepOutcome::Later(refusal.to_owned()));
    }
}
