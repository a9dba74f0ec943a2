//! Closed lists of values, defaults that the server writes, and how much fits.
//!
//! Owns what both the schema and validation say about a field, so that they say the same.

use serde_json::{Value, json};

pub const PULL_POLICIES: &[&str] = &["Always", "IfNotPresent", "Never"];
pub const UPDATE_TYPES: &[&str] = &["RollingUpdate", "OnDelete"];
pub const RESTARTS: &[&str] = &["InPlace", "Recreate"];
pub const PILOT_UPDATES: &[&str] = &["InPlace", "OnRestart", "Never"];
pub const SERVICE_TYPES: &[&str] = &["ClusterIP", "NodePort", "LoadBalancer"];
pub const TRAFFIC_POLICIES: &[&str] = &["Cluster", "Local"];
pub const RETENTIONS: &[&str] = &["Delete", "Retain"];
pub const CLUSTER_KINDS: &[&str] = &["ElasticsearchCluster", "CassandraCluster"];
pub const CONDITION_STATUSES: &[&str] = &["True", "False", "Unknown"];
pub const CLUSTER_PHASES: &[&str] = &[
    "Pending", "Creating", "Running", "Scaling", "Updating", "Degraded", "Stalled", "Paused",
    "Stopped", "Deleting",
];
pub const OPERATION_TYPES: &[&str] = &[
    "Bootstrap",
    "ScaleUp",
    "ScaleDown",
    "Upgrade",
    "Restart",
    "Configure",
    "Resize",
    "Replace",
    "Stop",
    "Start",
];
pub const OPERATION_PHASES: &[&str] = &["Pending", "Running", "Blocked", "Done", "Failed"];
pub const STEP_PHASES: &[&str] = &["Pending", "Running", "Blocked", "Done", "Failed", "Skipped"];
pub const PLUGIN_STATUSES: &[&str] = &["Unknown", "Pending", "Installed", "Failed", "Removing"];
pub const RUNTIMES: &[&str] = &["Kubernetes", "Process"];
/// Predicates that `skipPredicates` may name, beside `*`.
pub const SKIPPABLE_PREDICATES: &[&str] = &[
    "*",
    "HealthNotRed",
    "NoShardMovement",
    "ShardCopyElsewhere",
    "QuorumKept",
    "OneMasterAtATime",
    "NonMastersFirst",
    "RingSettled",
    "PeersUp",
    "RackAtATime",
    "RangesKeepQuorum",
    "SchemaAgreement",
    "StreamsIdle",
    "SeedAvailable",
    "PeersReady",
    "DiskHeadroom",
    "DataOutlivesPod",
    "PreflightPassed",
];

/// Type, field, its values. Enums of the types themselves (`Health`, `PilotIntent` …) are not
/// repeated here.
pub const ENUMS: &[(&str, &str, &[&str])] = &[
    ("ImageSpec", "pullPolicy", PULL_POLICIES),
    ("UpdateStrategy", "type", UPDATE_TYPES),
    ("UpdateStrategy", "restart", RESTARTS),
    ("UpdateStrategy", "pilotUpdate", PILOT_UPDATES),
    ("PilotSpec", "pilotUpdate", PILOT_UPDATES),
    ("ServiceTemplate", "type", SERVICE_TYPES),
    ("ServiceTemplate", "externalTrafficPolicy", TRAFFIC_POLICIES),
    ("Retention", "whenScaled", RETENTIONS),
    ("Retention", "whenDeleted", RETENTIONS),
    ("ClusterRef", "kind", CLUSTER_KINDS),
    ("ClusterStatus", "phase", CLUSTER_PHASES),
    ("Operation", "type", OPERATION_TYPES),
    ("Operation", "phase", OPERATION_PHASES),
    ("OperationStep", "phase", STEP_PHASES),
    ("PluginStatus", "status", PLUGIN_STATUSES),
    ("Instance", "runtime", RUNTIMES),
];

/// Type, field, most entries of the list or map.
pub const MAX_ITEMS: &[(&str, &str, usize)] = &[
    ("CassandraClusterSpec", "nodePools", 50),
    ("CassandraClusterSpec", "additionalSeeds", 20),
    ("ElasticsearchClusterSpec", "nodePools", 50),
    ("ElasticsearchClusterSpec", "plugins", 50),
    ("Jvm", "options", 100),
    ("ClusterStatus", "versions", 10),
    ("ClusterStatus", "nodePools", 100),
    ("ClusterStatus", "conditions", 20),
    ("Operation", "steps", 50),
    ("Operation", "blockedBy", 20),
    ("PilotStatus", "blockers", 20),
    ("PilotStatus", "conditions", 20),
    ("Termination", "logTail", 20),
];

/// Type, field, most bytes of the text, or of each text of the list.
pub const MAX_BYTES: &[(&str, &str, usize)] = &[
    ("Jvm", "options", 1024),
    ("ElasticsearchPlugin", "name", 512),
    ("PluginStatus", "message", 256),
];

/// Type, field, the value that the server writes when it is absent.
const DEFAULTS: &[(&str, &str, &str)] = &[
    ("ImageSpec", "pullPolicy", "\"IfNotPresent\""),
    ("CassandraNodePool", "replicas", "1"),
    ("CassandraNodePool", "datacenter", "\"navigator-default-datacenter\""),
    ("ElasticsearchNodePool", "replicas", "1"),
    ("PilotSpec", "phase", "\"Running\""),
];

/// Writes what is known here into the schema of `type_name`.
pub(super) fn add_to(type_name: &str, definition: &mut Value) {
    let Some(properties) = definition["properties"].as_object_mut() else { return };
    for (property, schema) in properties {
        let is = |(type_, field): (&str, &str)| type_ == type_name && field == property;
        if let Some(row) = ENUMS.iter().find(|row| is((row.0, row.1))) {
            schema["enum"] = row.2.into();
        }
        if let Some(row) = MAX_ITEMS.iter().find(|row| is((row.0, row.1))) {
            let word = if schema["type"] == "array" { "maxItems" } else { "maxProperties" };
            schema[word] = row.2.into();
        }
        if let Some(row) = DEFAULTS.iter().find(|row| is((row.0, row.1))) {
            schema["x-written-default"] =
                serde_json::from_str(row.2).unwrap_or_else(|_| json!(row.2));
        }
        if type_name == "UpdateStrategy" && property == "skipPredicates" {
            schema["items"]["enum"] = SKIPPABLE_PREDICATES.into();
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::api::{schema, scheme::Version};

    #[test]
    fn every_row_names_a_field_that_exists() {
        let rows = super::ENUMS
            .iter()
            .map(|row| (row.0, row.1))
            .chain(super::MAX_ITEMS.iter().map(|row| (row.0, row.1)))
            .chain(super::MAX_BYTES.iter().map(|row| (row.0, row.1)))
            .chain(super::DEFAULTS.iter().map(|row| (row.0, row.1)));
        for (type_name, field) in rows {
            let name = schema::name(Version::V1beta1, type_name);
            let definition = schema::definitions(Version::V1beta1).get(&name);
            let found = definition.is_some_and(|d| d["properties"].get(field).is_some());
            assert!(found, "{type_name}.{field} is no field");
        }
    }
}
