//! What one database brings: a part for each role. The database's folder defines the parts, and the
//! command line hands the list of databases to the roles.

use crate::{api, controller, pilot, plugin};

/// A database that Navigator runs.
#[derive(Clone, Copy, Debug)]
pub struct Database {
    /// Its kind of cluster, and its part of a Pilot.
    pub api: &'static api::scheme::ServedDatabase,
    /// What its clusters need of Kubernetes.
    pub controller: &'static controller::ManagedDatabase,
    /// How a node of it is run.
    pub pilot: &'static pilot::database::DrivenDatabase,
    /// How `kubectl navigator` names and shows it.
    pub shown: &'static plugin::ShownDatabase,
}

/// The databases of one program.
pub type DatabaseList = &'static [Database];

/// What an API server serves for these databases.
pub fn scheme(databases: DatabaseList) -> &'static api::scheme::Scheme {
    let databases: Vec<_> = databases.iter().map(|database| database.api).collect();
    api::scheme::Scheme::new(&databases)
}

/// What a controller looks after.
pub fn controllers(databases: DatabaseList) -> Vec<&'static controller::ManagedDatabase> {
    databases.iter().map(|database| database.controller).collect()
}

/// What `kubectl navigator` shows.
pub fn shown(databases: DatabaseList) -> Vec<&'static plugin::ShownDatabase> {
    databases.iter().map(|database| database.shown).collect()
}
