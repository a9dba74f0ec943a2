//! Version `v1alpha1`: what upstream released, frozen, served for ever beside v1beta1.
//!
//! Wire types only; nothing reasons with them. [`super::conversion`] turns them into the hub and
//! back, [`super::legacy`] accepts the older ways of writing them. `status` is the hub's own
//! type: the older version gained fields and lost none.

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

mod cluster;
mod pilot;

pub use cluster::*;
pub use pilot::*;

/// `navigator.jetstack.io/v1alpha1`
pub const API_VERSION: &str = "navigator.jetstack.io/v1alpha1";

/// A container image by repository and tag.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ImageSpec {
    /// Repository without tag, for example `docker.io/library/example`.
    #[serde(default)]
    pub repository: String,
    /// Tag of the image.
    #[serde(default)]
    pub tag: String,
    /// When the image is pulled: `Always`, `IfNotPresent` or `Never`. Defaults to
    /// `IfNotPresent`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pull_policy: Option<String>,
}

/// The volume of each node of a pool.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Persistence {
    /// `false` keeps data in an emptyDir, whatever the size says. Defaults to true.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub enabled: Option<bool>,
    /// Size of each volume. It may grow but not shrink. Required unless `enabled` is false.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size: Option<Quantity>,
    /// StorageClass of the volumes; the cluster's default class when absent. It cannot be
    /// changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub storage_class: Option<String>,
}
