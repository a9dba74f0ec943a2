//! Named tasks that somebody joins: the end of one is everyone's news.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use tokio_util::task::TaskTracker;
use tracing::{Instrument, error, info_span};

use super::Shutdown;

/// Spawns tasks. A task that panics, or a [`Tasks::spawn_vital`] one that ends before shutdown,
/// ends the process.
#[derive(Clone, Debug)]
pub struct Tasks {
    tracker: TaskTracker,
    shutdown: Shutdown,
    panicked: Arc<AtomicBool>,
}

impl Tasks {
    pub fn new(shutdown: Shutdown) -> Self {
        Self { tracker: TaskTracker::new(), shutdown, panicked: Arc::default() }
    }

    /// Runs a task that may end whenever it is done. The name is a span on its log lines.
    pub fn spawn<F>(&self, name: &'static str, future: F)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        self.run(name, future, false);
    }

    /// Runs a task without which the process is of no use: should it end before shutdown was
    /// asked for, shutdown begins.
    pub fn spawn_vital<F>(&self, name: &'static str, future: F)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        self.run(name, future, true);
    }

    fn run<F>(&self, name: &'static str, future: F, vital: bool)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let task = self.tracker.spawn(future.instrument(info_span!("task", task = name)));
        let (shutdown, panicked) = (self.shutdown.clone(), Arc::clone(&self.panicked));
        self.tracker.spawn(async move {
            match task.await {
                Err(error) if error.is_panic() => {
                    error!(task = name, "Task panicked");
                    panicked.store(true, Ordering::Relaxed);
                    shutdown.trigger();
                }
                _ if vital && !shutdown.is_triggered() => {
                    error!(task = name, "Task ended early");
                    shutdown.trigger();
                }
                _ => {}
            }
        });
    }

    /// Did a task panic? Decides the exit code.
    pub fn panicked(&self) -> bool {
        self.panicked.load(Ordering::Relaxed)
    }

    /// Waits until every task ended. Call after shutdown was triggered.
    pub async fn join(&self) {
        self.tracker.close();
        self.tracker.wait().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_panicking_task_starts_shutdown() {
        let shutdown = Shutdown::new();
        let tasks = Tasks::new(shutdown.clone());
        tasks.spawn("bad", async { panic!("on purpose") });
        shutdown.triggered().await;
        tasks.join().await;
        assert!(tasks.panicked());
    }

    #[tokio::test]
    async fn only_a_vital_task_ends_the_process_by_ending() {
        let shutdown = Shutdown::new();
        let tasks = Tasks::new(shutdown.clone());
        tasks.spawn("done", async {});
        tasks.join().await;
        assert!(!shutdown.is_triggered());
        let tasks = Tasks::new(shutdown.clone());
        tasks.spawn_vital("vital", async {});
        shutdown.triggered().await;
        assert!(!tasks.panicked());
    }
}
