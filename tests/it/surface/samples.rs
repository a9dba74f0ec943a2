//! Every manifest of `deploy/samples` is accepted as it stands, with and without dry run.

use std::{
    fs,
    path::{Path, PathBuf},
};

use serde_json::{Value, json};

use super::{Server, cassandra, pilot, pilots};

use crate::scheme;

fn files(folder: &Path) -> Vec<PathBuf> {
    let mut found: Vec<PathBuf> = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(files(&path));
        } else {
            found.push(path);
        }
    }
    found.sort();
    found
}

/// The documents of the samples, with the names of their files.
fn documents() -> Vec<(String, String)> {
    let mut found = Vec::new();
    for path in files(&Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy/samples")) {
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        let text = fs::read_to_string(&path).unwrap();
        found.extend(text.split("\n---\n").map(|text| (name.clone(), text.to_owned())));
    }
    found
}

fn url(object: &Value) -> String {
    let kind = scheme().kinds().iter().find(|kind| kind.kind() == object["kind"]).unwrap().plural();
    format!("/apis/{}/namespaces/db/{kind}", object["apiVersion"].as_str().unwrap())
}

#[tokio::test]
async fn every_sample_is_accepted_with_and_without_dry_run() {
    const YAML: &[(&str, &str)] = &[("content-type", "application/yaml")];
    for (name, text) in documents() {
        if name == "stop-fence-restart.yaml" {
            continue; // Patches; below.
        }
        // Samples share names, so each has a server of its own.
        let server = Server::start().await;
        let text = text.replace("  namespace: logging\n", "");
        let object: Value = serde_yaml::from_str(&text).unwrap();
        let url = url(&object);
        for query in ["?fieldValidation=Strict&dryRun=All", "?fieldValidation=Strict"] {
            let answer = server.send("POST", &format!("{url}{query}"), YAML, text.clone()).await;
            let created = answer.expect(201);
            assert_eq!(created["metadata"]["name"], object["metadata"]["name"], "{name}");
            // Upstream's, and their twins, name images and versions that are not run.
            if !url.contains("v1alpha1") && !name.ends_with(".v1beta1.yaml") {
                // That a database is open to its network is told at every apply (W21).
                let mut warnings = answer.warnings;
                warnings
                    .retain(|warning| !warning.contains("keep others out with a NetworkPolicy"));
                assert_eq!(warnings, Vec::<String>::new(), "{name}");
            }
        }
        let object_url = format!("{url}/{}", object["metadata"]["name"].as_str().unwrap());
        for version in ["v1alpha1", "v1beta1"] {
            if object["kind"] == "LeaderLease" && version == "v1alpha1" {
                continue;
            }
            let url = object_url.replace("v1alpha1", version).replace("v1beta1", version);
            assert_eq!(server.get(&url).await.expect(200)["kind"], object["kind"], "{name}");
        }
    }
}

#[tokio::test]
async fn the_three_patches_apply() {
    let server = Server::start().await;
    let url_of = |kind: &str| pilots().replace("pilots", kind);
    server.post(&url_of("cassandraclusters"), &cassandra("demo")).await.expect(201);
    server.post(&pilots(), &pilot("cass-demo-ring-0")).await.expect(201);
    let mut applied = 0;
    for (name, text) in documents() {
        if name != "stop-fence-restart.yaml" {
            continue;
        }
        let patch: Value = serde_yaml::from_str(&text).unwrap();
        let url = format!("{}/{}", url(&patch), patch["metadata"]["name"].as_str().unwrap());
        let patched = server.merge(&url, &json!({"spec": patch["spec"]})).await.expect(200);
        for (field, value) in patch["spec"].as_object().unwrap() {
            assert_eq!(&patched["spec"][field], value, "{field}");
        }
        applied += 1;
    }
    assert_eq!(applied, 3);
}
