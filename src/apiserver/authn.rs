//! Authentication: by the front proxy, a client certificate or a bearer token, or anonymous.
//!
//! Owns the order of the methods, and the rule that a bad credential without a good one is an
//! error, not an anonymous user. Each request is judged by itself (invariant 8), against the CAs as
//! they are now. A connection remembers no user: of its certificates, it keeps the leaf's subject,
//! and the verdict on them until the valid CAs change or one of the certificates ends.

mod front_proxy;
mod reload;
mod token;
mod trust;
mod x509;

use std::{collections::BTreeMap, sync::Arc, time::Instant};

use http::{HeaderMap, header::AUTHORIZATION};
use tokio::sync::watch;
use tracing::{debug, warn};

pub use reload::{TrustLoadError, load_trust};
pub use token::{CachingTokenReviewer, TokenReviewError, TokenReviewer};
pub use trust::{ClusterTrust, TrustError};

use crate::{
    apiserver::{metrics::Metrics, peer::PeerCertificates},
    error::chain,
};

/// An authenticated user, as authorization, audit and admission see it. One per request, in the
/// request's extensions; never kept with a connection.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct User {
    pub name: String,
    pub uid: Option<String>,
    pub groups: Vec<String>,
    /// Keys in lower case, as `authentication.kubernetes.io/pod-name`.
    pub extra: BTreeMap<String, Vec<String>>,
}

impl User {
    pub fn in_group(&self, group: &str) -> bool {
        self.groups.iter().any(|candidate| candidate == group)
    }

    pub fn is_anonymous(&self) -> bool {
        self.name == well_known::ANONYMOUS || self.in_group(well_known::UNAUTHENTICATED)
    }

    /// Returns the first value of an extra.
    pub fn extra(&self, key: &str) -> Option<&str> {
        self.extra.get(key).and_then(|values| values.first()).map(String::as_str)
    }

    fn anonymous() -> Self {
        Self {
            name: well_known::ANONYMOUS.to_owned(),
            groups: vec![well_known::UNAUTHENTICATED.to_owned()],
            ..Self::default()
        }
    }
}

/// Groups and names that Kubernetes gives a meaning.
pub mod well_known {
    pub const ANONYMOUS: &str = "system:anonymous";
    pub const AUTHENTICATED: &str = "system:authenticated";
    pub const UNAUTHENTICATED: &str = "system:unauthenticated";
    pub const MASTERS: &str = "system:masters";
    /// Extra of a ServiceAccount token: name of the pod that the token was issued to.
    pub const POD_NAME: &str = "authentication.kubernetes.io/pod-name";
    /// Extra of a client certificate: the certificate's fingerprint.
    pub const CREDENTIAL_ID: &str = "authentication.kubernetes.io/credential-id";
}

/// Outcome of one method of authentication; `None` when the request has no credential for it.
type AuthenticationResult = Result<Option<User>, CredentialError>;

/// Why a credential is bad. The client learns only that it is unauthorized.
#[derive(Debug, thiserror::Error)]
pub enum CredentialError {
    #[error("the client certificate was not accepted as the front proxy's")]
    FrontProxyCertificate(#[source] rustls::Error),
    #[error("the front proxy's certificate has the common name {name:?}, which is not allowed")]
    FrontProxyName { name: String },
    #[error("the client certificate was not accepted")]
    ClientCertificate(#[source] rustls::Error),
    #[error("the client certificate cannot be read: {0}")]
    Unreadable(String),
    #[error("the bearer token was not accepted")]
    Token,
    #[error("failed to review the bearer token")]
    Review(#[source] Arc<TokenReviewError>),
}

/// Authenticates requests by front proxy, client certificate or bearer token.
pub struct Authenticator {
    trust: watch::Receiver<Arc<ClusterTrust>>,
    tokens: Arc<dyn TokenReviewer>,
    metrics: Arc<Metrics>,
}

impl Authenticator {
    pub fn new(
        trust: watch::Receiver<Arc<ClusterTrust>>,
        tokens: Arc<dyn TokenReviewer>,
        metrics: Arc<Metrics>,
    ) -> Self {
        Self { trust, tokens, metrics }
    }

    /// Returns the user of one request. Removes credentials and identity headers, forged ones, too,
    /// from `headers`, so that no later filter can trust them by mistake.
    pub async fn authenticate(
        &self,
        certificates: &PeerCertificates,
        headers: &mut HeaderMap,
    ) -> Result<User, CredentialError> {
        let started_at = Instant::now();
        let trust = Arc::clone(&self.trust.borrow());
        let outcome = self.try_methods(&trust, certificates, headers).await;
        front_proxy::strip_identity_headers(trust.front_proxy.as_ref(), headers);
        headers.remove(AUTHORIZATION);
        let result = match &outcome {
            Ok(user) => Ok(user.name.as_str()),
            Err(CredentialError::Review(_)) => Err("error"),
            Err(_) => Err("failure"),
        };
        self.metrics.record_authentication(result, started_at.elapsed());
        outcome.map(with_authenticated_group)
    }

    /// Returns whether any pool of CAs verifies the client that presented `certificates`.
    pub async fn vouches_for(&self, certificates: &PeerCertificates) -> bool {
        if certificates.is_empty() {
            return false;
        }
        let trust = Arc::clone(&self.trust.borrow());
        let proxies = trust.front_proxy.as_ref().map(|proxy| &proxy.pool);
        for pool in proxies.into_iter().chain(&trust.client_ca) {
            if pool.verify(certificates).await.is_ok() {
                return true;
            }
        }
        false
    }

    /// Tries each method in order. The first that finds a user wins; a bad credential counts only
    /// when none does.
    async fn try_methods(
        &self,
        trust: &ClusterTrust,
        certificates: &PeerCertificates,
        headers: &HeaderMap,
    ) -> Result<User, CredentialError> {
        let mut rejection = None;
        match by_certificate(&self.metrics, trust, certificates, headers).await {
            Ok(Some(user)) => return Ok(user),
            Ok(None) => {}
            Err(error) => rejection = Some(error),
        }
        if let Some(token) = bearer_token(headers) {
            match self.tokens.review(token).await {
                Ok(Some(user)) => return Ok(user),
                Ok(None) => rejection = Some(CredentialError::Token),
                Err(error) => {
                    if matches!(*error, TokenReviewError::Call(_)) {
                        warn!(error = %chain(&*error), "Failed to review a bearer token");
                    }
                    rejection = Some(CredentialError::Review(error));
                }
            }
        }
        rejection.map_or_else(|| Ok(User::anonymous()), Err)
    }
}

/// Returns the user that the front proxy names, or else the user of the client certificate. When
/// neither is known, the last rejection counts.
async fn by_certificate(
    metrics: &Metrics,
    trust: &ClusterTrust,
    certificates: &PeerCertificates,
    headers: &HeaderMap,
) -> AuthenticationResult {
    let proxy_result =
        front_proxy::authenticate_proxied_user(trust.front_proxy.as_ref(), certificates, headers)
            .await;
    if let Ok(Some(_)) = proxy_result {
        return proxy_result;
    }
    let (pool, remaining_validity) = (trust.client_ca.as_ref(), &metrics.client_certificates);
    let certificate_result =
        x509::authenticate_certificate(pool, certificates, remaining_validity).await;
    for error in [&proxy_result, &certificate_result]
        .into_iter()
        .filter_map(|outcome| outcome.as_ref().err())
    {
        debug!(error = %chain(error), "Client certificate rejected");
    }
    match certificate_result {
        Ok(None) => proxy_result,
        outcome => outcome,
    }
}

/// Returns the token of `Authorization: Bearer <token>`.
fn bearer_token(headers: &HeaderMap) -> Option<&str> {
    let value = headers.get(AUTHORIZATION)?.to_str().ok()?.trim();
    let (scheme, token) = value.split_once(' ')?;
    let token = token.split(' ').next()?;
    (scheme.eq_ignore_ascii_case("bearer") && !token.is_empty()).then_some(token)
}

/// Adds a user to `system:authenticated`, unless it is anonymous or in `system:unauthenticated`.
fn with_authenticated_group(mut user: User) -> User {
    let has_group =
        user.in_group(well_known::AUTHENTICATED) || user.in_group(well_known::UNAUTHENTICATED);
    if user.name != well_known::ANONYMOUS && !has_group {
        user.groups.push(well_known::AUTHENTICATED.to_owned());
    }
    user
}
