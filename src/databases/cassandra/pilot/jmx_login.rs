//! Who may use JMX where the node shares its machine. There it listens on 127.0.0.1, which every user
//! of the machine reaches, and it may do everything in the database. In a pod only containers of that
//! pod do.

use std::path::Path;

use crate::{
    databases::cassandra::facts::Release,
    engine::password,
    pilot::{driver::Error, volume::config_files::write_whole},
};

/// Name with which people log in.
const USER: &str = "navigator";
/// The password as the database reads it; a Java machine may put a hash in its place.
const SERVER_FILE: &str = "jmx.password";
/// The same for `nodetool -u navigator -pwf FILE`.
const TOOL_FILE: &str = "nodetool.password";

/// By which Cassandra reaches the class that compares passwords; its own options lack it, and it does not
/// start without. Java 8, which 4.1 may run on, does not know the option and would not start with it.
const EXPORT: &str = "--add-exports=java.management/com.sun.jmx.remote.security=ALL-UNNAMED";

/// Does every Java that the release runs on know the option?
pub(super) fn is_possible(release: Release) -> bool {
    release >= Release::V5_0
}

/// Makes a password for a start, and returns the options by which JMX asks for it.
pub(super) fn write_password_files(config: &Path) -> Result<String, Error> {
    let password =
        password::generate_password().map_err(|error| Error::Unprepared(error.to_string()))?;
    let line = format!("{USER} {password}\n");
    for file in [SERVER_FILE, TOOL_FILE] {
        write_whole(&config.join(file), line.as_bytes(), 0o600)?;
    }
    let file = config.join(SERVER_FILE);
    Ok(format!(
        " -Dcom.sun.management.jmxremote.authenticate=true \
         -Dcom.sun.management.jmxremote.password.file={} {EXPORT}",
        file.display()
    ))
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::PermissionsExt};

    use super::*;

    #[test]
    fn each_start_has_a_password_that_nobody_else_reads() {
        let place = tempfile::tempdir().unwrap();
        let read = |name: &str| fs::read_to_string(place.path().join(name)).unwrap();
        let options = write_password_files(place.path()).unwrap();
        let first = read(TOOL_FILE);
        assert!(first.starts_with("navigator ") && read(SERVER_FILE) == first);
        assert!(!options.contains(first.trim_start_matches("navigator ").trim()), "{options}");
        for name in [SERVER_FILE, TOOL_FILE] {
            let about = fs::metadata(place.path().join(name)).unwrap();
            assert_eq!(about.permissions().mode() & 0o777, 0o600, "{name}");
        }
        write_password_files(place.path()).unwrap();
        assert_ne!(read(TOOL_FILE), first);
    }
}
