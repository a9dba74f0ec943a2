//! Certificates for tests.

use std::time::{Duration, SystemTime};

use base64::{Engine, prelude::BASE64_STANDARD};
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

/// A CA that signs client certificates.
pub(crate) struct Ca {
    pub(crate) pem: String,
    issuer: Issuer<'static, KeyPair>,
}

/// A certificate and its key.
pub(crate) struct Identity {
    pub(crate) chain: Vec<CertificateDer<'static>>,
    key: KeyPair,
}

/// A certificate and its key as PEM.
pub(crate) struct Pem {
    pub(crate) certificate: String,
    pub(crate) key: String,
}

/// What is odd about a certificate.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Odd {
    pub(crate) expired: bool,
    pub(crate) not_yet: bool,
    pub(crate) server_only: bool,
}

impl Odd {
    fn validity(self) -> (SystemTime, SystemTime) {
        let now = SystemTime::now();
        match self {
            Self { expired: true, .. } => (now - 20 * DAY, now - 10 * DAY),
            Self { not_yet: true, .. } => (now + 10 * DAY, now + 20 * DAY),
            _ => (now - DAY, now + 10 * DAY),
        }
    }
}

const DAY: Duration = Duration::from_secs(24 * 3600);

impl Ca {
    pub(crate) fn new(name: &str) -> Self {
        Self::certified(name, KeyPair::generate().unwrap(), Odd::default())
    }

    /// A CA that has expired, or is not valid yet.
    pub(crate) fn odd(name: &str, odd: Odd) -> Self {
        Self::certified(name, KeyPair::generate().unwrap(), odd)
    }

    /// Another certificate for the key of this CA.
    pub(crate) fn renewed(&self, name: &str) -> Self {
        let key = KeyPair::try_from(self.issuer.key().serialize_der()).unwrap();
        Self::certified(name, key, Odd::default())
    }

    fn certified(name: &str, key: KeyPair, odd: Odd) -> Self {
        let mut params = named(name, &[]);
        let (from, to) = odd.validity();
        (params.not_before, params.not_after) = (from.into(), to.into());
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let pem = params.self_signed(&key).unwrap().pem();
        Self { pem, issuer: Issuer::new(params, key) }
    }

    pub(crate) fn issue(&self, name: &str, organisations: &[&str]) -> Identity {
        self.issue_odd(name, organisations, Odd::default())
    }

    /// A client certificate whose subject holds the user's uid, as Kubernetes reads it.
    pub(crate) fn issue_with_uid(&self, name: &str, uid: &str) -> Identity {
        let key = KeyPair::generate().unwrap();
        let mut params = named(name, &[]);
        let r#type = DnType::CustomDnType(vec![1, 3, 6, 1, 4, 1, 57683, 2]);
        params.distinguished_name.push(r#type, uid);
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        Identity { chain: vec![certificate.der().clone()], key }
    }

    /// A certificate for a server of these names and addresses, which may also call other servers.
    pub(crate) fn serving(&self, names: &[String]) -> Pem {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(names).unwrap();
        params.extended_key_usages =
            vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        let certificate = params.signed_by(&key, &self.issuer).unwrap().pem();
        Pem { certificate, key: key.serialize_pem() }
    }

    /// A certificate for a client that reads files.
    pub(crate) fn client(&self, name: &str, organisations: &[&str]) -> Pem {
        let key = KeyPair::generate().unwrap();
        let mut params = named(name, organisations);
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        let certificate = params.signed_by(&key, &self.issuer).unwrap().pem();
        Pem { certificate, key: key.serialize_pem() }
    }

    pub(crate) fn issue_odd(&self, name: &str, organisations: &[&str], odd: Odd) -> Identity {
        let key = KeyPair::generate().unwrap();
        let mut params = named(name, organisations);
        let (from, to) = odd.validity();
        (params.not_before, params.not_after) = (from.into(), to.into());
        params.extended_key_usages = vec![if odd.server_only {
            ExtendedKeyUsagePurpose::ServerAuth
        } else {
            ExtendedKeyUsagePurpose::ClientAuth
        }];
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        Identity { chain: vec![certificate.der().clone()], key }
    }
}

/// What the API server keeps in its Secret: a CA most of whose life is over, and a leaf of that CA.
/// Returns the Secret's data and the CA.
pub(crate) fn aging_secret(service: &str) -> (serde_json::Value, String) {
    let key = KeyPair::generate().unwrap();
    let mut params = named("aging-ca", &[]);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let now = SystemTime::now();
    (params.not_before, params.not_after) = ((now - 900 * DAY).into(), (now + 100 * DAY).into());
    let pem = params.self_signed(&key).unwrap().pem();
    let ca_key = key.serialize_pem();
    let issuer = Issuer::new(params, key);
    let leaf_key = KeyPair::generate().unwrap();
    let mut leaf = CertificateParams::new([service.to_owned()]).unwrap();
    (leaf.not_before, leaf.not_after) = ((now - DAY).into(), (now + 90 * DAY).into());
    let leaf = leaf.signed_by(&leaf_key, &issuer).unwrap().pem();
    let data = [
        ("ca.crt", pem.clone()),
        ("ca.key", ca_key),
        ("tls.crt", leaf),
        ("tls.key", leaf_key.serialize_pem()),
    ];
    let data = data.map(|(name, text)| (name.to_owned(), BASE64_STANDARD.encode(text).into()));
    (serde_json::Value::Object(data.into_iter().collect()), pem)
}

/// Bytes of the longest chain that a handshake takes, less what frames it.
const LONGEST_CHAIN: usize = 60 * 1024;

/// A chain that is expensive to verify: ten CAs of one name might have issued the leaf, and each
/// try reads as many others as fit.
pub(crate) fn maze() -> Identity {
    let key = || KeyPair::generate_for(&rcgen::PKCS_ED25519).unwrap();
    let ca = |name: &str| {
        let mut params = named(name, &[]);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        (params.clone(), params.self_signed(&key()).unwrap().der().clone())
    };
    let leaf_key = key();
    let mut leaf = named("mallory", &[]);
    leaf.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
    let (issuer, _) = ca("X");
    let leaf = leaf.signed_by(&leaf_key, &Issuer::new(issuer, key())).unwrap();
    let issuers = (0..10).map(|_| ca("X").1);
    let others = (0..240).map(|_| ca("Y").1);
    let mut left = LONGEST_CHAIN;
    let chain = std::iter::once(leaf.der().clone()).chain(issuers).chain(others);
    let chain = chain.take_while(|certificate| {
        let fits = certificate.len() <= left;
        left = left.saturating_sub(certificate.len());
        fits
    });
    Identity { chain: chain.collect(), key: leaf_key }
}

impl Identity {
    pub(crate) fn key(&self) -> PrivateKeyDer<'static> {
        PrivateKeyDer::try_from(self.key.serialize_der()).unwrap()
    }
}

fn named(name: &str, organisations: &[&str]) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name.remove(DnType::CommonName);
    if !name.is_empty() {
        params.distinguished_name.push(DnType::CommonName, name);
    }
    // rcgen keeps one value for each type; the same type under another name takes a second.
    let types = [DnType::OrganizationName, DnType::CustomDnType(vec![2, 5, 4, 10])];
    for (organisation, r#type) in organisations.iter().zip(types) {
        params.distinguished_name.push(r#type, *organisation);
    }
    params
}
