//! The path says `watch`, the method says otherwise: a right to read must not become one to write.

use navigator::apiserver::{
    filters::InflightLimits,
    operation::{ResourceOperation, Verb},
    request_info::RequestInfo,
};
use serde_json::{Value, json};

use super::whole::{BETA, Whole, pilot};

/// What the ClusterRole `view` and a pilot's Role give; `root` may do everything.
fn rights(user: &str, request: &RequestInfo) -> bool {
    let Some(ResourceOperation { resource, subresource, .. }) = &request.operation else {
        return user == "root" || (user == "viewer" && !request.is_mutating());
    };
    let verb = request.operation.as_ref().and_then(ResourceOperation::verb);
    let reads = verb.is_some_and(Verb::is_read);
    match user {
        "root" => true,
        "viewer" => reads,
        "pilot" if resource == "pilots" && subresource == "status" => {
            matches!(verb, Some(Verb::Update | Verb::Patch))
        }
        "pilot" => reads && resource == "pilots",
        _ => false,
    }
}

const METHODS: [&str; 9] =
    ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "WATCH"];

/// Below `…/v1beta1/` or `…/v1beta1/watch/`.
fn forms() -> Vec<String> {
    let mut forms = Vec::new();
    for resource in ["pilots", "cassandraclusters"] {
        for place in ["", "namespaces/db/", "namespaces/db%2f", "namespaces//"] {
            for rest in ["", "/prod", "/prod/status", "/prod%2fstatus", "//status", "/prod/"] {
                for query in [
                    "",
                    "?watch=false&watch=true",
                    "?fieldSelector=&fieldSelector=metadata.name=prod",
                    "?dryRun=&timeoutSeconds=1",
                ] {
                    forms.push(format!("{place}{resource}{rest}{query}"));
                }
            }
        }
    }
    forms
}

#[tokio::test]
async fn no_method_and_no_path_makes_a_reader_a_writer() {
    let whole = Whole::start(rights, InflightLimits::default()).await;
    let cluster = json!({
        "apiVersion": "navigator.jetstack.io/v1beta1", "kind": "CassandraCluster",
        "metadata": {"name": "prod"},
        "spec": {
            "version": "5.0.6",
            "nodePools": [{"name": "a", "replicas": 1, "persistence": {"size": "1Gi"}}],
        },
    });
    let kinds = [("pilots", pilot("prod")), ("cassandraclusters", cluster)];
    let mut bodies = Vec::new();
    for (plural, object) in kinds {
        let path = format!("{BETA}/namespaces/db/{plural}");
        let mut stored = whole.create("root", &path, &object).await;
        stored["metadata"]["labels"] = json!({"changed": "yes"});
        stored["status"] = json!({"message": "changed"});
        let mut other = object;
        other["metadata"]["name"] = json!("other");
        bodies.push((plural, stored, other));
    }
    let before = whole.store.current_revision().await.unwrap();

    let mut tried = 2;
    let mut wrong = Vec::new();
    for user in ["viewer", "pilot", ""] {
        for form in forms() {
            for prefix in ["", "watch/", "%77atch/"] {
                for method in METHODS {
                    let path = format!("{BETA}/{prefix}{form}");
                    let own_status =
                        user == "pilot" && form.starts_with("namespaces/db/pilots/prod/status");
                    if own_status && prefix.is_empty() && matches!(method, "PUT" | "PATCH") {
                        // A pilot may write its own status.
                        continue;
                    }
                    let plural_of = |&&(plural, ..): &&(&str, Value, Value)| form.contains(plural);
                    let (_, stored, other) = bodies.iter().find(plural_of).unwrap();
                    let body = match method {
                        "POST" => other.to_string(),
                        "PUT" => stored.to_string(),
                        "PATCH" => json!({"metadata": {"labels": {"changed": "yes"}}}).to_string(),
                        _ => String::new(),
                    };
                    let response = whole.send(user, method, &path, body).await;
                    let code = response.status().as_u16();
                    // Few refusals of strangers are recorded.
                    let recorded = !user.is_empty() && !matches!(method, "GET" | "HEAD");
                    tried += usize::from(recorded);
                    let refused = matches!(code, 403..=405);
                    let under_watch = !prefix.is_empty();
                    if method != "GET" && (!refused || under_watch && code != 405) {
                        wrong.push(format!("{user} {method} {path}: {code}"));
                    }
                    let now = whole.store.current_revision().await.unwrap();
                    assert_eq!(now, before, "{user} {method} {path} ({code}) changed the store");
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{} were not refused:\n{}", wrong.len(), wrong.join("\n"));

    let mut trail = whole.trail(tried + 1).await;
    trail.retain(|line| !line.starts_with("system:anonymous ") && !line.starts_with("- "));
    assert_eq!(trail.len(), tried, "one line for each request that would have changed something");
    assert!(trail[2..].iter().all(|line| line.rsplit(' ').next().unwrap().starts_with("40")));
    let delete = format!("viewer delete {BETA}/watch/namespaces/db/pilots/prod 405");
    assert!(trail.contains(&delete), "its own verb and its own user: {:#?}", &trail[..20]);
}

#[tokio::test]
async fn who_may_list_one_name_lists_no_other() {
    fn one(_: &str, request: &RequestInfo) -> bool {
        let operation = request.operation.as_ref();
        operation.is_some_and(|asked| asked.verb() == Some(Verb::Create) || asked.name == "mine")
    }
    let whole = Whole::start(one, InflightLimits::default()).await;
    let path = format!("{BETA}/namespaces/db/pilots");
    for name in ["mine", "other"] {
        whole.create("jane", &path, &pilot(name)).await;
    }
    for (query, expected) in [
        ("fieldSelector=metadata.name=mine", 200),
        ("fieldSelector=metadata.name=mine&fieldSelector=", 200),
        ("fieldSelector=&fieldSelector=metadata.name=mine", 403),
        ("fieldSelector=metadata.name=other&fieldSelector=metadata.name=mine", 403),
        ("fieldSelector=metadata.namespace=db&fieldSelector=metadata.name=mine", 403),
        ("fieldSelector=metadata.name!=x,metadata.name=mine", 200),
        ("", 403),
    ] {
        let response = whole.send("jane", "GET", &format!("{path}?{query}"), String::new()).await;
        assert_eq!(response.status().as_u16(), expected, "{query}");
        if expected == 200 {
            let bytes = axum::body::to_bytes(response.into_body(), 1 << 20).await.unwrap();
            let list: Value = serde_json::from_slice(&bytes).unwrap();
            let items = list["items"].as_array().unwrap();
            assert_eq!(items.len(), 1, "{query}: {list}");
            assert_eq!(items[0]["metadata"]["name"], "mine");
        }
    }
}
