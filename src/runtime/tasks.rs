//! Named tasks that the process joins at its end. The early end of a vital task begins shutdown.

use std::sync::Arc;

use tokio::sync::watch;
use tokio_util::task::TaskTracker;
use tracing::{Instrument, error, info_span};

use super::Shutdown;

/// Spawns tasks. Shutdown begins when a task panics, except in [`TaskGroup::new_panic_tolerant`] ones, or
/// when a [`TaskGroup::spawn_vital`] one ends early.
#[derive(Clone, Debug)]
pub struct TaskGroup {
    tracker: TaskTracker,
    shutdown: Shutdown,
    panics: Arc<watch::Sender<u32>>,
    /// A panic begins shutdown.
    fragile: bool,
}

impl TaskGroup {
    pub fn new(shutdown: Shutdown) -> Self {
        let tracker = TaskTracker::new();
        Self { tracker, shutdown, panics: Arc::default(), fragile: true }
    }

    /// Makes a group for a role that handles a panic itself: the other tasks go on meanwhile, and
    /// [`TaskGroup::panics`] tells of it.
    pub fn new_panic_tolerant(shutdown: Shutdown) -> Self {
        Self { fragile: false, ..Self::new(shutdown) }
    }

    /// Runs a task that may end whenever it is done. The name is a span on its log lines.
    pub fn spawn<F>(&self, name: &'static str, future: F)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        self.spawn_task(name, future, false);
    }

    /// Runs a task without which the process is of no use: should it end before shutdown was
    /// asked for, shutdown begins.
    pub fn spawn_vital<F>(&self, name: &'static str, future: F)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        self.spawn_task(name, future, true);
    }

    fn spawn_task<F>(&self, name: &'static str, future: F, is_vital: bool)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let task = self.tracker.spawn(future.instrument(info_span!("task", task = name)));
        let (shutdown, panics) = (self.shutdown.clone(), Arc::clone(&self.panics));
        let is_fragile = self.fragile;
        self.tracker.spawn(async move {
            match task.await {
                Err(error) if error.is_panic() => {
                    error!(task = name, %error, "Task panicked");
                    panics.send_modify(|count| *count += 1);
                    if is_fragile {
                        shutdown.trigger();
                    }
                }
                _ if is_vital && !shutdown.is_triggered() => {
                    error!(task = name, "Task ended early");
                    shutdown.trigger();
                }
                _ => {}
            }
        });
    }

    /// Did a task panic? Decides the exit code.
    pub fn has_panicked(&self) -> bool {
        *self.panics.borrow() > 0
    }

    /// Returns a channel with the number of tasks that have panicked.
    pub fn subscribe_panics(&self) -> watch::Receiver<u32> {
        self.panics.subscribe()
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
        let tasks = TaskGroup::new(shutdown.clone());
        tasks.spawn("bad", async { panic!("on purpose") });
        shutdown.triggered().await;
        tasks.join().await;
        assert!(tasks.has_panicked());
    }

    #[tokio::test]
    async fn an_enduring_owner_hears_of_a_panic_and_the_other_tasks_go_on() {
        let shutdown = Shutdown::new();
        let tasks = TaskGroup::new_panic_tolerant(shutdown.clone());
        tasks.spawn("bad", async { panic!("on purpose") });
        tasks.subscribe_panics().wait_for(|count| *count == 1).await.unwrap();
        assert!(tasks.has_panicked() && !shutdown.is_triggered());
    }

    #[tokio::test]
    async fn only_a_vital_task_ends_the_process_by_ending() {
        let shutdown = Shutdown::new();
        let tasks = TaskGroup::new(shutdown.clone());
        tasks.spawn("done", async {});
        tasks.join().await;
        assert!(!shutdown.is_triggered());
        let tasks = TaskGroup::new(shutdown.clone());
        tasks.spawn_vital("vital", async {});
        shutdown.triggered().await;
        assert!(!tasks.has_panicked());
    }
}
