//! The way round: a User, the file, the Node, the User's status.

use std::time::Duration;

use http::Method;
use kube::Client;
use navigator::{
    coordinator,
    runtime::{Runtime, leader::ElectionConfig},
};
use serde_json::Value;

use super::{MARKS, Machine, PATIENCE, file_of, new_key};
use crate::support::wait::until;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_user_says_on_how_many_machines_the_keys_stand() {
    let _turn = MARKS.lock().await;
    let machine = Machine::new("agent-standing").await;
    let (first, second) = (new_key(), new_key());
    machine.set("zoe", &[&first, "ssh-rsa AAAA"]).await;
    let runtime = Runtime::new();
    let config = coordinator::Config {
        namespace: machine.name.to_owned(),
        databases: Vec::new(),
        upgrades_enabled: false,
        registries: false,
        rbac_sync: false,
        allow_privileged_roles: false,
        plugins: false,
        hub: None,
        cluster_id: None,
        allow_terminate: false,
        leader_elect: false,
        election: ElectionConfig {
            identity: "test".to_owned(),
            lease_duration: Duration::from_secs(15),
            renew_deadline: Duration::from_secs(10),
            retry_period: Duration::from_secs(2),
        },
        admin: ([127, 0, 0, 1], 0).into(),
    };
    let client = Client::try_from(machine.server.config().await).unwrap();
    let given = runtime.clone();
    runtime.tasks().spawn("coordinator", async move {
        coordinator::run_coordinator(config, client, given).await.unwrap();
    });
    // Nodes of other tests have no agent that writes this User.
    let status = async |written: i64| {
        until("the User's status", PATIENCE, async || {
            let path = format!("{}/zoe", machine.users());
            let (_, user) = machine.server.ask(Method::GET, &path, &Value::Null).await;
            let status = &user["status"];
            let seen = status["observedGeneration"] == user["metadata"]["generation"];
            let right = status["machines"]["written"] == written && seen;
            if right { Ok(status.clone()) } else { Err(user.to_string()) }
        })
        .await
    };
    let seen = status(0).await;
    assert_eq!(seen["keys"], 1);
    assert_eq!(seen["refusedKeys"][0]["key"], "ssh_keys[1]");
    let agent = machine.agent(machine.config(Duration::from_secs(1))).await;
    status(1).await;
    machine.until_file_is(&file_of(&[("zoe", &[&first])])).await;
    // The status of a User is no change of the file.
    assert_eq!(agent.metric("navigator_agent_keys_written_total"), 1);
    agent.stop().await;
    machine.set("zoe", &[&second]).await;
    status(0).await;
    let agent = machine.agent(machine.config(Duration::from_secs(1))).await;
    let seen = status(1).await;
    assert_eq!(seen.get("refusedKeys"), None);
    agent.stop().await;
    runtime.shutdown().trigger();
    runtime.tasks().join().await;
}
