//! For any names of clusters, pools and users: no two clusters of a namespace get one name, or the
//! API server refuses the second.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::api::DynamicObject;
use proptest::{
    prelude::*,
    strategy::ValueTree,
    test_runner::{Config, TestRunner},
};
use serde_json::{Value, json};

use super::super::ALL;
use crate::{
    api::{V1ALPHA1, V1BETA1, names, scheme::Scheme},
    controller::{ObjectSettings, observe::ObservedCluster, ownership, resources},
    database::{Database, build_scheme},
    machinery::{decode::ParsedBody, served_kind::ServedKind},
};

/// Words that the names of objects are made of; names of people are made of them, too.
const WORDS: [&str; 12] = [
    "a",
    "b",
    "0",
    "pods",
    "nodes",
    "seeds",
    "client",
    "discovery",
    "user",
    "admin",
    "pilot",
    "ca",
];

fn word() -> impl Strategy<Value = String> {
    prop::collection::vec(prop::sample::select(&WORDS[..]), 1..4).prop_map(|words| words.join("-"))
}

/// A user's name, of which the name of a Secret cannot be made in each case.
fn user() -> impl Strategy<Value = String> {
    (word(), 0..4).prop_map(|(word, kind)| match kind {
        0 => word.to_uppercase(),
        1 => word.replace('-', "_"),
        _ => word,
    })
}

/// Names of a cluster, of its pools and of its users.
type Names = (String, BTreeSet<String>, BTreeSet<String>);

fn cluster() -> impl Strategy<Value = Names> {
    let pools = prop::collection::btree_set(word(), 1..3);
    let users = prop::collection::btree_set(user(), 0..3);
    (word(), pools, users)
}

/// Two clusters. The second is often named after the first and one of its pools or users, as far as
/// the name of that goes.
fn pair() -> impl Strategy<Value = (Names, Names)> {
    (cluster(), cluster(), any::<prop::sample::Index>(), any::<bool>()).prop_map(
        |(one, mut two, cut, after)| {
            let rest = one.1.iter().next().unwrap().clone();
            let rest = one
                .2
                .first()
                .filter(|_| one.2.len() == 2)
                .map_or(rest, |user| format!("user-{user}"));
            let cuts: Vec<usize> = rest.match_indices('-').map(|(at, _)| at).collect();
            if after && !cuts.is_empty() {
                let at = cuts[cut.index(cuts.len())];
                two.0 = format!("{}-{}", one.0, rest[..at].to_lowercase());
                two.1.insert(rest[at + 1..].to_lowercase());
            }
            (one, two)
        },
    )
}

fn body(kind: &dyn ServedKind, (name, pools, users): &Names) -> Value {
    let masters = json!(["master", "data", "ingest"]);
    let elasticsearch = kind.kind() == "ElasticsearchCluster";
    let pools: Vec<Value> = pools
        .iter()
        .map(|pool| {
            let mut pool = json!({"name": pool, "replicas": 2, "persistence": {"size": "1Gi"}});
            if elasticsearch {
                pool["roles"] = masters.clone();
            }
            pool
        })
        .collect();
    let users: Vec<Value> = users.iter().map(|user| json!({"name": user})).collect();
    json!({
        "apiVersion": kind.api_version(V1BETA1),
        "kind": kind.kind(),
        "metadata": {"name": name, "namespace": "default", "uid": name},
        "spec": {
            "version": if elasticsearch { "8.19.4" } else { "5.0.6" },
            "services": {"client": {"type": "ClusterIP"}},
            "security": {"mode": "Secure", "users": users, "network": {"policy": "Managed"}},
            "nodePools": pools,
        },
    })
}

fn hub(kind: &dyn ServedKind, names: &Names) -> Value {
    kind.decode(V1BETA1, ParsedBody::from(body(kind, names)), None).expect("it is well formed").hub
}

/// The names of all objects that are made for a cluster, of its pods' and their claims: from what the
/// controller builds, beside those that it looks for before it builds anything.
fn made(database: &Database, hub: &Value) -> BTreeSet<(String, String)> {
    let object: DynamicObject = serde_json::from_value(hub.clone()).unwrap();
    let settings = ObjectSettings {
        pilot_image: "navigator:1".into(),
        store_id: "store".into(),
        owner_references: false,
    };
    let desired = (database.controller.desired)(&object, &settings, None).unwrap();
    let observed = ObservedCluster::default();
    let mut made: BTreeSet<(String, String)> = ownership::required_objects(&desired)
        .into_iter()
        .map(|object| (object.kind.to_owned(), object.name))
        .collect();
    for object in resources::build_resources(&desired, &observed, &settings, |_| None) {
        let object = resources::PreparedObject::from(object);
        let is_known = !made.insert((object.resource.kind.clone(), object.name.clone()));
        assert!(is_known, "{} {:?} is not looked for", object.resource.kind, object.name);
    }
    for pool in &desired.pools {
        for ordinal in 0..3 {
            let claim = ownership::claim_name(&desired, &pool.set, ordinal);
            let kind = <PersistentVolumeClaim as k8s_openapi::Resource>::KIND;
            made.insert((kind.to_owned(), claim));
            made.insert(("Pod".to_owned(), names::pilot_name(&pool.set, ordinal)));
        }
    }
    made
}

fn is_refused(kind: &dyn ServedKind, new: &Value, old: Option<&Value>, other: &Value) -> bool {
    let name = |hub: &Value| hub["metadata"]["name"].as_str().unwrap().to_owned();
    let is_beside = kind.is_beside().expect("clusters are judged beside each other");
    is_beside(&name(new), &name(other))
        && !kind.validate_beside(V1BETA1, new, old, other).errors.is_empty()
}

#[test]
fn the_objects_of_no_two_databases_have_names_in_common() {
    let begins = |names: &str| format!("{names}-");
    for (index, one) in ALL.iter().enumerate() {
        for other in &ALL[index + 1..] {
            let [one, other] = [one, other].map(|database| database.controller.names);
            let prefixes = [one, other].map(|names| begins(names.prefix));
            assert!(
                !prefixes[0].starts_with(&prefixes[1]) && !prefixes[1].starts_with(&prefixes[0])
            );
            assert_ne!((one.leader_lease)("a"), (other.leader_lease)("a"));
        }
    }
}

mod searches {
    use super::*;

    #[test]
    fn no_two_clusters_get_one_name_unless_the_second_write_is_refused() {
        let scheme: &Scheme = build_scheme(ALL);
        let mut runner = TestRunner::new(Config::default());
        let mut refused = [0, 0];
        for (index, database) in ALL.iter().cycle().take(10_000).enumerate() {
            let plural = database.controller.names.plural;
            let kind = scheme.by_plural(plural).unwrap();
            let (one, two) = pair().new_tree(&mut runner).unwrap().current();
            if one.0 == two.0 {
                continue;
            }
            let [first, second] = [&one, &two].map(|names| hub(kind, names));
            let [of_first, of_second] = [&first, &second].map(|hub| made(database, hub));
            let shared: Vec<_> = of_first.intersection(&of_second).collect();
            let both =
                [is_refused(kind, &first, None, &second), is_refused(kind, &second, None, &first)];
            assert_eq!(both, [!shared.is_empty(); 2], "{one:?} and {two:?} share {shared:?}");
            refused[index % 2] += usize::from(both[0]);
            if both[0] {
                let warned = kind.validate_beside(V1ALPHA1, &first, None, &second);
                assert!(warned.errors.is_empty() && !warned.warnings.is_empty());
                // What a stored cluster needs already is not judged again.
                assert!(!is_refused(kind, &first, Some(&first), &second));
                let mut grown = first.clone();
                grown["spec"]["nodePools"].as_array_mut().unwrap().truncate(1);
                grown["spec"]["security"]["users"] = json!([]);
                let least = made(database, &grown);
                let had = least.intersection(&of_second).count();
                let adds = had < shared.len();
                assert_eq!(
                    is_refused(kind, &first, Some(&grown), &second),
                    adds,
                    "{one:?} {two:?}"
                );
            }
        }
        assert!(refused.iter().all(|refused| *refused > 300), "{refused:?}");
    }
}
