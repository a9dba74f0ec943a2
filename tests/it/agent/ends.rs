//! The cluster manager is taken away, and stays after all.

use std::{fs, time::Duration};

use http::Method;
use serde_json::{Value, json};

use super::{Machine, PATIENCE, file_of, new_key};
use crate::support::wait::until;

async fn annotate(machine: &Machine, key: &str, value: Value) {
    let path = format!("/api/v1/namespaces/{}", machine.name);
    let patch = json!({"metadata": {"annotations": {key: value}}});
    let (status, said) = machine.server.ask(Method::PATCH, &path, &patch).await;
    assert_eq!(status, 200, "{said}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_agent_takes_its_keys_away_by_the_coordinators_word_and_says_so() {
    let machine = Machine::new("agent-ends").await;
    let key = new_key();
    machine.set("anne", &[&key]).await;
    let wanted = file_of(&[("anne", &[&key])]);
    let mut config = machine.config(Duration::from_secs(1));
    config.shared = true;
    let agent = machine.agent(config).await;
    machine.until_file_is(&wanted).await;
    let theirs = "ssh-rsa AAAA theirs\n";
    let progress = "containership.io/terminate-progress";
    // In one piece: an agent that reads while the file is cut short would put back its own keys alone.
    let aside = machine.file().with_extension("aside");
    fs::write(&aside, format!("{theirs}{wanted}")).unwrap();
    fs::rename(&aside, machine.file()).unwrap();
    // What a person asks for is the coordinator's to judge; what cannot be read is no word.
    annotate(&machine, "containership.io/terminate", json!("c1")).await;
    annotate(&machine, progress, json!("yes")).await;
    machine.set("bob", &[]).await;
    until("the agent follows Users", PATIENCE, async || {
        let report = machine.report().await;
        let users = report["users"].as_str().unwrap_or_default();
        if users.len() == 16 && report.get("cleaned").is_none() {
            Ok(())
        } else {
            Err(report.to_string())
        }
    })
    .await;
    assert_eq!(fs::read_to_string(machine.file()).unwrap(), format!("{theirs}{wanted}"));

    let word = json!({"cluster": "c1", "step": "Agents", "since": "2026-01-01T00:00:00Z"});
    annotate(&machine, progress, json!(word.to_string())).await;
    until("the agent says that its keys are gone", PATIENCE, async || {
        let report = machine.report().await;
        if report["cleaned"] == "c1" { Ok(()) } else { Err(report.to_string()) }
    })
    .await;
    assert_eq!(fs::read_to_string(machine.file()).unwrap(), theirs);

    annotate(&machine, progress, Value::Null).await;
    machine.until_file_is(&format!("{theirs}{wanted}")).await;
    until("the agent does not say so any more", PATIENCE, async || {
        let report = machine.report().await;
        let back = report.get("cleaned").is_none() && report["keys"] != "";
        if back { Ok(()) } else { Err(report.to_string()) }
    })
    .await;
    agent.stop().await;
}
