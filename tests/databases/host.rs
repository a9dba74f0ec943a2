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

/// A Java that runs every database of the tests but Elasticsearch 9.
pub(crate) fn java_home() -> PathBuf {
    java(&["-17-"]).expect("Java 17 is missing: apt-get install openjdk-17-jre-headless")
}

/// A Java for Elasticsearch 9.
pub(crate) fn newer_java_home() -> PathBuf {
    java(&["-21-", "-25-"]).expect("Java 21 or 25 is missing in /usr/lib/jvm, for Elasticsearch 9")
}

fn java(parts: &[&str]) -> Option<PathBuf> {
    let places = Path::new("/usr/lib/jvm").read_dir().ok()?.flatten().map(|entry| entry.path());
    let fits = |path: &PathBuf| {
        let name = path.to_string_lossy();
        parts.iter().any(|part| name.contains(part)) && path.join("bin/java").exists()
    };
    places.filter(fits).max()
}
