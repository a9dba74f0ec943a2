//! The data directory: its lock, whose data lie there, and the pilot's own files on it.

pub mod config_files;
pub mod contents;
pub mod data_volume;
pub mod fill_rate;
pub mod folder;
pub mod ownership;
pub mod pilot_files;
pub mod records;
pub mod remembered_state;
pub mod ring;
pub mod state_file;
