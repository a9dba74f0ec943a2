//! Secrets as they are read: from the caches where they are ours, from the server where a person
//! named them.

use std::collections::BTreeMap;

use k8s_openapi::{
    ByteString,
    api::core::v1::{ConfigMap, Secret},
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use kube::api::{ApiResource, DynamicObject};
use serde::{Deserialize, Serialize};

use crate::{
    api::{
        names::label,
        v1beta1::{TrustKind, TrustSource},
    },
    controller::{
        context::{ControllerContext, Error},
        desired_state::DesiredCluster,
        security_findings::SecurityProblem,
    },
    engine::pki::TrustBundle,
};

/// Key of a cluster's ConfigMap with what other clusters of the same database cluster are to trust.
pub(super) const INTERNODE_BUNDLE: &str = "internode-ca.crt";
/// Key with CAs, where none is named.
pub(super) const TRUST: &str = "ca.crt";

/// CAs that were read from an object.
pub(super) struct ReadTrust {
    pub(super) bundle: TrustBundle,
    /// Tells versions of the object apart.
    pub(super) version: String,
}

/// A Secret with its values. It cannot be printed.
pub(super) struct FoundSecret {
    pub(super) meta: ObjectMeta,
    values: BTreeMap<String, ByteString>,
}

impl FoundSecret {
    pub(super) fn new(object: &DynamicObject) -> Self {
        let values = BTreeMap::deserialize(&object.data["data"]).unwrap_or_default();
        Self { meta: object.metadata.clone(), values }
    }

    pub(super) fn value(&self, key: &str) -> Option<&[u8]> {
        self.values.get(key).map(|value| value.0.as_slice())
    }

    pub(super) fn text(&self, key: &str) -> Option<&str> {
        std::str::from_utf8(self.value(key)?).ok()
    }

    /// Did the controller make the Secret for this cluster?
    pub(super) fn is_of(&self, desired: &DesiredCluster) -> bool {
        let labels = self.meta.labels.as_ref();
        let has_label = |key: &str, value: &str| {
            labels
                .and_then(|values| values.get(key))
                .is_some_and(|label_value| label_value == value)
        };
        has_label(label::K8S_MANAGED_BY, "navigator")
            && has_label(desired.database.names.cluster_label, &desired.name)
    }

    pub(super) fn source(&self) -> SecretSource {
        SecretSource {
            uid: self.meta.uid.clone().unwrap_or_default(),
            resource_version: self.meta.resource_version.clone().unwrap_or_default(),
        }
    }
}

/// Which version of which Secret a value was taken from.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct SecretSource {
    uid: String,
    resource_version: String,
}

impl SecretSource {
    /// Are both versions of one Secret?
    pub(super) fn is_of(&self, other: &Self) -> bool {
        self.uid == other.uid
    }
}

pub(super) fn secret_resource() -> ApiResource {
    ApiResource::erase::<Secret>(&())
}

/// Returns a Secret that the controller made, from the caches or else from the server, which may
/// know one that lost its labels.
pub(super) async fn read_managed_secret(
    ctx: &ControllerContext,
    desired: &DesiredCluster,
    name: &str,
) -> Result<Option<FoundSecret>, Error> {
    match ctx.get_object(&secret_resource(), &desired.namespace, name).await? {
        Some(object) => Ok(Some(FoundSecret::new(&object))),
        None => read_secret(ctx, desired, name).await,
    }
}

/// Returns the CAs in an object that a person named.
pub(super) async fn read_trust(
    ctx: &ControllerContext,
    desired: &DesiredCluster,
    source: &TrustSource,
    purpose: &str,
) -> Result<Result<ReadTrust, SecurityProblem>, Error> {
    let TrustSource { kind, name, key } = source;
    let key = key.as_deref().unwrap_or(TRUST);
    let trust_problem = |reason, detail: String| {
        let message = format!(
            "{kind} {name}, key {key}, {purpose}: {detail}; nodes trust those that they trusted"
        );
        Ok(Err(SecurityProblem { reason, message }))
    };
    let (meta, pem) = if *kind == TrustKind::ConfigMap {
        read_config_map(ctx, desired, name, key).await?
    } else {
        let secret = read_secret(ctx, desired, name).await?;
        let pem = secret.as_ref().and_then(|secret| secret.value(key).map(<[u8]>::to_vec));
        (secret.map(|secret| secret.meta).unwrap_or_default(), pem)
    };
    match pem.map(|pem| TrustBundle::from_pem(&pem)) {
        None => trust_problem("SecretMissing", "is not there: make it".to_owned()),
        Some(Err(refusal)) => trust_problem("SecretInvalid", refusal.to_string()),
        Some(Ok(bundle)) => {
            let parts = [meta.uid, meta.resource_version].map(Option::unwrap_or_default);
            Ok(Ok(ReadTrust { bundle, version: parts.join(" ") }))
        }
    }
}

/// Returns a value of a ConfigMap as the server has it, with the ConfigMap's metadata.
async fn read_config_map(
    ctx: &ControllerContext,
    desired: &DesiredCluster,
    name: &str,
    key: &str,
) -> Result<(ObjectMeta, Option<Vec<u8>>), Error> {
    let resource = ApiResource::erase::<ConfigMap>(&());
    let object = ctx.read_api(&resource, &desired.namespace).get_opt(name).await;
    let object = object.map_err(|error| Error::from_request("get", "ConfigMap", name, error))?;
    let value = object.as_ref().and_then(|object| object.data["data"][key].as_str());
    let value = value.map(|text| text.as_bytes().to_vec());
    Ok((object.map(|object| object.metadata).unwrap_or_default(), value))
}

/// Returns a Secret as the server has it.
pub(super) async fn read_secret(
    ctx: &ControllerContext,
    desired: &DesiredCluster,
    name: &str,
) -> Result<Option<FoundSecret>, Error> {
    let object = ctx.read_api(&secret_resource(), &desired.namespace).get_opt(name).await;
    let object = object.map_err(|error| Error::from_request("get", "Secret", name, error))?;
    Ok(object.as_ref().map(FoundSecret::new))
}
