//! What the runner refuses, and that it touched nothing then.

use std::{fs, os::unix::fs::symlink};

use base64::{Engine, prelude::BASE64_STANDARD};
use http::StatusCode;
use nix::fcntl::{Flock, FlockArg};
use serde_json::{Value, json};

use super::{Host, NEW, OLD, digest};
use crate::support::hooks::{Hooks, Say};

/// A job that is changed before it is handed over: the code, and what is said.
fn handed(host: &Host, change: impl FnOnce(&mut Value)) -> (i32, String) {
    let mut job = json!(host.job());
    change(&mut job);
    host.hand(&job);
    let code = host.run();
    let told = host.told();
    assert_eq!(told["code"], code, "{told:#}");
    (code, told["message"].as_str().unwrap_or_default().to_owned())
}

#[test]
fn what_the_policy_or_the_job_do_not_allow_is_refused_and_nothing_is_touched() {
    let host = Host::new("200 OK");
    let mut attempt = 1;
    let mut refused = |change: &dyn Fn(&mut Value), sentence: &str| {
        attempt += 1;
        let (code, told) = handed(&host, |job| {
            job["attempt"] = json!(attempt);
            change(job);
        });
        assert_eq!(code, 20, "{told}");
        assert!(told.contains(sentence), "{told}\nhas not\n{sentence}");
        host.is_of(OLD);
        assert!(!host.path("kubeadm.calls").exists());
    };
    refused(&|job| job["form"] = json!(2), "the job is of form 2, and this runner knows 1 at most");
    refused(&|job| job["hooks"] = json!(["sh"]), "unknown field `hooks`");
    refused(&|job| job["to"] = json!("v1.35.0"), "allows v1.33.0 to v1.34.99, and not v1.35.0");
    refused(&|job| job["baseURL"] = json!("https://example.org"), "lets nothing come from");
    refused(&|job| job["sha256"]["kubelet"] = json!("00"), "kubelet has the SHA-256");
    refused(&|job| job["to"] = json!("v1.34.5"), "and not v1.34.5");
    refused(&|job| job["deadline"] = json!("2020-01-01T00:00:00Z"), "the job's time was over");
    host.set_policy(|policy| policy.enabled = false);
    refused(&|_| {}, "has upgrades disabled");
    fs::write(host.path("policy.json"), "{\"enabled\": true, \"allow\": \"all\"}").unwrap();
    refused(&|_| {}, "the policy");
    fs::remove_file(host.path("policy.json")).unwrap();
    refused(&|_| {}, "cannot be read");
    // A program that is another one by now.
    host.set_policy(|_| {});
    let (code, told) = handed(&host, |job| {
        job["attempt"] = json!(100);
        fs::write(host.path("web/kubelet"), "#!/bin/sh\necho 'Kubernetes v1.34.3'\n").unwrap();
        job["sha256"]["kubelet"] = json!(digest(&host.path("web/kubelet")));
    });
    assert!(code == 20 && told.ends_with("and not v1.34.4"), "{told}");
    host.is_of(OLD);
}

/// A pod could write links and odd names into the folder of jobs.
#[test]
fn the_folder_of_jobs_leads_nowhere() {
    let host = Host::new("200 OK");
    assert_eq!(host.run(), 0, "there is nothing to do");
    fs::create_dir(host.path("outside")).unwrap();
    fs::write(host.path("outside/job.json"), json!(host.job()).to_string()).unwrap();
    symlink(host.path("outside"), host.path("jobs/u-1")).unwrap();
    for current in ["u-1", "../outside", ""] {
        fs::write(host.path("jobs/current"), current).unwrap();
        assert_eq!(host.run(), 10, "{current:?}");
    }
    host.is_of(OLD);
    fs::remove_file(host.path("jobs/u-1")).unwrap();
    // What the runner writes there replaces a link, and does not follow it.
    host.hand(&json!(host.job()));
    symlink(host.path("outside/state.json"), host.path("jobs/u-1/state.json")).unwrap();
    assert_eq!(host.run(), 0);
    assert!(!host.path("outside/state.json").exists());
    host.is_of(NEW);
    assert_eq!(digest(&host.path("bin/kubelet.prev")), host.old);
}

#[test]
fn a_runner_waits_for_the_kubeadm_of_one_that_was_killed() {
    let host = Host::new("200 OK");
    host.hand(&json!(host.job()));
    fs::create_dir(host.path("state")).unwrap();
    let lock = fs::File::create(host.path("state/lock")).unwrap();
    let lock = Flock::lock(lock, FlockArg::LockExclusive).unwrap();
    assert_eq!(host.run(), 10);
    host.is_of(OLD);
    drop(lock);
    assert_eq!(host.run(), 0);
    host.is_of(NEW);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn programs_come_by_https_from_a_server_that_is_trusted_and_from_no_other() {
    let host = Host::new("200 OK");
    let web = host.path("web");
    let hooks = Hooks::start(move |path, _| match path.strip_prefix("k8s/") {
        Some(name) => Say::Other(StatusCode::OK, fs::read(web.join(name)).unwrap()),
        None => Say::Other(StatusCode::FOUND, Vec::new()),
    });
    let server = hooks.await;
    let told = server.webhook("k8s", &json!({}));
    let url = told["clientConfig"]["url"].as_str().unwrap().to_owned();
    let ca = BASE64_STANDARD.decode(told["clientConfig"]["caBundle"].as_str().unwrap()).unwrap();
    fs::write(host.path("ca.crt"), ca).unwrap();
    let elsewhere = url.replace("k8s", "moved");
    host.set_policy(|policy| policy.base_urls = vec![url.clone(), elsewhere.clone()]);
    let mut job = json!(host.job());
    job["baseURL"] = json!(url);
    host.hand(&job);
    let done = tokio::task::spawn_blocking(move || {
        assert_eq!(host.run(), 10, "nobody trusts this server");
        assert_eq!(host.told()["step"], "fetch");
        host.is_of(OLD);
        host.set_policy(|policy| {
            policy.base_urls = vec![url, elsewhere.clone()];
            policy.ca_file = Some(host.path("ca.crt"));
        });
        job["baseURL"] = json!(elsewhere);
        job["attempt"] = json!(2);
        // The job that was begun goes first, whatever is current.
        host.hand(&job);
        assert_eq!(host.run(), 10, "no redirect is followed");
        host.is_of(NEW);
        let message = host.told()["message"].to_string();
        assert!(message.contains("302"), "{message}");
    });
    done.await.unwrap();
}
