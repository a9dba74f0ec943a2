//! Conversion of a cluster of any database between the hub and v1alpha1.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{
    ImageSurplus, PersistenceSurplus, PodScheduling, insert_surplus, lift_image, lift_persistence,
    lift_pod_template, lift_security, project_image, project_persistence, project_pod_template,
    project_security,
};
use crate::api::{
    cluster_kind::{ClusterKind, OlderCluster, OlderSurplus},
    v1alpha1,
    v1beta1::{
        self, Config, DatabaseSecurity, Jvm, PilotSettings, PodTemplate, Services, UpdateStrategy,
        is_default,
    },
};

/// What v1alpha1 cannot say about a cluster; shaped as the hub's spec, pools by name.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", bound = "")]
#[schemars(rename = "{K}Surplus", bound = "K: ClusterKind")]
pub struct ClusterSurplus<K: ClusterKind> {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    image: Option<ImageSurplus>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pilot_image: Option<ImageSurplus>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    stopped: Option<bool>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    restarted_at: Option<Time>,
    #[serde(default, skip_serializing_if = "Config::is_empty")]
    #[schemars(extend("x-kubernetes-preserve-unknown-fields" = true))]
    config: Config,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    jvm: Option<Jvm>,
    #[serde(default, skip_serializing_if = "PodTemplate::is_empty")]
    pod_template: PodTemplate,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    update_strategy: Option<UpdateStrategy>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    services: Option<Services>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    security: Option<DatabaseSecurity<K>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pilot_settings: Option<PilotSettings>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    node_pools: BTreeMap<String, PoolSurplus>,
    #[serde(flatten)]
    own: OlderSurplus<K>,
}

/// What v1alpha1 cannot say about a node pool.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PoolSurplus {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    zone: Option<String>,
    #[serde(default, skip_serializing_if = "is_default")]
    persistence: PersistenceSurplus,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    restarted_at: Option<Time>,
    #[serde(default, skip_serializing_if = "Config::is_empty")]
    #[schemars(extend("x-kubernetes-preserve-unknown-fields" = true))]
    config: Config,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    jvm: Option<Jvm>,
    #[serde(default, skip_serializing_if = "PodTemplate::is_empty")]
    pod_template: PodTemplate,
}

/// Converts a hub cluster to v1alpha1; returns it with the surplus that v1alpha1 cannot say.
pub fn project_cluster<K: ClusterKind>(
    hub: v1beta1::Cluster<K>,
) -> (v1alpha1::Cluster<K>, ClusterSurplus<K>) {
    let v1beta1::Cluster { metadata, spec, status } = hub;
    let v1beta1::ClusterSpec {
        version,
        image,
        pilot_image,
        paused,
        stopped,
        restarted_at,
        security_context,
        config,
        jvm,
        pod_template,
        update_strategy,
        services,
        security,
        pilot_settings,
        own,
        node_pools,
    } = spec;
    let (image, image_surplus) = project_image(image);
    let (pilot_image, pilot_image_surplus) = project_image(pilot_image);
    let (own, own_surplus) = K::Older::project_spec(own);
    let mut pools = Vec::with_capacity(node_pools.len());
    let mut pool_surplus = BTreeMap::new();
    for pool in node_pools {
        let (pool, surplus) = project_pool(pool);
        insert_surplus(&mut pool_surplus, &pool.name, surplus);
        pools.push(pool);
    }
    let older = v1alpha1::Cluster {
        metadata,
        spec: v1alpha1::ClusterSpec {
            version,
            pilot_image,
            image,
            security_context: security_context.unwrap_or_default(),
            paused,
            own,
            node_pools: pools,
        },
        status,
    };
    let surplus = ClusterSurplus {
        image: image_surplus,
        pilot_image: pilot_image_surplus,
        stopped,
        restarted_at,
        config,
        jvm,
        pod_template,
        update_strategy,
        services,
        security: project_security(security),
        pilot_settings,
        node_pools: pool_surplus,
        own: own_surplus,
    };
    (older, surplus)
}

/// Converts a v1alpha1 cluster and its surplus to the hub. Edits of the v1alpha1 object win over
/// the surplus.
pub fn lift_cluster<K: ClusterKind>(
    older: v1alpha1::Cluster<K>,
    surplus: ClusterSurplus<K>,
) -> v1beta1::Cluster<K> {
    let v1alpha1::Cluster { metadata, spec, status } = older;
    let v1alpha1::ClusterSpec {
        version,
        pilot_image,
        image,
        security_context,
        paused,
        own,
        node_pools,
    } = spec;
    let ClusterSurplus {
        image: image_surplus,
        pilot_image: pilot_image_surplus,
        stopped,
        restarted_at,
        config,
        jvm,
        pod_template,
        update_strategy,
        services,
        security,
        pilot_settings,
        node_pools: mut pool_surplus,
        own: own_surplus,
    } = surplus;
    let node_pools = node_pools
        .into_iter()
        .map(|pool| {
            let surplus = pool_surplus.remove(&pool.name).unwrap_or_default();
            lift_pool(pool, surplus)
        })
        .collect();
    v1beta1::Cluster {
        metadata,
        spec: v1beta1::ClusterSpec {
            version,
            image: lift_image(image, image_surplus),
            pilot_image: lift_image(pilot_image, pilot_image_surplus),
            paused,
            stopped,
            restarted_at,
            security_context: Some(security_context).filter(|context| !is_default(context)),
            config,
            jvm,
            pod_template,
            update_strategy,
            services,
            security: Some(lift_security(security)),
            pilot_settings,
            own: K::Older::lift_spec(own, own_surplus),
            node_pools,
        },
        status,
    }
}

fn project_pool<K: ClusterKind>(
    pool: v1beta1::NodePool<K>,
) -> (v1alpha1::NodePool<K>, PoolSurplus) {
    let v1beta1::NodePool {
        name,
        replicas,
        zone,
        resources,
        persistence,
        restarted_at,
        config,
        jvm,
        pod_template,
        own,
    } = pool;
    let (persistence, persistence_surplus) = project_persistence(persistence);
    let PodScheduling { node_selector, scheduler_name, rest } = project_pod_template(pod_template);
    let older = v1alpha1::NodePool {
        name,
        replicas,
        node_selector,
        scheduler_name,
        resources: resources.unwrap_or_default(),
        persistence,
        own: K::Older::project_pool(own),
    };
    let surplus = PoolSurplus {
        zone,
        persistence: persistence_surplus,
        restarted_at,
        config,
        jvm,
        pod_template: rest,
    };
    (older, surplus)
}

fn lift_pool<K: ClusterKind>(
    pool: v1alpha1::NodePool<K>,
    surplus: PoolSurplus,
) -> v1beta1::NodePool<K> {
    let v1alpha1::NodePool {
        name,
        replicas,
        node_selector,
        scheduler_name,
        resources,
        persistence,
        own,
    } = pool;
    let PoolSurplus {
        zone,
        persistence: persistence_surplus,
        restarted_at,
        config,
        jvm,
        pod_template: rest,
    } = surplus;
    v1beta1::NodePool {
        name,
        replicas,
        zone,
        resources: Some(resources).filter(|resources| !is_default(resources)),
        persistence: lift_persistence(persistence, persistence_surplus),
        restarted_at,
        config,
        jvm,
        pod_template: lift_pod_template(PodScheduling { node_selector, scheduler_name, rest }),
        own: K::Older::lift_pool(own),
    }
}
