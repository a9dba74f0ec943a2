//! The filters that every request passes on its way to a handler, and its response on the way back.
//!
//! Owns the order, which is kube-apiserver's: audit id, panic, request info, deadline, warnings,
//! authentication, audit, impersonation, seats in flight, authorization.
//! [`FilterChain::handle`] reads from the outside in.

mod deadline;
mod goaway;
mod impersonation;
mod inflight;
mod uncancellable_future;
mod warnings;

use std::{
    mem,
    panic::AssertUnwindSafe,
    sync::{Arc, OnceLock, PoisonError, RwLock},
    time::{Duration, Instant},
};

use axum::{Router, body::Body, response::IntoResponse};
use futures::FutureExt;
use http::{HeaderValue, Method, Request, Response, StatusCode, header};
use jiff::Timestamp;
use tokio_util::task::TaskTracker;
use tower::ServiceExt;
use tracing::{debug, error, warn};

pub use deadline::{Deadline, RequestTimeouts};
pub use goaway::{ConnectionFarewell, GoawayChance};
pub use inflight::InflightLimits;
pub use warnings::Warnings;

use self::{
    goaway::StrangerFarewell, impersonation::ImpersonationRequest, inflight::InflightRequests,
    uncancellable_future::UncancellableFuture,
};
use super::{
    audit::{AuditTrail, AuditedRequest, IncomingRequest},
    authn::{Authenticator, CredentialError, TokenReviewError, User},
    authz::Authorizer,
    latency::{self, LatencyLayer},
    metrics::Metrics,
    negotiate::respond_error,
    operation::ResourceAction,
    peer::{Peer, PeerCertificates},
    request_info::RequestInfo,
    response_body::guarded,
    status::ApiError,
};
use crate::{
    error::chain,
    runtime::{Readiness, Shutdown},
};

/// Header with a request's audit id. Clients and proxies may set it; otherwise the server makes a
/// UUID.
const AUDIT_ID: &str = "audit-id";
/// Most bytes of an audit id that are recorded and sent back. A UUID has 36.
const LONGEST_ID: usize = 64;
/// Seconds of `Retry-After` in answers that the server gives while it starts.
const STARTING_RETRY: u32 = 5;

/// Seconds of `Retry-After` in answers of a server that cannot start before a person acts.
const HELD_UP_RETRY: u32 = 30;

/// What a server needs before it can answer.
pub struct InstalledServices {
    pub authenticator: Authenticator,
    pub authorizer: Arc<Authorizer>,
    /// The router of all routes. It reads `Arc<RequestInfo>`, [`User`] and [`Warnings`] from a
    /// request's extensions.
    pub router: Router,
}

/// Returns the advice, if there is any, for a user who asked for an upgraded connection.
pub type UpgradeAdvice = fn(&RequestInfo) -> Option<&'static str>;

/// Whether a request is recorded in the audit trail.
enum AuditRecording {
    /// Not decided yet: the request's user is not known.
    NotYet,
    /// Not recorded: no rule of the audit policy asks for the request, or there is no audit trail.
    No,
    Yes(Box<AuditedRequest>),
}

/// What the filters learn about a request while they handle it.
struct RequestFindings {
    recording: AuditRecording,
    stranger: StrangerFarewell,
}

/// The filters around a router.
pub struct FilterChain {
    installed: OnceLock<InstalledServices>,
    /// Why the server cannot be installed before a person acts.
    obstacle: RwLock<Option<String>>,
    readiness: Readiness,
    drain: Shutdown,
    inflight: InflightRequests,
    deadlines: RequestTimeouts,
    goaway: GoawayChance,
    audit: Option<Arc<AuditTrail>>,
    metrics: Arc<Metrics>,
    instead: UpgradeAdvice,
    /// Tracks the running write requests, also those whose client has gone.
    writes: TaskTracker,
}

impl FilterChain {
    /// Makes a chain that answers health probes, and 503 to other requests, until
    /// [`FilterChain::install`].
    pub fn new(
        limits: InflightLimits,
        deadlines: RequestTimeouts,
        audit: Option<AuditTrail>,
        metrics: Arc<Metrics>,
        readiness: Readiness,
        drain: Shutdown,
    ) -> Self {
        let inflight = InflightRequests::new(limits, Arc::clone(&metrics));
        Self {
            installed: OnceLock::new(),
            obstacle: RwLock::default(),
            readiness,
            drain,
            inflight,
            deadlines,
            goaway: GoawayChance::default(),
            audit: audit.map(Arc::new),
            metrics,
            instead: |_| None,
            writes: TaskTracker::new(),
        }
    }

    /// Sets the advice for users who ask to upgrade a connection.
    #[must_use]
    pub fn instead_of_upgrades(self, instead: UpgradeAdvice) -> Self {
        Self { instead, ..self }
    }

    /// Sets the chance that a request ends its HTTP/2 connection.
    #[must_use]
    pub fn going_away(self, goaway: GoawayChance) -> Self {
        Self { goaway, ..self }
    }

    /// Begins to serve with the services `installed`. Later calls have no effect.
    pub fn install(&self, installed: InstalledServices) {
        drop(self.installed.set(installed));
    }

    /// Sets the reason why the server cannot be installed before a person acts; `None` clears it.
    pub fn hold_up(&self, why: Option<String>) {
        *self.obstacle.write().unwrap_or_else(PoisonError::into_inner) = why;
    }

    /// Tells whether a CA vouches for the client that presented `certificates`. Until the services
    /// are installed, any certificate counts.
    pub async fn vouches_for(&self, certificates: &PeerCertificates) -> bool {
        match self.installed.get() {
            Some(installed) => installed.authenticator.vouches_for(certificates).await,
            None => !certificates.is_empty(),
        }
    }

    /// Answers one request, also when its handler panics or takes too long.
    ///
    /// When a client goes away, the future that answers its request is dropped. A read may end so.
    /// A write goes on as a task of its own then: it keeps its seat, and its line gets into the
    /// audit trail.
    pub async fn handle(self: &Arc<Self>, request: Request<Body>) -> Response<Body> {
        let received = Timestamp::now();
        let info = Arc::new(RequestInfo::of(&request));
        if info.is_long_running() {
            return self.answer(request, info, received).await;
        }
        if !info.is_mutating() {
            return latency::accounted(self.answer(request, info, received)).await;
        }
        let chain = Arc::clone(self);
        let written =
            async move { latency::accounted(chain.answer(request, info, received)).await };
        let written = AssertUnwindSafe(self.writes.track_future(written)).catch_unwind();
        UncancellableFuture::new(written).await.unwrap_or_else(|_| {
            error!("A write ended without an answer");
            ApiError::internal("the request ended without an answer").into_response()
        })
    }

    /// Waits until no write is running, for at most `grace`. Call when no more requests come.
    pub async fn until_written(&self, grace: Duration) {
        self.writes.close();
        if tokio::time::timeout(grace, self.writes.wait()).await.is_err() {
            warn!(running = self.writes.len(), ?grace, "Writes did not end in time");
        }
    }

    async fn answer(
        &self,
        mut request: Request<Body>,
        info: Arc<RequestInfo>,
        received: Timestamp,
    ) -> Response<Body> {
        let id = request.headers().get(AUDIT_ID).map_or_else(new_id, shortened);
        let warnings = Warnings::default();
        let extensions = request.extensions_mut();
        extensions.insert(Arc::clone(&info));
        extensions.insert(warnings.clone());

        let farewell = request.extensions().get::<ConnectionFarewell>().cloned();
        let incoming = IncomingRequest { info: &info, id: &id, received };
        let stranger = StrangerFarewell::new(farewell.clone());
        let mut found = RequestFindings { recording: AuditRecording::NotYet, stranger };
        let handled = self.within_deadline(&mut request, incoming, &mut found);
        let mut response = match AssertUnwindSafe(handled).catch_unwind().await {
            Ok(Ok(response)) => response,
            Ok(Err(error)) => respond_error(request.headers(), &info.query, &error),
            Err(panic) => {
                self.metrics.panics.inc();
                error!(path = info.path, verb = info.verb(), "A handler panicked");
                if let AuditRecording::Yes(audit) =
                    mem::replace(&mut found.recording, AuditRecording::No)
                {
                    audit.panicked(panic).await;
                }
                let text = "This request caused apiserver to panic. Look in the logs for details.";
                (StatusCode::INTERNAL_SERVER_ERROR, text).into_response()
            }
        };
        finish(&mut response, &id, &warnings);
        let RequestFindings { recording, stranger: _stranger } = found;
        let response = match (recording, &self.audit) {
            (AuditRecording::Yes(audit), _) => audit.complete(response).await,
            (AuditRecording::NotYet, Some(trail)) => {
                match AuditedRequest::begin(trail, incoming, &mut request, None) {
                    Some(audit) => audit.refuse(response).await,
                    None => response,
                }
            }
            (AuditRecording::NotYet | AuditRecording::No, _) => response,
        };
        if let Some(farewell) = farewell
            && self.goaway.strikes()
        {
            farewell.say();
        }
        response
    }

    async fn within_deadline(
        &self,
        request: &mut Request<Body>,
        incoming: IncomingRequest<'_>,
        found: &mut RequestFindings,
    ) -> Result<Response<Body>, ApiError> {
        let info = incoming.info;
        if request.method() == Method::CONNECT || request.headers().contains_key(header::UPGRADE) {
            return Ok(refuse_upgrade((self.instead)(info)));
        }
        let Some(limit) = self.deadlines.of(info)? else {
            return self.authenticated(request, incoming, found).await;
        };
        request.extensions_mut().insert(Deadline(Instant::now() + limit.after));
        let handled = self.authenticated(request, incoming, found);
        if let Ok(outcome) = tokio::time::timeout(limit.after, handled).await {
            return outcome;
        }
        self.metrics.terminate(info, "504");
        // The error is JSON for every client, as upstream: by now the request and its `Accept`
        // header may be gone.
        Ok(ApiError::timeout(limit.message, 0).into_response())
    }

    /// Authenticates the request, and passes it on.
    async fn authenticated(
        &self,
        request: &mut Request<Body>,
        incoming: IncomingRequest<'_>,
        found: &mut RequestFindings,
    ) -> Result<Response<Body>, ApiError> {
        let info = incoming.info;
        if self.drain.is_triggered() && info.path == "/readyz" {
            return Ok(probe(&["shutdown"], "readyz"));
        }
        let Some(installed) = self.installed.get() else {
            found.stranger.known();
            return self.starting(info);
        };
        let certificates = match request.extensions().get::<Peer>() {
            Some(peer) => Arc::clone(&peer.certificates),
            None => Arc::default(),
        };
        let authenticated =
            installed.authenticator.authenticate(&certificates, request.headers_mut());
        let authenticated = latency::spend(LatencyLayer::Authentication, authenticated).await;
        let user = match authenticated {
            Ok(user) => user,
            Err(CredentialError::Review(error)) if matches!(*error, TokenReviewError::Busy) => {
                return Err(self.inflight.refuse(info));
            }
            Err(error) => {
                debug!(error = %chain(&error), path = info.path, "Unauthorized");
                return Err(ApiError::unauthorized());
            }
        };
        // An anonymous request through a front proxy does not end the proxy's connection.
        if !user.is_anonymous() || !certificates.is_empty() {
            found.stranger.known();
        }
        self.known(user, installed, request, incoming, &mut found.recording).await
    }

    /// Takes the request of an authenticated user, or of the anonymous one, through the filters
    /// after authentication and to its handler.
    async fn known(
        &self,
        mut user: User,
        installed: &InstalledServices,
        request: &mut Request<Body>,
        incoming: IncomingRequest<'_>,
        recording: &mut AuditRecording,
    ) -> Result<Response<Body>, ApiError> {
        let info = incoming.info;
        let trail = self.audit.as_ref();
        let audit =
            trail.and_then(|trail| AuditedRequest::begin(trail, incoming, request, Some(&user)));
        *recording = audit.map_or(AuditRecording::No, |audit| AuditRecording::Yes(Box::new(audit)));
        if let AuditRecording::Yes(audit) = recording {
            audit.received().await;
        }
        match ImpersonationRequest::take(request.headers_mut()) {
            Ok(None) => {}
            Ok(Some(wanted)) => {
                user = self.impersonated(wanted, &user, info, &installed.authorizer).await?;
                if let AuditRecording::Yes(audit) = recording {
                    audit.impersonates(&user);
                }
            }
            Err(nobody) => return Ok(nobody.response(request.uri())),
        }
        let user = &user;
        let seat = self.inflight.enter(user, info)?;
        // `beginning` is given back when this function ends, not with the response: a watch goes on
        // for long.
        let beginning = self.inflight.begin_watch(user, info)?;
        if let Some(operation) = &info.operation
            && matches!(operation.action, ResourceAction::Refused(_))
        {
            return Err(operation.refusal(&info.method));
        }
        let watch = match &beginning {
            Some(_) => Some(self.inflight.watch(user, info)?),
            None => None,
        };
        let ruling = installed.authorizer.authorize(user, info);
        let ruling = latency::spend(LatencyLayer::Authorization, ruling).await;
        if let AuditRecording::Yes(audit) = recording {
            audit.authorized(ruling.decision, &ruling.reason);
        }
        ruling.outcome?;
        request.extensions_mut().insert(user.clone());
        // An apply may turn out to be a create, which is to be authorized, too.
        request.extensions_mut().insert(Arc::clone(&installed.authorizer));
        let Ok(mut response) = installed.router.clone().oneshot(mem::take(request)).await;
        if let AuditRecording::Yes(audit) = recording {
            response = audit.look_at(response).await;
        }
        // The seat is given back when the response's body has ended.
        Ok(match watch.or(seat) {
            Some(seat) => guarded(response, seat),
            None => response,
        })
    }

    /// Returns the user as whom the request goes on. The requesting user has a seat meanwhile, as
    /// each header may be a question to kube-apiserver.
    async fn impersonated(
        &self,
        wanted: ImpersonationRequest,
        user: &User,
        info: &RequestInfo,
        authorizer: &Authorizer,
    ) -> Result<User, ApiError> {
        let began = Instant::now();
        let _seat = self.inflight.enter(user, info)?;
        let _beginning = self.inflight.begin_watch(user, info)?;
        let outcome = wanted.authorize(user, authorizer).await;
        self.metrics.filter("impersonation", began.elapsed());
        outcome
    }

    /// Answers a request before the services are installed. The answer is never 404, which clients
    /// take for "gone".
    fn starting(&self, info: &RequestInfo) -> Result<Response<Body>, ApiError> {
        if info.path == "/livez" {
            return Ok((StatusCode::OK, "ok").into_response());
        }
        let obstacle = self.obstacle.read().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some(why) = obstacle {
            return Err(ApiError::unavailable(why, HELD_UP_RETRY));
        }
        match info.path.as_str() {
            "/readyz" | "/healthz" => {
                let waiting = self.readiness.waiting_for();
                let waiting = if waiting.is_empty() { vec!["start"] } else { waiting };
                Ok(probe(&waiting, &info.path[1..]))
            }
            _ => {
                let waiting = self.readiness.waiting_for().join(", ");
                let message = format!("the API server is starting; it waits for: {waiting}");
                Err(ApiError::unavailable(message, STARTING_RETRY))
            }
        }
    }
}

/// Returns the response of a failed health check, in kube-apiserver's form.
fn probe(failed: &[&str], endpoint: &str) -> Response<Body> {
    let failed: Vec<_> =
        failed.iter().map(|name| format!("[-]{name} failed: reason withheld\n")).collect();
    let text = format!("[+]ping ok\n{}{endpoint} check failed\n", failed.concat());
    let nosniff = [(header::X_CONTENT_TYPE_OPTIONS, "nosniff")];
    (StatusCode::INTERNAL_SERVER_ERROR, nosniff, text).into_response()
}

/// Refuses to upgrade a connection, and ends it. Identity is per request: a connection that became
/// something else would carry the identity it began with (CVE-2018-1002105).
fn refuse_upgrade(instead: Option<&'static str>) -> Response<Body> {
    let why = instead.unwrap_or("connections are never upgraded");
    let mut response = ApiError::bad_request(why).into_response();
    response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    response
}

/// Sets the headers that every response has, and replaces a redirect by an error.
fn finish(response: &mut Response<Body>, id: &HeaderValue, warnings: &Warnings) {
    let status = response.status();
    if status.is_redirection() && status != StatusCode::NOT_MODIFIED {
        // Through the aggregator a redirect could send credentials elsewhere (CVE-2022-3172).
        error!(%status, "A handler tried to redirect");
        *response = ApiError::internal("redirects are not served").into_response();
    }
    let headers = response.headers_mut();
    headers.insert(AUDIT_ID, id.clone());
    headers.entry(header::CACHE_CONTROL).or_insert(HeaderValue::from_static("no-cache, private"));
    for value in warnings.headers() {
        headers.append(header::WARNING, value);
    }
}

/// Returns the part of an audit id that is recorded and sent back.
fn shortened(id: &HeaderValue) -> HeaderValue {
    let id = id.as_bytes();
    HeaderValue::from_bytes(&id[..id.len().min(LONGEST_ID)])
        .expect("it is part of a header's value")
}

fn new_id() -> HeaderValue {
    HeaderValue::from_str(&uuid::Uuid::new_v4().to_string()).expect("a UUID is visible ASCII")
}
