//! Names of what tests and measurements of a store write.

use navigator::apiserver::storage::{Key, KeyPrefix};

/// The key of a pilot.
pub(crate) fn key(namespace: &str, name: &str) -> Key {
    Key::new("group", "pilots", namespace, name).expect("the names are valid")
}

/// The range of all pilots.
pub(crate) fn pilots() -> KeyPrefix {
    KeyPrefix::for_resource("group", "pilots").expect("the names are valid")
}
