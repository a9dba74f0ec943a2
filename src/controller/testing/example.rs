//! An example database for the controller's tests, with no spec fields of its own.

use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    api::{
        cluster_kind::{ClusterKind, NoOlderVersion},
        database_names::DatabaseNames,
        predicate::Predicate,
        v1beta1::{NodeChange, PilotStatus},
    },
    controller::{
        ManagedClusterKind,
        desired_state::{
            ClusterService, DesiredCluster, LoginNames, ManagedDatabase, NodePlace, NodeReport,
            ServiceExposure,
        },
        managed_cluster,
    },
    engine::{config_hash, password::PasswordHashing},
};

/// The example database's own fields in specs: none.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
pub(crate) struct Example {}

impl ClusterKind for Example {
    const NAMES: &'static DatabaseNames = &NAMES;

    type Pool = Self;
    type Role = Self;
    type Older = NoOlderVersion;
}

const NAMES: DatabaseNames = DatabaseNames {
    kind: "ExampleCluster",
    plural: "exampleclusters",
    singular: "examplecluster",
    short_names: &[],
    word: "example",
    title: "Example",
    prefix: "ex",
    container: "example",
    data_volume: "example-data",
    data_dir: "/var/lib/example",
    cluster_label: "navigator.jetstack.io/example-cluster-name",
    pool_label: "navigator.jetstack.io/example-node-pool-name",
    predicates: &[
        Predicate { calm: true, ..Predicate::against_stop("PeersUp", "another node is down") },
        Predicate {
            against: &[NodeChange::Join],
            ..Predicate::against_stop("SpaceHere", "a node is to join, and has too little room")
        },
        Predicate {
            way_out: Some("want fewer copies"),
            ..Predicate::against_stop("CopyElsewhere", "it has the only copy, and more are wanted")
        },
        Predicate::against_spec("DataMoved", "it is to hold no data, and has some"),
        Predicate {
            needs_person: true,
            ..Predicate::against_spec("DataMayMove", "its data may go to no other node")
        },
    ],
    without_effect: &[],
    ports: &[("client", 7777), ("peers", 7778)],
    node_ports: &["peers"],
    leader_lease: |cluster| format!("example-{cluster}-leaderelection"),
    role: "-pilot",
    services: &["-seeds", "-nodes", "-client"],
};

/// Label of each pool's node with ordinal 0.
pub(crate) const SEED: &str = "navigator.jetstack.io/example-seed";

pub(crate) static DATABASE: ManagedDatabase = EXAMPLE;

pub(crate) const EXAMPLE: ManagedDatabase = ManagedDatabase {
    names: &NAMES,
    labels: &[],
    termination_grace: Duration::from_secs(300),
    desired: managed_cluster::parse_desired_cluster::<Example>,
    services,
    set_annotations: |_| Vec::new(),
    node_labels: |ordinal, _| {
        if ordinal == 0 { vec![(SEED.into(), Some("true"))] } else { Vec::new() }
    },
    fit: |_, _| (),
    config_hash: |spec| config_hash::config_hash(spec, Vec::new()),
    eligible: |_| false,
    place: |spec| {
        let part = spec.parts.part_value("example")?;
        let text = |field: &str| Some(part[field].as_str()?.to_owned());
        Some(NodePlace { datacenter: text("datacenter")?, rack: text("rack") })
    },
    keeps_data: |_| true,
    reports,
    gauges: &["load"],
    knows_copies: false,
    id_is_uid: true,
    minimum_masters: |_| None,
    begins_anew: |spec| spec.version.is_some(),
    switches_at_once: false,
    one_port: false,
    login: Some(&LoginNames {
        admin: "admin",
        binding: "example",
        client_port: "client",
        schemes: None,
        more: |_| Vec::new(),
        reserved: &["known"],
        shared_by_pilots: true,
        hashing: PasswordHashing::Bcrypt,
    }),
    secured: |_| ("False", "SecurityDisabled", "whoever reaches it may read all data"),
};

/// The example database with pilots that know of copies of data.
pub(crate) static KNOWING: ManagedDatabase = ManagedDatabase { knows_copies: true, ..EXAMPLE };

/// The example database, if all of its nodes change TLS and logins at once.
pub(crate) static SWITCHING: ManagedDatabase = ManagedDatabase {
    switches_at_once: true,
    desired: |object, settings, round| {
        let desired = managed_cluster::parse_desired_cluster::<Example>(object, settings, round)?;
        Ok(DesiredCluster { database: &SWITCHING, ..desired })
    },
    ..EXAMPLE
};

/// The example database, if its users stand in files, so that pilots need no login in common.
pub(crate) static WITH_FILES: ManagedDatabase = ManagedDatabase {
    login: Some(&LoginNames { shared_by_pilots: false, ..*EXAMPLE.login.unwrap() }),
    desired: |object, settings, round| {
        let desired = managed_cluster::parse_desired_cluster::<Example>(object, settings, round)?;
        Ok(DesiredCluster { database: &WITH_FILES, ..desired })
    },
    ..EXAMPLE
};

/// Reads the node report from the mode that pilots of the example database report.
fn reports(status: &PilotStatus) -> NodeReport {
    let mode = status.parts.part_value("example").and_then(|part| part["mode"].as_str());
    NodeReport {
        cluster_name: None,
        elected: false,
        answered: mode.is_some(),
        moves_data: matches!(mode, Some("JOINING" | "LEAVING")),
        outsider: mode == Some("FAILED"),
        behind: None,
        load: None,
    }
}

fn services(desired: &DesiredCluster) -> Vec<ClusterService> {
    let service = |part: &str, reach| ClusterService {
        name: format!("ex-{}-{part}", desired.name),
        ports: &["client"],
        reach,
        marks: &[],
        wanted: true,
    };
    let client = desired.services.client.as_ref().is_some_and(|client| client.type_.is_some());
    vec![
        ClusterService { marks: &[(SEED, "true")], ..service("seeds", ServiceExposure::AllPods) },
        service("nodes", ServiceExposure::Pods),
        ClusterService { wanted: client, ..service("client", ServiceExposure::Client) },
    ]
}

impl ManagedClusterKind for Example {
    const DATABASE: &'static ManagedDatabase = &DATABASE;
    const DEFAULT_UID: i64 = 999;

    fn default_image(version: &str) -> String {
        format!("docker.io/example:{version}")
    }

    fn unsupported_version_message(version: &str) -> Option<String> {
        (!version.starts_with(|c: char| c.is_ascii_digit()))
            .then(|| format!("version {version:?} is not supported"))
    }
}
