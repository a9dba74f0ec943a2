//! What this server serves: groups, versions, resources, OpenAPI, its own version.
//!
//! Owns the documents and their ETags, which do not change while the process lives. OpenAPI and
//! aggregated discovery are built once each, for the first client that asks: a start does not wait
//! for large documents that no client may want. Does not redirect: through the aggregator that is
//! an error.

mod documents;

use std::{
    collections::BTreeMap,
    sync::{Arc, OnceLock},
};

use axum::body::Body;
use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Response, StatusCode, header};
use serde_json::Value;
use sha2::{Digest as _, Sha512};

use super::{
    negotiate::{AcceptClause, ResponseFormat, accept_text, gzip_parts, parse_accept, takes_gzip},
    request_cost,
    status::{ApiError, Result},
    url::Query,
};
use crate::machinery::{openapi, served_kinds::ServedKinds};

/// Media type of aggregated discovery. Without its parameters clients read another version.
const AGGREGATED: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";

/// Bytes that making a document is counted as: it takes milliseconds, like work on a body of this
/// size.
const LARGE: usize = 1024 * 1024;

const JSON: &str = "application/json";
/// Media type of OpenAPI version 3 in protobuf, and below the older name that clients may use.
const PROTOBUF: &str = "application/com.github.proto-openapi.spec.v3.v1.0+protobuf";
const OLDER_PROTOBUF: &str = "application/com.github.proto-openapi.spec.v3@v1.0+protobuf";

/// The discovery documents of this server, by path.
pub(super) struct Discovery {
    /// Aggregated discovery of the named groups; `core` is that of the core group, if it is served.
    aggregated: DiscoveryDocument,
    core: Option<DiscoveryDocument>,
    documents: BTreeMap<String, Value>,
    openapi: BTreeMap<String, Arc<DiscoveryDocument>>,
}

/// A document that is made for the first client, and then kept in its encoded forms.
struct DiscoveryDocument {
    make: Box<dyn Fn() -> Value + Send + Sync>,
    json: OnceLock<TaggedDocument>,
    /// The document in protobuf; absent for documents that have no such form.
    protobuf: Option<OnceLock<EncodedDocument>>,
}

struct TaggedDocument {
    packed: EncodedDocument,
    /// SHA-512 of the JSON in upper-case hex; the ETag of the other forms, too.
    hash: String,
}

/// An encoded document, plain and compressed with gzip.
struct EncodedDocument {
    plain: Bytes,
    gzipped: Bytes,
}

impl EncodedDocument {
    fn new(plain: Vec<u8>) -> Self {
        Self { gzipped: gzip_parts([plain.as_slice()]).into(), plain: plain.into() }
    }
}

impl DiscoveryDocument {
    fn new(make: impl Fn() -> Value + Send + Sync + 'static) -> Self {
        Self { make: Box::new(make), json: OnceLock::new(), protobuf: None }
    }

    /// Creates a document of OpenAPI version 3, which has a form in protobuf.
    fn for_openapi(make: impl Fn() -> Value + Send + Sync + 'static) -> Self {
        Self { protobuf: Some(OnceLock::new()), ..Self::new(make) }
    }

    fn json(&self) -> &TaggedDocument {
        let make = || {
            let json = (self.make)().to_string().into_bytes();
            let hash = format!("{:X}", Sha512::digest(&json));
            TaggedDocument { packed: EncodedDocument::new(json), hash }
        };
        self.json.get_or_init(|| request_cost::run_blocking(LARGE, make))
    }

    /// Returns the document in protobuf, if it has that form.
    fn protobuf(&self) -> Option<&EncodedDocument> {
        let make = || EncodedDocument::new(openapi::protobuf::encode_document(&(self.make)()));
        self.protobuf
            .as_ref()
            .map(|document| document.get_or_init(|| request_cost::run_blocking(LARGE, make)))
    }

    fn etag(&self) -> String {
        format!("\"{}\"", self.json().hash)
    }
}

impl Discovery {
    pub(super) fn new(scheme: &'static ServedKinds) -> Self {
        let mut documents = BTreeMap::new();
        let groups = scheme.groups();
        documents.insert("/apis".to_owned(), documents::build_group_list(&groups));
        for (group, versions) in &groups {
            if group.is_empty() {
                documents.insert("/api".into(), documents::build_core_versions());
            } else {
                documents.insert(format!("/apis/{group}"), documents::build_group(group, versions));
            }
            for version in versions {
                let path = documents::version_path(group, *version);
                documents.insert(
                    format!("/{path}"),
                    documents::build_resource_list(scheme, group, *version),
                );
            }
        }
        documents.insert("/version".into(), documents::build_version());

        let mut specs = BTreeMap::new();
        let group = scheme.group();
        for &version in group.versions {
            let document =
                DiscoveryDocument::for_openapi(move || openapi::build_v3(scheme, version));
            specs.insert(documents::version_path(group.name, version), Arc::new(document));
        }
        for (group, versions) in groups.iter().filter(|(name, _)| *name != group.name) {
            for version in versions {
                let (group, version) = (*group, *version);
                let document = DiscoveryDocument::for_openapi(move || {
                    openapi::foreign::build_v3(scheme, group, version)
                });
                specs.insert(documents::version_path(group, version), Arc::new(document));
            }
        }
        let mut openapi: BTreeMap<String, Arc<DiscoveryDocument>> = specs
            .iter()
            .map(|(name, document)| (format!("/openapi/v3/{name}"), Arc::clone(document)))
            .collect();
        let index = DiscoveryDocument::new(move || {
            let hash = |(name, document): (&String, &Arc<DiscoveryDocument>)| {
                (name.clone(), document.json().hash.clone())
            };
            documents::openapi_index(&specs.iter().map(hash).collect())
        });
        openapi.insert("/openapi/v3".into(), Arc::new(index));
        openapi.insert(
            "/openapi/v2".into(),
            Arc::new(DiscoveryDocument::new(move || openapi::build_v2(scheme))),
        );

        let mut paths: Vec<String> = documents.keys().chain(openapi.keys()).cloned().collect();
        paths.extend(["/healthz", "/livez", "/metrics", "/readyz"].map(str::to_owned));
        paths.sort();
        documents.insert("/".into(), serde_json::json!({"paths": paths}));
        let (core_groups, named_groups): (Vec<_>, Vec<_>) =
            groups.into_iter().partition(|(group, _)| group.is_empty());
        let aggregated = |groups: Vec<_>| {
            DiscoveryDocument::new(move || documents::build_aggregated(scheme, &groups))
        };
        let core = (!core_groups.is_empty()).then(|| aggregated(core_groups));
        Self { aggregated: aggregated(named_groups), core, documents, openapi }
    }

    pub(super) fn respond(
        &self,
        path: &str,
        headers: &HeaderMap,
        query: &Query,
    ) -> Result<Response<Body>> {
        let trimmed_path = if path.len() > 1 { path.trim_end_matches('/') } else { path };
        if let Some(document) = self.openapi.get(trimmed_path) {
            return openapi_response(document, headers, query);
        }
        if trimmed_path == "/apis" && wants_aggregated(headers) {
            return Ok(aggregated_response(&self.aggregated, headers));
        }
        if let Some(core) = self.core.as_ref().filter(|_| trimmed_path == "/api")
            && wants_aggregated(headers)
        {
            return Ok(aggregated_response(core, headers));
        }
        let document = self.documents.get(trimmed_path).ok_or_else(ApiError::no_such_resource)?;
        let output = ResponseFormat::negotiate_document(headers, query)?;
        let mut response = output.respond(StatusCode::OK, document)?;
        if matches!(trimmed_path, "/api" | "/apis") {
            let vary = HeaderValue::from_static("Accept");
            response.headers_mut().insert(header::VARY, vary);
        }
        Ok(response)
    }
}

/// Tells whether the client wants the aggregated form of `/api` or `/apis`: the first clause of its
/// Accept header that can be served decides.
fn wants_aggregated(headers: &HeaderMap) -> bool {
    for clause in parse_accept(&accept_text(headers)) {
        if !matches!(clause.media_type, "application/json" | "*/*" | "application/*") {
            continue;
        }
        match (clause.parameter("g"), clause.parameter("v"), clause.parameter("as")) {
            (Some("apidiscovery.k8s.io"), Some("v2"), Some("APIGroupDiscoveryList")) => {
                return true;
            }
            (_, _, None) => return false,
            _ => {}
        }
    }
    false
}

fn aggregated_response(document: &DiscoveryDocument, headers: &HeaderMap) -> Response<Body> {
    let mut response = tagged_response(document, &document.json().packed, headers, AGGREGATED);
    let headers = response.headers_mut();
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("public"));
    headers.insert(header::VARY, HeaderValue::from_static("Accept"));
    response
}

/// Responds with OpenAPI in the first form that the client names and the document has. A stale
/// `hash` gets the current document; the Go server would redirect.
fn openapi_response(
    document: &DiscoveryDocument,
    headers: &HeaderMap,
    query: &Query,
) -> Result<Response<Body>> {
    let accept = accept_text(headers);
    let json = || Some((JSON, &document.json().packed));
    let encode_clause = |clause: &AcceptClause<'_>| match clause.media_type {
        JSON | "*/*" | "application/*" => json(),
        PROTOBUF | OLDER_PROTOBUF => document.protobuf().map(|packed| (PROTOBUF, packed)),
        _ => None,
    };
    let encoded_form = if accept.trim().is_empty() {
        json()
    } else {
        parse_accept(&accept).iter().find_map(encode_clause)
    };
    let Some((content_type, packed)) = encoded_form else {
        let protobuf =
            document.protobuf.as_ref().map_or(String::new(), |_| format!(", {PROTOBUF}"));
        return Err(ApiError::not_acceptable(format!(
            "only the following media types are accepted: {JSON}{protobuf}"
        )));
    };
    let mut response = tagged_response(document, packed, headers, content_type);
    let headers = response.headers_mut();
    headers.append(header::VARY, HeaderValue::from_static("Accept"));
    if query.text("hash") == document.json().hash {
        let immutable = HeaderValue::from_static("public, immutable");
        headers.insert(header::CACHE_CONTROL, immutable);
        let year = jiff::SignedDuration::from_hours(365 * 24);
        let expires = jiff::Timestamp::now() + year;
        let text = expires.strftime("%a, %d %b %Y %H:%M:%S GMT").to_string();
        if let Ok(value) = HeaderValue::try_from(text) {
            headers.insert(header::EXPIRES, value);
        }
    }
    Ok(response)
}

/// Responds with a document and its ETag; 304 when the client has that document.
fn tagged_response(
    document: &DiscoveryDocument,
    packed: &EncodedDocument,
    headers: &HeaderMap,
    content_type: &'static str,
) -> Response<Body> {
    let etag = document.etag();
    let header_values = headers.get_all(header::IF_NONE_MATCH).iter();
    let client_tags = header_values.filter_map(|value| value.to_str().ok());
    let is_unchanged = client_tags.flat_map(|value| value.split(',')).any(|tag| {
        let tag = tag.trim();
        tag == "*" || tag.strip_prefix("W/").unwrap_or(tag) == etag
    });
    let mut response = Response::new(Body::empty());
    let etag = HeaderValue::try_from(etag).expect("hex between quotes is a header value");
    response.headers_mut().insert(header::ETAG, etag);
    if is_unchanged {
        *response.status_mut() = StatusCode::NOT_MODIFIED;
        return response;
    }
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    if takes_gzip(headers) {
        let fields = response.headers_mut();
        fields.insert(header::CONTENT_ENCODING, HeaderValue::from_static("gzip"));
        fields.append(header::VARY, HeaderValue::from_static("Accept-Encoding"));
        *response.body_mut() = Body::from(packed.gzipped.clone());
    } else {
        *response.body_mut() = Body::from(packed.plain.clone());
    }
    response
}
