//! `kubectl navigator drain` over our real API server; the test plays Kubernetes and the controller.

use std::time::Duration;

use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};

use super::answers::Person;

const NODE: &str = "/api/v1/nodes";
const PODS: &str = "/api/v1/namespaces/db/pods";
const LEAVE: &str = "navigator.jetstack.io/leave";
const LEAVE_WAITS: &str = "navigator.jetstack.io/leave-waits";

/// A cluster of three nodes, of which the first two are on machine m-3.
async fn person() -> Person {
    let person = Person::new().await;
    person.cluster("demo", 3).await;
    for (node, machine) in [(0, "m-3"), (1, "m-3"), (2, "m-4")] {
        let pod = json!({
            "metadata": {"namespace": "db", "uid": format!("uid-{node}")},
            "spec": {"nodeName": machine, "containers": []}, "status": {"phase": "Running"},
        });
        person.bed.world.kube.put(PODS, &format!("cass-demo-ring-{node}"), pod);
    }
    for machine in ["m-3", "m-4", "m-5"] {
        person.bed.world.kube.put(NODE, machine, json!({"spec": {}}));
    }
    person
}

async fn annotation(person: &Person, node: u32, key: &str) -> Option<String> {
    let pilot = person.bed.pilot(&format!("cass-demo-ring-{node}")).await;
    pilot.metadata.annotations.unwrap_or_default().get(key).cloned()
}

/// Writes the answer of a controller.
async fn answer(person: &Person, node: u32, waits: &str) {
    let patch = Patch::Merge(json!({"metadata": {"annotations": {LEAVE_WAITS: waits}}}));
    let name = format!("cass-demo-ring-{node}");
    person.bed.pilots().patch(&name, &PatchParams::default(), &patch).await.unwrap();
}

fn machine(person: &Person, name: &str) -> Value {
    person.bed.world.kube.get(&format!("{NODE}/{name}")).unwrap()
}

#[tokio::test]
async fn the_nodes_on_a_machine_are_asked_and_what_they_wait_for_is_told() {
    let person = person().await;
    let unknown = person.says(&["drain", "m-9"]).await;
    unknown.with(1, "", "error: there is no machine \"m-9\"; kubectl get nodes lists them");
    person.says(&["drain"]).await.with(64, "", "<MACHINE>");
    person.says(&["drain", "m-3", "--wait", "--cancel"]).await.with(64, "", "cannot be used with");

    let dry = person.says(&["drain", "m-3", "--dry-run", "server"]).await;
    dry.with(
        0,
        "node/m-3 cordoned (server dry run)\ndb/cassandracluster/demo cass-demo-ring-0: would",
        "",
    );
    assert_eq!(machine(&person, "m-3")["spec"], json!({}));
    assert_eq!(annotation(&person, 0, LEAVE).await, None);

    let asked = person.says(&["drain", "m-3"]).await;
    let line =
        |node: u32, what: &str| format!("db/cassandracluster/demo cass-demo-ring-{node}: {what}\n");
    let open = "asked, and not answered yet";
    let all = format!("node/m-3 cordoned\n{}{}", line(0, open), line(1, open));
    assert_eq!(asked.with(0, "", "").out, all);
    assert_eq!(machine(&person, "m-3")["spec"], json!({"unschedulable": true}));
    for (node, wanted) in
        [(0, Some("uid-0 drain of m-3")), (1, Some("uid-1 drain of m-3")), (2, None)]
    {
        assert_eq!(annotation(&person, node, LEAVE).await.as_deref(), wanted);
    }

    answer(&person, 1, "PeersUp: ring-2 is down; wait").await;
    let again = person.says(&["drain", "m-3"]).await;
    let all = format!(
        "node/m-3 is cordoned already\n{}{}",
        line(0, open),
        line(1, "PeersUp: ring-2 is down; wait")
    );
    assert_eq!(again.with(0, "", "").out, all);

    let late = person.says(&["drain", "m-3", "--wait", "--deadline", "1"]).await;
    let holds = format!("error: m-3 is not empty after 1 s (--deadline)\n{}", line(0, open));
    late.with(3, "", &holds);

    let kube = person.bed.world.kube.clone();
    let leaves = async {
        for node in 0..2 {
            // Pods that leave one after the other, while the command asks again and again.
            tokio::time::sleep(Duration::from_secs(2)).await;
            kube.delete(&format!("{PODS}/cass-demo-ring-{node}"));
        }
    };
    let (done, ()) = tokio::join!(person.says(&["drain", "m-3", "--wait"]), leaves);
    let done = done.with(0, "no node of a database is on m-3\n", &line(0, "has left"));
    assert!(done.talk.contains(&line(1, "PeersUp: ring-2 is down; wait")), "{done:?}");
}

#[tokio::test]
async fn a_drain_is_taken_back_and_only_what_it_cordoned_is_uncordoned() {
    let person = person().await;
    person.says(&["drain", "m-5"]).await.with(0, "no node of a database is on m-5", "");
    person.says(&["drain", "m-5", "--cancel"]).await.with(0, "node/m-5 uncordoned\n", "");
    assert_eq!(machine(&person, "m-5")["spec"], json!({}));
    person.says(&["drain", "m-5", "--cancel"]).await.with(0, "no node is asked to leave m-5\n", "");

    person.says(&["drain", "m-3"]).await.with(0, "node/m-3 cordoned", "");
    // One has left, and waits for its machine.
    person.bed.world.kube.delete(&format!("{PODS}/cass-demo-ring-1"));
    let back = person.says(&["drain", "m-3", "--cancel"]).await;
    back.with(
        0,
        "node/m-3 uncordoned\npilot.navigator.jetstack.io/cass-demo-ring-0 is asked no",
        "",
    );
    for node in 0..2 {
        assert_eq!(annotation(&person, node, LEAVE).await, None, "{node}");
    }

    // Another hand cordoned this one.
    person.bed.world.kube.put(NODE, "m-4", json!({"spec": {"unschedulable": true}}));
    person.says(&["drain", "m-4"]).await.with(0, "node/m-4 is cordoned already\n", "");
    assert_eq!(annotation(&person, 2, LEAVE).await.as_deref(), Some("uid-2 drain of m-4"));
    let stays = person.says(&["drain", "m-4", "--cancel"]).await;
    stays.with(0, "cass-demo-ring-2 is asked no more\n", "kubectl uncordon m-4");
    assert_eq!(machine(&person, "m-4")["spec"], json!({"unschedulable": true}));
    assert_eq!(annotation(&person, 2, LEAVE).await, None);
    person.says(&["drain", "m-4"]).await.with(0, "", "");
    person.bed.world.kube.delete(&format!("{PODS}/cass-demo-ring-2"));
    person.says(&["drain", "m-4", "--cancel"]).await.with(0, "no node is asked", "stays so");
    let known = annotation(&person, 2, LEAVE).await;
    assert_eq!(known.as_deref(), Some("uid-2 drain of m-4"), "its node is known to wait");
}

#[tokio::test]
async fn a_person_who_may_only_read_gets_the_refusal() {
    let person = person().await;
    let kube = &person.bed.world.kube;
    kube.put(NODE, "m-3", json!({"spec": {"unschedulable": true}}));
    kube.add_token("reader", json!({"username": "jane", "groups": []}));
    for verb in ["get", "list"] {
        kube.allow("jane", verb, "pilots");
    }
    let config = std::fs::read_to_string(&person.kubeconfig).unwrap();
    let reader = person.folder().join("reader.kubeconfig");
    std::fs::write(&reader, config.replace("token: \"admin\"", "token: \"reader\"")).unwrap();
    let refused = person.says(&["drain", "m-3", "--kubeconfig", reader.to_str().unwrap()]).await;
    let said = "error: from server (Forbidden): pilots.navigator.jetstack.io \"cass-demo-ring-0\" is forbidden";
    refused.with(1, "", said);
    // Another namespace has no node there.
    person.says(&["drain", "m-3", "-n", "navigator"]).await.with(0, "no node of a database", "");
}
