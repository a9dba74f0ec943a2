//! The commands of docs/store.md, as typed: those of `navigator` run, those of `kubectl` are the
//! ones that the server's own messages name.

use std::{
    fs,
    path::Path,
    process::{Command, Stdio},
};

use bytes::Bytes;
use navigator::{
    api::{GROUP, names},
    apiserver::storage::{Key, Storage},
};
use serde_json::json;

use crate::storage::Scratch;

fn page() -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/store.md")).unwrap()
}

/// Runs a line in a shell, with `navigator` and `/var/lib/navigator` in other places.
#[expect(clippy::disallowed_methods, reason = "the binary under test is a child of the test")]
fn typed(line: &str, store: &Path, folder: &Path) -> String {
    let line = line
        .replacen("navigator ", concat!(env!("CARGO_BIN_EXE_navigator"), " "), 1)
        .replace("/var/lib/navigator", store.to_str().unwrap());
    let output = Command::new("sh")
        .args(["-c", &line])
        .current_dir(folder)
        .env_clear()
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{line}: {said}");
    String::from_utf8(output.stdout).unwrap()
}

#[tokio::test]
async fn the_commands_of_the_page_do_what_it_says() {
    let Scratch { store, directory } = Scratch::new().await;
    let key = |name| Key::new(GROUP, "pilots", "db", name).unwrap();
    let pilot = |name: &str| {
        Bytes::from(
            json!({
                "apiVersion": "navigator.jetstack.io/v1beta1", "kind": "Pilot",
                "metadata": {"name": name, "namespace": "db", "uid": "u"}, "spec": {},
            })
            .to_string(),
        )
    };
    for name in ["a", "b"] {
        store.create(&key(name), pilot(name)).await.unwrap();
    }
    let id = store.store_id().await.unwrap();
    drop(store);
    let (folder, path) = (directory.path(), directory.path().join("store"));
    let page = page();
    let lines: Vec<&str> =
        page.lines().filter_map(|line| line.trim().strip_prefix("$ navigator ")).collect();
    let command = |of: &str| {
        let found = lines.iter().find(|line| line.starts_with(of));
        format!("navigator {}", found.unwrap_or_else(|| panic!("the page has no {of}: {lines:?}")))
    };
    let (export, import) = (command("apiserver store export"), command("apiserver store import"));
    let (identity, forget) =
        (command("apiserver store identity"), command("apiserver store forget"));
    let migrate = command("apiserver migrate-storage");
    assert_eq!(lines.len(), 5, "a command that no test types: {lines:?}");

    typed(&export, &path, folder);
    assert!(folder.join("backup.jsonl").exists());
    fs::remove_dir_all(&path).unwrap();
    let imported = typed(&import, &path, folder);
    assert_eq!(imported, format!("imported 2 objects into store {id}\n"));
    // The page shows this output, as far as it is the same for every store.
    assert!(page.contains("imported 2 objects into store "));
    let store = crate::storage::open_at(&path).await;
    store.create(&key("broken"), Bytes::from_static(b"{")).await.unwrap();
    drop(store);
    let shown = typed(&identity, &path, folder);
    for line in shown.lines() {
        let words = line.split(" (").next().unwrap().replace(&id, "28f0…");
        assert!(page.contains(&words) || words.starts_with("revision: "), "{words}");
    }
    assert!(typed(&forget, &path, folder).contains("pilots/db/broken"));
    assert!(typed(&migrate, &path, folder).contains("pilots: "));
}

#[test]
fn the_page_and_the_servers_messages_name_the_same_kubectl_commands() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let judge = fs::read_to_string(root.join("src/apiserver/store_identity/judge.rs")).unwrap();
    let one_line = |text: &str| {
        let text = text.replace('\\', "");
        text.split_whitespace().collect::<Vec<_>>().join(" ")
    };
    let (judge, page) = (one_line(&judge), one_line(&page()));
    let accept = names::annotation::ACCEPT_STORE;
    for (said, typed) in [
        ("delete configmap {record}", "delete configmap navigator-store".to_owned()),
        (
            "annotate configmap {record} {accept}={id}",
            format!("annotate configmap navigator-store {accept}=ID"),
        ),
        (
            "create configmap {record} --from-literal=id={id}",
            "create configmap navigator-store --from-literal=id=ID".to_owned(),
        ),
    ] {
        assert!(judge.contains(&format!("kubectl --namespace {{namespace}} {said}")), "{said}");
        assert!(page.contains(&format!("kubectl --namespace navigator {typed}")), "{typed}");
    }
}
