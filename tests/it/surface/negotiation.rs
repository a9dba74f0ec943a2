//! The forms in which objects are read and written.

use std::io::Read as _;

use serde_json::json;

use super::{ALPHA, Server, pilot, pilots};

const TABLE: &str = "application/json;as=Table;v=v1;g=meta.k8s.io,\
                     application/json;as=Table;v=v1beta1;g=meta.k8s.io,application/json";

#[tokio::test]
async fn yaml_goes_in_and_out() {
    let server = Server::start().await;
    let body = "apiVersion: navigator.jetstack.io/v1beta1\nkind: Pilot\nmetadata: {name: a}\n\
                spec: {nodePool: x}\n";
    let headers = [("content-type", "application/yaml"), ("accept", "application/yaml")];
    let answer = server.send("POST", &pilots(), &headers, body).await;
    assert_eq!(
        (answer.code, &answer.headers["content-type"]),
        (201, &"application/yaml".parse().unwrap())
    );
    assert!(answer.text().contains("nodePool: x"), "{}", answer.text());
    let answer = server.get_as(&format!("{}/nope", pilots()), "application/yaml").await;
    assert_eq!(answer.code, 404);
    assert!(answer.text().contains("reason: NotFound"), "{}", answer.text());
}

#[tokio::test]
async fn kubectl_gets_tables() {
    let server = Server::start().await;
    for name in ["a", "b"] {
        server.pilot(name).await;
    }
    for path in [pilots(), format!("{ALPHA}/namespaces/db/pilots")] {
        let table = server.get_as(&format!("{path}?limit=500"), TABLE).await.expect(200);
        assert_eq!(
            (&table["kind"], &table["apiVersion"]),
            (&json!("Table"), &json!("meta.k8s.io/v1"))
        );
        assert!(table["metadata"]["resourceVersion"].is_string());
        let columns = table["columnDefinitions"].as_array().unwrap();
        let names: Vec<_> = columns.iter().map(|column| column["name"].as_str().unwrap()).collect();
        assert_eq!(&names[..7], ["Name", "Cluster", "Pool", "Ready", "Phase", "Version", "Age"]);
        let rows = table["rows"].as_array().unwrap();
        assert_eq!(rows.len(), 2);
        assert_eq!(rows[0]["cells"].as_array().unwrap().len(), columns.len());
        assert_eq!(rows[0]["object"]["kind"], "PartialObjectMetadata");
    }
    let whole = format!("{}?includeObject=Object", pilots());
    let table = server.get_as(&whole, TABLE).await.expect(200);
    assert_eq!(table["rows"][0]["object"]["kind"], "Pilot");
    let none = format!("{}?includeObject=None", pilots());
    let table = server.get_as(&none, TABLE).await.expect(200);
    assert!(table["rows"][0].get("object").is_none());
    let one = server.get_as(&format!("{}/a", pilots()), TABLE).await.expect(200);
    assert_eq!(one["rows"].as_array().unwrap().len(), 1);
    let wrong = format!("{}?includeObject=Some", pilots());
    let status = server.get_as(&wrong, TABLE).await.refusal(400, "BadRequest");
    assert!(status["message"].as_str().unwrap().starts_with("Unable to convert to Table"));
}

#[tokio::test]
async fn garbage_collection_gets_metadata() {
    let server = Server::start().await;
    server.pilot("a").await;
    let list = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json";
    let one = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json";
    let answer = server.get_as(&pilots(), list).await.expect(200);
    assert_eq!(answer["kind"], "PartialObjectMetadataList");
    let item = &answer["items"][0];
    assert_eq!(
        (&item["kind"], &item["apiVersion"]),
        (&json!("PartialObjectMetadata"), &json!("meta.k8s.io/v1"))
    );
    assert!(item.get("spec").is_none() && item["metadata"]["uid"].is_string());
    let path = format!("{}/a", pilots());
    let answer = server.get_as(&path, one).await.expect(200);
    assert_eq!(answer["kind"], "PartialObjectMetadata");
    let headers = [("content-type", "application/merge-patch+json"), ("accept", one)];
    let patch = json!({"metadata": {"labels": {"x": "y"}}}).to_string();
    let answer = server.send("PATCH", &path, &headers, patch).await.expect(200);
    assert_eq!(answer["kind"], "PartialObjectMetadata");
    assert_eq!(answer["metadata"]["labels"]["x"], "y");
    let headers = [("content-type", "application/json"), ("accept", one)];
    let answer =
        server.send("DELETE", &path, &headers, r#"{"propagationPolicy":"Background"}"#).await;
    assert_eq!(answer.expect(200)["status"], "Success");

    server
        .get_as(&pilots(), "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1")
        .await
        .refusal(406, "NotAcceptable");
    server.pilot("b").await;
    let path = format!("{}/b", pilots());
    server
        .get_as(&path, "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1")
        .await
        .refusal(406, "NotAcceptable");
}

#[tokio::test]
async fn what_cannot_be_read_or_written_is_said() {
    let server = Server::start().await;
    let status = server.get_as(&pilots(), "application/cbor").await;
    let status = status.refusal(406, "NotAcceptable");
    assert!(status["message"].as_str().unwrap().contains("application/json, application/yaml"));
    let headers = [("content-type", "application/vnd.kubernetes.protobuf")];
    server.send("POST", &pilots(), &headers, "x").await.refusal(415, "UnsupportedMediaType");
    server.send("POST", &pilots(), &[], "{").await.refusal(400, "BadRequest");
    server.send("POST", &pilots(), &[], "[]").await.refusal(400, "BadRequest");
    server.send("POST", &pilots(), &[], "").await.refusal(400, "BadRequest");
    let mut body = pilot("a");
    body["spec"]["nodePool"] = json!(5);
    let answer = server.post(&pilots(), &body).await;
    assert!(matches!(answer.code, 400 | 422), "{answer:?}");
    let mut body = pilot("a");
    body["spec"]["nodePool"] = json!("x".repeat(3 * 1024 * 1024));
    let status = server.post(&pilots(), &body).await.refusal(413, "RequestEntityTooLarge");
    assert_eq!(status["message"], "Request entity too large: limit is 3145728");
}

#[tokio::test]
async fn large_lists_are_compressed_for_those_who_want_it() {
    let server = Server::start().await;
    let mut body = pilot("x");
    body["metadata"]["annotations"] = json!({"text": "y".repeat(50_000)});
    for number in 0..4 {
        body["metadata"]["name"] = json!(format!("p{number}"));
        server.post(&pilots(), &body).await.expect(201);
    }
    let plain = server.get(&pilots()).await;
    assert!(plain.headers.get("content-encoding").is_none());
    let headers = [("accept-encoding", "gzip")];
    let packed = server.send("GET", &pilots(), &headers, "").await;
    assert_eq!(packed.headers["content-encoding"], "gzip");
    let mut unpacked = Vec::new();
    flate2::read::GzDecoder::new(&packed.body[..]).read_to_end(&mut unpacked).unwrap();
    assert_eq!(unpacked, plain.body);
    let small = server.send("GET", &format!("{}/p0", pilots()), &headers, "").await;
    assert!(small.headers.get("content-encoding").is_none());
}

#[tokio::test]
async fn people_get_indented_output() {
    let server = Server::start().await;
    server.pilot("a").await;
    let path = format!("{}/a", pilots());
    let headers = [("user-agent", "curl/8.0")];
    assert!(server.send("GET", &path, &headers, "").await.text().starts_with("{\n  \""));
    assert!(server.get(&format!("{}?pretty=1", pilots())).await.text().starts_with("{\n  \""));
    assert!(!server.get(&path).await.text().starts_with("{\n"));
}
