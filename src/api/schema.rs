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
        schema::{REF_PREFIX, close_over, compiled::Schema, kubernetes},
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

    fn of(&self, version: ServedVersion) -> &VersionSchemas {
        self.versions[position(version)].get_or_init(|| VersionSchemas {
            definitions: self.generate(version),
            kinds: OnceLock::new(),
        })
    }

    /// Returns the schema of `kind` in `version`.
    ///
    /// # Panics
    /// When the version does not serve the kind: callers have the kind from the scheme.
    pub fn kind(&self, version: ServedVersion, kind: &str) -> &Schema {
        let of = self.of(version);
        let kinds = of.kinds.get_or_init(|| {
            let roots = self.kinds_of(version).map(|kind| (kind.kind, name(version, kind.kind)));
            Schema::from_definitions(&of.definitions, roots, &|type_name, field| {
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
    pub fn words(&self) -> impl Iterator<Item = &'static str> {
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

    fn generate(&self, version: ServedVersion) -> Map<String, Value> {
        let mut generator = generator();
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
        let mut own = generated(generator);
        for (part, spec, status) in parts {
            let described = |schema: &Value, verb: &str| {
                let mut schema = schema.clone();
                schema["description"] = format!("What only {} {verb}.", part.title).into();
                schema
            };
            own["PilotSpec"]["properties"][part.word] = described(&spec, "needs");
            own["PilotStatus"]["properties"][part.word] = described(&status, "reports");
        }
        let mut all = self.own_definitions(own, version);
        for kind in self.kinds_of(version) {
            add_head(&mut all[&name(version, kind.kind)], version, kind);
        }
        for definition in all.clone().values() {
            close_over(definition, kubernetes(), &mut all);
        }
        all
    }

    /// Returns what `skipPredicates` accepts.
    fn skippable(&self) -> Vec<&'static str> {
        let lists =
            self.parts.iter().map(|part| (part.names.predicates, part.names.without_effect));
        let lists = lists.chain([(predicate::SHARED, predicate::WITHOUT_EFFECT)]);
        let names = lists.flat_map(|(predicates, without_effect)| {
            let skippable = predicates.iter().filter(|predicate| predicate.is_skippable());
            skippable.map(|predicate| predicate.name).chain(without_effect.iter().copied())
        });
        ["*"].into_iter().chain(names).collect()
    }

    /// Turns the generator's definitions into the form that Kubernetes takes.
    fn own_definitions(
        &self,
        mut own: Map<String, Value>,
        version: ServedVersion,
    ) -> Map<String, Value> {
        if version == V1BETA1 {
            own.insert("PodTemplate".into(), pod_template(version));
            own.insert("PodOverlay".into(), pod_overlay());
        }
        let clusters: Vec<&str> =
            self.kinds[..self.clusters].iter().map(|kind| kind.kind).collect();
        let mut all = Map::new();
        for (type_name, mut definition) in own {
            for rows in self.all_rows() {
                rows.add_to(&type_name, &mut definition);
            }
            if type_name == "UpdateStrategy" {
                definition["properties"]["skipPredicates"]["items"]["enum"] =
                    self.skippable().into();
            }
            if type_name == "ClusterRef" {
                definition["properties"]["kind"]["enum"] = clusters.clone().into();
            }
            structural::normalise(&mut definition, version);
            all.insert(name(version, &type_name), definition);
        }
        all
    }

    /// Returns the schema of the Pilot fields that v1alpha1 cannot say.
    pub(super) fn pilot_surplus(&self) -> &Schema {
        self.pilot_surplus.get_or_init(|| {
            let mut generator = generator();
            let root = generator.subschema_for::<PilotSurplus>();
            let parts: Vec<(&str, Value)> = self
                .parts
                .iter()
                .map(|part| (part.word, (part.surplus)(&mut generator).to_value()))
                .collect();
            let mut own = generated(generator);
            let type_name = root.as_value()["$ref"].as_str().and_then(|r| r.rsplit('/').next());
            let type_name = type_name.expect("a struct has a definition").to_owned();
            for (word, schema) in parts {
                own[&type_name]["properties"][word] = schema;
            }
            self.rooted(&type_name, own)
        })
    }

    /// Returns the schema of a type that is not a kind but is checked like one.
    pub(super) fn other<T: JsonSchema + 'static>(&self) -> Arc<Schema> {
        // The map stays valid when a thread panics with the lock held: an entry is added only when
        // it is complete.
        let mut others = self.others.lock().unwrap_or_else(PoisonError::into_inner);
        let made = others.entry(TypeId::of::<T>()).or_insert_with(|| {
            let mut generator = generator();
            generator.subschema_for::<T>();
            Arc::new(self.rooted(&T::schema_name(), generated(generator)))
        });
        Arc::clone(made)
    }

    fn rooted(&self, type_name: &str, own: Map<String, Value>) -> Schema {
        let mut all = self.own_definitions(own, V1BETA1);
        let mut root = all[&name(V1BETA1, type_name)].clone();
        for definition in all.clone().values() {
            close_over(definition, kubernetes(), &mut all);
        }
        root["definitions"] = all.into();
        Schema::from_openapi(&root)
    }
}

impl GroupDefinitions for SchemaSet {
    fn definitions(&self, version: ServedVersion) -> &Map<String, Value> {
        &self.of(version).definitions
    }
}

/// Returns the name of the definition of one of Navigator's types.
pub fn name(version: ServedVersion, type_name: &str) -> String {
    NAVIGATOR.definition(version, type_name)
}

/// Returns the place of a version of the group among [`VERSIONS`].
fn position(version: ServedVersion) -> usize {
    let position = VERSIONS.iter().position(|known| *known == version);
    position.expect("only versions of the group have schemas")
}

fn generator() -> SchemaGenerator {
    let settings =
        SchemaSettings::draft2019_09().with(|s| s.definitions_path = "/definitions".into());
    SchemaGenerator::new(settings)
}

/// Returns the generator's definitions, without Kubernetes' own types.
fn generated(mut generator: SchemaGenerator) -> Map<String, Value> {
    let definitions = generator.take_definitions(false).into_iter();
    definitions.filter(|(name, _)| !name.starts_with("io.k8s.")).collect()
}

/// Adds apiVersion, kind and the facts about the kind that the definition of a served object has.
fn add_head(definition: &mut Value, version: ServedVersion, kind: &KindSchema) {
    let text = |name: &str| {
        kubernetes()["io.k8s.apimachinery.pkg.apis.meta.v1.Status"]["properties"][name].clone()
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
    let mut schema = kubernetes()["io.k8s.api.core.v1.PodTemplateSpec"].clone();
    schema["description"] =
        "Part of a pod template, merged over the generated one; nothing in it is required.".into();
    schema["properties"]["spec"]["$ref"] =
        format!("{REF_PREFIX}{}", name(version, "PodOverlay")).into();
    schema
}

fn pod_overlay() -> Value {
    let mut schema = kubernetes()["io.k8s.api.core.v1.PodSpec"].clone();
    schema["description"] = "Part of a core/v1 PodSpec; nothing in it is required.".into();
    schema.as_object_mut().expect("PodSpec is an object").remove("required");
    schema
}
