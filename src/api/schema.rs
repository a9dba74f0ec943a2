//! The schemas of the kinds, generated from the doc comments of the types.
//!
//! Owns their form: structural, `$ref`s into `#/definitions/`, definitions named as upstream names
//! them. Kubernetes' own types are those of `machinery::schema`.

mod markers;
mod structural;

use std::{
    any::TypeId,
    collections::{BTreeMap, HashMap},
    sync::{Arc, Mutex, OnceLock, PoisonError},
};

use schemars::{JsonSchema, SchemaGenerator, generate::SchemaSettings};
use serde_json::{Map, Value, json};

pub use markers::*;

use super::{conversion::pilot::PilotSurplus, pilot_part::ErasedPilotPart, predicate};
use crate::{
    api::{NAVIGATOR, V1ALPHA1, V1BETA1, VERSIONS},
    machinery::{
        schema::{REF_PREFIX, close_over, compiled::Schema, kubernetes_definitions},
        served_kind::ServedVersion,
        served_kinds::GroupDefinitions,
    },
};

/// The facts about a kind that its schemas need.
#[derive(Clone, Copy, Debug)]
pub struct KindSchema {
    pub kind: &'static str,
    versions: &'static [ServedVersion],
    selectable: &'static [&'static str],
    generate: fn(ServedVersion, &mut SchemaGenerator),
}

impl KindSchema {
    pub(super) const fn new(
        kind: &'static str,
        versions: &'static [ServedVersion],
        selectable: &'static [&'static str],
        generate: fn(ServedVersion, &mut SchemaGenerator),
    ) -> Self {
        Self { kind, versions, selectable, generate }
    }
}

/// The schemas of the kinds that are served together.
#[derive(Debug)]
pub struct SchemaSet {
    /// Schemas of the kinds; the clusters of the databases come first.
    kinds: Vec<KindSchema>,
    clusters: usize,
    parts: Vec<&'static ErasedPilotPart>,
    rows: Vec<&'static SchemaMarkers>,
    versions: [OnceLock<VersionSchemas>; VERSIONS.len()],
    pilot_surplus: OnceLock<Schema>,
    /// Compiled schemas of types that are not kinds but are checked like them.
    others: Mutex<HashMap<TypeId, Arc<Schema>>>,
}

/// The schemas of one version.
#[derive(Debug)]
struct VersionSchemas {
    definitions: Map<String, Value>,
    /// Compiled schemas by kind, made at first use: code that only describes kinds needs none.
    kinds: OnceLock<BTreeMap<&'static str, Schema>>,
}

impl SchemaSet {
    pub(super) fn new(
        kinds: Vec<KindSchema>,
        clusters: usize,
        parts: Vec<&'static ErasedPilotPart>,
        rows: Vec<&'static SchemaMarkers>,
    ) -> Self {
        let (versions, pilot_surplus, others) = Default::default();
        Self { kinds, clusters, parts, rows, versions, pilot_surplus, others }
    }

    fn version_schemas(&self, version: ServedVersion) -> &VersionSchemas {
        self.versions[version_index(version)].get_or_init(|| VersionSchemas {
            definitions: self.generate_definitions(version),
            kinds: OnceLock::new(),
        })
    }

    /// Returns the schema of `kind` in `version`.
    ///
    /// # Panics
    /// When the version does not serve the kind: callers have the kind from the scheme.
    pub fn kind_schema(&self, version: ServedVersion, kind: &str) -> &Schema {
        let schemas = self.version_schemas(version);
        let kinds = schemas.kinds.get_or_init(|| {
            let roots =
                self.kinds_of(version).map(|kind| (kind.kind, definition_name(version, kind.kind)));
            Schema::from_definitions(&schemas.definitions, roots, &|type_name, field| {
                self.max_bytes(type_name, field)
            })
        });
        kinds.get(kind).expect("every served kind has a schema")
    }

    /// Returns the parts of Pilots that are one database's own.
    pub fn parts(&self) -> &[&'static ErasedPilotPart] {
        &self.parts
    }

    /// Returns the names of the parts of Pilots that are one database's own.
    pub fn part_words(&self) -> impl Iterator<Item = &'static str> {
        self.parts.iter().map(|part| part.word)
    }

    /// Returns the most bytes that a text field, or each text of a list field, may have.
    fn max_bytes(&self, type_name: &str, field: &str) -> Option<usize> {
        let rows = self.all_rows().flat_map(|rows| rows.max_bytes);
        rows.filter(|row| row.0 == type_name && row.1 == field).map(|row| row.2).next()
    }

    /// Returns the rows that hold for types of no database, then those of each database.
    fn all_rows(&self) -> impl Iterator<Item = &SchemaMarkers> {
        [&SHARED].into_iter().chain(self.rows.iter().copied())
    }

    /// Returns the kinds that `version` serves.
    fn kinds_of(&self, version: ServedVersion) -> impl Iterator<Item = &KindSchema> {
        self.kinds.iter().filter(move |kind| kind.versions.contains(&version))
    }

    fn generate_definitions(&self, version: ServedVersion) -> Map<String, Value> {
        let mut generator = build_generator();
        for kind in self.kinds_of(version) {
            (kind.generate)(version, &mut generator);
        }
        // The fields of parts are added below, each with its own description.
        let mut parts = Vec::new();
        for part in &self.parts {
            let spec = if version == V1ALPHA1 {
                (part.older)(&mut generator)
            } else {
                (part.spec)(&mut generator)
            };
            parts.push((part, spec.to_value(), (part.status)(&mut generator).to_value()));
        }
        let mut definitions = collect_definitions(generator);
        for (part, spec, status) in parts {
            let with_description = |schema: &Value, verb: &str| {
                let mut schema = schema.clone();
                schema["description"] = format!("What only {} {verb}.", part.title).into();
                schema
            };
            definitions["PilotSpec"]["properties"][part.word] = with_description(&spec, "needs");
            definitions["PilotStatus"]["properties"][part.word] =
                with_description(&status, "reports");
        }
        let mut all_definitions = self.own_definitions(definitions, version);
        for kind in self.kinds_of(version) {
            add_head(&mut all_definitions[&definition_name(version, kind.kind)], version, kind);
        }
        for definition in all_definitions.clone().values() {
            close_over(definition, kubernetes_definitions(), &mut all_definitions);
        }
        all_definitions
    }

    /// Returns what `skipPredicates` accepts.
    fn skippable_predicates(&self) -> Vec<&'static str> {
        let lists =
            self.parts.iter().map(|part| (part.names.predicates, part.names.without_effect));
        let lists = lists.chain([(predicate::SHARED, predicate::WITHOUT_EFFECT)]);
        let names = lists.flat_map(|(predicates, without_effect)| {
            let skippable_ones = predicates.iter().filter(|predicate| predicate.is_skippable());
            skippable_ones.map(|predicate| predicate.name).chain(without_effect.iter().copied())
        });
        ["*"].into_iter().chain(names).collect()
    }

    /// Turns the generator's definitions into the form that Kubernetes takes.
    fn own_definitions(
        &self,
        mut definitions: Map<String, Value>,
        version: ServedVersion,
    ) -> Map<String, Value> {
        if version == V1BETA1 {
            definitions.insert("PodTemplate".into(), pod_template(version));
            definitions.insert("PodOverlay".into(), pod_overlay());
        }
        let clusters: Vec<&str> =
            self.kinds[..self.clusters].iter().map(|kind| kind.kind).collect();
        let mut named_definitions = Map::new();
        for (type_name, mut definition) in definitions {
            for rows in self.all_rows() {
                rows.add_to(&type_name, &mut definition);
            }
            if type_name == "UpdateStrategy" {
                definition["properties"]["skipPredicates"]["items"]["enum"] =
                    self.skippable_predicates().into();
            }
            if type_name == "ClusterRef" {
                definition["properties"]["kind"]["enum"] = clusters.clone().into();
            }
            structural::normalize_schema(&mut definition, version);
            named_definitions.insert(definition_name(version, &type_name), definition);
        }
        named_definitions
    }

    /// Returns the schema of the Pilot fields that v1alpha1 cannot say.
    pub(super) fn pilot_surplus(&self) -> &Schema {
        self.pilot_surplus.get_or_init(|| {
            let mut generator = build_generator();
            let root = generator.subschema_for::<PilotSurplus>();
            let parts: Vec<(&str, Value)> = self
                .parts
                .iter()
                .map(|part| (part.word, (part.surplus)(&mut generator).to_value()))
                .collect();
            let mut definitions = collect_definitions(generator);
            let type_name = root.as_value()["$ref"].as_str().and_then(|r| r.rsplit('/').next());
            let type_name = type_name.expect("a struct has a definition").to_owned();
            for (word, schema) in parts {
                definitions[&type_name]["properties"][word] = schema;
            }
            self.build_root_schema(&type_name, definitions)
        })
    }

    /// Returns the schema of a type that is not a kind but is checked like one.
    pub(super) fn type_schema<T: JsonSchema + 'static>(&self) -> Arc<Schema> {
        // The map stays valid when a thread panics with the lock held: an entry is added only when
        // it is complete.
        let mut schemas = self.others.lock().unwrap_or_else(PoisonError::into_inner);
        let schema = schemas.entry(TypeId::of::<T>()).or_insert_with(|| {
            let mut generator = build_generator();
            generator.subschema_for::<T>();
            Arc::new(self.build_root_schema(&T::schema_name(), collect_definitions(generator)))
        });
        Arc::clone(schema)
    }

    fn build_root_schema(&self, type_name: &str, definitions: Map<String, Value>) -> Schema {
        let mut all_definitions = self.own_definitions(definitions, V1BETA1);
        let mut root = all_definitions[&definition_name(V1BETA1, type_name)].clone();
        for definition in all_definitions.clone().values() {
            close_over(definition, kubernetes_definitions(), &mut all_definitions);
        }
        root["definitions"] = all_definitions.into();
        Schema::from_openapi(&root)
    }
}

impl GroupDefinitions for SchemaSet {
    fn definitions(&self, version: ServedVersion) -> &Map<String, Value> {
        &self.version_schemas(version).definitions
    }
}

/// Returns the name of the definition of one of Navigator's types.
pub fn definition_name(version: ServedVersion, type_name: &str) -> String {
    NAVIGATOR.definition_name(version, type_name)
}

/// Returns the place of a version of the group among [`VERSIONS`].
fn version_index(version: ServedVersion) -> usize {
    let position = VERSIONS.iter().position(|candidate| *candidate == version);
    position.expect("only versions of the group have schemas")
}

fn build_generator() -> SchemaGenerator {
    let settings =
        SchemaSettings::draft2019_09().with(|s| s.definitions_path = "/definitions".into());
    SchemaGenerator::new(settings)
}

/// Returns the generator's definitions, without Kubernetes' own types.
fn collect_definitions(mut generator: SchemaGenerator) -> Map<String, Value> {
    let definitions = generator.take_definitions(false).into_iter();
    definitions.filter(|(name, _)| !name.starts_with("io.k8s.")).collect()
}

/// Adds apiVersion, kind and the facts about the kind that the definition of a served object has.
fn add_head(definition: &mut Value, version: ServedVersion, kind: &KindSchema) {
    let text = |name: &str| {
        kubernetes_definitions()["io.k8s.apimachinery.pkg.apis.meta.v1.Status"]["properties"][name]
            .clone()
    };
    let properties = &mut definition["properties"];
    properties["apiVersion"] = text("apiVersion");
    properties["kind"] = text("kind");
    properties["metadata"]["description"] = "Standard object's metadata. More info: https://git.k8s.io/community/contributors/devel/sig-architecture/api-conventions.md#metadata".into();
    definition["x-kubernetes-group-version-kind"] =
        json!([{ "group": super::GROUP, "kind": kind.kind, "version": version.as_str() }]);
    let fields: Vec<Value> =
        kind.selectable.iter().map(|path| json!({ "jsonPath": format!(".{path}") })).collect();
    if !fields.is_empty() {
        definition["x-kubernetes-selectable-fields"] = fields.into();
    }
}

/// Returns the schema of a pod template with no required fields. Its parts are core/v1's own, so
/// that lists merge by the keys that clients know from Kubernetes.
fn pod_template(version: ServedVersion) -> Value {
    let mut schema = kubernetes_definitions()["io.k8s.api.core.v1.PodTemplateSpec"].clone();
    schema["description"] =
        "Part of a pod template, merged over the generated one; nothing in it is required.".into();
    schema["properties"]["spec"]["$ref"] =
        format!("{REF_PREFIX}{}", definition_name(version, "PodOverlay")).into();
    schema
}

fn pod_overlay() -> Value {
    let mut schema = kubernetes_definitions()["io.k8s.api.core.v1.PodSpec"].clone();
    schema["description"] = "Part of a core/v1 PodSpec; nothing in it is required.".into();
    schema.as_object_mut().expect("PodSpec is an object").remove("required");
    schema
}
