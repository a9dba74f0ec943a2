//! Distributions of databases on this host: which exist, of which version, and which one a pod's
//! image stands for. Nothing is downloaded here: an error names what is missing and what to do.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use crate::{
    local::state_folder::{StateFolder, read_if_exists, write_private},
    pilot::database::DrivenDatabase,
};

/// An installed distribution of a database.
#[derive(Clone, Debug)]
pub struct DatabaseHome {
    pub database: &'static DrivenDatabase,
    pub version: String,
    pub path: PathBuf,
}

/// Why a distribution was not found: one line that also says what to do.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct HomeError(pub String);

/// The places where distributions are searched. Each search reads them again: a user may have named
/// or fetched a new one meanwhile.
#[derive(Clone, Debug)]
pub struct DatabaseHomes {
    databases: Vec<&'static DrivenDatabase>,
    /// The file of the distributions that `--home` named, a line each.
    named: PathBuf,
    /// Distributions that the vendors' environment variables name.
    told: Vec<(&'static str, PathBuf)>,
    /// Folders that contain distributions.
    places: Vec<PathBuf>,
}

impl DatabaseHomes {
    /// Makes the list of places. `told` are values of [`DrivenDatabase::home_variable`] by the
    /// database's name, `place` is a folder of distributions beside the installation's own.
    pub fn new(
        databases: Vec<&'static DrivenDatabase>,
        folder: &StateFolder,
        vendor_homes: Vec<(&'static str, PathBuf)>,
        place: Option<PathBuf>,
    ) -> Self {
        let places = place.into_iter().chain([folder.homes()]).collect();
        Self { databases, named: folder.named_homes(), told: vendor_homes, places }
    }

    /// Returns the distribution that `NAME=DIR` on the command line names.
    ///
    /// # Errors
    /// When `word` names no database of ours, or the folder has no distribution of it.
    pub fn parse(&self, word: &str) -> Result<DatabaseHome, HomeError> {
        let names = || self.databases.iter().map(|database| database.names.word);
        let Some((name, path)) = word.split_once('=') else {
            let text = format!("{word:?} is not NAME=DIR, with one of {}", join_names(names()));
            return Err(HomeError(text));
        };
        let Some(database) = self.databases.iter().find(|database| database.names.word == name)
        else {
            return Err(HomeError(format!("{name:?} is not one of {}", join_names(names()))));
        };
        let path = std::path::absolute(path)
            .map_err(|error| HomeError(format!("{path:?} is no folder: {error}")))?;
        read_home(database, &path).ok_or_else(|| {
            let (title, path) = (database.names.title, path.display());
            HomeError(format!(
                "{path} holds no {title}: give the folder of an unpacked distribution, with bin and lib"
            ))
        })
    }

    /// Adds distributions to the list of those that `--home` named.
    ///
    /// # Errors
    /// When the list cannot be read or written.
    pub fn save_homes(&self, homes: &[DatabaseHome]) -> io::Result<()> {
        let mut text = read_if_exists(&self.named)?.unwrap_or_default();
        let mut is_changed = false;
        for DatabaseHome { database, path, version: _ } in homes {
            let line = format!("{}={}", database.names.word, path.display());
            if !text.lines().any(|existing_line| existing_line == line) {
                text.push_str(&line);
                text.push('\n');
                is_changed = true;
            }
        }
        if is_changed { write_private(&self.named, text.as_bytes()) } else { Ok(()) }
    }

    /// Finds the distributions of a database, those that `--home` named first.
    pub fn find_all(&self, database: &'static DrivenDatabase) -> Vec<DatabaseHome> {
        let named_list = fs::read_to_string(&self.named).unwrap_or_default();
        let named_paths: Vec<PathBuf> = named_list
            .lines()
            .rev()
            .filter_map(|line| line.split_once('='))
            .filter(|(name, _)| *name == database.names.word)
            .map(|(_, path)| path.into())
            .collect();
        let vendor_paths = self.told.iter().filter(|(name, _)| *name == database.names.word);
        let vendor_paths = vendor_paths.map(|(_, path)| path.clone());
        let installed_paths = self.places.iter().flat_map(|place| {
            let mut folders: Vec<PathBuf> = fs::read_dir(place)
                .into_iter()
                .flatten()
                .flatten()
                .map(|entry| entry.path())
                .collect();
            folders.sort();
            folders
        });
        let paths = named_paths.into_iter().chain(vendor_paths).chain(installed_paths);
        paths.filter_map(|path| read_home(database, &path)).collect()
    }

    /// Returns the distribution of `version`.
    ///
    /// # Errors
    /// When there is none: the message says which there are, and what to do.
    pub fn find(
        &self,
        database: &'static DrivenDatabase,
        version: &str,
    ) -> Result<DatabaseHome, HomeError> {
        let homes = self.find_all(database);
        if let Some(home) = homes.iter().find(|home| home.version == version) {
            return Ok(home.clone());
        }
        let (title, name) = (database.names.title, database.names.word);
        let alternatives = match homes.as_slice() {
            [] => String::new(),
            homes => {
                let descriptions =
                    homes.iter().map(|home| format!("{} ({})", home.version, home.path.display()));
                format!(", only {}", descriptions.collect::<Vec<_>>().join(", "))
            }
        };
        Err(HomeError(format!(
            "there is no {title} {version} on this host{alternatives}: unpack one and name it, navigator \
             local up --home {name}=DIR"
        )))
    }
}

fn read_home(database: &'static DrivenDatabase, path: &Path) -> Option<DatabaseHome> {
    let version = (database.installed)(path)?;
    Some(DatabaseHome { database, version, path: path.to_owned() })
}

fn join_names(names: impl Iterator<Item = &'static str>) -> String {
    names.collect::<Vec<_>>().join(", ")
}

/// Returns the tag of an image, which names the version. `None` where it has none.
pub fn image_tag(image: &str) -> Option<&str> {
    let name = image.split('@').next()?;
    let (_, tag) = name.rsplit_once(':')?;
    (!tag.contains('/')).then_some(tag)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_says_its_version_by_its_tag() {
        assert_eq!(image_tag("docker.io/library/example:5.0.6"), Some("5.0.6"));
        assert_eq!(image_tag("registry:5000/example"), None);
        assert_eq!(image_tag("registry:5000/example:1@sha256:00"), Some("1"));
        assert_eq!(image_tag("example"), None);
    }
}
