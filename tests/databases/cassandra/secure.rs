//! A ring that encrypts and asks for passwords from its first second: an outsider who tries all the
//! time is never let in.

use std::{
    net::IpAddr,
    process::Command,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed},
    },
    thread::JoinHandle,
    time::Duration,
};

use navigator::{
    databases::cassandra::{
        names::port,
        pilot::cql::{Consistency, CqlClient, CqlError, CqlLogin, CqlStatement, CqlTarget, CqlTls},
    },
    engine::{
        password,
        pki::{KeyRequest, PrivateKey},
        users::{DocumentedRole, DocumentedUser, OwnLogin, UsersDocument},
    },
    pilot::tls::{PinnedLeaves, shake_hands},
};
use serde_json::{Value, json};

use super::{
    VERSION,
    ring::{JOIN, Ring, SOON, START},
};
use crate::{
    host::{home, java_home},
    report::Told,
    support::{
        stand_in::{LIVE, StandIn, user},
        wait::until,
    },
};

const ADMIN: &str = "first-of-admin";
const OWN: &str = "own-of-pilots";
const BAD_CREDENTIALS: Option<i32> = Some(0x0100);
const UNAUTHORIZED: Option<i32> = Some(0x2100);
/// A look at roles that nobody changed by the spec comes once a minute.
const DRIFT: Duration = Duration::from_secs(180);
/// Tries of the outsider, at least.
const TRIES: usize = 100;

pub(crate) async fn a_ring_begins_secured(told: &Told) {
    let mut life = Life::begin(VERSION, 60, told).await;
    life.users_change().await;
    life.roles_change(false).await;
    life.certificates_change().await;
    life.authorities_change().await;
    life.end().await;
}

pub(crate) async fn a_secured_ring_lives(version: &'static str, told: &Told) {
    let mut life = Life::begin(version, if version == VERSION { 61 } else { 62 }, told).await;
    life.users_change().await;
    life.roles_change(true).await;
    life.somebody_changes_users().await;
    life.certificates_change().await;
    life.authorities_change().await;
    life.one_is_away().await;
    life.one_leaves().await;
    life.clients_show_certificates().await;
    life.end().await;
}

/// A ring of two nodes that never was open, and the one who tries to get in.
struct Life<'a> {
    ring: Ring,
    first: StandIn,
    second: StandIn,
    outsider: Outsider,
    version: &'static str,
    told: &'a Told,
}

impl<'a> Life<'a> {
    async fn begin(version: &'static str, net: u8, told: &'a Told) -> Self {
        let spec = json!({"security": {
            "internode": "Required", "client": "Required", "authentication": "Password",
        }});
        let mut ring = Ring::new(version, net, spec).await;
        let first = add(&mut ring, None).await;
        let outsider = Outsider::begin(first.address);
        ring.start(0);
        founded(&mut ring, &first, version, told).await;
        logins(&first, version, told).await;
        if version == VERSION {
            jmx_asks(&ring, &first, version, told);
        }
        let second = joined(&mut ring, &first, version, told).await;
        Self { ring, first, second, outsider, version, told }
    }

    fn claim(&self, what: &str) {
        self.told.claim(format!("{}: {what}", self.version));
    }

    async fn users(&self, users: Vec<DocumentedUser>) {
        let document = document(users);
        for one in [&self.first, &self.second] {
            one.users(&self.ring.bed, &document).await;
        }
    }

    async fn has_users(&self) {
        for one in [&self.first, &self.second] {
            one.has_users(&self.ring.bed).await;
        }
    }

    async fn users_change(&mut self) {
        let Self { ring, first, second, .. } = &*self;
        let mut former = log_in(first, "admin", ADMIN).await.unwrap();
        run(&mut former, "CREATE ROLE readers").await.unwrap();
        run(&mut former, "GRANT SELECT ON KEYSPACE shop TO readers").await.unwrap();
        let admin = user("admin", "second-of-admin", &[], true);
        let app = user("app", "second-of-app", &["readers", "absent"], false);
        self.users(vec![admin.clone(), app]).await;
        let pending = "does not know: create it";
        ring.told(0, "UsersApplied", "False", "UsersPending", pending).await;
        let refused = log_in(second, "app", "first-of-app").await.err();
        assert_eq!(refused.and_then(|error| error.code()), BAD_CREDENTIALS);
        log_in(second, "app", "second-of-app").await.unwrap();
        let mut administrator = log_in(first, "admin", "second-of-admin").await.unwrap();
        self.claim("passwords change live; a role that is not there is told");
        run(&mut administrator, "CREATE ROLE absent").await.unwrap();
        self.has_users().await;
        is_cut_off(&mut former).await;
        self.claim("a connection from before a password changed is closed");

        // A right of its own, and connections that stay open.
        run(&mut administrator, "GRANT MODIFY ON KEYSPACE shop TO app").await.unwrap();
        let mut open = log_in(first, "app", "second-of-app").await.unwrap();
        let used =
            ["SELECT id FROM shop.orders", "INSERT INTO shop.orders (id, what) VALUES (2, 'two')"];
        for text in used {
            run(&mut open, text).await.unwrap();
        }
        self.users(vec![admin.clone()]).await;
        until("a user that is taken out is closed", SOON, async || {
            let refused = log_in(first, "app", "second-of-app").await.err();
            match refused.and_then(|error| error.code()) {
                BAD_CREDENTIALS => Ok(()),
                other => Err(format!("{other:?}")),
            }
        })
        .await;
        self.has_users().await;
        for text in used {
            until(&format!("on a connection that is open: {text}"), SOON, async || {
                match run(&mut open, text).await {
                    Err(error) if error.code() == UNAUTHORIZED => Ok(()),
                    other => Err(format!("{:?}", other.err())),
                }
            })
            .await;
        }
        self.claim(
            "a user that is taken out logs in no more, and may do nothing on an open connection",
        );
        let app = user("app", "third-of-app", &["readers"], false);
        self.users(vec![admin, app]).await;
        self.has_users().await;
        is_cut_off(&mut open).await;
        log_in(second, "app", "third-of-app").await.unwrap();
        self.claim("and does again once it is back, with a new password and a new connection");
    }

    /// Roles of the spec, with rights on data that may come later. `by_hand`: and somebody gives them others.
    async fn roles_change(&mut self, by_hand: bool) {
        let Self { first, second, .. } = &*self;
        let admin = user("admin", "second-of-admin", &[], true);
        let app = user("app", "third-of-app", &["readers", "orders"], false);
        let apply = async |grants: Value| {
            let role = DocumentedRole { name: "orders".into(), rights: json!({"grants": grants}) };
            let document = document(vec![admin.clone(), app.clone()]).with_roles(vec![role]);
            for one in [first, second] {
                one.users(&self.ring.bed, &document).await;
            }
            self.has_users().await;
        };
        let mut client = log_in(second, "app", "third-of-app").await.unwrap();
        let mut administrator = log_in(first, "admin", "second-of-admin").await.unwrap();
        let write = "INSERT INTO shop.orders (id, what) VALUES (1, 'one')";
        let later = "SELECT id FROM later.items";
        assert_eq!(run(&mut client, write).await.unwrap_err().code(), UNAUTHORIZED);
        apply(json!([
            {"permissions": ["MODIFY"], "keyspace": "shop", "table": "orders"},
            {"permissions": ["ALL"], "keyspace": "later"},
        ]))
        .await;
        let mut allowed = async |text: &str, expected: bool| {
            until(&format!("{text}: {expected}"), SOON, async || {
                match run(&mut client, text).await {
                    Ok(_) if expected => Ok(()),
                    Err(error) if error.code() == UNAUTHORIZED && !expected => Ok(()),
                    Ok(_) => Err("it is allowed".to_owned()),
                    Err(error) => Err(error.to_string()),
                }
            })
            .await;
        };
        allowed(write, true).await;
        for text in [
            "CREATE KEYSPACE later WITH replication = {'class': 'NetworkTopologyStrategy', 'dc1': 1}",
            "CREATE TABLE later.items (id int PRIMARY KEY)",
        ] {
            run(&mut administrator, text).await.unwrap();
        }
        allowed(later, true).await;
        let listed = run(&mut administrator, "LIST ALL PERMISSIONS OF orders").await.unwrap();
        assert!(listed.iter().count() >= 7, "{}", listed.iter().count());
        self.claim("a role is made with its rights, also on a keyspace that comes later");
        apply(json!([{"permissions": ["SELECT"], "keyspace": "shop"}])).await;
        allowed(write, false).await;
        allowed(later, false).await;
        if by_hand {
            run(&mut administrator, "GRANT MODIFY ON KEYSPACE shop TO orders").await.unwrap();
            allowed(write, true).await;
            until("a right that somebody gave by hand is taken again", DRIFT, async || {
                let listed = run(&mut administrator, "LIST ALL PERMISSIONS OF orders").await;
                let count = listed.map_err(|error| error.to_string())?.iter().count();
                if count == 1 { Ok(()) } else { Err(format!("{count} rights")) }
            })
            .await;
            allowed(write, false).await;
        }
        self.claim("rights that the spec does not name are taken, live");
        let app = user("app", "third-of-app", &["readers"], false);
        self.users(vec![admin.clone(), app]).await;
        self.has_users().await;
        let listed = run(&mut administrator, "LIST ALL PERMISSIONS OF orders").await.unwrap();
        assert_eq!(listed.iter().count(), 0, "the role is out of the spec");
        run(&mut administrator, "DROP KEYSPACE later").await.unwrap();
        self.claim("a role that is taken out keeps no right");
    }

    async fn somebody_changes_users(&mut self) {
        let mut admin = log_in(&self.first, "admin", "second-of-admin").await.unwrap();
        run(&mut admin, "DROP ROLE app").await.unwrap();
        run(&mut admin, "ALTER ROLE admin WITH PASSWORD = 'somebody''s'").await.unwrap();
        // Where it is connected, the connections of all would be closed at some moment from here on.
        drop(admin);
        until("a dropped user and a changed password are put back", DRIFT, async || {
            for (name, password) in [("app", "third-of-app"), ("admin", "second-of-admin")] {
                let logged = log_in(&self.second, name, password).await;
                logged.map_err(|error| format!("{name}: {error}"))?;
            }
            Ok(())
        })
        .await;
        let mut app = log_in(&self.second, "app", "third-of-app").await.unwrap();
        until("with its roles", SOON, async || reads(&mut app).await).await;
        self.claim("what somebody changed by hand is put back");
    }

    async fn certificates_change(&mut self) {
        let Self { ring, first, .. } = &*self;
        let process = ring.database(0);
        let mut admin = log_in(first, "admin", "second-of-admin").await.unwrap();
        let request = first.standing(&ring.bed).await;
        let renewed = first.sign(&ring.bed, &request).await;
        first.shows(&ring.bed, &renewed, LIVE).await;
        let pins = PinnedLeaves::default();
        pins.set_leaves([renewed.client.leaf.clone()]);
        let port = (first.address, port::CQL).into();
        let seen = shake_hands(port, &pins, None, Duration::from_secs(10)).await.unwrap();
        assert_eq!(seen.leaf, renewed.client.leaf);
        reads(&mut admin).await.unwrap();
        log_in(first, "admin", "second-of-admin").await.unwrap();
        let foreign = KeyRequest::create(&PrivateKey::generate().unwrap()).unwrap();
        first.sign(&ring.bed, &foreign).await;
        ring.told(0, "CertificatesValid", "False", "ForeignKey", "the key on record").await;
        log_in(first, "admin", "second-of-admin").await.unwrap();
        let renewed = first.sign(&ring.bed, &request).await;
        first.shows(&ring.bed, &renewed, LIVE).await;
        first.a_certificate_is_given(&ring.bed).await;
        log_in(first, "admin", "second-of-admin").await.unwrap();
        assert_eq!(ring.database(0), process, "it was restarted");
        self.claim("renewed certificates are shown live, also one that is given with its key; those of another key are not");
    }

    /// While a client writes through both nodes, with each write tried twice.
    async fn authorities_change(&mut self) {
        let Self { ring, first, second, .. } = &*self;
        let processes = [ring.database(0), ring.database(1)];
        let written = AtomicUsize::new(0);
        let writes = async {
            for number in 2.. {
                let of = if number % 2 == 0 { first } else { second };
                if let Err(error) = writes(of, number).await {
                    let again = writes(of, number).await;
                    assert!(again.is_ok(), "write {number}: {error}, then {again:?}");
                }
                written.fetch_add(1, Relaxed);
            }
        };
        let members = [first, second];
        tokio::select! {
            () = StandIn::succession(&members, &ring.bed, &written) => {}
            () = writes => unreachable!("there are many numbers"),
        }
        assert_eq!([ring.database(0), ring.database(1)], processes, "one was restarted");
        // The two would part at the next connection if either trusted none of the other's.
        let mut admin = log_in(second, "admin", "second-of-admin").await.unwrap();
        let all = CqlStatement::new("SELECT role FROM system_auth.roles", Consistency::All);
        admin.run_statement(&all).await.unwrap();
        self.claim("new CAs take the place of the former ones live, and no write is lost");
    }

    async fn one_is_away(&mut self) {
        let Self { ring, first, second, .. } = self;
        ring.stop(0).await;
        ring.bed.set_away(true);
        ring.start(0);
        until("it serves without the API, and those who log in", START, async || {
            let logged = log_in(first, "admin", "second-of-admin").await;
            logged.map(drop).map_err(|error| error.to_string())
        })
        .await;
        ring.bed.set_away(false);
        ring.serves(0, START).await;
        first.has_users(&ring.bed).await;
        log_in(second, "admin", "second-of-admin").await.unwrap();
        self.claim("a node starts with what it has while the API is away");
    }

    async fn one_leaves(&mut self) {
        let Self { ring, first, second, .. } = self;
        ring.bed.change(ring.name(1), json!({"phase": "Decommissioned"})).await;
        ring.bed.phase(ring.name(1), "Decommissioned", JOIN).await;
        copies(first, 1).await;
        log_in(first, "admin", "second-of-admin").await.unwrap();
        assert!(log_in(second, "admin", "second-of-admin").await.is_err());
        self.claim("one node leaves, and the other has all logins");
    }

    async fn clients_show_certificates(&mut self) {
        let Self { ring, first, .. } = self;
        ring.stop(0).await;
        let config = first.asks_certificates(&ring.bed).await;
        ring.start(0);
        ring.serves(0, START).await;
        let tls = Some(CqlTls::from_config(config, first.address));
        let admin = Some(("admin", "second-of-admin"));
        let mut client =
            CqlClient::connect(&CqlTarget { tls, ..target(first, admin) }).await.unwrap();
        reads(&mut client).await.unwrap();
        assert!(log_in(first, "admin", "second-of-admin").await.is_err());
        first.has_users(&ring.bed).await;
        ring.told(0, "CertificatesValid", "True", "CertificatesCurrent", "").await;
        self.claim("clients are asked for a certificate, and the pilot has one");
    }

    async fn end(mut self) {
        until("the outsider tries", START, async || self.outsider.has_tried(TRIES)).await;
        let tries = self.outsider.end();
        self.told.claim(format!(
            "{}: an outsider tried {tries} times, and was never let in",
            self.version
        ));
        for index in [0, 1] {
            self.ring.stop(index).await;
            let log = self.ring.seat(index).said();
            let pilot = serde_json::to_string(&self.ring.pilot(index).await).unwrap();
            for (place, text) in [("the log", &log), ("the Pilot", &pilot)] {
                for secret in ["of-admin", "of-app", OWN, "$2a$", "PRIVATE KEY"] {
                    assert!(!text.contains(secret), "{secret:?} stands in {place}");
                }
            }
        }
        self.told.claim(format!("{}: no secret stands in a log or in a Pilot", self.version));
    }
}

/// Checks that the node has closed a connection.
async fn is_cut_off(client: &mut CqlClient) {
    let error = run(client, "SELECT key FROM system.local").await.unwrap_err();
    assert_eq!(error.code(), None, "{error}");
}

/// A host with its Pilot and what stands beside it.
async fn add(ring: &mut Ring, of: Option<&StandIn>) -> StandIn {
    let index = ring.add().await;
    let mount = ring.seat(index).place.join("users");
    ring.all[index].seat.flags.push(format!("--users-dir={}", mount.display()));
    let (name, address) = (ring.name(index).to_owned(), ring.address(index));
    match of {
        None => StandIn::new(&name, address, mount),
        Some(of) => of.of_same_cluster(&name, address, mount),
    }
}

fn document(users: Vec<DocumentedUser>) -> UsersDocument {
    // Always the same: a hash has a salt.
    static HASH: std::sync::LazyLock<String> =
        std::sync::LazyLock::new(|| password::hash_bcrypt(OWN).unwrap());
    let (mark, hash) = ("1a2b3c4d".to_owned(), HASH.clone());
    UsersDocument::new(users, Some(OwnLogin { mark, password: OWN.to_owned(), hash }))
}

fn first_users() -> UsersDocument {
    static FIRST: std::sync::LazyLock<UsersDocument> = std::sync::LazyLock::new(|| {
        document(vec![user("admin", ADMIN, &[], true), user("app", "first-of-app", &[], false)])
    });
    FIRST.clone()
}

async fn founded(ring: &mut Ring, first: &StandIn, version: &str, told: &Told) {
    let request = first.asked(&ring.bed).await;
    assert_eq!(ring.database(0), None);
    first.sign(&ring.bed, &request).await;
    ring.told(0, "Ready", "False", "Founding", "nobody but the pilot").await;
    ring.told(0, "UsersApplied", "False", "UsersPending", "no users are mounted").await;
    let pilot = ring.pilot(0).await;
    assert_eq!(pilot.status.endpoints, [], "nobody is to find it yet");
    assert!(pilot.status.identity.is_none_or(|identity| identity.node_id.is_none()));
    let life = ring.database(0).unwrap();
    told.claim(format!(
        "{version}: a ring without logins has no clients, and tells nobody of itself"
    ));
    first.users(&ring.bed, &first_users()).await;
    ring.serves(0, START).await;
    first.has_users(&ring.bed).await;
    assert_ne!(ring.database(0), Some(life), "the first process was for logins only");
    told.claim(format!("{version}: once it has logins it starts again, and serves"));
}

async fn logins(first: &StandIn, version: &str, told: &Told) {
    let mut admin = log_in(first, "admin", ADMIN).await.unwrap();
    assert!(admin.asked_for_login());
    for (name, password) in [
        ("cassandra", "cassandra"),
        ("admin", "wrong"),
        ("navigator_1a2b3c4d", "x"),
        ("nobody", "x"),
    ] {
        let refused = log_in(first, name, password).await.err();
        assert_eq!(refused.and_then(|error| error.code()), BAD_CREDENTIALS, "{name}");
    }
    let stranger = CqlClient::connect(&target(first, None)).await.err();
    assert!(matches!(stranger, Some(CqlError::LoginNeeded(_))), "{stranger:?}");
    let plain = CqlTarget { tls: None, ..target(first, Some(("admin", ADMIN))) };
    assert!(CqlClient::connect(&plain).await.is_err(), "plain text is heard");
    for text in [
        "CREATE KEYSPACE shop WITH replication = {'class': 'NetworkTopologyStrategy', 'dc1': 1}",
        "CREATE TABLE shop.orders (id int PRIMARY KEY, what text)",
        "INSERT INTO shop.orders (id, what) VALUES (1, 'one')",
    ] {
        run(&mut admin, text).await.unwrap();
    }
    let mut app = log_in(first, "app", "first-of-app").await.unwrap();
    let refused = run(&mut app, "SELECT what FROM shop.orders").await.unwrap_err();
    assert_eq!(refused.code(), UNAUTHORIZED);
    run(&mut admin, "GRANT SELECT ON KEYSPACE shop TO app").await.unwrap();
    let what = "rights are in force";
    until(what, SOON, async || reads(&mut app).await).await;
    told.claim(format!(
        "{version}: users log in over TLS; plain text, wrong and known passwords do not"
    ));
}

/// JMX listens where every user of the machine reaches it.
#[expect(clippy::disallowed_methods, reason = "tests start what they test")]
fn jmx_asks(ring: &Ring, first: &StandIn, version: &'static str, told: &Told) {
    let IpAddr::V4(address) = first.address else { unreachable!("hosts have addresses of IPv4") };
    let [_, _, high, low] = address.octets();
    let port = 20_000 + u16::from_be_bytes([high, low]) % 10_000;
    let file = ring.seat(0).place.join("config/nodetool.password");
    let file = file.to_str().unwrap();
    let nodetool = |login: &[&str]| {
        let done = Command::new(home("cassandra", version).join("bin/nodetool"))
            .env("JAVA_HOME", java_home())
            .args(["-h", "127.0.0.1", "-p", &port.to_string()])
            .args(login)
            .arg("gettimeout")
            .arg("read")
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&done.stdout) + String::from_utf8_lossy(&done.stderr);
        (done.status.success(), text.into_owned())
    };
    let (let_in, text) = nodetool(&[]);
    assert!(!let_in && text.contains("Credentials"), "{text}");
    let (let_in, text) = nodetool(&["-u", "navigator", "-pw", "wrong"]);
    assert!(!let_in && text.contains("Invalid username or password"), "{text}");
    let (let_in, text) = nodetool(&["-u", "navigator", "-pwf", file]);
    assert!(let_in, "{text}");
    told.claim(format!("{version}: JMX on a shared machine asks for the password of the start"));
}

async fn joined(ring: &mut Ring, first: &StandIn, version: &str, told: &Told) -> StandIn {
    let second = add(ring, Some(first)).await;
    ring.start(1);
    let request = second.asked(&ring.bed).await;
    second.sign(&ring.bed, &request).await;
    second.users(&ring.bed, &first_users()).await;
    ring.serves(1, JOIN).await;
    second.has_users(&ring.bed).await;
    copies(first, 2).await;
    log_in(&second, "app", "first-of-app").await.unwrap();
    told.claim(format!("{version}: a second node joins over TLS, and holds a copy of the logins"));
    second
}

/// Waits until the keyspace of logins has so many copies.
async fn copies(of: &StandIn, count: usize) {
    until(&format!("{count} copies of the logins"), SOON, async || {
        let text =
            "SELECT replication FROM system_schema.keyspaces WHERE keyspace_name = 'system_auth'";
        let mut found = Vec::new();
        for password in [ADMIN, "second-of-admin"] {
            let Ok(mut admin) = log_in(of, "admin", password).await else { continue };
            let rows = run(&mut admin, text).await.map_err(|error| error.to_string())?;
            let row = rows.iter().next().ok_or("no keyspace")?;
            found.extend(
                row.text_map("replication")
                    .into_iter()
                    .map(|(key, value)| (key.to_owned(), value.to_owned())),
            );
        }
        let wanted = ("dc1".to_owned(), count.to_string());
        if found.contains(&wanted) { Ok(()) } else { Err(format!("{found:?}")) }
    })
    .await;
}

async fn reads(client: &mut CqlClient) -> Result<(), String> {
    let rows = run(client, "SELECT what FROM shop.orders WHERE id = 1").await;
    let rows = rows.map_err(|error| error.to_string())?;
    let what: Vec<_> = rows.iter().filter_map(|row| row.text("what")).collect();
    if what == ["one"] { Ok(()) } else { Err(format!("{what:?}")) }
}

/// Writes a row over a connection of its own, and reads it again.
async fn writes(of: &StandIn, number: usize) -> Result<(), String> {
    let failed = |error: CqlError| error.to_string();
    let mut client = log_in(of, "admin", "second-of-admin").await.map_err(failed)?;
    let text = format!("INSERT INTO shop.orders (id, what) VALUES ({number}, 'more')");
    run(&mut client, &text).await.map_err(failed)?;
    let text = format!("SELECT what FROM shop.orders WHERE id = {number}");
    let rows = run(&mut client, &text).await.map_err(failed)?;
    if rows.iter().count() == 1 { Ok(()) } else { Err("the row is not there".to_owned()) }
}

async fn run(
    client: &mut CqlClient,
    text: &str,
) -> Result<navigator::databases::cassandra::pilot::cql::CqlRows, CqlError> {
    client.run_statement(&CqlStatement::new(text, Consistency::One)).await
}

/// A client that trusts the CA of clients, and compares addresses.
fn target(of: &StandIn, login: Option<(&str, &str)>) -> CqlTarget {
    let trust = of.client_trust();
    let login = login
        .map(|(name, password)| CqlLogin { name: name.to_owned(), password: password.to_owned() });
    CqlTarget {
        address: (of.address, port::CQL).into(),
        tls: Some(CqlTls::new(&trust, &of.address.to_string(), None).unwrap()),
        login,
        timeout: Duration::from_secs(30),
    }
}

async fn log_in(of: &StandIn, name: &str, password: &str) -> Result<CqlClient, CqlError> {
    CqlClient::connect(&target(of, Some((name, password)))).await
}

/// Somebody on the network who tries, ten times a second, to be served: in plain text and over TLS,
/// without a login and with the one that everybody knows.
struct Outsider {
    tries: Arc<AtomicUsize>,
    ends: Arc<AtomicBool>,
    task: JoinHandle<Result<(), String>>,
}

impl Outsider {
    fn begin(address: IpAddr) -> Self {
        let (tries, ends) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(false)));
        let (counted, over) = (tries.clone(), ends.clone());
        let tries_on = async move {
            while !over.load(Relaxed) {
                for tls in [None, Some(anybody(address))] {
                    for login in [None, Some(known())] {
                        let target = CqlTarget {
                            address: (address, port::CQL).into(),
                            tls: tls.clone(),
                            login,
                            timeout: Duration::from_secs(5),
                        };
                        if CqlClient::connect(&target).await.is_ok() {
                            return Err(format!("let in, with TLS: {}", tls.is_some()));
                        }
                        counted.fetch_add(1, Relaxed);
                    }
                }
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
            Ok(())
        };
        let task = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.unwrap().block_on(tries_on)
        });
        Self { tries, ends, task }
    }

    fn has_tried(&self, least: usize) -> Result<(), String> {
        let tries = self.tries.load(Relaxed);
        // The thread ends early only where the outsider was let in, which `end` reports.
        let is_done = tries >= least || self.task.is_finished();
        if is_done { Ok(()) } else { Err(format!("{tries} of {least} tries")) }
    }

    fn end(self) -> usize {
        self.ends.store(true, Relaxed);
        self.task.join().unwrap().unwrap();
        self.tries.load(Relaxed)
    }
}

fn known() -> CqlLogin {
    CqlLogin { name: "cassandra".to_owned(), password: "cassandra".to_owned() }
}

/// TLS of a client that takes any certificate.
fn anybody(address: IpAddr) -> CqlTls {
    CqlTls::from_config(crate::support::stand_in::trusting_anybody(), address)
}
