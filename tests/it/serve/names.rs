//! Names that two clusters of a namespace would need: the write that needs one second is refused.

use http_body_util::BodyExt as _;
use navigator::apiserver::filters::InflightLimits;
use serde_json::{Value, json};

use super::whole::{BETA, Whole};

const ALPHA: &str = "/apis/navigator.jetstack.io/v1alpha1";

fn cluster(name: &str, pools: &[&str]) -> Value {
    let pool = |name: &&str| json!({"name": name, "replicas": 1, "persistence": {"enabled": true, "size": "1Gi"}});
    json!({
        "kind": "CassandraCluster",
        "metadata": {"name": name},
        "spec": {
            "version": "5.0.6",
            "security": {"mode": "Open"},
            "nodePools": pools.iter().map(pool).collect::<Vec<_>>(),
        },
    })
}

/// Code, warnings and message of the answer.
async fn send(whole: &Whole, method: &str, url: &str, body: &Value) -> (u16, String, String) {
    let answer = whole.send("jane", method, url, body.to_string()).await;
    let code = answer.status().as_u16();
    let warnings = answer.headers().get_all("warning").iter();
    let warnings = warnings.map(|one| one.to_str().unwrap().to_owned()).collect::<String>();
    let body = answer.into_body().collect().await.unwrap().to_bytes();
    let body: Value = serde_json::from_slice(&body).unwrap();
    (code, warnings, body["message"].as_str().unwrap_or_default().to_owned())
}

#[tokio::test]
async fn a_name_of_another_clusters_object_is_refused_in_its_namespace() {
    let whole = Whole::start(|_, _| true, InflightLimits::default()).await;
    let of = |version: &str, namespace: &str| {
        format!("{version}/namespaces/{namespace}/cassandraclusters")
    };
    let (db, elsewhere) = (of(BETA, "db"), of(BETA, "other"));
    let (logs, prod) = (cluster("logs", &["prod-hot"]), cluster("logs-prod", &["hot"]));
    assert_eq!(send(&whole, "POST", &db, &logs).await.0, 201);
    let (code, _, why) = send(&whole, "POST", &db, &prod).await;
    assert_eq!(code, 422, "{why}");
    let says = r#"CassandraCluster "logs" needs the name of StatefulSet "cass-logs-prod-hot""#;
    assert!(why.contains(says) && why.contains("spec.nodePools[0].name"), "{why}");
    let dry = format!("{db}?dryRun=All");
    assert_eq!(send(&whole, "POST", &dry, &prod).await.0, 422);
    assert_eq!(send(&whole, "POST", &elsewhere, &prod).await.0, 201);

    let warm = cluster("logs-prod", &["warm"]);
    assert_eq!(send(&whole, "POST", &db, &warm).await.0, 201);
    let one = format!("{db}/logs-prod");
    let (code, _, why) = send(&whole, "PATCH", &one, &json!({"spec": prod["spec"]})).await;
    assert_eq!(code, 422, "{why}");

    // As upstream allowed it, v1alpha1 is only warned; what is stored stays editable.
    let older = format!("{}/logs-prod", of(ALPHA, "db"));
    let (code, warnings, why) =
        send(&whole, "PATCH", &older, &json!({"spec": {"nodePools": prod["spec"]["nodePools"]}}))
            .await;
    assert_eq!(code, 200, "{why}");
    assert!(warnings.contains("cass-logs-prod-hot"), "{warnings}");
    let label = json!({"metadata": {"labels": {"team": "logs"}}});
    assert_eq!(send(&whole, "PATCH", &one, &label).await.0, 200);
}
