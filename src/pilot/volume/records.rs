//! The pilot's own files on the data volume, reached in a way that holds nothing up.
//!
//! Code that reads or writes such a file does so here, on the volume's thread, and waits for only
//! so long: a volume may hang.

use std::path::Path;

use crate::pilot::volume::{
    data_volume::{Volume, VolumeTimeout},
    pilot_files::PilotFiles,
};

/// The pilot's own files on one data volume. Cheap to clone.
#[derive(Clone, Debug)]
pub struct VolumeRecords {
    files: PilotFiles,
    volume: Volume,
}

impl VolumeRecords {
    /// Makes the records in the data directory `data`, which lies on `volume`.
    pub fn new(data: &Path, volume: &Volume) -> Self {
        Self { files: PilotFiles::for_directory(data), volume: volume.clone() }
    }

    /// Reads or writes the files when the volume is free for it.
    ///
    /// # Errors
    /// As [`Volume::visit`].
    pub async fn visit<T, W>(&self, work: W) -> Result<T, VolumeTimeout>
    where
        W: FnOnce(&PilotFiles) -> T + Send + 'static,
        T: Send + 'static,
    {
        let files = self.files.clone();
        self.volume.visit(move |_| work(&files)).await
    }

    /// Reads or writes for a caller that cannot wait: `None` when the volume is busy for a moment.
    /// The work may still be done.
    ///
    /// # Errors
    /// As [`Volume::try_visit`].
    pub async fn try_visit<T, W>(&self, work: W) -> Result<Option<T>, VolumeTimeout>
    where
        W: FnOnce(&PilotFiles) -> T + Send + 'static,
        T: Send + 'static,
    {
        let files = self.files.clone();
        self.volume.try_visit(move |_| work(&files)).await
    }
}
