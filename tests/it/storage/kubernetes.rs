//! What is particular to the store in Kubernetes: others may delete its objects, and its
//! kube-apiserver comes and goes.

use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt;
use http::Method;
use navigator::apiserver::storage::{
    Error, PageRequest, Revision, Storage, StoreEvent, kubernetes::KubernetesStore,
};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep, timeout};

use super::{
    etcd_server,
    keys::{key, pilots},
    kube_apiserver::{Server, shared},
};

const VALUE: Bytes = Bytes::from_static(b"value");
const PATIENCE: Duration = Duration::from_secs(120);

fn objects(namespace: &str) -> String {
    format!("/apis/store.navigator.jetstack.io/v1/namespaces/{namespace}/storedobjects")
}

/// Names of the objects behind a store, without the one that stands for it.
async fn behind(server: &Server, namespace: &str) -> Vec<String> {
    let (status, list) = server.ask(Method::GET, &objects(namespace), &Value::Null).await;
    assert_eq!(status, 200, "{list}");
    let names = list["items"].as_array().unwrap().iter();
    let names = names.map(|item| item["metadata"]["name"].as_str().unwrap().to_owned());
    names.filter(|name| name != "store").collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_left_of_what_was_deleted() {
    let (server, namespace) = (shared(), "left");
    server.namespace(namespace).await;
    let store = server.open(namespace).await;
    let created = store.create(&key("ns", "a"), VALUE).await.unwrap();
    assert_eq!(behind(server, namespace).await.len(), 1);
    store.delete(&key("ns", "a"), created).await.unwrap();
    assert_eq!(behind(server, namespace).await, [""; 0]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_deletion_that_was_not_finished_is_one_and_is_swept_away() {
    let (server, namespace) = (shared(), "unfinished");
    server.namespace(namespace).await;
    let store = server.open(namespace).await;
    for name in ["a", "b"] {
        store.create(&key("ns", name), VALUE).await.unwrap();
    }
    // A process that dies between the two steps of a deletion leaves this.
    for name in behind(server, namespace).await {
        let path = format!("{}/{name}", objects(namespace));
        let label = json!({"store.navigator.jetstack.io/deleted": "true"});
        let deletion = json!({"deleted": true, "metadata": {"labels": label}});
        let (status, said) = server.ask(Method::PATCH, &path, &deletion).await;
        assert_eq!(status, 200, "{said}");
    }
    assert_eq!(store.get(&key("ns", "a")).await.unwrap(), None);
    assert!(store.list(&pilots(), PageRequest::default()).await.unwrap().entries.is_empty());
    store.create(&key("ns", "a"), VALUE).await.unwrap();
    assert_eq!(behind(server, namespace).await.len(), 2);
    server.open(namespace).await;
    assert_eq!(behind(server, namespace).await.len(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_somebody_else_deletes_is_a_loss_and_no_deletion() {
    let (server, namespace) = (shared(), "bereft");
    server.namespace(namespace).await;
    let store = server.open(namespace).await;
    let created = store.create(&key("ns", "a"), VALUE).await.unwrap();
    let mut events = store.watch(&pilots(), created).await.unwrap();
    for name in behind(server, namespace).await {
        let path = format!("{}/{name}", objects(namespace));
        let (status, said) = server.ask(Method::DELETE, &path, &Value::Null).await;
        assert_eq!(status, 200, "{said}");
    }
    let error = loop {
        match timeout(PATIENCE, events.next()).await.unwrap().unwrap() {
            Ok(StoreEvent::Progress(_)) => {}
            Ok(event) => panic!("{event:?}"),
            Err(error) => break error,
        }
    };
    let Error::Replaced { reason } = &error else { panic!("{error:?}") };
    assert!(reason.contains("behind the API server's back"), "{reason}");
    // A list does not show the object as deleted either, and the next process knows of the loss.
    let listed = store.list(&pilots(), PageRequest::default()).await;
    assert!(matches!(listed, Err(Error::Replaced { .. })), "{listed:?}");
    let next = server.open(namespace).await;
    let lost = next.store_status().await.unwrap().lost.expect("it is on record");
    assert!(lost.why.contains("group/pilots/ns/a"), "{lost:?}");
    // The loss stays on record until a user accepts the store as it is.
    let reached = next.current_revision().await.unwrap();
    next.advance_revision(reached).await.unwrap();
    assert_eq!(next.store_status().await.unwrap().lost, None);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_that_was_deleted_and_made_again_is_refused() {
    let (server, namespace) = (shared(), "remade");
    server.namespace(namespace).await;
    let store = server.open(namespace).await;
    store.create(&key("ns", "a"), VALUE).await.unwrap();
    let (status, _) = server.ask(Method::DELETE, &objects(namespace), &Value::Null).await;
    assert_eq!(status, 200);
    let error = store.get(&key("ns", "a")).await.unwrap_err();
    assert!(
        matches!(&error, Error::Replaced { reason } if reason.contains("no store")),
        "{error:?}"
    );
    let other = server.open(namespace).await;
    assert_ne!(other.store_id().await.unwrap(), store.store_status().await.unwrap().other.unwrap());
    for error in [
        store.create(&key("ns", "b"), VALUE).await.unwrap_err(),
        store.list(&pilots(), PageRequest::default()).await.unwrap_err(),
        store.current_revision().await.unwrap_err(),
        store.watch(&pilots(), Revision(1)).await.err().unwrap(),
    ] {
        assert!(matches!(&error, Error::Replaced { .. }), "{error:?}");
    }
    assert!(other.list(&pilots(), PageRequest::default()).await.unwrap().entries.is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_processes_of_one_store_agree() {
    let (server, namespace) = (shared(), "two");
    server.namespace(namespace).await;
    let [one, two] = [server.open(namespace).await, server.open(namespace).await];
    assert_eq!(one.store_id().await.unwrap(), two.store_id().await.unwrap());
    let start = one.current_revision().await.unwrap();
    let mut events = one.watch(&pilots(), start).await.unwrap();
    let created = two.create(&key("ns", "a"), VALUE).await.unwrap();
    assert!(one.current_revision().await.unwrap() >= created);
    assert_eq!(one.get(&key("ns", "a")).await.unwrap().unwrap().revision, created);
    let event = timeout(PATIENCE, events.next()).await.unwrap().unwrap().unwrap();
    assert!(
        matches!(&event, StoreEvent::Put { entry, .. } if entry.revision == created),
        "{event:?}"
    );
    // History that one process compacts, the other does not tell, nor does one that opens the store
    // later.
    let updated = two.update(&key("ns", "a"), created, VALUE).await.unwrap();
    two.compact(updated).await.unwrap();
    for store in [&one, &server.open(namespace).await] {
        let request = PageRequest { at: Some(created), ..PageRequest::default() };
        let listed = store.list(&pilots(), request).await;
        assert!(
            matches!(listed, Err(Error::Compacted { oldest, .. }) if oldest == updated),
            "{listed:?}"
        );
    }
}

/// Waits until the store answers again.
async fn answers(store: &KubernetesStore) -> Revision {
    let deadline = Instant::now() + PATIENCE;
    loop {
        match store.current_revision().await {
            Ok(revision) => return revision,
            Err(error @ Error::Unavailable { .. }) => {
                assert!(Instant::now() < deadline, "{error:?}");
            }
            Err(error) => panic!("{error:?}"),
        }
        sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_kube_apiserver_that_was_away_and_is_back_is_served_from_on() {
    let etcd = etcd_server::Server::start();
    // This kube-apiserver ends each watch after one to two seconds, and not after half an hour.
    let server = Server::start(etcd.url(), &["--min-request-timeout=1"]);
    server.namespace("away").await;
    let store = server.open("away").await;
    let mut created = store.create(&key("ns", "a"), VALUE).await.unwrap();
    let mut events = store.watch(&pilots(), created).await.unwrap();
    for _ in 0..40 {
        created = store.update(&key("ns", "a"), created, VALUE).await.unwrap();
        loop {
            match timeout(PATIENCE, events.next()).await.unwrap().unwrap().unwrap() {
                StoreEvent::Progress(_) => {}
                event => break assert_eq!(event.revision(), created, "none is missing or twice"),
            }
        }
        sleep(Duration::from_millis(100)).await;
    }
    server.down();
    let down = store.get(&key("ns", "a")).await;
    assert!(matches!(down, Err(Error::Unavailable { .. })), "{down:?}");
    let ended = timeout(PATIENCE, events.next()).await.unwrap().unwrap();
    assert!(matches!(ended, Err(Error::Unavailable { .. })), "{ended:?}");
    server.up();
    assert!(answers(&store).await >= created);
    // kube-apiserver reads before it takes writes.
    let (status, said) = server.ask(Method::GET, "/readyz", &Value::Null).await;
    assert_eq!(status, 200, "{said}");
    let updated = store.update(&key("ns", "a"), created, VALUE).await.unwrap();
    // The new kube-apiserver remembers no events: a watch that cannot go on is told so, now or with
    // its first event, and from where it can.
    let mut from = created;
    let mut events = loop {
        let told = match store.watch(&pilots(), from).await {
            // The watch shows a later write, or refuses.
            Ok(mut events) if from < updated => {
                match timeout(PATIENCE, events.next()).await.expect("an event comes") {
                    Some(Err(error)) => error,
                    _ => break events,
                }
            }
            Ok(mut events) => match timeout(Duration::from_secs(2), events.next()).await {
                Ok(Some(Err(error))) => error,
                Ok(_) | Err(_) => break events,
            },
            Err(error) => error,
        };
        let Error::Compacted { oldest, .. } = told else { panic!("{told:?}") };
        assert!(oldest > from, "{oldest:?}");
        from = oldest;
    };
    let page = store
        .list(&pilots(), PageRequest { at: Some(from), ..PageRequest::default() })
        .await
        .unwrap();
    assert_eq!(page.entries.len(), 1);
    store.delete(&key("ns", "a"), updated).await.unwrap();
    loop {
        match timeout(PATIENCE, events.next()).await.unwrap().unwrap().unwrap() {
            StoreEvent::Delete { key: gone, .. } => break assert_eq!(gone, key("ns", "a")),
            StoreEvent::Put { .. } | StoreEvent::Progress(_) => {}
        }
    }
}
