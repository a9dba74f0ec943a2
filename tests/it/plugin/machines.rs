//! `kubectl navigator machines`; the test plays the coordinator.

use serde_json::{Value, json};

use super::answers::Person;

const RUNS: &str =
    "/apis/provision.containership.io/v3/namespaces/containership-core/clusterupgrades";

fn run(created: &str, spec: &Value, status: &Value) -> Value {
    json!({
        "apiVersion": "provision.containership.io/v3", "kind": "ClusterUpgrade",
        "metadata": {"namespace": "containership-core", "creationTimestamp": created},
        "spec": spec, "status": status,
    })
}

#[tokio::test]
async fn upgrades_of_machines_are_shown_with_what_they_wait_for() {
    let person = Person::new().await;
    let kube = &person.bed.world.kube;
    person.says(&["machines"]).await.with(0, "", "There are no upgrades of machines.");

    let reboot = run(
        "2026-01-01T00:00:00Z",
        &json!({"type": "reboot"}),
        &json!({"phase": "Success", "done": 2, "total": 2, "progress": "2/2"}),
    );
    kube.put(RUNS, "night", reboot);
    let well = person.says(&["machines"]).await.with(0, "night     reboot   Success   2/2", "");
    assert!(!well.out.contains("WAITS-FOR") && !well.out.contains("TARGET"), "{well:?}");

    let status = json!({
        "phase": "InProgress", "currentNode": "m-2", "progress": "1/3",
        "waitsFor": [{
            "machine": "m-2", "cluster": "db/cassandracluster/demo", "pilot": "db/cass-demo-ring-0",
            "predicate": "PeersUp", "message": "ring-1 is down", "since": "2026-01-01T00:00:00Z",
        }],
    });
    let spec = json!({"targetVersion": "v1.34.4"});
    kube.put(RUNS, "to-34", run("2026-01-02T00:00:00Z", &spec, &status));
    let waits = person.says(&["machines"]).await.with(3, "UPGRADE", "");
    let lines: Vec<Vec<&str>> =
        waits.out.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(lines[1][..3], ["night", "reboot", "Success"], "the oldest stands first");
    assert_eq!(lines[2][..5], ["to-34", "kubernetes", "v1.34.4", "InProgress", "1/3"]);
    assert_eq!(lines[2][5], "m-2");
    assert_eq!(
        lines[5][..5],
        ["to-34", "m-2", "db/cassandracluster/demo", "db/cass-demo-ring-0", "PeersUp"]
    );
    assert!(waits.out.trim_end().ends_with("ring-1 is down"), "{waits:?}");

    let names = person.says(&["machines", "-o", "name"]).await;
    let all = "clusterupgrade.provision.containership.io/night\n\
               clusterupgrade.provision.containership.io/to-34\n";
    assert_eq!(names.with(3, "", "").out, all);
    let json = person.says(&["machines", "-o", "json"]).await.with(3, "", "");
    let json: Value = serde_json::from_str(&json.out).unwrap();
    assert_eq!(json["items"][1]["metadata"]["name"], "to-34");
}
