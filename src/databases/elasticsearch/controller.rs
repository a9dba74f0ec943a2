//! Elasticsearch for the controller: how its clusters run on Kubernetes.
//!
//! Owns which versions this build runs, the default image, what a Pilot of an Elasticsearch node is
//! told, how many masters must agree before version 7, its Services, and what its pilots' reports
//! mean for the controller. Pure.

use std::time::Duration;

use super::{
    facts::{self, Release},
    names::{self, label},
    v1beta1::{
        Elasticsearch, ElasticsearchCluster, ElasticsearchNode, ElasticsearchNodePool,
        PilotElasticsearchSpec, PilotElasticsearchStatus, is_master, keeps_data,
    },
    validation,
};
use crate::{
    api::{
        pilot_part::PilotParts,
        v1beta1::{Config, Pilot, PilotSpec, PilotStatus},
    },
    controller::{
        ClusterService, DesiredCluster, ExistingPool, LoginNames, ManagedClusterKind,
        ManagedDatabase, NodeLabel, NodeReport, SecuredCondition, ServiceExposure,
        managed_cluster::new_cluster_name,
    },
    engine::{password::PasswordHashing, settings::dotted_names},
};

/// Elasticsearch's entry for the controller.
pub const DATABASE: ManagedDatabase = ManagedDatabase {
    // Enough to flush and stop; past it the kubelet kills, and the translog is replayed. Shards are
    // moved away before a pod is told to end. Kubernetes retries the deletion of a namespace that
    // has pods in it only after half of this period.
    termination_grace: Duration::from_secs(300),
    set_annotations: |desired| vec![(names::VERSION_ANNOTATION, desired.version.clone())],
    node_labels: |_, pilot| pilot.map(role_labels).unwrap_or_default(),
    fit: |desired, existing| {
        fit_quorum(desired, existing);
        keep_name(desired, existing);
    },
    config_hash: facts::config_hash,
    eligible: |spec| is_master(&node_part(spec).roles),
    keeps_data: |spec| spec.part::<ElasticsearchNode>().is_none_or(|part| keeps_data(&part.roles)),
    gauges: &["documents"],
    knows_copies: true,
    id_is_uid: false,
    minimum_masters: |spec| node_part(spec).minimum_masters,
    // The vendor's tool came with the voting configuration.
    begins_anew: |spec| {
        let version = spec.version.as_deref().unwrap_or_default();
        version.parse::<Release>().is_ok_and(Release::has_voting)
    },
    login: Some(&LoginNames {
        admin: "elastic",
        binding: "elasticsearch",
        client_port: "http",
        schemes: Some(["https", "http"]),
        more: |_| Vec::new(),
        reserved: &[],
        shared_by_pilots: false,
        hashing: PasswordHashing::Bcrypt,
    }),
    ..ManagedDatabase::new::<Elasticsearch>(build_services, node_report, security_condition)
};

impl ManagedClusterKind for Elasticsearch {
    const DATABASE: &'static ManagedDatabase = &DATABASE;
    const DEFAULT_UID: i64 = names::DEFAULT_UID;

    fn default_image(version: &str) -> String {
        format!("{}:{version}", names::DEFAULT_IMAGE_REPOSITORY)
    }

    fn unsupported_version_message(version: &str) -> Option<String> {
        version.parse::<Release>().err().map(|error| error.to_string())
    }

    fn merge_config(cluster: &Config, pool: &Config) -> Config {
        dotted_names::merge_pool_settings(cluster, pool)
    }

    fn pilot_parts(cluster: &ElasticsearchCluster, pool: &ElasticsearchNodePool) -> PilotParts {
        let part = PilotElasticsearchSpec {
            new_cluster_name: new_cluster_name(&cluster.metadata),
            roles: pool.own.roles.clone(),
            zone: pool.zone.clone(),
            minimum_masters: master_quorum(cluster),
            plugins: cluster.spec.own.plugins.clone(),
        };
        PilotParts::new(names::NAMES.word, &part)
    }

    fn pod_labels(pool: &ElasticsearchNodePool) -> Vec<(String, String)> {
        let role = |role: &String| (format!("{}{role}", label::ROLE_PREFIX), "true".to_owned());
        pool.own.roles.iter().map(role).collect()
    }
}

/// Returns the label of each role: a pod that a node keeps through a restart was made with those of an
/// earlier spec. Until the node runs as its spec says, its labels stay.
fn role_labels(pilot: &Pilot) -> Vec<NodeLabel> {
    if pilot.status.config_hash.is_none() || pilot.status.config_hash != pilot.spec.config_hash {
        return Vec::new();
    }
    let roles = node_part(&pilot.spec).roles;
    let label = |role: &str| {
        let has_role = roles.iter().any(|assigned_role| assigned_role == role);
        (format!("{}{role}", label::ROLE_PREFIX).into(), has_role.then_some("true"))
    };
    validation::known_roles().map(label).collect()
}

/// Returns Elasticsearch's part of a Pilot's spec.
fn node_part(spec: &PilotSpec) -> PilotElasticsearchSpec {
    spec.part::<ElasticsearchNode>().unwrap_or_default()
}

fn build_services(desired: &DesiredCluster) -> Vec<ClusterService> {
    vec![
        ClusterService {
            name: names::NAMES.service_account(&desired.name),
            ports: &["transport", "http"],
            reach: ServiceExposure::Client,
            marks: &[],
            wanted: true,
        },
        ClusterService {
            name: names::discovery_service(&desired.name),
            ports: &["transport"],
            reach: ServiceExposure::AllPods,
            marks: &[],
            wanted: true,
        },
    ]
}

/// Returns what a Pilot's status means for the controller. A joining node moves no data, so
/// `moves_data` stays false: when a join does not go on, the node's configuration may be why.
fn node_report(status: &PilotStatus) -> NodeReport {
    let part = status.part::<ElasticsearchNode>().unwrap_or_default();
    let PilotElasticsearchStatus { cluster_name, elected_master, .. } = part;
    NodeReport { cluster_name, elected: elected_master == Some(true), ..NodeReport::default() }
}

/// Returns how many masters must agree once the cluster is as wanted, or more where a person set
/// that; `None` from version 7 on, which finds the quorum by itself.
fn master_quorum(cluster: &ElasticsearchCluster) -> Option<i32> {
    let release = cluster.spec.version.parse::<Release>().ok()?;
    if release.has_voting() {
        return None;
    }
    let masters: i32 = cluster
        .spec
        .node_pools
        .iter()
        .filter(|pool| is_master(&pool.own.roles))
        .map(|pool| pool.replicas.unwrap_or(1))
        .sum();
    Some(cluster.spec.own.minimum_masters.unwrap_or_default().max(majority(masters)))
}

fn majority(masters: i32) -> i32 {
    masters / 2 + 1
}

/// Sets the quorum of each node before version 7, from the masters that exist instead of those that
/// are wanted: also by the roles that nodes were told, since a change of roles reaches one node after
/// the other. With the wanted number, the first node of a new cluster would wait for the others,
/// and these for the first; and a cluster that shrinks could fall in two. Nodes that were told to
/// leave do not count: the others must go on without them.
fn fit_quorum(desired: &mut DesiredCluster, existing: &[ExistingPool]) {
    let masters = |existing_pool: &ExistingPool| {
        let is_desired = desired.pool(&existing_pool.pool).is_some_and(|pool| pool.eligible);
        existing_pool.eligible + if is_desired { existing_pool.unknown } else { 0 }
    };
    let masters: u32 = existing.iter().map(masters).sum();
    let masters = i32::try_from(masters).unwrap_or(i32::MAX).max(1);
    for pool in &mut desired.pools {
        if let Some(desired_quorum) = node_part(&pool.pilot).minimum_masters {
            let fitting = desired_quorum.min(masters).max(majority(masters));
            pool.pilot.change_part::<ElasticsearchNode>(|part| {
                part.minimum_masters = Some(fitting);
            });
        }
    }
}

/// Keeps how the Pilots that exist name the cluster: those of releases before 0.3 say nothing, and
/// their clusters have the object's name.
fn keep_name(desired: &mut DesiredCluster, existing: &[ExistingPool]) {
    let word = names::NAMES.word;
    let mut parts = existing.iter().filter_map(|pool| pool.parts.as_ref());
    let existing_part = parts.find_map(|parts| parts.get::<PilotElasticsearchSpec>(word));
    let Some(PilotElasticsearchSpec { new_cluster_name, .. }) = existing_part else { return };
    for pool in &mut desired.pools {
        pool.pilot.change_part::<ElasticsearchNode>(|part| {
            part.new_cluster_name.clone_from(&new_cluster_name);
        });
    }
}

fn security_condition(_desired: &DesiredCluster) -> SecuredCondition {
    let message = "no login and no TLS: every client that reaches port 9200 or 9300 may read, change and \
                   delete all data; keep others out with a NetworkPolicy";
    ("False", "SecurityDisabled", message)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::controller::managed_cluster;
    use crate::{
        api::v1beta1::{ClusterSpec, PilotIntent},
        controller::{
            ObjectSettings, desired_state::DesiredPool, observe::ObservedCluster,
            testing::sample::observed,
        },
        databases::elasticsearch::v1beta1::Roles,
    };

    fn of(cluster: &ElasticsearchCluster) -> DesiredCluster {
        let settings = ObjectSettings {
            pilot_image: "navigator".into(),
            store_id: "store".into(),
            owner_references: false,
        };
        managed_cluster::build_desired_cluster(cluster, &settings)
    }

    /// Returns a cluster of version 6.8 with `masters` wanted masters and two data nodes.
    fn old(masters: i32, minimum: Option<i32>) -> DesiredCluster {
        let pool = |name: &str, replicas, role: &str| ElasticsearchNodePool {
            name: name.to_owned(),
            replicas: Some(replicas),
            own: Roles { roles: vec![role.to_owned()] },
            ..ElasticsearchNodePool::default()
        };
        let mut cluster = ElasticsearchCluster::default();
        cluster.spec.version = "6.8.23".to_owned();
        cluster.spec.own.minimum_masters = minimum;
        cluster.spec.node_pools = vec![pool("m", masters, "master"), pool("d", 2, "data")];
        of(&cluster)
    }

    /// Returns the quorum that every node is told while `masters` masters run.
    fn minimum(
        desired: &DesiredCluster,
        masters: u32,
        change: impl FnOnce(&mut ObservedCluster),
    ) -> i32 {
        let mut observed = observed(&[("m", masters), ("d", 2)], "new");
        for member in observed.pools[0].members.values_mut() {
            member.pilot.as_mut().unwrap().eligible = true;
        }
        change(&mut observed);
        let minima =
            desired.clone().fit_to_pools(&observed.existing_pools()).pools.into_iter().map(
                |pool| node_part(&pool.pilot).minimum_masters.expect("version 6 has a quorum"),
            );
        let minima: Vec<i32> = minima.collect();
        assert!(minima.iter().all(|minimum| *minimum == minima[0]), "{minima:?}");
        minima[0]
    }

    #[test]
    fn pilots_that_exist_keep_name_of_cluster() {
        let mut cluster = ElasticsearchCluster::default();
        cluster.metadata.name = Some("logs".to_owned());
        cluster.metadata.uid = Some("1a2b3c4d-5e6f-4000-8000-000000000000".to_owned());
        cluster.spec.version = "8.19.4".to_owned();
        cluster.spec.node_pools = vec![ElasticsearchNodePool::default()];
        let named = |found: Option<PilotElasticsearchSpec>| {
            let parts = found.map(|part| PilotParts::new(names::NAMES.word, &part));
            let existing = [ExistingPool { pool: String::new(), eligible: 1, unknown: 0, parts }];
            let desired = of(&cluster).fit_to_pools(&existing);
            (
                node_part(&desired.pools[0].pilot).new_cluster_name,
                desired.pools[0].config_hash().to_owned(),
            )
        };
        let (fresh, hash) = named(None);
        assert_eq!(fresh.as_deref(), Some("logs-1a2b3c4d"));
        let before = named(Some(PilotElasticsearchSpec::default()));
        assert_eq!(before, (None, hash), "as a release before 0.3 wrote it, and nothing restarts");
    }

    #[test]
    fn only_five_six_to_eight_are_run() {
        for version in ["5.6.16", "6.8.23", "7.17.29", "8.19.4"] {
            assert_eq!(Elasticsearch::unsupported_version_message(version), None, "{version}");
        }
        for version in ["5.2.2", "9.0.0", ""] {
            let cluster = ClusterSpec { version: version.to_owned(), ..ClusterSpec::default() };
            let cluster = ElasticsearchCluster { spec: cluster, ..ElasticsearchCluster::default() };
            assert_eq!(of(&cluster).stalled.unwrap().reason, "UnsupportedVersion", "{version}");
        }
    }

    #[test]
    fn the_quorum_follows_the_masters_that_there_are() {
        let three = old(3, None);
        for (running, quorum) in [(0, 1), (1, 1), (2, 2), (3, 2), (4, 3), (5, 3)] {
            assert_eq!(minimum(&three, running, |_| ()), quorum, "{running} masters");
        }
    }

    #[test]
    fn a_wanted_minimum_holds_as_soon_as_there_are_enough_masters() {
        let three = old(3, Some(3));
        for (running, quorum) in [(1, 1), (2, 2), (3, 3)] {
            assert_eq!(minimum(&three, running, |_| ()), quorum, "{running} masters");
        }
    }

    #[test]
    fn masters_that_only_lost_their_pods_still_count_and_those_that_leave_do_not() {
        let stopped = minimum(&old(3, None), 3, |o| o.pools[0].set.as_mut().unwrap().replicas = 0);
        assert_eq!(stopped, 2);
        let leaving = minimum(&old(1, None), 2, |o| {
            let pilot = o.pools[0].members.get_mut(&1).unwrap().pilot.as_mut().unwrap();
            (pilot.phase_ours, pilot.spec.phase) = (true, Some(PilotIntent::Decommissioned));
        });
        assert_eq!(leaving, 1, "the one that stays must be able to go on");
    }

    #[test]
    fn masters_count_until_they_are_told_another_role() {
        // The pool of masters is to hold data, and another one of three masters is to come.
        let mut desired = old(3, None);
        let masters = desired.pools[0].clone();
        let (name, eligible) = ("n".to_owned(), true);
        desired.pools.push(DesiredPool { name, eligible, ..masters });
        desired.pools[0].eligible = false;
        assert_eq!(minimum(&desired, 3, |_| ()), 2, "three masters run");
        let told = |count: u32| {
            move |o: &mut ObservedCluster| {
                for ordinal in 0..count {
                    let member = o.pools[0].members.get_mut(&ordinal).unwrap();
                    member.pilot.as_mut().unwrap().eligible = false;
                }
            }
        };
        assert_eq!(minimum(&desired, 3, told(1)), 2);
        assert_eq!(minimum(&desired, 3, told(2)), 1, "the last one must be able to go on");
        desired.pools[0].eligible = true;
        assert_eq!(minimum(&desired, 3, told(2)), 1, "two are to be masters, and are none yet");
    }

    #[test]
    fn from_seven_on_nobody_is_told_a_quorum_and_it_is_no_part_of_the_hash() {
        let mut new = ElasticsearchCluster::default();
        new.spec.version = "7.17.29".to_owned();
        new.spec.own.minimum_masters = Some(2);
        assert_eq!(master_quorum(&new), None);
        let (one, three) = (old(1, None), old(5, None));
        assert_eq!(one.pools[0].config_hash(), three.pools[0].config_hash());
    }

    #[test]
    fn a_node_has_the_labels_of_the_roles_that_it_runs_with() {
        let mut pilot = Pilot::default();
        let roles = PilotElasticsearchSpec {
            roles: vec!["data".to_owned()],
            ..PilotElasticsearchSpec::default()
        };
        pilot.spec.set_part::<ElasticsearchNode>(&roles);
        pilot.spec.config_hash = Some("new".to_owned());
        pilot.status.config_hash = Some("old".to_owned());
        assert_eq!(role_labels(&pilot), [], "it restarts later");
        pilot.status.config_hash = Some("new".to_owned());
        let labels = role_labels(&pilot);
        let label = |role: &str| (format!("{}{role}", label::ROLE_PREFIX).into(), None::<&str>);
        assert!(labels.contains(&label("master")), "{labels:?}");
        assert!(labels.contains(&(label("data").0, Some("true"))), "{labels:?}");
    }
}
