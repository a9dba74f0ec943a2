//! Discovery, OpenAPI, version, index, health, metrics.

use navigator::apiserver::store_identity::StoreVerdict;
use serde_json::{Value, json};

use super::{ALPHA, BETA, Server};

const GROUP: &str = "navigator.jetstack.io";
const AGGREGATED: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";

#[tokio::test]
async fn the_group_prefers_v1beta1() {
    let server = Server::start().await;
    let list = server.get("/apis").await.expect(200);
    assert_eq!(list["kind"], "APIGroupList");
    let group = server.get(&format!("/apis/{GROUP}")).await.expect(200);
    assert_eq!(group["kind"], "APIGroup");
    for group in [&group, &list["groups"][0]] {
        assert_eq!(group["name"], GROUP);
        let versions = json!([
            {"groupVersion": format!("{GROUP}/v1beta1"), "version": "v1beta1"},
            {"groupVersion": format!("{GROUP}/v1alpha1"), "version": "v1alpha1"},
        ]);
        assert_eq!(group["versions"], versions);
        assert_eq!(group["preferredVersion"], versions[0]);
    }
}

#[tokio::test]
async fn each_version_lists_its_resources() {
    let server = Server::start().await;
    for (path, expected) in [
        (
            BETA,
            &[
                "cassandraclusters",
                "cassandraclusters/status",
                "elasticsearchclusters",
                "elasticsearchclusters/status",
                "leaderleases",
                "pilots",
                "pilots/status",
            ][..],
        ),
        (
            ALPHA,
            &[
                "cassandraclusters",
                "cassandraclusters/status",
                "elasticsearchclusters",
                "elasticsearchclusters/status",
                "pilots",
                "pilots/status",
            ],
        ),
    ] {
        let list = server.get(path).await.expect(200);
        assert_eq!(list["kind"], "APIResourceList");
        let resources = list["resources"].as_array().unwrap();
        let names: Vec<_> = resources.iter().map(|r| r["name"].as_str().unwrap()).collect();
        assert_eq!(names, expected);
        for resource in resources {
            let main = !resource["name"].as_str().unwrap().contains('/');
            let verbs = if main {
                json!([
                    "create",
                    "delete",
                    "deletecollection",
                    "get",
                    "list",
                    "patch",
                    "update",
                    "watch"
                ])
            } else {
                json!(["get", "patch", "update"])
            };
            assert_eq!(resource["verbs"], verbs);
            assert_eq!(resource["namespaced"], true);
            assert_eq!(resource["storageVersionHash"].is_string(), main);
        }
    }
    let of = async |path: &str| {
        let list = server.get(path).await.expect(200);
        list["resources"][0]["storageVersionHash"].clone()
    };
    assert_eq!(of(BETA).await, of(ALPHA).await, "one stored form");
    // The first eight bytes of the SHA-256 of navigator.jetstack.io/v1beta1/CassandraCluster.
    assert_eq!(of(BETA).await, "c9PKC/NN7+4=");
}

#[tokio::test]
async fn aggregated_discovery_is_typed_tagged_and_cached() {
    let server = Server::start().await;
    let accept = format!(
        "{AGGREGATED},application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList,application/json"
    );
    let answer = server.get_as("/apis", &accept).await;
    assert_eq!(answer.headers["content-type"], AGGREGATED);
    assert_eq!(answer.headers["vary"], "Accept");
    assert_eq!(answer.headers["cache-control"], "public");
    let list = answer.expect(200);
    assert_eq!(
        (&list["kind"], &list["apiVersion"]),
        (&json!("APIGroupDiscoveryList"), &json!("apidiscovery.k8s.io/v2"))
    );
    let versions = list["items"][0]["versions"].as_array().unwrap();
    let resource = versions[0]["resources"]
        .as_array()
        .unwrap()
        .iter()
        .find(|r| r["resource"] == "pilots")
        .unwrap();
    assert_eq!(
        *resource,
        json!({
            "resource": "pilots", "scope": "Namespaced", "singularResource": "pilot",
            "responseKind": {"group": GROUP, "version": "v1beta1", "kind": "Pilot"},
            "verbs": ["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"],
            "shortNames": ["pil"], "categories": ["navigator"],
            "subresources": [{
                "subresource": "status", "acceptedTypes": [], "verbs": ["get", "patch", "update"],
                "responseKind": {"group": GROUP, "version": "v1beta1", "kind": "Pilot"},
            }],
        })
    );
    assert_eq!(versions[1]["version"], "v1alpha1");
    assert_eq!(versions[1]["freshness"], "Current");

    let etag = answer.headers["etag"].to_str().unwrap().to_owned();
    assert_eq!(etag.len(), 130);
    let headers = [("accept", accept.as_str()), ("if-none-match", etag.as_str())];
    let again = server.send("GET", "/apis", &headers, "").await;
    assert_eq!((again.code, again.body.len()), (304, 0));

    let beta = "application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList,application/json";
    assert_eq!(server.get_as("/apis", beta).await.expect(200)["kind"], "APIGroupList");
}

#[tokio::test]
async fn openapi_is_found_by_its_hash_and_never_redirects() {
    let server = Server::start().await;
    let index = server.get("/openapi/v3").await.expect(200);
    for version in ["v1beta1", "v1alpha1"] {
        let url = index["paths"][format!("apis/{GROUP}/{version}")]["serverRelativeURL"]
            .as_str()
            .unwrap();
        let answer = server.get(url).await;
        assert_eq!(answer.headers["cache-control"], "public, immutable");
        assert!(answer.headers["expires"].to_str().unwrap().ends_with(" GMT"));
        let document = answer.expect(200);
        assert!(document["openapi"].as_str().unwrap().starts_with("3.0"));
        let protobuf = "application/com.github.proto-openapi.spec.v3.v1.0+protobuf";
        for accept in [protobuf, "application/com.github.proto-openapi.spec.v3@v1.0+protobuf"] {
            let packed = server.get_as(url, accept).await;
            assert_eq!(
                (packed.code, &packed.headers["content-type"]),
                (200, &protobuf.parse().unwrap())
            );
            assert_eq!(packed.headers["etag"], answer.headers["etag"], "one document, one tag");
            assert_eq!(packed.headers["vary"], "Accept");
            // Field 1 is a text: the version of OpenAPI.
            assert_eq!(&packed.body[..7], b"\x0a\x053.0.0", "{accept}");
        }
        let both = format!("application/json;q=0.5,{protobuf}");
        assert_eq!(server.get_as(url, &both).await.headers["content-type"], protobuf);
        server.get_as(url, "text/html").await.refusal(406, "NotAcceptable");
        server.get_as("/openapi/v3", protobuf).await.refusal(406, "NotAcceptable");
        let stale = server.get(&format!("/openapi/v3/apis/{GROUP}/{version}?hash=00")).await;
        assert_eq!(stale.expect(200), document);
        assert!(stale.headers.get("expires").is_none());
    }
    let answer = server.get("/openapi/v2").await;
    let document = answer.expect(200);
    assert_eq!(document["swagger"], "2.0");
    let etag = answer.headers["etag"].to_str().unwrap();
    assert_eq!(server.send("GET", "/openapi/v2", &[("if-none-match", etag)], "").await.code, 304);
    let protobuf = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf";
    server.get_as("/openapi/v2", protobuf).await.refusal(406, "NotAcceptable");

    let patches = |document: &Value| {
        let text = document.to_string();
        (
            text.contains("application/merge-patch+json"),
            text.contains("strategic-merge-patch"),
            text.contains("apply-patch"),
        )
    };
    assert_eq!(patches(&document), (true, false, true), "only what is served");
}

#[tokio::test]
async fn the_index_names_the_paths() {
    let server = Server::start().await;
    let paths = server.get("/").await.expect(200)["paths"].take();
    for path in [
        "/apis",
        BETA,
        ALPHA,
        "/healthz",
        "/livez",
        "/readyz",
        "/metrics",
        "/version",
        "/openapi/v2",
        "/openapi/v3",
    ] {
        assert!(paths.as_array().unwrap().contains(&json!(path)), "{path}: {paths}");
    }
    let version = server.get("/version").await.expect(200);
    assert_eq!(version["gitVersion"], format!("v{}", env!("CARGO_PKG_VERSION")));
    server.get("/api").await.refusal(404, "NotFound");
    server.get("/nope").await.refusal(404, "NotFound");
    server.post("/apis", &json!({})).await.refusal(405, "MethodNotAllowed");
}

#[tokio::test]
async fn health_is_told_as_kubernetes_tells_it() {
    let server = Server::start().await;
    for path in ["/livez", "/readyz", "/healthz", "/readyz/etcd", "/livez/ping"] {
        let answer = server.get(path).await;
        assert_eq!((answer.code, answer.text().as_str()), (200, "ok"), "{path}");
        assert_eq!(answer.headers["x-content-type-options"], "nosniff");
    }
    let text = server.get("/readyz?verbose").await.text();
    assert_eq!(
        text,
        "[+]ping ok\n[+]etcd ok\n[+]informer-sync ok\n[+]shutdown ok\nreadyz check passed\n"
    );
    let text = server.get("/readyz?verbose&exclude=etcd&exclude=nope").await.text();
    assert!(text.contains("[+]etcd excluded: ok\n"), "{text}");
    assert!(
        text.contains("warn: some health checks cannot be excluded: no matches for \"nope\"\n"),
        "{text}"
    );
    server.get("/readyz/nope").await.refusal(404, "NotFound");

    server.verdict.send(StoreVerdict::Foreign("the store was lost".into())).unwrap();
    let answer = server.get("/healthz").await;
    assert_eq!(answer.code, 500);
    assert!(answer.text().contains("[-]store-identity failed: the store was lost\n"), "{answer:?}");
    assert!(answer.text().ends_with("healthz check failed\n"));
    assert_eq!(server.get("/livez").await.code, 200, "a restart would heal nothing");
    assert_eq!(server.get("/readyz").await.code, 200, "clients shall read what happened");
    server.verdict.send(StoreVerdict::Ours).unwrap();
    server.closing.trigger();
    let answer = server.get("/readyz").await;
    assert!(answer.text().contains("[-]shutdown failed: reason withheld\n"), "{answer:?}");
}

#[tokio::test]
async fn requests_are_counted_under_upstreams_names() {
    let server = Server::start().await;
    server.pilot("a").await;
    server.get(&format!("{}/nope", super::pilots())).await.refusal(404, "NotFound");
    server.get("/apis/other.example.org/v1/secrets").await.refusal(404, "NotFound");
    let answer = server.get("/metrics").await;
    assert!(
        answer.headers["content-type"].to_str().unwrap().starts_with("text/plain; version=0.0.4")
    );
    let text = answer.text();
    for part in [
        "apiserver_request_total{code=\"201\",component=\"apiserver\",dry_run=\"\",group=\"navigator.jetstack.io\",resource=\"pilots\",scope=\"resource\",subresource=\"\",verb=\"POST\",version=\"v1beta1\"} 1",
        "verb=\"GET\",version=\"v1beta1\"} 1",
        "apiserver_request_duration_seconds_bucket{",
        "navigator_build_info",
    ] {
        assert!(text.contains(part), "{part}\n{text}");
    }
    assert!(!text.contains("secrets"), "a client cannot make label values");
}
