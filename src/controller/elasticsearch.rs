//! ElasticsearchCluster in the terms that every database shares.
//!
//! This build has no pilot for Elasticsearch yet: a cluster is stored, and Stalled as
//! `FlavourUnavailable` (see [`PILOT_EXISTS`]). Pure.

use std::time::Duration;

use super::{
    cassandra::{merged_config, merged_jvm},
    desired::{Desired, Flavour, Image, PodInputs, Pool, Stalled, Strategy, hash},
    flavour::{Cluster, Settings, effective_pilot_image, replicas, run_as_user},
};
use crate::{
    api::{
        names::{self, elasticsearch, label, port},
        v1beta1::{
            ClusterRef, ElasticsearchCluster, ElasticsearchClusterSpec, ElasticsearchNodePool,
            PilotElasticsearchSpec, PilotSpec, PodTemplate,
        },
    },
    engine::revision,
};

/// Does `navigator pilot elasticsearch` exist? Until then nothing is started.
const PILOT_EXISTS: bool = false;

pub(crate) static FLAVOUR: Flavour = Flavour {
    kind: "ElasticsearchCluster",
    word: "elasticsearch",
    container: elasticsearch::CONTAINER,
    data_volume: elasticsearch::DATA_VOLUME,
    data_dir: elasticsearch::DATA_DIR,
    cluster_label: label::ELASTICSEARCH_CLUSTER,
    pool_label: label::ELASTICSEARCH_NODE_POOL,
    prefix: "es",
    // A node may move shards away before it stops.
    termination_grace: Duration::from_secs(1800),
    ports: &[
        ("transport", port::ELASTICSEARCH_TRANSPORT),
        ("http", port::ELASTICSEARCH_HTTP),
        ("prometheus", port::METRICS),
    ],
    service_account: elasticsearch::cluster_object,
    pilot_role: elasticsearch::cluster_object,
    leader_lease: elasticsearch::leader_lease,
};

impl Cluster for ElasticsearchCluster {
    const FLAVOUR: &'static Flavour = &FLAVOUR;

    fn desired(&self, settings: &Settings) -> Desired {
        let ElasticsearchClusterSpec {
            version,
            image,
            pilot_image,
            paused,
            stopped,
            restarted_at: _,
            security_context,
            plugins: _,
            minimum_masters: _,
            config: _,
            jvm: _,
            pod_template: _,
            update_strategy,
            services,
            node_pools,
        } = &self.spec;
        let meta = &self.metadata;
        let name = meta.name.clone().unwrap_or_default();
        let default_image =
            || Image::named(format!("{}:{version}", elasticsearch::DEFAULT_IMAGE_REPOSITORY));
        let stalled = (!PILOT_EXISTS).then(|| Stalled {
            reason: "FlavourUnavailable",
            message: "this build has no pilot for Elasticsearch; nothing is started".to_owned(),
        });
        let pools = node_pools.iter().map(|p| p.name.as_str());
        Desired {
            flavour: &FLAVOUR,
            namespace: meta.namespace.clone().unwrap_or_default(),
            uid: meta.uid.clone().unwrap_or_default(),
            generation: meta.generation.unwrap_or_default(),
            deleted: meta.deletion_timestamp.is_some(),
            force_delete: super::flavour::force_delete(meta),
            finalizers: meta.finalizers.clone().unwrap_or_default(),
            paused: paused.unwrap_or_default(),
            stopped: stopped.unwrap_or_default(),
            image: image.as_ref().map_or_else(default_image, Image::of),
            pilot_image: effective_pilot_image(pilot_image.as_ref(), settings),
            run_as_user: run_as_user(security_context.as_ref(), elasticsearch::DEFAULT_UID),
            services: services.clone().unwrap_or_default(),
            stalled: stalled
                .or_else(|| super::flavour::names_that_do_not_fit(&FLAVOUR, &name, pools)),
            strategy: Strategy::of(update_strategy.as_ref()),
            version: version.clone(),
            status: self.status.clone(),
            pools: node_pools.iter().map(|pool| pool_of(self, &name, pool)).collect(),
            name,
        }
    }
}

/// Masters that must agree; `None` from version 7 on, which finds that out by itself.
fn quorum(cluster: &ElasticsearchCluster) -> Option<i32> {
    let major = cluster.spec.version.split('.').next().and_then(|major| major.parse::<u32>().ok());
    if major.is_none_or(|major| major >= 7) {
        return None;
    }
    let masters: i32 = cluster
        .spec
        .node_pools
        .iter()
        .filter(|pool| pool.roles.iter().any(|role| role == "master"))
        .map(|pool| pool.replicas.unwrap_or(1))
        .sum();
    Some(cluster.spec.minimum_masters.unwrap_or(masters / 2 + 1))
}

fn pool_of(cluster: &ElasticsearchCluster, name: &str, pool: &ElasticsearchNodePool) -> Pool {
    let ElasticsearchNodePool {
        name: pool_name,
        replicas: wanted,
        roles,
        zone,
        resources,
        persistence,
        restarted_at,
        config,
        jvm,
        pod_template,
    } = pool;
    let spec = &cluster.spec;
    let overlays: Vec<PodTemplate> = [&spec.pod_template, pod_template]
        .into_iter()
        .filter(|overlay| !overlay.is_empty())
        .cloned()
        .collect();
    let mut pilot = PilotSpec {
        cluster_ref: Some(ClusterRef { kind: FLAVOUR.kind.to_owned(), name: name.to_owned() }),
        node_pool: Some(pool_name.clone()),
        phase: None,
        version: Some(spec.version.clone()),
        config_hash: None,
        restarted_at: restarted_at.clone().max(spec.restarted_at.clone()),
        config: merged_config(&spec.config, config),
        jvm: merged_jvm(spec.jvm.as_ref(), jvm.as_ref()),
        elasticsearch: Some(PilotElasticsearchSpec {
            roles: roles.clone(),
            zone: zone.clone(),
            minimum_masters: quorum(cluster),
            plugins: spec.plugins.clone(),
        }),
        cassandra: None,
    };
    pilot.config_hash = Some(revision::config_hash(&pilot));
    let role =
        |role: &String| (format!("{}{role}", label::ELASTICSEARCH_ROLE_PREFIX), "true".to_owned());
    let mut desired = Pool {
        name: pool_name.clone(),
        set: names::elasticsearch::stateful_set(name, pool_name),
        replicas: replicas(*wanted),
        zone: zone.clone(),
        resources: resources.clone().unwrap_or_default(),
        persistence: persistence.clone(),
        pilot,
        pod_hash: String::new(),
        labels: roles.iter().map(role).collect(),
        overlays,
    };
    desired.pod_hash = hash(&PodInputs {
        version: &spec.version,
        image: spec.image.as_ref(),
        pilot_image: spec.pilot_image.as_ref(),
        run_as_user: spec.security_context.as_ref().and_then(|context| context.run_as_user),
        zone: zone.as_deref(),
        resources: resources.as_ref(),
        persistent: desired.persistent(),
        overlays: &desired.overlays,
    });
    desired
}
