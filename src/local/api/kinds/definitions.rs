//! The table of the kinds of Kubernetes that are served.

use k8s_openapi::api::{
    apps::v1::StatefulSet,
    coordination::v1::Lease,
    core::v1::{
        ConfigMap, Event, Namespace, Node, PersistentVolumeClaim, Pod, Secret, Service,
        ServiceAccount,
    },
    networking::v1::NetworkPolicy,
    policy::v1::PodDisruptionBudget,
    rbac::v1::{Role, RoleBinding},
};

use super::{KindDefinition, columns, defaults, roundtrip_type};
use crate::machinery::served_kind::Subresource;

const UPDATE: &[&str] = &["get", "patch", "update"];

const fn subresource(name: &'static str, verbs: &'static [&'static str]) -> Subresource {
    Subresource { name, form: None, verbs }
}

/// A namespaced kind of the core group without anything special; the base of the others.
const PLAIN: KindDefinition = KindDefinition {
    kind: "",
    plural: "",
    singular: "",
    short: &[],
    categories: &[],
    group: "",
    namespaced: true,
    status: false,
    subresources: &[],
    selectable: &[],
    columns: columns::PLAIN,
    cells: columns::plain_cells,
    typed: roundtrip_type::<ConfigMap>,
    complete: defaults::leave_unchanged,
    begin: defaults::leave_unchanged,
    end: defaults::leave_unchanged,
    mutable: None,
};

pub(super) static ALL: &[KindDefinition] = &[
    KindDefinition {
        kind: "Namespace",
        plural: "namespaces",
        singular: "namespace",
        short: &["ns"],
        namespaced: false,
        status: true,
        subresources: &[subresource("finalize", &["update"])],
        selectable: &["status.phase"],
        columns: columns::NAMESPACE,
        cells: columns::namespace_cells,
        typed: roundtrip_type::<Namespace>,
        begin: defaults::begin_namespace,
        end: defaults::end_namespace,
        ..PLAIN
    },
    KindDefinition {
        kind: "Node",
        plural: "nodes",
        singular: "node",
        short: &["no"],
        namespaced: false,
        status: true,
        columns: columns::NODE,
        cells: columns::node_cells,
        typed: roundtrip_type::<Node>,
        ..PLAIN
    },
    KindDefinition {
        kind: "Pod",
        plural: "pods",
        singular: "pod",
        short: &["po"],
        categories: &["all"],
        status: true,
        subresources: &[subresource("ephemeralcontainers", UPDATE), subresource("log", &["get"])],
        selectable: &[
            "spec.nodeName",
            "spec.restartPolicy",
            "spec.schedulerName",
            "spec.serviceAccountName",
            "status.phase",
            "status.podIP",
        ],
        columns: columns::POD,
        cells: columns::pod_cells,
        typed: roundtrip_type::<Pod>,
        complete: defaults::complete_pod,
        begin: defaults::begin_pending,
        ..PLAIN
    },
    KindDefinition {
        kind: "Service",
        plural: "services",
        singular: "service",
        short: &["svc"],
        categories: &["all"],
        status: true,
        selectable: &["spec.clusterIP", "spec.type"],
        columns: columns::SERVICE,
        cells: columns::service_cells,
        typed: roundtrip_type::<Service>,
        complete: defaults::complete_service,
        begin: defaults::begin_service,
        ..PLAIN
    },
    KindDefinition {
        kind: "PersistentVolumeClaim",
        plural: "persistentvolumeclaims",
        singular: "persistentvolumeclaim",
        short: &["pvc"],
        status: true,
        columns: columns::CLAIM,
        cells: columns::claim_cells,
        typed: roundtrip_type::<PersistentVolumeClaim>,
        complete: defaults::complete_claim,
        begin: defaults::begin_pending,
        ..PLAIN
    },
    KindDefinition {
        kind: "Secret",
        plural: "secrets",
        singular: "secret",
        selectable: &["type"],
        columns: columns::SECRET,
        cells: columns::secret_cells,
        typed: roundtrip_type::<Secret>,
        complete: defaults::complete_secret,
        ..PLAIN
    },
    KindDefinition {
        kind: "ConfigMap",
        plural: "configmaps",
        singular: "configmap",
        short: &["cm"],
        columns: columns::CONFIG_MAP,
        cells: columns::config_map_cells,
        typed: roundtrip_type::<ConfigMap>,
        ..PLAIN
    },
    KindDefinition {
        kind: "ServiceAccount",
        plural: "serviceaccounts",
        singular: "serviceaccount",
        short: &["sa"],
        columns: columns::SERVICE_ACCOUNT,
        cells: columns::service_account_cells,
        typed: roundtrip_type::<ServiceAccount>,
        ..PLAIN
    },
    KindDefinition {
        kind: "Event",
        plural: "events",
        singular: "event",
        short: &["ev"],
        selectable: &[
            "involvedObject.apiVersion",
            "involvedObject.fieldPath",
            "involvedObject.kind",
            "involvedObject.name",
            "involvedObject.namespace",
            "involvedObject.resourceVersion",
            "involvedObject.uid",
            "reason",
            "reportingComponent",
            "type",
        ],
        columns: columns::EVENT,
        cells: columns::event_cells,
        typed: roundtrip_type::<Event>,
        ..PLAIN
    },
    KindDefinition {
        kind: "StatefulSet",
        plural: "statefulsets",
        singular: "statefulset",
        short: &["sts"],
        categories: &["all"],
        group: "apps",
        status: true,
        subresources: &[Subresource {
            form: Some(["autoscaling", "v1", "Scale"]),
            ..subresource("scale", UPDATE)
        }],
        columns: columns::STATEFUL_SET,
        cells: columns::stateful_set_cells,
        typed: roundtrip_type::<StatefulSet>,
        complete: defaults::complete_stateful_set,
        begin: defaults::begin_stateful_set,
        mutable: Some(&[
            "replicas",
            "ordinals",
            "template",
            "updateStrategy",
            "revisionHistoryLimit",
            "persistentVolumeClaimRetentionPolicy",
            "minReadySeconds",
        ]),
        ..PLAIN
    },
    KindDefinition {
        kind: "PodDisruptionBudget",
        plural: "poddisruptionbudgets",
        singular: "poddisruptionbudget",
        short: &["pdb"],
        group: "policy",
        status: true,
        columns: columns::BUDGET,
        cells: columns::budget_cells,
        typed: roundtrip_type::<PodDisruptionBudget>,
        begin: defaults::begin_budget,
        ..PLAIN
    },
    KindDefinition {
        kind: "NetworkPolicy",
        plural: "networkpolicies",
        singular: "networkpolicy",
        short: &["netpol"],
        group: "networking.k8s.io",
        columns: columns::NETWORK_POLICY,
        cells: columns::network_policy_cells,
        typed: roundtrip_type::<NetworkPolicy>,
        ..PLAIN
    },
    KindDefinition {
        kind: "Role",
        plural: "roles",
        singular: "role",
        group: "rbac.authorization.k8s.io",
        columns: columns::ROLE,
        cells: columns::role_cells,
        typed: roundtrip_type::<Role>,
        ..PLAIN
    },
    KindDefinition {
        kind: "RoleBinding",
        plural: "rolebindings",
        singular: "rolebinding",
        group: "rbac.authorization.k8s.io",
        columns: columns::ROLE_BINDING,
        cells: columns::role_binding_cells,
        typed: roundtrip_type::<RoleBinding>,
        ..PLAIN
    },
    KindDefinition {
        kind: "Lease",
        plural: "leases",
        singular: "lease",
        group: "coordination.k8s.io",
        columns: columns::LEASE,
        cells: columns::lease_cells,
        typed: roundtrip_type::<Lease>,
        ..PLAIN
    },
];
