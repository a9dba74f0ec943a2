//! Builds the StatefulSet of a pool.
//!
//! The object is built as JSON, where the other resources are typed: an overlay may set fields of a
//! pod that our types do not know, and it is applied as it was written.

use k8s_openapi::api::apps::v1::StatefulSet;
use serde_json::{Value, json};

use super::{
    Labels, ObjectSettings, PreparedObject, build_metadata, claim::claim_templates, pod,
    pool_labels, selector_labels,
};
use crate::{
    api::names::{
        self,
        annotation::{self, CLAIM_TEMPLATE},
        label,
    },
    controller::{
        desired_state::{DesiredCluster, DesiredPool, hash},
        observe::ObservedPool,
    },
};

/// Builds the StatefulSet with this number of replicas. `observed_pool` is the existing pool, if
/// any. `pin` is the config hash of an older template that the set keeps: the caller adds that
/// template before the set is written.
pub(crate) fn stateful_set(
    desired: &DesiredCluster,
    settings: &ObjectSettings,
    pool: &DesiredPool,
    observed_pool: Option<&ObservedPool>,
    replicas: u32,
    pin: Option<&str>,
) -> PreparedObject {
    let set = observed_pool
        .and_then(|observed_pool| observed_pool.set.as_ref())
        .and_then(|set| set.object.as_deref());
    // Claim templates of a living StatefulSet cannot be changed; they are sent back as found.
    let claims = match set {
        Some(set) => set.spec.as_ref().and_then(|spec| spec.volume_claim_templates.clone()),
        None => Some(claim_templates(desired, pool)),
    };
    let claims = claims.unwrap_or_default();
    let claims_hash = match set {
        Some(set) => set
            .metadata
            .annotations
            .as_ref()
            .and_then(|entries| entries.get(CLAIM_TEMPLATE).cloned()),
        None => (!claims.is_empty()).then(|| hash(&claims)),
    };
    let mut annotations = stateful_set_annotations(desired);
    annotations.extend(claims_hash.map(|claims_hash| (CLAIM_TEMPLATE.to_owned(), claims_hash)));
    let mut body = json!({
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": build_metadata(
            desired, settings, &pool.set, stateful_set_labels(desired, pool), annotations,
        ),
        "spec": {
            "replicas": replicas,
            "serviceName": names::pods_service(&pool.set),
            // Pilots order themselves; OrderedReady would deadlock after a full outage.
            "podManagementPolicy": "Parallel",
            // Pods are replaced by the plan, one at a time.
            "updateStrategy": {"type": "OnDelete"},
            "persistentVolumeClaimRetentionPolicy": {
                "whenDeleted": "Retain", "whenScaled": "Retain",
            },
            "revisionHistoryLimit": 3,
            "selector": {"matchLabels": selector_labels(desired, Some(pool))},
            "template": match pin {
                Some(hash) => json!({"metadata": {"annotations": {annotation::CONFIG_HASH: hash}}}),
                None => pod::build_template(desired, pool, !claims.is_empty()),
            },
        },
    });
    if !claims.is_empty() {
        body["spec"]["volumeClaimTemplates"] = json!(claims);
    }
    let hash = hash(&without_replicas(&body));
    PreparedObject::new::<StatefulSet>(body, &hash)
}

/// Returns `body` without replicas: the plan changes them, so the hash leaves them out.
fn without_replicas(body: &Value) -> Value {
    let mut body = body.clone();
    if let Some(spec) = body["spec"].as_object_mut() {
        spec.remove("replicas");
    }
    body
}

fn stateful_set_labels(desired: &DesiredCluster, pool: &DesiredPool) -> Labels {
    let mut labels = pool_labels(desired, pool);
    labels.insert(label::K8S_VERSION.to_owned(), label_value(&desired.version));
    labels
}

/// Returns the annotations that only this database has.
fn stateful_set_annotations(desired: &DesiredCluster) -> Labels {
    let database_annotations = (desired.database.set_annotations)(desired);
    database_annotations.into_iter().map(|(key, value)| (key.to_owned(), value)).collect()
}

/// Turns a version into a valid label value.
fn label_value(version: &str) -> String {
    let is_valid = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    let value: String =
        version.chars().map(|c| if is_valid(c) { c } else { '-' }).take(63).collect();
    value.trim_matches(|c: char| !c.is_ascii_alphanumeric()).to_owned()
}
