//! User: a person whose SSH keys stand on every machine, and what agents say of them.

#![expect(clippy::duplicated_attributes, reason = "several columns are of one type")]

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A person and their keys. The fields are named as in 2019.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[kube(
    group = "containership.io",
    version = "v3",
    kind = "User",
    plural = "users",
    singular = "user",
    shortname = "usr",
    category = "containership",
    namespaced,
    status = "UserStatus",
    derive = "Default",
    derive = "PartialEq",
    doc = "A person whose SSH keys the agents write on every machine of the cluster.",
    printcolumn(name = "User", type_ = "string", json_path = ".spec.name"),
    printcolumn(name = "Keys", type_ = "integer", json_path = ".status.keys"),
    printcolumn(name = "Written", type_ = "string", json_path = ".status.progress"),
    printcolumn(name = "Silent", type_ = "string", json_path = ".status.silentText"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
pub struct UserSpec {
    /// Id of the person, as its author knows it. Navigator goes by the object's name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub id: Option<String>,
    /// Name of the person, for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub name: Option<String>,
    /// Address of a picture. Ignored.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 2048))]
    pub avatar_url: Option<String>,
    /// When the person was added, in the words of the author.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub added_at: Option<String>,
    /// Keys that let the person in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 100))]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub ssh_keys: Option<Vec<SshKey>>,
}

/// One public key.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
pub struct SshKey {
    /// Id of the key, as its author knows it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub id: Option<String>,
    /// Name of the key, for people. It stands beside the key in the file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub name: Option<String>,
    /// Fingerprint of the key, in the words of the author. Nothing goes by it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub fingerprint: Option<String>,
    /// The key as a line of OpenSSH: its type, its base64, and a comment, which is ignored. Accepted
    /// are `ssh-ed25519`, `ecdsa-sha2-nistp…`, both on security keys (`sk-…`), and `ssh-rsa` of 3072 bits
    /// or more. Any other is named in status.refusedKeys, and lets nobody in.
    #[schemars(length(max = 16384))]
    pub key: String,
}

/// On which machines the keys stand. The coordinator alone writes it.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct UserStatus {
    /// Generation of the spec that this status speaks of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Keys that let the person in.
    #[serde(default)]
    pub keys: i32,
    /// Keys that let nobody in, and why.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub refused_keys: Vec<RefusedKey>,
    /// Machines on which the keys stand as they are now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub machines: Option<UserMachines>,
    /// Machines with the keys and all machines, as `48/50`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub progress: Option<String>,
    /// The silent machines, on one line.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub silent_text: Option<String>,
    /// Digest of the keys. Machines name it once they have them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub digest: Option<String>,
    /// When the keys changed last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub changed_at: Option<Time>,
    /// Ready, Reconciling and Stalled.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
}

/// A key that lets nobody in.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RefusedKey {
    /// Which key it is: by its id, or else by its fingerprint, its name or its place in the list.
    pub key: String,
    /// Why it is refused, in a sentence.
    pub message: String,
}

/// On how many machines the keys stand.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct UserMachines {
    /// Machines that should have the keys.
    pub wanted: i32,
    /// Machines that have them, and none that were taken away.
    pub written: i32,
    /// Machines whose agent does not speak, or did not follow in time; at most 100.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub silent: Vec<String>,
}

/// What an agent says, in the annotation [`super::name::AGENT`] of its own Node. Fields of newer
/// agents are ignored.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub struct AgentReport {
    /// When the agent said it, by its own clock.
    pub at: Time,
    /// Hash of the key file as it stands.
    pub keys: String,
    /// Digests of all users whose keys stand, one after the other. Empty where they are too many.
    pub users: String,
    /// Id of the cluster at whose end the agent took its keys out of the file; see
    /// [`super::name::TERMINATE_PROGRESS`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cleaned: Option<String>,
    /// What keeps the agent from its work, in a sentence.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trouble: Option<String>,
}

#[cfg(test)]
mod tests {
    use kube::CustomResourceExt as _;
    use serde_json::{Value, json};

    use super::*;

    /// What the cluster manager of 2019 itself wrote, with Go's zero values.
    #[test]
    fn a_user_of_2019_is_read() {
        let written = json!({
            "apiVersion": "containership.io/v3", "kind": "User",
            "metadata": {"name": "00000000-1111-2222-3333-000000000001"},
            "spec": {
                "id": "00000000-1111-2222-3333-000000000001", "name": "", "avatar_url": "",
                "added_at": "", "ssh_keys": null,
            },
        });
        let read: User = serde_json::from_value(written).unwrap();
        assert_eq!((read.spec.ssh_keys, read.status), (None, None));
    }

    #[test]
    fn the_definition_has_a_status_of_its_own_and_a_line_for_people() {
        let definition = serde_json::to_value(User::crd()).unwrap();
        let version = &definition["spec"]["versions"][0];
        assert_eq!(version["subresources"]["status"], json!({}));
        let columns = version["additionalPrinterColumns"].as_array().unwrap();
        let names: Vec<&Value> = columns.iter().map(|column| &column["name"]).collect();
        assert_eq!(names, ["User", "Keys", "Written", "Silent", "Age"]);
        assert_eq!(definition["spec"]["names"]["shortNames"], json!(["usr"]));
    }
}
