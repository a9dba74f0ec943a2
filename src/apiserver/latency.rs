//! Where the time of a request went: webhooks, the store, authentication and authorization.
//!
//! The times are kept with the task that answers the request, so that code that spends the time
//! need not know the request. Nothing is kept for watches: their time is waiting.

use std::{cell::Cell, time::Duration};

use tokio::time::Instant;

/// Time beyond which the audit trail says where a request's time went: upstream's threshold.
const LONG: Duration = Duration::from_millis(500);
const TOTAL: &str = "apiserver.latency.k8s.io/total";

tokio::task_local! {
    static ACCOUNT: LatencyAccount;
}

/// The parts of a request that are timed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LatencyLayer {
    Authentication,
    Authorization,
    MutatingWebhook,
    ValidatingWebhook,
    Store,
}

impl LatencyLayer {
    const ALL: [Self; 5] = [
        Self::Authentication,
        Self::Authorization,
        Self::MutatingWebhook,
        Self::ValidatingWebhook,
        Self::Store,
    ];

    /// Returns the key of the layer's audit annotation. Readers know the store as `etcd`, whichever
    /// it is.
    fn annotation_key(self) -> &'static str {
        match self {
            Self::Authentication => "apiserver.latency.k8s.io/authentication",
            Self::Authorization => "apiserver.latency.k8s.io/authorization",
            Self::MutatingWebhook => "apiserver.latency.k8s.io/mutating-webhook",
            Self::ValidatingWebhook => "apiserver.latency.k8s.io/validating-webhook",
            Self::Store => "apiserver.latency.k8s.io/etcd",
        }
    }

    /// Adds `duration` to `sum`. For layers that may work in parallel, the longest work counts
    /// alone.
    fn combine_times(self, sum: Duration, duration: Duration) -> Duration {
        match self {
            Self::Authorization | Self::ValidatingWebhook => sum.max(duration),
            Self::Authentication | Self::MutatingWebhook | Self::Store => sum + duration,
        }
    }
}

/// The times that one request spent in the layers so far.
struct LatencyAccount {
    begun: Instant,
    spent: [Cell<Duration>; LatencyLayer::ALL.len()],
}

impl LatencyAccount {
    fn layer_time(&self, layer: LatencyLayer) -> &Cell<Duration> {
        &self.spent[layer as usize]
    }
}

/// Answers a request and keeps account of its time.
pub(super) async fn with_account<T>(answer: impl Future<Output = T>) -> T {
    let account = LatencyAccount { begun: Instant::now(), spent: Default::default() };
    ACCOUNT.scope(account, answer).await
}

/// Runs `work` and adds its time to `layer`, also when the work is given up half-way.
pub(super) async fn measure_time<T>(layer: LatencyLayer, work: impl Future<Output = T>) -> T {
    let _spending = LatencyTimer { layer, since: Instant::now() };
    work.await
}

struct LatencyTimer {
    layer: LatencyLayer,
    since: Instant,
}

impl Drop for LatencyTimer {
    fn drop(&mut self) {
        let duration = self.since.elapsed();
        // No account is kept for a watch, or for work of the server's own.
        let result = ACCOUNT.try_with(|account| {
            let spent = account.layer_time(self.layer);
            spent.set(self.layer.combine_times(spent.get(), duration));
        });
        result.unwrap_or_default();
    }
}

/// Returns the time that webhooks took of the current request so far.
pub(super) fn of_webhooks() -> Duration {
    let webhook_time = |account: &LatencyAccount| {
        account.layer_time(LatencyLayer::MutatingWebhook).get()
            + account.layer_time(LatencyLayer::ValidatingWebhook).get()
    };
    ACCOUNT.try_with(webhook_time).unwrap_or_default()
}

/// Returns the audit annotations that say where a request's time went, if it took long.
pub(super) fn latency_annotations() -> Vec<(&'static str, String)> {
    let build_annotations = |account: &LatencyAccount| {
        let total = account.begun.elapsed();
        let layers =
            LatencyLayer::ALL.into_iter().map(|layer| (layer, account.layer_time(layer).get()));
        let mut entries: Vec<_> = layers
            .filter(|(_, spent)| total > LONG && !spent.is_zero())
            .map(|(layer, spent)| (layer.annotation_key(), format_go_duration(spent)))
            .collect();
        if !entries.is_empty() {
            entries.push((TOTAL, format_go_duration(total)));
        }
        entries
    };
    ACCOUNT.try_with(build_annotations).unwrap_or_default()
}

/// Writes a duration as Go does: `1m2.5s`, `523.4ms`, `7µs`.
fn format_go_duration(duration: Duration) -> String {
    let nanos = duration.as_nanos();
    let format_unit = |nanos: u128, digits: usize, unit: &str| {
        let one = 10_u128.pow(u32::try_from(digits).expect("at most 9"));
        let text = format!("{}.{:0digits$}", nanos / one, nanos % one);
        format!("{}{unit}", text.trim_end_matches('0').trim_end_matches('.'))
    };
    match nanos {
        0 => "0s".to_owned(),
        1..1_000 => format!("{nanos}ns"),
        1_000..1_000_000 => format_unit(nanos, 3, "µs"),
        1_000_000..1_000_000_000 => format_unit(nanos, 6, "ms"),
        _ => {
            let (minutes, nanos) = (nanos / 60_000_000_000, nanos % 60_000_000_000);
            let seconds = format_unit(nanos, 9, "s");
            match (minutes / 60, minutes % 60) {
                (0, 0) => seconds,
                (0, minutes) => format!("{minutes}m{seconds}"),
                (hours, minutes) => format!("{hours}h{minutes}m{seconds}"),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::future::join;

    use super::*;

    async fn wait(layer: LatencyLayer, millis: u64) {
        measure_time(layer, tokio::time::sleep(Duration::from_millis(millis))).await;
    }

    #[tokio::test(start_paused = true)]
    async fn mutating_webhooks_add_up_and_validating_ones_count_once() {
        with_account(async {
            wait(LatencyLayer::MutatingWebhook, 100).await;
            wait(LatencyLayer::MutatingWebhook, 200).await;
            let validating = LatencyLayer::ValidatingWebhook;
            join(wait(validating, 50), wait(validating, 70)).await;
            wait(LatencyLayer::Store, 1).await;
            assert_eq!(of_webhooks(), Duration::from_millis(370));
            let late = wait(LatencyLayer::MutatingWebhook, 1000);
            let limit = Duration::from_millis(10);
            tokio::time::timeout(limit, late).await.expect_err("it is given up");
            assert_eq!(of_webhooks(), Duration::from_millis(380));
        })
        .await;
        assert_eq!(of_webhooks(), Duration::ZERO, "of no request");
    }

    #[tokio::test(start_paused = true)]
    async fn only_long_requests_say_where_their_time_went() {
        with_account(async {
            wait(LatencyLayer::Store, 500).await;
            assert_eq!(latency_annotations(), []);
            wait(LatencyLayer::Authorization, 1).await;
            let told = latency_annotations();
            let told: Vec<_> = told.iter().map(|(key, value)| (*key, value.as_str())).collect();
            assert_eq!(
                told,
                [
                    ("apiserver.latency.k8s.io/authorization", "1ms"),
                    ("apiserver.latency.k8s.io/etcd", "500ms"),
                    ("apiserver.latency.k8s.io/total", "501ms"),
                ]
            );
        })
        .await;
        assert_eq!(latency_annotations(), [], "of no request");
    }

    #[test]
    fn durations_are_written_as_go_does() {
        for (nanos, text) in [
            (0, "0s"),
            (7, "7ns"),
            (7_500, "7.5µs"),
            (20_000_000, "20ms"),
            (523_400_001, "523.400001ms"),
            (1_000_000_000, "1s"),
            (62_500_000_000, "1m2.5s"),
            (3_600_000_000_000, "1h0m0s"),
        ] {
            assert_eq!(format_go_duration(Duration::from_nanos(nanos)), text);
        }
    }
}
