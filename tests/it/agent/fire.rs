//! Others change the file, the API goes away, the agent stops.

use std::{
    fs,
    os::unix::fs::{PermissionsExt, symlink},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Duration,
};

use http::Method;
use kube::Client;
use serde_json::Value;

use super::{Machine, PATIENCE, RunningAgent, file_of, new_key, swap};
use crate::support::{
    gateway::{Gateway, Way},
    wait::until,
};

/// Times of the file that are no reader's to see: it is whole, ours or theirs.
fn watch_file(machine: &Machine, wanted: &str, over: &Arc<AtomicBool>) -> thread::JoinHandle<u64> {
    let (file, wanted, over) = (machine.file(), wanted.to_owned(), Arc::clone(over));
    thread::spawn(move || {
        let mut ours = 0;
        while !over.load(Ordering::Relaxed) {
            let text = fs::read_to_string(&file).unwrap();
            let theirs = text.starts_with("theirs ") && text.ends_with(" theirs\n");
            assert!(text == wanted || theirs, "torn or empty: {text:?}");
            ours += u64::from(text == wanted);
        }
        ours
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_storm_of_edits_tears_no_read_and_ours_stands_after_it() {
    let machine = Machine::new("agent-fire").await;
    let key = new_key();
    machine.set("anne", &[&key]).await;
    let wanted = file_of(&[("anne", &[&key])]);
    let period = Duration::from_secs(3);
    let agent = machine.agent(machine.config(period)).await;
    machine.until_file_is(&wanted).await;
    let mode = fs::metadata(machine.file()).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode, 0o644);

    let over = Arc::new(AtomicBool::new(false));
    let readers: Vec<_> = (0..2).map(|_| watch_file(&machine, &wanted, &over)).collect();
    for number in 0..1000 {
        let text = format!("theirs {number} {} theirs\n", "ssh-rsa AAAA ".repeat(number));
        let file = machine.file();
        tokio::task::spawn_blocking(move || swap(&file, &text)).await.unwrap();
    }
    machine.until_file_is(&wanted).await;
    over.store(true, Ordering::Relaxed);
    let seen: u64 = readers.into_iter().map(|reader| reader.join().unwrap()).sum();
    assert!(seen > 0);
    let mended = agent.metric("navigator_agent_keys_drift_total");
    assert!((1..100).contains(&mended), "{mended} of 1000 edits were mended one by one");
    until("the Node says that it is edited again and again", PATIENCE, async || {
        let report = machine.report().await;
        let trouble = report["trouble"].as_str().unwrap_or_default();
        if mended < 10 || trouble.contains("again and again") {
            Ok(())
        } else {
            Err(report.to_string())
        }
    })
    .await;
    until("an event tells of it", PATIENCE, async || {
        let path = "/apis/events.k8s.io/v1/namespaces/default/events?limit=500";
        let (_, events) = machine.server.ask(Method::GET, path, &Value::Null).await;
        let told = events["items"].as_array().unwrap().iter().any(|event| {
            event["reason"] == "AuthorizedKeysDrift" && event["regarding"]["name"] == machine.name
        });
        if told { Ok(()) } else { Err(events.to_string()) }
    })
    .await;
    agent.stop().await;
    assert_eq!(fs::read_to_string(machine.file()).unwrap(), wanted, "it stays");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whatever_is_put_in_its_place_the_file_is_mended() {
    let machine = Machine::new("agent-mends").await;
    let key = new_key();
    machine.set("anne", &[&key]).await;
    let wanted = file_of(&[("anne", &[&key])]);
    let agent = machine.agent(machine.config(Duration::from_millis(1))).await;
    machine.until_file_is(&wanted).await;
    let (file, folder) = (machine.file(), machine.home.path().join(".ssh"));
    let elsewhere = machine.home.path().join("elsewhere");
    fs::write(&elsewhere, "root's").unwrap();
    let edits: [(&str, &dyn Fn()); 8] = [
        ("a line more", &|| fs::write(&file, format!("{wanted}ssh-rsa AAAA\n")).unwrap()),
        ("empty", &|| fs::write(&file, "").unwrap()),
        ("gone", &|| fs::remove_file(&file).unwrap()),
        ("writable", &|| fs::set_permissions(&file, fs::Permissions::from_mode(0o666)).unwrap()),
        ("a link", &|| {
            fs::remove_file(&file).unwrap();
            symlink(&elsewhere, &file).unwrap();
        }),
        ("a pipe", &|| {
            fs::remove_file(&file).unwrap();
            nix::unistd::mkfifo(&file, nix::sys::stat::Mode::S_IRWXU).unwrap();
        }),
        ("the folder gone", &|| fs::rename(&folder, machine.home.path().join("away")).unwrap()),
        ("the folder open", &|| {
            fs::set_permissions(&folder, fs::Permissions::from_mode(0o777)).unwrap();
        }),
    ];
    for (what, edit) in edits {
        edit();
        until(what, PATIENCE, async || {
            let about = fs::symlink_metadata(&file).map_err(|error| error.to_string())?;
            let of_folder = fs::metadata(&folder).unwrap().permissions().mode() & 0o777;
            let of_file = about.permissions().mode() & 0o777;
            let plain = about.is_file() && (of_folder, of_file) == (0o755, 0o644);
            let text = if plain { fs::read_to_string(&file).unwrap() } else { String::new() };
            if text == wanted { Ok(()) } else { Err(format!("{about:?} {text}")) }
        })
        .await;
    }
    assert_eq!(fs::read_to_string(&elsewhere).unwrap(), "root's");
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_stay_while_the_api_is_away_and_follow_when_it_is_back() {
    let machine = Machine::new("agent-away").await;
    let (old, new) = (new_key(), new_key());
    machine.set("anne", &[&old]).await;
    let wanted = file_of(&[("anne", &[&old])]);
    let gateway = Gateway::start([127, 0, 0, 1], machine.server.address()).await;
    let client = || async {
        let mut config = machine.server.config().await;
        config.cluster_url = gateway.url().replace("http:", "https:").parse().unwrap();
        config.tls_server_name = Some("localhost".to_owned());
        Client::try_from(config).unwrap()
    };
    let period = Duration::from_millis(1);
    let agent = RunningAgent::start(machine.config(period), client().await);
    machine.until_file_is(&wanted).await;
    for way in [Way::Refusing, Way::Closed] {
        gateway.set(way).await;
        swap(&machine.file(), "theirs\n");
        machine.until_file_is(&wanted).await;
    }
    // One that starts without an API goes on from the file.
    agent.stop().await;
    let agent = RunningAgent::start(machine.config(period), client().await);
    fs::set_permissions(machine.file(), fs::Permissions::from_mode(0o600)).unwrap();
    until("the file is mended without an API", PATIENCE, async || {
        let mode = fs::metadata(machine.file()).unwrap().permissions().mode() & 0o777;
        if mode == 0o644 { Ok(()) } else { Err(format!("{mode:o}")) }
    })
    .await;
    machine.until_file_is(&wanted).await;
    // What happened meanwhile follows.
    machine.set("anne", &[&new]).await;
    gateway.set(Way::Open).await;
    machine.until_file_is(&file_of(&[("anne", &[&new])])).await;
    // An object that is deleted under the watch is believed.
    machine.delete("anne").await;
    machine.until_file_is(&file_of(&[])).await;
    agent.stop().await;
}
