//! Where the databases are, and the Java that runs them.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

pub(crate) fn repository() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Lays a database out below `.testbed`, once.
#[expect(clippy::disallowed_methods, reason = "tests start what they test")]
pub(crate) fn home(database: &str, version: &str) -> PathBuf {
    let home = repository().join(".testbed").join(format!("{database}-{version}"));
    let script = repository().join("tests/testbed").join(format!("get-{database}.sh"));
    let status = Command::new(script).arg(version).arg(&home).status().unwrap();
    assert!(
        status.success(),
        "get-{database}.sh {version} failed: is `mvn` (apt: maven) installed?"
    );
    home
}

/// A Java that runs every database of the tests.
pub(crate) fn java_home() -> PathBuf {
    let known = ["java-17-openjdk-amd64", "java-17-openjdk-arm64"];
    known
        .iter()
        .map(|name| Path::new("/usr/lib/jvm").join(name))
        .find(|path| path.join("bin/java").exists())
        .expect("Java 17 is missing: apt-get install openjdk-17-jre-headless")
}
