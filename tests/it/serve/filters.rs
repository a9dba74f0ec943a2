//! The filter chain around a router, without listener or store.

use std::{
    collections::BTreeMap,
    future::pending,
    sync::{Arc, Mutex},
    time::Duration,
};

use axum::{Extension, Router, body::Body, response::Redirect, routing::get};
use futures::future::BoxFuture;
use http::{HeaderMap, Request, Response};
use http_body_util::BodyExt;
use navigator::{
    apiserver::{
        audit::{self, AuditLogConfig, AuditLogTarget, AuditTrail},
        authn::{Authenticator, ClusterTrust, TokenReviewError, TokenReviewer, User},
        authz::{AccessReviewer, AuthorizationDecision, Authorizer},
        delegate::ReviewCallError,
        filters::{FilterChain, InflightLimits, InstalledServices, RequestTimeouts, Warnings},
        metrics::Metrics,
        request_info::RequestInfo,
        role,
    },
    runtime::{Readiness, Runtime, Shutdown},
};
use serde_json::{Value, json};
use tokio::sync::watch;

use crate::support::{pki::Ca, server::json_lines};

/// Says yes, no, or nothing; keeps what it was asked.
#[derive(Clone, Default)]
struct Reviews(Arc<Mutex<Vec<RequestInfo>>>, Answer);

#[derive(Clone, Copy, Default)]
enum Answer {
    #[default]
    Yes,
    Down,
}

impl AccessReviewer for Reviews {
    fn review<'a>(
        &'a self,
        _: &'a User,
        request: &'a RequestInfo,
    ) -> BoxFuture<'a, Result<AuthorizationDecision, Arc<ReviewCallError>>> {
        self.0.lock().unwrap().push(request.clone());
        Box::pin(std::future::ready(match self.1 {
            Answer::Yes => Ok(AuthorizationDecision::Allow(String::new())),
            Answer::Down => Err(Arc::new(ReviewCallError::Timeout)),
        }))
    }
}

impl TokenReviewer for Reviews {
    fn review<'a>(
        &'a self,
        token: &'a str,
    ) -> BoxFuture<'a, Result<Option<User>, Arc<TokenReviewError>>> {
        let busy = token == "one-too-many";
        let answer = if busy { Err(Arc::new(TokenReviewError::Busy)) } else { Ok(None) };
        Box::pin(std::future::ready(answer))
    }
}

fn chain(limits: InflightLimits, reviews: Reviews) -> Arc<FilterChain> {
    recorded_chain(limits, reviews, None)
}

fn recorded_chain(
    limits: InflightLimits,
    reviews: Reviews,
    audit: Option<AuditTrail>,
) -> Arc<FilterChain> {
    let metrics = Arc::new(Metrics::new());
    let readiness = Readiness::new();
    let chain = FilterChain::new(
        limits,
        RequestTimeouts { request: Duration::from_secs(60) },
        audit,
        Arc::clone(&metrics),
        readiness,
        Shutdown::new(),
    );
    let config = BTreeMap::from([
        ("requestheader-client-ca-file".to_owned(), Ca::new("proxy").pem),
        ("requestheader-allowed-names".to_owned(), "[\"proxy\"]".to_owned()),
        ("requestheader-username-headers".to_owned(), "[\"X-Remote-User\"]".to_owned()),
    ]);
    let trust = watch::channel(Arc::new(ClusterTrust::parse(&config).unwrap())).1;
    let tokens = Arc::new(reviews.clone());
    let router = Router::new()
        .route("/panic", get(panicking))
        .route("/redirect", get(|| async { Redirect::temporary("http://elsewhere/") }))
        .route("/forever", get(pending::<()>))
        .route(
            "/warn",
            get(|Extension(warnings): Extension<Warnings>| async move {
                warnings.add("careful");
                "warned"
            }),
        )
        .route(
            "/who",
            get(|Extension(user): Extension<User>, headers: HeaderMap| async move {
                format!("{} {}", user.name, headers.contains_key("x-remote-user"))
            }),
        )
        .fallback(|| async { "served" });
    chain.install(InstalledServices {
        authenticator: Authenticator::new(trust, tokens, Arc::clone(&metrics)),
        authorizer: Authorizer::new(Arc::new(reviews), metrics).into(),
        router,
    });
    Arc::new(chain)
}

async fn panicking() {
    panic!("on purpose")
}

async fn send(chain: &Arc<FilterChain>, uri: &str) -> Response<Body> {
    chain
        .handle(Request::get(uri).header("X-Remote-User", "root").body(Body::empty()).unwrap())
        .await
}

async fn text(response: Response<Body>) -> String {
    let bytes = response.into_body().collect().await.unwrap().to_bytes();
    String::from_utf8_lossy(&bytes).into_owned()
}

#[tokio::test]
async fn a_panic_is_a_500_and_the_next_request_is_served() {
    let chain = chain(InflightLimits::default(), Reviews::default());
    let response = send(&chain, "/panic").await;
    assert_eq!(response.status(), 500);
    assert!(response.headers().contains_key("audit-id"));
    let told = "This request caused apiserver to panic. Look in the logs for details.";
    assert_eq!(text(response).await, told);
    assert_eq!(send(&chain, "/who").await.status(), 200);
}

#[tokio::test]
async fn a_panic_ends_the_record_of_its_request() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let policy = "apiVersion: audit.k8s.io/v1\nkind: Policy\nrules: [{level: Metadata}]";
    std::fs::write(path("policy"), policy).unwrap();
    let config = audit::Config {
        policy: Some(path("policy")),
        log: Some(AuditLogConfig::new(AuditLogTarget::File(path("log")))),
        webhook: None,
    };
    let trail = AuditTrail::open(&config, &role::NAMES, &Arc::new(Metrics::new()), &Runtime::new())
        .await
        .unwrap();
    let chain = recorded_chain(InflightLimits::default(), Reviews::default(), trail);
    for (uri, stage, code, message) in [
        ("/panic", "Panic", 500, "APIServer panic'd: on purpose"),
        ("/who", "ResponseComplete", 200, ""),
        ("/who?timeout=soon", "ResponseStarted", 400, "invalid timeout"),
    ] {
        let response = send(&chain, uri).await;
        let lines = json_lines(path("log"));
        let of =
            |line: &&Value| line["auditID"] == response.headers()["audit-id"].to_str().unwrap();
        let found: Vec<_> = lines.iter().filter(of).collect();
        let last = found.last().expect("whoever has its answer is in the trail");
        assert_eq!(
            (&last["stage"], &last["responseStatus"]["code"]),
            (&json!(stage), &json!(code))
        );
        let told = last["responseStatus"]["message"].as_str().unwrap_or_default();
        assert!(told.starts_with(message), "{uri}: {told}");
        let arrived = found.iter().any(|line| line["stage"] == "RequestReceived");
        assert_eq!((arrived, found.len()), (code != 400, if code == 400 { 1 } else { 2 }), "{uri}");
    }
}

#[tokio::test]
async fn a_redirect_never_leaves_the_server() {
    let chain = chain(InflightLimits::default(), Reviews::default());
    let response = send(&chain, "/redirect").await;
    assert_eq!(response.status(), 500);
    assert!(!response.headers().contains_key("location"));
}

#[tokio::test]
async fn warnings_become_headers_and_identity_headers_are_gone() {
    let chain = chain(InflightLimits::default(), Reviews::default());
    let response = send(&chain, "/warn").await;
    assert_eq!(response.headers()["warning"], "299 - \"careful\"");
    assert_eq!(response.headers()["cache-control"], "no-cache, private");
    assert_eq!(text(send(&chain, "/who").await).await, "system:anonymous false");
}

#[tokio::test(start_paused = true)]
async fn what_takes_too_long_is_a_504() {
    let chain = chain(InflightLimits::default(), Reviews::default());
    let begun = tokio::time::Instant::now();
    let accept = "application/vnd.kubernetes.protobuf";
    let request = Request::get("/forever?timeout=3s").header("Accept", accept);
    let response = chain.handle(request.body(Body::empty()).unwrap()).await;
    assert_eq!((response.status().as_u16(), begun.elapsed().as_secs()), (504, 3));
    assert_eq!(response.headers()["content-type"], "application/json", "as upstream");
    let body: serde_json::Value = serde_json::from_str(&text(response).await).unwrap();
    assert_eq!(body["reason"], "Timeout");
    let told = "Timeout: request did not complete within the allotted timeout";
    assert_eq!(body["message"], told);
    assert_eq!(send(&chain, "/who?timeout=soon").await.status(), 400);
}

#[tokio::test(start_paused = true)]
async fn a_full_house_is_a_429_and_probes_still_pass() {
    // Of eight seats two are the anonymous user's.
    let chain = chain(InflightLimits { reading: 8, mutating: 1 }, Reviews::default());
    let mut waiting = Box::pin(futures::future::join(
        send(&chain, "/forever?timeout=5s"),
        send(&chain, "/forever?timeout=5s"),
    ));
    assert!(futures::poll!(waiting.as_mut()).is_pending());
    let response = send(&chain, "/who").await;
    assert_eq!(response.status(), 429);
    assert_eq!(response.headers()["retry-after"], "1");
    assert_eq!(send(&chain, "/livez").await.status(), 200);
    waiting.await;
    assert_eq!(send(&chain, "/who").await.status(), 200);
}

#[tokio::test]
async fn a_token_for_whose_review_there_is_no_room_is_a_429() {
    let chain = chain(InflightLimits::default(), Reviews::default());
    let request = Request::get("/who").header("Authorization", "Bearer one-too-many");
    let response = chain.handle(request.body(Body::empty()).unwrap()).await;
    assert_eq!(response.status(), 429);
    assert_eq!(response.headers()["retry-after"], "1");
}

#[tokio::test]
async fn who_is_turned_away_reads_it_in_the_form_that_was_asked_for() {
    let protobuf = "application/vnd.kubernetes.protobuf";
    for (token, answer, code) in [("wrong", Answer::Yes, 401), ("", Answer::Down, 500)] {
        let chain = chain(InflightLimits::default(), Reviews(Arc::default(), answer));
        for (accept, served, begin) in [
            (protobuf, protobuf, "k8s\0"),
            (
                "application/json;as=Table;v=v1;g=meta.k8s.io,application/yaml",
                "application/yaml",
                "",
            ),
            ("application/json", "application/json", "{\"kind\":"),
            ("text/html", "application/json", "{\n  \"kind\":"),
        ] {
            let mut request = Request::get("/who").header("Accept", accept);
            if !token.is_empty() {
                request = request.header("Authorization", format!("Bearer {token}"));
            }
            let response = chain.handle(request.body(Body::empty()).unwrap()).await;
            assert_eq!(response.status(), code, "{accept}");
            assert_eq!(response.headers()["content-type"], served, "{accept}");
            let body = text(response).await;
            assert!(body.starts_with(begin) && body.contains("Failure"), "{accept}: {body}");
        }
    }
}

#[tokio::test]
async fn nobody_who_could_tell_means_no() {
    let chain = chain(InflightLimits::default(), Reviews(Arc::default(), Answer::Down));
    let response = send(&chain, "/who").await;
    assert_eq!(response.status(), 500);
    assert!(text(response).await.contains("failed to authorize"));
    for probe in ["/livez", "/readyz", "/healthz"] {
        assert_eq!(send(&chain, probe).await.status(), 200, "{probe} needs nobody");
    }
}

#[tokio::test]
async fn what_is_authorized_is_what_the_handler_gets() {
    let reviews = Reviews::default();
    let chain = chain(InflightLimits::default(), reviews.clone());
    let uri =
        "/apis/navigator.jetstack.io/v1beta1/namespaces/a/pilots?fieldSelector=metadata.name%3Dx";
    send(&chain, uri).await;
    let asked = reviews.0.lock().unwrap().clone();
    let [asked] = &asked[..] else { panic!("{asked:?}") };
    let asked = asked.operation.as_ref().unwrap();
    assert_eq!(
        (asked.verb_name(), asked.namespace.as_str(), asked.name.as_str()),
        ("list", "a", "x")
    );
}
