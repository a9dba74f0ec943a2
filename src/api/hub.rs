//! [`HubKind`], which one kind implements in hub form: names, schema, conversion, defaults and
//! validation.

use k8s_openapi::{Metadata, apimachinery::pkg::apis::meta::v1::ObjectMeta};
use schemars::{JsonSchema, SchemaGenerator};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Map, Value};

use super::{
    cluster_kind::OlderCluster,
    conversion::{self, surplus},
    defaults::{self, ObjectOrigin},
    legacy, printer,
    schema::SchemaSet,
    v1alpha1,
    v1beta1::{Cluster, LeaderLease, Pilot},
    validation::{self, ClusterRules},
};
use crate::{
    api::{V1ALPHA1, V1BETA1, VERSIONS},
    machinery::served_kind::{
        DecodeError, ObjectPart, PrinterColumn, ServedVersion, ValidationResult,
    },
};

/// The names of a kind, and the facts about it that are constants.
#[derive(Debug)]
pub struct KindNames {
    pub kind: &'static str,
    pub plural: &'static str,
    pub singular: &'static str,
    pub short: &'static [&'static str],
    pub categories: &'static [&'static str],
    pub versions: &'static [ServedVersion],
    pub has_status: bool,
    /// Field selectors that the kind has beside `metadata.name` and `metadata.namespace`.
    pub selectable: &'static [&'static str],
    pub columns: &'static [PrinterColumn],
    pub cells: fn(&Value, i64) -> Vec<Value>,
    /// Largest stored object of the kind, in bytes.
    pub largest: usize,
    /// Do databases wait for objects of this kind? Such objects are small.
    pub is_vital: bool,
    /// Returns the name of the LeaderLease of the cluster whose pods run as this ServiceAccount.
    pub lease_of: fn(&str) -> Option<String>,
}

/// Categories of `kubectl get` that clusters belong to.
pub const CLUSTER_CATEGORIES: &[&str] = &["navigator", "databases"];
/// Field selectors that clusters have beside metadata's.
pub const CLUSTER_FIELDS: &[&str] = &["status.phase", "spec.version"];

/// A kind in hub form.
pub trait HubKind:
    Clone + Serialize + DeserializeOwned + Metadata<Ty = ObjectMeta> + 'static
{
    const NAMES: KindNames;

    /// Registers with the generator the Rust type that `version` shows.
    fn register_schema(version: ServedVersion, generator: &mut SchemaGenerator);
    /// Rewrites older ways of writing in a v1alpha1 spec in the current form.
    fn normalize_spec(
        _schemas: &SchemaSet,
        _spec: &mut Map<String, Value>,
        _findings: &mut legacy::LegacyFindings,
    ) -> Result<(), DecodeError> {
        Ok(())
    }
    /// Lifts a normalised body of v1alpha1 to the hub. The surplus is taken from `_stored`; a new
    /// object brings its own in the annotation. Never called for a kind that is not served in
    /// v1alpha1.
    fn from_older(
        _schemas: &SchemaSet,
        body: &Value,
        _stored: Option<Self>,
    ) -> Result<Self, DecodeError> {
        parse_typed(Self::NAMES.kind, V1ALPHA1, body)
    }
    /// Converts to the object that v1alpha1 shows, with the surplus in its annotation and without
    /// apiVersion and kind. Never called for a kind that is not served in v1alpha1.
    fn into_older(self, _schemas: &SchemaSet) -> Value {
        serde_json::to_value(self).expect("wire types have string keys")
    }
    /// Brings the parts that are kept as JSON in the object into the form of their types.
    fn canonicalize_parts(&mut self, _schemas: &SchemaSet) -> Result<(), serde_json::Error> {
        Ok(())
    }
    /// Writes defaults, and brings the object into canonical form. Returns warnings.
    fn apply_defaults(&mut self, origin: &ObjectOrigin<'_, Self>) -> Vec<String>;
    fn validate_create(
        &self,
        version: ServedVersion,
        schemas: &'static SchemaSet,
    ) -> ValidationResult;
    fn validate_update(
        &self,
        version: ServedVersion,
        schemas: &'static SchemaSet,
        part: ObjectPart,
        old: &Self,
    ) -> ValidationResult;
    /// Tells by name which other objects of a namespace a write is to be judged beside.
    fn neighbor_filter() -> Option<fn(name: &str, other: &str) -> bool> {
        None
    }
    /// Validates a write beside another object of the kind and the namespace.
    fn validate_with_neighbor(
        &self,
        _version: ServedVersion,
        _schemas: &'static SchemaSet,
        _old: Option<&Self>,
        _other: &Self,
    ) -> ValidationResult {
        ValidationResult::default()
    }
}

impl<K: ClusterRules> HubKind for Cluster<K> {
    const NAMES: KindNames = KindNames {
        kind: K::NAMES.kind,
        plural: K::NAMES.plural,
        singular: K::NAMES.singular,
        short: K::NAMES.short_names,
        categories: CLUSTER_CATEGORIES,
        versions: K::Older::VERSIONS,
        has_status: true,
        selectable: CLUSTER_FIELDS,
        columns: K::COLUMNS,
        cells: K::printer_cells,
        largest: usize::MAX,
        is_vital: false,
        lease_of: |account| K::NAMES.lease_of(account),
    };

    fn register_schema(version: ServedVersion, generator: &mut SchemaGenerator) {
        if version == V1ALPHA1 {
            generator.subschema_for::<v1alpha1::Cluster<K>>();
        } else {
            generator.subschema_for::<Self>();
        }
    }

    fn normalize_spec(
        _schemas: &SchemaSet,
        spec: &mut Map<String, Value>,
        findings: &mut legacy::LegacyFindings,
    ) -> Result<(), DecodeError> {
        legacy::check_cluster(spec, findings)?;
        K::Older::normalize_spec(spec, findings);
        Ok(())
    }

    fn from_older(
        schemas: &SchemaSet,
        body: &Value,
        stored: Option<Self>,
    ) -> Result<Self, DecodeError> {
        let mut older: v1alpha1::Cluster<K> = parse_typed(K::NAMES.kind, V1ALPHA1, body)?;
        let surplus = match stored {
            Some(stored) => conversion::cluster::project_cluster(stored).1,
            None => read_surplus(schemas, &older.metadata)?,
        };
        conversion::drop_annotation(&mut older.metadata);
        Ok(conversion::cluster::lift_cluster(older, surplus))
    }

    fn into_older(self, _schemas: &SchemaSet) -> Value {
        let (mut older, surplus) = conversion::cluster::project_cluster(self);
        surplus::write_surplus(&mut older.metadata, &surplus);
        serde_json::to_value(older).expect("wire types have string keys and no failing fields")
    }

    fn apply_defaults(&mut self, origin: &ObjectOrigin<'_, Self>) -> Vec<String> {
        defaults::default_cluster(self, origin)
    }

    fn validate_create(
        &self,
        version: ServedVersion,
        schemas: &'static SchemaSet,
    ) -> ValidationResult {
        validation::cluster::validate_create(version, schemas, self)
    }

    fn validate_update(
        &self,
        version: ServedVersion,
        schemas: &'static SchemaSet,
        part: ObjectPart,
        old: &Self,
    ) -> ValidationResult {
        validation::cluster::validate_update(version, schemas, part, self, old)
    }

    fn neighbor_filter() -> Option<fn(name: &str, other: &str) -> bool> {
        Some(validation::object_names::may_be_shared)
    }

    fn validate_with_neighbor(
        &self,
        version: ServedVersion,
        schemas: &'static SchemaSet,
        old: Option<&Self>,
        other: &Self,
    ) -> ValidationResult {
        validation::object_names::validate_names(version, schemas, self, old, other)
    }
}

impl HubKind for Pilot {
    const NAMES: KindNames = KindNames {
        kind: "Pilot",
        plural: "pilots",
        singular: "pilot",
        short: &["pil"],
        categories: &["navigator"],
        versions: &VERSIONS,
        has_status: true,
        selectable: &[
            "spec.clusterRef.kind",
            "spec.clusterRef.name",
            "spec.nodePool",
            "spec.phase",
            "status.phase",
        ],
        columns: printer::PILOT,
        cells: printer::pilot_cells,
        // A Pilot's spec and status with their managedFields take some 4 KiB.
        largest: 256 * 1024,
        is_vital: false,
        lease_of: |_| None,
    };

    fn register_schema(version: ServedVersion, generator: &mut SchemaGenerator) {
        if version == V1ALPHA1 {
            generator.subschema_for::<v1alpha1::Pilot>();
        } else {
            generator.subschema_for::<Self>();
        }
    }

    fn normalize_spec(
        schemas: &SchemaSet,
        spec: &mut Map<String, Value>,
        findings: &mut legacy::LegacyFindings,
    ) -> Result<(), DecodeError> {
        for part in schemas.parts() {
            if let Some(Value::Object(part_fields)) = spec.get_mut(part.word) {
                (part.normalize)(part_fields, findings);
            }
        }
        legacy::normalize_pilot(spec, findings);
        Ok(())
    }

    fn from_older(
        schemas: &SchemaSet,
        body: &Value,
        stored: Option<Self>,
    ) -> Result<Self, DecodeError> {
        let mut older: v1alpha1::Pilot = parse_typed("Pilot", V1ALPHA1, body)?;
        let malformed_pilot = |error| malformed_error("Pilot", V1ALPHA1, &error);
        let surplus = match stored {
            Some(stored) => {
                conversion::pilot::project_pilot(stored, schemas.parts())
                    .map_err(malformed_pilot)?
                    .1
            }
            None => surplus::parse_surplus(&older.metadata, schemas.pilot_surplus())
                .map_err(|error| DecodeError::Invalid(vec![error]))?,
        };
        conversion::drop_annotation(&mut older.metadata);
        conversion::pilot::lift_pilot(older, surplus, schemas.parts()).map_err(malformed_pilot)
    }

    fn into_older(self, schemas: &SchemaSet) -> Value {
        let (mut older, surplus) = conversion::pilot::project_pilot(self, schemas.parts())
            .expect("hub values were brought into the form of their types");
        surplus::write_surplus(&mut older.metadata, &surplus);
        serde_json::to_value(older).expect("wire types have string keys and no failing fields")
    }

    fn canonicalize_parts(&mut self, schemas: &SchemaSet) -> Result<(), serde_json::Error> {
        for part in schemas.parts() {
            part.canonicalize_parts(&mut self.spec.parts, &mut self.status.parts)?;
        }
        Ok(())
    }

    fn apply_defaults(&mut self, _origin: &ObjectOrigin<'_, Self>) -> Vec<String> {
        defaults::default_pilot(self);
        Vec::new()
    }

    fn validate_create(
        &self,
        version: ServedVersion,
        schemas: &'static SchemaSet,
    ) -> ValidationResult {
        validation::pilot::validate_create(version, schemas, self)
    }

    fn validate_update(
        &self,
        version: ServedVersion,
        schemas: &'static SchemaSet,
        part: ObjectPart,
        old: &Self,
    ) -> ValidationResult {
        validation::pilot::validate_update(version, schemas, part, self, old)
    }
}

impl HubKind for LeaderLease {
    const NAMES: KindNames = KindNames {
        kind: "LeaderLease",
        plural: "leaderleases",
        singular: "leaderlease",
        short: &["ll"],
        categories: &["navigator"],
        versions: &[V1BETA1],
        has_status: false,
        selectable: &["spec.holderIdentity"],
        columns: printer::LEASE,
        cells: printer::lease_cells,
        // A LeaderLease's holder, founder and former marks of volumes take some 1 KiB.
        largest: 16 * 1024,
        is_vital: true,
        lease_of: |_| None,
    };

    fn register_schema(_version: ServedVersion, generator: &mut SchemaGenerator) {
        generator.subschema_for::<Self>();
    }

    fn apply_defaults(&mut self, _origin: &ObjectOrigin<'_, Self>) -> Vec<String> {
        defaults::default_metadata(&mut self.metadata);
        Vec::new()
    }

    fn validate_create(
        &self,
        version: ServedVersion,
        schemas: &'static SchemaSet,
    ) -> ValidationResult {
        validation::lease::validate_create(version, schemas, self)
    }

    fn validate_update(
        &self,
        version: ServedVersion,
        schemas: &'static SchemaSet,
        part: ObjectPart,
        old: &Self,
    ) -> ValidationResult {
        validation::lease::validate_update(version, schemas, part, self, old)
    }
}

fn read_surplus<S>(schemas: &SchemaSet, metadata: &ObjectMeta) -> Result<S, DecodeError>
where
    S: Default + DeserializeOwned + JsonSchema + 'static,
{
    surplus::parse_surplus(metadata, &schemas.type_schema::<S>())
        .map_err(|error| DecodeError::Invalid(vec![error]))
}

/// Parses `value` as the type `T`, or says why it is not an object of `kind`.
pub(super) fn parse_typed<T: DeserializeOwned>(
    kind: &str,
    version: ServedVersion,
    value: &Value,
) -> Result<T, DecodeError> {
    T::deserialize(value).map_err(|error| malformed_error(kind, version, &error))
}

/// Returns the error for a body that is not an object of `kind`.
pub(super) fn malformed_error(
    kind: &str,
    version: ServedVersion,
    error: &serde_json::Error,
) -> DecodeError {
    DecodeError::Malformed(format!(
        "{kind} in version {:?} cannot be handled as a {kind}: {error}",
        version.as_str()
    ))
}
