//! Everything between a connection and the store, in this process: filters, real handlers, an
//! embedded store and an audit trail in a file. Rights are a function of the test's.

use std::{collections::BTreeMap, net::SocketAddr, path::PathBuf, sync::Arc, time::Instant};

use axum::body::Body;
use futures::future::{BoxFuture, pending, ready};
use http::{Request, Response, StatusCode};
use http_body_util::BodyExt;
use navigator::{
    apiserver::{
        admission::{AdmissionAttributes, AdmissionPlugin},
        audit::{self, AuditLogConfig, AuditLogTarget, AuditTrail},
        authn::{Authenticator, ClusterTrust, TokenReviewError, TokenReviewer, User},
        authz::{AccessReviewer, AuthorizationDecision, Authorizer},
        capacity::CapacityBounds,
        delegate::ReviewCallError,
        filters::{FilterChain, InflightLimits, InstalledServices, RequestTimeouts},
        handlers::{AppState, build_router},
        metrics::Metrics,
        peer::{Peer, PeerCertificates},
        request_info::RequestInfo,
        role,
        status::ApiError,
        storage::{
            Storage,
            embedded::{EmbeddedStore, HistoryLimits},
        },
        store_identity::StoreGuard,
    },
    runtime::{Runtime, Shutdown},
};
use serde_json::{Value, json};
use tokio::sync::watch;

use crate::support::{
    pki::{Ca, Identity},
    server::{PATIENCE, json_lines},
};

/// May this user do that?
pub(crate) type Rights = fn(&str, &RequestInfo) -> bool;

/// A user about whose rights no review is ever answered.
pub(crate) const UNANSWERED: &str = "unanswered";

struct Rules(Rights);

impl AccessReviewer for Rules {
    fn review<'a>(
        &'a self,
        user: &'a User,
        request: &'a RequestInfo,
    ) -> BoxFuture<'a, Result<AuthorizationDecision, Arc<ReviewCallError>>> {
        if user.name == UNANSWERED {
            return Box::pin(pending());
        }
        let allowed = (self.0)(&user.name, request);
        let decision =
            if allowed { AuthorizationDecision::Allow } else { AuthorizationDecision::NoOpinion }(
                String::new(),
            );
        Box::pin(ready(Ok(decision)))
    }
}

impl TokenReviewer for Rules {
    fn review<'a>(
        &'a self,
        _: &'a str,
    ) -> BoxFuture<'a, Result<Option<User>, Arc<TokenReviewError>>> {
        Box::pin(ready(Ok(None)))
    }
}

impl AdmissionPlugin for Rules {
    fn admit<'a>(&'a self, _: AdmissionAttributes<'a>) -> BoxFuture<'a, Result<(), ApiError>> {
        Box::pin(ready(Ok(())))
    }
}

pub(crate) struct Whole {
    pub(crate) chain: Arc<FilterChain>,
    pub(crate) store: Arc<dyn Storage>,
    proxy: Identity,
    trail: PathBuf,
    rt: Runtime,
    closing: Shutdown,
    _folder: tempfile::TempDir,
}

impl Whole {
    pub(crate) async fn start(rights: Rights, limits: InflightLimits) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let store =
            EmbeddedStore::open(&folder.path().join("store"), HistoryLimits::default()).await;
        Self::over(Arc::new(store.unwrap()), folder, rights, limits).await
    }

    pub(crate) async fn over(
        store: Arc<dyn Storage>,
        folder: tempfile::TempDir,
        rights: Rights,
        limits: InflightLimits,
    ) -> Self {
        let (rt, closing) = (Runtime::new(), Shutdown::new());
        let metrics = Arc::new(Metrics::new());
        metrics.set_scheme(crate::scheme());
        metrics.register(rt.metrics());
        let trail = folder.path().join("audit.log");
        let log = Some(AuditLogConfig::new(AuditLogTarget::File(trail.clone())));
        let config = audit::Config { log, ..audit::Config::default() };
        let lines = AuditTrail::open(&config, &role::NAMES, &metrics, &rt).await.unwrap();
        let readiness = rt.readiness().clone();
        let chain = FilterChain::new(
            limits,
            RequestTimeouts::default(),
            lines,
            Arc::clone(&metrics),
            readiness,
            Shutdown::new(),
        );
        let proxies = Ca::new("proxy-ca");
        let config = [
            ("requestheader-client-ca-file", proxies.pem.as_str()),
            ("requestheader-allowed-names", r#"["front-proxy"]"#),
            ("requestheader-username-headers", r#"["X-Remote-User"]"#),
        ];
        let config: BTreeMap<_, _> =
            config.map(|(key, value)| (key.to_owned(), value.to_owned())).into();
        let trust = watch::channel(Arc::new(ClusterTrust::parse(&config).unwrap())).1;
        let rules = || Arc::new(Rules(rights));
        let admission: Arc<dyn AdmissionPlugin> = rules();
        let state = AppState::start(
            crate::scheme(),
            (&store, CapacityBounds::for_process()),
            &admission,
            StoreGuard::allow_all(),
            &metrics,
            &rt,
            &closing,
        );
        chain.install(InstalledServices {
            authenticator: Authenticator::new(trust, rules(), Arc::clone(&metrics)),
            authorizer: Authorizer::new(rules(), metrics).into(),
            router: build_router(state),
        });
        let begun = Instant::now();
        while !rt.readiness().waiting_for().is_empty() {
            let waiting = rt.readiness().waiting_for();
            assert!(begun.elapsed() < PATIENCE, "still waiting for {waiting:?}");
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
        let proxy = proxies.issue("front-proxy", &[]);
        let chain = Arc::new(chain);
        Self { chain, store, proxy, trail, rt, closing, _folder: folder }
    }

    /// A request as the front proxy sends it for `user`; as a stranger's when that is empty. A
    /// patch that names its manager is an apply.
    pub(crate) fn request(
        &self,
        user: &str,
        method: &str,
        path: &str,
        body: String,
    ) -> Request<Body> {
        let content_type = match method {
            "PATCH" if path.contains("fieldManager=") => "application/apply-patch+yaml",
            "PATCH" => "application/merge-patch+json",
            _ => "application/json",
        };
        let mut request = Request::builder()
            .method(method)
            .uri(path)
            .header("content-type", content_type)
            .body(Body::from(body))
            .unwrap();
        let stranger = user.is_empty();
        if !stranger {
            request.headers_mut().insert("x-remote-user", user.parse().unwrap());
        }
        let presented = if stranger { Vec::new() } else { self.proxy.chain.clone() };
        let certificates = Arc::new(PeerCertificates::new(presented));
        let address: SocketAddr = ([127, 0, 0, 1], 1).into();
        request.extensions_mut().insert(Peer { address, certificates });
        request
    }

    pub(crate) async fn send(
        &self,
        user: &str,
        method: &str,
        path: &str,
        body: String,
    ) -> Response<Body> {
        self.chain.handle(self.request(user, method, path, body)).await
    }

    /// Creates an object, or fails.
    pub(crate) async fn create(&self, user: &str, path: &str, object: &Value) -> Value {
        let response = self.send(user, "POST", path, object.to_string()).await;
        let status = response.status();
        let body = response.into_body().collect().await.unwrap().to_bytes();
        assert_eq!(status, StatusCode::CREATED, "{}", String::from_utf8_lossy(&body));
        serde_json::from_slice(&body).unwrap()
    }

    /// Every line of the trail, once it has this many.
    pub(crate) async fn lines(&self, lines: usize) -> Vec<Value> {
        self.trail(lines).await;
        json_lines(&self.trail)
    }

    /// `user verb path code` of each line in the trail, once it has this many.
    pub(crate) async fn trail(&self, lines: usize) -> Vec<String> {
        let begun = Instant::now();
        loop {
            let found = json_lines(&self.trail);
            if found.len() >= lines {
                return found.iter().map(describe).collect();
            }
            let shown: Vec<_> = found.iter().map(describe).collect();
            assert!(begun.elapsed() < PATIENCE, "{} of {lines} lines: {shown:#?}", found.len());
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
    }
}

fn describe(line: &Value) -> String {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let (user, verb) = (text(&line["user"]["username"]), text(&line["verb"]));
    format!("{user} {verb} {} {}", text(&line["requestURI"]), line["responseStatus"]["code"])
}

impl Drop for Whole {
    fn drop(&mut self) {
        self.closing.trigger();
        self.rt.shutdown().trigger();
    }
}

pub(crate) const BETA: &str = "/apis/navigator.jetstack.io/v1beta1";

pub(crate) fn pilot(name: &str) -> Value {
    json!({
        "apiVersion": "navigator.jetstack.io/v1beta1",
        "kind": "Pilot",
        "metadata": {"name": name},
        "spec": {"nodePool": "a"},
    })
}
