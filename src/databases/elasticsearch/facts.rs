//! Facts about Elasticsearch, measured on 5.6, 6.8, 7.17 and 8.19.

mod config_hash;
mod exits;
mod release;
mod render;
mod users;

pub use config_hash::config_hash;
pub use exits::EXITS;
pub use release::{Release, UnsupportedVersion};
pub use render::{
    NodeSettings, RenderError, RenderedFiles, SEED_FILE, SecuritySettings, render_files,
};
pub use users::{
    FILE_REALM, OWN_USER, ROLES_FILE, USER_ROLES_FILE, USERS_FILE, UserFiles, UserFilesError,
    are_in_force, are_known, marker_user, removed_users,
};

use crate::{
    api::v1beta1::Jvm,
    engine::heap::{self, GIB, HeapError},
};

/// Folder of the database in the vendor's image.
pub const DEFAULT_HOME: &str = "/usr/share/elasticsearch";

/// Returns the heap in bytes: what the user wrote, else half of the memory limit, at most 31 GiB
/// (beyond that the JVM's pointers double).
pub fn heap_bytes(jvm: Option<&Jvm>, memory_limit: Option<u64>) -> Result<u64, HeapError> {
    heap::choose_heap(jvm, memory_limit, |limit| (limit / 2).min(31 * GIB))
}
