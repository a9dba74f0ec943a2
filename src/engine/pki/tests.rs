//! CAs, leaves, requests and proofs, with what is damaged, foreign or hostile.

use std::{net::IpAddr, sync::Arc, time::Duration};

use jiff::Timestamp;
use proptest::prelude::*;
use rcgen::{CertificateParams, DnType, ExtendedKeyUsagePurpose, KeyPair};
use rustls::{
    RootCertStore,
    client::{WebPkiServerVerifier, danger::ServerCertVerifier},
    crypto::ring::default_provider,
    pki_types::{CertificateDer, UnixTime, pem::PemObject},
};

use super::*;
use crate::machinery::x509::{self, CertificateDetails};

const DAY: i64 = 24 * 3600;

fn now() -> Timestamp {
    Timestamp::from_second(1_800_000_000).unwrap()
}

fn later(seconds: i64) -> Timestamp {
    Timestamp::from_second(now().as_second() + seconds).unwrap()
}

/// Keys, certificates and requests as OpenSSL writes them.
fn file(name: &str) -> Vec<u8> {
    match name {
        "ed25519.pem" => include_bytes!("../../../tests/data/pki/ed25519.pem").to_vec(),
        "encrypted-pkcs1.pem" => {
            include_bytes!("../../../tests/data/pki/encrypted-pkcs1.pem").to_vec()
        }
        "encrypted-pkcs8.pem" => {
            include_bytes!("../../../tests/data/pki/encrypted-pkcs8.pem").to_vec()
        }
        "odd-subject-ca.key" => {
            include_bytes!("../../../tests/data/pki/odd-subject-ca.key").to_vec()
        }
        "odd-subject-ca.pem" => {
            include_bytes!("../../../tests/data/pki/odd-subject-ca.pem").to_vec()
        }
        "p256-sec1.pem" => include_bytes!("../../../tests/data/pki/p256-sec1.pem").to_vec(),
        "p384-sec1.pem" => include_bytes!("../../../tests/data/pki/p384-sec1.pem").to_vec(),
        "p521-csr.pem" => include_bytes!("../../../tests/data/pki/p521-csr.pem").to_vec(),
        "p521-sec1.pem" => include_bytes!("../../../tests/data/pki/p521-sec1.pem").to_vec(),
        "rsa-1024-csr.pem" => include_bytes!("../../../tests/data/pki/rsa-1024-csr.pem").to_vec(),
        "rsa-1024.pem" => include_bytes!("../../../tests/data/pki/rsa-1024.pem").to_vec(),
        "rsa-2048-pkcs1.pem" => {
            include_bytes!("../../../tests/data/pki/rsa-2048-pkcs1.pem").to_vec()
        }
        "rsa-2048-pkcs8.pem" => {
            include_bytes!("../../../tests/data/pki/rsa-2048-pkcs8.pem").to_vec()
        }
        _ => panic!("{name} is not there"),
    }
}

fn authority() -> CertificateAuthority {
    CertificateAuthority::create("internode of shop/small", now()).unwrap()
}

fn request(key: &PrivateKey) -> KeyRequest {
    KeyRequest::from_pem(&KeyRequest::create(key).unwrap()).unwrap()
}

fn strings(names: &[&str]) -> Vec<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

fn signed(ca: &CertificateAuthority, key: &PrivateKey, life: u64, at: Timestamp) -> String {
    let order = LeafOrder {
        common_name: "small-a-0",
        dns_names: &strings(&["small-a-0", "localhost", "small-a-0"]),
        addresses: &["10.0.0.7".parse().unwrap(), "::1".parse().unwrap()],
        usage: CertificateUse::Internode,
        life: Duration::from_secs(life),
    };
    ca.issue_certificate(&request(key), &order, at).unwrap()
}

/// What rustls says of a chain, when a server of this name shows it.
fn verified(chain: &str, trust: &TrustBundle, name: &str, at: Timestamp) -> bool {
    let mut roots = RootCertStore::empty();
    for ca in CertificateDer::pem_slice_iter(trust.to_pem().as_bytes()) {
        roots.add(ca.unwrap()).unwrap();
    }
    let provider = Arc::new(default_provider());
    let verifier =
        WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider).build().unwrap();
    let chain: Vec<_> =
        CertificateDer::pem_slice_iter(chain.as_bytes()).map(Result::unwrap).collect();
    let at = UnixTime::since_unix_epoch(Duration::from_secs(at.as_second().try_into().unwrap()));
    let name = name.to_owned().try_into().unwrap();
    verifier.verify_server_cert(&chain[0], &chain[1..], &name, &[], at).is_ok()
}

#[test]
fn what_a_ca_signs_is_taken_by_those_who_trust_it_and_by_nobody_else() {
    let (ca, other, key) = (authority(), authority(), PrivateKey::generate().unwrap());
    let leaf = signed(&ca, &key, 90 * 86_400, now());
    for name in ["small-a-0", "10.0.0.7", "::1", "localhost"] {
        assert!(verified(&leaf, &ca.trust_bundle(), name, now()), "{name}");
        assert_eq!(
            check_chain(
                &leaf,
                &key.public_key_sha256(),
                &ca.trust_bundle(),
                &strings(&[name]),
                now()
            ),
            []
        );
    }
    assert!(!verified(&leaf, &other.trust_bundle(), "small-a-0", now()));
    assert!(!verified(&leaf, &ca.trust_bundle(), "small-b-0", now()));
    let problems = check_chain(
        &leaf,
        &other.details().key_sha256,
        &other.trust_bundle(),
        &strings(&["b"]),
        now(),
    );
    assert_eq!(
        problems,
        [
            CertificateProblem::OtherKey,
            CertificateProblem::Untrusted("CN=internode of shop/small".into()),
            CertificateProblem::NotCovered("b".into()),
        ]
    );
    let details = CertificateDetails::from_pem(&leaf).unwrap();
    assert_eq!(details.names, ["small-a-0", "localhost", "10.0.0.7", "::1"], "each name once");
    assert_eq!(details.key_sha256, key.public_key_sha256());
    assert_eq!(details.sha256.len(), 64);
}

#[test]
fn a_leaf_of_either_use_says_what_it_may_be_used_for() {
    let (ca, key) = (authority(), PrivateKey::generate().unwrap());
    for (usage, is_client) in [(CertificateUse::Internode, true), (CertificateUse::Client, false)] {
        let order = LeafOrder {
            common_name: &"x".repeat(100),
            dns_names: &[],
            addresses: &[],
            usage,
            life: Duration::from_secs(600),
        };
        let leaf = ca.issue_certificate(&request(&key), &order, now()).unwrap();
        let der = CertificateDer::from_pem_slice(leaf.as_bytes()).unwrap();
        let leaf = bundle::parse_certificate(&der).unwrap();
        let usages = leaf.extended_key_usage().unwrap().unwrap().value;
        assert_eq!((usages.server_auth, usages.client_auth), (true, is_client));
        assert!(!leaf.is_ca());
        assert_eq!(leaf.subject().iter_common_name().next().unwrap().as_str().unwrap().len(), 64);
    }
}

#[test]
fn names_come_from_the_order_and_none_that_a_certificate_cannot_hold_is_signed() {
    let (ca, key) = (authority(), KeyPair::generate().unwrap());
    // A request that wants more than it is given.
    let mut greedy = CertificateParams::new(strings(&["small-b-0"])).unwrap();
    greedy.distinguished_name.push(DnType::CommonName, "admin");
    greedy.extended_key_usages = vec![ExtendedKeyUsagePurpose::CodeSigning];
    let greedy = greedy.serialize_request(&key).unwrap().pem().unwrap();
    let greedy = KeyRequest::from_pem(&greedy).unwrap();
    let order = |dns_names: &[String]| {
        let order = LeafOrder {
            common_name: "small-a-0",
            dns_names,
            addresses: &[],
            usage: CertificateUse::Client,
            life: Duration::from_secs(3600),
        };
        ca.issue_certificate(&greedy, &order, now())
    };
    let leaf = order(&strings(&["*.shop.example", "small_a"])).unwrap();
    let details = CertificateDetails::from_pem(&leaf).unwrap();
    assert_eq!(details.names, ["*.shop.example", "small_a"]);
    let der = CertificateDer::from_pem_slice(leaf.as_bytes()).unwrap();
    assert_eq!(bundle::parse_certificate(&der).unwrap().subject().to_string(), "CN=small-a-0");
    let long = "a".repeat(64);
    for name in ["", "a b", "a..b", "ü", "a\0", "*", "a.*", "a\n", &long] {
        assert!(matches!(order(&strings(&[name])), Err(IssueError::Name(_))), "{name:?}");
    }
}

#[test]
fn a_leaf_never_outlives_its_ca_and_a_ca_at_its_end_signs_nothing() {
    let (ca, key) = (authority(), PrivateKey::generate().unwrap());
    let end = ca.details().not_after;
    let late = Timestamp::from_second(end - 600).unwrap();
    let leaf = CertificateDetails::from_pem(&signed(&ca, &key, 86_400, late)).unwrap();
    assert_eq!((leaf.not_after, leaf.lifetime()), (end, 600));
    let over = Timestamp::from_second(end).unwrap();
    let order = LeafOrder {
        common_name: "n",
        dns_names: &[],
        addresses: &[],
        usage: CertificateUse::Client,
        life: Duration::from_secs(60),
    };
    let refused = ca.issue_certificate(&request(&key), &order, over).unwrap_err();
    assert!(matches!(refused, IssueError::Expired(at) if at == over));
}

#[test]
fn renewals_are_spread_by_name_around_two_thirds_of_a_life() {
    let (ca, key) = (authority(), PrivateKey::generate().unwrap());
    let mut seen = std::collections::BTreeSet::new();
    for life in [600, 90 * 86_400] {
        let leaf = CertificateDetails::from_pem(&signed(&ca, &key, life, now())).unwrap();
        let life = i64::try_from(life).unwrap();
        for node in 0..50 {
            let name = format!("small-a-{node}");
            let due = (0..=life).step_by(usize::try_from(life / 600).unwrap());
            let due = due.into_iter().find(|at| needs_renewal(&leaf, &name, later(*at))).unwrap();
            assert!((life * 61 / 100..=life * 72 / 100).contains(&due), "{name}: {due} of {life}");
            seen.insert(due);
        }
    }
    assert!(seen.len() > 50, "{} moments", seen.len());
}

#[test]
fn a_renewed_ca_has_its_key_and_each_one_is_trusted_for_what_the_other_signed() {
    let (ca, key) = (authority(), PrivateKey::generate().unwrap());
    let renewed = ca.renew(later(3000 * DAY)).unwrap();
    assert_eq!(renewed.details().key_sha256, ca.details().key_sha256);
    assert_ne!(renewed.details().sha256, ca.details().sha256);
    assert_ne!(renewed.details().serial, ca.details().serial);
    let at = later(3000 * DAY + 60);
    let (before, after) = (signed(&ca, &key, 86_400, at), signed(&renewed, &key, 86_400, at));
    for (leaf, by) in [(&before, &renewed), (&after, &ca), (&after, &renewed)] {
        assert!(verified(leaf, &by.trust_bundle(), "small-a-0", at));
        assert_eq!(check_chain(leaf, &key.public_key_sha256(), &by.trust_bundle(), &[], at), []);
    }
}

#[test]
fn a_ca_is_read_as_it_was_written() {
    let ca = authority();
    let (certificate, key) = (ca.chain_pem(), ca.key_pem());
    let read =
        CertificateAuthority::from_pem(Some(certificate.as_bytes()), Some(key.as_bytes()), now());
    let read = read.unwrap();
    assert_eq!(read.details(), ca.details());
    assert_eq!(read.trust_bundle().to_pem(), certificate);
    assert!(!format!("{read:?}").contains("PRIVATE"));
}

/// A CA of the key in `file`.
fn ca_of(file_name: &str, change: impl FnOnce(&mut CertificateParams)) -> String {
    let key = PrivateKey::from_pem(&file(file_name)).unwrap();
    let mut params = x509::ca_params("given", now().as_second(), Duration::from_secs(30 * 86_400));
    change(&mut params);
    params.self_signed(key.key_pair()).unwrap().pem()
}

#[test]
fn keys_are_read_in_each_form_and_written_in_one() {
    for (name, kind) in [
        ("rsa-2048-pkcs1.pem", KeyKind::Rsa),
        ("rsa-2048-pkcs8.pem", KeyKind::Rsa),
        ("p256-sec1.pem", KeyKind::P256),
        ("p384-sec1.pem", KeyKind::P384),
    ] {
        let key = PrivateKey::from_pem(&file(name)).unwrap();
        assert_eq!(key.kind(), kind, "{name}");
        let written = key.to_pem();
        assert!(written.starts_with("-----BEGIN PRIVATE KEY-----"), "{name}");
        assert_eq!(
            PrivateKey::from_pem(written.as_bytes()).unwrap().public_key_sha256(),
            key.public_key_sha256()
        );
        // The CA of each kind signs for keys of each kind.
        let certificate = ca_of(name, |_| {});
        let ca =
            CertificateAuthority::from_pem(Some(certificate.as_bytes()), Some(&file(name)), now());
        let leaf = signed(&ca.unwrap(), &key, 86_400, now());
        let trust = TrustBundle::from_pem(certificate.as_bytes()).unwrap();
        assert!(verified(&leaf, &trust, "small-a-0", now()), "{name}");
    }
    let same = |name| PrivateKey::from_pem(&file(name)).unwrap().public_key_sha256();
    assert_eq!(same("rsa-2048-pkcs1.pem"), same("rsa-2048-pkcs8.pem"));
}

#[test]
fn each_refusal_of_a_key_is_told_apart() {
    for (pem, refusal) in [
        (file("rsa-1024.pem"), PrivateKeyRefusal::Unsupported),
        (file("p521-sec1.pem"), PrivateKeyRefusal::Unsupported),
        (file("ed25519.pem"), PrivateKeyRefusal::Unsupported),
        (file("encrypted-pkcs8.pem"), PrivateKeyRefusal::Encrypted),
        (file("encrypted-pkcs1.pem"), PrivateKeyRefusal::Encrypted),
        (file("p256-sec1.pem")[..200].to_vec(), PrivateKeyRefusal::Unreadable),
        (authority().chain_pem().into_bytes(), PrivateKeyRefusal::Unreadable),
        (b"hello".to_vec(), PrivateKeyRefusal::Unreadable),
        (vec![b'A'; 1 << 20], PrivateKeyRefusal::Long),
    ] {
        assert_eq!(PrivateKey::from_pem(&pem).unwrap_err(), refusal);
    }
}

#[test]
fn each_refusal_of_a_ca_is_told_apart() {
    let good = authority();
    let (crt, key) = (good.chain_pem(), good.key_pem());
    let p256 = "p256-sec1.pem";
    let at = |params: &mut CertificateParams, from: i64, to: i64| {
        let day = |days: i64| {
            let seconds = u64::try_from(now().as_second() + days * DAY).unwrap();
            rcgen::date_time_ymd(1970, 1, 1) + Duration::from_secs(seconds)
        };
        (params.not_before, params.not_after) = (day(from), day(to));
    };
    let many: String = (0..9).map(|_| authority().chain_pem()).collect();
    let odd_name = file("odd-subject-ca.pem");
    let refused = |crt: Option<&[u8]>, key: Option<&[u8]>, words: &[&str]| {
        let refusal = CertificateAuthority::from_pem(crt, key, now()).unwrap_err().to_string();
        for word in words {
            assert!(refusal.contains(word), "{refusal:?} has no {word:?}");
        }
    };
    let of = |crt: &str, words: &[&str]| refused(Some(crt.as_bytes()), Some(&file(p256)), words);
    refused(None, Some(key.as_bytes()), &["tls.crt is missing"]);
    refused(Some(b" \n"), Some(key.as_bytes()), &["tls.crt is missing"]);
    refused(Some(crt.as_bytes()), None, &["tls.key is missing"]);
    refused(Some(crt.as_bytes()), Some(b""), &["tls.key is missing"]);
    refused(Some(b"x"), Some(key.as_bytes()), &["tls.crt holds no certificate"]);
    refused(Some(key.as_bytes()), Some(crt.as_bytes()), &["tls.crt holds no certificate"]);
    refused(
        Some(&crt.as_bytes()[..200]),
        Some(key.as_bytes()),
        &["tls.crt is no PEM that is whole"],
    );
    refused(Some(&vec![b'-'; 1 << 20]), Some(key.as_bytes()), &["tls.crt is longer than"]);
    refused(Some(many.as_bytes()), Some(key.as_bytes()), &["tls.crt holds 9 certificates", "8"]);
    refused(Some(crt.as_bytes()), Some(&file("encrypted-pkcs8.pem")), &["tls.key is encrypted"]);
    refused(Some(crt.as_bytes()), Some(&file("ed25519.pem")), &["tls.key is of a kind", "P-256"]);
    of(&crt, &["tls.key is not the key of the first certificate"]);
    of(&ca_of(p256, |params| at(params, -9, -1)), &["expired at 2027-01-14", "renewed"]);
    of(&ca_of(p256, |params| at(params, 1, 9)), &["not valid before 2027-01-16"]);
    of(&ca_of(p256, |params| at(params, -9, 1)), &["within a day"]);
    of(&ca_of(p256, |params| params.is_ca = rcgen::IsCa::NoCa), &["not a CA", "CA:TRUE"]);
    let cannot_sign = |params: &mut CertificateParams| {
        params.key_usages = vec![rcgen::KeyUsagePurpose::DigitalSignature];
    };
    of(&ca_of(p256, cannot_sign), &["not a CA"]);
    let server_only = |params: &mut CertificateParams| {
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    };
    of(&ca_of(p256, server_only), &["extendedKeyUsage"]);
    refused(Some(&odd_name), Some(&file("odd-subject-ca.key")), &["subject", "CN=NAME"]);
}

/// The writer of certificates panics at a type below a root that does not exist, here `{3 29}`.
#[test]
fn a_name_whose_type_is_no_object_identifier_is_refused() {
    let ca = authority();
    let mut der = CertificateDer::from_pem_slice(ca.chain_pem().as_bytes()).unwrap().to_vec();
    let common_name = [0x06, 0x03, 0x55, 0x04, 0x03];
    let places: Vec<usize> =
        (0..der.len()).filter(|place| der[*place..].starts_with(&common_name)).collect();
    assert_eq!(places.len(), 2, "issuer and subject");
    for place in places {
        der[place + 2] = 149;
    }
    let pem = der::certificate_pem(&der);
    let read =
        CertificateAuthority::from_pem(Some(pem.as_bytes()), Some(ca.key_pem().as_bytes()), now());
    assert!(matches!(read, Err(AuthorityRefusal::Subject)), "{read:?}");
}

#[test]
fn a_ca_below_another_gives_the_way_up_along() {
    let (root, key) = (authority(), PrivateKey::from_pem(&file("p256-sec1.pem")).unwrap());
    let mut params = x509::ca_params("below", now().as_second(), Duration::from_secs(86_400 * 9));
    params.use_authority_key_identifier_extension = true;
    // The root of this test may sign leaves only, so a wider one is made from it.
    let mut wide = x509::ca_params("root", now().as_second(), Duration::from_secs(86_400 * 99));
    wide.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    let wide_key = KeyPair::generate().unwrap();
    let root_pem = wide.self_signed(&wide_key).unwrap().pem();
    let issuer = rcgen::Issuer::from_params(&wide, &wide_key);
    let below = params.signed_by(key.key_pair(), &issuer).unwrap().pem();
    let given = format!("{below}{root_pem}");
    let ca =
        CertificateAuthority::from_pem(Some(given.as_bytes()), Some(&file("p256-sec1.pem")), now());
    let leaf = signed(&ca.unwrap(), &key, 86_400, now());
    let trust = TrustBundle::from_pem(root_pem.as_bytes()).unwrap();
    assert!(verified(&leaf, &trust, "small-a-0", now()));
    assert_eq!(check_chain(&leaf, &key.public_key_sha256(), &trust, &[], now()), []);
    assert!(
        !check_chain(&leaf, &key.public_key_sha256(), &root.trust_bundle(), &[], now()).is_empty()
    );
    // Without the CA in between there is no way.
    let alone = leaf.split_inclusive("-----END CERTIFICATE-----\n").next().unwrap();
    assert!(!check_chain(alone, &key.public_key_sha256(), &trust, &[], now()).is_empty());
}

#[test]
fn what_is_given_is_read_with_its_chain_and_its_key_in_pkcs8() {
    let key = file("rsa-2048-pkcs1.pem");
    let chain = ca_of("rsa-2048-pkcs1.pem", |params| params.is_ca = rcgen::IsCa::NoCa);
    let given = GivenCertificate::from_pem(Some(chain.as_bytes()), Some(&key), now()).unwrap();
    assert_eq!(given.chain_pem(), chain);
    assert_eq!(given.key_kind(), KeyKind::Rsa);
    assert!(given.key_pem().starts_with("-----BEGIN PRIVATE KEY-----"));
}

#[test]
fn bundles_keep_their_order_and_hold_each_ca_once() {
    let (one, two) = (authority(), authority());
    let text = format!("# comment\n{}{}{}", two.chain_pem(), one.chain_pem(), two.chain_pem());
    let bundle = TrustBundle::from_pem(text.as_bytes()).unwrap();
    let sha256s: Vec<_> = bundle.sha256_digests().collect();
    assert_eq!(sha256s, [two.details().sha256, one.details().sha256]);
    assert_eq!(TrustBundle::from_pem(bundle.to_pem().as_bytes()).unwrap(), bundle);
    let joined = TrustBundle::join([&one.trust_bundle(), &bundle]).unwrap();
    assert_eq!(
        joined.sha256_digests().collect::<Vec<_>>(),
        [one.details().sha256, two.details().sha256]
    );
    let nine: Vec<_> = (0..9).map(|_| authority().trust_bundle()).collect();
    assert_eq!(TrustBundle::join(&nine), Err(BundleRefusal::Many(9)));
    assert!(TrustBundle::join(&nine[..8]).is_ok());
    let leaf = signed(&one, &PrivateKey::generate().unwrap(), 600, now());
    let refused = TrustBundle::from_pem(leaf.as_bytes());
    assert_eq!(refused, Err(BundleRefusal::NotAuthority("CN=small-a-0".into())));
    let broken = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
    let text = format!("{}{broken}", one.chain_pem());
    assert_eq!(TrustBundle::from_pem(text.as_bytes()), Err(BundleRefusal::Certificate(2)));
}

#[test]
fn a_judgement_names_the_clock_the_end_and_what_cannot_be_read() {
    let (ca, key) = (authority(), PrivateKey::generate().unwrap());
    let leaf = signed(&ca, &key, 600, now());
    let judged = |at| check_chain(&leaf, &key.public_key_sha256(), &ca.trust_bundle(), &[], at);
    assert_eq!(judged(later(-60)), []);
    let early = judged(later(-61));
    assert_eq!(early, [CertificateProblem::NotYetValid { from: later(-60), now: later(-61) }]);
    assert!(early[0].to_string().contains("a clock is off"));
    assert_eq!(judged(later(600)), [CertificateProblem::Expired(later(600))]);
    assert_eq!(judged(later(599)), []);
    let unread = check_chain("", &key.public_key_sha256(), &ca.trust_bundle(), &[], now());
    assert_eq!(unread, [CertificateProblem::Unreadable(BundleRefusal::Empty)]);
}

#[test]
fn names_are_compared_as_clients_compare_them() {
    let ca = authority();
    let key = PrivateKey::generate().unwrap();
    let order = LeafOrder {
        common_name: "given",
        dns_names: &strings(&["*.shop.example", "DB.example"]),
        addresses: &["fd00::1".parse::<IpAddr>().unwrap()],
        usage: CertificateUse::Client,
        life: Duration::from_secs(600),
    };
    let leaf = ca.issue_certificate(&request(&key), &order, now()).unwrap();
    for (name, is_covered) in [
        ("a.shop.example", true),
        ("A.SHOP.example", true),
        ("a.b.shop.example", false),
        (".shop.example", false),
        ("shop.example", false),
        ("db.example", true),
        ("given", false),
        ("fd00:0::1", true),
        ("fd00::2", false),
    ] {
        let problems = check_chain(
            &leaf,
            &key.public_key_sha256(),
            &ca.trust_bundle(),
            &strings(&[name]),
            now(),
        );
        assert_eq!(problems.is_empty(), is_covered, "{name}");
    }
}

#[test]
fn a_request_is_signed_by_its_own_key_of_an_accepted_kind() {
    let key = PrivateKey::generate().unwrap();
    let pem = KeyRequest::create(&key).unwrap();
    assert!(pem.len() <= 420, "{} bytes", pem.len());
    assert_eq!(KeyRequest::from_pem(&pem).unwrap().key_sha256(), key.public_key_sha256());
    let ed25519 = KeyPair::generate_for(&rcgen::PKCS_ED25519).unwrap();
    let of_ed25519 = CertificateParams::default().serialize_request(&ed25519).unwrap();
    assert_eq!(KeyRequest::from_pem(&of_ed25519.pem().unwrap()), Err(RequestRefusal::Key));
    for weak in ["rsa-1024-csr.pem", "p521-csr.pem"] {
        let request = String::from_utf8(file(weak)).unwrap();
        assert_eq!(KeyRequest::from_pem(&request), Err(RequestRefusal::Key), "{weak}");
    }
    assert_eq!(KeyRequest::from_pem(&"A".repeat(1 << 20)), Err(RequestRefusal::Long));
    assert_eq!(KeyRequest::from_pem(&pem[..100]), Err(RequestRefusal::Unreadable));
    let certificate = authority().chain_pem();
    assert_eq!(KeyRequest::from_pem(&certificate), Err(RequestRefusal::Unreadable));
    for name in ["rsa-2048-pkcs1.pem", "p384-sec1.pem"] {
        let key = PrivateKey::from_pem(&file(name)).unwrap();
        let read = KeyRequest::from_pem(&KeyRequest::create(&key).unwrap()).unwrap();
        assert_eq!(read.key_sha256(), key.public_key_sha256(), "{name}");
    }
}

#[test]
fn only_the_key_on_record_proves_a_change_and_only_for_one_request() {
    let ca = authority();
    for name in ["rsa-2048-pkcs1.pem", "p256-sec1.pem", "p384-sec1.pem"] {
        let old = PrivateKey::from_pem(&file(name)).unwrap();
        let certificate = signed(&ca, &old, 600, now());
        let record = old.public_key_sha256();
        let (new, other) = (PrivateKey::generate().unwrap(), PrivateKey::generate().unwrap());
        let asked = request(&new);
        let proof = create_proof(&old, &asked).unwrap();
        assert_eq!(check_proof(&proof, &asked, &record, &certificate), Ok(()), "{name}");
        let refused = Err(ProofRefusal::Signature);
        assert_eq!(check_proof(&proof, &request(&other), &record, &certificate), refused);
        let foreign = create_proof(&other, &asked).unwrap();
        assert_eq!(check_proof(&foreign, &asked, &record, &certificate), refused);
        for damaged in ["", "!", &proof[..proof.len() - 4], &"A".repeat(1 << 20)] {
            assert_eq!(check_proof(damaged, &asked, &record, &certificate), refused);
        }
        // A certificate of the thief's own key is not of the key on record.
        let of_thief = signed(&ca, &other, 600, now());
        let refused = check_proof(&foreign, &asked, &record, &of_thief);
        assert_eq!(refused, Err(ProofRefusal::Record));
        let unread = check_proof(&proof, &asked, &record, "");
        assert_eq!(unread, Err(ProofRefusal::Certificate));
    }
}

/// Replaces a byte of a text's inside.
fn damage(text: &str, place: usize, byte: u8) -> Vec<u8> {
    let mut bytes = text.as_bytes().to_vec();
    let place = place % bytes.len();
    bytes[place] = byte;
    bytes
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    /// Whatever is stored, reading it ends, and ends in one of the refusals or in what is whole.
    #[test]
    fn damaged_material_is_refused_or_is_still_the_same(place: usize, byte: u8, cut: usize) {
        let ca = authority();
        let (crt, key) = (ca.chain_pem(), ca.key_pem());
        let damaged = damage(&crt, place, byte);
        let cut = cut % damaged.len();
        let mut der = CertificateDer::from_pem_slice(crt.as_bytes()).unwrap().to_vec();
        let inside = place % der.len();
        der[inside] = byte;
        let inside = der::certificate_pem(&der);
        for crt in [&damaged[..], &damaged[..cut], inside.as_bytes()] {
            if let Ok(read) = CertificateAuthority::from_pem(Some(crt), Some(key.as_bytes()), now()) {
                prop_assert_eq!(read.details().key_sha256, ca.details().key_sha256);
            }
            drop(TrustBundle::from_pem(crt));
        }
        let damaged = damage(&key, place, byte);
        for key in [&damaged[..], &damaged[..cut % damaged.len()]] {
            if CertificateAuthority::from_pem(Some(crt.as_bytes()), Some(key), now()).is_ok() {
                prop_assert_eq!(PrivateKey::from_pem(key).unwrap().public_key_sha256(), ca.details().key_sha256);
            }
        }
    }

    /// A request of which a byte was changed is refused, or says what it said before.
    #[test]
    fn a_damaged_request_asks_for_no_other_key(place: usize, byte: u8) {
        let key = PrivateKey::generate().unwrap();
        let pem = KeyRequest::create(&key).unwrap();
        if let Ok(damaged) = String::from_utf8(damage(&pem, place, byte))
            && let Ok(read) = KeyRequest::from_pem(&damaged)
        {
            prop_assert_eq!(read.key_sha256(), key.public_key_sha256());
        }
    }

    #[test]
    fn bytes_that_are_anything_are_refused(bytes: Vec<u8>) {
        prop_assert!(PrivateKey::from_pem(&bytes).is_err());
        prop_assert!(TrustBundle::from_pem(&bytes).is_err());
        prop_assert!(CertificateAuthority::from_pem(Some(&bytes), Some(&bytes), now()).is_err());
    }
}
