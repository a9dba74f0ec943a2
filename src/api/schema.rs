//! Schemas of the kinds, from the doc comments of the types.
//!
//! Owns their form: structural, `$ref`s into `#/definitions/`, definitions named as upstream
//! names them. Kubernetes' own types come from `schema/kubernetes.json`, an extract of the
//! OpenAPI document of Kubernetes 1.34, so that kube-aggregator finds them equal to its own.

use std::{collections::BTreeMap, sync::LazyLock};

use schemars::{JsonSchema, SchemaGenerator, generate::SchemaSettings};
use serde_json::Value;

use super::{scheme::Version, v1beta1};

/// The schema of `kind` in `version`, with all `definitions` that it needs.
///
/// # Panics
/// When the version does not serve the kind: callers have it from the table of kinds.
pub fn schema(version: Version, kind: &str) -> &'static Value {
    static SCHEMAS: LazyLock<BTreeMap<Version, BTreeMap<&str, Value>>> = LazyLock::new(|| {
        let kinds = || {
            BTreeMap::from([
                ("CassandraCluster", root::<v1beta1::CassandraCluster>()),
                ("ElasticsearchCluster", root::<v1beta1::ElasticsearchCluster>()),
                ("LeaderLease", root::<v1beta1::LeaderLease>()),
                ("Pilot", root::<v1beta1::Pilot>()),
            ])
        };
        Version::ALL.into_iter().map(|version| (version, kinds())).collect()
    });
    SCHEMAS[&version].get(kind).expect("every served kind has a schema")
}

fn root<T: JsonSchema>() -> Value {
    let settings =
        SchemaSettings::draft2019_09().with(|s| s.definitions_path = "/definitions".into());
    SchemaGenerator::new(settings).into_root_schema_for::<T>().to_value()
}
