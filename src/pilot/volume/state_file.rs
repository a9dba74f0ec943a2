//! The state file of a database: what its driver knows of the node beside the data, below
//! `.navigator/`.
//!
//! Written whole or not at all; an unreadable file is an error, never a fresh node.

use std::{
    fs,
    path::{Path, PathBuf},
};

use serde::{Serialize, de::DeserializeOwned};

use crate::pilot::{
    driver::Error,
    volume::pilot_files::{FOLDER, PilotFiles},
};

/// A struct that is kept in one file.
pub trait StateFile: Default + Serialize + DeserializeOwned {
    /// Name of the file.
    const FILE: &'static str;

    /// Reads the state from the volume at `data`; a fresh one when there is no file.
    fn load(data: &Path) -> Result<Self, Error> {
        let stored_state = PilotFiles::for_directory(data).read_file(Self::FILE);
        let stored_state = stored_state
            .map_err(|source| Error::Read { path: state_path::<Self>(data), source })?;
        Ok(stored_state.unwrap_or_default())
    }

    fn save(&self, data: &Path) -> Result<(), Error> {
        fs::create_dir_all(data)
            .and_then(|()| PilotFiles::for_directory(data).write_file(Self::FILE, self))
            .map_err(|source| Error::Write { path: state_path::<Self>(data), source })
    }
}

fn state_path<M: StateFile>(data: &Path) -> PathBuf {
    data.join(FOLDER).join(M::FILE)
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use super::*;

    #[derive(Debug, Default, PartialEq, Serialize, Deserialize)]
    struct Known {
        joined: bool,
    }

    impl StateFile for Known {
        const FILE: &'static str = "test.json";
    }

    #[test]
    fn a_node_remembers_itself_and_a_fresh_volume_knows_nothing() {
        let volume = tempfile::tempdir().unwrap();
        assert_eq!(Known::load(volume.path()).unwrap(), Known::default());
        let known = Known { joined: true };
        known.save(volume.path()).unwrap();
        assert_eq!(Known::load(volume.path()).unwrap(), known);
    }

    #[test]
    fn an_unreadable_file_is_an_error_and_not_a_fresh_node() {
        let volume = tempfile::tempdir().unwrap();
        Known::default().save(volume.path()).unwrap();
        fs::write(state_path::<Known>(volume.path()), "{").unwrap();
        assert!(Known::load(volume.path()).is_err());
    }
}
