//! Asks the database beside us over HTTP, on this machine only.
//!
//! Owns the deadline of every question and the bound of every answer. Knows no database.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use http::{HeaderValue, Method, Request, StatusCode, header};
use http_body_util::{BodyExt, Full, Limited};
use hyper_rustls::HttpsConnector;
use hyper_util::{
    client::legacy::{Client as Legacy, connect::HttpConnector},
    rt::TokioExecutor,
};
use rustls::{ClientConfig, RootCertStore};
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::query_answer::{QueryAnswer, UnansweredQuery};
use crate::error::chain;

/// Longest body of an answer that is read, in bytes: shard tables of big clusters come to a few
/// MiB.
const LARGEST_ANSWER: usize = 32 << 20;

/// Why a question got no answer.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("no answer within {0:?}")]
    TimedOut(Duration),
    #[error("failed to ask {uri}")]
    Transport { uri: String, source: Box<dyn std::error::Error + Send + Sync> },
}

/// An answer. The body is `Null` when it is empty, and a string when it is no JSON.
#[derive(Debug)]
pub struct HttpAnswer {
    pub status: StatusCode,
    pub body: Value,
}

impl HttpAnswer {
    /// Reads the answer to `question` as a `T`; see [`HttpClient::query`].
    pub fn parse_body<T: DeserializeOwned>(self, question: &str) -> QueryAnswer<T> {
        let no_answer = |reason: String| QueryAnswer::Not(UnansweredQuery::new(question, reason));
        let Self { status, body } = self;
        if !status.is_success() {
            let reason = body["error"]["reason"].as_str().map(|reason| format!(": {reason}"));
            return no_answer(format!("answered {status}{}", reason.unwrap_or_default()));
        }
        match T::deserialize(body) {
            Ok(value) => QueryAnswer::Said(value),
            Err(error) => no_answer(format!("answered what is not understood: {error}")),
        }
    }
}

/// A client for one server.
#[derive(Clone, Debug)]
pub struct HttpClient {
    inner: Legacy<HttpsConnector<HttpConnector>, Full<Bytes>>,
    /// Scheme, host and port of the server: `http://127.0.0.1:8778`.
    base: String,
    authorization: Option<HeaderValue>,
}

impl HttpClient {
    /// Makes a client of a server that speaks plain HTTP.
    pub fn new(base: String, authorization: Option<HeaderValue>) -> Self {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let nothing_is_trusted = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .expect("ring's provider speaks TLS 1.2 and 1.3")
            .with_root_certificates(RootCertStore::empty())
            .with_no_client_auth();
        Self::with_tls(base, authorization, nothing_is_trusted)
    }

    /// Makes a client that speaks TLS where `base` says `https`; `tls` says whom it trusts.
    pub fn with_tls(base: String, authorization: Option<HeaderValue>, tls: ClientConfig) -> Self {
        let mut connector = HttpConnector::new();
        connector.set_connect_timeout(Some(Duration::from_secs(2)));
        connector.enforce_http(false);
        let connector = HttpsConnector::from((connector, tls));
        let inner = Legacy::builder(TokioExecutor::new())
            .pool_idle_timeout(Duration::from_secs(20))
            .pool_max_idle_per_host(2)
            .build(connector);
        Self { inner, base, authorization }
    }

    /// Sends one request and reads the whole answer within `timeout`.
    pub async fn send(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
        timeout: Duration,
    ) -> Result<HttpAnswer, Error> {
        let uri = format!("{}{path}", self.base);
        tokio::time::timeout(timeout, self.send_unlimited(method, &uri, body))
            .await
            .unwrap_or(Err(Error::TimedOut(timeout)))
    }

    /// Sends a GET and reads the answer as a `T`. An answer that is no success, or that lacks a
    /// field which `T` cannot do without, counts as not heard.
    pub async fn query<T: DeserializeOwned>(
        &self,
        path: &str,
        timeout: Duration,
    ) -> QueryAnswer<T> {
        match self.send(Method::GET, path, None, timeout).await {
            Ok(answer) => answer.parse_body(path),
            Err(error) => QueryAnswer::Not(UnansweredQuery::new(path, chain(&error).to_string())),
        }
    }

    async fn send_unlimited(
        &self,
        method: Method,
        uri: &str,
        body: Option<&Value>,
    ) -> Result<HttpAnswer, Error> {
        let transport_error = |source: Box<dyn std::error::Error + Send + Sync>| Error::Transport {
            uri: uri.to_owned(),
            source,
        };
        let mut request = Request::builder().method(method).uri(uri);
        if let Some(authorization) = &self.authorization {
            request = request.header(header::AUTHORIZATION, authorization);
        }
        let payload = body.map_or_else(Bytes::new, |body| Bytes::from(body.to_string()));
        if body.is_some() {
            request = request.header(header::CONTENT_TYPE, "application/json");
        }
        let request =
            request.body(Full::new(payload)).map_err(|error| transport_error(error.into()))?;
        let response =
            self.inner.request(request).await.map_err(|error| transport_error(error.into()))?;
        let status = response.status();
        let bytes = Limited::new(response.into_body(), LARGEST_ANSWER)
            .collect()
            .await
            .map_err(transport_error)?
            .to_bytes();
        let body = if bytes.is_empty() {
            Value::Null
        } else {
            serde_json::from_slice(&bytes)
                .unwrap_or_else(|_| Value::String(String::from_utf8_lossy(&bytes).into_owned()))
        };
        Ok(HttpAnswer { status, body })
    }
}
