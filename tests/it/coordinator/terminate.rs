//! The cluster manager is taken away: by its own id, in order, though it is killed after each of its
//! writes and an agent says nothing, and nothing of a database is touched.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokio::time::sleep;

use super::{
    databases::PILOTS,
    fleet::{Fleet, PATIENCE, RUNS, node},
    process::Coordinator,
    wire::Course,
};

const CORE: &str = "/api/v1/namespaces/containership-core";
const KINDS: &str = "/apis/containership.io/v3/namespaces/containership-core";
const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
const ASK: &str = "containership.io/terminate";
const PROGRESS: &str = "containership.io/terminate-progress";
const FLAGS: [&str; 2] = ["--registries", "--allow-terminate"];

/// Kills the coordinator after each of its writes and starts another one, until something holds.
async fn kill_until(
    fleet: &mut Fleet,
    what: &str,
    mut holds: impl AsyncFnMut(&Fleet) -> bool,
) -> Vec<String> {
    let (begun, mut killed) = (Instant::now(), Vec::new());
    let mut coordinator = Coordinator::only(&fleet.wire.url, &FLAGS);
    loop {
        tokio::select! {
            write = fleet.wire.told() => {
                coordinator.kill();
                killed.push(write);
                coordinator = Coordinator::only(&fleet.wire.url, &FLAGS);
            }
            () = sleep(Duration::from_millis(50)) => {
                if holds(fleet).await {
                    return killed;
                }
                let tail = &killed[killed.len().saturating_sub(10)..];
                assert!(begun.elapsed() < PATIENCE, "{what}: {:?}\n{tail:#?}", progress(fleet).await);
            }
        }
    }
}

async fn progress(fleet: &Fleet) -> Value {
    let namespace = fleet.get(CORE).await.unwrap();
    let text = namespace["metadata"]["annotations"][PROGRESS].as_str();
    text.map_or(Value::Null, |text| serde_json::from_str(text).unwrap())
}

async fn annotate(fleet: &Fleet, key: &str, value: Value) {
    fleet.patch(CORE, &json!({"metadata": {"annotations": {key: value}}})).await;
}

/// What there is of the database.
async fn of_database(fleet: &Fleet) -> (Option<Value>, Vec<Value>) {
    let pod = fleet.get("/api/v1/namespaces/shop/pods/cass-demo-a-0").await;
    (pod, fleet.list(PILOTS).await)
}

#[tokio::test]
async fn the_cluster_manager_takes_itself_away_though_it_is_killed_after_each_write() {
    let mut fleet = Fleet::new(&["p1", "m2"], Course::Open).await;
    fleet.wire = fleet.limited_wire(Course::Told).await;
    fleet.clear_objects().await;
    fleet.make_database("m2").await;
    let before = of_database(&fleet).await;
    let meta = |name: &str| json!({"name": name});
    let object = |kind: &str, name: &str, spec: Value| {
        json!({
            "apiVersion": "containership.io/v3", "kind": kind, "metadata": meta(name), "spec": spec,
        })
    };
    let users = format!("{KINDS}/users");
    fleet.make(&users, &object("User", "anne", json!({"ssh_keys": []}))).await;
    let label = json!({"key": "cluster.containership.io/tier", "value": "gold"});
    fleet.make(&format!("{KINDS}/clusterlabels"), &object("ClusterLabel", "tier", label)).await;
    let registry = json!({
        "serveraddress": "registry.example", "credentials": {"username": "a", "password": "b"},
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "shop"}},
    });
    fleet.make(&format!("{KINDS}/registries"), &object("Registry", "ours", registry)).await;
    fleet.ask_for("later", json!({"paused": true})).await;
    let secrets = "/api/v1/namespaces/shop/secrets";
    let foreign =
        json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "of-a-person"}});
    fleet.make(secrets, &foreign).await;
    kill_until(&mut fleet, "all is there", async |fleet| {
        let machine = fleet.get(&node("m2")).await.unwrap();
        let labelled = machine["metadata"]["labels"]["cluster.containership.io/tier"] == "gold";
        labelled && fleet.copies().await.len() == 3
    })
    .await;

    // Another cluster's id does nothing, and neither does any other word.
    annotate(&fleet, ASK, json!("22222222-0000-4000-8000-000000000002")).await;
    let coordinator = Coordinator::only(&fleet.wire.url, &FLAGS);
    let note = fleet.told("TerminateRefused", "22222222-0000-4000-8000-000000000002").await;
    let system = fleet.get("/api/v1/namespaces/kube-system").await.unwrap();
    let cluster = system["metadata"]["uid"].as_str().unwrap().to_owned();
    assert!(note.contains(&cluster), "{note}");
    coordinator.kill();
    assert_eq!(progress(&fleet).await, Value::Null);
    // Nor does the right one, where it is not allowed.
    annotate(&fleet, ASK, json!(cluster)).await;
    let hub = ["--hub=http://127.0.0.1:1", "--organization-id=o", "--cluster-id=c"];
    let coordinator = Coordinator::only(&fleet.wire.url, &hub);
    fleet.told("TerminateRefused", "without --allow-terminate").await;
    coordinator.kill();
    assert_eq!(progress(&fleet).await, Value::Null);
    assert_eq!((fleet.list(&users).await.len(), fleet.copies().await.len()), (1, 3));

    // The word is taken back while agents are waited for: nothing is gone yet.
    let step = async |fleet: &Fleet| progress(fleet).await["step"].clone();
    kill_until(&mut fleet, "it began", async |fleet| step(fleet).await == "Agents").await;
    annotate(&fleet, ASK, Value::Null).await;
    kill_until(&mut fleet, "it was taken back", async |fleet| step(fleet).await.is_null()).await;
    assert_eq!((fleet.list(&users).await.len(), fleet.copies().await.len()), (1, 3));

    // And now to the end. One agent says that its keys are gone; the other one never does.
    annotate(&fleet, ASK, json!(cluster)).await;
    let said = json!({
        "at": "2026-01-01T00:00:00Z", "keys": "", "users": "", "cleaned": cluster,
    });
    let mut hastened = false;
    let killed = kill_until(&mut fleet, "it ended", async |fleet| {
        let mut now = progress(fleet).await;
        if now["step"] == "Agents" && !hastened {
            let said = json!({"containership.io/agent": said.to_string()});
            fleet.patch(&node("m2"), &json!({"metadata": {"annotations": said}})).await;
            // As if a minute went by.
            if now["waits"].as_str().is_some_and(|waits| waits.ends_with("gone on p1")) {
                assert_eq!(fleet.list(&users).await.len(), 1, "nothing goes before the keys");
                now["since"] = json!("2026-01-01T00:00:00Z");
                annotate(fleet, PROGRESS, json!(now.to_string())).await;
                hastened = true;
            }
        }
        now["step"] == "Done"
    })
    .await;
    println!("killed after {} writes", killed.len());
    assert!(killed.len() > 15, "{killed:#?}");
    assert_eq!(progress(&fleet).await["silent"], "p1");

    assert_eq!(fleet.copies().await, [""; 0]);
    assert!(fleet.get(&format!("{secrets}/of-a-person")).await.is_some());
    for definition in fleet.list(DEFINITIONS).await {
        let name = definition["metadata"]["name"].as_str().unwrap();
        assert!(!name.ends_with("containership.io"), "{name}");
    }
    assert_eq!(fleet.get(RUNS).await, None);
    for machine in ["p1", "m2"] {
        let found = fleet.get(&node(machine)).await.unwrap();
        assert!(found["metadata"]["labels"].get("cluster.containership.io/tier").is_none());
        fleet.is_clean(machine, false).await;
    }
    assert_eq!(of_database(&fleet).await, before, "nothing of a database was touched");
    // In order: labels and registries, accounts, the rest, definitions.
    let at = |part: &str| {
        let found =
            killed.iter().position(|write| write.starts_with("DELETE") && write.contains(part));
        found.unwrap_or_else(|| panic!("{part}: {killed:#?}"))
    };
    let order =
        ["/registries/", "/serviceaccounts/", "/users/", "/customresourcedefinitions/"].map(at);
    assert!(order.is_sorted(), "{killed:#?}");
    for key in [ASK, PROGRESS] {
        annotate(&fleet, key, Value::Null).await;
    }
}
