//! The listener's TLS, shaken by hand without a network: versions, protocols, whose certificates,
//! and a serving certificate that is renewed in its files.

use std::{fs, path::Path, sync::Arc, time::Duration};

use navigator::{
    apiserver::{
        certs::{ServingCertificate, files::CertificateFiles},
        metrics::Metrics,
        serve::{SecureServingOptions, TlsVersion, cipher_suite, server_config},
    },
    runtime::{Shutdown, TaskGroup},
};
use rustls::{
    CipherSuite, ClientConfig, ProtocolVersion, RootCertStore, SupportedProtocolVersion,
    crypto::ring::default_provider,
    pki_types::{CertificateDer, ServerName, pem::PemObject},
    version::{TLS12, TLS13},
};
use tokio_rustls::{TlsAcceptor, TlsConnector};

use crate::support::pki::{Ca, Identity};

const NAME: &str = "navigator-apiserver.navigator.svc";

/// What client and server agreed upon: version, cipher, protocol.
type Agreed = (ProtocolVersion, CipherSuite, Option<Vec<u8>>);

struct Asked<'a> {
    spoken: SecureServingOptions,
    version: &'static SupportedProtocolVersion,
    protocols: &'a [&'a str],
    identity: Option<&'a Identity>,
}

/// What the server speaks when no flag narrows it.
const ALL: SecureServingOptions = SecureServingOptions {
    oldest: TlsVersion::Tls12,
    cipher_suites: Vec::new(),
    only_http1: false,
};
const PLAINLY: Asked<'_> =
    Asked { spoken: ALL, version: &TLS13, protocols: &["h2"], identity: None };

/// Shakes hands with a server that trusts this CA of its certificate.
async fn shake(
    serving: &Arc<ServingCertificate>,
    ca: &Ca,
    asked: &Asked<'_>,
) -> Result<Agreed, String> {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(ca.pem.as_bytes()).unwrap()).unwrap();
    let builder = ClientConfig::builder_with_provider(Arc::new(default_provider()))
        .with_protocol_versions(&[asked.version])
        .unwrap()
        .with_root_certificates(roots);
    let mut config = match asked.identity {
        None => builder.with_no_client_auth(),
        Some(identity) => {
            builder.with_client_auth_cert(identity.chain.clone(), identity.key()).unwrap()
        }
    };
    config.alpn_protocols = asked.protocols.iter().map(|name| name.as_bytes().to_vec()).collect();
    let (client, server) = tokio::io::duplex(64 * 1024);
    let acceptor = TlsAcceptor::from(server_config(Arc::clone(serving) as _, &asked.spoken));
    let connector = TlsConnector::from(Arc::new(config));
    let name = ServerName::try_from(NAME).unwrap();
    let (server, client) = tokio::join!(acceptor.accept(server), connector.connect(name, client));
    let client = client.map_err(|error| error.to_string())?;
    server.map_err(|error| error.to_string())?;
    let (_, connection) = client.get_ref();
    let protocol = connection.alpn_protocol().map(<[u8]>::to_vec);
    let cipher = connection.negotiated_cipher_suite().unwrap().suite();
    Ok((connection.protocol_version().unwrap(), cipher, protocol))
}

#[tokio::test]
async fn both_versions_and_both_protocols_are_spoken_with_whatever_certificate() {
    let ca = Ca::new("serving-ca");
    let pem = ca.serving(&[NAME.to_owned()]);
    let serving = Arc::new(ServingCertificate::new(Arc::new(Metrics::new())));
    serving.set_certificate(pem.certificate.as_bytes(), pem.key.as_bytes()).unwrap();
    // The handshake takes any client certificate; each request finds out whose it is.
    let stranger = Ca::new("strange-ca").issue("jane", &[]);
    // The client would rather have 256 bits; Go's servers would not.
    for (version, agreed, cipher) in [
        (&TLS12, ProtocolVersion::TLSv1_2, CipherSuite::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256),
        (&TLS13, ProtocolVersion::TLSv1_3, CipherSuite::TLS13_AES_128_GCM_SHA256),
    ] {
        for identity in [None, Some(&stranger)] {
            for (protocols, protocol) in [
                (&["h2"][..], Some("h2")),
                (&["http/1.1"], Some("http/1.1")),
                (&["http/1.1", "h2"], Some("h2")),
                (&[], None),
            ] {
                let asked = Asked { spoken: ALL, version, protocols, identity };
                let found = shake(&serving, &ca, &asked).await;
                let protocol = protocol.map(|name| name.as_bytes().to_vec());
                assert_eq!(found, Ok((agreed, cipher, protocol)), "{version:?} {protocols:?}");
            }
        }
    }
}

#[tokio::test]
async fn flags_narrow_versions_suites_and_protocols() {
    let ca = Ca::new("serving-ca");
    let pem = ca.serving(&[NAME.to_owned()]);
    let serving = Arc::new(ServingCertificate::new(Arc::new(Metrics::new())));
    serving.set_certificate(pem.certificate.as_bytes(), pem.key.as_bytes()).unwrap();
    let chacha = "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256";
    let suites = |names: &[&str]| SecureServingOptions {
        cipher_suites: names.iter().map(|name| cipher_suite(name).unwrap()).collect(),
        ..ALL
    };
    let newest = SecureServingOptions { oldest: TlsVersion::Tls13, ..ALL };
    let only_http1 = SecureServingOptions { only_http1: true, ..ALL };
    for (spoken, version, expected) in [
        (newest.clone(), &TLS12, None),
        (newest, &TLS13, Some((CipherSuite::TLS13_AES_128_GCM_SHA256, "h2"))),
        (
            suites(&[chacha]),
            &TLS12,
            Some((CipherSuite::TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256, "h2")),
        ),
        // As in Go, the flag does not choose suites of TLS 1.3.
        (suites(&[chacha]), &TLS13, Some((CipherSuite::TLS13_AES_128_GCM_SHA256, "h2"))),
        (suites(&["TLS_AES_256_GCM_SHA384"]), &TLS12, None),
        (only_http1, &TLS13, Some((CipherSuite::TLS13_AES_128_GCM_SHA256, "http/1.1"))),
    ] {
        let told = format!("{spoken:?}, {version:?}");
        let asked = Asked { spoken, version, protocols: &["h2", "http/1.1"], identity: None };
        let found = shake(&serving, &ca, &asked).await.ok();
        let found = found.map(|(_, suite, protocol)| (suite, protocol.unwrap()));
        let expected = expected.map(|(suite, protocol)| (suite, protocol.as_bytes().to_vec()));
        assert_eq!(found, expected, "{told}");
    }
}

/// The server's clock is the test's here, so that minutes take no time.
#[tokio::test(start_paused = true)]
async fn a_renewed_pair_is_served_and_a_bad_one_leaves_the_one_before() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let files = CertificateFiles { certificate: path("tls.crt"), key: path("tls.key") };
    let write = |ca: &Ca, folder: &Path| {
        let pem = ca.serving(&[NAME.to_owned()]);
        fs::write(folder.join("tls.crt"), pem.certificate).unwrap();
        fs::write(folder.join("tls.key"), pem.key).unwrap();
    };
    let cas = ["first", "second", "third"].map(Ca::new);
    write(&cas[0], folder.path());
    let serving = Arc::new(ServingCertificate::new(Arc::new(Metrics::new())));
    let shutdown = Shutdown::new();
    let contents = files.load(&serving).await.unwrap();
    let tasks = TaskGroup::new(shutdown.clone());
    tasks.spawn("certificate", files.watch_files(Arc::clone(&serving), contents, shutdown.clone()));
    shake(&serving, &cas[0], &PLAINLY).await.unwrap();

    let until_served = async |ca: &Ca| {
        let mut last = String::new();
        for _ in 0..60 {
            tokio::time::sleep(Duration::from_secs(30)).await;
            match shake(&serving, ca, &PLAINLY).await {
                Ok(_) => return,
                Err(error) => last = error,
            }
        }
        panic!("not served within half an hour: {last}");
    };
    write(&cas[1], folder.path());
    until_served(&cas[1]).await;
    // The key of another certificate.
    fs::write(path("tls.key"), cas[2].serving(&[NAME.to_owned()]).key).unwrap();
    for _ in 0..10 {
        tokio::time::sleep(Duration::from_secs(30)).await;
        shake(&serving, &cas[1], &PLAINLY).await.unwrap();
    }
    write(&cas[2], folder.path());
    until_served(&cas[2]).await;
    shutdown.trigger();
}
