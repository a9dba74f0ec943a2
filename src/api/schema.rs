//! Schemas of the kinds, from the doc comments of the types.
//!
//! Owns their form: structural, `$ref`s into `#/definitions/`, definitions named as upstream
//! names them. Kubernetes' own types come from `schema/kubernetes.json`, an extract of the
//! OpenAPI document of Kubernetes 1.34 (`scripts/kubernetes-definitions.py`), so that kube-aggregator finds them equal to its own.

mod closed;
mod normal;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::LazyLock,
};

use schemars::{JsonSchema, SchemaGenerator, generate::SchemaSettings};
use serde_json::{Map, Value, json};

pub use closed::*;

use super::{scheme::Version, v1alpha1, v1beta1};

/// Where definitions refer to each other.
pub const REF_PREFIX: &str = "#/definitions/";

/// The schema of `kind` in `version`, with all `definitions` that it needs.
///
/// # Panics
/// When the version does not serve the kind: callers have it from the table of kinds.
pub fn schema(version: Version, kind: &str) -> &'static Value {
    static SCHEMAS: LazyLock<BTreeMap<(Version, String), Value>> = LazyLock::new(|| {
        let mut schemas = BTreeMap::new();
        for version in Version::ALL {
            for kind in kinds(version) {
                schemas.insert((version, kind.to_owned()), root(version, kind));
            }
        }
        schemas
    });
    SCHEMAS.get(&(version, kind.to_owned())).expect("every served kind has a schema")
}

/// Name of the definition of one of our types.
pub fn name(version: Version, type_name: &str) -> String {
    format!("com.jetstack.navigator.{version}.{type_name}")
}

/// Every definition of `version` by name: our own types and what they refer to.
pub fn definitions(version: Version) -> &'static Map<String, Value> {
    static DEFINITIONS: LazyLock<BTreeMap<Version, Map<String, Value>>> = LazyLock::new(|| {
        Version::ALL.into_iter().map(|version| (version, generate(version))).collect()
    });
    &DEFINITIONS[&version]
}

/// Kubernetes' own definitions, without the lists of groups that use them.
pub fn kubernetes() -> &'static Map<String, Value> {
    static DEFINITIONS: LazyLock<Map<String, Value>> = LazyLock::new(|| {
        serde_json::from_str(include_str!("schema/kubernetes.json"))
            .expect("the extract is valid JSON")
    });
    &DEFINITIONS
}

/// Adds the definitions of `from` that `schema` refers to, and those that they refer to.
pub fn close_over(schema: &Value, from: &Map<String, Value>, into: &mut Map<String, Value>) {
    let mut names = BTreeSet::new();
    references(schema, &mut names);
    for name in names {
        if into.contains_key(&name) {
            continue;
        }
        if let Some(definition) = from.get(&name) {
            into.insert(name, definition.clone());
            close_over(definition, from, into);
        }
    }
}

/// Kinds that `version` serves.
fn kinds(version: Version) -> impl Iterator<Item = &'static str> {
    super::scheme::kinds()
        .iter()
        .filter(move |kind| kind.versions().contains(&version))
        .map(|kind| kind.kind())
}

fn root(version: Version, kind: &str) -> Value {
    let all = definitions(version);
    let mut root = all[&name(version, kind)].clone();
    let mut needed = Map::new();
    close_over(&root, all, &mut needed);
    root["definitions"] = needed.into();
    root
}

fn references(schema: &Value, names: &mut BTreeSet<String>) {
    match schema {
        Value::Object(fields) => {
            for (key, value) in fields {
                match value.as_str().and_then(|text| text.strip_prefix(REF_PREFIX)) {
                    Some(name) if key == "$ref" => {
                        names.insert(name.to_owned());
                    }
                    _ => references(value, names),
                }
            }
        }
        Value::Array(items) => items.iter().for_each(|item| references(item, names)),
        _ => {}
    }
}

fn generate(version: Version) -> Map<String, Value> {
    let mut generator = generator();
    match version {
        Version::V1beta1 => {
            generator.subschema_for::<v1beta1::CassandraCluster>();
            generator.subschema_for::<v1beta1::ElasticsearchCluster>();
            generator.subschema_for::<v1beta1::Pilot>();
            generator.subschema_for::<v1beta1::LeaderLease>();
        }
        Version::V1alpha1 => {
            generator.subschema_for::<v1alpha1::CassandraCluster>();
            generator.subschema_for::<v1alpha1::ElasticsearchCluster>();
            generator.subschema_for::<v1alpha1::Pilot>();
        }
    }
    let mut all = own_definitions(generator, version);
    for kind in kinds(version) {
        add_head(&mut all[&name(version, kind)], version, kind);
    }
    for definition in all.clone().values() {
        close_over(definition, kubernetes(), &mut all);
    }
    all
}

/// The root schema of a type that is no kind and is checked like one: the surplus annotation's.
pub(super) fn part<T: JsonSchema>() -> Value {
    let mut generator = generator();
    generator.subschema_for::<T>();
    let mut all = own_definitions(generator, Version::V1beta1);
    let mut root = all[&name(Version::V1beta1, &T::schema_name())].clone();
    for definition in all.clone().values() {
        close_over(definition, kubernetes(), &mut all);
    }
    root["definitions"] = all.into();
    root
}

fn generator() -> SchemaGenerator {
    let settings =
        SchemaSettings::draft2019_09().with(|s| s.definitions_path = "/definitions".into());
    SchemaGenerator::new(settings)
}

/// What the generator met, without Kubernetes' own types, in the form that Kubernetes takes.
fn own_definitions(mut generator: SchemaGenerator, version: Version) -> Map<String, Value> {
    let mut own: Map<String, Value> = generator
        .take_definitions(false)
        .into_iter()
        .filter(|(name, _)| !name.starts_with("io.k8s."))
        .collect();
    if version == Version::V1beta1 {
        own.insert("PodTemplate".into(), pod_template(version));
        own.insert("PodOverlay".into(), pod_overlay());
    }
    let mut all = Map::new();
    for (type_name, mut definition) in own {
        closed::add_to(&type_name, &mut definition);
        normal::normalise(&mut definition, version);
        all.insert(name(version, &type_name), definition);
    }
    all
}

/// What every served object has beside its own fields.
fn add_head(definition: &mut Value, version: Version, kind: &str) {
    let text = |name: &str| {
        kubernetes()["io.k8s.apimachinery.pkg.apis.meta.v1.Status"]["properties"][name].clone()
    };
    let properties = &mut definition["properties"];
    properties["apiVersion"] = text("apiVersion");
    properties["kind"] = text("kind");
    properties["metadata"]["description"] = "Standard object's metadata. More info: https://git.k8s.io/community/contributors/devel/sig-architecture/api-conventions.md#metadata".into();
    definition["x-kubernetes-group-version-kind"] =
        json!([{ "group": super::GROUP, "kind": kind, "version": version.as_str() }]);
    let selectable = super::scheme::kinds().iter().find(|candidate| candidate.kind() == kind);
    let fields: Vec<Value> = selectable
        .expect("kind is one of the table's")
        .selectable_fields()
        .iter()
        .map(|path| json!({ "jsonPath": format!(".{path}") }))
        .collect();
    if !fields.is_empty() {
        definition["x-kubernetes-selectable-fields"] = fields.into();
    }
}

/// A pod template of which nothing is required. Its parts are core/v1's own, so that lists merge
/// by the keys that everybody knows.
fn pod_template(version: Version) -> Value {
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

#[cfg(test)]
mod tests {
    use super::*;

    fn every_schema(visit: &mut dyn FnMut(&str, &Map<String, Value>)) {
        fn walk(path: &str, schema: &Value, visit: &mut dyn FnMut(&str, &Map<String, Value>)) {
            let fields = schema.as_object().expect(path);
            visit(path, fields);
            for (name, property) in
                fields.get("properties").and_then(Value::as_object).into_iter().flatten()
            {
                walk(&format!("{path}.{name}"), property, visit);
            }
            for key in ["items", "additionalProperties"] {
                if let Some(inner) = fields.get(key).filter(|inner| inner.is_object()) {
                    walk(&format!("{path}[]"), inner, visit);
                }
            }
        }
        for version in Version::ALL {
            for (name, definition) in definitions(version) {
                walk(name, definition, visit);
            }
        }
    }

    #[test]
    fn schemas_are_structural() {
        every_schema(&mut |path, fields| {
            if path.starts_with("io.k8s.") {
                return;
            }
            for word in ["anyOf", "oneOf", "allOf", "not", "$schema", "title", "const", "nullable"]
            {
                assert!(!fields.contains_key(word), "{path} has {word}");
            }
            assert!(
                fields.get("type").is_some_and(Value::is_string) != fields.contains_key("$ref"),
                "{path} has neither one type nor a reference: {fields:?}"
            );
            if fields.get("type").is_some_and(|type_| type_ == "array") {
                assert!(fields.contains_key("items"), "{path} has no items");
            }
        });
    }

    #[test]
    fn every_field_of_ours_is_described() {
        every_schema(&mut |path, fields| {
            let ours = path.starts_with("com.jetstack.") && !path.contains("[]");
            assert!(!ours || fields.contains_key("description"), "{path} has no doc comment");
        });
    }

    #[test]
    fn every_list_of_ours_says_how_it_merges() {
        every_schema(&mut |path, fields| {
            let list = fields.get("type").is_some_and(|type_| type_ == "array");
            let overlay = path.contains(".PodOverlay.");
            if path.starts_with("com.jetstack.") && list && !overlay {
                assert!(fields.contains_key("x-kubernetes-list-type"), "{path} has no list type");
            }
        });
    }

    #[test]
    fn every_reference_has_its_definition() {
        for version in Version::ALL {
            for (name, definition) in definitions(version) {
                let mut names = BTreeSet::new();
                references(definition, &mut names);
                for target in names {
                    assert!(definitions(version).contains_key(&target), "{name} → {target}");
                }
            }
        }
    }
}
