//! PersistentVolumes, and the machine that they are bound to.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{
    Node, NodeSelectorRequirement, NodeSelectorTerm, PersistentVolume,
};

use crate::engine::machines::MachineVolume;

/// Returns the names of volumes by namespace and name of the claim that they are bound to.
pub(super) fn by_claim(volumes: &[PersistentVolume]) -> BTreeMap<(String, String), String> {
    let claim_entry = |volume: &PersistentVolume| {
        let claim = volume.spec.as_ref()?.claim_ref.as_ref()?;
        Some(((claim.namespace.clone()?, claim.name.clone()?), volume.metadata.name.clone()?))
    };
    volumes.iter().filter_map(claim_entry).collect()
}

/// Returns a volume with the only machine on which it can be used, if there is but one.
pub(super) fn machine_volume(
    volume: &PersistentVolume,
    nodes: &BTreeMap<String, Node>,
) -> MachineVolume {
    let affinity = volume.spec.as_ref().and_then(|spec| spec.node_affinity.as_ref());
    let required_affinity = affinity.and_then(|affinity| affinity.required.as_ref());
    let machine = required_affinity.and_then(|selector| {
        let terms = &selector.node_selector_terms;
        let mut matching_nodes =
            nodes.values().filter(|node| terms.iter().any(|term| is_term_met(term, node)));
        let only_node = matching_nodes.next()?;
        matching_nodes.next().is_none().then(|| only_node.metadata.name.clone())?
    });
    MachineVolume { name: volume.metadata.name.clone().unwrap_or_default(), machine }
}

/// Does a term allow the machine? As Kubernetes has it, a term without requirements allows none.
fn is_term_met(term: &NodeSelectorTerm, node: &Node) -> bool {
    let expressions = term.match_expressions.as_deref().unwrap_or_default();
    let fields = term.match_fields.as_deref().unwrap_or_default();
    let label = |key: &str| node.metadata.labels.as_ref()?.get(key).map(String::as_str);
    let field = |key: &str| {
        let name = node.metadata.name.as_deref();
        name.filter(|_| key == "metadata.name")
    };
    !(expressions.is_empty() && fields.is_empty())
        && expressions
            .iter()
            .all(|requirement| is_requirement_met(requirement, label(&requirement.key)))
        && fields.iter().all(|requirement| is_requirement_met(requirement, field(&requirement.key)))
}

fn is_requirement_met(requirement: &NodeSelectorRequirement, actual_value: Option<&str>) -> bool {
    let values = requirement.values.as_deref().unwrap_or_default();
    let is_one_of =
        || actual_value.is_some_and(|actual| values.iter().any(|value| value == actual));
    let compare_numbers = || {
        let actual_number: i64 = actual_value?.parse().ok()?;
        let value: i64 = values.first()?.parse().ok()?;
        Some(actual_number.cmp(&value))
    };
    match requirement.operator.as_str() {
        "In" => is_one_of(),
        "NotIn" => !is_one_of(),
        "Exists" => actual_value.is_some(),
        "DoesNotExist" => actual_value.is_none(),
        "Gt" => compare_numbers().is_some_and(std::cmp::Ordering::is_gt),
        "Lt" => compare_numbers().is_some_and(std::cmp::Ordering::is_lt),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn nodes() -> BTreeMap<String, Node> {
        let node = |name: &str, host: &str, zone: &str| {
            let node = json!({"metadata": {
                "name": name, "labels": {"kubernetes.io/hostname": host, "zone": zone},
            }});
            (name.to_owned(), serde_json::from_value(node).unwrap())
        };
        [node("m-1", "host-1", "a"), node("m-2", "host-2", "b"), node("m-3", "host-3", "b")].into()
    }

    fn bound(terms: &Value) -> Option<String> {
        let given = serde_json::from_value(json!({
            "metadata": {"name": "pv-1"},
            "spec": {"nodeAffinity": {"required": {"nodeSelectorTerms": terms}}},
        }));
        machine_volume(&given.unwrap(), &nodes()).machine
    }

    #[test]
    fn a_volume_is_bound_where_but_one_machine_fits() {
        let labelled = |key: &str, operator: &str, values: Value| json!({"matchExpressions": [{"key": key, "operator": operator, "values": values}]});
        let host = "kubernetes.io/hostname";
        let by_name =
            json!({"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["m-3"]}]});
        for (terms, machine) in [
            (json!([labelled(host, "In", json!(["host-2"]))]), Some("m-2")),
            (json!([labelled("zone", "In", json!(["a"]))]), Some("m-1")),
            (json!([labelled("zone", "In", json!(["b"]))]), None),
            (json!([labelled("zone", "NotIn", json!(["b"]))]), Some("m-1")),
            (json!([labelled(host, "In", json!(["gone"]))]), None),
            (json!([by_name]), Some("m-3")),
            (json!([by_name, labelled("zone", "In", json!(["a"]))]), None),
            (json!([{}]), None),
        ] {
            assert_eq!(bound(&terms).as_deref(), machine, "{terms}");
        }
        let free = serde_json::from_value(json!({"metadata": {"name": "pv-1"}, "spec": {}}));
        assert_eq!(machine_volume(&free.unwrap(), &nodes()).machine, None);
    }
}
