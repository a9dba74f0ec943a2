//! Renders the files of a node's configuration folder.
//!
//! Keys are flat, so that dotted and nested spelling of an overlay are one. Keys that Navigator
//! manages are written last, so no overlay can change them. Writes nothing.

use std::{
    collections::BTreeMap,
    net::{IpAddr, Ipv6Addr},
    path::Path,
};

use serde_json::{Map, Value, json};

use super::{FILE_REALM, Release};
use crate::{
    databases::elasticsearch::{names::port, settings::is_managed},
    engine::settings::dotted_names::flatten_settings,
};

/// Texts of configuration files, by file name.
pub type RenderedFiles = BTreeMap<&'static str, String>;

/// Name of the file with addresses of other nodes, which Elasticsearch 7 and later read again while
/// they run.
pub const SEED_FILE: &str = "unicast_hosts.txt";

/// The values that a node's configuration depends on.
#[derive(Clone, Debug)]
pub struct NodeSettings<'a> {
    pub release: Release,
    pub cluster_name: &'a str,
    pub node_name: &'a str,
    /// Roles of the node; empty when it only coordinates.
    pub roles: &'a [String],
    pub zone: Option<&'a str>,
    /// Quorum of masters, used before version 7.
    pub minimum_masters: i32,
    /// Transport addresses of other nodes, with or without a port.
    pub seeds: &'a [String],
    /// True when the node begins a new cluster, alone.
    pub founds: bool,
    /// True when the distribution has a security module, which is switched off where nothing is
    /// secured.
    pub has_security: bool,
    /// How the node is secured, where it is.
    pub security: Option<SecuritySettings>,
    pub address: IpAddr,
    /// Root of the data volume.
    pub data: &'a Path,
    /// The user's settings, cluster and pool already merged.
    pub overlay: &'a Map<String, Value>,
}

/// How a node is secured: encryption between nodes and login are one switch of Elasticsearch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SecuritySettings {
    /// Clients speak TLS.
    pub https: bool,
    /// They must show a certificate.
    pub asks_certificates: bool,
}

/// Why settings were refused: Elasticsearch could not read them back as they were meant.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RenderError {
    #[error("failed to write elasticsearch.yml: {0}")]
    Yaml(String),
    #[error("role {role:?} does not exist before version 7.9")]
    Role { role: String },
}

/// Renders the files of the configuration folder that Navigator writes.
pub fn render_files(settings: &NodeSettings<'_>) -> Result<RenderedFiles, RenderError> {
    let mut keys = flatten_settings(settings.overlay);
    keys.retain(|key, _| !is_managed(key, settings.security.is_some()));
    add_managed_settings(settings, &mut keys)?;
    let yaml =
        serde_yaml::to_string(&keys).map_err(|error| RenderError::Yaml(error.to_string()))?;
    Ok(RenderedFiles::from([
        ("elasticsearch.yml", format!("{GENERATED}{yaml}")),
        ("log4j2.properties", format!("{GENERATED}{LOG4J}")),
        (SEED_FILE, settings.seeds.join("\n") + "\n"),
    ]))
}

const GENERATED: &str =
    "# Written by Navigator at every start of the database; changes are lost.\n";

/// Text of `log4j2.properties`: log lines go to standard output only, since the container's log is
/// the log.
const LOG4J: &str = "\
status = error
appender.console.type = Console
appender.console.name = console
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = [%d{ISO8601}][%-5p][%-25c{1.}] %marker%m%n
rootLogger.level = info
rootLogger.appenderRef.console.ref = console
";

fn add_managed_settings(
    settings: &NodeSettings<'_>,
    keys: &mut BTreeMap<String, Value>,
) -> Result<(), RenderError> {
    let release = settings.release;
    let mut set = |key: &str, value: Value| keys.insert(key.to_owned(), value);
    set("cluster.name", json!(settings.cluster_name));
    set("node.name", json!(settings.node_name));
    set("path.data", json!(settings.data.join("data")));
    set("path.logs", json!(settings.data.join("logs")));
    let bind = match settings.address {
        // A node on a loopback address shares the machine with other nodes.
        address if address.is_loopback() => address,
        IpAddr::V4(_) => IpAddr::from([0, 0, 0, 0]),
        IpAddr::V6(_) => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
    };
    set("network.bind_host", json!(bind));
    set("network.publish_host", json!(settings.address));
    set("http.port", json!(port::HTTP));
    let transport = if release.major >= 7 { "transport.port" } else { "transport.tcp.port" };
    set(transport, json!(port::TRANSPORT));
    // Without this, HTTP opens only after a master was found, or after 30 s (measured).
    set("discovery.initial_state_timeout", json!("0s"));
    if release.has_voting() {
        set("discovery.seed_providers", json!("file"));
        set("discovery.seed_hosts", json!([]));
        if settings.founds {
            set("cluster.initial_master_nodes", json!([settings.node_name]));
        }
    } else {
        set("discovery.zen.ping.unicast.hosts", json!(settings.seeds));
        set("discovery.zen.minimum_master_nodes", json!(settings.minimum_masters));
    }
    if release.major == 5 {
        // Later versions have this default. 5.x would let a second process use the same data.
        set("node.max_local_storage_nodes", json!(1));
    }
    match settings.security {
        Some(security) => add_security_settings(security, &mut set),
        None if settings.has_security => drop(set("xpack.security.enabled", json!(false))),
        None => {}
    }
    if let Some(zone) = settings.zone {
        set("node.attr.zone", json!(zone));
        set("cluster.routing.allocation.awareness.attributes", json!("zone"));
    }
    add_roles(settings, keys)
}

/// Users of the file realm come first: it answers without a master, and without any index. Whatever
/// people make by the API is of the native realm. Nodes ask each other for certificates, and do not
/// compare names: addresses of pods change.
fn add_security_settings(
    SecuritySettings { https, asks_certificates }: SecuritySettings,
    set: &mut impl FnMut(&str, Value) -> Option<Value>,
) {
    let mut set = |key: &str, value: Value| drop(set(&format!("xpack.security.{key}"), value));
    set("enabled", json!(true));
    set("authc.reserved_realm.enabled", json!(false));
    set(&format!("authc.realms.file.{FILE_REALM}.order"), json!(0));
    set("authc.realms.native.native1.order", json!(1));
    for (port, folder, is_encrypted) in
        [("transport", "internode", true), ("http", "client", https)]
    {
        let mut set = |key: &str, value: Value| set(&format!("{port}.ssl.{key}"), value);
        set("enabled", json!(is_encrypted));
        if is_encrypted {
            set("key", json!(format!("tls/{folder}/node.key")));
            set("certificate", json!(format!("tls/{folder}/node.crt")));
            set("certificate_authorities", json!([format!("tls/{folder}/ca.crt")]));
            set("supported_protocols", json!(["TLSv1.3", "TLSv1.2"]));
        }
    }
    set("transport.ssl.verification_mode", json!("certificate"));
    set("transport.ssl.client_authentication", json!("required"));
    if https && asks_certificates {
        set("http.ssl.client_authentication", json!("required"));
    }
}

fn add_roles(
    settings: &NodeSettings<'_>,
    keys: &mut BTreeMap<String, Value>,
) -> Result<(), RenderError> {
    let roles: Vec<&String> =
        settings.roles.iter().filter(|role| *role != "coordinating").collect();
    if settings.release.lists_roles() {
        keys.insert("node.roles".to_owned(), json!(roles));
        return Ok(());
    }
    for role in ["master", "data", "ingest"] {
        let has_role = roles.iter().any(|assigned_role| *assigned_role == role);
        keys.insert(format!("node.{role}"), json!(has_role));
    }
    match roles.into_iter().find(|role| !["master", "data", "ingest"].contains(&role.as_str())) {
        Some(role) if role != "ml" && role != "voting_only" => {
            Err(RenderError::Role { role: role.clone() })
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn yaml(version: &str, overlay: &Value, change: impl FnOnce(&mut NodeSettings<'_>)) -> Value {
        let roles = ["master".to_owned(), "data".to_owned()];
        let seeds = ["10.0.0.8:9300".to_owned()];
        let mut settings = NodeSettings {
            release: version.parse().unwrap(),
            cluster_name: "logs",
            node_name: "es-logs-a-0",
            roles: &roles,
            zone: None,
            minimum_masters: 2,
            seeds: &seeds,
            founds: false,
            has_security: false,
            security: None,
            address: [10, 0, 0, 7].into(),
            data: Path::new("/data"),
            overlay: overlay.as_object().unwrap(),
        };
        change(&mut settings);
        serde_yaml::from_str(&render_files(&settings).unwrap()["elasticsearch.yml"]).unwrap()
    }

    #[test]
    fn only_the_founder_names_initial_masters_and_only_from_seven_on() {
        let none = json!({});
        let key = "cluster.initial_master_nodes";
        assert_eq!(yaml("7.17.29", &none, |_| ()).get(key), None);
        assert_eq!(yaml("8.19.4", &none, |s| s.founds = true)[key], json!(["es-logs-a-0"]));
        let old = yaml("6.8.23", &none, |s| s.founds = true);
        assert_eq!(old.get(key), None);
        assert_eq!(old["discovery.zen.minimum_master_nodes"], 2);
    }

    #[test]
    fn nested_and_dotted_keys_are_one_and_managed_keys_win() {
        let overlay = json!({
            "indices": {"recovery.max_bytes_per_sec": "80mb"}, "node.attr.disk": "ssd",
            "cluster": {"name": "x", "initial_master_nodes": ["x"]}, "discovery": {"type": "single-node"},
            "xpack.security.enabled": true, "path": {"repo": ["/x"]},
        });
        let yaml = yaml("7.17.29", &overlay, |_| ());
        assert_eq!(yaml["indices.recovery.max_bytes_per_sec"], "80mb");
        assert_eq!(yaml["node.attr.disk"], "ssd");
        assert_eq!(yaml["cluster.name"], "logs");
        for key in [
            "cluster.initial_master_nodes",
            "discovery.type",
            "xpack.security.enabled",
            "path.repo",
        ] {
            assert_eq!(yaml.get(key), None, "{key}");
        }
    }

    #[test]
    fn a_secured_node_encrypts_between_nodes_always_and_for_clients_where_they_want_it() {
        let overlay = json!({"xpack.security.transport.ssl.verification_mode": "none"});
        for https in [true, false] {
            let yaml = yaml("7.17.29", &overlay, |settings| {
                settings.has_security = true;
                settings.security = Some(SecuritySettings { https, asks_certificates: true });
            });
            let of = |key: &str| yaml.get(format!("xpack.security.{key}")).cloned();
            assert_eq!(of("enabled"), Some(json!(true)));
            assert_eq!(of("authc.reserved_realm.enabled"), Some(json!(false)));
            assert_eq!(of("transport.ssl.enabled"), Some(json!(true)));
            assert_eq!(of("transport.ssl.verification_mode"), Some(json!("certificate")));
            assert_eq!(of("transport.ssl.client_authentication"), Some(json!("required")));
            assert_eq!(of("transport.ssl.key"), Some(json!("tls/internode/node.key")));
            assert_eq!(of("http.ssl.enabled"), Some(json!(https)));
            assert_eq!(of("http.ssl.key").is_some(), https);
            assert_eq!(of("http.ssl.client_authentication").is_some(), https);
        }
        let open = yaml("7.17.29", &json!({}), |settings| settings.has_security = true);
        let security = |(key, _): &(&String, &Value)| key.starts_with("xpack.security");
        let keys: Vec<_> = open.as_object().unwrap().iter().filter(security).collect();
        assert_eq!(keys, [(&"xpack.security.enabled".to_owned(), &json!(false))]);
    }

    #[test]
    fn roles_are_said_as_each_version_wants_them() {
        let none = json!({});
        assert_eq!(yaml("8.19.4", &none, |_| ())["node.roles"], json!(["master", "data"]));
        let old = yaml("5.6.16", &none, |_| ());
        assert_eq!(
            (&old["node.master"], &old["node.data"], &old["node.ingest"]),
            (&json!(true), &json!(true), &json!(false))
        );
        assert_eq!(yaml("8.19.4", &none, |s| s.roles = &[])["node.roles"], json!([]));
    }
}
