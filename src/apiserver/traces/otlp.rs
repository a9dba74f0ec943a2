//! Traces by OpenTelemetry's own crates.
//!
//! A request's span begins in [`Traces::begin`], and travels with the work as OpenTelemetry's
//! current context; [`span`] makes a child of whatever is current, and nothing where there is
//! none, or none that is recorded.

mod config;
mod export;

use std::{
    borrow::Cow,
    path::{Path, PathBuf},
    time::SystemTime,
};

use axum::body::Body;
use http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode};
use opentelemetry::{
    Context, KeyValue,
    context::FutureExt as _,
    propagation::{Extractor, Injector, TextMapPropagator as _},
    trace::{Link, SpanBuilder, SpanKind, Status, TraceContextExt as _, TracerProvider as _},
};
use opentelemetry_otlp::WithExportConfig as _;
use opentelemetry_sdk::{
    Resource,
    propagation::TraceContextPropagator,
    trace::{SdkTracer, SdkTracerProvider, SpanExporter as _},
};

use self::{
    config::{Config, ConfigError},
    export::Queue,
};
use super::TraceMetrics;
use crate::{apiserver::body::guarded, runtime::Runtime};

/// What the spans are of, among those of other servers.
const SERVICE: &str = "navigator-apiserver";
/// The attribute that leads to the audit trail. A span below that of a request has it, too.
const AUDIT_ID: &str = "audit-id";
/// Bytes of an attribute; what is longer is cut. Clients choose what some of them say.
const LONGEST: usize = 1024;

/// Why requests cannot be traced.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error("--tracing-config-file: {path:?} cannot be used")]
    File { path: PathBuf, source: ConfigError },
    #[error("the collector cannot be called")]
    Exporter(#[from] opentelemetry_otlp::ExporterBuildError),
}

/// Decides which requests are traced.
#[derive(Clone, Debug)]
pub struct Traces(Option<SdkTracer>);

impl Traces {
    /// Of no request.
    pub fn off() -> Self {
        Self(None)
    }

    /// Reads the file and starts to export; without a file nothing is traced.
    pub fn open(file: Option<&Path>, rt: &Runtime) -> Result<Self, OpenError> {
        let Some(path) = file else { return Ok(Self::off()) };
        let wrong = |source| OpenError::File { path: path.to_owned(), source };
        let Config { endpoint, sampler } = Config::read(path).map_err(wrong)?;
        let mut exporter = opentelemetry_otlp::SpanExporter::builder().with_tonic();
        if let Some(endpoint) = endpoint {
            exporter = exporter.with_endpoint(endpoint);
        }
        let mut exporter = exporter.build()?;
        let resource = resource();
        exporter.set_resource(&resource);
        let metrics = TraceMetrics::new();
        for collector in metrics.collectors() {
            rt.metrics().register(collector).expect("every metric has a name of its own");
        }
        let queue = Queue::start(exporter, metrics, rt);
        let provider = SdkTracerProvider::builder()
            .with_sampler(sampler)
            .with_resource(resource)
            .with_span_processor(queue)
            .build();
        Ok(Self(Some(provider.tracer(env!("CARGO_PKG_NAME")))))
    }

    /// A request of whom it is known who sends it. A trace that it belongs to already is continued
    /// where `is_trusted`; everybody else gets a trace of their own, which names that one.
    pub fn begin(
        &self,
        headers: &HeaderMap,
        is_trusted: impl FnOnce() -> bool,
        at: SystemTime,
        describe: impl FnOnce() -> Span,
    ) -> Begun {
        let Some(tracer) = &self.0 else { return Begun(None) };
        let nothing = Context::new();
        let sent = TraceContextPropagator::new().extract_with_context(&nothing, &Headers(headers));
        let caller = sent.span().span_context().clone();
        let mut builder =
            SpanBuilder::from_name("").with_kind(SpanKind::Server).with_start_time(at);
        let mut parent = &nothing;
        if caller.is_valid() && is_trusted() {
            parent = &sent;
        } else if caller.is_valid() {
            builder = builder.with_links(vec![Link::with_context(caller)]);
        }
        let begun = nothing.with_span(builder.start_with_context(tracer, parent));
        if !begun.span().is_recording() {
            return Begun(Some(begun));
        }
        let Span { name, kind: _, attributes } = describe();
        let id = attributes.iter().find(|attribute| attribute.key.as_str() == AUDIT_ID).cloned();
        begun.span().update_name(name);
        begun.span().set_attributes(attributes);
        Begun(Some(begun.with_value(Traced { tracer: tracer.clone(), id })))
    }
}

fn resource() -> Resource {
    let host = nix::unistd::gethostname().ok().and_then(|name| name.into_string().ok());
    let mut resource = Resource::builder_empty()
        .with_service_name(SERVICE)
        .with_attribute(KeyValue::new("service.version", env!("CARGO_PKG_VERSION")));
    if let Some(host) = host {
        resource = resource.with_attribute(KeyValue::new("service.instance.id", host));
    }
    resource.build()
}

/// What all spans of a request have in common; a part of the current context.
struct Traced {
    tracer: SdkTracer,
    id: Option<KeyValue>,
}

/// The span of a request.
#[derive(Debug)]
pub struct Begun(Option<Context>);

impl Begun {
    /// The work that belongs to it.
    pub async fn within<W: Future>(&self, work: W) -> W::Output {
        match &self.0 {
            Some(context) => work.with_context(context.clone()).await,
            None => work.await,
        }
    }

    /// Ends when the client has read the response, or went away.
    pub fn over(mut self, response: Response<Body>) -> Response<Body> {
        match self.answer(response.status()) {
            Some(context) => guarded(response, Ends(context)),
            None => response,
        }
    }

    /// Ends now.
    pub fn refused(mut self, code: StatusCode) {
        drop(self.answer(code).map(Ends));
    }

    fn answer(&mut self, code: StatusCode) -> Option<Context> {
        let context = self.0.take().filter(|context| context.span().is_recording())?;
        set_code(&context, code, code.is_server_error());
        Some(context)
    }
}

impl Drop for Begun {
    /// Given up: its time was over, its client went away, or a handler panicked.
    fn drop(&mut self) {
        if let Some(context) = self.0.take() {
            context.span().set_status(Status::error("the request ended without an answer"));
            context.span().end();
        }
    }
}

/// Ends the span when it is dropped.
struct Ends(Context);

impl Drop for Ends {
    fn drop(&mut self) {
        self.0.span().end();
    }
}

/// A part of a request's work.
#[derive(Debug)]
pub struct Span {
    name: Cow<'static, str>,
    kind: SpanKind,
    attributes: Vec<KeyValue>,
}

impl Span {
    pub fn new(name: impl Into<Cow<'static, str>>) -> Self {
        let name = match name.into() {
            Cow::Owned(name) => Cow::Owned(cut(name)),
            name @ Cow::Borrowed(_) => name,
        };
        Self { name, kind: SpanKind::Internal, attributes: Vec::new() }
    }

    /// A call of another server.
    pub fn post(url: &str) -> Self {
        let span = Self { kind: SpanKind::Client, ..Self::new("HTTP POST") };
        span.with("http.request.method", "POST").with("url.full", url)
    }

    #[must_use]
    pub fn with(mut self, key: &'static str, value: impl Into<String>) -> Self {
        self.attributes.push(KeyValue::new(key, cut(value.into())));
        self
    }

    #[must_use]
    pub fn with_number(mut self, key: &'static str, value: i64) -> Self {
        self.attributes.push(KeyValue::new(key, value));
        self
    }
}

/// What clients and other servers say may be long, and waits for the collector.
fn cut(mut text: String) -> String {
    let fits = |end: &usize| text.is_char_boundary(*end);
    text.truncate((0..=LONGEST).rev().find(fits).unwrap_or_default());
    text
}

/// Does the work, as a span of the request whose work it is. Nothing is described for a request
/// that is not traced.
pub async fn span<W: Future>(describe: impl FnOnce() -> Span, work: W) -> W::Output {
    let Some(context) = Context::map_current(|current| child(current, describe)) else {
        return work.await;
    };
    let outcome = work.with_context(context.clone()).await;
    context.span().end();
    outcome
}

fn child(parent: &Context, describe: impl FnOnce() -> Span) -> Option<Context> {
    if !parent.span().is_recording() {
        return None;
    }
    let Traced { tracer, id } = parent.get()?;
    let Span { name, kind, mut attributes } = describe();
    attributes.extend(id.clone());
    let builder = SpanBuilder::from_name(name).with_kind(kind).with_attributes(attributes);
    Some(parent.with_span(builder.start_with_context(tracer, parent)))
}

/// The span that is under way failed.
pub fn failed(why: impl FnOnce() -> String) {
    Context::map_current(|context| {
        if context.span().is_recording() {
            context.span().set_status(Status::error(cut(why())));
        }
    });
}

/// The other server answered.
pub fn answered(code: StatusCode) {
    Context::map_current(|context| {
        set_code(context, code, code.is_client_error() || code.is_server_error());
    });
}

fn set_code(context: &Context, code: StatusCode, is_failure: bool) {
    let code = i64::from(code.as_u16());
    context.span().set_attribute(KeyValue::new("http.response.status_code", code));
    if is_failure {
        context.span().set_status(Status::error(""));
    }
}

/// Tells another server which trace a request belongs to (`traceparent`), also that it is not
/// recorded.
pub fn pass_on(headers: &mut HeaderMap) {
    Context::map_current(|context| {
        TraceContextPropagator::new().inject_context(context, &mut HeadersMut(headers));
    });
}

struct Headers<'a>(&'a HeaderMap);

impl Extractor for Headers<'_> {
    fn get(&self, key: &str) -> Option<&str> {
        self.0.get(key)?.to_str().ok()
    }

    fn keys(&self) -> Vec<&str> {
        self.0.keys().map(HeaderName::as_str).collect()
    }
}

struct HeadersMut<'a>(&'a mut HeaderMap);

impl Injector for HeadersMut<'_> {
    fn set(&mut self, key: &str, value: String) {
        // An empty trace state is none.
        if value.is_empty() {
            return;
        }
        if let (Ok(name), Ok(value)) = (key.parse::<HeaderName>(), HeaderValue::try_from(value)) {
            self.0.insert(name, value);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_attributes_are_cut() {
        let long = format!("{}é", "x".repeat(LONGEST - 1));
        let Span { name, attributes, .. } = Span::new(long.clone()).with("key", long);
        assert_eq!(name.len(), LONGEST - 1);
        assert_eq!(attributes[0].value.as_str().len(), LONGEST - 1);
        assert_eq!(Span::new("short").name, "short");
    }
}
