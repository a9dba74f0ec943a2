//! The chart and the kustomize folder under `deploy`: written from the objects of
//! `navigator manifest`, so that every way of installing installs the same.
//!
//! `make golden` rewrites them. What Helm and kustomize make of them is `tests/install`'s.

mod additions;
mod chart;
mod kustomize;
mod machines;
mod template;
mod values;

use std::{collections::BTreeSet, fs, path::Path};

use navigator::manifest::{self, InstallSettings, InstallStore};
use serde_json::Value;

use crate::{golden, scheme};

/// Objects of an install with these settings.
fn objects(settings: &InstallSettings) -> Vec<Value> {
    manifest::install_objects(settings, scheme())
}

fn etcd(servers: &str, secret: Option<&str>) -> InstallStore {
    InstallStore::Etcd { servers: vec![servers.to_owned()], secret: secret.map(str::to_owned) }
}

fn find<'a>(objects: &'a [Value], kind: &str, name: &str) -> &'a Value {
    objects
        .iter()
        .find(|object| object["kind"] == kind && object["metadata"]["name"] == name)
        .unwrap_or_else(|| panic!("no {kind} {name}"))
}

/// Compares a folder with these files; there may be no others, but for examples in `ci`.
fn check(folder: &str, files: &[(String, String)]) {
    for (name, text) in files {
        golden::check_file(&format!("{folder}/{name}"), text);
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join(folder);
    let mut held = BTreeSet::new();
    names(&root, &root, &mut held);
    held.retain(|name| !name.starts_with("ci/"));
    let written: BTreeSet<_> = files.iter().map(|(name, _)| name.clone()).collect();
    assert_eq!(held, written, "{folder} holds other files than those that are written");
}

fn names(root: &Path, folder: &Path, found: &mut BTreeSet<String>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            names(root, &path, found);
        } else {
            found.insert(path.strip_prefix(root).unwrap().display().to_string());
        }
    }
}

#[test]
fn the_chart_is_written_from_the_manifest() {
    check("deploy/helm/navigator", &chart::files());
}

#[test]
fn the_kustomize_folder_is_written_from_the_manifest() {
    check("deploy/kustomize", &kustomize::files());
}

#[test]
fn the_values_are_described() {
    const BEGIN: &str = "<!-- values: written by `make golden` -->\n";
    const END: &str = "<!-- end of values -->";
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/install.md");
    let text = fs::read_to_string(page).unwrap();
    let (before, rest) = text.split_once(BEGIN).expect("the page says where the table begins");
    let (_, after) = rest.split_once(END).expect("the page says where the table ends");
    golden::check_file(
        "docs/install.md",
        &format!("{before}{BEGIN}{}{END}{after}", values::table()),
    );
}
