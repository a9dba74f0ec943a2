//! What a person and our roles do with the API of one host.

use std::{
    io::{BufRead, BufReader, Write},
    ops::Range,
    process::Child,
    sync::mpsc,
    time::Duration,
};

use navigator::{
    local::{
        api::ClientIdentity,
        log_retention::{self, LogRetention},
    },
    runtime::admin,
};
use serde_json::{Value, json};

use super::host::{Host, run};
use crate::support::wait::until;

const PATIENCE: Duration = Duration::from_secs(60);

const POD: &str = r#"
apiVersion: v1
kind: Pod
metadata: {name: a, namespace: default, labels: {app: demo}}
spec:
  nodeName: here
  containers:
  - {name: main, image: example, env: [{name: A, value: "1"}], ports: [{containerPort: 80}]}
  - {name: side, image: example}
"#;

/// Lets the pods of ServiceAccount `demo` read pods.
const READER: &str = r#"
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: reader, namespace: default}
rules:
- {apiGroups: [""], resources: [pods], verbs: [get, list]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: reader, namespace: default}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: reader}
subjects:
- {kind: ServiceAccount, name: demo}
"#;

/// The identity of a pod of this name and uid.
fn pod(name: &str, uid: &Value) -> ClientIdentity {
    ClientIdentity::Pod {
        namespace: "default".into(),
        service_account: "demo".into(),
        pod_name: name.into(),
        pod_uid: uid.as_str().unwrap().into(),
    }
}

const CLUSTER: &str = r#"
apiVersion: navigator.jetstack.io/v1beta1
kind: CassandraCluster
metadata: {name: demo}
spec:
  version: "5.0.6"
  nodePools:
  - {name: a, replicas: 3}
"#;

#[tokio::test(flavor = "multi_thread")]
async fn kubectl_gets_applies_patches_and_deletes() {
    let host = Host::start().await;
    let listed = host.kubectl("get namespaces").await;
    assert!(listed.contains("default     Active"), "{listed}");
    assert!(listed.contains("navigator   Active"), "{listed}");

    let applied = host.with("apply -f -", POD).await;
    assert_eq!(applied, "pod/a created\n");
    assert_eq!(host.with("apply -f -", POD).await, "pod/a unchanged\n");
    let changed = POD.replace(r#"value: "1""#, r#"value: "2""#);
    assert_eq!(host.with("apply -f -", &changed).await, "pod/a configured\n");
    let pod = host.json("get pod a").await;
    assert_eq!(pod["spec"]["containers"][0]["env"], json!([{"name": "A", "value": "2"}]));
    assert_eq!(pod["spec"]["containers"].as_array().unwrap().len(), 2);
    host.kubectl("label pod a tier=one").await;
    let rows = host.kubectl("get pods --show-labels").await;
    assert!(rows.contains("a      0/2     Pending   0") && rows.contains("tier=one"), "{rows}");

    assert_eq!(
        host.with("apply -f -", CLUSTER).await,
        "cassandracluster.navigator.jetstack.io/demo created\n"
    );
    host.kubectl(r#"patch cassandracluster demo --type merge -p {"spec":{"paused":true}}"#).await;
    assert_eq!(host.json("get cassandracluster demo").await["spec"]["paused"], true);
    host.kubectl("delete cassandracluster demo --timeout=60s").await;
    let gone = host.refused("get cassandracluster demo").await;
    assert!(gone.contains("(NotFound)"), "{gone}");
}

/// What is written of encryption and logins as a cluster is made stays whatever is said without a
/// word about them, in each of the ways in which kubectl writes a manifest.
#[tokio::test(flavor = "multi_thread")]
async fn a_manifest_without_a_word_about_security_makes_a_secure_cluster_that_stays_so() {
    let host = Host::start().await;
    let (made, larger) =
        (CLUSTER.replace("demo", "made"), CLUSTER.replace("replicas: 3", "replicas: 5"));
    let secure = json!({"mode": "Secure"});
    let security = async |name: &str| {
        host.json(&format!("get cassandracluster {name}")).await["spec"]["security"].clone()
    };
    let tried =
        host.with("apply --dry-run=server -o jsonpath={.spec.security} -f -", CLUSTER).await;
    assert_eq!(tried, r#"{"mode":"Secure"}"#);
    for (write, object) in [("create", &*made), ("apply", CLUSTER)] {
        let done = host.with(&format!("{write} -f -"), object).await;
        assert!(done.ends_with(" created\n"), "{done}");
    }
    for name in ["made", "demo"] {
        assert_eq!(security(name).await, secure, "{name}");
    }
    let revision = async || {
        host.json("get cassandracluster demo").await["metadata"]["resourceVersion"].clone()
    };
    let before = revision().await;
    host.with("apply -f -", CLUSTER).await;
    assert_eq!(revision().await, before, "nothing was written");
    for write in ["apply", "replace", "apply --server-side --force-conflicts"] {
        for (manifest, nodes) in [(&*larger, 5), (CLUSTER, 3)] {
            host.with(&format!("{write} -f -"), manifest).await;
            let spec = &host.json("get cassandracluster demo").await["spec"];
            assert_eq!(
                (&spec["nodePools"][0]["replicas"], &spec["security"]),
                (&json!(nodes), &secure)
            );
        }
    }
    let by_server = CLUSTER.replace("demo", "server");
    for _ in 0..2 {
        host.with("apply --server-side -f -", &by_server).await;
        assert_eq!(security("server").await, secure);
    }
    // What was put back from a dump is as it was, and a manifest of the older version is open.
    let older = CLUSTER.replace("v1beta1", "v1alpha1").replace("demo", "older");
    host.with("apply -f -", &older).await;
    assert_eq!(security("older").await, json!({"mode": "Open"}));
    let dump = host.kubectl("get cassandracluster older -o yaml").await;
    host.kubectl("delete cassandracluster older --timeout=60s").await;
    let kept = dump.lines().filter(|line| !line.contains("resourceVersion:"));
    let dump = kept.collect::<Vec<_>>().join("\n");
    host.with("create -f -", &dump).await;
    assert_eq!(security("older").await, json!({"mode": "Open"}));
}

/// The output of a kubectl that goes on, line by line; kubectl is ended with this.
struct Lines {
    child: Child,
    lines: mpsc::Receiver<String>,
}

impl Lines {
    fn of(host: &Host, arguments: &str) -> Self {
        let mut child = host.command(arguments).spawn().unwrap();
        let stdout = BufReader::new(child.stdout.take().unwrap());
        let (sender, lines) = mpsc::channel();
        std::thread::spawn(move || {
            for line in stdout.lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        Self { child, lines }
    }

    /// Waits for the end of kubectl's output.
    fn end(&self) {
        let more = self.lines.recv_timeout(PATIENCE);
        assert_eq!(more, Err(mpsc::RecvTimeoutError::Disconnected));
    }

    fn next(&self) -> String {
        self.lines.recv_timeout(PATIENCE).expect("nothing more was printed in time")
    }
}

impl Drop for Lines {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn kubectl_watches() {
    let host = Host::start().await;
    let watch = Lines::of(&host, "get pods -w --no-headers");
    host.with("apply -f -", POD).await;
    let seen = watch.next();
    assert!(seen.starts_with("a ") && seen.contains("Pending"), "{seen}");
    host.kubectl("delete pod a --grace-period=0 --force").await;
    let seen = watch.next();
    assert!(seen.starts_with("a "), "{seen}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_may_what_its_roles_say_for_as_long_as_it_exists() {
    let host = Host::start().await;
    host.with("apply -f -", POD).await;
    let uid = host.json("get pod a").await["metadata"]["uid"].clone();
    let who = host.credentials(&pod("a", &uid));
    let denied = host.refused_as(&who, "get pods", "").await;
    let user = "system:serviceaccount:default:demo";
    assert!(denied.contains(&format!("User \"{user}\" cannot list resource \"pods\"")), "{denied}");
    host.with("apply -f -", READER).await;
    let seen = run(host.command_as(&who, "get pods -o name"), "").await;
    assert_eq!(String::from_utf8(seen.stdout).unwrap(), "pod/a\n");
    let denied = host.refused_as(&who, "get pods -n navigator", "").await;
    assert!(denied.contains("in the namespace \"navigator\""), "{denied}");
    host.kubectl("delete pod a --grace-period=0 --force").await;
    let nobody = host.refused_as(&who, "get pods", "").await;
    assert!(nobody.contains("Unauthorized") || nobody.contains("must be logged in"), "{nobody}");
}

#[tokio::test(flavor = "multi_thread")]
async fn credentials_and_objects_outlive_the_server() {
    let place = tempfile::tempdir().unwrap();
    let folder = place.path().join("state");
    let host = Host::over(&folder).await.unwrap();
    host.with("apply -f -", POD).await;
    let address = host.server.address();
    let uid = host.json("get pod a").await["metadata"]["uid"].clone();
    let before = [ClientIdentity::Admin, ClientIdentity::Controller, pod("a", &uid)];
    let before = before.map(|who| host.server.build_kubeconfig(&who));
    let second = Host::over(&folder).await.err().unwrap().to_string();
    assert_eq!(second, format!("failed to listen on {address}"));
    host.stop().await;
    drop(host);

    let host = Host::over(&folder).await.unwrap();
    assert_eq!(host.server.address(), address, "kubeconfigs name it");
    let after = [ClientIdentity::Admin, ClientIdentity::Controller, pod("a", &uid)];
    assert_eq!(after.map(|who| host.server.build_kubeconfig(&who)), before);
    assert_eq!(host.kubectl("get pods -o name").await, "pod/a\n");
    for name in ["ca.key", "admin.key", "token.key"] {
        use std::os::unix::fs::PermissionsExt;
        let mode = std::fs::metadata(folder.join("pki").join(name)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{name}");
    }
}

/// The latest revision of everything.
async fn revision(host: &Host) -> String {
    let list: Value = serde_json::from_str(&host.kubectl("get --raw /api/v1/nodes").await).unwrap();
    list["metadata"]["resourceVersion"].as_str().unwrap().to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_controller_makes_what_a_cluster_needs_and_then_is_quiet() {
    let host = Host::start().await;
    let runtime = host.control();
    host.with("apply -f -", CLUSTER).await;
    let made = [
        "statefulset/cass-demo-a",
        "service/cass-demo-nodes",
        "serviceaccount/cass-demo",
        "role/cass-demo-pilot",
        "rolebinding/cass-demo-pilot",
        "poddisruptionbudget/cass-demo",
        "pilot/cass-demo-a-0",
    ];
    let wanted = made.join(" ");
    until("the cluster's objects", PATIENCE, async || {
        let output = run(host.command(&format!("get -o name {wanted}")), "").await;
        let (stdout, stderr) = (output.stdout, output.stderr);
        let all = host.kubectl("get sts,svc,sa,role,rolebinding,pdb,pilots -o name").await;
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        if output.status.success() {
            Ok(())
        } else {
            Err(format!("{}{}{all}", text(stdout), text(stderr)))
        }
    })
    .await;
    let quiet = until("a server to which nobody writes", PATIENCE, async || {
        let before = revision(&host).await;
        tokio::time::sleep(Duration::from_secs(2)).await;
        let after = revision(&host).await;
        if before == after { Ok(after) } else { Err(format!("{before} became {after}")) }
    })
    .await;
    let outcomes = String::from_utf8(admin::metrics_text(runtime.metrics())).unwrap();
    assert!(outcomes.contains(r#"outcome="ok""#), "{outcomes}");
    for bad in ["error", "fenced", "foreign"] {
        assert!(!outcomes.contains(&format!("outcome=\"{bad}\"")), "{outcomes}");
    }
    let described = host.kubectl("describe cassandracluster demo").await;
    assert!(described.contains("Normal  CreateNodePool"), "{described}");
    let events = host.kubectl("get events").await;
    assert!(events.contains("cassandracluster/demo   made StatefulSet cass-demo-a"), "{events}");
    let described = host.kubectl("describe statefulset cass-demo-a").await;
    assert!(described.contains("Replicas:           1 desired | 0 total"), "{described}");
    let rows = host.kubectl("get statefulsets").await;
    assert!(rows.contains("cass-demo-a   0/1"), "{rows}");

    // The controller puts back what a user changed, and removes what it applies no more.
    host.kubectl(
        "patch service cass-demo-nodes -p {\"spec\":{\"publishNotReadyAddresses\":false}}",
    )
    .await;
    host.kubectl("label service cass-demo-nodes app.kubernetes.io/component=other --overwrite")
        .await;
    until("the Service as it was", PATIENCE, async || {
        let service = host.json("get service cass-demo-nodes").await;
        let label = &service["metadata"]["labels"]["app.kubernetes.io/component"];
        if label == "database" { Ok(()) } else { Err(service.to_string()) }
    })
    .await;
    assert_ne!(revision(&host).await, quiet);

    // Who may reach the pods is kept while the spec says so.
    let patch = |what: &str| format!("patch cassandracluster demo --type=merge -p {what}");
    let guard =
        r#"{"spec":{"security":{"network":{"policy":"Managed","clients":[{"podSelector":{}}]}}}}"#;
    let rules = "get networkpolicy cass-demo -o jsonpath={.spec.ingress[*].ports[*].port}";
    let is = async |what: &str, wanted: Option<&str>| {
        until(what, PATIENCE, async || {
            let output = run(host.command(rules), "").await;
            let seen = output.status.success().then(|| String::from_utf8(output.stdout).unwrap());
            if seen.as_deref() == wanted { Ok(()) } else { Err(format!("{seen:?}")) }
        })
        .await;
    };
    let ports = Some("7000 7001 9042 8080 12000 12001 12002");
    host.kubectl(&patch(guard)).await;
    is("the NetworkPolicy", ports).await;
    let edit = r#"{"spec":{"ingress":[]}}"#;
    host.kubectl(&format!("patch networkpolicy cass-demo --type=merge -p {edit}")).await;
    is("the NetworkPolicy as it was", ports).await;
    host.kubectl("delete networkpolicy cass-demo").await;
    is("the NetworkPolicy again", ports).await;
    host.kubectl(&patch(r#"{"spec":{"security":{"network":{"policy":"None"}}}}"#)).await;
    is("no NetworkPolicy", None).await;
    runtime.shutdown().trigger();
    runtime.tasks().join().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn apply_keeps_to_what_each_manager_said() {
    let host = Host::start().await;
    let map = |data: &str| {
        format!(
            "{{apiVersion: v1, kind: ConfigMap, metadata: {{name: m, namespace: default}}, \
             data: {{{data}}}}}"
        )
    };
    let data = async || host.json("get configmap m").await["data"].clone();
    host.with("apply --server-side --field-manager=one -f -", &map("a: x, b: x")).await;
    host.with("apply --server-side --field-manager=two -f -", &map("c: x, b: x")).await;
    assert_eq!(data().await, json!({"a": "x", "b": "x", "c": "x"}));
    let refused =
        run_with(&host, "apply --server-side --field-manager=two -f -", &map("a: z")).await;
    assert!(refused.contains("conflict with \"one\": .data.a"), "{refused}");
    host.with("apply --server-side --field-manager=two -f -", &map("")).await;
    assert_eq!(data().await, json!({"a": "x", "b": "x"}), "the other one still wants b");
    host.with("apply --server-side --field-manager=two --force-conflicts -f -", &map("a: z")).await;
    assert_eq!(data().await, json!({"a": "z", "b": "x"}));
    let before = revision(&host).await;
    host.with("apply --server-side --field-manager=two -f -", &map("a: z")).await;
    assert_eq!(revision(&host).await, before, "the same again writes nothing");
}

async fn run_with(host: &Host, arguments: &str, manifest: &str) -> String {
    let output = run(host.command(arguments), manifest).await;
    assert!(!output.status.success(), "kubectl {arguments} succeeded");
    String::from_utf8(output.stderr).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn kubectl_makes_objects_out_of_flags() {
    let host = Host::start().await;
    host.kubectl("create namespace shop").await;
    host.kubectl("create configmap m -n shop --from-literal=a=b").await;
    assert_eq!(host.json("get configmap m -n shop").await["data"], json!({"a": "b"}));
    host.kubectl("create secret generic s -n shop --from-literal=a=b").await;
    assert_eq!(host.json("get secret s -n shop").await["data"], json!({"a": "Yg=="}));
    host.kubectl("create serviceaccount demo -n shop").await;
    host.kubectl("create role r -n shop --verb=get,list --resource=pods").await;
    host.kubectl("create rolebinding r -n shop --role=r --serviceaccount=shop:demo").await;
    let rule = json!([{"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list"]}]);
    assert_eq!(host.json("get role r -n shop").await["rules"], rule);
    let binding = host.json("get rolebinding r -n shop").await;
    assert_eq!(binding["roleRef"]["name"], "r");
    assert_eq!(binding["subjects"][0]["namespace"], "shop");
    let again = host.refused("create namespace shop").await;
    assert!(again.contains("(AlreadyExists)"), "{again}");
}

#[tokio::test(flavor = "multi_thread")]
async fn wrong_and_unknown_fields_are_refused() {
    let host = Host::start().await;
    let wrong = POD.replace("nodeName: here", "nodeName: [here]");
    let refused = run_with(&host, "apply -f -", &wrong).await;
    assert!(refused.contains("cannot be handled as a Pod: invalid type: sequence"), "{refused}");
    let typo = POD.replace("nodeName", "nodeNam");
    let refused = run_with(&host, "apply -f -", &typo).await;
    assert!(refused.contains("unknown field \"spec.nodeNam\""), "{refused}");
    let nowhere = POD.replace("namespace: default", "namespace: nowhere");
    let refused = run_with(&host, "apply -f -", &nowhere).await;
    assert!(refused.contains("namespaces \"nowhere\" not found"), "{refused}");
    let refused = run_with(&host, "apply -f -", &POD.replace("name: a,", "name: A_,")).await;
    assert!(refused.contains("metadata.name: Invalid value"), "{refused}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_running_pod_has_its_time_to_end() {
    let host = Host::start().await;
    host.with("apply -f -", POD).await;
    let described = host.kubectl("describe pod a").await;
    assert!(described.contains("Status:       Pending"), "{described}");
    host.kubectl("delete pod a --wait=false").await;
    let going = host.json("get pod a").await;
    assert_eq!(going["metadata"]["deletionGracePeriodSeconds"], 30);
    assert!(host.kubectl("get pod a").await.contains("Terminating"));
    // The node still reports while the pod ends.
    let status = r#"patch pod a --subresource=status -p {"status":{"phase":"Running"}}"#;
    host.kubectl(status).await;
    host.kubectl("delete pod a --wait=false --grace-period=5").await;
    let sooner = host.json("get pod a").await;
    assert_eq!(sooner["metadata"]["deletionGracePeriodSeconds"], 5);
    assert_eq!(sooner["status"]["phase"], "Running");
    host.kubectl("delete pod a --force --grace-period=0 --timeout=60s").await;
    assert!(host.refused("get pod a").await.contains("NotFound"));

    // A pod that runs on no node has nothing to end.
    host.with("apply -f -", &POD.replace("nodeName: here", "restartPolicy: Never")).await;
    host.kubectl("delete pod a --timeout=60s").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_namespace_ends_when_whoever_empties_it_says_so() {
    let host = Host::start().await;
    let namespace = "{apiVersion: v1, kind: Namespace, metadata: {name: db}}";
    host.with("apply -f -", namespace).await;
    host.kubectl("delete namespace db --wait=false").await;
    assert!(host.kubectl("get namespace db").await.contains("Terminating"));
    let there = POD.replace("namespace: default", "namespace: db");
    let refused = run_with(&host, "apply -f -", &there).await;
    assert!(refused.contains("because it is being terminated"), "{refused}");
    let mut ending = host.json("get namespace db").await;
    ending["spec"]["finalizers"] = json!([]);
    host.with("replace --raw /api/v1/namespaces/db/finalize -f -", &ending.to_string()).await;
    assert!(host.refused("get namespace db").await.contains("NotFound"));
}

#[tokio::test(flavor = "multi_thread")]
async fn logs_come_from_the_files_and_are_followed() {
    let host = Host::start().await;
    host.with("apply -f -", POD).await;
    let waiting = host.refused("logs a -c main").await;
    assert!(waiting.contains("is waiting to start"), "{waiting}");
    let folder = host.folder.join("logs/default/a");
    std::fs::create_dir_all(&folder).unwrap();
    let file = folder.join("main.log");
    std::fs::write(&file, "one\ntwo\nthree\n").unwrap();
    std::fs::write(folder.join("main.previous.log"), "before\n").unwrap();
    assert_eq!(host.kubectl("logs a -c main").await, "one\ntwo\nthree\n");
    assert_eq!(host.kubectl("logs a -c main --tail=2").await, "two\nthree\n");
    assert_eq!(host.kubectl("logs a -c main --tail=0").await, "");
    assert_eq!(host.kubectl("logs a -c main --previous").await, "before\n");
    for (arguments, why) in [
        ("logs a -c other", "container other is not valid for pod a"),
        ("logs a -c main --since=5s", "sinceSeconds: is not supported here"),
        ("logs b", "pods \"b\" not found"),
    ] {
        let refused = host.refused(arguments).await;
        assert!(refused.contains(why), "{refused}");
    }
    let lines = Lines::of(&host, "logs a -c main -f --tail=1");
    assert_eq!(lines.next(), "three");
    let append = |text: &str| {
        let mut log = std::fs::File::options().append(true).open(&file).unwrap();
        log.write_all(text.as_bytes()).unwrap();
    };
    append("four\n");
    assert_eq!(lines.next(), "four");
    // The next life of the container begins a new file.
    append("last\n");
    std::fs::rename(&file, folder.join("main.previous.log")).unwrap();
    std::fs::write(&file, "anew\n").unwrap();
    assert_eq!(lines.next(), "last");
    assert_eq!(lines.next(), "anew");
    append("end\n");
    host.kubectl("delete pod a --force --grace-period=0").await;
    assert_eq!(lines.next(), "end");
    lines.end();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_log_that_lost_its_beginning_goes_on() {
    let host = Host::start().await;
    host.with("apply -f -", POD).await;
    let folder = host.folder.join("logs/default/a");
    std::fs::create_dir_all(&folder).unwrap();
    let file = folder.join("main.log");
    let line = |number: usize| format!("line {number:>40}\n");
    let lines = |numbers: Range<usize>| numbers.map(line).collect::<String>();
    std::fs::write(&file, lines(0..20_000)).unwrap();
    let followed = Lines::of(&host, "logs a -c main -f --tail=1");
    assert_eq!(followed.next(), line(19_999).trim_end());
    log_retention::trim_log(&file, LogRetention { kept: 1 << 17, more: 0 }).unwrap();
    let append = |text: &str| {
        let mut log = std::fs::File::options().append(true).open(&file).unwrap();
        log.write_all(text.as_bytes()).unwrap();
    };
    append(&line(20_000));
    assert_eq!(followed.next(), line(20_000).trim_end());
    for arguments in ["logs a -c main", "logs a -c main --tail=1000000"] {
        let all = host.kubectl(arguments).await;
        let left = all.lines().count();
        assert!((2_000..6_000).contains(&left), "{left} lines");
        assert!(all == lines(20_001 - left..20_001), "{}", &all[..200]);
    }
    assert_eq!(host.kubectl("logs a -c main --tail=2").await, lines(19_999..20_001));
    // A log is emptied like this on a file system without holes.
    std::fs::File::options().write(true).truncate(true).open(&file).unwrap();
    append("anew\n");
    assert_eq!(followed.next(), "anew");
    append(&lines(0..20_000));
    log_retention::trim_log(&file, LogRetention { kept: 1 << 17, more: 0 }).unwrap();
    std::fs::rename(&file, folder.join("main.previous.log")).unwrap();
    let before = host.kubectl("logs a -c main --previous").await;
    let left = before.lines().count();
    assert!(before == lines(20_000 - left..20_000), "{}", &before[..200]);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_needs_a_connection_of_its_own_is_refused_with_what_to_do() {
    let host = Host::start().await;
    host.with("apply -f -", POD).await;
    host.kubectl(r#"patch pod a --subresource=status -p {"status":{"phase":"Running"}}"#).await;
    for (arguments, what) in [
        ("exec a -c main -- true", "there is no exec on a host without containers: run"),
        ("exec -i a -c main -- true", "there is no exec on a host without containers: run"),
        ("port-forward pod/a 0:80", "there is no port-forward on a host without containers: the"),
    ] {
        let why = host.refused(arguments).await;
        assert!(why.lines().count() == 1 && why.contains(what), "{arguments}: {why}");
    }
    // kubectl says two lines of its own before this one.
    let why = host.refused("attach a -c main").await;
    assert!(why.lines().last().unwrap().contains("there is no exec"), "{why}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_set_is_scaled() {
    let host = Host::start().await;
    host.with("apply -f -", &super::pods::set("default", "").to_string()).await;
    let scaled = host.kubectl("scale statefulset demo --replicas=3").await;
    assert_eq!(scaled, "statefulset.apps/demo scaled\n");
    assert_eq!(host.json("get statefulset demo").await["spec"]["replicas"], 3);
    // The other way, by a read and a write.
    host.kubectl("scale statefulset demo --current-replicas=3 --replicas=2").await;
    let wrong = host.refused("scale statefulset demo --current-replicas=3 --replicas=1").await;
    assert!(wrong.contains("Expected replicas to be 3, was 2"), "{wrong}");
    let path = "/apis/apps/v1/namespaces/default/statefulsets/demo/scale";
    let scale: Value =
        serde_json::from_str(&host.kubectl(&format!("get --raw {path}")).await).unwrap();
    assert_eq!((&scale["apiVersion"], &scale["kind"]), (&json!("autoscaling/v1"), &json!("Scale")));
    assert_eq!(scale["spec"], json!({"replicas": 2}));
    assert_eq!(scale["status"], json!({"replicas": 0, "selector": "app=demo"}));
    let mut stale = scale.clone();
    stale["metadata"]["resourceVersion"] = json!("1");
    let arguments = format!("replace --raw {path} -f -");
    let refused = run_with(&host, &arguments, &stale.to_string()).await;
    assert!(refused.contains("the object has been modified"), "{refused}");
    stale = scale;
    stale["spec"]["replicas"] = json!(-1);
    let refused = run_with(&host, &arguments, &stale.to_string()).await;
    assert!(refused.contains("must be greater than or equal to 0"), "{refused}");
    let unknown = host.refused("scale statefulset other --replicas=3").await;
    assert!(unknown.contains("statefulsets.apps \"other\" not found"), "{unknown}");
    let served = host.kubectl("get --raw /apis/apps/v1").await;
    let served: Value = serde_json::from_str(&served).unwrap();
    let all = served["resources"].as_array().unwrap();
    let scale = all.iter().find(|it| it["name"] == "statefulsets/scale").unwrap();
    assert_eq!((&scale["group"], &scale["kind"]), (&json!("autoscaling"), &json!("Scale")));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_folder_that_cannot_be_used_is_named() {
    let place = tempfile::tempdir().unwrap();
    let file = place.path().join("file");
    std::fs::write(&file, "").unwrap();
    let error = Host::over(&file).await.err().unwrap().to_string();
    assert_eq!(error, format!("failed to use {file:?}"));
}
