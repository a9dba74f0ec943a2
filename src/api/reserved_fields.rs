//! What Navigator decides for every database and its pods. Validation and the code that renders
//! pods both read it.

/// Fields of a pod template into which Navigator writes parts of its own, so that `null` must not
/// remove them. [`KEPT_IN_CONTAINERS`] has those of the database's own container.
pub const KEPT_IN_PODS: [&[&str]; 7] = [
    &["metadata"],
    &["metadata", "labels"],
    &["metadata", "annotations"],
    &["spec"],
    &["spec", "containers"],
    &["spec", "initContainers"],
    &["spec", "volumes"],
];
pub const KEPT_IN_CONTAINERS: [&str; 2] = ["env", "volumeMounts"];

/// Is `key` the setting that `pattern` names, or a part of it?
pub fn is_key_covered(pattern: &str, key: &str) -> bool {
    let stem = pattern.strip_suffix(".*").unwrap_or(pattern);
    key.strip_prefix(stem).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
}

/// Is `repository` one of upstream's own pilot images? They hold another program, which does not
/// know this API: such an image is stored as written, and never run.
pub fn is_upstream_pilot(repository: &str) -> bool {
    repository
        .rsplit('/')
        .next()
        .is_some_and(|image_name| image_name.starts_with("navigator-pilot-"))
}
