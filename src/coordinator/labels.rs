//! The labels of Nodes, as ClusterLabels and NodePoolLabels ask for them. Which they are is decided in
//! `engine/machines/labels`.

use std::collections::BTreeMap;

use k8s_openapi::{api::core::v1::Node, jiff::Timestamp};
use kube::{
    Api, Client, ResourceExt,
    api::{Patch, PatchParams},
    core::PartialObjectMeta,
    runtime::{watcher, watcher::Event},
};
use serde_json::json;

use super::{
    look_error::LookError,
    metrics::Metrics,
    stirring::{CoreKind, LookEnd, StatusWriter, StirredWork, WatchedLedger, watch_into},
};
use crate::{
    api::{
        containership::{ClusterLabel, LabelStatus, NodePoolLabel},
        names,
    },
    engine::machines::{LabelOutcome, LabelPlan, LabelWish, label_status, plan_labels},
    runtime::{
        Runtime,
        watch::{WatchedReplica, paged_config},
    },
};

/// What the watches told of labels.
#[derive(Default)]
pub(crate) struct LabelLedger {
    clusters: WatchedReplica<ClusterLabel>,
    pools: WatchedReplica<NodePoolLabel>,
    /// Labels that Nodes bear.
    nodes: WatchedReplica<BTreeMap<String, String>>,
}

/// ClusterLabel or NodePoolLabel.
pub(crate) trait LabelKind: CoreKind + PartialEq + Send + Sync + 'static {
    const WATCH: &'static str;

    /// Returns pool, key and value.
    fn label_parts(&self) -> (Option<&str>, &str, &str);

    fn status_mut(&mut self) -> &mut Option<LabelStatus>;

    fn replica_mut(ledger: &mut LabelLedger) -> &mut WatchedReplica<Self>;
}

impl LabelKind for ClusterLabel {
    const WATCH: &'static str = "watch-clusterlabels";

    fn label_parts(&self) -> (Option<&str>, &str, &str) {
        (None, &self.spec.key, &self.spec.value)
    }

    fn status_mut(&mut self) -> &mut Option<LabelStatus> {
        &mut self.status
    }

    fn replica_mut(ledger: &mut LabelLedger) -> &mut WatchedReplica<Self> {
        &mut ledger.clusters
    }
}

impl LabelKind for NodePoolLabel {
    const WATCH: &'static str = "watch-nodepoollabels";

    fn label_parts(&self) -> (Option<&str>, &str, &str) {
        (Some(&self.spec.node_pool_id), &self.spec.key, &self.spec.value)
    }

    fn status_mut(&mut self) -> &mut Option<LabelStatus> {
        &mut self.status
    }

    fn replica_mut(ledger: &mut LabelLedger) -> &mut WatchedReplica<Self> {
        &mut ledger.pools
    }
}

impl LabelLedger {
    fn record_node(&mut self, event: &Event<PartialObjectMeta<Node>>) -> bool {
        self.nodes.apply_event(event, |node| node.labels().clone())
    }

    /// Decides anew. `None` until each watch was filled once.
    fn build_decision(&self) -> Option<LabelDecision> {
        let clusters = live_labels(self.clusters.objects()?);
        let pools = live_labels(self.pools.objects()?);
        let mut wishes: Vec<LabelWish> = clusters.iter().map(label_wish).collect();
        wishes.extend(pools.iter().map(label_wish));
        let plan = plan_labels(&wishes, self.nodes.objects()?);
        Some(LabelDecision { plan, clusters, pools })
    }
}

fn live_labels<L: LabelKind>(labels: &BTreeMap<String, L>) -> Vec<L> {
    labels.values().filter(|label| label.meta().deletion_timestamp.is_none()).cloned().collect()
}

fn label_wish<L: LabelKind>(label: &L) -> LabelWish {
    let (pool, key, value) = label.label_parts();
    LabelWish {
        object: format!("{}/{}", L::kind(&()).to_lowercase(), label.name_any()),
        created: label.creation_timestamp().map_or(Timestamp::MIN, |time| time.0),
        pool: pool.map(str::to_owned),
        key: key.to_owned(),
        value: value.to_owned(),
    }
}

struct LabelDecision {
    /// Its outcomes are those of the first list, then of the second.
    plan: LabelPlan,
    clusters: Vec<ClusterLabel>,
    pools: Vec<NodePoolLabel>,
}

/// Starts the watches.
pub(crate) fn watch_labels(
    client: &Client,
    namespace: &str,
    runtime: &Runtime,
) -> WatchedLedger<LabelLedger> {
    let ledger: WatchedLedger<LabelLedger> = WatchedLedger::default();
    let nodes = watcher(Api::<PartialObjectMeta<Node>>::all(client.clone()), paged_config());
    watch_into(runtime, "watch-labels", nodes, &ledger, LabelLedger::record_node);
    watch_kind::<ClusterLabel>(client, namespace, runtime, &ledger);
    watch_kind::<NodePoolLabel>(client, namespace, runtime, &ledger);
    ledger
}

fn watch_kind<L: LabelKind>(
    client: &Client,
    namespace: &str,
    runtime: &Runtime,
    ledger: &WatchedLedger<LabelLedger>,
) {
    let labels = watcher(Api::<L>::namespaced(client.clone(), namespace), paged_config());
    watch_into(runtime, L::WATCH, labels, ledger, |state, event| {
        L::replica_mut(state).apply_event(event, L::clone)
    });
}

/// Labels Nodes, while this process leads.
pub(crate) struct LabelCoordinator {
    pub(super) seen: WatchedLedger<LabelLedger>,
    pub(super) status: StatusWriter,
    pub(super) metrics: Metrics,
}

impl StirredWork for LabelCoordinator {
    const WORK: &'static str = "labels";

    async fn wait_for_change(&self) {
        self.seen.wait_for_change().await;
    }

    /// Labels each Node that needs it, and writes each status that says something new.
    async fn reconcile(&self) -> Result<LookEnd, LookError> {
        let Some(decision) = self.decide() else { return Ok(LookEnd::Done) };
        let mut failure = None;
        for (node, patch) in &decision.plan.patches {
            if let Err(error) = self.label_node(node, patch).await {
                failure = failure.or(Some(error));
            }
        }
        // What the statuses say goes by the answers.
        let Some(decision) = self.decide() else { return Ok(LookEnd::Done) };
        let LabelDecision { plan, clusters, pools } = decision;
        let (cluster_outcomes, pool_outcomes) = plan.outcomes.split_at(clusters.len());
        let write_result = self.write_statuses(clusters, cluster_outcomes).await;
        let write_result = self.write_statuses(pools, pool_outcomes).await.and(write_result);
        failure = failure.or(write_result.err());
        failure.map_or(Ok(LookEnd::Done), Err)
    }
}

impl LabelCoordinator {
    fn decide(&self) -> Option<LabelDecision> {
        self.seen.lock().build_decision()
    }

    /// Notes our own write, ahead of the watch.
    fn record_write(&self, update: impl FnOnce(&mut LabelLedger) -> bool) {
        self.seen.modify(|ledger| {
            update(ledger);
            false
        });
    }

    async fn label_node(
        &self,
        node: &str,
        labels: &BTreeMap<String, Option<String>>,
    ) -> Result<(), LookError> {
        let api: Api<Node> = Api::all(self.status.writer.clone());
        let params = PatchParams {
            field_manager: Some(names::COORDINATOR.to_owned()),
            ..PatchParams::default()
        };
        let patch = Patch::Merge(json!({"metadata": {"labels": labels}}));
        match api.patch_metadata(node, &params, &patch).await {
            Ok(answer) => {
                self.metrics.label_patches.inc();
                self.record_write(|ledger| {
                    ledger.nodes.record_write(answer, |node| node.labels().clone())
                });
                Ok(())
            }
            Err(kube::Error::Api(answer)) if answer.code == 404 => Ok(()),
            Err(error) => Err(LookError::for_request("label", &format!("node {node:?}"), error)),
        }
    }

    /// Writes each status that says something new.
    async fn write_statuses<L: LabelKind>(
        &self,
        labels: Vec<L>,
        outcomes: &[LabelOutcome],
    ) -> Result<(), LookError> {
        let mut failure = None;
        for (mut label, outcome) in labels.into_iter().zip(outcomes) {
            let generation = label.meta().generation;
            let old_status = label.status_mut().clone().unwrap_or_default();
            let new_status = label_status(&old_status, generation, outcome, Timestamp::now());
            if new_status == old_status {
                continue;
            }
            *label.status_mut() = Some(new_status.clone());
            match self
                .status
                .write_status(&label, &old_status.conditions, &new_status.conditions)
                .await
            {
                Ok(Some(label)) => {
                    self.record_write(|ledger| {
                        L::replica_mut(ledger).record_write(label, L::clone)
                    });
                }
                Ok(None) => {}
                Err(error) => failure = failure.or(Some(error)),
            }
        }
        failure.map_or(Ok(()), Err)
    }
}
