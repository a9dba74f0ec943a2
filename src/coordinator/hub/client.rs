//! Requests to a hub: HTTPS, ten seconds, no redirects, and answers of a bounded size.

use std::{
    collections::BTreeMap,
    net::{IpAddr, Ipv4Addr},
    path::{Path, PathBuf},
    time::Duration,
};

use bytes::Bytes;
use http::{
    HeaderMap, HeaderValue, Request, StatusCode, Uri,
    header::{ACCEPT, AUTHORIZATION, ETAG, IF_NONE_MATCH, InvalidHeaderValue, USER_AGENT},
    uri::Scheme,
};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use kube::{Client, client::Body};
use prometheus::IntCounterVec;
use tokio::{fs, time::timeout};

use crate::{coordinator::AGENT, engine::hub::AnswerFault, error::chain};

/// Time in which an answer must be there, whole.
const REQUEST: Duration = Duration::from_secs(10);
/// Most bytes of one answer.
const ANSWER: usize = 3 << 20;
/// Most bytes of all answers of one round, which are kept until the next one.
const ROUND: usize = 16 << 20;
/// Files of the folder with the credentials.
const TOKEN: &str = "token";
const AUTHORITIES: &str = "ca.crt";

/// Why the hub cannot be asked, or its answer is not taken.
#[derive(Debug, thiserror::Error)]
pub(crate) enum HubError {
    #[error("failed to read {path:?}")]
    Credentials { path: PathBuf, source: std::io::Error },
    #[error("the token in {path:?} is empty or of more than one line")]
    Token { path: PathBuf },
    #[error("the client cannot be made")]
    Client(#[source] Box<kube::Error>),
    #[error("{path}: no answer")]
    Request { path: String, source: Box<kube::Error> },
    #[error("{path}: no whole answer within {} s", REQUEST.as_secs())]
    Late { path: String },
    #[error("{path}: answered with {code}")]
    Status { path: String, code: StatusCode },
    #[error("{path}: the answer is longer than {} MiB", ANSWER >> 20)]
    Long { path: String },
    #[error("the answers are longer than {} MiB together", ROUND >> 20)]
    Full,
    #[error("{path}: the answer broke off: {why}")]
    Broken { path: String, why: String },
    #[error("{path}: the answer is not believed")]
    Answer { path: String, source: AnswerFault },
}

/// Checks the address of a hub: HTTPS, or HTTP to a loopback address.
///
/// # Errors
/// A sentence for the user.
pub fn hub_address(text: &str) -> Result<Uri, String> {
    let uri: Uri = text.parse().map_err(|error| format!("{text:?} is no URL: {error}"))?;
    let (Some(scheme), Some(host)) = (uri.scheme(), uri.host()) else {
        return Err(format!("{text:?} must begin with https:// and name a host"));
    };
    let host: Option<IpAddr> = host.trim_start_matches('[').trim_end_matches(']').parse().ok();
    let is_local = host.unwrap_or(Ipv4Addr::UNSPECIFIED.into()).is_loopback();
    if *scheme != Scheme::HTTPS && !(*scheme == Scheme::HTTP && is_local) {
        return Err(format!("{text:?} must begin with https://"));
    }
    let authority = uri.authority().map_or("", |authority| authority.as_str());
    if uri.query().is_some() || authority.contains('@') || text.contains('#') {
        return Err(format!("{text:?} must be an address and a path, and nothing more"));
    }
    Ok(uri)
}

/// Asks a hub, and knows the answers of the round before.
pub(crate) struct HubClient {
    address: Uri,
    /// Folder with the token, and with the authorities that sign the hub's certificate.
    folder: PathBuf,
    client: Option<Client>,
    requests: IntCounterVec,
    /// Answers by path, with their entity tags.
    known: BTreeMap<String, (HeaderValue, Bytes)>,
}

/// The answers of one round.
pub(crate) struct HubRound {
    client: Client,
    token: String,
    fresh: BTreeMap<String, (HeaderValue, Bytes)>,
    bytes: usize,
}

impl HubRound {
    /// Returns the token of this round.
    pub(crate) fn token(&self) -> &str {
        &self.token
    }
}

impl HubClient {
    pub(crate) fn new(address: Uri, folder: PathBuf, requests: IntCounterVec) -> Self {
        Self { address, folder, client: None, requests, known: BTreeMap::new() }
    }

    /// Begins a round: reads the token, which may be another one by now.
    pub(crate) async fn begin_round(&mut self) -> Result<HubRound, HubError> {
        let path = self.folder.join(TOKEN);
        let token = match fs::read_to_string(&path).await {
            Ok(text) => text.trim().to_owned(),
            Err(source) => return Err(HubError::Credentials { path, source }),
        };
        if token.is_empty() || token.contains(char::is_control) {
            return Err(HubError::Token { path });
        }
        let client = match &self.client {
            Some(client) => client.clone(),
            None => self.build_client().await?,
        };
        self.client = Some(client.clone());
        Ok(HubRound { client, token, fresh: BTreeMap::new(), bytes: 0 })
    }

    /// Ends a round. A hub that is asked again is asked whether its answers changed.
    pub(crate) fn end_round(&mut self, round: HubRound) {
        self.known = round.fresh;
    }

    async fn build_client(&self) -> Result<Client, HubError> {
        let mut config = kube::Config::new(self.address.clone());
        config.default_retry = false;
        config.connect_timeout = Some(REQUEST);
        let authorities = self.folder.join(AUTHORITIES);
        if path_exists(&authorities).await? {
            // The file is read again by the client, about once a minute.
            config.root_cert = Some(Vec::new());
            config.root_cert_file = Some(authorities);
        }
        Client::try_from(config).map_err(|error| HubError::Client(Box::new(error)))
    }

    /// Asks for a path and returns the whole answer, which is the one before where that did not change.
    pub(crate) async fn get(&self, round: &mut HubRound, path: &str) -> Result<Bytes, HubError> {
        let answer_result = timeout(REQUEST, self.send_request(round, path)).await;
        let answer_result =
            answer_result.unwrap_or_else(|_| Err(HubError::Late { path: path.to_owned() }));
        let code = match &answer_result {
            Ok((code, ..)) | Err(HubError::Status { code, .. }) => code.as_str().to_owned(),
            Err(_) => "error".to_owned(),
        };
        self.requests.with_label_values(&[code.as_str()]).inc();
        let (_, headers, body) = answer_result?;
        round.bytes += body.len();
        if round.bytes > ROUND {
            return Err(HubError::Full);
        }
        if let Some(tag) = headers.get(ETAG) {
            round.fresh.insert(path.to_owned(), (tag.clone(), body.clone()));
        }
        Ok(body)
    }

    async fn send_request(
        &self,
        round: &HubRound,
        path: &str,
    ) -> Result<(StatusCode, HeaderMap, Bytes), HubError> {
        let owned_path = || path.to_owned();
        let token: Result<HeaderValue, InvalidHeaderValue> =
            format!("JWT {}", round.token).try_into();
        let mut token = token.map_err(|_| HubError::Token { path: self.folder.join(TOKEN) })?;
        token.set_sensitive(true);
        let mut request = Request::get(path)
            .header(AUTHORIZATION, token)
            .header(ACCEPT, "application/json")
            .header(USER_AGENT, AGENT);
        let cached_answer = self.known.get(path);
        if let Some((tag, _)) = cached_answer {
            request = request.header(IF_NONE_MATCH, tag);
        }
        let request = request.body(Body::empty()).expect("paths of a hub are valid");
        let answer = round.client.send(request).await;
        let answer = answer
            .map_err(|error| HubError::Request { path: owned_path(), source: Box::new(error) })?;
        let (head, body) = answer.into_parts();
        if let (StatusCode::NOT_MODIFIED, Some((tag, body))) = (head.status, cached_answer) {
            return Ok((head.status, HeaderMap::from_iter([(ETAG, tag.clone())]), body.clone()));
        }
        // A redirect leads to where the token is not to be sent.
        if head.status != StatusCode::OK {
            return Err(HubError::Status { path: owned_path(), code: head.status });
        }
        let body = Limited::new(body, ANSWER).collect().await.map_err(|error| {
            if error.is::<LengthLimitError>() {
                HubError::Long { path: owned_path() }
            } else {
                HubError::Broken { path: owned_path(), why: chain(&*error).to_string() }
            }
        })?;
        Ok((head.status, head.headers, body.to_bytes()))
    }
}

async fn path_exists(path: &Path) -> Result<bool, HubError> {
    let exists_result = fs::try_exists(path).await;
    exists_result.map_err(|source| HubError::Credentials { path: path.to_owned(), source })
}

#[cfg(test)]
mod tests {
    use std::{convert::Infallible, sync::Arc};

    use http::Response;
    use http_body_util::Full;
    use hyper::{server::conn::http1, service::service_fn};
    use hyper_util::rt::TokioIo;
    use rustls::{ServerConfig, pki_types::PrivateKeyDer};
    use tokio::{net::TcpListener, task::JoinSet};
    use tokio_rustls::TlsAcceptor;

    use super::*;
    use crate::coordinator::metrics::Metrics;

    #[tokio::test]
    async fn a_hub_is_known_by_the_authorities_in_the_folder() {
        let [own, other] = [(), ()]
            .map(|()| rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).unwrap());
        let key = PrivateKeyDer::try_from(own.signing_key.serialize_der()).unwrap();
        let config =
            ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
                .with_safe_default_protocol_versions()
                .unwrap()
                .with_no_client_auth()
                .with_single_cert(vec![own.cert.der().clone()], key)
                .unwrap();
        let acceptor = TlsAcceptor::from(Arc::new(config));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = format!("https://{}", listener.local_addr().unwrap());
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                // A client that does not trust this server goes away.
                let Ok(stream) = acceptor.accept(stream).await else { continue };
                let answer = service_fn(|_: Request<hyper::body::Incoming>| async {
                    Ok::<_, Infallible>(Response::new(Full::new(Bytes::from_static(b"[]"))))
                });
                drop(http1::Builder::new().serve_connection(TokioIo::new(stream), answer).await);
            }
        });
        for (authority, good) in [(&other, false), (&own, true)] {
            let folder = tempfile::tempdir().unwrap();
            let address = hub_address(&address).unwrap();
            let requests = Metrics::new().hub_requests;
            let mut client = HubClient::new(address, folder.path().to_owned(), requests.clone());
            assert!(matches!(client.begin_round().await, Err(HubError::Credentials { .. })));
            for (token, taken) in [("", false), ("a\nb", false), (" a \n", true)] {
                std::fs::write(folder.path().join(TOKEN), token).unwrap();
                std::fs::write(folder.path().join(AUTHORITIES), authority.cert.pem()).unwrap();
                assert_eq!(client.begin_round().await.is_ok(), taken, "{token:?}");
            }
            let mut round = client.begin_round().await.unwrap();
            let answer =
                client.get(&mut round, "/v3").await.map_err(|error| chain(&error).to_string());
            assert_eq!(answer.is_ok(), good, "{answer:?}");
            let code = if good { "200" } else { "error" };
            assert_eq!(requests.with_label_values(&[code]).get(), 1);
        }
    }

    #[test]
    fn a_hub_is_reached_by_https_or_on_this_machine() {
        for good in [
            "https://hub.example.org",
            "https://hub.example.org:8443/api",
            "https://10.0.0.1",
            "http://127.0.0.1:8080",
            "http://[::1]:8080/",
        ] {
            assert_eq!(hub_address(good).map(|uri| uri.host().is_some()), Ok(true), "{good}");
        }
        for bad in [
            "hub.example.org",
            "http://hub.example.org",
            "http://localhost",
            "http://10.0.0.1",
            "http://127.0.0.1.example.org",
            "ftp://127.0.0.1",
            "https://user:password@hub.example.org",
            "https://hub.example.org?a=b",
            "https://hub.example.org#a",
            "https://",
            "/etc",
            "",
        ] {
            assert!(hub_address(bad).is_err(), "{bad}");
        }
    }
}
