//! Each thing that can be wrong with certificates, what it is called, and what comes of it.

use std::time::Duration;

use super::*;
use crate::{
    api::v1beta1::{NodeCertificate, SignedKey},
    engine::pki::{CertificateAuthority, KeyRequest, LeafOrder, PrivateKey},
};

const LIFE: i64 = 90 * 24 * 3600;

fn now() -> Timestamp {
    Timestamp::from_second(1_800_000_000).unwrap()
}

fn later(seconds: i64) -> Timestamp {
    Timestamp::from_second(now().as_second() + seconds).unwrap()
}

/// A node's key, and the CAs of its cluster.
struct Signer {
    key: PrivateKey,
    internode: CertificateAuthority,
    client: CertificateAuthority,
}

fn authority() -> CertificateAuthority {
    CertificateAuthority::create("CA", now()).unwrap()
}

fn sign(
    ca: &CertificateAuthority,
    key: &PrivateKey,
    (usage, name, address): (CertificateUse, &str, &str),
) -> NodeCertificate {
    let request = KeyRequest::from_pem(&KeyRequest::create(key).unwrap()).unwrap();
    let order = LeafOrder {
        common_name: name,
        dns_names: &[name.to_owned()],
        addresses: &[address.parse().unwrap()],
        usage,
        life: Duration::from_secs(LIFE.unsigned_abs()),
    };
    let chain = ca.issue_certificate(&request, &order, now()).unwrap();
    NodeCertificate { chain, trust: ca.trust_bundle().to_pem(), ..NodeCertificate::default() }
}

impl Signer {
    fn new() -> Self {
        let key = PrivateKey::generate().unwrap();
        Self { key, internode: authority(), client: authority() }
    }

    fn signed(&self) -> PilotSecurity {
        let of = |ca, usage| Some(sign(ca, &self.key, (usage, "es-a-0", "10.0.0.7")));
        PilotSecurity {
            internode: InternodeTls::Required,
            client: ClientTls::Required,
            key: Some(SignedKey {
                sha256: self.key.public_key_sha256(),
                volume: "v".to_owned(),
                since: None,
            }),
            internode_certificate: of(&self.internode, CertificateUse::Internode),
            client_certificate: of(&self.client, CertificateUse::Client),
            ..PilotSecurity::default()
        }
    }

    fn find(&self, security: &PilotSecurity, at: Timestamp) -> CertificateFindings {
        self.find_for(security, at, None)
    }

    fn find_for(
        &self,
        security: &PilotSecurity,
        now: Timestamp,
        in_use: Option<&NodeCertificates>,
    ) -> CertificateFindings {
        self.find_with(security, now, in_use, None)
    }

    fn find_with(
        &self,
        security: &PilotSecurity,
        now: Timestamp,
        in_use: Option<&NodeCertificates>,
        mounted: Option<&str>,
    ) -> CertificateFindings {
        build_findings(&CertificateQuestion {
            security,
            key_sha256: &self.key.public_key_sha256(),
            mounted_sha256: mounted,
            pilot: "es-a-0",
            address: "10.0.0.7".parse().unwrap(),
            in_use,
            now,
        })
        .unwrap()
    }
}

fn certificates(security: &PilotSecurity) -> NodeCertificates {
    NodeCertificates {
        internode: security.internode_certificate.clone(),
        client: security.client_certificate.clone(),
    }
}

#[test]
fn what_was_signed_for_this_node_is_used_and_renewed_in_time() {
    let signer = Signer::new();
    let signed = signer.signed();
    let found = signer.find(&signed, now());
    assert_eq!((found.reading.good, found.reading.reason), (true, "CertificatesCurrent"));
    assert!(found.reading.message.starts_with("valid until 2027-"), "{}", found.reading.message);
    assert_eq!((found.request, found.covers), (RequestReason::Standing, true));
    assert_eq!(found.usable, Some(certificates(&signed)));
    let due = signer.find(&signed, later(LIFE * 3 / 4));
    assert_eq!((due.reading.good, due.request), (true, RequestReason::Renewal));
    assert_eq!(due.usable, found.usable, "it is good until its end");
    let overdue = signer.find(&signed, later(LIFE * 7 / 8));
    assert_eq!((overdue.reading.good, overdue.reading.reason), (false, "RenewalOverdue"));
    assert_eq!(overdue.usable, found.usable);
}

#[test]
fn each_thing_that_is_wrong_has_its_name_and_keeps_the_certificates_out() {
    let signer = Signer::new();
    let good = signer.signed();
    let other = Signer::new();
    let with = |change: &dyn Fn(&mut PilotSecurity)| {
        let mut security = good.clone();
        change(&mut security);
        security
    };
    let client = |one: Option<NodeCertificate>| {
        with(&|security| security.client_certificate.clone_from(&one))
    };
    let mut bad_trust = good.client_certificate.clone().unwrap();
    bad_trust.trust = String::new();
    let mut bad_chain = good.client_certificate.clone().unwrap();
    bad_chain.chain.truncate(100);
    let mut untrusted = good.client_certificate.clone().unwrap();
    untrusted.trust = signer.internode.trust_bundle().to_pem();
    let anothers_key = other.signed().client_certificate;
    let elsewhere =
        sign(&signer.client, &signer.key, (CertificateUse::Client, "es-a-0", "10.0.0.8"));
    let (first, renewal) = (Some(RequestReason::First), Some(RequestReason::Renewal));
    let address = Some(RequestReason::Address);
    let before = -2 * 3600;
    let rows: [(&str, PilotSecurity, i64, Option<RequestReason>, bool); 11] = [
        ("CertificateRequested", client(None), 0, first.clone(), false),
        (
            "CertificateRequested",
            with(&|s| s.internode_certificate = None),
            0,
            first.clone(),
            false,
        ),
        ("TrustRejected", client(Some(bad_trust)), 0, None, false),
        ("TrustRejected", client(Some(bad_chain)), 0, None, false),
        ("TrustRejected", client(Some(untrusted)), 0, None, false),
        ("ForeignKey", client(anothers_key), 0, first.clone(), false),
        ("ForeignKey", with(&|s| s.key = other.signed().key), 0, first.clone(), false),
        // A foreign key is graver than a certificate that is missing.
        (
            "ForeignKey",
            with(&|s| (s.key, s.client_certificate) = (other.signed().key, None)),
            0,
            first,
            false,
        ),
        ("ClockSkew", good.clone(), before, None, false),
        ("CertificateExpired", good.clone(), LIFE + 1, renewal, false),
        ("AddressNotCovered", client(Some(elsewhere)), 0, address, true),
    ];
    for (reason, security, at, request, usable) in rows {
        let found = signer.find(&security, later(at));
        let context = format!("{reason}: {found:?}");
        assert!(!found.reading.good && !found.covers, "{context}");
        assert_eq!(found.reading.reason, reason, "{context}");
        assert_eq!(found.request, request.unwrap_or(RequestReason::Standing), "{context}");
        assert_eq!(found.usable.is_some(), usable, "{context}");
    }
}

#[test]
fn what_is_not_encrypted_needs_no_certificate() {
    let signer = Signer::new();
    let mut security = signer.signed();
    security.client = ClientTls::Off;
    security.client_certificate = None;
    let found = signer.find(&security, now());
    assert!(found.reading.good);
    assert_eq!(found.usable.unwrap().client, None);
    security.internode = InternodeTls::Off;
    let question = CertificateQuestion {
        security: &security,
        key_sha256: "k",
        mounted_sha256: None,
        pilot: "es-a-0",
        address: "10.0.0.7".parse().unwrap(),
        in_use: None,
        now: now(),
    };
    assert_eq!(build_findings(&question), None);
}

#[test]
fn a_certificate_that_was_given_is_used_with_the_key_that_is_mounted() {
    let signer = Signer::new();
    let signed = signer.signed();
    let in_use = certificates(&signed);
    let (given, key) = (authority(), PrivateKey::generate().unwrap());
    let mut security = signed.clone();
    security.client_certificate = Some(NodeCertificate {
        mounted_key: Some(key.public_key_sha256()),
        // Neither the node's name nor its address.
        ..sign(&given, &key, (CertificateUse::Client, "db.example.org", "10.9.9.9"))
    });
    let other = signer.key.public_key_sha256();
    for mounted in [None, Some(other.as_str())] {
        let found = signer.find_with(&security, now(), Some(&in_use), mounted);
        assert_eq!((found.reading.reason, &found.usable), ("KeyAwaited", &None));
        assert!(found.awaits_key, "it is looked for again soon");
        assert_eq!(found.request, RequestReason::Standing, "nothing is to be signed for it");
    }
    let mounted = key.public_key_sha256();
    let find = |security: &PilotSecurity, at, in_use: &NodeCertificates| {
        signer.find_with(security, at, Some(in_use), Some(&mounted))
    };
    let found = find(&security, now(), &in_use);
    assert!(found.reading.good && found.covers, "{found:?}");
    assert_eq!(found.usable, Some(certificates(&security)));
    // Back to one of its own, too.
    assert!(find(&signed, now(), &certificates(&security)).reading.good);
    // Its renewal is its owner's, who is told of it.
    security.internode = InternodeTls::Off;
    let late = find(&security, later(LIFE * 7 / 8), &in_use);
    assert_eq!((late.reading.reason, late.request), ("RenewalOverdue", RequestReason::Standing));
    let over = find(&security, later(LIFE + 1), &in_use);
    assert_eq!((over.reading.reason, &over.usable), ("CertificateExpired", &None));
}

#[test]
fn a_bundle_that_lacks_the_ca_in_use_is_kept_from_a_database_that_runs() {
    let signer = Signer::new();
    let signed = signer.signed();
    let in_use = certificates(&signed);
    assert!(signer.find_for(&signed, now(), Some(&in_use)).reading.good);
    // Another CA all at once: its certificate would be good for a start.
    let next = Signer { key: signer.key, internode: authority(), client: authority() };
    let changed = next.signed();
    assert!(next.find(&changed, now()).reading.good);
    let found = next.find_for(&changed, now(), Some(&in_use));
    assert_eq!((found.reading.reason, &found.usable), ("TrustRejected", &None));
    assert!(found.reading.message.contains("lacks the CA"), "{}", found.reading.message);
    // With both CAs in the bundles it may go on.
    let mut both = changed;
    for (one, ca) in [
        (&mut both.internode_certificate, &signer.internode),
        (&mut both.client_certificate, &signer.client),
    ] {
        one.as_mut().unwrap().trust += &ca.trust_bundle().to_pem();
    }
    assert!(next.find_for(&both, now(), Some(&in_use)).reading.good);
}
