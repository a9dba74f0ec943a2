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
    range_survey::ask,
    upkeep::{CleanupActivity, DONE, FAILED, RUNNING, UpkeepState},
};
use crate::{
    api::{
        names::{annotation, condition::CLEANUP_DUE},
        v1beta1::Pilot,
    },
    databases::cassandra::v1beta1::{CassandraCleanup, CassandraNode},
    error::chain,
    pilot::{
        clients::jolokia::{JolokiaClient, OperationOutcome},
        driver::{DatabaseNode, Error},
        kube::peers::{is_ready, name},
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

/// Returns the cleanup request in the Pilot's annotation, unless it is empty.
fn request(pilot: &Pilot) -> Option<&str> {
    let annotations = pilot.metadata.annotations.as_ref()?;
    annotations.get(annotation::CLEANUP).map(String::as_str).filter(|text| !text.is_empty())
}

/// Returns the cleanup progress in the Pilot's status.
fn shown(pilot: &Pilot) -> Option<CassandraCleanup> {
    pilot.status.part::<CassandraNode>()?.cleanup
}

fn is_over(progress: &CassandraCleanup) -> bool {
    [DONE, FAILED].contains(&progress.phase.as_str())
}

/// Returns a peer that is cleaned up before this node, if any: one whose cleanup runs, whose
/// request is earlier, or whose request is equal and whose name comes first (a whole cluster gets
/// equal requests). Peers that do not serve, or whose pilot is of a release without cleanup, are
/// not waited for.
fn ahead<'a>(own: &Pilot, peers: &'a [Pilot]) -> Option<&'a str> {
    let mine = (request(own), name(own));
    let takes_part = |peer: &&Pilot| {
        let speaks = peer.status.conditions.iter().any(|found| found.type_ == CLEANUP_DUE);
        is_ready(peer) && speaks
    };
    let goes_first = |peer: &&Pilot| {
        let (asked, shown) = (request(peer), shown(peer));
        let runs = shown.as_ref().is_some_and(|shown| shown.phase == RUNNING);
        let over = shown.is_some_and(|shown| Some(&*shown.request) == asked && is_over(&shown));
        runs || (asked.is_some() && !over && (asked, name(peer)) < mine)
    };
    peers.iter().filter(takes_part).find(goes_first).map(name)
}

/// Returns why a cleanup may not begin now; `None` when it may.
fn unsettled(facts: &NodeView) -> Option<String> {
    if facts.mode != "NORMAL" {
        return Some(format!("waits while the node is {}", facts.mode));
    }
    let restless = [&facts.joining, &facts.leaving, &facts.moving];
    let node = restless.into_iter().flatten().next()?;
    Some(format!("waits until {node} has joined, left or moved"))
}

/// How the cleanup of a keyspace ended.
#[derive(Debug, PartialEq, Eq)]
enum CleanupOutcome {
    Cleaned,
    /// The cleanup was refused for now, with Cassandra's reason.
    Later(String),
    Failed(String),
}

impl CleanupOutcome {
    fn of(keyspace: &str, executed: OperationOutcome) -> Self {
        match executed {
            OperationOutcome::Done(status) if status == 0 => Self::Cleaned,
            OperationOutcome::Done(status) => Self::Failed(format!(
                "Cassandra gave the cleanup of keyspace {keyspace} up (status {status}); its log says why"
            )),
            OperationOutcome::Failed(why) if why.contains(MEMBERSHIP) => Self::Later(why),
            OperationOutcome::Failed(why) => {
                Self::Failed(format!("the cleanup of keyspace {keyspace} failed: {why}"))
            }
            OperationOutcome::StillRunning => {
                Self::Failed(format!("the cleanup of keyspace {keyspace} took more than a week"))
            }
        }
    }
}

impl CassandraDriver {
    /// Does the Pilot ask for a cleanup that was not carried out? Drops a cleanup that is no longer
    /// requested.
    pub(super) fn is_asked(&self, pilot: &Pilot) -> bool {
        let Some(request) = request(pilot) else {
            self.upkeep_state(UpkeepState::withdraw);
            return false;
        };
        // A new volume has no record of an earlier cleanup, but the Pilot may have one.
        let shown = shown(pilot).is_some_and(|it| it.request == request && is_over(&it));
        !shown
            && self.upkeep_state(|upkeep| {
                let over = upkeep.errand().is_some_and(|it| it.request == request && it.is_over());
                upkeep.due().is_some() && !over
            })
    }

    /// Begins the requested cleanup, or goes on with it, when it is this node's turn.
    pub(super) async fn clean_up(&self, node: &DatabaseNode) -> Result<(), Error> {
        let ended = self.go_on(node).await;
        if let Err(error) = &ended {
            let why = chain(error).to_string();
            self.upkeep_state(|upkeep| upkeep.activity = CleanupActivity::Waits(why));
        }
        ended
    }

    async fn go_on(&self, node: &DatabaseNode) -> Result<(), Error> {
        let Some(request) = request(&node.pilot) else { return Ok(()) };
        let begun = self.upkeep_state(|upkeep| {
            let holdings = upkeep.holdings.as_mut()?;
            Some(holdings.errand(request).clone())
        });
        let Some(errand) = begun else { return Ok(()) };
        let waits =
            |why: String| self.upkeep_state(|upkeep| upkeep.activity = CleanupActivity::Waits(why));
        if let Some(other) = ahead(&node.pilot, &node.peers) {
            waits(format!("waits until {other} is cleaned up"));
            return Ok(());
        }
        let jolokia = self.jolokia()?;
        let facts = NodeView::ask(&jolokia).await?;
        if let Some(why) = unsettled(&facts) {
            waits(why);
            return Ok(());
        }
        let mut all = keyspaces::all(&jolokia).await?;
        all.sort();
        let of = all.len();
        for (index, keyspace) in all.into_iter().enumerate() {
            if errand.done.contains(&keyspace) {
                continue;
            }
            let now = CleanupActivity::Runs(keyspace.clone(), index + 1, of);
            self.upkeep_state(|upkeep| upkeep.activity = now);
            match self.clean_up_keyspace(&jolokia, &facts, &keyspace).await? {
                CleanupOutcome::Cleaned => {}
                CleanupOutcome::Later(why) => {
                    waits(why);
                    return Ok(());
                }
                CleanupOutcome::Failed(why) => {
                    warn!(why, "Cleanup failed");
                    self.end_errand(Some(why)).await;
                    return Ok(());
                }
            }
        }
        info!(keyspaces = of, "Rows of other nodes' ranges are removed");
        self.end_errand(None).await;
        Ok(())
    }

    async fn clean_up_keyspace(
        &self,
        jolokia: &JolokiaClient,
        facts: &NodeView,
        keyspace: &str,
    ) -> Result<CleanupOutcome, Error> {
        // Cassandra keeps rows of the ranges that the node owns when the cleanup begins.
        let before = ask(jolokia, facts, vec![keyspace.to_owned()]).await?.remove(keyspace);
        let arguments = json!([JOBS, keyspace, []]);
        let executed = jolokia.execute(STORAGE_SERVICE, CLEANUP, &arguments, LONGEST).await?;
        let mut outcome = CleanupOutcome::of(keyspace, executed);
        if let CleanupOutcome::Failed(_) = outcome
            && !keyspaces::all(jolokia).await?.iter().any(|found| found == keyspace)
        {
            // The keyspace was dropped meanwhile, so it has nothing to clean up.
            outcome = CleanupOutcome::Cleaned;
        }
        if outcome == CleanupOutcome::Cleaned {
            self.upkeep_state(|upkeep| {
                let now = upkeep.owned.as_ref().and_then(|owned| owned.get(keyspace)).cloned();
                let Some(holdings) = upkeep.holdings.as_mut() else { return };
                if let Some(before) = &before {
                    holdings.cleaned(keyspace, before, &now.unwrap_or_default());
                }
                if let Some(errand) = &mut holdings.errand {
                    errand.done.insert(keyspace.to_owned());
                }
            });
            self.note_unsaved().await;
        }
        Ok(outcome)
    }

    async fn end_errand(&self, failure: Option<String>) {
        self.upkeep_state(|upkeep| {
            upkeep.activity = CleanupActivity::None;
            if let Some(errand) = upkeep.holdings.as_mut().and_then(|it| it.errand.as_mut()) {
                errand.finished = failure.is_none();
                errand.failure = failure;
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
    use crate::databases::cassandra::pilot::tests::{PEER, facts, peer};

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
        let first = |peer: Pilot| ahead(&own, &[peer]).map(str::to_owned);
        assert_eq!(ahead(&own, &[]), None);
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
        assert_eq!(unsettled(&facts("NORMAL")), None);
        assert!(unsettled(&facts("LEAVING")).unwrap().contains("LEAVING"));
        let joins = NodeView { joining: [PEER].into(), ..facts("NORMAL") };
        assert!(unsettled(&joins).unwrap().contains("127.0.1.2"));
    }

    #[test]
    fn a_keyspace_is_cleaned_refused_for_now_or_failed() {
        let of = |executed| CleanupOutcome::of("shop", executed);
        assert_eq!(of(OperationOutcome::Done(json!(0))), CleanupOutcome::Cleaned);
        for failed in [
            OperationOutcome::Done(json!(1)),
            OperationOutcome::Done(Value::Null),
            OperationOutcome::Failed("java.lang.RuntimeException: disk".to_owned()),
            OperationOutcome::StillRunning,
        ] {
            let outcome = of(failed);
            assert!(
                matches!(&outcome, CleanupOutcome::Failed(why) if why.contains("shop")),
                "{outcome:?}"
            );
        }
        let refusal = "Node is involved in cluster membership changes. Not safe to run cleanup.";
        let later = of(OperationOutcome::Failed(refusal.to_owned()));
        assert_eq!(later, CleanupOutcome::Later(refusal.to_owned()));
    }
}
