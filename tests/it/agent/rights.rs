//! What the agent's account may do, by the roles and the policy of the manifest.

use http::Method;
use kube::Client;
use navigator::{
    api::names,
    manifest::{ClusterManagerSettings, agent},
};
use serde_json::{Value, json};

use super::{MARKS, Machine, PATIENCE, RunningAgent, file_of, new_key, send};
use crate::support::wait::until;

/// Where objects of a manifest are made.
fn collection(object: &Value, namespace: &str) -> String {
    let plural = match object["kind"].as_str().unwrap() {
        "ValidatingAdmissionPolicy" => "validatingadmissionpolicies".to_owned(),
        kind => format!("{}s", kind.to_lowercase()),
    };
    let version = object["apiVersion"].as_str().unwrap();
    let group = if version == "v1" { "/api/v1".to_owned() } else { format!("/apis/{version}") };
    match object["metadata"].get("namespace") {
        Some(_) => format!("{group}/namespaces/{namespace}/{plural}"),
        None => format!("{group}/{plural}"),
    }
}

/// A client by a token of the agent's account, bound to a pod on this Node; or to none.
async fn agent_client(machine: &Machine, node: Option<&str>) -> Client {
    let core = format!("/api/v1/namespaces/{}", machine.name);
    let mut spec = json!({});
    if let Some(node) = node {
        let pod = json!({
            "metadata": {"name": format!("agent-{node}")},
            "spec": {
                "nodeName": node, "serviceAccountName": names::AGENT,
                "containers": [{"name": "agent", "image": "agent"}],
            },
        });
        let pod = machine.make(&format!("{core}/pods"), &pod).await;
        spec["boundObjectRef"] = json!({
            "apiVersion": "v1", "kind": "Pod", "name": pod["metadata"]["name"],
            "uid": pod["metadata"]["uid"],
        });
    }
    let path = format!("{core}/serviceaccounts/{}/token", names::AGENT);
    let token = machine.make(&path, &json!({"spec": spec})).await;
    let mut config = machine.server.config().await;
    config.auth_info.client_certificate_data = None;
    config.auth_info.client_key_data = None;
    config.auth_info.token = token["status"]["token"].as_str().map(|token| token.to_owned().into());
    Client::try_from(config).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_agent_may_say_what_it_has_to_on_its_own_node_and_nothing_else() {
    let _turn = MARKS.lock().await;
    let machine = Machine::new("agent-rights").await;
    let settings = ClusterManagerSettings {
        namespace: machine.name.to_owned(),
        ..ClusterManagerSettings::default()
    };
    for object in agent::agent_objects(&settings) {
        machine.make(&collection(&object, machine.name), &object).await;
    }
    let by_others = json!({
        "metadata": {
            "annotations": {"of-a-person": "1", "containership.io/cordoned-by": "a run"},
            "labels": {"of-a-person": "1"},
        },
        "spec": {"taints": [{"key": "of-a-person", "effect": "NoSchedule"}]},
    });
    let (own, other) = ("/api/v1/nodes/agent-rights", "/api/v1/nodes/agent-rights-b");
    machine.make("/api/v1/nodes", &json!({"metadata": {"name": "agent-rights-b"}})).await;
    let (status, said) = machine.server.ask(Method::PATCH, own, &by_others).await;
    assert_eq!(status, 200, "{said}");

    let client = agent_client(&machine, Some("agent-rights")).await;
    let annotate = |key: &str, value: Value| json!({"metadata": {"annotations": {key: value}}});
    let says = annotate("containership.io/agent", json!("{}"));
    // The policy takes a moment to be known.
    until("the policy is in force", PATIENCE, async || {
        match send(&client, Method::PATCH, other, &says).await {
            (403, said) if said.to_string().contains("own Node only") => Ok(()),
            (code, said) => Err(format!("{code} {said}")),
        }
    })
    .await;
    let users = machine.users();
    let runs = users
        .replace("containership.io", "provision.containership.io")
        .replace("users", "clusterupgrades");
    let user = format!("{users}/anne");
    machine.set("anne", &[]).await;
    let before = machine.server.ask(Method::GET, own, &Value::Null).await.1;
    let meta = |fields: Value| json!({"metadata": fields});
    let secrets = format!("/api/v1/namespaces/{}/secrets", machine.name);
    let owner = json!([{"apiVersion": "v1", "kind": "Node", "name": "x", "uid": "x"}]);
    let status = json!({"status": {"nodeInfo": {"kubeletVersion": "v9"}}});
    let node = json!({"metadata": {"name": "agent-rights-c"}});
    let policy =
        "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies/navigator-agent";
    for (method, path, body, code) in [
        (Method::PATCH, own, says.clone(), 200),
        (Method::PATCH, own, annotate("containership.io/upgrade", json!("{}")), 200),
        (Method::PATCH, own, annotate("containership.io/upgrade", json!(null)), 200),
        (Method::PATCH, own, annotate("containership.io/cordoned-by", json!("me")), 403),
        (Method::PATCH, own, annotate("containership.io/cordoned-by", json!(null)), 403),
        (Method::PATCH, own, annotate("containership.io/tainted-by", json!("me")), 403),
        (Method::PATCH, own, annotate("of-a-person", json!("2")), 403),
        (Method::PATCH, own, annotate("of-a-person", json!(null)), 403),
        (Method::PATCH, own, annotate("new", json!("1")), 403),
        (Method::PATCH, own, meta(json!({"annotations": null})), 403),
        (Method::PATCH, own, meta(json!({"labels": {"new": "1"}})), 403),
        (Method::PATCH, own, meta(json!({"labels": {"containership.io/new": "1"}})), 403),
        (Method::PATCH, own, meta(json!({"labels": null})), 403),
        (Method::PATCH, own, meta(json!({"finalizers": ["a.example/b"]})), 403),
        (Method::PATCH, own, meta(json!({"ownerReferences": owner})), 403),
        (Method::PATCH, own, json!({"spec": {"unschedulable": true}}), 403),
        (Method::PATCH, own, json!({"spec": {"taints": null}}), 403),
        (Method::PATCH, own, json!({"spec": {"providerID": "x"}}), 403),
        // It is ignored there, and below it is refused.
        (Method::PATCH, own, status.clone(), 200),
        (Method::PATCH, "/api/v1/nodes/agent-rights/status", status, 403),
        (Method::PATCH, other, says.clone(), 403),
        (Method::GET, own, Value::Null, 403),
        (Method::GET, "/api/v1/nodes", Value::Null, 403),
        (Method::DELETE, own, Value::Null, 403),
        (Method::PUT, own, before.clone(), 403),
        (Method::POST, "/api/v1/nodes", node, 403),
        (Method::GET, &users, Value::Null, 200),
        (Method::GET, &runs, Value::Null, 200),
        (Method::DELETE, &format!("{runs}/x"), Value::Null, 403),
        (Method::PATCH, &format!("{runs}/x/status"), json!({"status": {"done": 1}}), 403),
        (Method::PATCH, &user, json!({"spec": {"ssh_keys": null}}), 403),
        (Method::DELETE, &user, Value::Null, 403),
        (Method::PATCH, &format!("{user}/status"), json!({"status": {"keys": 1}}), 403),
        (Method::GET, "/apis/containership.io/v3/users", Value::Null, 403),
        (Method::GET, &secrets, Value::Null, 403),
        (
            Method::GET,
            "/api/v1/namespaces?fieldSelector=metadata.name=agent-rights",
            Value::Null,
            200,
        ),
        (Method::GET, "/api/v1/namespaces?fieldSelector=metadata.name=default", Value::Null, 403),
        (Method::GET, "/api/v1/namespaces", Value::Null, 403),
        (
            Method::PATCH,
            "/api/v1/namespaces/agent-rights",
            meta(json!({"labels": {"a": "b"}})),
            403,
        ),
        (Method::GET, "/api/v1/pods", Value::Null, 403),
        (Method::DELETE, policy, Value::Null, 403),
    ] {
        let (status, said) = send(&client, method.clone(), path, &body).await;
        assert_eq!(status, code, "{method} {path} {body}: {said}");
    }
    // A token that is bound to no Node is worth nothing on any.
    let unbound = agent_client(&machine, None).await;
    for node in [own, other] {
        let (status, said) = send(&unbound, Method::PATCH, node, &says).await;
        assert_eq!(status, 403, "{said}");
    }
    let after = machine.server.ask(Method::GET, own, &Value::Null).await.1;
    assert_eq!((&after["spec"], &after["status"]), (&before["spec"], &before["status"]));
    assert_eq!(after["metadata"]["labels"], before["metadata"]["labels"]);
    assert_eq!(after["metadata"]["annotations"]["of-a-person"], "1");

    // And it is enough for the agent's work.
    let key = new_key();
    machine.set("anne", &[&key]).await;
    let config = machine.config(std::time::Duration::from_secs(1));
    let agent = RunningAgent::start(config, client);
    machine.until_file_is(&file_of(&[("anne", &[&key])])).await;
    until("the agent speaks", PATIENCE, async || {
        let report = machine.report().await;
        if report["keys"].is_string() { Ok(()) } else { Err(report.to_string()) }
    })
    .await;
    agent.stop().await;
}
