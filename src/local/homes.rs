//! Distributions of databases on this host: which exist, of which version, and which one a pod's
//! image stands for. Nothing is downloaded here: an error names what is missing and what to do.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use crate::{
    local::state_folder::{StateFolder, read_if_there, write_own},
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
        told: Vec<(&'static str, PathBuf)>,
        place: Option<PathBuf>,
    ) -> Self {
        let places = place.into_iter().chain([folder.homes()]).collect();
        Self { databases, named: folder.named_homes(), told, places }
    }

    /// Returns the distribution that `NAME=DIR` on the command line names.
    ///
    /// # Errors
    /// When `word` names no database of ours, or the folder has no distribution of it.
    pub fn parse(&self, word: &str) -> Result<DatabaseHome, HomeError> {
        let names = || self.databases.iter().map(|database| database.names.word);
        let Some((name, path)) = word.split_once('=') else {
            let text = format!("{word:?} is not NAME=DIR, with one of {}", join(names()));
            return Err(HomeError(text));
        };
        let Some(database) = self.databases.iter().find(|database| database.names.word == name)
        else {
            return Err(HomeError(format!("{name:?} is not one of {}", join(names()))));
        };
        let path = std::path::absolute(path)
            .map_err(|error| HomeError(format!("{path:?} is no folder: {error}")))?;
        home(database, &path).ok_or_else(|| {
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
    pub fn remember(&self, homes: &[DatabaseHome]) -> io::Result<()> {
        let mut text = read_if_there(&self.named)?.unwrap_or_default();
        let mut changed = false;
        for DatabaseHome { database, path, version: _ } in homes {
            let line = format!("{}={}", database.names.word, path.display());
            if !text.lines().any(|known| known == line) {
                text.push_str(&line);
                text.push('\n');
                changed = true;
            }
        }
        if changed { write_own(&self.named, text.as_bytes()) } else { Ok(()) }
    }

    /// Finds the distributions of a database, those that `--home` named first.
    pub fn all(&self, database: &'static DrivenDatabase) -> Vec<DatabaseHome> {
        let named = fs::read_to_string(&self.named).unwrap_or_default();
        let named: Vec<PathBuf> = named
            .lines()
            .rev()
            .filter_map(|line| line.split_once('='))
            .filter(|(name, _)| *name == database.names.word)
            .map(|(_, path)| path.into())
            .collect();
        let told = self.told.iter().filter(|(name, _)| *name == database.names.word);
        let told = told.map(|(_, path)| path.clone());
        let found = self.places.iter().flat_map(|place| {
            let mut folders: Vec<PathBuf> =
                fs::read_dir(place).into_iter().flatten().flatten().map(|it| it.path()).collect();
            folders.sort();
            folders
        });
        let all = named.into_iter().chain(told).chain(found);
        all.filter_map(|path| home(database, &path)).collect()
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
        let all = self.all(database);
        if let Some(found) = all.iter().find(|home| home.version == version) {
            return Ok(found.clone());
        }
        let (title, name) = (database.names.title, database.names.word);
        let there = match all.as_slice() {
            [] => String::new(),
            all => {
                let all =
                    all.iter().map(|home| format!("{} ({})", home.version, home.path.display()));
                format!(", only {}", all.collect::<Vec<_>>().join(", "))
            }
        };
        Err(HomeError(format!(
            "there is no {title} {version} on this host{there}: unpack one and name it, navigator \
             local up --home {name}=DIR"
        )))
    }
}

fn home(database: &'static DrivenDatabase, path: &Path) -> Option<DatabaseHome> {
    let version = (database.installed)(path)?;
    Some(DatabaseHome { database, version, path: path.to_owned() })
}

fn join(names: impl Iterator<Item = &'static str>) -> String {
    names.collect::<Vec<_>>().join(", ")
}

/// Returns the tag of an image, which names the version. `None` where it has none.
pub fn tag(image: &str) -> Option<&str> {
    let name = image.split('@').next()?;
    let (_, tag) = name.rsplit_once(':')?;
    (!tag.contains('/')).then_some(tag)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_says_its_version_by_its_tag() {
        assert_eq!(tag("docker.io/library/example:5.0.6"), Some("5.0.6"));
        assert_eq!(tag("registry:5000/example"), None);
        assert_eq!(tag("registry:5000/example:1@sha256:00"), Some("1"));
        assert_eq!(tag("example"), None);
    }
}
