//! Requests to kube-apiserver and what its answers mean.
//!
//! Owns paths, time limits and statuses. Only a request that was certainly not carried out is sent
//! again.

use std::time::Duration;

use bytes::Bytes;
use http::{Method, Request, StatusCode, header};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use kube::client::Body;
use serde::Deserialize;
use serde_json::Value;
use tokio::time::{Instant, sleep, timeout_at};

use super::{
    super::{Error, Result, Revision},
    KubernetesStore,
    object::parse_revision,
};

const JSON: &str = "application/json";
/// Accepted form of the answer to a write: only the revision of the object that was written is of
/// interest.
const METADATA: &str =
    "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json";
/// Longest pause before kube-apiserver is asked again when it is too busy.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// An answer of kube-apiserver.
pub(super) struct KubernetesResponse {
    pub(super) status: StatusCode,
    pub(super) body: Bytes,
}

/// Kubernetes' `Status`, as far as it is read.
#[derive(Default, Deserialize)]
pub(super) struct StatusMessage {
    #[serde(default)]
    pub(super) message: String,
}

impl KubernetesResponse {
    /// Returns the body of a successful answer, or the error of another one.
    pub(super) fn decode_body<T: for<'a> Deserialize<'a>>(&self) -> Result<T> {
        if !self.status.is_success() {
            return Err(self.to_error());
        }
        serde_json::from_slice(&self.body).map_err(unavailable_error)
    }

    /// Returns the revision of the object that was written.
    pub(super) fn revision(&self) -> Result<Revision> {
        let object: Value = self.decode_body()?;
        parse_revision(object["metadata"]["resourceVersion"].as_str().unwrap_or_default())
    }

    /// Returns the error of an unsuccessful answer, where no caller knows better. `oldest` in
    /// `Compacted` is what kube-apiserver says, or 0; `asked`, and the size in `TooLarge`, are the
    /// caller's to fill in.
    pub(super) fn to_error(&self) -> Error {
        let status_message = serde_json::from_slice(&self.body).unwrap_or_else(|_| StatusMessage {
            message: String::from_utf8_lossy(&self.body[..self.body.len().min(200)]).into_owned(),
        });
        response_error(self.status, &status_message.message)
    }
}

pub(super) fn response_error(status: StatusCode, message: &str) -> Error {
    if status == StatusCode::GONE {
        return Error::Compacted { asked: Revision(0), oldest: parse_oldest(message) };
    }
    let too_large = ["request is too large", "larger than max", "Request entity too large"];
    if status == StatusCode::PAYLOAD_TOO_LARGE || too_large.iter().any(|t| message.contains(t)) {
        return Error::TooLarge { size: 0 };
    }
    let source = format!("kube-apiserver answered {status}: {}", message.trim());
    Error::Unavailable { source: source.into() }
}

/// Reads the oldest revision that a watch may begin at: 12 in `too old resource version: 5 (12)`. 0
/// where that is not said.
fn parse_oldest(message: &str) -> Revision {
    let number = message.rsplit_once('(').and_then(|(_, rest)| rest.split_once(')'));
    Revision(number.and_then(|(number, _)| number.parse().ok()).unwrap_or_default())
}

pub(super) fn unavailable_error(
    source: impl Into<Box<dyn std::error::Error + Send + Sync>>,
) -> Error {
    Error::Unavailable { source: source.into() }
}

impl KubernetesStore {
    pub(super) async fn read_path(
        &self,
        path: &str,
        limit: Duration,
    ) -> Result<KubernetesResponse> {
        self.send_request(Method::GET, path, JSON, None, limit).await
    }

    /// Reads a path; `None` as soon as the answer turns out to have more than `max_bytes` bytes.
    pub(super) async fn read_at_most(
        &self,
        path: &str,
        limit: Duration,
        max_bytes: Option<usize>,
    ) -> Result<Option<KubernetesResponse>> {
        self.send_limited((Method::GET, path), JSON, None, limit, max_bytes).await
    }

    pub(super) async fn send_write(
        &self,
        method: Method,
        path: &str,
        object: &Value,
    ) -> Result<KubernetesResponse> {
        let limit = super::ANSWER_WITHIN;
        self.send_request(method, path, METADATA, Some(object.to_string().into()), limit).await
    }

    /// Sends a request, and again as long as kube-apiserver says that it is too busy to begin.
    pub(super) async fn send_request(
        &self,
        method: Method,
        path: &str,
        accept: &str,
        body: Option<Bytes>,
        limit: Duration,
    ) -> Result<KubernetesResponse> {
        let answer = self.send_limited((method, path), accept, body, limit, None).await?;
        answer.ok_or_else(|| unavailable_error("kube-apiserver's answer has no end"))
    }

    async fn send_limited(
        &self,
        (method, path): (Method, &str),
        accept: &str,
        body: Option<Bytes>,
        limit: Duration,
        max_bytes: Option<usize>,
    ) -> Result<Option<KubernetesResponse>> {
        let deadline = Instant::now() + limit;
        let timeout_error =
            || unavailable_error(format!("kube-apiserver did not answer within {limit:?}"));
        loop {
            let attempt = async {
                let _turn = self.shared.turns.acquire().await.map_err(unavailable_error)?;
                let request = self.build_request(&method, path, accept, body.clone())?;
                let response = self.client.send(request).await.map_err(unavailable_error)?;
                let pause = response.headers().get(header::RETRY_AFTER).cloned();
                let status = response.status();
                let body = Limited::new(response.into_body(), max_bytes.unwrap_or(usize::MAX));
                let body = match body.collect().await {
                    Ok(body) => Some(body.to_bytes()),
                    Err(error) if error.is::<LengthLimitError>() => None,
                    Err(error) => return Err(unavailable_error(error)),
                };
                Ok((body.map(|body| KubernetesResponse { status, body }), pause))
            };
            let (answer, pause) =
                timeout_at(deadline, attempt).await.map_err(|_| timeout_error())??;
            let Some(answer) = answer else { return Ok(None) };
            if answer.status != StatusCode::TOO_MANY_REQUESTS {
                return Ok(Some(answer));
            }
            let pause = pause.and_then(|text| text.to_str().ok()?.parse().ok());
            let pause = pause.map_or(LONGEST_PAUSE, Duration::from_secs).min(LONGEST_PAUSE);
            if Instant::now() + pause >= deadline {
                return Err(answer.to_error());
            }
            sleep(pause).await;
        }
    }

    pub(super) fn build_request(
        &self,
        method: &Method,
        path: &str,
        accept: &str,
        body: Option<Bytes>,
    ) -> Result<Request<Body>> {
        let content_type =
            if *method == Method::PATCH { "application/merge-patch+json" } else { JSON };
        let request = Request::builder().method(method).uri(format!("{}{path}", self.base));
        let request =
            request.header(header::ACCEPT, accept).header(header::CONTENT_TYPE, content_type);
        let body = body.map_or_else(Body::empty, |body| Body::from(body.to_vec()));
        request.body(body).map_err(unavailable_error)
    }
}

/// Escapes a text for a query: all but letters, digits and `-._~`.
pub(super) fn escape_query(text: &str) -> String {
    let is_unreserved = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~".contains(&byte);
    text.bytes()
        .map(|byte| {
            if is_unreserved(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_revision_of_a_watch_is_read_from_the_refusal() {
        assert_eq!(parse_oldest("too old resource version: 5 (12)"), Revision(12));
        assert_eq!(
            parse_oldest("The resourceVersion for the provided list is too old."),
            Revision(0)
        );
    }
}
