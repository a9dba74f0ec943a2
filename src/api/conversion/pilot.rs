//! Conversion of a Pilot between the hub and v1alpha1. The parts that are one database's own go
//! through its [`ErasedPilotPart`].

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::api::{
    pilot_part::{ErasedPilotPart, PilotParts},
    v1alpha1,
    v1beta1::{self, ClusterRef, Config, Jvm, PilotIntent, PilotSecurity, PilotSettings},
};

/// What v1alpha1 cannot say about a Pilot; shaped as the hub's spec.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(rename = "PilotSurplus")]
pub struct PilotSurplus {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    cluster_ref: Option<ClusterRef>,
    /// Here only while there is no part of a database, where v1alpha1 has it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    node_pool: Option<String>,
    /// Neither Running nor Decommissioned. It applies only while `decommission` is false.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    phase: Option<PilotIntent>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    version: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    config_hash: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    restarted_at: Option<Time>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    restart_for: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pilot_update: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pilot_settings: Option<PilotSettings>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    forget: Vec<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    unsafe_bootstrap: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    security: Option<PilotSecurity>,
    #[serde(default, skip_serializing_if = "Config::is_empty")]
    #[schemars(extend("x-kubernetes-preserve-unknown-fields" = true))]
    config: Config,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    jvm: Option<Jvm>,
    /// Each applies only while there is the part of that database. The scheme adds them to the
    /// schema.
    #[serde(flatten)]
    #[schemars(skip)]
    parts: BTreeMap<String, Value>,
}

/// Converts a hub Pilot to v1alpha1; returns it with the surplus that v1alpha1 cannot say.
///
/// # Errors
/// When a part is not of its type.
pub fn project_pilot(
    hub: v1beta1::Pilot,
    databases: &[&ErasedPilotPart],
) -> Result<(v1alpha1::Pilot, PilotSurplus), serde_json::Error> {
    let v1beta1::Pilot { metadata, spec, status } = hub;
    let v1beta1::PilotSpec {
        cluster_ref,
        node_pool,
        phase,
        version,
        config_hash,
        restarted_at,
        restart_for,
        pilot_update,
        pilot_settings,
        forget,
        unsafe_bootstrap,
        security,
        config,
        jvm,
        mut parts,
    } = spec;
    let mut older_parts = PilotParts::default();
    let mut surplus_parts = BTreeMap::new();
    for database in databases {
        let Some(part) = parts.take_part(database.word) else { continue };
        let (older, surplus) = (database.project)(part, node_pool.clone().unwrap_or_default())?;
        older_parts.insert(database.word, older);
        surplus_parts.extend(surplus.map(|surplus| (database.word.to_owned(), surplus)));
    }
    let is_in_part = !older_parts.is_empty();
    let older = v1alpha1::Pilot {
        metadata,
        spec: v1alpha1::PilotSpec {
            decommission: phase == Some(PilotIntent::Decommissioned),
            parts: older_parts,
        },
        status,
    };
    let surplus = PilotSurplus {
        cluster_ref,
        node_pool: node_pool.filter(|_| !is_in_part),
        phase: phase
            .filter(|phase| !matches!(phase, PilotIntent::Running | PilotIntent::Decommissioned)),
        version,
        config_hash,
        restarted_at,
        restart_for,
        pilot_update,
        pilot_settings,
        forget,
        unsafe_bootstrap,
        security,
        config,
        jvm,
        parts: surplus_parts,
    };
    Ok((older, surplus))
}

/// Converts a v1alpha1 Pilot and its surplus to the hub. Edits of the v1alpha1 object win over the
/// surplus.
///
/// # Errors
/// When a part is not of its type.
pub fn lift_pilot(
    older: v1alpha1::Pilot,
    surplus: PilotSurplus,
    databases: &[&ErasedPilotPart],
) -> Result<v1beta1::Pilot, serde_json::Error> {
    let v1alpha1::Pilot { metadata, spec, status } = older;
    let v1alpha1::PilotSpec { decommission, parts: mut older_parts } = spec;
    let PilotSurplus {
        cluster_ref,
        node_pool,
        phase,
        version,
        config_hash,
        restarted_at,
        restart_for,
        pilot_update,
        pilot_settings,
        forget,
        unsafe_bootstrap,
        security,
        config,
        jvm,
        parts: mut surplus_parts,
    } = surplus;
    let mut node_pool = node_pool.filter(|_| older_parts.is_empty());
    let mut parts = PilotParts::default();
    for database in databases {
        let Some(part) = older_parts.take_part(database.word) else { continue };
        let (spec, name) = (database.lift)(part, surplus_parts.remove(database.word))?;
        if node_pool.is_none() && !name.is_empty() {
            node_pool = Some(name);
        }
        parts.insert(database.word, spec);
    }
    let phase = if decommission {
        PilotIntent::Decommissioned
    } else {
        phase.unwrap_or(PilotIntent::Running)
    };
    Ok(v1beta1::Pilot {
        metadata,
        spec: v1beta1::PilotSpec {
            cluster_ref,
            node_pool,
            phase: Some(phase),
            version,
            config_hash,
            restarted_at,
            restart_for,
            pilot_update,
            pilot_settings,
            forget,
            unsafe_bootstrap,
            security,
            config,
            jvm,
            parts,
        },
        status,
    })
}
