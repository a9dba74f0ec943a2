//! Rules for CassandraCluster.

use std::{collections::BTreeMap, net::IpAddr};

use serde_json::{Value, json};

use super::{
    cluster::{self, Cluster, Pool, pool_path},
    database_version::DatabaseVersion,
    form::{self, Enums},
    format,
    judge::Judge,
    metadata, ratchet, status,
    transition::{self, Allowed, immutable},
    warning,
};
use crate::api::{
    field::Path,
    managed, names,
    scheme::{Part, Verdict, Version},
    v1beta1::CassandraCluster,
};

const KIND: &str = "CassandraCluster";
pub(super) const STATUS_LIMIT: usize = 64 * 1024;

/// Judges a new object that was written in `version`.
pub fn validate_create(version: Version, new: &CassandraCluster) -> Verdict {
    let mut judge = Judge::new(version);
    metadata::create(&mut judge, &new.metadata);
    let view = view(new);
    cluster::name(&mut judge, &view);
    spec(&mut judge, new, &view, &json!(new));
    warnings(&mut judge, new, &view);
    judge.verdict()
}

/// Judges an update of `old` through `part`, written in `version`.
pub fn validate_update(
    version: Version,
    part: Part,
    new: &CassandraCluster,
    old: &CassandraCluster,
) -> Verdict {
    let (value, stored) = (json!(new), json!(old));
    let (now, was) = (view(new), view(old));
    let mut judge = Judge::new(version);
    let mut before = Judge::new(version);
    match part {
        Part::Main => {
            spec(&mut judge, new, &now, &value);
            spec(&mut before, old, &was, &stored);
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
        let allowed = Allowed::read(&now);
        transition::judge(&mut judge, &now, &was, &allowed);
        allowed.unless("skip-version", &mut judge, |judge| {
            transition::skipped_version(judge, &now, &was, next_version);
        });
        fixed(&mut judge, new, old, &allowed);
        warnings(&mut judge, new, &now);
        warning::update(&mut judge, &now, &was);
    }
    judge.verdict()
}

fn view(cluster: &CassandraCluster) -> Cluster<'_> {
    let spec = &cluster.spec;
    Cluster {
        metadata: &cluster.metadata,
        stateful_set: names::cassandra::stateful_set,
        reserved: managed::CASSANDRA,
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
                masters: false,
                keeps_data: true,
            })
            .collect(),
        status: &cluster.status,
    }
}

fn spec(judge: &mut Judge, new: &CassandraCluster, view: &Cluster<'_>, value: &Value) {
    form::judge(judge, KIND, "spec", &value["spec"], Enums::Judge);
    let path = Path::new("spec");
    version(judge, view.version, &path.child("version"));
    cluster::spec(judge, view);
    // V36
    if let Some(tokens) = new.spec.num_tokens.filter(|tokens| !(1..=1536).contains(tokens)) {
        judge.invalid(&path.child("numTokens"), tokens, "must be between 1 and 1536, inclusive");
    }
    if let Some(name) = &new.spec.cluster_name {
        judge.invalid_each(&path.child("clusterName"), name, &format::ring_name(name));
    }
    for (index, seed) in new.spec.additional_seeds.iter().enumerate() {
        if seed.parse::<IpAddr>().is_err() {
            let path = path.child("additionalSeeds").index(index);
            judge.invalid_each(&path, seed, &format::dns_subdomain(seed));
        }
    }
    for (index, pool) in new.spec.node_pools.iter().enumerate() {
        for (field, value) in [("rack", &pool.rack), ("datacenter", &pool.datacenter)] {
            // The default rack is the pool's name, which is judged as such.
            if let Some(value) = value.as_ref().filter(|value| **value != pool.name) {
                judge.invalid_each(
                    &pool_path(index).child(field),
                    value,
                    &format::ring_name(value),
                );
            }
        }
    }
}

/// V21
fn version(judge: &mut Judge, version: &str, path: &Path) {
    if version.is_empty() {
        judge.required(path, "");
    } else if !DatabaseVersion::parse(version).is_some_and(|v| (3..6).contains(&v.major)) {
        let text = format!(
            "{version} is not supported. Supported versions are: >= 4, < 6; 3.x is accepted, and \
             nothing is started"
        );
        judge.forbidden(path, &text);
    }
}

/// V23: one major at a time.
fn next_version(lowest: &DatabaseVersion, wanted: &DatabaseVersion) -> Option<String> {
    (wanted.major > lowest.major + 1).then(|| format!("{}", lowest.major + 1))
}

/// V40
fn fixed(judge: &mut Judge, new: &CassandraCluster, old: &CassandraCluster, allowed: &Allowed) {
    let path = Path::new("spec");
    let (now, was) = (&new.spec, &old.spec);
    immutable(judge, &path.child("clusterName"), &now.cluster_name, &was.cluster_name);
    immutable(judge, &path.child("numTokens"), &now.num_tokens, &was.num_tokens);
    for (index, pool) in now.node_pools.iter().enumerate() {
        let Some(before) = was.node_pools.iter().find(|before| before.name == pool.name) else {
            continue;
        };
        let path = pool_path(index);
        allowed.unless("topology", judge, |judge| {
            immutable(judge, &path.child("rack"), &pool.rack, &before.rack);
            immutable(judge, &path.child("datacenter"), &pool.datacenter, &before.datacenter);
        });
    }
}

fn warnings(judge: &mut Judge, cluster: &CassandraCluster, view: &Cluster<'_>) {
    warning::spec(judge, view);
    // W21
    if managed::lets_everybody_in(&cluster.spec.config) {
        judge.warn(
            "spec.config.authenticator: without one, whoever reaches port 9042 may read, change and delete all \
             data; set it to PasswordAuthenticator, or keep others out with a NetworkPolicy"
                .to_owned(),
        );
    }
    // W10
    let runs = |v: &DatabaseVersion| managed::CASSANDRA_RELEASES.contains(&(v.major, v.minor));
    if DatabaseVersion::parse(view.version).is_some_and(|v| (3..6).contains(&v.major) && !runs(&v))
    {
        judge.warn(format!(
            "spec.version: {} is not one of the versions that are run, 4.0 to 5.0; nothing will be started",
            view.version
        ));
    }
    // W13
    let mut sizes: BTreeMap<(&str, &str), i64> = BTreeMap::new();
    for pool in &cluster.spec.node_pools {
        let datacenter = pool.datacenter.as_deref().unwrap_or_default();
        let rack = pool.rack.as_deref().unwrap_or(&pool.name);
        *sizes.entry((datacenter, rack)).or_default() += i64::from(pool.replicas.unwrap_or(1));
    }
    let mut datacenters: Vec<&str> = sizes.keys().map(|(datacenter, _)| *datacenter).collect();
    datacenters.dedup();
    for datacenter in datacenters {
        let racks = sizes.iter().filter(|((dc, _), _)| *dc == datacenter).map(|(_, nodes)| *nodes);
        let (least, most) = (racks.clone().min().unwrap_or(0), racks.max().unwrap_or(0));
        if most - least > 1 {
            judge.warn(format!("spec.nodePools: racks of datacenter {datacenter:?} differ in size by {}, so their nodes hold unequal shares of the data", most - least));
        }
    }
}
