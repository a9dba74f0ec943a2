//! Answers and exit codes over our real API server, as a script sees them.

use std::{
    io::Write, os::unix::process::CommandExt, path::PathBuf, process::Output, time::Duration,
};

use kube::{
    Api,
    api::{ApiResource, DynamicObject, Patch, PatchParams, PostParams},
};
use navigator::engine::rbac;
use serde_json::{Value, json};

use crate::support::{
    bed::{Bed, NAMESPACE},
    executable,
    wait::until,
};

const PATIENCE: Duration = Duration::from_secs(60);

/// An API, and a user who asks it.
pub(super) struct Person {
    pub(super) bed: Bed,
    pub(super) kubeconfig: PathBuf,
}

/// How a command ended.
#[derive(Debug)]
pub(super) struct Ended {
    pub(super) code: Option<i32>,
    pub(super) out: String,
    pub(super) talk: String,
}

impl From<Output> for Ended {
    fn from(output: Output) -> Self {
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        Self { code: output.status.code(), out: text(output.stdout), talk: text(output.stderr) }
    }
}

impl Ended {
    #[track_caller]
    pub(super) fn with(self, code: i32, out: &str, talk: &str) -> Self {
        assert_eq!(self.code, Some(code), "{self:?}");
        assert!(self.out.contains(out), "{out:?} is not the answer: {self:?}");
        assert!(self.talk.contains(talk), "{talk:?} is not said: {self:?}");
        self
    }
}

/// Runs to the end beside the API, which lives in the same runtime.
pub(super) async fn output(mut command: std::process::Command) -> Output {
    tokio::task::spawn_blocking(move || command.output().unwrap()).await.unwrap()
}

impl Person {
    pub(super) async fn new() -> Self {
        let bed = Bed::start().await;
        let kubeconfig = bed.admin();
        Self { bed, kubeconfig }
    }

    #[expect(clippy::disallowed_methods, reason = "a test runs the built binary")]
    pub(super) async fn says(&self, words: &[&str]) -> Ended {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_navigator"));
        command.arg0("kubectl-navigator").args(words);
        command.env_clear().env("KUBECONFIG", &self.kubeconfig).current_dir(self.folder());
        output(command).await.into()
    }

    pub(super) fn folder(&self) -> &std::path::Path {
        self.bed.world.folder.path()
    }

    pub(super) fn api(&self, kind: &str, plural: &str) -> Api<DynamicObject> {
        let resource = ApiResource {
            group: "navigator.jetstack.io".to_owned(),
            version: "v1beta1".to_owned(),
            api_version: "navigator.jetstack.io/v1beta1".to_owned(),
            kind: kind.to_owned(),
            plural: plural.to_owned(),
        };
        Api::namespaced_with(self.bed.client(), NAMESPACE, &resource)
    }

    fn cassandras(&self) -> Api<DynamicObject> {
        self.api("CassandraCluster", "cassandraclusters")
    }

    /// A cluster `name`, and a Pilot for each of its nodes that serves.
    pub(super) async fn cluster(&self, name: &str, nodes: u32) {
        let cluster = json!({
            "apiVersion": "navigator.jetstack.io/v1beta1", "kind": "CassandraCluster",
            "metadata": {"name": name},
            "spec": {"version": "4.1.10", "nodePools": [
                {"name": "ring", "replicas": nodes, "persistence": {"size": "1Gi"},
                 "resources": {"limits": {"memory": "2Gi"}}},
            ]},
        });
        let cluster = serde_json::from_value(cluster).unwrap();
        self.cassandras().create(&PostParams::default(), &cluster).await.unwrap();
        for node in 0..nodes {
            let pilot = format!("cass-{name}-ring-{node}");
            let object = json!({
                "apiVersion": "navigator.jetstack.io/v1beta1", "kind": "Pilot",
                "metadata": {"name": pilot},
                "spec": {"clusterRef": {"kind": "CassandraCluster", "name": name},
                         "nodePool": "ring", "version": "4.1.10"},
            });
            let object = serde_json::from_value(object).unwrap();
            self.bed.pilots().create(&PostParams::default(), &object).await.unwrap();
            self.report(&pilot, "Running", json!([])).await;
        }
    }

    /// Writes the status that a pilot would report now.
    async fn report(&self, pilot: &str, phase: &str, blockers: Value) {
        let now = k8s_openapi::jiff::Timestamp::now().strftime("%FT%TZ").to_string();
        let generation = self.bed.pilot(pilot).await.metadata.generation;
        let ready = if phase == "Running" { "True" } else { "False" };
        let status = json!({"status": {
            "phase": phase, "version": "4.1.10", "lastHeartbeatTime": now, "blockers": blockers,
            "observedGeneration": generation,
            "conditions": [{"type": "Ready", "status": ready, "reason": "CassandraStarted",
                            "message": "told", "lastTransitionTime": now}],
        }});
        let patch = Patch::Merge(status);
        self.bed.pilots().patch_status(pilot, &PatchParams::default(), &patch).await.unwrap();
    }

    /// Writes the status that a controller would report of a cluster.
    async fn judge(&self, name: &str, ready: bool) {
        let api = self.cassandras();
        let generation = api.get(name).await.unwrap().metadata.generation;
        let status = json!({"status": {
            "observedGeneration": generation, "phase": "Running",
            "conditions": [{"type": "Ready", "status": if ready { "True" } else { "False" },
                            "reason": "Told", "message": "as told",
                            "lastTransitionTime": "2026-11-22T12:00:00Z"}],
        }});
        let patch = Patch::Merge(status);
        api.patch_status(name, &PatchParams::default(), &patch).await.unwrap();
    }

    async fn spec(&self, name: &str) -> Value {
        self.cassandras().get(name).await.unwrap().data["spec"].clone()
    }
}

#[tokio::test]
async fn status_ends_with_what_a_script_wants_to_know() {
    let person = Person::new().await;
    person.says(&["status"]).await.with(0, "", "There are no clusters in namespace db.");
    person.says(&["status", "demo"]).await.with(
        1,
        "",
        "there is no cluster \"demo\" in namespace \"db\"",
    );
    person.says(&["status", "teapot/demo"]).await.with(64, "", "\"teapot\" is no kind of cluster");
    person.says(&["status", "a/b/c"]).await.with(64, "", "a cluster is NAME or KIND/NAME");
    person.cluster("demo", 2).await;
    let fresh = person.says(&["status", "demo"]).await;
    fresh.with(3, "CassandraCluster db/demo  No controller has looked at it yet", "");
    person.judge("demo", false).await;
    person.says(&["status", "demo"]).await.with(3, "Not ready: Told", "");
    person.judge("demo", true).await;
    let ready = person.says(&["status", "demo"]).await.with(0, "db/demo  Ready", "");
    assert!(!ready.out.contains('\u{1b}') && ready.out.contains("cass-demo-ring-1"), "{ready:?}");
    person.says(&["status", "cassc/demo", "-o", "name"]).await.with(
        0,
        "cassandracluster.navigator.jetstack.io/demo\n",
        "",
    );
    let json = person.says(&["status", "demo", "-o", "json"]).await.with(0, "", "");
    let json: Value = serde_json::from_str(&json.out).unwrap();
    assert_eq!(json["cluster"]["metadata"]["name"], "demo");
    assert_eq!(json["pilots"].as_array().unwrap().len(), 2);
    person.says(&["status", "demo", "-o", "yaml"]).await.with(0, "cluster:\n", "");
    person.says(&["status", "-A"]).await.with(0, "db          cassandracluster/demo", "");
    person.says(&["status", "demo", "-n", "navigator"]).await.with(1, "", "no cluster \"demo\"");
    // A spec that the controller has not observed yet is not Ready.
    person.says(&["pause", "demo"]).await.with(0, "paused", "");
    person.says(&["status", "demo"]).await.with(3, "Ready as of an earlier spec", "");
    // The API away, in each of the ways in which it can be.
    person.bed.kill_server();
    person.says(&["status", "demo"]).await.with(1, "", "error: from server (ServiceUnavailable)");
    let nowhere = ["status", "demo", "--kubeconfig", "/nowhere"];
    person.says(&nowhere).await.with(64, "", "error: --kubeconfig: failed to read /nowhere");
    person.says(&["status", "demo", "--context", "no"]).await.with(64, "", "error: kubeconfig");
}

#[tokio::test]
async fn a_name_of_two_clusters_needs_its_kind() {
    let person = Person::new().await;
    person.cluster("demo", 1).await;
    let search = json!({
        "apiVersion": "navigator.jetstack.io/v1beta1", "kind": "ElasticsearchCluster",
        "metadata": {"name": "demo"},
        "spec": {"version": "8.19.4", "nodePools": [{"name": "all", "replicas": 1, "roles": ["master", "data"]}]},
    });
    let search = serde_json::from_value(search).unwrap();
    let api = person.api("ElasticsearchCluster", "elasticsearchclusters");
    api.create(&PostParams::default(), &search).await.unwrap();
    person.says(&["status", "demo"]).await.with(
        1,
        "",
        "say elasticsearchcluster/demo or cassandracluster/demo",
    );
    person.says(&["status", "cassandraclusters/demo"]).await.with(
        3,
        "CassandraCluster db/demo",
        "",
    );
    person.says(&["status", "ElasticsearchCluster/demo"]).await.with(3, "ElasticsearchCluster", "");
}

#[tokio::test]
async fn changes_write_one_field_and_a_dry_run_none() {
    let person = Person::new().await;
    person.cluster("demo", 3).await;
    let name = "cassandracluster.navigator.jetstack.io/demo";
    for (words, done, field, value) in [
        (&["pause", "demo"][..], "paused", "/paused", json!(true)),
        (&["resume", "demo"], "resumed", "/paused", json!(false)),
        (&["stop", "demo"], "stops", "/stopped", json!(true)),
        (&["start", "demo"], "starts", "/stopped", json!(false)),
        (&["scale", "demo", "ring=5"], "scaled: ring to 5", "/nodePools/0/replicas", json!(5)),
        (&["upgrade", "demo", "5.0.6"], "upgrades to 5.0.6", "/version", json!("5.0.6")),
    ] {
        let before = person.spec("demo").await;
        let dry = person.says(&[words, &["--dry-run", "server"]].concat()).await;
        dry.with(0, &format!("{name} {done} (server dry run)\n"), "");
        assert_eq!(person.spec("demo").await, before, "{words:?}");
        person.says(words).await.with(0, &format!("{name} {done}\n"), "");
        let mut wanted = before;
        match wanted.pointer_mut(field) {
            Some(place) => *place = value,
            None => wanted[field.trim_start_matches('/')] = value,
        }
        assert_eq!(person.spec("demo").await, wanted, "{words:?}");
        person.says(words).await.with(0, &format!("{name} unchanged\n"), "");
    }
    person.says(&["restart", "demo"]).await.with(0, "restarts, one node at a time", "");
    assert!(person.spec("demo").await["restartedAt"].is_string());
    person.says(&["scale", "demo", "disc=5"]).await.with(
        1,
        "",
        "no node pool \"disc\"; it has ring",
    );
    person.says(&["scale", "demo", "ring"]).await.with(64, "", "for example ring=5");
    let refused = person.says(&["upgrade", "demo", "one"]).await;
    refused.with(1, "", "error: from server (Invalid): ");
    let object = person.says(&["pause", "demo", "-o", "json"]).await.with(0, "", "");
    let object: Value = serde_json::from_str(&object.out).unwrap();
    assert_eq!(object["spec"]["paused"], true);
    person.says(&["pause", "demo", "-o", "wide"]).await.with(64, "", "no form wide");
}

#[tokio::test]
async fn one_node_is_fenced_freed_and_restarted() {
    let person = Person::new().await;
    person.cluster("demo", 3).await;
    person.says(&["fence", "demo", "ring-9"]).await.with(
        1,
        "",
        "no node \"ring-9\"; it has cass-demo",
    );
    person.says(&["fence", "demo", "ring-1"]).await.with(
        0,
        "pilot.navigator.jetstack.io/cass-demo-ring-1 fenced\n",
        "",
    );
    let phase = async |pilot: &str| {
        let phase = person.bed.pilot(pilot).await.spec.phase;
        phase.map(|phase| phase.to_string()).unwrap_or_default()
    };
    assert_eq!(phase("cass-demo-ring-1").await, "Fenced");
    person.says(&["restart", "demo", "ring-1"]).await.with(3, "", "PhaseHeld: ");
    person.says(&["fence", "demo", "ring-1", "--off"]).await.with(0, "unfenced", "");
    assert_eq!(phase("cass-demo-ring-1").await, "Running");
    person.says(&["give-up", "demo", "ring-1"]).await.with(64, "", "--data <UID>");
    person.report("cass-demo-ring-1", "Running", json!([])).await;
    let word = ["give-up", "demo", "ring-1", "--data", "uid-1"];
    person.says(&word).await.with(3, "", "cass-demo-ring-1 serves");

    let down = json!([{"predicate": "PeersUp", "message": "ring-2 is down"}]);
    person.report("cass-demo-ring-1", "Running", down).await;
    person.says(&["restart", "demo", "ring-1"]).await.with(
        3,
        "",
        "PeersUp: ring-2 is down; --force",
    );
    person.says(&["predicates", "demo"]).await.with(3, "PeersUp", "");
    person.report("cass-demo-ring-1", "Running", json!([])).await;
    person.says(&["predicates", "demo"]).await.with(0, "every node may stop now", "");

    // The test plays the pilot, which does as its spec says.
    let (done, pilot) = (person.says(&["restart", "demo", "ring-1"]), "cass-demo-ring-1");
    let obey = async {
        for (wanted, then) in [("Fenced", "Fenced"), ("Running", "Running")] {
            until(&format!("{pilot} is told {wanted}"), PATIENCE, async || {
                let now = phase(pilot).await;
                if now == wanted { Ok(()) } else { Err(now) }
            })
            .await;
            person.report(pilot, then, json!([])).await;
        }
    };
    let (done, ()) = tokio::join!(done, obey);
    done.with(
        0,
        "cass-demo-ring-1 restarted\n",
        "cass-demo-ring-1 stops\ncass-demo-ring-1 starts\n",
    );

    // A node that does not stop in time is let go again.
    let late = person.says(&["restart", "demo", "ring-0", "--deadline", "1"]).await;
    late.with(3, "", "cass-demo-ring-0 took longer than --deadline; it is Running: told");
    assert_eq!(phase("cass-demo-ring-0").await, "Running");
}

#[tokio::test]
async fn a_cluster_is_begun_anew_only_by_the_typed_id_and_while_no_node_serves() {
    let person = Person::new().await;
    person.cluster("demo", 1).await;
    let none = person.says(&["unsafe-bootstrap", "demo", "ring-0"]).await;
    none.with(64, "", "the nodes of a CassandraCluster elect no leader");
    let cluster = json!({
        "apiVersion": "navigator.jetstack.io/v1beta1", "kind": "ElasticsearchCluster",
        "metadata": {"name": "search"},
        "spec": {"version": "7.17.29", "nodePools": [{"name": "m", "replicas": 1, "roles": ["master", "data"]}]},
    });
    let api = person.api("ElasticsearchCluster", "elasticsearchclusters");
    let cluster = serde_json::from_value(cluster).unwrap();
    api.create(&PostParams::default(), &cluster).await.unwrap();
    let pilot = "es-search-m-0";
    let object = json!({
        "apiVersion": "navigator.jetstack.io/v1beta1", "kind": "Pilot", "metadata": {"name": pilot},
        "spec": {"clusterRef": {"kind": "ElasticsearchCluster", "name": "search"}, "nodePool": "m"},
    });
    let object = serde_json::from_value(object).unwrap();
    person.bed.pilots().create(&PostParams::default(), &object).await.unwrap();
    let asks = async |more: &[&str]| {
        person.says(&[&["unsafe-bootstrap", "search", "m-0"], more].concat()).await
    };
    person.report(pilot, "Running", json!([])).await;
    asks(&["--cluster-id", "u1"]).await.with(
        3,
        "",
        "es-search-m-0 serves, so search has an elected",
    );
    person.report(pilot, "Starting", json!([])).await;
    asks(&[]).await.with(3, "", "was no node of the database cluster yet");
    let known = Patch::Merge(json!({"status": {"identity": {"clusterID": "u1", "nodeID": "n"}}}));
    person.bed.pilots().patch_status(pilot, &PatchParams::default(), &known).await.unwrap();
    let told = asks(&[]).await.with(3, "", "unsafe-bootstrap search es-search-m-0 --cluster-id u1");
    assert!(told.talk.contains("Every shard without a copy"), "{told:?}");
    asks(&["--cluster-id", "u2"]).await.with(3, "", "is of database cluster \"u1\", not of \"u2\"");
    let word = async || {
        let annotations = person.bed.pilot(pilot).await.metadata.annotations.unwrap_or_default();
        annotations.get("navigator.jetstack.io/unsafe-bootstrap").cloned()
    };
    assert_eq!(word().await, None);
    asks(&["--cluster-id", "u1"]).await.with(0, "is asked to begin the cluster anew", "");
    assert_eq!(word().await.as_deref(), Some("u1"));
}

#[tokio::test]
async fn nodes_that_owe_a_cleanup_are_asked_for_it_and_one_that_is_named() {
    let person = Person::new().await;
    person.cluster("demo", 4).await;
    let request = async |node: u32| {
        let pilot = person.bed.pilot(&format!("cass-demo-ring-{node}")).await;
        let annotations = pilot.metadata.annotations.unwrap_or_default();
        annotations.get("navigator.jetstack.io/cleanup").cloned()
    };
    person.says(&["cleanup", "demo"]).await.with(0, "nothing is due", "");
    for (node, status, reason) in [
        (0, "True", "RangesGivenAway"),
        (1, "False", "NothingDue"),
        (2, "Unknown", "NotHeard"),
        (3, "True", "CleanupWaits"),
    ] {
        let conditions = json!([{"type": "CleanupDue", "status": status, "reason": reason,
                                 "message": "", "lastTransitionTime": "2026-11-22T12:00:00Z"}]);
        let patch = Patch::Merge(json!({"status": {"conditions": conditions}}));
        let pilot = format!("cass-demo-ring-{node}");
        person.bed.pilots().patch_status(&pilot, &PatchParams::default(), &patch).await.unwrap();
    }
    let dry = person.says(&["cleanup", "demo", "--dry-run", "server"]).await;
    dry.with(0, "cass-demo-ring-0 is to be cleaned up (server dry run)", "");
    assert_eq!(request(0).await, None);
    person.says(&["cleanup", "demo"]).await.with(
        0,
        "pilot.navigator.jetstack.io/cass-demo-ring-0 is to be cleaned up\n\
         pilot.navigator.jetstack.io/cass-demo-ring-2 is to be cleaned up\n",
        "",
    );
    assert!(request(0).await.is_some_and(|time| time.ends_with('Z')));
    assert_eq!(request(0).await, request(2).await, "names say who goes first");
    assert_eq!((request(1).await, request(3).await), (None, None));
    person.says(&["cleanup", "demo", "ring-1", "-o", "name"]).await.with(0, "ring-1\n", "");
    assert!(request(1).await.is_some());
    let list = person.says(&["cleanup", "demo", "-o", "json"]).await.with(0, "", "");
    let list: Value = serde_json::from_str(&list.out).unwrap();
    assert_eq!(list["items"].as_array().unwrap().len(), 2);
}

#[tokio::test]
async fn an_upgrade_is_checked_without_being_begun() {
    let person = Person::new().await;
    person.cluster("demo", 2).await;
    let check = ["upgrade", "demo", "5.0.6", "--check"];
    let begun = person.says(&check).await.with(0, "The server accepts 5.0.6", "");
    assert!(
        begun.out.contains("0 of 2 nodes run it") && begun.out.contains("No predicate holds"),
        "{begun:?}"
    );
    let down = json!([{"predicate": "PeersUp", "message": "ring-1 is down"}]);
    person.report("cass-demo-ring-0", "Running", down).await;
    person.says(&check).await.with(3, "PeersUp", "");
    let json = person.says(&[&check[..], &["-o", "json"]].concat()).await.with(3, "", "");
    let json: Value = serde_json::from_str(&json.out).unwrap();
    assert_eq!(json["holding"][0]["name"], "PeersUp");
    let refused = person.says(&["upgrade", "demo", "2.2.1", "--check"]).await;
    refused.with(1, "", "error: from server (Invalid): ");
    assert_eq!(person.spec("demo").await["version"], "4.1.10");
}

#[tokio::test]
async fn logs_of_all_nodes_stand_behind_their_names() {
    let person = Person::new().await;
    person.cluster("demo", 2).await;
    let line =
        r#"{"timestamp":"2026-11-22T12:00:00.5Z","level":"INFO","message":"up","target":"t"}"#;
    let pod = |name: &str| format!("/api/v1/namespaces/db/pods/{name}");
    person.bed.world.kube.set_log(&pod("cass-demo-ring-0"), &format!("{line}\nplain\n"));
    person.says(&["logs", "demo"]).await.with(
        1,
        "[ring-0] plain\n",
        "cass-demo-ring-1: from server",
    );
    person.bed.world.kube.set_log(&pod("cass-demo-ring-1"), "other\n");
    let all = person.says(&["logs", "demo", "--pretty"]).await.with(0, "[ring-1] other\n", "");
    let pretty = "2026-11-22T12:00:00.5Z INFO  up (t)\n";
    assert!(all.out.contains(&format!("[ring-0] {pretty}")), "{all:?}");
    let one = person.says(&["logs", "demo", "ring-0", "--pretty"]).await;
    assert_eq!(one.out, format!("{pretty}plain\n"));
    person.says(&["logs"]).await.with(64, "", "<NAME>");
}

#[tokio::test]
async fn a_followed_log_goes_on_when_the_node_comes_back() {
    let person = Person::new().await;
    person.cluster("demo", 1).await;
    let pod = "/api/v1/namespaces/db/pods/cass-demo-ring-0";
    let said = person.folder().join("said");
    #[expect(clippy::disallowed_methods, reason = "a test runs the built binary")]
    let mut child = std::process::Command::new(env!("CARGO_BIN_EXE_navigator"))
        .arg0("kubectl-navigator")
        .args(["logs", "demo", "-f"])
        .env_clear()
        .env("KUBECONFIG", &person.kubeconfig)
        .stdout(std::fs::File::create(&said).unwrap())
        .stderr(std::fs::File::create(person.folder().join("talk")).unwrap())
        .spawn()
        .unwrap();
    // No pod yet, then one, then another in its place: each log ends at once.
    for line in ["first", "second"] {
        person.bed.world.kube.set_log(pod, &format!("{line}\n"));
        until(&format!("the log's {line} line"), PATIENCE, async || {
            let text = std::fs::read_to_string(&said).unwrap();
            if text.ends_with(&format!("{line}\n")) { Ok(()) } else { Err(text) }
        })
        .await;
    }
    child.kill().unwrap();
    child.wait().unwrap();
}

#[tokio::test]
async fn a_report_holds_what_there_is_and_no_secrets() {
    let person = Person::new().await;
    person.cluster("demo", 1).await;
    let secret = json!({"spec": {"config": {"keystore_password": "hunter2"}}});
    let patch = Patch::Merge(secret);
    person.cassandras().patch("demo", &PatchParams::default(), &patch).await.unwrap();
    let kube = &person.bed.world.kube;
    let pods = "/api/v1/namespaces/db/pods";
    let spec = json!({"containers": [{"name": "cassandra", "env": [{"name": "DB_PASSWORD", "value": "hunter2"}]}]});
    kube.put(pods, "cass-demo-ring-0", json!({"spec": spec}));
    kube.put(pods, "stranger", json!({"spec": spec}));
    kube.put(
        "/api/v1/namespaces/db/secrets",
        "demo",
        json!({"data": {"password": "aHVudGVyMg=="}}),
    );
    kube.set_log(&format!("{pods}/cass-demo-ring-0"), "started with password=hunter2\n");
    let ours = "/api/v1/namespaces/navigator/pods";
    let labels = json!({"app.kubernetes.io/name": "navigator"});
    kube.put(ours, "navigator-controller-0", json!({"metadata": {"labels": labels}, "spec": spec}));
    kube.put(ours, "stranger", json!({"spec": spec}));
    kube.set_log(&format!("{ours}/navigator-controller-0"), "Planned step\n");
    let told = person.says(&["report", "demo", "-o", "r.tar.gz"]).await.with(
        0,
        "r.tar.gz\n",
        "look before",
    );
    assert!(!told.out.contains("hunter2"), "{told:?}");
    let packed = std::fs::read(person.folder().join("r.tar.gz")).unwrap();
    let listed = tar(&["-tz"], &packed);
    for wanted in [
        "/README.txt",
        "/versions.yaml",
        "/clusters/cassandracluster-demo/cluster.yaml",
        "/clusters/cassandracluster-demo/pilots.yaml",
        "/clusters/cassandracluster-demo/status.txt",
        "/clusters/cassandracluster-demo/events.txt",
        "/kubernetes/pods.yaml",
        "/navigator/apiservices.yaml",
        "/logs/cass-demo-ring-0.log",
        "/navigator/pods.yaml",
        "/navigator/logs/navigator-controller-0.log",
    ] {
        assert!(listed.contains(&format!("{wanted}\n")), "{wanted} is not in it:\n{listed}");
    }
    let all = tar(&["-xzO"], &packed);
    for gone in ["hunter2", "aHVudGVyMg", "stranger"] {
        assert!(!all.contains(gone), "{gone} is in it:\n{all}");
    }
    for kept in ["keystore_password: REDACTED", "password=REDACTED", "CassandraCluster db/demo"] {
        assert!(all.contains(kept), "{kept} is not in it:\n{all}");
    }
    let mode = std::fs::metadata(person.folder().join("r.tar.gz")).unwrap().permissions();
    assert_eq!(std::os::unix::fs::PermissionsExt::mode(&mode) & 0o777, 0o600);
}

/// The output of tar, an independent program, for an archive.
#[expect(clippy::disallowed_methods, reason = "a test runs tar")]
fn tar(flags: &[&str], packed: &[u8]) -> String {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(packed).unwrap();
    let output =
        std::process::Command::new("tar").args(flags).arg("-f").arg(file.path()).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

#[tokio::test]
async fn an_install_is_looked_at_and_what_is_missing_named() {
    let person = Person::new().await;
    let kube = &person.bed.world.kube;
    let checked = person.says(&["install", "check"]).await.with(3, "v1.34.4", "");
    for wanted in [
        "FAILED",
        "there is no Deployment navigator-controller in namespace navigator",
        "its status does not say",
    ] {
        assert!(checked.out.contains(wanted), "{wanted}: {checked:?}");
    }
    let available = json!({"conditions": [{"type": "Available", "status": "True"}]});
    for version in ["v1beta1", "v1alpha1"] {
        let path = "/apis/apiregistration.k8s.io/v1/apiservices";
        let name = format!("{version}.navigator.jetstack.io");
        let mut object = kube.get(&format!("{path}/{name}")).unwrap();
        object["status"] = available.clone();
        kube.put(path, &name, object);
    }
    for name in ["navigator-apiserver", "navigator-controller"] {
        let image = format!("example.org/navigator:v{}", env!("CARGO_PKG_VERSION"));
        let deployment = json!({
            "spec": {"replicas": 1, "selector": {}, "template": {"spec": {"containers": [{"name": "c", "image": image}]}}},
            "status": {"readyReplicas": 1},
        });
        kube.put("/apis/apps/v1/namespaces/navigator/deployments", name, deployment);
    }
    let user = "system:serviceaccount:navigator:navigator-controller";
    let rules = rbac::controller_rules(&["cassandraclusters", "elasticsearchclusters"]);
    for rule in rules.iter().chain(&rbac::controller_install_rules()) {
        for resource in rule.resources.iter().flatten() {
            rule.verbs.iter().for_each(|verb| kube.allow(user, verb, resource));
        }
    }
    let checked = person.says(&["install", "check"]).await.with(0, "you may change", "");
    assert!(!checked.out.contains("FAILED"), "{checked:?}");
    kube.forbid(user, "delete", "pods");
    let checked = person.says(&["install", "check", "-o", "json"]).await.with(3, "", "");
    let json: Value = serde_json::from_str(&checked.out).unwrap();
    let failed = json["checks"].as_array().unwrap().iter().find(|one| one["result"] == "FAILED");
    let message = failed.unwrap()["message"].as_str().unwrap();
    assert!(message.contains("may not delete pods in namespace db"), "{message}");
    person.says(&["version"]).await.with(0, "Kubernetes  v1.34.4\n", "");
}

#[tokio::test]
async fn what_needs_no_cluster_asks_none() {
    let asked = |words: &[&str]| Ended::from(super::help::called(words));
    asked(&["predicates"]).with(0, "DataOutlivesPod", "");
    asked(&["predicates", "-o", "name"]).with(0, "PeersUp\n", "");
    asked(&["version", "--client"]).with(0, env!("CARGO_PKG_VERSION"), "");
    asked(&["install", "generate"]).with(0, "kind: APIService", "");
    asked(&["status", "--timeout", "0"]).with(64, "", "a number of seconds");
    asked(&["statsu"]).with(64, "", "unrecognized subcommand 'statsu'");
    asked(&[]).with(64, "", "Usage: kubectl navigator");
    asked(&["status", "demo"]).with(64, "", "error: kubeconfig: ");
}

#[tokio::test]
async fn a_shell_becomes_kubectl_exec_into_the_first_ready_node() {
    let person = Person::new().await;
    person.cluster("demo", 2).await;
    person.report("cass-demo-ring-0", "Starting", json!([])).await;
    // A kubectl that prints its arguments.
    let fake = person.folder().join("bin/kubectl");
    std::fs::create_dir_all(fake.parent().unwrap()).unwrap();
    executable::write(&fake, "#!/bin/sh\nprintf '%s\\n' \"$@\"\n");
    #[expect(clippy::disallowed_methods, reason = "a test runs the built binary")]
    let shell = async |words: &[&str]| -> Ended {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_navigator"));
        command.arg0("kubectl-navigator").args(words).env_clear();
        command.env("PATH", fake.parent().unwrap());
        command.env("KUBECONFIG", &person.kubeconfig).stdin(std::process::Stdio::null());
        output(command).await.into()
    };
    let became = shell(&["shell", "demo", "--", "-e", "SELECT 1"]).await.with(0, "", "");
    let words: Vec<&str> = became.out.lines().collect();
    assert_eq!(
        words[..7],
        ["--namespace", "db", "exec", "-i", "cass-demo-ring-1", "-c", "cassandra"]
    );
    assert!(
        became.out.contains("bin/cqlsh") && became.out.ends_with("cqlsh\n-e\nSELECT 1\n"),
        "{became:?}"
    );
    shell(&["shell", "demo", "ring-0"]).await.with(0, "\ncass-demo-ring-0\n", "");
    person.report("cass-demo-ring-1", "Starting", json!([])).await;
    shell(&["shell", "demo"]).await.with(3, "", "no node of cassandracluster");
    std::fs::remove_file(&fake).unwrap();
    shell(&["shell", "demo", "ring-0"]).await.with(64, "", "kubectl is not on the PATH");
}
