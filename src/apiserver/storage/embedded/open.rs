//! Opens the directory of a store, or refuses with a line that says what to do.
//!
//! Owns the file names and the rule that an empty store never replaces an existing one, even an
//! incomplete one. An empty store would tell Kubernetes' garbage collector that every owner is
//! gone, and the garbage collector would delete the databases.
//!
//! A new store is built next to its final name, then its id is written to the marker, then it
//! gets its name. So a crash leaves nothing, or the marker and the finished new file, which the
//! next start renames.

use std::{
    fs::{self, File, OpenOptions, Permissions},
    io::{self, Read, Write},
    os::unix::fs::{OpenOptionsExt, PermissionsExt},
    panic::{AssertUnwindSafe, catch_unwind},
    path::{Path, PathBuf},
};

use redb::{Builder, Database, DatabaseError, StorageBackend, backends::FileBackend};
use tracing::{error, info, warn};
use uuid::Uuid;

use super::{
    disk::{self, DiskBackend, SyncFailure},
    layout::{self, DatabaseSummary},
};

const STORE: &str = "store.redb";
const MARKER: &str = "store.id";
const CREATING: &str = "store.redb.creating";
const CORRUPT_PREFIX: &str = "store.redb.corrupt-";

/// Bytes of pages that redb keeps in memory. Objects are read from the API server's cache; writes
/// look at a page or two, and the kernel has the rest.
const PAGE_CACHE_BYTES: usize = 16 << 20;

/// First bytes of a file of redb.
const MAGIC: [u8; 9] = *b"redb\x1a\x0a\xa9\x0d\x0a";
const REPAIRED: &str =
    "its file was damaged and recovered to its last sound state; the latest writes may be lost";

/// Why a store was not opened.
#[derive(Debug, thiserror::Error)]
pub enum StoreOpenError {
    #[error("failed to use store directory {directory:?}")]
    Directory { directory: PathBuf, source: io::Error },
    #[error("failed to open store {file:?}")]
    Open { file: PathBuf, source: Box<dyn std::error::Error + Send + Sync> },
    #[error("there is no store in {directory:?}")]
    Absent { directory: PathBuf },
    #[error("there is a store in {directory:?} already, or what is left of one")]
    Present { directory: PathBuf },
    #[error("failed to create store {file:?}")]
    Create { file: PathBuf, source: Box<dyn std::error::Error + Send + Sync> },
    #[error(
        "store {file:?} is in use by another process; stop it first (one API server per embedded \
         store)"
    )]
    InUse { file: PathBuf },
    #[error(
        "store {file:?} is empty although its marker {marker:?} says that it was filled; restore \
         both from a backup. To begin anew and lose every object, remove both"
    )]
    Empty { file: PathBuf, marker: PathBuf },
    #[error(
        "store {file:?} has no marker {marker:?} beside it; restore both from one backup. A store \
         without its marker may be another installation's"
    )]
    MarkerMissing { file: PathBuf, marker: PathBuf },
    #[error(
        "store {file:?} is missing although its marker {marker:?} says that it existed; restore \
         both from a backup. To begin anew and lose every object, remove the marker"
    )]
    StoreMissing { file: PathBuf, marker: PathBuf },
    #[error(
        "store {file:?} says that its id is {inside:?}, its marker {marker:?} says {outside:?}; \
         restore both from one backup"
    )]
    Foreign { file: PathBuf, marker: PathBuf, inside: String, outside: String },
    #[error(
        "store {file:?} is corrupt: {reason}. Nothing was removed; a copy is {copy:?}. Restore \
         {file:?} and {marker:?} from a backup"
    )]
    Corrupt { file: PathBuf, marker: PathBuf, copy: PathBuf, reason: String },
}

impl StoreOpenError {
    /// Tells whether it is of no use to try again.
    pub(super) fn is_final(&self) -> bool {
        match self {
            Self::Directory { .. } | Self::Open { .. } | Self::InUse { .. } => false,
            Self::Absent { .. }
            | Self::Present { .. }
            | Self::Create { .. }
            | Self::Empty { .. }
            | Self::MarkerMissing { .. }
            | Self::StoreMissing { .. }
            | Self::Foreign { .. }
            | Self::Corrupt { .. } => true,
        }
    }
}

/// Opens a store that is in no file: for tests that decide what a disk does.
pub(super) fn open_backend(backend: impl StorageBackend) -> Result<OpenedStore, StoreOpenError> {
    let file = PathBuf::new();
    let open_error =
        |error: redb::Error| StoreOpenError::Open { file: file.clone(), source: error.into() };
    let sync_failed = SyncFailure::default();
    let is_new = backend.len().map_err(|error| open_error(error.into()))? == 0;
    let database =
        database_builder().create_with_backend(DiskBackend::new(backend, sync_failed.clone()));
    let database = database.map_err(|error| open_error(error.into()))?;
    if is_new {
        layout::initialize_database(&database, "in-no-file").map_err(open_error)?;
    }
    let summary = layout::summarize_database(&database)
        .map_err(|error| StoreOpenError::Open { file: file.clone(), source: error.into() })?;
    Ok(OpenedStore { database, file, summary, sync_failed })
}

/// A store that was opened, with what it says about itself.
pub(super) struct OpenedStore {
    pub database: Database,
    pub file: PathBuf,
    pub summary: DatabaseSummary,
    pub sync_failed: SyncFailure,
}

/// Opens the store in `directory`; makes one when there is not a trace of one.
pub(super) fn open_store(directory: &Path) -> Result<OpenedStore, StoreOpenError> {
    let directory_error =
        |source| StoreOpenError::Directory { directory: directory.to_owned(), source };
    fs::create_dir_all(directory).map_err(directory_error)?;
    let file = directory.join(STORE);
    let marker = directory.join(MARKER);
    let temp_file = directory.join(CREATING);

    let size = match fs::symlink_metadata(&file) {
        Ok(metadata) => Some(metadata.len()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        Err(error) => return Err(directory_error(error)),
    };
    let marker_id = match fs::read_to_string(&marker) {
        Ok(text) => Some(text.trim().to_owned()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        Err(error) => return Err(directory_error(error)),
    };
    match (size, marker_id) {
        (None, None) => {
            write_new_store(directory, &file, &marker, &temp_file, &NewStore::default())?;
        }
        (None, Some(id)) => finish_creation(directory, &file, &marker, &temp_file, &id)?,
        (Some(_), None) => return Err(StoreOpenError::MarkerMissing { file, marker }),
        (Some(0), Some(_)) => return Err(StoreOpenError::Empty { file, marker }),
        (Some(_), Some(_)) => {}
    }
    open_existing(file, marker)
}

/// Opens the store in `directory`, which must hold at least a trace of one.
pub(super) fn open_present(directory: &Path) -> Result<OpenedStore, StoreOpenError> {
    for name in [STORE, MARKER] {
        let metadata = fs::symlink_metadata(directory.join(name));
        if !metadata.is_err_and(|error| error.kind() == io::ErrorKind::NotFound) {
            return open_store(directory);
        }
    }
    Err(StoreOpenError::Absent { directory: directory.to_owned() })
}

/// Opens a store again after its file failed under a running process.
pub(super) fn reopen_store(file: &Path) -> Result<OpenedStore, StoreOpenError> {
    open_existing(file.to_owned(), file.with_file_name(MARKER))
}

/// The id of a new store, and why its latest writes may be missing.
pub(super) struct NewStore {
    pub id: String,
    pub doubt: Option<String>,
}

impl Default for NewStore {
    fn default() -> Self {
        Self { id: Uuid::new_v4().to_string(), doubt: None }
    }
}

/// Makes a store in `directory`, which must not hold a trace of one.
pub(super) fn create_store(
    directory: &Path,
    new_store: &NewStore,
) -> Result<OpenedStore, StoreOpenError> {
    let directory_error =
        |source| StoreOpenError::Directory { directory: directory.to_owned(), source };
    fs::create_dir_all(directory).map_err(directory_error)?;
    let [file, marker, temp_file] = [STORE, MARKER, CREATING].map(|name| directory.join(name));
    for path in [&file, &marker] {
        if fs::symlink_metadata(path).is_ok() {
            return Err(StoreOpenError::Present { directory: directory.to_owned() });
        }
    }
    write_new_store(directory, &file, &marker, &temp_file, new_store)?;
    open_existing(file, marker)
}

fn write_new_store(
    directory: &Path,
    file: &Path,
    marker: &Path,
    temp_file: &Path,
    NewStore { id, doubt }: &NewStore,
) -> Result<(), StoreOpenError> {
    let create_error = |source: Box<dyn std::error::Error + Send + Sync>| StoreOpenError::Create {
        file: file.to_owned(),
        source,
    };
    // A start that was killed before it wrote the marker left this file, which never held anything.
    if let Err(error) = fs::remove_file(temp_file)
        && error.kind() != io::ErrorKind::NotFound
    {
        return Err(create_error(error.into()));
    }
    let new_file = private_file_options()
        .create_new(true)
        .open(temp_file)
        .map_err(|error| create_error(error.into()))?;
    let database =
        database_builder().create_file(new_file).map_err(|error| create_error(error.into()))?;
    layout::initialize_database(&database, id).map_err(|error| create_error(error.into()))?;
    if let Some(doubt) = doubt {
        layout::record_doubt(&database, doubt).map_err(|error| create_error(error.into()))?;
    }
    drop(database);
    let mut marker_file = private_file_options()
        .create_new(true)
        .open(marker)
        .map_err(|error| create_error(error.into()))?;
    writeln!(marker_file, "{id}").map_err(|error| create_error(error.into()))?;
    marker_file.sync_all().map_err(|error| create_error(error.into()))?;
    rename_synced(directory, temp_file, file).map_err(|error| create_error(error.into()))?;
    info!(store = %file.display(), id, "Created a new, empty store");
    Ok(())
}

/// Finishes the creation of a store. A marker without a store means that the store is lost, unless
/// the new store still waits for its name.
fn finish_creation(
    directory: &Path,
    file: &Path,
    marker: &Path,
    temp_file: &Path,
    id: &str,
) -> Result<(), StoreOpenError> {
    let missing_error =
        || StoreOpenError::StoreMissing { file: file.to_owned(), marker: marker.to_owned() };
    let database = database_builder().open(temp_file).map_err(|_| missing_error())?;
    let summary = layout::summarize_database(&database).map_err(|_| missing_error())?;
    drop(database);
    if summary.id != id {
        return Err(missing_error());
    }
    rename_synced(directory, temp_file, file)
        .map_err(|error| StoreOpenError::Create { file: file.to_owned(), source: error.into() })
}

fn rename_synced(directory: &Path, source: &Path, target: &Path) -> io::Result<()> {
    File::open(directory)?.sync_all()?;
    fs::rename(source, target)?;
    File::open(directory)?.sync_all()
}

fn open_existing(file: PathBuf, marker: PathBuf) -> Result<OpenedStore, StoreOpenError> {
    // The kubelet may have opened the file to the group, for the sake of `fsGroup`.
    if let Err(error) = fs::set_permissions(&file, Permissions::from_mode(0o600)) {
        warn!(%error, store = %file.display(), "Could not restrict the mode of the store");
    }
    let marker_id = fs::read_to_string(&marker)
        .map_err(|source| StoreOpenError::Open { file: file.clone(), source: source.into() })?
        .trim()
        .to_owned();
    let sync_failed = SyncFailure::default();
    let (database, summary) = match open_verified(&file, &sync_failed) {
        Ok(checked) => checked,
        Err(OpenFailure::InUse) => return Err(StoreOpenError::InUse { file }),
        Err(OpenFailure::Other(source)) => return Err(StoreOpenError::Open { file, source }),
        Err(OpenFailure::Corrupt(reason)) => {
            let copy = keep_copy(&file).map_err(|source| StoreOpenError::Open {
                file: file.clone(),
                source: source.into(),
            })?;
            return Err(StoreOpenError::Corrupt { file, marker, copy, reason });
        }
    };
    if summary.id != marker_id {
        return Err(StoreOpenError::Foreign {
            file,
            marker,
            inside: summary.id,
            outside: marker_id,
        });
    }
    Ok(OpenedStore { database, file, summary, sync_failed })
}

enum OpenFailure {
    InUse,
    Corrupt(String),
    Other(Box<dyn std::error::Error + Send + Sync>),
}

impl From<io::Error> for OpenFailure {
    fn from(error: io::Error) -> Self {
        Self::Other(error.into())
    }
}

impl From<DatabaseError> for OpenFailure {
    fn from(error: DatabaseError) -> Self {
        match error {
            DatabaseError::DatabaseAlreadyOpen => Self::InUse,
            DatabaseError::Storage(redb::StorageError::Corrupted(reason)) => Self::Corrupt(reason),
            // redb's error for a file that is not a database, or is cut short.
            DatabaseError::Storage(redb::StorageError::Io(error))
                if matches!(
                    error.kind(),
                    io::ErrorKind::InvalidData | io::ErrorKind::UnexpectedEof
                ) =>
            {
                Self::Corrupt(error.to_string())
            }
            error => Self::Other(Box::new(error)),
        }
    }
}

/// Opens the file, lets redb recover from a crash, and verifies every page. redb trusts pages
/// when it reads them, so this is where damage is found.
fn open_verified(
    path: &Path,
    sync_failed: &SyncFailure,
) -> Result<(Database, DatabaseSummary), OpenFailure> {
    let file = OpenOptions::new().read(true).write(true).open(path)?;
    disk::forget_pages(&file);
    let mut magic = [0; MAGIC.len()];
    // With our own backend, redb would make a new store of a file that is all zeros.
    if (&file).read_exact(&mut magic).is_err() || magic != MAGIC {
        return Err(OpenFailure::Corrupt("it is no file of redb".to_owned()));
    }
    // redb asserts about pages that it trusts; a damaged file can trip such an assertion.
    let open_result = catch_unwind(AssertUnwindSafe(|| {
        let backend = DiskBackend::new(FileBackend::new(file)?, sync_failed.clone());
        let mut database = database_builder().create_with_backend(backend)?;
        let is_sound = database.check_integrity()?;
        if !is_sound {
            error!(store = %path.display(), "{REPAIRED}");
            layout::record_doubt(&database, REPAIRED)
                .map_err(|error| OpenFailure::Other(error.into()))?;
        }
        match layout::summarize_database(&database) {
            Ok(summary) => Ok((database, summary)),
            Err(super::super::Error::Corrupt { reason }) => Err(OpenFailure::Corrupt(reason)),
            Err(error) => Err(OpenFailure::Other(Box::new(error))),
        }
    }));
    open_result
        .unwrap_or_else(|_| Err(OpenFailure::Corrupt("redb panicked while it was read".to_owned())))
}

/// Copies the file aside, unless an equal copy is there: a process that is restarted again and
/// again must not fill the volume with copies.
fn keep_copy(file: &Path) -> io::Result<PathBuf> {
    let directory = file.parent().unwrap_or(Path::new("."));
    for entry in fs::read_dir(directory)? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if name.starts_with(CORRUPT_PREFIX) && same_content(&path, file)? {
            return Ok(path.clone());
        }
    }
    let now = jiff::Timestamp::now().strftime("%Y%m%dT%H%M%S.%9fZ");
    let copy = directory.join(format!("{CORRUPT_PREFIX}{now}"));
    let mut target = private_file_options().create_new(true).open(&copy)?;
    io::copy(&mut File::open(file)?, &mut target)?;
    target.sync_all()?;
    Ok(copy)
}

fn same_content(first_path: &Path, second_path: &Path) -> io::Result<bool> {
    let (mut first_file, mut second_file) = (File::open(first_path)?, File::open(second_path)?);
    if first_file.metadata()?.len() != second_file.metadata()?.len() {
        return Ok(false);
    }
    let (mut left, mut right) = (vec![0; 1 << 16], vec![0; 1 << 16]);
    loop {
        let read_len = first_file.read(&mut left)?;
        if read_len == 0 {
            return Ok(true);
        }
        second_file.read_exact(&mut right[..read_len])?;
        if left[..read_len] != right[..read_len] {
            return Ok(false);
        }
    }
}

fn database_builder() -> Builder {
    let mut builder = Builder::new();
    builder.set_cache_size(PAGE_CACHE_BYTES);
    builder
}

fn private_file_options() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.read(true).write(true).mode(0o600);
    options
}
