//! Requests of users who may read: lists in every form and of every time, long selectors over many
//! objects; and what waits behind a webhook that hangs.

use futures::future::join_all;
use http::Request;
use serde_json::json;
use tokio::time::timeout;

use super::{ANSWER, PILOTS, Siege, as_user, attack::AttackTally, post};
use crate::support::{
    client::Reply,
    hooks::{Hooks, Say},
    server::{World, brief},
};

/// Together more than 20 MiB, which is more than the watch window holds; and of many fields, so that
/// trees of them are large.
const OBJECTS: usize = 2500;
const FIELDS: usize = 300;

impl Siege {
    /// Sends a write of each object over one connection, some at a time.
    async fn write_all(&self, request: impl Fn(usize) -> Request<String>) {
        // Fewer requests than one user may have at one time.
        for first in (0..OBJECTS).step_by(20) {
            let requests = (first..first + 20).map(&request).collect();
            for reply in self.client().send_together(requests).await {
                assert!([200, 201].contains(&reply.status), "{}", brief(&reply));
            }
        }
    }

    /// Asks for lists, all at once; what was answered.
    async fn lists(&self, asked: &[(String, &str)]) -> Vec<Reply> {
        let client = self.client();
        let replies = asked.iter().map(|(query, accept)| {
            let request = as_user(Request::get(format!("{PILOTS}?{query}")), "mallory");
            let request = request.header("accept", *accept).body(String::new()).unwrap();
            timeout(ANSWER, client.send(request))
        });
        let replies = join_all(replies).await.into_iter();
        replies.map(|reply| reply.expect("every list is answered").unwrap()).collect()
    }
}

fn text(letter: &str) -> serde_json::Value {
    let field = |at| (format!("e/{at}"), json!(letter));
    json!({"annotations": (0..FIELDS).map(field).collect::<serde_json::Map<_, _>>()})
}

fn made(at: usize) -> Request<String> {
    let mut metadata = text("a");
    metadata["name"] = json!(format!("p{at}"));
    metadata["labels"] = json!({"a": format!("v{at}")});
    let body = json!({"metadata": metadata, "spec": {}}).to_string();
    as_user(Request::post(PILOTS), "mallory").body(body).unwrap()
}

fn changed(at: usize) -> Request<String> {
    as_user(Request::patch(format!("{PILOTS}/p{at}")), "mallory")
        .header("content-type", "application/merge-patch+json")
        .body(json!({"metadata": text("b")}).to_string())
        .unwrap()
}

fn tally(name: &str, replies: &[Reply]) -> AttackTally {
    let mut tally = AttackTally::default();
    for reply in replies {
        tally.answer(reply.status);
    }
    tally.print(name);
    tally
}

const JSON: &str = "application/json";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn readers_of_many_objects_stop_nobody() {
    let siege = Siege::begin().await;
    Box::pin(siege.row("many objects are made", siege.write_all(made))).await;
    forms(&siege).await;
    selectors(&siege).await;
    Box::pin(the_past(&siege)).await;
    siege.end();
}

/// Finding 7: each of these was one tree of all objects.
async fn forms(siege: &Siege) {
    let table = "application/json;as=Table;v=v1;g=meta.k8s.io";
    let metadata = "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io";
    let protobuf =
        "application/vnd.kubernetes.protobuf;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io";
    let of_forms =
        ["application/yaml", table, metadata, protobuf].map(|form| (String::new(), form));
    let pretty = ("pretty=true".to_owned(), JSON);
    for (name, asked) in [
        ("a pretty list", vec![pretty.clone()]),
        ("lists in all forms at once", [of_forms.to_vec(), vec![pretty; 2]].concat()),
    ] {
        let replies = siege.row(name, siege.lists(&asked)).await;
        let refused = replies.iter().find(|reply| ![200, 429].contains(&reply.status));
        assert!(refused.is_none(), "{name}: {}", brief(refused.unwrap()));
        assert!(tally(name, &replies).served() > 0, "{name}: none was answered");
    }
}

/// Finding 8.
async fn selectors(siege: &Siege) {
    let values: Vec<_> = (0..1000).map(|at| format!("{at:x}")).collect();
    let query = format!("limit=1&labelSelector=a+notin+({})", values.join(","));
    let none = format!("labelSelector=a+in+({})", values.join(","));
    let asked = [vec![(query, JSON); 12], vec![(none, JSON); 12]].concat();
    let name = "long selectors over many objects";
    let before = siege.server.spent();
    let replies = siege.row(name, siege.lists(&asked)).await;
    let of_long = siege.server.spent().saturating_sub(before);
    assert_eq!(tally(name, &replies).served(), asked.len());
    // As many values as a URL holds.
    let values: Vec<_> = (0..12_000).map(|at| format!("{at:x}")).collect();
    let asked = vec![(format!("labelSelector=a+notin+({})", values.join(",")), JSON); 24];
    let before = siege.server.spent();
    let name = "longer selectors than are read";
    let replies = siege.row(name, siege.lists(&asked)).await;
    let spent = siege.server.spent().saturating_sub(before);
    let tally = tally(name, &replies);
    assert_eq!((tally.codes_but_429(), tally.refused()), (vec![400], asked.len()), "{tally:?}");
    // They are refused before they are compared with any object.
    assert!(spent < of_long, "{spent:?}, and {of_long:?} for those that are read");
}

/// Finding 6.
async fn the_past(siege: &Siege) {
    let one = siege.lists(&[("limit=1".to_owned(), JSON)]).await;
    let version = one[0].json()["metadata"]["resourceVersion"].as_str().unwrap().to_owned();
    Box::pin(siege.row("all objects are changed", siege.write_all(changed))).await;
    let exact = format!("resourceVersion={version}&resourceVersionMatch=Exact");
    let page = format!("{exact}&limit=1");
    for (name, query, expected) in [
        ("pages of the past", page, vec![200, 429]),
        ("lists of the past", exact, vec![200, 413, 429]),
    ] {
        let replies = siege.row(name, siege.lists(&vec![(query, JSON); 20])).await;
        let refused = replies.iter().find(|reply| !expected.contains(&reply.status));
        assert!(refused.is_none(), "{name}: {}", brief(refused.unwrap()));
        assert!(tally(name, &replies).landed() > 0, "{name}: all were turned away");
    }
}

/// Finding 9: bodies of 57 KB that weigh as much as one may, whose webhook says nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn writes_that_wait_for_a_webhook_hold_nobody_up() {
    let hooks = Hooks::start(|_, _| Say::Nothing).await;
    let mut webhook = hooks.webhook("hangs", &json!({"timeoutSeconds": 10}));
    webhook["failurePolicy"] = json!("Ignore");
    webhook["rules"][0]["resources"] = json!(["cassandraclusters"]);
    let world = World::new().await;
    let configurations = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations";
    world.kube.put(configurations, "hooks", json!({"webhooks": [webhook]}));
    let siege = Siege::begin_in(world, &[]).await;
    let heavy = vec!["{}"; 19_000].join(",");
    let cluster = |name: &str| {
        let body = json!({
            "apiVersion": "navigator.jetstack.io/v1beta1", "kind": "CassandraCluster",
            "metadata": {"name": name},
            "spec": {"version": "5.0.6", "nodePools": [{"name": "a", "replicas": 1}]},
        });
        let body = body.to_string();
        post(&format!("{},\"unknown\":[{heavy}]}}", body.strip_suffix('}').unwrap()))
    };
    let client = siege.client();
    let writes = join_all((0..8).map(|at| client.send(cluster(&format!("heavy-{at}")))));
    let name = "writes behind a webhook that hangs";
    let replies = siege.row(name, writes).await;
    let tally = tally(name, &replies.into_iter().map(Result::unwrap).collect::<Vec<_>>());
    assert_eq!(tally.codes_but_429(), [201], "{tally:?}");
    assert!(!hooks.seen_at("hangs").is_empty());
    siege.end();
}
