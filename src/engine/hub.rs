//! What a hub says is wanted, held against what there is: which objects are applied, and which deleted.
//!
//! Invariants: an answer of which any part is wrong changes nothing; an object without the hub's label
//! is never touched; an answer that takes most of a kind away is believed once it was given three times,
//! or when a person confirmed exactly that.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write,
};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde_json::{Map, Value};
use sha2::{Digest, Sha256};
use uuid::Uuid;

use crate::api::containership::{AUTH_GROUP, GROUP, PROVISION_GROUP, name};

/// A kind of which a hub keeps the objects, and how it says them: as Containership's API did in 2019.
#[derive(Debug, PartialEq, Eq)]
pub struct HubKind {
    pub kind: &'static str,
    pub plural: &'static str,
    pub group: &'static str,
    /// Path below that of the organisation; `{cluster}` stands for the cluster's id.
    path: &'static str,
    /// Fields that become those of the spec. Others are left out.
    fields: &'static [&'static str],
    /// A field that is a list of objects, and the fields of these.
    list: Option<(&'static str, &'static [&'static str])>,
}

pub const REGISTRIES: HubKind = HubKind {
    kind: "Registry",
    plural: "registries",
    group: GROUP,
    path: "registries",
    fields: &[
        "id",
        "added_at",
        "description",
        "organization_id",
        "email",
        "serveraddress",
        "provider",
        CREDENTIALS,
        "owner",
    ],
    list: None,
};

/// Labels are asked for pool by pool: this path is that of the pools.
pub const NODE_POOL_LABELS: HubKind = HubKind {
    kind: "NodePoolLabel",
    plural: "nodepoollabels",
    group: PROVISION_GROUP,
    path: "clusters/{cluster}/node-pools",
    fields: &["id", "created_at", "updated_at", "key", "value", POOL],
    list: None,
};

/// All kinds, in the order in which they are applied.
pub const KINDS: [HubKind; 7] = [
    HubKind {
        kind: "User",
        plural: "users",
        group: GROUP,
        path: "users",
        fields: &["id", "name", "avatar_url", "added_at", "ssh_keys"],
        list: Some(("ssh_keys", &["id", "name", "fingerprint", "key"])),
    },
    HubKind {
        kind: "ClusterLabel",
        plural: "clusterlabels",
        group: GROUP,
        path: "clusters/{cluster}/labels",
        fields: &["id", "created_at", "updated_at", "key", "value"],
        list: None,
    },
    NODE_POOL_LABELS,
    REGISTRIES,
    HubKind {
        kind: "AuthorizationRole",
        plural: "authorizationroles",
        group: AUTH_GROUP,
        path: "clusters/{cluster}/roles?side_load=rules&remove_empty=true&rule_type=kubernetes",
        fields: &[
            "id",
            "created_at",
            "updated_at",
            "organization_id",
            "name",
            "description",
            "owner_id",
            "rules",
        ],
        list: Some((
            "rules",
            &[
                "id",
                "created_at",
                "updated_at",
                "organization_id",
                "name",
                "description",
                "owner_id",
                "type",
                "api_groups",
                "resources",
                "resource_names",
                "verbs",
                "non_resource_urls",
            ],
        )),
    },
    HubKind {
        kind: "AuthorizationRoleBinding",
        plural: "authorizationrolebindings",
        group: AUTH_GROUP,
        path: "role-bindings?cluster_id={cluster}",
        fields: &[
            "id",
            "created_at",
            "updated_at",
            "organization_id",
            "owner_id",
            "type",
            "authorization_role_id",
            "user_id",
            "team_id",
            "cluster_id",
            "namespace",
        ],
        list: None,
    },
    HubKind {
        kind: "Plugin",
        plural: "plugins",
        group: GROUP,
        path: "clusters/{cluster}/plugins",
        fields: &["id", "added_at", "description", "type", "version", "implementation"],
        list: None,
    },
];

/// Field that the coordinator moves into a Secret, so that it is not held against the object.
const CREDENTIALS: &str = "credentials";
const POOL: &str = "node_pool_id";
/// Node pools of a cluster, at most: each is a request of its own.
const POOLS: usize = 1000;
/// Objects that an answer may take away whatever share of their kind they are.
const FEW: usize = 3;
/// Answers in a row that must take the same objects away.
const ANSWERS: u8 = 3;

/// Whom a hub is asked about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HubScope {
    pub organization: String,
    pub cluster: String,
}

impl HubScope {
    /// Returns where a kind is asked for.
    pub fn kind_path(&self, kind: &HubKind) -> String {
        let path = kind.path.replace("{cluster}", &self.cluster);
        format!("/v3/organizations/{}/{path}", self.organization)
    }

    /// Returns where the labels of a pool are asked for.
    pub fn pool_path(&self, pool: &str) -> String {
        format!("{}/{pool}/labels", self.kind_path(&NODE_POOL_LABELS))
    }

    /// Returns where the manifests of a Plugin are asked for.
    pub fn plugin_path(&self, name: &str) -> String {
        let Self { organization, cluster } = self;
        format!("/v3/organizations/{organization}/clusters/{cluster}/plugins/{name}")
    }
}

/// Why an answer is not believed.
#[derive(Debug, thiserror::Error)]
pub enum AnswerFault {
    #[error("the answer is no list of objects")]
    Form(#[from] serde_json::Error),
    #[error("the id of item {0} is no UUID")]
    Id(usize),
    #[error("two items have the id {0}")]
    Twice(String),
    #[error("item {id} is of another {field} than was asked for")]
    Foreign { id: String, field: &'static str },
    #[error("there are more than {POOLS} node pools")]
    ManyPools,
    #[error("the answer has no lists of manifests")]
    NoManifests(#[source] serde_json::Error),
    #[error("the answer has {0} beside its manifests, which are not carried out")]
    Unsupported(&'static str),
}

/// An object as a hub wants it. Its name is its id.
#[derive(Clone, PartialEq)]
pub struct HubItem {
    pub name: String,
    pub spec: Map<String, Value>,
}

impl std::fmt::Debug for HubItem {
    /// Without the spec, which may hold credentials.
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "HubItem({})", self.name)
    }
}

impl HubItem {
    /// Returns the digest of the spec. `key` is known to the hub and the coordinator alone, so that
    /// credentials cannot be guessed by it.
    pub fn digest(&self, key: &str) -> String {
        let text = Value::Object(self.spec.clone()).to_string();
        hex_prefix(Sha256::new_with_prefix(key).chain_update("\n").chain_update(text), 16)
    }

    /// Does the object hold what this wants, and nothing that this once wanted and does not any more?
    fn is_applied(&self, live: &LiveObject, key: &str) -> bool {
        let is_field_applied = |(field, value): (&String, &Value)| {
            field == CREDENTIALS
                || live.spec.get(field).is_some_and(|live_value| is_superset(live_value, value))
        };
        live.digest.as_deref() == Some(&self.digest(key)) && self.spec.iter().all(is_field_applied)
    }
}

/// Does a value hold the wanted one? Fields beside it are others' or defaults.
fn is_superset(live: &Value, desired: &Value) -> bool {
    match (live, desired) {
        (Value::Object(live), Value::Object(desired_fields)) => desired_fields
            .iter()
            .all(|(key, value)| live.get(key).is_some_and(|live| is_superset(live, value))),
        (Value::Array(live), Value::Array(desired_items)) => {
            live.len() == desired_items.len()
                && live
                    .iter()
                    .zip(desired_items)
                    .all(|(live, desired_item)| is_superset(live, desired_item))
        }
        _ => live == desired,
    }
}

fn hex_prefix(hash: Sha256, bytes: usize) -> String {
    hash.finalize().iter().take(bytes).fold(String::new(), |mut hex, byte| {
        write!(hex, "{byte:02x}").expect("a String takes any text");
        hex
    })
}

/// Reads the ids of the node pools.
///
/// # Errors
/// When any part of the answer is wrong.
pub fn read_pools(scope: &HubScope, body: &[u8]) -> Result<Vec<String>, AnswerFault> {
    let pools: Vec<String> = parse_list(scope, None, body)?.into_iter().map(|(id, _)| id).collect();
    if pools.len() > POOLS { Err(AnswerFault::ManyPools) } else { Ok(pools) }
}

/// Reads the manifests of a Plugin: lists of objects, which become a document of YAML each.
///
/// # Errors
/// When any part of the answer is wrong, or there is more to do than to apply them.
pub fn read_manifests(body: &[u8]) -> Result<String, AnswerFault> {
    let mut answer: Map<String, Value> =
        serde_json::from_slice(body).map_err(AnswerFault::NoManifests)?;
    for field in ["jobs", "urls"] {
        if answer.get(field).is_some_and(|value| !is_blank(value)) {
            return Err(AnswerFault::Unsupported(field));
        }
    }
    let lists = answer.remove("manifests").unwrap_or_default();
    let lists: Vec<Vec<Map<String, Value>>> =
        serde_json::from_value(lists).map_err(AnswerFault::NoManifests)?;
    let documents = lists.into_iter().flatten().map(|object| Value::Object(object).to_string());
    Ok(documents.collect::<Vec<_>>().join("\n---\n"))
}

/// Does a value hold nothing, however deep it is?
fn is_blank(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Array(values) => values.iter().all(is_blank),
        Value::Object(fields) => fields.values().all(is_blank),
        _ => false,
    }
}

/// Reads the objects of a kind; of one pool where that was asked for.
///
/// # Errors
/// When any part of the answer is wrong.
pub fn parse_items(
    kind: &HubKind,
    scope: &HubScope,
    pool: Option<&str>,
    body: &[u8],
) -> Result<Vec<HubItem>, AnswerFault> {
    let item = |(name, mut item_fields): IdentifiedItem| {
        if let Some(pool) = pool {
            item_fields.insert(POOL.to_owned(), pool.into());
        }
        let mut spec = select_fields(item_fields, kind.fields);
        if let Some((field, fields)) = kind.list
            && let Some(Value::Array(items)) = spec.get_mut(field)
        {
            for item in items {
                if let Value::Object(entry_fields) = item.take() {
                    *item = Value::Object(select_fields(entry_fields, fields));
                }
            }
        }
        HubItem { name, spec }
    };
    Ok(parse_list(scope, pool, body)?.into_iter().map(item).collect())
}

/// The fields of an item, with its id.
type IdentifiedItem = (String, Map<String, Value>);

/// Reads a list of objects with ids, each of whom is of those who were asked about.
fn parse_list(
    scope: &HubScope,
    pool: Option<&str>,
    body: &[u8],
) -> Result<Vec<IdentifiedItem>, AnswerFault> {
    let items: Vec<Map<String, Value>> = serde_json::from_slice(body)?;
    let expected_scope = [
        ("organization_id", Some(scope.organization.as_str())),
        ("cluster_id", Some(scope.cluster.as_str())),
        (POOL, pool),
    ];
    let mut seen_ids = BTreeSet::new();
    let mut identified_items = Vec::with_capacity(items.len());
    for (place, item) in items.into_iter().enumerate() {
        let id = item.get("id").and_then(Value::as_str).filter(|id| is_uuid(id));
        let id = id.ok_or(AnswerFault::Id(place))?.to_owned();
        for (field, expected) in expected_scope {
            let actual = item.get(field).filter(|value| !value.is_null() && *value != "");
            if let (Some(actual_value), Some(expected_value)) = (actual, expected)
                && actual_value != expected_value
            {
                return Err(AnswerFault::Foreign { id, field });
            }
        }
        if !seen_ids.insert(id.clone()) {
            return Err(AnswerFault::Twice(id));
        }
        identified_items.push((id, item));
    }
    Ok(identified_items)
}

/// Is this a UUID as objects are named: lower case, with hyphens?
fn is_uuid(text: &str) -> bool {
    Uuid::try_parse(text).is_ok_and(|id| id.hyphenated().to_string() == text)
}

/// Returns these fields, without those that are null.
fn select_fields(mut object: Map<String, Value>, fields: &[&str]) -> Map<String, Value> {
    let take_field = |field: &&str| {
        let value = object.remove(*field).filter(|value| !value.is_null())?;
        Some(((*field).to_owned(), value))
    };
    fields.iter().filter_map(take_field).collect()
}

/// An object that there is.
#[derive(Clone, Debug, PartialEq)]
pub struct LiveObject {
    pub name: String,
    pub uid: String,
    /// Its resourceVersion.
    pub version: String,
    /// It bears the hub's label.
    pub managed: bool,
    pub deleting: bool,
    digest: Option<String>,
    spec: Value,
}

impl LiveObject {
    pub fn new(meta: &ObjectMeta, spec: &Value) -> Self {
        let (key, value) = name::MANAGED;
        let label = meta.labels.as_ref().and_then(|labels| labels.get(key));
        Self {
            name: meta.name.clone().unwrap_or_default(),
            uid: meta.uid.clone().unwrap_or_default(),
            version: meta.resource_version.clone().unwrap_or_default(),
            managed: label.is_some_and(|text| text == value),
            deleting: meta.deletion_timestamp.is_some(),
            digest: meta.annotations.as_ref().and_then(|map| map.get(name::HUB_DIGEST)).cloned(),
            spec: spec.clone(),
        }
    }
}

/// What is done about one kind.
#[derive(Debug, Default, PartialEq)]
pub struct KindPlan<'a> {
    /// Objects that are applied, each with what stands of it.
    pub apply: Vec<(&'a HubItem, Option<&'a LiveObject>)>,
    pub delete: Vec<&'a LiveObject>,
    pub held: Option<HeldDeletion>,
    /// Names of objects of others that are in the way.
    pub foreign: Vec<&'a str>,
}

/// A deletion that is not believed yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeldDeletion {
    /// Objects that would go, and all that the hub has of the kind.
    pub count: usize,
    pub all: usize,
    /// Answers in a row that said so.
    pub answers: u8,
    /// What a person writes to confirm exactly this.
    pub word: String,
}

/// What the last answers took away that was not believed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeletionDoubt {
    names: BTreeSet<String>,
    answers: u8,
}

impl DeletionDoubt {
    /// Judges a deletion: returns the names that may go.
    fn check_deletion<'a>(
        &mut self,
        kind: &HubKind,
        names: BTreeSet<&'a str>,
        total: usize,
        confirmed: &str,
    ) -> Result<BTreeSet<&'a str>, HeldDeletion> {
        let is_most = names.len() > FEW && names.len() * 2 > total;
        if names.is_empty() || !(is_most || names.len() == total) {
            *self = Self::default();
            return Ok(names);
        }
        // What one of the answers had is not taken away.
        let repeated_names: BTreeSet<&str> =
            names.iter().copied().filter(|name| self.names.contains(*name)).collect();
        let (names, answers) = if repeated_names.is_empty() {
            (names, 1)
        } else {
            (repeated_names, self.answers.saturating_add(1))
        };
        let name_list = names.iter().copied().collect::<Vec<_>>().join(",");
        let word = format!("{}-{}", kind.plural, hex_prefix(Sha256::new_with_prefix(name_list), 6));
        if answers >= ANSWERS || confirmed.split(',').any(|entry| entry.trim() == word) {
            *self = Self::default();
            return Ok(names);
        }
        let count = names.len();
        *self = Self { names: names.into_iter().map(str::to_owned).collect(), answers };
        Err(HeldDeletion { count, all: total, answers, word })
    }
}

/// Decides what is done about a kind: `items` are all that the hub wants of it, `live` all objects that
/// there are, `key` is that of [`HubItem::digest`], `confirmed` what a person wrote.
pub fn plan_kind<'a>(
    kind: &HubKind,
    items: &'a [HubItem],
    live: &'a [LiveObject],
    key: &str,
    doubt: &mut DeletionDoubt,
    confirmations: &str,
) -> KindPlan<'a> {
    let mut plan = KindPlan::default();
    let by_name: BTreeMap<&str, &LiveObject> =
        live.iter().map(|object| (object.name.as_str(), object)).collect();
    for item in items {
        match by_name.get(item.name.as_str()).copied() {
            Some(object) if !object.managed => plan.foreign.push(&object.name),
            Some(object) if object.deleting || item.is_applied(object, key) => {}
            existing => plan.apply.push((item, existing)),
        }
    }
    let desired_names: BTreeSet<&str> = items.iter().map(|item| item.name.as_str()).collect();
    let managed_objects = || live.iter().filter(|object| object.managed && !object.deleting);
    let names = managed_objects().map(|object| object.name.as_str());
    let removed_names = names.filter(|name| !desired_names.contains(name)).collect();
    match doubt.check_deletion(kind, removed_names, managed_objects().count(), confirmations) {
        Ok(names) => {
            plan.delete =
                managed_objects().filter(|object| names.contains(object.name.as_str())).collect();
        }
        Err(held_deletion) => plan.held = Some(held_deletion),
    }
    plan
}

#[cfg(test)]
mod tests;
