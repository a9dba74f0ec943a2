//! Starts and stops a process: signals, shutdown, named tasks, readiness, the admin port,
//! logging, metrics, events, leader election, watches, files that appear whole. Knows no database and no
//! Navigator type.

pub mod admin;
pub mod build_info;
pub mod cgroup;
pub mod deadline;
pub mod events;
pub mod folder;
pub mod kubeconfig;
pub mod leader;
pub mod log;
pub mod metric_catalogue;
pub mod process_metrics;
pub mod readiness;
pub mod shutdown;
pub mod signals;
pub mod tasks;
pub mod watch;

pub use readiness::Readiness;
pub use shutdown::Shutdown;
pub use tasks::TaskGroup;

/// What every long-running role gets from `main`.
#[derive(Clone)]
pub struct Runtime {
    shutdown: Shutdown,
    tasks: TaskGroup,
    readiness: Readiness,
    metrics: prometheus::Registry,
}

impl Runtime {
    /// A runtime whose shutdown has not been triggered. Call from within tokio.
    pub fn new() -> Self {
        let shutdown = Shutdown::new();
        Self::from_parts(TaskGroup::new(shutdown.clone()), shutdown)
    }

    /// A runtime for a role that handles a panic itself, see [`TaskGroup::new_panic_tolerant`].
    pub fn new_panic_tolerant() -> Self {
        let shutdown = Shutdown::new();
        Self::from_parts(TaskGroup::new_panic_tolerant(shutdown.clone()), shutdown)
    }

    fn from_parts(tasks: TaskGroup, shutdown: Shutdown) -> Self {
        let metrics = prometheus::Registry::new();
        build_info::register(&metrics);
        Self { tasks, readiness: Readiness::new(), shutdown, metrics }
    }

    pub fn shutdown(&self) -> Shutdown {
        self.shutdown.clone()
    }

    pub fn tasks(&self) -> &TaskGroup {
        &self.tasks
    }

    pub fn readiness(&self) -> &Readiness {
        &self.readiness
    }

    pub fn metrics(&self) -> &prometheus::Registry {
        &self.metrics
    }
}

impl Default for Runtime {
    fn default() -> Self {
        Self::new()
    }
}
