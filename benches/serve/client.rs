//! One client: a connection that asks again and again.

use std::{net::SocketAddr, sync::Arc};

use bytes::Bytes;
use http::{Request, Response, StatusCode, header};
use http_body_util::{BodyExt as _, Full};
use hyper::{
    body::Incoming,
    client::conn::{http1, http2},
};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::{
    ClientConfig, RootCertStore,
    crypto::ring::default_provider,
    pki_types::{CertificateDer, ServerName, pem::PemObject as _},
};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use super::support::pki::{Ca, Identity};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Protocol {
    Http1,
    Http2,
}

impl Protocol {
    pub(crate) const ALL: [Self; 2] = [Self::Http1, Self::Http2];

    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Http1 => "http1",
            Self::Http2 => "http2",
        }
    }

    pub(crate) fn title(self) -> &'static str {
        match self {
            Self::Http1 => "HTTP/1.1",
            Self::Http2 => "HTTP/2",
        }
    }
}

/// How to reach a server as one of `system:masters`.
#[derive(Clone)]
pub(crate) struct Door {
    address: SocketAddr,
    protocol: Protocol,
    config: Arc<ClientConfig>,
}

#[derive(Clone)]
enum Sender {
    Http1(Arc<tokio::sync::Mutex<http1::SendRequest<Full<Bytes>>>>),
    Http2(http2::SendRequest<Full<Bytes>>),
}

/// An open connection; a clone asks over the same one.
#[derive(Clone)]
pub(crate) struct Client {
    sender: Sender,
    authority: String,
}

#[derive(Clone, Debug)]
pub(crate) struct Ask {
    pub(crate) method: &'static str,
    pub(crate) path: String,
    pub(crate) content_type: &'static str,
    pub(crate) body: Bytes,
}

pub(crate) const JSON: &str = "application/json";

impl Ask {
    pub(crate) fn get(path: String) -> Self {
        Self { method: "GET", path, content_type: JSON, body: Bytes::new() }
    }
}

impl Door {
    pub(crate) fn new(
        address: SocketAddr,
        protocol: Protocol,
        ca: &Ca,
        identity: &Identity,
    ) -> Self {
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(ca.pem.as_bytes()).unwrap()).unwrap();
        let builder = ClientConfig::builder_with_provider(Arc::new(default_provider()));
        let mut config = builder
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_client_auth_cert(identity.chain.clone(), identity.key())
            .unwrap();
        config.alpn_protocols = match protocol {
            Protocol::Http1 => vec![b"http/1.1".to_vec()],
            Protocol::Http2 => vec![b"h2".to_vec()],
        };
        Self { address, protocol, config: Arc::new(config) }
    }

    pub(crate) fn protocol(&self) -> Protocol {
        self.protocol
    }

    pub(crate) async fn enter(&self) -> Result<Client, String> {
        let failed = |error: &dyn std::error::Error| error.to_string();
        let stream = TcpStream::connect(self.address).await.map_err(|error| failed(&error))?;
        stream.set_nodelay(true).map_err(|error| failed(&error))?;
        let name = ServerName::try_from("localhost").unwrap();
        let connector = TlsConnector::from(Arc::clone(&self.config));
        let stream = connector.connect(name, stream).await.map_err(|error| failed(&error))?;
        let is_http2 = stream.get_ref().1.alpn_protocol() == Some(b"h2");
        let io = TokioIo::new(stream);
        // Both tasks drive the connection until its clients are dropped.
        let sender = match self.protocol {
            Protocol::Http1 => {
                let (sender, connection) =
                    http1::handshake(io).await.map_err(|error| failed(&error))?;
                tokio::spawn(connection);
                Sender::Http1(Arc::new(tokio::sync::Mutex::new(sender)))
            }
            Protocol::Http2 => {
                assert!(is_http2, "the server speaks HTTP/2");
                // As much as clients written in Go let a server send ahead.
                let (sender, connection) = http2::Builder::new(TokioExecutor::new())
                    .initial_stream_window_size(4 << 20)
                    .initial_connection_window_size(1 << 30)
                    .handshake(io)
                    .await
                    .map_err(|error| failed(&error))?;
                tokio::spawn(connection);
                Sender::Http2(sender)
            }
        };
        Ok(Client { sender, authority: self.address.to_string() })
    }
}

impl Client {
    /// The whole answer.
    pub(crate) async fn ask(&self, ask: Ask) -> Result<(StatusCode, Bytes), String> {
        let answer = self.open(ask).await?;
        let status = answer.status();
        let body = answer.into_body().collect().await.map_err(|error| error.to_string())?;
        Ok((status, body.to_bytes()))
    }

    /// An answer whose body is still to come.
    pub(crate) async fn open(&self, ask: Ask) -> Result<Response<Incoming>, String> {
        let Ask { method, path, content_type, body } = ask;
        let builder = Request::builder()
            .method(method)
            .header(header::USER_AGENT, "navigator-bench")
            .header(header::ACCEPT, JSON);
        let builder = if body.is_empty() {
            builder
        } else {
            builder.header(header::CONTENT_TYPE, content_type)
        };
        let body = Full::new(body);
        let answer = match &self.sender {
            Sender::Http1(sender) => {
                let request = builder.uri(path).header(header::HOST, &self.authority).body(body);
                let mut sender = sender.lock().await;
                sender.ready().await.map_err(|error| error.to_string())?;
                sender.send_request(request.unwrap()).await
            }
            Sender::Http2(sender) => {
                let request = builder.uri(format!("https://{}{path}", self.authority)).body(body);
                let mut sender = sender.clone();
                sender.ready().await.map_err(|error| error.to_string())?;
                sender.send_request(request.unwrap()).await
            }
        };
        answer.map_err(|error| error.to_string())
    }
}
