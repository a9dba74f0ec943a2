//! What a person and our roles do with the API of one host.

use std::{
    io::{BufRead, BufReader},
    process::Child,
    sync::mpsc,
    time::Duration,
};

use navigator::local::api::Identity;
use serde_json::{Value, json};

use super::host::{Host, run};

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

/// A pod of this name and uid, as one that runs in it.
fn pod(name: &str, uid: &Value) -> Identity {
    Identity::Pod {
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

/// What a kubectl that goes on prints, line by line; it is ended with this.
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
    let before = [Identity::Admin, Identity::Controller, pod("a", &uid)];
    let before = before.map(|who| host.server.kubeconfig(&who));
    let second = Host::over(&folder).await.err().unwrap().to_string();
    assert_eq!(second, format!("failed to listen on {address}"));
    host.stop().await;
    drop(host);

    let host = Host::over(&folder).await.unwrap();
    assert_eq!(host.server.address(), address, "kubeconfigs name it");
    let after = [Identity::Admin, Identity::Controller, pod("a", &uid)];
    assert_eq!(after.map(|who| host.server.kubeconfig(&who)), before);
    assert_eq!(host.kubectl("get pods -o name").await, "pod/a\n");
    for name in ["ca.key", "admin.key", "token.key"] {
        use std::os::unix::fs::PermissionsExt;
        let mode = std::fs::metadata(folder.join("pki").join(name)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{name}");
    }
}
