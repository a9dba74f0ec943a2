//! Conversion of Elasticsearch's own fields between the hub and v1alpha1, and rewriting of their
//! older forms.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::{
    v1alpha1,
    v1beta1::{
        Elasticsearch, ElasticsearchNode, ElasticsearchPlugin, PilotElasticsearchSpec, Roles,
    },
};
use crate::{
    api::{
        cluster_kind::OlderCluster, conversion::insert_surplus, legacy::LegacyFindings,
        pilot_part::OlderPart,
    },
    machinery::field_error::{FieldError, FieldErrorKind, FieldPath},
};

/// What v1alpha1 cannot say about an Elasticsearch cluster; plugins by name.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Surplus {
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    plugins: BTreeMap<String, PluginSurplus>,
}

/// What v1alpha1 cannot say about a plugin of this name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PluginSurplus {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    sha512: Option<String>,
}

/// What v1alpha1 cannot say about an Elasticsearch node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PilotSurplus {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    new_cluster_name: Option<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    roles: Vec<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    zone: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    minimum_masters: Option<i32>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    plugins: BTreeMap<String, PluginSurplus>,
}

/// Elasticsearch's own cluster fields in v1alpha1.
#[derive(Debug)]
pub struct ElasticsearchV1alpha1;

impl OlderCluster<Elasticsearch> for ElasticsearchV1alpha1 {
    type Spec = v1alpha1::Elasticsearch;
    type Pool = v1alpha1::Roles;
    type Surplus = Surplus;

    fn project_spec(spec: Elasticsearch) -> (v1alpha1::Elasticsearch, Surplus) {
        let Elasticsearch { plugins, minimum_masters } = spec;
        let (plugins, surplus) = project_plugins(plugins);
        (v1alpha1::Elasticsearch { plugins, minimum_masters }, Surplus { plugins: surplus })
    }

    fn lift_spec(older: v1alpha1::Elasticsearch, surplus: Surplus) -> Elasticsearch {
        let v1alpha1::Elasticsearch { plugins, minimum_masters } = older;
        let Surplus { plugins: surplus } = surplus;
        Elasticsearch { plugins: lift_plugins(plugins, surplus), minimum_masters }
    }

    fn project_pool(pool: Roles) -> v1alpha1::Roles {
        let Roles { roles } = pool;
        v1alpha1::Roles { roles }
    }

    fn lift_pool(older: v1alpha1::Roles) -> Roles {
        let v1alpha1::Roles { roles } = older;
        Roles { roles }
    }

    /// Rewrites the older ways T3, T4 and T6 in a spec.
    fn normalize_spec(spec: &mut Map<String, Value>, pass: &mut LegacyFindings) {
        normalize_plugins(spec, pass);
        normalize_roles(spec, pass);
    }
}

/// Elasticsearch's part of a Pilot in v1alpha1.
#[derive(Debug)]
pub struct ElasticsearchNodeV1alpha1;

impl OlderPart<ElasticsearchNode> for ElasticsearchNodeV1alpha1 {
    type Spec = v1alpha1::PilotElasticsearchSpec;
    type Surplus = PilotSurplus;

    fn project_part(
        spec: PilotElasticsearchSpec,
        node_pool: String,
    ) -> (v1alpha1::PilotElasticsearchSpec, PilotSurplus) {
        let PilotElasticsearchSpec { new_cluster_name, roles, zone, minimum_masters, plugins } =
            spec;
        let (plugins, surplus) = project_plugins(plugins);
        let plugins = plugins.into_iter().map(|name| v1alpha1::PilotPlugin { name }).collect();
        (
            v1alpha1::PilotElasticsearchSpec { node_pool, plugins },
            PilotSurplus { new_cluster_name, roles, zone, minimum_masters, plugins: surplus },
        )
    }

    fn lift_part(
        older: v1alpha1::PilotElasticsearchSpec,
        surplus: PilotSurplus,
    ) -> (PilotElasticsearchSpec, String) {
        let v1alpha1::PilotElasticsearchSpec { node_pool, plugins } = older;
        let PilotSurplus { new_cluster_name, roles, zone, minimum_masters, plugins: surplus } =
            surplus;
        let plugins = plugins.into_iter().map(|v1alpha1::PilotPlugin { name }| name).collect();
        let plugins = lift_plugins(plugins, surplus);
        let spec =
            PilotElasticsearchSpec { new_cluster_name, roles, zone, minimum_masters, plugins };
        (spec, node_pool)
    }

    /// T6: removes repeated plugins, which are told apart by name.
    fn normalize_part(part: &mut Map<String, Value>, pass: &mut LegacyFindings) {
        if let Some(Value::Array(plugins)) = part.get_mut("plugins") {
            pass.remove_duplicates(plugins, "spec.elasticsearch.plugins", |plugin| {
                plugin.get("name").cloned().unwrap_or_default()
            });
        }
    }
}
fn project_plugins(
    plugins: Vec<ElasticsearchPlugin>,
) -> (Vec<String>, BTreeMap<String, PluginSurplus>) {
    let mut names = Vec::with_capacity(plugins.len());
    let mut surplus = BTreeMap::new();
    for ElasticsearchPlugin { name, sha512 } in plugins {
        insert_surplus(&mut surplus, &name, PluginSurplus { sha512 });
        names.push(name);
    }
    (names, surplus)
}

fn lift_plugins(
    names: Vec<String>,
    mut surplus: BTreeMap<String, PluginSurplus>,
) -> Vec<ElasticsearchPlugin> {
    let plugin = |name: String| {
        let PluginSurplus { sha512 } = surplus.remove(&name).unwrap_or_default();
        ElasticsearchPlugin { name, sha512 }
    };
    names.into_iter().map(plugin).collect()
}

/// T3, T6: turns plugins that are objects into names, and removes repeated plugins.
fn normalize_plugins(spec: &mut Map<String, Value>, pass: &mut LegacyFindings) {
    let Some(Value::Array(plugins)) = spec.get_mut("plugins") else { return };
    for (index, plugin) in plugins.iter_mut().enumerate() {
        let path = format!("spec.plugins[{index}]");
        let Value::Object(object) = plugin else { continue };
        for key in object.keys().filter(|key| *key != "name") {
            let detail = "only name can be given here; sha512 is a field of v1beta1";
            let path = FieldPath::new(&path).child(key);
            pass.errors.push(FieldError::new(&path, FieldErrorKind::Forbidden, detail));
        }
        if let Some(name) = object.get("name").filter(|name| name.is_string()) {
            *plugin = name.clone();
            pass.warnings.push(format!("{path}: object form is accepted and stored as a string"));
        }
    }
    pass.remove_duplicates(plugins, "spec.plugins", Value::clone);
}

/// T4, T6: renames the role `client` to `ingest`, and removes repeated roles.
fn normalize_roles(spec: &mut Map<String, Value>, pass: &mut LegacyFindings) {
    let Some(Value::Array(pools)) = spec.get_mut("nodePools") else { return };
    for (i, pool) in pools.iter_mut().enumerate() {
        let Some(Value::Array(roles)) = pool.get_mut("roles") else { continue };
        let path = format!("spec.nodePools[{i}].roles");
        for (j, role) in roles.iter_mut().enumerate().filter(|(_, role)| *role == "client") {
            *role = "ingest".into();
            pass.warnings.push(format!("{path}[{j}]: \"client\" is stored as \"ingest\""));
        }
        pass.remove_duplicates(roles, &path, Value::clone);
    }
}
