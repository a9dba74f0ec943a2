//! What one database adds to the cluster kind that all share: [`ClusterKind`].
//!
//! Each database implements the trait in its folder, on the type of its own fields of `spec`,
//! together with its rules, [`ClusterRules`](super::validation::ClusterRules). Types, conversion,
//! defaults, validation and columns of all shared fields are written once, generic over it.

use std::fmt::Debug;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::{Map, Value};

use super::{database_names::DatabaseNames, legacy, printer};
use crate::{
    api::{V1BETA1, VERSIONS},
    machinery::served_kind::{PrinterColumn, ServedVersion},
};
/// Trait bounds of every type that holds fields of one database.
pub trait DatabaseFields:
    Clone
    + Debug
    + Default
    + PartialEq
    + Serialize
    + DeserializeOwned
    + JsonSchema
    + Send
    + Sync
    + 'static
{
}

impl<T> DatabaseFields for T where
    T: Clone
        + Debug
        + Default
        + PartialEq
        + Serialize
        + DeserializeOwned
        + JsonSchema
        + Send
        + Sync
        + 'static
{
}

/// The fields that only one database has in the spec of its cluster. Schemas of types that hold
/// these fields are named after the database: `<name>Cluster`, `<name>NodePool`.
pub trait ClusterKind: DatabaseFields {
    const NAMES: &'static DatabaseNames;
    /// Columns of `kubectl get`.
    const COLUMNS: &'static [PrinterColumn] = printer::CLUSTER;

    /// The fields that only this database has in a node pool.
    type Pool: DatabaseFields;
    /// What a role that Navigator makes in this database allows; [`Nothing`] where it makes none.
    type Role: DatabaseFields;
    /// How v1alpha1 shows the database's own fields; [`NoOlderVersion`] for a database that was
    /// never released in v1alpha1.
    type Older: OlderCluster<Self>;

    /// Writes defaults into the database's own fields of the node pool `_name`. Must be idempotent.
    fn default_pool(_name: &str, _pool: &mut Self::Pool) {}

    /// Returns the database's own fields that say where the nodes of a pool are, and that do not change
    /// while it has nodes.
    fn topology_fields(_pool: &Self::Pool) -> Vec<(&'static str, Option<&str>)> {
        Vec::new()
    }

    /// Returns the cells of a hub object for `kubectl get`, one for each of [`Self::COLUMNS`].
    /// `now` is in seconds since the epoch.
    fn printer_cells(hub: &Value, now: i64) -> Vec<Value> {
        printer::cluster_cells(hub, now)
    }
}

/// The fields of a database as v1alpha1 shows them.
pub trait OlderCluster<K: ClusterKind> {
    /// Versions in which the cluster kind is served, in the order of preference.
    const VERSIONS: &'static [ServedVersion] = &VERSIONS;

    /// The database's own fields of a spec and of a node pool in v1alpha1, and the spec's fields
    /// that v1alpha1 cannot express.
    type Spec: DatabaseFields;
    type Pool: DatabaseFields;
    type Surplus: DatabaseFields;

    /// Splits the database's own fields into those of v1alpha1 and the surplus that v1alpha1 cannot
    /// express. `lift(project(x)) == x`.
    fn project_spec(own_fields: K) -> (Self::Spec, Self::Surplus);
    /// Joins fields of v1alpha1 and their surplus into the hub's fields. Edits of the v1alpha1
    /// fields win over the surplus.
    fn lift_spec(older: Self::Spec, surplus: Self::Surplus) -> K;
    fn project_pool(pool: K::Pool) -> Self::Pool;
    fn lift_pool(older: Self::Pool) -> K::Pool;
    /// Rewrites older ways of writing in a v1alpha1 spec in the current form.
    fn normalize_spec(_spec: &mut Map<String, Value>, _findings: &mut legacy::LegacyFindings) {}
}

/// Shorthands for the associated types of a kind's [`OlderCluster`].
pub type OlderSpec<K> = <<K as ClusterKind>::Older as OlderCluster<K>>::Spec;
pub type OlderPool<K> = <<K as ClusterKind>::Older as OlderCluster<K>>::Pool;
pub type OlderSurplus<K> = <<K as ClusterKind>::Older as OlderCluster<K>>::Surplus;

/// No fields.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
pub struct Nothing {}

/// The older form of a database that was never released in v1alpha1 and is not served there.
#[derive(Debug)]
pub struct NoOlderVersion;

impl<K: ClusterKind> OlderCluster<K> for NoOlderVersion {
    const VERSIONS: &'static [ServedVersion] = &[V1BETA1];

    type Spec = Nothing;
    type Pool = Nothing;
    type Surplus = K;

    fn project_spec(own_fields: K) -> (Nothing, K) {
        (Nothing {}, own_fields)
    }

    fn lift_spec(_older: Nothing, surplus: K) -> K {
        surplus
    }

    // Never called: no client can ask for a pool in a version that is not served.
    fn project_pool(_pool: K::Pool) -> Nothing {
        Nothing {}
    }

    fn lift_pool(_older: Nothing) -> K::Pool {
        K::Pool::default()
    }
}
