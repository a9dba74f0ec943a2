//! How much may be stored: every verb that makes something larger is held to it, and nothing that
//! ends or shrinks is.

use navigator::apiserver::capacity::{BESIDE, CapacityBounds};
use serde_json::{Value, json};

use super::{ALPHA, Answer, BETA, PATIENCE, Server, pilot, pilots};

/// Bounds of a process with 2 MiB: 384 KiB in all, 192 KiB in a namespace, and reserves of 64 and
/// 32 KiB.
fn bounds() -> CapacityBounds {
    CapacityBounds::new(2 << 20)
}

fn path(namespace: &str) -> String {
    format!("{BETA}/namespaces/{namespace}/pilots")
}

/// A Pilot with a note of so many bytes.
fn noted(name: &str, bytes: usize) -> Value {
    let mut pilot = pilot(name);
    pilot["metadata"]["annotations"] = json!({"note": "x".repeat(bytes)});
    pilot
}

fn note(bytes: usize) -> Value {
    json!({"metadata": {"annotations": {"note": "x".repeat(bytes)}}})
}

/// Creates objects in a namespace until that is refused; how many there are.
async fn fill(server: &Server, namespace: &str, bytes: usize) -> (usize, Answer) {
    for made in 0.. {
        let answer = server.post(&path(namespace), &noted(&format!("p{made}"), bytes)).await;
        if answer.code != 201 {
            return (made, answer);
        }
    }
    unreachable!("there is a bound")
}

fn assert_full(answer: &Answer, of: &str) {
    let status = answer.refusal(403, "Forbidden");
    let message = status["message"].as_str().unwrap();
    for part in ["exceeded what may be stored", of, "Delete objects", "memory limit of 2097152"] {
        assert!(message.contains(part), "{part}: {message}");
    }
}

#[tokio::test]
async fn creates_and_growth_are_refused_beyond_the_bound_by_every_verb_and_in_a_trial() {
    let server = Server::bounded(bounds()).await;
    let (made, refused) = fill(&server, "db", 4000).await;
    let (least, most) = (bounds().namespace / (5000 + BESIDE), bounds().namespace / 4000);
    assert!((least..most).contains(&made), "{made} of {least} to {most}");
    let of = "objects of namespace \"db\" count ";
    assert_full(&refused, of);
    // The room that is left is less than one object.
    while server.post(&pilots(), &pilot(&format!("small{}", rand::random::<u32>()))).await.code
        == 201
    {}

    let one = format!("{}/p0", pilots());
    let mut whole = server.get(&one).await.expect(200);
    whole["metadata"]["annotations"]["note"] = json!("y".repeat(8000));
    let mut applied = noted("p0", 8000);
    applied["metadata"]["annotations"]["other"] = json!("z");
    for trial in ["", "dryRun=All"] {
        let of_all = |path: &str| format!("{path}?{trial}");
        let alpha = format!("{ALPHA}/namespaces/db/pilots");
        let mut older = noted("older", 4000);
        older["apiVersion"] = json!("navigator.jetstack.io/v1alpha1");
        assert_full(&server.post(&of_all(&pilots()), &noted("new", 4000)).await, of);
        assert_full(&server.post(&of_all(&alpha), &older).await, of);
        assert_full(&server.put(&of_all(&one), &whole).await, of);
        assert_full(&server.merge(&of_all(&one), &note(8000)).await, of);
        assert_full(&server.merge(&of_all(&format!("{alpha}/p0")), &note(8000)).await, of);
        let apply = [("content-type", "application/apply-patch+yaml")];
        for name in ["p0", "new"] {
            applied["metadata"]["name"] = json!(name);
            let path = format!("{}/{name}?fieldManager=me&force=true&{trial}", pilots());
            assert_full(&server.send("PATCH", &path, &apply, applied.to_string()).await, of);
        }
        // A name that is taken is told first.
        let taken = server.post(&of_all(&pilots()), &noted("p1", 4000)).await;
        taken.refusal(409, "AlreadyExists");
    }
    assert_eq!(
        server.get(&one).await.expect(200)["metadata"]["annotations"],
        noted("", 4000)["metadata"]["annotations"]
    );

    // Other namespaces have room of their own, until all is full.
    fill(&server, "other", 4000).await;
    let (made, third) = fill(&server, "third", 4000).await;
    assert!(made <= 2, "{made}");
    assert_full(&third, "all objects count ");
}

#[tokio::test]
async fn what_ends_shrinks_or_reports_goes_on() {
    let server = Server::bounded(bounds()).await;
    let mut held = noted("held", 4000);
    held["metadata"]["finalizers"] = json!(["example.org/hold"]);
    server.post(&pilots(), &held).await.expect(201);
    fill(&server, "db", 4000).await;
    while server.post(&pilots(), &pilot(&format!("small{}", rand::random::<u32>()))).await.code
        == 201
    {}
    let one = format!("{}/p0", pilots());
    // Reports, leases, and what a controller marks an object with.
    let report = json!({"status": {"pilotVersion": "r".repeat(1000)}});
    server.merge(&format!("{one}/status"), &report).await.expect(200);
    let lease = json!({"metadata": {"name": "leader"}, "spec": {"holderIdentity": "a"}});
    let leases = format!("{BETA}/namespaces/db/leaderleases");
    server.post(&leases, &lease).await.expect(201);
    server
        .merge(&format!("{leases}/leader"), &json!({"spec": {"holderIdentity": "b"}}))
        .await
        .expect(200);
    let mark = json!({"metadata": {"finalizers": ["example.org/mark"]}});
    server.merge(&one, &mark).await.expect(200);
    // Objects may shrink and be deleted.
    server.merge(&one, &note(3000)).await.expect(200);
    server.merge(&one, &json!({"metadata": {"finalizers": null}})).await.expect(200);
    let held = format!("{}/held", pilots());
    let marked = server.delete(&held, &json!({})).await.expect(200);
    assert!(marked["metadata"]["deletionTimestamp"].is_string(), "{marked}");
    server.merge(&held, &json!({"metadata": {"finalizers": null}})).await.expect(200);
    server.get(&held).await.refusal(404, "NotFound");
    server.delete(&one, &json!({})).await.expect(200);
    // A deleted object makes room, as soon as the cache shows it.
    let begun = std::time::Instant::now();
    while server.post(&pilots(), &noted("again", 4000)).await.code != 201 {
        assert!(begun.elapsed() < PATIENCE, "there is no room");
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
}

/// A user who fills the reserve, too, holds up reports that grow, and no deletion.
#[tokio::test]
async fn a_reserve_that_is_used_up_refuses_growth_and_nothing_that_ends() {
    let server = Server::bounded(bounds()).await;
    let mut held = noted("held", 100);
    held["metadata"]["finalizers"] = json!(["example.org/hold"]);
    server.post(&pilots(), &held).await.expect(201);
    fill(&server, "db", 4000).await;
    let report = |bytes: usize| json!({"status": {"pilotVersion": "r".repeat(bytes)}});
    let mut refused = None;
    for at in 0..20 {
        let answer = server.merge(&format!("{}/p{at}/status", pilots()), &report(4000)).await;
        if answer.code != 200 {
            refused = Some((at, answer));
            break;
        }
    }
    let (at, refused) = refused.expect("the reserve has an end");
    assert!(at >= 5, "{at}");
    assert_full(&refused, "objects of namespace \"db\" count ");
    server.merge(&format!("{}/p0/status", pilots()), &report(4000)).await.expect(200);
    server.merge(&format!("{}/p0/status", pilots()), &report(10)).await.expect(200);
    let held = format!("{}/held", pilots());
    server.delete(&held, &json!({})).await.expect(200);
    server.merge(&held, &json!({"metadata": {"finalizers": null}})).await.expect(200);
    server.get(&held).await.refusal(404, "NotFound");
}
