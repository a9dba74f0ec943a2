//! Sample clusters of the example database, desired and observed.

use std::collections::BTreeMap;

use k8s_openapi::{
    api::core::v1::ResourceRequirements,
    apimachinery::pkg::{api::resource::Quantity, apis::meta::v1::Condition},
};

use super::example::DATABASE;
use crate::{
    api::{
        names,
        v1beta1::{ClusterStatus, Health, Persistence, PilotSpec, Services},
    },
    controller::{
        desired_state::{DesiredCluster, DesiredPool, Image, RolloutStrategy, SecurityRound},
        heartbeats::HeartbeatAge,
        observe::{
            ClaimFacts, Member, ObservedCluster, ObservedPool, ObservedStatefulSet, PilotFacts,
            PodFacts,
        },
    },
};

/// Returns a cluster with these pools and sizes; `revision` is the hash of its pods and of its
/// configuration.
pub(crate) fn desired(pools: &[(&str, u32)], revision: &str) -> DesiredCluster {
    DesiredCluster {
        database: &DATABASE,
        namespace: "default".into(),
        name: "demo".into(),
        uid: "cluster-uid".into(),
        generation: 1,
        deleted: false,
        force_delete: false,
        orphan: false,
        finalizers: Vec::new(),
        created: None,
        accepted_secrets: Vec::new(),
        paused: false,
        stopped: false,
        version: "5.0.6".into(),
        image: Image::from_reference("docker.io/example:5.0.6"),
        pilot_image: Image::from_reference("navigator"),
        run_as_user: 999,
        services: Services::default(),
        network: None,
        security: None,
        roles: Vec::new(),
        round: SecurityRound::default(),
        nodes_elsewhere: false,
        pools: pools.iter().map(|(name, replicas)| pool(name, *replicas, revision)).collect(),
        strategy: RolloutStrategy::from_spec(None),
        stalled: None,
        status: ClusterStatus::default(),
    }
}

pub(super) fn pool(name: &str, replicas: u32, revision: &str) -> DesiredPool {
    DesiredPool {
        name: name.into(),
        set: DATABASE.names.stateful_set("demo", name),
        replicas,
        zone: None,
        resources: ResourceRequirements::default(),
        persistence: Some(Persistence {
            size: Some(Quantity("1Gi".into())),
            ..Persistence::default()
        }),
        overlays: Vec::new(),
        pilot: PilotSpec {
            version: Some("5.0.6".into()),
            config_hash: Some(revision.into()),
            ..PilotSpec::default()
        },
        pod_hash: revision.into(),
        pods_alike: Vec::new(),
        eligible: leads(name),
        labels: Vec::new(),
        topology: BTreeMap::new(),
    }
}

/// May the nodes of the pool of this name be elected to lead?
fn leads(pool: &str) -> bool {
    pool.starts_with('m')
}

/// Returns a node that serves with the pod and configuration of `revision`.
pub(crate) fn serving(set: &str, ordinal: u32, revision: &str) -> Member {
    Member {
        name: names::pilot_name(set, ordinal),
        pod: Some(PodFacts {
            uid: format!("pod-{ordinal}"),
            ready: true,
            started: true,
            hash: revision.into(),
            ..PodFacts::default()
        }),
        pilot: Some(PilotFacts {
            uid: format!("pilot-{ordinal}"),
            spec: PilotSpec {
                version: Some("5.0.6".into()),
                config_hash: Some(revision.into()),
                ..PilotSpec::default()
            },
            keeps_data: true,
            earlier_claim: Some(String::new()),
            owned: true,
            ready: true,
            identity: true,
            instance: Some(format!("pod-{ordinal}")),
            hearing: HeartbeatAge::STEADY,
            answered: true,
            checked: true,
            running_hash: Some(revision.into()),
            version: Some("5.0.6".into()),
            health: Some(Health::Green),
            ..PilotFacts::default()
        }),
        claim: Some(ClaimFacts {
            name: format!("example-data-{}", names::pilot_name(set, ordinal)),
            uid: format!("claim-{ordinal}"),
            holds_data: true,
            ..ClaimFacts::default()
        }),
        refused: None,
    }
}

/// Returns the condition of a cluster whose nodes have all served once.
pub(crate) fn initialized() -> Condition {
    serde_json::from_value(serde_json::json!({
        "type": "Initialized", "status": "True", "reason": "ReconcileComplete", "message": "",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }))
    .unwrap()
}

/// Returns pools of nodes that all serve.
pub(crate) fn observed(pools: &[(&str, u32)], revision: &str) -> ObservedCluster {
    let pools = pools.iter().map(|(name, replicas)| {
        let set_name = DATABASE.names.stateful_set("demo", name);
        let members = (0..*replicas).map(|o| (o, serving(&set_name, o, revision))).collect();
        let set = Some(ObservedStatefulSet {
            replicas: *replicas,
            template: revision.into(),
            ..ObservedStatefulSet::default()
        });
        ObservedPool { name: (*name).into(), set_name, set, members, orphan: false }
    });
    ObservedCluster { pools: pools.collect(), ..ObservedCluster::default() }
}
