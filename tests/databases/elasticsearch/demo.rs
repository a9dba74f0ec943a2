//! A plugin that does nothing, packed for one version of Elasticsearch.

#![expect(clippy::disallowed_methods, reason = "tests start processes")]

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use base64::{Engine, prelude::BASE64_STANDARD};

/// `public class Demo extends org.elasticsearch.plugins.Plugin {}`, compiled for Java 8.
const CLASS: &str = "yv66vgAAADQACgoAAgADBwAEDAAFAAYBACBvcmcvZWxhc3RpY3NlYXJjaC9wbHVnaW5zL1BsdWdpbgEABjxpbml0PgEA\
    AygpVgcACAEABERlbW8BAARDb2RlACEABwACAAAAAAABAAEABQAGAAEACQAAABEAAQABAAAABSq3AAGxAAAAAAAA";

/// Packs the plugin in `folder`; returns the archive, whose file does not have the plugin's name.
pub(super) fn pack(folder: &Path, version: &str) -> PathBuf {
    let inner = folder.join("elasticsearch");
    fs::create_dir_all(&inner).unwrap();
    let descriptor = format!(
        "description=does nothing\nversion=1.2.3\nname=demo\nclassname=Demo\njava.version=1.8\n\
         elasticsearch.version={version}\n"
    );
    fs::write(inner.join("plugin-descriptor.properties"), descriptor).unwrap();
    fs::write(folder.join("Demo.class"), BASE64_STANDARD.decode(CLASS).unwrap()).unwrap();
    zip(folder, "elasticsearch/demo.jar", &["Demo.class"]);
    let archive = folder.join("archive-9.zip");
    if version.starts_with('5') {
        // Before version 6 everything lies below one folder.
        zip(folder, "archive-9.zip", &["elasticsearch"]);
    } else {
        zip(&inner, "../archive-9.zip", &["plugin-descriptor.properties", "demo.jar"]);
    }
    archive
}

fn zip(place: &Path, archive: &str, files: &[&str]) {
    let status = Command::new("python3")
        .args(["-m", "zipfile", "-c", archive])
        .args(files)
        .current_dir(place)
        .status()
        .expect("python3 is missing");
    assert!(status.success(), "{archive} could not be packed");
}
