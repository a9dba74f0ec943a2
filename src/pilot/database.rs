//! What the pilot must know of a database before it drives one.

use std::{
    io::Read as _,
    path::{Path, PathBuf},
    sync::Arc,
};

use flate2::read::DeflateDecoder;

use crate::{
    api::{database_names::DatabaseNames, v1beta1::Pilot},
    pilot::{
        driver::Driver,
        volume::{contents::ContentFolder, data_volume::Volume},
    },
};

/// A database that pilots can run.
#[derive(Debug)]
pub struct DrivenDatabase {
    pub names: &'static DatabaseNames,
    /// Environment variable by which the vendor's image says where the database is installed. While
    /// it is unset, the place is `home`.
    pub home_variable: &'static str,
    pub home: &'static str,
    /// The database's program, below the folder where it is installed. Without it nothing starts.
    pub program: &'static str,
    /// Reason of the condition Started while the process runs, and of Ready while it serves.
    pub started: &'static str,
    /// Does the database decide by the clocks of its machines which of two writes is newer?
    pub orders_by_time: bool,
    /// TCP ports that the database listens on at the node's address.
    pub ports: &'static [u16],
    /// Does the node belong to a database cluster that exists elsewhere, so that it founds none?
    pub joins_elsewhere: fn(&Pilot) -> bool,
    /// Can the node found a database cluster?
    pub can_found: fn(&Pilot) -> bool,
    /// Do files of the database lie in this data directory?
    pub has_data: fn(&Path) -> bool,
    /// The condition about the programs that run before the database, where there are any.
    pub preparation: Option<PreparationCondition>,
    /// Types of the conditions that only this database has. Its driver reports them in
    /// [`NodeObservation::conditions`](crate::pilot::driver::NodeObservation).
    pub conditions: &'static [&'static str],
    /// Gauges that its driver may report in
    /// [`NodeObservation::gauges`](crate::pilot::driver::NodeObservation).
    pub gauges: &'static [DatabaseGauge],
    /// Folders of the database on the data volume, by which the pilot says what fills it: the most
    /// particular ones first.
    pub contents: &'static [ContentFolder],
    /// Files that `navigator install` puts beside the program, for the driver to use.
    pub agents: &'static [AgentFile],
    /// Tells which version is installed in a folder; `None` where the folder holds no installation
    /// of this database.
    pub installed: fn(&Path) -> Option<String>,
    /// Where the launcher of a database on the JVM finds Java.
    pub java: Option<JavaLocation>,
    /// Makes the driver.
    pub make: MakeDriver,
}

/// Makes a driver from its configuration folder, its data directory and the volume that holds it.
pub type MakeDriver = fn(PathBuf, PathBuf, Volume) -> Arc<dyn Driver>;

impl DrivenDatabase {
    /// Makes the entry of a database that needs nothing which only some databases do. Where it is
    /// installed, by what name it starts, and on what ports it listens, is for the caller to say.
    pub const fn new(
        names: &'static DatabaseNames,
        has_data: fn(&Path) -> bool,
        make: MakeDriver,
    ) -> Self {
        Self {
            names,
            home_variable: "",
            home: "/usr",
            program: "",
            started: "Started",
            orders_by_time: false,
            ports: &[],
            joins_elsewhere: |_| false,
            can_found: |_| true,
            has_data,
            preparation: None,
            conditions: &[],
            gauges: &[],
            contents: &[],
            agents: &[],
            installed: |_| None,
            java: None,
            make,
        }
    }
}

/// A gauge that only one database has. Clients see its name with the prefix `navigator_`.
#[derive(Debug)]
pub struct DatabaseGauge {
    pub name: &'static str,
    pub help: &'static str,
}

/// Where the vendor's launcher looks for Java, before the search path.
#[derive(Debug)]
pub struct JavaLocation {
    /// Environment variables that may name an installation of Java; the first one that is set
    /// counts.
    pub variables: &'static [&'static str],
    /// Where the Java that comes with the database lies, below the database's own folder.
    pub bundled: Option<&'static str>,
}

/// A file that is compiled into this program, and that `navigator install` puts beside it.
pub struct AgentFile {
    pub name: &'static str,
    /// The file as `build.rs` packed it; empty in a build without it.
    pub packed: &'static [u8],
}

impl AgentFile {
    /// Returns the file's content; `None` in a build without it.
    pub fn content(&self) -> std::io::Result<Option<Vec<u8>>> {
        if self.packed.is_empty() {
            return Ok(None);
        }
        let mut content = Vec::new();
        DeflateDecoder::new(self.packed).read_to_end(&mut content)?;
        Ok(Some(content))
    }
}

impl std::fmt::Debug for AgentFile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} ({} bytes packed)", self.name, self.packed.len())
    }
}

/// The condition that tells how the programs of [`Driver::preparation_programs`] ended, its reasons, and the
/// event about a failure.
#[derive(Debug)]
pub struct PreparationCondition {
    pub condition: &'static str,
    pub current: &'static str,
    pub failed: &'static str,
    pub event: &'static str,
}

#[cfg(test)]
const NAMES: DatabaseNames = DatabaseNames {
    kind: "ExampleCluster",
    plural: "exampleclusters",
    singular: "examplecluster",
    short_names: &[],
    word: "example",
    title: "Example",
    prefix: "ex",
    container: "example",
    data_volume: "example-data",
    data_dir: "/var/lib/example",
    cluster_label: "navigator.jetstack.io/example-cluster-name",
    pool_label: "navigator.jetstack.io/example-node-pool-name",
    predicates: &[],
    without_effect: &[],
    ports: &[("client", 7777)],
    node_ports: &[],
    leader_lease: |cluster| format!("example-{cluster}-leaderelection"),
    role: "-pilot",
    services: &["-nodes"],
};

/// A made-up database, for tests of what is the same for all databases.
#[cfg(test)]
pub(crate) const EXAMPLE: DrivenDatabase = DrivenDatabase {
    home_variable: "EXAMPLE_HOME",
    home: "/opt/example",
    program: "bin/example",
    started: "ExampleStarted",
    orders_by_time: true,
    ..DrivenDatabase::new(&NAMES, |_| false, |_, _, _| unreachable!("no test runs a database"))
};
