//! LeaderLease: the lock and the founding record of a cluster's pilots.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Which pilot leads, and which one founded the database cluster.
///
/// The server adds optimistic locking and nothing else: an update needs the current
/// resourceVersion. A holder that could not renew for two thirds of the duration stops acting.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct LeaderLease {
    #[serde(default)]
    pub metadata: ObjectMeta,
    /// Written by pilots.
    #[serde(default)]
    pub spec: LeaderLeaseSpec,
}

/// Who holds a lease, since when and for how long.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct LeaderLeaseSpec {
    /// Name of the holder; empty or absent when the lease is free.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub holder_identity: Option<String>,
    /// Seconds after `renewTime` at which others may take the lease.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lease_duration_seconds: Option<i32>,
    /// When the holder took the lease.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub acquire_time: Option<MicroTime>,
    /// When the holder last renewed the lease.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub renew_time: Option<MicroTime>,
    /// Changes of holder so far; serves as fencing number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lease_transitions: Option<i32>,
    /// The one pilot that may found, or has founded, the database cluster. A change of holder
    /// never clears it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub founder: Option<Founder>,
}

/// A founding attempt.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Founder {
    /// Name of the Pilot.
    pub name: String,
    /// Random id of this attempt; tells it from a later one of the same name. It is the id of the
    /// ring that was founded, and every member's volume carries it.
    pub id: String,
    /// Set when a node with data recorded a ring that was there before: what volumes are known by
    /// that were marked before rings had ids.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub formerly: Vec<String>,
}
