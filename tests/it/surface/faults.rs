//! What the server makes of a store that fails or is slow, and what it asks of it at all.

use std::{sync::Arc, time::Instant};

use axum::body::Body;
use navigator::apiserver::storage::{
    Storage,
    embedded::{Embedded, History},
};
use serde_json::json;

use super::{BETA, PATIENCE, Server, pilot, pilots};
use crate::cache::faulty::Faulty;

async fn server() -> (Server, Arc<Faulty>) {
    let folder = tempfile::tempdir().unwrap();
    let store = Embedded::open(&folder.path().join("store"), History::default()).await.unwrap();
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
    // And it is no old news that is told.
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

/// As a pilot lists: by its name, and with a limit.
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
    // It shows what was acknowledged.
    server.delete(&format!("{}/b", pilots()), &json!({})).await.expect(200);
    let list = get("fieldSelector=metadata.name%3Db&limit=500").await.expect(200);
    assert_eq!(list["items"], json!([]));
    let everywhere = format!("{BETA}/pilots?fieldSelector=metadata.name%3Da&limit=500");
    let list = server.get(&everywhere).await.expect(200);
    assert_eq!(list["items"][0]["metadata"]["name"], "a");
    // A revision that nobody has reached only the store can judge.
    let later = format!("{}?resourceVersion=999999&resourceVersionMatch=Exact", pilots());
    let answer = server.send("GET", &later, &[], Body::empty()).await;
    assert_eq!(answer.code, 503, "this one reads the store: {answer:?}");
}
