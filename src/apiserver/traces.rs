//! Traces of requests, for a collector of OpenTelemetry: built with the cargo feature `otlp`.
//!
//! Whoever does a part of a request's work calls [`span`]; without the feature that is the work
//! itself, and nothing else is built. Owns which requests are traced (kube-apiserver's rules), and the way of
//! spans to the collector: nothing waits for that, and nothing fails when it is away.

#[cfg(not(feature = "otlp"))]
mod off;
#[cfg(feature = "otlp")]
mod otlp;

use prometheus::{IntCounterVec, Opts, core::Collector};

#[cfg(not(feature = "otlp"))]
pub use off::{Begun, OpenError, Span, Traces, answered, failed, pass_on, span};
#[cfg(feature = "otlp")]
pub use otlp::{Begun, OpenError, Span, Traces, answered, failed, pass_on, span};

/// What became of spans.
#[derive(Clone)]
pub struct TraceMetrics {
    spans: IntCounterVec,
}

impl TraceMetrics {
    /// Figures that nobody scrapes yet.
    #[expect(clippy::new_without_default, reason = "a default would suggest that it is registered")]
    pub fn new() -> Self {
        let spans = Opts::new(
            "navigator_apiserver_trace_spans_total",
            "Spans of traces: sent to the collector, lost because it did not take them, or dropped \
             because too many waited. Only where there is a --tracing-config-file.",
        );
        let spans = IntCounterVec::new(spans, &["outcome"]).expect("the metric's name is valid");
        for outcome in ["sent", "lost", "dropped"] {
            drop(spans.with_label_values(&[outcome]));
        }
        Self { spans }
    }

    pub fn collectors(&self) -> Vec<Box<dyn Collector>> {
        let Self { spans } = self;
        vec![Box::new(spans.clone())]
    }
}
