//! Warnings about accepted values (W6–W18, W20, W23, W27 of docs/rules.md; W4 is here for the registry, which
//! decides when to call it).

use serde_json::Value;

use super::{
    cluster_view::{ClusterView, pool_path},
    transition::pair_pools,
    validator::Validator,
};
use crate::api::{
    V1BETA1,
    reserved_fields::is_upstream_pilot,
    v1beta1::{Authentication, ClientTls, NetworkAccess},
};

/// W4: returns a warning when a write of the main resource carries a status that differs from the
/// stored one.
pub fn status_ignored(submitted: &Value, stored: Option<&Value>) -> Option<String> {
    let status = |object: &Value| object.get("status").cloned().filter(|status| !is_empty(status));
    let submitted_status = status(submitted)?;
    if stored.and_then(status).as_ref() == Some(&submitted_status) {
        return None;
    }
    Some("status is ignored here; write it through the status subresource".to_owned())
}

fn is_empty(value: &Value) -> bool {
    value.is_null() || value.as_object().is_some_and(serde_json::Map::is_empty)
}

/// Adds warnings about the spec of a new or updated cluster.
pub(super) fn warn_about_spec(validator: &mut Validator, cluster: &ClusterView<'_>) {
    warn_about_image_tag(validator, cluster);
    warn_about_pilot_image(validator, cluster);
    for (index, pool) in cluster.pools.iter().enumerate() {
        let path = pool_path(index);
        // W6: a pool without persistence.
        if pool.persistence.is_none() && validator.version == V1BETA1 {
            validator.add_warning(format!("{path}: no persistence, data is lost with the pod; set persistence.enabled: false to say this is intended"));
        }
        let is_disabled = pool.persistence.is_some_and(|p| p.enabled == Some(false));
        if is_disabled && pool.keeps_data && validator.version == V1BETA1 {
            validator.add_warning(format!(
                "{path}.persistence: disabled, so the data of a node are deleted with its pod"
            ));
        }
        // W12: neither a memory limit nor a heap.
        let has_heap =
            |jvm: Option<&crate::api::v1beta1::Jvm>| jvm.is_some_and(|jvm| jvm.heap.is_some());
        if pool.memory_limit().is_none() && !has_heap(pool.jvm) && !has_heap(cluster.jvm) {
            validator.add_warning(format!("{path}: no memory limit, so the heap is 1Gi; set resources.limits.memory or jvm.heap"));
        }
    }
    // W23: logins without encryption.
    let desired_modes = cluster.desired_security();
    if desired_modes.authentication == Authentication::Password
        && desired_modes.client == ClientTls::Off
    {
        validator.add_warning("spec.security.client.tls: passwords travel as they are".to_owned());
    }
    // W27: lists of peers without a policy.
    let network = cluster.security.and_then(|security| security.network.as_ref());
    let is_managed = cluster.security.is_some_and(|security| security.managed_network().is_some());
    if network.is_some_and(NetworkAccess::has_peers) && !is_managed {
        validator.add_warning(
            "spec.security.network: nobody is kept out, since policy is not Managed".to_owned(),
        );
    }
    // W15: predicates that are skipped.
    let skipped_predicates =
        cluster.update_strategy.map_or(&[][..], |strategy| &strategy.skip_predicates);
    if !skipped_predicates.is_empty() {
        validator.add_warning(format!(
            "spec.updateStrategy.skipPredicates: steps do not wait for {}",
            skipped_predicates.join(", ")
        ));
    }
}

/// Warns of what an update removes or shrinks (W16, W17), and of encryption and logins that are switched
/// (W22, W24).
pub(super) fn warn_about_update(
    validator: &mut Validator,
    new: &ClusterView<'_>,
    old: &ClusterView<'_>,
) {
    let (new_modes, old_modes) = (new.desired_security(), old.desired_security());
    let is_running = old.status.replicas.is_some_and(|replicas| replicas > 0);
    let needs_full_restart = new.support.is_some_and(|support| support.all_at_once);
    if is_running && needs_full_restart && new_modes.internode != old_modes.internode {
        validator.add_warning(
            "spec.security: all nodes stop and start together; add KeepsServing to updateStrategy.skipPredicates to let that begin"
                .to_owned(),
        );
    }
    if is_running
        && (is_lower(&new_modes.internode, &old_modes.internode)
            || is_lower(&new_modes.client, &old_modes.client))
    {
        validator
            .add_warning("spec.security: encryption is taken off a running cluster".to_owned());
    }
    if is_running && is_lower(&new_modes.authentication, &old_modes.authentication) {
        validator.add_warning("spec.security: logins are taken off a running cluster".to_owned());
    }
    for old_pool in &old.pools {
        let is_kept = new.pools.iter().any(|pool| pool.name == old_pool.name);
        if !is_kept && old_pool.node_count() > 0 {
            validator.add_warning(format!(
                "node pool {:?}: {}",
                old_pool.name,
                drain_message(old_pool.node_count())
            ));
        }
    }
    for (index, pool, old_pool) in pair_pools(new, old) {
        let removed_nodes = old_pool.node_count() - pool.node_count();
        if removed_nodes > 0 {
            let path = pool_path(index).child("replicas");
            validator.add_warning(format!("{path}: {}", drain_message(removed_nodes)));
        }
    }
}

/// Is `new_mode` the word for nothing, where `old_mode` is another?
fn is_lower<T: Default + PartialEq>(new_mode: &T, old_mode: &T) -> bool {
    *new_mode == T::default() && new_mode != old_mode
}

fn drain_message(nodes: i64) -> String {
    let word = if nodes == 1 { "node" } else { "nodes" };
    format!("{nodes} {word} will be drained before removal")
}

/// Warns of an image tag without the version (W11).
fn warn_about_image_tag(validator: &mut Validator, cluster: &ClusterView<'_>) {
    let tag = cluster.image.and_then(|image| image.tag.as_deref()).unwrap_or_default();
    if !tag.is_empty() && !tag.contains(cluster.version) {
        validator.add_warning(format!(
            "spec.image.tag: {tag:?} does not contain the version {:?}",
            cluster.version
        ));
    }
}

/// Warns of upstream's pilot image (W20).
fn warn_about_pilot_image(validator: &mut Validator, cluster: &ClusterView<'_>) {
    let repository = cluster.pilot_image.map_or("", |image| image.repository.as_str());
    if is_upstream_pilot(repository) {
        validator.add_warning("spec.pilotImage: upstream's pilot image is stored but not run; the controller's own image is used, see status.pilotImage".to_owned());
    }
}
