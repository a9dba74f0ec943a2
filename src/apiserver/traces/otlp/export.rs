//! The way of spans to the collector.
//!
//! Nothing waits for it: a span that finds no room in the queue is dropped, and a batch that the
//! collector does not take is lost; both are counted. At the end what is left has [`FLUSH`].

use std::time::Duration;

use opentelemetry::Context;
use opentelemetry_sdk::{
    error::OTelSdkResult,
    trace::{Span, SpanData, SpanExporter, SpanProcessor},
};
use prometheus::IntCounter;
use tokio::{
    sync::mpsc,
    time::{Instant, sleep},
};
use tracing::{info, warn};

use crate::{
    apiserver::{
        batch::{Batch, Batches},
        traces::TraceMetrics,
    },
    error::chain,
    runtime::{Runtime, Shutdown},
};

/// OpenTelemetry's own numbers. A span takes a kilobyte or two, so all that wait take 4 MB.
const BATCH: Batch =
    Batch { buffer: 2048, max_size: 512, max_wait: Duration::from_secs(5), throttle: None };
/// After shutdown was asked for.
const FLUSH: Duration = Duration::from_secs(3);
/// How often it is said that the collector is away.
const REMINDER: Duration = Duration::from_secs(600);

/// Spans that ended and wait.
#[derive(Debug)]
pub(super) struct Queue {
    spans: mpsc::Sender<SpanData>,
    dropped: IntCounter,
}

impl Queue {
    pub(super) fn start(
        exporter: impl SpanExporter + 'static,
        metrics: TraceMetrics,
        rt: &Runtime,
    ) -> Self {
        let (spans, batches) = Batches::new(BATCH, rt.shutdown());
        let dropped = metrics.spans.with_label_values(&["dropped"]);
        let exporting = Exporting { exporter, metrics, trouble: None };
        rt.tasks().spawn("traces", exporting.run(batches, rt.shutdown()));
        Self { spans, dropped }
    }
}

impl SpanProcessor for Queue {
    fn on_start(&self, _: &mut Span, _: &Context) {}

    fn on_end(&self, span: SpanData) {
        if span.span_context.is_sampled() && self.spans.try_send(span).is_err() {
            self.dropped.inc();
        }
    }

    /// What waits is sent by its own task, which ends with the process.
    fn force_flush(&self) -> OTelSdkResult {
        Ok(())
    }

    fn shutdown_with_timeout(&self, _: Duration) -> OTelSdkResult {
        Ok(())
    }
}

struct Exporting<E> {
    exporter: E,
    metrics: TraceMetrics,
    trouble: Option<Trouble>,
}

/// The collector is away.
struct Trouble {
    told: Instant,
    lost: usize,
}

impl<E: SpanExporter> Exporting<E> {
    async fn run(mut self, mut batches: Batches<SpanData>, shutdown: Shutdown) {
        let over = async {
            shutdown.triggered().await;
            sleep(FLUSH).await;
        };
        let mut over = std::pin::pin!(over);
        let mut ended = false;
        while let Some(batch) = batches.next().await {
            let count = batch.len();
            if ended {
                self.count("lost", count);
                continue;
            }
            // An export that is dropped half-way may have arrived, and is counted as lost.
            tokio::select! {
                outcome = self.exporter.export(batch) => self.note(&outcome, count),
                () = &mut over => {
                    ended = true;
                    self.count("lost", count);
                }
            }
        }
    }

    fn note(&mut self, outcome: &OTelSdkResult, count: usize) {
        let Err(error) = outcome else {
            self.count("sent", count);
            if let Some(Trouble { lost, .. }) = self.trouble.take() {
                info!(lost, "The collector of traces takes spans again");
            }
            return;
        };
        self.count("lost", count);
        let is_new = self.trouble.is_none();
        let trouble = self.trouble.get_or_insert(Trouble { told: Instant::now(), lost: 0 });
        trouble.lost += count;
        if is_new || trouble.told.elapsed() >= REMINDER {
            trouble.told = Instant::now();
            warn!(error = %chain(error), lost = trouble.lost, "Failed to send spans to the collector");
        }
    }

    fn count(&self, outcome: &str, count: usize) {
        let count = u64::try_from(count).unwrap_or(u64::MAX);
        self.metrics.spans.with_label_values(&[outcome]).inc_by(count);
    }
}

#[cfg(test)]
mod tests {
    use std::{future::pending, sync::Mutex};

    use opentelemetry::trace::{Tracer, TracerProvider};
    use opentelemetry_sdk::{
        error::OTelSdkError,
        trace::{SdkTracer, SdkTracerProvider},
    };

    use super::*;

    /// Answers as told, and then never.
    #[derive(Debug)]
    struct Scripted(Mutex<Vec<OTelSdkResult>>);

    impl SpanExporter for Scripted {
        async fn export(&self, _: Vec<SpanData>) -> OTelSdkResult {
            let answer = self.0.lock().unwrap().pop();
            match answer {
                Some(answer) => answer,
                None => pending().await,
            }
        }
    }

    fn tracer(answers: Vec<OTelSdkResult>) -> (SdkTracer, TraceMetrics, Runtime) {
        let (rt, metrics) = (Runtime::new(), TraceMetrics::new());
        let queue = Queue::start(Scripted(Mutex::new(answers)), metrics.clone(), &rt);
        let provider = SdkTracerProvider::builder().with_span_processor(queue).build();
        (provider.tracer("test"), metrics, rt)
    }

    fn told(metrics: &TraceMetrics) -> [u64; 3] {
        ["sent", "lost", "dropped"].map(|outcome| metrics.spans.with_label_values(&[outcome]).get())
    }

    #[tokio::test(start_paused = true)]
    async fn a_collector_that_never_answers_costs_a_queue_and_three_seconds_at_the_end() {
        let (tracer, metrics, rt) = tracer(Vec::new());
        for _ in 0..BATCH.buffer + 100 {
            drop(tracer.start("span"));
        }
        assert_eq!(told(&metrics), [0, 0, 100]);
        sleep(Duration::from_secs(60)).await;
        rt.shutdown().trigger();
        let begun = Instant::now();
        rt.tasks().join().await;
        assert_eq!(begun.elapsed().as_secs(), FLUSH.as_secs());
        assert_eq!(told(&metrics), [0, BATCH.buffer as u64, 100]);
    }

    #[tokio::test(start_paused = true)]
    async fn what_a_collector_does_not_take_is_lost_and_the_next_batch_is_sent() {
        let refused = Err(OTelSdkError::InternalFailure("away".to_owned()));
        let (tracer, metrics, rt) = tracer(vec![Ok(()), Ok(()), refused]);
        for _ in 0..=BATCH.max_size {
            drop(tracer.start("span"));
        }
        sleep(BATCH.max_wait * 2).await;
        assert_eq!(told(&metrics), [1, BATCH.max_size as u64, 0]);
        drop(tracer.start("the last one"));
        rt.shutdown().trigger();
        rt.tasks().join().await;
        assert_eq!(told(&metrics), [2, BATCH.max_size as u64, 0]);
    }
}
