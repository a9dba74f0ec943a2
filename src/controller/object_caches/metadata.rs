//! Objects of which only the metadata are watched. Any client may write objects with our label, so
//! only what shows the owner of an object is kept.
//!
//! The controller requests only metadata from the server, so it never receives the values of
//! foreign Secrets. It skips foreign labels and annotations while it reads them: a page of large
//! ones takes only the memory of its text.

use std::{borrow::Cow, collections::BTreeMap, fmt};

use http::{HeaderValue, Request, header::ACCEPT};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference, Time};
use kube::{Client, Resource, api::ApiResource, client::Body, core::DynamicResourceScope};
use serde::{
    Deserialize, Deserializer, Serialize,
    de::{IgnoredAny, MapAccess, Visitor},
};

use crate::api::names::label;

/// Longest value of a label or an annotation that is kept, in bytes.
const MOST_OF_A_VALUE: usize = 4096;

/// The metadata of an object of any kind.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
pub(crate) struct ObjectMetadata {
    #[serde(deserialize_with = "short")]
    pub(crate) metadata: ObjectMeta,
}

impl Resource for ObjectMetadata {
    type DynamicType = ApiResource;
    type Scope = DynamicResourceScope;

    fn kind(resource: &ApiResource) -> Cow<'_, str> {
        resource.kind.as_str().into()
    }

    fn group(resource: &ApiResource) -> Cow<'_, str> {
        resource.group.as_str().into()
    }

    fn version(resource: &ApiResource) -> Cow<'_, str> {
        resource.version.as_str().into()
    }

    fn api_version(resource: &ApiResource) -> Cow<'_, str> {
        resource.api_version.as_str().into()
    }

    fn plural(resource: &ApiResource) -> Cow<'_, str> {
        resource.plural.as_str().into()
    }

    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

/// Returns a client that lists and watches metadata alone.
pub(super) fn metadata_client(client: Client) -> Client {
    let namespace = client.default_namespace().to_owned();
    let service = tower::service_fn(move |mut request: Request<Body>| {
        let client = client.clone();
        async move {
            let query = request.uri().query().unwrap_or_default();
            let is_watch = query.split('&').any(|pair| pair == "watch=true");
            request.headers_mut().insert(ACCEPT, if is_watch { OF_ONE } else { OF_A_LIST });
            client.send(request).await
        }
    });
    Client::new(service, namespace)
}

const OF_ONE: HeaderValue =
    HeaderValue::from_static("application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1");
const OF_A_LIST: HeaderValue =
    HeaderValue::from_static("application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1");

/// What the controller reads of metadata.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ShortMetadata {
    name: Option<String>,
    namespace: Option<String>,
    uid: Option<String>,
    resource_version: Option<String>,
    generation: Option<i64>,
    creation_timestamp: Option<Time>,
    deletion_timestamp: Option<Time>,
    #[serde(default)]
    labels: OwnEntries,
    #[serde(default)]
    annotations: OwnEntries,
    owner_references: Option<Vec<OwnerReference>>,
    finalizers: Option<Vec<String>>,
}

fn short<'de, D: Deserializer<'de>>(deserializer: D) -> Result<ObjectMeta, D::Error> {
    let ShortMetadata {
        name,
        namespace,
        uid,
        resource_version,
        generation,
        creation_timestamp,
        deletion_timestamp,
        labels,
        annotations,
        owner_references,
        finalizers,
    } = ShortMetadata::deserialize(deserializer)?;
    Ok(ObjectMeta {
        name,
        namespace,
        uid,
        resource_version,
        generation,
        creation_timestamp,
        deletion_timestamp,
        labels: labels.0,
        annotations: annotations.0,
        owner_references,
        finalizers,
        ..ObjectMeta::default()
    })
}

/// Labels or annotations by which the controller knows its objects.
#[derive(Default)]
struct OwnEntries(Option<BTreeMap<String, String>>);

impl<'de> Deserialize<'de> for OwnEntries {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_option(OwnEntriesVisitor)
    }
}

struct OwnEntriesVisitor;

impl<'de> Visitor<'de> for OwnEntriesVisitor {
    type Value = OwnEntries;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("labels or annotations")
    }

    fn visit_none<E>(self) -> Result<OwnEntries, E> {
        Ok(OwnEntries(None))
    }

    fn visit_unit<E>(self) -> Result<OwnEntries, E> {
        Ok(OwnEntries(None))
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<OwnEntries, D::Error> {
        deserializer.deserialize_map(self)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<OwnEntries, A::Error> {
        let mut entries = BTreeMap::new();
        while let Some(key) = map.next_key::<String>()? {
            if !is_own(&key) {
                map.next_value::<IgnoredAny>()?;
                continue;
            }
            let value: String = map.next_value()?;
            entries.insert(key, value);
        }
        entries.retain(|key, value| is_kept(key, value));
        Ok(OwnEntries(Some(entries)))
    }
}

/// Returns whether the controller knows an object by this label or annotation, or writes it.
pub(super) fn is_kept(key: &str, value: &str) -> bool {
    is_own(key) && value.len() <= MOST_OF_A_VALUE
}

fn is_own(key: &str) -> bool {
    let domain = key.split_once('/').map_or("", |(domain, _)| domain);
    key == label::APP || domain.ends_with("navigator.jetstack.io") || domain == "app.kubernetes.io"
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn of_metadata_only_what_tells_whose_an_object_is_is_kept() {
        let read: ObjectMetadata = serde_json::from_value(json!({
            "kind": "PartialObjectMetadata",
            "metadata": {
                "name": "s",
                "namespace": "n",
                "uid": "u",
                "resourceVersion": "7",
                "labels": {"app.kubernetes.io/managed-by": "navigator", "team": "x"},
                "annotations": {
                    "navigator.jetstack.io/cluster-uid": "u-1",
                    "navigator.jetstack.io/store-id": "x".repeat(MOST_OF_A_VALUE + 1),
                    "example.com/large": "x",
                },
                "managedFields": [{"manager": "kubectl"}],
            },
            "data": {"password": "c2VjcmV0"},
        }))
        .unwrap();
        let kept = json!({"metadata": {
            "name": "s",
            "namespace": "n",
            "uid": "u",
            "resourceVersion": "7",
            "labels": {"app.kubernetes.io/managed-by": "navigator"},
            "annotations": {"navigator.jetstack.io/cluster-uid": "u-1"},
        }});
        assert_eq!(json!(read), kept);
        let bare = json!({"metadata": {"name": "s", "labels": null}});
        assert_eq!(serde_json::from_value::<ObjectMetadata>(bare).unwrap().metadata.labels, None);
    }
}
