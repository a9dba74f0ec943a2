//! Calls webhooks by HTTPS and HTTP/1.1, with connections that are kept for each endpoint.
//!
//! Owns the limits of a call: time, bytes of the answer, calls at one time. Sends no credentials of
//! ours, follows no redirect, and uses no proxy.

use std::{
    collections::HashMap,
    sync::{Arc, Weak},
    time::Duration,
};

use bytes::Bytes;
use http::{Request, Response, StatusCode, Uri, header};
use http_body_util::{BodyExt, Full, LengthLimitError, Limited};
use hyper::body::Incoming;
use hyper_util::{
    client::legacy::{self, connect::HttpConnector},
    rt::{TokioExecutor, TokioTimer},
};
use k8s_openapi::api::admissionregistration::v1::{ServiceReference, WebhookClientConfig};
use kube::client::ConfigExt as _;
use rustls::pki_types::{CertificateDer, pem::PemObject};
use tokio::sync::Semaphore;
use tower::{ServiceExt as _, util::BoxCloneSyncService};

use crate::{error::chain, machinery::decode::MAX_BODY};

/// Most bytes of an answer: a patch may replace a whole object, in base64.
const LONGEST_ANSWER: usize = 2 * MAX_BODY;
/// Most calls of one endpoint at one time; further calls wait, within their own time limit.
const CALLS: usize = 64;
/// Most idle connections that are kept for an endpoint, and below for how long.
const IDLE: usize = 16;
const IDLE_TIME: Duration = Duration::from_secs(60);
/// Port of a Service that the configuration gives no port.
const PORT: u16 = 443;

/// URL of a webhook, and the CAs that verify it. Webhooks with both in common share connections.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct WebhookEndpoint {
    url: String,
    /// CA certificates as PEM; empty for the CAs that the system trusts.
    authorities: Vec<u8>,
}

/// Client of one endpoint, with its connections.
pub(super) struct WebhookClient {
    url: String,
    transport: BoxCloneSyncService<Request<Full<Bytes>>, Response<Incoming>, legacy::Error>,
    room: Semaphore,
}

/// Why a webhook gave no answer that can be used.
#[derive(Debug, thiserror::Error)]
pub(super) enum WebhookPostError {
    #[error("Post {url:?}: {}", chain(source))]
    Connect { url: String, source: legacy::Error },
    #[error("Post {url:?}: context deadline exceeded")]
    Timeout { url: String },
    #[error("the answer was cut off: {0}")]
    Cut(Box<dyn std::error::Error + Send + Sync>),
    #[error("the answer has more than {LONGEST_ANSWER} bytes")]
    TooLong,
    #[error("the server answered {0}, and redirects are not followed")]
    Redirect(StatusCode),
    #[error("the server answered {0}")]
    Status(StatusCode),
}

impl WebhookPostError {
    /// Returns the status code under which metrics count the error.
    pub(super) fn code(&self) -> u16 {
        match self {
            Self::Status(code) => code.as_u16(),
            _ => StatusCode::SERVICE_UNAVAILABLE.as_u16(),
        }
    }
}

impl WebhookEndpoint {
    pub(super) fn new(config: WebhookClientConfig) -> Result<Self, String> {
        let WebhookClientConfig { ca_bundle, service, url } = config;
        let url = match (service, url) {
            (Some(ServiceReference { name, namespace, path, port }), _) => {
                let path = path.unwrap_or_default();
                let port = port.unwrap_or_else(|| i32::from(PORT));
                format!("https://{name}.{namespace}.svc:{port}/{}", path.trim_start_matches('/'))
            }
            (None, Some(url)) => url,
            (None, None) => {
                return Err("webhook configuration must have either service or URL".to_owned());
            }
        };
        let parsed: Uri = url.parse().map_err(|error| format!("Unparsable URL: {error}"))?;
        let authority = parsed.authority().map_or("", |authority| authority.as_str());
        if parsed.scheme_str() != Some("https") || authority.is_empty() || authority.contains('@') {
            return Err(format!("{url:?} is no https URL without credentials"));
        }
        let url = format!("https://{authority}{}", parsed.path());
        Ok(Self { url, authorities: ca_bundle.unwrap_or_default().0 })
    }
}

/// Clients by endpoint. A client is dropped, with its connections, once no webhook uses it.
#[derive(Default)]
pub(super) struct WebhookClients(HashMap<WebhookEndpoint, Weak<WebhookClient>>);

impl WebhookClients {
    pub(super) fn get_or_create(
        &mut self,
        endpoint: WebhookEndpoint,
    ) -> Result<Arc<WebhookClient>, String> {
        self.0.retain(|_, client| client.strong_count() > 0);
        if let Some(client) = self.0.get(&endpoint).and_then(Weak::upgrade) {
            return Ok(client);
        }
        let client = Arc::new(WebhookClient::new(&endpoint)?);
        self.0.insert(endpoint, Arc::downgrade(&client));
        Ok(client)
    }
}

impl WebhookClient {
    fn new(endpoint: &WebhookEndpoint) -> Result<Self, String> {
        let mut authorities = Vec::new();
        for certificate in CertificateDer::pem_slice_iter(&endpoint.authorities) {
            let certificate = certificate.map_err(|error| format!("caBundle: {error}"))?;
            authorities.push(certificate.to_vec());
        }
        if authorities.is_empty() && !endpoint.authorities.is_empty() {
            return Err(
                "unable to load root certificates: unable to parse bytes as PEM block".into()
            );
        }
        let mut config = kube::Config::new(Uri::from_static("https://unused.invalid"));
        config.root_cert = (!authorities.is_empty()).then_some(authorities);
        let mut connector = HttpConnector::new();
        connector.enforce_http(false);
        connector.set_nodelay(true);
        let connector = config.rustls_https_connector_with_connector(connector);
        let connector = connector
            .map_err(|error| format!("unable to load root certificates: {}", chain(&error)))?;
        let client = legacy::Client::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(IDLE_TIME)
            .pool_max_idle_per_host(IDLE)
            .build(connector);
        let transport = BoxCloneSyncService::new(client);
        Ok(Self { url: endpoint.url.clone(), transport, room: Semaphore::new(CALLS) })
    }

    /// Posts a review and returns the answer's body, or fails after `limit`.
    pub(super) async fn post(
        &self,
        body: Bytes,
        limit: Duration,
    ) -> Result<Bytes, WebhookPostError> {
        let url = format!("{}?timeout={}s", self.url, limit.as_secs());
        let timed_out = |_| WebhookPostError::Timeout { url: url.clone() };
        tokio::time::timeout(limit, self.send_request(&url, body)).await.map_err(timed_out)?
    }

    async fn send_request(&self, url: &str, body: Bytes) -> Result<Bytes, WebhookPostError> {
        let _place = self.room.acquire().await;
        let request = Request::post(url)
            .header(header::CONTENT_TYPE, "application/json")
            .header(header::ACCEPT, "application/json, */*")
            .header(header::USER_AGENT, concat!("navigator-apiserver/", env!("CARGO_PKG_VERSION")))
            .body(Full::new(body))
            .expect("the URL was parsed when the webhook became known");
        let answer = self.transport.clone().oneshot(request).await;
        let answer =
            answer.map_err(|source| WebhookPostError::Connect { url: url.to_owned(), source })?;
        let status = answer.status();
        if status.is_redirection() {
            return Err(WebhookPostError::Redirect(status));
        }
        if !status.is_success() {
            return Err(WebhookPostError::Status(status));
        }
        let body = Limited::new(answer.into_body(), LONGEST_ANSWER).collect().await;
        body.map(http_body_util::Collected::to_bytes).map_err(|error| {
            if error.is::<LengthLimitError>() {
                WebhookPostError::TooLong
            } else {
                WebhookPostError::Cut(error)
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn endpoint(service: Option<ServiceReference>, url: Option<&str>) -> Result<String, String> {
        let url = url.map(str::to_owned);
        let config = WebhookClientConfig { ca_bundle: None, service, url };
        WebhookEndpoint::new(config).map(|endpoint| endpoint.url)
    }

    /// Name resolution, the certificate's name and the Host header follow the URL.
    #[test]
    fn a_service_is_called_by_its_name_in_the_cluster() {
        let service = |path: Option<&str>, port| ServiceReference {
            name: "hook".to_owned(),
            namespace: "db".to_owned(),
            path: path.map(str::to_owned),
            port,
        };
        let url = |path, port| endpoint(Some(service(path, port)), None).unwrap();
        assert_eq!(url(None, None), "https://hook.db.svc:443/");
        assert_eq!(url(Some("/check/all"), Some(8443)), "https://hook.db.svc:8443/check/all");
    }

    #[test]
    fn a_url_is_https_and_holds_no_credentials() {
        assert_eq!(endpoint(None, Some("https://a.b:1/c")).unwrap(), "https://a.b:1/c");
        assert_eq!(endpoint(None, Some("https://a.b")).unwrap(), "https://a.b/");
        for url in ["http://a.b/", "https://user:password@a.b/", "file:///etc/passwd", "a b", ""] {
            assert!(endpoint(None, Some(url)).is_err(), "{url}");
        }
        assert!(endpoint(None, None).is_err());
    }

    #[test]
    fn webhooks_of_one_endpoint_share_a_client_as_long_as_one_needs_it() {
        let ca = rcgen::generate_simple_self_signed(["a".to_owned()]).unwrap().cert.pem();
        let endpoint = |path: &str| WebhookEndpoint {
            url: format!("https://a{path}"),
            authorities: ca.clone().into_bytes(),
        };
        let mut clients = WebhookClients::default();
        let first = clients.get_or_create(endpoint("/")).unwrap();
        assert!(Arc::ptr_eq(&first, &clients.get_or_create(endpoint("/")).unwrap()));
        let other = clients.get_or_create(endpoint("/other")).unwrap();
        assert!(!Arc::ptr_eq(&first, &other));
        drop(first);
        drop(clients.get_or_create(endpoint("/other")).unwrap());
        assert_eq!(clients.0.len(), 1);
        let damaged = WebhookEndpoint { authorities: b"no PEM".to_vec(), ..endpoint("/") };
        assert!(clients.get_or_create(damaged).is_err());
    }
}
