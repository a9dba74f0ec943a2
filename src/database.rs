//! What one database brings: a part for each role. The database's folder defines the parts, and the
//! command line hands the list of databases to the roles.

use crate::{api, controller, pilot, plugin};

/// A database that Navigator runs.
#[derive(Clone, Copy, Debug)]
pub struct Database {
    /// What the API server serves for it: its kind of cluster, and its part of a Pilot.
    pub api: &'static api::scheme::ServedDatabase,
    /// How the controller runs its clusters on Kubernetes.
    pub controller: &'static controller::ManagedDatabase,
    /// How a pilot runs one of its nodes.
    pub pilot: &'static pilot::database::DrivenDatabase,
    /// How `kubectl navigator` names the database and shows its clusters.
    pub shown: &'static plugin::ShownDatabase,
}

/// The databases of one program.
pub type DatabaseList = &'static [Database];

/// Returns the scheme of what an API server serves for `databases`.
pub fn build_scheme(databases: DatabaseList) -> &'static api::scheme::Scheme {
    let databases: Vec<_> = databases.iter().map(|database| database.api).collect();
    api::scheme::Scheme::new(&databases)
}

/// Returns the parts of `databases` that the controller works with.
pub fn managed_databases(databases: DatabaseList) -> Vec<&'static controller::ManagedDatabase> {
    databases.iter().map(|database| database.controller).collect()
}

/// Returns the parts of `databases` that `kubectl navigator` works with.
pub fn shown_databases(databases: DatabaseList) -> Vec<&'static plugin::ShownDatabase> {
    databases.iter().map(|database| database.shown).collect()
}
