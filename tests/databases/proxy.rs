//! A proxy between a pilot and its database, which passes requests on, or lets some of them fail.

#![expect(clippy::disallowed_methods, reason = "tests change the network, and serve")]

use std::{
    collections::BTreeSet,
    convert::Infallible,
    net::{IpAddr, SocketAddr},
    process::Command,
    sync::{Arc, Mutex},
};

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use tokio::net::{TcpListener, TcpSocket, TcpStream};

use crate::support::loopback::own;

/// How requests fail.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Fault {
    /// Requests are answered 503.
    Unavailable,
    /// The connection of a request is closed.
    Cut,
    /// Requests get an answer that cannot be understood.
    Nonsense,
}

pub(crate) const FAULTS: [Fault; 3] = [Fault::Unavailable, Fault::Cut, Fault::Nonsense];

/// Stands before one port until it is dropped.
pub(crate) struct Proxy {
    rule: Vec<String>,
    script: Arc<Script>,
}

#[derive(Default)]
struct Script {
    asked: Mutex<BTreeSet<String>>,
    /// Text of the requests that fail, and how they fail.
    fails: Mutex<Option<(String, Fault)>>,
}

impl Proxy {
    /// Redirects new connections to the port; connections that exist already pass by the proxy.
    pub(crate) async fn before(database: IpAddr, port: u16) -> Self {
        // By the source address, the kernel's rule knows the proxy's own connections.
        let from = own([127, 31, 99, 1]);
        let listener = TcpListener::bind((from, 0)).await.unwrap();
        let own = listener.local_addr().unwrap().to_string();
        let script = Arc::<Script>::default();
        tokio::spawn(serve(listener, from, (database, port).into(), Arc::clone(&script)));
        let (database, from, port) = (database.to_string(), from.to_string(), port.to_string());
        let rule = ["OUTPUT", "-p", "tcp", "-d", &database, "--dport", &port, "!", "-s", &from];
        let rule = rule.into_iter().chain(["-j", "DNAT", "--to-destination", &own]);
        let rule: Vec<_> = rule.map(str::to_owned).collect();
        assert!(iptables("-I", &rule), "iptables failed: this scenario needs root");
        Self { rule, script }
    }

    /// Lets requests fail whose method, path or body contain `part`; an empty `part` is in all.
    pub(crate) fn fail(&self, part: &str, fault: Fault) {
        *self.script.fails.lock().unwrap() = Some((part.to_owned(), fault));
    }

    pub(crate) fn heal(&self) {
        *self.script.fails.lock().unwrap() = None;
    }

    /// Returns the distinct requests so far: method and path without the query, then the body.
    pub(crate) fn asked(&self) -> BTreeSet<String> {
        self.script.asked.lock().unwrap().clone()
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        iptables("-D", &self.rule);
    }
}

async fn serve(listener: TcpListener, from: IpAddr, to: SocketAddr, script: Arc<Script>) {
    loop {
        let Ok((stream, _)) = listener.accept().await else { continue };
        let script = Arc::clone(&script);
        tokio::spawn(async move {
            let answer = |request| answer(request, from, to, Arc::clone(&script));
            let service = hyper::service::service_fn(answer);
            let server = hyper::server::conn::http1::Builder::new();
            drop(server.serve_connection(TokioIo::new(stream), service).await);
        });
    }
}

async fn answer(
    request: Request<Incoming>,
    from: IpAddr,
    to: SocketAddr,
    script: Arc<Script>,
) -> std::io::Result<Response<Full<Bytes>>> {
    let failed = |error: hyper::Error| std::io::Error::other(error);
    let (parts, body) = request.into_parts();
    let body = body.collect().await.map_err(failed)?.to_bytes();
    let line = format!("{} {}", parts.method, parts.uri.path());
    let asked = format!("{line} {}", String::from_utf8_lossy(&body)).trim_end().to_owned();
    let fault = script.fault(&asked);
    script.asked.lock().unwrap().insert(asked);
    let answer = |status, body| Response::builder().status(status).body(Full::new(body)).unwrap();
    match fault {
        None => {}
        Some(Fault::Cut) => return Err(std::io::Error::other("cut")),
        Some(Fault::Unavailable) => {
            return Ok(answer(StatusCode::SERVICE_UNAVAILABLE, Bytes::from_static(b"{}")));
        }
        Some(Fault::Nonsense) => return Ok(answer(StatusCode::OK, Bytes::from_static(b"{]"))),
    }
    let reply = pass_on(Request::from_parts(parts, Full::new(body)), from, to).await?;
    let (parts, body) = reply.into_parts();
    let body = body.collect().await.map_err(failed)?.to_bytes();
    Ok(Response::from_parts(parts, Full::new(body)))
}

async fn pass_on(
    request: Request<Full<Bytes>>,
    from: IpAddr,
    to: SocketAddr,
) -> std::io::Result<Response<Incoming>> {
    let failed = |error: hyper::Error| std::io::Error::other(error);
    let socket = TcpSocket::new_v4()?;
    socket.bind((from, 0).into())?;
    let stream: TcpStream = socket.connect(to).await?;
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(failed)?;
    tokio::spawn(async move {
        drop(connection.await);
        Ok::<_, Infallible>(())
    });
    sender.send_request(request).await.map_err(failed)
}

impl Script {
    fn fault(&self, asked: &str) -> Option<Fault> {
        let fails = self.fails.lock().unwrap();
        let (part, fault) = fails.as_ref()?;
        asked.contains(part).then_some(*fault)
    }
}

fn iptables(what: &str, rule: &[String]) -> bool {
    let status = Command::new("iptables").args(["-w", "-t", "nat", what]).args(rule).status();
    status.expect("iptables is missing: apt-get install iptables").success()
}
