//! Numbers under kube-apiserver's names: those that dashboards and rules of others go by are there,
//! and no client can make more of them.

use std::{collections::BTreeSet, sync::Arc};

use http_body_util::BodyExt;
use navigator::apiserver::{
    filters::InflightLimits,
    request_info::RequestInfo,
    storage::embedded::{EmbeddedStore, HistoryLimits},
};

use super::whole::{BETA, UNANSWERED, Whole, pilot};
use crate::cache::faulty::Faulty;

fn everything(_: &str, _: &RequestInfo) -> bool {
    true
}

async fn get(whole: &Whole, path: &str) -> String {
    let response = whole.send("monitoring", "GET", path, String::new()).await;
    assert_eq!(response.status(), 200, "{path}");
    let bytes = response.into_body().collect().await.unwrap().to_bytes();
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// All series of a page, without their values.
fn series(page: &str) -> BTreeSet<String> {
    let lines = page.lines().filter(|line| !line.starts_with('#'));
    lines.map(|line| line.rsplit_once(' ').unwrap().0.to_owned()).collect()
}

/// The value of the only series of this metric with these labels.
fn value(page: &str, metric: &str, labels: &[&str]) -> f64 {
    let fitting: Vec<_> = page
        .lines()
        .filter(|line| {
            let name = line.split(['{', ' ']).next().unwrap();
            name == metric && labels.iter().all(|label| line.contains(label))
        })
        .collect();
    let [line] = fitting[..] else { panic!("{metric} {labels:?}: {fitting:#?}\n{page}") };
    line.rsplit_once(' ').unwrap().1.parse().unwrap()
}

#[tokio::test]
async fn numbers_that_dashboards_of_kube_apiserver_read_are_told() {
    let whole = Whole::start(everything, InflightLimits::default()).await;
    let pilots = format!("{BETA}/namespaces/db/pilots");
    whole.create("jane", &pilots, &pilot("a")).await;
    get(&whole, &pilots).await;
    get(&whole, &format!("{BETA}/pilots?fieldSelector=metadata.namespace%3Dother")).await;
    get(&whole, "/readyz").await;
    let watch = format!(
        "{pilots}?watch=1&sendInitialEvents=true&allowWatchBookmarks=true\
         &resourceVersionMatch=NotOlderThan"
    );
    let mut watching = whole.send("jane", "GET", &watch, String::new()).await.into_body();
    let mut lines = 0;
    while lines < 2 {
        let frame = watching.frame().await.unwrap().unwrap().into_data().unwrap();
        lines += std::str::from_utf8(&frame).unwrap().lines().count();
    }
    // Long enough to authenticate the user, also on a busy machine; the review after that is never
    // answered.
    let late = format!("{pilots}?timeout=2s");
    assert_eq!(whole.send(UNANSWERED, "GET", &late, String::new()).await.status(), 504);

    let page = get(&whole, "/metrics").await;
    let ours = [
        "group=\"navigator.jetstack.io\"",
        "version=\"v1beta1\"",
        "resource=\"pilots\"",
        "subresource=\"\"",
        "component=\"apiserver\"",
    ];
    let with = |more: &[&'static str]| [&ours[..], more].concat();
    let create = with(&["verb=\"POST\"", "scope=\"resource\"", "dry_run=\"\""]);
    let list = with(&["verb=\"LIST\"", "scope=\"namespace\""]);
    let all = with(&["verb=\"LIST\"", "scope=\"cluster\""]);
    let sized = |labels: &[&'static str]| [labels, &["le=\"10000\""]].concat();
    let slow = |labels: &[&'static str]| [labels, &["le=\"30\""]].concat();
    let watched = with(&["verb=\"WATCH\"", "scope=\"namespace\""]);
    let kind = &ours[..3];
    let resource = [ours[0], ours[2]];
    let from_cache = [&resource[..], &["index=\"\""]].concat();
    let consistent = [&resource[..], &["success=\"true\"", "fallback=\"false\""]].concat();
    let rows: Vec<(&str, Vec<&str>, f64)> = vec![
        ("apiserver_request_total", [&create[..], &["code=\"201\""]].concat(), 1.0),
        ("apiserver_request_duration_seconds_bucket", slow(&create), 1.0),
        ("apiserver_request_sli_duration_seconds_bucket", slow(&create[..7]), 1.0),
        ("apiserver_request_sli_duration_seconds_count", all.clone(), 1.0),
        ("apiserver_response_sizes_bucket", sized(&list), 1.0),
        ("apiserver_longrunning_requests", watched, 1.0),
        ("apiserver_request_terminations_total", [&list[..], &["code=\"504\""]].concat(), 1.0),
        ("apiserver_watch_events_total", kind.to_vec(), 2.0),
        ("apiserver_watch_events_sizes_count", kind.to_vec(), 2.0),
        ("apiserver_watch_list_duration_seconds_count", kind.to_vec(), 1.0),
        ("apiserver_resource_objects", resource.to_vec(), 1.0),
        ("apiserver_storage_objects", vec!["resource=\"pilots.navigator.jetstack.io\""], 1.0),
        ("apiserver_watch_cache_events_received_total", resource.to_vec(), 1.0),
        ("apiserver_watch_cache_events_dispatched_total", resource.to_vec(), 1.0),
        ("apiserver_watch_cache_initializations_total", resource.to_vec(), 1.0),
        ("apiserver_cache_list_total", from_cache.clone(), 2.0),
        ("apiserver_cache_list_fetched_objects_total", from_cache, 2.0),
        ("apiserver_cache_list_returned_objects_total", resource.to_vec(), 1.0),
        ("apiserver_storage_list_total", resource.to_vec(), 0.0),
        ("apiserver_watch_cache_consistent_read_total", consistent, 2.0),
        ("apiserver_current_inflight_requests", vec!["request_kind=\"mutating\""], 0.0),
        ("authentication_attempts", vec!["result=\"success\""], 7.0),
        ("authenticated_user_requests", vec!["username=\"other\""], 7.0),
        ("authentication_duration_seconds_count", vec!["result=\"success\""], 7.0),
        ("authorization_attempts_total", vec!["result=\"allowed\""], 6.0),
        ("authorization_duration_seconds_count", vec!["result=\"allowed\""], 6.0),
        ("apiserver_request_filter_duration_seconds_count", vec!["filter=\"authorization\""], 6.0),
    ];
    for (metric, labels, expected) in rows {
        let found = value(&page, metric, &labels);
        assert!((found - expected).abs() < 0.5, "{metric} {labels:?}: {found}\n{page}");
    }
    let revision = value(&page, "apiserver_watch_cache_resource_version", &resource);
    assert!(revision >= 1.0, "{revision}");
    let waits = value(&page, "apiserver_watch_cache_read_wait_seconds_count", &resource);
    assert!(waits >= 2.0, "{waits}");
    let size = value(&page, "apiserver_storage_size_bytes", &["storage_cluster_id=\"embedded\""]);
    assert!(size >= 4096.0, "{size}");

    let page = get(&whole, "/metrics/slis").await;
    let check = ["name=\"informer-sync\"", "type=\"readyz\""];
    let passed = value(&page, "kubernetes_healthcheck", &check);
    let counted = [&check[..], &["status=\"success\""]].concat();
    let count = value(&page, "kubernetes_healthchecks_total", &counted);
    assert!((passed - 1.0).abs() < 0.5 && (count - 1.0).abs() < 0.5, "{page}");
}

/// A cache that is behind does not answer for the latest state.
#[tokio::test]
async fn reads_of_the_store_are_told_apart() {
    let folder = tempfile::tempdir().unwrap();
    let store =
        EmbeddedStore::open(&folder.path().join("store"), HistoryLimits::default()).await.unwrap();
    let store = Faulty::new(Arc::new(store));
    let whole =
        Whole::over(Arc::clone(&store) as _, folder, everything, InflightLimits::default()).await;
    let pilots = format!("{BETA}/namespaces/db/pilots");
    store.hold_watches(true);
    whole.create("jane", &pilots, &pilot("a")).await;
    get(&whole, &format!("{pilots}?limit=5&labelSelector=no%3Dbody")).await;
    store.hold_watches(false);
    let page = get(&whole, "/metrics").await;
    let pilots = ["group=\"navigator.jetstack.io\"", "resource=\"pilots\""];
    let fallen_back = [&pilots[..], &["success=\"true\"", "fallback=\"true\""]].concat();
    for (metric, labels, expected) in [
        ("apiserver_storage_list_total", &pilots[..], 1.0),
        ("apiserver_storage_list_fetched_objects_total", &pilots, 1.0),
        ("apiserver_storage_list_evaluated_objects_total", &pilots, 1.0),
        ("apiserver_storage_list_returned_objects_total", &pilots, 0.0),
        ("apiserver_cache_list_total", &pilots, 0.0),
        ("apiserver_watch_cache_consistent_read_total", &fallen_back, 1.0),
    ] {
        let found = value(&page, metric, labels);
        assert!((found - expected).abs() < 0.5, "{metric}: {found}\n{page}");
    }
}

#[tokio::test]
async fn requests_that_are_turned_away_are_counted() {
    let of_jane = |user: &str, _: &RequestInfo| user != "bob";
    // One seat for each user.
    let whole = Whole::start(of_jane, InflightLimits { reading: 4, mutating: 4 }).await;
    let pilots = format!("{BETA}/namespaces/db/pilots");
    let reading = whole.send("jane", "GET", &pilots, String::new()).await;
    assert_eq!(whole.send("jane", "GET", &pilots, String::new()).await.status(), 429);
    assert_eq!(whole.send("bob", "GET", &pilots, String::new()).await.status(), 403);
    drop(reading);
    let page = get(&whole, "/metrics").await;
    let list = ["verb=\"LIST\"", "resource=\"pilots\"", "code=\"429\""];
    for (metric, labels) in [
        ("apiserver_request_total", &list[..]),
        ("apiserver_request_terminations_total", &list),
        ("apiserver_request_rejected_total", &["request_kind=\"readOnly\""]),
        ("authorization_attempts_total", &["result=\"no-opinion\""]),
    ] {
        let found = value(&page, metric, labels);
        assert!((found - 1.0).abs() < 0.5, "{metric}: {found}\n{page}");
    }
}

/// What a client makes up is no label (CVE-2020-8552).
#[tokio::test]
async fn ten_thousand_made_up_requests_make_no_series() {
    const REQUESTS: u32 = 10_000;
    // More than there are combinations of what follows.
    const ROUND: u32 = 2 * 7 * 9 * 5;
    let whole = Whole::start(everything, InflightLimits::default()).await;
    let send = async |number: u32| {
        let method = ["GET", "HEAD", "GET", "GET", "MADEUP", "GET", "GET"];
        let method = method[number as usize % 7];
        let n = number;
        let path = match number % 9 {
            0 => format!("/made-up-{n}"),
            1 => format!("/apis/group-{n}/v1/things"),
            2 => format!("/apis/navigator.jetstack.io/v{n}/pilots"),
            3 => format!("{BETA}/kind-{n}"),
            4 => format!("{BETA}/namespaces/ns-{n}/pilots"),
            5 => format!("{BETA}/namespaces/db/pilots/name-{n}"),
            6 => format!("{BETA}/namespaces/db/pilots/name/sub-{n}"),
            7 => format!("/api/v1/namespaces/ns-{n}/pods/name/log"),
            _ => format!("/readyz/check-{n}"),
        };
        let query = match number % 5 {
            0 => format!("?made-up-{n}=1"),
            1 => format!("?dryRun=made-up-{n}"),
            2 => format!("?fieldValidation=made-up-{n}"),
            3 => "?timeout=made-up".to_owned(),
            _ => String::new(),
        };
        let user = if number.is_multiple_of(2) { format!("user-{n}") } else { String::new() };
        drop(whole.send(&user, method, &format!("{path}{query}"), String::new()).await);
    };
    for number in 0..2 * ROUND {
        send(number).await;
    }
    get(&whole, "/metrics").await;
    let before = series(&get(&whole, "/metrics").await);
    for number in 2 * ROUND..REQUESTS {
        send(number).await;
    }
    let after = series(&get(&whole, "/metrics").await);
    let new: Vec<_> = after.difference(&before).collect();
    assert!(new.is_empty(), "{} series became {}: {new:#?}", before.len(), after.len());
    assert!(!after.iter().any(|one| one.contains("made-up")), "{after:#?}");
}
