//! What Navigator decides of Elasticsearch's settings, known to validation and to those who
//! render.

/// Settings that nobody else may make, because what is rendered wins. `*` stands for anything.
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
