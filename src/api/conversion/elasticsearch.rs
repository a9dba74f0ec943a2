//! ElasticsearchCluster between the hub and v1alpha1.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{
    ImageSurplus, PersistenceSurplus, PluginSurplus, Scheduling, keep, lift_image,
    lift_persistence, lift_pod_template, project_image, project_persistence, project_pod_template,
};
use crate::api::{
    v1alpha1,
    v1beta1::{self, Config, Jvm, PodTemplate, Services, UpdateStrategy, is_default},
};

/// What v1alpha1 cannot say about an ElasticsearchCluster; shaped as the hub's spec, pools and
/// plugins by name.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Surplus {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    image: Option<ImageSurplus>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pilot_image: Option<ImageSurplus>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    stopped: Option<bool>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    restarted_at: Option<Time>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    plugins: BTreeMap<String, PluginSurplus>,
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
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    node_pools: BTreeMap<String, PoolSurplus>,
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

/// The object as v1alpha1 shows it, and what v1alpha1 cannot say.
pub fn project(hub: v1beta1::ElasticsearchCluster) -> (v1alpha1::ElasticsearchCluster, Surplus) {
    let v1beta1::ElasticsearchCluster { metadata, spec, status } = hub;
    let v1beta1::ElasticsearchClusterSpec {
        version,
        image,
        pilot_image,
        paused,
        stopped,
        restarted_at,
        security_context,
        plugins,
        minimum_masters,
        config,
        jvm,
        pod_template,
        update_strategy,
        services,
        node_pools,
    } = spec;
    let (image, image_surplus) = project_image(image);
    let (pilot_image, pilot_image_surplus) = project_image(pilot_image);
    let mut plugin_names = Vec::with_capacity(plugins.len());
    let mut plugin_surplus = BTreeMap::new();
    for v1beta1::ElasticsearchPlugin { name, sha512 } in plugins {
        keep(&mut plugin_surplus, &name, PluginSurplus { sha512 });
        plugin_names.push(name);
    }
    let mut pools = Vec::with_capacity(node_pools.len());
    let mut pool_surplus = BTreeMap::new();
    for pool in node_pools {
        let (pool, surplus) = project_pool(pool);
        keep(&mut pool_surplus, &pool.name, surplus);
        pools.push(pool);
    }
    let older = v1alpha1::ElasticsearchCluster {
        metadata,
        spec: v1alpha1::ElasticsearchClusterSpec {
            version,
            pilot_image,
            image,
            security_context: security_context.unwrap_or_default(),
            paused,
            plugins: plugin_names,
            minimum_masters,
            node_pools: pools,
        },
        status,
    };
    let surplus = Surplus {
        image: image_surplus,
        pilot_image: pilot_image_surplus,
        stopped,
        restarted_at,
        plugins: plugin_surplus,
        config,
        jvm,
        pod_template,
        update_strategy,
        services,
        node_pools: pool_surplus,
    };
    (older, surplus)
}

/// The hub object of an older one and what belongs beside it. Edits of the older form win.
pub fn lift(
    older: v1alpha1::ElasticsearchCluster,
    surplus: Surplus,
) -> v1beta1::ElasticsearchCluster {
    let v1alpha1::ElasticsearchCluster { metadata, spec, status } = older;
    let v1alpha1::ElasticsearchClusterSpec {
        version,
        pilot_image,
        image,
        security_context,
        paused,
        plugins,
        minimum_masters,
        node_pools,
    } = spec;
    let Surplus {
        image: image_surplus,
        pilot_image: pilot_image_surplus,
        stopped,
        restarted_at,
        plugins: mut plugin_surplus,
        config,
        jvm,
        pod_template,
        update_strategy,
        services,
        node_pools: mut pool_surplus,
    } = surplus;
    let plugins = plugins
        .into_iter()
        .map(|name| {
            let PluginSurplus { sha512 } = plugin_surplus.remove(&name).unwrap_or_default();
            v1beta1::ElasticsearchPlugin { name, sha512 }
        })
        .collect();
    let node_pools = node_pools
        .into_iter()
        .map(|pool| {
            let surplus = pool_surplus.remove(&pool.name).unwrap_or_default();
            lift_pool(pool, surplus)
        })
        .collect();
    v1beta1::ElasticsearchCluster {
        metadata,
        spec: v1beta1::ElasticsearchClusterSpec {
            version,
            image: lift_image(image, image_surplus),
            pilot_image: lift_image(pilot_image, pilot_image_surplus),
            paused,
            stopped,
            restarted_at,
            security_context: Some(security_context).filter(|context| !is_default(context)),
            plugins,
            minimum_masters,
            config,
            jvm,
            pod_template,
            update_strategy,
            services,
            node_pools,
        },
        status,
    }
}

fn project_pool(
    pool: v1beta1::ElasticsearchNodePool,
) -> (v1alpha1::ElasticsearchNodePool, PoolSurplus) {
    let v1beta1::ElasticsearchNodePool {
        name,
        replicas,
        roles,
        zone,
        resources,
        persistence,
        restarted_at,
        config,
        jvm,
        pod_template,
    } = pool;
    let (persistence, persistence_surplus) = project_persistence(persistence);
    let Scheduling { node_selector, scheduler_name, rest } = project_pod_template(pod_template);
    let older = v1alpha1::ElasticsearchNodePool {
        name,
        replicas,
        roles,
        node_selector,
        scheduler_name,
        resources: resources.unwrap_or_default(),
        persistence,
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

fn lift_pool(
    pool: v1alpha1::ElasticsearchNodePool,
    surplus: PoolSurplus,
) -> v1beta1::ElasticsearchNodePool {
    let v1alpha1::ElasticsearchNodePool {
        name,
        replicas,
        roles,
        node_selector,
        scheduler_name,
        resources,
        persistence,
    } = pool;
    let PoolSurplus {
        zone,
        persistence: persistence_surplus,
        restarted_at,
        config,
        jvm,
        pod_template: rest,
    } = surplus;
    v1beta1::ElasticsearchNodePool {
        name,
        replicas,
        roles,
        zone,
        resources: Some(resources).filter(|resources| !is_default(resources)),
        persistence: lift_persistence(persistence, persistence_surplus),
        restarted_at,
        config,
        jvm,
        pod_template: lift_pod_template(Scheduling { node_selector, scheduler_name, rest }),
    }
}
