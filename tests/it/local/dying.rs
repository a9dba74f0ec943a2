//! The commands beside a daemon that was killed: it serves no more, and still holds its folder.

use std::{fs, net::TcpListener, path::Path, process::Command, thread};

use navigator::local::state_folder::StateFolder;

/// Holds the folder and accepts one connection; then, as a process that ends, closes its port first
/// and gives the folder back last.
fn dying(folder: &StateFolder) -> thread::JoinHandle<()> {
    folder.create().unwrap();
    let (held, port) = (folder.lock().unwrap(), TcpListener::bind("127.0.0.1:0").unwrap());
    let kubeconfig = format!(
        "{{apiVersion: v1, kind: Config, current-context: a, \
         contexts: [{{name: a, context: {{cluster: a, user: a}}}}], \
         clusters: [{{name: a, cluster: {{server: 'https://{}', insecure-skip-tls-verify: true}}}}], \
         users: [{{name: a, user: {{token: a}}}}]}}",
        port.local_addr().unwrap()
    );
    fs::write(folder.kubeconfig(), kubeconfig).unwrap();
    thread::spawn(move || {
        let connection = port.accept().unwrap();
        drop(port);
        drop(connection);
        drop(held);
    })
}

/// The exit code of a command, and its standard output and error.
#[expect(clippy::disallowed_methods, reason = "a test runs the built binary")]
fn local(words: &[&str], folder: &Path) -> (i32, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_navigator"));
    let done = command.arg("local").args(words).arg("--dir").arg(folder).output().unwrap();
    let said = [done.stdout, done.stderr].concat();
    (done.status.code().unwrap(), String::from_utf8(said).unwrap())
}

#[test]
fn status_of_a_daemon_that_is_being_killed_is_that_nothing_runs() {
    let place = tempfile::tempdir().unwrap();
    let folder = StateFolder::new(place.path().join("local"));
    let daemon = dying(&folder);
    let (code, said) = local(&["status"], folder.path());
    daemon.join().unwrap();
    assert_eq!((code, said.contains("nothing runs here")), (1, true), "{said}");
}

#[test]
fn up_after_a_daemon_that_is_being_killed_starts_another() {
    let place = tempfile::tempdir().unwrap();
    let folder = StateFolder::new(place.path().join("local"));
    let daemon = dying(&folder);
    let (code, said) = local(&["up", "--address", "127.0.0.1:0"], folder.path());
    daemon.join().unwrap();
    let (ended, last) = local(&["down"], folder.path());
    assert_eq!((code, said.starts_with("runs, process ")), (0, true), "{said}");
    assert_eq!(ended, 0, "{last}");
}
