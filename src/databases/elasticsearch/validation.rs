//! Validation rules for fields that only an ElasticsearchCluster has.

use serde_json::json;

use super::{
    releases::RELEASES,
    settings,
    v1beta1::{
        ApplicationRights, Elasticsearch, ElasticsearchCluster, ElasticsearchNodePool,
        ElasticsearchRights, IndexRights, holds_shards, is_master, keeps_data,
    },
};
use crate::{
    api::{
        v1beta1::DatabaseRole,
        validation::{
            ClusterRules, DatabaseVersion, SecuritySupport, UnsafeOverrides, Validator, pool_path,
        },
    },
    machinery::field_error::FieldPath,
};

/// Names of roles that every version knows; `coordinating` stands alone.
const BASIC_ROLES: &[&str] = &["master", "data", "ingest", "coordinating"];

/// Names of later roles, each with the first version that knows it.
const LATER_ROLES: &[(&str, (u64, u64))] = &[
    ("ml", (5, 4)),
    ("voting_only", (7, 3)),
    ("transform", (7, 7)),
    ("remote_cluster_client", (7, 8)),
    ("data_cold", (7, 10)),
    ("data_content", (7, 10)),
    ("data_hot", (7, 10)),
    ("data_warm", (7, 10)),
    ("data_frozen", (7, 12)),
];

/// Returns the names of all roles that a node may have.
pub(super) fn known_roles() -> impl Iterator<Item = &'static str> {
    BASIC_ROLES.iter().copied().chain(LATER_ROLES.iter().map(|(role, _)| *role))
}

/// Names that `ReservedRolesStore` of 7.17 or 8.19 has: a file cannot say what they allow.
const RESERVED_ROLES: &[&str] = &[
    "apm_system",
    "apm_user",
    "beats_admin",
    "beats_system",
    "data_frame_transforms_admin",
    "data_frame_transforms_user",
    "editor",
    "enrich_user",
    "inference_admin",
    "inference_user",
    "ingest_admin",
    "kibana_admin",
    "kibana_dashboard_only_user",
    "kibana_system",
    "kibana_user",
    "logstash_admin",
    "logstash_system",
    "machine_learning_admin",
    "machine_learning_user",
    "monitoring_user",
    "remote_monitoring_agent",
    "remote_monitoring_collector",
    "reporting_user",
    "rollup_admin",
    "rollup_user",
    "snapshot_user",
    "superuser",
    "transform_admin",
    "transform_user",
    "transport_client",
    "viewer",
    "watcher_admin",
    "watcher_user",
];

impl ClusterRules for Elasticsearch {
    const MANAGED: &'static [&'static str] = settings::MANAGED;
    const SECURITY: Option<SecuritySupport> = Some(SecuritySupport {
        since: (7, 17),
        all_at_once: true,
        one_port: false,
        // The administrator's name where its Secret says none, and the first user of the other
        // database, so that one list of users is good for either.
        reserved_users: &["elastic", "cassandra"],
        makes_roles: true,
    });

    fn is_managed(key: &str, requires_password: bool) -> bool {
        settings::is_managed(key, requires_password)
    }

    fn keeps_data(pool: &ElasticsearchNodePool) -> bool {
        keeps_data(&pool.own.roles)
    }

    /// Validates `spec.version` (V20).
    fn validate_version(validator: &mut Validator, version: &str, path: &FieldPath) {
        if version.is_empty() {
            validator.required(path, "must be a semver version");
        } else if parse_semver(version).is_none() {
            validator.invalid(path, version, "must be of the form MAJOR.MINOR.PATCH");
        }
    }

    /// Validates the fields of a spec that only an ElasticsearchCluster has.
    fn validate_own_fields(
        validator: &mut Validator,
        new: &ElasticsearchCluster,
        allowed: &UnsafeOverrides,
    ) {
        let path = FieldPath::new("spec");
        let version = parse_semver(&new.spec.version);
        let Elasticsearch { plugins, minimum_masters } = &new.spec.own;
        for (index, pool) in new.spec.node_pools.iter().enumerate() {
            validate_roles(
                validator,
                &pool.own.roles,
                version.as_ref(),
                &pool_path(index).child("roles"),
            );
        }
        let masters = count_masters(new);
        // V25: a cluster needs a master.
        if masters == 0 {
            validator.invalid(
                &path.child("nodePools"),
                masters,
                "must be at least one master node",
            );
        }
        self::validate_minimum_masters(validator, *minimum_masters, masters, allowed);
        let roles = new.spec.security.iter().flat_map(|security| &security.roles);
        for (index, role) in roles.enumerate() {
            validate_login_role(
                validator,
                role,
                &path.child("security").child("roles").index(index),
            );
        }
        for (index, plugin) in plugins.iter().enumerate() {
            let path = path.child("plugins").index(index);
            validate_plugin_name(validator, &plugin.name, &path.child("name"));
            if let Some(sha512) = &plugin.sha512 {
                validate_plugin_sum(validator, sha512, &path.child("sha512"));
            }
        }
    }

    /// V23: returns the version that an upgrade has to go through first; the last minor version of
    /// each major one.
    fn intermediate_version(lowest: &DatabaseVersion, desired: &DatabaseVersion) -> Option<String> {
        RELEASES.intermediate_version((lowest.major, lowest.minor), (desired.major, desired.minor))
    }

    /// Adds warnings about accepted values of an ElasticsearchCluster.
    fn add_warnings(validator: &mut Validator, cluster: &ElasticsearchCluster) {
        let version_text = &cluster.spec.version;
        // W21: no login and no TLS.
        if cluster.spec.desired_security().is_open() {
            validator.add_warning(
                "spec: no login and no TLS: every client that reaches port 9200 or 9300 may read, change and delete all data; \
                 keep others out with a NetworkPolicy"
                    .to_owned(),
            );
        }
        let version = DatabaseVersion::parse(version_text);
        let masters = count_masters(cluster);
        // W7: an even number of masters.
        if masters > 0 && masters % 2 == 0 {
            let survivable_failures = |masters: i64| match (masters - 1) / 2 {
                0 => "no failure".to_owned(),
                1 => "one failure".to_owned(),
                count => format!("{count} failures"),
            };
            validator.add_warning(format!(
                "spec.nodePools: {masters} master nodes survive {}, as {} would; {} survive {}",
                survivable_failures(masters),
                masters - 1,
                masters + 1,
                survivable_failures(masters + 1),
            ));
        }
        // W8: one master for several data nodes.
        let data = count_nodes(cluster, |pool| holds_shards(&pool.own.roles));
        if masters == 1 && data > 1 {
            validator.add_warning(format!(
                "spec.nodePools: one master node for {data} data nodes; without it nothing is served"
            ));
        }
        let Some(version) = version else { return };
        // W9: `minimumMasters` without effect.
        if cluster.spec.own.minimum_masters.is_some() && version.major >= 7 {
            validator.add_warning("spec.minimumMasters is ignored from version 7".to_owned());
        }
        // W10: a version that is not run.
        if RELEASES.find_line((version.major, version.minor)).is_none() {
            validator.add_warning(format!(
                "spec.version: {version_text} is not one of the versions that are run, {RELEASES}; nothing will be started"
            ));
        }
    }
}

fn parse_semver(version: &str) -> Option<DatabaseVersion> {
    DatabaseVersion::parse(version).filter(DatabaseVersion::is_semver)
}

/// Validates the roles of a node pool (V24).
fn validate_roles(
    validator: &mut Validator,
    roles: &[String],
    version: Option<&DatabaseVersion>,
    path: &FieldPath,
) {
    if roles.is_empty() {
        validator.required(path, "at least one role must be specified");
    }
    let later_roles = LATER_ROLES
        .iter()
        .filter(|(_, since)| version.is_none_or(|v| (v.major, v.minor) >= *since))
        .map(|(role, _)| *role);
    let role_names: Vec<&str> = BASIC_ROLES.iter().copied().chain(later_roles).collect();
    for (index, role) in roles.iter().enumerate() {
        if !role_names.contains(&role.as_str()) {
            validator.unsupported(&path.index(index), role.as_str(), &role_names);
        }
    }
    if roles.len() > 1 && roles.iter().any(|role| role == "coordinating") {
        validator.invalid(path, json!(roles), "coordinating may not be combined with other roles");
    }
}

/// Validates a role of users (V64). Which privileges there are is the version's own to know: the pilot
/// asks its node.
fn validate_login_role(
    validator: &mut Validator,
    role: &DatabaseRole<Elasticsearch>,
    path: &FieldPath,
) {
    let DatabaseRole { name, rights } = role;
    let ElasticsearchRights { cluster, indices, applications, run_as } = rights;
    if RESERVED_ROLES.contains(&name.as_str()) {
        validator.forbidden(&path.child("name"), "is a role that Elasticsearch has itself");
    }
    validate_names(validator, cluster, &path.child("cluster"));
    validate_names(validator, run_as, &path.child("runAs"));
    for (index, rights) in indices.iter().enumerate() {
        let path = path.child("indices").index(index);
        let IndexRights { names, privileges, allow_restricted_indices: _ } = rights;
        require_names(validator, names, &path.child("names"));
        require_names(validator, privileges, &path.child("privileges"));
    }
    for (index, rights) in applications.iter().enumerate() {
        let path = path.child("applications").index(index);
        let ApplicationRights { application, privileges, resources } = rights;
        if application.is_empty() {
            validator.required(&path.child("application"), "");
        }
        require_names(validator, privileges, &path.child("privileges"));
        require_names(validator, resources, &path.child("resources"));
    }
}

fn require_names(validator: &mut Validator, names: &[String], path: &FieldPath) {
    if names.is_empty() {
        validator.required(path, "");
    }
    validate_names(validator, names, path);
}

fn validate_names(validator: &mut Validator, names: &[String], path: &FieldPath) {
    for (index, name) in names.iter().enumerate() {
        if name.is_empty() {
            validator.invalid(&path.index(index), name.as_str(), "must not be empty");
        }
    }
}

/// Validates `minimumMasters` (V26). The lower bound keeps two halves of a cluster from electing a
/// master each.
fn validate_minimum_masters(
    validator: &mut Validator,
    minimum: Option<i32>,
    masters: i64,
    allowed: &UnsafeOverrides,
) {
    let Some(minimum) = minimum else { return };
    let path = FieldPath::new("spec").child("minimumMasters");
    let quorum = masters / 2 + 1;
    if minimum == 0 {
        validator.invalid(&path, minimum, "cannot be zero");
    } else if i64::from(minimum) < quorum {
        allowed.check_unless_allowed("quorum", validator, |validator| {
            let text = format!("must be a minimum of {quorum} to avoid a split brain scenario");
            validator.invalid(&path, minimum, &text);
        });
    } else if i64::from(minimum) > masters {
        let text = "cannot be greater than the total number of master nodes";
        validator.invalid(&path, minimum, text);
    }
}

/// Validates the name of a plugin (V27), which becomes an argument of a command.
fn validate_plugin_name(validator: &mut Validator, name: &str, path: &FieldPath) {
    if name.is_empty() {
        validator.required(path, "");
    } else if !name.starts_with(|c: char| c.is_ascii_alphanumeric())
        || name.chars().any(|c| c.is_whitespace() || c.is_control())
    {
        let text = "must start with an alphanumeric character and contain no white space";
        validator.invalid(path, name, text);
    }
}

/// Validates a plugin's checksum (V27): one that no archive has would keep every node from
/// starting.
fn validate_plugin_sum(validator: &mut Validator, sum: &str, path: &FieldPath) {
    if sum.len() != 128 || !sum.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        validator.invalid(path, sum, "must be 128 hexadecimal characters");
    }
}

/// Returns the number of nodes in the pools for which `is_counted` holds.
fn count_nodes(
    cluster: &ElasticsearchCluster,
    is_counted: impl Fn(&ElasticsearchNodePool) -> bool,
) -> i64 {
    let pools = cluster.spec.node_pools.iter().filter(|pool| is_counted(pool));
    pools.map(|pool| i64::from(pool.replicas.unwrap_or(1))).sum()
}

fn count_masters(cluster: &ElasticsearchCluster) -> i64 {
    count_nodes(cluster, |pool| is_master(&pool.own.roles))
}
