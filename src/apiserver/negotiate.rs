//! Content negotiation: which form the client wants to read, and which form it wrote.
//!
//! Owns Accept, Content-Type, `pretty` and gzip (apiserver `pkg/endpoints/handlers/negotiation`).
//! Protobuf is served of metadata and Status alone, as for CustomResources. Other clauses of it,
//! and those of CBOR, are skipped: stock clients name JSON in addition to them.

use std::io::Write as _;

use axum::body::Body;
use bytes::Bytes;
use flate2::{Compression, write::GzEncoder};
use http::{HeaderMap, Response, StatusCode, header};
use serde_json::Value;

use super::{
    protobuf, request_cost,
    response_body::in_parts,
    status::{ApiError, Result},
    streamed_body::{GzippedPieces, in_pieces},
    url::Query,
};
use crate::machinery::decode::{self, ParsedBody};

/// Bodies above this many bytes are compressed for clients that take gzip.
const GZIP_ABOVE: usize = 128 * 1024;

/// Placeholder for the items of a list that are written one by one.
pub const ITEM: &str = "the-items-of-this-list";

/// How a body is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BodyEncoding {
    Json,
    Yaml,
    /// Protobuf, for metadata alone and for Status.
    Protobuf,
}

/// The form in which an object is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ObjectView {
    Object,
    Table,
    PartialObjectMetadata,
    PartialObjectMetadataList,
}

/// The JSON form of a Status that is sent as protobuf; kept in the response's extensions for the
/// audit trail.
#[derive(Clone)]
pub(super) struct SentStatus(pub(super) String);

/// The form of a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResponseFormat {
    pub encoding: BodyEncoding,
    pub view: ObjectView,
    /// Version of the view in `meta.k8s.io`: `v1` or `v1beta1`.
    pub view_version: &'static str,
    pub pretty: bool,
    gzip: bool,
}

const PLAIN: ResponseFormat = ResponseFormat {
    encoding: BodyEncoding::Json,
    view: ObjectView::Object,
    view_version: "v1",
    pretty: false,
    gzip: false,
};

impl ResponseFormat {
    /// Chooses the form of a response by Accept. The first clause that can be served wins, in order
    /// of preference.
    pub fn negotiate(headers: &HeaderMap, query: &Query) -> Result<Self> {
        let mut output = Self {
            pretty: is_pretty_requested(headers, query),
            gzip: takes_gzip(headers),
            ..PLAIN
        };
        let accept = accept_text(headers);
        if accept.trim().is_empty() {
            return Ok(output);
        }
        for clause in parse_accept(&accept) {
            let Some(encoding) = encoding_of(clause.media_type) else { continue };
            let Some((view, view_version)) = clause.view() else { continue };
            let is_metadata = matches!(
                view,
                ObjectView::PartialObjectMetadata | ObjectView::PartialObjectMetadataList
            );
            if encoding == BodyEncoding::Protobuf && !is_metadata {
                continue;
            }
            output.encoding = encoding;
            output.view = view;
            output.view_version = view_version;
            output.pretty |= clause.parameter("pretty").is_some_and(|value| value == "1");
            return Ok(output);
        }
        Err(ApiError::not_acceptable(
            "only the following media types are accepted: application/json, application/yaml, \
             application/vnd.kubernetes.protobuf",
        ))
    }

    /// Chooses the form of a Status as [`Self::negotiate`] does, by the first clause that asks for
    /// no view.
    fn negotiate_status(headers: &HeaderMap, query: &Query) -> Self {
        let accept = accept_text(headers);
        let accept = if accept.trim().is_empty() { "*/*" } else { &accept };
        let encoding = parse_accept(accept)
            .iter()
            .filter(|clause| clause.parameter("as").is_none())
            .find_map(|clause| encoding_of(clause.media_type));
        match encoding {
            Some(encoding) => {
                let (pretty, gzip) = (is_pretty_requested(headers, query), takes_gzip(headers));
                Self { encoding, pretty, gzip, ..PLAIN }
            }
            None => Self { pretty: true, ..PLAIN },
        }
    }

    /// Chooses the form of a document that is no object of a resource: JSON where
    /// [`Self::negotiate`] chooses protobuf.
    pub fn negotiate_document(headers: &HeaderMap, query: &Query) -> Result<Self> {
        let output = Self::negotiate(headers, query)?;
        match output.encoding {
            BodyEncoding::Protobuf => Ok(Self { encoding: BodyEncoding::Json, ..output }),
            BodyEncoding::Json | BodyEncoding::Yaml => Ok(output),
        }
    }

    /// Chooses the form of a stream of objects as [`Self::negotiate`] does. Fails for YAML.
    pub fn negotiate_stream(headers: &HeaderMap, query: &Query) -> Result<Self> {
        let output = Self::negotiate(headers, query)?;
        if output.encoding == BodyEncoding::Yaml {
            return Err(ApiError::not_acceptable(
                "only the following media types are accepted: application/json, \
                 application/json;stream=watch",
            ));
        }
        Ok(Self { pretty: false, gzip: false, ..output })
    }

    pub fn content_type(&self) -> &'static str {
        match self.encoding {
            BodyEncoding::Json => "application/json",
            BodyEncoding::Yaml => "application/yaml",
            BodyEncoding::Protobuf => protobuf::MEDIA_TYPE,
        }
    }

    fn encode(&self, value: &Value) -> Result<Vec<u8>> {
        match self.encoding {
            BodyEncoding::Json => Ok(json_bytes(value, self.pretty)),
            BodyEncoding::Yaml => serde_yaml::to_string(value)
                .map(String::into_bytes)
                .map_err(ApiError::internal_error),
            BodyEncoding::Protobuf => protobuf::encode_object(value).ok_or_else(|| {
                ApiError::internal_error(format!("{} has no protobuf form", value["kind"]))
            }),
        }
    }

    /// Tells whether the form is JSON without spaces, which the cache holds.
    pub fn is_compact_json(&self) -> bool {
        self.encoding == BodyEncoding::Json && !self.pretty
    }

    /// Returns the response that carries `value`.
    pub fn respond(&self, code: StatusCode, value: &Value) -> Result<Response<Body>> {
        let response = self.respond_bytes(code, self.encode(value)?)?;
        Ok(self.attach_status(value, response))
    }

    fn attach_status(&self, value: &Value, mut response: Response<Body>) -> Response<Body> {
        if self.encoding == BodyEncoding::Protobuf && value["kind"] == "Status" {
            response.extensions_mut().insert(SentStatus(value.to_string()));
        }
        response
    }

    /// Returns the response that carries `bytes`, which are of the negotiated type.
    fn respond_bytes(&self, code: StatusCode, mut bytes: Vec<u8>) -> Result<Response<Body>> {
        let is_compressed = self.gzip && bytes.len() > GZIP_ABOVE;
        if is_compressed {
            bytes = request_cost::run_blocking(bytes.len(), || gzip_parts([bytes.as_slice()]));
        }
        self.build_head(code, is_compressed)
            .body(Body::from(bytes))
            .map_err(ApiError::internal_error)
    }

    /// Returns the response that carries `parts` one after the other. They are of the negotiated
    /// type, and may be shared with other responses.
    pub fn respond_parts(&self, code: StatusCode, parts: Vec<Bytes>) -> Result<Response<Body>> {
        let length: usize = parts.iter().map(Bytes::len).sum();
        if !self.gzip || length <= GZIP_ABOVE {
            return self
                .build_head(code, false)
                .body(in_parts(parts))
                .map_err(ApiError::internal_error);
        }
        self.respond_pieces(code, parts.into_iter())
    }

    /// Returns the response that carries `pieces`, each made when it is sent. They are of the
    /// negotiated type, and many.
    pub fn respond_pieces(
        &self,
        code: StatusCode,
        pieces: impl Iterator<Item = Bytes> + Send + Unpin + 'static,
    ) -> Result<Response<Body>> {
        let body =
            if self.gzip { in_pieces(GzippedPieces::new(pieces)) } else { in_pieces(pieces) };
        self.build_head(code, self.gzip).body(body).map_err(ApiError::internal_error)
    }

    /// Splits the text of `list`, whose only item is [`ITEM`]: returns what stands before, between
    /// and behind its items.
    pub fn around_items(&self, list: &Value) -> Result<[String; 3]> {
        let text = String::from_utf8(self.encode(list)?).map_err(ApiError::internal_error)?;
        let mark = if self.encoding == BodyEncoding::Yaml {
            ITEM.to_owned()
        } else {
            format!("\"{ITEM}\"")
        };
        let (prefix, suffix) = text
            .split_once(&mark)
            .ok_or_else(|| ApiError::internal_error("a list was written without its items"))?;
        let separator = match (self.encoding, self.pretty) {
            (BodyEncoding::Yaml, _) => "\n- ",
            (_, true) => ",\n    ",
            (_, false) => ",",
        };
        Ok([prefix.to_owned(), separator.to_owned(), suffix.to_owned()])
    }

    /// Returns the text of an item as it appears in a list.
    pub fn encode_item(&self, item: &Value) -> String {
        let invariant = "a Value has string keys only";
        match (self.encoding, self.pretty) {
            (BodyEncoding::Yaml, _) => {
                let text = serde_yaml::to_string(item).expect(invariant);
                indent_yaml(text.strip_suffix('\n').unwrap_or(&text))
            }
            (_, true) => {
                serde_json::to_string_pretty(item).expect(invariant).replace('\n', "\n    ")
            }
            (_, false) => item.to_string(),
        }
    }

    fn build_head(&self, code: StatusCode, is_compressed: bool) -> http::response::Builder {
        let head =
            Response::builder().status(code).header(header::CONTENT_TYPE, self.content_type());
        if !is_compressed {
            return head;
        }
        head.header(header::CONTENT_ENCODING, "gzip").header(header::VARY, "Accept-Encoding")
    }
}

/// Indents YAML by two columns, except for its first line.
fn indent_yaml(text: &str) -> String {
    let mut lines = text.split('\n');
    let mut out = lines.next().unwrap_or_default().to_owned();
    for line in lines {
        out.push_str(if line.is_empty() { "\n" } else { "\n  " });
        out.push_str(line);
    }
    out
}

/// Responds with an error in the form that the client asked for; in JSON when that cannot be found
/// out.
pub fn respond_error(headers: &HeaderMap, query: &Query, error: &ApiError) -> Response<Body> {
    let output = ResponseFormat::negotiate_status(headers, query);
    if output.encoding == BodyEncoding::Json {
        return error.to_response(output.content_type(), error.to_json(output.pretty));
    }
    let value = error.to_value();
    let bytes = output.encode(&value).unwrap_or_else(|_| error.to_json(false));
    output.attach_status(&value, error.to_response(output.content_type(), bytes))
}

/// Compresses `parts` with gzip at its fastest level.
pub(super) fn gzip_parts<'a>(parts: impl IntoIterator<Item = &'a [u8]>) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::new(1));
    for part in parts {
        encoder.write_all(part).expect("writing to a Vec cannot fail");
    }
    encoder.finish().expect("writing to a Vec cannot fail")
}

fn json_bytes(value: &Value, pretty: bool) -> Vec<u8> {
    let encoded = if pretty { serde_json::to_vec_pretty(value) } else { serde_json::to_vec(value) };
    let mut bytes = encoded.expect("a Value has string keys only");
    bytes.push(b'\n');
    bytes
}

/// Reads a body in the form that Content-Type names.
pub fn read_body(headers: &HeaderMap, body: &[u8]) -> Result<ParsedBody> {
    let encoding = match content_type(headers).as_str() {
        // A missing type is JSON.
        "" | "application/json" | "*/*" => BodyEncoding::Json,
        "application/yaml" => BodyEncoding::Yaml,
        _ => {
            return Err(ApiError::unsupported_media_type(
                "the body of the request was in an unknown format - accepted media types include: \
                 application/json, application/yaml",
            ));
        }
    };
    let document = match encoding {
        BodyEncoding::Yaml => decode::parse_yaml(body),
        BodyEncoding::Json | BodyEncoding::Protobuf => decode::parse_json(body),
    };
    document.map_err(|error| body_error(&error, "the object provided is unrecognized"))
}

/// The error for a body that was not read: 413 when it is too large, else 400 with a message that
/// begins with `context`.
pub(super) fn body_error(error: &decode::Error, context: &str) -> ApiError {
    match error {
        decode::Error::Malformed(text) => ApiError::bad_request(format!("{context}: {text}")),
        decode::Error::TooLarge(text) => {
            ApiError::too_large(format!("Request entity too large: {text}"))
        }
    }
}

/// Returns the media type of the body in lower case, without parameters.
pub fn content_type(headers: &HeaderMap) -> String {
    let text = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
    let media_type = text.unwrap_or_default().split(';').next().unwrap_or_default();
    media_type.trim().to_ascii_lowercase()
}

/// Returns the text of Accept; values of repeated headers count as one list.
pub(super) fn accept_text(headers: &HeaderMap) -> String {
    let values = headers.get_all(header::ACCEPT).iter();
    values.filter_map(|value| value.to_str().ok()).collect::<Vec<_>>().join(",")
}

pub(super) fn takes_gzip(headers: &HeaderMap) -> bool {
    headers
        .get_all(header::ACCEPT_ENCODING)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .any(|token| token.split(';').next().is_some_and(|name| name.trim() == "gzip"))
}

fn is_pretty_requested(headers: &HeaderMap, query: &Query) -> bool {
    match query.text("pretty") {
        "" => {
            let agent = headers.get(header::USER_AGENT).and_then(|value| value.to_str().ok());
            let agent = agent.unwrap_or_default();
            ["curl", "Wget", "Mozilla/5.0"].iter().any(|browser| agent.starts_with(browser))
        }
        value => !matches!(value, "0" | "false"),
    }
}

/// One clause of Accept.
#[derive(Debug)]
pub(super) struct AcceptClause<'a> {
    pub(super) media_type: &'a str,
    parameters: Vec<(&'a str, &'a str)>,
    quality: f32,
}

impl AcceptClause<'_> {
    pub(super) fn parameter(&self, name: &str) -> Option<&str> {
        self.parameters.iter().find(|(key, _)| *key == name).map(|(_, value)| *value)
    }

    /// Returns the view that the clause asks for; `None` when there is no such view.
    fn view(&self) -> Option<(ObjectView, &'static str)> {
        let Some(name) = self.parameter("as") else { return Some((ObjectView::Object, "v1")) };
        let version = match self.parameter("v")? {
            "v1" => "v1",
            "v1beta1" => "v1beta1",
            _ => return None,
        };
        if self.parameter("g") != Some("meta.k8s.io") {
            return None;
        }
        let view = match name {
            "Table" => ObjectView::Table,
            "PartialObjectMetadata" => ObjectView::PartialObjectMetadata,
            "PartialObjectMetadataList" => ObjectView::PartialObjectMetadataList,
            _ => return None,
        };
        Some((view, version))
    }
}

/// Most clauses of Accept that are read.
const CLAUSES: usize = 32;

/// Returns the clauses of Accept by descending quality; equals stay in their order. Clauses after
/// the first [`CLAUSES`] are ignored.
pub(super) fn parse_accept(accept: &str) -> Vec<AcceptClause<'_>> {
    let mut clauses: Vec<AcceptClause<'_>> = accept
        .split(',')
        .take(CLAUSES)
        .filter_map(|text| {
            let mut parts = text.split(';').map(str::trim);
            let media_type = parts.next().filter(|media_type| !media_type.is_empty())?;
            let parameters: Vec<(&str, &str)> = parts
                .filter_map(|part| part.split_once('='))
                .map(|(key, value)| (key.trim(), value.trim().trim_matches('"')))
                .collect();
            let quality = parameters
                .iter()
                .find(|(key, _)| *key == "q")
                .map_or(1.0, |(_, value)| value.parse().unwrap_or(1.0));
            (quality > 0.0).then_some(AcceptClause { media_type, parameters, quality })
        })
        .collect();
    clauses.sort_by(|a, b| b.quality.total_cmp(&a.quality));
    clauses
}

fn encoding_of(media_type: &str) -> Option<BodyEncoding> {
    match media_type {
        "application/json" | "*/*" | "application/*" => Some(BodyEncoding::Json),
        "application/yaml" => Some(BodyEncoding::Yaml),
        protobuf::MEDIA_TYPE => Some(BodyEncoding::Protobuf),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn accept(text: &str) -> HeaderMap {
        let mut headers = HeaderMap::new();
        headers.insert(header::ACCEPT, text.parse().unwrap());
        headers
    }

    #[test]
    fn the_first_clause_that_can_be_served_wins() {
        let table = "application/json;as=Table;v=v1;g=meta.k8s.io";
        for (text, encoding, view, version) in [
            ("", BodyEncoding::Json, ObjectView::Object, "v1"),
            ("*/*", BodyEncoding::Json, ObjectView::Object, "v1"),
            ("application/yaml", BodyEncoding::Yaml, ObjectView::Object, "v1"),
            (
                "text/html, application/yaml;q=0.5, */*;q=0.1",
                BodyEncoding::Yaml,
                ObjectView::Object,
                "v1",
            ),
            (
                "application/yaml;q=0.5,application/json",
                BodyEncoding::Json,
                ObjectView::Object,
                "v1",
            ),
            (table, BodyEncoding::Json, ObjectView::Table, "v1"),
            (
                "application/json;as=Table;v=v1alpha9;g=meta.k8s.io,\
                 application/json;as=Table;v=v1beta1;g=meta.k8s.io,application/json",
                BodyEncoding::Json,
                ObjectView::Table,
                "v1beta1",
            ),
            (
                "application/vnd.kubernetes.protobuf;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,\
                 application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json",
                BodyEncoding::Protobuf,
                ObjectView::PartialObjectMetadataList,
                "v1",
            ),
            (
                "application/json;as=Nope;v=v1;g=meta.k8s.io,application/json",
                BodyEncoding::Json,
                ObjectView::Object,
                "v1",
            ),
            (
                "application/vnd.kubernetes.protobuf;as=Table;g=meta.k8s.io;v=v1,application/json",
                BodyEncoding::Json,
                ObjectView::Object,
                "v1",
            ),
            (
                "application/vnd.kubernetes.protobuf,application/json",
                BodyEncoding::Json,
                ObjectView::Object,
                "v1",
            ),
        ] {
            let output = ResponseFormat::negotiate(&accept(text), &Query::default()).unwrap();
            assert_eq!(
                (output.encoding, output.view, output.view_version),
                (encoding, view, version),
                "{text}"
            );
        }
    }

    #[test]
    fn nothing_to_offer_is_406() {
        for text in ["application/vnd.kubernetes.protobuf", "text/plain", "application/cbor"] {
            let error = ResponseFormat::negotiate(&accept(text), &Query::default()).unwrap_err();
            assert_eq!(
                (error.status_code().as_u16(), error.reason()),
                (406, "NotAcceptable"),
                "{text}"
            );
        }
        assert_eq!(
            ResponseFormat::negotiate_stream(&accept("application/yaml"), &Query::default())
                .unwrap_err()
                .status_code(),
            406
        );
    }

    /// A clause that asks for a view does not count for a Status.
    #[test]
    fn a_status_has_no_view() {
        let view = "as=PartialObjectMetadata;g=meta.k8s.io;v=v1";
        for (text, encoding) in [
            (format!("{};{view}", protobuf::MEDIA_TYPE), BodyEncoding::Json),
            (format!("{};{view},application/yaml", protobuf::MEDIA_TYPE), BodyEncoding::Yaml),
            (format!("{},application/json", protobuf::MEDIA_TYPE), BodyEncoding::Protobuf),
            ("text/plain".to_owned(), BodyEncoding::Json),
        ] {
            let output = ResponseFormat::negotiate_status(&accept(&text), &Query::default());
            assert_eq!(output.encoding, encoding, "{text}");
        }
    }

    #[test]
    fn bodies_of_unknown_types_are_415() {
        let mut headers = HeaderMap::new();
        assert!(read_body(&headers, b"{}").is_ok());
        headers.insert(header::CONTENT_TYPE, "application/yaml; charset=utf-8".parse().unwrap());
        assert_eq!(read_body(&headers, b"a: 1").unwrap().value["a"], 1);
        headers.insert(header::CONTENT_TYPE, "application/cbor".parse().unwrap());
        assert_eq!(read_body(&headers, b"{}").unwrap_err().status_code(), 415);
        headers.insert(header::CONTENT_TYPE, "application/json".parse().unwrap());
        assert_eq!(read_body(&headers, b"{").unwrap_err().status_code(), 400);
    }

    #[test]
    fn people_get_pretty_output() {
        let mut headers = HeaderMap::new();
        headers.insert(header::USER_AGENT, "curl/8".parse().unwrap());
        assert!(ResponseFormat::negotiate(&headers, &Query::default()).unwrap().pretty);
        assert!(!ResponseFormat::negotiate(&headers, &Query::parse("pretty=0")).unwrap().pretty);
        assert!(
            ResponseFormat::negotiate(&HeaderMap::new(), &Query::parse("pretty=1")).unwrap().pretty
        );
        assert!(!ResponseFormat::negotiate(&HeaderMap::new(), &Query::default()).unwrap().pretty);
    }

    #[test]
    fn only_large_bodies_are_compressed() {
        let mut headers = HeaderMap::new();
        headers.insert(header::ACCEPT_ENCODING, "br, gzip;q=0.5".parse().unwrap());
        let output = ResponseFormat::negotiate(&headers, &Query::default()).unwrap();
        let small = output.respond(StatusCode::OK, &Value::String("x".repeat(1000))).unwrap();
        assert!(!small.headers().contains_key(header::CONTENT_ENCODING));
        let large = output.respond(StatusCode::OK, &Value::String("x".repeat(GZIP_ABOVE))).unwrap();
        assert_eq!(large.headers()[header::CONTENT_ENCODING], "gzip");
        assert_eq!(large.headers()[header::VARY], "Accept-Encoding");
    }
}
