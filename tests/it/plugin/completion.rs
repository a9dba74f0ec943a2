//! Completion as kubectl asks for it, and as shells do.

use std::{
    os::unix::fs::symlink,
    path::{Path, PathBuf},
};

use super::answers::{Ended, Person, output};

/// The real kubectl of the test bed.
fn kubectl() -> PathBuf {
    #[expect(clippy::disallowed_methods, reason = "the tests' own setting")]
    let bed = std::env::var_os("NAVIGATOR_TESTBED").map(PathBuf::from);
    let bed = bed.unwrap_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join(".testbed"));
    let kubectl = bed.join("bin/kubectl");
    assert!(kubectl.exists(), "there is no {}: `make testbed` builds it", kubectl.display());
    kubectl
}

/// A folder for the PATH with the plugin under both of its names.
fn links(person: &Person) -> PathBuf {
    let folder = person.folder().join("links");
    std::fs::create_dir_all(&folder).unwrap();
    for name in ["kubectl-navigator", "kubectl_complete-navigator"] {
        symlink(env!("CARGO_BIN_EXE_navigator"), folder.join(name)).unwrap();
    }
    symlink(kubectl(), folder.join("kubectl")).unwrap();
    folder
}

#[expect(clippy::disallowed_methods, reason = "a test runs kubectl and shells")]
async fn run(person: &Person, program: &str, words: &[&str]) -> Ended {
    let folder = person.folder().join("links");
    let mut command = std::process::Command::new(program);
    command.args(words).env_clear();
    command.env("PATH", format!("{}:/usr/bin:/bin", folder.display()));
    command.env("KUBECONFIG", &person.kubeconfig).env("HOME", person.folder());
    output(command).await.into()
}

/// Candidates, each with what is said of it.
async fn completed(person: &Person, words: &[&str]) -> Vec<String> {
    let kubectl = person.folder().join("links/kubectl");
    let asked = [&["__complete", "navigator"], words].concat();
    let ended = run(person, kubectl.to_str().unwrap(), &asked).await;
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let mut lines: Vec<String> = ended.out.lines().map(str::to_owned).collect();
    assert_eq!(lines.pop().as_deref(), Some(":4"), "no names of files: {ended:?}");
    lines
}

fn names(lines: &[String]) -> Vec<&str> {
    lines.iter().map(|line| line.split('\t').next().unwrap()).collect()
}

#[tokio::test]
async fn kubectl_runs_the_plugin_and_completes_its_words_and_names() {
    let person = Person::new().await;
    links(&person);
    person.cluster("demo", 2).await;
    person.cluster("deploy", 1).await;
    let kubectl = person.folder().join("links/kubectl");
    let ran = run(&person, kubectl.to_str().unwrap(), &["navigator", "status", "-o", "name"]).await;
    assert_eq!(ran.code, Some(3), "{ran:?}");
    assert!(ran.out.contains("cassandracluster.navigator.jetstack.io/demo\n"), "{ran:?}");

    let words = completed(&person, &["sta"]).await;
    assert_eq!(names(&words), ["status", "start"], "{words:?}");
    assert!(words[0].starts_with("status\tSays on one screen"), "{words:?}");
    let clusters = completed(&person, &["status", "de"]).await;
    assert_eq!(clusters, ["demo\tCassandraCluster", "deploy\tCassandraCluster"]);
    let typed = completed(&person, &["status", "cassandracluster/dem"]).await;
    assert_eq!(names(&typed), ["cassandracluster/demo"]);
    let nodes = completed(&person, &["fence", "demo", ""]).await;
    assert_eq!(nodes, ["ring-0\tRunning", "ring-1\tRunning"], "flags are for who begins one");
    let flags = completed(&person, &["fence", "demo", "--o"]).await;
    assert_eq!(names(&flags), ["--off", "--output"]);
    let whole = completed(&person, &["fence", "demo", "cass-demo-ring-1"]).await;
    assert_eq!(names(&whole), ["cass-demo-ring-1"]);
    let pools = completed(&person, &["scale", "deploy", ""]).await;
    assert_eq!(pools, ["ring=1\t1 now"]);
    let namespaces = completed(&person, &["status", "-n", "d"]).await;
    assert_eq!(names(&namespaces), ["db"]);
    let contexts = completed(&person, &["status", "--context", ""]).await;
    assert_eq!(names(&contexts), ["t"]);
    let elsewhere = completed(&person, &["status", "-n", "navigator", "de"]).await;
    assert_eq!(names(&elsewhere), [""; 0]);
    let forms = completed(&person, &["status", "-o", ""]).await;
    assert_eq!(names(&forms), ["json", "yaml", "wide", "name"]);
    // An API that is away costs the names, and not the words.
    person.bed.kill_server();
    assert_eq!(names(&completed(&person, &["status", "de"]).await), [""; 0]);
}

/// bash is everywhere; of the others the script is looked at.
#[tokio::test]
async fn scripts_of_four_shells_ask_the_program() {
    let person = Person::new().await;
    let folder = links(&person);
    person.cluster("demo", 1).await;
    for shell in ["bash", "zsh", "fish", "powershell"] {
        let script = person.says(&["completion", shell]).await;
        assert_eq!(script.code, Some(0), "{script:?}");
        assert!(script.out.contains("kubectl-navigator"), "{script:?}");
        assert!(script.out.contains("NAVIGATOR_COMPLETE"), "{script:?}");
        std::fs::write(folder.join(format!("complete.{shell}")), script.out).unwrap();
    }
    let asks = format!(
        "source {}/complete.bash; COMP_WORDS=(kubectl-navigator fence demo ''); COMP_CWORD=3; \
         COMP_TYPE=9; _clap_complete_kubectl_navigator kubectl-navigator '' demo; \
         printf '%s\\n' \"${{COMPREPLY[@]}}\"",
        folder.display()
    );
    let answered = run(&person, "/bin/bash", &["-c", &asks]).await;
    assert!(answered.out.lines().any(|line| line == "ring-0"), "{answered:?}");
}
