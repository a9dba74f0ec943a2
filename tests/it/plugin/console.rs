//! The shell scripts that open databases' own clients, run by a real shell with stand-ins of the
//! clients.

use std::{
    fs,
    io::Write as _,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
    time::Duration,
};

use navigator::{
    api::v1beta1::{Authentication, ClientAuth, ClientTls, InternodeTls, PilotSecurity},
    database::shown_databases,
    databases,
    plugin::{
        ShownDatabase,
        console::{ConsoleAccess, ConsoleLogin, KEEP_LOGIN},
    },
};

use crate::support::{executable, wait::until};

/// A container's file system, as far as a console sees it.
struct Container(tempfile::TempDir);

impl Container {
    fn new() -> Self {
        let place = tempfile::tempdir().unwrap();
        for folder in ["bin", "home/bin"] {
            fs::create_dir_all(place.path().join(folder)).unwrap();
        }
        Self(place)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Puts a program there.
    fn program(&self, name: &str, script: &str) {
        executable::write(&self.path(name), format!("#!/bin/sh\n{script}\n"));
    }

    #[expect(clippy::disallowed_methods, reason = "a test runs shells")]
    fn command(&self, words: &[String]) -> Command {
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]).env_clear();
        command.env("PATH", format!("{}:/usr/bin:/bin", self.path("bin").display()));
        command.env("CASSANDRA_HOME", self.path("home"));
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    fn runs(&self, words: &[String], input: &str) -> Output {
        let mut child = self.command(words).spawn().unwrap();
        // A program that reads nothing may have ended.
        drop(child.stdin.take().unwrap().write_all(input.as_bytes()));
        child.wait_with_output().unwrap()
    }

    fn keep(&self, file: &Path, login: &str) -> Output {
        let file = file.to_str().unwrap();
        self.runs(&["sh", "-c", KEEP_LOGIN, "login", file].map(str::to_owned), login)
    }
}

fn database(word: &str) -> &'static ShownDatabase {
    shown_databases(databases::ALL)
        .into_iter()
        .find(|database| database.names.word == word)
        .unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// A user whose password tries to end whatever it is quoted by.
const HOSTILE: ConsoleLogin<'_> =
    ConsoleLogin { username: "app@example.org", password: "a'b\"c\\d $(id) `id` %s;#=[x]" };

#[test]
fn a_node_is_entered_by_what_it_was_told() {
    let told = |client, authentication| PilotSecurity {
        internode: InternodeTls::Required,
        client,
        authentication,
        ..PilotSecurity::default()
    };
    let access = |told: &PilotSecurity| ConsoleAccess::new(Some(told), 0xab);
    let login = Some("/etc/navigator/console-00000000000000ab".to_owned());
    assert_eq!(ConsoleAccess::new(None, 1), None);
    assert_eq!(access(&told(ClientTls::Off, Authentication::Off)), None);
    assert_eq!(
        access(&told(ClientTls::Required, Authentication::Password)),
        Some(ConsoleAccess { tls: true, certificate: false, login: login.clone() })
    );
    let asks = PilotSecurity {
        client_auth: Some(ClientAuth::Required),
        ..told(ClientTls::Required, Authentication::Password)
    };
    assert_eq!(
        access(&asks),
        Some(ConsoleAccess { tls: true, certificate: true, login: login.clone() })
    );
    assert_eq!(
        access(&told(ClientTls::Off, Authentication::Password)),
        Some(ConsoleAccess { tls: false, certificate: false, login })
    );
    assert_eq!(
        access(&told(ClientTls::Optional, Authentication::Off)),
        Some(ConsoleAccess { tls: true, certificate: false, login: None })
    );
}

#[tokio::test]
async fn a_login_is_for_its_user_alone_and_goes_when_no_console_takes_it() {
    let container = Container::new();
    // Sleeps until the test lets it.
    container.program(
        "bin/sleep",
        &format!("echo $1 >>{0}/slept; cat {0}/gate", container.0.path().display()),
    );
    let gate = container.path("gate");
    nix::unistd::mkfifo(&gate, nix::sys::stat::Mode::S_IRWXU).unwrap();
    let file = container.path("login");
    let kept = container.keep(&file, "of app");
    assert!(kept.status.success(), "{kept:?}");
    assert_eq!(fs::read_to_string(&file).unwrap(), "of app");
    assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    // What is there already is nobody's to write.
    let twice = container.keep(&file, "of eve");
    assert!(!twice.status.success(), "{twice:?}");
    assert_eq!(fs::read_to_string(&file).unwrap(), "of app");
    let opened = tokio::task::spawn_blocking(move || fs::OpenOptions::new().write(true).open(gate));
    drop(opened.await.unwrap().unwrap());
    until("the login is removed", Duration::from_secs(60), async || {
        if file.exists() { Err("it is there".to_owned()) } else { Ok(()) }
    })
    .await;
    assert_eq!(fs::read_to_string(container.path("slept")).unwrap(), "60\n");
}

#[test]
fn curl_is_given_the_login_by_a_file_whose_name_is_gone() {
    let container = Container::new();
    let elasticsearch = database("elasticsearch").console.secured.as_ref().unwrap();
    let file = container.path("login");
    container.program(
        "bin/curl",
        &format!(
            r#"printf '<%s>' "$@"; echo; [ ! -e {} ] || echo 'still there'; [ "$2" != -K ] || cat "$3""#,
            file.display()
        ),
    );
    let login_file = Some(file.to_str().unwrap().to_owned());
    let access = ConsoleAccess { tls: true, certificate: false, login: login_file };
    let login = (elasticsearch.login_file)(&access, &HOSTILE).unwrap();
    let open = |words: &[&str], input: &str| {
        assert!(container.keep(&file, &login).status.success());
        let words = words.iter().map(|word| (*word).to_owned());
        let words: Vec<_> = (elasticsearch.command)(&access).into_iter().chain(words).collect();
        let ended = container.runs(&words, input);
        assert!(!file.exists(), "the login is still there");
        assert!(words.iter().all(|word| !word.contains("$(id)")));
        (ended.status.code(), text(&ended.stdout))
    };
    let begin = "<-sS><-K></proc/self/fd/3><-X>";
    let said = "user = \"app@example.org:a'b\\\"c\\\\d $(id) `id` %s;#=[x]\"\n\
                cacert = \"/etc/navigator/tls/client/ca.crt\"\n";
    let once = open(&["PUT", "/a b/_doc/1", "{\"a\": 1}"], "");
    let expected = format!(
        "{begin}<PUT><-H><Content-Type: application/json><-d><{{\"a\": 1}}>\
         <https://127.0.0.1:9200/a b/_doc/1>\n{said}"
    );
    assert_eq!(once, (Some(0), expected));
    // Each line of a prompt is a request, with the same login.
    let (code, lines) = open(&[], "_cat/nodes?v\n\nDELETE /x*\n");
    let nodes = format!("{begin}<GET><https://127.0.0.1:9200/_cat/nodes?v>\n{said}");
    let deleted = format!("{begin}<DELETE><https://127.0.0.1:9200/x*>\n{said}");
    assert_eq!((code, lines), (Some(0), format!("{nodes}\n{deleted}\n")));
    // A login that is gone opens nothing.
    let words: Vec<_> = (elasticsearch.command)(&access);
    let ended = container.runs(&words, "_cat/nodes\n");
    assert!(!ended.status.success() && ended.stdout.is_empty(), "{ended:?}");

    let asks = ConsoleAccess { certificate: true, ..access.clone() };
    let own = "cert = \"/etc/navigator/tls/internode/node.crt\"\n\
               key = \"/etc/navigator/tls/internode/node.key\"\n";
    // Such a node has the CAs of clients in `ca.crt`.
    let known = login.replace("client/ca.crt", "client/server-ca.crt");
    assert_eq!((elasticsearch.login_file)(&asks, &HOSTILE).unwrap(), format!("{known}{own}"));
    let by_hand = (elasticsearch.by_hand)(&asks);
    assert!(by_hand.contains("--cert /etc/navigator/tls/internode/node.crt"), "{by_hand}");
    assert!(by_hand.contains("--cacert /etc/navigator/tls/client/server-ca.crt"), "{by_hand}");
    let plain = ConsoleAccess { tls: false, ..access.clone() };
    assert!((elasticsearch.command)(&plain).contains(&"http://127.0.0.1:9200".to_owned()));
    assert!(!(elasticsearch.login_file)(&plain, &HOSTILE).unwrap().contains("cacert"));
    let colon = ConsoleLogin { username: "a:b", password: "x" };
    assert!((elasticsearch.login_file)(&access, &colon).is_err());
    let lines = ConsoleLogin { username: "a", password: "1\n2\t3\r\u{b}" };
    let lines = (elasticsearch.login_file)(&plain, &lines).unwrap();
    assert_eq!(lines, "user = \"a:1\\n2\\t3\\r\\v\"\n");
}

#[test]
fn cqlsh_is_given_the_login_by_a_file_whose_name_is_gone() {
    let container = Container::new();
    let cassandra = database("cassandra").console.secured.as_ref().unwrap();
    let file = container.path("login");
    container.program(
        "home/bin/cqlsh",
        &format!(
            r#"printf '<%s>' "$@"; echo "$SSL_CERTFILE"; [ ! -e {} ] || echo 'still there'
while [ $# -gt 0 ]; do
  if [ "$1" = --credentials ]; then stat -Lc %a "$2"; cat "$2" "$2"; fi
  shift
done
cat; exit 7"#,
            file.display()
        ),
    );
    let login = Some(file.to_str().unwrap().to_owned());
    let trust = "/etc/navigator/tls/client/ca.pem";
    let section = "[PlainTextAuthProvider]\nusername = app@example.org\npassword = a'b\"c\\d $(id) `id` %s;#=[x]\n";
    for (access, options) in [
        (
            ConsoleAccess { tls: true, certificate: false, login: login.clone() },
            "<--ssl><--credentials></proc/self/fd/3>",
        ),
        (
            ConsoleAccess { tls: false, certificate: false, login },
            "<--credentials></proc/self/fd/3>",
        ),
        (ConsoleAccess { tls: true, certificate: false, login: None }, "<--ssl>"),
    ] {
        let mut said = format!("{options}<-e><SELECT 'a b'>");
        said.push_str(if access.tls { trust } else { "" });
        said.push('\n');
        if access.login.is_some() {
            let login = (cassandra.login_file)(&access, &HOSTILE).unwrap();
            assert!(container.keep(&file, &login).status.success());
            // cqlsh refuses what others may read, and reads it more than once.
            said.extend(["600\n", section, section]);
        }
        let words = ["-e", "SELECT 'a b'"].map(str::to_owned);
        let words: Vec<_> = (cassandra.command)(&access).into_iter().chain(words).collect();
        let ended = container.runs(&words, "of the person");
        said.push_str("of the person");
        assert_eq!((ended.status.code(), text(&ended.stdout)), (Some(7), said), "{access:?}");
        assert!(!file.exists(), "the login is still there");
    }
    let access = ConsoleAccess::default();
    for password in [" a", "a ", "a\nb", "\ta"] {
        let login = ConsoleLogin { username: "app", password };
        assert!((cassandra.login_file)(&access, &login).is_err(), "{password:?}");
    }
}

/// cqlsh reads its settings more than once, and nothing of them stays.
#[test]
fn cqlsh_shows_the_certificate_of_the_node_where_one_is_asked_for() {
    let container = Container::new();
    let cassandra = database("cassandra").console.secured.as_ref().unwrap();
    container.program("home/bin/cqlsh", r#"printf '<%s>' "$@"; stat -Lc %a "$3"; cat "$3" "$3""#);
    let access = ConsoleAccess { tls: true, certificate: true, login: None };
    let mut words = (cassandra.command)(&access);
    // Such a node has the CAs of clients in `ca.pem`.
    let trust = "/etc/navigator/tls/client/server-ca.pem".to_owned();
    assert!(words.contains(&trust), "{words:?}");
    assert!((cassandra.by_hand)(&access).contains(&trust));
    let own = container.path("tls/internode/node.pem").to_str().unwrap().to_owned();
    let told = words.iter_mut().find(|word| *word == "/etc/navigator/tls/internode/node.pem");
    *told.expect("the command names the certificate") = own.clone();
    let ended = container.runs(&words, "");
    let section = format!("[ssl]\nuserkey = {own}\nusercert = {own}\n");
    let said = format!("<--ssl><--cqlshrc></proc/self/fd/4>600\n{section}{section}");
    assert_eq!((ended.status.code(), text(&ended.stdout)), (Some(0), said));
    let left = fs::read_dir(container.0.path()).unwrap().flatten();
    let left: Vec<_> = left.map(|entry| entry.file_name().into_string().unwrap()).collect();
    assert!(left.iter().all(|name| !name.starts_with("cqlshrc")), "{left:?}");
}

#[test]
fn a_login_is_not_printed_by_debug() {
    let shown = format!("{HOSTILE:?}");
    assert!(shown.contains("app@example.org") && !shown.contains("$(id)"), "{shown}");
}
