//! The status page: clusters, nodes, operations and what blocks them, on one screen.
//!
//! Owns the two paths and the access to them. All data come from a [`SnapshotSource`], so the page
//! sends no request to another server and can change nothing. It is one file that loads nothing
//! from elsewhere; what it shows is `/status.json`, which `status` makes.

mod status;

use std::{
    net::IpAddr,
    str::FromStr,
    sync::{Arc, LazyLock, Mutex, PoisonError},
    time::Duration,
};

use axum::{
    Router,
    extract::{Request, State},
    middleware::{self, Next},
    response::{IntoResponse, Response},
    routing::get,
};
use base64::{Engine, prelude::BASE64_STANDARD};
use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use sha2::{Digest, Sha256};
use tokio::time::Instant;

use super::fleet_snapshot::{FleetSnapshot, SnapshotSource};
use crate::runtime::admin::PeerAddress;

/// Which clients may read the status page.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PageAccess {
    /// Clients that connect from this machine or from within the pod. In Kubernetes, these are
    /// users who may forward a port of the pod.
    #[default]
    Local,
    /// Every client that reaches the port.
    All,
    Nobody,
}

impl FromStr for PageAccess {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "local" => Ok(Self::Local),
            "all" => Ok(Self::All),
            "nobody" => Ok(Self::Nobody),
            _ => Err(format!("{text:?} is not one of local, all, nobody")),
        }
    }
}

const PAGE: &str = include_str!("page/page.html");

/// How long one answer is reused, so that many clients cost little.
const RECENT: Duration = Duration::from_secs(1);

/// Serves `/` and `/status.json`.
pub fn build_router(source: SnapshotSource, readers: PageAccess) -> Router {
    let response_cache = Arc::new(ResponseCache { source, last: Mutex::new(None) });
    Router::new()
        .route("/", get(async || serve_html()))
        .route("/status.json", get(serve_json))
        .with_state(response_cache)
        .layer(middleware::from_fn_with_state(readers, check_access))
}

/// Returns the body of `/status.json`.
pub fn json_of(snapshot: &FleetSnapshot) -> Vec<u8> {
    serde_json::to_vec(&status::status_page(snapshot))
        .expect("keys are texts, and nothing of it can fail")
}

struct ResponseCache {
    source: SnapshotSource,
    last: Mutex<Option<(Instant, Bytes)>>,
}

async fn serve_json(State(response_cache): State<Arc<ResponseCache>>) -> Response {
    let body = {
        let mut last_response = response_cache.last.lock().unwrap_or_else(PoisonError::into_inner);
        match &*last_response {
            Some((created_at, body)) if created_at.elapsed() < RECENT => body.clone(),
            _ => {
                let body = Bytes::from(json_of(&(response_cache.source)()));
                last_response.insert((Instant::now(), body)).1.clone()
            }
        }
    };
    let mut headers = guarded_headers();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    (headers, body).into_response()
}

fn serve_html() -> Response {
    let mut headers = guarded_headers();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/html; charset=utf-8"));
    (headers, PAGE).into_response()
}

/// Returns headers that keep browsers from doing more with an answer than showing it.
fn guarded_headers() -> HeaderMap {
    static POLICY: LazyLock<HeaderValue> = LazyLock::new(|| {
        HeaderValue::from_str(&content_security_policy())
            .expect("hashes in base64 are visible ASCII")
    });
    HeaderMap::from_iter([
        (header::CONTENT_SECURITY_POLICY, POLICY.clone()),
        (header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff")),
        (header::REFERRER_POLICY, HeaderValue::from_static("no-referrer")),
        (header::CACHE_CONTROL, HeaderValue::from_static("no-store")),
        (
            HeaderName::from_static("cross-origin-resource-policy"),
            HeaderValue::from_static("same-origin"),
        ),
    ])
}

/// Returns the content security policy: only the page's own script and style, by their hashes, and
/// requests to this server.
fn content_security_policy() -> String {
    let hash = |tag: &str| {
        let (start_tag, end_tag) = (format!("<{tag}>"), format!("</{tag}>"));
        let content = PAGE.split_once(&start_tag).and_then(|(_, rest)| rest.split_once(&end_tag));
        let digest = Sha256::digest(content.map_or("", |(content, _)| content));
        format!("'sha256-{}'", BASE64_STANDARD.encode(digest))
    };
    format!(
        "default-src 'none'; script-src {}; style-src {}; connect-src 'self'; img-src data:; \
         base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
        hash("script"),
        hash("style")
    )
}

async fn check_access(State(readers): State<PageAccess>, request: Request, next: Next) -> Response {
    let refusal = match readers {
        PageAccess::All => None,
        PageAccess::Nobody => Some((StatusCode::NOT_FOUND, "the status page is turned off\n")),
        PageAccess::Local if is_local(&request) => None,
        PageAccess::Local => Some((
            StatusCode::FORBIDDEN,
            "the status page answers clients on this machine or in this pod: forward the port, and \
             ask for localhost\n",
        )),
    };
    match refusal {
        Some(refusal) => refusal.into_response(),
        None => next.run(request).await,
    }
}

/// Returns whether the request comes from this machine, and its Host header names this machine. Any
/// other name may belong to an attacker who makes it resolve to this machine.
fn is_local(request: &Request) -> bool {
    let peer = request.extensions().get::<PeerAddress>();
    let host = request.headers().get(header::HOST).and_then(|host| host.to_str().ok());
    peer.is_some_and(|PeerAddress(address)| address.to_canonical().is_loopback())
        && host.is_some_and(means_local)
}

fn means_local(host: &str) -> bool {
    let Ok(authority) = host.parse::<http::uri::Authority>() else { return false };
    let name = authority.host().trim_start_matches('[').trim_end_matches(']');
    let address = name.parse::<IpAddr>();
    name.eq_ignore_ascii_case("localhost")
        || address.is_ok_and(|address| address.to_canonical().is_loopback())
}

#[cfg(test)]
mod tests {
    use axum::body::Body;
    use tower::ServiceExt;

    use super::*;

    async fn code(readers: PageAccess, peer: Option<&str>, host: &str, path: &str) -> u16 {
        let router = build_router(Arc::new(|| FleetSnapshot::empty(Vec::new())), readers);
        let mut request =
            Request::get(path).header(header::HOST, host).body(Body::empty()).unwrap();
        request.extensions_mut().extend(
            peer.map(|peer| PeerAddress(peer.parse().unwrap()))
                .map(|peer| {
                    let mut extensions = http::Extensions::new();
                    extensions.insert(peer);
                    extensions
                })
                .unwrap_or_default(),
        );
        router.oneshot(request).await.unwrap().status().as_u16()
    }

    #[tokio::test]
    async fn only_who_connects_from_here_and_asks_for_here_reads_the_page() {
        for path in ["/", "/status.json"] {
            for (peer, host, wanted) in [
                (Some("127.0.0.1"), "localhost:8080", 200),
                (Some("::1"), "[::1]:8080", 200),
                (Some("::ffff:127.0.0.1"), "127.0.0.1", 200),
                (Some("10.0.0.7"), "localhost:8080", 403),
                (Some("127.0.0.1"), "10.0.0.7:8080", 403),
                // A name that belongs to an attacker and resolves to this machine.
                (Some("127.0.0.1"), "rebound.example:8080", 403),
                (Some("127.0.0.1"), "localhost.example", 403),
                (Some("127.0.0.1"), "", 403),
                (None, "localhost", 403),
            ] {
                assert_eq!(
                    code(PageAccess::Local, peer, host, path).await,
                    wanted,
                    "{peer:?} {host}"
                );
            }
            assert_eq!(code(PageAccess::All, Some("10.0.0.7"), "x", path).await, 200);
            assert_eq!(code(PageAccess::Nobody, Some("127.0.0.1"), "localhost", path).await, 404);
        }
    }

    #[tokio::test]
    async fn many_who_ask_cost_one_look() {
        let looks = Arc::new(std::sync::atomic::AtomicUsize::new(0));
        let counted = Arc::clone(&looks);
        let source: SnapshotSource = Arc::new(move || {
            counted.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            FleetSnapshot::empty(Vec::new())
        });
        tokio::time::pause();
        let router = build_router(source, PageAccess::All);
        let ask = async || {
            let request = Request::get("/status.json").body(Body::empty()).unwrap();
            assert_eq!(router.clone().oneshot(request).await.unwrap().status(), 200);
        };
        for _ in 0..10 {
            ask().await;
        }
        assert_eq!(looks.load(std::sync::atomic::Ordering::Relaxed), 1);
        tokio::time::advance(RECENT).await;
        ask().await;
        assert_eq!(looks.load(std::sync::atomic::Ordering::Relaxed), 2);
    }

    #[test]
    fn the_page_has_one_script_and_one_style_and_nothing_from_elsewhere() {
        assert_eq!(PAGE.matches("<script").count(), 1);
        assert_eq!(PAGE.matches("<script>").count(), 1);
        assert_eq!(PAGE.matches("<style>").count(), 1);
        for word in
            [" style=", " onclick", "innerHTML", "http://", "https://", " src=", "@import", "url("]
        {
            assert!(!PAGE.contains(word), "{word}");
        }
    }
}
