//! NetworkPolicy of a cluster: who may connect to its pods.
//!
//! Networks add up what policies allow, so this one takes nothing from what another one lets in. It
//! names no egress, which stays as it is.

use k8s_openapi::{
    api::networking::v1::{
        NetworkPolicy, NetworkPolicyIngressRule, NetworkPolicyPeer, NetworkPolicyPort,
        NetworkPolicySpec,
    },
    apimachinery::pkg::{apis::meta::v1::LabelSelector, util::intstr::IntOrString},
};

use super::{
    DesiredObject, Labels, ObjectSettings, build_metadata, cluster_labels, selector_labels,
};
use crate::{
    api::{names::port, v1beta1::NetworkAccess},
    controller::desired_state::DesiredCluster,
};

/// Builds the policy, where the cluster asks for one.
pub(super) fn network_policy(
    desired: &DesiredCluster,
    settings: &ObjectSettings,
) -> Option<DesiredObject> {
    let access = desired.network.as_ref()?;
    let NetworkAccess { policy: _, clients, monitoring, internode } = access;
    let names = desired.database.names;
    let own_peer = NetworkPolicyPeer {
        pod_selector: Some(LabelSelector {
            match_labels: Some(selector_labels(desired, None)),
            match_expressions: None,
        }),
        ..NetworkPolicyPeer::default()
    };
    let is_node_port = |name: &str| names.node_ports.contains(&name);
    let ports = |is_included: &dyn Fn(&str) -> bool| {
        let database_ports = names.ports.iter().filter(|(_, number)| *number != port::METRICS);
        database_ports
            .filter(|(name, _)| is_included(name))
            .map(|(_, number)| *number)
            .collect::<Vec<_>>()
    };
    let node_peers = if desired.nodes_elsewhere && internode.is_empty() {
        Vec::new()
    } else {
        [own_peer.clone()].into_iter().chain(internode.iter().cloned()).collect()
    };
    // Peers of one rule are alternatives, so the pods of the cluster are named beside others.
    let with_own_peer = |others: &Vec<NetworkPolicyPeer>| {
        let own_peer = (!others.is_empty()).then(|| own_peer.clone());
        others.iter().cloned().chain(own_peer).collect()
    };
    let ingress = vec![
        ingress_rule(&ports(&is_node_port), node_peers),
        ingress_rule(&ports(&|name| !is_node_port(name)), with_own_peer(clients)),
        ingress_rule(&[port::METRICS], with_own_peer(monitoring)),
        // Kubelets: what is answered there changes nothing.
        ingress_rule(
            &[port::PILOT_LIVENESS, port::PILOT_READINESS, port::PILOT_STARTUP],
            Vec::new(),
        ),
    ];
    let name = names.network_policy(&desired.name);
    Some(DesiredObject::from_object(&NetworkPolicy {
        metadata: build_metadata(desired, settings, &name, cluster_labels(desired), Labels::new()),
        spec: Some(NetworkPolicySpec {
            pod_selector: own_peer.pod_selector,
            policy_types: Some(vec!["Ingress".to_owned()]),
            ingress: Some(ingress.into_iter().flatten().collect()),
            egress: None,
        }),
    }))
}

/// Lets these peers reach these ports; everybody, where there is no peer. `None` without a port: a
/// rule without ports is about all of them.
fn ingress_rule(ports: &[u16], peers: Vec<NetworkPolicyPeer>) -> Option<NetworkPolicyIngressRule> {
    let port = |number: &u16| NetworkPolicyPort {
        port: Some(IntOrString::Int(i32::from(*number))),
        protocol: Some("TCP".to_owned()),
        end_port: None,
    };
    (!ports.is_empty()).then(|| NetworkPolicyIngressRule {
        ports: Some(ports.iter().map(port).collect()),
        from: (!peers.is_empty()).then_some(peers),
    })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::controller::{resources::PreparedObject, testing::sample::desired};

    /// Returns ports and peers of each rule.
    fn rules(network: Value, elsewhere: bool) -> Vec<(Vec<i64>, Value)> {
        let mut desired = desired(&[("a", 1)], "new");
        desired.network = Some(serde_json::from_value(network).unwrap());
        desired.nodes_elsewhere = elsewhere;
        let settings = ObjectSettings {
            pilot_image: "p".into(),
            store_id: "s".into(),
            owner_references: false,
        };
        let PreparedObject { body, .. } = network_policy(&desired, &settings).unwrap().into();
        assert_eq!(body["spec"]["policyTypes"], json!(["Ingress"]));
        let ports = |rule: &Value| {
            let ports = rule["ports"].as_array().unwrap();
            ports.iter().map(|port| port["port"].as_i64().unwrap()).collect()
        };
        let all = body["spec"]["ingress"].as_array().unwrap();
        all.iter().map(|rule| (ports(rule), rule["from"].clone())).collect()
    }

    #[test]
    fn nodes_reach_each_other_and_others_what_they_are_let_to() {
        let own = json!({"podSelector": {"matchLabels": {
            "navigator.jetstack.io/example-cluster-name": "demo",
        }}});
        let shop = json!({"namespaceSelector": {"matchLabels": {"team": "shop"}}});
        let east = json!({"ipBlock": {"cidr": "10.9.0.0/16"}});
        let probes = (vec![12000, 12001, 12002], Value::Null);
        assert_eq!(
            rules(json!({}), false),
            [
                (vec![7778], json!([own])),
                (vec![7777], Value::Null),
                (vec![8080], Value::Null),
                probes.clone()
            ]
        );
        assert_eq!(
            rules(json!({"clients": [shop], "monitoring": [shop], "internode": [east]}), true),
            [
                (vec![7778], json!([own, east])),
                (vec![7777], json!([shop, own])),
                (vec![8080], json!([shop, own])),
                probes
            ]
        );
        assert_eq!(rules(json!({}), true)[0], (vec![7778], Value::Null), "nodes are elsewhere");
    }
}
