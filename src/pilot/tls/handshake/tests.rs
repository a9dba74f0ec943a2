//! Handshakes with servers in this process.

use super::{super::testing::TlsServer, *};
use crate::engine::pki::{CertificateAuthority, PrivateKey, TrustBundle};

const LIMIT: Duration = Duration::from_secs(10);

fn pinned(server: &TlsServer) -> PinnedLeaves {
    let pins = PinnedLeaves::default();
    pins.set_leaves([server.leaf()]);
    pins
}

#[tokio::test]
async fn a_port_shows_its_certificate_and_only_an_installed_one_counts() {
    let ca = CertificateAuthority::create("CA", jiff::Timestamp::now()).unwrap();
    let key = PrivateKey::generate().unwrap();
    let server = TlsServer::start(&ca, &key, false).await;
    let seen = shake_hands(server.address, &pinned(&server), None, LIMIT).await.unwrap();
    assert_eq!((seen.leaf, seen.accepts.len()), (server.leaf(), 0));
    let other = TlsServer::start(&ca, &key, false).await;
    let refused = shake_hands(server.address, &pinned(&other), None, LIMIT).await;
    assert!(matches!(refused, Err(HandshakeError::Foreign(_))), "{refused:?}");
    let nothing = PinnedLeaves::default();
    let refused = shake_hands(server.address, &nothing, None, LIMIT).await;
    assert!(matches!(refused, Err(HandshakeError::Foreign(_))), "{refused:?}");
}

#[tokio::test]
async fn a_certificate_without_its_key_does_not_count() {
    let ca = CertificateAuthority::create("CA", jiff::Timestamp::now()).unwrap();
    let (key, other) = (PrivateKey::generate().unwrap(), PrivateKey::generate().unwrap());
    let server = TlsServer::start(&ca, &key, false).await;
    let thief = TlsServer::show(server.chain.clone(), &other, None).await;
    let refused = shake_hands(thief.address, &pinned(&server), None, LIMIT).await;
    assert!(matches!(refused, Err(HandshakeError::Tls(..))), "{refused:?}");
}

#[tokio::test]
async fn where_nodes_must_show_a_certificate_the_nodes_own_is_shown() {
    let ca = CertificateAuthority::create("CA", jiff::Timestamp::now()).unwrap();
    let key = PrivateKey::generate().unwrap();
    let server = TlsServer::start(&ca, &key, true).await;
    let (pins, pem) = (pinned(&server), key.to_pem());
    let own = Some((server.chain.as_str(), pem.as_str()));
    let seen = shake_hands(server.address, &pins, own, LIMIT).await.unwrap();
    assert!(server.took_a_client().await);
    // It says whose certificates it accepts.
    let trust = ca.trust_bundle();
    assert_eq!(trust.with_subjects(&seen.accepts), trust.key_sha256s());
    assert!(trust.has_just_subjects(&seen.accepts));
    let other =
        CertificateAuthority::create("other", jiff::Timestamp::now()).unwrap().trust_bundle();
    let both = TrustBundle::join([&trust, &other]).unwrap();
    assert!(!both.has_just_subjects(&seen.accepts), "one of the two is not accepted");
    assert!(!other.has_just_subjects(&seen.accepts));
}

#[tokio::test]
async fn silence_and_a_closed_port_are_told_in_time() {
    let pins = PinnedLeaves::default();
    let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = silent.local_addr().unwrap();
    let limit = Duration::from_millis(50);
    let late = shake_hands(address, &pins, None, limit).await;
    assert!(matches!(late, Err(HandshakeError::TimedOut(..))), "{late:?}");
    drop(silent);
    let closed = shake_hands(address, &pins, None, LIMIT).await;
    assert!(matches!(closed, Err(HandshakeError::Connect(..))), "{closed:?}");
}
