//! The objects of the cluster manager, which `navigator manifest --cluster-manager` prints and
//! `deploy/cluster-manager.yaml` holds: the coordinator, its rights, and the kinds that kube-apiserver
//! serves for it.
//!
//! They stand beside Navigator's own install and need nothing of it: a coordinator works where
//! databases are not, or not yet.

use serde_json::{Value, json};

use super::{
    RBAC_V1, agent, build_binding, build_deployment, build_namespace, build_object, build_probe,
    build_rule, cluster_plurals, component_labels, container_security, disruption_budget,
    from_field, liveness_probe, user_role, with_fields, write_documents,
};
use crate::{
    api::{
        containership::{self, AUTH_GROUP, GROUP, KindDefinition, PROVISION_GROUP},
        names::{self, port},
        scheme::Scheme,
    },
    engine::rbac,
};

/// Component label of all objects of the cluster manager but the roles for people.
const COMPONENT: &str = "coordinator";

/// Settings of the cluster manager.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterManagerSettings {
    /// Image of the coordinator.
    pub image: String,
    /// Namespace of the coordinator and of the ClusterUpgrades.
    pub namespace: String,
    /// Upgrades are carried out; else the coordinator refuses new ones.
    pub enable_cluster_upgrade: bool,
    /// Credentials of Registries are copied, with rights over all Secrets.
    pub registries: bool,
    /// AuthorizationRoles are kept, with the right to give any right.
    pub rbac_sync: bool,
    /// AuthorizationRoles may let their holders take rights beyond those that are named.
    pub allow_privileged_roles: bool,
    /// Plugins are applied, with the right to act as the ServiceAccounts of the namespace.
    pub plugins: bool,
    /// An agent runs on every machine and writes the SSH keys of Users there. The namespace then lets
    /// pods have folders of machines.
    pub agents: bool,
    /// The hub whose objects are kept; none without it.
    pub hub: Option<HubSettings>,
    /// The cluster manager takes itself away where a person asks for it.
    pub allow_terminate: bool,
}

/// Where a hub is, and whom it is asked about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HubSettings {
    pub url: String,
    pub organization_id: String,
    pub cluster_id: String,
}

impl Default for ClusterManagerSettings {
    fn default() -> Self {
        Self {
            image: names::IMAGE.to_owned(),
            namespace: names::CORE_NAMESPACE.to_owned(),
            enable_cluster_upgrade: false,
            registries: false,
            rbac_sync: false,
            allow_privileged_roles: false,
            plugins: false,
            agents: false,
            hub: None,
            allow_terminate: false,
        }
    }
}

/// Writes the manifest as YAML documents, in the order in which they are applied.
pub fn cluster_manager_yaml(settings: &ClusterManagerSettings, scheme: &Scheme) -> String {
    let head = format!(
        "# Installs the cluster manager into the namespace {}. Made by `navigator manifest \
         --cluster-manager`; edit that, not this.\n",
        settings.namespace
    );
    write_documents(head, &cluster_manager_objects(settings, scheme))
}

/// Returns the objects of the cluster manager, in the order in which they are applied.
pub fn cluster_manager_objects(settings: &ClusterManagerSettings, scheme: &Scheme) -> Vec<Value> {
    let (name, home) = (names::COORDINATOR, settings.namespace.as_str());
    let pods = if settings.agents { "privileged" } else { "restricted" };
    let mut objects = vec![build_namespace(home, COMPONENT, pods)];
    objects.extend(kind_definitions());
    let mut rules = rbac::coordinator_rules(&cluster_plurals(scheme));
    let mut core_rules = rbac::coordinator_core_rules();
    core_rules.extend(rbac::label_core_rules());
    if settings.registries {
        rules.extend(rbac::registry_rules());
        core_rules.extend(rbac::registry_core_rules());
    }
    if settings.rbac_sync {
        rules.extend(rbac::role_rules());
        core_rules.extend(rbac::role_core_rules());
    }
    if settings.plugins {
        core_rules.extend(rbac::plugin_core_rules());
    }
    if settings.hub.is_some() {
        core_rules.extend(rbac::hub_core_rules(home));
    }
    if settings.allow_terminate {
        rules.extend(rbac::terminate_rules(settings.registries));
        core_rules.extend(rbac::terminate_core_rules(home));
    }
    objects.extend([
        build_object("v1", "ServiceAccount", name, Some(home), COMPONENT),
        with_fields(
            build_object(RBAC_V1, "ClusterRole", name, None, COMPONENT),
            json!({"rules": rules}),
        ),
        build_binding(home, name, None, ("ClusterRole", name), name),
        with_fields(
            build_object(RBAC_V1, "Role", name, Some(home), COMPONENT),
            json!({"rules": core_rules}),
        ),
        build_binding(home, name, Some(home), ("Role", name), name),
    ]);
    objects.extend(user_roles());
    objects.push(disruption_budget(home, name, COMPONENT));
    objects.push(coordinator_deployment(settings));
    if settings.agents {
        objects.extend(agent::agent_objects(settings));
    }
    objects
}

/// Builds the definitions of the kinds. Deleting one deletes all objects of its kind.
fn kind_definitions() -> Vec<Value> {
    let with_labels = |definition: &KindDefinition| {
        let mut manifest = definition.manifest.clone();
        manifest["metadata"]["labels"] = component_labels(COMPONENT);
        manifest
    };
    containership::kind_definitions().iter().map(with_labels).collect()
}

/// Builds the roles that add the kinds to Kubernetes' own roles. An `edit` of one namespace does not
/// let anybody drain machines or log in on them; an `admin` of the namespace of the kinds may.
fn user_roles() -> [Value; 2] {
    let (read_verbs, write_verbs) = (
        &["get", "list", "watch"][..],
        &["create", "update", "patch", "delete", "deletecollection"][..],
    );
    let kind_rules = |verbs: &[&str]| {
        vec![
            build_rule(PROVISION_GROUP, &["clusterupgrades", "nodepoollabels"], &[], verbs),
            build_rule(GROUP, &["clusterlabels", "users"], &[], verbs),
            build_rule(
                AUTH_GROUP,
                &["authorizationroles", "authorizationrolebindings"],
                &[],
                verbs,
            ),
        ]
    };
    // A Registry may hold credentials until they are moved into a Secret, and a Plugin Secrets.
    let mut write_rules = kind_rules(write_verbs);
    write_rules.push(build_rule(
        GROUP,
        &["plugins", "registries"],
        &[],
        &[read_verbs, write_verbs].concat(),
    ));
    let (view_rules, admin_rules) = (json!(kind_rules(read_verbs)), json!(write_rules));
    [
        user_role("navigator-machines-view", &["view", "edit", "admin"], &view_rules),
        user_role("navigator-machines-admin", &["admin"], &admin_rules),
    ]
}

/// Builds the coordinator's Deployment. One of two leads: when a machine with the leader is drained,
/// the other one goes on.
fn coordinator_deployment(settings: &ClusterManagerSettings) -> Value {
    let mut args = vec![COMPONENT.to_owned()];
    for (switch, is_on) in [
        ("--enable-cluster-upgrade", settings.enable_cluster_upgrade),
        ("--registries", settings.registries),
        ("--rbac-sync", settings.rbac_sync),
        ("--allow-privileged-roles", settings.allow_privileged_roles),
        ("--plugins", settings.plugins),
        ("--allow-terminate", settings.allow_terminate),
    ] {
        args.extend(is_on.then(|| switch.to_owned()));
    }
    let (mut volumes, mut mounts) = (json!([]), json!([]));
    if let Some(HubSettings { url, organization_id, cluster_id }) = &settings.hub {
        for (flag, value) in
            [("hub", url), ("organization-id", organization_id), ("cluster-id", cluster_id)]
        {
            args.push(format!("--{flag}={value}"));
        }
        mounts = json!([{"name": "hub", "mountPath": names::HUB_FOLDER, "readOnly": true}]);
        // Without it the coordinator works, and says that it cannot ask the hub.
        let secret = json!({"secretName": names::HUB_SECRET, "optional": true});
        volumes = json!([{"name": "hub", "secret": secret}]);
    }
    let mut container = json!({
        "name": COMPONENT,
        "image": settings.image,
        "args": args,
        "env": [
            from_field("NAVIGATOR_CORE_NAMESPACE", "metadata.namespace"),
            from_field("NAVIGATOR_POD_NAME", "metadata.name"),
        ],
        "ports": [{"name": "metrics", "containerPort": port::METRICS}],
        "livenessProbe": liveness_probe("metrics", "HTTP"),
        "readinessProbe": build_probe("/readyz", "metrics", "HTTP"),
        "resources": {
            "requests": {"cpu": "100m", "memory": "32Mi"},
            "limits": {"memory": "256Mi"},
        },
        "securityContext": container_security(),
    });
    if settings.hub.is_some() {
        container["volumeMounts"] = mounts;
    }
    let strategy = json!({"type": "RollingUpdate"});
    let (home, name) = (&settings.namespace, names::COORDINATOR);
    let mut deployment =
        build_deployment(home, name, COMPONENT, 2, &strategy, &container, &volumes);
    let selector = deployment["spec"]["selector"].clone();
    deployment["spec"]["template"]["spec"]["affinity"] = json!({"podAntiAffinity": {
        "preferredDuringSchedulingIgnoredDuringExecution": [{
            "weight": 100,
            "podAffinityTerm": {"labelSelector": selector, "topologyKey": "kubernetes.io/hostname"},
        }],
    }});
    deployment
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::names::label;

    fn spec(enable_cluster_upgrade: bool) -> Value {
        let settings =
            ClusterManagerSettings { enable_cluster_upgrade, ..ClusterManagerSettings::default() };
        let objects = cluster_manager_objects(&settings, Scheme::new(&[]));
        let found = objects.iter().find(|object| object["kind"] == "Deployment");
        found.unwrap()["spec"].clone()
    }

    #[test]
    fn upgrades_are_off_unless_they_are_asked_for() {
        let args = |spec: &Value| spec["template"]["spec"]["containers"][0]["args"].clone();
        assert_eq!(args(&spec(false)), json!(["coordinator"]));
        assert_eq!(args(&spec(true)), json!(["coordinator", "--enable-cluster-upgrade"]));
    }

    #[test]
    fn each_switch_brings_its_own_rights_and_no_others() {
        for (registries, rbac_sync, plugins) in [
            (false, false, false),
            (true, false, false),
            (false, true, false),
            (false, false, true),
        ] {
            let settings = ClusterManagerSettings {
                registries,
                rbac_sync,
                plugins,
                ..ClusterManagerSettings::default()
            };
            let objects = cluster_manager_objects(&settings, Scheme::new(&[]));
            let roles = objects.iter().filter(|object| {
                let kind = object["kind"].as_str().unwrap_or_default();
                kind.ends_with("Role") && object["metadata"]["name"] == names::COORDINATOR
            });
            let rules: Vec<&Value> =
                roles.flat_map(|role| role["rules"].as_array().unwrap()).collect();
            let of = |resource: &str| {
                rules.iter().any(|rule| rule["resources"].to_string().contains(resource))
            };
            assert!(of("\"clusterlabels\"") && of("\"nodepoollabels/status\""));
            assert_eq!(of("\"secrets\""), registries);
            assert_eq!(of("\"registries\""), registries);
            assert_eq!(of("\"clusterroles\""), rbac_sync);
            assert_eq!(of("\"authorizationroles\""), rbac_sync);
            assert_eq!(of("\"plugins\""), plugins);
            assert_eq!(of("\"configmaps\""), plugins);
            let verbs: String = rules.iter().map(|rule| rule["verbs"].to_string()).collect();
            assert_eq!(verbs.contains("escalate") && verbs.contains("bind"), rbac_sync);
            assert_eq!(verbs.contains("impersonate"), plugins);
        }
    }

    #[test]
    fn what_a_hub_and_an_end_need_comes_with_them_alone() {
        let hub = HubSettings {
            url: "https://hub.example.org".to_owned(),
            organization_id: "o".to_owned(),
            cluster_id: "c".to_owned(),
        };
        for (hub, allow_terminate) in
            [(None, false), (Some(hub.clone()), false), (None, true), (Some(hub), true)]
        {
            let with_hub = hub.is_some();
            let settings = ClusterManagerSettings {
                hub,
                allow_terminate,
                ..ClusterManagerSettings::default()
            };
            let objects = cluster_manager_objects(&settings, Scheme::new(&[]));
            let of = |kind: &str| -> &Value {
                let is = |object: &&Value| {
                    object["kind"] == kind && object["metadata"]["name"] == names::COORDINATOR
                };
                objects.iter().find(is).unwrap()
            };
            let (wide, core) =
                (of("ClusterRole")["rules"].to_string(), of("Role")["rules"].to_string());
            assert_eq!(wide.contains("customresourcedefinitions"), allow_terminate);
            assert!(
                !wide.contains("serviceaccounts") && !core.contains("secrets"),
                "{wide} {core}"
            );
            assert_eq!(core.contains("\"create\",\"patch\",\"delete\""), with_hub, "{core}");
            assert_eq!(core.contains("namespaces"), with_hub || allow_terminate);
            let pod = &of("Deployment")["spec"]["template"]["spec"];
            assert_eq!(pod["containers"][0]["args"].to_string().contains("--hub="), with_hub);
            assert_eq!(pod["volumes"].to_string().contains(names::HUB_SECRET), with_hub);
        }
    }

    /// By these labels a drain knows the coordinator's pods, and evicts them last.
    #[test]
    fn the_coordinators_pods_are_known_to_a_drain() {
        let labels = spec(true)["template"]["metadata"]["labels"].clone();
        assert_eq!(labels[label::K8S_PART_OF], "navigator");
        assert_eq!(labels[label::K8S_COMPONENT], "coordinator");
    }

    #[test]
    fn machines_are_drained_by_those_only_who_administer_the_namespace() {
        let [view, admin] = user_roles();
        assert_eq!(view["rules"][0]["verbs"], json!(["get", "list", "watch"]));
        let labels = admin["metadata"]["labels"].as_object().unwrap();
        let joined: Vec<&String> =
            labels.keys().filter(|key| key.contains("aggregate-to")).collect();
        assert_eq!(joined, ["rbac.authorization.k8s.io/aggregate-to-admin"]);
    }
}
