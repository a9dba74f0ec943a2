//! A collector of OpenTelemetry: OTLP over gRPC, and all spans that came.

use std::{
    collections::BTreeMap,
    net::SocketAddr,
    sync::{Arc, Mutex},
};

use opentelemetry_proto::tonic::{
    collector::trace::v1::{
        ExportTraceServiceRequest, ExportTraceServiceResponse,
        trace_service_server::{TraceService, TraceServiceServer},
    },
    common::v1::{KeyValue, any_value::Value},
    trace::v1::Span,
};
use tonic::{
    Request, Response, Status,
    transport::{Server, server::TcpIncoming},
};

/// A span as tests look at it; ids in hexadecimal.
#[derive(Clone, Debug)]
pub(super) struct Seen {
    pub(super) trace: String,
    pub(super) id: String,
    /// Empty for none.
    pub(super) parent: String,
    pub(super) name: String,
    pub(super) kind: i32,
    begun: u64,
    pub(super) nanoseconds: u64,
    pub(super) attributes: BTreeMap<String, String>,
    /// `trace-span`
    pub(super) links: Vec<String>,
    pub(super) has_failed: bool,
    /// Of the process.
    pub(super) resource: BTreeMap<String, String>,
}

/// Ends with the test's runtime.
pub(super) struct Collector {
    pub(super) address: SocketAddr,
    seen: Arc<Mutex<Vec<Seen>>>,
}

struct Keeper(Arc<Mutex<Vec<Seen>>>);

impl Collector {
    pub(super) async fn start() -> Self {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let seen = Arc::default();
        let keeper = TraceServiceServer::new(Keeper(Arc::clone(&seen)));
        let server = Server::builder().add_service(keeper);
        #[expect(clippy::disallowed_methods, reason = "lives as long as the test's runtime")]
        tokio::spawn(server.serve_with_incoming(TcpIncoming::from(listener)));
        Self { address, seen }
    }

    /// Those that begun first come first.
    pub(super) fn seen(&self) -> Vec<Seen> {
        let mut seen = self.seen.lock().unwrap().clone();
        seen.sort_by_key(|span| span.begun);
        seen
    }

    /// The spans of a trace, each below its parent and one step to the right of it.
    pub(super) fn tree(&self, trace: &str) -> String {
        let spans: Vec<_> = self.seen().into_iter().filter(|span| span.trace == trace).collect();
        let ids: Vec<_> = spans.iter().map(|span| span.id.as_str()).collect();
        let mut tree = String::new();
        for root in spans.iter().filter(|span| !ids.contains(&span.parent.as_str())) {
            draw(&mut tree, &spans, root, 0);
        }
        tree
    }
}

fn draw(tree: &mut String, spans: &[Seen], span: &Seen, depth: usize) {
    tree.push_str(&"  ".repeat(depth));
    tree.push_str(&span.name);
    tree.push('\n');
    for child in spans.iter().filter(|child| child.parent == span.id) {
        draw(tree, spans, child, depth + 1);
    }
}

#[tonic::async_trait]
impl TraceService for Keeper {
    async fn export(
        &self,
        request: Request<ExportTraceServiceRequest>,
    ) -> Result<Response<ExportTraceServiceResponse>, Status> {
        for of_process in request.into_inner().resource_spans {
            let resource = texts(&of_process.resource.unwrap_or_default().attributes);
            let spans = of_process.scope_spans.into_iter().flat_map(|scope| scope.spans);
            self.0.lock().unwrap().extend(spans.map(|span| Seen::new(span, &resource)));
        }
        Ok(Response::new(ExportTraceServiceResponse::default()))
    }
}

impl Seen {
    fn new(span: Span, resource: &BTreeMap<String, String>) -> Self {
        let link = |trace: &[u8], span: &[u8]| format!("{}-{}", hex(trace), hex(span));
        Self {
            trace: hex(&span.trace_id),
            id: hex(&span.span_id),
            parent: hex(&span.parent_span_id),
            begun: span.start_time_unix_nano,
            nanoseconds: span.end_time_unix_nano - span.start_time_unix_nano,
            kind: span.kind,
            attributes: texts(&span.attributes),
            links: span.links.iter().map(|to| link(&to.trace_id, &to.span_id)).collect(),
            has_failed: span.status.is_some_and(|status| status.code == 2),
            resource: resource.clone(),
            name: span.name,
        }
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |text, byte| text + &format!("{byte:02x}"))
}

fn texts(attributes: &[KeyValue]) -> BTreeMap<String, String> {
    let text = |attribute: &KeyValue| match attribute.value.clone().unwrap_or_default().value {
        Some(Value::StringValue(text)) => text,
        Some(Value::IntValue(number)) => number.to_string(),
        other => format!("{other:?}"),
    };
    attributes.iter().map(|attribute| (attribute.key.clone(), text(attribute))).collect()
}
