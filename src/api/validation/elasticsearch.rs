//! Rules for ElasticsearchCluster.

use serde_json::{Value, json};

use super::{
    cassandra::STATUS_LIMIT,
    cluster::{self, Cluster, Pool, pool_path},
    database_version::DatabaseVersion,
    form::{self, Enums},
    judge::Judge,
    metadata, ratchet, status,
    transition::{self, Allowed},
    warning,
};
use crate::api::{
    field::Path,
    managed, names,
    scheme::{Part, Verdict, Version},
    v1beta1::ElasticsearchCluster,
};

const KIND: &str = "ElasticsearchCluster";

/// Roles that every version knows, and the only one that stands alone.
const BASIC_ROLES: &[&str] = &["master", "data", "ingest", "coordinating"];

/// Role, first version that knows it.
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

/// Last minor of each major: the only one from which the next major takes over the data.
const LAST_MINORS: &[(u64, u64)] = &[(5, 6), (6, 8), (7, 17), (8, 19)];

/// Judges a new object that was written in `version`.
pub fn validate_create(version: Version, new: &ElasticsearchCluster) -> Verdict {
    let mut judge = Judge::new(version);
    metadata::create(&mut judge, &new.metadata);
    let view = view(new);
    cluster::name(&mut judge, &view);
    spec(&mut judge, new, &view, &json!(new), &Allowed::read(&view));
    warnings(&mut judge, new, &view);
    judge.verdict()
}

/// Judges an update of `old` through `part`, written in `version`.
pub fn validate_update(
    version: Version,
    part: Part,
    new: &ElasticsearchCluster,
    old: &ElasticsearchCluster,
) -> Verdict {
    let (value, stored) = (json!(new), json!(old));
    let (now, was) = (view(new), view(old));
    let allowed = Allowed::read(&now);
    let mut judge = Judge::new(version);
    let mut before = Judge::new(version);
    match part {
        Part::Main => {
            spec(&mut judge, new, &now, &value, &allowed);
            spec(&mut before, old, &was, &stored, &Allowed::read(&was));
        }
        Part::Status => {
            for (judge, object) in [(&mut judge, new), (&mut before, old)] {
                let report = &object.status;
                status::judge(judge, KIND, report, &report.conditions, STATUS_LIMIT);
            }
        }
    }
    ratchet::forgive(&mut judge, &value, &before, &stored);
    if part == Part::Main {
        metadata::update(&mut judge, &new.metadata, &old.metadata);
        transition::judge(&mut judge, &now, &was, &allowed);
        allowed.unless("skip-version", &mut judge, |judge| {
            transition::skipped_version(judge, &now, &was, next_version);
        });
        warnings(&mut judge, new, &now);
        warning::update(&mut judge, &now, &was);
    }
    judge.verdict()
}

fn view(cluster: &ElasticsearchCluster) -> Cluster<'_> {
    let spec = &cluster.spec;
    Cluster {
        metadata: &cluster.metadata,
        stateful_set: names::elasticsearch::stateful_set,
        reserved: managed::ELASTICSEARCH,
        version: &spec.version,
        image: spec.image.as_ref(),
        pilot_image: spec.pilot_image.as_ref(),
        security_context: spec.security_context.as_ref(),
        config: &spec.config,
        jvm: spec.jvm.as_ref(),
        pod_template: &spec.pod_template,
        update_strategy: spec.update_strategy.as_ref(),
        services: spec.services.as_ref(),
        pools: spec
            .node_pools
            .iter()
            .map(|pool| Pool {
                name: &pool.name,
                replicas: pool.replicas,
                zone: pool.zone.as_deref(),
                resources: pool.resources.as_ref(),
                persistence: pool.persistence.as_ref(),
                config: &pool.config,
                jvm: pool.jvm.as_ref(),
                pod_template: &pool.pod_template,
                masters: pool.roles.iter().any(|role| role == "master"),
                keeps_data: keeps_data(&pool.roles),
            })
            .collect(),
        status: &cluster.status,
    }
}

fn spec(
    judge: &mut Judge,
    new: &ElasticsearchCluster,
    view: &Cluster<'_>,
    value: &Value,
    allowed: &Allowed,
) {
    form::judge(judge, KIND, "spec", &value["spec"], Enums::Judge);
    let path = Path::new("spec");
    // V20
    let version = DatabaseVersion::parse(view.version).filter(DatabaseVersion::is_semver);
    if view.version.is_empty() {
        judge.required(&path.child("version"), "must be a semver version");
    } else if version.is_none() {
        let text = "must be of the form MAJOR.MINOR.PATCH";
        judge.invalid(&path.child("version"), view.version, text);
    }
    cluster::spec(judge, view);
    for (index, pool) in new.spec.node_pools.iter().enumerate() {
        roles(judge, &pool.roles, version.as_ref(), &pool_path(index).child("roles"));
    }
    let masters = masters(view);
    // V25
    if masters == 0 {
        judge.invalid(&path.child("nodePools"), masters, "must be at least one master node");
    }
    minimum_masters(judge, new.spec.minimum_masters, masters, allowed);
    for (index, plugin) in new.spec.plugins.iter().enumerate() {
        let path = path.child("plugins").index(index);
        plugin_name(judge, &plugin.name, &path.child("name"));
        if let Some(sha512) = &plugin.sha512 {
            plugin_sum(judge, sha512, &path.child("sha512"));
        }
    }
}

/// Masters keep the cluster's state; nodes that only coordinate or ingest keep nothing.
fn keeps_data(roles: &[String]) -> bool {
    roles.iter().any(|role| role == "master" || role.starts_with("data"))
}

/// V24
fn roles(judge: &mut Judge, roles: &[String], version: Option<&DatabaseVersion>, path: &Path) {
    if roles.is_empty() {
        judge.required(path, "at least one role must be specified");
    }
    let later = LATER_ROLES
        .iter()
        .filter(|(_, since)| version.is_none_or(|v| (v.major, v.minor) >= *since))
        .map(|(role, _)| *role);
    let known: Vec<&str> = BASIC_ROLES.iter().copied().chain(later).collect();
    for (index, role) in roles.iter().enumerate() {
        if !known.contains(&role.as_str()) {
            judge.unsupported(&path.index(index), role.as_str(), &known);
        }
    }
    if roles.len() > 1 && roles.iter().any(|role| role == "coordinating") {
        judge.invalid(path, json!(roles), "coordinating may not be combined with other roles");
    }
}

/// V26. The lower bound keeps two halves of a cluster from electing a master each.
fn minimum_masters(judge: &mut Judge, minimum: Option<i32>, masters: i64, allowed: &Allowed) {
    let Some(minimum) = minimum else { return };
    let path = Path::new("spec").child("minimumMasters");
    let quorum = masters / 2 + 1;
    if minimum == 0 {
        judge.invalid(&path, minimum, "cannot be zero");
    } else if i64::from(minimum) < quorum {
        allowed.unless("quorum", judge, |judge| {
            let text = format!("must be a minimum of {quorum} to avoid a split brain scenario");
            judge.invalid(&path, minimum, &text);
        });
    } else if i64::from(minimum) > masters {
        let text = "cannot be greater than the total number of master nodes";
        judge.invalid(&path, minimum, text);
    }
}

/// V27: the name becomes an argument of a command.
fn plugin_name(judge: &mut Judge, name: &str, path: &Path) {
    if name.is_empty() {
        judge.required(path, "");
    } else if !name.starts_with(|c: char| c.is_ascii_alphanumeric())
        || name.chars().any(|c| c.is_whitespace() || c.is_control())
    {
        let text = "must start with an alphanumeric character and contain no white space";
        judge.invalid(path, name, text);
    }
}

/// V27: a sum that no archive has would hold every node up.
fn plugin_sum(judge: &mut Judge, sum: &str, path: &Path) {
    if sum.len() != 128 || !sum.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        judge.invalid(path, sum, "must be 128 hexadecimal characters");
    }
}

/// V23: through the last minor of each major.
fn next_version(lowest: &DatabaseVersion, wanted: &DatabaseVersion) -> Option<String> {
    if wanted.major == lowest.major {
        return None;
    }
    let (_, last) = LAST_MINORS.iter().find(|(major, _)| *major == lowest.major)?;
    if lowest.minor < *last {
        return Some(format!("{}.{last}", lowest.major));
    }
    let (major, last) = LAST_MINORS.iter().find(|(major, _)| *major == lowest.major + 1)?;
    (wanted.major > *major).then(|| format!("{major}.{last}"))
}

fn masters(view: &Cluster<'_>) -> i64 {
    view.pools.iter().filter(|pool| pool.masters).map(Pool::nodes).sum()
}

fn warnings(judge: &mut Judge, cluster: &ElasticsearchCluster, view: &Cluster<'_>) {
    warning::spec(judge, view);
    // W21
    judge.warn(
        "spec: no login and no TLS: whoever reaches port 9200 or 9300 may read, change and delete all data; \
         keep others out with a NetworkPolicy"
            .to_owned(),
    );
    let version = DatabaseVersion::parse(view.version);
    let masters = masters(view);
    // W7
    if masters > 0 && masters % 2 == 0 {
        judge.warn(format!("spec.nodePools: an even number of master nodes ({masters}) tolerates no more failures than {}", masters - 1));
    }
    // W8
    let holds_data = |pool: &&crate::api::v1beta1::ElasticsearchNodePool| {
        pool.roles.iter().any(|role| role.starts_with("data"))
    };
    let data: i64 = cluster
        .spec
        .node_pools
        .iter()
        .filter(holds_data)
        .map(|pool| i64::from(pool.replicas.unwrap_or(1)))
        .sum();
    if masters == 1 && data > 1 {
        judge.warn(format!(
            "spec.nodePools: one master node for {data} data nodes; without it nothing is served"
        ));
    }
    let Some(version) = version else { return };
    // W9
    if cluster.spec.minimum_masters.is_some() && version.major >= 7 {
        judge.warn("spec.minimumMasters is ignored from version 7".to_owned());
    }
    // W10
    if (version.major, version.minor) < (5, 6) || version.major > 8 {
        judge.warn(format!(
            "spec.version: {} is not one of the versions that are run, 5.6 to 8; nothing will be started",
            view.version
        ));
    }
}
