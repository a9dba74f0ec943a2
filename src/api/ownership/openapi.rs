//! Compiles an OpenAPI schema for merging.
//!
//! Lists are atomic unless `x-kubernetes-list-type` (or the older `patch-strategy`) says otherwise;
//! objects are told apart field by field unless `x-kubernetes-map-type` says `atomic`.

use serde_json::Value;

use super::schema::{Atom, Field, List, Map, Places, Scalar, Schema, Type};

/// Types whose schema does not say what they are.
const QUANTITY: &str = "io.k8s.apimachinery.pkg.api.resource.Quantity";
const RAW: &str = "io.k8s.apimachinery.pkg.runtime.RawExtension";

const PRESERVE: &str = "x-kubernetes-preserve-unknown-fields";

impl Schema {
    /// A root schema with its `definitions`.
    pub fn from_openapi(root: &Value) -> Self {
        let mut compile = Compile {
            definitions: &root["definitions"],
            atoms: Self::free().into(),
            places: Places::new(),
        };
        let root = compile.inline(root, false);
        Self::new(compile.atoms, root)
    }
}

struct Compile<'a> {
    definitions: &'a Value,
    atoms: Vec<Atom>,
    places: Places,
}

impl Compile<'_> {
    /// The type of a schema or of a reference to one.
    fn type_of(&mut self, schema: &Value, free: bool) -> Type {
        let all_of = schema["allOf"].as_array().and_then(|all| match &all[..] {
            [only] => only["$ref"].as_str(),
            _ => None,
        });
        let name = schema["$ref"].as_str().or(all_of).and_then(|r| r.rsplit('/').next());
        let Some(name) = name else { return self.inline(schema, free) };
        let named = self.named(name);
        match schema["x-kubernetes-map-type"].as_str() {
            Some(kind) => {
                let mut atom = self.atoms[named.0].clone();
                if let Some(map) = &mut atom.map {
                    map.atomic = kind == "atomic";
                } else if let Some(list) = &mut atom.list {
                    list.atomic = kind == "atomic";
                }
                self.add(atom)
            }
            None => named,
        }
    }

    fn named(&mut self, name: &str) -> Type {
        match name {
            QUANTITY => return self.add(Atom { scalar: Some(Scalar::Any), ..Atom::default() }),
            RAW => return Schema::UNTYPED,
            _ => {}
        }
        if let Some(place) = self.places.get(name) {
            return *place;
        }
        // Its place is known before what it holds: types may hold themselves.
        let place = self.add(Atom::default());
        self.places.insert(name.to_owned(), place);
        let atom = self.atom(&self.definitions[name], false);
        self.atoms[place.0] = atom;
        place
    }

    fn inline(&mut self, schema: &Value, free: bool) -> Type {
        let atom = self.atom(schema, free);
        self.add(atom)
    }

    fn add(&mut self, atom: Atom) -> Type {
        self.atoms.push(atom);
        Type(self.atoms.len() - 1)
    }

    /// `free` is what a schema above said: unknown fields are kept from there on.
    fn atom(&mut self, schema: &Value, free: bool) -> Atom {
        let free = free || schema[PRESERVE] == true;
        let scalar = |scalar| Atom { scalar: Some(scalar), ..Atom::default() };
        match schema["type"].as_str() {
            Some("object") => Atom { map: Some(self.map(schema, free)), ..Atom::default() },
            Some("array") => Atom { list: Some(self.list(schema, free)), ..Atom::default() },
            Some("integer" | "number") => scalar(Scalar::Numeric),
            Some("boolean") => scalar(Scalar::Boolean),
            Some("string") => match schema["format"].as_str() {
                None | Some("" | "byte") => scalar(Scalar::String),
                Some(_) => scalar(Scalar::Any),
            },
            _ => Atom {
                scalar: Some(Scalar::Any),
                list: Some(self.list(schema, free)),
                map: Some(self.map(schema, free)),
            },
        }
    }

    fn map(&mut self, schema: &Value, free: bool) -> Map {
        let mut map = Map::default();
        for (name, member) in schema["properties"].as_object().into_iter().flatten() {
            let default = member.get("default").filter(|default| !default.is_null()).cloned();
            let field = Field { type_: self.type_of(member, free), default };
            map.fields.insert(name.as_str().into(), field);
        }
        map.values = match &schema["additionalProperties"] {
            Value::Null | Value::Bool(true) if free || map.fields.is_empty() => {
                Some(Schema::DEDUCED)
            }
            Value::Bool(true) => Some(Schema::DEDUCED),
            Value::Null | Value::Bool(false) => None,
            values => Some(self.type_of(values, free)),
        };
        map.atomic = schema["x-kubernetes-map-type"] == "atomic";
        map
    }

    fn list(&mut self, schema: &Value, free: bool) -> List {
        let merged = schema["x-kubernetes-patch-strategy"]
            .as_str()
            .is_some_and(|strategy| strategy.starts_with("merge"));
        let texts = |value: &Value| -> Box<[Box<str>]> {
            let items = value.as_array().into_iter().flatten();
            items.filter_map(Value::as_str).map(Box::from).collect()
        };
        let (atomic, keys) = match schema["x-kubernetes-list-type"].as_str() {
            Some("set") => (false, [].into()),
            Some("map") => (false, texts(&schema["x-kubernetes-list-map-keys"])),
            None if merged => {
                let key = schema["x-kubernetes-patch-merge-key"].as_str();
                (false, key.into_iter().map(Box::from).collect())
            }
            _ => (true, [].into()),
        };
        let items = match schema.get("items") {
            Some(items) => self.type_of(items, free),
            None => Schema::UNTYPED,
        };
        List { items: Some(items), atomic, keys }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::{
        field_set::field_set,
        validate::{Duplicates, validate},
    };
    use super::*;

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
        validate(&schema, &object, Duplicates::Refused).unwrap();
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
        let problems = validate(&schema, &wrong, Duplicates::Refused).unwrap_err();
        assert_eq!(
            problems.to_string(),
            "errors:\n  .list: expected list, got 5\n  .set: duplicate entries for key [=1]\n  \
             .struct.other: field not declared in schema"
        );
    }
}
