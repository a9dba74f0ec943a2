//! An HTTPS client that shows a certificate when told to, one connection for each request.

use std::{
    net::{IpAddr, SocketAddr},
    sync::Arc,
};

use http::{HeaderMap, Request};
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http2::SendRequest;
use hyper_util::rt::TokioIo;
use rustls::{
    ClientConfig, DigitallySignedStruct, Error, RootCertStore, SignatureScheme,
    SupportedProtocolVersion,
    client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    crypto::ring::default_provider,
    pki_types::{CertificateDer, ServerName, UnixTime, pem::PemObject},
};
use serde_json::Value;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpSocket, TcpStream},
};
use tokio_rustls::{TlsConnector, client::TlsStream};

use super::pki::Identity;

/// The name under which kube-apiserver calls us.
pub(crate) const SERVICE: &str = "navigator-apiserver.navigator.svc";

pub(crate) struct Client {
    address: SocketAddr,
    /// Source address of the client's connections.
    source: IpAddr,
    config: Arc<ClientConfig>,
}

#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    pub(crate) headers: HeaderMap,
    pub(crate) body: String,
}

impl Reply {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }
}

impl Client {
    /// Checks the server's certificate when `ca` is given, against [`SERVICE`].
    pub(crate) fn new(address: SocketAddr, identity: Option<&Identity>, ca: Option<&str>) -> Self {
        let builder = ClientConfig::builder_with_provider(Arc::new(default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap();
        let builder = match ca {
            Some(pem) => {
                let mut roots = RootCertStore::empty();
                for der in CertificateDer::pem_slice_iter(pem.as_bytes()) {
                    roots.add(der.unwrap()).unwrap();
                }
                builder.with_root_certificates(roots)
            }
            None => builder.dangerous().with_custom_certificate_verifier(Arc::new(Anything)),
        };
        let config = match identity {
            Some(identity) => {
                builder.with_client_auth_cert(identity.chain.clone(), identity.key()).unwrap()
            }
            None => builder.with_no_client_auth(),
        };
        Self { address, source: [127, 0, 0, 1].into(), config: Arc::new(config) }
    }

    /// The same client with another source address.
    pub(crate) fn from(self, source: [u8; 4]) -> Self {
        Self { source: source.into(), ..self }
    }

    async fn reach(&self) -> std::io::Result<TcpStream> {
        let socket = TcpSocket::new_v4()?;
        socket.bind((self.source, 0).into())?;
        socket.connect(self.address).await
    }

    pub(crate) async fn connect(&self) -> std::io::Result<TlsStream<TcpStream>> {
        let stream = self.reach().await?;
        let connector = TlsConnector::from(Arc::clone(&self.config));
        connector.connect(ServerName::try_from(SERVICE).unwrap(), stream).await
    }

    pub(crate) async fn send(&self, request: Request<String>) -> std::io::Result<Reply> {
        let io = TokioIo::new(self.connect().await?);
        let failed = |error: hyper::Error| std::io::Error::other(error);
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake(io).await.map_err(failed)?;
        let asked = async {
            let mut request = request.map(|body| Full::new(bytes::Bytes::from(body)));
            request.headers_mut().insert("host", SERVICE.parse().unwrap());
            let response = sender.send_request(request).await.map_err(failed)?;
            let (parts, body) = response.into_parts();
            let body = body.collect().await.map_err(failed)?.to_bytes();
            let body = String::from_utf8_lossy(&body).into_owned();
            Ok(Reply { status: parts.status.as_u16(), headers: parts.headers, body })
        };
        let mut connection = std::pin::pin!(connection);
        let mut asked = std::pin::pin!(asked);
        tokio::select! {
            reply = asked.as_mut() => reply,
            _ = connection.as_mut() => asked.await,
        }
    }

    /// Shakes hands in this version of TLS, with both protocols on offer, and trusts any server.
    /// Returns the protocol that was chosen.
    pub(crate) async fn shake(
        &self,
        version: &'static SupportedProtocolVersion,
    ) -> std::io::Result<Option<String>> {
        let mut config = ClientConfig::builder_with_provider(Arc::new(default_provider()))
            .with_protocol_versions(&[version])
            .unwrap()
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(Anything))
            .with_no_client_auth();
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        let stream = self.reach().await?;
        let connector = TlsConnector::from(Arc::new(config));
        let stream = connector.connect(ServerName::try_from(SERVICE).unwrap(), stream).await?;
        let chosen = stream.get_ref().1.alpn_protocol();
        Ok(chosen.map(|name| String::from_utf8_lossy(name).into_owned()))
    }

    /// A connection on which HTTP/2 will be spoken.
    pub(crate) async fn connect_http2(&self) -> TlsStream<TcpStream> {
        self.try_http2().await.unwrap()
    }

    /// As [`Self::connect_http2`], for a server that may be gone.
    pub(crate) async fn try_http2(&self) -> std::io::Result<TlsStream<TcpStream>> {
        let mut config = (*self.config).clone();
        config.alpn_protocols = vec![b"h2".to_vec()];
        let stream = self.reach().await?;
        let connector = TlsConnector::from(Arc::new(config));
        let stream = connector.connect(ServerName::try_from(SERVICE).unwrap(), stream).await?;
        assert_eq!(stream.get_ref().1.alpn_protocol(), Some(b"h2".as_slice()));
        Ok(stream)
    }

    /// An HTTP/2 connection, to be driven by the caller.
    pub(crate) async fn http2(
        &self,
    ) -> (impl Future<Output = hyper::Result<()>> + use<>, SendRequest<Full<bytes::Bytes>>) {
        let stream = self.connect_http2().await;
        let executor = hyper_util::rt::TokioExecutor::new();
        let mut builder = hyper::client::conn::http2::Builder::new(executor);
        // A small window, so that a stream of which the client reads little soon stalls.
        builder.initial_stream_window_size(64 * 1024);
        let (sender, connection) = builder.handshake(TokioIo::new(stream)).await.unwrap();
        (connection, sender)
    }

    /// Sends requests at one time over one HTTP/2 connection, as the aggregator does.
    pub(crate) async fn send_together(&self, requests: Vec<Request<String>>) -> Vec<Reply> {
        let (connection, sender) = self.http2().await;
        let asked = futures::future::join_all(requests.into_iter().map(|request| {
            let mut sender = sender.clone();
            async move {
                let (mut parts, body) = request.into_parts();
                parts.uri = format!("https://{SERVICE}{}", parts.uri).parse().unwrap();
                let request = Request::from_parts(parts, Full::new(bytes::Bytes::from(body)));
                let (parts, body) = sender.send_request(request).await.unwrap().into_parts();
                let body = body.collect().await.unwrap().to_bytes();
                let body = String::from_utf8_lossy(&body).into_owned();
                Reply { status: parts.status.as_u16(), headers: parts.headers, body }
            }
        }));
        let mut asked = std::pin::pin!(asked);
        tokio::select! {
            replies = asked.as_mut() => replies,
            ended = connection => {
                ended.unwrap();
                asked.await
            }
        }
    }

    pub(crate) async fn get(&self, path: &str) -> Reply {
        self.send(Request::get(path).body(String::new()).unwrap()).await.unwrap()
    }

    /// Writes bytes and reads until the server closes.
    pub(crate) async fn raw(&self, bytes: &str) -> String {
        let mut stream = self.connect().await.unwrap();
        stream.write_all(bytes.as_bytes()).await.unwrap();
        let mut answer = Vec::new();
        // A connection that is cut without a close_notify was closed all the same.
        drop(stream.read_to_end(&mut answer).await);
        String::from_utf8_lossy(&answer).into_owned()
    }
}

/// Trusts every server.
#[derive(Debug)]
struct Anything;

impl ServerCertVerifier for Anything {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        default_provider().signature_verification_algorithms.supported_schemes()
    }
}
