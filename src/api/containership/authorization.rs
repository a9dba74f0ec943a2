//! AuthorizationRole and AuthorizationRoleBinding: what may be done in the cluster, and who may do it.

#![expect(clippy::duplicated_attributes, reason = "several columns are of one type")]

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Rights that bindings give. The fields are named as in 2019.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[kube(
    group = "auth.containership.io",
    version = "v3",
    kind = "AuthorizationRole",
    plural = "authorizationroles",
    singular = "authorizationrole",
    category = "containership",
    namespaced,
    status = "AuthorizationStatus",
    derive = "Default",
    derive = "PartialEq",
    doc = "Rights in the cluster. The coordinator keeps a ClusterRole with them, named by the id.",
    printcolumn(name = "Role", type_ = "string", json_path = ".spec.name"),
    printcolumn(
        name = "Ready",
        type_ = "string",
        json_path = ".status.conditions[?(@.type=='Ready')].status"
    ),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
pub struct AuthorizationRoleSpec {
    /// Name of the ClusterRole; that of this object where it is absent or empty.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "id")]
    pub id: Option<String>,
    /// When the role was made, in the words of the author.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub created_at: Option<String>,
    /// When the role was changed, in the words of the author.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub updated_at: Option<String>,
    /// Organization of the role. Ignored.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub organization_id: Option<String>,
    /// Name of the role, for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub name: Option<String>,
    /// Words about the role, for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 4096))]
    pub description: Option<String>,
    /// Person who owns the role. Ignored.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub owner_id: Option<String>,
    /// What is allowed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 200))]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub rules: Option<Vec<AuthorizationRule>>,
}

/// One rule of a role.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[schemars(extend("x-kubernetes-validations" = [
    {
        "rule": "self.type != 'kubernetes' || (has(self.verbs) && self.verbs.size() > 0)",
        "message": "a rule for Kubernetes must name verbs",
    },
    {
        "rule": "self.type != 'kubernetes' || (has(self.resources) && self.resources.size() > 0) != (has(self.non_resource_urls) && self.non_resource_urls.size() > 0)",
        "message": "a rule for Kubernetes must name either resources or non_resource_urls",
    },
]))]
pub struct AuthorizationRule {
    /// Id of the rule, as its author knows it. Ignored.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub id: Option<String>,
    /// When the rule was made, in the words of the author.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub created_at: Option<String>,
    /// When the rule was changed, in the words of the author.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub updated_at: Option<String>,
    /// Organization of the rule. Ignored.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub organization_id: Option<String>,
    /// Name of the rule, for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub name: Option<String>,
    /// Words about the rule, for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 4096))]
    pub description: Option<String>,
    /// Person who owns the rule. Ignored.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub owner_id: Option<String>,
    /// `kubernetes`, or `containership` for rights in its cloud, which are ignored here.
    #[serde(rename = "type", default)]
    pub type_: AuthorizationRuleType,
    /// API groups of the resources; that of pods and Secrets where there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 100), inner(length(max = 253)))]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub api_groups: Option<Vec<String>>,
    /// Resources, such as `pods` or `pods/log`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 100), inner(length(max = 253)))]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub resources: Option<Vec<String>>,
    /// Names of the objects that are meant; all where there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 100), inner(length(max = 253)))]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub resource_names: Option<Vec<String>>,
    /// What may be done.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 100), inner(length(max = 253)))]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub verbs: Option<Vec<String>>,
    /// Paths of kube-apiserver that are no resources, such as `/healthz`. They count for bindings
    /// without a namespace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 100), inner(length(max = 253)))]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub non_resource_urls: Option<Vec<String>>,
}

/// What a rule is about.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum AuthorizationRuleType {
    #[default]
    Kubernetes,
    Containership,
}

/// Who has the rights of a role, and where. The fields are named as in 2019.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[kube(
    group = "auth.containership.io",
    version = "v3",
    kind = "AuthorizationRoleBinding",
    plural = "authorizationrolebindings",
    singular = "authorizationrolebinding",
    category = "containership",
    namespaced,
    status = "AuthorizationStatus",
    derive = "Default",
    derive = "PartialEq",
    doc = "Gives a person or a team the rights of an AuthorizationRole, in one namespace or in the whole cluster. The coordinator keeps a RoleBinding or a ClusterRoleBinding, named by the id.",
    printcolumn(name = "Type", type_ = "string", json_path = ".spec.type"),
    printcolumn(name = "Role", type_ = "string", json_path = ".spec.authorization_role_id"),
    printcolumn(name = "In", type_ = "string", json_path = ".spec.namespace"),
    printcolumn(
        name = "Ready",
        type_ = "string",
        json_path = ".status.conditions[?(@.type=='Ready')].status"
    ),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[schemars(extend("x-kubernetes-validations" = [{
    "rule": "self.type == 'TeamBinding' ? has(self.team_id) && self.team_id != '' : has(self.user_id) && self.user_id != ''",
    "message": "a UserBinding must name user_id, and a TeamBinding team_id",
}]))]
pub struct AuthorizationRoleBindingSpec {
    /// Name of the binding in Kubernetes; that of this object where it is absent or empty.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "id")]
    pub id: Option<String>,
    /// When the binding was made, in the words of the author.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub created_at: Option<String>,
    /// When the binding was changed, in the words of the author.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub updated_at: Option<String>,
    /// Organization of the binding. Ignored.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub organization_id: Option<String>,
    /// Person who owns the binding. Ignored.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub owner_id: Option<String>,
    /// `UserBinding` or `TeamBinding`.
    #[serde(rename = "type")]
    pub type_: AuthorizationRoleBindingType,
    /// Id of the AuthorizationRole. A ClusterRole that is of none is not bound.
    #[schemars(length(min = 1, max = 253))]
    pub authorization_role_id: String,
    /// Person, known to Kubernetes as the user `containership.io/user_id#ID`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub user_id: Option<String>,
    /// Team, known to Kubernetes as the group `containership.io/team_id#ID`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub team_id: Option<String>,
    /// Cluster that is meant. Ignored: it is the one in which this object stands.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub cluster_id: Option<String>,
    /// Namespace in which the rights hold; the whole cluster where it is absent or empty.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 63))]
    pub namespace: Option<String>,
}

/// Whom a binding is about.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
pub enum AuthorizationRoleBindingType {
    #[default]
    UserBinding,
    TeamBinding,
}

/// Whether the RBAC object stands. The coordinator alone writes it.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct AuthorizationStatus {
    /// Generation of the spec that this status speaks of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Ready, Reconciling and Stalled.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
}

/// Schema of an id that names an object in Kubernetes.
fn id(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
    schemars::json_schema!({
        "type": "string", "maxLength": 253, "pattern": "^([a-z0-9]([-a-z0-9.]*[a-z0-9])?)?$",
    })
}
