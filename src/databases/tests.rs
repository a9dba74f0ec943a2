//! Tests that everything that is built from a sample cluster is as in `tests/golden/controller`.

mod object_names;
mod searches;

use std::{fs, path::Path};

use serde_json::{Value, json};

use super::{
    cassandra::{self, v1beta1::CassandraCluster},
    elasticsearch::{self, v1beta1::ElasticsearchCluster},
};
use crate::{
    api::names::{self, annotation, label},
    controller::{
        DesiredCluster, ObjectSettings,
        managed_cluster::build_desired_cluster,
        observe::{ObservedCluster, ObservedPool},
        resources::{
            DesiredObject, build_resources, disruption_budget, pilot_body, pod, stateful_set,
        },
    },
};

/// A sample cluster with every field that ends up in objects.
const SHOP: &str = r#"
apiVersion: navigator.jetstack.io/v1beta1
kind: CassandraCluster
metadata: {name: shop, namespace: default, uid: 5d0c7a1e, generation: 3}
spec:
  version: "5.0.6"
  numTokens: 16
  config: {compaction_throughput: 64MiB/s}
  jvm: {heap: 1Gi}
  pilotSettings: {silenceLimitSeconds: 300}
  services: {client: {type: LoadBalancer, loadBalancerSourceRanges: [10.0.0.0/8]}}
  podTemplate: {spec: {priorityClassName: databases}}
  nodePools:
  - name: a
    replicas: 3
    datacenter: eu
    rack: a
    zone: eu-west-1a
    resources: {limits: {memory: 4Gi}, requests: {cpu: "1", memory: 4Gi}}
    persistence: {size: 500Gi, storageClass: fast, labels: {team: shop}}
    config: {compaction_throughput: 128MiB/s}
    podTemplate:
      spec:
        tolerations: [{key: databases, operator: Exists}]
        containers: [{name: cassandra, env: [{name: TZ, value: UTC}]}]
  - {name: scratch, persistence: {enabled: false}}
"#;

/// A sample cluster whose pools have the three kinds of roles.
const LOGS: &str = r#"
apiVersion: navigator.jetstack.io/v1beta1
kind: ElasticsearchCluster
metadata: {name: logs, namespace: default, uid: 9a1e44d0, generation: 2}
spec:
  version: "6.8.23"
  plugins: [{name: analysis-icu}]
  config: {indices.recovery.max_bytes_per_sec: 80mb}
  securityContext: {runAsUser: 1001}
  services: {client: {labels: {team: logs}}}
  nodePools:
  - name: master
    replicas: 3
    roles: [master]
    resources: {limits: {memory: 1Gi}}
    persistence: {size: 10Gi}
  - name: data
    replicas: 2
    roles: [data, ingest]
    zone: eu-west-1a
    jvm: {heap: 4Gi}
    resources: {limits: {memory: 8Gi}}
    persistence: {size: 200Gi, storageClass: fast}
    podTemplate:
      spec:
        initContainers:
        - name: sysctl
          image: busybox:1
          command: [sysctl, -w, vm.max_map_count=262144]
          securityContext: {privileged: true, runAsUser: 0, runAsNonRoot: false}
  - {name: front, replicas: 2, roles: [coordinating], persistence: {enabled: false}}
"#;

fn settings() -> ObjectSettings {
    ObjectSettings {
        pilot_image: "quay.io/jetstack/navigator:v0.2.0".into(),
        store_id: "0b9b6f9c".into(),
        owner_references: false,
    }
}

fn shop() -> DesiredCluster {
    build_desired_cluster(&serde_yaml::from_str::<CassandraCluster>(SHOP).unwrap(), &settings())
}

fn logs() -> DesiredCluster {
    build_desired_cluster(&serde_yaml::from_str::<ElasticsearchCluster>(LOGS).unwrap(), &settings())
}

fn everything(desired: &DesiredCluster) -> Vec<Value> {
    let observed = ObservedCluster::default();
    let budget = disruption_budget(desired, &observed, &settings(), None);
    let mut bodies: Vec<Value> = build_resources(desired, &observed, &settings(), |_| None)
        .into_iter()
        .chain([budget])
        .map(|resource| {
            let (DesiredObject::StatefulSet(object) | DesiredObject::Other(object)) = resource;
            object.body
        })
        .collect();
    for pool in &desired.pools {
        let name = names::pilot_name(&pool.set, 0);
        bodies.push(pilot_body(desired, pool, &name, 0, &settings()));
    }
    bodies
}

#[test]
fn a_cassandra_cluster_becomes_exactly_these_objects() {
    compare(&shop(), "cassandra.yaml");
}

#[test]
fn an_elasticsearch_cluster_becomes_exactly_these_objects() {
    compare(&logs(), "elasticsearch.yaml");
}

fn compare(desired: &DesiredCluster, golden: &str) {
    let mut text = String::new();
    for body in everything(desired) {
        text.push_str("---\n");
        text.push_str(&serde_yaml::to_string(&body).unwrap());
    }
    let name = format!("tests/golden/controller/{golden}");
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(&name);
    #[expect(clippy::disallowed_methods, reason = "a switch of the tests, not of the product")]
    let names = std::env::var("UPDATE_GOLDEN").unwrap_or_default();
    // As in tests/it/golden.rs, which looks after the reasons too.
    if names.split_whitespace().any(|part| part == "1" || name.contains(part)) {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, &text).unwrap();
    }
    let expected = fs::read_to_string(&path).expect("make golden NAME=controller writes it");
    assert_eq!(text, expected, "{path:?} differs; make golden NAME={name} rewrites it");
}

#[test]
fn every_object_is_marked_found_by_the_watch_and_no_collectors() {
    for (desired, label) in
        [(shop(), cassandra::names::label::CLUSTER), (logs(), elasticsearch::names::label::CLUSTER)]
    {
        every_object_is_marked(&desired, label);
    }
}

fn every_object_is_marked(desired: &DesiredCluster, label: &str) {
    for body in everything(desired) {
        let meta = &body["metadata"];
        let what = format!("{} {}", body["kind"], meta["name"]);
        assert_eq!(meta["namespace"], "default", "{what}");
        assert_eq!(meta["annotations"][annotation::CLUSTER_UID], desired.uid.as_str(), "{what}");
        let owners = usize::from(body["kind"] == "Pilot");
        let found = meta["ownerReferences"].as_array().map_or(0, Vec::len);
        assert_eq!(found, owners, "{what}: Kubernetes' collector decides nothing about databases");
        assert_eq!(meta["annotations"][annotation::STORE_ID], "0b9b6f9c", "{what}");
        assert_eq!(meta["labels"][label::K8S_MANAGED_BY], "navigator", "{what}");
        assert_eq!(meta["labels"][label], desired.name.as_str(), "{what}");
    }
}

#[test]
fn an_upgrade_of_ours_changes_pod_templates_but_not_what_pods_are_compared_by() {
    let newer =
        ObjectSettings { pilot_image: "quay.io/jetstack/navigator:v0.3.0".into(), ..settings() };
    let cluster = serde_yaml::from_str::<CassandraCluster>(SHOP).unwrap();
    let (before, after) =
        (build_desired_cluster(&cluster, &settings()), build_desired_cluster(&cluster, &newer));
    assert_eq!(before.pools[0].pod_hash, after.pools[0].pod_hash);
    assert_eq!(before.pools[0].config_hash(), after.pools[0].config_hash());
    let template = |desired: &DesiredCluster| pod::build_template(desired, &desired.pools[0], true);
    assert_ne!(template(&before), template(&after));
}

#[test]
fn a_changed_spec_changes_what_pods_are_compared_by() {
    let before = shop();
    for change in ["priorityClassName: other", "memory: 8Gi", r#"version: "5.0.7""#] {
        let text = match change.split(':').next().unwrap() {
            "priorityClassName" => SHOP.replace("priorityClassName: databases", change),
            "memory" => SHOP.replace("memory: 4Gi", change),
            _ => SHOP.replace(r#"version: "5.0.6""#, change),
        };
        let after = build_desired_cluster(
            &serde_yaml::from_str::<CassandraCluster>(&text).unwrap(),
            &settings(),
        );
        assert_ne!(before.pools[0].pod_hash, after.pools[0].pod_hash, "{change}");
    }
}

#[test]
fn replicas_do_not_count_in_the_hash_of_a_stateful_set() {
    let desired = shop();
    let found = ObservedPool::default();
    let one = stateful_set(&desired, &settings(), &desired.pools[0], Some(&found), 1, None);
    let two = stateful_set(&desired, &settings(), &desired.pools[0], Some(&found), 2, None);
    assert_eq!(one.hash(), two.hash());
    assert_ne!(one.body, two.body);
}

/// Returns the grace period of the first pool's pods, and the one that their pilot is told.
fn grace(desired: &DesiredCluster) -> (Value, Value) {
    let template = pod::build_template(desired, &desired.pools[0], true);
    let containers = template["spec"]["containers"].as_array().unwrap();
    let container = containers.iter().find(|c| c["name"] == "cassandra").unwrap();
    let variables = container["env"].as_array().unwrap();
    let told = variables.iter().find(|v| v["name"] == "NAVIGATOR_TERMINATION_GRACE_PERIOD");
    let granted = template["spec"]["terminationGracePeriodSeconds"].clone();
    (granted, told.unwrap()["value"].clone())
}

#[test]
fn the_pilot_is_told_the_grace_period_that_its_pod_has() {
    let with = |cluster: &str, pool: &str| {
        let text =
            SHOP.replace("podTemplate: {spec: {priorityClassName: databases}}", cluster).replace(
                "      spec:\n        tolerations",
                &format!("      spec:\n{pool}        tolerations"),
            );
        grace(&build_desired_cluster(
            &serde_yaml::from_str::<CassandraCluster>(&text).unwrap(),
            &settings(),
        ))
    };
    let cluster = |seconds: &str| {
        format!("podTemplate: {{spec: {{terminationGracePeriodSeconds: {seconds}}}}}")
    };
    let pool = "        terminationGracePeriodSeconds: 1800\n";
    assert_eq!(grace(&shop()), (json!(300), json!("300")));
    assert_eq!(with(&cluster("60"), ""), (json!(60), json!("60")));
    assert_eq!(with(&cluster("60"), pool), (json!(1800), json!("1800")));
    assert_eq!(with(&cluster("null"), ""), (Value::Null, json!("30")), "Kubernetes' own default");
}
