//! Clusters whose names collide, in one namespace and in another, with claims and objects of other people: no
//! cluster writes or deletes what is not its own, in whatever order things happen. The API is scripted.

use rand::{Rng, SeedableRng, rngs::StdRng};
use serde_json::{Value, json};

use super::{
    api::{Id, Server, id, in_namespace},
    harness::Harness,
};
use crate::{
    api::names::annotation::CLUSTER_UID, controller::testing::example::EXAMPLE,
    testing::search_seeds,
};

/// A cluster: its namespace, its name, and the names of its pools.
type Collision = (&'static str, &'static str, [&'static str; 2]);

/// Set, pods and claims of `shop` with pool `a-b` and of `shop-a` with pool `b` have the same names; those
/// of the other namespace have them, too, and conflict with none.
const CLUSTERS: [Collision; 3] = [
    ("default", "shop", ["a-b", "c"]),
    ("default", "shop-a", ["b", "d"]),
    (OTHER, "shop", ["a-b", "c"]),
];
const OTHER: &str = "other";
const STEPS: usize = 120;

fn below(random: &mut StdRng, end: usize) -> usize {
    random.random_range(0..end)
}

fn cluster_id((namespace, name, _): Collision) -> Id {
    id(EXAMPLE.names.plural, &in_namespace(namespace, name))
}

fn make(server: &mut Server, cluster: Collision, random: &mut StdRng) {
    let (namespace, name, pools) = cluster;
    let mut pool = |name: &&str| {
        json!({
            "name": name,
            "replicas": (1 + below(random, 2)),
            "persistence": {
                "size": "1Gi",
                "retention": {"whenDeleted": (["Delete", "Retain"][below(random, 2)])},
            },
        })
    };
    let pools: Vec<Value> = pools.iter().map(&mut pool).collect();
    let body = json!({
        "apiVersion": crate::api::v1beta1::API_VERSION,
        "kind": EXAMPLE.names.kind,
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"version": "5.0.6", "nodePools": pools},
    });
    server.add(&cluster_id(cluster), body);
}

/// How often something happened in all walks.
#[derive(Debug, Default)]
struct Seen {
    ready: [usize; 3],
    conflicts: [usize; 3],
    deleted: usize,
}

/// What a person, or another client, does.
fn meddle(server: &mut Server, random: &mut StdRng) {
    let cluster = CLUSTERS[below(random, CLUSTERS.len())];
    let cluster_id = cluster_id(cluster);
    let pool = below(random, 2);
    let exists = server.objects.contains_key(&cluster_id);
    match below(random, 9) {
        0 | 1 if exists => server.delete(&cluster_id),
        0..=3 if !exists => make(server, cluster, random),
        2 if exists => server.edit(&cluster_id, |cluster| {
            let pools = cluster["spec"]["nodePools"].as_array_mut().unwrap();
            let at = pool % pools.len();
            pools[at]["replicas"] = json!(below(random, 3));
        }),
        3 if exists => server.edit(&cluster_id, |found| {
            let pools = found["spec"]["nodePools"].as_array_mut().unwrap();
            if pools.len() == 2 {
                pools.remove(pool);
            } else {
                let name = cluster.2.iter().find(|name| pools[0]["name"] != **name).unwrap();
                pools.push(json!({"name": name, "replicas": 1, "persistence": {"size": "1Gi"}}));
            }
        }),
        // Somebody edits the marks of a claim.
        4 => {
            let claims: Vec<_> = server
                .objects
                .keys()
                .filter(|(plural, _)| plural == "persistentvolumeclaims")
                .cloned()
                .collect();
            if let Some(claim) = claims.get(below(random, claims.len().max(1))) {
                let other = CLUSTERS[below(random, CLUSTERS.len())].1;
                let how = below(random, 4);
                server.edit(claim, |claim| {
                    let meta = &mut claim["metadata"];
                    match how {
                        0 => meta["annotations"] = json!({}),
                        1 => meta["labels"] = json!({}),
                        2 => meta["labels"][EXAMPLE.names.cluster_label] = json!(other),
                        _ => meta["annotations"] = json!({CLUSTER_UID: "gone"}),
                    }
                });
            }
        }
        // An object of another client bears a name that both need.
        5 => {
            let (plural, kind, name) = [
                ("services", "Service", "ex-shop-a-b-pods"),
                ("persistentvolumeclaims", "PersistentVolumeClaim", "example-data-ex-shop-a-b-0"),
                ("statefulsets", "StatefulSet", "ex-shop-a-b"),
            ][below(random, 2)];
            if !server.objects.contains_key(&id(plural, name)) {
                let body = json!({
                    "apiVersion": "v1", "kind": kind, "spec": {},
                    "metadata": {"name": name, "namespace": "default"},
                    "status": {"phase": "Bound"},
                });
                server.add(&id(plural, name), body);
            } else if server.objects[&id(plural, name)]["metadata"]["labels"].is_null() {
                server.delete(&id(plural, name));
            }
        }
        _ => {}
    }
}

async fn walk(seed: u64, seen: &mut Seen) {
    let mut random = StdRng::seed_from_u64(seed);
    let harness = Harness::new(0);
    harness.api.server().delete(&id(EXAMPLE.names.plural, "shop"));
    let other = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": OTHER}});
    harness.api.server().add(&id("namespaces", OTHER), other);
    let clusters = CLUSTERS.map(|(namespace, name, _)| harness.elsewhere(namespace, name));
    let mut old = harness.caches();
    let mut log = Vec::new();
    for _ in 0..STEPS {
        let choice = below(&mut random, 10);
        let before: Vec<_> = harness.api.server().objects.keys().cloned().collect();
        match choice {
            0..=2 => meddle(&mut harness.api.server(), &mut random),
            3 | 4 => harness.kubelet(),
            5 => old = harness.caches(),
            // A cache may be late.
            6 => drop(clusters[below(&mut random, CLUSTERS.len())].reconcile_with(&old).await),
            _ => drop(clusters[below(&mut random, CLUSTERS.len())].reconcile().await),
        }
        log.push(choice);
        let server = harness.api.server();
        assert!(server.trespasses.is_empty(), "seed {seed}: {:?} after {log:?}", server.trespasses);
        let gone = |id: &&(String, String)| {
            id.0 == "persistentvolumeclaims" && !server.objects.contains_key(*id)
        };
        seen.deleted += before.iter().filter(gone).count() * usize::from(choice > 5);
        for (at, cluster) in CLUSTERS.into_iter().enumerate() {
            let Some(cluster) = server.objects.get(&cluster_id(cluster)) else { continue };
            let conditions = cluster["status"]["conditions"].as_array();
            let ready = conditions.into_iter().flatten().find(|one| one["type"] == "Ready");
            let Some(ready) = ready else { continue };
            seen.ready[at] += usize::from(ready["status"] == "True");
            seen.conflicts[at] += usize::from(ready["reason"] == "NameConflict");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn the_password_of_another_clusters_user_is_not_taken_for_the_administrators() {
    let harness = Harness::new(1);
    let secure = |users: Value| json!({"mode": "Secure", "users": users});
    harness.api.server().edit(&id(EXAMPLE.names.plural, "shop"), |cluster| {
        cluster["spec"]["security"] = secure(json!([{"name": "admin"}]));
    });
    harness.settle().await;
    assert!(!harness.object("secrets", "ex-shop-user-admin").is_null());
    let other = harness.beside("shop-user");
    let mut cluster = harness.object(EXAMPLE.names.plural, "shop");
    cluster["metadata"] = json!({"name": "shop-user", "namespace": "default"});
    cluster["spec"]["security"] = secure(json!([]));
    cluster.as_object_mut().unwrap().remove("status");
    harness.api.server().add(&id(EXAMPLE.names.plural, "shop-user"), cluster);
    other.settle().await;
    let found = other.object(EXAMPLE.names.plural, "shop-user");
    let conditions = found["status"]["conditions"].as_array().unwrap();
    let ready = conditions.iter().find(|one| one["type"] == "Ready").unwrap();
    assert_eq!(ready["reason"], "NameConflict", "{ready}");
    let message = ready["message"].as_str().unwrap();
    assert!(
        message.contains("\"ex-shop-user-admin\"") && message.contains("\"shop\""),
        "{message}"
    );
    for made in ["ex-shop-user-internode-ca", "ex-shop-user-pilot"] {
        assert!(harness.object("secrets", made).is_null(), "{made} is not made");
    }
    assert!(harness.api.server().trespasses.is_empty());
}

mod searches {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn no_cluster_writes_or_deletes_what_is_not_its_own() {
        let mut seen = Seen::default();
        for seed in search_seeds(60) {
            walk(seed, &mut seen).await;
        }
        let Seen { ready, conflicts, deleted } = &seen;
        let enough = ready.iter().chain(&conflicts[..2]).all(|count| *count > 50) && *deleted > 10;
        assert!(enough, "{seen:?}");
    }
}
