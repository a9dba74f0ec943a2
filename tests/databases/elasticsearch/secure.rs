//! One node that encrypts and asks for passwords. The test is its controller: it signs what the
//! pilot asks for and writes users; and it is the kubelet that mounts them.

use std::{
    fs,
    ops::Deref,
    sync::atomic::{AtomicUsize, Ordering::Relaxed},
    time::Duration,
};

use base64::{Engine, prelude::BASE64_STANDARD};
use http::{HeaderValue, Method, StatusCode};
use navigator::{
    engine::{
        pki::{KeyRequest, PrivateKey},
        users::{DocumentedRole, UsersDocument},
    },
    pilot::{
        http::HttpClient,
        tls::{PinnedLeaves, shake_hands},
    },
};
use serde_json::{Value, json};

use super::ensemble::{Ensemble, START};
use crate::{
    report::Told,
    support::{
        stand_in::{LIVE, StandIn, user},
        wait::until,
    },
};

const ELASTIC: &str = "first-of-elastic";

pub(crate) async fn a_secured_node(version: &'static str, told: &Told) {
    let mut ensemble = Ensemble::new(version, 1).await;
    let mount = ensemble.seat(0).place.join("users");
    ensemble.all[0].seat.flags = vec![format!("--users-dir={}", mount.display())];
    let seat = ensemble.seat(0);
    let stand_in = Client(StandIn::new(ensemble.name(0), seat.address, mount));
    let wanted =
        json!({"internode": "Required", "client": "Required", "authentication": "Password"});
    stand_in.change(&ensemble.bed, wanted).await;
    ensemble.start(0);
    let request = stand_in.asked(&ensemble.bed).await;
    ensemble.told(0, "CertificatesValid", "False", "CertificateRequested", "waits to be").await;
    ensemble.told(0, "Ready", "False", "Starting", "waits to be signed").await;
    assert_eq!(ensemble.database(0), None);
    told.claim(format!("{version}: without a certificate nothing starts, and one is asked for"));

    let served = stand_in.sign(&ensemble.bed, &request).await;
    stand_in.shows(&ensemble.bed, &served, START).await;
    ensemble.told(0, "Ready", "True", "ElasticsearchStarted", "").await;
    ensemble.told(0, "CertificatesValid", "True", "CertificatesCurrent", "valid until").await;
    ensemble.told(0, "UsersApplied", "False", "UsersPending", "no users are mounted").await;
    let database = ensemble.database(0).unwrap();
    told.claim(format!("{version}: signed, it starts, and shows what was signed on both ports"));

    let elastic = user("elastic", ELASTIC, &[], true);
    stand_in.users(&ensemble.bed, &UsersDocument::new(vec![elastic.clone()], None)).await;
    stand_in.has_users(&ensemble.bed).await;
    assert_eq!(stand_in.status(None).await, Ok(StatusCode::UNAUTHORIZED));
    assert_eq!(stand_in.status(Some(("elastic", "wrong"))).await, Ok(StatusCode::UNAUTHORIZED));
    assert_eq!(stand_in.status(Some(("elastic", "changeme"))).await, Ok(StatusCode::UNAUTHORIZED));
    let known = stand_in.ask(ELASTIC, Method::GET, "/_security/_authenticate", None).await;
    assert_eq!((&known["username"], &known["roles"]), (&json!("elastic"), &json!(["superuser"])));
    let plain = HttpClient::new(format!("http://{}:9200", stand_in.address), None);
    let plain = plain.send(Method::GET, "/", None, Duration::from_secs(10)).await;
    assert!(plain.is_err(), "{plain:?}");
    told.claim(format!(
        "{version}: users are there live; plain text and wrong passwords are not heard"
    ));

    let document = json!({"name": "one"});
    let path = "/orders/_doc/1?refresh=true";
    stand_in.ask(ELASTIC, Method::PUT, path, Some(&document)).await;
    let own_password = own_password(&ensemble);
    let own = Some(("navigator", own_password.as_str()));
    for (path, expected) in [
        ("/_nodes/_local", StatusCode::OK),
        ("/_cluster/settings", StatusCode::OK),
        ("/orders/_search", StatusCode::FORBIDDEN),
        ("/_security/user", StatusCode::FORBIDDEN),
    ] {
        assert_eq!(stand_in.get(own, path).await, Ok(expected), "{path}");
    }
    let shards = stand_in.body(own, "/_cat/shards?format=json&h=index").await.to_string();
    assert!(shards.contains("orders"), "{shards}");
    told.claim(format!("{version}: the pilot sees the shards, and reads no document"));

    let app = user("app", "of-app", &["viewer"], false);
    let changed = user("elastic", "second-of-elastic", &[], true);
    stand_in.users(&ensemble.bed, &UsersDocument::new(vec![changed, app], None)).await;
    stand_in.has_users(&ensemble.bed).await;
    assert_eq!(stand_in.status(Some(("elastic", ELASTIC))).await, Ok(StatusCode::UNAUTHORIZED));
    let second = Some(("elastic", "second-of-elastic"));
    assert_eq!(stand_in.status(second).await, Ok(StatusCode::OK));
    let app = Some(("app", "of-app"));
    assert_eq!(stand_in.get(app, "/orders/_search").await, Ok(StatusCode::OK));
    assert_eq!(stand_in.get(app, "/_cluster/settings").await, Ok(StatusCode::FORBIDDEN));
    told.claim(format!("{version}: a password is changed and a user comes, live"));

    roles_change(&ensemble, &stand_in, version, told).await;

    stand_in.mount(b"{");
    ensemble.told(0, "UsersApplied", "False", "UsersRejected", "no JSON").await;
    assert_eq!(stand_in.status(second).await, Ok(StatusCode::OK));
    stand_in
        .users(&ensemble.bed, &UsersDocument::new(vec![user("a:b", "x", &[], false)], None))
        .await;
    ensemble.told(0, "UsersApplied", "False", "UsersRejected", "\"a:b\"").await;
    assert_eq!(stand_in.status(second).await, Ok(StatusCode::OK));
    let changed = user("elastic", "third-of-elastic", &[], true);
    stand_in.users(&ensemble.bed, &UsersDocument::new(vec![changed], None)).await;
    stand_in.has_users(&ensemble.bed).await;
    told.claim(format!("{version}: a damaged document is told, and the users stay as they were"));

    let renewed = stand_in.sign(&ensemble.bed, &request).await;
    assert_ne!(renewed.internode.sha256, served.internode.sha256);
    stand_in.shows(&ensemble.bed, &renewed, LIVE).await;
    let pins = PinnedLeaves::default();
    pins.set_leaves([renewed.client.leaf.clone()]);
    let port = (stand_in.address, 9200).into();
    let seen = shake_hands(port, &pins, None, Duration::from_secs(10)).await.unwrap();
    assert_eq!(seen.leaf, renewed.client.leaf);
    let third = Some(("elastic", "third-of-elastic"));
    assert_eq!(stand_in.status(third).await, Ok(StatusCode::OK));
    told.claim(format!("{version}: renewed certificates are shown, live"));

    stand_in.a_certificate_is_given(&ensemble.bed).await;
    assert_eq!(stand_in.status(third).await, Ok(StatusCode::OK));
    told.claim(format!("{version}: a certificate with a key of its own is shown to clients, live"));

    let foreign = KeyRequest::create(&PrivateKey::generate().unwrap()).unwrap();
    stand_in.sign(&ensemble.bed, &foreign).await;
    ensemble.told(0, "CertificatesValid", "False", "ForeignKey", "the key on record").await;
    assert_eq!(stand_in.status(third).await, Ok(StatusCode::OK));
    let renewed = stand_in.sign(&ensemble.bed, &request).await;
    stand_in.shows(&ensemble.bed, &renewed, LIVE).await;
    ensemble.told(0, "CertificatesValid", "True", "CertificatesCurrent", "").await;
    told.claim(format!("{version}: certificates of another key are told, and left out"));

    metrics_change(&ensemble, &stand_in, version, told).await;

    let written = AtomicUsize::new(0);
    let writes = async {
        for number in 2.. {
            let path = format!("/orders/_doc/{number}");
            let sent = async || {
                let client = stand_in.http(third);
                let limit = Duration::from_secs(30);
                let answer = client.send(Method::PUT, &path, Some(&document), limit).await;
                answer.ok().filter(|answer| answer.status.is_success()).map(drop)
            };
            if sent().await.is_none() {
                assert!(sent().await.is_some(), "write {number} failed twice");
            }
            written.fetch_add(1, Relaxed);
        }
    };
    let members = [&stand_in.0];
    tokio::select! {
        () = StandIn::succession(&members, &ensemble.bed, &written) => {}
        () = writes => unreachable!("there are many numbers"),
    }
    told.claim(format!("{version}: new CAs take the place of the former ones, live"));

    assert_eq!(ensemble.database(0), Some(database), "it was restarted");
    ensemble.stop(0).await;
    ensemble.bed.set_away(true);
    ensemble.start(0);
    until("it serves without the API", START, async || match stand_in.status(third).await {
        Ok(StatusCode::OK) => Ok(()),
        other => Err(format!("{other:?}")),
    })
    .await;
    ensemble.bed.set_away(false);
    stand_in.has_users(&ensemble.bed).await;
    told.claim(format!("{version}: it starts with what it has while the API is away"));

    ensemble.stop(0).await;
    let with_certificate = stand_in.asks_certificates(&ensemble.bed).await;
    ensemble.start(0);
    let base = format!("https://{}:9200", stand_in.address);
    let secret = BASE64_STANDARD.encode("elastic:third-of-elastic");
    let login = HeaderValue::try_from(format!("Basic {secret}")).unwrap();
    let client = HttpClient::with_tls(base, Some(login), with_certificate);
    until("a client with a certificate is served", START, async || {
        let answer =
            client.send(Method::GET, "/_nodes/_local", None, Duration::from_secs(30)).await;
        match answer.map(|answer| answer.status) {
            Ok(StatusCode::OK) => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await;
    assert!(stand_in.status(third).await.is_err(), "a client without a certificate is served");
    ensemble.told(0, "Ready", "True", "ElasticsearchStarted", "").await;
    stand_in.has_users(&ensemble.bed).await;
    ensemble.told(0, "CertificatesValid", "True", "CertificatesCurrent", "").await;
    told.claim(format!("{version}: clients are asked for a certificate, and the pilot has one"));

    ensemble.stop(0).await;
    let log = ensemble.seat(0).said();
    let pilot = ensemble.bed.pilot(ensemble.name(0)).await;
    let status = serde_json::to_string(&pilot.status).unwrap();
    let secrets = ["of-elastic", "of-app", "$2a$", "PRIVATE KEY", own_password.as_str()];
    for (place, text) in [("the log", &log), ("the status", &status)] {
        for secret in secrets {
            assert!(!text.contains(secret), "{secret:?} stands in {place}");
        }
    }
    assert!(!log.contains("security_exception"), "the pilot was refused something");
    assert!(!log.contains("was not announced"), "the restart was not announced");
    told.claim(format!("{version}: no secret stands in the log or in the status"));
}

/// The pilot's metrics are served over TLS, by the certificate that clients see, and in plain text again.
async fn metrics_change(ensemble: &Ensemble, stand_in: &Client, version: &str, told: &Told) {
    let ask = async |scheme: &str| {
        let base = format!("{scheme}://{}:8080", stand_in.address);
        let client = match scheme {
            "https" => HttpClient::with_tls(base, None, stand_in.client_config()),
            _ => HttpClient::new(base, None),
        };
        let answer = client.send(Method::GET, "/metrics", None, Duration::from_secs(10)).await;
        answer.is_ok_and(|answer| answer.status.is_success())
    };
    assert!(ask("http").await && !ask("https").await);
    for (metrics, good, other) in
        [(json!("Required"), "https", "http"), (Value::Null, "http", "https")]
    {
        stand_in.change(&ensemble.bed, json!({"metrics": metrics})).await;
        until(&format!("metrics by {good}"), LIVE, async || {
            let seen = (ask(good).await, ask(other).await);
            if seen == (true, false) { Ok(()) } else { Err(format!("{seen:?}")) }
        })
        .await;
    }
    told.claim(format!("{version}: metrics are served over TLS on a word, live, and plain again"));
}

/// Roles of the document come, change and go; one that the version does not know is refused.
async fn roles_change(ensemble: &Ensemble, stand_in: &Client, version: &str, told: &Told) {
    let elastic = user("elastic", "second-of-elastic", &[], true);
    let app = user("app", "of-app", &["orders"], false);
    let users = UsersDocument::new(vec![elastic, app], None);
    let apply = async |cluster: &[&str], privileges: &[&str]| {
        let rights = json!({
            "cluster": cluster,
            "indices": [{"names": ["orders"], "privileges": privileges}],
            "applications": [{"application": "kibana-.kibana", "privileges": ["all"], "resources": ["*"]}],
        });
        let role = DocumentedRole { name: "orders".to_owned(), rights };
        stand_in.users(&ensemble.bed, &users.clone().with_roles(vec![role])).await;
    };
    let login = Some(("app", "of-app"));
    let may = async |search: StatusCode, settings: StatusCode, write: StatusCode| {
        assert_eq!(stand_in.get(login, "/orders/_search").await, Ok(search));
        assert_eq!(stand_in.get(login, "/_cluster/settings").await, Ok(settings));
        let (client, path) = (stand_in.http(login), "/orders/_doc/1");
        let document = json!({"name": "one"});
        let limit = Duration::from_secs(30);
        let answer = client.send(Method::PUT, path, Some(&document), limit).await.unwrap();
        assert_eq!(answer.status, write, "{}", answer.body);
    };
    let (yes, no) = (StatusCode::OK, StatusCode::FORBIDDEN);
    apply(&[], &["read"]).await;
    stand_in.has_users(&ensemble.bed).await;
    may(yes, no, no).await;
    apply(&["monitor"], &["read", "write"]).await;
    stand_in.has_users(&ensemble.bed).await;
    may(yes, yes, yes).await;
    for (cluster, privileges, named) in
        [(&["monitr"][..], &["read"][..], "monitr"), (&["monitor"], &["raed"], "raed")]
    {
        apply(cluster, privileges).await;
        ensemble.told(0, "UsersApplied", "False", "UsersRejected", named).await;
        may(yes, yes, yes).await;
    }
    stand_in.users(&ensemble.bed, &users).await;
    stand_in.has_users(&ensemble.bed).await;
    may(no, no, no).await;
    told.claim(format!(
        "{version}: a role comes, changes and goes, live; one with a privilege that the version does not know is told, and nothing changes"
    ));
}

/// A client of the node, and what stands beside the node.
struct Client(StandIn);

impl Deref for Client {
    type Target = StandIn;

    fn deref(&self) -> &StandIn {
        &self.0
    }
}

impl Client {
    /// A client that trusts the CA of clients, and compares addresses.
    fn http(&self, login: Option<(&str, &str)>) -> HttpClient {
        let login = login.map(|(user, password)| {
            let secret = BASE64_STANDARD.encode(format!("{user}:{password}"));
            HeaderValue::try_from(format!("Basic {secret}")).unwrap()
        });
        let base = format!("https://{}:9200", self.0.address);
        HttpClient::with_tls(base, login, self.0.client_config())
    }

    async fn get(&self, login: Option<(&str, &str)>, path: &str) -> Result<StatusCode, String> {
        let answer = self.http(login).send(Method::GET, path, None, Duration::from_secs(30)).await;
        answer.map(|answer| answer.status).map_err(|error| format!("{error:?}"))
    }

    async fn status(&self, login: Option<(&str, &str)>) -> Result<StatusCode, String> {
        // The path `/` is not served by 8.19 as the registry has it.
        self.get(login, "/_nodes/_local").await
    }

    async fn body(&self, login: Option<(&str, &str)>, path: &str) -> Value {
        let answer = self.http(login).send(Method::GET, path, None, Duration::from_secs(30)).await;
        answer.unwrap().body
    }

    /// A request of `elastic` that must succeed.
    async fn ask(&self, password: &str, method: Method, path: &str, body: Option<&Value>) -> Value {
        let client = self.http(Some(("elastic", password)));
        let answer = client.send(method, path, body, Duration::from_secs(60)).await.unwrap();
        assert!(answer.status.is_success(), "{path}: {} {}", answer.status, answer.body);
        answer.body
    }
}

/// The password of the pilot's own user, which lies beside the configuration.
fn own_password(ensemble: &Ensemble) -> String {
    let path = ensemble.seat(0).place.join("config/navigator-access.json");
    let access: Value = serde_json::from_slice(&fs::read(path).unwrap()).unwrap();
    access["password"].as_str().unwrap().to_owned()
}
