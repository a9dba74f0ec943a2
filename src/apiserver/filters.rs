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
    response_body::attach_guard,
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

/// Seconds of `Retry-After` in answers of a server that cannot start before an administrator acts.
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
    /// Why the server cannot be installed before an administrator acts.
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
    pub fn instead_of_upgrades(self, advice: UpgradeAdvice) -> Self {
        Self { instead: advice, ..self }
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

    /// Sets the reason why the server cannot be installed before an administrator acts; `None`
    /// clears it.
    pub fn hold_up(&self, reason: Option<String>) {
        *self.obstacle.write().unwrap_or_else(PoisonError::into_inner) = reason;
    }

    /// Returns whether a CA verifies the client that presented `certificates`. Until the services
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
        let received_at = Timestamp::now();
        let info = Arc::new(RequestInfo::from_request(&request));
        if info.is_long_running() {
            return self.answer_request(request, info, received_at).await;
        }
        if !info.is_mutating() {
            return latency::with_account(self.answer_request(request, info, received_at)).await;
        }
        let chain = Arc::clone(self);
        let write_future = async move {
            latency::with_account(chain.answer_request(request, info, received_at)).await
        };
        let tracked_write = AssertUnwindSafe(self.writes.track_future(write_future)).catch_unwind();
        UncancellableFuture::new(tracked_write).await.unwrap_or_else(|_| {
            error!("A write ended without an answer");
            ApiError::internal_error("the request ended without an answer").into_response()
        })
    }

    /// Waits until no write is running, for at most `grace`. Call it after the last request.
    pub async fn until_written(&self, grace: Duration) {
        self.writes.close();
        if tokio::time::timeout(grace, self.writes.wait()).await.is_err() {
            warn!(running = self.writes.len(), ?grace, "Writes did not end in time");
        }
    }

    async fn answer_request(
        &self,
        mut request: Request<Body>,
        info: Arc<RequestInfo>,
        received_at: Timestamp,
    ) -> Response<Body> {
        let id = request.headers().get(AUDIT_ID).map_or_else(new_id, truncate_id);
        let warnings = Warnings::default();
        let extensions = request.extensions_mut();
        extensions.insert(Arc::clone(&info));
        extensions.insert(warnings.clone());

        let farewell = request.extensions().get::<ConnectionFarewell>().cloned();
        let incoming = IncomingRequest { info: &info, id: &id, received: received_at };
        let stranger = StrangerFarewell::new(farewell.clone());
        let mut findings = RequestFindings { recording: AuditRecording::NotYet, stranger };
        let response_future = self.within_deadline(&mut request, incoming, &mut findings);
        let mut response = match AssertUnwindSafe(response_future).catch_unwind().await {
            Ok(Ok(response)) => response,
            Ok(Err(error)) => respond_error(request.headers(), &info.query, &error),
            Err(panic) => {
                self.metrics.panics.inc();
                error!(path = info.path, verb = info.verb(), "A handler panicked");
                if let AuditRecording::Yes(audit) =
                    mem::replace(&mut findings.recording, AuditRecording::No)
                {
                    audit.record_panic(panic).await;
                }
                let text = "This request caused apiserver to panic. Look in the logs for details.";
                (StatusCode::INTERNAL_SERVER_ERROR, text).into_response()
            }
        };
        finish_response(&mut response, &id, &warnings);
        let RequestFindings { recording, stranger: _stranger } = findings;
        let response = match (recording, &self.audit) {
            (AuditRecording::Yes(audit), _) => audit.record_completion(response).await,
            (AuditRecording::NotYet, Some(trail)) => {
                match AuditedRequest::for_request(trail, incoming, &mut request, None) {
                    Some(audit) => audit.record_refusal(response).await,
                    None => response,
                }
            }
            (AuditRecording::NotYet | AuditRecording::No, _) => response,
        };
        if let Some(farewell) = farewell
            && self.goaway.is_goaway_due()
        {
            farewell.request_close();
        }
        response
    }

    async fn within_deadline(
        &self,
        request: &mut Request<Body>,
        incoming: IncomingRequest<'_>,
        findings: &mut RequestFindings,
    ) -> Result<Response<Body>, ApiError> {
        let info = incoming.info;
        if request.method() == Method::CONNECT || request.headers().contains_key(header::UPGRADE) {
            return Ok(refuse_upgrade((self.instead)(info)));
        }
        let Some(limit) = self.deadlines.limit_for(info)? else {
            return self.authenticate_and_handle(request, incoming, findings).await;
        };
        request.extensions_mut().insert(Deadline(Instant::now() + limit.after));
        let response_future = self.authenticate_and_handle(request, incoming, findings);
        if let Ok(outcome) = tokio::time::timeout(limit.after, response_future).await {
            return outcome;
        }
        self.metrics.count_termination(info, "504");
        // The error is JSON for every client, as upstream: by now the request and its `Accept`
        // header may be gone.
        Ok(ApiError::timeout(limit.message, 0).into_response())
    }

    /// Authenticates the request, and passes it on.
    async fn authenticate_and_handle(
        &self,
        request: &mut Request<Body>,
        incoming: IncomingRequest<'_>,
        findings: &mut RequestFindings,
    ) -> Result<Response<Body>, ApiError> {
        let info = incoming.info;
        if self.drain.is_triggered() && info.path == "/readyz" {
            return Ok(failed_probe_response(&["shutdown"], "readyz"));
        }
        let Some(installed) = self.installed.get() else {
            findings.stranger.keep_connection();
            return self.answer_starting(info);
        };
        let certificates = match request.extensions().get::<Peer>() {
            Some(peer) => Arc::clone(&peer.certificates),
            None => Arc::default(),
        };
        let authentication =
            installed.authenticator.authenticate(&certificates, request.headers_mut());
        let authentication_result =
            latency::measure_time(LatencyLayer::Authentication, authentication).await;
        let user = match authentication_result {
            Ok(user) => user,
            Err(CredentialError::Review(error)) if matches!(*error, TokenReviewError::Busy) => {
                return Err(self.inflight.refuse_request(info));
            }
            Err(error) => {
                debug!(error = %chain(&error), path = info.path, "Unauthorized");
                return Err(ApiError::unauthorized());
            }
        };
        // An anonymous request through a front proxy does not end the proxy's connection.
        if !user.is_anonymous() || !certificates.is_empty() {
            findings.stranger.keep_connection();
        }
        self.handle_authenticated(user, installed, request, incoming, &mut findings.recording).await
    }

    /// Takes the request of an authenticated user, or of the anonymous one, through the filters
    /// after authentication and to its handler.
    async fn handle_authenticated(
        &self,
        mut user: User,
        installed: &InstalledServices,
        request: &mut Request<Body>,
        incoming: IncomingRequest<'_>,
        recording: &mut AuditRecording,
    ) -> Result<Response<Body>, ApiError> {
        let info = incoming.info;
        let trail = self.audit.as_ref();
        let audit = trail
            .and_then(|trail| AuditedRequest::for_request(trail, incoming, request, Some(&user)));
        *recording = audit.map_or(AuditRecording::No, |audit| AuditRecording::Yes(Box::new(audit)));
        if let AuditRecording::Yes(audit) = recording {
            audit.record_arrival().await;
        }
        match ImpersonationRequest::extract_from(request.headers_mut()) {
            Ok(None) => {}
            Ok(Some(impersonation_request)) => {
                user = self
                    .impersonate_user(impersonation_request, &user, info, &installed.authorizer)
                    .await?;
                if let AuditRecording::Yes(audit) = recording {
                    audit.record_impersonation(&user);
                }
            }
            Err(missing_user) => return Ok(missing_user.response(request.uri())),
        }
        let user = &user;
        let seat = self.inflight.enter(user, info)?;
        // `beginning` is given back when this function ends, not with the response: a watch goes on
        // for long.
        let beginning = self.inflight.begin_watch(user, info)?;
        if let Some(operation) = &info.operation
            && matches!(operation.action, ResourceAction::Refused(_))
        {
            return Err(operation.method_error(&info.method));
        }
        let watch = match &beginning {
            Some(_) => Some(self.inflight.acquire_watch_seat(user, info)?),
            None => None,
        };
        let ruling = installed.authorizer.authorize(user, info);
        let ruling = latency::measure_time(LatencyLayer::Authorization, ruling).await;
        if let AuditRecording::Yes(audit) = recording {
            audit.record_authorization(ruling.decision, &ruling.reason);
        }
        ruling.outcome?;
        request.extensions_mut().insert(user.clone());
        // An apply may turn out to be a create, which is to be authorized, too.
        request.extensions_mut().insert(Arc::clone(&installed.authorizer));
        let Ok(mut response) = installed.router.clone().oneshot(mem::take(request)).await;
        if let AuditRecording::Yes(audit) = recording {
            response = audit.inspect_response(response).await;
        }
        // The seat is given back when the response's body has ended.
        Ok(match watch.or(seat) {
            Some(seat) => attach_guard(response, seat),
            None => response,
        })
    }

    /// Returns the user that the request continues as. The requesting user has a seat meanwhile, as
    /// each header may be a question to kube-apiserver.
    async fn impersonate_user(
        &self,
        impersonation_request: ImpersonationRequest,
        user: &User,
        info: &RequestInfo,
        authorizer: &Authorizer,
    ) -> Result<User, ApiError> {
        let started_at = Instant::now();
        let _seat = self.inflight.enter(user, info)?;
        let _beginning = self.inflight.begin_watch(user, info)?;
        let outcome = impersonation_request.authorize(user, authorizer).await;
        self.metrics.observe_filter("impersonation", started_at.elapsed());
        outcome
    }

    /// Answers a request before the services are installed. The answer is never 404, which clients
    /// take for "gone".
    fn answer_starting(&self, info: &RequestInfo) -> Result<Response<Body>, ApiError> {
        if info.path == "/livez" {
            return Ok((StatusCode::OK, "ok").into_response());
        }
        let obstacle = self.obstacle.read().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some(reason) = obstacle {
            return Err(ApiError::service_unavailable(reason, HELD_UP_RETRY));
        }
        match info.path.as_str() {
            "/readyz" | "/healthz" => {
                let pending_checks = self.readiness.waiting_for();
                let pending_checks =
                    if pending_checks.is_empty() { vec!["start"] } else { pending_checks };
                Ok(failed_probe_response(&pending_checks, &info.path[1..]))
            }
            _ => {
                let pending_checks = self.readiness.waiting_for().join(", ");
                let message = format!("the API server is starting; it waits for: {pending_checks}");
                Err(ApiError::service_unavailable(message, STARTING_RETRY))
            }
        }
    }
}

/// Returns the response of a failed health check, in kube-apiserver's form.
fn failed_probe_response(failed_checks: &[&str], endpoint: &str) -> Response<Body> {
    let check_lines: Vec<_> =
        failed_checks.iter().map(|name| format!("[-]{name} failed: reason withheld\n")).collect();
    let text = format!("[+]ping ok\n{}{endpoint} check failed\n", check_lines.concat());
    let nosniff = [(header::X_CONTENT_TYPE_OPTIONS, "nosniff")];
    (StatusCode::INTERNAL_SERVER_ERROR, nosniff, text).into_response()
}

/// Refuses to upgrade a connection, and ends it. Identity is per request: a connection that became
/// something else would carry the identity it began with (CVE-2018-1002105).
fn refuse_upgrade(advice: Option<&'static str>) -> Response<Body> {
    let message = advice.unwrap_or("connections are never upgraded");
    let mut response = ApiError::bad_request(message).into_response();
    response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    response
}

/// Sets the headers that every response has, and replaces a redirect by an error.
fn finish_response(response: &mut Response<Body>, id: &HeaderValue, warnings: &Warnings) {
    let status = response.status();
    if status.is_redirection() && status != StatusCode::NOT_MODIFIED {
        // Through the aggregator a redirect could send credentials elsewhere (CVE-2022-3172).
        error!(%status, "A handler tried to redirect");
        *response = ApiError::internal_error("redirects are not served").into_response();
    }
    let headers = response.headers_mut();
    headers.insert(AUDIT_ID, id.clone());
    headers.entry(header::CACHE_CONTROL).or_insert(HeaderValue::from_static("no-cache, private"));
    for value in warnings.headers() {
        headers.append(header::WARNING, value);
    }
}

/// Returns the part of an audit id that is recorded and sent back.
fn truncate_id(id: &HeaderValue) -> HeaderValue {
    let id = id.as_bytes();
    HeaderValue::from_bytes(&id[..id.len().min(LONGEST_ID)])
        .expect("it is part of a header's value")
}

fn new_id() -> HeaderValue {
    HeaderValue::from_str(&uuid::Uuid::new_v4().to_string()).expect("a UUID is visible ASCII")
}
