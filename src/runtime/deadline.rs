//! A client whose every request ends.
//!
//! kube's own client waits for ever on a server that accepts a request and never answers. Here an
//! answer comes whole within the limit, or the request failed. Of a watch, whose body has no end,
//! only the head of the answer must come in time: kube's watcher looks after the rest.

use std::{io, time::Duration};

use http::{Request, Response, Uri};
use http_body_util::BodyExt;
use kube::{Client, client::Body};
use tokio::time::timeout;
use tower::BoxError;

/// Returns a client that sends requests by `client` and fails those that take longer than `limit`.
pub fn with_request_timeout(client: Client, limit: Duration) -> Client {
    let namespace = client.default_namespace().to_owned();
    let service = tower::service_fn(move |request| {
        let answer_future = send_request(client.clone(), request);
        async move {
            let timeout_error = |_| {
                let text = format!("no answer within {} s", limit.as_secs());
                BoxError::from(io::Error::new(io::ErrorKind::TimedOut, text))
            };
            timeout(limit, answer_future).await.map_err(timeout_error)?
        }
    });
    Client::new(service, namespace)
}

async fn send_request(client: Client, request: Request<Body>) -> Result<Response<Body>, BoxError> {
    let is_endless = is_watch(request.uri());
    let response = client.send(request).await?;
    if is_endless {
        return Ok(response);
    }
    // kube reads the whole body anyway, and without a limit of time.
    let (parts, body) = response.into_parts();
    Ok(Response::from_parts(parts, Body::from(body.collect().await?.to_bytes())))
}

fn is_watch(uri: &Uri) -> bool {
    let query = uri.query().unwrap_or_default();
    query.split('&').any(|pair| matches!(pair, "watch=true" | "watch=1"))
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use bytes::Bytes;
    use futures::{StreamExt, TryStreamExt, stream};
    use http_body_util::StreamBody;
    use hyper::body::Frame;
    use k8s_openapi::api::core::v1::ConfigMap;
    use kube::{Api, api::WatchParams};
    use tokio::time::{Instant, sleep};

    use super::*;

    const LIMIT: Duration = Duration::from_secs(30);

    /// A server that answers with these pieces of a body, each after a pause.
    fn server(before: Duration, pieces: &'static [&'static str]) -> Client {
        let service = tower::service_fn(move |_: Request<Body>| async move {
            sleep(before).await;
            let pieces = stream::iter(pieces).then(|piece| async move {
                sleep(LIMIT).await;
                Ok::<_, Infallible>(Frame::data(Bytes::from_static(piece.as_bytes())))
            });
            Ok::<_, Infallible>(Response::new(StreamBody::new(pieces)))
        });
        Client::new(service, "default")
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_that_is_not_answered_in_full_fails_in_time() {
        let silent = server(Duration::MAX, &[]);
        let halting = server(Duration::ZERO, &["{\"metadata\":", " {}}"]);
        for client in [silent, halting] {
            let begun = Instant::now();
            let api: Api<ConfigMap> = Api::default_namespaced(with_request_timeout(client, LIMIT));
            let error = api.get("a").await.unwrap_err();
            let text = crate::error::chain(&error).to_string();
            assert!(text.contains("no answer within 30 s"), "{text}");
            assert!(begun.elapsed() < 2 * LIMIT, "{:?}", begun.elapsed());
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_watch_goes_on_for_longer_and_must_begin_in_time() {
        const EVENT: &str = "{\"type\":\"ADDED\",\"object\":{\"apiVersion\":\"v1\",\
                             \"kind\":\"ConfigMap\",\"metadata\":{\"name\":\"a\"}}}\n";
        let watched = |client| async move {
            let api: Api<ConfigMap> = Api::default_namespaced(with_request_timeout(client, LIMIT));
            let events = api.watch(&WatchParams::default(), "0").await?;
            events.try_collect::<Vec<_>>().await
        };
        let begun = Instant::now();
        let events = watched(server(Duration::ZERO, &[EVENT, EVENT, EVENT])).await.unwrap();
        assert_eq!(events.len(), 3);
        assert!(begun.elapsed() >= 3 * LIMIT);
        watched(server(Duration::MAX, &[])).await.unwrap_err();
    }
}
