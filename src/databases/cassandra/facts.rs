//! Facts about Apache Cassandra, measured on 4.0, 4.1 and 5.0.

mod config_hash;
mod exits;
mod heap;
mod options;
mod release;
mod render;

pub use config_hash::config_hash;
pub use exits::EXITS;
pub use heap::heap_bytes;
pub use options::choose_collector;
pub use release::{Release, UnsupportedVersion};
pub use render::{NodeSettings, RenderError, RenderedFiles, render, seed_provider};

/// Folder of the database in the vendor's image.
pub const DEFAULT_HOME: &str = "/opt/cassandra";
/// File name of the agent that bridges JMX to HTTP, in the folder that `navigator install` fills.
pub const AGENT_JAR: &str = "jolokia.jar";
/// File name of the agent's settings, in the configuration folder. The file holds a password that
/// is new at each start.
pub const AGENT_PROPERTIES: &str = "jolokia.properties";
/// User name that the agent accepts.
pub const AGENT_USER: &str = "navigator";

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
