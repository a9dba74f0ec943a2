//! Which version of a database lies on this machine, whatever a spec says.

use std::{fs, path::Path};

use super::failed_check;
use crate::{
    api::names::annotation,
    pilot::driver::{DatabaseNode, FailedCheck},
};

/// Returns the version in the name of the program's own jar, `lib/NAME-VERSION.jar` below `home`,
/// for the first of `names` that is there. `None`: the installation is laid out in another way.
pub fn find_installed_version(home: &Path, names: &[&str]) -> Option<String> {
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

/// Returns the failed check of a program that would open the data with another version than the
/// node's Pilot names: the pod got a newer image before the node's turn in an upgrade. `written` is
/// the version that opened the data last.
///
/// Another patch release counts only while the Pilot waits for its turn, since an image of one's
/// own may hold another one than the spec names.
pub fn out_of_turn(
    node: &DatabaseNode,
    program: Option<&str>,
    data_version: Option<&str>,
) -> Option<FailedCheck> {
    let desired_version = node.pilot.spec.version.as_deref()?;
    let (program, data_version) = (program?, data_version?);
    let annotations = node.pilot.metadata.annotations.as_ref();
    let is_pinned =
        annotations.is_some_and(|annotations| annotations.contains_key(annotation::PINNED_POD));
    let is_other_version = program != desired_version
        && (is_pinned || minor_series(program) != minor_series(desired_version));
    let would_upgrade =
        program != data_version && minor_series(data_version) == minor_series(desired_version);
    let place = node.home.display();
    if data_version == desired_version && is_below(program, desired_version) {
        let message = format!(
            "the program in {place} is of {program}, and the data were written by {data_version}, as \
             this node's Pilot names it: the pod was made of an earlier template, and is made \
             anew; set spec.version where spec.image is of {program}"
        );
        return Some(failed_check("PreflightFailed", message));
    }
    (is_other_version && would_upgrade).then(|| {
        let message = format!(
            "the program in {place} is of {program}, and this node is of {desired_version}: it is upgraded \
             when its Pilot names that version; set spec.version where spec.image is of {program}"
        );
        failed_check("PreflightFailed", message)
    })
}

/// Is a version older than another one? Only where both are numbers alone.
fn is_below(version: &str, other: &str) -> bool {
    let parts = |text: &str| -> Option<Vec<u32>> {
        text.split('.').map(|part| part.parse().ok()).collect()
    };
    parts(version).zip(parts(other)).is_some_and(|(version, other)| version < other)
}

/// Returns the major and the minor number of a version.
fn minor_series(version: &str) -> Vec<&str> {
    version.splitn(3, '.').take(2).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pilot::node::preflight::tests::node;

    #[test]
    fn data_are_opened_with_another_version_only_in_the_nodes_turn() {
        let data = tempfile::tempdir().unwrap();
        let mut node = node(data.path(), "u1");
        let mut refused = |named: &str, waits: bool, program: &str, written: &str| {
            node.pilot.spec.version = Some(named.to_owned());
            let mark = waits.then(|| [(annotation::PINNED_POD.to_owned(), "old".to_owned())]);
            node.pilot.metadata.annotations = mark.map(Into::into);
            out_of_turn(&node, Some(program), Some(written)).is_some()
        };
        assert!(refused("4.1.3", false, "5.0.6", "4.1.3"), "the image is of a later series");
        assert!(refused("4.1.3", true, "4.1.4", "4.1.3"), "the node waits for its turn");
        assert!(refused("4.1.4", false, "4.1.3", "4.1.4"), "of the template from before its turn");
        assert!(!refused("4.1.3", false, "4.1.4", "4.1.3"), "an image of one's own");
        assert!(!refused("4.1.3", true, "4.1.4", "4.1.4"), "the data are of the program's version");
        assert!(!refused("5.0.6", false, "5.0.6", "4.1.3"), "the node has its turn");
        assert!(!refused("4.1.3", false, "5.0.6", "5.0.6"), "opened already");
        assert_eq!(out_of_turn(&node, None, Some("4.1.3")).map(|check| check.message), None);
    }

    #[test]
    fn the_program_tells_its_version_by_its_own_jar() {
        let home = tempfile::tempdir().unwrap();
        let names = ["apache-example", "example-all"];
        assert_eq!(find_installed_version(home.path(), &names), None);
        fs::create_dir(home.path().join("lib")).unwrap();
        for jar in ["example-driver-core-3.12.1-shaded.jar", "other-core-7.17.29.jar"] {
            fs::write(home.path().join("lib").join(jar), "").unwrap();
        }
        assert_eq!(find_installed_version(home.path(), &names), None);
        assert_eq!(find_installed_version(home.path(), &["other"]), None);
        for jar in ["example-all-5.0.6.jar", "other-7.17.29.jar"] {
            fs::write(home.path().join("lib").join(jar), "").unwrap();
        }
        assert_eq!(find_installed_version(home.path(), &names).as_deref(), Some("5.0.6"));
        assert_eq!(find_installed_version(home.path(), &["other"]).as_deref(), Some("7.17.29"));
    }
}
