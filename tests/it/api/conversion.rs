//! Nothing is lost between the versions: identities, the edit law, and what the generators reach.

use std::{cell::RefCell, collections::BTreeMap, fmt::Debug};

use navigator::{
    api::{NAVIGATOR, V1ALPHA1, V1BETA1, names::annotation, schema},
    machinery::{decode::ParsedBody, schema::REF_PREFIX, served_kind::ServedKind},
};
use proptest::{
    collection, num,
    test_runner::{Config, RngAlgorithm, TestCaseError, TestRng, TestRunner},
};
use serde::Serialize;
use serde_json::{Map, Value, json};

use super::generate::{self, Tape, older};

use crate::scheme;

/// Cases of each property.
const CASES: u32 = 4_000;
/// Cases of each property that goes through JSON, schemas and the annotation, which costs more.
const JSON_CASES: u32 = 400;
/// Words of a tape: enough for the largest object.
const WORDS: usize = 96;

/// Runs a property over random tapes, others each time; a failure names the seed that repeats it.
fn property(name: &str, cases: u32, holds: impl Fn(&mut Tape<'_>) -> Result<(), String>) {
    seeded(crate::support::seed::seed(), name, cases, holds);
}

fn seeded(seed: u64, name: &str, cases: u32, holds: impl Fn(&mut Tape<'_>) -> Result<(), String>) {
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    let config = Config { cases, failure_persistence: None, ..Config::default() };
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &bytes);
    let mut runner = TestRunner::new_with_rng(config, rng);
    let tapes = collection::vec(num::u64::ANY, WORDS);
    let outcome =
        runner.run(&tapes, |words| holds(&mut Tape::new(&words)).map_err(TestCaseError::fail));
    if let Err(error) = outcome {
        panic!("{name} fails with NAVIGATOR_TEST_SEED={seed}: {error}");
    }
}

fn same<T: PartialEq + Debug + Serialize>(found: &T, expected: &T) -> Result<(), String> {
    if found == expected {
        return Ok(());
    }
    let text = |value: &T| serde_json::to_string_pretty(value).unwrap();
    Err(format!("found {}\nexpected {}", text(found), text(expected)))
}

/// The three laws for a kind: hub → older → hub, older → hub → older, and edits.
macro_rules! laws {
    ($kind:ident in $room:ident, $plural:literal, $edit:ident, $expected_surplus:expr) => {
        mod $room {
            use super::*;

            #[test]
            fn hub_to_older_and_back_is_identity() {
                property(concat!(stringify!($kind), " hub"), CASES, |tape| {
                    let hub = generate::$kind(tape);
                    let (older, surplus) = convert::$kind::project(hub.clone());
                    same(&convert::$kind::lift(older, surplus), &hub)
                });
            }

            #[test]
            fn older_to_hub_and_back_is_identity() {
                property(concat!(stringify!($kind), " older"), CASES, |tape| {
                    let object = older::$kind(tape);
                    let none = <_>::default();
                    let hub = convert::$kind::lift(object.clone(), none);
                    let (found, surplus) = convert::$kind::project(hub);
                    same(&found, &object)?;
                    same(&surplus, &<_>::default())
                });
            }

            #[test]
            fn an_edit_changes_itself_and_the_surplus_that_is_tied_to_it() {
                property(concat!(stringify!($kind), " edit"), CASES, |tape| {
                    let hub = generate::$kind(tape);
                    let (mut edited, surplus) = convert::$kind::project(hub);
                    older::$edit(tape, &mut edited);
                    let expected: fn(Value, &Value) -> Value = $expected_surplus;
                    let expected = expected(json!(surplus), &json!(edited));
                    let lifted = convert::$kind::lift(edited.clone(), surplus);
                    let (found, surplus) = convert::$kind::project(lifted);
                    same(&found, &edited)?;
                    same(&json!(surplus), &expected)
                });
            }

            /// An edit through JSON, as a client would write it.
            #[test]
            fn a_written_edit_reads_back_as_written() {
                property(concat!(stringify!($kind), " written"), JSON_CASES, |tape| {
                    let kind = super::kind($plural);
                    let hub = stored(kind, &json!(generate::$kind(tape)))?;
                    let shown = kind.encode(V1ALPHA1, &hub);
                    let mut edited = serde_json::from_value(shown).unwrap();
                    older::$edit(tape, &mut edited);
                    let mut expected = json!(edited);
                    expected["apiVersion"] = NAVIGATOR.api_version(V1ALPHA1).into();
                    expected["kind"] = kind.kind().into();
                    let body = ParsedBody::from(expected.clone());
                    let decoded = kind
                        .decode(V1ALPHA1, body.clone(), Some(&hub))
                        .map_err(|error| format!("{error:?}"))?;
                    let mut found = kind.encode(V1ALPHA1, &decoded.hub);
                    without_surplus(&mut found);
                    without_surplus(&mut expected);
                    same(&found, &expected)
                });
            }
        }
    };
}

/// The two functions of each kind, and what the older form cannot say.
mod convert {
    use navigator::api::{
        conversion::{self, cluster},
        v1alpha1, v1beta1,
    };

    pub(super) mod elasticsearch {
        pub(in super::super) use super::cluster::{
            lift_cluster as lift, project_cluster as project,
        };
    }

    pub(super) mod cassandra {
        pub(in super::super) use super::cluster::{
            lift_cluster as lift, project_cluster as project,
        };
    }

    pub(super) mod pilot {
        use super::{conversion, v1alpha1, v1beta1};
        use crate::scheme;

        use conversion::pilot::PilotSurplus;

        pub(in super::super) fn project(hub: v1beta1::Pilot) -> (v1alpha1::Pilot, PilotSurplus) {
            conversion::pilot::project_pilot(hub, scheme().schemas().parts()).unwrap()
        }

        pub(in super::super) fn lift(
            older: v1alpha1::Pilot,
            surplus: PilotSurplus,
        ) -> v1beta1::Pilot {
            conversion::pilot::lift_pilot(older, surplus, scheme().schemas().parts()).unwrap()
        }
    }
}

laws!(elasticsearch in elasticsearch_clusters, "elasticsearchclusters", edit_elasticsearch, cluster_surplus);
laws!(cassandra in cassandra_clusters, "cassandraclusters", edit_cassandra, cluster_surplus);
laws!(pilot in pilots, "pilots", edit_pilot, pilot_surplus);

fn kind(plural: &str) -> &'static dyn ServedKind {
    scheme().by_plural(plural).unwrap()
}

fn stored(kind: &dyn ServedKind, object: &Value) -> Result<Value, String> {
    let mut object = object.clone();
    object["apiVersion"] = NAVIGATOR.api_version(V1BETA1).into();
    kind.decode_stored(object.clone()).map_err(|error| format!("{error:?}"))
}

fn without_surplus(object: &mut Value) {
    if let Some(Value::Object(annotations)) = object["metadata"].get_mut("annotations") {
        annotations.remove(annotation::SURPLUS);
        if annotations.is_empty() {
            remove(&mut object["metadata"], "annotations");
        }
    }
}

/// What of a cluster's surplus outlives an edit, told from the two JSON texts alone.
fn cluster_surplus(mut surplus: Value, edited: &Value) -> Value {
    let spec = &edited["spec"];
    for image in ["image", "pilotImage"] {
        let before = &surplus[image];
        let same = |field: &str| before[field] == spec[image][field];
        if !same("repository") || !same("tag") {
            remove(&mut surplus, image);
        }
    }
    let pools = spec["nodePools"].as_array().cloned().unwrap_or_default();
    retain(&mut surplus, "nodePools", |name, pool_surplus| {
        let Some(pool) = pools.iter().find(|pool| pool["name"] == *name) else { return false };
        if pool.get("persistence").is_none() {
            remove(pool_surplus, "persistence");
        }
        pool_surplus != &json!({})
    });
    let plugins = spec["plugins"].as_array().cloned().unwrap_or_default();
    retain(&mut surplus, "plugins", |name, _| plugins.iter().any(|plugin| plugin == name));
    surplus
}

/// What of a Pilot's surplus outlives an edit, told from the two JSON texts alone.
fn pilot_surplus(mut surplus: Value, edited: &Value) -> Value {
    let spec = &edited["spec"];
    if spec["decommission"] == true {
        remove(&mut surplus, "phase");
    }
    for block in ["elasticsearch", "cassandra"] {
        if spec.get(block).is_none() {
            remove(&mut surplus, block);
        } else {
            remove(&mut surplus, "nodePool");
        }
    }
    let plugins = spec["elasticsearch"]["plugins"].as_array().cloned().unwrap_or_default();
    if let Some(block) = surplus.get_mut("elasticsearch") {
        retain(block, "plugins", |name, _| plugins.iter().any(|plugin| plugin["name"] == *name));
        if block == &json!({}) {
            remove(&mut surplus, "elasticsearch");
        }
    }
    surplus
}

fn remove(object: &mut Value, field: &str) {
    object.as_object_mut().unwrap().remove(field);
}

fn retain(object: &mut Value, field: &str, mut keep: impl FnMut(&str, &mut Value) -> bool) {
    let Some(Value::Object(map)) = object.get_mut(field) else { return };
    map.retain(|name, value| keep(name, value));
    if map.is_empty() {
        remove(object, field);
    }
}

type Make = fn(&mut Tape<'_>) -> Value;

const HUBS: [(&str, Make); 3] = [
    ("elasticsearchclusters", |tape| json!(generate::elasticsearch(tape))),
    ("cassandraclusters", |tape| json!(generate::cassandra(tape))),
    ("pilots", |tape| json!(generate::pilot(tape))),
];

/// Through the whole machinery: bytes of a dump of the older form, put back as a new object or
/// as an update, are the object that was dumped.
#[test]
fn a_dump_of_the_older_form_puts_back_the_object() {
    for (plural, make) in HUBS {
        let kind = scheme().by_plural(plural).unwrap();
        property(&format!("{plural} dump"), JSON_CASES, |tape| {
            let hub = stored(kind, &make(tape))?;
            let dump = ParsedBody::from(kind.encode(V1ALPHA1, &hub));
            for stored in [None, Some(&hub)] {
                let decoded = kind
                    .decode(V1ALPHA1, dump.clone(), stored)
                    .map_err(|error| format!("{error:?}"))?;
                same(&decoded.strict, &Vec::new())?;
                same(&decoded.hub, &hub)?;
            }
            let body = ParsedBody::from(kind.encode(V1BETA1, &hub));
            let decoded =
                kind.decode(V1BETA1, body.clone(), None).map_err(|error| format!("{error:?}"))?;
            same(&decoded.hub, &hub)
        });
    }
}

/// A generator that never sets a field proves nothing about it.
#[test]
fn generators_set_every_field_in_five_percent_of_the_cases() {
    const OLDER: [(&str, Make); 3] = [
        ("elasticsearchclusters", |tape| json!(older::elasticsearch(tape))),
        ("cassandraclusters", |tape| json!(older::cassandra(tape))),
        ("pilots", |tape| json!(older::pilot(tape))),
    ];
    const SAMPLE: u32 = 2_000;
    let mut rare = Vec::new();
    for (version, makers) in [(V1BETA1, HUBS), (V1ALPHA1, OLDER)] {
        for (plural, make) in makers {
            let kind = scheme().by_plural(plural).unwrap();
            let definitions = scheme().definitions(version);
            let root = &definitions[&schema::definition_name(version, kind.kind())];
            let counts = RefCell::new(BTreeMap::new());
            for field in ["spec", "status"] {
                fields(definitions, &root["properties"][field], field, &mut counts.borrow_mut());
            }
            // Always the same cases: a field near the limit would fail in some runs only.
            seeded(0, &format!("{plural} {version} coverage"), SAMPLE, |tape| {
                let object = make(tape);
                for (path, count) in counts.borrow_mut().iter_mut() {
                    *count += u32::from(is_set(&object, path));
                }
                Ok(())
            });
            for (path, count) in counts.into_inner() {
                if count < SAMPLE / 20 {
                    rare.push(format!("{version} {plural} {path}: {count} of {SAMPLE}"));
                }
            }
        }
    }
    assert!(rare.is_empty(), "fields that are hardly ever generated:\n{}", rare.join("\n"));
}

/// Paths of all fields of our own types below a schema; `[]` is any item, `{}` any value.
pub(super) fn fields(
    definitions: &Map<String, Value>,
    schema: &Value,
    path: &str,
    found: &mut BTreeMap<String, u32>,
) {
    found.insert(path.to_owned(), 0);
    if let Some(target) = schema["$ref"].as_str() {
        if target.contains("com.jetstack.") && !target.ends_with(".PodTemplate") {
            let definition = &definitions[target.trim_start_matches(REF_PREFIX)];
            fields(definitions, definition, path, found);
        }
        return;
    }
    for (name, property) in schema["properties"].as_object().into_iter().flatten() {
        // A finished operation has no steps.
        fields(definitions, property, &format!("{path}.{name}"), found);
    }
    if let Some(items) = schema.get("items") {
        fields(definitions, items, &format!("{path}.[]"), found);
    }
    if let Some(values) = schema.get("additionalProperties") {
        fields(definitions, values, &format!("{path}.{{}}"), found);
    }
}

pub(super) fn is_set(value: &Value, path: &str) -> bool {
    let (name, rest) = path.split_once('.').map_or((path, None), |(name, rest)| (name, Some(rest)));
    let below = |value: &Value| rest.is_none_or(|rest| is_set(value, rest));
    match (name, value) {
        ("[]", Value::Array(items)) => items.iter().any(below),
        ("{}", Value::Object(map)) => map.values().any(below),
        (name, value) => value.get(name).is_some_and(below),
    }
}
