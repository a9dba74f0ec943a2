//! Validation rules for fields that only a CassandraCluster has.

use std::{collections::BTreeMap, net::IpAddr};

use serde_json::Value;

use super::{
    names, permissions,
    releases::RELEASES,
    settings::{self, is_authentication_off},
    v1beta1::{Cassandra, CassandraCluster, CassandraGrant},
};
use crate::{
    api::{
        v1beta1::{Authentication, InternodeTls, TrustKind},
        validation::{
            ClusterRules, DatabaseVersion, SecuritySupport, UnsafeOverrides, Validator,
            check_immutable, format, pool_path,
        },
    },
    machinery::field_error::FieldPath,
};

impl ClusterRules for Cassandra {
    const MANAGED: &'static [&'static str] = settings::MANAGED;
    const SECURITY: Option<SecuritySupport> = Some(SecuritySupport {
        since: (4, 1),
        all_at_once: false,
        one_port: false,
        // The administrator's name where its Secret says none, and the first user of each database,
        // so that one list of users is good for either.
        reserved_users: &["admin", "cassandra", "elastic"],
        makes_roles: true,
    });

    fn is_managed(key: &str, requires_password: bool) -> bool {
        settings::is_managed(key, requires_password)
    }

    fn is_restated(key: &str, value: &Value) -> bool {
        settings::is_restated(key, value)
    }

    fn reason_to_stay_open(new: &CassandraCluster) -> Option<String> {
        let text = "the nodes behind additionalSeeds do not trust certificates of this cluster yet";
        (!new.spec.own.additional_seeds.is_empty()).then(|| text.to_owned())
    }

    /// V21: `spec.version`.
    fn validate_version(validator: &mut Validator, version: &str, path: &FieldPath) {
        if version.is_empty() {
            validator.required(path, "");
        } else if !DatabaseVersion::parse(version).is_some_and(|v| (3..6).contains(&v.major)) {
            let text = format!(
                "{version} is not supported. Supported versions are: >= 4, < 6; 3.x is accepted, and \
             nothing is started"
            );
            validator.forbidden(path, &text);
        }
    }

    fn validate_own_fields(
        validator: &mut Validator,
        new: &CassandraCluster,
        _allowed: &UnsafeOverrides,
    ) {
        let path = FieldPath::new("spec");
        let Cassandra { cluster_name, num_tokens, additional_seeds } = &new.spec.own;
        // V36: `numTokens` has a range.
        if let Some(tokens) = num_tokens.filter(|tokens| !(1..=1536).contains(tokens)) {
            validator.invalid(
                &path.child("numTokens"),
                tokens,
                "must be between 1 and 1536, inclusive",
            );
        }
        if let Some(name) = cluster_name {
            validator.invalid_each(
                &path.child("clusterName"),
                name,
                &format::check_ring_name(name),
            );
        }
        for (index, seed) in additional_seeds.iter().enumerate() {
            if seed.parse::<IpAddr>().is_err() {
                let path = path.child("additionalSeeds").index(index);
                validator.invalid_each(&path, seed, &format::check_dns_subdomain(seed));
            }
        }
        // V67: nodes elsewhere that no CA of this cluster has signed.
        let shared = new.spec.security.as_ref().map(|security| &security.shared);
        let internode = shared.and_then(|shared| shared.internode.as_ref());
        let is_signed = internode
            .is_some_and(|internode| internode.ca_secret.is_some() || !internode.trust.is_empty());
        let sends_tls = [InternodeTls::Prefer, InternodeTls::Required]
            .contains(&new.spec.desired_security().internode);
        if !additional_seeds.is_empty() && sends_tls && !is_signed {
            let path = path.child("security").child("internode").child("trust");
            validator.required(
                &path,
                "the CAs of the nodes behind additionalSeeds, or caSecret: their own",
            );
        }
        let roles = new.spec.security.iter().flat_map(|security| &security.roles);
        for (index, role) in roles.enumerate() {
            let path = path.child("security").child("roles").index(index).child("grants");
            for (index, grant) in role.rights.grants.iter().enumerate() {
                self::validate_grant(validator, grant, &new.spec.version, &path.index(index));
            }
        }
        for (index, pool) in new.spec.node_pools.iter().enumerate() {
            for (field, value) in [("rack", &pool.own.rack), ("datacenter", &pool.own.datacenter)] {
                // The default rack is the pool's name, which has been validated as such.
                if let Some(value) = value.as_ref().filter(|value| **value != pool.name) {
                    validator.invalid_each(
                        &pool_path(index).child(field),
                        value,
                        &format::check_ring_name(value),
                    );
                }
            }
        }
    }

    /// V72: nodes elsewhere know their ring by its name, and an object's name is none: rings of one
    /// name can become one.
    fn validate_create(validator: &mut Validator, new: &CassandraCluster) {
        let Cassandra { cluster_name, additional_seeds, .. } = &new.spec.own;
        if cluster_name.is_none() && !additional_seeds.is_empty() {
            let path = FieldPath::new("spec").child("clusterName");
            validator.require_in_beta(|validator| {
                validator.required(&path, "the name of the ring of additionalSeeds");
            });
        }
    }

    /// V40: fields that cannot change. The name that the ring has may be written down.
    fn validate_change(
        validator: &mut Validator,
        new: &CassandraCluster,
        old: &CassandraCluster,
        allowed: &UnsafeOverrides,
    ) {
        let path = FieldPath::new("spec");
        let (new_spec, old_spec) = (&new.spec.own, &old.spec.own);
        let is_unnamed = old_spec.cluster_name.is_none() && new_spec.cluster_name.is_some();
        if !is_unnamed || new_spec.cluster_name != old.status.cluster_name {
            check_immutable(
                validator,
                &path.child("clusterName"),
                &new_spec.cluster_name,
                &old_spec.cluster_name,
            );
        }
        check_immutable(
            validator,
            &path.child("numTokens"),
            &new_spec.num_tokens,
            &old_spec.num_tokens,
        );
        check_mode_transition(validator, new, old);
        warn_of_new_racks(validator, new, old);
        for (index, pool) in new.spec.node_pools.iter().enumerate() {
            let Some(old_pool) =
                old.spec.node_pools.iter().find(|old_pool| old_pool.name == pool.name)
            else {
                continue;
            };
            let path = pool_path(index);
            allowed.check_unless_allowed("topology", validator, |validator| {
                check_immutable(validator, &path.child("rack"), &pool.own.rack, &old_pool.own.rack);
                check_immutable(
                    validator,
                    &path.child("datacenter"),
                    &pool.own.datacenter,
                    &old_pool.own.datacenter,
                );
            });
        }
    }

    /// V23: an upgrade goes one major version at a time. Returns the next one, if `desired` is
    /// further away.
    fn intermediate_version(lowest: &DatabaseVersion, desired: &DatabaseVersion) -> Option<String> {
        (desired.major > lowest.major + 1).then(|| format!("{}", lowest.major + 1))
    }

    fn add_warnings(validator: &mut Validator, cluster: &CassandraCluster) {
        let version_text = &cluster.spec.version;
        // W28: nodes that are not ours, behind a policy.
        let network = cluster.spec.security.as_ref();
        let network = network.and_then(|security| security.shared.managed_network());
        let has_outside_seeds = !cluster.spec.own.additional_seeds.is_empty();
        if has_outside_seeds && network.is_some_and(|network| network.internode.is_empty()) {
            validator.add_warning(
                "spec.security.network.internode: names nobody, so everybody may reach the ports between nodes: \
                 nodes behind additionalSeeds have to"
                    .to_owned(),
            );
        }
        // W30: who may write a ConfigMap decides who is a member.
        let outside_trust =
            cluster.spec.security.iter().flat_map(|security| security.shared.trust_sources());
        for (index, source) in
            outside_trust.enumerate().filter(|(_, source)| source.kind == TrustKind::ConfigMap)
        {
            validator.add_warning(format!(
                "spec.security.internode.trust[{index}]: whoever may write ConfigMap {} can add nodes to the \
                 ring; keep the CA in a Secret",
                source.name
            ));
        }
        let security = cluster.spec.desired_security();
        let requires_password = security.authentication == Authentication::Password;
        // W21: no authenticator.
        if requires_password {
            // Copies of logins are Navigator's to keep.
        } else if is_authentication_off(&cluster.spec.config) {
            validator.add_warning(
            "spec.config.authenticator: without one, every client that reaches port 9042 may read, change and delete all \
             data; set it to PasswordAuthenticator, or keep others out with a NetworkPolicy"
                .to_owned(),
        );
        } else if let Some(copies) = copies_of_logins(cluster) {
            validator.add_warning(format!(
            "spec.config.authenticator: keyspace system_auth holds the logins, and has one copy until you raise that: \
             ALTER KEYSPACE system_auth WITH replication = {{'class': 'NetworkTopologyStrategy', {copies}}}; \
             then `nodetool repair system_auth` on each node"
        ));
        }
        // W10: a version that is not run.
        let is_supported = |v: &DatabaseVersion| RELEASES.find_line((v.major, v.minor)).is_some();
        if DatabaseVersion::parse(version_text)
            .is_some_and(|v| (3..6).contains(&v.major) && !is_supported(&v))
        {
            validator.add_warning(format!(
            "spec.version: {version_text} is not one of the versions that are run, {RELEASES}; nothing will be started"
        ));
        }
        // W13
        let sizes = nodes_by_rack(cluster);
        let mut datacenters: Vec<&str> = sizes.keys().map(|(datacenter, _)| *datacenter).collect();
        datacenters.dedup();
        for datacenter in datacenters {
            let racks =
                sizes.iter().filter(|((dc, _), _)| *dc == datacenter).map(|(_, nodes)| *nodes);
            let (least, most) = (racks.clone().min().unwrap_or(0), racks.max().unwrap_or(0));
            if most - least > 1 {
                validator.add_warning(format!("spec.nodePools: racks of datacenter {datacenter:?} differ in size by {}, so their nodes hold unequal shares of the data", most - least));
            }
        }
    }
}

/// Returns how many nodes the spec has in each datacenter and rack.
fn nodes_by_rack(cluster: &CassandraCluster) -> BTreeMap<(&str, &str), i64> {
    let mut sizes = BTreeMap::new();
    for pool in &cluster.spec.node_pools {
        let datacenter = pool.own.datacenter.as_deref().unwrap_or_default();
        let rack = pool.own.rack.as_deref().unwrap_or(&pool.name);
        *sizes.entry((datacenter, rack)).or_default() += i64::from(pool.replicas.unwrap_or(1));
    }
    sizes
}

/// W29: `NetworkTopologyStrategy` puts the replicas of a row into different racks, so the first
/// node of a new rack becomes a replica of every row, unless the datacenter has more racks than
/// replicas. The API server knows no keyspaces, so it warns of each new rack.
fn warn_of_new_racks(validator: &mut Validator, new: &CassandraCluster, old: &CassandraCluster) {
    if old.status.replicas.is_none_or(|replicas| replicas == 0) {
        return;
    }
    let mut old_racks = nodes_by_rack(old);
    old_racks.retain(|_, nodes| *nodes > 0);
    for ((datacenter, rack), nodes) in nodes_by_rack(new) {
        let has_nodes = old_racks.keys().any(|(name, _)| *name == datacenter);
        if nodes > 0 && has_nodes && !old_racks.contains_key(&(datacenter, rack)) {
            validator.add_warning(format!(
                "spec.nodePools: rack {rack:?} is new in datacenter {datacenter:?}, so its first node may \
                 receive a copy of every row; to replace a pool, give the new pool the rack of the old one"
            ));
        }
    }
}

/// V67: between nodes elsewhere and ours, each rung is a word of people, who see both sides. Alone, a
/// cluster goes over all rungs by itself.
fn check_mode_transition(
    validator: &mut Validator,
    new: &CassandraCluster,
    old: &CassandraCluster,
) {
    let is_shared = |cluster: &CassandraCluster| {
        let security = cluster.spec.security.as_ref();
        let has_outside_trust =
            security.is_some_and(|security| !security.shared.trust_sources().is_empty());
        has_outside_trust || !cluster.spec.own.additional_seeds.is_empty()
    };
    let mode_order = |cluster: &CassandraCluster| match cluster.spec.desired_security().internode {
        InternodeTls::Off => 0_u8,
        InternodeTls::Allow => 1,
        InternodeTls::Prefer => 2,
        _ => 3,
    };
    let has_nodes = old.status.replicas.is_some_and(|replicas| replicas > 0);
    if has_nodes
        && (is_shared(new) || is_shared(old))
        && mode_order(new).abs_diff(mode_order(old)) > 1
    {
        let text = "say \"Off\", Allow, Prefer and Required one after the other, each once it is so in \
                    every cluster of the ring: the nodes elsewhere are not ours";
        let path = FieldPath::new("spec").child("security").child("internode").child("tls");
        validator.forbidden(&path, text);
    }
}

/// Validates what a role is to be granted (V64).
fn validate_grant(
    validator: &mut Validator,
    grant: &CassandraGrant,
    version: &str,
    path: &FieldPath,
) {
    let CassandraGrant { permissions, keyspace, table } = grant;
    let version = DatabaseVersion::parse(version).map(|version| (version.major, version.minor));
    let permission_names =
        permissions::valid_permissions(version.unwrap_or(permissions::MASKING_SINCE));
    let permissions_path = path.child("permissions");
    if permissions.is_empty() {
        validator.required(&permissions_path, "");
    }
    for (index, permission) in permissions.iter().enumerate() {
        let path = permissions_path.index(index);
        if !permission_names.contains(&permission.as_str()) {
            validator.unsupported(&path, permission.as_str(), &permission_names);
        } else if permission == permissions::CREATE && table.is_some() {
            validator.invalid(&path, permission.as_str(), "is no right on a table");
        }
    }
    let keyspace_path = path.child("keyspace");
    if keyspace.is_empty() {
        validator.required(&keyspace_path, "a name, or \"*\" for all keyspaces");
    } else if keyspace == permissions::EVERYWHERE {
        if table.is_some() {
            validator.forbidden(&path.child("table"), "name the keyspace of the table");
        }
    } else {
        validator.invalid_each(&keyspace_path, keyspace, &data_name(keyspace));
    }
    if let Some(table) = table {
        validator.invalid_each(&path.child("table"), table, &data_name(table));
    }
}

/// Names of keyspaces and tables are words of up to 48 characters, in each version.
fn data_name(name: &str) -> Vec<String> {
    let is_word = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    if (1..=48).contains(&name.len()) && name.bytes().all(is_word) {
        return Vec::new();
    }
    vec!["must consist of at most 48 alphanumeric characters or '_', without quotes".to_owned()]
}

/// Returns the replication that the keyspace of logins should have, in CQL's notation, so that a
/// lost node does not take the logins along. `None` for a cluster of a single node.
fn copies_of_logins(cluster: &CassandraCluster) -> Option<String> {
    let mut nodes: BTreeMap<&str, i64> = BTreeMap::new();
    for pool in &cluster.spec.node_pools {
        let datacenter = pool.own.datacenter.as_deref().unwrap_or(names::DEFAULT_DATACENTER);
        *nodes.entry(datacenter).or_default() += i64::from(pool.replicas.unwrap_or(1));
    }
    let copies = nodes.iter().map(|(name, count)| format!("'{name}': {}", (*count).clamp(1, 3)));
    let copies = copies.collect::<Vec<_>>().join(", ");
    (nodes.values().sum::<i64>() > 1).then_some(copies)
}
