//! The rules of server-side apply, held to what structured-merge-diff itself answers.
//!
//! `tests/data/ownership/cases.jsonl` holds what upstream's own tests ask of it, and each answer;
//! `tests/ownership/record.sh` writes it. Left out, because nothing here has a part for it: filters
//! that name what stays (`include`), value reflection, sets of managers as a type of their own.

use std::collections::BTreeMap;

use navigator::machinery::{
    ownership::{
        DuplicatePolicy, Error, FieldManager, FieldManagers, ManagerOperation, OwnershipUpdater,
        PathElement, PathSet, VersionConverter, VersionedSet, compare_objects, extract_paths,
        field_set, is_same_value, merge_objects, order_values, path_text, reconcile_set,
        remove_paths, validate_object, with_keys,
    },
    schema::compiled::{
        FieldSchema, ListSchema, MapSchema, ScalarType, Schema, SchemaAtom, SchemaFacts, TypeRef,
    },
};
use serde::Deserialize as _;
use serde_json::{Value, json};

const CASES: &str = include_str!("../../data/ownership/cases.jsonl");

/// Tests of which nothing here can have the outcome, and why.
const LEFT_OUT: [(&str, &str); 2] = [
    ("TestValueLess/Invalid", "values of Go that JSON has no form for"),
    ("TestInvalidOverride", "schemas that no OpenAPI document is compiled to"),
];

#[test]
fn every_case_of_structured_merge_diff_has_the_same_outcome() {
    let mut schemas = BTreeMap::new();
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    let mut wrong = Vec::new();
    for line in CASES.lines() {
        let case: Value = serde_json::from_str(line).unwrap();
        let op = case["op"].as_str().unwrap();
        if op == "Schema" {
            schemas.insert(case["name"].as_str().unwrap().to_owned(), case["types"].clone());
            continue;
        }
        let test = case["case"].as_str().unwrap();
        if LEFT_OUT.iter().any(|(left, _)| test.starts_with(left)) {
            continue;
        }
        *counts.entry(op.to_owned()).or_default() += 1;
        let outcome = outcome(op, &case, &schemas);
        if outcome.as_ref().is_err_and(|why| why.starts_with(UNASKED)) {
            *counts.entry(UNASKED.to_owned()).or_default() += 1;
            continue;
        }
        if let Err(why) = outcome {
            wrong.push(format!("{} ({op}): {why}\n{line}", case["case"]));
        }
    }
    let first: Vec<_> = wrong.iter().take(8).cloned().collect();
    assert!(wrong.is_empty(), "{} wrong, of these:\n{}", wrong.len(), first.join("\n\n"));
    // A few conversions follow the random order of a map of upstream's.
    assert!(counts.get(UNASKED).is_none_or(|count| *count <= 10), "{counts:?}");
    // A file that lost its cases must not pass.
    for (op, least) in [("Apply", 300), ("Update", 60), ("Validate", 500), ("Merge", 90)] {
        assert!(counts[op] >= least, "{op}: {counts:?}");
    }
    for (op, least) in [("Compare", 80), ("ToFieldSet", 70), ("RemoveItems", 40), ("Reconcile", 7)]
    {
        assert!(counts[op] >= least, "{op}: {counts:?}");
    }
}

fn equal<T: PartialEq + std::fmt::Debug>(ours: &T, theirs: &T) -> Result<(), String> {
    if ours == theirs { Ok(()) } else { Err(format!("ours {ours:?}, upstream's {theirs:?}")) }
}

fn equal_sets(ours: &PathSet, theirs: &Value) -> Result<(), String> {
    if *ours == set(theirs) {
        return Ok(());
    }
    Err(format!("ours {}, upstream's {theirs}", json!(ours)))
}

fn equal_values(ours: &Value, theirs: &Value) -> Result<(), String> {
    if is_same_value(ours, theirs) {
        Ok(())
    } else {
        Err(format!("ours {ours}, upstream's {theirs}"))
    }
}

fn outcome(op: &str, case: &Value, schemas: &BTreeMap<String, Value>) -> Result<(), String> {
    let expected = &case["out"];
    let of = |name: &str| set(&case[name]);
    let typed = || schema(&schemas[case["schema"].as_str().unwrap()], &case["type"]);
    let element = |name: &str| PathElement::parse(case[name].as_str().unwrap()).unwrap().unwrap();
    match op {
        "Union" => equal_sets(&of("left").union(&of("right")), expected),
        "Intersection" => equal_sets(&of("left").intersection(&of("right")), expected),
        "Difference" => equal_sets(&of("left").difference(&of("right")), expected),
        "RecursiveDifference" => {
            equal_sets(&of("left").recursive_difference(&of("right")), expected)
        }
        "Equals" => equal(&json!(of("left") == of("right")), expected),
        "Leaves" => equal_sets(&of("set").leaves(), expected),
        "EnsureNamedFieldsAreMembers" => {
            let schema = typed();
            equal_sets(&of("set").with_named(&schema, Some(schema.root())), expected)
        }
        "Has" => equal(&json!(of("set").contains(&path(&case["path"]))), expected),
        "Size" => equal(&json!(of("set").len()), expected),
        "String" => equal(&json!(of("set").to_string()), expected),
        "Path" => equal(&json!(path_text(&path(&case["path"]))), expected),
        "Less" => equal(&json!(element("left") < element("right")), expected),
        "ValueLess" => equal(&json!(order_values(&case["left"], &case["right"]).is_lt()), expected),
        "ValueEquals" => equal(&json!(is_same_value(&case["left"], &case["right"])), expected),
        "Element" => match (PathElement::parse(case["key"].as_str().unwrap()), &case["error"]) {
            (Ok(Some(element)), Value::Null) => equal(&json!(element.to_key()), expected),
            (Ok(None) | Err(_), Value::String(_)) => Ok(()),
            (ours, theirs) => Err(format!("ours {ours:?}, upstream's {theirs}")),
        },
        "FieldsV1" => match (PathSet::deserialize(&case["fields"]), &case["error"]) {
            // The set is written with the same keys; their order in JSON says nothing.
            (Ok(set), Value::Null) => equal(&json!(set), expected),
            (Err(_), Value::String(_)) => Ok(()),
            (ours, theirs) => Err(format!("ours {ours:?}, upstream's {theirs}")),
        },
        "Validate" => {
            let twice = case["twice"] == true;
            let duplicates =
                if twice { DuplicatePolicy::Allowed } else { DuplicatePolicy::Refused };
            match (validate_object(&typed(), &case["value"], duplicates), case["error"].as_str()) {
                (Ok(()), None) => Ok(()),
                // Upstream shows Go's own form of a value that has the wrong type.
                (Err(_), Some(text)) if text.contains("expected ") || text.contains('\n') => Ok(()),
                // Upstream stops at the first field that is none.
                (Err(ours), Some(text)) if ours.to_string().contains(text) => Ok(()),
                (ours, theirs) => Err(format!("ours {ours:?}, upstream's {theirs:?}")),
            }
        }
        "ToFieldSet" => {
            let set = field_set(&typed(), &case["value"]).map_err(|error| error.to_string())?;
            equal_sets(&set, expected)
        }
        "Merge" => {
            let merged = merge_objects(&typed(), &case["value"], &case["applied"]);
            equal_values(&merged.map_err(|error| error.to_string())?, expected)
        }
        "Compare" => {
            let compared = compare_objects(&typed(), &case["value"], &case["new"]);
            let compared = compared.map_err(|error| error.to_string())?;
            equal_sets(&compared.removed, &case["removed"])?;
            equal_sets(&compared.modified, &case["modified"])?;
            equal_sets(&compared.added, &case["added"])
        }
        "RemoveItems" => {
            equal_values(&remove_paths(&typed(), &case["value"], &of("set")), expected)
        }
        "ExtractItems" => {
            let schema = typed();
            let mut paths = of("set");
            if case["keys"] == true {
                paths = with_keys(&paths, &field_set(&schema, &case["value"]).unwrap());
            }
            equal_values(&extract_paths(&schema, &case["value"], &paths), expected)
        }
        "Reconcile" => match reconcile_set(&typed(), &of("set")).map_err(|e| e.to_string())? {
            Some(set) => equal_sets(&set, expected),
            None => equal(&Value::Null, expected),
        },
        "Apply" | "Update" => step(op, case, schemas),
        other => panic!("no such operation: {other}"),
    }
}

/// One update or apply, with the conversions that upstream made for it.
fn step(op: &str, case: &Value, schemas: &BTreeMap<String, Value>) -> Result<(), String> {
    let types = case["types"].as_object().unwrap().iter();
    let recorded = Recorded {
        types: types
            .map(|(version, of)| {
                let schema = schema(&schemas[of["schema"].as_str().unwrap()], &of["type"]);
                (version.clone(), schema)
            })
            .collect(),
        reset: case["reset"]
            .as_object()
            .unwrap()
            .iter()
            .map(|(version, fields)| (version.clone(), set(fields)))
            .collect(),
        conversions: case["conversions"].as_array().cloned().unwrap_or_default(),
    };
    let updater = OwnershipUpdater::new(&recorded);
    let (live, other) = (&case["live"], &case["other"]);
    let version = case["version"].as_str().unwrap();
    let manager = manager(case["manager"].as_str().unwrap());
    let before = managers(&case["managers"]);
    let outcome = if op == "Apply" {
        let force = case["force"] == true;
        updater.apply_config(live, other, version, before, &manager, force)
    } else {
        let changes = updater.find_changes(live, other, version);
        let after = changes.and_then(|changes| {
            updater.update_owners((live, other), changes, version, before, &manager)
        });
        after.map(|managers| (Some(other.clone()), managers))
    };
    match outcome {
        Ok((object, after)) if case.get("after").is_some() => {
            equal(&after, &managers(&case["after"]))?;
            match (object, &case["out"]) {
                (None, Value::Null) => Ok(()),
                (Some(ours), theirs) => equal_values(&ours, theirs),
                (None, theirs) => Err(format!("ours nothing, upstream's {theirs}")),
            }
        }
        Err(Error::Conflicts(conflicts)) if case.get("conflicts").is_some() => {
            let text = |conflict: &navigator::machinery::ownership::FieldConflict| {
                format!("{}{}", conflict.manager.name, path_text(&conflict.path))
            };
            let mut ours: Vec<String> = conflicts.iter().map(text).collect();
            ours.sort();
            equal(&json!(ours), &case["conflicts"])
        }
        Err(Error::Convert(why)) if why.starts_with(UNASKED) => Err(why),
        Err(Error::Mismatch(_) | Error::Convert(_)) if case.get("error").is_some() => Ok(()),
        Ok((object, after)) => Err(format!("ours {object:?} {after:?}")),
        Err(error) => Err(format!("ours {error}")),
    }
}

const UNASKED: &str = "upstream did not convert";

/// The versions of one recorded step.
struct Recorded {
    types: BTreeMap<String, Schema>,
    reset: BTreeMap<String, PathSet>,
    conversions: Vec<Value>,
}

impl VersionConverter for Recorded {
    type Error = String;

    fn schema(&self, version: &str) -> Option<&Schema> {
        self.types.get(version)
    }

    fn convert(&self, object: &Value, from: &str, to: &str) -> Result<Value, String> {
        // Upstream takes versions in random order, so the object may have come there by another
        // way: values that were converted into each other are one object.
        let mut one = vec![object];
        let mut at = 0;
        while at < one.len() {
            for note in &self.conversions {
                let (value, out) = (&note["value"], &note["out"]);
                let new = match (is_same_value(value, one[at]), is_same_value(out, one[at])) {
                    (true, _) if note["to"] == to => {
                        return note.get("out").cloned().ok_or_else(|| note["error"].to_string());
                    }
                    (_, true) if note["to"] == to => return Ok(out.clone()),
                    (true, _) => out,
                    (_, true) => value,
                    _ => continue,
                };
                if !one.iter().any(|known| is_same_value(known, new)) {
                    one.push(new);
                }
            }
            at += 1;
        }
        let mut all = self.conversions.iter();
        if object.is_null() || all.all(|note| is_same_value(&note["value"], &note["out"])) {
            // Where versions do not differ, one conversion is as good as another.
            return Ok(object.clone());
        }
        Err(format!("{UNASKED}: {object} of {from} to {to}"))
    }

    fn reset_fields(&self, version: &str) -> Option<&PathSet> {
        self.reset.get(version)
    }
}

fn set(fields: &Value) -> PathSet {
    PathSet::deserialize(fields).unwrap()
}

fn path(keys: &Value) -> Vec<PathElement> {
    let keys = keys.as_array().unwrap().iter();
    keys.map(|key| PathElement::parse(key.as_str().unwrap()).unwrap().unwrap()).collect()
}

/// Upstream's tests tell managers by one text.
fn manager(name: &str) -> FieldManager {
    FieldManager::new(name.to_owned(), ManagerOperation::Apply, "", String::new())
}

fn managers(recorded: &Value) -> FieldManagers {
    let owned = |(name, owned): (&String, &Value)| {
        let version = owned["version"].as_str().unwrap().to_owned();
        (manager(name), VersionedSet { version, set: set(&owned["set"]) })
    };
    recorded.as_object().unwrap().iter().map(owned).collect()
}

/// A schema in upstream's own form.
fn schema(types: &Value, root: &Value) -> Schema {
    let mut build = Build { atoms: Schema::free_atoms().into(), named: BTreeMap::new() };
    build.named.insert("__untyped_atomic_".to_owned(), Schema::UNTYPED);
    build.named.insert("__untyped_deduced_".to_owned(), Schema::DEDUCED);
    let types: Vec<&Value> = types.as_array().unwrap().iter().collect();
    for type_ in &types {
        let name = type_["name"].as_str().unwrap().to_owned();
        if !build.named.contains_key(&name) {
            build.named.insert(name, TypeRef(build.atoms.len()));
            build.atoms.push(SchemaAtom::default());
        }
    }
    for type_ in types {
        let place = build.named[type_["name"].as_str().unwrap()];
        if place != Schema::UNTYPED && place != Schema::DEDUCED {
            build.atoms[place.0] = build.atom(type_);
        }
    }
    // References that override a type copy it, so they come last.
    let root = build.type_of(root).unwrap();
    build.override_all();
    Schema::new(build.atoms, root)
}

struct Build {
    atoms: Vec<SchemaAtom>,
    named: BTreeMap<String, TypeRef>,
}

impl Build {
    fn override_all(&mut self) {
        let named = self.named.clone();
        for (name, place) in named {
            let Some((original, relation)) = name.split_once('\0') else { continue };
            let mut atom = self.atoms[self.named[original].0].clone();
            overridden(&mut atom, relation);
            self.atoms[place.0] = atom;
        }
    }

    fn type_of(&mut self, reference: &Value) -> Option<TypeRef> {
        if let Some(name) = reference["namedType"].as_str() {
            let Some(relation) = reference["elementRelationship"].as_str() else {
                return Some(self.named[name]);
            };
            let key = format!("{name}\0{relation}");
            if let Some(place) = self.named.get(&key) {
                return Some(*place);
            }
            self.atoms.push(SchemaAtom::default());
            let place = TypeRef(self.atoms.len() - 1);
            self.named.insert(key, place);
            return Some(place);
        }
        let forms = ["scalar", "list", "map"];
        if forms.iter().all(|form| reference[form].is_null()) {
            return None;
        }
        let mut atom = self.atom(reference);
        if let Some(relation) = reference["elementRelationship"].as_str() {
            overridden(&mut atom, relation);
        }
        self.atoms.push(atom);
        Some(TypeRef(self.atoms.len() - 1))
    }

    fn atom(&mut self, type_: &Value) -> SchemaAtom {
        let scalar = type_["scalar"].as_str().and_then(|scalar| match scalar {
            "numeric" => Some(ScalarType::Numeric),
            "string" => Some(ScalarType::String),
            "boolean" => Some(ScalarType::Boolean),
            "untyped" => Some(ScalarType::Any),
            // Some schemas are wrong on purpose: of such a type is no value.
            _ => None,
        });
        let list = Some(&type_["list"]).filter(|list| list.is_object()).map(|list| ListSchema {
            items: self.type_of(&list["elementType"]),
            atomic: list["elementRelationship"] == "atomic",
            keys: list["keys"]
                .as_array()
                .into_iter()
                .flatten()
                .map(|key| key.as_str().unwrap().into())
                .collect(),
        });
        let map = type_["map"].as_object().cloned().map(|map| {
            let map = Value::Object(map);
            let fields = map["fields"].as_array().cloned().unwrap_or_default();
            MapSchema {
                fields: fields
                    .iter()
                    .filter_map(|field| {
                        let type_ = self.type_of(&field["type"])?;
                        let default = Some(&field["default"]).filter(|d| !d.is_null()).cloned();
                        let name = field["name"].as_str().unwrap().into();
                        let field = FieldSchema { type_, default, max_bytes: None };
                        Some((name, field))
                    })
                    .collect(),
                values: self.type_of(&map["elementType"]),
                atomic: map["elementRelationship"] == "atomic",
            }
        });
        SchemaAtom { scalar, list, map, facts: SchemaFacts::default() }
    }
}

/// What a reference says of the type that it names.
fn overridden(atom: &mut SchemaAtom, relation: &str) {
    match (&mut atom.map, &mut atom.list) {
        (Some(map), _) => map.atomic = relation == "atomic",
        (None, Some(list)) => list.atomic = relation == "atomic",
        (None, None) => *atom = SchemaAtom::default(),
    }
}
