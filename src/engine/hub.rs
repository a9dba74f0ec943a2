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
    pub fn path(&self, kind: &HubKind) -> String {
        let path = kind.path.replace("{cluster}", &self.cluster);
        format!("/v3/organizations/{}/{path}", self.organization)
    }

    /// Returns where the labels of a pool are asked for.
    pub fn pool_path(&self, pool: &str) -> String {
        format!("{}/{pool}/labels", self.path(&NODE_POOL_LABELS))
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
        hex(Sha256::new_with_prefix(key).chain_update("\n").chain_update(text), 16)
    }

    /// Does the object hold what this wants, and nothing that this once wanted and does not any more?
    fn stands(&self, live: &LiveObject, key: &str) -> bool {
        let holds = |(field, value): (&String, &Value)| {
            field == CREDENTIALS || live.spec.get(field).is_some_and(|live| covers(live, value))
        };
        live.digest.as_deref() == Some(&self.digest(key)) && self.spec.iter().all(holds)
    }
}

/// Does a value hold the wanted one? Fields beside it are others' or defaults.
fn covers(live: &Value, wanted: &Value) -> bool {
    match (live, wanted) {
        (Value::Object(live), Value::Object(wanted)) => {
            wanted.iter().all(|(key, value)| live.get(key).is_some_and(|live| covers(live, value)))
        }
        (Value::Array(live), Value::Array(wanted)) => {
            live.len() == wanted.len()
                && live.iter().zip(wanted).all(|(live, wanted)| covers(live, wanted))
        }
        _ => live == wanted,
    }
}

fn hex(hash: Sha256, bytes: usize) -> String {
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
    let pools: Vec<String> = read_list(scope, None, body)?.into_iter().map(|(id, _)| id).collect();
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
        if answer.get(field).is_some_and(|value| !is_bare(value)) {
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
fn is_bare(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Array(values) => values.iter().all(is_bare),
        Value::Object(fields) => fields.values().all(is_bare),
        _ => false,
    }
}

/// Reads the objects of a kind; of one pool where that was asked for.
///
/// # Errors
/// When any part of the answer is wrong.
pub fn read(
    kind: &HubKind,
    scope: &HubScope,
    pool: Option<&str>,
    body: &[u8],
) -> Result<Vec<HubItem>, AnswerFault> {
    let item = |(name, mut all): IdentifiedItem| {
        if let Some(pool) = pool {
            all.insert(POOL.to_owned(), pool.into());
        }
        let mut spec = some_of(all, kind.fields);
        if let Some((field, fields)) = kind.list
            && let Some(Value::Array(items)) = spec.get_mut(field)
        {
            for item in items {
                if let Value::Object(all) = item.take() {
                    *item = Value::Object(some_of(all, fields));
                }
            }
        }
        HubItem { name, spec }
    };
    Ok(read_list(scope, pool, body)?.into_iter().map(item).collect())
}

/// The fields of an item, with its id.
type IdentifiedItem = (String, Map<String, Value>);

/// Reads a list of objects with ids, each of whom is of those who were asked about.
fn read_list(
    scope: &HubScope,
    pool: Option<&str>,
    body: &[u8],
) -> Result<Vec<IdentifiedItem>, AnswerFault> {
    let items: Vec<Map<String, Value>> = serde_json::from_slice(body)?;
    let asked = [
        ("organization_id", Some(scope.organization.as_str())),
        ("cluster_id", Some(scope.cluster.as_str())),
        (POOL, pool),
    ];
    let mut seen = BTreeSet::new();
    let mut named = Vec::with_capacity(items.len());
    for (place, item) in items.into_iter().enumerate() {
        let id = item.get("id").and_then(Value::as_str).filter(|id| is_uuid(id));
        let id = id.ok_or(AnswerFault::Id(place))?.to_owned();
        for (field, asked) in asked {
            let said = item.get(field).filter(|said| !said.is_null() && *said != "");
            if let (Some(said), Some(asked)) = (said, asked)
                && said != asked
            {
                return Err(AnswerFault::Foreign { id, field });
            }
        }
        if !seen.insert(id.clone()) {
            return Err(AnswerFault::Twice(id));
        }
        named.push((id, item));
    }
    Ok(named)
}

/// Is this a UUID as objects are named: lower case, with hyphens?
fn is_uuid(text: &str) -> bool {
    Uuid::try_parse(text).is_ok_and(|id| id.hyphenated().to_string() == text)
}

/// Returns these fields, without those that are null.
fn some_of(mut all: Map<String, Value>, fields: &[&str]) -> Map<String, Value> {
    let one = |field: &&str| {
        let value = all.remove(*field).filter(|value| !value.is_null())?;
        Some(((*field).to_owned(), value))
    };
    fields.iter().filter_map(one).collect()
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
            managed: label.is_some_and(|held| held == value),
            deleting: meta.deletion_timestamp.is_some(),
            digest: meta.annotations.as_ref().and_then(|all| all.get(name::HUB_DIGEST)).cloned(),
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
    fn judge<'a>(
        &mut self,
        kind: &HubKind,
        names: BTreeSet<&'a str>,
        all: usize,
        confirmed: &str,
    ) -> Result<BTreeSet<&'a str>, HeldDeletion> {
        let is_most = names.len() > FEW && names.len() * 2 > all;
        if names.is_empty() || !(is_most || names.len() == all) {
            *self = Self::default();
            return Ok(names);
        }
        // What one of the answers had is not taken away.
        let both: BTreeSet<&str> =
            names.iter().copied().filter(|name| self.names.contains(*name)).collect();
        let (names, answers) =
            if both.is_empty() { (names, 1) } else { (both, self.answers.saturating_add(1)) };
        let listed = names.iter().copied().collect::<Vec<_>>().join(",");
        let word = format!("{}-{}", kind.plural, hex(Sha256::new_with_prefix(listed), 6));
        if answers >= ANSWERS || confirmed.split(',').any(|said| said.trim() == word) {
            *self = Self::default();
            return Ok(names);
        }
        let count = names.len();
        *self = Self { names: names.into_iter().map(str::to_owned).collect(), answers };
        Err(HeldDeletion { count, all, answers, word })
    }
}

/// Decides what is done about a kind: `items` are all that the hub wants of it, `live` all objects that
/// there are, `key` is that of [`HubItem::digest`], `confirmed` what a person wrote.
pub fn plan<'a>(
    kind: &HubKind,
    items: &'a [HubItem],
    live: &'a [LiveObject],
    key: &str,
    doubt: &mut DeletionDoubt,
    confirmed: &str,
) -> KindPlan<'a> {
    let mut plan = KindPlan::default();
    let by_name: BTreeMap<&str, &LiveObject> =
        live.iter().map(|object| (object.name.as_str(), object)).collect();
    for item in items {
        match by_name.get(item.name.as_str()).copied() {
            Some(object) if !object.managed => plan.foreign.push(&object.name),
            Some(object) if object.deleting || item.stands(object, key) => {}
            found => plan.apply.push((item, found)),
        }
    }
    let wanted: BTreeSet<&str> = items.iter().map(|item| item.name.as_str()).collect();
    let ours = || live.iter().filter(|object| object.managed && !object.deleting);
    let names = ours().map(|object| object.name.as_str());
    let gone = names.filter(|name| !wanted.contains(name)).collect();
    match doubt.judge(kind, gone, ours().count(), confirmed) {
        Ok(names) => {
            plan.delete = ours().filter(|object| names.contains(object.name.as_str())).collect();
        }
        Err(held) => plan.held = Some(held),
    }
    plan
}

#[cfg(test)]
mod tests;
