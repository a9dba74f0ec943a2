//! A server that only sends: the cost of HTTP and TLS where nothing else is done. It answers every
//! GET of `/N` with N bytes out of memory, in a process of its own.

use std::{
    convert::Infallible,
    env,
    net::SocketAddr,
    sync::Arc,
    time::{Duration, Instant},
};

use bytes::Bytes;
use futures::future::join_all;
use http::{Request, Response, StatusCode};
use http_body_util::Full;
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::TokioIo;
use rustls::{
    ServerConfig,
    crypto::ring::default_provider,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _},
};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

use super::{
    client::{Ask, Protocol},
    load::count,
    servers::Bed,
};

/// The first argument of this program as a sender; its certificate and its key follow.
pub(crate) const ARGUMENT: &str = "--send";
/// How long the clients ask.
const LASTS: Duration = Duration::from_secs(2);

/// What the sender reached.
pub(crate) struct Sent {
    pub(crate) per_second: f64,
    /// Milliseconds of a processor, for one answer.
    pub(crate) milliseconds: f64,
}

/// Serves until it is killed, and prints its address.
pub(crate) async fn serve(certificate: &str, key: &str) {
    let chain: Vec<_> =
        CertificateDer::pem_file_iter(certificate).unwrap().map(Result::unwrap).collect();
    let mut provider = default_provider();
    // As the other servers do: 128 bits before 256.
    provider.cipher_suites.sort_by_key(|suite| !format!("{:?}", suite.suite()).contains("AES_128"));
    let mut config = ServerConfig::builder_with_provider(Arc::new(provider))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(chain, PrivateKeyDer::from_pem_file(key).unwrap())
        .unwrap();
    config.ignore_client_order = true;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind(SocketAddr::from(([127, 0, 0, 1], 0))).await.unwrap();
    let address = listener.local_addr().unwrap();
    eprintln!("{}", serde_json::json!({"address": address.to_string()}));
    loop {
        let (stream, _) = listener.accept().await.unwrap();
        stream.set_nodelay(true).unwrap();
        let acceptor = acceptor.clone();
        tokio::spawn(async move {
            let stream = acceptor.accept(stream).await.unwrap();
            // The task ends when the client has gone.
            let answers = service_fn(answer);
            drop(http1::Builder::new().serve_connection(TokioIo::new(stream), answers).await);
        });
    }
}

async fn answer(request: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
    static MEMORY: [u8; 64 << 20] = [b'x'; 64 << 20];
    let length: usize = request.uri().path()[1..].parse().unwrap();
    Ok(Response::new(Full::new(Bytes::from_static(&MEMORY[..length]))))
}

/// Asks for so many bytes again and again, by so many clients, over HTTP/1.1.
pub(crate) async fn measure(bed: &Bed, clients: usize, length: usize) -> Sent {
    let (process, door, _folder) = bed.sender(&env::current_exe().unwrap(), Protocol::Http1).await;
    let entered = join_all((0..clients).map(|_| door.enter())).await;
    let used = process.on_processor();
    let began = Instant::now();
    let asked = entered.into_iter().map(|client| {
        let client = client.unwrap();
        tokio::spawn(async move {
            let mut answers = 0;
            while began.elapsed() < LASTS {
                let (status, body) = client.ask(Ask::get(format!("/{length}"))).await.unwrap();
                assert_eq!((status, body.len()), (StatusCode::OK, length));
                answers += 1;
            }
            answers
        })
    });
    let answers: usize = join_all(asked).await.into_iter().map(Result::unwrap).sum();
    let took = began.elapsed();
    let used = process.on_processor().saturating_sub(used);
    Sent {
        per_second: count(answers) / took.as_secs_f64(),
        milliseconds: used.as_secs_f64() * 1000.0 / count(answers),
    }
}
