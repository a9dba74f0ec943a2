//! StatefulSets that name a cluster as owner which the store does not have: those that the garbage
//! collector would delete next. StatefulSets of upstream's 2018 releases name owners, and so do
//! those of our releases before 0.3.

use k8s_openapi::api::apps::v1::StatefulSet;
use kube::{Api, Client, api::ListParams};
use serde_json::Value;

use super::{
    super::storage::{Key, Storage},
    Error,
};
use crate::{apiserver::installation::InstallationNames, machinery::served_kinds::ServedKinds};

/// Most StatefulSets that one request lists.
const PAGE: u32 = 500;
/// Most StatefulSets that a message names.
pub(super) const NAMED: usize = 3;

/// Returns `namespace/name` of StatefulSets whose owner the store lacks: at most one more than a
/// message names.
pub(super) async fn find_orphans(
    client: &Client,
    store: &dyn Storage,
    scheme: &ServedKinds,
    names: &InstallationNames,
) -> Result<Vec<String>, Error> {
    let sets: Api<StatefulSet> = Api::all(client.clone());
    let mut orphan_names = Vec::new();
    let mut page = ListParams::default().limit(PAGE);
    loop {
        let list = sets.list_metadata(&page).await.map_err(|source| Error::StatefulSets {
            role: names.service,
            source: Box::new(source),
        })?;
        for set in list.items {
            let namespace = set.metadata.namespace.unwrap_or_default();
            for owner in set.metadata.owner_references.unwrap_or_default() {
                let is_ours = owner.api_version.split('/').next() == Some(scheme.group().name);
                if is_ours
                    && !has_object(store, scheme, &owner.kind, &namespace, &owner.name, &owner.uid)
                        .await?
                {
                    let name = set.metadata.name.as_deref().unwrap_or_default();
                    orphan_names.push(format!("{namespace}/{name}"));
                    break;
                }
            }
            if orphan_names.len() > NAMED {
                return Ok(orphan_names);
            }
        }
        match list.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => page = page.continue_token(&token),
            None => return Ok(orphan_names),
        }
    }
}

/// Tells whether the store has the object with this `uid`. A stored object that cannot be read
/// counts as that object.
async fn has_object(
    store: &dyn Storage,
    scheme: &ServedKinds,
    kind: &str,
    namespace: &str,
    name: &str,
    uid: &str,
) -> Result<bool, Error> {
    let Some(kind) = scheme.by_kind(kind) else {
        return Ok(false);
    };
    let Ok(key) = Key::new(kind.group(), kind.plural(), namespace, name) else { return Ok(false) };
    let Some(entry) = store.get(&key).await? else { return Ok(false) };
    Ok(match serde_json::from_slice::<Value>(&entry.value) {
        Ok(object) => object["metadata"]["uid"].as_str().is_none_or(|stored_uid| stored_uid == uid),
        Err(_) => true,
    })
}
