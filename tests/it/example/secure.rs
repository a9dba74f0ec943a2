//! Three nodes of the example that encrypt and ask for passwords, with real Redis servers. The test
//! signs what their pilots ask for, and mounts their users.

use std::{rc::Rc, time::Duration};

use futures::future::join_all;
use navigator::{
    engine::{
        password::PasswordHashing,
        users::{DocumentedUser, OwnLogin, UsersDocument},
    },
    pilot::{
        clients::resp::RespServer,
        driver::Error,
        tls::{PinnedLeaves, shake_hands},
    },
};
use serde_json::json;

use super::{PATIENCE, at, bed, led_as, placed, redis::kind::PORT};
use crate::support::{
    bed::Bed,
    nodes::Nodes,
    stand_in::{LIVE, SignedPair, StandIn, own_login},
    wait::until,
};

const FIRST: &str = "first-of-admin";
const SECOND: &str = "second-of-admin";

fn user(name: &str, password: &str, roles: &[&str]) -> DocumentedUser {
    let hash = PasswordHashing::Sha256.hash(password).unwrap();
    let roles: Vec<_> = roles.iter().map(|role| (*role).to_owned()).collect();
    DocumentedUser { name: name.to_owned(), hash, superuser: roles.is_empty(), roles }
}

fn document(own: &OwnLogin, users: Vec<DocumentedUser>) -> UsersDocument {
    UsersDocument::new(users, Some(own.clone()))
}

/// A client that trusts the CA of clients and logs in.
fn client(stand_in: &StandIn, user: &str, password: &str) -> RespServer {
    let address = (stand_in.address, PORT).into();
    RespServer::with_tls(address, stand_in.client_config(), Some([user, password]))
}

/// What a Redis says to a command that it refuses.
async fn refused(client: &RespServer, nodes: &Nodes, node: usize, command: &[&str]) -> String {
    match client.with_address(at(nodes, node)).send_commands(&[command]).await {
        Err(Error::Refused(why)) => why,
        other => panic!("{command:?}: {other:?}"),
    }
}

async fn taken(client: &RespServer, nodes: &Nodes, node: usize, command: &[&str]) -> String {
    client.with_address(at(nodes, node)).send_commands(&[command]).await.unwrap()[0]
        .text()
        .to_owned()
}

/// Mounts these users in all nodes, and waits until they have them.
async fn give(bed: &Bed, beside: &[StandIn], users: &UsersDocument) {
    join_all(beside.iter().map(|one| one.users(bed, users))).await;
    join_all(beside.iter().map(|one| one.has_users(bed))).await;
}

/// Signs, and waits until the one port shows the certificate for clients to all who come.
async fn signed(bed: &Bed, one: &StandIn, request: &str, deadline: Duration) -> SignedPair {
    let SignedPair { client, .. } = one.sign(bed, request).await;
    let shown = SignedPair { internode: client.clone(), client };
    one.shows(bed, &shown, deadline).await;
    shown
}

#[tokio::test]
async fn a_secured_cluster_takes_users_and_certificates_while_it_serves() {
    let bed = Rc::new(bed().await);
    let on = json!({"internode": "Required", "client": "Required", "authentication": "Password"});
    let mut nodes = placed(&bed, 103, json!({"version": "7.0.15", "security": on}));
    let mut beside: Vec<StandIn> = Vec::new();
    for node in 0..3 {
        let seat = &mut nodes.all[node].seat;
        let mount = seat.place.join("users");
        seat.flags = vec![format!("--users-dir={}", mount.display())];
        beside.push(match beside.first() {
            None => StandIn::new(&seat.name, seat.address, mount),
            Some(first) => first.of_same_cluster(&seat.name, seat.address, mount),
        });
        nodes.create(node).await;
    }
    nodes.start_all();
    let founder = until("a node that is to begin", PATIENCE, async || {
        for node in 0..3 {
            if nodes.pilot(node).await.status.security.is_some_and(|told| told.request.is_some()) {
                return Ok(node);
            }
        }
        Err("none asks for certificates".to_owned())
    })
    .await;
    assert_eq!(nodes.database(founder), None);
    let request = beside[founder].asked(&bed).await;
    beside[founder].sign(&bed, &request).await;
    nodes.says(founder, "CertificatesValid", ("True", "CertificatesCurrent"), PATIENCE).await;
    assert_eq!(nodes.database(founder), None, "no login of pilots is mounted yet");

    let own = own_login("first-of-pilots");
    let users = document(&own, vec![user("admin", FIRST, &[])]);
    let served = join_all(beside.iter().map(async |one| {
        one.users(&bed, &users).await;
        let request = if one.address == beside[founder].address {
            request.clone()
        } else {
            one.asked(&bed).await
        };
        let served = signed(&bed, one, &request, PATIENCE).await;
        one.has_users(&bed).await;
        (request, served)
    }))
    .await;
    let admin = client(&beside[0], "admin", FIRST);
    let first = led_as(&admin, &nodes, (1, 1), &[0, 1, 2]).await;
    let databases = nodes.databases();

    // Who may come in, and who may do what.
    let plain = RespServer::without_tls(at(&nodes, first)).send_commands(&[&["PING"]]).await;
    assert!(matches!(plain, Err(Error::Unreachable { .. })), "{plain:?}");
    let nobody = RespServer::with_tls(at(&nodes, first), beside[0].client_config(), None);
    for (who, command, why) in [
        (&nobody, &["PING"][..], "NOAUTH"),
        (&client(&beside[0], "admin", "wrong"), &["PING"], "WRONGPASS"),
        (&client(&beside[0], "default", ""), &["PING"], "WRONGPASS"),
        (&client(&beside[0], "navigator", &own.password), &["GET", "key"], "NOPERM"),
    ] {
        let said = refused(who, &nodes, first, command).await;
        assert!(said.contains(why), "{said}");
    }
    assert_eq!(taken(&admin, &nodes, first, &["SET", "key", "one"]).await, "OK");

    // Another password, one more user, and another login of pilots.
    let own = own_login("second-of-pilots");
    let users = document(&own, vec![user("admin", SECOND, &[]), user("app", "of-app", &["read"])]);
    give(&bed, &beside, &users).await;
    let said = refused(&admin, &nodes, first, &["PING"]).await;
    assert!(said.contains("WRONGPASS"), "{said}");
    let (admin, app) = (client(&beside[0], "admin", SECOND), client(&beside[0], "app", "of-app"));
    assert_eq!(led_as(&admin, &nodes, (1, 1), &[0, 1, 2]).await, first);
    assert_eq!(taken(&app, &nodes, first, &["GET", "key"]).await, "one");
    let said = refused(&app, &nodes, first, &["SET", "key", "two"]).await;
    assert!(said.contains("NOPERM"), "{said}");

    // Users that Redis does not know how to take leave those before them in force.
    let wrong = document(&own, vec![user("admin", FIRST, &[]), user("app", "x", &["reader"])]);
    beside[first].users(&bed, &wrong).await;
    let why = nodes.says(first, "UsersApplied", ("False", "UsersRejected"), PATIENCE).await;
    assert!(why.contains("\"reader\""), "{why}");
    assert_eq!(taken(&admin, &nodes, first, &["GET", "key"]).await, "one");
    beside[first].users(&bed, &users).await;
    beside[first].has_users(&bed).await;

    // Another certificate.
    let renewed = signed(&bed, &beside[first], &served[first].0, LIVE).await;
    assert_ne!(renewed.client.sha256, served[first].1.client.sha256);
    let pins = PinnedLeaves::default();
    pins.set_leaves([renewed.client.leaf.clone()]);
    let seen = shake_hands(at(&nodes, first), &pins, None, Duration::from_secs(10)).await.unwrap();
    assert_eq!(seen.leaf, renewed.client.leaf);
    assert_eq!(led_as(&admin, &nodes, (1, 1), &[0, 1, 2]).await, first);
    assert_eq!(nodes.databases(), databases, "none was restarted");

    // The pilots find a successor, and the old primary comes back with its files of users.
    nodes.kill(first).await;
    let rest = [(first + 1) % 3, (first + 2) % 3];
    let second = led_as(&admin, &nodes, (2, 1), &rest).await;
    nodes.start(first);
    assert_eq!(led_as(&admin, &nodes, (2, 1), &[0, 1, 2]).await, second);
    until("the key is at the old primary", PATIENCE, async || {
        let found = admin.with_address(at(&nodes, first)).send_commands(&[&["GET", "key"]]).await;
        if matches!(&found, Ok(found) if found[0].text() == "one") {
            Ok(())
        } else {
            Err(format!("{found:?}"))
        }
    })
    .await;

    nodes.stop_all().await;
    for node in 0..3 {
        let status = nodes.pilot(node).await.status;
        let (log, status) = (nodes.seat(node).said(), serde_json::to_string(&status).unwrap());
        for secret in ["of-admin", "of-app", "of-pilots", &own.hash, "PRIVATE KEY"] {
            assert!(!log.contains(secret), "{secret:?} stands in the log of node {node}");
            assert!(!status.contains(secret), "{secret:?} stands in the status of node {node}");
        }
    }
}
