//! A node that reads the files of its file realm one by one, when the test says so.

use std::{
    net::Ipv4Addr,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
};

use axum::{
    Router,
    body::Bytes,
    extract::State,
    http::{HeaderMap, StatusCode, header},
    response::{IntoResponse, Response},
    routing::{get, post},
};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use futures::{FutureExt, future};
use http::HeaderValue;
use serde_json::json;
use tokio::net::TcpListener;

use super::*;
use crate::pilot::clients::search_engine::{EngineTraits, SearchLogin};

/// Password of every user here; the files hold it in the place of a hash.
const PASSWORD: &str = HASH;
const FILES: [&str; 3] = [USERS_FILE, USER_ROLES_FILE, ROLES_FILE];

/// What the node read last, and how often it was asked as which user.
struct FileRealm {
    config: PathBuf,
    files: Mutex<UserFiles>,
    answers: AtomicUsize,
}

impl FileRealm {
    /// Reads one file, as a pass of Elasticsearch's watcher that comes between two writes.
    fn read_file(&self, name: &str) {
        let text = fs::read_to_string(self.config.join(name)).unwrap();
        let mut files = self.files.lock().unwrap();
        match name {
            USERS_FILE => files.users = text,
            USER_ROLES_FILE => files.members = text,
            _ => files.roles = text,
        }
    }

    /// Returns the user who asks, where the node lets it in, with its roles.
    fn user(&self, headers: &HeaderMap) -> Option<(String, Vec<String>)> {
        let text = headers.get(header::AUTHORIZATION)?.to_str().ok()?.strip_prefix("Basic ")?;
        let login = String::from_utf8(STANDARD.decode(text).ok()?).ok()?;
        let name = login.split(':').next()?.to_owned();
        let files = self.files.lock().unwrap();
        files.users.lines().find(|line| *line == login)?;
        let members = files.members.lines().filter_map(|line| line.split_once(':'));
        let roles = members
            .filter(|(_, names)| names.split(',').any(|member| member == name))
            .map(|(role, _)| role.to_owned());
        let roles = roles.collect();
        Some((name, roles))
    }

    fn is_defined(&self, roles: &[String], index: &str) -> bool {
        let files = self.files.lock().unwrap();
        let definitions: Value = serde_yaml::from_str(&files.roles).unwrap();
        roles.iter().any(|role| definitions[role]["indices"][0]["names"][0] == index)
    }
}

async fn authenticate(State(realm): State<Arc<FileRealm>>, headers: HeaderMap) -> Response {
    realm.answers.fetch_add(1, Ordering::Relaxed);
    match realm.user(&headers) {
        Some((name, roles)) => {
            json!({"username": name, "roles": roles}).to_string().into_response()
        }
        None => StatusCode::UNAUTHORIZED.into_response(),
    }
}

async fn has_privileges(
    State(realm): State<Arc<FileRealm>>,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    let question: Value = serde_json::from_slice(&body).unwrap();
    let Some((_, roles)) = realm.user(&headers) else {
        return StatusCode::UNAUTHORIZED.into_response();
    };
    let index = question["index"][0]["names"][0].as_str().unwrap();
    json!({"has_all_requested": realm.is_defined(&roles, index)}).to_string().into_response()
}

async fn local_node(State(realm): State<Arc<FileRealm>>, headers: HeaderMap) -> Response {
    match realm.user(&headers) {
        Some((name, _)) if name == "navigator" => "{}".into_response(),
        _ => StatusCode::UNAUTHORIZED.into_response(),
    }
}

/// Starts a node that has read what lies in `config`. Returns it with its port.
async fn serve(config: &Path) -> (Arc<FileRealm>, u16) {
    let files = Mutex::new(read_user_files(config).unwrap());
    let realm =
        Arc::new(FileRealm { config: config.to_owned(), files, answers: AtomicUsize::new(0) });
    let app = Router::new()
        .route("/_security/_authenticate", get(authenticate))
        .route("/_security/user/_has_privileges", post(has_privileges))
        .route("/_nodes/_local", get(local_node))
        .with_state(Arc::clone(&realm));
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let port = listener.local_addr().unwrap().port();
    #[expect(clippy::disallowed_methods, reason = "it ends with the test's runtime")]
    tokio::spawn(async move { axum::serve(listener, app).await });
    (realm, port)
}

fn client_as(user: &str, port: u16) -> SearchClient {
    let secret = STANDARD.encode(format!("{user}:{PASSWORD}"));
    let authorization = Some(HeaderValue::try_from(format!("Basic {secret}")).unwrap());
    let traits = EngineTraits { answers_for_itself: true, votes: |_| true };
    let login = SearchLogin { authorization, tls: None };
    SearchClient::new(Ipv4Addr::LOCALHOST.into(), port, traits, login)
}

fn probe(users: &UsersDocument, port: u16) -> UsersProbe {
    let marker = marker_user(Some(users));
    UsersProbe { client: client_as(&marker, port), marker, privilege: are_in_force(users) }
}

/// Returns whether the users are in force after the node was asked at least five times.
async fn are_seen_in_force(realm: &FileRealm, port: u16, users: &UsersDocument) -> bool {
    let (api, probe) = (client_as("navigator", port), probe(users, port));
    let asked = realm.answers.load(Ordering::Relaxed);
    let in_force = wait_until_in_force(&api, &probe, Duration::from_millis(1)).fuse();
    let asked_often = async {
        while realm.answers.load(Ordering::Relaxed) < asked + 5 {
            sleep(Duration::from_millis(1)).await;
        }
    };
    futures::pin_mut!(in_force, asked_often);
    match future::select(in_force, asked_often).await {
        future::Either::Left((outcome, _)) => {
            outcome.unwrap();
            true
        }
        future::Either::Right(_) => false,
    }
}

#[tokio::test]
async fn users_are_in_force_only_after_the_node_read_each_file() {
    let orders = [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]];
    for order in orders.map(|order| order.map(|file| FILES[file])) {
        let place = tempfile::tempdir().unwrap();
        let config = place.path();
        write_user_files(config, &UserFiles::render(PASSWORD, Some(&users("former"))).unwrap())
            .unwrap();
        let (realm, port) = serve(config).await;
        assert!(are_seen_in_force(&realm, port, &users("former")).await);

        let next = users("next");
        write_changed_users(config, PASSWORD, &next).unwrap();
        for name in order {
            assert!(!are_seen_in_force(&realm, port, &next).await, "{order:?}, before {name}");
            realm.read_file(name);
        }
        assert!(are_seen_in_force(&realm, port, &next).await, "{order:?}");
    }
}

#[tokio::test]
async fn users_that_the_node_never_read_do_not_prove_the_next() {
    let place = tempfile::tempdir().unwrap();
    let config = place.path();
    write_user_files(config, &UserFiles::render(PASSWORD, Some(&users("first"))).unwrap()).unwrap();
    let (realm, port) = serve(config).await;
    for name in ["second", "third"] {
        write_changed_users(config, PASSWORD, &users(name)).unwrap();
    }
    realm.read_file(ROLES_FILE);
    assert!(!are_seen_in_force(&realm, port, &users("third")).await);
    realm.read_file(USERS_FILE);
    realm.read_file(USER_ROLES_FILE);
    assert!(are_seen_in_force(&realm, port, &users("third")).await);
}
