//! Registry: a registry of images that ask for credentials, and the namespaces that pull from it.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, LabelSelector};
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A registry, its credentials, and who gets them. The fields of 2019 are named as they were.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[kube(
    group = "containership.io",
    version = "v3",
    kind = "Registry",
    plural = "registries",
    singular = "registry",
    shortname = "reg",
    category = "containership",
    namespaced,
    status = "RegistryStatus",
    derive = "Default",
    derive = "PartialEq",
    doc = "A registry of images. Each namespace that it is meant for gets a Secret by which kubelets pull from it, of the name of the Registry.",
    printcolumn(name = "Server", type_ = "string", json_path = ".spec.serveraddress"),
    printcolumn(name = "Provider", type_ = "string", json_path = ".spec.provider"),
    printcolumn(name = "Namespaces", type_ = "string", json_path = ".status.progress"),
    printcolumn(
        name = "Ready",
        type_ = "string",
        json_path = ".status.conditions[?(@.type=='Ready')].status"
    ),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    validation = Rule::new("self.metadata.name.size() <= 200")
        .message("name of a Registry must be at most 200 bytes"),
    validation = Rule::new(ONE_SOURCE).message(
        "credentials are kept in the Secret NAME-credentials, so that credentialsSecretRef can name no other beside them"
    )
)]
#[serde(rename_all = "camelCase")]
pub struct RegistrySpec {
    /// Id of the registry, as its author knows it. Navigator goes by the object's name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub id: Option<String>,
    /// When the registry was added, in the words of the author.
    #[serde(rename = "added_at", default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub added_at: Option<String>,
    /// Words about the registry, for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 4096))]
    pub description: Option<String>,
    /// Organization of the registry. Ignored.
    #[serde(rename = "organization_id", default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub organization_id: Option<String>,
    /// Organization of the registry, as it was named before `organization_id`. Ignored.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub organization: Option<String>,
    /// Address of mail, which some registries ask for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub email: Option<String>,
    /// Address of the registry, as images begin with it, or `https://index.docker.io/v1/`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 2048))]
    pub serveraddress: Option<String>,
    /// Kind of registry: `private`, `dockerhub`, `quay`, `azure`, `google_registry` and others have
    /// credentials that stay as they are. `amazon_ec2_registry` has some that end after hours, and is
    /// not supported.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub provider: Option<String>,
    /// Credentials, such as `username` and `password`. They are moved into the Secret
    /// `NAME-credentials` as soon as they are seen, and dropped here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "credentials")]
    pub credentials: Option<BTreeMap<String, String>>,
    /// Person who owns the registry. Ignored.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub owner: Option<String>,
    /// Token that programs of 2019 made of the credentials. It is moved with these.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub auth_token: Option<AuthToken>,
    /// Secret in the namespace of the Registry that holds the credentials: of type
    /// `kubernetes.io/basic-auth`, or `kubernetes.io/dockerconfigjson`, which is copied as it is. No
    /// other Secret can be named, so that none is spread by mistake.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub credentials_secret_ref: Option<CredentialsSecret>,
    /// Labels of the namespaces that get the credentials; all namespaces without it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace_selector: Option<LabelSelector>,
    /// Namespaces that never get the credentials.
    #[serde(default = "kube_system")]
    #[schemars(length(max = 1000), inner(length(max = 63)))]
    #[schemars(extend("x-kubernetes-list-type" = "set"))]
    pub excluded_namespaces: Vec<String>,
    /// ServiceAccounts whose pods pull with the credentials. `containership` is made in each namespace;
    /// others are changed where they exist.
    #[serde(default = "containership")]
    #[schemars(length(max = 32), inner(length(max = 253)))]
    #[schemars(extend("x-kubernetes-list-type" = "set"))]
    pub service_accounts: Vec<String>,
}

/// Rule by which credentials and the Secret that they are moved into never differ.
const ONE_SOURCE: &str = "!has(self.spec.credentials) || !has(self.spec.credentialsSecretRef) || \
                          self.spec.credentialsSecretRef.name == self.metadata.name + '-credentials'";

fn credentials(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
    schemars::json_schema!({
        "type": "object",
        "maxProperties": 16,
        "additionalProperties": {"type": "string", "maxLength": 65_536},
        "x-kubernetes-validations": [{
            "rule": "self.all(key, key.matches('^[-._a-zA-Z0-9]{1,200}$'))",
            "message": "keys of credentials must be letters, digits, '-', '_' and '.'",
        }],
    })
}

fn kube_system() -> Vec<String> {
    vec!["kube-system".to_owned()]
}

fn containership() -> Vec<String> {
    vec![super::name::SERVICE_ACCOUNT.to_owned()]
}

/// Name of a Secret.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
pub struct CredentialsSecret {
    /// Name of the Secret.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
}

/// What programs of 2019 made of the credentials.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
pub struct AuthToken {
    /// Name and password as base64.
    #[serde(default)]
    #[schemars(length(max = 65_536))]
    pub token: String,
    /// Address of the registry; `serveraddress` wins.
    #[serde(default)]
    #[schemars(length(max = 2048))]
    pub endpoint: String,
    /// Form of the Secret that was made. Ignored.
    #[serde(rename = "type", default)]
    #[schemars(length(max = 253))]
    pub type_: String,
    /// When the token ends, in the words of the author. Ignored.
    #[serde(default)]
    #[schemars(length(max = 253))]
    pub expires: String,
}

impl RegistrySpec {
    /// Returns what is to be moved into a Secret, under the keys that it has there.
    pub fn provided_credentials(&self) -> BTreeMap<String, String> {
        let mut credentials = self.credentials.clone().unwrap_or_default();
        if let Some(token) =
            self.auth_token.as_ref().filter(|auth_token| !auth_token.token.is_empty())
        {
            credentials.insert("token".to_owned(), token.token.clone());
            credentials.insert("endpoint".to_owned(), token.endpoint.clone());
        }
        credentials.retain(|_, value| !value.is_empty());
        credentials
    }
}

/// Where the credentials are. The coordinator alone writes it.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RegistryStatus {
    /// Generation of the spec that this status speaks of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Namespaces that should have the credentials.
    #[serde(default)]
    pub wanted: i32,
    /// Namespaces that have them as they are now.
    #[serde(default)]
    pub synced: i32,
    /// Both, as `12/13`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub progress: Option<String>,
    /// Namespaces with a Secret of this name that is not Navigator's and stays as it is; at most 20.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub foreign_secrets: Vec<String>,
    /// Ready, Reconciling and Stalled.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
}
