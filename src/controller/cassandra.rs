//! CassandraCluster in the terms that every database shares.
//!
//! Owns which versions this build runs, defaults of image, rack and datacenter, and what a
//! Pilot of a Cassandra node is told. Pure.

use std::time::Duration;

use super::{
    desired::{Desired, Flavour, Image, PodInputs, Pool, Stalled, Strategy},
    flavour::{Cluster, Settings, effective_pilot_image, replicas, run_as_user},
};
use crate::{
    api::{
        names::{self, cassandra, label, port},
        v1beta1::{
            CassandraCluster, CassandraClusterSpec, CassandraNodePool, ClusterRef, Config, Jvm,
            PilotCassandraSpec, PilotSpec, PodTemplate,
        },
    },
    databases::cassandra::facts::Release,
    engine::{revision, settings},
};

pub(crate) static FLAVOUR: Flavour = Flavour {
    kind: "CassandraCluster",
    word: "cassandra",
    container: cassandra::CONTAINER,
    data_volume: cassandra::DATA_VOLUME,
    data_dir: cassandra::DATA_DIR,
    cluster_label: label::CASSANDRA_CLUSTER,
    pool_label: label::CASSANDRA_NODE_POOL,
    prefix: "cass",
    // Enough to drain and flush; past it the kubelet kills, and the commit log is replayed.
    termination_grace: Duration::from_secs(300),
    ports: &[
        ("intra-node", port::CASSANDRA_STORAGE),
        ("intra-node-tls", port::CASSANDRA_STORAGE_TLS),
        ("cql", port::CASSANDRA_CQL),
        ("prometheus", port::METRICS),
    ],
    service_account: cassandra::service_account,
    pilot_role: cassandra::pilot_role,
    leader_lease: cassandra::leader_lease,
    fit: |_, _| (),
};

impl Cluster for CassandraCluster {
    const FLAVOUR: &'static Flavour = &FLAVOUR;

    fn desired(&self, settings: &Settings) -> Desired {
        let CassandraClusterSpec {
            version,
            image,
            pilot_image,
            paused,
            stopped,
            restarted_at: _,
            security_context,
            cluster_name: _,
            num_tokens: _,
            additional_seeds: _,
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
            || Image::named(format!("{}:{version}", cassandra::DEFAULT_IMAGE_REPOSITORY));
        let pools = node_pools.iter().map(|pool| pool_of(self, &name, pool)).collect();
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
            run_as_user: run_as_user(security_context.as_ref(), cassandra::DEFAULT_UID),
            services: services.clone().unwrap_or_default(),
            stalled: unsupported(version).or_else(|| {
                super::flavour::names_that_do_not_fit(
                    &FLAVOUR,
                    &name,
                    node_pools.iter().map(|p| &*p.name),
                )
            }),
            strategy: Strategy::of(update_strategy.as_ref()),
            version: version.clone(),
            status: self.status.clone(),
            pools,
            name,
        }
    }
}

fn unsupported(version: &str) -> Option<Stalled> {
    let error = version.parse::<Release>().err()?;
    Some(Stalled {
        reason: "UnsupportedVersion",
        message: format!("{error}; it is stored and nothing is started"),
    })
}

fn pool_of(cluster: &CassandraCluster, name: &str, pool: &CassandraNodePool) -> Pool {
    let CassandraNodePool {
        name: pool_name,
        replicas: wanted,
        datacenter,
        rack,
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
        pilot_update: spec.update_strategy.as_ref().and_then(|s| s.pilot_update.clone()),
        config: merged_config(&spec.config, config),
        jvm: merged_jvm(spec.jvm.as_ref(), jvm.as_ref()),
        elasticsearch: None,
        cassandra: Some(PilotCassandraSpec {
            cluster_name: Some(spec.cluster_name.clone().unwrap_or_else(|| name.to_owned())),
            datacenter: Some(
                datacenter.clone().unwrap_or_else(|| cassandra::DEFAULT_DATACENTER.to_owned()),
            ),
            rack: Some(rack.clone().unwrap_or_else(|| pool_name.clone())),
            num_tokens: spec.num_tokens,
            additional_seeds: spec.additional_seeds.clone(),
        }),
    };
    pilot.config_hash = Some(revision::config_hash(&pilot));
    let mut desired = Pool {
        name: pool_name.clone(),
        set: names::cassandra::stateful_set(name, pool_name),
        replicas: replicas(*wanted),
        zone: zone.clone(),
        resources: resources.clone().unwrap_or_default(),
        persistence: persistence.clone(),
        pilot,
        pod_hash: String::new(),
        pods_alike: Vec::new(),
        labels: vec![(label::APP.to_owned(), "cassandracluster".to_owned())],
        overlays,
    };
    let inputs = PodInputs {
        version: &spec.version,
        image: spec.image.as_ref(),
        run_as_user: spec.security_context.as_ref().and_then(|context| context.run_as_user),
        zone: zone.as_deref(),
        resources: resources.as_ref(),
        persistent: desired.persistent(),
        overlays: &desired.overlays,
    };
    (desired.pod_hash, desired.pods_alike) = (inputs.hash(), inputs.alike());
    desired
}

/// The cluster's settings with the pool's over them.
fn merged_config(cluster: &Config, pool: &Config) -> Config {
    // Merging over nothing drops `null`s, which stand for "not set".
    let mut merged = Config::new();
    settings::merge(&mut merged, cluster);
    settings::merge(&mut merged, pool);
    merged
}

/// The pool's heap and options where it has any, else the cluster's.
pub(crate) fn merged_jvm(cluster: Option<&Jvm>, pool: Option<&Jvm>) -> Option<Jvm> {
    let (Some(cluster), Some(pool)) = (cluster, pool) else { return pool.or(cluster).cloned() };
    let options = if pool.options.is_empty() { &cluster.options } else { &pool.options };
    Some(Jvm { heap: pool.heap.clone().or_else(|| cluster.heap.clone()), options: options.clone() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_four_and_five_are_run() {
        for version in ["4.0", "4.0.19", "4.1-beta1", "4.1.7", "5.0.6"] {
            assert_eq!(unsupported(version), None, "{version}");
        }
        for version in ["3.11", "3.11.1", "5.1", "6.0", "", "x"] {
            assert_eq!(unsupported(version).unwrap().reason, "UnsupportedVersion", "{version}");
        }
    }

    #[test]
    fn a_setting_of_the_database_does_not_change_what_pods_are_made_of() {
        let mut cluster = CassandraCluster::default();
        cluster.spec.node_pools = vec![CassandraNodePool::default()];
        let before = pool_of(&cluster, "shop", &cluster.spec.node_pools[0]);
        cluster.spec.config.insert("x".into(), 1.into());
        let after = pool_of(&cluster, "shop", &cluster.spec.node_pools[0]);
        assert_ne!(before.config_hash(), after.config_hash());
        assert_eq!(before.pod_hash, after.pod_hash);
    }

    #[test]
    fn an_upgrade_of_ours_alone_restarts_no_database() {
        let mut cluster = CassandraCluster::default();
        cluster.spec.node_pools = vec![CassandraNodePool::default()];
        let of = |image: &str| {
            let pilot_image = image.to_owned();
            cluster.desired(&Settings { pilot_image, store_id: "store".to_owned() })
        };
        let (before, after) = (of("navigator:1"), of("navigator:2"));
        assert_ne!(before.pilot_image, after.pilot_image);
        let hashes = |desired: &Desired| {
            let pool = &desired.pools[0];
            (pool.pod_hash.clone(), pool.config_hash().to_owned())
        };
        assert_eq!(hashes(&before), hashes(&after));
    }
}
