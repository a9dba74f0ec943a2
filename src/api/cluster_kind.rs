//! What one database adds to the cluster kind that all share: [`ClusterKind`].
//!
//! Implemented in the folder of each database, on the type of its own fields of `spec`, and beside
//! it its rules, [`ClusterRules`](super::validation::ClusterRules). Types, conversion, defaults,
//! validation and columns of everything else are written once, over it.

use std::fmt::Debug;

use schemars::JsonSchema;
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Map, Value};

use super::{kind::Column, legacy, printer};

/// What every type of fields has to be.
pub trait Fields:
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

impl<T> Fields for T where
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

/// The fields that only one database has in the spec of its cluster. Its
/// schema is named after the database: types that hold it are `<name>Cluster`, `<name>NodePool`.
pub trait ClusterKind: Fields {
    /// `ExampleCluster`
    const KIND: &'static str;
    /// `exampleclusters`, as it stands in URLs.
    const PLURAL: &'static str;
    /// `examplecluster`
    const SINGULAR: &'static str;
    const SHORT_NAMES: &'static [&'static str];
    /// Columns of `kubectl get`.
    const COLUMNS: &'static [Column] = printer::CLUSTER;

    /// The fields that only this database has in a node pool.
    type Pool: Fields;

    /// Its own fields of a spec and of a node pool in v1alpha1, and what v1alpha1 cannot say of
    /// the spec's.
    type OlderSpec: Fields;
    type OlderPool: Fields;
    type Surplus: Fields;

    /// The fields as v1alpha1 shows them, and what it cannot say. `lift(project(x)) == x`.
    fn project(self) -> (Self::OlderSpec, Self::Surplus);
    /// Edits of the older form win.
    fn lift(older: Self::OlderSpec, surplus: Self::Surplus) -> Self;
    fn project_pool(pool: Self::Pool) -> Self::OlderPool;
    fn lift_pool(older: Self::OlderPool) -> Self::Pool;

    /// Rewrites what a spec of v1alpha1 says in an older way.
    fn normalize(_spec: &mut Map<String, Value>, _pass: &mut legacy::Pass) {}

    /// Writes defaults into the fields of the node pool of this name. Twice equals once.
    fn default_pool(_name: &str, _pool: &mut Self::Pool) {}

    /// One cell for each of [`Self::COLUMNS`], of a hub object. `now` is in seconds since the
    /// epoch.
    fn cells(hub: &Value, now: i64) -> Vec<Value> {
        printer::cluster(hub, now)
    }
}
