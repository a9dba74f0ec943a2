//! What a secured node needs beside it: the test is its controller, which signs what its pilot asks for
//! and writes users, and the kubelet that mounts them.

use std::{
    cell::RefCell,
    collections::{BTreeMap, HashSet},
    fs,
    net::IpAddr,
    path::PathBuf,
    rc::Rc,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use jiff::Timestamp;
use navigator::{
    api::v1beta1::{CertificateRequest, Pilot, PilotSecurityStatus, RequestReason},
    engine::{
        password::{self, PasswordHashing},
        pki::{
            CertificateAuthority, CertificateUse, KeyRequest, LeafOrder, PrivateKey, TrustBundle,
        },
        users::{CLIENT_KEY, DocumentedUser, FILE, OwnLogin, UsersDocument},
    },
    machinery::x509::CertificateDetails,
};
use rustls::{
    ClientConfig, ConfigBuilder, DigitallySignedStruct, RootCertStore, SignatureScheme,
    client::{
        WantsClientCert,
        danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    },
    crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature},
    pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime, pem::PemObject},
};
use serde_json::{Value, json};

use super::{
    bed::{Bed, condition},
    wait::until,
};

/// Limit for a change that needs no restart. Databases look at their files every few seconds.
pub(crate) const LIVE: Duration = Duration::from_secs(300);
/// Writes of a client before a change of CAs begins, and as many after it.
const WRITES: usize = 20;
/// Limit for these writes, each of which is a connection with a login.
const CLIENT: Duration = Duration::from_secs(600);
/// How soon a pilot asks for its first certificate.
const ASKS: Duration = Duration::from_secs(600);

pub(crate) fn user(name: &str, password: &str, roles: &[&str], superuser: bool) -> DocumentedUser {
    let roles = roles.iter().map(|role| (*role).to_owned()).collect();
    // Always the same for a password: the controller keeps a hash, which has a salt, while that stays.
    static HASHES: Mutex<BTreeMap<[String; 2], String>> = Mutex::new(BTreeMap::new());
    let mut hashes = HASHES.lock().unwrap();
    let hash = hashes.entry([name, password].map(str::to_owned));
    let hash = hash.or_insert_with(|| password::hash_bcrypt(password).unwrap()).clone();
    DocumentedUser { name: name.to_owned(), hash, superuser, roles }
}

/// Waits for writes that the client does beside.
async fn more_writes(when: &str, written: &AtomicUsize) {
    let wanted = written.load(Relaxed) + WRITES;
    until(&format!("{WRITES} writes {when}"), CLIENT, async || {
        let written = written.load(Relaxed);
        if written < wanted { Err(format!("{written} of {wanted}")) } else { Ok(()) }
    })
    .await;
}

/// The controller, the kubelet and a client of one node.
pub(crate) struct StandIn {
    authorities: Rc<RefCell<Authorities>>,
    name: String,
    pub(crate) address: IpAddr,
    mount: PathBuf,
}

/// The CAs of a cluster, and whom nodes and clients trust.
struct Authorities {
    internode: CertificateAuthority,
    client: CertificateAuthority,
    trust: Trust,
}

#[derive(Clone)]
struct Trust {
    internode: TrustBundle,
    client: TrustBundle,
}

impl Authorities {
    fn new(number: u8) -> Self {
        let made = |name: &str| {
            CertificateAuthority::create(&format!("{name} {number}"), Timestamp::now()).unwrap()
        };
        let (internode, client) = (made("internode"), made("client"));
        let trust = Trust { internode: internode.trust_bundle(), client: client.trust_bundle() };
        Self { internode, client, trust }
    }
}

/// What was signed for one use.
#[derive(Clone)]
pub(crate) struct SignedLeaf {
    pub(crate) leaf: CertificateDer<'static>,
    pub(crate) sha256: String,
}

pub(crate) struct SignedPair {
    pub(crate) internode: SignedLeaf,
    pub(crate) client: SignedLeaf,
}

impl StandIn {
    pub(crate) fn new(name: &str, address: IpAddr, mount: PathBuf) -> Self {
        let authorities = Rc::new(RefCell::new(Authorities::new(1)));
        Self { authorities, name: name.to_owned(), address, mount }
    }

    /// What stands beside another node of the same cluster.
    pub(crate) fn of_same_cluster(&self, name: &str, address: IpAddr, mount: PathBuf) -> Self {
        Self { authorities: self.authorities.clone(), name: name.to_owned(), address, mount }
    }

    /// The CAs that clients trust, as PEM.
    pub(crate) fn client_trust(&self) -> String {
        self.authorities.borrow().trust.client.to_pem()
    }

    /// Waits until the node accepts other nodes' certificates of just these CAs.
    async fn accepts(&self, bed: &Bed, trust: &Trust) {
        let of = |trust: &TrustBundle| json!({"trust": trust.to_pem()});
        let change = json!({
            "internodeCertificate": of(&trust.internode), "clientCertificate": of(&trust.client),
        });
        self.change(bed, change).await;
        let wanted: HashSet<String> = trust.internode.key_sha256s().into_iter().collect();
        bed.shows(&self.name, "whose certificates it accepts", LIVE, |pilot| {
            let PilotSecurityStatus { internode, stored, .. } = pilot.status.security.clone()?;
            let accepted: HashSet<String> = internode?.trust.into_iter().collect();
            let is_stored = stored? == pilot.spec.security.as_ref()?.revision();
            (accepted == wanted && is_stored).then_some(())
        })
        .await;
    }

    /// Has new CAs take the place of those of a cluster, as the controller does, beside a client that
    /// counts its writes: it has written before the change begins, and goes on after it.
    pub(crate) async fn succession(members: &[&Self], bed: &Bed, written: &AtomicUsize) {
        more_writes("before the change of CAs", written).await;
        Self::change_authorities(members, bed).await;
        more_writes("after the change of CAs", written).await;
    }

    async fn change_authorities(members: &[&Self], bed: &Bed) {
        let shared = &members[0].authorities;
        let (before, next) = (shared.borrow().trust.clone(), Authorities::new(2));
        let after = next.trust.clone();
        let both = Trust {
            internode: TrustBundle::join([&before.internode, &after.internode]).unwrap(),
            client: TrustBundle::join([&before.client, &after.client]).unwrap(),
        };
        shared.borrow_mut().trust = both.clone();
        for one in members {
            one.accepts(bed, &both).await;
        }
        *shared.borrow_mut() = Authorities { trust: both, ..next };
        for one in members {
            let request = one.standing(bed).await;
            let signed = one.sign(bed, &request).await;
            one.shows(bed, &signed, LIVE).await;
            let by = after.internode.key_sha256s();
            let pilot = bed.pilot(&one.name).await;
            let shown = pilot.status.security.and_then(|security| security.internode?.authority);
            assert_eq!(shown.as_ref(), by.first());
        }
        shared.borrow_mut().trust = after.clone();
        for one in members {
            one.accepts(bed, &after).await;
        }
    }

    /// TLS of a client that trusts the CA of clients, and compares addresses.
    pub(crate) fn client_config(&self) -> ClientConfig {
        self.trusting().with_no_client_auth()
    }

    fn trusting(&self) -> ConfigBuilder<ClientConfig, WantsClientCert> {
        let (mut roots, trust) = (RootCertStore::empty(), self.client_trust());
        let ca = CertificateDer::pem_slice_iter(trust.as_bytes());
        roots.add_parsable_certificates(ca.map(Result::unwrap));
        let provider = rustls::crypto::ring::default_provider();
        ClientConfig::builder_with_provider(provider.into())
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
    }

    pub(crate) async fn change(&self, bed: &Bed, security: Value) {
        bed.change(&self.name, json!({"security": security})).await;
    }

    /// Waits for the request, which comes before anything else can happen.
    pub(crate) async fn asked(&self, bed: &Bed) -> String {
        let asked = |pilot: &Pilot| pilot.status.security.as_ref()?.request.clone();
        let CertificateRequest { csr, reason, new_key: _ } =
            bed.shows(&self.name, "a request", ASKS, asked).await;
        assert_eq!(reason.to_string(), "First");
        csr
    }

    /// The request that always stands in the Pilot.
    pub(crate) async fn standing(&self, bed: &Bed) -> String {
        let standing = |pilot: &Pilot| pilot.status.security.as_ref()?.request.clone();
        bed.shows(&self.name, "a request", LIVE, standing).await.csr
    }

    /// Signs a request for this node, and writes that to the Pilot.
    pub(crate) async fn sign(&self, bed: &Bed, request: &str) -> SignedPair {
        let request = KeyRequest::from_pem(request).unwrap();
        let names = [self.name.clone(), "localhost".to_owned()];
        let sign = |ca: &CertificateAuthority, usage| {
            let order = LeafOrder {
                common_name: &self.name,
                dns_names: &names,
                addresses: &[self.address],
                usage,
                life: Duration::from_secs(3600),
            };
            ca.issue_certificate(&request, &order, Timestamp::now()).unwrap()
        };
        let (internode, client, change) = {
            let authorities = self.authorities.borrow();
            let Authorities { internode: between, client: clients, trust } = &*authorities;
            let internode = sign(between, CertificateUse::Internode);
            let client = sign(clients, CertificateUse::Client);
            let of = |chain: &str, trust: &TrustBundle| json!({"chain": chain, "trust": trust.to_pem(), "mountedKey": null});
            let change = json!({
                "key": {"sha256": request.key_sha256(), "volume": "v"},
                "internodeCertificate": of(&internode, &trust.internode),
                "clientCertificate": of(&client, &trust.client),
            });
            (internode, client, change)
        };
        self.change(bed, change).await;
        SignedPair { internode: leaf(&internode), client: leaf(&client) }
    }

    /// Gives the node a certificate for clients that has a key of its own, which is mounted late; and
    /// takes it away again.
    pub(crate) async fn a_certificate_is_given(&self, bed: &Bed) {
        let authority = CertificateAuthority::create("given", Timestamp::now()).unwrap();
        let key = PrivateKey::generate().unwrap();
        let request = KeyRequest::from_pem(&KeyRequest::create(&key).unwrap()).unwrap();
        let order = LeafOrder {
            common_name: "db.example.org",
            dns_names: &["db.example.org".to_owned()],
            addresses: &[],
            usage: CertificateUse::Client,
            life: Duration::from_secs(3600),
        };
        let chain = authority.issue_certificate(&request, &order, Timestamp::now()).unwrap();
        let told = json!({
            "chain": chain, "trust": authority.trust_bundle().to_pem(), "mountedKey": key.public_key_sha256(),
        });
        let before = bed.pilot(&self.name).await.status.security.unwrap().client;
        self.change(bed, json!({"clientCertificate": told})).await;
        bed.shows(&self.name, "that the key is waited for", LIVE, |pilot| {
            let (_, reason, _) = condition(pilot, "CertificatesValid")?;
            (reason == "KeyAwaited").then_some(())
        })
        .await;
        let shown = bed.pilot(&self.name).await.status.security.unwrap().client;
        assert_eq!(shown.map(|one| one.sha256), before.map(|one| one.sha256), "it goes on");
        let next = self.mount.join("next");
        fs::write(&next, key.to_pem()).unwrap();
        fs::rename(next, self.mount.join(CLIENT_KEY)).unwrap();
        let expected = leaf(&chain);
        bed.shows(&self.name, "what was given", LIVE, |pilot| {
            let (status, ..) = condition(pilot, "CertificatesValid")?;
            let shown = pilot.status.security.clone()?.client?.sha256;
            (status == "True" && shown == expected.sha256).then_some(())
        })
        .await;
        let request = self.standing(bed).await;
        let signed = self.sign(bed, &request).await;
        self.shows(bed, &signed, LIVE).await;
    }

    /// Has the node ask its clients for a certificate from its next start on. Returns the TLS of a client
    /// that has one.
    pub(crate) async fn asks_certificates(&self, bed: &Bed) -> ClientConfig {
        let authority = CertificateAuthority::create("apps", Timestamp::now()).unwrap();
        let key = PrivateKey::generate().unwrap();
        let request = KeyRequest::from_pem(&KeyRequest::create(&key).unwrap()).unwrap();
        let order = LeafOrder {
            common_name: "app",
            dns_names: &["app".to_owned()],
            addresses: &[],
            usage: CertificateUse::Internode,
            life: Duration::from_secs(3600),
        };
        let chain = authority.issue_certificate(&request, &order, Timestamp::now()).unwrap();
        let nodes = self.authorities.borrow().trust.internode.clone();
        let clients = TrustBundle::join([&authority.trust_bundle(), &nodes]).unwrap().to_pem();
        let change = json!({"clientAuth": "Required", "clientCertificate": {"clients": clients}});
        self.change(bed, change).await;
        let certificate = CertificateDer::from_pem_slice(chain.as_bytes()).unwrap();
        let key = PrivateKeyDer::from_pem_slice(key.to_pem().as_bytes()).unwrap();
        self.trusting().with_client_auth_cert(vec![certificate], key).unwrap()
    }

    /// Waits until both ports show what was signed.
    pub(crate) async fn shows(&self, bed: &Bed, signed: &SignedPair, deadline: Duration) {
        bed.shows(&self.name, "both certificates", deadline, |pilot| {
            let PilotSecurityStatus { internode, client, stored, request, .. } =
                pilot.status.security.clone()?;
            let shown = internode?.sha256 == signed.internode.sha256
                && client?.sha256 == signed.client.sha256
                && stored? == pilot.spec.security.as_ref()?.revision()
                && request?.reason == RequestReason::Standing;
            shown.then_some(())
        })
        .await;
    }

    /// Mounts users as kubelet does, and says in the Pilot that they are wanted.
    pub(crate) async fn users(&self, bed: &Bed, document: &UsersDocument) {
        self.change(bed, json!({"users": document.revision()})).await;
        self.mount(&document.to_json());
    }

    pub(crate) fn mount(&self, json: &[u8]) {
        fs::create_dir_all(&self.mount).unwrap();
        let next = self.mount.join("next");
        fs::write(&next, json).unwrap();
        fs::rename(next, self.mount.join(FILE)).unwrap();
    }

    /// Waits until the node has the users that are wanted.
    pub(crate) async fn has_users(&self, bed: &Bed) {
        bed.shows(&self.name, "the users", LIVE * 2, |pilot| {
            let (status, reason, _) = condition(pilot, "UsersApplied")?;
            let has = pilot.status.security.as_ref()?.users.clone()?;
            let wanted = pilot.spec.security.as_ref()?.users.clone()?;
            (status == "True" && reason == "UsersCurrent" && has == wanted).then_some(())
        })
        .await;
    }
}

fn leaf(chain: &str) -> SignedLeaf {
    let leaf = CertificateDer::from_pem_slice(chain.as_bytes()).unwrap();
    SignedLeaf { leaf, sha256: CertificateDetails::from_pem(chain).unwrap().sha256 }
}

/// The login of all pilots of a cluster, for a database that knows SHA-256 alone.
pub(crate) fn own_login(password: &str) -> OwnLogin {
    let hash = PasswordHashing::Sha256.hash(password).unwrap();
    OwnLogin { mark: "1a2b3c4d".to_owned(), password: password.to_owned(), hash }
}

/// TLS of somebody who takes any certificate.
pub(crate) fn trusting_anybody() -> ClientConfig {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    ClientConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()
        .unwrap()
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(Anybody(provider)))
        .with_no_client_auth()
}

#[derive(Debug)]
struct Anybody(Arc<CryptoProvider>);

impl ServerCertVerifier for Anybody {
    fn verify_server_cert(
        &self,
        _leaf: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        leaf: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, leaf, signed, &self.0.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        leaf: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, leaf, signed, &self.0.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
