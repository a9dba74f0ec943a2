//! Tells kube-apiserver which CA to trust us by: `spec.caBundle` of our APIServices.

use base64::{Engine, prelude::BASE64_STANDARD};
use kube::{
    Api, Client,
    api::{ApiResource, DynamicObject, Patch, PatchParams},
};
use serde_json::json;
use tracing::info;

use crate::machinery::served_kinds::ServedGroup;

/// Why the CA bundle may be missing from an APIService.
#[derive(Debug, thiserror::Error)]
pub enum CaBundleError {
    #[error("APIService {name:?} does not exist")]
    Absent { name: String },
    #[error("failed to read APIService {name:?}")]
    Read { name: String, source: Box<kube::Error> },
    #[error("failed to write the CA bundle of APIService {name:?}")]
    Write { name: String, source: Box<kube::Error> },
}

/// Writes `bundle` (PEM) to each of our APIServices that does not have it or skips verification.
pub(super) async fn ensure_ca_bundle(
    client: &Client,
    group: &ServedGroup,
    bundle: &str,
) -> Result<(), CaBundleError> {
    let services: Api<DynamicObject> = Api::all_with(client.clone(), &api_service());
    let bundle = BASE64_STANDARD.encode(bundle);
    for version in group.versions {
        let name = format!("{version}.{}", group.name);
        let read_result = services.get_opt(&name).await;
        let existing_service = match read_result {
            Ok(Some(service)) => service,
            Ok(None) => return Err(CaBundleError::Absent { name }),
            Err(source) => return Err(CaBundleError::Read { name, source: Box::new(source) }),
        };
        let spec = &existing_service.data["spec"];
        // An APIService without the field is verified, as one with false is.
        let is_verified = spec["insecureSkipTLSVerify"].as_bool() != Some(true);
        if spec["caBundle"] == bundle.as_str() && is_verified {
            continue;
        }
        let patch = json!({"spec": {"caBundle": bundle, "insecureSkipTLSVerify": null}});
        services.patch(&name, &PatchParams::default(), &Patch::Merge(&patch)).await.map_err(
            |source| CaBundleError::Write { name: name.clone(), source: Box::new(source) },
        )?;
        info!(api_service = name, "Wrote the CA bundle");
    }
    Ok(())
}

fn api_service() -> ApiResource {
    ApiResource {
        group: "apiregistration.k8s.io".into(),
        version: "v1".into(),
        api_version: "apiregistration.k8s.io/v1".into(),
        kind: "APIService".into(),
        plural: "apiservices".into(),
    }
}
