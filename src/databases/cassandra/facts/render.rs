//! Renders the files of a node's configuration folder.
//!
//! Owns the contents of every file that Navigator writes there. Keys that Navigator manages are
//! written last, so no overlay can change them; the other keys are the user's. Writes nothing.

use std::{
    collections::BTreeMap,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    path::Path,
};

use serde_json::{Map, Value, json};

use super::{
    Release, options,
    security::{self, SecuritySettings},
};
use crate::{databases::cassandra::names::port, engine::settings};

/// The values that a node's configuration depends on.
#[derive(Clone, Debug)]
pub struct NodeSettings<'a> {
    pub release: Release,
    pub cluster_name: &'a str,
    pub datacenter: &'a str,
    pub rack: &'a str,
    /// Number of tokens; `None`: the version's default of 16.
    pub num_tokens: Option<i32>,
    /// Replication factor that tokens are spread evenly for; `None`: tokens are random.
    pub token_factor: Option<u32>,
    /// Seeds as host names or addresses, with or without a port.
    pub seeds: &'a [String],
    pub address: IpAddr,
    /// Root of the data volume.
    pub data: &'a Path,
    /// Bytes of that volume, where they are known.
    pub capacity: Option<u64>,
    /// The user's settings, cluster and pool already merged.
    pub overlay: &'a Map<String, Value>,
    /// The user's JVM options.
    pub jvm_options: &'a [String],
    /// What is encrypted and who is asked; `None` where the node is open.
    pub security: Option<SecuritySettings<'a>>,
}

/// Texts of configuration files, by file name.
pub type RenderedFiles = BTreeMap<&'static str, String>;

/// Why settings were refused: Cassandra could not read them back as they were meant.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RenderError {
    #[error("jvm option {0:?} must start with '-' and contain no white space")]
    JvmOption(String),
    #[error("jvm option {0:?} sets the heap; use jvm.heap")]
    HeapOption(String),
    #[error("{field} {value:?} must be one line of text")]
    NotOneLine { field: &'static str, value: String },
    #[error("failed to write cassandra.yaml: {0}")]
    Yaml(String),
}

/// Renders the files of the configuration folder that Navigator writes.
pub fn render_files(settings: &NodeSettings<'_>) -> Result<RenderedFiles, RenderError> {
    for (field, value) in [("datacenter", settings.datacenter), ("rack", settings.rack)] {
        if value.is_empty() || value.chars().any(char::is_control) {
            return Err(RenderError::NotOneLine { field, value: value.to_owned() });
        }
    }
    let yaml = serde_yaml::to_string(&cassandra_yaml(settings))
        .map_err(|error| RenderError::Yaml(error.to_string()))?;
    let collector =
        if options::choose_collector(settings.jvm_options) { "" } else { options::COLLECTOR };
    Ok(RenderedFiles::from([
        ("cassandra.yaml", format!("{GENERATED}{yaml}")),
        (
            "cassandra-rackdc.properties",
            format!("{GENERATED}dc={}\nrack={}\n", settings.datacenter, settings.rack),
        ),
        ("jvm-server.options", format!("{GENERATED}{}", server_options(settings)?)),
        ("jvm11-server.options", format!("{GENERATED}{collector}{}", options::JAVA_11)),
        (
            "jvm17-server.options",
            format!("{GENERATED}{collector}{}{}", options::JAVA_11, options::JAVA_17_MORE),
        ),
        ("logback.xml", LOGBACK.to_owned()),
    ]))
}

const GENERATED: &str =
    "# Written by Navigator at every start of the database; changes are lost.\n";

/// Text of `logback.xml`: log lines go to standard output only, since the container's log is the
/// log.
const LOGBACK: &str = include_str!("stock/logback.xml");

fn cassandra_yaml(settings: &NodeSettings<'_>) -> Map<String, Value> {
    let mut yaml = default_settings(settings);
    settings::merge_settings(&mut yaml, settings.overlay);
    let is_periodic = yaml.get("commitlog_sync").is_none_or(|sync| sync == "periodic");
    let has_period = ["commitlog_sync_period", "commitlog_sync_period_in_ms"]
        .iter()
        .any(|key| yaml.contains_key(*key));
    if is_periodic && !has_period {
        // Cassandra refuses to start in three cases: without the period in this mode, with the
        // period in another mode, and when it is given under the old and the new name at once.
        let (key, value) = if settings.release == Release::V4_0 {
            ("commitlog_sync_period_in_ms", json!(10_000))
        } else {
            ("commitlog_sync_period", json!("10000ms"))
        };
        yaml.insert(key.to_owned(), value);
    }
    for key in ABSENT {
        yaml.remove(*key);
    }
    yaml.extend(managed_settings(settings));
    yaml
}

/// Returns settings that differ from Cassandra's built-in defaults, mostly as in the vendor's own
/// file. `tests/it` compares the two key by key, and gives a reason for each key that stays at its
/// built-in default.
fn default_settings(settings: &NodeSettings<'_>) -> Map<String, Value> {
    let mut yaml = Map::new();
    yaml.insert("partitioner".to_owned(), json!("org.apache.cassandra.dht.Murmur3Partitioner"));
    yaml.insert("commitlog_sync".to_owned(), json!("periodic"));
    // By its built-in default Cassandra goes on with a failing disk. With `stop`, the vendor's, it
    // closes its ports when it cannot read or write a file, and the pilot restarts it; a corrupt
    // SSTable fails the queries that read it (`DefaultFSErrorHandler`). With `die` a query that
    // reads a corrupt SSTable ends the process, on all replicas if all have it
    // (`JVMStabilityInspector.inspectThrowable`). With `best_effort` one failed read hides all rows
    // of a table on the node, which serves on without them (`Keyspace.removeUnreadableSSTables`).
    yaml.insert("disk_failure_policy".to_owned(), json!("stop"));
    // With the vendor's `stop` a node that cannot write its commit log closes its ports and keeps
    // its process (`CommitLog.handleCommitError`). With `die` the process ends; the pilot restarts
    // it when there is room, and reports why.
    yaml.insert("commit_failure_policy".to_owned(), json!("die"));
    yaml.insert("internode_compression".to_owned(), json!("dc"));
    // A node that was away for longer than tombstones are kept would bring deleted rows back;
    // Cassandra itself leaves out tables that keep none. The heartbeat file that this check reads
    // lies beside the data.
    if settings.release >= Release::V4_1 {
        yaml.insert(
            "startup_checks".to_owned(),
            json!({"check_data_resurrection": {"enabled": true}}),
        );
    }
    if settings.release >= Release::V4_1 && !DISK_GUARDS.iter().any(|key| is_set(settings, key)) {
        let [warn_percent, fail_percent] = disk_guards(settings.capacity);
        for (key, percent) in DISK_GUARDS.into_iter().zip([warn_percent, fail_percent]) {
            yaml.insert(key.to_owned(), json!(percent));
        }
    }
    if let Some(factor) = settings.token_factor {
        yaml.insert("allocate_tokens_for_local_replication_factor".to_owned(), json!(factor));
    }
    yaml
}

/// Cassandra's guards against a full disk, which belong together: the first must be the lower one.
const DISK_GUARDS: [&str; 2] =
    ["data_disk_usage_percentage_warn_threshold", "data_disk_usage_percentage_fail_threshold"];

fn is_set(settings: &NodeSettings<'_>, key: &str) -> bool {
    settings.overlay.contains_key(key)
}

/// Returns the percentages from which on Cassandra warns of writes and refuses them: 95 and ten
/// less, or lower on a small volume, so that twice the room that a start needs stays free.
/// Cassandra counts its data and what is free, and leaves out the rest: its commit log alone may
/// take a quarter of the volume.
fn disk_guards(capacity: Option<u64>) -> [u64; 2] {
    const KEPT: u64 = 128 << 20;
    let counted_bytes = capacity.unwrap_or(u64::MAX) / 4 * 3;
    let fail_percent = counted_bytes.saturating_sub(KEPT) / (counted_bytes / 100).max(1);
    let fail_percent = fail_percent.clamp(50, 95);
    [fail_percent - 10, fail_percent]
}

/// Managed keys that must be absent.
const ABSENT: &[&str] = &[
    "auto_bootstrap",
    "broadcast_address",
    "client_encryption_options",
    "initial_token",
    "server_encryption_options",
    "ssl_storage_port",
];

/// Returns the settings that Navigator decides.
fn managed_settings(settings: &NodeSettings<'_>) -> Map<String, Value> {
    let folder = |name: &str| json!(settings.data.join(name));
    let is_bootstrapping = settings.security.is_some_and(|security| security.founding.is_some());
    let rpc_address = match settings.address {
        // A node on a loopback address shares the machine with other nodes.
        address if address.is_loopback() => address,
        IpAddr::V4(_) if is_bootstrapping => IpAddr::V4(Ipv4Addr::LOCALHOST),
        IpAddr::V6(_) if is_bootstrapping => IpAddr::V6(Ipv6Addr::LOCALHOST),
        IpAddr::V4(_) => IpAddr::from([0, 0, 0, 0]),
        IpAddr::V6(_) => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
    };
    let security = settings.security.as_ref().map(security::render_settings).unwrap_or_default();
    [
        ("cluster_name", json!(settings.cluster_name)),
        ("num_tokens", json!(settings.num_tokens.unwrap_or(16))),
        ("seed_provider", seed_provider(settings.seeds)),
        ("endpoint_snitch", json!("GossipingPropertyFileSnitch")),
        ("listen_address", json!(settings.address)),
        ("rpc_address", json!(rpc_address)),
        ("broadcast_rpc_address", json!(settings.address)),
        ("storage_port", json!(port::STORAGE)),
        ("native_transport_port", json!(port::CQL)),
        ("data_file_directories", json!([folder("data")])),
        ("commitlog_directory", folder("commitlog")),
        ("saved_caches_directory", folder("saved_caches")),
        ("hints_directory", folder("hints")),
        ("cdc_raw_directory", folder("cdc_raw")),
    ]
    .into_iter()
    .chain(security)
    .map(|(key, value)| (key.to_owned(), value))
    .collect()
}

/// Returns the value of `seed_provider` for `seeds`. A running Cassandra reads it again when told
/// to.
pub fn seed_provider(seeds: &[String]) -> Value {
    let seeds: Vec<String> = seeds.iter().map(|seed| with_port(seed)).collect();
    json!([{
        "class_name": "org.apache.cassandra.locator.SimpleSeedProvider",
        "parameters": [{"seeds": seeds.join(",")}],
    }])
}

/// Adds the storage port to a seed without one: `10.0.0.1` → `10.0.0.1:7000`, `::1` → `[::1]:7000`;
/// `seed:7001` stays.
fn with_port(seed: &str) -> String {
    match seed.parse::<IpAddr>() {
        Ok(IpAddr::V6(address)) => format!("[{address}]:{}", port::STORAGE),
        Err(_) if seed.contains(':') => seed.to_owned(),
        _ => format!("{seed}:{}", port::STORAGE),
    }
}

fn server_options(settings: &NodeSettings<'_>) -> Result<String, RenderError> {
    let ipv4 = if settings.address.is_ipv4() { "true" } else { "false" };
    let mut text = options::SERVER.replace("PREFER_IPV4", ipv4);
    for option in settings.jvm_options {
        if !option.starts_with('-') || option.contains(char::is_whitespace) {
            return Err(RenderError::JvmOption(option.clone()));
        }
        if option.starts_with("-Xms") || option.starts_with("-Xmx") {
            return Err(RenderError::HeapOption(option.clone()));
        }
        text.push_str(option);
        text.push('\n');
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn overlay(value: Value) -> Map<String, Value> {
        let Value::Object(map) = value else { panic!("not an object: {value}") };
        map
    }

    fn settings(release: Release, overlay: &Map<String, Value>) -> NodeSettings<'_> {
        NodeSettings {
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
            overlay,
            jvm_options: &[],
            security: None,
        }
    }

    fn yaml(release: Release, config: Value) -> Value {
        let overlay = overlay(config);
        let files = render_files(&settings(release, &overlay)).unwrap();
        serde_yaml::from_str(&files["cassandra.yaml"]).unwrap()
    }

    #[test]
    fn no_overlay_changes_what_navigator_manages() {
        let hostile = json!({
            "cluster_name": "x", "num_tokens": 1, "seed_provider": [], "listen_address": "x",
            "broadcast_address": "x", "rpc_address": "x", "broadcast_rpc_address": "x",
            "storage_port": 1, "ssl_storage_port": 1, "native_transport_port": 1,
            "endpoint_snitch": "x", "data_file_directories": [], "commitlog_directory": "x",
            "saved_caches_directory": "x", "hints_directory": "x", "auto_bootstrap": false,
            "initial_token": "1", "server_encryption_options": {"a": 1},
            "client_encryption_options": {"a": 1}, "cdc_raw_directory": "x",
        });
        assert_eq!(yaml(Release::V5_0, hostile), yaml(Release::V5_0, json!({})));
    }

    #[test]
    fn what_navigator_manages_is_what_validation_reserves() {
        let empty = Map::new();
        let managed = managed_settings(&settings(Release::V5_0, &empty));
        let mut keys: Vec<&str> =
            managed.keys().map(String::as_str).chain(ABSENT.to_vec()).collect();
        let mut reserved = crate::databases::cassandra::settings::MANAGED.to_vec();
        keys.sort_unstable();
        reserved.sort_unstable();
        assert_eq!(keys, reserved);
    }

    #[test]
    fn writes_are_refused_before_a_volume_is_full_unless_a_user_decides() {
        assert_eq!(disk_guards(None), [85, 95]);
        assert_eq!(disk_guards(Some(100 << 30)), [85, 95]);
        assert_eq!(disk_guards(Some(1 << 30)), [73, 83]);
        assert_eq!(disk_guards(Some(900 << 20)), [71, 81]);
        assert_eq!(disk_guards(Some(100 << 20)), [40, 50]);
        let guards = |release, config: Value| {
            let yaml = yaml(release, config);
            DISK_GUARDS.map(|key| yaml.get(key).cloned())
        };
        assert_eq!(guards(Release::V5_0, json!({})), [Some(json!(85)), Some(json!(95))]);
        assert_eq!(guards(Release::V4_0, json!({})), [None, None], "4.0 does not know them");
        let own = json!({"data_disk_usage_percentage_fail_threshold": 70});
        assert_eq!(guards(Release::V4_1, own), [None, Some(json!(70))]);
        let off = json!({"data_disk_usage_percentage_fail_threshold": null});
        assert_eq!(guards(Release::V4_1, off), [None, None]);
    }

    #[test]
    fn failure_policies_are_defaults_that_users_may_set() {
        for release in [Release::V4_0, Release::V4_1, Release::V5_0] {
            let policies = |config| {
                let yaml = yaml(release, config);
                ["disk_failure_policy", "commit_failure_policy"].map(|key| yaml[key].clone())
            };
            assert_eq!(policies(json!({})), ["stop", "die"]);
            let own = json!({"disk_failure_policy": "die", "commit_failure_policy": "stop"});
            assert_eq!(policies(own), ["die", "stop"]);
        }
    }

    #[test]
    fn the_commit_log_period_is_written_once_and_only_where_it_belongs() {
        let keys = |release, config| {
            let Value::Object(map) = yaml(release, config) else { panic!("not an object") };
            map.into_iter()
                .filter(|(key, _)| key.starts_with("commitlog_sync_"))
                .map(|(key, _)| key)
                .collect::<Vec<_>>()
        };
        assert_eq!(keys(Release::V4_0, json!({})), ["commitlog_sync_period_in_ms"]);
        assert_eq!(keys(Release::V4_1, json!({})), ["commitlog_sync_period"]);
        assert_eq!(
            keys(Release::V5_0, json!({"commitlog_sync_period_in_ms": 500})),
            ["commitlog_sync_period_in_ms"]
        );
        assert!(keys(Release::V5_0, json!({"commitlog_sync": "batch"})).is_empty());
    }

    #[test]
    fn a_node_on_loopback_listens_on_its_own_address_only() {
        let empty = Map::new();
        let files = render_files(&NodeSettings {
            address: [127, 0, 1, 3].into(),
            ..settings(Release::V5_0, &empty)
        })
        .unwrap();
        let yaml: Value = serde_yaml::from_str(&files["cassandra.yaml"]).unwrap();
        assert_eq!(yaml["rpc_address"], "127.0.1.3");
        assert_eq!(self::yaml(Release::V5_0, json!({}))["rpc_address"], "0.0.0.0");
    }

    #[test]
    fn options_that_the_launcher_would_split_are_refused() {
        let empty = Map::new();
        for (option, expected) in [
            ("-Da=b c", RenderError::JvmOption("-Da=b c".to_owned())),
            ("Xint", RenderError::JvmOption("Xint".to_owned())),
            ("-Xmx9G", RenderError::HeapOption("-Xmx9G".to_owned())),
        ] {
            let options = [option.to_owned()];
            let settings =
                NodeSettings { jvm_options: &options, ..settings(Release::V5_0, &empty) };
            assert_eq!(render_files(&settings), Err(expected));
        }
    }

    #[test]
    fn a_collector_that_the_user_chose_is_the_only_one() {
        let empty = Map::new();
        let options = ["-XX:+UseZGC".to_owned()];
        let settings = NodeSettings { jvm_options: &options, ..settings(Release::V5_0, &empty) };
        let text: String = render_files(&settings).unwrap().into_values().collect();
        assert!(text.contains("-XX:+UseZGC") && !text.contains("G1"), "{text}");
    }

    #[test]
    fn a_rack_cannot_smuggle_in_a_second_line() {
        let empty = Map::new();
        let settings = NodeSettings { rack: "a\ndc=evil", ..settings(Release::V5_0, &empty) };
        assert!(matches!(
            render_files(&settings),
            Err(RenderError::NotOneLine { field: "rack", .. })
        ));
    }
}
