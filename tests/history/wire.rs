//! Requests as a client sends them, and objects as it reads them.

use std::time::Duration;

use base64::{Engine, prelude::BASE64_STANDARD};
use bytes::Bytes;
use http::{Method, Request, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::{body::Incoming, client::conn::http1::SendRequest};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tokio::time::timeout;

use super::{
    check::{At, Filter, Version},
    servers::Servers,
    support::client::SERVICE,
};

const PILOTS: &str = "/apis/navigator.jetstack.io/v1beta1/namespaces/db/pilots";
const CONNECT: Duration = Duration::from_secs(1);
/// Limit of a request that is answered at once. After it the client does not know the outcome.
const ANSWER: Duration = Duration::from_secs(3);

/// The annotation with the word of the last write.
const WORD: &str = "history";
const LANE: &str = "lane";

/// A connection that is kept.
pub(crate) struct Connection {
    sender: SendRequest<Full<Bytes>>,
    address: std::net::SocketAddr,
}

pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) body: Value,
}

impl Answer {
    pub(crate) fn reason(&self) -> &str {
        self.body["reason"].as_str().unwrap_or_default()
    }
}

impl Connection {
    pub(crate) async fn open(servers: &Servers, n: usize) -> Result<Self, String> {
        let address = servers.address(n);
        let client = servers.client(n);
        let connected =
            timeout(CONNECT, client.connect()).await.map_err(|late| late.to_string())?;
        let io = TokioIo::new(connected.map_err(|error| error.to_string())?);
        let shaken = hyper::client::conn::http1::handshake(io).await;
        let (sender, connection) = shaken.map_err(|error| error.to_string())?;
        #[expect(clippy::disallowed_methods, reason = "ends with the connection")]
        tokio::spawn(connection);
        Ok(Self { sender, address })
    }

    /// Does the connection lead to the server's present process, and may it be used?
    pub(crate) fn is_good(&self, servers: &Servers, n: usize) -> bool {
        self.address == servers.address(n) && self.sender.is_ready()
    }

    pub(crate) async fn stream(
        &mut self,
        request: Request<Full<Bytes>>,
    ) -> Result<(StatusCode, Incoming), String> {
        let sent = timeout(ANSWER, self.sender.send_request(request)).await;
        let response = sent.map_err(|late| late.to_string())?.map_err(|error| error.to_string())?;
        Ok((response.status(), response.into_body()))
    }

    /// Sends a request. After an error its outcome is unknown.
    pub(crate) async fn ask(&mut self, request: Request<Full<Bytes>>) -> Result<Answer, String> {
        let asked = async {
            let response = self.sender.send_request(request).await?;
            let status = response.status();
            Ok::<_, hyper::Error>((status, response.into_body().collect().await?.to_bytes()))
        };
        let answered = timeout(ANSWER, asked).await.map_err(|late| late.to_string())?;
        let (status, bytes) = answered.map_err(|error| error.to_string())?;
        let body = serde_json::from_slice(&bytes).map_err(|error| error.to_string())?;
        Ok(Answer { status, body })
    }
}

pub(crate) fn request(method: Method, path: &str, body: &Value) -> Request<Full<Bytes>> {
    let body = if body.is_null() { String::new() } else { body.to_string() };
    let form =
        if method == Method::PATCH { "application/merge-patch+json" } else { "application/json" };
    Request::builder()
        .method(method)
        .uri(format!("{PILOTS}{path}"))
        .header("host", SERVICE)
        .header("x-remote-user", "root")
        .header("x-remote-group", "system:masters")
        .header("content-type", form)
        .body(Full::new(Bytes::from(body)))
        .unwrap()
}

pub(crate) fn object(key: &str, main: &str, lane: &str, expected: Option<u64>) -> Value {
    let mut object = json!({
        "apiVersion": "navigator.jetstack.io/v1beta1", "kind": "Pilot",
        "metadata": {
            "name": key, "labels": {LANE: lane},
            "annotations": {WORD: main, "weight": "x".repeat(300)},
        },
        "spec": {},
    });
    if let Some(expected) = expected {
        object["metadata"]["resourceVersion"] = expected.to_string().into();
    }
    object
}

pub(crate) fn status(key: &str, word: &str, expected: u64) -> Value {
    let mut object = object(key, "ignored", "ignored", Some(expected));
    object["status"] = json!({"pilotVersion": word});
    object
}

pub(crate) fn patch(main: &str, lane: &str) -> Value {
    json!({"metadata": {"labels": {LANE: lane}, "annotations": {WORD: main}}})
}

/// Query of a read.
pub(crate) fn at(at: At) -> String {
    match at {
        At::Latest => String::new(),
        At::Any => "&resourceVersion=0".to_owned(),
        At::NotOlderThan(revision) => format!("&resourceVersion={revision}"),
        At::Exact(revision) => format!("&resourceVersion={revision}&resourceVersionMatch=Exact"),
    }
}

pub(crate) fn selected(filter: &Filter) -> String {
    match filter {
        Filter::Everything => String::new(),
        Filter::Lane(lane) => format!("&labelSelector={LANE}%3D{lane}"),
        Filter::Name(name) => format!("&fieldSelector=metadata.name%3D{name}"),
    }
}

pub(crate) fn revision(object: &Value) -> Option<u64> {
    object["metadata"]["resourceVersion"].as_str()?.parse().ok()
}

/// The name of an object and what is seen of it.
pub(crate) fn version(object: &Value) -> (String, Version) {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let metadata = &object["metadata"];
    let mut rest = object.clone();
    rest["metadata"]["resourceVersion"] = Value::Null;
    // Items of a list have no kind and version of their own.
    rest["kind"] = Value::Null;
    rest["apiVersion"] = Value::Null;
    let hash = Sha256::digest(rest.to_string());
    let version = Version {
        revision: revision(object).unwrap_or_else(|| panic!("no revision: {object}")),
        main: text(&metadata["annotations"][WORD]),
        status: text(&object["status"]["pilotVersion"]),
        lane: text(&metadata["labels"][LANE]),
        hash: BASE64_STANDARD.encode(&hash[..9]),
    };
    (text(&metadata["name"]), version)
}
