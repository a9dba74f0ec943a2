//! Waiting for a condition: the only kind of waiting that tests do.

use std::time::{Duration, Instant};

/// Asks until the answer is good; says what was seen last when the deadline passes.
pub(crate) async fn until<T>(
    what: &str,
    deadline: Duration,
    mut ask: impl AsyncFnMut() -> Result<T, String>,
) -> T {
    let start = Instant::now();
    loop {
        let last = match ask().await {
            Ok(answer) => return answer,
            Err(seen) => seen,
        };
        assert!(start.elapsed() < deadline, "{what}: not within {deadline:?}; last seen: {last}");
        let pause =
            (start.elapsed() / 20).clamp(Duration::from_millis(20), Duration::from_millis(500));
        tokio::time::sleep(pause).await;
    }
}
