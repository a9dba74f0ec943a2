//! Elasticsearch's settings that Navigator decides, for validation and for rendering.

/// Names of settings that only Navigator may set, because the rendered ones win over the user's.
/// `*` stands for any text.
pub const MANAGED: &[&str] = &[
    "cluster.name",
    "node.name",
    "node.roles",
    "node.master",
    "node.data",
    "node.ingest",
    "path.*",
    "network.host",
    "network.bind_host",
    "network.publish_host",
    "http.port",
    "transport.port",
    "transport.tcp.port",
    "discovery.*",
    "cluster.initial_master_nodes",
    "xpack.security.*",
];
