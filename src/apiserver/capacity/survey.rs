//! Counts the stored objects when a server starts, before any of them is kept in memory.

use futures::TryStreamExt as _;

use super::{CapacityBounds, counted_bytes};
use crate::apiserver::storage::{self, KeyPrefix, Storage};

/// How much the store holds of the server's group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StoreSurvey {
    pub objects: usize,
    /// Sum of the objects' bytes, as [`counted_bytes`] counts them.
    pub bytes: usize,
}

/// Reads the stored objects of a group once, page by page, and keeps none of them.
pub async fn survey_store(store: &dyn Storage, group: &str) -> Result<StoreSurvey, storage::Error> {
    let group_prefix =
        KeyPrefix::for_group(group).expect("a served group is a valid part of a key");
    let mut pages = store.scan(&group_prefix, None);
    let mut survey = StoreSurvey::default();
    while let Some(page) = pages.try_next().await? {
        survey.objects += page.entries.len();
        survey.bytes +=
            page.entries.iter().map(|entry| counted_bytes(entry.value.len())).sum::<usize>();
    }
    Ok(survey)
}

impl StoreSurvey {
    /// Returns why a process with `bounds` refuses to serve the store; `None` when the store fits.
    pub fn too_much(&self, bounds: CapacityBounds) -> Option<String> {
        let Self { objects, bytes } = self;
        let CapacityBounds { limit, startable, .. } = bounds;
        (*bytes > startable).then(|| {
            let needed = CapacityBounds::limit_for(*bytes);
            format!(
                "the {objects} objects in the store count {bytes} bytes, and a memory limit of \
                 {limit} holds {startable}: nothing was loaded, and nothing is served. Raise the \
                 memory limit of the API server to {needed} bytes ({} MiB) or more; or stop it and \
                 remove objects with: navigator apiserver store forget --even-readable \
                 (docs/store.md)",
                needed >> 20
            )
        })
    }
}
