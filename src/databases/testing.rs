//! Scripted databases whose requests fail, for tests of drivers: each request by itself, and all
//! from one on.

use std::{
    collections::BTreeSet,
    net::{IpAddr, Ipv4Addr},
    sync::{
        Arc, Mutex,
        atomic::{AtomicU8, Ordering},
    },
    time::{Duration, Instant},
};

use axum::{
    Router,
    body::{Body, Bytes, to_bytes},
    extract::{Request, State},
    response::{IntoResponse, Response},
};
use futures::stream;
use http::StatusCode;
use serde_json::Value;
use tokio::net::TcpListener;

use crate::pilot::driver::DriverAnswer;

/// Waits for an answer without a fault: on a busy machine it may take longer than a pilot waits for one.
pub(crate) async fn answered<'a, T>(what: &str, ask: impl Fn() -> DriverAnswer<'a, T>) -> T {
    let begun = Instant::now();
    loop {
        match ask().await {
            Ok(answer) => return answer,
            Err(error) => assert!(begun.elapsed() < Duration::from_secs(300), "{what}: {error}"),
        }
    }
}

/// How a request fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Failure {
    Status(u16),
    /// A success without any of the fields that were asked for.
    Empty,
    Garbage,
    Cut,
    Hangs,
}

impl Failure {
    /// The failures that come at once, without a timeout.
    pub(crate) const QUICK: [Self; 6] = [
        Self::Status(429),
        Self::Status(503),
        Self::Status(401),
        Self::Empty,
        Self::Garbage,
        Self::Cut,
    ];
}

/// The request that fails, or from which on all requests fail.
#[derive(Clone, Debug)]
pub(crate) struct Fault {
    pub(crate) request: String,
    pub(crate) from_there_on: bool,
    pub(crate) failure: Failure,
}

impl Fault {
    /// Lists the faults to test: each request with each failure, and with the last failure also all
    /// requests from that request on.
    pub(crate) fn all(requests: &BTreeSet<String>, failures: &[Failure]) -> Vec<Self> {
        let ways = failures.iter().map(|failure| (*failure, false));
        let ways: Vec<_> = ways.chain(failures.last().map(|failure| (*failure, true))).collect();
        let mut all = Vec::new();
        for request in requests {
            for (failure, from_there_on) in &ways {
                let (request, failure, from_there_on) = (request.clone(), *failure, *from_there_on);
                all.push(Self { request, from_there_on, failure });
            }
        }
        all
    }
}

/// Requests as they came, and the fault among them.
#[derive(Debug, Default)]
pub(crate) struct Script {
    fault: Mutex<Option<Fault>>,
    asked: Mutex<Vec<String>>,
}

impl Script {
    /// Sets what fails from now on, and counts requests anew.
    pub(crate) fn set(&self, fault: Option<Fault>) {
        *self.fault.lock().unwrap() = fault;
        self.asked.lock().unwrap().clear();
    }

    /// Returns the requests since the last [`Script::set`], each once.
    pub(crate) fn asked(&self) -> BTreeSet<String> {
        self.asked.lock().unwrap().iter().cloned().collect()
    }

    /// Notes a request, and returns how it fails, if it does.
    pub(crate) fn ask(&self, request: &str) -> Option<Failure> {
        self.asked.lock().unwrap().push(request.to_owned());
        let mut fault = self.fault.lock().unwrap();
        let fault = fault.as_mut()?;
        if fault.request != request && !fault.request.is_empty() {
            return None;
        }
        if fault.from_there_on {
            fault.request.clear();
        }
        Some(fault.failure)
    }
}

/// What a scripted database says to a request: method, path, body.
pub(crate) type Answer = Box<dyn Fn(&str, &str, &Bytes) -> Result<Value, Failure> + Send + Sync>;

/// Serves a scripted database at an address of its own.
pub(crate) async fn serve(port: u16, answer: Answer) -> IpAddr {
    static LAST: AtomicU8 = AtomicU8::new(1);
    let address = Ipv4Addr::new(127, 9, 200, LAST.fetch_add(1, Ordering::Relaxed));
    let listener = TcpListener::bind((address, port)).await.unwrap();
    let app = Router::new().fallback(respond).with_state(Arc::new(answer));
    #[expect(clippy::disallowed_methods, reason = "it ends with the test's runtime")]
    tokio::spawn(async move { axum::serve(listener, app).await });
    address.into()
}

async fn respond(State(answer): State<Arc<Answer>>, request: Request) -> Response {
    let (method, path) = (request.method().to_string(), request.uri().path().to_owned());
    let body = to_bytes(request.into_body(), 1 << 20).await.unwrap();
    match answer(&method, &path, &body) {
        Ok(value) => value.to_string().into_response(),
        Err(Failure::Status(code)) => {
            let error = r#"{"error": {"reason": "scripted"}}"#;
            (StatusCode::from_u16(code).unwrap(), error).into_response()
        }
        Err(Failure::Empty) => "{}".into_response(),
        Err(Failure::Garbage) => "<html>".into_response(),
        Err(Failure::Cut) => {
            let broken = stream::iter([Err::<Vec<u8>, _>(std::io::Error::other("cut"))]);
            Body::from_stream(broken).into_response()
        }
        Err(Failure::Hangs) => {
            tokio::time::sleep(Duration::from_secs(60)).await;
            StatusCode::OK.into_response()
        }
    }
}
