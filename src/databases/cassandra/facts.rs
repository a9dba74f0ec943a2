//! Facts about Apache Cassandra, measured on 4.0, 4.1 and 5.0.

mod config_hash;
mod exits;
mod heap;
mod hints;
mod options;
mod release;
mod render;
mod security;

pub use config_hash::config_hash;
pub use exits::EXITS;
pub use heap::heap_bytes;
pub use hints::hint_window;
pub use options::choose_collector;
pub use release::Release;
pub use render::{NodeSettings, RenderError, RenderedFiles, render_files, seed_provider};
pub use security::SecuritySettings;
pub(super) use security::{KEY_FILE, TRUST_FILE};

/// Names of the keyspaces that Cassandra makes for itself.
pub const SYSTEM_KEYSPACES: &[&str] = &[
    "system",
    "system_auth",
    "system_cluster_metadata",
    "system_distributed",
    "system_schema",
    "system_traces",
    "system_views",
    "system_virtual_schema",
];
