//! What holds a start up, and what a start finds.

use super::*;
use crate::{
    api::v1beta1::{
        ClientTls, InternodeTls, NodeCertificate, PilotSecurityStatus, RequestReason, SignedKey,
    },
    engine::{
        pki::{CertificateAuthority, CertificateUse, KeyRequest, LeafOrder},
        users::FILE,
    },
    pilot::{
        security::keeper::testing::{FakeDatabase, node},
        tls::testing::sign,
    },
};

struct StartPlace {
    place: tempfile::TempDir,
    security: NodeSecurity,
    ca: CertificateAuthority,
}

impl StartPlace {
    fn new() -> Self {
        let place = tempfile::tempdir().unwrap();
        for folder in ["data", "config"] {
            std::fs::create_dir(place.path().join(folder)).unwrap();
        }
        let files = PilotFiles::for_directory(&place.path().join("data"));
        let config = place.path().join("config");
        let security = NodeSecurity::new(files, config, place.path().join("users"), None);
        let ca = CertificateAuthority::create("CA", Timestamp::now()).unwrap();
        Self { place, security, ca }
    }

    fn wanted() -> PilotSecurity {
        PilotSecurity {
            internode: InternodeTls::Required,
            client: ClientTls::Off,
            authentication: Authentication::Password,
            ..PilotSecurity::default()
        }
    }

    fn signed(&self) -> PilotSecurity {
        let key = self.security.ensure_key().unwrap();
        PilotSecurity {
            key: Some(SignedKey {
                sha256: key.key.public_key_sha256(),
                volume: "v".to_owned(),
                since: None,
            }),
            internode_certificate: Some(NodeCertificate {
                chain: sign(&self.ca, &key.key),
                trust: self.ca.trust_bundle().to_pem(),
                ..NodeCertificate::default()
            }),
            ..Self::wanted()
        }
    }
}

#[tokio::test]
async fn a_node_asks_for_a_certificate_and_starts_with_it() {
    let start = StartPlace::new();
    let database = FakeDatabase::new(Vec::new());
    let mut node = node(start.place.path());
    assert!(matches!(start.security.before_start(&database, &node), (None, Ok(None))));
    node.pilot.spec.security = Some(StartPlace::wanted());
    let (report, held) = start.security.before_start(&database, &node);
    let request = report.unwrap().request.unwrap();
    assert_eq!(request.reason, RequestReason::First);
    assert!(matches!(held, Err(Error::NotYet(why)) if why.contains("waits to be signed")));
    // The request is the same each time that it is told: each other one is a write of the Pilot.
    let (again, _) = start.security.before_start(&database, &node);
    assert_eq!(again.unwrap().request, Some(request.clone()));

    node.pilot.spec.security = Some(start.signed());
    let key = KeyRequest::from_pem(&request.csr).unwrap().key_sha256();
    assert_eq!(node.pilot.spec.security.as_ref().unwrap().key.as_ref().unwrap().sha256, key);
    let (report, ready) = start.security.before_start(&database, &node);
    assert!(report.unwrap().certificates.unwrap().good);
    let ready = ready.unwrap().unwrap();
    start.security.lay_out(&database, &node, &ready).await.unwrap();
    let key = std::fs::read_to_string(start.place.path().join("config/tls/node.key")).unwrap();
    assert!(key.contains("PRIVATE KEY"));
    assert_eq!(database.laid_out(), [None], "no users are mounted");
}

#[tokio::test]
async fn a_node_starts_with_users_that_its_spec_names_or_that_it_had_and_with_no_others() {
    let start = StartPlace::new();
    let database = FakeDatabase::new(Vec::new());
    let mut node = node(start.place.path());
    let document = UsersDocument::new(Vec::new(), None);
    let revision = Some(document.revision().to_owned());
    let users = start.place.path().join("users");
    std::fs::create_dir(&users).unwrap();
    std::fs::write(users.join(FILE), document.to_json()).unwrap();
    let had = |users| PilotSecurityStatus { users, ..PilotSecurityStatus::default() };
    let other = || Some("0123456789abcdef".to_owned());
    for (named, reported, starts_with) in [
        (None, None, None),
        (other(), other(), None),
        (revision.clone(), None, revision.clone()),
        // Its kubelet has not brought those that the spec names now.
        (other(), revision.clone(), revision.clone()),
    ] {
        node.pilot.spec.security = Some(PilotSecurity { users: named, ..start.signed() });
        node.pilot.status.security = Some(had(reported));
        let (_, ready) = start.security.before_start(&database, &node);
        start.security.lay_out(&database, &node, &ready.unwrap().unwrap()).await.unwrap();
        assert_eq!(*database.laid_out().last().unwrap(), starts_with);
    }
}

#[tokio::test(start_paused = true)]
async fn a_new_address_is_waited_for_and_not_for_ever() {
    let start = StartPlace::new();
    let database = FakeDatabase::new(Vec::new());
    let mut node = node(start.place.path());
    node.pilot.spec.security = Some(start.signed());
    node.address = [127, 0, 0, 9].into();
    let (report, held) = start.security.before_start(&database, &node);
    assert_eq!(report.unwrap().request.unwrap().reason, RequestReason::Address);
    assert!(matches!(held, Err(Error::NotYet(_))));
    tokio::time::advance(ADDRESS_WAIT).await;
    let (report, ready) = start.security.before_start(&database, &node);
    assert_eq!(report.unwrap().certificates.unwrap().reason, "AddressNotCovered");
    start.security.lay_out(&database, &node, &ready.unwrap().unwrap()).await.unwrap();
    // The next start waits anew.
    assert!(start.security.before_start(&database, &node).1.is_err());
}

#[test]
fn a_key_that_is_damaged_or_not_on_record_starts_nothing() {
    let start = StartPlace::new();
    let database = FakeDatabase::new(Vec::new());
    let mut node = node(start.place.path());
    let mut security = start.signed();
    security.key.as_mut().unwrap().sha256 = "f00d".repeat(16);
    node.pilot.spec.security = Some(security);
    let (report, held) = start.security.before_start(&database, &node);
    assert_eq!(report.unwrap().certificates.unwrap().reason, "ForeignKey");
    assert!(matches!(held, Err(Error::NotYet(why)) if why.starts_with("ForeignKey")));

    let damaged = StartPlace::new();
    damaged.security.files.set_node_key("damaged").unwrap();
    node.pilot.spec.security = Some(StartPlace::wanted());
    let (report, held) = damaged.security.before_start(&database, &node);
    let report = report.unwrap();
    assert_eq!((report.certificates.unwrap().reason, report.request), ("KeyUnusable", None));
    assert!(held.is_err());
    assert_eq!(damaged.security.files.node_key().unwrap().unwrap(), b"damaged");
}

#[tokio::test]
async fn a_node_starts_with_whichever_of_its_keys_is_on_record() {
    let start = StartPlace::new();
    let database = FakeDatabase::new(Vec::new());
    let mut node = node(start.place.path());
    let mut signed = start.signed();
    signed.new_key_at = Some(Time(Timestamp::from_second(7).unwrap()));
    node.pilot.spec.security = Some(signed.clone());
    let files = start.security.files.clone();
    let config = start.place.path().join("config");
    let fresh = || NodeSecurity::new(files.clone(), config.clone(), "users".into(), None);
    assert!(fresh().before_start(&database, &node).1.is_ok());
    let next = PrivateKey::from_pem(&files.next_key().unwrap().unwrap()).unwrap();
    // The controller signed it, and the pilot ended before it knew.
    signed.new_key_at = None;
    signed.key.as_mut().unwrap().sha256 = next.public_key_sha256();
    signed.internode_certificate.as_mut().unwrap().chain = sign(&start.ca, &next);
    node.pilot.spec.security = Some(signed);
    let security = fresh();
    let ready = security.before_start(&database, &node).1.unwrap().unwrap();
    security.lay_out(&database, &node, &ready).await.unwrap();
    let installed = std::fs::read(config.join("tls/node.key")).unwrap();
    assert_eq!(
        PrivateKey::from_pem(&installed).unwrap().public_key_sha256(),
        next.public_key_sha256()
    );
}

/// A certificate for this key that is valid in a year.
fn from_a_clock_that_is_ahead(ca: &CertificateAuthority, key: &NodeKey) -> String {
    let names = ["es-a-0".to_owned()];
    let order = LeafOrder {
        common_name: "es-a-0",
        dns_names: &names,
        addresses: &[[127, 0, 0, 1].into()],
        usage: CertificateUse::Internode,
        life: Duration::from_secs(3600),
    };
    let ahead = Timestamp::now() + Duration::from_secs(365 * 24 * 3600);
    ca.issue_certificate(&KeyRequest::from_pem(&key.request).unwrap(), &order, ahead).unwrap()
}

#[tokio::test]
async fn a_start_uses_the_certificates_of_the_last_run_where_the_spec_has_none_that_are_good() {
    let start = StartPlace::new();
    let database = FakeDatabase::new(Vec::new());
    let mut node = node(start.place.path());
    let good = start.signed();
    let mut ahead = good.clone();
    let key = start.security.ensure_key().unwrap();
    let chain = from_a_clock_that_is_ahead(&start.ca, &key);
    ahead.internode_certificate.as_mut().unwrap().chain = chain;
    node.pilot.spec.security = Some(ahead.clone());
    assert!(start.security.before_start(&database, &node).1.is_err(), "there are none yet");

    let shown = NodeCertificates { internode: good.internode_certificate.clone(), client: None };
    start.security.keep_certificates(&shown).unwrap();
    let (report, ready) = start.security.before_start(&database, &node);
    assert_eq!(report.unwrap().certificates.unwrap().reason, "ClockSkew");
    let ready = ready.unwrap().unwrap();
    start.security.lay_out(&database, &node, &ready).await.unwrap();
    assert_eq!(start.security.tls_folder().read_current().unwrap(), Some(shown));

    // A CA that is none, and a key that is not on record.
    let mut foreign = good.clone();
    foreign.internode_certificate.as_mut().unwrap().trust =
        CertificateAuthority::create("other", Timestamp::now()).unwrap().trust_bundle().to_pem();
    node.pilot.spec.security = Some(foreign);
    assert!(start.security.before_start(&database, &node).1.is_ok());
    let mut of_another_key = ahead;
    of_another_key.key.as_mut().unwrap().sha256 = "f00d".repeat(16);
    node.pilot.spec.security = Some(of_another_key);
    assert!(start.security.before_start(&database, &node).1.is_err());
}

#[test]
fn a_database_that_cannot_be_secured_is_not_started_open() {
    let start = StartPlace::new();
    let mut database = FakeDatabase::new(Vec::new());
    database.can = false;
    let mut node = node(start.place.path());
    node.pilot.spec.security = Some(StartPlace::wanted());
    let (_, held) = start.security.before_start(&database, &node);
    assert!(matches!(held, Err(Error::ConfigRejected(_))));
}
