//! The version of this binary, and the metric that tells it.

use prometheus::{IntGaugeVec, Opts, Registry, core::Collector};

/// Version of this build, without a leading `v`.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Adds [`collector`] to a new registry.
pub fn register(registry: &Registry) {
    registry.register(collector()).expect("a new registry holds no metric of this name");
}

/// Makes the metric `navigator_build_info{version}`, which is always 1.
pub fn collector() -> Box<dyn Collector> {
    let info = IntGaugeVec::new(
        Opts::new("navigator_build_info", "Version of this binary; the value is always 1."),
        &["version"],
    )
    .expect("the metric's name and labels are valid");
    info.with_label_values(&[VERSION]).set(1);
    Box::new(info)
}
