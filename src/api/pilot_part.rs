//! The part of a Pilot's spec and status that belongs to one database, under the database's word.
//!
//! A [`PilotPart`] gives such a part its types; an [`ErasedPilotPart`] is its form for code that
//! knows no database. In a Pilot, parts travel as JSON, and [`ErasedPilotPart::canonicalize_parts`] holds
//! them to their types.

use std::collections::BTreeMap;

use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::{Map, Value};

use super::{
    cluster_kind::{DatabaseFields, NoOlderVersion},
    database_names::DatabaseNames,
    legacy,
};

/// The fields that one database adds to the spec and status of its Pilots. Each database implements
/// the trait in its folder.
pub trait PilotPart: Sized + 'static {
    /// Names of the database; its word is the name of the part's field in spec and status.
    const NAMES: &'static DatabaseNames;
    type Spec: DatabaseFields;
    type Status: DatabaseFields;
    /// How v1alpha1 shows the spec's part; [`NoOlderVersion`] for a database that was never
    /// released in v1alpha1.
    type Older: OlderPart<Self>;
}

/// A database's part of a Pilot's spec as v1alpha1 shows it, with the name of the node pool inside.
pub trait OlderPart<P: PilotPart> {
    type Spec: DatabaseFields;
    /// The fields of the part that v1alpha1 cannot express.
    type Surplus: DatabaseFields;

    /// Splits the part into that of v1alpha1 and the surplus that v1alpha1 cannot express.
    fn project_part(spec: P::Spec, node_pool: String) -> (Self::Spec, Self::Surplus);
    /// Joins a v1alpha1 part and its surplus; returns the part and the name of the node pool. Edits
    /// of the v1alpha1 part win over the surplus.
    fn lift_part(older: Self::Spec, surplus: Self::Surplus) -> (P::Spec, String);
    /// Rewrites older ways of writing in a v1alpha1 part in the current form.
    fn normalize_part(_part: &mut Map<String, Value>, _findings: &mut legacy::LegacyFindings) {}
}

/// The name of the node pool, and nothing else.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(rename = "PilotNodePool")]
pub struct NodePoolName {
    /// The node pool that this node belongs to.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    node_pool: String,
}

impl<P: PilotPart> OlderPart<P> for NoOlderVersion {
    type Spec = NodePoolName;
    type Surplus = P::Spec;

    fn project_part(spec: P::Spec, node_pool: String) -> (NodePoolName, P::Spec) {
        (NodePoolName { node_pool }, spec)
    }

    fn lift_part(older: NodePoolName, surplus: P::Spec) -> (P::Spec, String) {
        (surplus, older.node_pool)
    }
}

type OlderPartSpec<P> = <<P as PilotPart>::Older as OlderPart<P>>::Spec;
type OlderPartSurplus<P> = <<P as PilotPart>::Older as OlderPart<P>>::Surplus;
/// The databases' parts of a Pilot's spec or status, as JSON by the database's word.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(transparent)]
pub struct PilotParts(BTreeMap<String, Value>);

impl PilotParts {
    /// Makes parts that hold only `part`, under `word`.
    pub fn new<T: Serialize>(word: &str, part: &T) -> Self {
        let mut parts = Self::default();
        parts.set(word, part);
        parts
    }

    /// Returns the part under `word`; `None` where there is none or it is not of type `T`.
    pub fn get<T: DeserializeOwned>(&self, word: &str) -> Option<T> {
        T::deserialize(self.0.get(word)?).ok()
    }

    pub fn set<T: Serialize>(&mut self, word: &str, part: &T) {
        let value = serde_json::to_value(part).expect("wire types have string keys");
        self.0.insert(word.to_owned(), value);
    }

    /// Changes the part under `word`, where there is one of type `T`.
    pub fn change_part<T: Serialize + DeserializeOwned>(
        &mut self,
        word: &str,
        apply_change: impl FnOnce(&mut T),
    ) {
        if let Some(mut part) = self.get(word) {
            apply_change(&mut part);
            self.set(word, &part);
        }
    }

    /// Returns the part under `word` as it travels.
    pub fn raw_part(&self, word: &str) -> Option<&Value> {
        self.0.get(word)
    }

    pub fn has_part(&self, word: &str) -> bool {
        self.0.contains_key(word)
    }

    pub fn database_words(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(String::as_str)
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns the part under `word` as JSON.
    pub fn part_value(&self, word: &str) -> Option<&Value> {
        self.0.get(word)
    }

    pub fn part_value_mut(&mut self, word: &str) -> Option<&mut Value> {
        self.0.get_mut(word)
    }

    pub fn take_part(&mut self, word: &str) -> Option<Value> {
        self.0.remove(word)
    }

    pub fn insert(&mut self, word: &str, part: Value) {
        self.0.insert(word.to_owned(), part);
    }
}

/// Turns a part and the name of the node pool into the v1alpha1 part, and the surplus where there
/// is any.
type ProjectionFn = fn(Value, String) -> Result<(Value, Option<Value>), serde_json::Error>;
/// Turns a v1alpha1 part and its surplus into the part and the name of the node pool.
type LiftFn = fn(Value, Option<Value>) -> Result<(Value, String), serde_json::Error>;

/// A [`PilotPart`] whose types are hidden behind functions on JSON.
#[derive(Debug)]
pub struct ErasedPilotPart {
    pub word: &'static str,
    pub title: &'static str,
    pub names: &'static DatabaseNames,
    pub(super) spec: fn(&mut SchemaGenerator) -> Schema,
    pub(super) status: fn(&mut SchemaGenerator) -> Schema,
    pub(super) older: fn(&mut SchemaGenerator) -> Schema,
    pub(super) surplus: fn(&mut SchemaGenerator) -> Schema,
    pub(super) project: ProjectionFn,
    pub(super) lift: LiftFn,
    pub(super) normalize: fn(&mut Map<String, Value>, &mut legacy::LegacyFindings),
    canonical_spec: fn(Value) -> Result<Value, serde_json::Error>,
    canonical_status: fn(Value) -> Result<Value, serde_json::Error>,
}

impl ErasedPilotPart {
    pub const fn new<P: PilotPart>() -> Self {
        Self {
            word: P::NAMES.word,
            title: P::NAMES.title,
            names: P::NAMES,
            spec: |generator| generator.subschema_for::<P::Spec>(),
            status: |generator| generator.subschema_for::<P::Status>(),
            older: |generator| generator.subschema_for::<OlderPartSpec<P>>(),
            surplus: |generator| generator.subschema_for::<OlderPartSurplus<P>>(),
            project: |spec, node_pool| {
                let (older, surplus) =
                    P::Older::project_part(serde_json::from_value(spec)?, node_pool);
                let surplus = (surplus != OlderPartSurplus::<P>::default())
                    .then(|| serde_json::to_value(surplus));
                Ok((serde_json::to_value(older)?, surplus.transpose()?))
            },
            lift: |older, surplus| {
                let surplus = surplus.map(serde_json::from_value).transpose()?.unwrap_or_default();
                let (spec, node_pool) =
                    P::Older::lift_part(serde_json::from_value(older)?, surplus);
                Ok((serde_json::to_value(spec)?, node_pool))
            },
            normalize: P::Older::normalize_part,
            canonical_spec: canonicalize_value::<P::Spec>,
            canonical_status: canonicalize_value::<P::Status>,
        }
    }

    /// Brings the database's part of a spec and of a status into the form in which they are stored.
    ///
    /// # Errors
    /// When one of them is not of its type.
    pub(super) fn canonicalize_parts(
        &self,
        spec: &mut PilotParts,
        status: &mut PilotParts,
    ) -> Result<(), serde_json::Error> {
        for (parts, canonicalize_fn) in
            [(spec, self.canonical_spec), (status, self.canonical_status)]
        {
            match parts.take_part(self.word) {
                None | Some(Value::Null) => {}
                Some(value) => parts.insert(self.word, canonicalize_fn(value)?),
            }
        }
        Ok(())
    }
}

fn canonicalize_value<T: DatabaseFields>(value: Value) -> Result<Value, serde_json::Error> {
    serde_json::to_value(serde_json::from_value::<T>(value)?)
}
