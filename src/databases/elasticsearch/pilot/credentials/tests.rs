//! A node with API keys and tokens, which says what Elasticsearch 7.17 was seen to say.

use std::{
    net::Ipv4Addr,
    sync::{Arc, Mutex},
};

use axum::{
    Router,
    body::Bytes,
    extract::{RawQuery, State},
    http::StatusCode,
    response::{IntoResponse, Response},
    routing::{delete, get},
};
use serde_json::{Value, json};
use tokio::net::TcpListener;

use super::*;
use crate::{
    engine::users::DocumentedUser,
    pilot::clients::search_engine::{EngineTraits, SearchLogin},
};

/// Owner of a key or token, by its realm and name, while it is valid.
type Owners = Vec<(&'static str, &'static str)>;
/// An answer in the place of the usual one.
type Refusal = Option<(u16, Value)>;

#[derive(Default)]
struct SecuredNode {
    keys: Owners,
    tokens: Owners,
    /// Makes a key when its token is ended, as a client may that is faster.
    last_act: Option<(&'static str, &'static str)>,
    state: Option<Value>,
    refuses_keys: Refusal,
    refuses_tokens: Refusal,
    /// Keys that cannot be ended.
    errors: usize,
    requests: Vec<String>,
}

type Shared = Arc<Mutex<SecuredNode>>;

fn answer(refusal: &Refusal, usual: &Value) -> Response {
    match refusal {
        Some((status, body)) => {
            (StatusCode::from_u16(*status).unwrap(), body.to_string()).into_response()
        }
        None => usual.to_string().into_response(),
    }
}

async fn cluster_state(State(node): State<Shared>) -> Response {
    let node = node.lock().unwrap();
    let usual = json!({"master_node": "n", "blocks": {}});
    node.state.as_ref().unwrap_or(&usual).to_string().into_response()
}

async fn keys(State(node): State<Shared>, RawQuery(query): RawQuery) -> Response {
    let mut node = node.lock().unwrap();
    node.requests.push("keys".to_owned());
    let query = query.unwrap();
    let asked = |realm: &str| query.contains(&format!("realm_name={realm}&"));
    let of_realm = node.keys.iter().filter(|(realm, _)| asked(realm));
    let mut keys: Vec<_> =
        of_realm.map(|(_, name)| json!({"username": name, "invalidated": false})).collect();
    if keys.is_empty() {
        return answer(&node.refuses_keys, &json!({}));
    }
    keys.push(json!({"username": "ended", "invalidated": true}));
    answer(&node.refuses_keys, &json!({"api_keys": keys}))
}

/// Takes those away that the request names. Returns how many.
fn end_owned(owners: &mut Owners, body: &[u8]) -> (usize, String) {
    let whose: Value = serde_json::from_slice(body).unwrap();
    let before = owners.len();
    owners.retain(|(realm, name)| whose != json!({"realm_name": realm, "username": name}));
    (before - owners.len(), whose["username"].as_str().unwrap().to_owned())
}

async fn end_keys(State(node): State<Shared>, body: Bytes) -> Response {
    let mut node = node.lock().unwrap();
    let (ended, name) = match node.errors {
        0 => end_owned(&mut node.keys, &body),
        _ => end_owned(&mut Vec::new(), &body),
    };
    node.requests.push(format!("end keys of {name}"));
    let ended: Vec<String> = (0..ended).map(|id| id.to_string()).collect();
    let usual = json!({"invalidated_api_keys": ended, "error_count": node.errors});
    answer(&node.refuses_keys, &usual)
}

async fn end_tokens(State(node): State<Shared>, body: Bytes) -> Response {
    let mut node = node.lock().unwrap();
    let (ended, name) = end_owned(&mut node.tokens, &body);
    node.requests.push(format!("end tokens of {name}"));
    let last_act = node.last_act.take();
    node.keys.extend(last_act);
    answer(&node.refuses_tokens, &json!({"invalidated_tokens": ended, "error_count": 0}))
}

async fn serve(node: SecuredNode) -> (Shared, SearchClient) {
    let node = Arc::new(Mutex::new(node));
    let app = Router::new()
        .route("/_cluster/state/master_node,blocks", get(cluster_state))
        .route("/_security/api_key", get(keys).delete(end_keys))
        .route("/_security/oauth2/token", delete(end_tokens))
        .with_state(Arc::clone(&node));
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let port = listener.local_addr().unwrap().port();
    #[expect(clippy::disallowed_methods, reason = "it ends with the test's runtime")]
    tokio::spawn(async move { axum::serve(listener, app).await });
    let traits = EngineTraits { answers_for_itself: false, votes: |_| true };
    let api = SearchClient::new(Ipv4Addr::LOCALHOST.into(), port, traits, SearchLogin::default());
    (node, api)
}

fn users(names: &[&str]) -> UsersDocument {
    let user = |name: &&str| DocumentedUser {
        name: (*name).to_owned(),
        hash: String::new(),
        superuser: true,
        roles: Vec::new(),
    };
    UsersDocument::new(names.iter().map(user).collect(), None)
}

/// Ends what those have who are not `app`, of whom `left` was let in before.
async fn end_all_but_app(look: &mut CredentialsLook, api: &SearchClient) -> Result<(), String> {
    let known = BTreeSet::from(["app".to_owned(), "left".to_owned()]);
    let ended = look.revoke_removed(api, &users(&["app"]), &known, Duration::ZERO).await;
    ended.map_err(|error| match error {
        Error::NotYet(why) => why,
        other => panic!("users would be put back: {other}"),
    })
}

#[tokio::test]
async fn those_who_are_gone_have_no_keys_and_tokens_and_all_others_keep_theirs() {
    let kept = vec![("file1", "app"), ("native1", "left"), ("file1", "navigator")];
    let with = |more: &[(&'static str, &'static str)]| [&kept, more].concat();
    let (node, api) = serve(SecuredNode {
        keys: with(&[("file1", "left"), ("file1", "older"), ("file1", "left")]),
        tokens: with(&[("file1", "left"), ("file1", "older")]),
        last_act: Some(("file1", "left")),
        ..SecuredNode::default()
    })
    .await;
    end_all_but_app(&mut CredentialsLook::default(), &api).await.unwrap();
    let node = node.lock().unwrap();
    assert_eq!((&node.keys, &node.tokens), (&kept, &kept));
    let requests = node.requests.join(", ");
    assert_eq!(
        requests,
        "keys, end tokens of left, end tokens of older, end keys of left, end keys of older, keys"
    );
}

#[tokio::test]
async fn where_nobody_is_gone_keys_are_listed_once() {
    let keys = vec![("file1", "app")];
    let (node, api) = serve(SecuredNode { keys, ..SecuredNode::default() }).await;
    let known = BTreeSet::from(["app".to_owned()]);
    let mut look = CredentialsLook::default();
    look.revoke_removed(&api, &users(&["app"]), &known, Duration::ZERO).await.unwrap();
    assert_eq!(node.lock().unwrap().requests, ["keys"]);
}

#[tokio::test]
async fn what_the_engine_has_switched_off_lets_nobody_in() {
    let off = |feature: &str, name: &str| json!({"error": {"reason": "r", feature: name}});
    let (_, api) = serve(SecuredNode {
        refuses_keys: Some((400, off("disabled.feature", "api_keys"))),
        refuses_tokens: Some((403, off("license.expired.feature", "security tokens"))),
        ..SecuredNode::default()
    })
    .await;
    end_all_but_app(&mut CredentialsLook::default(), &api).await.unwrap();
    // From 8.0 on, for a user without tokens.
    let none = Some((404, json!({"invalidated_tokens": 0, "error_count": 0})));
    let (_, api) = serve(SecuredNode { refuses_tokens: none, ..SecuredNode::default() }).await;
    end_all_but_app(&mut CredentialsLook::default(), &api).await.unwrap();
}

#[tokio::test]
async fn what_cannot_be_asked_is_not_known_and_nothing_is_ended() {
    let refused = |status: u16, reason: &str| Some((status, json!({"error": {"reason": reason}})));
    for (node, why) in [
        (
            SecuredNode { state: Some(json!({"blocks": {}})), ..SecuredNode::default() },
            "no elected master",
        ),
        (
            SecuredNode {
                state: Some(json!({"master_node": "n", "blocks": {"global": {"1": {}}}})),
                ..SecuredNode::default()
            },
            "no elected master",
        ),
        (
            SecuredNode { refuses_keys: refused(400, "closed"), ..SecuredNode::default() },
            "400 Bad Request: closed",
        ),
        (
            SecuredNode { refuses_keys: refused(403, "unauthorized"), ..SecuredNode::default() },
            "403 Forbidden: unauthorized",
        ),
        (
            SecuredNode { refuses_keys: refused(503, "shards"), ..SecuredNode::default() },
            "503 Service Unavailable: shards",
        ),
    ] {
        let (node, api) = serve(node).await;
        let mut look = CredentialsLook::default();
        let open = end_all_but_app(&mut look, &api).await.unwrap_err();
        assert!(open.contains(why) && open.contains("may get in"), "{open}");
        assert!(!node.lock().unwrap().requests.iter().any(|request| request.starts_with("end")));
        // The next turn asks again.
        *node.lock().unwrap() = SecuredNode::default();
        end_all_but_app(&mut look, &api).await.unwrap();
    }
}

#[tokio::test]
async fn keys_that_cannot_be_ended_are_told_and_not_listed_again_at_once() {
    let keys = vec![("file1", "left")];
    let (node, api) = serve(SecuredNode { keys, errors: 1, ..SecuredNode::default() }).await;
    let mut look = CredentialsLook::default();
    let first = end_all_but_app(&mut look, &api).await.unwrap_err();
    assert!(first.contains("1 of left remain"), "{first}");
    let asked = node.lock().unwrap().requests.len();
    assert_eq!(end_all_but_app(&mut look, &api).await, Err(first));
    assert_eq!(node.lock().unwrap().requests.len(), asked);
    node.lock().unwrap().errors = 0;
    let (when, _) = look.failed.as_mut().unwrap();
    *when -= LIST_EVERY;
    end_all_but_app(&mut look, &api).await.unwrap();
    assert!(node.lock().unwrap().keys.is_empty());
}

#[tokio::test]
async fn what_is_still_listed_at_the_end_is_told() {
    // Whoever makes it cannot be one of those whose keys are ended.
    let (_, api) =
        serve(SecuredNode { last_act: Some(("file1", "another")), ..SecuredNode::default() }).await;
    let open = end_all_but_app(&mut CredentialsLook::default(), &api).await.unwrap_err();
    assert!(open.contains("another have valid keys"), "{open}");
}
