//! The state file of a database in memory: read, changed and written for its driver.
//!
//! The file goes ahead of the memory: each change begins with what the file holds, and a state that
//! could not be written is not remembered.

use std::{
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
};

use crate::{
    error::chain,
    pilot::{
        driver::Error,
        volume::{data_volume::Volume, state_file::StateFile},
    },
};

/// The state of one node beside its data, and the state as last read or written. Cheap to clone;
/// clones remember the same.
#[derive(Clone, Debug)]
pub struct RememberedState<S> {
    data: PathBuf,
    volume: Volume,
    known: Arc<Mutex<Option<S>>>,
}

impl<S: StateFile + Clone + PartialEq + Send + 'static> RememberedState<S> {
    /// Makes the state of the node in the data directory `data`, which lies on `volume`. Reads
    /// nothing.
    pub fn new(data: &Path, volume: &Volume) -> Self {
        Self { data: data.to_owned(), volume: volume.clone(), known: Arc::default() }
    }

    /// Returns the state as last read or written; a fresh one before that.
    pub fn cached_state(&self) -> S {
        self.known.lock().expect("no panic while held").clone().unwrap_or_default()
    }

    /// Was the state read or written at least once?
    pub fn is_known(&self) -> bool {
        self.known.lock().expect("no panic while held").is_some()
    }

    /// Reads the state. For a caller that may block.
    pub fn read(&self) -> Result<S, Error> {
        self.change(|_| ()).map(|((), state)| state)
    }

    /// Changes the state, and writes the file where that made a difference; returns the new state
    /// beside what `change` says. For a caller that may block.
    pub fn change<T>(&self, change: impl FnOnce(&mut S) -> T) -> Result<(T, S), Error> {
        let mut state = S::load(&self.data)?;
        let old_state = state.clone();
        let outcome = change(&mut state);
        if state != old_state {
            state.save(&self.data)?;
        }
        *self.known.lock().expect("no panic while held") = Some(state.clone());
        Ok((outcome, state))
    }

    /// Changes the state as [`Self::change`] does, for a caller that cannot wait. `None` when the
    /// volume is busy for a moment: the change may still be made, and the caller tries again.
    pub async fn try_change<T, W>(&self, change: W) -> Result<Option<T>, Error>
    where
        W: FnOnce(&mut S) -> T + Send + 'static,
        T: Send + 'static,
    {
        let state = self.clone();
        match self.volume.try_visit(move |_| state.change(change)).await {
            Ok(Some(result)) => result.map(|(outcome, _)| Some(outcome)),
            Ok(None) => Ok(None),
            Err(volume_timeout) => Err(Error::NotYet(volume_timeout.to_string())),
        }
    }
}

/// Returns why a state could not be read or written, for a report.
pub fn save_error<T>(outcome: Result<T, Error>) -> Option<String> {
    outcome.err().map(|error| chain(&error).to_string())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use serde::{Deserialize, Serialize};

    use super::*;

    #[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
    struct CountedState {
        count: u32,
    }

    impl StateFile for CountedState {
        const FILE: &'static str = "counted.json";
    }

    fn state(place: &Path) -> RememberedState<CountedState> {
        RememberedState::new(place, &Volume::default())
    }

    #[tokio::test]
    async fn a_change_begins_with_the_file_and_is_remembered_once_it_is_written() {
        let place = tempfile::tempdir().unwrap();
        let (one, other) = (state(place.path()), state(place.path()));
        assert!(!one.is_known());
        let ((), changed) = one.change(|state| state.count += 1).unwrap();
        assert_eq!((changed.count, one.cached_state().count), (1, 1));
        let changed = other.try_change(|state| std::mem::replace(&mut state.count, 2)).await;
        assert_eq!((changed.unwrap(), other.cached_state().count), (Some(1), 2));
        assert_eq!(one.cached_state().count, 1, "it did not look");
        assert_eq!(one.read().unwrap().count, 2);
    }

    #[tokio::test]
    async fn a_file_that_cannot_be_read_is_told_and_what_was_known_stays() {
        let place = tempfile::tempdir().unwrap();
        let state = state(place.path());
        state.change(|state| state.count = 7).unwrap();
        fs::write(place.path().join(".navigator/counted.json"), "{").unwrap();
        let changed = state.try_change(|state| state.count = 8).await;
        assert!(save_error(changed).unwrap().contains("counted.json"));
        assert_eq!(state.cached_state().count, 7);
        assert!(state.read().is_err());
    }
}
