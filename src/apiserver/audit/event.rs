//! One event of the audit log: an Event of `audit.k8s.io/v1`, its fields in Go's order.

use std::{borrow::Cow, collections::BTreeMap, fmt::Write as _};

use bytes::Bytes;
use http::{HeaderMap, Request, header};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::{Value, value::RawValue};

use super::policy::{AuditLevel, AuditStage};
use crate::apiserver::{authn::User, peer::Peer, request_info::RequestInfo};

/// Most bytes of a User-Agent header that are kept.
const LONGEST_AGENT: usize = 1024;
/// Most bytes that are kept of other texts that a client chooses.
const LONGEST_TEXT: usize = 2048;
/// Most bytes of an object's name that are kept: twice as long as Kubernetes allows.
const LONGEST_NAME: usize = 512;
/// Most addresses of the X-Forwarded-For headers that are kept.
const PROXIES: usize = 32;
/// Annotation of an event whose objects were too large to be recorded.
const TRUNCATED: &str = "audit.k8s.io/truncated";

#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct AuditEvent {
    kind: &'static str,
    api_version: &'static str,
    pub(super) level: AuditLevel,
    #[serde(rename = "auditID")]
    audit_id: String,
    stage: AuditStage,
    #[serde(rename = "requestURI")]
    request_uri: String,
    verb: String,
    user: AuditUser,
    #[serde(skip_serializing_if = "Option::is_none")]
    impersonated_user: Option<AuditUser>,
    #[serde(rename = "sourceIPs", skip_serializing_if = "Vec::is_empty")]
    source_ips: Vec<String>,
    #[serde(skip_serializing_if = "String::is_empty")]
    user_agent: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    object_ref: Option<ObjectReference>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) response_status: Option<ResponseStatus>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) request_object: Option<Box<RawValue>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) response_object: Option<Box<RawValue>>,
    request_received_timestamp: String,
    stage_timestamp: String,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    annotations: BTreeMap<Cow<'static, str>, String>,
}

#[derive(Clone, Debug, Default, Serialize)]
struct AuditUser {
    #[serde(skip_serializing_if = "String::is_empty")]
    username: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    uid: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    groups: Vec<String>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    extra: BTreeMap<String, Vec<String>>,
}

/// The object that a request is about. Fields that the path does not have may come from the body.
#[derive(Clone, Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ObjectReference {
    #[serde(skip_serializing_if = "String::is_empty")]
    resource: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    namespace: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    name: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    uid: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    api_group: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    api_version: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    resource_version: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    subresource: String,
}

/// The response's code, with the fields of the `metav1.Status` that the client was sent, if any.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub(super) struct ResponseStatus {
    #[serde(default, skip_deserializing)]
    pub(super) metadata: EmptyMetadata,
    #[serde(default, skip_serializing)]
    pub(super) kind: String,
    #[serde(default, skip_serializing_if = "Value::is_null")]
    pub(super) status: Value,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(super) message: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(super) reason: String,
    #[serde(default, skip_serializing_if = "Value::is_null")]
    pub(super) details: Value,
    #[serde(default)]
    pub(super) code: u16,
}

#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(super) struct EmptyMetadata {}

impl ResponseStatus {
    /// Reads the Status of a response body; `None` when the body is not a Status.
    pub(super) fn parse(body: &str) -> Option<Self> {
        let parse_result = serde_json::from_str(body).ok();
        let status = parse_result.filter(|status: &Self| status.kind == "Status")?;
        let Self { message, mut details, .. } = status;
        if details.to_string().len() > LONGEST_TEXT {
            // Long details are dropped: the message has the same facts, as far as there is room.
            details = Value::Null;
        }
        Some(Self { message: truncate_text(&message, LONGEST_TEXT), details, ..status })
    }
}

impl AuditEvent {
    pub(super) fn new<B>(
        request: &Request<B>,
        info: &RequestInfo,
        user: Option<&User>,
        id: &[u8],
        received_at: Timestamp,
        level: AuditLevel,
    ) -> Self {
        let headers = request.headers();
        let peer = request.extensions().get::<Peer>();
        Self {
            kind: "Event",
            api_version: "audit.k8s.io/v1",
            level,
            audit_id: String::from_utf8_lossy(id).into_owned(),
            stage: AuditStage::RequestReceived,
            request_uri: truncate_text(
                request.uri().path_and_query().map_or("", |uri| uri.as_str()),
                LONGEST_TEXT,
            ),
            verb: truncate_text(&info.verb(), LONGEST_TEXT),
            user: user.map(build_audit_user).unwrap_or_default(),
            impersonated_user: None,
            source_ips: source_ips(headers, peer),
            user_agent: user_agent(headers),
            object_ref: info.operation.as_ref().map(|operation| ObjectReference {
                resource: truncate_text(&operation.resource, LONGEST_NAME),
                namespace: truncate_text(&operation.namespace, LONGEST_NAME),
                name: truncate_text(&operation.name, LONGEST_NAME),
                api_group: truncate_text(&operation.group, LONGEST_NAME),
                api_version: truncate_text(&operation.version, LONGEST_NAME),
                subresource: truncate_text(&operation.subresource, LONGEST_NAME),
                ..ObjectReference::default()
            }),
            response_status: None,
            request_object: None,
            response_object: None,
            request_received_timestamp: format_micros(received_at),
            stage_timestamp: String::new(),
            annotations: BTreeMap::new(),
        }
    }

    pub(super) fn set_impersonated_user(&mut self, user: &User) {
        self.impersonated_user = Some(build_audit_user(user));
    }

    pub(super) fn add_annotation(
        &mut self,
        key: impl Into<Cow<'static, str>>,
        value: impl AsRef<str>,
    ) {
        self.annotations.insert(key.into(), truncate_text(value.as_ref(), LONGEST_TEXT));
    }

    /// Adds the object's name, UID and resource version where the path did not have them.
    pub(super) fn complete_reference(&mut self, name: &str, uid: &str, resource_version: &str) {
        let Some(reference) = &mut self.object_ref else { return };
        for (field, value) in [
            (&mut reference.name, name),
            (&mut reference.uid, uid),
            (&mut reference.resource_version, resource_version),
        ] {
            if field.is_empty() {
                *field = truncate_text(value, LONGEST_NAME);
            }
        }
    }

    /// Drops the objects, and marks the event as truncated.
    pub(super) fn truncate(&mut self) {
        self.request_object = None;
        self.response_object = None;
        self.annotations.insert(TRUNCATED.into(), "true".to_owned());
    }

    /// Encodes the event as a line, for `stage` and stamped with the current time.
    pub(super) fn encode(&mut self, stage: AuditStage) -> Bytes {
        self.stage = stage;
        self.stage_timestamp = format_micros(Timestamp::now());
        let mut line = serde_json::to_vec(self).expect("an event has string keys only");
        line.push(b'\n');
        line.into()
    }
}

fn build_audit_user(user: &User) -> AuditUser {
    let User { name, uid, groups, extra } = user;
    AuditUser {
        username: name.clone(),
        uid: uid.clone(),
        groups: groups.clone(),
        extra: extra.clone(),
    }
}

fn user_agent(headers: &HeaderMap) -> String {
    let agent = headers
        .get(header::USER_AGENT)
        .map_or(Cow::Borrowed(""), |value| String::from_utf8_lossy(value.as_bytes()));
    truncate_text(&agent, LONGEST_AGENT)
}

/// Returns at most `max_bytes` bytes of a text, and a mark if the text was cut.
fn truncate_text(text: &str, max_bytes: usize) -> String {
    if text.len() <= max_bytes {
        return text.to_owned();
    }
    let end = (0..=max_bytes).rev().find(|&index| text.is_char_boundary(index)).unwrap_or(0);
    format!("{}...TRUNCATED", &text[..end])
}

/// Returns the addresses that proxies forwarded, then the connection's peer.
fn source_ips(headers: &HeaderMap, peer: Option<&Peer>) -> Vec<String> {
    let forwarded = headers.get_all("x-forwarded-for").iter().filter_map(|v| v.to_str().ok());
    let mut ips: Vec<String> = forwarded
        .flat_map(|value| value.split(','))
        .filter_map(|ip| ip.trim().parse::<std::net::IpAddr>().ok())
        .map(|ip| ip.to_string())
        .take(PROXIES)
        .collect();
    if let Some(peer) = peer {
        let peer_ip = peer.address.ip().to_string();
        if ips.last() != Some(&peer_ip) {
            ips.push(peer_ip);
        }
    }
    ips
}

fn format_micros(time: Timestamp) -> String {
    let mut text = String::with_capacity(27);
    write!(text, "{}", time.strftime("%Y-%m-%dT%H:%M:%S%.6fZ"))
        .expect("writing to a String cannot fail");
    text
}

#[cfg(test)]
mod tests {
    use axum::body::Body;
    use serde_json::json;

    use super::*;

    #[test]
    fn an_event_names_who_did_what_to_which_object_and_how_it_ended() {
        let uri = "/apis/navigator.jetstack.io/v1beta1/namespaces/db/pilots?dryRun=All";
        let request = Request::post(uri)
            .header("user-agent", "kubectl/v1")
            .header("x-forwarded-for", "10.0.0.1, nonsense")
            .body(Body::empty())
            .unwrap();
        let info = RequestInfo::from_request(&request);
        let at = Timestamp::from_microsecond(1_500_000_000_000_001).unwrap();
        let user = User { name: "jane".into(), groups: vec!["dev".into()], ..User::default() };
        let mut event =
            AuditEvent::new(&request, &info, Some(&user), b"id-1", at, AuditLevel::Metadata);
        event.complete_reference("generated", "", "");
        event.response_status = Some(ResponseStatus { code: 201, ..ResponseStatus::default() });
        event.add_annotation("authorization.k8s.io/decision", "allow");
        let line = event.encode(AuditStage::ResponseComplete);
        assert_eq!(line.iter().position(|byte| *byte == b'\n'), Some(line.len() - 1));
        let mut event: Value = serde_json::from_slice(&line).unwrap();
        assert!(event["stageTimestamp"].take().is_string());
        assert_eq!(
            event,
            json!({
                "kind": "Event", "apiVersion": "audit.k8s.io/v1", "level": "Metadata",
                "auditID": "id-1", "stage": "ResponseComplete", "requestURI": uri,
                "verb": "create", "sourceIPs": ["10.0.0.1"], "userAgent": "kubectl/v1",
                "user": {"username": "jane", "groups": ["dev"]},
                "objectRef": {
                    "resource": "pilots", "apiGroup": "navigator.jetstack.io",
                    "apiVersion": "v1beta1", "namespace": "db", "name": "generated",
                },
                "responseStatus": {"metadata": {}, "code": 201},
                "requestReceivedTimestamp": "2017-07-14T02:40:00.000001Z",
                "stageTimestamp": null,
                "annotations": {"authorization.k8s.io/decision": "allow"},
            })
        );
    }

    #[test]
    fn a_long_agent_is_cut_between_characters() {
        let long = "ä".repeat(LONGEST_AGENT);
        let mut headers = HeaderMap::new();
        headers.insert(header::USER_AGENT, http::HeaderValue::from_bytes(long.as_bytes()).unwrap());
        assert_eq!(user_agent(&headers), format!("{}...TRUNCATED", "ä".repeat(LONGEST_AGENT / 2)));
    }

    #[test]
    fn only_a_status_is_read_as_one() {
        let told =
            r#"{"kind":"Status","status":"Failure","message":"no","reason":"Gone","code":410}"#;
        let read = ResponseStatus::parse(told).unwrap();
        assert_eq!((read.message.as_str(), read.reason.as_str(), read.code), ("no", "Gone", 410));
        assert!(ResponseStatus::parse(r#"{"kind":"Pilot","status":{"phase":"x"}}"#).is_none());
    }
}
