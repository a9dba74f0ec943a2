//! A future that comes to its end, also when its caller no longer waits for it.

use std::{
    pin::Pin,
    task::{Context, Poll},
};

use tokio::runtime::Handle;

/// A future that runs within its caller, and goes on as a task of its own if the caller drops it
/// before its end. Most callers wait, which saves the task and its wake-ups.
pub(super) struct UncancellableFuture<F: Future<Output: Send> + Send + 'static>(
    Option<Pin<Box<F>>>,
);

impl<F: Future<Output: Send> + Send + 'static> UncancellableFuture<F> {
    pub(super) fn new(future: F) -> Self {
        Self(Some(Box::pin(future)))
    }
}

impl<F: Future<Output: Send> + Send + 'static> Future for UncancellableFuture<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        let Some(future) = &mut self.0 else {
            // A future that was ready is not polled again.
            return Poll::Pending;
        };
        let poll_result = future.as_mut().poll(context);
        if poll_result.is_ready() {
            self.0 = None;
        }
        poll_result
    }
}

impl<F: Future<Output: Send> + Send + 'static> Drop for UncancellableFuture<F> {
    fn drop(&mut self) {
        // Without a runtime the process is at its end.
        if let (Some(future), Ok(runtime)) = (self.0.take(), Handle::try_current()) {
            drop(runtime.spawn(future));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{future::poll_fn, sync::Arc, time::Duration};

    use tokio::sync::{Notify, oneshot};

    use super::*;

    #[tokio::test]
    async fn it_ends_where_it_is_waited_for() {
        let here = tokio::task::try_id();
        assert_eq!(UncancellableFuture::new(async { tokio::task::try_id() }).await, here);
    }

    #[tokio::test]
    async fn dropped_half_way_it_ends_elsewhere() {
        let (go, (ended, end)) = (Arc::new(Notify::new()), oneshot::channel());
        let begun = Arc::clone(&go);
        let mut future = UncancellableFuture::new(async move {
            begun.notified().await;
            ended.send(()).unwrap();
        });
        assert!(
            poll_fn(|context| Poll::Ready(Pin::new(&mut future).poll(context))).await.is_pending()
        );
        drop(future);
        go.notify_one();
        tokio::time::timeout(Duration::from_secs(60), end).await.unwrap().unwrap();
    }
}
