//! Compiles OpenAPI schemas.
//!
//! Lists are atomic unless `x-kubernetes-list-type` (or the older `patch-strategy`) says otherwise;
//! objects are told apart field by field unless `x-kubernetes-map-type` says `atomic`.

use std::collections::{BTreeMap, HashMap};

use serde_json::{Map as Object, Value};

use super::compiled::{
    FieldSchema, JsonType, ListSchema, MapSchema, ScalarType, Schema, SchemaAtom, SchemaFacts,
    TypeOrigin, TypeRef, UnknownFieldPolicy, ValueFormat,
};

/// Kubernetes' types whose schema does not describe their form.
const QUANTITY: &str = "io.k8s.apimachinery.pkg.api.resource.Quantity";
const RAW: &str = "io.k8s.apimachinery.pkg.runtime.RawExtension";

const PRESERVE: &str = "x-kubernetes-preserve-unknown-fields";

/// Prefix of the definition names of Navigator's types.
const OURS: &str = "com.jetstack.";

/// Returns the most bytes of a text by type and field, which OpenAPI cannot say.
pub(super) type MaxBytes<'a> = &'a dyn Fn(&str, &str) -> Option<usize>;

impl Schema {
    /// Compiles a root schema of Navigator's with its `definitions`.
    pub fn from_openapi(root: &Value) -> Self {
        let mut compiler = SchemaCompiler::new(root["definitions"].as_object(), &|_, _| None);
        let context = EnclosingSchema { origin: TypeOrigin::Ours, type_name: "", free: false };
        let root = compiler.compile_inline(root, context);
        Self::new(compiler.atoms, root)
    }

    /// Compiles definitions; returns one schema for each of `roots`. The schemas share the types
    /// that they have in common.
    pub(crate) fn from_definitions<'n>(
        definitions: &Object<String, Value>,
        roots: impl IntoIterator<Item = (&'n str, String)>,
        max_bytes: MaxBytes<'_>,
    ) -> BTreeMap<&'n str, Self> {
        let mut compiler = SchemaCompiler::new(Some(definitions), max_bytes);
        let roots: Vec<_> =
            roots.into_iter().map(|(key, name)| (key, compiler.compile_named(&name))).collect();
        let shared_schema = Self::new(compiler.atoms, Self::UNTYPED);
        roots.into_iter().map(|(key, root)| (key, shared_schema.with_root(root))).collect()
    }
}

struct SchemaCompiler<'a> {
    definitions: Option<&'a Object<String, Value>>,
    max_bytes: MaxBytes<'a>,
    atoms: Vec<SchemaAtom>,
    /// Compiled types by the names of their definitions.
    places: HashMap<String, TypeRef>,
    /// Compiled scalars without a name, which are shared: most fields have one of a few types.
    scalars: Vec<TypeRef>,
}

/// What a schema inherits from the schemas around it.
#[derive(Clone, Copy)]
struct EnclosingSchema<'n> {
    origin: TypeOrigin,
    /// Name of the Navigator type that the schema defines; empty if it defines none.
    type_name: &'n str,
    /// True when unknown fields are kept from this schema on.
    free: bool,
}

impl<'a> SchemaCompiler<'a> {
    fn new(definitions: Option<&'a Object<String, Value>>, max_bytes: MaxBytes<'a>) -> Self {
        let (places, scalars) = Default::default();
        Self { definitions, max_bytes, atoms: Schema::free_atoms().into(), places, scalars }
    }

    /// Returns the compiled type of a schema, or of the definition that it refers to.
    fn type_of(&mut self, schema: &Value, context: EnclosingSchema<'_>) -> TypeRef {
        let all_of = schema["allOf"].as_array().and_then(|schemas| match &schemas[..] {
            [only_schema] => only_schema["$ref"].as_str(),
            _ => None,
        });
        let name = schema["$ref"].as_str().or(all_of).and_then(|r| r.rsplit('/').next());
        let Some(name) = name else { return self.compile_inline(schema, context) };
        let named_type = self.compile_named(name);
        match schema["x-kubernetes-map-type"].as_str() {
            Some(kind) => {
                let mut atom = self.atoms[named_type.0].clone();
                if let Some(map) = &mut atom.map {
                    map.atomic = kind == "atomic";
                } else if let Some(list) = &mut atom.list {
                    list.atomic = kind == "atomic";
                }
                self.add_atom(atom)
            }
            None => named_type,
        }
    }

    fn compile_named(&mut self, name: &str) -> TypeRef {
        if let Some(place) = self.places.get(name) {
            return *place;
        }
        // The index of a type is reserved before its content is compiled: types may contain
        // themselves.
        let place = self.add_atom(SchemaAtom::default());
        self.places.insert(name.to_owned(), place);
        let definition =
            self.definitions.and_then(|definitions| definitions.get(name)).unwrap_or(&Value::Null);
        let origin = match name.strip_prefix(OURS) {
            Some(suffix) if suffix.ends_with(".PodTemplate") => TypeOrigin::PodTemplate,
            Some(_) => TypeOrigin::Ours,
            None => TypeOrigin::Core,
        };
        let type_name = name.rsplit('.').next().filter(|_| origin == TypeOrigin::Ours);
        let type_name = type_name.unwrap_or_default();
        let mut atom =
            self.build_atom(definition, EnclosingSchema { origin, type_name, free: false });
        match name {
            QUANTITY => {
                let facts = SchemaFacts { format: ValueFormat::Quantity, ..atom.facts };
                atom = SchemaAtom { scalar: Some(ScalarType::Any), facts, ..SchemaAtom::default() };
            }
            RAW => {
                let [untyped, _] = Schema::free_atoms();
                atom = SchemaAtom { facts: atom.facts, ..untyped };
            }
            _ => {}
        }
        self.atoms[place.0] = atom;
        place
    }

    fn compile_inline(&mut self, schema: &Value, context: EnclosingSchema<'_>) -> TypeRef {
        let atom = self.build_atom(schema, context);
        if atom.list.is_some() || atom.map.is_some() {
            return self.add_atom(atom);
        }
        if let Some(equal_scalar) = self.scalars.iter().find(|place| self.atoms[place.0] == atom) {
            return *equal_scalar;
        }
        let place = self.add_atom(atom);
        self.scalars.push(place);
        place
    }

    fn add_atom(&mut self, atom: SchemaAtom) -> TypeRef {
        self.atoms.push(atom);
        TypeRef(self.atoms.len() - 1)
    }

    fn build_atom(&mut self, schema: &Value, context: EnclosingSchema<'_>) -> SchemaAtom {
        let facts = build_facts(schema, context.origin);
        let context = EnclosingSchema {
            free: context.free || facts.unnamed == UnknownFieldPolicy::Kept,
            ..context
        };
        let (scalar, list, map) = match facts.word {
            Some(JsonType::Object) => (None, None, Some(self.build_map(schema, context))),
            Some(JsonType::Array) => (None, Some(self.build_list(schema, context)), None),
            Some(JsonType::Integer | JsonType::Number) => (Some(ScalarType::Numeric), None, None),
            Some(JsonType::Boolean) => (Some(ScalarType::Boolean), None, None),
            Some(JsonType::String) => match schema["format"].as_str() {
                None | Some("" | "byte") => (Some(ScalarType::String), None, None),
                Some(_) => (Some(ScalarType::Any), None, None),
            },
            None => {
                let (list, map) =
                    (self.build_list(schema, context), self.build_map(schema, context));
                (Some(ScalarType::Any), Some(list), Some(map))
            }
        };
        SchemaAtom { scalar, list, map, facts }
    }

    fn build_map(&mut self, schema: &Value, context: EnclosingSchema<'_>) -> MapSchema {
        let field_context = EnclosingSchema { type_name: "", ..context };
        let mut fields = Vec::new();
        for (name, member) in schema["properties"].as_object().into_iter().flatten() {
            let field = FieldSchema {
                type_: self.type_of(member, field_context),
                default: member.get("default").filter(|default| !default.is_null()).cloned(),
                max_bytes: (self.max_bytes)(context.type_name, name),
            };
            fields.push((name.as_str().into(), field));
        }
        let values = match &schema["additionalProperties"] {
            Value::Null | Value::Bool(true) if context.free || fields.is_empty() => {
                Some(Schema::DEDUCED)
            }
            Value::Bool(true) => Some(Schema::DEDUCED),
            Value::Null | Value::Bool(false) => None,
            values => Some(self.type_of(values, field_context)),
        };
        let atomic = schema["x-kubernetes-map-type"] == "atomic";
        MapSchema { fields: fields.into_iter().collect(), values, atomic }
    }

    fn build_list(&mut self, schema: &Value, context: EnclosingSchema<'_>) -> ListSchema {
        let is_merged = schema["x-kubernetes-patch-strategy"]
            .as_str()
            .is_some_and(|strategy| strategy.starts_with("merge"));
        let (atomic, keys) = match schema["x-kubernetes-list-type"].as_str() {
            Some("set") => (false, [].into()),
            Some("map") => (false, parse_texts(&schema["x-kubernetes-list-map-keys"])),
            None if is_merged => {
                let key = schema["x-kubernetes-patch-merge-key"].as_str();
                (false, key.into_iter().map(Box::from).collect())
            }
            _ => (true, [].into()),
        };
        let items = match schema.get("items") {
            Some(items) => self.type_of(items, EnclosingSchema { type_name: "", ..context }),
            None => Schema::UNTYPED,
        };
        ListSchema { items: Some(items), atomic, keys }
    }
}

fn build_facts(schema: &Value, origin: TypeOrigin) -> SchemaFacts {
    let max_count =
        |keyword: &str| schema[keyword].as_u64().and_then(|number| usize::try_from(number).ok());
    SchemaFacts {
        word: schema["type"].as_str().and_then(JsonType::parse),
        format: match schema["format"].as_str() {
            Some("date-time") => ValueFormat::DateTime,
            Some("int-or-string") => ValueFormat::IntOrString,
            Some("int32") => ValueFormat::Int32,
            _ => ValueFormat::None,
        },
        unnamed: if schema[PRESERVE] == true {
            UnknownFieldPolicy::Kept
        } else if schema.get("properties").is_some() {
            UnknownFieldPolicy::Unknown
        } else {
            UnknownFieldPolicy::Free
        },
        origin,
        required: parse_texts(&schema["required"]),
        values: schema["enum"].is_array().then(|| parse_texts(&schema["enum"])),
        max_items: max_count("maxItems"),
        max_properties: max_count("maxProperties"),
    }
}

fn parse_texts(list: &Value) -> Box<[Box<str>]> {
    let items = list.as_array().into_iter().flatten();
    items.filter_map(Value::as_str).map(Box::from).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::machinery::ownership::{DuplicatePolicy, field_set, validate_object};

    #[test]
    fn forms_come_from_openapi_and_its_extensions() {
        let schema = Schema::from_openapi(&json!({
            "type": "object",
            "properties": {
                "struct": {"$ref": "#/definitions/Node"},
                "whole": {"$ref": "#/definitions/Node", "x-kubernetes-map-type": "atomic"},
                "list": {"type": "array", "items": {"type": "integer"}},
                "set": {"type": "array", "items": {"type": "integer"}, "x-kubernetes-list-type": "set"},
                "keyed": {"type": "array", "items": {"$ref": "#/definitions/Node"},
                    "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name", "side"]},
                "labels": {"type": "object", "additionalProperties": {"type": "string"}},
                "free": {"type": "object", "x-kubernetes-preserve-unknown-fields": true},
                "amount": {"$ref": format!("#/definitions/{QUANTITY}")},
            },
            "definitions": {
                "Node": {"type": "object", "properties": {
                    "name": {"type": "string"},
                    "side": {"type": "string", "default": "left"},
                    "child": {"$ref": "#/definitions/Node"},
                }},
            },
        }));
        let object = json!({
            "struct": {"name": "a", "child": {"name": "b"}},
            "whole": {"name": "a"},
            "list": [1, 2],
            "set": [2, 1],
            "keyed": [{"name": "a"}, {"name": "a", "side": "right"}],
            "labels": {"a": "b"},
            "free": {"a": {"b": [1]}},
            "amount": 5,
        });
        validate_object(&schema, &object, DuplicatePolicy::Refused).unwrap();
        let expected = json!({
            "f:struct": {"f:name": {}, "f:child": {"f:name": {}}},
            "f:whole": {},
            "f:list": {},
            "f:set": {"v:1": {}, "v:2": {}},
            "f:keyed": {
                "k:{\"name\":\"a\",\"side\":\"left\"}": {".": {}, "f:name": {}},
                "k:{\"name\":\"a\",\"side\":\"right\"}": {".": {}, "f:name": {}, "f:side": {}},
            },
            "f:labels": {"f:a": {}},
            "f:free": {"f:a": {".": {}, "f:b": {}}},
            "f:amount": {},
        });
        assert_eq!(json!(field_set(&schema, &object).unwrap()), expected);
        let wrong = json!({"set": [1, 1], "struct": {"other": 1}, "list": 5});
        let problems = validate_object(&schema, &wrong, DuplicatePolicy::Refused).unwrap_err();
        assert_eq!(
            problems.to_string(),
            "errors:\n  .list: expected list, got 5\n  .set: duplicate entries for key [=1]\n  \
             .struct.other: field not declared in schema"
        );
    }
}
