//! A view of a cluster of any database, for the rules that all databases share.

use std::collections::BTreeMap;

use k8s_openapi::{
    api::core::v1::ResourceRequirements, apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use serde_json::Value;

use super::{config, security_support::SecuritySupport};
use crate::{
    api::{
        database_names::DatabaseNames,
        v1beta1::{
            Authentication, ClusterSecurity, ClusterStatus, Config, ImageSpec, Jvm, Persistence,
            PilotSettings, PodTemplate, SecurityContext, SecurityRungs, Services, UpdateStrategy,
        },
    },
    machinery::field_error::FieldPath,
};

/// The fields of a cluster that shared rules read.
pub(super) struct ClusterView<'a> {
    pub(super) metadata: &'a ObjectMeta,
    pub(super) names: &'static DatabaseNames,
    /// May only Navigator set a setting of this dotted name, in a cluster that asks for passwords
    /// (`true`) or not?
    pub(super) is_managed: fn(&str, bool) -> bool,
    /// Has a setting the value that Navigator gives it where passwords are asked for?
    pub(super) is_restated: fn(&str, &Value) -> bool,
    /// How clusters of this database are encrypted and ask for logins, if they can.
    pub(super) support: Option<SecuritySupport>,
    pub(super) version: &'a str,
    pub(super) image: Option<&'a ImageSpec>,
    pub(super) pilot_image: Option<&'a ImageSpec>,
    pub(super) security_context: Option<&'a SecurityContext>,
    pub(super) config: &'a Config,
    pub(super) jvm: Option<&'a Jvm>,
    pub(super) pod_template: &'a PodTemplate,
    pub(super) update_strategy: Option<&'a UpdateStrategy>,
    pub(super) services: Option<&'a Services>,
    pub(super) security: Option<&'a ClusterSecurity>,
    /// Names of the roles that are declared beside it.
    pub(super) role_names: Vec<&'a str>,
    pub(super) pilot_settings: Option<&'a PilotSettings>,
    pub(super) pools: Vec<PoolView<'a>>,
    pub(super) status: &'a ClusterStatus,
}

impl ClusterView<'_> {
    /// Returns what is to be encrypted and who is asked.
    pub(super) fn desired_security(&self) -> SecurityRungs {
        self.security.map(ClusterSecurity::desired_modes).unwrap_or_default()
    }

    /// May only Navigator set the setting of this dotted name to this value?
    pub(super) fn is_managed(&self, key: &str, value: &Value) -> bool {
        let requires_password = self.desired_security().authentication == Authentication::Password;
        (self.is_managed)(key, requires_password)
            && !(self.is_login_setting(key) && (self.is_restated)(key, value))
    }

    /// Is the setting of this dotted name Navigator's where passwords are asked for, and only there?
    pub(super) fn is_login_setting(&self, key: &str) -> bool {
        (self.is_managed)(key, true) && !(self.is_managed)(key, false)
    }

    /// Returns all settings that say who may log in, as long as those are not Navigator's.
    pub(super) fn login_settings(&self) -> Vec<(&str, String, &Value)> {
        let pools = self.pools.iter().map(|pool| (pool.name, pool.config));
        let configs = [("", self.config)].into_iter().chain(pools);
        configs
            .flat_map(|(pool, settings)| {
                config::flatten_settings(settings)
                    .into_iter()
                    .map(move |(key, value)| (pool, key, value))
            })
            .filter(|(_, key, _)| self.is_login_setting(key))
            .collect()
    }
}

/// The fields of a node pool that shared rules read.
pub(super) struct PoolView<'a> {
    pub(super) name: &'a str,
    pub(super) replicas: Option<i32>,
    pub(super) zone: Option<&'a str>,
    pub(super) resources: Option<&'a ResourceRequirements>,
    pub(super) persistence: Option<&'a Persistence>,
    pub(super) config: &'a Config,
    pub(super) jvm: Option<&'a Jvm>,
    pub(super) pod_template: &'a PodTemplate,
    /// True when the pool's nodes hold a state that must not be lost.
    pub(super) keeps_data: bool,
    /// See [`NodePool::topology`](crate::api::v1beta1::NodePool::topology_fields).
    pub(super) topology: BTreeMap<String, String>,
}

impl PoolView<'_> {
    /// Returns the number of nodes that the pool asks for.
    pub(super) fn node_count(&self) -> i64 {
        self.replicas.unwrap_or(1).into()
    }

    /// Are data kept on a claim, rather than in the pod?
    pub(super) fn is_persistent(&self) -> bool {
        self.persistence.is_some_and(|persistence| {
            persistence.enabled != Some(false) && persistence.size.is_some()
        })
    }

    pub(super) fn memory_limit(&self) -> Option<&str> {
        let limits = self.resources?.limits.as_ref()?;
        limits.get("memory").map(|quantity| quantity.0.as_str())
    }
}

/// Returns the path `spec.nodePools[index]`.
pub fn pool_path(index: usize) -> FieldPath {
    FieldPath::new("spec").child("nodePools").index(index)
}
