//! Cassandra for the controller: how its clusters run on Kubernetes.
//!
//! Owns which versions this build runs, the default image, what a Pilot of a Cassandra node is
//! told, its Services, and what its pilots' reports mean for the controller. Pure.

use std::time::Duration;

use super::{
    facts::{self, Release},
    names::{self, label},
    settings::is_authentication_off,
    v1beta1::{
        Cassandra, CassandraBehind, CassandraCluster, CassandraNode, CassandraNodePool,
        PilotCassandraSpec, Rack,
    },
};
use crate::{
    api::{names::label::APP, pilot_part::PilotParts, v1beta1::PilotStatus},
    controller::{
        BehindReplica, ClusterService, DesiredCluster, ExistingPool, LoginNames,
        ManagedClusterKind, ManagedDatabase, NodeLoad, NodePlace, NodeReport, SecuredCondition,
        ServiceExposure, managed_cluster::new_cluster_name,
    },
    engine::password::PasswordHashing,
};

/// Cassandra's entry for the controller.
pub const DATABASE: ManagedDatabase = ManagedDatabase {
    // The label that upstream sets.
    labels: &[(APP, "cassandracluster")],
    // Enough to drain and flush; past it the kubelet kills, and the commit log is replayed.
    termination_grace: Duration::from_secs(300),
    node_labels: |ordinal, _| {
        // A pod template cannot set a label for one ordinal.
        if ordinal == 0 { vec![(label::SEED.into(), Some("true"))] } else { Vec::new() }
    },
    fit: keep_name,
    config_hash: facts::config_hash,
    place: |spec| {
        let PilotCassandraSpec { datacenter, rack, .. } = spec.part::<CassandraNode>()?;
        Some(NodePlace { datacenter: datacenter?, rack })
    },
    gauges: &["loadBytes"],
    login: Some(&LoginNames {
        admin: "admin",
        binding: "cassandra",
        client_port: "cql",
        schemes: None,
        more: |desired| {
            // Drivers ask for the datacenter that they are in.
            let first = desired.pools.first().and_then(|pool| pool.pilot.part::<CassandraNode>());
            let datacenter = first.and_then(|part| part.datacenter);
            datacenter.map(|name| ("datacenter", name)).into_iter().collect()
        },
        reserved: &["cassandra"],
        shared_by_pilots: true,
        hashing: PasswordHashing::Bcrypt,
    }),
    ..ManagedDatabase::new::<Cassandra>(build_services, node_report, security_condition)
};

impl ManagedClusterKind for Cassandra {
    const DATABASE: &'static ManagedDatabase = &DATABASE;
    const DEFAULT_UID: i64 = names::DEFAULT_UID;

    fn default_image(version: &str) -> String {
        format!("{}:{version}", names::DEFAULT_IMAGE_REPOSITORY)
    }

    fn unsupported_version_message(version: &str) -> Option<String> {
        version.parse::<Release>().err().map(|error| error.to_string())
    }

    fn nodes_elsewhere(spec: &Self) -> bool {
        !spec.additional_seeds.is_empty()
    }

    fn pilot_parts(cluster: &CassandraCluster, pool: &CassandraNodePool) -> PilotParts {
        let Self { cluster_name, num_tokens, additional_seeds } = &cluster.spec.own;
        let Rack { datacenter, rack } = &pool.own;
        let is_alone = cluster_name.is_none() && additional_seeds.is_empty();
        let part = PilotCassandraSpec {
            cluster_name: cluster_name.clone(),
            new_cluster_name: is_alone.then(|| new_cluster_name(&cluster.metadata)).flatten(),
            datacenter: Some(
                datacenter.clone().unwrap_or_else(|| names::DEFAULT_DATACENTER.to_owned()),
            ),
            rack: Some(rack.clone().unwrap_or_else(|| pool.name.clone())),
            num_tokens: *num_tokens,
            additional_seeds: additional_seeds.clone(),
        };
        PilotParts::new(names::NAMES.word, &part)
    }
}

/// Keeps how the Pilots that exist name the ring, where the spec leaves that open or names it as it
/// is: those of releases before 0.3 have the object's name.
fn keep_name(desired: &mut DesiredCluster, existing: &[ExistingPool]) {
    let word = names::NAMES.word;
    let mut parts = existing.iter().filter_map(|pool| pool.parts.as_ref());
    let Some(existing_part) = parts.find_map(|parts| parts.get::<PilotCassandraSpec>(word)) else {
        return;
    };
    for pool in &mut desired.pools {
        pool.pilot.change_part::<CassandraNode>(|part| {
            if part.cluster_name.is_none() || part.cluster_name == existing_part.new_cluster_name {
                part.cluster_name.clone_from(&existing_part.cluster_name);
                part.new_cluster_name.clone_from(&existing_part.new_cluster_name);
            }
        });
        pool.pilot.config_hash = Some(facts::config_hash(&pool.pilot));
    }
}

fn build_services(desired: &DesiredCluster) -> Vec<ClusterService> {
    let all_ports = &["cql", "intra-node", "intra-node-tls"];
    let name = &desired.name;
    let client = desired.services.client.as_ref();
    vec![
        // A joining node must find seeds that are not ready yet.
        ClusterService {
            name: names::seeds_service(name),
            ports: all_ports,
            reach: ServiceExposure::AllPods,
            marks: &[(label::SEED, "true")],
            wanted: true,
        },
        ClusterService {
            name: names::nodes_service(name),
            ports: all_ports,
            reach: ServiceExposure::Pods,
            marks: &[],
            wanted: true,
        },
        // The client Service exists only while a type is asked for.
        ClusterService {
            name: names::client_service(name),
            ports: &["cql"],
            reach: ServiceExposure::Client,
            marks: &[],
            wanted: client.is_some_and(|client| client.type_.is_some()),
        },
    ]
}

fn node_report(status: &PilotStatus) -> NodeReport {
    let part = status.part::<CassandraNode>();
    let cluster_name = part.as_ref().and_then(|part| part.cluster_name.clone());
    let is_outsider = part.as_ref().is_some_and(|part| part.joined == Some(false));
    let behind = part.as_ref().and_then(|part| part.behind.as_ref());
    let behind = behind.map(|CassandraBehind { since, away_since }| BehindReplica {
        since: since.0,
        away_since: away_since.as_ref().map(|time| time.0),
        repair: REPAIR,
        repair_beside_lost: REPAIR_BESIDE_LOST,
    });
    let load = part.as_ref().and_then(|part| {
        let copies = part.replication_factor.and_then(|factor| factor.try_into().ok());
        Some(NodeLoad { bytes: part.load_bytes?, copies })
    });
    let mode = part.and_then(|part| part.operation_mode);
    NodeReport {
        cluster_name,
        elected: false,
        outsider: is_outsider,
        answered: mode.is_some(),
        moves_data: matches!(mode.as_deref(), Some("JOINING" | "LEAVING")),
        behind,
        load,
    }
}

/// Repairs all ranges of which the node is a replica, in each keyspace but `system_distributed`: in
/// 4.0, 4.1 and 5.0 a repair without ranges is of all local ones (`StorageService.repair`). So it is typed on this node alone, and without `-pr`. Incremental repairs, the
/// default, leave out what they have repaired before.
const REPAIR: &str = "nodetool repair -full";
/// Leaves out the replicas that are down, with which a repair fails otherwise (`Endpoint not alive`
/// in `ActiveRepairService.prepareForRepair`); 4.0 and later have it.
const REPAIR_BESIDE_LOST: &str = "nodetool repair -full --force";

fn security_condition(desired: &DesiredCluster) -> SecuredCondition {
    if desired.pools.iter().any(|pool| is_authentication_off(&pool.pilot.config)) {
        let message = "no login and no TLS: every client that reaches port 9042 may read, change and delete \
                       all data; set spec.config.authenticator, or keep others out with a \
                       NetworkPolicy";
        return ("False", "SecurityDisabled", message);
    }
    let message = "no TLS: passwords and data travel as they are; keep others out with a \
                   NetworkPolicy";
    ("False", "NotEncrypted", message)
}

#[cfg(test)]
mod tests {
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

    use super::*;
    use crate::controller::managed_cluster;
    use crate::{
        api::v1beta1::{ClusterSpec, PilotSpec},
        controller::{ObjectSettings, desired_state::DesiredPool},
    };

    fn settings(pilot_image: &str) -> ObjectSettings {
        ObjectSettings {
            pilot_image: pilot_image.to_owned(),
            store_id: "store".to_owned(),
            owner_references: false,
        }
    }

    fn pool_of(cluster: &CassandraCluster) -> DesiredPool {
        managed_cluster::build_desired_cluster(cluster, &settings("navigator")).pools.remove(0)
    }

    #[test]
    fn new_ring_has_part_of_uid_in_its_name() {
        let mut cluster = CassandraCluster::default();
        cluster.metadata.name = Some("shop".to_owned());
        cluster.metadata.uid = Some("1a2b3c4d-5e6f-4000-8000-000000000000".to_owned());
        cluster.spec.node_pools = vec![CassandraNodePool::default()];
        let part = |pool: &DesiredPool| pool.pilot.part::<CassandraNode>().unwrap();
        let named = |cluster: &CassandraCluster| {
            let part = part(&pool_of(cluster));
            (part.cluster_name, part.new_cluster_name)
        };
        assert_eq!(named(&cluster), (None, Some("shop-1a2b3c4d".to_owned())));
        let mut joins = cluster.clone();
        joins.spec.own.additional_seeds = vec!["seed.example.org".to_owned()];
        assert_eq!(named(&joins), (None, None), "nodes elsewhere know nothing of the uid");
        joins.spec.own.cluster_name = Some("orders".to_owned());
        assert_eq!(named(&joins), (Some("orders".to_owned()), None));
    }

    #[test]
    fn pilots_that_exist_keep_name_of_ring() {
        let mut cluster = CassandraCluster::default();
        cluster.metadata.name = Some("shop".to_owned());
        cluster.metadata.uid = Some("1a2b3c4d-5e6f-4000-8000-000000000000".to_owned());
        cluster.spec.node_pools = ["a", "b"]
            .map(|name| CassandraNodePool { name: name.into(), ..Default::default() })
            .into();
        let told = |cluster: &CassandraCluster, found: Option<&PilotCassandraSpec>| {
            let parts = found.map(|part| PilotParts::new(names::NAMES.word, part));
            let existing = [ExistingPool { pool: "a".to_owned(), eligible: 0, unknown: 0, parts }];
            managed_cluster::build_desired_cluster(cluster, &settings("navigator"))
                .fit_to_pools(&existing)
        };
        let part = |pool: &DesiredPool| pool.pilot.part::<CassandraNode>().unwrap();
        // As a release before 0.3 wrote it.
        let fresh = told(&cluster, None);
        let old = PilotCassandraSpec {
            cluster_name: Some("shop".to_owned()),
            new_cluster_name: None,
            ..part(&fresh.pools[0])
        };
        let upgraded = told(&cluster, Some(&old));
        assert_eq!(part(&upgraded.pools[0]), old);
        assert_eq!(part(&upgraded.pools[1]).cluster_name.as_deref(), Some("shop"));
        for (fresh, upgraded) in fresh.pools.iter().zip(&upgraded.pools) {
            assert_eq!(fresh.config_hash(), upgraded.config_hash(), "nothing restarts");
        }
        // A person writes the name down that the ring has.
        let new = part(&fresh.pools[0]);
        cluster.spec.own.cluster_name.clone_from(&new.new_cluster_name);
        let written = told(&cluster, Some(&new));
        assert_eq!(written.pools[0].pilot, fresh.pools[0].pilot);
    }

    #[test]
    fn who_can_reach_the_data_is_said() {
        let mut cluster = CassandraCluster::default();
        cluster.spec.node_pools = vec![CassandraNodePool::default()];
        let reason = |cluster: &CassandraCluster| {
            let (status, reason, _) = security_condition(&managed_cluster::build_desired_cluster(
                cluster,
                &settings("navigator"),
            ));
            format!("{status}/{reason}")
        };
        assert_eq!(reason(&cluster), "False/SecurityDisabled");
        cluster.spec.config.insert("authenticator".into(), "PasswordAuthenticator".into());
        assert_eq!(reason(&cluster), "False/NotEncrypted");
    }

    #[test]
    fn a_node_that_joins_or_leaves_moves_data() {
        let of = |mode: Option<&str>| {
            let mut status = PilotStatus::default();
            status.change_part::<CassandraNode>(|part| {
                part.operation_mode = mode.map(str::to_owned);
            });
            node_report(&status)
        };
        assert_eq!(of(None), NodeReport::default());
        assert!(of(Some("NORMAL")).answered && !of(Some("NORMAL")).moves_data);
        assert!(of(Some("JOINING")).moves_data && of(Some("LEAVING")).moves_data);
    }

    #[test]
    fn data_of_a_node_and_its_place_are_read_from_its_pilot() {
        let mut status = PilotStatus::default();
        status.change_part::<CassandraNode>(|part| part.load_bytes = Some(9));
        assert_eq!(node_report(&status).load, Some(NodeLoad { bytes: 9, copies: None }));
        status.change_part::<CassandraNode>(|part| part.replication_factor = Some(3));
        assert_eq!(node_report(&status).load, Some(NodeLoad { bytes: 9, copies: Some(3) }));
        let mut spec = PilotSpec::default();
        assert_eq!((DATABASE.place)(&spec), None);
        spec.change_part::<CassandraNode>(|part| {
            part.datacenter = Some("eu".to_owned());
            part.rack = Some("r1".to_owned());
        });
        let place = NodePlace { datacenter: "eu".to_owned(), rack: Some("r1".to_owned()) };
        assert_eq!((DATABASE.place)(&spec), Some(place));
    }

    #[test]
    fn replica_behind_is_repaired_by_nodetool() {
        let mut status = PilotStatus::default();
        let time = |text: &str| Time(text.parse().unwrap());
        let (away, since) = (time("2026-11-30T10:00:00Z"), time("2026-11-30T14:00:00Z"));
        status.change_part::<CassandraNode>(|part| {
            part.behind =
                Some(CassandraBehind { since: since.clone(), away_since: Some(away.clone()) });
        });
        let behind = node_report(&status).behind.unwrap();
        assert_eq!((behind.since, behind.away_since), (since.0, Some(away.0)));
        assert_eq!(behind.repair, "nodetool repair -full");
        assert_eq!(behind.repair_beside_lost, "nodetool repair -full --force");
    }

    #[test]
    fn a_node_is_an_outsider_only_when_it_says_so() {
        for (joined, outsider) in [(None, false), (Some(true), false), (Some(false), true)] {
            let mut status = PilotStatus::default();
            status.change_part::<CassandraNode>(|part| part.joined = joined);
            assert_eq!(node_report(&status).outsider, outsider, "{joined:?}");
        }
    }

    #[test]
    fn only_four_and_five_are_run() {
        for version in ["4.0", "4.0.19", "4.1-beta1", "4.1.7", "5.0.6"] {
            assert_eq!(Cassandra::unsupported_version_message(version), None, "{version}");
        }
        for version in ["3.11", "3.11.1", "5.1", "6.0", "", "x"] {
            let cluster = ClusterSpec { version: version.to_owned(), ..ClusterSpec::default() };
            let cluster = CassandraCluster { spec: cluster, ..CassandraCluster::default() };
            let stalled =
                managed_cluster::build_desired_cluster(&cluster, &settings("navigator")).stalled;
            assert_eq!(stalled.unwrap().reason, "UnsupportedVersion", "{version}");
        }
    }

    #[test]
    fn a_setting_of_the_database_does_not_change_what_pods_are_made_of() {
        let mut cluster = CassandraCluster::default();
        cluster.spec.node_pools = vec![CassandraNodePool::default()];
        let before = pool_of(&cluster);
        cluster.spec.config.insert("x".into(), 1.into());
        let after = pool_of(&cluster);
        assert_ne!(before.config_hash(), after.config_hash());
        assert_eq!(before.pod_hash, after.pod_hash);
    }

    #[test]
    fn an_upgrade_of_ours_alone_restarts_no_database() {
        let mut cluster = CassandraCluster::default();
        cluster.spec.node_pools = vec![CassandraNodePool::default()];
        let of = |image: &str| managed_cluster::build_desired_cluster(&cluster, &settings(image));
        let (before, after) = (of("navigator:1"), of("navigator:2"));
        assert_ne!(before.pilot_image, after.pilot_image);
        let hashes = |desired: &DesiredCluster| {
            let pool = &desired.pools[0];
            (pool.pod_hash.clone(), pool.config_hash().to_owned())
        };
        assert_eq!(hashes(&before), hashes(&after));
    }
}
