//! The audit trail: one line of JSON for every request that changes something, after it was
//! answered (`audit.k8s.io/v1` Event, level Metadata, stage ResponseComplete).
//!
//! Requests wait for room in the queue rather than losing their line. A file that was moved away
//! is made anew, so rotation from outside works.

use std::{
    fs::File,
    io::{self, Write},
    os::unix::fs::{MetadataExt, OpenOptionsExt},
    path::{Path, PathBuf},
    sync::{Arc, OnceLock},
};

use axum::body::Body;
use http::{HeaderMap, HeaderValue, Request, StatusCode, header};
use jiff::Timestamp;
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tracing::error;

use crate::{
    apiserver::{authn::User, metrics::Metrics, peer::Peer, request_info::RequestInfo},
    runtime::Runtime,
};

/// Lines waiting to be written: ten seconds of 1000 writes a second.
const QUEUE: usize = 10_000;
/// Lines written at one go.
const BATCH: usize = 256;

/// Where the trail goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    Stdout,
    File(PathBuf),
}

/// What a handler knows about the request's object and the path does not say: a name that the
/// server generated, or that only the body held. In the request's extensions.
#[derive(Clone, Debug, Default)]
pub struct Subject(Arc<OnceLock<String>>);

impl Subject {
    /// The first name counts.
    pub fn set_name(&self, name: &str) {
        drop(self.0.set(name.to_owned()));
    }
}

/// The open trail.
pub struct Trail {
    lines: mpsc::Sender<Vec<u8>>,
    metrics: Arc<Metrics>,
}

impl Trail {
    /// Opens the trail and starts its writer, which ends with the process, after the last line.
    pub fn open(target: Target, metrics: &Arc<Metrics>, rt: &Runtime) -> io::Result<Self> {
        let mut sink = Sink::open(target)?;
        let (lines, mut queue) = mpsc::channel::<Vec<u8>>(QUEUE);
        let shutdown = rt.shutdown();
        let counted = Arc::clone(metrics);
        rt.tasks().spawn("audit", async move {
            let mut closing = false;
            loop {
                let mut batch = Vec::with_capacity(BATCH);
                // A receive that is dropped has taken no line out.
                tokio::select! {
                    count = queue.recv_many(&mut batch, BATCH) => if count == 0 { return },
                    () = shutdown.triggered(), if !closing => {
                        closing = true;
                        queue.close();
                        continue;
                    }
                }
                let count = u64::try_from(batch.len()).unwrap_or_default();
                let written = tokio::task::spawn_blocking(move || {
                    let outcome = sink.write(&batch.concat());
                    (sink, outcome)
                });
                let Ok((returned, outcome)) = written.await else { return };
                sink = returned;
                match outcome {
                    Ok(()) => counted.audit_events.inc_by(count),
                    Err(error) => {
                        counted.audit_errors.inc_by(count);
                        error!(%error, lines = count, "Failed to write to the audit trail");
                    }
                }
            }
        });
        Ok(Self { lines, metrics: Arc::clone(metrics) })
    }

    /// Queues one event; waits while the queue is full.
    pub(super) async fn record(&self, event: Value) {
        let mut line = event.to_string().into_bytes();
        line.push(b'\n');
        if self.lines.send(line).await.is_err() {
            self.metrics.audit_errors.inc();
        }
    }
}

/// An event that waits for its response.
pub(super) struct Draft(Value);

impl Draft {
    pub(super) fn new(
        request: &Request<Body>,
        peer: Option<&Peer>,
        info: &RequestInfo,
        id: &HeaderValue,
        received: Timestamp,
    ) -> Self {
        let headers = request.headers();
        let mut event = json!({
            "kind": "Event",
            "apiVersion": "audit.k8s.io/v1",
            "level": "Metadata",
            "auditID": String::from_utf8_lossy(id.as_bytes()),
            "stage": "ResponseComplete",
            "requestURI": request.uri().path_and_query().map_or("", |uri| uri.as_str()),
            "verb": info.verb(),
            "sourceIPs": source_ips(headers, peer),
            "requestReceivedTimestamp": micros(received),
        });
        if let Some(agent) = headers.get(header::USER_AGENT).and_then(|v| v.to_str().ok()) {
            event["userAgent"] = agent.into();
        }
        if let Some(operation) = &info.operation {
            let mut reference = json!({
                "resource": operation.resource,
                "apiGroup": operation.group,
                "apiVersion": operation.version,
            });
            let optional = [
                ("namespace", &operation.namespace),
                ("name", &operation.name),
                ("subresource", &operation.subresource),
            ];
            for (key, value) in optional.into_iter().filter(|(_, value)| !value.is_empty()) {
                reference[key] = value.as_str().into();
            }
            event["objectRef"] = reference;
        }
        Self(event)
    }

    pub(super) fn complete(
        self,
        user: Option<&User>,
        subject: &Subject,
        status: StatusCode,
    ) -> Value {
        let mut event = self.0;
        event["user"] = user.map_or(json!({}), describe);
        if let (Some(name), Some(Value::Object(reference))) =
            (subject.0.get(), event.get_mut("objectRef"))
        {
            reference.entry("name").or_insert_with(|| name.as_str().into());
        }
        event["responseStatus"] = json!({"metadata": {}, "code": status.as_u16()});
        event["stageTimestamp"] = micros(Timestamp::now()).into();
        event
    }
}

fn describe(user: &User) -> Value {
    let User { name, uid, groups, extra } = user;
    let mut described = json!({"username": name, "groups": groups});
    if let Some(uid) = uid {
        described["uid"] = uid.as_str().into();
    }
    if !extra.is_empty() {
        described["extra"] = json!(extra);
    }
    described
}

/// The proxies' word first, then the connection's own end.
fn source_ips(headers: &HeaderMap, peer: Option<&Peer>) -> Vec<String> {
    let forwarded = headers.get_all("x-forwarded-for").iter().filter_map(|v| v.to_str().ok());
    let mut ips: Vec<String> = forwarded
        .flat_map(|value| value.split(','))
        .filter_map(|ip| ip.trim().parse::<std::net::IpAddr>().ok())
        .map(|ip| ip.to_string())
        .collect();
    if let Some(peer) = peer {
        let own = peer.address.ip().to_string();
        if ips.last() != Some(&own) {
            ips.push(own);
        }
    }
    ips
}

fn micros(at: Timestamp) -> String {
    at.strftime("%Y-%m-%dT%H:%M:%S%.6fZ").to_string()
}

enum Sink {
    Stdout,
    File { file: File, path: PathBuf },
}

impl Sink {
    fn open(target: Target) -> io::Result<Self> {
        Ok(match target {
            Target::Stdout => Self::Stdout,
            Target::File(path) => Self::File { file: append(&path)?, path },
        })
    }

    fn write(&mut self, lines: &[u8]) -> io::Result<()> {
        match self {
            Self::Stdout => {
                let mut out = io::stdout().lock();
                out.write_all(lines)?;
                out.flush()
            }
            Self::File { file, path } => {
                let open = file.metadata().map(|meta| (meta.dev(), meta.ino()))?;
                if path.metadata().map(|meta| (meta.dev(), meta.ino())).ok() != Some(open) {
                    *file = append(path)?;
                }
                file.write_all(lines)
            }
        }
    }
}

fn append(path: &Path) -> io::Result<File> {
    File::options().append(true).create(true).mode(0o600).open(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_names_who_did_what_to_which_object_and_how_it_ended() {
        let uri = "/apis/navigator.jetstack.io/v1beta1/namespaces/db/pilots?dryRun=All";
        let request = Request::post(uri)
            .header("user-agent", "kubectl/v1")
            .header("x-forwarded-for", "10.0.0.1, nonsense")
            .body(Body::empty())
            .unwrap();
        let info = RequestInfo::of(&request);
        let id = HeaderValue::from_static("id-1");
        let at = Timestamp::from_microsecond(1_500_000_000_000_001).unwrap();
        let draft = Draft::new(&request, None, &info, &id, at);
        let user = User { name: "jane".into(), groups: vec!["dev".into()], ..User::default() };
        let subject = Subject::default();
        subject.set_name("generated");
        let mut event = draft.complete(Some(&user), &subject, StatusCode::CREATED);
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
            })
        );
    }

    #[test]
    fn a_trail_that_was_rotated_away_is_made_anew() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("audit.log");
        let mut sink = Sink::open(Target::File(path.clone())).unwrap();
        sink.write(b"1\n").unwrap();
        std::fs::rename(&path, folder.path().join("audit.log.1")).unwrap();
        sink.write(b"2\n").unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "2\n");
    }
}
