//! What the engines render, as whole folders.

use std::{fmt::Write as _, path::Path};

use navigator::databases::cassandra::facts::{Release, Settings, render};
use serde_json::json;

use crate::golden;

#[test]
fn cassandra_folder_is_the_golden_one() {
    let overlay = json!({"concurrent_reads": 64, "storage_port": 1, "audit_logging_options": {"enabled": true}});
    let seeds = ["10.0.0.8".to_owned(), "seed.example.org:7001".to_owned(), "fd00::1".to_owned()];
    let options = ["-XX:MaxDirectMemorySize=1g".to_owned()];
    for release in [Release::V4_0, Release::V4_1, Release::V5_0] {
        let files = render(&Settings {
            release,
            cluster_name: "shop",
            datacenter: "eu",
            rack: "a",
            num_tokens: Some(8),
            token_factor: Some(3),
            seeds: &seeds,
            address: [10, 0, 0, 7].into(),
            data: Path::new("/var/lib/cassandra"),
            overlay: overlay.as_object().unwrap(),
            jvm_options: &options,
        })
        .unwrap();
        let mut text = String::new();
        for (name, content) in files {
            writeln!(text, "==> {name} <==\n{content}").unwrap();
        }
        golden::check(&format!("cassandra/{release}.txt"), &text);
    }
}
