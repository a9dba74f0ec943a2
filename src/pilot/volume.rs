//! The data directory: its lock, whose data lie there, and the pilot's own files on it.

pub mod config_files;
pub mod files;
pub mod folder;
pub mod lock;
pub mod ownership;
pub mod records;
pub mod ring;
pub mod state;
