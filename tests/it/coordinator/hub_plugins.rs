//! Plugins whose manifests a hub has: what stands stays, whatever the hub says or does not say.

use navigator::engine::rbac;
use serde_json::{Value, json};

use super::{
    hub::{CLUSTER, HubFault, ReferenceHub},
    plugins::{let_apply, roll_out},
};
use crate::{
    registries::cluster::{Cluster, PATIENCE},
    support::wait,
};

const PLUGIN: &str = "33333333-0000-4000-8000-000000000001";
const CONFIG_MAPS: &str = "/api/v1/namespaces/shelf/configmaps";

fn config(name: &str, value: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "namespace": "shelf"},
        "data": {"value": value},
    })
}

/// A Deployment that is never rolled out by itself here.
fn deployment() -> Value {
    json!({
        "apiVersion": "apps/v1", "kind": "Deployment",
        "metadata": {"name": "shop", "namespace": "shelf"},
        "spec": {
            "selector": {"matchLabels": {"app": "shop"}},
            "template": {
                "metadata": {"labels": {"app": "shop"}},
                "spec": {"containers": [{"name": "shop", "image": "shop:1"}]},
            },
        },
    })
}

/// What an answer of 2019 has, and the lists of manifests in it.
fn answer(lists: &Value) -> Value {
    json!({
        "id": PLUGIN, "type": "metrics", "version": "1.0.0", "manifests": lists,
        "jobs": {"pre_apply": [], "post_apply": null},
    })
}

/// Waits until the Plugin is Stalled and says so.
async fn stalled(cluster: &Cluster, path: &str, words: &str) -> Value {
    cluster
        .until(path, |found| {
            let found = found.map(|found| found["status"]["conditions"].clone());
            let all = found.as_ref().and_then(Value::as_array).cloned().unwrap_or_default();
            all.iter().any(|one| {
                let said = one["message"].as_str().unwrap();
                one["type"] == "Stalled" && one["status"] == "True" && said.contains(words)
            })
        })
        .await
}

fn is_ready(plugin: &Value) -> bool {
    let all = plugin["status"]["conditions"].as_array().unwrap();
    all.iter().any(|one| one["type"] == "Ready" && one["status"] == "True")
}

#[tokio::test]
async fn a_plugin_of_the_hub_stays_at_what_the_hub_last_said() {
    let core = "core-hub";
    let own = [rbac::plugin_core_rules(), rbac::hub_core_rules(core)].concat();
    let user = "the-coordinator-of-a-hub";
    let mut cluster = Cluster::with_rights(core, user, Vec::new(), own).await;
    let_apply(&cluster, PLUGIN).await;
    cluster.namespace("shelf", &json!({})).await;
    let hub = ReferenceHub::start().await;
    let below = |path: &str| format!("clusters/{CLUSTER}/{path}");
    for path in ["labels", "node-pools", "roles"] {
        hub.say(&below(path), json!([]));
    }
    hub.say("users", json!([]));
    hub.say("role-bindings", json!([]));
    hub.say(&below("plugins"), json!([{"id": PLUGIN, "type": "metrics", "version": "1.0.0"}]));
    let manifests = below(&format!("plugins/{PLUGIN}"));
    let own = hub.flags();
    let mut flags: Vec<&str> = own.iter().map(String::as_str).collect();
    flags.push("--plugins");
    let path = format!("{}/{PLUGIN}", cluster.kind("plugins"));
    let value = async |cluster: &Cluster, name: &str| {
        let found = cluster.get(&format!("{CONFIG_MAPS}/{name}")).await;
        found.map(|found| found["data"]["value"].clone())
    };

    // The hub has the Plugin, and not what it consists of. Then it says that, too.
    cluster.start(&flags);
    stalled(&cluster, &path, "answered with 404").await;
    let first = [config("first", "one"), config("second", "one")];
    hub.say(&manifests, answer(&json!([first, []])));
    cluster.kill();
    cluster.start(&flags);
    cluster.condition(&path, "Ready", "Applied").await;
    assert_eq!(value(&cluster, "second").await, Some("one".into()));

    // Whatever is no answer changes nothing, and is said.
    hub.say(&manifests, answer(&json!([[config("first", "two")]])));
    let faults = [
        (HubFault::Code(503), "answered with 503"),
        (HubFault::Cut, "no lists of manifests"),
        (HubFault::Large(4), "longer than 3 MiB"),
    ];
    for (fault, words) in faults {
        hub.fail(fault);
        cluster.kill();
        cluster.start(&flags);
        let found = stalled(&cluster, &path, words).await;
        assert!(is_ready(&found), "{words}: {found}");
    }
    hub.fail(HubFault::None);
    for (said, words) in [
        (json!("nonsense"), "no lists of manifests"),
        (answer(&json!([])), "there are no manifests"),
        (answer(&json!([[{"kind": "ConfigMap"}]])), "lacks apiVersion"),
        (json!({"manifests": [], "jobs": {"pre_apply": [{"kind": "Job"}]}}), "has jobs beside"),
    ] {
        hub.say(&manifests, said);
        cluster.kill();
        cluster.start(&flags);
        stalled(&cluster, &path, words).await;
    }
    for name in ["first", "second"] {
        assert_eq!(value(&cluster, name).await, Some("one".into()), "{name}");
    }

    // A change is followed, by a coordinator that goes on as well.
    hub.say(&manifests, answer(&json!([[config("first", "two")]])));
    cluster.kill();
    cluster.start(&flags);
    cluster.condition(&path, "Ready", "Applied").await;
    assert_eq!(value(&cluster, "first").await, Some("two".into()));
    assert_eq!(value(&cluster, "second").await, None);

    // What began before the hub went away is brought to its end.
    hub.say(&manifests, answer(&json!([[config("first", "three")], [deployment()]])));
    cluster.kill();
    cluster.start(&flags);
    let waits = "waits for Deployment shelf/shop";
    cluster
        .until(&path, |found| found.is_some_and(|found| found.to_string().contains(waits)))
        .await;
    for (fault, code) in [(HubFault::None, 304), (HubFault::Code(500), 500)] {
        hub.fail(fault);
        wait::until("the hub is asked again", PATIENCE, async || {
            let all = hub.requests();
            let mut of_plugin = all.iter().filter(|(path, ..)| path.contains(PLUGIN));
            if of_plugin.any(|one| one.1 == code) { Ok(()) } else { Err(format!("{all:?}")) }
        })
        .await;
    }
    assert_eq!(cluster.get(&path).await.unwrap()["status"]["rollout"]["applied"], true);
    roll_out(&cluster, "shelf").await;
    stalled(&cluster, &path, "answered with 500").await;
    let record = format!("/api/v1/namespaces/{}/configmaps/plugin-{PLUGIN}", cluster.core);
    let record = cluster.get(&record).await.unwrap();
    assert!(record["data"]["manifests"].to_string().contains("shop:1"), "{record}");
    hub.fail(HubFault::None);
    cluster.kill();
    cluster.start(&flags);
    cluster.condition(&path, "Ready", "Applied").await;
}
