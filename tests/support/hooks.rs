//! A real HTTPS server of admission webhooks, which keeps each review that it was sent.

use std::{
    convert::Infallible,
    net::SocketAddr,
    sync::{Arc, Mutex},
    time::Duration,
};

use axum::body::{Body, Bytes};
use base64::{Engine, prelude::BASE64_STANDARD};
use http::{HeaderMap, Request, Response, StatusCode};
use http_body_util::BodyExt;
use hyper_util::rt::TokioIo;
use rustls::{
    ServerConfig,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
};
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio_rustls::TlsAcceptor;

use super::{pki::Ca, wait::until};

/// What a webhook answers to a review's `request`.
pub(crate) enum Say {
    /// The `response`; the uid is added.
    Response(Value),
    /// Another status and body.
    Other(StatusCode, Vec<u8>),
    /// No answer.
    Nothing,
    /// As `Response`, after this time.
    Late(Duration, Value),
    /// As `Response`, once this is true.
    Once(watch::Receiver<bool>, Value),
    /// As `Response`, this long after so many calls have come.
    Together(usize, Duration, Value),
}

/// Path of the webhook and `request` of the review → answer.
type Answers = dyn Fn(&str, &Value) -> Say + Send + Sync;

/// A call that came.
#[derive(Clone, Debug)]
pub(crate) struct Seen {
    pub(crate) path: String,
    pub(crate) query: String,
    pub(crate) headers: HeaderMap,
    pub(crate) review: Value,
}

impl Seen {
    pub(crate) fn request(&self) -> &Value {
        &self.review["request"]
    }
}

/// A running server; ends with the test's runtime.
#[derive(Clone)]
pub(crate) struct Hooks {
    address: SocketAddr,
    ca: String,
    seen: Arc<Mutex<Vec<Seen>>>,
}

pub(crate) fn allow() -> Say {
    Say::Response(json!({"allowed": true}))
}

/// Allows, with a JSON patch.
pub(crate) fn patch(operations: &Value) -> Say {
    let patch = BASE64_STANDARD.encode(operations.to_string());
    Say::Response(json!({"allowed": true, "patchType": "JSONPatch", "patch": patch}))
}

impl Hooks {
    pub(crate) async fn start(
        answers: impl Fn(&str, &Value) -> Say + Send + Sync + 'static,
    ) -> Self {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let ca = Ca::new("hooks");
        let pem = ca.serving(&["127.0.0.1".to_owned()]);
        let chain = CertificateDer::pem_slice_iter(pem.certificate.as_bytes());
        let config =
            ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
                .with_safe_default_protocol_versions()
                .unwrap()
                .with_no_client_auth()
                .with_single_cert(
                    chain.map(Result::unwrap).collect(),
                    PrivateKeyDer::from_pem_slice(pem.key.as_bytes()).unwrap(),
                )
                .unwrap();
        let hooks =
            Self { address: listener.local_addr().unwrap(), ca: ca.pem, seen: Arc::default() };
        let (tls, answers) = (TlsAcceptor::from(Arc::new(config)), Arc::new(answers));
        let seen = Arc::clone(&hooks.seen);
        #[expect(clippy::disallowed_methods, reason = "lives as long as the test's runtime")]
        tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let (tls, seen) = (tls.clone(), Arc::clone(&seen));
                let answers: Arc<Answers> = Arc::clone(&answers) as _;
                tokio::spawn(async move {
                    // A client that does not trust this server goes away.
                    let Ok(stream) = tls.accept(stream).await else { return };
                    let service = hyper::service::service_fn(move |request| {
                        answer(request, Arc::clone(&seen), Arc::clone(&answers))
                    });
                    let http = hyper::server::conn::http1::Builder::new();
                    drop(http.serve_connection(TokioIo::new(stream), service).await);
                });
            }
        });
        hooks
    }

    /// A webhook at this path for all writes of Pilots; `more` is merged into it.
    pub(crate) fn webhook(&self, path: &str, more: &Value) -> Value {
        let mut webhook = json!({
            "name": format!("{path}.example.org"),
            "clientConfig": {
                "url": format!("https://{}/{path}", self.address),
                "caBundle": BASE64_STANDARD.encode(&self.ca),
            },
            "rules": [{
                "operations": ["*"], "apiGroups": ["navigator.jetstack.io"],
                "apiVersions": ["v1beta1"], "resources": ["pilots", "pilots/*"],
            }],
            "sideEffects": "None",
            "admissionReviewVersions": ["v1"],
        });
        json_patch::merge(&mut webhook, more);
        webhook
    }

    /// All calls so far, in their order.
    pub(crate) fn seen(&self) -> Vec<Seen> {
        self.seen.lock().unwrap().clone()
    }

    /// Calls of one path.
    pub(crate) fn seen_at(&self, path: &str) -> Vec<Seen> {
        let path = format!("/{path}");
        self.seen().into_iter().filter(|seen| seen.path == path).collect()
    }

    pub(crate) fn forget(&self) {
        self.seen.lock().unwrap().clear();
    }

    pub(crate) async fn until_called(&self, path: &str, times: usize) {
        until("calls of a webhook", Duration::from_secs(60), async || {
            let count = self.seen_at(path).len();
            if count >= times { Ok(()) } else { Err(format!("{count} of {times}")) }
        })
        .await;
    }
}

async fn answer(
    request: Request<hyper::body::Incoming>,
    seen: Arc<Mutex<Vec<Seen>>>,
    answers: Arc<Answers>,
) -> Result<Response<Body>, Infallible> {
    let (parts, body) = request.into_parts();
    let body =
        body.collect().await.map_or_else(|_| Bytes::new(), http_body_util::Collected::to_bytes);
    let review: Value = serde_json::from_slice(&body).unwrap_or_default();
    let path = parts.uri.path().to_owned();
    let call = Seen {
        path: path.clone(),
        query: parts.uri.query().unwrap_or_default().to_owned(),
        headers: parts.headers,
        review: review.clone(),
    };
    seen.lock().unwrap().push(call);
    let respond = |response: Value| {
        let mut response = json!({
            "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response,
        });
        if response["response"]["uid"].is_null() {
            response["response"]["uid"] = review["request"]["uid"].clone();
        }
        Response::new(Body::from(response.to_string()))
    };
    Ok(match answers(path.trim_start_matches('/'), &review["request"]) {
        Say::Response(response) => respond(response),
        Say::Late(pause, response) => {
            tokio::time::sleep(pause).await;
            respond(response)
        }
        Say::Once(mut open, response) => {
            // The test holds the sender.
            drop(open.wait_for(|open| *open).await);
            respond(response)
        }
        Say::Together(calls, pause, response) => {
            while seen.lock().unwrap().len() < calls {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            tokio::time::sleep(pause).await;
            respond(response)
        }
        Say::Other(code, body) => {
            let location = format!("https://{}/elsewhere", parts.uri);
            let response = Response::builder().status(code).header("location", location);
            response.body(Body::from(body)).unwrap()
        }
        Say::Nothing => std::future::pending().await,
    })
}
