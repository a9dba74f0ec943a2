//! Warnings about accepted values (W6–W18, W20, W23, W27 of docs/rules.md; W4 is here for the registry, which
//! decides when to call it).

use serde_json::Value;

use super::{
    cluster_view::{ClusterView, pool_path},
    transition::pairs,
    validator::Validator,
};
use crate::api::{
    V1BETA1,
    reserved_fields::is_upstream_pilot,
    v1beta1::{Authentication, ClientTls, NetworkAccess},
};

/// W4: returns a warning when a write of the main resource carries a status that differs from the
/// stored one.
pub fn status_ignored(written: &Value, stored: Option<&Value>) -> Option<String> {
    let status = |object: &Value| object.get("status").cloned().filter(|status| !is_empty(status));
    let written = status(written)?;
    if stored.and_then(status).as_ref() == Some(&written) {
        return None;
    }
    Some("status is ignored here; write it through the status subresource".to_owned())
}

fn is_empty(value: &Value) -> bool {
    value.is_null() || value.as_object().is_some_and(serde_json::Map::is_empty)
}

/// Adds warnings about the spec of a new or updated cluster.
pub(super) fn spec(validator: &mut Validator, cluster: &ClusterView<'_>) {
    image_tag(validator, cluster);
    pilot_image(validator, cluster);
    for (index, pool) in cluster.pools.iter().enumerate() {
        let path = pool_path(index);
        // W6: a pool without persistence.
        if pool.persistence.is_none() && validator.version == V1BETA1 {
            validator.warn(format!("{path}: no persistence, data is lost with the pod; set persistence.enabled: false to say this is intended"));
        }
        let disabled = pool.persistence.is_some_and(|p| p.enabled == Some(false));
        if disabled && pool.keeps_data && validator.version == V1BETA1 {
            validator.warn(format!(
                "{path}.persistence: disabled, so the data of a node are deleted with its pod"
            ));
        }
        // W12: neither a memory limit nor a heap.
        let heap =
            |jvm: Option<&crate::api::v1beta1::Jvm>| jvm.is_some_and(|jvm| jvm.heap.is_some());
        if pool.memory_limit().is_none() && !heap(pool.jvm) && !heap(cluster.jvm) {
            validator.warn(format!("{path}: no memory limit, so the heap is 1Gi; set resources.limits.memory or jvm.heap"));
        }
    }
    // W23: logins without encryption.
    let wanted = cluster.wanted_security();
    if wanted.authentication == Authentication::Password && wanted.client == ClientTls::Off {
        validator.warn("spec.security.client.tls: passwords travel as they are".to_owned());
    }
    // W27: lists of peers without a policy.
    let network = cluster.security.and_then(|security| security.network.as_ref());
    let managed = cluster.security.is_some_and(|security| security.managed_network().is_some());
    if network.is_some_and(NetworkAccess::names_somebody) && !managed {
        validator.warn(
            "spec.security.network: nobody is kept out, since policy is not Managed".to_owned(),
        );
    }
    // W15: predicates that are skipped.
    let skipped = cluster.update_strategy.map_or(&[][..], |strategy| &strategy.skip_predicates);
    if !skipped.is_empty() {
        validator.warn(format!(
            "spec.updateStrategy.skipPredicates: steps do not wait for {}",
            skipped.join(", ")
        ));
    }
}

/// Warns of what an update removes or shrinks (W16, W17), and of encryption and logins that are switched
/// (W22, W24).
pub(super) fn update(validator: &mut Validator, new: &ClusterView<'_>, old: &ClusterView<'_>) {
    let (now, was) = (new.wanted_security(), old.wanted_security());
    let runs = old.status.replicas.is_some_and(|replicas| replicas > 0);
    let at_once = new.support.is_some_and(|support| support.all_at_once);
    if runs && at_once && now.internode != was.internode {
        validator.warn(
            "spec.security: all nodes stop and start together; add KeepsServing to updateStrategy.skipPredicates to let that begin"
                .to_owned(),
        );
    }
    if runs && (is_lower(&now.internode, &was.internode) || is_lower(&now.client, &was.client)) {
        validator.warn("spec.security: encryption is taken off a running cluster".to_owned());
    }
    if runs && is_lower(&now.authentication, &was.authentication) {
        validator.warn("spec.security: logins are taken off a running cluster".to_owned());
    }
    for before in &old.pools {
        let kept = new.pools.iter().any(|pool| pool.name == before.name);
        if !kept && before.nodes() > 0 {
            validator.warn(format!("node pool {:?}: {}", before.name, drained(before.nodes())));
        }
    }
    for (index, pool, before) in pairs(new, old) {
        let fewer = before.nodes() - pool.nodes();
        if fewer > 0 {
            let path = pool_path(index).child("replicas");
            validator.warn(format!("{path}: {}", drained(fewer)));
        }
    }
}

/// Is `now` the word for nothing, where `was` is another?
fn is_lower<T: Default + PartialEq>(now: &T, was: &T) -> bool {
    *now == T::default() && now != was
}

fn drained(nodes: i64) -> String {
    let word = if nodes == 1 { "node" } else { "nodes" };
    format!("{nodes} {word} will be drained before removal")
}

/// Warns of an image tag without the version (W11).
fn image_tag(validator: &mut Validator, cluster: &ClusterView<'_>) {
    let tag = cluster.image.and_then(|image| image.tag.as_deref()).unwrap_or_default();
    if !tag.is_empty() && !tag.contains(cluster.version) {
        validator.warn(format!(
            "spec.image.tag: {tag:?} does not contain the version {:?}",
            cluster.version
        ));
    }
}

/// Warns of upstream's pilot image (W20).
fn pilot_image(validator: &mut Validator, cluster: &ClusterView<'_>) {
    let repository = cluster.pilot_image.map_or("", |image| image.repository.as_str());
    if is_upstream_pilot(repository) {
        validator.warn("spec.pilotImage: upstream's pilot image is stored but not run; the controller's own image is used, see status.pilotImage".to_owned());
    }
}
