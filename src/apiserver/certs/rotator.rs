//! Our own CA and leaf, kept in a Secret of the install's namespace and shared by all replicas.
//!
//! The first replica makes them; a compare-and-swap decides which replica is first. The leaf is
//! renewed after two thirds of its life, and so is the CA. The new CA is published next to the old
//! one before a leaf of it is served, unless the leaf in use has expired. A Secret that cannot be
//! used stops the start: an operator has to repair or delete it.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use jiff::Timestamp;
use k8s_openapi::{
    ByteString, api::core::v1::Secret, apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use kube::{Api, Client, api::PostParams};
use tracing::{info, warn};

use super::{
    CertificatePairError, ServingCertificate, bundle,
    issuer::{self, CertificateDetails, CertificateIssueError, CertificatePair},
};
use crate::{
    apiserver::installation::ServedApi,
    error::chain,
    machinery::served_kinds::ServedGroup,
    runtime::{Readiness, Shutdown},
};

const CA_CERTIFICATE: &str = "ca.crt";
const CA_KEY: &str = "ca.key";
const CERTIFICATE: &str = "tls.crt";
const KEY: &str = "tls.key";

/// Pause between reads of Secret and APIServices: another replica or an operator may change them.
const LATER: Duration = Duration::from_secs(15);
const SOON: Duration = Duration::from_secs(2);
const ANSWER: Duration = Duration::from_secs(10);

#[derive(Debug, thiserror::Error)]
pub enum CertificateRotatorError {
    #[error("failed to read or write Secret {secret:?}")]
    Secret { secret: &'static str, source: Box<kube::Error> },
    #[error("Secret {secret:?} could not be read or written within {ANSWER:?}")]
    Timeout { secret: &'static str },
    #[error(
        "Secret {secret:?} cannot be used; repair it, or delete it to have new certificates made"
    )]
    Unusable { secret: &'static str, source: CertificatePairError },
    #[error(
        "Secret {secret:?} has no usable {key:?}; repair it, or delete it to have new \
             certificates made"
    )]
    Part { secret: &'static str, key: &'static str },
    #[error("failed to make certificates from Secret {secret:?}")]
    Make { secret: &'static str, source: CertificateIssueError },
}

impl CertificateRotatorError {
    /// Tells whether an operator must repair the Secret.
    pub fn is_final(&self) -> bool {
        !matches!(self, Self::Secret { .. } | Self::Timeout { .. })
    }
}

/// Why certificates cannot be taken from a Secret, or made from it.
#[derive(Debug)]
enum MaterialError {
    Part { key: &'static str },
    Make(CertificateIssueError),
}

impl From<CertificateIssueError> for MaterialError {
    fn from(error: CertificateIssueError) -> Self {
        Self::Make(error)
    }
}

impl MaterialError {
    fn for_secret(self, secret: &'static str) -> CertificateRotatorError {
        match self {
            Self::Part { key } => CertificateRotatorError::Part { secret, key },
            Self::Make(source) => CertificateRotatorError::Make { secret, source },
        }
    }
}

/// The CA (its certificate may be a bundle, the one in use first) and the serving leaf.
#[derive(Clone, Debug, PartialEq, Eq)]
struct CertificateMaterial {
    ca: CertificatePair,
    leaf: CertificatePair,
}

/// Keeps the certificates of our own CA in the Secret up to date, and serves them.
pub struct CertificateRotator {
    client: Client,
    secrets: Api<Secret>,
    /// Names of the serving certificate.
    names: Vec<String>,
    /// Name of the Secret.
    secret: &'static str,
    group: &'static ServedGroup,
    serving: Arc<ServingCertificate>,
}

impl CertificateRotator {
    /// Creates the rotator for the API server's Service in `namespace`.
    pub fn new(
        api: &ServedApi,
        client: Client,
        namespace: &str,
        serving: Arc<ServingCertificate>,
    ) -> Self {
        let secrets = Api::namespaced(client.clone(), namespace);
        let names = names_of(api.names.service, namespace);
        let (secret, group) = (api.names.tls_secret, api.kinds.group());
        Self { client, secrets, names, secret, group, serving }
    }

    /// Renews and serves the certificates until shutdown. Ready once the certificate is served and
    /// the APIServices trust it.
    ///
    /// # Errors
    /// When the Secret cannot be used before a certificate of it was served.
    pub async fn run(
        self,
        readiness: &Readiness,
        shutdown: Shutdown,
    ) -> Result<(), CertificateRotatorError> {
        let mut not_ready = Some(readiness.add("certificates"));
        let mut served_material: Option<CertificateMaterial> = None;
        let mut publish_result = None;
        let mut last_error = String::new();
        loop {
            let read_result = tokio::time::timeout(ANSWER, self.ensure_material()).await;
            match read_result
                .unwrap_or(Err(CertificateRotatorError::Timeout { secret: self.secret }))
            {
                Ok(material) => {
                    let is_changed = served_material.as_ref() != Some(&material);
                    // The bundle first: kube-apiserver must not meet a leaf it cannot check.
                    publish_result = Some(self.publish_bundle(&material, &mut last_error).await);
                    let must_serve =
                        served_material.as_ref().is_none_or(|old| is_expired(&old.leaf));
                    if is_changed && (publish_result == Some(true) || must_serve) {
                        let CertificatePair { certificate, key } = &material.leaf;
                        match self.serving.set_certificate(certificate.as_bytes(), key.as_bytes()) {
                            Ok(()) => {
                                info!("Serving a certificate of our own CA");
                                served_material = Some(material);
                            }
                            Err(error) if served_material.is_none() => {
                                let secret = self.secret;
                                return Err(CertificateRotatorError::Unusable {
                                    secret,
                                    source: error,
                                });
                            }
                            Err(error) => {
                                warn!(error = %chain(&error), "Keeping the certificate in use");
                            }
                        }
                    }
                }
                Err(error) if error.is_final() && served_material.is_none() => return Err(error),
                Err(error) => warn!(error = %chain(&error), "Failed to look after certificates"),
            }
            let is_healthy = served_material.is_some() && publish_result == Some(true);
            if is_healthy {
                not_ready = None;
            }
            tokio::select! {
                () = tokio::time::sleep(if is_healthy { LATER } else { SOON }) => {}
                () = shutdown.triggered() => break,
            }
        }
        drop(not_ready);
        Ok(())
    }

    /// Writes the CA bundle to the APIServices, and tells whether they have it. A new reason why
    /// not is logged once.
    async fn publish_bundle(
        &self,
        material: &CertificateMaterial,
        last_error: &mut String,
    ) -> bool {
        let bundle_update =
            bundle::ensure_ca_bundle(&self.client, self.group, &material.ca.certificate);
        let text = match tokio::time::timeout(ANSWER, bundle_update).await {
            Ok(Ok(())) => {
                last_error.clear();
                return true;
            }
            Ok(Err(error)) => chain(&error).to_string(),
            Err(_) => "timed out".to_owned(),
        };
        if *last_error != text {
            warn!(error = text, "Failed to publish the CA bundle; trying again");
            *last_error = text;
        }
        false
    }

    /// Returns the Secret's certificates, after making or renewing what is due. When another
    /// replica wrote the Secret first, returns that replica's certificates.
    async fn ensure_material(&self) -> Result<CertificateMaterial, CertificateRotatorError> {
        let name = self.secret;
        let secret_error =
            |error| CertificateRotatorError::Secret { secret: name, source: Box::new(error) };
        loop {
            let stored_secret = self.secrets.get_opt(name).await.map_err(secret_error)?;
            let current_material = stored_secret
                .as_ref()
                .map(read_material)
                .transpose()
                .map_err(|error| error.for_secret(name))?;
            let renewed_material = renew_material(current_material.as_ref(), &self.names)
                .map_err(|error| error.for_secret(name))?;
            let Some(renewed_material) = renewed_material else {
                return Ok(current_material.expect("without material there is something to make"));
            };
            let secret = build_secret(name, stored_secret, &renewed_material);
            let write_result = if secret.metadata.resource_version.is_some() {
                self.secrets.replace(name, &PostParams::default(), &secret).await
            } else {
                self.secrets.create(&PostParams::default(), &secret).await
            };
            match write_result {
                Ok(_) => {
                    info!(secret = name, "Wrote certificates");
                    return Ok(renewed_material);
                }
                Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => {}
                Err(error) => return Err(secret_error(error)),
            }
        }
    }
}

/// Returns the certificates to write if any is missing, due for renewal, or does not cover `names`.
fn renew_material(
    current: Option<&CertificateMaterial>,
    names: &[String],
) -> Result<Option<CertificateMaterial>, MaterialError> {
    renew_at(current, names, Timestamp::now().as_second())
}

fn renew_at(
    current: Option<&CertificateMaterial>,
    names: &[String],
    now: i64,
) -> Result<Option<CertificateMaterial>, MaterialError> {
    let Some(CertificateMaterial { ca, leaf }) = current else {
        let ca = issuer::issue_ca()?;
        return Ok(Some(CertificateMaterial {
            leaf: issuer::issue_serving_certificate(&ca, names)?,
            ca,
        }));
    };
    let facts = CertificateDetails::from_pem(&ca.certificate)
        .ok_or(MaterialError::Part { key: CA_CERTIFICATE })?;
    if facts.is_due(now) {
        let mut new_ca = issuer::issue_ca()?;
        let leaf = issuer::issue_serving_certificate(&new_ca, names)?;
        if !facts.is_expired(now) {
            new_ca.certificate.push_str(first_certificate(&ca.certificate));
        }
        return Ok(Some(CertificateMaterial { ca: new_ca, leaf }));
    }
    let facts = CertificateDetails::from_pem(&leaf.certificate)
        .ok_or(MaterialError::Part { key: CERTIFICATE })?;
    if facts.is_due(now) || !facts.has_all_names(names) {
        return Ok(Some(CertificateMaterial {
            ca: ca.clone(),
            leaf: issuer::issue_serving_certificate(ca, names)?,
        }));
    }
    Ok(None)
}

/// Returns the first certificate of the bundle: the CA in use.
fn first_certificate(bundle: &str) -> &str {
    const END: &str = "-----END CERTIFICATE-----";
    bundle.find(END).map_or(bundle, |end| &bundle[..end + END.len()])
}

fn is_expired(leaf: &CertificatePair) -> bool {
    let now = Timestamp::now().as_second();
    CertificateDetails::from_pem(&leaf.certificate).is_none_or(|facts| facts.is_expired(now))
}

fn read_material(secret: &Secret) -> Result<CertificateMaterial, MaterialError> {
    let part = |key: &'static str| {
        let bytes = secret.data.as_ref().and_then(|data| data.get(key));
        let text = bytes.and_then(|ByteString(bytes)| String::from_utf8(bytes.clone()).ok());
        text.filter(|text| !text.is_empty()).ok_or(MaterialError::Part { key })
    };
    Ok(CertificateMaterial {
        ca: CertificatePair { certificate: part(CA_CERTIFICATE)?, key: part(CA_KEY)? },
        leaf: CertificatePair { certificate: part(CERTIFICATE)?, key: part(KEY)? },
    })
}

/// Builds the Secret to write: `stored_secret` with new data. Its resourceVersion makes the write a
/// compare-and-swap.
fn build_secret(
    name: &str,
    stored_secret: Option<Secret>,
    material: &CertificateMaterial,
) -> Secret {
    let CertificateMaterial { ca, leaf } = material;
    let parts = [
        (CA_CERTIFICATE, &ca.certificate),
        (CA_KEY, &ca.key),
        (CERTIFICATE, &leaf.certificate),
        (KEY, &leaf.key),
    ];
    let data: BTreeMap<String, ByteString> = parts
        .into_iter()
        .map(|(key, text)| (key.to_owned(), ByteString(text.clone().into_bytes())))
        .collect();
    let mut secret = stored_secret.unwrap_or_else(|| Secret {
        metadata: ObjectMeta { name: Some(name.to_owned()), ..ObjectMeta::default() },
        type_: Some("kubernetes.io/tls".to_owned()),
        ..Secret::default()
    });
    secret.data.get_or_insert_default().extend(data);
    secret
}

/// Returns the names of the serving certificate: those of the Service, and the local ones.
fn names_of(service: &str, namespace: &str) -> Vec<String> {
    [
        format!("{service}.{namespace}.svc"),
        format!("{service}.{namespace}.svc.cluster.local"),
        format!("{service}.{namespace}"),
        service.to_owned(),
        "localhost".to_owned(),
        "127.0.0.1".to_owned(),
    ]
    .into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn material_survives_the_secret_and_is_renewed_only_when_names_are_missing() {
        let names = names_of("example", "navigator");
        let made = renew_material(None, &names).unwrap().expect("nothing there: made");
        let read = read_material(&build_secret("example", None, &made)).unwrap();
        assert_eq!(read, made);
        assert_eq!(renew_material(Some(&read), &names).unwrap(), None);
        let renewed = renew_material(Some(&read), &names_of("example", "elsewhere"))
            .unwrap()
            .expect("other names");
        assert_eq!(renewed.ca, made.ca, "the CA stays");
        assert_ne!(renewed.leaf, made.leaf);
    }

    #[test]
    fn a_new_ca_comes_first_in_the_bundle_and_the_one_before_it_stays_while_it_is_valid() {
        let names = names_of("example", "navigator");
        let made = renew_material(None, &names).unwrap().unwrap();
        let life = CertificateDetails::from_pem(&made.ca.certificate).unwrap();
        let (due, expired) = (life.not_after - 24 * 3600, life.not_after + 1);
        let renewed = renew_at(Some(&made), &names, due).unwrap().expect("due");
        let (new, before) = renewed
            .ca
            .certificate
            .split_at(renewed.ca.certificate.len() - first_certificate(&made.ca.certificate).len());
        assert_eq!(before, first_certificate(&made.ca.certificate));
        assert_ne!(first_certificate(new), before);
        assert_ne!(renewed.ca.key, made.ca.key);
        assert_ne!(renewed.leaf, made.leaf);
        // Of the old bundle only the CA in use is kept, and not even that once it has expired.
        let again = renew_at(Some(&renewed), &names, due).unwrap().expect("due");
        assert_eq!(again.ca.certificate.matches("BEGIN CERTIFICATE").count(), 2);
        assert!(again.ca.certificate.contains(first_certificate(new)));
        let gone = renew_at(Some(&made), &names, expired).unwrap().expect("due");
        assert_eq!(gone.ca.certificate.matches("BEGIN CERTIFICATE").count(), 1);
    }

    #[test]
    fn a_damaged_secret_is_final() {
        let made = renew_material(None, &names_of("example", "navigator")).unwrap().unwrap();
        let mut secret = build_secret("example", None, &made);
        secret.data.as_mut().unwrap().remove(KEY);
        assert!(read_material(&secret).unwrap_err().for_secret("example").is_final());
    }
}
