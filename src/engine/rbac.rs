//! What the controller, the pilots and the coordinator may do on Kubernetes: tables of RBAC rules.
//!
//! The controller creates the pilots' Role, and Kubernetes lets a subject grant only rights that it
//! holds itself: so [`controller_rules`] covers [`pilot_rules`], without `escalate` or `bind`. A
//! test here holds that.

use std::collections::BTreeMap;

use k8s_openapi::api::rbac::v1::PolicyRule;

use super::{hub, roles::RBAC};
use crate::api::{GROUP, containership, names};

fn build_rule(group: &str, resources: &[&str], verbs: &[&str]) -> PolicyRule {
    let to_strings = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect();
    PolicyRule {
        api_groups: Some(vec![group.to_owned()]),
        resources: Some(to_strings(resources)),
        verbs: to_strings(verbs),
        ..PolicyRule::default()
    }
}

fn limit_to_name(mut rule: PolicyRule, name: &str) -> PolicyRule {
    rule.resource_names = Some(vec![name.to_owned()]);
    rule
}

const READ: &[&str] = &["get", "list", "watch"];
/// Verbs for objects that the controller makes: it changes them by patches, server-side apply
/// among them.
const OWN: &[&str] = &["get", "list", "watch", "create", "patch", "delete"];

/// Returns the rules of the Role of one cluster's pilots; `lease` is the name of its LeaderLease.
/// Our API server lets a pilot write the status of its own Pilot only.
pub fn pilot_rules(lease: &str) -> Vec<PolicyRule> {
    vec![
        build_rule("", &["pods"], &["get"]),
        build_rule(GROUP, &["pilots"], READ),
        build_rule(GROUP, &["pilots/status"], &["patch"]),
        // A create names nothing yet, so it cannot be limited to a name.
        build_rule(GROUP, &["leaderleases"], &["create"]),
        limit_to_name(build_rule(GROUP, &["leaderleases"], &["get", "update"]), lease),
        build_rule("events.k8s.io", &["events"], &["create", "patch"]),
    ]
}

/// Returns the rules of the controller's ClusterRole; `clusters` holds the plurals of the kinds of
/// clusters. `docs/hardening.md` says of each right what it is for.
pub fn controller_rules(clusters: &[&str]) -> Vec<PolicyRule> {
    let mut clusters = clusters.to_vec();
    clusters.sort_unstable();
    let subresource_rule = |part: &str, verbs: &[&str]| {
        let resources: Vec<String> =
            clusters.iter().map(|plural| format!("{plural}/{part}")).collect();
        build_rule(GROUP, &resources.iter().map(String::as_str).collect::<Vec<_>>(), verbs)
    };
    vec![
        // `patch` is for the teardown finalizer; no controller writes a cluster's spec.
        build_rule(GROUP, &clusters, &["get", "list", "watch", "patch"]),
        subresource_rule("status", &["update"]),
        build_rule(GROUP, &["pilots"], OWN),
        build_rule(GROUP, &["pilots/status"], &["patch"]),
        // The controller only reads the leader's name. It holds the write verbs to be allowed to
        // grant them to the pilots.
        build_rule(GROUP, &["leaderleases"], &["get", "list", "watch", "create", "update"]),
        build_rule("", &["services", "serviceaccounts"], OWN),
        // CAs, users and certificates; and the Secrets of passwords that clusters name.
        build_rule("", &["configmaps", "secrets"], OWN),
        // `patch` is for labels of single nodes.
        build_rule("", &["pods"], &["get", "list", "watch", "patch", "delete"]),
        // An ephemeral container brings a newer pilot into a running pod.
        build_rule("", &["pods/ephemeralcontainers"], &["patch"]),
        // `patch` is for labels, annotations and larger sizes.
        build_rule("", &["persistentvolumeclaims"], &["get", "list", "watch", "patch", "delete"]),
        build_rule("", &["namespaces"], &["get"]),
        // The controller tells a namespace that is being deleted that our pods in it are gone.
        build_rule("", &["namespaces/status"], &["patch"]),
        // `list` tells why a pod is not created, or its volume not mounted.
        build_rule("events.k8s.io", &["events"], &["create", "patch", "list"]),
        build_rule("apps", &["statefulsets"], OWN),
        // A pod that is evicted before its turn is made of the template that it had.
        build_rule("apps", &["controllerrevisions"], &["list"]),
        build_rule("policy", &["poddisruptionbudgets"], OWN),
        build_rule("networking.k8s.io", &["networkpolicies"], OWN),
        build_rule("rbac.authorization.k8s.io", &["roles", "rolebindings"], OWN),
        // For the status page.
        build_rule(containership::PROVISION_GROUP, &["clusterupgrades"], &["list"]),
    ]
}

/// Returns the rules of the controller's Role in the namespace of the install: it reads the record
/// of the store's identity, makes the key of its seals, and writes the one lease by which the controller's replicas elect their
/// leader. Leases elsewhere belong to machines and to other controllers.
pub fn controller_install_rules() -> Vec<PolicyRule> {
    let leases = |verbs: &[&str]| build_rule("coordination.k8s.io", &["leases"], verbs);
    vec![
        limit_to_name(build_rule("", &["configmaps"], &["get"]), names::STORE_CONFIG_MAP),
        limit_to_name(build_rule("", &["secrets"], &["get"]), names::SEAL_SECRET),
        // A create names nothing yet, so it cannot be limited to a name.
        leases(&["create"]),
        build_rule("", &["secrets"], &["create"]),
        limit_to_name(leases(&["get", "update"]), names::CONTROLLER),
    ]
}

/// Returns the rules of the coordinator's ClusterRole; `clusters` holds the plurals of the kinds of
/// clusters. `coordinator/upgrade/tests/rights.rs` holds that it uses each of them, and needs no
/// other.
pub fn coordinator_rules(clusters: &[&str]) -> Vec<PolicyRule> {
    let mut clusters = clusters.to_vec();
    clusters.sort_unstable();
    vec![
        // `patch` is for cordons and taints.
        build_rule("", &["nodes"], &["list", "watch", "patch"]),
        build_rule("", &["pods", "persistentvolumes"], &["list"]),
        build_rule("", &["pods/eviction"], &["create"]),
        build_rule(GROUP, &clusters, &["list"]),
        // `patch` is for the request to leave a machine.
        build_rule(GROUP, &["pilots"], &["list", "patch"]),
    ]
}

/// Returns the rules of the coordinator's Role in the namespace of the ClusterUpgrades, where the
/// lease of its replicas is, too.
pub fn coordinator_core_rules() -> Vec<PolicyRule> {
    let upgrades = |resource: &str, verbs: &[&str]| {
        build_rule(containership::PROVISION_GROUP, &[resource], verbs)
    };
    let leases = |verbs: &[&str]| build_rule("coordination.k8s.io", &["leases"], verbs);
    vec![
        // `patch` is for the finalizer, `delete` for runs that are over for as long as they say.
        upgrades("clusterupgrades", &["list", "watch", "patch", "delete"]),
        upgrades("clusterupgrades/status", &["update"]),
        build_rule(containership::GROUP, &["users"], &["list", "watch"]),
        build_rule(containership::GROUP, &["users/status"], &["update"]),
        build_rule("events.k8s.io", &["events"], &["create", "patch"]),
        // A create names nothing yet, so it cannot be limited to a name.
        leases(&["create"]),
        limit_to_name(leases(&["get", "update"]), names::COORDINATOR),
    ]
}

/// Returns the rules of the coordinator's ClusterRole that Registries need, on top of its others. Kubernetes
/// cannot limit a list to metadata or to a label, so that who holds these may read every Secret.
pub fn registry_rules() -> Vec<PolicyRule> {
    vec![
        build_rule("", &["namespaces"], &["list", "watch"]),
        // `update` is for new credentials, and for Secrets that were edited.
        build_rule("", &["secrets"], &["list", "watch", "create", "update", "delete"]),
        // `create` is for `containership`, and `patch` for `imagePullSecrets`.
        build_rule("", &["serviceaccounts"], &["list", "watch", "create", "patch"]),
    ]
}

/// Returns the rules of the coordinator's Role in the namespace of the Registries that these need.
pub fn registry_core_rules() -> Vec<PolicyRule> {
    vec![
        // `patch` is for the finalizer, and for credentials that are moved into a Secret.
        build_rule(containership::GROUP, &["registries"], &["list", "watch", "patch"]),
        build_rule(containership::GROUP, &["registries/status"], &["update"]),
        build_rule("", &["secrets"], &["get"]),
    ]
}

/// Returns the rules of the coordinator's ClusterRole that AuthorizationRoles need: to give rights that it
/// does not hold itself, so that who holds these may take any right.
pub fn role_rules() -> Vec<PolicyRule> {
    let rbac = |resources: &[&str], verbs: &[&str]| build_rule(RBAC, resources, verbs);
    vec![
        rbac(
            &["clusterroles", "clusterrolebindings", "rolebindings"],
            &["list", "watch", "create", "update", "delete"],
        ),
        rbac(&["clusterroles"], &["escalate", "bind"]),
    ]
}

/// Returns the rules of the coordinator's Role in the namespace of the AuthorizationRoles that these need.
pub fn role_core_rules() -> Vec<PolicyRule> {
    let kinds = ["authorizationroles", "authorizationrolebindings"];
    let statuses = ["authorizationroles/status", "authorizationrolebindings/status"];
    vec![
        // `patch` is for the finalizer.
        build_rule(containership::AUTH_GROUP, &kinds, &["list", "watch", "patch"]),
        build_rule(containership::AUTH_GROUP, &statuses, &["update"]),
    ]
}

/// Returns the rules of the coordinator's Role in the namespace of the Plugins that these need. Kubernetes
/// cannot limit an impersonation to names that begin in some way.
pub fn plugin_core_rules() -> Vec<PolicyRule> {
    vec![
        // `patch` is for the finalizer.
        build_rule(containership::GROUP, &["plugins"], &["list", "watch", "patch"]),
        build_rule(containership::GROUP, &["plugins/status"], &["update"]),
        // The records of Plugins; `get` is for manifests, too.
        build_rule("", &["configmaps"], &["get", "create", "update", "delete"]),
        build_rule("", &["serviceaccounts"], &["impersonate"]),
    ]
}

/// Returns the rules of the coordinator's Role in its namespace that a hub needs.
pub fn hub_core_rules(namespace: &str) -> Vec<PolicyRule> {
    let mut rules = vec![limit_to_name(build_rule("", &["namespaces"], &["get"]), namespace)];
    // A patch that makes an object asks for `create`, too.
    rules.extend(cluster_manager_rules(&["list", "create", "patch", "delete"], |plural| {
        hub::KINDS.iter().any(|kind| kind.plural == plural)
    }));
    rules
}

/// Returns the rules of the coordinator's ClusterRole that the end of the cluster manager needs. The uid of
/// `kube-system` stands for the cluster; `serviceaccounts` are those that Registries had made.
pub fn terminate_rules(registries: bool) -> Vec<PolicyRule> {
    let definitions: Vec<String> = containership::kind_definitions()
        .iter()
        .map(|definition| definition.name.clone())
        .collect();
    let mut rules = vec![
        limit_to_name(build_rule("", &["namespaces"], &["get"]), "kube-system"),
        PolicyRule {
            resource_names: Some(definitions),
            ..build_rule("apiextensions.k8s.io", &["customresourcedefinitions"], &["delete"])
        },
    ];
    if registries {
        rules.push(build_rule("", &["serviceaccounts"], &["delete"]));
    }
    rules
}

/// Returns the rules of the coordinator's Role in its namespace that the end of the cluster manager needs.
pub fn terminate_core_rules(namespace: &str) -> Vec<PolicyRule> {
    // `patch` is for the annotation that says how far it is.
    let mut rules =
        vec![limit_to_name(build_rule("", &["namespaces"], &["get", "patch"]), namespace)];
    rules.extend(cluster_manager_rules(&["list", "delete"], |_| true));
    rules
}

/// Returns a rule for each group of the cluster manager's kinds, for those that are chosen.
fn cluster_manager_rules(verbs: &[&str], is_chosen: impl Fn(&str) -> bool) -> Vec<PolicyRule> {
    let mut groups: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for definition in containership::kind_definitions() {
        if is_chosen(&definition.plural) {
            groups.entry(definition.group.clone()).or_default().push(definition.plural.clone());
        }
    }
    let group_rule = |(group, plurals): (String, Vec<String>)| {
        let plurals: Vec<&str> = plurals.iter().map(String::as_str).collect();
        build_rule(&group, &plurals, verbs)
    };
    groups.into_iter().map(group_rule).collect()
}

/// Returns the rules of the coordinator's Role in the namespace of the labels that these need. It patches
/// Nodes, too, which it may for upgrades.
pub fn label_core_rules() -> Vec<PolicyRule> {
    let labels = |group: &str, plural: &str| {
        [
            build_rule(group, &[plural], &["list", "watch"]),
            build_rule(group, &[&format!("{plural}/status")], &["update"]),
        ]
    };
    let mut rules = labels(containership::GROUP, "clusterlabels").to_vec();
    rules.extend(labels(containership::PROVISION_GROUP, "nodepoollabels"));
    rules
}

/// Do the rules of `holder` allow `verb` on every object of the resource?
pub fn is_allowed(holder: &[PolicyRule], group: &str, resource: &str, verb: &str) -> bool {
    holder.iter().any(|rule| {
        let contains = |list: &Option<Vec<String>>, word: &str| {
            list.iter().flatten().any(|entry| entry == word)
        };
        rule.resource_names.is_none()
            && contains(&rule.api_groups, group)
            && contains(&rule.resources, resource)
            && rule.verbs.iter().any(|rule_verb| rule_verb == verb)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_controller_holds_every_right_that_it_grants() {
        let held = controller_rules(&["exampleclusters"]);
        for rule in pilot_rules("example-demo-leaderelection") {
            for group in rule.api_groups.iter().flatten() {
                for resource in rule.resources.iter().flatten() {
                    for verb in &rule.verbs {
                        assert!(
                            is_allowed(&held, group, resource, verb),
                            "{group} {resource} {verb}"
                        );
                    }
                }
            }
        }
    }

    #[test]
    fn leases_of_others_are_out_of_reach() {
        let groups = |rule: PolicyRule| rule.api_groups.unwrap_or_default();
        let everywhere =
            controller_rules(&["exampleclusters"]).into_iter().chain(pilot_rules("lease"));
        let everywhere: Vec<String> = everywhere.flat_map(groups).collect();
        assert!(!everywhere.iter().any(|group| group == "coordination.k8s.io"), "{everywhere:?}");
    }

    #[test]
    fn rights_to_take_rights_come_with_their_switches_alone() {
        let controllers = controller_rules(&["exampleclusters"]).into_iter();
        let coordinators = coordinator_rules(&["exampleclusters"]).into_iter();
        let all = controllers.chain(pilot_rules("lease")).chain(coordinators);
        let all = all.chain(coordinator_core_rules()).chain(label_core_rules());
        let all = all.chain(registry_rules()).chain(registry_core_rules()).chain(role_core_rules());
        for rule in all {
            for verb in rule.verbs {
                assert!(!["*", "escalate", "bind", "impersonate"].contains(&verb.as_str()));
            }
        }
    }
}
