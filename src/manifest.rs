//! The objects of an install, which `navigator manifest` prints and `deploy/navigator.yaml` holds,
//! built from the names, ports and rules that the code itself uses. Those of the cluster manager are
//! in `cluster_manager.rs`.
//!
//! Pure: settings in, objects out.

use k8s_openapi::api::rbac::v1::PolicyRule;
use serde_json::{Value, json};

pub mod agent;
mod cluster_manager;
mod store_keeper;

pub use self::cluster_manager::{
    ClusterManagerSettings, HubSettings, cluster_manager_objects, cluster_manager_yaml,
};
use self::store_keeper::ProtectedStore;
use crate::{
    api::{
        GROUP, V1BETA1, VERSIONS,
        names::{self, UID, label, port},
        scheme::Scheme,
    },
    engine::{rbac, stored_object},
    machinery::served_kind::{ServedKind, ServedVersion},
};

/// Path at which the embedded store's claim is mounted in the API server's container.
const STORE_PATH: &str = "/var/lib/navigator";

/// Component label of the objects that stay when Navigator is uninstalled: the store, and the
/// namespace around it.
const STORE_COMPONENT: &str = "store";

/// Name of the RoleBinding of the controller's rights in the one namespace that it watches.
const WATCH_BINDING: &str = "navigator-controller-watch";

/// Path at which the certificates for etcd are mounted in the API server's container.
const ETCD_TLS_PATH: &str = "/etc/navigator/etcd";

/// The store that the API server of an install uses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum InstallStore {
    /// A file on a claim of 1 GiB, hence one replica that is recreated.
    Embedded,
    /// An etcd cluster, hence two replicas and no claim.
    Etcd {
        /// URLs of the etcd members.
        servers: Vec<String>,
        /// Secret with `ca.crt`, `tls.crt` and `tls.key` for the etcd members; plain text when
        /// absent.
        secret: Option<String>,
    },
    /// The Kubernetes API itself, hence two replicas and no claim.
    Kubernetes,
}

/// Settings of an install.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InstallSettings {
    /// Image of the API server, the controller and the pilots.
    pub image: String,
    pub store: InstallStore,
    /// Namespace of the install.
    pub namespace: String,
    /// The one namespace whose clusters the controller watches; all namespaces when absent.
    pub watch_namespace: Option<String>,
}

impl Default for InstallSettings {
    fn default() -> Self {
        Self {
            image: names::IMAGE.to_owned(),
            store: InstallStore::Embedded,
            namespace: names::NAMESPACE.to_owned(),
            watch_namespace: None,
        }
    }
}

/// Writes the manifest as YAML documents, in the order in which they are applied.
pub fn manifest_yaml(settings: &InstallSettings, scheme: &Scheme) -> String {
    let head = format!(
        "# Installs Navigator into the namespace {}. Made by `navigator manifest`; edit that, not this.\n",
        settings.namespace
    );
    write_documents(head, &install_objects(settings, scheme))
}

fn write_documents(head: String, objects: &[Value]) -> String {
    let mut text = head;
    for object in objects {
        text.push_str("---\n");
        text.push_str(&serde_yaml::to_string(object).expect("JSON values are YAML values"));
    }
    text
}

/// Returns the objects of an install, in the order in which they are applied.
pub fn install_objects(settings: &InstallSettings, scheme: &Scheme) -> Vec<Value> {
    let mut objects = vec![build_namespace(&settings.namespace, STORE_COMPONENT, "restricted")];
    objects.extend(apiserver_access(settings));
    objects.extend(controller_access(settings, scheme));
    objects.extend(user_roles(scheme));
    if settings.store == InstallStore::Embedded {
        objects.push(store_claim(settings));
        objects
            .extend(store_keeper::store_keeper_objects(&settings.namespace, ProtectedStore::Claim));
    }
    if settings.store == InstallStore::Kubernetes {
        objects.push(stored_object_definition());
        objects.extend(store_keeper::store_keeper_objects(
            &settings.namespace,
            ProtectedStore::Definition,
        ));
    }
    objects.push(apiserver_service(settings));
    objects.push(apiserver_deployment(settings));
    if settings.store != InstallStore::Embedded {
        objects.push(disruption_budget(&settings.namespace, names::APISERVER, "apiserver"));
    }
    objects.push(controller_deployment(settings));
    objects.extend(VERSIONS.map(|version| api_service(settings, version)));
    objects
}

/// Builds a namespace whose pods are held to this standard of Pod Security.
fn build_namespace(name: &str, component: &str, pods: &str) -> Value {
    let mut namespace = build_object("v1", "Namespace", name, None, component);
    namespace["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] = json!(pods);
    namespace
}

fn component_labels(component: &str) -> Value {
    json!({
        label::K8S_NAME: "navigator",
        label::K8S_COMPONENT: component,
        label::K8S_PART_OF: "navigator",
    })
}

/// Builds an object with its labels; `namespace` is given where the kind has one.
fn build_object(
    api_version: &str,
    kind: &str,
    name: &str,
    namespace: Option<&str>,
    component: &str,
) -> Value {
    let mut metadata = json!({"name": name, "labels": component_labels(component)});
    if let Some(namespace) = namespace {
        metadata["namespace"] = json!(namespace);
    }
    json!({"apiVersion": api_version, "kind": kind, "metadata": metadata})
}

fn with_fields(mut object: Value, fields: Value) -> Value {
    let (Value::Object(object_fields), Value::Object(new_fields)) = (&mut object, fields) else {
        unreachable!("objects are built from object literals");
    };
    object_fields.extend(new_fields);
    object
}

const RBAC: &str = "rbac.authorization.k8s.io";
const RBAC_V1: &str = "rbac.authorization.k8s.io/v1";

fn build_rule(group: &str, resources: &[&str], names: &[&str], verbs: &[&str]) -> Value {
    let mut rule = json!({"apiGroups": [group], "resources": resources, "verbs": verbs});
    if !names.is_empty() {
        rule["resourceNames"] = json!(names);
    }
    rule
}

/// Binds a role to a ServiceAccount of the namespace `home`.
fn build_binding(
    home: &str,
    name: &str,
    namespace: Option<&str>,
    role: (&str, &str),
    account: &str,
) -> Value {
    let kind = if namespace.is_some() { "RoleBinding" } else { "ClusterRoleBinding" };
    with_fields(
        build_object(RBAC_V1, kind, name, namespace, account.trim_start_matches("navigator-")),
        json!({
            "roleRef": {"apiGroup": RBAC, "kind": role.0, "name": role.1},
            "subjects": [{"kind": "ServiceAccount", "name": account, "namespace": home}],
        }),
    )
}

/// Builds the API server's ServiceAccount and its rights: delegate authentication and
/// authorization, read namespaces and admission webhooks, register itself, and keep its certificate
/// and its store's identity.
fn apiserver_access(settings: &InstallSettings) -> Vec<Value> {
    let (name, namespace) = (names::APISERVER, Some(settings.namespace.as_str()));
    let api_services: Vec<String> =
        VERSIONS.iter().map(|version| format!("{version}.{GROUP}")).collect();
    let api_services: Vec<&str> = api_services.iter().map(String::as_str).collect();
    let cluster_rules = json!([
        build_rule("", &["namespaces"], &[], &["get", "list", "watch"]),
        build_rule(
            "admissionregistration.k8s.io",
            &["mutatingwebhookconfigurations", "validatingwebhookconfigurations"],
            &[],
            &["get", "list", "watch"],
        ),
        // StatefulSets show which clusters a store without a founding record would have to hold.
        build_rule("apps", &["statefulsets"], &[], &["list"]),
        build_rule("apiregistration.k8s.io", &["apiservices"], &api_services, &["get", "patch"]),
    ]);
    let mut own_rules = vec![
        // A create request has no name to check, so the rule cannot be limited to one.
        build_rule("", &["secrets", "configmaps"], &[], &["create"]),
        build_rule("", &["secrets"], &[names::TLS_SECRET], &["get", "update"]),
        build_rule("", &["configmaps"], &[names::STORE_CONFIG_MAP], &["get", "update"]),
    ];
    if settings.store == InstallStore::Kubernetes {
        let all_verbs = ["get", "list", "watch", "create", "update", "patch", "delete"];
        own_rules.push(build_rule(stored_object::GROUP, &[stored_object::PLURAL], &[], &all_verbs));
    }
    vec![
        build_object("v1", "ServiceAccount", name, namespace, "apiserver"),
        with_fields(
            build_object(RBAC_V1, "ClusterRole", name, None, "apiserver"),
            json!({"rules": cluster_rules}),
        ),
        build_binding(&settings.namespace, name, None, ("ClusterRole", name), name),
        build_binding(
            &settings.namespace,
            "navigator-apiserver:auth-delegator",
            None,
            ("ClusterRole", "system:auth-delegator"),
            name,
        ),
        build_binding(
            &settings.namespace,
            "navigator-apiserver:authentication-reader",
            Some("kube-system"),
            ("Role", "extension-apiserver-authentication-reader"),
            name,
        ),
        with_fields(
            build_object(RBAC_V1, "Role", name, namespace, "apiserver"),
            json!({"rules": own_rules}),
        ),
        build_binding(&settings.namespace, name, namespace, ("Role", name), name),
    ]
}

fn controller_access(settings: &InstallSettings, scheme: &Scheme) -> Vec<Value> {
    let (name, namespace) = (names::CONTROLLER, Some(settings.namespace.as_str()));
    let rules: Vec<PolicyRule> = rbac::controller_rules(&cluster_plurals(scheme));
    vec![
        build_object("v1", "ServiceAccount", name, namespace, "controller"),
        with_fields(
            build_object(RBAC_V1, "ClusterRole", name, None, "controller"),
            json!({"rules": rules}),
        ),
        controller_binding(settings),
        with_fields(
            build_object(RBAC_V1, "Role", name, namespace, "controller"),
            json!({"rules": rbac::controller_install_rules()}),
        ),
        build_binding(&settings.namespace, name, namespace, ("Role", name), name),
    ]
}

/// Binds the controller's rights everywhere, or in the one namespace that it watches. The name
/// differs from that of its other binding, which may be in the same namespace.
fn controller_binding(settings: &InstallSettings) -> Value {
    let (name, watch_namespace) = (names::CONTROLLER, settings.watch_namespace.as_deref());
    let binding_name = if watch_namespace.is_some() { WATCH_BINDING } else { name };
    build_binding(&settings.namespace, binding_name, watch_namespace, ("ClusterRole", name), name)
}

/// Returns the plurals of the kinds of clusters.
fn cluster_plurals(scheme: &Scheme) -> Vec<&'static str> {
    scheme.cluster_kinds().map(ServedKind::plural).collect()
}

/// Builds the roles that add our kinds to Kubernetes' own roles `view`, `edit` and `admin`.
fn user_roles(scheme: &Scheme) -> Vec<Value> {
    let clusters = cluster_plurals(scheme);
    let own_plurals: Vec<&str> =
        scheme.own_kinds().map(crate::machinery::served_kind::ServedKind::plural).collect();
    let read_rule = build_rule(GROUP, &own_plurals, &[], &["get", "list", "watch"]);
    let write_verbs = ["create", "update", "patch", "delete", "deletecollection"];
    vec![
        user_role("navigator-view", &["view", "edit", "admin"], &json!([read_rule])),
        user_role(
            "navigator-edit",
            &["edit", "admin"],
            &json!([
                build_rule(GROUP, &clusters, &[], &write_verbs),
                // A person may fence or decommission a node, and delete an abandoned Pilot.
                build_rule(GROUP, &["pilots"], &[], &["patch", "update", "delete"]),
            ]),
        ),
    ]
}

/// Builds a role for people, whose rules are added to these roles of Kubernetes.
fn user_role(name: &str, aggregate_to: &[&str], rules: &Value) -> Value {
    let mut role = build_object(RBAC_V1, "ClusterRole", name, None, "users");
    for target in aggregate_to {
        role["metadata"]["labels"][format!("{RBAC}/aggregate-to-{target}")] = json!("true");
    }
    with_fields(role, json!({"rules": rules}))
}

/// Builds the definition of the kind in which objects are stored. Deleting the definition deletes
/// them all.
fn stored_object_definition() -> Value {
    let name = stored_object::definition_name();
    let api_version = "apiextensions.k8s.io/v1";
    with_fields(
        build_object(api_version, "CustomResourceDefinition", &name, None, STORE_COMPONENT),
        json!({"spec": stored_object::crd_spec()}),
    )
}

fn store_claim(settings: &InstallSettings) -> Value {
    let claim = build_object(
        "v1",
        "PersistentVolumeClaim",
        names::APISERVER,
        Some(&settings.namespace),
        STORE_COMPONENT,
    );
    with_fields(
        claim,
        json!({"spec": {
            "accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": "1Gi"}},
        }}),
    )
}

fn apiserver_service(settings: &InstallSettings) -> Value {
    with_fields(
        build_object("v1", "Service", names::APISERVER, Some(&settings.namespace), "apiserver"),
        json!({"spec": {
            "selector": component_labels("apiserver"),
            "ports": [{"name": "https", "port": 443, "targetPort": "https"}],
        }}),
    )
}

fn api_service(settings: &InstallSettings, version: ServedVersion) -> Value {
    let priority = if version == V1BETA1 { 20 } else { 15 };
    with_fields(
        build_object(
            "apiregistration.k8s.io/v1",
            "APIService",
            &format!("{version}.{GROUP}"),
            None,
            "apiserver",
        ),
        // The server writes caBundle itself, once it has its certificate.
        json!({"spec": {
            "group": GROUP,
            "version": version.as_str(),
            "groupPriorityMinimum": 1000,
            "versionPriority": priority,
            "service": {"namespace": settings.namespace, "name": names::APISERVER, "port": 443},
        }}),
    )
}

fn disruption_budget(namespace: &str, name: &str, component: &str) -> Value {
    with_fields(
        build_object("policy/v1", "PodDisruptionBudget", name, Some(namespace), component),
        json!({"spec": {"maxUnavailable": 1, "selector": {"matchLabels": component_labels(component)}}}),
    )
}

/// Returns the security context of our containers: no privileges, no writes to the root file
/// system.
fn container_security() -> Value {
    json!({
        "allowPrivilegeEscalation": false,
        "capabilities": {"drop": ["ALL"]},
        "readOnlyRootFilesystem": true,
    })
}

fn pod_security() -> Value {
    json!({
        "runAsNonRoot": true,
        "runAsUser": UID,
        "runAsGroup": UID,
        "fsGroup": UID,
        "fsGroupChangePolicy": "OnRootMismatch",
        "seccompProfile": {"type": "RuntimeDefault"},
    })
}

fn build_probe(path: &str, port: &str, scheme: &str) -> Value {
    json!({"httpGet": {"path": path, "port": port, "scheme": scheme}, "timeoutSeconds": 5})
}

/// Builds a liveness probe. A restart does not help a server that a busy machine starves: the
/// kubelet tries three times 30 s, and kubeadm has eight of 15 s for kube-apiserver. The
/// failureThreshold stays the default: after `kubectl apply` that default has an owner, and another
/// value from `kubectl apply --server-side` would meet a conflict.
fn liveness_probe(port: &str, scheme: &str) -> Value {
    let mut probe = build_probe("/livez", port, scheme);
    probe["timeoutSeconds"] = json!(30);
    probe
}

/// Builds a variable from a field of the pod. It includes the default that Kubernetes adds: a
/// reference counts as one field, so a field manager that applies it without the default would meet
/// a conflict.
fn from_field(name: &str, path: &str) -> Value {
    json!({"name": name, "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": path}}})
}

fn apiserver_deployment(settings: &InstallSettings) -> Value {
    let mut args = vec!["apiserver".to_owned(), format!("--secure-port={}", port::APISERVER)];
    let (replicas, strategy, mounts, volumes) = match &settings.store {
        InstallStore::Embedded => {
            args.push("--store=embedded".into());
            args.push(format!("--store-path={STORE_PATH}"));
            (
                1,
                json!({"type": "Recreate"}),
                json!([{"name": "store", "mountPath": STORE_PATH}]),
                json!([{"name": "store", "persistentVolumeClaim": {"claimName": names::APISERVER}}]),
            )
        }
        InstallStore::Etcd { servers, secret } => {
            args.push("--store=etcd".into());
            args.push(format!("--etcd-servers={}", servers.join(",")));
            let rolling_update =
                json!({"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 1}});
            let (mut mounts, mut volumes) = (json!([]), json!([]));
            if let Some(secret) = secret {
                for (flag, file) in
                    [("cafile", "ca.crt"), ("certfile", "tls.crt"), ("keyfile", "tls.key")]
                {
                    args.push(format!("--etcd-{flag}={ETCD_TLS_PATH}/{file}"));
                }
                mounts =
                    json!([{"name": "etcd-tls", "mountPath": ETCD_TLS_PATH, "readOnly": true}]);
                volumes = json!([{"name": "etcd-tls", "secret": {"secretName": secret}}]);
            }
            (2, rolling_update, mounts, volumes)
        }
        InstallStore::Kubernetes => {
            args.push("--store=kubernetes".into());
            args.push(format!("--store-namespace={}", settings.namespace));
            let rolling_update =
                json!({"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 1}});
            (2, rolling_update, json!([]), json!([]))
        }
    };
    args.push("--audit-log-path=-".into());
    let mut container = json!({
        "name": "apiserver",
        "image": settings.image,
        "args": args,
        "env": [
            // Without these settings, each thread that works on a large body would keep freed
            // memory for a while: after an attack, half as much again.
            {"name": "MIMALLOC_GENERIC_COLLECT", "value": "50"},
            {"name": "MIMALLOC_MINIMAL_PURGE_SIZE", "value": "16"},
            {"name": "MIMALLOC_PAGE_FULL_RETAIN", "value": "0"},
            {"name": "MIMALLOC_PAGE_RECLAIM_ON_FREE", "value": "1"},
            {"name": "MIMALLOC_PURGE_DELAY", "value": "5"},
            from_field("NAVIGATOR_NAMESPACE", "metadata.namespace"),
        ],
        "ports": [{"name": "https", "containerPort": port::APISERVER}],
        "startupProbe": build_probe("/livez", "https", "HTTPS"),
        "livenessProbe": liveness_probe("https", "HTTPS"),
        "readinessProbe": build_probe("/readyz", "https", "HTTPS"),
        "resources": {
            "requests": {"cpu": "100m", "memory": "64Mi"},
            "limits": {"memory": "256Mi"},
        },
        "securityContext": container_security(),
        "volumeMounts": mounts,
    });
    container["startupProbe"]["failureThreshold"] = json!(60);
    container["startupProbe"]["periodSeconds"] = json!(1);
    container["readinessProbe"]["periodSeconds"] = json!(2);
    container["readinessProbe"]["timeoutSeconds"] = json!(15);
    let name = names::APISERVER;
    build_deployment(
        &settings.namespace,
        name,
        "apiserver",
        replicas,
        &strategy,
        &container,
        &volumes,
    )
}

fn controller_deployment(settings: &InstallSettings) -> Value {
    let mut container = json!({
        "name": "controller",
        "image": settings.image,
        "args": ["controller"],
        "env": [
            from_field("NAVIGATOR_NAMESPACE", "metadata.namespace"),
            from_field("NAVIGATOR_POD_NAME", "metadata.name"),
            {"name": "NAVIGATOR_PILOT_IMAGE", "value": settings.image},
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
    if let Some(watch_namespace) = &settings.watch_namespace {
        let env = container["env"].as_array_mut().expect("it is built from an array above");
        env.push(json!({"name": "NAVIGATOR_WATCH_NAMESPACE", "value": watch_namespace}));
    }
    let strategy = json!({"type": "RollingUpdate"});
    let (namespace, name) = (&settings.namespace, names::CONTROLLER);
    build_deployment(namespace, name, "controller", 1, &strategy, &container, &json!([]))
}

fn build_deployment(
    namespace: &str,
    name: &str,
    component: &str,
    replicas: i32,
    strategy: &Value,
    container: &Value,
    volumes: &Value,
) -> Value {
    with_fields(
        build_object("apps/v1", "Deployment", name, Some(namespace), component),
        json!({"spec": {
            "replicas": replicas,
            "strategy": strategy,
            "selector": {"matchLabels": component_labels(component)},
            "template": {
                "metadata": {"labels": component_labels(component)},
                "spec": {
                    "serviceAccountName": name,
                    "securityContext": pod_security(),
                    "containers": [container],
                    "volumes": volumes,
                },
            },
        }}),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn etcd() -> InstallSettings {
        let servers = vec!["https://etcd-0:2379".to_owned(), "https://etcd-1:2379".to_owned()];
        let secret = Some("etcd-tls".to_owned());
        InstallSettings {
            store: InstallStore::Etcd { servers, secret },
            ..InstallSettings::default()
        }
    }

    fn find<'a>(objects: &'a [Value], kind: &str, name: &str) -> Option<&'a Value> {
        objects.iter().find(|object| object["kind"] == kind && object["metadata"]["name"] == name)
    }

    #[test]
    fn the_embedded_store_has_one_recreated_replica_and_a_claim() {
        let objects = install_objects(&InstallSettings::default(), Scheme::new(&[]));
        let spec = &find(&objects, "Deployment", names::APISERVER).unwrap()["spec"];
        assert_eq!(spec["replicas"], 1);
        assert_eq!(spec["strategy"]["type"], "Recreate");
        assert_eq!(spec["template"]["spec"]["securityContext"]["fsGroup"], UID);
        let claim = find(&objects, "PersistentVolumeClaim", names::APISERVER).unwrap();
        assert_eq!(claim["spec"]["resources"]["requests"]["storage"], "1Gi");
    }

    #[test]
    fn etcd_has_two_replicas_and_no_claim() {
        let objects = install_objects(&etcd(), Scheme::new(&[]));
        let spec = &find(&objects, "Deployment", names::APISERVER).unwrap()["spec"];
        assert_eq!(spec["replicas"], 2);
        let volumes = &spec["template"]["spec"]["volumes"];
        assert_eq!(*volumes, json!([{"name": "etcd-tls", "secret": {"secretName": "etcd-tls"}}]));
        assert!(find(&objects, "PersistentVolumeClaim", names::APISERVER).is_none());
        let args = spec["template"]["spec"]["containers"][0]["args"].to_string();
        assert!(args.contains("--etcd-servers=https://etcd-0:2379,https://etcd-1:2379"), "{args}");
    }

    #[test]
    fn the_kubernetes_store_brings_its_kind_and_the_rights_to_it_alone() {
        let settings =
            InstallSettings { store: InstallStore::Kubernetes, ..InstallSettings::default() };
        let objects = install_objects(&settings, Scheme::new(&[]));
        let name = stored_object::definition_name();
        let definition = find(&objects, "CustomResourceDefinition", &name).unwrap();
        assert_ne!(definition["spec"]["group"], GROUP);
        assert!(find(&objects, "PersistentVolumeClaim", names::APISERVER).is_none());
        let spec = &find(&objects, "Deployment", names::APISERVER).unwrap()["spec"];
        assert_eq!(spec["replicas"], 2);
        let has_rights =
            |object: &&Value| object["rules"].to_string().contains(stored_object::GROUP);
        let kinds: Vec<_> =
            objects.iter().filter(has_rights).map(|object| &object["kind"]).collect();
        assert_eq!(kinds, ["Role"], "in its own namespace only");
    }

    #[test]
    fn a_controller_of_one_namespace_has_rights_nowhere_else() {
        let watch_namespace = Some("shop".to_owned());
        let objects = install_objects(
            &InstallSettings { watch_namespace, ..InstallSettings::default() },
            Scheme::new(&[]),
        );
        assert!(find(&objects, "ClusterRoleBinding", names::CONTROLLER).is_none());
        let binding = find(&objects, "RoleBinding", WATCH_BINDING).unwrap();
        assert_eq!(binding["metadata"]["namespace"], "shop");
        assert_eq!(binding["subjects"][0]["namespace"], names::NAMESPACE);
        let role = find(&objects, "ClusterRole", names::CONTROLLER).unwrap();
        assert_eq!(binding["roleRef"]["name"], role["metadata"]["name"]);
        let spec = &find(&objects, "Deployment", names::CONTROLLER).unwrap()["spec"];
        let env = spec["template"]["spec"]["containers"][0]["env"].to_string();
        assert!(env.contains(r#"{"name":"NAVIGATOR_WATCH_NAMESPACE","value":"shop"}"#), "{env}");
    }

    /// Lists the rights in these objects by which their holder takes further rights: kind and name of
    /// the role, resource, verb.
    fn rights_to_escalate(objects: &[Value]) -> Vec<[String; 4]> {
        let texts = |list: &Value| -> Vec<String> {
            let texts = list.as_array().into_iter().flatten();
            texts.map(|text| text.as_str().unwrap().to_owned()).collect()
        };
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        let mut rights = Vec::new();
        for object in objects {
            for rule in object["rules"].as_array().into_iter().flatten() {
                for resource in texts(&rule["resources"]) {
                    for verb in texts(&rule["verbs"]) {
                        let (kind, name) = (&object["kind"], &object["metadata"]["name"]);
                        if ["escalate", "bind", "impersonate", "*"].contains(&verb.as_str())
                            || resource == "*"
                        {
                            rights.push([text(kind), text(name), resource.clone(), verb]);
                        }
                    }
                }
                assert!(!texts(&rule["apiGroups"]).contains(&"*".to_owned()), "{object}");
            }
        }
        rights
    }

    #[test]
    fn rights_to_escalate_come_with_their_switch_alone() {
        let scheme = Scheme::new(&[]);
        assert_eq!(
            rights_to_escalate(&install_objects(&InstallSettings::default(), scheme)),
            [[""; 4]; 0]
        );
        let hub = HubSettings {
            url: "https://hub.example.org".to_owned(),
            organization_id: "o".to_owned(),
            cluster_id: "c".to_owned(),
        };
        let (wide, core) = (["ClusterRole", names::COORDINATOR], ["Role", names::COORDINATOR]);
        for has_others in [false, true] {
            for (rbac_sync, plugins) in [(false, false), (true, false), (false, true), (true, true)]
            {
                let settings = ClusterManagerSettings {
                    rbac_sync,
                    plugins,
                    enable_cluster_upgrade: has_others,
                    registries: has_others,
                    allow_privileged_roles: has_others,
                    agents: has_others,
                    hub: has_others.then(|| hub.clone()),
                    allow_terminate: has_others,
                    ..ClusterManagerSettings::default()
                };
                let mut expected = Vec::new();
                if rbac_sync {
                    expected.push([wide[0], wide[1], "clusterroles", "escalate"]);
                    expected.push([wide[0], wide[1], "clusterroles", "bind"]);
                }
                if plugins {
                    expected.push([core[0], core[1], "serviceaccounts", "impersonate"]);
                }
                let rights = rights_to_escalate(&cluster_manager_objects(&settings, scheme));
                assert_eq!(rights, expected, "{settings:?}");
            }
        }
    }

    #[test]
    fn every_api_service_is_verified() {
        for version in VERSIONS {
            let service = api_service(&InstallSettings::default(), version);
            assert!(service["spec"].get("insecureSkipTLSVerify").is_none());
        }
    }
}
