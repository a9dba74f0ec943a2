//! After an outage of kube-apiserver: the real binary follows it again within seconds, although
//! it was told to come back in an hour.

use http::Request;
use serde_json::json;

use crate::support::{
    client::Client,
    server::{PATIENCE, World, brief},
    wait::until,
};

const PILOTS: &str = "/apis/navigator.jetstack.io/v1beta1/namespaces/db/pilots";

fn pilot() -> String {
    json!({
        "apiVersion": "navigator.jetstack.io/v1beta1", "kind": "Pilot",
        "metadata": {"name": "a"}, "spec": {},
    })
    .to_string()
}

#[tokio::test]
async fn what_changed_while_kube_apiserver_was_away_is_known_soon_after() {
    let mut world = World::new().await;
    for verb in ["list", "create"] {
        world.kube.allow("jane", verb, "pilots");
    }
    let server = world.start("store", &[]);
    server.until_ready().await;

    world.kube.set_away(true);
    world.replace_proxy_ca();
    let leaving = json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}});
    world.kube.put("/api/v1/namespaces", "db", leaving);
    for collection in ["configmaps", "namespaces", "mutatingwebhookconfigurations"] {
        server
            .until("all that it follows is asked for in vain", async || {
                let refused = world.kube.refused();
                let asked = refused.iter().any(|path| path.ends_with(collection));
                if asked { Ok(()) } else { Err(format!("{collection}: {refused:?}")) }
            })
            .await;
    }
    world.kube.set_away(false);

    let client = Client::new(server.address, Some(&world.proxy()), None);
    let send = async |request: http::request::Builder, body: String| {
        let request = request.header("X-Remote-User", "jane").body(body).unwrap();
        client.send(request).await.unwrap()
    };
    server
        .until("the new CA is trusted", async || {
            let reply = send(Request::get(PILOTS), String::new()).await;
            if reply.status == 200 { Ok(()) } else { Err(brief(&reply)) }
        })
        .await;
    server
        .until("the namespace is known to go away", async || {
            let reply = send(Request::post(PILOTS), pilot()).await;
            if reply.status == 403 { Ok(()) } else { Err(brief(&reply)) }
        })
        .await;
}

/// A client that asks while kube-apiserver is away for a moment does not notice.
#[tokio::test]
async fn a_review_that_nobody_answers_is_asked_again() {
    let world = World::new().await;
    world.kube.add_token("bobs", json!({"username": "bob"}));
    world.kube.allow("bob", "list", "pilots");
    let server = world.start("store", &[]);
    server.until_ready().await;
    let client = server.stranger();
    // The first request asks whose token it is; the second only what that user may do in `other`.
    for (review, namespace) in [("tokenreviews", "db"), ("subjectaccessreviews", "other")] {
        world.kube.set_away(true);
        let path = format!("/apis/navigator.jetstack.io/v1beta1/namespaces/{namespace}/pilots");
        let request = Request::get(path).header("Authorization", "Bearer bobs");
        let ask = client.send(request.body(String::new()).unwrap());
        let back = async {
            until("the review finds nobody", PATIENCE, async || {
                let refused = world.kube.refused();
                let asked = refused.iter().any(|path| path.ends_with(review));
                if asked { Ok(()) } else { Err(format!("{refused:?}")) }
            })
            .await;
            world.kube.set_away(false);
        };
        let (reply, ()) = tokio::join!(ask, back);
        let reply = reply.unwrap();
        assert_eq!(reply.status, 200, "{review}: {}", brief(&reply));
    }
}
