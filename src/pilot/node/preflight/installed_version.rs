//! Which version of a database lies on this machine, whatever a spec says.

use std::{fs, path::Path};

/// Returns the version in the name of the program's own jar, `lib/NAME-VERSION.jar` below `home`,
/// for the first of `names` that is there. `None`: the installation is laid out in another way.
pub fn installed(home: &Path, names: &[&str]) -> Option<String> {
    let files: Vec<String> = fs::read_dir(home.join("lib"))
        .ok()?
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .collect();
    let version = |name: &str, file: &String| {
        let rest = file.strip_prefix(name)?.strip_prefix('-')?.strip_suffix(".jar")?;
        rest.starts_with(|first: char| first.is_ascii_digit()).then(|| rest.to_owned())
    };
    names.iter().find_map(|name| files.iter().find_map(|file| version(name, file)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_program_tells_its_version_by_its_own_jar() {
        let home = tempfile::tempdir().unwrap();
        let names = ["apache-example", "example-all"];
        assert_eq!(installed(home.path(), &names), None);
        fs::create_dir(home.path().join("lib")).unwrap();
        for jar in ["example-driver-core-3.12.1-shaded.jar", "other-core-7.17.29.jar"] {
            fs::write(home.path().join("lib").join(jar), "").unwrap();
        }
        assert_eq!(installed(home.path(), &names), None);
        assert_eq!(installed(home.path(), &["other"]), None);
        for jar in ["example-all-5.0.6.jar", "other-7.17.29.jar"] {
            fs::write(home.path().join("lib").join(jar), "").unwrap();
        }
        assert_eq!(installed(home.path(), &names).as_deref(), Some("5.0.6"));
        assert_eq!(installed(home.path(), &["other"]).as_deref(), Some("7.17.29"));
    }
}
