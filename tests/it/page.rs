//! The status page: what it tells of what the caches hold, and under which guards. How it looks is
//! tried in a browser (`tests/page`), on the same answers.

use std::{fmt::Write, fs, path::Path, sync::Arc, time::Duration};

use axum::body::Body;
use http::Request;
use http_body_util::BodyExt;
use navigator::{
    api::v1beta1::Pilot,
    controller::{
        CachedCluster, CachedPilot, FleetSnapshot,
        page::{self, PageAccess},
    },
};
use serde::Deserialize;
use serde_json::{Value, json};
use tower::ServiceExt;

use crate::golden;

fn now() -> jiff::Timestamp {
    "2026-11-22T12:00:00Z".parse().unwrap()
}

/// What `tests/data/page/NAME.yaml` holds, as a controller that leads sees it.
fn seen(name: &str) -> FleetSnapshot {
    let path = format!("tests/data/page/{name}.yaml");
    let text = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(path)).unwrap();
    let documents = serde_yaml::Deserializer::from_str(&text);
    let objects = documents.map(|document| Value::deserialize(document).unwrap());
    holding(objects.filter(Value::is_object).collect())
}

fn holding(objects: Vec<Value>) -> FleetSnapshot {
    let mut seen = FleetSnapshot { now: now(), leads: true, ..FleetSnapshot::empty(Vec::new()) };
    for object in objects {
        if object["kind"] == "ClusterUpgrade" {
            seen.runs.push(serde_json::from_value(object).unwrap());
            continue;
        }
        if object["kind"] != "Pilot" {
            let kind = object["kind"].as_str().unwrap().to_owned();
            let object = Arc::new(serde_json::from_value(object).unwrap());
            seen.clusters.push(CachedCluster { kind, object });
            continue;
        }
        let pilot: Pilot = serde_json::from_value(object).unwrap();
        let beat = pilot.status.last_heartbeat_time.as_ref().map_or(now(), |time| time.0);
        let heard = Duration::try_from(now().duration_since(beat)).unwrap();
        seen.pilots.push(CachedPilot { pilot: Arc::new(pilot), heard });
    }
    seen
}

fn told(seen: &FleetSnapshot) -> Value {
    serde_json::from_slice(&page::json_of(seen)).unwrap()
}

fn check(name: &str, seen: &FleetSnapshot) -> Value {
    let mut told = told(seen);
    assert_eq!(told["version"], env!("CARGO_PKG_VERSION"));
    told["version"] = json!("1.2.3");
    let text = serde_json::to_string_pretty(&told).unwrap() + "\n";
    golden::check(&format!("page/{name}.json"), &text);
    told
}

#[test]
fn a_bad_day_is_told_worst_first() {
    let told = check("everyday", &seen("everyday"));
    let clusters = told["clusters"].as_array().unwrap();
    let order: Vec<_> =
        clusters.iter().map(|one| (one["name"].as_str().unwrap(), &one["urgency"])).collect();
    let wanted = [
        ("ledger", "critical"),
        ("orders", "warning"),
        ("search", "changing"),
        ("playground", "changing"),
        ("archive", "resting"),
        ("carts", "fine"),
        ("catalog", "fine"),
    ];
    assert_eq!(order.len(), wanted.len());
    for (given, (name, urgency)) in order.into_iter().zip(wanted) {
        assert_eq!(given, (name, &json!(urgency)));
    }
    assert_eq!(told["loose"][0]["name"], "host-a");
    let runs: Vec<_> = told["runs"].as_array().unwrap().iter().map(|run| &run["name"]).collect();
    assert_eq!(runs, ["kernel", "to-1-34", "to-1-33"]);
}

#[test]
fn no_line_of_a_log_and_nothing_of_a_specs_settings_is_told() {
    let mut objects = vec![json!({
        "kind": "CassandraCluster",
        "metadata": {"namespace": "n", "name": "c", "annotations": {"a": "SECRET"}},
        "spec": {"version": "5.0.6", "config": {"password": "SECRET"},
            "jvm": {"options": ["-Dkey=SECRET"]}, "podTemplate": {"annotations": {"b": "SECRET"}},
            "nodePools": [{"name": "a", "config": {"x": "SECRET"}}]},
    })];
    objects.push(json!({
        "kind": "Pilot",
        "metadata": {"namespace": "n", "name": "p", "labels": {"l": "SECRET"}},
        "spec": {"clusterRef": {"kind": "CassandraCluster", "name": "c"}, "config": {"x": "SECRET"}},
        "status": {"lastTermination": {"exitCode": 1, "logTail": ["SECRET"]},
            "cassandra": {"x": "SECRET"}},
    }));
    let text = told(&holding(objects)).to_string();
    assert!(text.contains("\"p\"") && !text.contains("SECRET"), "{text}");
}

#[test]
fn whatever_stands_in_an_object_is_told_as_it_is() {
    let told = check("hostile", &seen("hostile"));
    let names: Vec<_> = told["clusters"].as_array().unwrap().iter().map(|c| &c["name"]).collect();
    assert!(names.contains(&&json!("garbage")), "{names:?}");
}

#[test]
fn hundreds_of_clusters_are_told() {
    let mut objects = Vec::new();
    for number in 0..300 {
        let mut of = seen("everyday").clusters;
        let cluster = of.swap_remove(number % of.len());
        let mut object = serde_json::to_value(&*cluster.object).unwrap();
        object["kind"] = json!(cluster.kind);
        object["metadata"]["name"] = json!(format!("cluster-{number}"));
        objects.push(object);
    }
    let told = told(&holding(objects));
    assert_eq!(told["clusters"].as_array().unwrap().len(), 300);
}

#[test]
fn a_good_day_an_empty_one_and_one_that_has_not_begun() {
    let mut fine = seen("everyday");
    fine.clusters.retain(|one| one.object.metadata.namespace.as_deref() == Some("shop"));
    fine.clusters.retain(|one| one.object.metadata.name.as_deref() != Some("orders"));
    let names: Vec<_> = fine.clusters.iter().map(|one| one.object.metadata.name.clone()).collect();
    fine.pilots.retain(|one| {
        let owner = one.pilot.spec.cluster_ref.as_ref();
        owner.is_some_and(|owner| names.contains(&Some(owner.name.clone())))
    });
    check("fine", &fine);
    check("empty", &holding(Vec::new()));
    let begun = FleetSnapshot {
        now: now(),
        ..FleetSnapshot::empty(vec!["api".into(), "watch-pods".into()])
    };
    check("waiting", &begun);
}

#[tokio::test]
async fn answers_carry_what_keeps_browsers_from_doing_more_with_them() {
    let router = page::build_router(Arc::new(|| seen("everyday")), PageAccess::All);
    let mut shown = String::new();
    for path in ["/", "/status.json"] {
        let request = Request::get(path).body(Body::empty()).unwrap();
        let answer = router.clone().oneshot(request).await.unwrap();
        assert_eq!(answer.status(), 200);
        writeln!(shown, "{path}").unwrap();
        // The length follows from the version's.
        for (name, value) in answer.headers().iter().filter(|(name, _)| *name != "content-length") {
            writeln!(shown, "{name}: {}", value.to_str().unwrap()).unwrap();
        }
        let body = answer.into_body().collect().await.unwrap().to_bytes();
        let page = include_bytes!("../../src/controller/page/page.html");
        assert_eq!(path == "/", body == page[..]);
        shown.push('\n');
    }
    golden::check("page/headers.txt", &shown);
    for method in ["POST", "PUT", "DELETE", "PATCH"] {
        let request = Request::builder().method(method).uri("/").body(Body::empty()).unwrap();
        assert_eq!(router.clone().oneshot(request).await.unwrap().status(), 405);
    }
}
