//! A running database whose certificates and users change.

use std::fs;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::{
    testing::{FakeDatabase, node},
    *,
};
use crate::{
    api::v1beta1::{ClientTls, InternodeTls, NodeCertificate, SignedKey},
    engine::{
        pki::{CertificateAuthority, KeyRequest, PrivateKey, check_proof},
        users::{FILE, UsersRefusal},
    },
    pilot::{
        tls::testing::{TlsServer, sign},
        volume::pilot_files::PilotFiles,
    },
};

/// A node with a database that runs, and the CA of its cluster.
struct RunningPlace {
    place: tempfile::TempDir,
    ca: CertificateAuthority,
    database: Arc<FakeDatabase>,
    keeper: SecurityKeeper,
    node: DatabaseNode,
}

impl RunningPlace {
    /// Starts a node that was signed, and a server that shows its certificate.
    async fn new() -> Self {
        let place = tempfile::tempdir().unwrap();
        for folder in ["data", "config", "users"] {
            fs::create_dir(place.path().join(folder)).unwrap();
        }
        let files = PilotFiles::for_directory(&place.path().join("data"));
        let config = place.path().join("config");
        let own = NodeSecurity::new(files, config, place.path().join("users"), None);
        let ca = CertificateAuthority::create("CA", Timestamp::now()).unwrap();
        let key = own.ensure_key().unwrap();
        let chain = sign(&ca, &key.key);
        let server = TlsServer::show(chain.clone(), &key.key, None).await;
        let port = SecuredPort::new(CertificateUse::Internode, server.address);
        let mut database = FakeDatabase::new(vec![port]);
        database.server = Some(server);
        let mut node = node(place.path());
        node.pilot.spec.security = Some(PilotSecurity {
            internode: InternodeTls::Required,
            client: ClientTls::Off,
            authentication: Authentication::Password,
            key: Some(SignedKey {
                sha256: key.key.public_key_sha256(),
                volume: "v".to_owned(),
                since: None,
            }),
            internode_certificate: Some(NodeCertificate {
                chain,
                trust: ca.trust_bundle().to_pem(),
                ..NodeCertificate::default()
            }),
            ..PilotSecurity::default()
        });
        let (_, start) = own.before_start(&database, &node);
        own.lay_out(&database, &node, &start.unwrap().unwrap()).await.unwrap();
        let database = Arc::new(database);
        let mut keeper = SecurityKeeper::new(own, database.clone(), Volume::default());
        keeper.reload_limit = Duration::from_millis(50);
        Self { place, ca, database, keeper, node }
    }

    fn security(&mut self) -> &mut PilotSecurity {
        self.node.pilot.spec.security.as_mut().unwrap()
    }

    async fn turn(&mut self) -> SecurityReport {
        self.keeper.reconcile(&self.node).await.unwrap().0
    }

    /// Signs the node's key again, and returns the SHA-256 of that.
    fn renew(&mut self) -> String {
        let chain = sign(&self.ca, &self.keeper.own.ensure_key().unwrap().key);
        let sha256 = crate::machinery::x509::CertificateDetails::from_pem(&chain).unwrap().sha256;
        self.security().internode_certificate.as_mut().unwrap().chain = chain;
        sha256
    }

    fn mount(&self, json: &[u8]) {
        fs::write(self.place.path().join("users").join(FILE), json).unwrap();
    }

    fn installed(&self) -> String {
        fs::read_to_string(self.place.path().join("config/tls/node.crt")).unwrap()
    }
}

fn reading(report: &SecurityReport) -> (bool, &'static str) {
    let reading = report.certificates.as_ref().unwrap();
    (reading.good, reading.reason)
}

fn served_by(report: &SecurityReport) -> Option<String> {
    report.internode.as_ref().map(|served| served.sha256.clone())
}

#[tokio::test]
async fn a_renewed_certificate_counts_once_it_is_shown() {
    let mut running = RunningPlace::new().await;
    let before = running.turn().await;
    assert_eq!(reading(&before), (true, "CertificatesCurrent"));
    let first = served_by(&before).unwrap();
    let renewed = running.renew();
    let after = running.turn().await;
    assert_eq!(served_by(&after), Some(renewed.clone()));
    let kept =
        PilotFiles::for_directory(&running.place.path().join("data")).read_certificates().unwrap();
    assert_eq!(kept, running.keeper.installed, "it is there for a later start");
    assert_ne!(first, renewed);
    assert_eq!(reading(&after), (true, "CertificatesCurrent"));
}

#[tokio::test]
async fn a_new_key_takes_the_place_of_the_former_one_once_the_database_shows_it() {
    let mut running = RunningPlace::new().await;
    let files = PilotFiles::for_directory(&running.place.path().join("data"));
    let on_volume =
        || PrivateKey::from_pem(&files.node_key().unwrap().unwrap()).unwrap().public_key_sha256();
    let request = |report: &SecurityReport| report.request.clone().unwrap();
    assert_eq!(request(&running.turn().await).new_key, None);
    let first = on_volume();
    let chain = running.security().internode_certificate.clone().unwrap().chain;
    let asked_at = |second| Some(Time(Timestamp::from_second(second).unwrap()));
    running.security().new_key_at = asked_at(7);
    let made = request(&running.turn().await);
    let new = made.new_key.clone().unwrap();
    let csr = KeyRequest::from_pem(&new.csr).unwrap();
    assert_eq!(new.asked_at, asked_at(7));
    assert_eq!(check_proof(&new.proof, &csr, &first, &chain), Ok(()));
    // The pilot ends, and the next one has the same key to be signed.
    let own = &running.keeper.own;
    let again = NodeSecurity::new(
        files.clone(),
        running.place.path().join("config"),
        own.users.clone(),
        None,
    );
    running.keeper = SecurityKeeper::new(again, running.database.clone(), Volume::default());
    running.keeper.reload_limit = Duration::from_millis(50);
    let after = request(&running.turn().await).new_key.unwrap();
    assert_eq!(KeyRequest::from_pem(&after.csr).unwrap().key_sha256(), csr.key_sha256());
    // A later request has another key made.
    running.security().new_key_at = asked_at(8);
    let new = request(&running.turn().await).new_key.unwrap();
    assert_ne!(KeyRequest::from_pem(&new.csr).unwrap().key_sha256(), csr.key_sha256());

    let next = PrivateKey::from_pem(&files.next_key().unwrap().unwrap()).unwrap();
    let before = running.installed();
    let chain = sign(&running.ca, &next);
    let security = running.security();
    security.new_key_at = None;
    security.key.as_mut().unwrap().sha256 = next.public_key_sha256();
    security.internode_certificate.as_mut().unwrap().chain.clone_from(&chain);
    *running.database.takes_certificates.lock().unwrap() = false;
    let report = running.turn().await;
    assert_eq!(reading(&report), (false, "ReloadFailed"));
    assert_eq!((on_volume(), running.installed()), (first.clone(), before));
    running.keeper.failed = None;
    *running.database.takes_certificates.lock().unwrap() = true;
    let report = running.turn().await;
    assert_eq!(reading(&report), (true, "CertificatesCurrent"));
    assert_eq!(running.installed(), chain);
    assert_eq!((on_volume(), files.next_key().unwrap()), (next.public_key_sha256(), None));
    let report = running.turn().await;
    assert_eq!(
        KeyRequest::from_pem(&request(&report).csr).unwrap().key_sha256(),
        next.public_key_sha256()
    );
    assert_ne!(next.public_key_sha256(), first);
}

#[tokio::test]
async fn what_is_not_shown_is_put_back_told_and_tried_again_with_another_certificate() {
    let mut running = RunningPlace::new().await;
    let first = served_by(&running.turn().await);
    let before = running.installed();
    *running.database.takes_certificates.lock().unwrap() = false;
    running.renew();
    for _ in 0..2 {
        let report = running.turn().await;
        assert_eq!(reading(&report), (false, "ReloadFailed"));
        assert_eq!(served_by(&report), first);
        assert_eq!(running.installed(), before);
    }
    *running.database.takes_certificates.lock().unwrap() = true;
    let renewed = running.renew();
    let report = running.turn().await;
    assert_eq!(reading(&report), (true, "CertificatesCurrent"));
    assert_eq!(served_by(&report), Some(renewed));
}

#[tokio::test]
async fn a_port_that_shows_something_else_is_told() {
    let mut running = RunningPlace::new().await;
    running.turn().await;
    let stranger = crate::engine::pki::PrivateKey::generate().unwrap();
    let chain = sign(&running.ca, &stranger);
    running.database.server.as_ref().unwrap().reload(&chain, &stranger);
    running.keeper.next_look = None;
    let report = running.turn().await;
    assert_eq!((reading(&report), served_by(&report)), ((false, "ReloadFailed"), None));
}

#[tokio::test]
async fn certificates_that_are_refused_touch_nothing_and_the_next_program_goes_on() {
    let mut running = RunningPlace::new().await;
    let first = served_by(&running.turn().await);
    let before = running.installed();
    running.security().internode_certificate.as_mut().unwrap().trust =
        CertificateAuthority::create("other", Timestamp::now()).unwrap().trust_bundle().to_pem();
    let report = running.turn().await;
    assert_eq!((reading(&report), served_by(&report)), ((false, "TrustRejected"), first.clone()));
    assert_eq!(running.installed(), before);
    let own = running.keeper.own.clone();
    running.keeper = SecurityKeeper::new(own, running.database.clone(), Volume::default());
    let report = running.turn().await;
    assert_eq!((reading(&report), served_by(&report)), ((false, "TrustRejected"), first));
}

#[tokio::test]
async fn users_are_applied_once_and_a_refusal_is_not_tried_at_once_again() {
    let mut running = RunningPlace::new().await;
    let pending = |report: &SecurityReport| {
        let reading = report.users_applied.clone().unwrap();
        (reading.good, reading.reason, report.users.clone())
    };
    assert_eq!(pending(&running.turn().await), (false, "UsersPending", None));
    let document = UsersDocument::new(Vec::new(), None);
    let revision = Some(document.revision().to_owned());
    running.mount(&document.to_json());
    assert_eq!(pending(&running.turn().await), (false, "UsersPending", None));
    running.security().users = Some("0123456789abcdef".to_owned());
    assert_eq!(pending(&running.turn().await), (false, "UsersPending", None));
    assert!(running.database.applied.lock().unwrap().is_empty(), "the spec does not name them");
    running.security().users.clone_from(&revision);
    // The database has not read them at first.
    running.database.answers.lock().unwrap().push(Error::NotYet("not yet".to_owned()));
    assert_eq!(pending(&running.turn().await), (false, "UsersPending", None));
    for _ in 0..2 {
        assert_eq!(pending(&running.turn().await), (true, "UsersCurrent", revision.clone()));
    }
    assert_eq!(running.database.applied.lock().unwrap().len(), 2, "the second try was good");
    running.security().users = Some("0123456789abcdef".to_owned());
    assert_eq!(pending(&running.turn().await), (false, "UsersPending", revision.clone()));
    running.mount(b"{");
    assert_eq!(pending(&running.turn().await), (false, "UsersRejected", revision.clone()));

    let other = format!(r#"{{"revision": "{}", "users": []}}"#, "0123456789abcdef");
    running.mount(other.as_bytes());
    running.database.answers.lock().unwrap().push(Error::Refused("no".to_owned()));
    for _ in 0..2 {
        assert_eq!(pending(&running.turn().await), (false, "UsersRejected", revision.clone()));
    }
    assert_eq!(running.database.applied.lock().unwrap().len(), 3);
}

#[test]
fn each_standing_of_users_has_its_reason() {
    let mounted = || Ok(Some(UsersDocument::new(Vec::new(), None)));
    let has = "4f53cda18c2baa0c";
    let refused = || Err(UsersTrouble::Refused("why".to_owned()));
    let open = || Err(UsersTrouble::Open("why".to_owned()));
    let rows = [
        (Some(has), mounted(), Some(has), Ok(()), "UsersCurrent"),
        (None, mounted(), Some(has), Ok(()), "UsersPending"),
        (Some("another"), mounted(), Some(has), Ok(()), "UsersPending"),
        (Some(has), Ok(None), None, Ok(()), "UsersPending"),
        (Some(has), mounted(), None, open(), "UsersPending"),
        (Some(has), mounted(), None, refused(), "UsersRejected"),
        (Some(has), Err(UsersRefusal::Revision.into()), Some(has), Ok(()), "UsersRejected"),
    ];
    for (wanted, mounted, has, applied, reason) in rows {
        let reading = users_reading(wanted, &mounted, has, applied);
        assert_eq!(reading.reason, reason, "{reading:?}");
        assert_eq!(reading.good, reason == "UsersCurrent");
    }
}
