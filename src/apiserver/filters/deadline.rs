//! How long a request may take. Watches may take as long as they like.

use std::time::{Duration, Instant};

use crate::{
    apiserver::{
        operation::{ResourceOperation, Verb},
        request_info::RequestInfo,
        status::ApiError,
    },
    machinery::go_duration,
};

/// Time limit of a write, which is lower than that of a read, as in kube-apiserver
/// (`requestTimeoutUpperBound`).
const WRITES: Duration = Duration::from_secs(34);

/// The time at which a request is ended; kept in the request's extensions.
#[derive(Clone, Copy, Debug)]
pub struct Deadline(pub Instant);

/// The server's time limits for requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestTimeouts {
    /// Time limit of requests other than watches; `?timeout=` can make it less, and writes have at
    /// most 34 s.
    pub request: Duration,
}

impl Default for RequestTimeouts {
    fn default() -> Self {
        Self { request: Duration::from_secs(60) }
    }
}

/// The time limit of one request, and the message of the error when it is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RequestTimeLimit {
    pub(super) after: Duration,
    pub(super) message: &'static str,
}

impl RequestTimeouts {
    /// Returns the time limit of a request; `None` for a watch. Fails with 400 when `?timeout=` is
    /// no duration.
    pub(super) fn limit_for(
        &self,
        info: &RequestInfo,
    ) -> Result<Option<RequestTimeLimit>, ApiError> {
        if info.is_long_running() {
            return Ok(None);
        }
        let requested_timeout = match info.query.text("timeout") {
            "" => Duration::ZERO,
            text => go_duration::parse_duration(text).ok_or_else(|| {
                let message = format!(
                    "invalid timeout specified in the request URL - time: invalid duration {text:?}"
                );
                ApiError::bad_request(message)
            })?,
        };
        let time_limit = if requested_timeout.is_zero() {
            self.request
        } else {
            requested_timeout.min(self.request)
        };
        let is_write = matches!(
            info.operation.as_ref().and_then(ResourceOperation::verb),
            Some(Verb::Create | Verb::Update | Verb::Patch | Verb::Delete)
        );
        Ok(Some(if is_write && time_limit > WRITES {
            let message =
                "request did not complete within requested timeout - context deadline exceeded";
            RequestTimeLimit { after: WRITES, message }
        } else {
            RequestTimeLimit {
                after: time_limit,
                message: "request did not complete within the allotted timeout",
            }
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_by_verb_and_query() {
        let of = |method: &str, uri: &str| {
            let request = http::Request::builder().method(method).uri(uri).body(()).unwrap();
            RequestTimeouts::default()
                .limit_for(&RequestInfo::from_request(&request))
                .map(|limit| limit.map(|l| l.after.as_secs()))
        };
        let rows = [
            ("GET", "/apis/g/v/r", Some(60)),
            ("GET", "/apis/g/v/r?watch=1&timeout=1s", None),
            ("GET", "/apis/g/v/r?timeout=5s", Some(5)),
            ("GET", "/apis/g/v/r?timeout=0s", Some(60)),
            ("GET", "/apis/g/v/r?timeout=2h", Some(60)),
            ("POST", "/apis/g/v/r", Some(34)),
            ("PUT", "/apis/g/v/r/n?timeout=10s", Some(10)),
            ("DELETE", "/apis/g/v/r", Some(60)),
            ("POST", "/x", Some(60)),
        ];
        for (method, uri, expected) in rows {
            assert_eq!(of(method, uri).unwrap(), expected, "{method} {uri}");
        }
        assert_eq!(of("GET", "/apis/g/v/r?timeout=soon").unwrap_err().status_code(), 400);
    }
}
