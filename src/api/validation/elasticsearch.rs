//! Rules for ElasticsearchCluster.

use crate::api::{
    scheme::{Part, Verdict, Version},
    v1beta1::ElasticsearchCluster,
};

/// Judges a new object that was written in `version`.
pub fn validate_create(version: Version, new: &ElasticsearchCluster) -> Verdict {
    let _ = (version, new);
    Verdict::default()
}

/// Judges an update of `old` through `part`, written in `version`.
pub fn validate_update(
    version: Version,
    part: Part,
    new: &ElasticsearchCluster,
    old: &ElasticsearchCluster,
) -> Verdict {
    let _ = (version, part, new, old);
    Verdict::default()
}
