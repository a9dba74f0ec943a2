//! What the server makes of a store that fails or is slow, and what it asks of it at all.

use std::{sync::Arc, time::Instant};

use axum::body::Body;
use navigator::apiserver::storage::{
    Storage,
    embedded::{EmbeddedStore, HistoryLimits},
};
use serde_json::json;

use super::{BETA, PATIENCE, Server, pilot, pilots};
use crate::cache::faulty::Faulty;

async fn server() -> (Server, Arc<Faulty>) {
    let folder = tempfile::tempdir().unwrap();
    let store =
        EmbeddedStore::open(&folder.path().join("store"), HistoryLimits::default()).await.unwrap();
    let faulty = Faulty::new(Arc::new(store));
    let server = Server::over(Arc::clone(&faulty) as Arc<dyn Storage>, Some(folder)).await;
    (server, faulty)
}

/// client-go repeats whatever comes with Retry-After, a create with generateName too.
#[tokio::test]
async fn a_write_of_which_nobody_knows_what_became_is_not_to_be_repeated() {
    let (server, faulty) = server().await;
    let mut object = server.pilot("a").await;
    server.pilot("b").await;
    faulty.leave_writes_unanswered();
    object["metadata"]["labels"] = json!({"a": "b"});
    let mut generated = pilot("x");
    generated["metadata"] = json!({"generateName": "x-"});
    let patch = json!({"spec": {"phase": "Stopped"}});
    let a = format!("{}/a", pilots());
    let answers = [
        server.post(&pilots(), &generated).await,
        server.put(&a, &object).await,
        server.merge(&format!("{}/b", pilots()), &patch).await,
        server.delete(&a, &json!({})).await,
        server.delete(&pilots(), &json!({})).await,
    ];
    for answer in answers {
        let status = answer.refusal(504, "Timeout");
        assert!(!answer.headers.contains_key("retry-after"), "{answer:?}");
        assert!(status["details"]["retryAfterSeconds"].is_null(), "{status}");
        let message = status["message"].as_str().unwrap();
        assert!(message.contains("read the object before you try again"), "{message}");
    }
    let list = server.get(&pilots()).await.expect(200);
    let generated = list["items"].to_string().matches("\"x-").count();
    assert!(generated > 0, "the create had happened: {list}");
}

/// One compare-and-swap is all that a change costs, and a read asks for no more than a revision.
#[tokio::test]
async fn what_the_cache_knows_is_not_read_from_the_store() {
    let (server, faulty) = server().await;
    let path = format!("{}/a", pilots());
    let mut object = server.pilot("a").await;
    for _ in 0..3 {
        // The cache shows the object by now, for a list shows what is acknowledged.
        server.get(&pilots()).await.expect(200);
        let before = faulty.objects_read();
        assert_eq!(server.get(&path).await.expect(200), object);
        server.get(&format!("{}/absent", pilots())).await.refusal(404, "NotFound");
        object["metadata"]["labels"] = json!({"n": object["metadata"]["resourceVersion"]});
        object = server.put(&path, &object).await.expect(200);
        server.get(&pilots()).await.expect(200);
        let label = json!({"metadata": {"labels": {"b": object["metadata"]["resourceVersion"]}}});
        object = server.merge(&path, &label).await.expect(200);
        assert_eq!(faulty.objects_read(), before);
    }
    server.get(&pilots()).await.expect(200);
    let before = faulty.objects_read();
    server.delete(&path, &json!({})).await.expect(200);
    assert_eq!(faulty.objects_read(), before);
}

/// The cache is behind: another server wrote, and nothing that it knew may show in an answer.
#[tokio::test]
async fn a_cache_that_is_behind_decides_nothing() {
    let (server, faulty) = server().await;
    let other = Server::over(Arc::clone(&faulty) as Arc<dyn Storage>, None).await;
    let path = |name: &str| format!("{}/{name}", pilots());
    let names = ["replaced", "patched", "same", "held", "gone", "again", "deleted"];
    let mut objects = Vec::new();
    for name in names {
        objects.push(server.pilot(name).await);
    }
    server.get(&pilots()).await.expect(200);
    other.get(&pilots()).await.expect(200);
    faulty.hold_watches(true);
    let label = |value: &str| json!({"metadata": {"labels": {"who": value}}});
    for name in ["replaced", "patched", "same", "deleted"] {
        other.merge(&path(name), &label("other")).await.expect(200);
    }
    other.merge(&path("held"), &json!({"metadata": {"finalizers": ["x.org/a"]}})).await.expect(200);
    other.delete(&path("gone"), &json!({})).await.expect(200);
    other.delete(&path("again"), &json!({})).await.expect(200);
    let second = other.pilot("again").await;

    // A client that knows the old state is told so, although the cache would agree with it.
    objects[0]["metadata"]["labels"] = json!({"who": "me"});
    server.put(&path("replaced"), &objects[0]).await.refusal(409, "Conflict");
    let patch = json!({"metadata": {"labels": {"more": "mine"}}});
    let patched = server.merge(&path("patched"), &patch).await.expect(200);
    assert_eq!(patched["metadata"]["labels"], json!({"who": "other", "more": "mine"}));
    // By what the cache knows, this patch would change something.
    let same = server.merge(&path("same"), &label("other")).await.expect(200);
    assert_eq!(same["metadata"]["labels"], json!({"who": "other"}));
    // By what the cache knows, this patch would change nothing.
    let undone = json!({"metadata": {"labels": {"who": null}}});
    let undone = server.merge(&path("same"), &undone).await.expect(200);
    assert!(undone["metadata"].get("labels").is_none(), "{undone}");
    let held = server.delete(&path("held"), &json!({})).await.expect(200);
    assert_eq!(held["metadata"]["finalizers"], json!(["x.org/a"]));
    server.merge(&path("gone"), &patch).await.refusal(404, "NotFound");
    server.delete(&path("gone"), &json!({})).await.refusal(404, "NotFound");
    server.get(&path("gone")).await.refusal(404, "NotFound");
    // The cache still knows the uid of the object's first life.
    let precondition = json!({"preconditions": {"uid": second["metadata"]["uid"]}});
    assert_eq!(server.get(&path("again")).await.expect(200), second);
    server.delete(&path("again"), &precondition).await.expect(200);
    let revision = objects[6]["metadata"]["resourceVersion"].clone();
    let precondition = json!({"preconditions": {"resourceVersion": revision}});
    server.delete(&path("deleted"), &precondition).await.refusal(409, "Conflict");
    faulty.hold_watches(false);
}

#[tokio::test]
async fn health_is_asked_of_the_store_once_for_many_who_want_to_know() {
    let (server, faulty) = server().await;
    let before = faulty.revisions_read();
    let begun = Instant::now();
    let answers = futures::future::join_all((0..500).map(|_| server.get("/readyz"))).await;
    let seconds = usize::try_from(begun.elapsed().as_secs()).unwrap();
    assert!(answers.iter().all(|answer| answer.code == 200), "{:?}", answers[0]);
    let asked = faulty.revisions_read() - before;
    assert!(asked <= 1 + seconds, "{asked} times in {seconds} s");
    // The shared answer is never old: a failure shows.
    faulty.fail_revisions(true);
    loop {
        let answer = server.get("/readyz").await;
        if answer.code == 500 {
            assert!(answer.text().contains("[-]etcd failed"), "{answer:?}");
            break;
        }
        assert!(begun.elapsed() < PATIENCE, "still {answer:?}");
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
}

/// Pilots list like this: by name, and with a limit.
#[tokio::test]
async fn a_list_of_one_name_reads_one_object() {
    let (server, faulty) = server().await;
    for name in ["a", "b", "c"] {
        server.pilot(name).await;
    }
    faulty.fail_lists(true);
    let get = async |query: &str| server.get(&format!("{}?{query}", pilots())).await;
    let rows: [(&str, &[&str]); 7] = [
        ("fieldSelector=metadata.name%3Db&limit=500", &["b"]),
        ("fieldSelector=metadata.name%3Db", &["b"]),
        ("fieldSelector=metadata.name%3Db&limit=500&resourceVersion=0", &["b"]),
        ("fieldSelector=metadata.name%3Db,metadata.name!%3Db&limit=500", &[]),
        ("fieldSelector=metadata.name%3Db,metadata.name%3Dc&limit=500", &[]),
        ("fieldSelector=metadata.name%3Db&labelSelector=no&limit=500", &[]),
        ("fieldSelector=metadata.name%3Dabsent&limit=500", &[]),
    ];
    for (query, expected) in rows {
        let list = get(query).await.expect(200);
        let items = list["items"].as_array().unwrap();
        let names: Vec<_> = items.iter().map(|item| &item["metadata"]["name"]).collect();
        assert_eq!(names, expected, "{query}");
        assert!(list["metadata"].get("continue").is_none(), "{list}");
    }
    // The list shows what was acknowledged.
    server.delete(&format!("{}/b", pilots()), &json!({})).await.expect(200);
    let list = get("fieldSelector=metadata.name%3Db&limit=500").await.expect(200);
    assert_eq!(list["items"], json!([]));
    let everywhere = format!("{BETA}/pilots?fieldSelector=metadata.name%3Da&limit=500");
    let list = server.get(&everywhere).await.expect(200);
    assert_eq!(list["items"][0]["metadata"]["name"], "a");
    // Only the store can judge a revision that the cache has not reached.
    let later = format!("{}?resourceVersion=999999&resourceVersionMatch=Exact", pilots());
    let answer = server.send("GET", &later, &[], Body::empty()).await;
    assert_eq!(answer.code, 503, "this one reads the store: {answer:?}");
}
