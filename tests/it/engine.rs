//! What the engines render, as whole folders.

use std::{collections::BTreeMap, fmt::Write as _, fs, path::Path};

use navigator::databases::cassandra::facts::{NodeSettings, Release, render_files};
use serde_json::{Map, Value, json};

use crate::golden;

#[test]
fn cassandra_folder_is_the_golden_one() {
    let overlay = json!({"concurrent_reads": 64, "storage_port": 1, "audit_logging_options": {"enabled": true}});
    let seeds = ["10.0.0.8".to_owned(), "seed.example.org:7001".to_owned(), "fd00::1".to_owned()];
    let options = ["-XX:MaxDirectMemorySize=1g".to_owned()];
    for release in [Release::V4_0, Release::V4_1, Release::V5_0] {
        let files = render_files(&NodeSettings {
            release,
            cluster_name: "shop",
            datacenter: "eu",
            rack: "a",
            num_tokens: Some(8),
            token_factor: Some(3),
            seeds: &seeds,
            address: [10, 0, 0, 7].into(),
            data: Path::new("/var/lib/cassandra"),
            capacity: Some(100 << 30),
            overlay: overlay.as_object().unwrap(),
            jvm_options: &options,
            security: None,
        })
        .unwrap();
        let mut text = String::new();
        for (name, content) in files {
            writeln!(text, "==> {name} <==\n{content}").unwrap();
        }
        golden::check(&format!("cassandra/{release}.txt"), &text);
    }
}

/// Keys of the vendor's cassandra.yaml that a node has another value for, and why.
const DECISIONS: &[(&str, &str)] = &[
    ("audit_logging_options", "off either way"),
    ("authenticator", "absent is AllowAllAuthenticator; condition Secured tells of it"),
    ("authorizer", "absent is AllowAllAuthorizer"),
    ("cas_contention_timeout", "built in are 1.8 s since 4.1: fewer conditional writes time out"),
    ("cidr_authorizer", "absent is AllowAllCIDRAuthorizer"),
    ("client_encryption_options", "off either way; Navigator's own to decide"),
    ("cluster_name", "the cluster's"),
    (
        "commit_failure_policy",
        "die: the vendor's `stop` leaves a process that serves no client; the pilot restarts one \
         that ends, and says why",
    ),
    ("crypto_provider", "absent is the JVM's own, which needs no library of the machine"),
    ("endpoint_snitch", "racks and datacenters are in a file of the node's own"),
    ("inter_dc_tcp_nodelay", "built in is to send at once; waiting saves packets and costs time"),
    ("listen_address", "the pod's"),
    ("memtable", "absent is `skiplist`, which the vendor names its default"),
    ("network_authorizer", "absent is AllowAllNetworkAuthorizer"),
    ("replica_filtering_protection", "the same figures are built in"),
    ("role_manager", "absent is CassandraRoleManager"),
    ("rpc_address", "all addresses of the pod"),
    ("seed_provider", "the pilot finds the seeds"),
    ("server_encryption_options", "off either way; Navigator's own to decide"),
    ("storage_compatibility_mode", "absent is CASSANDRA_4"),
    ("transparent_data_encryption_options", "off either way"),
    ("windows_timer_interval", "of another system"),
];

/// The tables of `tests/data/cassandra` say where they come from.
#[test]
fn what_differs_from_the_vendors_file_was_decided() {
    let mut used = Vec::new();
    for release in [Release::V4_0, Release::V4_1, Release::V5_0] {
        let none = Map::new();
        let files = render_files(&NodeSettings {
            release,
            cluster_name: "shop",
            datacenter: "eu",
            rack: "a",
            num_tokens: None,
            token_factor: Some(3),
            seeds: &[],
            address: [10, 0, 0, 7].into(),
            data: Path::new("/var/lib/cassandra"),
            capacity: None,
            overlay: &none,
            jvm_options: &[],
            security: None,
        })
        .unwrap();
        let ours: Map<String, Value> = serde_yaml::from_str(&files["cassandra.yaml"]).unwrap();
        let path = format!("{}/tests/data/cassandra/{release}.yaml", env!("CARGO_MANIFEST_DIR"));
        let table = fs::read_to_string(path).unwrap();
        let table: BTreeMap<String, [Value; 2]> = serde_yaml::from_str(&table).unwrap();
        for (key, [vendor, absent]) in &table {
            let value = ours.get(key).unwrap_or(absent);
            if value == vendor {
                continue;
            }
            assert!(
                DECISIONS.iter().any(|(known, _)| known == key),
                "{release}: {key} is {value}, and the vendor's file has {vendor}"
            );
            used.push(key.clone());
        }
    }
    for (key, why) in DECISIONS {
        assert!(used.iter().any(|one| one == key), "{key} differs nowhere: {why}");
    }
}
