//! Requests in another user's name: who may send them, as whom they go on, and what is recorded.

use http::Request;
use serde_json::{Value, json};

use crate::support::{
    client::{Client, Reply},
    server::{World, json_lines},
};

const PILOTS: &str = "/apis/navigator.jetstack.io/v1beta1/namespaces/db/pilots";

/// Reads pilots, with headers of its own.
async fn list(client: &Client, headers: &[(&str, &str)]) -> Reply {
    let mut request = Request::get(PILOTS);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    client.send(request.body(String::new()).unwrap()).await.unwrap()
}

fn all_but_stages(spec: &Value) -> Value {
    json!([spec["groups"], spec["uid"], spec["extra"]])
}

#[tokio::test]
async fn who_may_be_another_user_is_that_user_and_the_trail_names_both() {
    let world = World::new().await;
    let (trail, policy) = (world.path("audit.log"), world.path("policy"));
    std::fs::write(
        &policy,
        "{apiVersion: audit.k8s.io/v1, kind: Policy, rules: [{level: Metadata, users: [admin]}]}",
    )
    .unwrap();
    for what in ["users", "groups", "serviceaccounts", "uids", "userextras/example.org/scopes"] {
        world.kube.allow("admin", "impersonate", what);
    }
    let server =
        world.start("store", &["--audit-log-path", &trail, "--audit-policy-file", &policy]);
    server.until_ready().await;
    let admin = world.client_ca.issue("admin", &[]);
    let admin = Client::new(server.address, Some(&admin), None);
    let service_account = "system:serviceaccount:db:demo";
    let user = |name| ("Impersonate-User", name);
    let group = |name| ("Impersonate-Group", name);
    let rows = [
        ("jane", vec![user("jane")], json!([["system:authenticated"], null, null])),
        (
            "joe",
            vec![
                user("joe"),
                group("dev"),
                group("ops"),
                ("Impersonate-Uid", "7"),
                ("Impersonate-Extra-Example.org%2Fscopes", "a"),
                ("Impersonate-Extra-example.org%2fscopes", "b"),
            ],
            json!([
                ["dev", "ops", "system:authenticated"],
                "7",
                {"example.org/scopes": ["a", "b"]},
            ]),
        ),
        (
            service_account,
            vec![user(service_account)],
            json!([
                ["system:serviceaccounts", "system:serviceaccounts:db", "system:authenticated"],
                null,
                null,
            ]),
        ),
        (
            "guest",
            vec![user("guest"), group("system:unauthenticated")],
            json!([["system:unauthenticated"], null, null]),
        ),
        (
            "system:anonymous",
            vec![user("system:anonymous"), group("dev")],
            json!([["dev", "system:unauthenticated"], null, null]),
        ),
    ];
    for (name, headers, expected) in rows {
        // The rights of the impersonated user count.
        let refused = list(&admin, &headers).await;
        assert_eq!(refused.status, 403, "{refused:?}");
        let text = format!("User {name:?} cannot list resource");
        assert!(refused.body.contains(&text.replace('"', "\\\"")), "{refused:?}");
        let asked = world.kube.asked_of(name);
        let asked = asked.last().unwrap();
        assert_eq!(asked["resourceAttributes"]["verb"], "list", "{asked}");
        assert_eq!(all_but_stages(asked), expected, "{name}");
        let line = json_lines(&trail).pop().unwrap();
        let impersonated = &line["impersonatedUser"];
        assert_eq!(
            (&line["user"]["username"], &line["stage"]),
            (&json!("admin"), &json!("ResponseComplete"))
        );
        assert_eq!(impersonated["username"], name, "{line}");
        assert_eq!(all_but_stages(impersonated), expected, "{line}");
    }
    world.kube.allow("jim", "list", "pilots");
    let served = list(&admin, &[user("jim")]).await;
    assert_eq!(served.status, 200, "{served:?}");
    // With an empty name, the request is the sender's own.
    let own = list(&admin, &[user(""), ("Impersonate-Other", "x")]).await;
    assert!(own.body.contains("User \\\"admin\\\" cannot list"), "{own:?}");
    assert!(json_lines(&trail).pop().unwrap()["impersonatedUser"].is_null());

    let asked: Vec<_> = world.kube.asked_of("admin");
    let asked: Vec<_> = asked.iter().map(|spec| &spec["resourceAttributes"]).collect();
    for expected in [
        json!({"verb": "impersonate", "resource": "users", "name": "jane"}),
        json!({"verb": "impersonate", "resource": "groups", "name": "dev"}),
        json!({
            "verb": "impersonate", "resource": "serviceaccounts", "namespace": "db", "name": "demo",
        }),
        json!({
            "verb": "impersonate", "group": "authentication.k8s.io", "version": "v1",
            "resource": "uids", "name": "7",
        }),
        json!({
            "verb": "impersonate", "group": "authentication.k8s.io", "version": "v1",
            "resource": "userextras", "subresource": "example.org/scopes", "name": "b",
        }),
    ] {
        assert!(asked.contains(&&expected), "{expected} in {asked:#?}");
    }
}

#[tokio::test]
async fn who_may_not_be_another_user_learns_why_wherever_the_request_comes_from() {
    let world = World::new().await;
    world.kube.allow("half", "impersonate", "users");
    world.kube.allow("half", "list", "pilots");
    let server = world.start("store", &[]);
    server.until_ready().await;
    let half = world.client_ca.issue("half", &[]);
    let direct = Client::new(server.address, Some(&half), None);
    let proxied = Client::new(server.address, Some(&world.proxy()), None);
    let cannot = |what: &str, resource: &str, group: &str, scope: &str| {
        format!(
            "{what} is forbidden: User \"half\" cannot impersonate resource \"{resource}\" in \
             API group \"{group}\" {scope}: told so"
        )
    };
    let everywhere = "at the cluster scope";
    let authentication = "authentication.k8s.io";
    let rows = [
        (
            vec![("Impersonate-User", "jane"), ("Impersonate-Group", "system:masters")],
            cannot("groups \"system:masters\"", "groups", "", everywhere),
        ),
        (
            vec![("Impersonate-User", "system:serviceaccount:db:demo")],
            cannot("serviceaccounts \"demo\"", "serviceaccounts", "", "in the namespace \"db\""),
        ),
        (
            vec![("Impersonate-User", "jane"), ("Impersonate-Uid", "7")],
            cannot("uids.authentication.k8s.io \"7\"", "uids", authentication, everywhere),
        ),
        (
            vec![("Impersonate-User", "jane"), ("Impersonate-Extra-Scopes", "all")],
            cannot(
                "userextras.authentication.k8s.io \"all\"",
                "userextras/scopes",
                authentication,
                everywhere,
            ),
        ),
    ];
    for (headers, expected) in &rows {
        for (client, by) in [(&direct, None), (&proxied, Some(("X-Remote-User", "half")))] {
            let headers: Vec<_> = headers.iter().copied().chain(by).collect();
            let refused = list(client, &headers).await;
            assert_eq!(refused.status, 403, "{refused:?}");
            assert_eq!(refused.json()["message"], *expected);
        }
    }
    // A group belongs to a user.
    let refused = list(&direct, &[("Impersonate-Group", "system:masters")]).await;
    assert_eq!(refused.status, 500, "{refused:?}");
    let expected = format!(
        "Internal Server Error: {PILOTS:?}: requested [{{Group  system:masters    }}] without \
         impersonating a user\n"
    );
    assert_eq!(refused.body, expected);
    // A bad credential is refused before a review of the user that it wants to be.
    let nobody = list(&proxied, &[("Impersonate-User", "half")]).await;
    assert_eq!(nobody.status, 401, "{nobody:?}");
}
