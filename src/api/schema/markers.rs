//! Closed lists of values, defaults that the server writes, and size limits of fields.
//!
//! Owns what both the schema and validation say about a field, so that they say the same.

use serde_json::{Value, json};

pub const PULL_POLICIES: &[&str] = &["Always", "IfNotPresent", "Never"];
pub const UPDATE_TYPES: &[&str] = &["RollingUpdate", "OnDelete"];
pub const RESTARTS: &[&str] = &["InPlace", "Recreate"];
pub const PILOT_UPDATES: &[&str] = &["InPlace", "OnRestart", "Never"];
pub const SERVICE_TYPES: &[&str] = &["ClusterIP", "NodePort", "LoadBalancer"];
pub const TRAFFIC_POLICIES: &[&str] = &["Cluster", "Local"];
pub const NETWORK_POLICIES: &[&str] = &["Managed", "None"];
pub const CERTIFICATE_USES: &[&str] = &["Internode", "Client"];
pub const AUTHORITY_SOURCES: &[&str] = &["Managed", "Secret"];
pub const AUTHORITY_PHASES: &[&str] = &["Current", "Spreading", "Signing", "Retiring"];
pub const USER_STATES: &[&str] = &["Applied", "Pending", "Failed"];
pub const RETENTIONS: &[&str] = &["Delete", "Retain"];
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
    "Vacate",
    "Secure",
];
pub const OPERATION_PHASES: &[&str] = &["Pending", "Running", "Blocked", "Done", "Failed"];
pub const STEP_PHASES: &[&str] = &["Pending", "Running", "Blocked", "Done", "Failed", "Skipped"];
pub const RUNTIMES: &[&str] = &["Kubernetes", "Process"];
/// Schema facts that the Rust types cannot express, as rows by type and field.
#[derive(Debug)]
pub struct SchemaMarkers {
    /// Rows of type, field and description; an empty field stands for the type itself.
    pub descriptions: &'static [(&'static str, &'static str, &'static str)],
    /// Rows of type, field and the closed list of the field's values. Enums of the types themselves
    /// (`Health`, `PilotIntent` …) are not repeated here.
    pub enums: &'static [(&'static str, &'static str, &'static [&'static str])],
    /// Rows of type, field and the most entries of that list or map.
    pub max_items: &'static [(&'static str, &'static str, usize)],
    /// Rows of type, field and the most bytes of that text, or of each text of that list.
    pub max_bytes: &'static [(&'static str, &'static str, usize)],
    /// Rows of type, field and the JSON value that the server writes when the field is absent.
    pub defaults: &'static [(&'static str, &'static str, &'static str)],
}

/// Rows of the types that belong to no database. Those of [`OF_EVERY_CLUSTER`] stand for the types of
/// these names of every database.
pub static SHARED: SchemaMarkers = SchemaMarkers {
    descriptions: &[],
    enums: &[
        ("ImageSpec", "pullPolicy", PULL_POLICIES),
        ("UpdateStrategy", "type", UPDATE_TYPES),
        ("UpdateStrategy", "restart", RESTARTS),
        ("UpdateStrategy", "pilotUpdate", PILOT_UPDATES),
        ("PilotSpec", "pilotUpdate", PILOT_UPDATES),
        ("ServiceTemplate", "type", SERVICE_TYPES),
        ("ServiceTemplate", "externalTrafficPolicy", TRAFFIC_POLICIES),
        ("NetworkAccess", "policy", NETWORK_POLICIES),
        ("AuthorityStatus", "use", CERTIFICATE_USES),
        ("AuthorityStatus", "source", AUTHORITY_SOURCES),
        ("AuthorityStatus", "phase", AUTHORITY_PHASES),
        ("UserStatus", "state", USER_STATES),
        ("Retention", "whenScaled", RETENTIONS),
        ("Retention", "whenDeleted", RETENTIONS),
        ("ClusterStatus", "phase", CLUSTER_PHASES),
        ("Operation", "type", OPERATION_TYPES),
        ("Operation", "phase", OPERATION_PHASES),
        ("OperationStep", "phase", STEP_PHASES),
        ("Instance", "runtime", RUNTIMES),
    ],
    max_items: &[
        ("ClusterSpec", "nodePools", 50),
        ("Jvm", "options", 100),
        ("ClusterSecurity", "users", 100),
        ("ClusterSecurity", "roles", 100),
        ("DatabaseUser", "roles", 20),
        ("ClientSecurity", "altNames", 50),
        ("InternodeSecurity", "trust", 6),
        ("NetworkAccess", "clients", 20),
        ("NetworkAccess", "monitoring", 20),
        ("NetworkAccess", "internode", 20),
        ("ClusterSecurityStatus", "certificateAuthorities", 10),
        ("ClusterSecurityStatus", "users", 101),
        ("ClusterStatus", "versions", 10),
        ("ClusterStatus", "nodePools", 100),
        ("ClusterStatus", "conditions", 20),
        ("Operation", "steps", 50),
        ("Operation", "blockedBy", 20),
        ("PilotSpec", "forget", 20),
        ("PilotStatus", "blockers", 20),
        ("PilotStatus", "forgotten", 20),
        ("Blocker", "against", 3),
        ("PilotStorage", "contents", 20),
        ("PilotStatus", "conditions", 20),
        ("Termination", "logTail", 20),
    ],
    max_bytes: &[
        ("Jvm", "options", 1024),
        ("CertificateSettings", "duration", 64),
        ("PilotSpec", "forget", 256),
        ("NodeCertificate", "chain", 16 * 1024),
        ("NodeCertificate", "trust", 16 * 1024),
        ("NodeCertificate", "clients", 16 * 1024),
        ("CertificateRequest", "csr", 4 * 1024),
        ("NewKeyRequest", "csr", 4 * 1024),
        ("NewKeyRequest", "proof", 1024),
    ],
    defaults: &[
        ("ImageSpec", "pullPolicy", "\"IfNotPresent\""),
        ("NodePool", "replicas", "1"),
        ("PilotSpec", "phase", "\"Running\""),
    ],
};

/// Names of types whose rows apply to every type whose name ends like them.
const OF_EVERY_CLUSTER: [&str; 3] = ["ClusterSpec", "ClusterSecurity", "NodePool"];

impl SchemaMarkers {
    /// Are these the rows of [`SHARED`]?
    pub fn is_shared(&self) -> bool {
        std::ptr::eq(self, &raw const SHARED)
    }

    /// Writes the rows of `type_name` into its schema.
    pub(super) fn add_to(&self, type_name: &str, definition: &mut Value) {
        let Self { descriptions, enums, max_items, max_bytes: _, defaults } = self;
        let is_type = |row: &str| {
            row == type_name || (OF_EVERY_CLUSTER.contains(&row) && type_name.ends_with(row))
        };
        for (_, field, text) in descriptions.iter().filter(|row| is_type(row.0)) {
            match *field {
                "" => definition["description"] = (*text).into(),
                // An older version's form of a type may lack the field.
                field => {
                    let properties = definition.get_mut("properties");
                    if let Some(schema) = properties.and_then(|map| map.get_mut(field)) {
                        schema["description"] = (*text).into();
                    }
                }
            }
        }
        // Enums have no properties, and asking by index would leave a null.
        let Some(Value::Object(properties)) = definition.get_mut("properties") else { return };
        for (property, schema) in properties {
            let is_row = |row: (&str, &str)| is_type(row.0) && row.1 == property;
            if let Some(row) = enums.iter().find(|row| is_row((row.0, row.1))) {
                schema["enum"] = row.2.into();
            }
            if let Some(row) = max_items.iter().find(|row| is_row((row.0, row.1))) {
                let keyword = if schema["type"] == "array" { "maxItems" } else { "maxProperties" };
                schema[keyword] = row.2.into();
            }
            if let Some(row) = defaults.iter().find(|row| is_row((row.0, row.1))) {
                schema["x-written-default"] =
                    serde_json::from_str(row.2).unwrap_or_else(|_| json!(row.2));
            }
        }
    }
}
