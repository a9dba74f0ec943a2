//! TokenReviews and SubjectAccessReviews of a kube-apiserver: how many at once, and how long an
//! answer counts.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use futures::{FutureExt, StreamExt, future::BoxFuture, stream::FuturesUnordered};
use http::Request;
use navigator::apiserver::{
    authn::{CachingTokenReviewer, TokenReviewError, TokenReviewer, User},
    authz::{AccessReviewer, AuthorizationDecision, CachingAccessReviewer},
    metrics::Metrics,
    request_info::RequestInfo,
};
use serde_json::json;

use crate::support::{kube::Kube, server::PATIENCE};

fn client(kube: &Kube) -> kube::Client {
    kube::Client::try_from(kube::Config::new(kube.url.parse().unwrap())).unwrap()
}

/// Asks until the answer is another one, and says how long that took.
async fn changes<T>(ask: impl Fn() -> BoxFuture<'static, T>, old: impl Fn(&T) -> bool) -> Duration {
    let begun = Instant::now();
    while old(&ask().await) {
        assert!(begun.elapsed() < PATIENCE, "it is remembered for ever");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    begun.elapsed()
}

/// A user who is taken out of a group, or whose token is revoked, loses that here a little later,
/// however often the answer was used meanwhile.
#[tokio::test]
async fn answers_are_forgotten_after_ten_seconds() {
    let kube = Kube::start().await;
    let metrics = Arc::new(Metrics::new());
    let tokens = Arc::new(CachingTokenReviewer::new(client(&kube), Arc::clone(&metrics)));
    let accesses = Arc::new(CachingAccessReviewer::new(client(&kube), metrics));
    kube.add_token("t", json!({"username": "pod"}));
    kube.allow("jane", "list", "pilots");

    let whose = {
        let tokens = Arc::clone(&tokens);
        move || {
            let tokens = Arc::clone(&tokens);
            async move { tokens.review("t").await.unwrap() }.boxed()
        }
    };
    let may = move || {
        let accesses = Arc::clone(&accesses);
        async move {
            let user = User { name: "jane".into(), ..User::default() };
            let request = Request::get("/apis/navigator.jetstack.io/v1beta1/pilots");
            let info = RequestInfo::from_request(&request.body(()).unwrap());
            accesses.review(&user, &info).await.unwrap()
        }
        .boxed()
    };
    assert_eq!(whose().await.expect("somebody's").name, "pod");
    let allowed = || AuthorizationDecision::Allow(String::new());
    assert_eq!(may().await, allowed());
    kube.remove_token("t");
    kube.forbid("jane", "list", "pilots");
    assert!(whose().await.is_some(), "remembered");
    assert_eq!(may().await, allowed(), "remembered");
    let (token, access) = futures::join!(
        changes(whose, Option::is_some),
        changes(&may, |decision| matches!(decision, AuthorizationDecision::Allow(_))),
    );
    for (what, took) in [("token", token), ("access", access)] {
        assert!(took < PATIENCE, "{what}: only after {took:?}");
    }
    assert_eq!(
        may().await,
        AuthorizationDecision::NoOpinion("told so".to_owned()),
        "nobody says no"
    );
}

/// Kubernetes asks several authorizers, and one that refuses counts whatever another one allows.
#[tokio::test]
async fn a_denial_counts_more_than_a_permission() {
    let kube = Kube::start().await;
    let accesses = CachingAccessReviewer::new(client(&kube), Arc::new(Metrics::new()));
    kube.allow("jane", "list", "pilots");
    kube.deny("jane", "list", "pilots");
    let user = User { name: "jane".into(), ..User::default() };
    let request = Request::get("/apis/navigator.jetstack.io/v1beta1/pilots");
    let info = RequestInfo::from_request(&request.body(()).unwrap());
    let decision = accesses.review(&user, &info).await.unwrap();
    assert_eq!(decision, AuthorizationDecision::Deny("told so".to_owned()));
}

/// Authorizers may let a user see only what a selector chooses, so a review names all of it.
#[tokio::test]
async fn a_question_says_what_a_collection_is_narrowed_to() {
    let kube = Kube::start().await;
    let accesses = CachingAccessReviewer::new(client(&kube), Arc::new(Metrics::new()));
    let user = User { name: "jane".into(), ..User::default() };
    let labels = "labelSelector=app%3Dweb,tier%20notin%20(a,b),!old,new,size%3E2";
    let told_labels = json!({"requirements": [
        {"key": "app", "operator": "In", "values": ["web"]},
        {"key": "tier", "operator": "NotIn", "values": ["a", "b"]},
        {"key": "old", "operator": "DoesNotExist"},
        {"key": "new", "operator": "Exists"},
    ]});
    let fields = "fieldSelector=spec.nodePool%3Da%5C,b,metadata.namespace!%3Ddb";
    let told_fields = json!({"requirements": [
        {"key": "spec.nodePool", "operator": "In", "values": ["a,b"]},
        {"key": "metadata.namespace", "operator": "NotIn", "values": ["db"]},
    ]});
    let everything = (json!(null), json!(null));
    let name = json!({"requirements": [
        {"key": "metadata.name", "operator": "In", "values": ["x"]},
    ]});
    let twice = "labelSelector=a&labelSelector=b&fieldSelector=&fieldSelector=x%3Dy";
    let first = json!({"requirements": [{"key": "a", "operator": "Exists"}]});
    for (method, path, expected) in [
        ("GET", format!("?{labels}"), (json!(null), told_labels.clone())),
        // Of a repeated parameter the first one counts, also for the handler.
        ("GET", format!("?{twice}"), (json!(null), first)),
        ("GET", format!("?watch=1&{fields}"), (told_fields.clone(), json!(null))),
        ("DELETE", format!("?{fields}&{labels}"), (told_fields, told_labels)),
        ("GET", "?fieldSelector=metadata.name%3Dx".to_owned(), (name, json!(null))),
        ("GET", String::new(), everything.clone()),
        // One object is not chosen by selectors, and what cannot be read chooses nothing.
        ("GET", format!("/x?{labels}&{fields}"), everything.clone()),
        ("POST", format!("?{labels}"), everything.clone()),
        (
            "GET",
            "?watch=1&labelSelector=a%20b&fieldSelector=spec.nodePool".to_owned(),
            everything.clone(),
        ),
        ("DELETE", "?fieldSelector=%3Dx".to_owned(), everything),
    ] {
        let uri = format!("/apis/navigator.jetstack.io/v1beta1/pilots{path}");
        let request = Request::builder().method(method).uri(&uri).body(()).unwrap();
        accesses.review(&user, &RequestInfo::from_request(&request)).await.unwrap();
        let asked = kube.asked_of("jane").pop().unwrap();
        let attributes = &asked["resourceAttributes"];
        let told = (attributes["fieldSelector"].clone(), attributes["labelSelector"].clone());
        assert_eq!(told, expected, "{method} {uri}");
    }
}

#[tokio::test]
async fn a_stranger_with_many_tokens_has_few_of_them_reviewed_at_once() {
    const PLACES: usize = 32;
    let kube = Kube::start().await;
    kube.add_token("good", json!({"username": "pod"}));
    let tokens = CachingTokenReviewer::new(client(&kube), Arc::new(Metrics::new()));
    kube.hold_token_reviews(true);
    let names: Vec<_> = (0..PLACES + 68).map(|number| format!("t{number}")).collect();
    let mut asked: FuturesUnordered<_> = names.iter().map(|name| tokens.review(name)).collect();
    for _ in 0..68 {
        let told = tokio::time::timeout(PATIENCE, asked.next()).await.expect("told at once");
        let error = told.unwrap().expect_err("nobody has reviewed it");
        assert!(matches!(*error, TokenReviewError::Busy), "{error:?}");
    }
    assert_eq!(asked.len(), PLACES);
    let begun = Instant::now();
    while kube.held_token_reviews() < PLACES {
        assert!(begun.elapsed() < PATIENCE, "only {} asked", kube.held_token_reviews());
        assert!(asked.next().now_or_never().is_none(), "nobody was answered yet");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert_eq!(kube.held_token_reviews(), PLACES);
    // The same token again costs no place: it waits for the answer that is under way.
    let mut again = tokens.review(&names[0]);
    assert!((&mut again).now_or_never().is_none_or(|told| told.is_ok()), "turned away");
    kube.hold_token_reviews(false);
    while let Some(told) = asked.next().await {
        assert!(told.unwrap().is_none(), "nobody's token");
    }
    drop(asked);
    assert_eq!(tokens.review("good").await.unwrap().expect("somebody's").name, "pod");
}
