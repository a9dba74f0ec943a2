//! Pilot between the hub and v1alpha1.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{PluginSurplus, keep};
use crate::api::{
    v1alpha1,
    v1beta1::{self, ClusterRef, Config, Jvm, PilotIntent, is_default},
};

/// What v1alpha1 cannot say about a Pilot; shaped as the hub's spec, plugins by name.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Surplus {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    cluster_ref: Option<ClusterRef>,
    /// Here only while there is no database block, where v1alpha1 has it.
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
    pilot_update: Option<String>,
    #[serde(default, skip_serializing_if = "Config::is_empty")]
    #[schemars(extend("x-kubernetes-preserve-unknown-fields" = true))]
    config: Config,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    jvm: Option<Jvm>,
    /// It applies only while there is an Elasticsearch block.
    #[serde(default, skip_serializing_if = "is_default")]
    elasticsearch: ElasticsearchSurplus,
    /// It applies only while there is a Cassandra block.
    #[serde(default, skip_serializing_if = "is_default")]
    cassandra: CassandraSurplus,
}

/// What v1alpha1 cannot say about an Elasticsearch node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ElasticsearchSurplus {
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    roles: Vec<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    zone: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    minimum_masters: Option<i32>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    plugins: BTreeMap<String, PluginSurplus>,
}

/// What v1alpha1 cannot say about a Cassandra node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct CassandraSurplus {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    cluster_name: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    datacenter: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    rack: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    num_tokens: Option<i32>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    additional_seeds: Vec<String>,
}

/// The object as v1alpha1 shows it, and what v1alpha1 cannot say.
pub fn project(hub: v1beta1::Pilot) -> (v1alpha1::Pilot, Surplus) {
    let v1beta1::Pilot { metadata, spec, status } = hub;
    let v1beta1::PilotSpec {
        cluster_ref,
        node_pool,
        phase,
        version,
        config_hash,
        restarted_at,
        pilot_update,
        config,
        jvm,
        elasticsearch,
        cassandra,
    } = spec;
    let in_block = elasticsearch.is_some() || cassandra.is_some();
    let pool = node_pool.clone().unwrap_or_default();
    let (elasticsearch, elasticsearch_surplus) = project_elasticsearch(elasticsearch, &pool);
    let (cassandra, cassandra_surplus) = project_cassandra(cassandra, &pool);
    let older = v1alpha1::Pilot {
        metadata,
        spec: v1alpha1::PilotSpec {
            decommission: phase == Some(PilotIntent::Decommissioned),
            elasticsearch,
            cassandra,
        },
        status,
    };
    let surplus = Surplus {
        cluster_ref,
        node_pool: node_pool.filter(|_| !in_block),
        phase: phase
            .filter(|phase| !matches!(phase, PilotIntent::Running | PilotIntent::Decommissioned)),
        version,
        config_hash,
        restarted_at,
        pilot_update,
        config,
        jvm,
        elasticsearch: elasticsearch_surplus,
        cassandra: cassandra_surplus,
    };
    (older, surplus)
}

/// The hub object of an older one and what belongs beside it. Edits of the older form win.
pub fn lift(older: v1alpha1::Pilot, surplus: Surplus) -> v1beta1::Pilot {
    let v1alpha1::Pilot { metadata, spec, status } = older;
    let v1alpha1::PilotSpec { decommission, elasticsearch, cassandra } = spec;
    let Surplus {
        cluster_ref,
        node_pool,
        phase,
        version,
        config_hash,
        restarted_at,
        pilot_update,
        config,
        jvm,
        elasticsearch: elasticsearch_surplus,
        cassandra: cassandra_surplus,
    } = surplus;
    let mut node_pool = node_pool.filter(|_| elasticsearch.is_none() && cassandra.is_none());
    let mut pool_of_block = |name: String| {
        if node_pool.is_none() && !name.is_empty() {
            node_pool = Some(name);
        }
    };
    let elasticsearch = elasticsearch.map(|block| {
        let v1alpha1::PilotElasticsearchSpec { node_pool, plugins } = block;
        pool_of_block(node_pool);
        lift_elasticsearch(plugins, elasticsearch_surplus)
    });
    let cassandra = cassandra.map(|block| {
        let v1alpha1::PilotCassandraSpec { node_pool } = block;
        pool_of_block(node_pool);
        lift_cassandra(cassandra_surplus)
    });
    let phase = if decommission {
        PilotIntent::Decommissioned
    } else {
        phase.unwrap_or(PilotIntent::Running)
    };
    v1beta1::Pilot {
        metadata,
        spec: v1beta1::PilotSpec {
            cluster_ref,
            node_pool,
            phase: Some(phase),
            version,
            config_hash,
            restarted_at,
            pilot_update,
            config,
            jvm,
            elasticsearch,
            cassandra,
        },
        status,
    }
}

fn project_elasticsearch(
    block: Option<v1beta1::PilotElasticsearchSpec>,
    node_pool: &str,
) -> (Option<v1alpha1::PilotElasticsearchSpec>, ElasticsearchSurplus) {
    let Some(block) = block else { return (None, ElasticsearchSurplus::default()) };
    let v1beta1::PilotElasticsearchSpec { roles, zone, minimum_masters, plugins } = block;
    let mut older_plugins = Vec::with_capacity(plugins.len());
    let mut plugin_surplus = BTreeMap::new();
    for v1beta1::ElasticsearchPlugin { name, sha512 } in plugins {
        keep(&mut plugin_surplus, &name, PluginSurplus { sha512 });
        older_plugins.push(v1alpha1::PilotPlugin { name });
    }
    (
        Some(v1alpha1::PilotElasticsearchSpec {
            node_pool: node_pool.to_owned(),
            plugins: older_plugins,
        }),
        ElasticsearchSurplus { roles, zone, minimum_masters, plugins: plugin_surplus },
    )
}

fn lift_elasticsearch(
    plugins: Vec<v1alpha1::PilotPlugin>,
    surplus: ElasticsearchSurplus,
) -> v1beta1::PilotElasticsearchSpec {
    let ElasticsearchSurplus { roles, zone, minimum_masters, plugins: mut plugin_surplus } =
        surplus;
    let plugins = plugins
        .into_iter()
        .map(|v1alpha1::PilotPlugin { name }| {
            let PluginSurplus { sha512 } = plugin_surplus.remove(&name).unwrap_or_default();
            v1beta1::ElasticsearchPlugin { name, sha512 }
        })
        .collect();
    v1beta1::PilotElasticsearchSpec { roles, zone, minimum_masters, plugins }
}

fn project_cassandra(
    block: Option<v1beta1::PilotCassandraSpec>,
    node_pool: &str,
) -> (Option<v1alpha1::PilotCassandraSpec>, CassandraSurplus) {
    let Some(block) = block else { return (None, CassandraSurplus::default()) };
    let v1beta1::PilotCassandraSpec {
        cluster_name,
        datacenter,
        rack,
        num_tokens,
        additional_seeds,
    } = block;
    (
        Some(v1alpha1::PilotCassandraSpec { node_pool: node_pool.to_owned() }),
        CassandraSurplus { cluster_name, datacenter, rack, num_tokens, additional_seeds },
    )
}

fn lift_cassandra(surplus: CassandraSurplus) -> v1beta1::PilotCassandraSpec {
    let CassandraSurplus { cluster_name, datacenter, rack, num_tokens, additional_seeds } = surplus;
    v1beta1::PilotCassandraSpec { cluster_name, datacenter, rack, num_tokens, additional_seeds }
}
