//! One request in the audit log, from its arrival to its last byte.

use std::{
    any::Any,
    mem,
    net::IpAddr,
    sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError},
};

use axum::body::Body;
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, header};
use jiff::Timestamp;
use serde_json::{Value, json, value::RawValue};

use super::{
    AuditTrail, LARGEST_OBJECT,
    body_capture::{self, BodyCapture, CapturedBody},
    event::{AuditEvent, ResponseStatus},
    policy::{AuditDecision, AuditLevel, AuditStage},
};
use crate::apiserver::{
    admission::remarks::AuditAnnotation, authn::User, latency, negotiate::SentStatus, peer::Peer,
    request_info::RequestInfo, response_body::attach_guard,
};

/// A request as it arrived, before any filter has looked at it.
#[derive(Clone, Copy)]
pub struct IncomingRequest<'a> {
    pub info: &'a RequestInfo,
    pub id: &'a HeaderValue,
    pub received: Timestamp,
}

/// What a handler learns of the request's object beyond the path: a name that the server generated,
/// or that only the body held; and admission's annotations. Kept in the extensions of a request
/// that is audited.
#[derive(Clone, Debug, Default)]
pub struct AuditSubject(Arc<SubjectRecord>);

#[derive(Debug, Default)]
struct SubjectRecord {
    named: OnceLock<ObjectIdentity>,
    annotations: Mutex<Vec<AuditAnnotation>>,
}

#[derive(Debug, Default)]
struct ObjectIdentity {
    name: String,
    uid: String,
    resource_version: String,
}

impl AuditSubject {
    /// Records the object's name, unless a name was recorded before.
    pub fn set_name(&self, name: &str) {
        drop(
            self.0.named.set(ObjectIdentity { name: name.to_owned(), ..ObjectIdentity::default() }),
        );
    }

    /// Records name, UID and resource version of the object that the client sent, unless a name was
    /// recorded before.
    pub fn set_sent(&self, object: &Value) {
        let text = |key: &str| object["metadata"][key].as_str().unwrap_or_default().to_owned();
        let (name, uid) = (text("name"), text("uid"));
        drop(self.0.named.set(ObjectIdentity {
            name,
            uid,
            resource_version: text("resourceVersion"),
        }));
    }

    /// Adds audit annotations of admission.
    pub fn add_annotations(&self, annotations: Vec<AuditAnnotation>) {
        self.annotations().extend(annotations);
    }

    fn annotations(&self) -> MutexGuard<'_, Vec<AuditAnnotation>> {
        self.0.annotations.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A request that is audited. Dropping it records its end, whether it was answered or not.
pub struct AuditedRequest {
    trail: Arc<AuditTrail>,
    decision: AuditDecision,
    event: AuditEvent,
    subject: AuditSubject,
    /// Content type and body of the request, if the level of the matching rule includes them.
    sent: Option<(HeaderMap, BodyCapture)>,
    is_long_running: bool,
    is_delete: bool,
    /// Address of an unauthenticated client: an anonymous one whose certificate no trusted CA
    /// signed.
    stranger: Option<IpAddr>,
    /// Whether the end of the request was recorded.
    ended: bool,
}

impl AuditedRequest {
    /// Begins to audit a request; `None` when the policy does not ask for it, and then nothing is
    /// copied.
    pub fn for_request(
        trail: &Arc<AuditTrail>,
        incoming: IncomingRequest<'_>,
        request: &mut Request<Body>,
        user: Option<&User>,
    ) -> Option<Self> {
        let IncomingRequest { info, id, received } = incoming;
        let decision = trail.decide(user, info);
        if decision.level == AuditLevel::None {
            return None;
        }
        let event = AuditEvent::new(request, info, user, id.as_bytes(), received, decision.level);
        let subject = AuditSubject::default();
        let is_unknown = user.is_none_or(User::is_anonymous);
        let peer = request.extensions().get::<Peer>().filter(|_| is_unknown);
        let stranger = peer.filter(|peer| !peer.certificates.is_vouched_for());
        let stranger = stranger.map(|peer| peer.address.ip());
        request.extensions_mut().insert(subject.clone());
        let sent = (decision.level >= AuditLevel::Request && info.is_mutating()).then(|| {
            let capture = BodyCapture::default();
            let body = mem::take(request.body_mut());
            *request.body_mut() = capture.wrap_body(body, LARGEST_OBJECT);
            let media_type = request.headers().get(header::CONTENT_TYPE).cloned();
            let media_type = media_type.map(|value| (header::CONTENT_TYPE, value));
            (media_type.into_iter().collect(), capture)
        });
        if decision.level == AuditLevel::RequestResponse {
            // The response is recorded as it is sent, so it must not be compressed.
            request.headers_mut().remove(header::ACCEPT_ENCODING);
        }
        Some(Self {
            trail: Arc::clone(trail),
            decision,
            event,
            subject,
            sent,
            is_long_running: info.is_long_running(),
            is_delete: info.method == Method::DELETE,
            stranger,
            ended: false,
        })
    }

    /// Records the request's arrival.
    pub async fn record_arrival(&mut self) {
        self.record_stage(AuditStage::RequestReceived).await;
    }

    /// Records the user that the request impersonates.
    pub fn record_impersonation(&mut self, user: &User) {
        self.event.set_impersonated_user(user);
    }

    /// Records the decision of authorization, `allow` or `forbid`, and its reason.
    pub fn record_authorization(&mut self, decision: Option<&str>, reason: &str) {
        if let Some(decision) = decision {
            self.event.add_annotation("authorization.k8s.io/decision", decision);
        }
        self.event.add_annotation("authorization.k8s.io/reason", reason);
    }

    /// Takes from a response what is recorded of it. Call before anything waits for its body.
    pub async fn inspect_response(&mut self, response: Response<Body>) -> Response<Body> {
        let code = response.status();
        let mut status = ResponseStatus { code: code.as_u16(), ..ResponseStatus::default() };
        let is_streaming = self.is_long_running && code.is_success();
        let may_be_status = self.is_delete || !code.is_success();
        let wants_object = self.event.level == AuditLevel::RequestResponse;
        if is_streaming || !(may_be_status || wants_object) {
            self.event.response_status = Some(status);
            return response;
        }
        let headers = response.headers().clone();
        let sent_status = response.extensions().get::<SentStatus>().cloned();
        let (captured_body, response) =
            body_capture::capture_response(response, LARGEST_OBJECT).await;
        let response_object = match (sent_status, captured_body) {
            (Some(SentStatus(text)), _) => RawValue::from_string(text).ok(),
            (None, CapturedBody::Is(bytes)) => {
                body_capture::to_json_object(&headers, bytes, self.decision.omit_managed_fields)
                    .await
            }
            (None, CapturedBody::TooLarge) => {
                if wants_object {
                    self.event.truncate();
                }
                None
            }
        };
        if let Some(parsed_status) =
            response_object.as_deref().map(RawValue::get).and_then(ResponseStatus::parse)
        {
            status = ResponseStatus { code: code.as_u16(), ..parsed_status };
        }
        self.event.response_status = Some(status);
        if wants_object {
            self.event.response_object = response_object;
        }
        response
    }

    /// Records the end of a response, or the beginning of one that streams, such as a watch's.
    pub async fn record_completion(mut self, response: Response<Body>) -> Response<Body> {
        let code = response.status().as_u16();
        // A filter may have replaced the response that was looked at.
        let is_recorded =
            self.event.response_status.as_ref().is_some_and(|status| status.code == code);
        let response = if is_recorded { response } else { self.inspect_response(response).await };
        if self.is_long_running && response.status().is_success() {
            self.record_stage(AuditStage::ResponseStarted).await;
            return attach_guard(response, self);
        }
        self.ended = true;
        self.add_latency();
        self.record_stage(AuditStage::ResponseComplete).await;
        response
    }

    /// Records a request that was answered before its user was known. Upstream's stage for such
    /// requests is ResponseStarted; where a policy leaves that out, for the sake of watches, they
    /// are recorded at ResponseComplete.
    pub async fn record_refusal(mut self, response: Response<Body>) -> Response<Body> {
        let response = self.inspect_response(response).await;
        self.ended = true;
        let is_start_recorded = !self.decision.omit.contains(AuditStage::ResponseStarted);
        let stage = if is_start_recorded {
            AuditStage::ResponseStarted
        } else {
            AuditStage::ResponseComplete
        };
        self.record_stage(stage).await;
        response
    }

    /// Records that a handler panicked.
    pub async fn record_panic(mut self, panic: Box<dyn Any + Send>) {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("unknown");
        let message = format!("APIServer panic'd: {text}");
        drop(panic);
        self.event.response_status = Some(ResponseStatus {
            status: json!("Failure"),
            message,
            reason: "InternalError".to_owned(),
            code: StatusCode::INTERNAL_SERVER_ERROR.as_u16(),
            ..ResponseStatus::default()
        });
        self.ended = true;
        self.record_stage(AuditStage::Panic).await;
    }

    async fn record_stage(&mut self, stage: AuditStage) {
        if self.decision.omit.contains(stage) {
            return;
        }
        if stage != AuditStage::RequestReceived {
            if !self.is_to_be_recorded() {
                return;
            }
            self.complete_event();
            self.add_request().await;
        }
        self.trail.record(&mut self.event, stage).await;
    }

    /// Decides whether the event is recorded. Few refusals of an unauthenticated client are; the
    /// others are counted.
    fn is_to_be_recorded(&mut self) -> bool {
        let is_client_error = |status: &ResponseStatus| (400..500).contains(&status.code);
        let is_refused = self.event.response_status.as_ref().is_some_and(is_client_error);
        let Some(address) = self.stranger.filter(|_| is_refused) else { return true };
        match self.trail.strangers.count_refusal(address) {
            None => false,
            Some(0) => true,
            Some(unrecorded) => {
                self.event.add_annotation(self.trail.unrecorded, unrecorded.to_string());
                true
            }
        }
    }

    /// Adds what became known of the object meanwhile, and admission's annotations.
    fn complete_event(&mut self) {
        let with_request = self.event.level >= AuditLevel::Request;
        for AuditAnnotation { key, value, of_request } in self.subject.annotations().drain(..) {
            if with_request || !of_request {
                self.event.add_annotation(key, value);
            }
        }
        if let Some(ObjectIdentity { name, uid, resource_version }) = self.subject.0.named.get() {
            self.event.complete_reference(name, uid, resource_version);
        }
    }

    /// Adds annotations that say where the time of a long request went.
    fn add_latency(&mut self) {
        for (key, value) in latency::latency_annotations() {
            self.event.add_annotation(key, value);
        }
    }

    async fn add_request(&mut self) {
        let Some((headers, capture)) = self.sent.take() else { return };
        match capture.captured_body() {
            CapturedBody::Is(bytes) => {
                let omit = self.decision.omit_managed_fields;
                self.event.request_object =
                    body_capture::to_json_object(&headers, bytes, omit).await;
            }
            CapturedBody::TooLarge => self.event.truncate(),
        }
    }
}

/// Records the end of a watch, whose body is dropped, or of a request whose client went away.
impl Drop for AuditedRequest {
    fn drop(&mut self) {
        if self.ended || self.decision.omit.contains(AuditStage::ResponseComplete) {
            return;
        }
        self.event.response_status.get_or_insert_with(|| ResponseStatus {
            status: json!("Success"),
            message: "Connection closed early".to_owned(),
            code: StatusCode::OK.as_u16(),
            ..ResponseStatus::default()
        });
        self.add_latency();
        // The body may not have been read to its end, so no object is added.
        self.complete_event();
        self.trail.enqueue_event(&mut self.event, AuditStage::ResponseComplete);
    }
}
