//! The API server on the store in Kubernetes: the real binary, with a real kube-apiserver behind
//! it and a scripted one before it.

use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt;
use http::Method;
use navigator::{
    apiserver::{
        role::STORED_OBJECTS,
        storage::{
            Error, PageRequest, Storage,
            kubernetes::{Config, KubernetesStore},
        },
    },
    engine::stored_object,
    manifest::{self, InstallSettings, InstallStore},
};
use nix::sys::signal::Signal;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use super::store::{KINDS, namespaced, object, send};
use crate::{
    scheme,
    storage::{
        keys::{key, pilots},
        kube_apiserver,
    },
    support::{
        client::Client,
        server::{PATIENCE, Server, World, brief},
        wait::until,
    },
};

async fn started(world: &World, namespace: &str) -> (Server, Client) {
    let kubeconfig = kube_apiserver::shared().master();
    let (namespace, kubeconfig) = (
        format!("--store-namespace={namespace}"),
        format!("--store-kubeconfig={}", kubeconfig.display()),
    );
    let server = world.start("unused", &["--store=kubernetes", &namespace, &kubeconfig]);
    server.until_ready().await;
    let client = Client::new(server.address, Some(&world.proxy()), None);
    (server, client)
}

fn revision(object: &Value) -> u64 {
    object["metadata"]["resourceVersion"].as_str().unwrap().parse().unwrap()
}

/// Waits until watches of a second show these after a revision, each as `TYPE name`.
async fn shows(client: &Client, range: &str, from: u64, wanted: &[&str]) {
    let path = format!("{range}?watch=1&timeoutSeconds=1&resourceVersion={from}");
    let line = |text: &str| {
        let event: Value = serde_json::from_str(text).unwrap();
        let name = event["object"]["metadata"]["name"].as_str().unwrap_or_default();
        format!("{} {name}", event["type"].as_str().unwrap())
    };
    until("the events", PATIENCE, async || {
        let reply = send(client, "GET", &path, String::new()).await;
        // The server answers 429 while it learns what happened before its start.
        if reply.status == 429 {
            return Err(brief(&reply));
        }
        assert_eq!(reply.status, 200, "{}", brief(&reply));
        let events: Vec<_> = reply.body.lines().map(line).collect();
        assert!(wanted.iter().zip(&events).all(|(wanted, event)| wanted == event), "{events:?}");
        if events.len() == wanted.len() { Ok(()) } else { Err(format!("{events:?}")) }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_servers_on_kubernetes_serve_one_store_and_watches_outlive_a_kill() {
    let (world, kube) = (World::new().await, kube_apiserver::shared());
    kube.namespace("served").await;
    let (mut one, first) = started(&world, "served").await;
    let (_two, second) = started(&world, "served").await;
    for kind in KINDS {
        let created = send(&first, "POST", &namespaced(kind), object(kind, "kept")).await;
        assert_eq!(created.status, 201, "{}", brief(&created));
        let again = send(&second, "POST", &namespaced(kind), object(kind, "kept")).await;
        assert_eq!(again.status, 409, "{}", brief(&again));
        let path = format!("{}/kept", namespaced(kind));
        let found = send(&second, "GET", &path, String::new()).await;
        assert_eq!(found.status, 200, "{}", brief(&found));
        assert_eq!(found.json(), created.json(), "one store");
        let labels = json!({"metadata": {"labels": {"seen": "yes"}}}).to_string();
        let stale = json!({"metadata": {"resourceVersion": "1", "labels": {"seen": "no"}}});
        let refused = send(&second, "PATCH", &path, stale.to_string()).await;
        assert_eq!(refused.status, 409, "{}", brief(&refused));
        let patched = send(&second, "PATCH", &path, labels).await;
        assert_eq!(patched.status, 200, "{}", brief(&patched));
        assert!(revision(&patched.json()) > revision(&created.json()));
        let list = send(&first, "GET", &namespaced(kind), String::new()).await.json();
        assert_eq!(list["items"][0]["metadata"]["labels"]["seen"], "yes", "{list}");
    }
    let pilots = namespaced("pilots");
    let known = revision(&send(&first, "GET", &pilots, String::new()).await.json());
    one.signal(Signal::SIGKILL);
    one.ended().await;
    let created = send(&second, "POST", &pilots, object("pilots", "later")).await;
    assert_eq!(created.status, 201, "{}", brief(&created));
    let deleted = send(&second, "DELETE", &format!("{pilots}/kept"), String::new()).await;
    assert_eq!(deleted.status, 200, "{}", brief(&deleted));

    // A client that watched the killed server goes on at the next one, and lists nothing again.
    let (_one, first) = started(&world, "served").await;
    for client in [&first, &second] {
        shows(client, &pilots, known, &["ADDED later", "DELETED kept"]).await;
    }
    let list = send(&first, "GET", &pilots, String::new()).await.json();
    assert_eq!(list["items"].as_array().unwrap().len(), 1, "{list}");

    // The objects behind the store have no owners and no finalizers: no garbage collector has a
    // part in them.
    let path = "/apis/store.navigator.jetstack.io/v1/namespaces/served/storedobjects";
    let (status, stored) = kube.ask(Method::GET, path, &Value::Null).await;
    assert_eq!(status, 200, "{stored}");
    let items = stored["items"].as_array().unwrap();
    assert_eq!(items.len(), KINDS.len() + 1, "one for each object, and the store's own");
    for item in items {
        let metadata = &item["metadata"];
        assert!(metadata["ownerReferences"].is_null() && metadata["finalizers"].is_null());
    }
}

/// What `navigator manifest --store kubernetes` installs for a store in this namespace.
async fn install(kube: &kube_apiserver::Server, namespace: &str) {
    kube.namespace(namespace).await;
    let settings = InstallSettings {
        store: InstallStore::Kubernetes,
        namespace: namespace.to_owned(),
        ..InstallSettings::default()
    };
    let rbac = format!("/apis/rbac.authorization.k8s.io/v1/namespaces/{namespace}");
    let admission = "/apis/admissionregistration.k8s.io/v1";
    for object in manifest::install_objects(&settings, scheme()) {
        let path = match object["kind"].as_str().unwrap() {
            "Role" => format!("{rbac}/roles"),
            "RoleBinding" if object["metadata"]["namespace"] == namespace => {
                format!("{rbac}/rolebindings")
            }
            "ValidatingAdmissionPolicy" => format!("{admission}/validatingadmissionpolicies"),
            "ValidatingAdmissionPolicyBinding" => {
                format!("{admission}/validatingadmissionpolicybindings")
            }
            _ => continue,
        };
        let (status, said) = kube.ask(Method::POST, &path, &object).await;
        assert_eq!(status, 201, "{path}: {said}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_the_manifest_installs_is_enough_and_is_kept() {
    let (kube, namespace) = (kube_apiserver::shared(), "installed");
    install(kube, namespace).await;
    let user = format!("system:serviceaccount:{namespace}:navigator-apiserver");
    let kubeconfig = kube.kubeconfig(&user, &["system:serviceaccounts"]);
    let open = async |namespace: &str| {
        let (kubeconfig, namespace) = (Some(kubeconfig.clone()), namespace.to_owned());
        KubernetesStore::connect(&Config { kubeconfig, namespace, kind: &STORED_OBJECTS })
            .await
            .unwrap()
    };
    let store = open(namespace).await;
    let deadline = Instant::now() + PATIENCE;
    while let Err(error) = store.establish_id().await {
        assert!(Instant::now() < deadline, "{error:?}");
        sleep(Duration::from_millis(50)).await;
    }
    let value = Bytes::from_static(b"value");
    let created = store.create(&key("ns", "a"), value.clone()).await.unwrap();
    let mut events = store.watch(&pilots(), created).await.unwrap();
    let updated = store.update(&key("ns", "a"), created, value).await.unwrap();
    assert_eq!(events.next().await.unwrap().unwrap().revision(), updated);
    assert_eq!(store.list(&pilots(), PageRequest::default()).await.unwrap().entries.len(), 1);
    store.delete(&key("ns", "a"), updated).await.unwrap();
    let past = store.current_revision().await.unwrap();
    assert!(store.advance_revision(past).await.unwrap() > past);
    // The account has no rights in another namespace.
    let refused = open("default").await.establish_id().await.unwrap_err();
    let text = navigator::error::chain(&refused).to_string();
    assert!(matches!(refused, Error::Unavailable { .. }) && text.contains("403"), "{text}");

    // A user who deletes Navigator by its manifest keeps what is stored.
    let definition = format!(
        "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{}",
        stored_object::definition_name()
    );
    let home = format!("/api/v1/namespaces/{namespace}");
    for path in [&definition, &home] {
        let deadline = Instant::now() + PATIENCE;
        loop {
            // A dry run, because other tests keep their objects there.
            let dry = format!("{path}?dryRun=All");
            let (status, said) = kube.ask(Method::DELETE, &dry, &Value::Null).await;
            if status == 403 && said["message"].as_str().unwrap().contains("delete-store=true") {
                break;
            }
            assert!(Instant::now() < deadline, "{path}: {status} {said}");
            sleep(Duration::from_millis(100)).await;
        }
    }
    let says_yes =
        json!({"metadata": {"annotations": {"navigator.jetstack.io/delete-store": "true"}}});
    let (status, said) = kube.ask(Method::PATCH, &home, &says_yes).await;
    assert_eq!(status, 200, "{said}");
    let dry = format!("{home}?dryRun=All");
    let (status, said) = kube.ask(Method::DELETE, &dry, &Value::Null).await;
    assert_eq!(status, 200, "{said}");

    // Kubernetes adds nothing to the definition, so applying the manifest again changes nothing.
    let (_, defined) = kube.ask(Method::GET, &definition, &Value::Null).await;
    assert_eq!(defined["spec"], stored_object::crd_spec());
}
