//! Pods, claims and their sets, with a program that stands for the pilot.

use std::{
    net::Ipv4Addr,
    sync::{
        Arc,
        atomic::{AtomicU16, Ordering},
    },
    time::Duration,
};

use navigator::runtime::Runtime;
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpListener,
};

use super::host::{Host, run};
use crate::support::wait::until;

pub(super) const PATIENCE: Duration = Duration::from_secs(60);

/// One StatefulSet of this namespace, whose one pod does what `does` says.
pub(super) fn set(namespace: &str, does: &str) -> Value {
    json!({
        "apiVersion": "apps/v1", "kind": "StatefulSet",
        "metadata": {"name": "demo", "namespace": namespace},
        "spec": {
            "replicas": 1, "serviceName": "demo", "podManagementPolicy": "Parallel",
            "selector": {"matchLabels": {"app": "demo"}},
            "template": {
                "metadata": {"labels": {"app": "demo"}},
                "spec": {
                    "terminationGracePeriodSeconds": 20,
                    "initContainers": [{
                        "name": "install-pilot", "image": "navigator",
                        "command": ["/navigator", "install", "/shared"],
                        "volumeMounts": [{"name": "shared", "mountPath": "/shared"}],
                    }],
                    "containers": [{
                        "name": "cassandra", "image": "cassandra:5.0.6",
                        "command": ["/shared/navigator", "pilot", "cassandra"],
                        "env": [{"name": "STAND_IN", "value": does}],
                        "volumeMounts": [
                            {"name": "shared", "mountPath": "/shared"},
                            {"name": "config", "mountPath": "/etc/navigator"},
                            {"name": "data", "mountPath": "/var/lib/cassandra"},
                        ],
                    }],
                    "volumes": [
                        {"name": "shared", "emptyDir": {}},
                        {"name": "config", "emptyDir": {}},
                    ],
                },
            },
            "volumeClaimTemplates": [{
                "metadata": {"name": "data"},
                "spec": {
                    "accessModes": ["ReadWriteOnce"],
                    "resources": {"requests": {"storage": "1Gi"}},
                },
            }],
        },
    })
}

/// Waits for a state of the pod's container.
pub(super) async fn seen(host: &Host, what: &str, is: impl Fn(&Value) -> bool) -> Value {
    until(what, PATIENCE, async || {
        let found = host.kubectl("get pods -o json").await;
        let found: Value = serde_json::from_str(&found).unwrap();
        let status = &found["items"][0]["status"]["containerStatuses"][0];
        if is(status) { Ok(status.clone()) } else { Err(found["items"].to_string()) }
    })
    .await
}

pub(super) fn runs(status: &Value) -> bool {
    status["state"]["running"].is_object()
}

/// Answers every request with a code that the test may change; its port.
async fn answering(code: Arc<AtomicU16>, runtime: &Runtime) -> u16 {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let shutdown = runtime.shutdown();
    runtime.tasks().spawn("answers", async move {
        while !shutdown.is_triggered() {
            let (mut client, _) = listener.accept().await.unwrap();
            let code = code.load(Ordering::SeqCst);
            let mut asked = [0; 512];
            drop(client.read(&mut asked).await);
            let text = format!("HTTP/1.1 {code} X\r\nContent-Length: 4\r\n\r\nword");
            drop(client.write_all(text.as_bytes()).await);
        }
    });
    port
}

#[tokio::test(flavor = "multi_thread")]
async fn a_container_that_fails_its_liveness_probe_is_restarted() {
    let host = Host::start().await;
    let (node, runtime) = host.carry_out();
    let code = Arc::new(AtomicU16::new(200));
    let port = answering(Arc::clone(&code), &runtime).await;
    let mut set = set("default", "");
    set["spec"]["template"]["spec"]["containers"][0]["livenessProbe"] = json!({
        "httpGet": {"host": "127.0.0.1", "port": port, "path": "/"},
        "periodSeconds": 1, "timeoutSeconds": 5, "failureThreshold": 2,
    });
    host.with("apply -f -", &set.to_string()).await;
    let first = seen(&host, "a container that runs", |it| runs(it) && it["ready"] == true).await;
    code.store(500, Ordering::SeqCst);
    let killed = seen(&host, "one that was killed", |it| it["restartCount"] == 1).await;
    code.store(200, Ordering::SeqCst);
    let ended = &killed["lastState"]["terminated"];
    assert_eq!(ended["exitCode"], 0, "it was asked to end: {killed}");
    assert_eq!(ended["containerID"], first["containerID"]);
    let next = seen(&host, "its next life", |it| runs(it) && it["ready"] == true).await;
    assert_ne!(next["containerID"], first["containerID"]);
    let events = host.kubectl("get events").await;
    let why = "the container is restarted: liveness probe failed: HTTP 500: word";
    assert!(events.contains("Killing") && events.contains(why), "{events}");
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_container_that_ends_comes_again_at_once_and_then_after_ten_seconds() {
    let host = Host::start().await;
    let (node, _runtime) = host.carry_out();
    let does = "date +%s%N >>$NAVIGATOR_DATA_DIR/begun; echo $NAVIGATOR_POD_IP; exit 3";
    host.with("apply -f -", &set("default", does).to_string()).await;
    let file = host.folder.join("claims/default/data-demo-0/begun");
    let begun = until("three lives", PATIENCE, async || {
        let text = std::fs::read_to_string(&file).unwrap_or_default();
        let times: Vec<u64> = text.lines().filter_map(|line| line.parse().ok()).collect();
        if times.len() > 2 { Ok(times) } else { Err(format!("{times:?}")) }
    })
    .await;
    let pauses = [begun[1] - begun[0], begun[2] - begun[1]].map(Duration::from_nanos);
    assert!(pauses[1] > Duration::from_secs(9), "{pauses:?}");
    let waits = seen(&host, "a container that waits", |it| it["restartCount"] == 3).await;
    let (waiting, ended) = (&waits["state"]["waiting"], &waits["lastState"]["terminated"]);
    assert_eq!(waiting["reason"], "CrashLoopBackOff");
    assert_eq!(waiting["message"], "back-off 20 s restarting the container");
    assert_eq!(ended["exitCode"], 3);
    node.stop().await;
}

/// Such a pod is asked to end, as any other: a database that is killed has to be repaired.
#[tokio::test(flavor = "multi_thread")]
async fn a_pod_that_went_while_no_daemon_was_there_is_asked_to_end() {
    let host = Host::start().await;
    let does = "trap 'sleep 1; echo ended >>$NAVIGATOR_DATA_DIR/lives; exit 0' TERM; \
                echo begun >>$NAVIGATOR_DATA_DIR/lives";
    let lives = host.folder.join("claims/default/data-demo-0/lives");
    let lives = async |what: &str, expected: &str| {
        until(what, PATIENCE, async || {
            let text = std::fs::read_to_string(&lives).unwrap_or_default();
            if text == expected { Ok(()) } else { Err(text) }
        })
        .await;
    };
    let (_node, runtime) = host.carry_out();
    host.with("apply -f -", &set("default", does).to_string()).await;
    lives("one life", "begun\n").await;
    seen(&host, "a container that runs", runs).await;
    runtime.shutdown().trigger();
    runtime.tasks().join().await;
    host.kubectl("delete pod demo-0 --grace-period=0 --force").await;
    let (node, _runtime) = host.carry_out();
    lives("a second one after the end of the first", "begun\nended\nbegun\n").await;
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_that_is_deleted_with_its_pod_is_made_anew() {
    let host = Host::start().await;
    let (node, _runtime) = host.carry_out();
    host.with("apply -f -", &set("default", "").to_string()).await;
    seen(&host, "a pod that runs", runs).await;
    let claim = async || host.json("get pvc data-demo-0 --ignore-not-found").await;
    let uid = claim().await["metadata"]["uid"].clone();
    let row = host.folder.join("claims/default/data-demo-0/row");
    std::fs::write(&row, "old").unwrap();
    // Another finalizer holds the claim for a while: until it goes, no new pod may use the claim.
    let held = r#"patch pvc data-demo-0 --type json -p [{"op":"add","path":"/metadata/finalizers/-","value":"example.org/held"}]"#;
    host.kubectl(held).await;
    host.kubectl("delete pvc data-demo-0 --wait=false").await;
    assert!(host.kubectl("get pvc data-demo-0").await.contains("Terminating"), "it is in use");
    let pod = host.json("get pod demo-0").await["metadata"]["uid"].clone();
    host.kubectl("delete pod demo-0 --timeout=60s").await;
    until("data that are gone", PATIENCE, async || {
        if row.exists() { Err(claim().await.to_string()) } else { Ok(()) }
    })
    .await;
    // The set is looked at again each second, and a look that does nothing shows nowhere.
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert_eq!(host.kubectl("get pods -o name").await, "");
    host.kubectl(r#"patch pvc data-demo-0 --type merge -p {"metadata":{"finalizers":null}}"#).await;
    seen(&host, "a pod that runs", runs).await;
    assert_ne!(host.json("get pod demo-0").await["metadata"]["uid"], pod);
    let now = claim().await;
    assert_ne!(now["metadata"]["uid"], uid);
    assert_eq!(now["metadata"].get("deletionTimestamp"), None, "it is to stay: {now}");
    assert!(row.parent().unwrap().is_dir() && !row.exists(), "the old data are gone");
    node.stop().await;
}

/// Adds to the set's one container that is run.
fn add(set: &mut Value, field: &str, items: &Value) {
    let container = &mut set["spec"]["template"]["spec"]["containers"][0][field];
    let mut all = container.as_array().cloned().unwrap_or_default();
    all.extend(items.as_array().unwrap().iter().cloned());
    *container = all.into();
}

fn add_volume(set: &mut Value, volume: Value) {
    set["spec"]["template"]["spec"]["volumes"].as_array_mut().unwrap().push(volume);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_waits_for_what_it_takes_from_secrets_and_config_maps() {
    let host = Host::start().await;
    let (node, _runtime) = host.carry_out();
    let mut set = set("default", "echo word is $WORD and $SIZE");
    add(
        &mut set,
        "env",
        &json!([
            {"name": "WORD", "valueFrom": {"secretKeyRef": {"name": "keys", "key": "word"}}},
        ]),
    );
    add(&mut set, "envFrom", &json!([{"configMapRef": {"name": "settings"}}]));
    add(&mut set, "volumeMounts", &json!([{"name": "keys", "mountPath": "/keys"}]));
    add_volume(&mut set, json!({"name": "keys", "secret": {"secretName": "keys"}}));
    // No program here needs a volume of a container that is not run.
    add_volume(&mut set, json!({"name": "other", "nfs": {"server": "a", "path": "/"}}));
    let containers = set["spec"]["template"]["spec"]["containers"].as_array_mut().unwrap();
    containers.push(json!({
        "name": "side", "image": "example",
        "volumeMounts": [{"name": "other", "mountPath": "/other"}],
    }));
    host.with("apply -f -", &set.to_string()).await;
    let waits =
        |reason: &'static str| move |status: &Value| status["state"]["waiting"]["reason"] == reason;
    let status = seen(&host, "a pod without a volume", waits("FailedMount")).await;
    let why = "volume \"keys\": secret \"keys\" not found";
    assert_eq!(status["state"]["waiting"]["message"], why);
    assert_eq!(host.json("get pod demo-0").await["status"]["phase"], "Pending");
    let described = host.kubectl("describe pod demo-0").await;
    assert!(described.contains("FailedMount") && described.contains(why), "{described}");
    host.kubectl("create secret generic keys --from-literal=word=yes").await;
    let without = waits("CreateContainerConfigError");
    let status = seen(&host, "a pod without a variable", without).await;
    assert_eq!(status["state"]["waiting"]["message"], "configmap \"settings\" not found");
    host.kubectl("create configmap settings --from-literal=SIZE=3").await;
    seen(&host, "a pod that runs", runs).await;
    until("what it says", PATIENCE, async || {
        let said = host.kubectl("logs demo-0 -c cassandra").await;
        if said == "word is yes and 3\n" { Ok(()) } else { Err(said) }
    })
    .await;
    let folder = host.folder.join("pods/default/demo-0/keys");
    assert_eq!(std::fs::read_to_string(folder.join("word")).unwrap(), "yes");
    let events = host.kubectl("get events").await;
    let told = format!("volume \"keys\" is at {}, and not at /keys", folder.display());
    assert!(events.contains("NotMounted") && events.contains(&told), "{events}");
    let status = host.json("get pod demo-0").await["status"].clone();
    assert_eq!(status["containerStatuses"][1]["state"]["waiting"]["reason"], "NotRun");
    // The pod's next container is told the new values.
    host.kubectl("delete configmap settings").await;
    host.kubectl("create configmap settings --from-literal=SIZE=4").await;
    host.kubectl("delete pod demo-0 --timeout=60s").await;
    until("what the next one says", PATIENCE, async || {
        let output = run(host.command("logs demo-0 -c cassandra"), "").await;
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        if said == "word is yes and 4\n" { Ok(()) } else { Err(said) }
    })
    .await;
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_with_a_volume_that_is_not_served_stays_pending_and_says_why() {
    let host = Host::start().await;
    let (node, _runtime) = host.carry_out();
    let mut set = set("default", "");
    add(&mut set, "volumeMounts", &json!([{"name": "logs", "mountPath": "/logs"}]));
    add_volume(&mut set, json!({"name": "logs", "hostPath": {"path": "/var/log"}}));
    host.with("apply -f -", &set.to_string()).await;
    let failed = |it: &Value| it["state"]["waiting"]["reason"] == "FailedMount";
    let status = seen(&host, "a pod that waits", failed).await;
    let why = "volume \"logs\": hostPath is not served on this host";
    assert_eq!(status["state"]["waiting"]["message"], why);
    let rows = host.kubectl("get pods").await;
    assert!(rows.contains("demo-0   0/1     FailedMount"), "{rows}");
    // A pod that waits for a volume can end at once.
    host.kubectl("delete pod demo-0 --timeout=60s").await;
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rollout_is_followed_to_its_end() {
    let host = Host::start().await;
    let (node, _runtime) = host.carry_out();
    let mut set = set("default", "echo one");
    set["spec"]["replicas"] = json!(2);
    host.with("apply -f -", &set.to_string()).await;
    let done = host.kubectl("rollout status statefulset demo --timeout=60s").await;
    assert!(done.contains("partitioned roll out complete") || done.contains("complete"), "{done}");
    let uid =
        async |pod: &str| host.json(&format!("get pod {pod}")).await["metadata"]["uid"].clone();
    let before = [uid("demo-0").await, uid("demo-1").await];
    host.kubectl("rollout restart statefulset demo").await;
    let done = host.kubectl("rollout status statefulset demo --timeout=60s").await;
    assert!(done.contains("complete"), "{done}");
    let after = [uid("demo-0").await, uid("demo-1").await];
    assert!(before[0] != after[0] && before[1] != after[1], "{before:?} {after:?}");
    // A set with OnDelete has no rollout: its controller does not replace pods.
    host.kubectl(r#"patch statefulset demo -p {"spec":{"updateStrategy":{"type":"OnDelete","rollingUpdate":null}}}"#)
        .await;
    let refused = host.refused("rollout status statefulset demo").await;
    assert!(refused.contains("only available for RollingUpdate"), "{refused}");
    node.stop().await;
}
