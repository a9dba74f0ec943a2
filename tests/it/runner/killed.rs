//! The runner is killed at every change that it makes to a file, and started again.

use std::{
    collections::BTreeSet,
    sync::{
        Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};
use serde_json::json;

use super::{Host, NEW, OLD};

/// Far more than a whole job takes.
const PATIENCE: Duration = Duration::from_secs(120);
/// Machines beside each other; they mostly wait.
const MACHINES: usize = 4;

/// Starts the runner and kills it after so many changes of files. Returns the step that was told last;
/// `None` where the runner had ended before.
fn cut(host: &Host, after: usize) -> Option<String> {
    let watch = Inotify::init(InitFlags::IN_NONBLOCK | InitFlags::IN_CLOEXEC).unwrap();
    std::fs::create_dir_all(host.path("state")).unwrap();
    let changes = AddWatchFlags::IN_CREATE
        | AddWatchFlags::IN_MOVED_TO
        | AddWatchFlags::IN_CLOSE_WRITE
        | AddWatchFlags::IN_DELETE;
    for folder in ["bin", "etc", "state", ""] {
        watch.add_watch(&host.path(folder), changes).unwrap();
    }
    let mut runner = host.start();
    let (begun, mut seen) = (Instant::now(), 0);
    loop {
        seen += watch.read_events().map_or(0, |events| events.len());
        assert!(host.installed().is_some(), "the kubelet is neither old nor new");
        if seen > after {
            runner.kill().unwrap();
            runner.wait().unwrap();
            let step = host.told()["step"].as_str().unwrap_or("none").to_owned();
            return Some(step);
        }
        if runner.try_wait().unwrap().is_some() {
            return None;
        }
        assert!(begun.elapsed() < PATIENCE, "{}", host.told());
        thread::sleep(Duration::from_millis(1));
    }
}

/// Kills the runner at each change of a job, on a machine of its own each time. Returns the steps at
/// which it was killed.
fn cut_everywhere(answer: &str, fails: bool, code: i32, end: &str) -> BTreeSet<String> {
    let (next, steps) = (AtomicUsize::new(0), Mutex::new(BTreeSet::new()));
    let machine = || {
        loop {
            let after = next.fetch_add(1, Ordering::Relaxed);
            let host = Host::new(answer);
            if fails {
                std::fs::write(host.path("etc/fails"), "").unwrap();
            }
            // A sick kubelet is not waited for as long as a slow one.
            host.set_policy(|policy| policy.health_seconds = if code == 0 { 60 } else { 3 });
            host.hand(&json!(host.job()));
            let Some(step) = cut(&host, after) else { return };
            steps.lock().unwrap().insert(step);
            let begun = Instant::now();
            // A kubeadm that the killed one began may still be at work.
            let ended = loop {
                match host.run() {
                    10 if begun.elapsed() < PATIENCE => thread::sleep(Duration::from_millis(50)),
                    ended => break ended,
                }
            };
            let told = host.told();
            assert_eq!(ended, code, "killed after {after} changes: {told:#}");
            host.is_of(end);
            assert_eq!(told["code"], code, "{told:#}");
            // It is over: nothing more is done, whoever starts it.
            assert_eq!(host.run(), code);
            let left: Vec<_> = std::fs::read_dir(host.path("state"))
                .unwrap()
                .map(|entry| entry.unwrap().file_name().into_string().unwrap())
                .filter(|name| name != "lock" && name != "state.json")
                .collect();
            assert_eq!(left, [""; 0], "killed after {after} changes");
        }
    };
    thread::scope(|scope| {
        for _ in 0..MACHINES {
            scope.spawn(machine);
        }
    });
    assert!(next.into_inner() > 30, "it was killed often");
    steps.into_inner().unwrap()
}

#[test]
fn an_upgrade_succeeds_though_its_runner_is_killed_at_each_change() {
    let steps = cut_everywhere("200 OK", false, 0, NEW);
    for step in ["fetch", "checksum", "stage", "kubeadm", "swap", "restart"] {
        assert!(steps.contains(step), "{step} is not in {steps:?}");
    }
}

#[test]
fn a_kubelet_that_is_not_well_goes_though_the_runner_is_killed_at_each_change() {
    let steps = cut_everywhere("500 Sick", false, 20, OLD);
    assert!(steps.contains("rollback"), "{steps:?}");
}

#[test]
fn a_kubeadm_that_fails_leaves_the_old_kubelet_with_its_configuration() {
    let steps = cut_everywhere("200 OK", true, 20, OLD);
    assert!(steps.contains("kubeadm"), "{steps:?}");
}
