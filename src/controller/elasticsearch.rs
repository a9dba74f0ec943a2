//! ElasticsearchCluster in the terms that every database shares.
//!
//! Owns which versions this build runs, the default image, what a Pilot of an Elasticsearch node
//! is told, and how many masters must agree before version 7. Pure.

use std::time::Duration;

use super::{
    cassandra::merged_jvm,
    desired::{Desired, Existing, Flavour, Image, PodInputs, Pool, Stalled, Strategy},
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
    databases::elasticsearch::facts::{Release, merged},
    engine::revision,
};

pub(crate) static FLAVOUR: Flavour = Flavour {
    kind: "ElasticsearchCluster",
    word: "elasticsearch",
    container: elasticsearch::CONTAINER,
    data_volume: elasticsearch::DATA_VOLUME,
    data_dir: elasticsearch::DATA_DIR,
    cluster_label: label::ELASTICSEARCH_CLUSTER,
    pool_label: label::ELASTICSEARCH_NODE_POOL,
    prefix: "es",
    // Enough to flush and stop; past it the kubelet kills, and the translog is replayed. Shards are
    // moved away before a pod is told to end. Deletion of a namespace with pods in it is looked
    // at again only after half of this.
    termination_grace: Duration::from_secs(300),
    ports: &[
        ("transport", port::ELASTICSEARCH_TRANSPORT),
        ("http", port::ELASTICSEARCH_HTTP),
        ("prometheus", port::METRICS),
    ],
    service_account: elasticsearch::cluster_object,
    pilot_role: elasticsearch::cluster_object,
    leader_lease: elasticsearch::leader_lease,
    fit: fit_quorum,
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
            stalled: unsupported(version)
                .or_else(|| super::flavour::names_that_do_not_fit(&FLAVOUR, &name, pools)),
            strategy: Strategy::of(update_strategy.as_ref()),
            version: version.clone(),
            status: self.status.clone(),
            pools: node_pools.iter().map(|pool| pool_of(self, &name, pool)).collect(),
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

/// Masters that must agree when the cluster is as wanted, or more where a person said so; `None`
/// from version 7 on, which finds that out by itself.
fn quorum(cluster: &ElasticsearchCluster) -> Option<i32> {
    let release = cluster.spec.version.parse::<Release>().ok()?;
    if release.votes() {
        return None;
    }
    let masters: i32 = cluster
        .spec
        .node_pools
        .iter()
        .filter(|pool| pool.roles.iter().any(|role| role == "master"))
        .map(|pool| pool.replicas.unwrap_or(1))
        .sum();
    Some(cluster.spec.minimum_masters.unwrap_or_default().max(majority(masters)))
}

fn majority(masters: i32) -> i32 {
    masters / 2 + 1
}

/// Before version 7: as many masters must agree as are a majority of those that there are. Were
/// it those that are wanted, the first node of a new cluster would wait for the others, and they
/// for it; and a cluster that shrinks could fall in two. Nodes that were told to leave count no
/// more: without them the others must go on.
fn fit_quorum(desired: &mut Desired, existing: &[Existing]) {
    let eligible =
        |pool: &&Existing| desired.pool(&pool.pool).map_or(pool.eligible, Pool::eligible);
    let masters: u32 = existing.iter().filter(eligible).map(|pool| pool.staying).sum();
    let masters = i32::try_from(masters).unwrap_or(i32::MAX).max(1);
    for pool in &mut desired.pools {
        if let Some(spec) = &mut pool.pilot.elasticsearch
            && let Some(wanted) = spec.minimum_masters
        {
            spec.minimum_masters = Some(wanted.min(masters).max(majority(masters)));
        }
    }
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
        pilot_update: spec.update_strategy.as_ref().and_then(|s| s.pilot_update.clone()),
        config: merged(&spec.config, config),
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
        pods_alike: Vec::new(),
        labels: roles.iter().map(role).collect(),
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::controller::world::{observed, roles};
    use crate::{api::v1beta1::PilotIntent, controller::observe::Observed};

    /// A cluster of version 6.8 with three wanted masters and two data nodes.
    fn old(masters: i32, minimum: Option<i32>) -> Desired {
        let pool = |name: &str, replicas, role: &str| ElasticsearchNodePool {
            name: name.to_owned(),
            replicas: Some(replicas),
            roles: vec![role.to_owned()],
            ..ElasticsearchNodePool::default()
        };
        let mut cluster = ElasticsearchCluster::default();
        cluster.spec.version = "6.8.23".to_owned();
        cluster.spec.minimum_masters = minimum;
        cluster.spec.node_pools = vec![pool("m", masters, "master"), pool("d", 2, "data")];
        let settings = Settings { pilot_image: "navigator".into(), store_id: "store".into() };
        cluster.desired(&settings)
    }

    /// What every node is told while so many masters run.
    fn told(desired: &Desired, masters: u32, change: impl FnOnce(&mut Observed)) -> i32 {
        let mut observed = observed(&[("m", masters), ("d", 2)], "new");
        for member in observed.pools[0].members.values_mut() {
            member.pilot.as_mut().unwrap().spec.elasticsearch = Some(roles(true));
        }
        change(&mut observed);
        let told = desired.clone().fitting(&observed.existing()).pools.into_iter().map(|pool| {
            pool.pilot.elasticsearch.unwrap().minimum_masters.expect("version 6 has a quorum")
        });
        let told: Vec<i32> = told.collect();
        assert!(told.iter().all(|minimum| *minimum == told[0]), "{told:?}");
        told[0]
    }

    #[test]
    fn only_five_six_to_eight_are_run() {
        for version in ["5.6.16", "6.8.23", "7.17.29", "8.19.4"] {
            assert_eq!(unsupported(version), None, "{version}");
        }
        for version in ["5.2.2", "9.0.0", ""] {
            assert_eq!(unsupported(version).unwrap().reason, "UnsupportedVersion", "{version}");
        }
    }

    #[test]
    fn the_quorum_follows_the_masters_that_there_are() {
        let three = old(3, None);
        for (running, quorum) in [(0, 1), (1, 1), (2, 2), (3, 2), (4, 3), (5, 3)] {
            assert_eq!(told(&three, running, |_| ()), quorum, "{running} masters");
        }
    }

    #[test]
    fn a_wanted_minimum_holds_as_soon_as_there_are_enough_masters() {
        let three = old(3, Some(3));
        for (running, quorum) in [(1, 1), (2, 2), (3, 3)] {
            assert_eq!(told(&three, running, |_| ()), quorum, "{running} masters");
        }
    }

    #[test]
    fn masters_that_only_lost_their_pods_still_count_and_those_that_leave_do_not() {
        let stopped = told(&old(3, None), 3, |o| o.pools[0].set.as_mut().unwrap().replicas = 0);
        assert_eq!(stopped, 2);
        let leaving = told(&old(1, None), 2, |o| {
            let pilot = o.pools[0].members.get_mut(&1).unwrap().pilot.as_mut().unwrap();
            (pilot.phase_ours, pilot.spec.phase) = (true, Some(PilotIntent::Decommissioned));
        });
        assert_eq!(leaving, 1, "the one that stays must be able to go on");
    }

    #[test]
    fn from_seven_on_nobody_is_told_a_quorum_and_it_is_no_part_of_the_hash() {
        let mut new = ElasticsearchCluster::default();
        new.spec.version = "7.17.29".to_owned();
        new.spec.minimum_masters = Some(2);
        assert_eq!(quorum(&new), None);
        let (one, three) = (old(1, None), old(5, None));
        assert_eq!(one.pools[0].config_hash(), three.pools[0].config_hash());
    }
}
